"""Structures (compounds) of a DMR++ document: their types, fill values, and values in the document. No I/O here."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from refshard_fs.core.keys import parent
from refshard_fs.formats.dmrpp.document import NUMBERS, TEXTS, Variable, parse_integers, parse_number

LONGEST: Final = 1 << 20  # bytes of one element
_END: Final = b";"  # the byte after a text


def make_structure(variable: Variable, shapes: Sequence[tuple[int, ...]], order: str) -> np.dtype[Any]:
    """Return the numpy type of a structure in the file. ``shapes`` are the shapes of its members.

    Raises ValueError if numpy has no such type.
    """
    members = list(zip(variable.members, shapes, strict=True))
    text = next((parent(member.path)[1] for member, _ in members if member.type in TEXTS), None)
    if text is not None:
        expected = "expected members of numbers, since its values lie outside of the document; open the file itself"
        raise ValueError(f"its member {text!r} is a text: {expected}")
    fields = [(parent(member.path)[1], order + NUMBERS[member.type], shape) for member, shape in members]
    if not fields:
        raise ValueError("it is a structure without members: expected at least one")
    _check_names([name for name, *_ in fields])
    packed = np.dtype(fields)
    if packed.itemsize > LONGEST:
        raise ValueError(f"its elements have {packed.itemsize} bytes: expected at most {LONGEST}")
    if not variable.struct_offsets:
        return packed
    *offsets, size = 0, *parse_integers(variable.struct_offsets)
    ends = [offset + packed[name].itemsize for offset, (name, *_) in zip(offsets, fields, strict=False)]
    if (
        len(offsets) != len(fields)
        or size > LONGEST
        or any(end > after for end, after in zip(ends, [*offsets[1:], size], strict=True))
    ):
        raise ValueError(
            f"its structOffset is {variable.struct_offsets!r}: expected {len(fields) - 1} ascending offsets of members "
            f"that do not overlap, then the size of the structure, at most {LONGEST}"
        )
    return make_dtype([(*field, offset) for field, offset in zip(fields, offsets, strict=True)], size)


def make_dtype(fields: Sequence[tuple[str, str, tuple[int, ...], int]], size: int) -> np.dtype[Any]:
    """Return the numpy type of a structure of ``size`` bytes; ``fields`` are (name, type, shape, offset) of members."""
    names, formats = [name for name, *_ in fields], [(kind, shape) for _, kind, shape, _ in fields]
    return np.dtype(
        {"names": names, "formats": formats, "offsets": [offset for *_, offset in fields], "itemsize": size}
    )


def pack_members(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a structure without gaps and in little-endian byte order, which zarr can hold."""
    return np.dtype([(name, dtype[name]) for name in dtype.names or ()]).newbyteorder("<")


def parse_structure_fill(texts: Sequence[str], dtype: np.dtype[Any]) -> bytes:
    """Parse the fill value of a structure. Return the bytes of one element.

    ``texts`` has an item for each member, or for each number of each member. Hyrax writes a single 0 if all are zero.
    """
    element = np.zeros((), dtype)
    names = dtype.names or ()
    counts = [max(math.prod(dtype[name].shape), 1) for name in names]
    if list(texts) == ["0"]:
        return element.tobytes()
    if len(texts) not in (len(names), sum(counts)):
        expected = f"one for each of {len(names)} members, or {sum(counts)} in all"
        raise ValueError(f"its fillValue has {len(texts)} values: expected {expected}")
    position = 0
    for name, count in zip(names, counts if len(texts) > len(names) else [1] * len(names), strict=True):
        kind = dtype[name].base
        values = [
            parse_number(text, kind) if kind.kind != "S" else text.encode()
            for text in texts[position : position + count]
        ]
        element[name] = np.array(values, kind).reshape(dtype[name].shape) if count > 1 else values[0]
        position += count
    return element.tobytes()


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it is a structure with two members {twice!r}: expected members of different names")


def decode_values_with_texts(
    variable: Variable, shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]], data: bytes, limit: int
) -> np.ndarray[Any, Any]:
    """Decode the values of a structure with texts, which are in the document.

    ``data`` are the elements one after the other, with each text in base64 and a semicolon after it. In the result,
    all texts of a member have the length of the longest one. Raises ValueError for more than ``limit`` bytes.
    """
    order = ">" if variable.byte_order == "BE" else "<"
    names = [parent(member.path)[1] for member in variable.members]
    kinds = [None if member.type in TEXTS else np.dtype(order + NUMBERS[member.type]) for member in variable.members]
    counts = [math.prod(inner) for inner in shapes]
    if not names:
        raise ValueError("it is a structure without members: expected at least one")
    if 0 in counts:
        raise ValueError(f"its member {names[counts.index(0)]!r} has no elements: expected at least one")
    _check_names(names)
    members: list[list[Any]] = [[] for _ in names]
    position = 0
    for _ in range(math.prod(shape)):
        for values, kind, count in zip(members, kinds, counts, strict=True):
            for _ in range(count):
                end = data.find(_END, position) if kind is None else position + kind.itemsize
                if end < position or end > len(data):
                    found = f"its values in the document end after {len(data)} bytes"
                    raise ValueError(f"{found}: expected {math.prod(shape)} structures")
                values.append(
                    base64.b64decode(data[position:end], validate=True) if kind is None else data[position:end]
                )
                position = end + (kind is None)
    if position != len(data):
        raise ValueError(f"its values in the document have {len(data)} bytes: expected {position}")
    lengths = [max(map(len, values), default=1) or 1 for values in members]
    fields = [
        (name, f"S{length}" if kind is None else kind, inner)
        for name, kind, length, inner in zip(names, kinds, lengths, shapes, strict=True)
    ]
    dtype = np.dtype(fields)
    if dtype.itemsize > LONGEST or dtype.itemsize * math.prod(shape) > limit:
        raise ValueError(
            f"its {math.prod(shape)} elements have {dtype.itemsize} bytes each: expected at most {LONGEST}, and at "
            f"most {limit} in all"
        )
    array = np.zeros(shape, dtype)
    for name, kind, values, inner in zip(names, kinds, members, shapes, strict=True):
        column = np.array(values, dtype[name].base) if kind is None else np.frombuffer(b"".join(values), kind)
        array[name] = column.reshape((*shape, *inner))
    return array

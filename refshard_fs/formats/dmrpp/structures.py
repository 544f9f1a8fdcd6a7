"""Structures of a DMR++ document: types, fill values, and values with texts in the document. No I/O here."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from refshard_fs.core.keys import parent
from refshard_fs.formats.dmrpp.document import NUMBERS, TEXTS, Variable, parse_integers, parse_number

LONGEST: Final = 1 << 20  # bytes of one element
_END: Final = b";"  # of a text


def make_structure(variable: Variable, shapes: Sequence[tuple[int, ...]], order: str) -> np.dtype[Any]:
    """Return the type of a structure in the file; ``shapes`` are its members' shapes."""
    members = list(zip(variable.members, shapes, strict=True))
    text = next((parent(member.path)[1] for member, _ in members if member.type in TEXTS), None)
    if text is not None:
        raise ValueError(f"its member {text!r} is a text, and its values are not in the document")
    fields = [(parent(member.path)[1], order + NUMBERS[member.type], shape) for member, shape in members]
    if not fields or len({name for name, *_ in fields}) != len(fields):
        raise ValueError("it is a structure without members, or two of them have the same name")
    packed = np.dtype(fields)
    if packed.itemsize > LONGEST:
        raise ValueError(f"its elements have {packed.itemsize} bytes: at most {LONGEST} are supported")
    if not variable.struct_offsets:
        return packed
    *offsets, size = 0, *parse_integers(variable.struct_offsets)
    ends = [at + packed[name].itemsize for at, (name, *_) in zip(offsets, fields, strict=False)]
    if (
        len(offsets) != len(fields)
        or size > LONGEST
        or any(end > after for end, after in zip(ends, [*offsets[1:], size], strict=True))
    ):
        raise ValueError(
            f"its structOffset is {variable.struct_offsets!r}: expected {len(fields) - 1} offsets, and the size"
        )
    return make_dtype([(*field, at) for field, at in zip(fields, offsets, strict=True)], size)


def make_dtype(fields: Sequence[tuple[str, str, tuple[int, ...], int]], size: int) -> np.dtype[Any]:
    """Return the type of a structure of ``size`` bytes, of members with name, type, shape and offset."""
    names, formats = [name for name, *_ in fields], [(kind, shape) for _, kind, shape, _ in fields]
    return np.dtype({"names": names, "formats": formats, "offsets": [at for *_, at in fields], "itemsize": size})


def pack_members(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a structure without gaps, in little-endian byte order, as zarr holds it."""
    return np.dtype([(name, dtype[name]) for name in dtype.names or ()]).newbyteorder("<")


def parse_structure_fill(texts: Sequence[str], dtype: np.dtype[Any]) -> bytes:
    """Return the element of a structure whose members have the values ``texts``.

    There is a text for each member, or for each number of each member. Hyrax writes a single 0 if all are zero.
    """
    found = np.zeros((), dtype)
    names = dtype.names or ()
    counts = [max(math.prod(dtype[name].shape), 1) for name in names]
    if list(texts) == ["0"]:
        return found.tobytes()
    if len(texts) not in (len(names), sum(counts)):
        what = f"one for each of {len(names)} members, or {sum(counts)} in all"
        raise ValueError(f"its fillValue has {len(texts)} values: expected {what}")
    at = 0
    for name, count in zip(names, counts if len(texts) > len(names) else [1] * len(names), strict=True):
        kind = dtype[name].base
        some = [parse_number(text, kind) if kind.kind != "S" else text.encode() for text in texts[at : at + count]]
        found[name] = np.array(some, kind).reshape(dtype[name].shape) if count > 1 else some[0]
        at += count
    return found.tobytes()


def decode_values_with_texts(
    variable: Variable, shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]], data: bytes, most: int
) -> np.ndarray[Any, Any]:
    """Decode a structure whose values, texts among them, are in the document; at most ``most`` bytes.

    Elements follow one another. Each text is base64, and ends with a semicolon. All texts of a member get the length of
    the longest one.
    """
    order = ">" if variable.byte_order == "BE" else "<"
    names = [parent(member.path)[1] for member in variable.members]
    kinds = [None if member.type in TEXTS else np.dtype(order + NUMBERS[member.type]) for member in variable.members]
    counts = [math.prod(inner) for inner in shapes]
    if not names or len(set(names)) != len(names) or 0 in counts:
        raise ValueError("it is a structure without members, two of them have the same name, or one is empty")
    found: list[list[Any]] = [[] for _ in names]
    at = 0
    for _ in range(math.prod(shape)):
        for values, kind, count in zip(found, kinds, counts, strict=True):
            for _ in range(count):
                end = data.find(_END, at) if kind is None else at + kind.itemsize
                if end < at or end > len(data):
                    raise ValueError(f"its values in the document end after {len(data)} bytes: expected more")
                values.append(base64.b64decode(data[at:end], validate=True) if kind is None else data[at:end])
                at = end + (kind is None)
    if at != len(data):
        raise ValueError(f"its values in the document have {len(data)} bytes: expected {at}")
    lengths = [max(map(len, values), default=1) or 1 for values in found]
    fields = [
        (name, f"S{length}" if kind is None else kind, inner)
        for name, kind, length, inner in zip(names, kinds, lengths, shapes, strict=True)
    ]
    dtype = np.dtype(fields)
    if dtype.itemsize > LONGEST or dtype.itemsize * math.prod(shape) > most:
        raise ValueError(
            f"its elements have {dtype.itemsize} bytes: at most {LONGEST}, and {most} in all, are supported"
        )
    array = np.zeros(shape, dtype)
    for name, kind, values, inner in zip(names, kinds, found, shapes, strict=True):
        column = np.array(values, dtype[name].base) if kind is None else np.frombuffer(b"".join(values), kind)
        array[name] = column.reshape((*shape, *inner))
    return array

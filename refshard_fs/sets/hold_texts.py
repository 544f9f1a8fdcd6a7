"""Hold small texts in a set of references, if references cannot join them: widths, codecs or chunks differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from refshard_fs.core.dtypes import find_common_text_type, find_decoded_type, find_text_codec, make_text_metadata
from refshard_fs.cubes.text_chunk import dump_texts
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.digests import have_references, read_small_arrays
from refshard_fs.sets.text_widths import widen_texts
from refshard_fs.sets.variables import NamedSet


def hold_texts(parts: Sequence[NamedSet], dims: Sequence[str | None]) -> list[NamedSet]:
    """Return ``parts`` with texts along ``dims`` inline, in equal chunks, if their references cannot be joined.

    An array that is not small, or cannot be read, stays as it is.
    """
    paths = dict.fromkeys(path for dim in dims for part in parts for path in part.find_axes(dim))
    wanted = [path for path in paths if _must_be_held(path, parts, dims)]
    if not wanted:
        return list(parts)
    own = {number: [path for path in wanted if path in part.variables] for number, part in enumerate(parts)}
    chunks = dict(read_small_arrays(parts, own))
    read = {n: {path: parts[n].decode(path, found) for path, found in chunks[n].items()} for n in chunks}
    held = [path for path in wanted if all(path not in own[n] or read[n].get(path) is not None for n in own)]
    shown = list(parts)
    for dim in dims:
        shown = widen_texts(shown, dim, held).parts
    changed = [ChangedSet(part) for part in shown]
    for path in held:
        owners = [number for number in own if path in own[number]]
        dtype = find_common_text_type(
            [value for n in owners if (value := find_decoded_type(parts[n].variables[path].meta))]
        )
        lead = shown[owners[0]].variables[path]
        shapes = [shown[number].variables[path].meta.shape for number in owners]
        cut = [math.gcd(*lengths) if d in dims else lengths[0] for d, *lengths in zip(lead.dims, *shapes, strict=True)]
        for number, shape in zip(owners, shapes, strict=True):
            values = read[number][path]
            assert dtype is not None, "`_must_be_held` checked the types"
            assert values is not None, "arrays without values are not in `held`"
            _put(changed[number], shown[number], path, _pad(values.astype(dtype), shape), [max(n, 1) for n in cut])
    return [part.finish() for part in changed]


def _must_be_held(path: str, parts: Sequence[NamedSet], dims: Sequence[str | None]) -> bool:
    """Return whether an array has texts, and references cannot join the texts of all ``parts``."""
    owners = [part for part in parts if path in part.variables]
    variables = [part.variables[path] for part in owners]
    types = [find_decoded_type(variable.meta) for variable in variables]
    known = [dtype for dtype in types if dtype is not None]
    if (
        len(known) < len(types)
        or find_common_text_type(known) is None
        or len({find_text_codec(v.meta) for v in variables}) > 1
    ):
        return False
    if any(part.fo is None and have_references(path, part) for part in owners):
        return False
    if len({len(variable.dims) for variable in variables}) > 1 or any(v.meta.chunks is None for v in variables):
        return False
    first = variables[0]
    differ = any(
        {**v.meta.raw, "shape": 0, "attributes": 0} != {**first.meta.raw, "shape": 0, "attributes": 0}
        for v in variables
    )
    lengths = [
        (length, size)
        for variable in variables[:-1]
        for d, length, size in zip(variable.dims, variable.meta.shape, variable.meta.chunks or (), strict=True)
        if d in dims
    ]
    return differ or any(size == 0 or length % size for length, size in lengths)


def _pad(values: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Pad the last dimension with empty characters to the length in ``shape``."""
    if values.shape == tuple(shape):
        return values
    out = np.zeros(shape, values.dtype)
    out[..., : values.shape[-1]] = values
    return out


def _put(changed: ChangedSet, part: NamedSet, path: str, values: npt.NDArray[Any], cut: Sequence[int]) -> None:
    """Replace an array by ``values`` in inline chunks of the shape ``cut``."""
    variable = part.variables[path]
    counts = [-(-length // size) for length, size in zip(values.shape, cut, strict=True)]
    chunks = {}
    for number, at in enumerate(product(*map(range, counts))):
        texts = values[tuple(slice(i * size, (i + 1) * size) for i, size in zip(at, cut, strict=True))]
        chunks[number] = dump_texts(texts) if texts.dtype.kind == "O" else texts.tobytes()
    attributes = dict(variable.attributes) if variable.meta.zarr_format == 2 else None
    changed.put(variable, make_text_metadata(variable.meta, values.dtype, values.shape, cut), attributes, chunks)

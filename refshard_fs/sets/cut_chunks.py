"""Cut chunks without a codec into smaller chunks, which are ranges of the stored ones. No I/O here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.cubes.moving import shift_by
from refshard_fs.cubes.sections import find_byte_range, is_plain
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet, ChunkMove
from refshard_fs.sets.variables import NamedSet


def cut_chunks(part: NamedSet, subchunks: Mapping[str, int], *, lazy: bool) -> NamedSet:
    """Cut the chunks of a set to the lengths ``subchunks``, by dimension; return the set.

    If ``lazy``, chunks are cut when they are read: only check that they can be cut, and return the set unchanged.
    """
    shapes = {path: _choose_smaller_chunks(part, path, subchunks) for path in part.variables}
    if lazy or not any(shapes.values()):
        return part
    changed = ChangedSet(part)
    for path, shape in shapes.items():
        if shape is not None:
            _divide(changed, path, shape)
    return changed.finish(keeps_digests=True)


def _choose_smaller_chunks(part: NamedSet, path: str, subchunks: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an array's chunks after cutting; None if they are not cut.

    ManifestError if a smaller chunk is not one byte range of a stored chunk.
    """
    variable = part.variables[path]
    chunks = variable.meta.chunks
    asked = [subchunks.get(dim or "") for dim in variable.dims]
    if variable.is_coordinate or not any(asked):
        return None
    where = f"the chunks of {path!r} of {part.name}"
    if chunks is None:
        raise ManifestError(
            f"{where} have different sizes, or a size that is not known: subchunks= can cut only chunks of one size"
        )
    shape = tuple(size if n is None else min(n, size) for n, size in zip(asked, chunks, strict=True))
    dtype = dtype_of(variable.meta)
    if shape == chunks:
        return None
    if dtype is None or not is_plain(variable.meta):
        codecs = ", ".join(zarrmeta.codecs_of(variable.meta)) or f"order {variable.meta.order}"
        raise ManifestError(f"{where} are encoded ({codecs}): subchunks= can only cut chunks without a codec")
    if find_byte_range(chunks, tuple((0, n) for n in shape), dtype.itemsize) is None:
        raise ManifestError(
            f"{where} have the shape {list(chunks)}: a part of {list(shape)} is not one range of bytes. subchunks= "
            "can divide the first dimension, or a later one if chunks have the length 1 along all dimensions before it"
        )
    return shape


def _divide(changed: ChangedSet, path: str, shape: Sequence[int]) -> None:
    """Cut the chunks of an array to ``shape``; ManifestError if a chunk is not a whole number of smaller chunks."""
    part, variable = changed.part, changed.part.variables[path]
    meta, dtype = variable.meta, dtype_of(variable.meta)
    chunks = meta.chunks or ()
    assert dtype is not None, "`_choose_smaller_chunks` checked the data type"
    if any(size % n for size, n in zip(chunks, shape, strict=True)):
        raise ManifestError(
            f"the chunks of {path!r} of {part.name} have the shape {list(chunks)}, which is not a multiple of "
            f"{list(shape)}, from subchunks=: give divisors; with lazy=True, chunks may have any length"
        )
    size = math.prod(chunks) * dtype.itemsize
    if not np.isin(changed.tables[path].make_part().ranges.lengths, (size, WHOLE)).all():
        raise ManifestError(
            f"a chunk of {path!r} of {part.name} does not have the {size} bytes of {list(chunks)} elements, so "
            "subchunks= cannot cut it"
        )
    counts = tuple(a // b for a, b in zip(chunks, shape, strict=True))  # smaller chunks in a chunk, along each axis
    moves: list[ChunkMove] = []
    for at in itertools.product(*map(range, counts)):
        box = tuple((k * n, (k + 1) * n) for k, n in zip(at, shape, strict=True))
        along = {axis: shift_by(k, factor=n) for axis, (n, k) in enumerate(zip(counts, at, strict=True))}
        moves.append((along, find_byte_range(chunks, box, dtype.itemsize)))
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    changed_grid = {"chunks": list(shape)} if meta.zarr_format == 2 else {"chunk_grid": grid}
    changed.put_moved(variable, {**meta.raw, **changed_grid}, moves)

"""A set of which a part is taken along a dimension, or whose chunks are shown in smaller pieces. No I/O here.

Both are done with references alone: whole chunks are taken, and pieces of chunks without a codec, which are ranges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE, ChunkTable, Part, Ranges
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.keys import join
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.recutting import contiguous, is_plain
from refshard_fs.sets.variables import ChangedSet, Move, Named, Variable, moved


def trimmed(part: Named, dim: str, start: int, stop: int) -> Named:
    """Return a set with elements ``[start, stop)`` along ``dim`` alone; ManifestError unless these are whole chunks."""
    lengths = {v.meta.shape[v.dims.index(dim)] for v in part.variables.values() if dim in v.dims}
    if lengths == {stop - start}:
        return part
    changed = ChangedSet(part)
    for variable in part.variables.values():
        if dim in variable.dims:
            _trim(changed, variable, variable.dims.index(dim), start, stop)
    return changed.named()


def _trim(changed: ChangedSet, variable: Variable, axis: int, start: int, stop: int) -> None:
    part, path, meta = changed.part, variable.path, variable.meta
    if start == 0 and stop == meta.shape[axis]:
        return
    size = meta.chunks[axis] if meta.chunks is not None else 0
    are_whole = size and not start % size and (not stop % size or stop == meta.shape[axis])
    values = part.values(path) if len(meta.shape) == 1 or not are_whole else None
    if values is not None:
        changed.put_values(variable, np.moveaxis(np.moveaxis(values, axis, 0)[start:stop], 0, axis))
        return
    if not are_whole:
        raise ManifestError(
            f"of {part.name} elements {start} to {stop} along {variable.dims[axis]!r} are taken, and chunks of "
            f"{path!r} have {size}: a chunk cannot be taken in part"
        )
    shape = [*meta.shape[:axis], stop - start, *meta.shape[axis + 1 :]]
    changed.put_moved(variable, {**meta.raw, "shape": shape}, {axis: lambda coords: coords - start // size})


# ----------------------------------------------------------------------------------------------------
# Ranges of ranges.


def smaller_chunks(part: Named, path: str, subchunks: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the chunks in which an array is shown by ``subchunks``, lengths by dimension; None for its own.

    ManifestError where a piece of a chunk is no range of it.
    """
    variable = part.variables[path]
    chunks = variable.meta.chunks
    asked = [subchunks.get(dim or "") for dim in variable.dims]
    if variable.is_coordinate or not any(asked):
        return None
    where = f"the chunks of {path!r} of {part.name}"
    if chunks is None:
        raise ManifestError(f"{where} are not of one size, or not known: they have no smaller pieces")
    shape = tuple(size if n is None else min(n, size) for n, size in zip(asked, chunks, strict=True))
    dtype = dtype_of(variable.meta)
    if shape == chunks:
        return None
    if dtype is None or not is_plain(variable.meta):
        codecs = ", ".join(zarrmeta.codecs_of(variable.meta)) or f"order {variable.meta.order}"
        raise ManifestError(f"{where} are encoded ({codecs}), so that no range of one is a smaller chunk (subchunks=)")
    if contiguous(chunks, tuple((0, n) for n in shape), dtype.itemsize) is None:
        raise ManifestError(
            f"{where} have the shape {list(chunks)}: pieces of {list(shape)} are not in one range each. "
            "subchunks= divides the first dimension, or one before which chunks have the length 1"
        )
    return shape


def subchunked(part: Named, subchunks: Mapping[str, int], *, lazy: bool) -> Named:
    """Return a set with chunks shown in smaller pieces, as long as ``subchunks`` says by dimension.

    If ``lazy``, whoever reads cuts them: that they can be cut is seen to, and the set returned as it is.
    """
    found = {path: smaller_chunks(part, path, subchunks) for path in part.variables}
    if lazy or not any(found.values()):
        return part
    changed = ChangedSet(part)
    for path, shape in found.items():
        if shape is not None:
            _divide(changed, path, shape)
    return changed.named(keeps_digests=True)


def _divide(changed: ChangedSet, path: str, shape: Sequence[int]) -> None:
    part = changed.part
    variable = part.variables[path]
    meta, dtype, old = variable.meta, dtype_of(variable.meta), part.refs.tables[path].grid
    chunks = meta.chunks or ()
    assert dtype is not None, "`smaller_chunks` has looked at it"
    if any(size % n for size, n in zip(chunks, shape, strict=True)):
        raise ManifestError(
            f"the chunks of {path!r} of {part.name} have the shape {list(chunks)}, no multiple of {list(shape)}: "
            "lazy=True takes pieces of any length"
        )
    doc = dict(meta.raw)
    if meta.zarr_format == 2:
        doc["chunks"] = list(shape)
    else:
        doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    size = math.prod(chunks) * dtype.itemsize
    times = tuple(a // b for a, b in zip(chunks, shape, strict=True))
    numbers, ranges = changed.tables[path].part()
    if not np.isin(ranges.lengths, (size, WHOLE)).all():
        raise ManifestError(
            f"not all chunks of {path!r} of {part.name} have the {size} bytes of {list(chunks)} elements"
        )
    inline = part.inline.get(path, {})
    grid, parts = changed.put(variable, doc), []
    for place in itertools.product(*map(range, times)):
        box = tuple((k * n, (k + 1) * n) for k, n in zip(place, shape, strict=True))
        offset, length = contiguous(chunks, box, dtype.itemsize) or (0, 0)
        along: dict[int, Move] = {
            axis: partial(_divided, times=n, piece=k) for axis, (n, k) in enumerate(zip(times, place, strict=True))
        }
        now, is_there = moved(numbers.astype(np.int64), old.counts, grid.counts, along)
        offsets, lengths = ranges.offsets + np.uint64(offset), np.full(len(numbers), length, np.uint64)
        pieces = Ranges(ranges.targets, offsets, lengths).take(is_there)
        parts.append(Part(now[is_there].astype(np.uint64), pieces))
        now, is_there = moved(np.array(list(inline), np.int64), old.counts, grid.counts, along)
        for number, there, data in zip(now.tolist(), is_there.tolist(), inline.values(), strict=True):
            if there:
                changed.members[join(path, grid.tail(number))] = data[offset : offset + length]
    changed.tables[path] = ChunkTable.from_parts(grid, parts)


def _divided(coords: Any, times: int, piece: int) -> Any:
    return coords * times + piece

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
from refshard_fs.cubes.sections import contiguous, is_plain
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet, Moved
from refshard_fs.sets.variables import NamedSet


def cut_chunks(part: NamedSet, subchunks: Mapping[str, int], *, lazy: bool) -> NamedSet:
    """Return a set with chunks shown in smaller pieces, as long as ``subchunks`` says by dimension.

    If ``lazy``, chunks are cut when they are read: the set is returned unchanged, once it is clear that they can be.
    """
    shapes = {path: _choose_smaller_chunks(part, path, subchunks) for path in part.variables}
    if lazy or not any(shapes.values()):
        return part
    changed = ChangedSet(part)
    for path, shape in shapes.items():
        if shape is not None:
            _divide(changed, path, shape)
    return changed.result(keeps_digests=True)


def _choose_smaller_chunks(part: NamedSet, path: str, subchunks: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an array's chunks by ``subchunks``; None for its own.

    ManifestError if a piece of a chunk is not one range.
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


def _divide(changed: ChangedSet, path: str, shape: Sequence[int]) -> None:
    part, variable = changed.part, changed.part.variables[path]
    meta, dtype = variable.meta, dtype_of(variable.meta)
    chunks = meta.chunks or ()
    assert dtype is not None, "`_choose_smaller_chunks` has looked at it"
    if any(size % n for size, n in zip(chunks, shape, strict=True)):
        raise ManifestError(
            f"the chunks of {path!r} of {part.name} have the shape {list(chunks)}, no multiple of {list(shape)}: "
            "lazy=True takes pieces of any length"
        )
    size = math.prod(chunks) * dtype.itemsize
    if not np.isin(changed.tables[path].part().ranges.lengths, (size, WHOLE)).all():
        raise ManifestError(
            f"not all chunks of {path!r} of {part.name} have the {size} bytes of {list(chunks)} elements"
        )
    counts = tuple(a // b for a, b in zip(chunks, shape, strict=True))  # pieces of a chunk along each axis
    moves: list[Moved] = []
    for at in itertools.product(*map(range, counts)):
        box = tuple((k * n, (k + 1) * n) for k, n in zip(at, shape, strict=True))
        along = {axis: shift_by(k, factor=n) for axis, (n, k) in enumerate(zip(counts, at, strict=True))}
        moves.append((along, contiguous(chunks, box, dtype.itemsize)))
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    changed_grid = {"chunks": list(shape)} if meta.zarr_format == 2 else {"chunk_grid": grid}
    changed.put_moved(variable, {**meta.raw, **changed_grid}, moves)

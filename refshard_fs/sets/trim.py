"""Take a part of a set along a dimension. No I/O here."""

from __future__ import annotations

import msgspec
import numpy as np

from refshard_fs.cubes.moving import shift_by
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.variables import NamedSet


def trim(part: NamedSet, dim: str, start: int, stop: int, *, lazy: bool = False) -> NamedSet:
    """Return a set with only the elements ``[start, stop)`` along ``dim``; ManifestError unless they are whole chunks.

    If ``lazy``, chunks are cut when they are read, so that any elements can be taken.
    """
    changed, coordinate = ChangedSet(part), part.find_coordinate(dim)
    is_changed = False
    for path, axis in part.find_axes(dim).items():
        variable, meta = part.variables[path], part.variables[path].meta
        if start == 0 and stop == meta.shape[axis]:
            continue
        is_changed = True
        size = meta.chunks[axis] if meta.chunks is not None else 0
        are_whole = size and not start % size and (not stop % size or stop == meta.shape[axis])
        is_known = variable is coordinate if lazy else len(meta.shape) == 1 or not are_whole
        values = part.decode_values(path) if is_known else None
        document = {**meta.raw, "shape": [*meta.shape[:axis], stop - start, *meta.shape[axis + 1 :]]}
        if values is not None:
            changed.put_values(variable, np.moveaxis(np.moveaxis(values, axis, 0)[start:stop], 0, axis))
        elif are_whole:
            changed.put_moved(variable, document, [({axis: shift_by(-(start // size))}, None)])
        elif lazy:
            changed.put(variable, document)
        else:
            raise ManifestError(
                f"{part.name}: elements {start} to {stop} along {dim!r} begin or end inside chunks of {path!r}, which "
                f"have {size} elements: references name whole chunks. lazy=True cuts chunks when they are read"
            )
    if not is_changed:
        return part
    trimmed = changed.finish()
    if not lazy:
        return trimmed
    begin, total = part.take or (0, part.find_length(dim))
    return msgspec.structs.replace(trimmed, take=(begin + start, total))

"""Sets along a dimension put in order by its coordinate, and what two of them have both. No I/O here.

The values of the coordinate tell: they are read when sets are joined, and are kept inline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import ChunkTable, Part
from refshard_fs.core.dtypes import plain
from refshard_fs.core.keys import join
from refshard_fs.core.zarrmeta import array_meta
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.concatenation import in_first_units
from refshard_fs.sets.variables import Named, Variable, VariableReader

# Which set gives a value of the coordinate that several have.
Overlap = Literal["error", "first", "last"]


class Kept(NamedTuple):
    """Elements ``[start, stop)`` along the dimension of the set ``number``."""

    number: int
    start: int
    stop: int


def arrange(parts: Sequence[Named], dim: str, *, sort: bool = False, overlap: Overlap = "error") -> list[Kept] | None:
    """Return which elements of which sets are joined along ``dim``, in order; None for all as they are given.

    With ``sort`` the sets are ordered by their first value. ManifestError where sets have values of the coordinate in
    common and ``overlap`` does not say whose are taken, or where what is left of one is not in one piece.
    """
    values = coordinate_values(parts, dim)
    if values is None:
        if sort or overlap != "error":
            raise ManifestError(f"there is no coordinate {dim!r} of numbers to put the sets in order by")
        return None
    order = [number for number, found in enumerate(values) if len(found)]
    if sort:
        descending = all(found[0] > found[-1] for found in values if len(found) > 1) and len(values[order[0]]) > 1
        order.sort(key=lambda number: values[number][0], reverse=descending)
    taken = np.concatenate([values[number] for number in order])
    owners = np.repeat(np.arange(len(order)), [len(values[number]) for number in order])
    distinct = np.unique(taken, return_inverse=True, equal_nan=False)[1].reshape(-1)
    owner = np.full(len(taken), -1 if overlap == "last" else len(order))  # of each distinct value
    (np.maximum if overlap == "last" else np.minimum).at(owner, distinct, owners)
    keep = owners == owner[distinct]
    if overlap == "error" and not keep.all():
        place = int(np.flatnonzero(~keep)[0])
        one, other = (parts[order[position]].name for position in (owners[place], owner[distinct[place]]))
        raise ManifestError(
            f"{one} has {dim} = {shown_value(taken[place], parts[0], dim)}, and so has {other}: overlap='first' or "
            "'last' says whose is taken"
        )
    kept = []
    for position, number in enumerate(order):
        places = np.flatnonzero(keep[owners == position])
        if len(places):
            start, stop = int(places[0]), int(places[-1]) + 1
            if stop - start != len(places):
                raise ManifestError(f"what is left of {parts[number].name} along {dim!r} is not in one piece")
            kept.append(Kept(number, start, stop))
    is_all = [k.number for k in kept] == list(range(len(parts)))
    return None if is_all and keep.all() else kept


def coordinate_values(parts: Sequence[Named], dim: str) -> list[npt.NDArray[Any]] | None:
    """Return the values of the coordinate of ``dim`` in each set, in the first one's units; None if there are none."""
    path = next((path for path, v in parts[0].variables.items() if v.is_coordinate and v.dims == (dim,)), None)
    if path is None:
        return None
    found = []
    for part in parts:
        values = part.values(path) if path in part.variables else None
        if values is None:
            return None
        found.append(in_first_units(path, parts[0], part, values))
    return found


def shown_value(value: Any, part: Named, dim: str) -> str:
    """Return a value of the coordinate of ``dim`` as an error says it."""
    variable = next(v for v in part.variables.values() if v.is_coordinate and v.dims == (dim,))
    units = variable.attributes.get("units")
    return f"{value} {units}" if isinstance(units, str) else str(value)


def is_ordered(values: npt.NDArray[Any]) -> bool:
    """Whether values only ascend, or only descend."""
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def trimmed(part: Named, dim: str, start: int, stop: int) -> Named:
    """Return a set with elements ``[start, stop)`` along ``dim`` alone; ManifestError unless these are whole chunks."""
    lengths = {v.meta.shape[v.dims.index(dim)] for v in part.variables.values() if dim in v.dims}
    if lengths == {stop - start}:
        return part
    tables: dict[str, ChunkTable] = dict(part.refs.tables)
    members: dict[str, Value] = dict(part.refs.side.items())
    for path, variable in part.variables.items():
        if dim in variable.dims:
            _trim(part, path, variable, variable.dims.index(dim), (start, stop), tables, members)
    refs = ReferenceSet(part.refs.urls, tables, members, pins=part.refs.pins)
    digests = {path: digest for path, digest in part.digests.items() if dim not in part.variables[path].dims}
    return Named(part.name, refs, VariableReader().read(refs, part.name), digests)


def _trim(
    part: Named,
    path: str,
    variable: Variable,
    axis: int,
    kept: tuple[int, int],
    tables: dict[str, ChunkTable],
    members: dict[str, Value],
) -> None:
    start, stop = kept
    meta, old = variable.meta, tables[path].grid
    if start == 0 and stop == meta.shape[axis]:
        return
    values = part.values(path)
    for number in part.inline.get(path, {}):
        members.pop(join(path, old.tail(number)), None)
    if values is not None:
        members[variable.key], data = plain(meta, values[start:stop])
        tables[path] = ChunkTable.from_parts(_grid(members[variable.key], path), [])
        members[join(path, tables[path].grid.tail(0))] = data
        return
    size = meta.chunks[axis] if meta.chunks is not None else 0
    if not size or start % size or (stop % size and stop != meta.shape[axis]):
        raise ManifestError(
            f"of {part.name} elements {start} to {stop} along {variable.dims[axis]!r} are taken, and chunks of "
            f"{path!r} have {size}: a chunk cannot be taken in part"
        )
    shape = [*meta.shape[:axis], stop - start, *meta.shape[axis + 1 :]]
    members[variable.key] = {**meta.raw, "shape": shape}
    grid = _grid(members[variable.key], path)
    inner, first = math.prod(old.counts[axis + 1 :]), start // size

    def moved(numbers: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return which chunks are taken, and the numbers of all in the new grid."""
        outer, rest = np.divmod(numbers.astype(np.int64), old.counts[axis] * inner)
        place, below = np.divmod(rest, inner)
        place -= first
        chosen = (place >= 0) & (place < grid.counts[axis])
        return chosen, (outer * grid.counts[axis] + place) * inner + below

    numbers, ranges = tables[path].part()
    chosen, now = moved(numbers)
    tables[path] = ChunkTable.from_parts(grid, [Part(now[chosen].astype(np.uint64), ranges.take(chosen))])
    inline = sorted(part.inline.get(path, {}).items())
    chosen, now = moved(np.array([number for number, _ in inline], np.int64))
    for (_, data), is_taken, number in zip(inline, chosen.tolist(), now.tolist(), strict=True):
        if is_taken:
            members[join(path, grid.tail(number))] = data


def _grid(doc: Any, path: str) -> Any:
    meta = array_meta(doc, repr(path))
    if meta is None or meta.grid is None:
        raise ManifestError(f"{path!r} has no chunk grid")
    return meta.grid


def check_order(old: npt.NDArray[Any], new: npt.NDArray[Any], name: str, dim: str) -> None:
    """Raise ManifestError where ``old`` values are in order, and are not any more with ``new`` ones behind them."""
    if len(old) > 1 and is_ordered(old) and not is_ordered(np.concatenate([old, new])):
        first, last = new[0], old[-1]
        raise ManifestError(
            f"{name} begins at {dim} = {first}, and the set ends at {last}: it would not be in order any more. "
            "any_order=True appends it nevertheless"
        )

"""Give sets a dimension that they lack: their arrays get a first axis of length 1. No I/O here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.keys import join
from refshard_fs.cubes.overlaid import stack_metadata
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import object_in
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.compatibility import are_same_values
from refshard_fs.sets.digests import add_digests
from refshard_fs.sets.file_grid import FileGrid
from refshard_fs.sets.patterns import FileCoordinate
from refshard_fs.sets.variables import NamedSet, Variable, find_auxiliary

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Values = npt.NDArray[Any] | None  # None: unknown


class _Coordinate(NamedTuple):
    """The values and the attributes of a new dimension's coordinate."""

    values: Any
    attributes: Mapping[str, Any]


def _make_coordinate(places: Sequence[FileCoordinate]) -> _Coordinate:
    if isinstance(places[0], datetime):
        seconds = [(place - _EPOCH).total_seconds() for place in places if isinstance(place, datetime)]
        units = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}
        is_whole = all(second.is_integer() for second in seconds)
        return _Coordinate(np.array(seconds, "<i8" if is_whole else "<f8"), units)
    if all(isinstance(place, int | float) for place in places):
        return _Coordinate(np.array(places, "<i8" if all(isinstance(p, int) for p in places) else "<f8"), {})
    return _Coordinate(np.array(places, f"<U{max(map(len, map(str, places)))}"), {})


def make_coordinate_set(grid: FileGrid, dim: str, number: int, like: NamedSet, name: str) -> NamedSet:
    """Return a set that has only one value of a coordinate, in the zarr version of ``like``."""
    refs = ReferenceSet(like.refs.urls, {}, {}, origins=like.refs.origins)
    empty = ChangedSet(NamedSet(name, refs, {}))
    version = next(variable.meta.zarr_format for variable in like.variables.values())
    _put_coordinate(empty, dim, _make_coordinate(grid.places[dim]), number, version)
    return empty.finish()


def stack_grid(grid: FileGrid, parts: Mapping[tuple[int, ...], NamedSet]) -> list[NamedSet]:
    """Give the sets of a grid the dimensions of the grid that they lack."""
    found = dict(parts)
    known = {dim for part in parts.values() for variable in part.variables.values() for dim in variable.dims}
    inside = [dim for dim in grid.dims if dim in known]
    for axis, dim in reversed(list(enumerate(grid.dims))):
        if dim not in known:
            rows: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
            for at in found:
                rows.setdefault((*at[:axis], *at[axis + 1 :]), []).append(at)
            for row in rows.values():
                stacking = Stacking.of(grid, dim, [found[at] for at in row], [at[axis] for at in row], inside)
                found |= zip(row, stacking.parts, strict=True)
            inside.append(dim)
    return list(found.values())


class Stacking(NamedTuple):
    """Sets with a new dimension of length 1, which is the first dimension of their arrays ``paths``.

    The coordinate is made from the sets' places in a grid, or from a scalar of each set. ``metadata`` has, by key, the
    documents that a lazy cube shows instead of those of its first set. ``values`` are the bytes of the coordinate's
    values, if it is made from places.
    """

    parts: list[NamedSet]
    paths: tuple[str, ...]
    metadata: dict[str, dict[str, Any]]
    values: list[bytes] | None = None

    @classmethod
    def of(
        cls, grid: FileGrid, dim: str, parts: Sequence[NamedSet], numbers: Sequence[int], others: Sequence[str | None]
    ) -> Stacking:
        """Stack sets at ``numbers`` of a grid, by their scalars ``dim`` if all have one, else by their places there.

        In the second case, arrays with a dimension in ``others`` get ``dim`` (all arrays, if ``others`` is empty), and
        so do scalars that differ.
        """
        found = None if grid.holes else cls.by_scalar(dim, parts)
        if found is not None:
            return found
        coordinate = _make_coordinate(grid.places[dim])
        scalars = [path for part in parts for path, v in part.variables.items() if not v.dims and path != dim]
        parts, varying = _find_varying(parts, scalars)
        placed = [
            _stack_part(part, dim, others, coordinate, n, varying) for part, n in zip(parts, numbers, strict=True)
        ]
        first = placed[0].variables
        paths = tuple(path for path, v in first.items() if dim in v.dims and not v.is_coordinate)
        metadata = {**_get_attributes(first, (*paths, dim)), first[dim].key: dict(first[dim].meta.raw)}
        values = [coordinate.values[number : number + 1].tobytes() for number in range(len(coordinate.values))]
        return cls(placed, paths, metadata, values)

    @classmethod
    def by_scalar(cls, dim: str, parts: Sequence[NamedSet]) -> Stacking | None:
        """Stack sets by their scalar variables ``dim``; None if a set does not have it.

        As in xarray, other scalars and auxiliary coordinates get the dimension only if their values differ.
        """
        if not all(_is_scalar(part, dim) for part in parts):
            return None
        every = {path: v for part in reversed(parts) for path, v in part.variables.items()}
        every = {path: v for path, v in every.items() if path != dim and not v.has_labels}
        named = set().union(*(find_auxiliary(part.variables) for part in parts))
        is_data = {path: path not in named and bool(variable.dims) for path, variable in every.items()}
        parts, varying = _find_varying(parts, [path for path in every if not is_data[path]])
        paths = [dim, *(path for path in every if is_data[path] or path in varying)]
        placed = [stack_along(part, dim, paths) for part in parts]
        metadata = _get_attributes(placed[0].variables, paths)
        coordinate = placed[0].variables[dim]
        if coordinate.meta.zarr_format == 3:  # this document gives readers the version
            metadata[coordinate.key] = dict(coordinate.meta.raw)
        return cls(placed, tuple(paths), metadata)


def stack_like(part: NamedSet, dim: str, other: NamedSet) -> NamedSet:
    """Give a set with the scalar ``dim`` this dimension, for the arrays that have it in ``other``."""
    if not _is_scalar(part, dim):
        return part
    theirs = other.variables
    paths = [p for p, v in part.variables.items() if p in theirs and theirs[p].dims == (dim, *v.dims)]
    return stack_along(part, dim, paths)


def _is_scalar(part: NamedSet, dim: str) -> bool:
    """Return whether a set has ``dim`` as a scalar with a known value, and no arrays along it."""
    variable = part.variables.get(dim)
    return (
        variable is not None
        and variable.meta.shape == ()
        and not part.find_axes(dim)
        and part.decode_values(dim) is not None
    )


def _find_varying(parts: Sequence[NamedSet], paths: Sequence[str]) -> tuple[list[NamedSet], set[str]]:
    """Return ``parts`` with digests of the arrays whose values are not known, and the paths of arrays that differ."""
    owners = {path: [n for n, part in enumerate(parts) if path in part.variables] for path in dict.fromkeys(paths)}
    values = {path: {n: parts[n].decode_values(path) for n in numbers} for path, numbers in owners.items()}
    unknown = {path for path, known in values.items() if any(value is None for value in known.values())}
    parts = add_digests(parts, [], frozenset(), only=unknown)
    differing = set()
    for path, (first, *others) in owners.items():
        mine = values[path][first]
        if any(_is_different(path, parts[first], mine, parts[n], values[path][n]) for n in others):
            differing.add(path)
    return parts, differing


def _is_different(path: str, one: NamedSet, mine: _Values, other: NamedSet, theirs: _Values) -> bool:
    """Return whether an array has other units or other values, ``mine`` and ``theirs`` if known, in two sets."""
    if one.variables[path].attributes.get("units") != other.variables[path].attributes.get("units"):
        return True
    if mine is not None and theirs is not None:
        return not are_same_values(mine, theirs)
    if path in one.digests and path in other.digests:
        return one.digests[path] != other.digests[path]
    # For values that `decode_values` does not decode, such as texts, compare the bytes.
    tables = one.refs.tables.get(path), other.refs.tables.get(path)
    are_inline = all(table is not None and not len(table) for table in tables)
    return are_inline and one.find_inline_chunks(path) != other.find_inline_chunks(path)


def _get_attributes(variables: Mapping[str, Variable], paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the attributes, by key, of arrays of version 2: there, attributes name the dimensions."""
    arrays = [variables[path] for path in paths if path in variables]
    return {join(v.path, ".zattrs"): dict(v.attributes) for v in arrays if v.meta.zarr_format == 2}


def _stack_part(
    part: NamedSet,
    dim: str,
    others: Sequence[str | None],
    coordinate: _Coordinate,
    number: int,
    varying: Container[str],
) -> NamedSet:
    """Return a set with ``dim``, of length 1, on arrays along ``others`` (if empty, on all) and on ``varying``."""

    def gets_dim(variable: Variable) -> bool:
        along = any(other in variable.dims for other in others) if others else bool(variable.dims)
        return (along and not variable.has_labels) or variable.path in varying

    changed = _add_axis(part, dim, [path for path, variable in part.variables.items() if gets_dim(variable)])
    version = next((variable.meta.zarr_format for variable in part.variables.values()), 2)
    _put_coordinate(changed, dim, coordinate, number, version)
    return changed.finish(keeps_digests=True)


def _put_coordinate(changed: ChangedSet, dim: str, coordinate: _Coordinate, number: int, version: int) -> None:
    own = ArrayDescription(dim, (1,), (1,), coordinate.values.dtype, [dim], coordinate.attributes)
    changed.put_documents({join(dim, name): doc for name, doc in own.make_metadata(version)})
    grid = own.grid(version)
    changed.tables[dim] = ChunkTable.from_parts(grid, [])
    changed.members[join(dim, grid.tail(0))] = coordinate.values[number : number + 1].tobytes()


def stack_along(part: NamedSet, dim: str, paths: Sequence[str]) -> NamedSet:
    """Return a set with ``dim``, of length 1, as the first dimension of its arrays in ``paths``."""
    own = [path for path in paths if path in part.variables]
    return _add_axis(part, dim, own).finish(keeps_digests=True) if own else part


def _add_axis(part: NamedSet, dim: str, paths: Sequence[str]) -> ChangedSet:
    changed = ChangedSet(part)
    for path in paths:
        variable = part.variables[path]
        meta = variable.meta
        reason = ""
        if meta.chunks is None:
            reason = "its chunks have several sizes, or sizes that are not known"
        elif meta.zarr_format == 3 and not _is_simple(meta.raw):
            reason = "its codecs transpose or sharding_indexed depend on the number of dimensions"
        if reason or meta.chunks is None:
            raise ManifestError(
                f"{path!r} of {part.name} cannot get the dimension {dim!r}: {reason}. concat with drop={path!r} leaves "
                "the variable out"
            )
        attributes: Value | None = None
        if meta.zarr_format == 2:
            attributes = {**variable.attributes, "_ARRAY_DIMENSIONS": [dim, *variable.dims]}
        stored = changed.tables.get(path)  # None for an array that is recut
        grid = changed.put(
            variable, stack_metadata(meta.raw, meta.chunks, dim), attributes, part.find_inline_chunks(path)
        )
        if stored is not None:  # a chunk keeps its number
            changed.tables[path] = ChunkTable(grid, stored.ranges, stored.numbers)
    # Consolidated metadata describe the arrays as they were.
    changed.members.pop(".zmetadata", None)
    root = changed.members.get("zarr.json")
    if root is not None and type(root) is not Row:
        group = object_in(root, f"'zarr.json' of {part.name}")
        changed.members["zarr.json"] = {key: value for key, value in group.items() if key != "consolidated_metadata"}
    return changed


def _is_simple(doc: Mapping[str, Any]) -> bool:
    names = [codec.get("name") if isinstance(codec, Mapping) else codec for codec in doc.get("codecs") or ()]
    return not {"transpose", "sharding_indexed"}.intersection(map(str, names))

"""Files whose names say where they lie: ``"{member}/{time:%Y%m%d}.nc"`` as a grid of them. No I/O here.

A field is the name of a dimension, as text, as whole numbers (``{member:d}``) or as times (``{time:%Y%m%d}``; one may
be spread over several fields: ``{time:%Y}/{time:%m%d}``). A dimension that the files do not have themselves is made: an
array gets an axis of length 1 before its others, which changes none of its chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.keys import join
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.document import stacked
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import object_in
from refshard_fs.sets.compatibility import same_values
from refshard_fs.sets.sources import natural
from refshard_fs.sets.variables import ChangedSet, Named, Variable, auxiliary

_FIELD: Final = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_DIRECTIVE: Final = re.compile(r"%(.)")
# What the directives of times stand for in names.
_DIGITS: Final = {"Y": r"\d{4}", "j": r"\d{3}", **dict.fromkeys("mdHMS", r"\d{2}")}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Place = datetime | int | str  # where a file lies along a dimension


class Pattern(NamedTuple):
    """Names of files with fields: a pattern with stars that finds them, and what reads a name."""

    text: str
    glob: str
    names: re.Pattern[str]
    fields: Mapping[str, str]  # by dimension, what it is written as: "text", "number", "time"

    @classmethod
    def of(cls, text: str, dims: Sequence[str | None]) -> Pattern | None:
        """Return the pattern that ``text`` is; None where it has no fields. ValueError unless these are ``dims``."""
        if _FIELD.search(text) is None or not any(dims):
            return None
        fields: dict[str, str] = {}
        seen: set[str] = set()
        regex, at = "", 0
        for match in _FIELD.finditer(text):
            regex += _literal(text[at : match.start()])
            name, form = match[1], match[2] or ""
            kind = "time" if "%" in form else "number" if form == "d" else "text"
            if (form and kind == "text") or fields.setdefault(name, kind) != kind:
                raise ValueError(f"{match[0]!r} in {text!r} is none of {{name}}, {{name:d}} and {{name:%Y%m%d}}")
            regex += _times(form, name, seen) if kind == "time" else _once(name, r"\d+" if form else r"[^/]+", seen)
            at = match.end()
        if set(fields) != set(dims):
            raise ValueError(f"{text!r} has the fields {', '.join(fields)}, and the dimensions are {list(dims)}")
        names = re.compile(regex + _literal(text[at:]) + r"\Z")
        return cls(text, re.sub(r"\*+", "*", _FIELD.sub("*", text)), names, fields)

    def places(self, name: str) -> dict[str, Place] | None:
        """Return where the file ``name`` lies along each dimension; None if it is not named so."""
        match = self.names.search(name)
        if match is None:
            return None
        found = match.groupdict()
        try:
            return {dim: _place(dim, kind, found) for dim, kind in self.fields.items()}
        except ValueError:  # no such day
            return None


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


def _once(name: str, regex: str, seen: set[str]) -> str:
    if name in seen:
        return f"(?P={name})"
    seen.add(name)
    return f"(?P<{name}>{regex})"


def _times(form: str, name: str, seen: set[str]) -> str:
    regex, at = "", 0
    for match in _DIRECTIVE.finditer(form):
        if match[1] not in _DIGITS:
            raise ValueError(f"{match[0]!r} in {form!r} is none of %{', %'.join(_DIGITS)}")
        regex += re.escape(form[at : match.start()]) + _once(f"{name}__{match[1]}", _DIGITS[match[1]], seen)
        at = match.end()
    return regex + re.escape(form[at:])


def _place(dim: str, kind: str, found: Mapping[str, str]) -> Place:
    if kind == "text":
        return found[dim]
    if kind == "number":
        return int(found[dim])
    parts = {letter: int(found[f"{dim}__{letter}"]) for letter in _DIGITS if f"{dim}__{letter}" in found}
    hour, minute, second = (parts.get(letter, 0) for letter in "HMS")
    year = parts.get("Y", 1970)
    if "j" not in parts:
        return datetime(year, parts.get("m", 1), parts.get("d", 1), hour, minute, second, tzinfo=UTC)
    day = datetime(year, 1, 1, hour, minute, second, tzinfo=UTC) + timedelta(days=parts["j"] - 1)
    if day.year != year:
        raise ValueError("a year has no such day")
    return day


# ----------------------------------------------------------------------------------------------------
# The grid that names make.


class FileGrid(NamedTuple):
    """Files by their places along ``dims``; None where there is none."""

    dims: Sequence[str]
    places: Mapping[str, list[Place]]  # ascending, by dimension
    files: Mapping[tuple[int, ...], str]

    @classmethod
    def of(cls, pattern: Pattern, urls: Sequence[str], dims: Sequence[str]) -> tuple[FileGrid, list[str]]:
        """Return the grid of files, and those that are not named by the pattern; ManifestError where two are one's."""
        found: dict[tuple[Place, ...], str] = {}
        others: list[str] = []
        for url in urls:
            places = pattern.places(url)
            if places is None:
                others.append(url)
                continue
            key = tuple(places[dim] for dim in dims)
            if key in found:
                raise ManifestError(f"{found[key]} and {url} have the same place, {_said(dims, key)}")
            found[key] = url
        along = {dim: sorted({key[axis] for key in found}, key=_order) for axis, dim in enumerate(dims)}
        number = {dim: {place: i for i, place in enumerate(places)} for dim, places in along.items()}
        files = {tuple(number[d][p] for d, p in zip(dims, key, strict=True)): url for key, url in found.items()}
        return cls(dims, along, files), others

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(self.places[dim]) for dim in self.dims)

    @property
    def holes(self) -> list[tuple[int, ...]]:
        """The places that have no file."""
        return [at for at in np.ndindex(self.shape) if at not in self.files]

    def check_whole(self) -> None:
        """Raise ManifestError, which names the places, where files are missing."""
        if self.holes:
            holes = self.holes
            shown = "; ".join(map(self.said, holes[:3])) + (f" and {len(holes) - 3:,} others" if len(holes) > 3 else "")
            raise ManifestError(f"there is no file of {shown}: join='outer' takes what is not there for missing")

    def said(self, at: Sequence[int]) -> str:
        """Return a place, or the first dimensions of several, as an error says it."""
        dims = self.dims[: len(at)]
        return _said(dims, [self.places[dim][number] for dim, number in zip(dims, at, strict=True)])

    def without_empty(self) -> FileGrid:
        """Return the grid without places along a dimension at which there is no file at all."""
        numbers = [sorted({at[axis] for at in self.files}) for axis in range(len(self.dims))]
        places = {dim: [self.places[dim][n] for n in some] for dim, some in zip(self.dims, numbers, strict=True)}
        moved = [{number: now for now, number in enumerate(some)} for some in numbers]
        files = {tuple(m[n] for m, n in zip(moved, at, strict=True)): url for at, url in self.files.items()}
        return FileGrid(self.dims, places, files)

    def is_of_times(self, dim: str) -> bool:
        return isinstance(self.places[dim][0], datetime)

    def coordinate(self, dim: str, number: int, like: Named, name: str) -> Named:
        """Return a set of nothing but one value of a coordinate that is made, in the version of another set."""
        empty = ChangedSet(Named(name, ReferenceSet(like.refs.urls, {}, {}), {}))
        version = next(variable.meta.zarr_format for variable in like.variables.values())
        _put_coordinate(empty, dim, _coordinate(self.places[dim]), number, version)
        return empty.named()


def _order(place: Place) -> Any:
    return natural(place) if isinstance(place, str) else place


def _said(dims: Sequence[str], key: Sequence[Place]) -> str:
    shown = [place.isoformat()[:19] if isinstance(place, datetime) else place for place in key]
    return ", ".join(f"{dim} = {place}" for dim, place in zip(dims, shown, strict=True))


# ----------------------------------------------------------------------------------------------------
# Sets with dimensions of their names, and what stands where there is none.


def in_grid(grid: FileGrid, parts: Mapping[tuple[int, ...], Named]) -> list[Named]:
    """Return the sets of a grid, by place, with all of its dimensions."""
    found = dict(parts)
    known = {dim for part in parts.values() for variable in part.variables.values() for dim in variable.dims}
    inside = [dim for dim in grid.dims if dim in known]
    for axis, dim in reversed(list(enumerate(grid.dims))):
        if dim not in known:
            coordinate = _coordinate(grid.places[dim])
            for at, part in found.items():
                found[at] = _with_dimension(part, dim, inside, coordinate, at[axis])
            inside.append(dim)
    return list(found.values())


class _Coordinate(NamedTuple):
    """The values of a dimension that is made: an array of them, and its attributes."""

    values: Any
    attributes: Mapping[str, Any]


def _coordinate(places: Sequence[Place]) -> _Coordinate:
    if isinstance(places[0], datetime):
        seconds = [(place - _EPOCH).total_seconds() for place in places if isinstance(place, datetime)]
        units = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}
        return _Coordinate(np.array(seconds, "<i8"), units)
    if isinstance(places[0], int):
        return _Coordinate(np.array(places, "<i8"), {})
    return _Coordinate(np.array(places, f"<U{max(map(len, map(str, places)))}"), {})


class Stacking(NamedTuple):
    """Sets that have no dimension ``dim``: the arrays ``paths`` of each are one place along it.

    The coordinate is made of what the sets' names tell, or is a scalar of theirs. ``shown`` are the documents (by key)
    of what a lazy cube shows otherwise than its first set: of a coordinate that is made, and of arrays of version 2,
    whose attributes name their dimensions. ``values`` are those of a coordinate that is made.
    """

    parts: list[Named]
    paths: tuple[str, ...]
    shown: dict[str, dict[str, Any]]
    values: list[bytes] | None = None

    @classmethod
    def by_name(
        cls, grid: FileGrid, dim: str, parts: Sequence[Named], numbers: Sequence[int], others: Sequence[str | None]
    ) -> Stacking:
        """Return sets at the places ``numbers`` of a grid: arrays along ``others`` are stacked, or all if none is."""
        coordinate = _coordinate(grid.places[dim])
        found = [_with_dimension(part, dim, others, coordinate, n) for part, n in zip(parts, numbers, strict=True)]
        first = found[0].variables
        paths = tuple(path for path, v in first.items() if dim in v.dims and not v.is_coordinate)
        shown = {**_attributes(first, (*paths, dim)), first[dim].key: dict(first[dim].meta.raw)}
        values = [coordinate.values[number : number + 1].tobytes() for number in range(len(coordinate.values))]
        return cls(found, paths, shown, values)

    @classmethod
    def by_scalar(cls, dim: str, parts: Sequence[Named]) -> Stacking | None:
        """Return sets each of which has one value of ``dim``, a scalar; None unless they are such.

        As in xarray, other scalars and coordinates of theirs get the dimension where their values differ.
        """
        if any(dim in v.dims for part in parts for v in part.variables.values()):
            return None
        if any(dim not in part.variables or _scalar(part, dim) is None for part in parts):
            return None
        having: dict[str, list[Named]] = {}
        for part in parts:
            for path, variable in part.variables.items():
                if path != dim and not variable.is_coordinate:
                    having.setdefault(path, []).append(part)
        named = set().union(*(auxiliary(part.variables) for part in parts))
        paths = [dim]
        for path, some in having.items():
            is_field = path not in named and bool(some[0].variables[path].dims)
            if is_field or any(_differ(path, some[0], other) for other in some[1:]):
                paths.append(path)
        found = [stacked_along(part, dim, paths) for part in parts]
        shown = _attributes(found[0].variables, paths)
        coordinate = found[0].variables[dim]
        if coordinate.meta.zarr_format == 3:  # which tells that of the document
            shown[coordinate.key] = dict(coordinate.meta.raw)
        return cls(found, tuple(paths), shown)


def stacked_along(part: Named, dim: str, paths: Sequence[str]) -> Named:
    """Return a set those of whose arrays ``paths`` that it has are one place along ``dim``."""
    there = [path for path in paths if path in part.variables]
    return _named(_with_axis(part, dim, there)) if there else part


def stacked_as(part: Named, dim: str, other: Named) -> Named:
    """Return a set that has one value of ``dim``, a scalar, as it goes on with another one; else the set itself."""
    is_along = any(dim in variable.dims for variable in part.variables.values())
    if is_along or dim not in part.variables or _scalar(part, dim) is None:
        return part
    theirs = other.variables
    return stacked_along(
        part, dim, [p for p, v in part.variables.items() if p in theirs and theirs[p].dims == (dim, *v.dims)]
    )


def _differ(path: str, one: Named, other: Named) -> bool:
    """Whether two sets are known to have other values of an array; those in other units are others."""
    mine, theirs = one.values(path), other.values(path)
    units = [part.variables[path].attributes.get("units") for part in (one, other)]
    return mine is not None and theirs is not None and (units[0] != units[1] or not same_values(mine, theirs))


def _scalar(part: Named, path: str) -> Any:
    return part.values(path) if part.variables[path].meta.shape == () else None


def _attributes(variables: Mapping[str, Variable], paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the attributes of arrays of version 2, which name their dimensions, by key."""
    some = [variables[path] for path in paths if path in variables]
    return {join(v.path, ".zattrs"): dict(v.attributes) for v in some if v.meta.zarr_format == 2}


def _with_dimension(part: Named, dim: str, others: Sequence[str | None], coordinate: _Coordinate, number: int) -> Named:
    """Return a set whose arrays lie at one place along ``dim``: those along ``others``, or all if there are none."""

    def is_meant(variable: Variable) -> bool:
        along = any(other in variable.dims for other in others) if others else bool(variable.dims)
        return along and not variable.is_coordinate

    paths = [path for path, variable in part.variables.items() if is_meant(variable)]
    version = next((variable.meta.zarr_format for variable in part.variables.values()), 2)
    changed = _with_axis(part, dim, paths)
    _put_coordinate(changed, dim, coordinate, number, version)
    return _named(changed)


def _put_coordinate(changed: ChangedSet, dim: str, coordinate: _Coordinate, number: int, version: int) -> None:
    own = ArrayDescription(dim, (1,), (1,), coordinate.values.dtype, [dim], coordinate.attributes)
    changed.put_documents({join(dim, name): doc for name, doc in own.metadata(version)})
    grid = own.grid(version)
    changed.tables[dim] = ChunkTable.from_parts(grid, [])
    changed.members[join(dim, grid.tail(0))] = coordinate.values[number : number + 1].tobytes()


def _with_axis(part: Named, dim: str, paths: Sequence[str]) -> ChangedSet:
    """Return a set whose arrays ``paths`` have ``dim``, of length 1, before their others."""
    changed = ChangedSet(part)
    for path in paths:
        variable = part.variables[path]
        meta = variable.meta
        if meta.chunks is None or (meta.zarr_format == 3 and not _is_simple(meta.raw)):
            raise ManifestError(
                f"{path!r} of {part.name} cannot get the dimension {dim!r}: its chunks or codecs name its dimensions"
            )
        attributes: Value | None = None
        if meta.zarr_format == 2:
            attributes = {**variable.attributes, "_ARRAY_DIMENSIONS": [dim, *variable.dims]}
        old = changed.tables[path]
        grid = changed.put(variable, stacked(meta.raw, meta.chunks, dim), attributes, part.inline.get(path, {}))
        changed.tables[path] = ChunkTable(grid, old.ranges, old.numbers)  # a chunk's number is what it was
    return changed


def _named(changed: ChangedSet) -> Named:
    """Return a set with other arrays, without consolidated metadata, which tell of the arrays as they were."""
    members = changed.members
    members.pop(".zmetadata", None)
    root = members.get("zarr.json")
    if root is not None and type(root) is not Row:
        group = object_in(root, f"'zarr.json' of {changed.part.name}")
        members["zarr.json"] = {key: value for key, value in group.items() if key != "consolidated_metadata"}
    return changed.named(keeps_digests=True)


def _is_simple(doc: Mapping[str, Any]) -> bool:
    names = [codec.get("name") if isinstance(codec, Mapping) else codec for codec in doc.get("codecs") or ()]
    return not {"transpose", "sharding_indexed"}.intersection(map(str, names))

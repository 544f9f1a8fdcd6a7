"""Sets that lack arrays or coordinate values of others: what one lacks are chunks that do not exist. No I/O here.

`complete` gives every set all arrays and the union of the coordinates along other dimensions. `with_gaps` puts sets
without chunks where values of a regular coordinate are missing. Readers show the fill value there, so an array needs
one that means "missing": zeros would be taken for data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.dtypes import dtype_of
from refshard_fs.cubes.cf_times import (
    CHANGE,
    GREGORIAN,
    SECOND,
    TimeUnits,
    calendar_of,
    instant,
    parsed_units,
)
from refshard_fs.cubes.fit import difference
from refshard_fs.cubes.moving import Move
from refshard_fs.cubes.recoding import missing_values
from refshard_fs.cubes.recutting import Placement
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet, coordinate_set, trim, with_metadata
from refshard_fs.sets.common_units import comparable, with_common_units
from refshard_fs.sets.concatenation import (
    check_one_coordinate,
    check_same_coordinate,
    coordinate_values,
    name_without,
    shown_value,
)
from refshard_fs.sets.variables import MOST, NamedSet, Variable

# ----------------------------------------------------------------------------------------------------
# Sets with all arrays, and the same coordinates along other dimensions.


class Aligned(NamedTuple):
    """Sets with the same coordinates; where these differed, their ``unions`` by dimension.

    ``places`` say of each set where its elements lie along these.
    """

    parts: list[NamedSet]
    places: list[dict[str, Placement]]
    unions: Mapping[str, npt.NDArray[Any]] = {}


Regular = Mapping[str, str | float]  # the step between values of a coordinate, by dimension


def complete(
    parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool, has_gaps: bool, is_outer: bool
) -> tuple[Aligned, dict[str, Any]]:
    """Return ``parts`` ready to be concatenated, and the fill values (by path) that arrays need for it.

    If ``is_outer``, each gets all arrays along ``dim``, and the union of coordinates along other dimensions. If it
    ``has_gaps``, sets without chunks will be put between the ``parts``. If ``lazy``, only metadata change: chunks are
    found when they are read. ManifestError where references alone cannot say it, or where an array has no value that
    means "missing".
    """
    aligned = _align(parts, dim, regular, lazy=lazy) if is_outer else Aligned(list(parts), [{} for _ in parts])
    lacking = _find_lacking(parts, dim) if is_outer else []
    incomplete = {*lacking, *_incomplete(parts, aligned.unions)}
    if has_gaps:
        incomplete |= {path for part in parts for path in part.along(dim) if not part.variables[path].is_coordinate}
    fills = fills_of(parts, incomplete, lazy=lazy)
    return aligned._replace(parts=_add_lacking(aligned.parts, dim, lacking)), fills


def _find_lacking(parts: Sequence[NamedSet], dim: str | None) -> list[str]:
    """Return the arrays along ``dim`` that not all sets have."""
    along = {path for part in parts for path in part.along(dim)}
    return sorted(path for path in along if any(path not in part.variables for part in parts))


def _add_lacking(parts: Sequence[NamedSet], dim: str | None, lacking: Sequence[str]) -> list[NamedSet]:
    """Return ``parts`` with the arrays that are ``lacking`` in some: these get them without chunks."""
    owners = {path: next(part for part in parts if path in part.variables) for path in lacking}
    complete = []
    for part in parts:
        changed = ChangedSet(part)
        missing = [path for path in lacking if path not in part.variables]
        for path in missing:
            changed.put_empty(owners[path], path, str(dim), part.length(str(dim)))
        complete.append(changed.result() if missing else part)
    return complete


def _align(parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool) -> Aligned:
    """Return ``parts`` with the union of their coordinates along all dimensions but ``dim``."""
    for other in dict.fromkeys(v.dims[0] for part in parts for v in part.variables.values() if v.is_coordinate):
        if other is not None and other != dim:
            parts = with_common_units(parts, other, lazy=lazy).parts
    unions: dict[str, npt.NDArray[Any]] = {}  # by dimension, where sets differ
    own: dict[str, list[npt.NDArray[Any] | None]] = {}  # the values of each set,
    chosen: dict[str, str] = {}  # and of which coordinate they are
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        first = next(part for part in parts if path in part.variables)
        name = first.variables[path].dims[0]
        if name is None or name == dim or name in own:
            continue
        values = [_values_to_compare(part, path) for part in parts]
        known = [some for some in values if some is not None]
        if len(known) < 2 or all(np.array_equal(some, known[0]) for some in known):
            continue
        for part, some in zip(parts, values, strict=True):
            if path in part.variables:
                _check_alignable(path, first, part, some)
        union = np.unique(np.concatenate(known))
        if all(some[0] > some[-1] for some in known if len(some) > 1) and any(len(some) > 1 for some in known):
            union = union[::-1]
        if name in regular and len(union):
            union = _Steps.of(regular[name], first.variables[path], union[0], first.name).all_of(union, first, name)
        own[name], unions[name], chosen[name] = values, union, path
    for part in parts:
        for path, variable in part.variables.items():
            name = variable.dims[0] if variable.is_coordinate else None
            if name is not None and name in unions and path != chosen[name]:
                check_same_coordinate(part, name, chosen[name], path)
    if not unions:
        return Aligned(list(parts), [{} for _ in parts])
    moved, places = [], []
    for number, part in enumerate(parts):
        placements: dict[str, Placement] = {}
        for name, union in unions.items():
            values_here = own[name][number]
            if values_here is not None:
                order = np.argsort(union)
                placements[name] = Placement.of(order[np.searchsorted(union, values_here, sorter=order)])
        moved.append(_place_elements(part, dim, placements, unions, lazy=lazy))
        places.append({d: p for d, p in placements.items() if p.runs != ((0, len(unions[d])),)})
    return Aligned(moved, places, unions)


def _values_to_compare(part: NamedSet, path: str) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate as they are compared, if the set has it and they are known."""
    values = part.values(path) if path in part.variables else None
    return None if values is None else comparable(part.variables[path], values)


def _check_alignable(path: str, first: NamedSet, part: NamedSet, values: npt.NDArray[Any] | None) -> None:
    """Raise ManifestError unless the ``values`` of a coordinate tell where each element of the set belongs."""
    if values is None:
        raise ManifestError(f"the values of {path!r} differ between sets, and those of {part.name} cannot be read")
    if len(np.unique(values)) < len(values):
        raise ManifestError(f"{part.name} has a value of {path!r} twice: the place of the second is not known")
    for name in ("units", "calendar"):
        mine, theirs = (each.variables[path].attributes.get(name) for each in (first, part))
        if mine != theirs:
            raise difference(path, f"attribute {name}", first.name, mine, part.name, theirs)


def _incomplete(parts: Sequence[NamedSet], unions: Mapping[str, npt.NDArray[Any]]) -> set[str]:
    """Return the arrays with a dimension of ``unions`` along which some set lacks elements."""
    return {
        path
        for part in parts
        for path, v in part.variables.items()
        for axis, d in enumerate(v.dims)
        if d is not None and d in unions and not v.is_coordinate and len(unions[d]) > v.meta.shape[axis]
    }


def _place_elements(
    part: NamedSet,
    dim: str | None,
    placements: Mapping[str, Placement],
    unions: Mapping[str, npt.NDArray[Any]],
    *,
    lazy: bool,
) -> NamedSet:
    """Return a set as long as ``unions`` along these dimensions, its elements at their ``placements``."""
    changed = ChangedSet(part)
    for path, variable in part.variables.items():
        within = {axis: placements[d] for axis, d in enumerate(variable.dims) if d is not None and d in placements}
        if not within:
            continue
        if variable.is_coordinate:
            changed.put_values(variable, unions[str(variable.dims[0])])
            continue
        shape = list(variable.meta.shape)
        for axis, placement in within.items():
            if placement.length != shape[axis]:
                raise ManifestError(
                    f"{path!r} of {part.name} has {shape[axis]} elements along {variable.dims[axis]!r}, which has "
                    f"{placement.length}"
                )
            shape[axis] = len(unions[str(variable.dims[axis])])
        doc = {**variable.meta.raw, "shape": shape}
        if not lazy:
            moves = {axis: _chunk_move(part, path, axis, placement, shape[axis]) for axis, placement in within.items()}
            changed.put_moved(variable, doc, [(moves, None)])
        elif dim in variable.dims:
            changed.put(variable, doc)
        else:
            names = ", ".join(repr(variable.dims[axis]) for axis in within)
            raise ManifestError(
                f"{path!r} of {part.name} has the dimension {names} and not {dim!r}, and the sets have different "
                f"values of {names}: which set's values it has is not known"
            )
    return changed.result()


def _chunk_move(part: NamedSet, path: str, axis: int, placement: Placement, total: int) -> Move:
    """Return where chunks go whose elements have a ``placement``; ManifestError where they do not stay whole."""
    variable = part.variables[path]
    size = variable.meta.chunks[axis] if variable.meta.chunks else 0
    chunks = placement.in_chunks(size, total)
    if chunks is None:
        start = placement.runs[0][0] if placement.runs else 0
        raise ManifestError(
            f"{path!r} of {part.name} has {placement.length} elements along {variable.dims[axis]!r} in chunks of "
            f"{size}, and begins at {start} of the {total} of all sets: its chunks begin inside others, which "
            "references cannot express. concat(..., lazy=True) joins pieces of them when they are read"
        )
    return chunks.places


# ----------------------------------------------------------------------------------------------------
# Fill values that mean "missing".


def fills_of(parts: Sequence[NamedSet], paths: Iterable[str], *, lazy: bool = False) -> dict[str, Any]:
    """Return the fill values (by path) that arrays need so that readers see chunks that do not exist as missing values.

    An array without one gets its ``_FillValue`` or ``missing_value``, or NaN if it is of floating-point numbers, if all
    of its chunks exist so far. ManifestError where neither can be.
    """
    return {path: fill for path in sorted(paths) if (fill := _fill(path, parts, lazy=lazy)) is not None}


def with_fills(part: NamedSet, fills: Mapping[str, Any]) -> NamedSet:
    """Return a set whose arrays have other fill values, by path."""
    shown = {path: part.variables[path] for path in fills if path in part.variables}
    return with_metadata(part, {v.key: {**v.meta.raw, "fill_value": fills[path]} for path, v in shown.items()})


def _fill(path: str, parts: Sequence[NamedSet], *, lazy: bool = False) -> Any:
    """Return the fill value that an array needs; None where it has one already.

    If ``lazy``, chunks of sets with another one are recoded when they are read.
    """
    parts = [part for part in parts if path in part.variables]
    first = parts[0].variables[path]
    meta, dtype = first.meta, dtype_of(first.meta)
    fill, marked = meta.raw.get("fill_value"), first.attributes.get("_FillValue")
    if fill in ("NaN",) or (isinstance(fill, float) and math.isnan(fill)):
        return None
    if meta.zarr_format == 2 and fill is not None:
        return None
    named = [] if dtype is None else missing_values(meta, first.attributes, dtype)
    if fill in named or (marked is not None and fill == marked):
        return None
    wanted: Any = None
    if dtype is not None and dtype.kind in "iu":
        wanted = next((int(value) for value in named if value in _range(dtype)), None)
    elif dtype is not None and dtype.kind == "f":
        wanted = next((value for value in named if math.isfinite(value)), "NaN")
    if wanted is None or not (lazy or not any(_has_gaps(part, path) for part in parts)):
        what = "and has chunks that do not exist" if wanted is not None else "or none of its type"
        raise ManifestError(
            f"{path!r} of {parts[0].name} ({meta.dtype}) has no fill value for its gaps, {what}: "
            "they would be read as numbers. Give it a _FillValue"
        )
    return wanted


def _range(dtype: np.dtype[Any]) -> range:
    limits = np.iinfo(dtype)
    return range(int(limits.min), int(limits.max) + 1)


def _has_gaps(part: NamedSet, path: str) -> bool:
    table = part.refs.tables.get(path)
    return table is None or len(table) + len(part.inline.get(path, {})) < table.grid.size


# ----------------------------------------------------------------------------------------------------
# Regular coordinates.


_FREQUENCY: Final = re.compile(r"\s*(\d*)\s*([A-Za-z]+)\s*")
# Seconds, as pandas spells them.
_SECONDS: Final = {
    **dict.fromkeys(("s", "S"), 1),
    **dict.fromkeys(("min", "T"), 60),
    **dict.fromkeys(("h", "H"), 3600),
    **dict.fromkeys(("D", "d"), 86400),
    "W": 7 * 86400,
}
_MONTH: Final = 146_097 * 86400 // 4800  # seconds of a Gregorian month, on average
_MONTHS: Final = {"MS": 1, "QS": 3, "YS": 12, "AS": 12}


class PlannedPiece(NamedTuple):
    """A planned piece: a set or a part of it, by the set's ``number``; without a number a gap of known values."""

    number: int | None
    part: NamedSet


def with_gaps(parts: Sequence[NamedSet], dim: str, freq: str | float, *, lazy: bool = False) -> list[PlannedPiece]:
    """Return ``parts`` with gaps where values of the coordinate ``dim`` are missing, one every ``freq``.

    ManifestError if a value is not on the grid of steps that starts at the first one.
    """
    values = coordinate_values(parts, dim)
    if values is None:
        raise ManifestError(
            f"there is no coordinate {dim!r} of numbers in {name_without(parts, dim)}, which freq= needs to find "
            "missing values"
        )
    first, every = parts[0].coordinate(dim), np.concatenate(values)
    if first is None or not len(every):
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    steps = _Steps.of(freq, first, every[0], parts[0].name)
    places = [steps.places(own, part, dim) for part, own in zip(parts, values, strict=True)]
    ends = [int(own.max(initial=0)) + 1 for own in places]
    if max(ends) > MOST:
        name = parts[ends.index(max(ends))].name
        raise ManifestError(f"{dim!r} would have more than {MOST:,} values, one every {freq}, with those of {name}")
    return _put_gaps(parts, dim, places, max(ends), steps.values, lazy=lazy)


def with_gaps_of(
    parts: Sequence[NamedSet], dim: str, union: npt.NDArray[Any], *, lazy: bool = False
) -> list[PlannedPiece]:
    """Return ``parts`` with gaps where they lack values of ``union``, the sorted values of a coordinate."""
    values = coordinate_values(parts, dim)
    every = np.concatenate(values or [union[:0]])
    if not len(every) or values is None:
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    if every[0] > every[-1]:
        union = union[::-1]
    order = np.argsort(union)
    places = [order[np.searchsorted(union, own, sorter=order)] for own in values]
    return _put_gaps(parts, dim, places, len(union), union.__getitem__, lazy=lazy)


def _put_gaps(
    parts: Sequence[NamedSet],
    dim: str,
    places: Sequence[npt.NDArray[Any]],
    stop: int,
    values_at: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    *,
    lazy: bool,
) -> list[PlannedPiece]:
    """Return ``parts``, whose elements lie at ``places`` along ``dim``, with gaps at all other places before ``stop``.

    ``values_at`` returns the values of the coordinate at some places. A part with gaps within it becomes several
    pieces. ManifestError where places do not ascend.
    """
    if (np.diff(np.concatenate(places), prepend=-1, append=stop) == 1).all():
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    check_one_coordinate(parts, dim)
    first = parts[0].coordinate(dim)
    assert first is not None, "its values are known"
    pieces: list[PlannedPiece] = []
    expected = 0

    def put_gap(place: int, where: str) -> None:
        if place > expected:
            missing = values_at(np.arange(expected, place))
            pieces.append(PlannedPiece(None, coordinate_set(first, missing, parts[0], f"the gap {where}")))

    for number, (part, own) in enumerate(zip(parts, places, strict=True)):
        start = 0
        for run in np.split(own, np.flatnonzero(np.diff(own) != 1) + 1) if len(own) else ():
            if run[0] < expected:
                value = shown_value(values_at(run[:1])[0], parts[0], dim)
                raise ManifestError(f"{part.name} has {dim} = {value} after a later value: sort=True sorts the sets")
            put_gap(int(run[0]), f"before {part.name}")
            pieces.append(PlannedPiece(number, trim(part, dim, start, start + len(run), lazy=lazy)))
            start, expected = start + len(run), int(run[-1]) + 1
    put_gap(stop, "at the end")
    return pieces


class _Steps(msgspec.Struct, frozen=True):
    """Values at equal distances: ``step`` units of the coordinate each, or ``months``, that long on average."""

    first: Any
    dtype: np.dtype[Any]
    step: Fraction
    months: int = 0
    unit: int = SECOND  # in nanoseconds, where there are months
    since: Any = None
    units: TimeUnits | None = None

    @classmethod
    def of(cls, freq: str | float, variable: Variable, first: Any, name: str) -> _Steps:
        dtype = np.dtype(first.dtype)
        where = f"freq={freq!r} and the units {variable.attributes.get('units')!r} of {variable.path!r} of {name}"
        if dtype.kind not in "iuf":
            raise ManifestError(f"{where}: expected a numeric type, found {dtype}")
        try:
            if not isinstance(freq, str):
                steps = cls(first, dtype, Fraction(freq))
            else:
                match = _FREQUENCY.fullmatch(freq)
                count, name_of = (int(match[1] or 1), match[2]) if match else (0, "")
                if not count or name_of not in {*_SECONDS, *_MONTHS}:
                    raise ValueError(f"expected a number of {', '.join([*_SECONDS, *_MONTHS])}")
                unit, since = parsed_units(variable.attributes.get("units"))
                if name_of in _SECONDS:
                    length = Fraction(_SECONDS[name_of] * count * SECOND, unit)
                    steps = cls(first, dtype, length, units=TimeUnits.of(variable.attributes))
                else:
                    calendar = calendar_of(variable.attributes)
                    if calendar not in GREGORIAN:
                        raise ValueError(f"expected a standard calendar for steps of months, found {calendar!r}")
                    begin = instant(since)
                    if calendar != "proleptic_gregorian" and begin < datetime(*CHANGE):
                        raise ValueError("the standard calendar changes before 1582-10-15")
                    months = _MONTHS[name_of] * count
                    step = Fraction(months * _MONTH * SECOND, unit)
                    steps = cls(first, dtype, step, months, unit, np.datetime64(begin, "s"))
        except ValueError as e:
            raise ManifestError(f"{where}: {e}") from e
        if not steps.months and (steps.step <= 0 or (dtype.kind in "iu" and steps.step.denominator != 1)):
            raise ManifestError(f"{where}: a step is {steps.step} of these units, which {dtype} cannot hold")
        return steps

    def places(self, values: npt.NDArray[Any], part: NamedSet, dim: str) -> npt.NDArray[Any]:
        """Return the steps from the first value to each of ``values``; ManifestError if not an integer."""
        numbers = values.astype(np.float64)
        places: npt.NDArray[Any] = np.rint((numbers - float(self.first)) / float(self.step)).astype(np.int64)
        near = float(self.step) * 1e-6 if self.dtype.kind == "f" and not self.months else 0.0
        apart = np.flatnonzero(~(np.abs(self.values(places).astype(np.float64) - numbers) <= near))
        if len(apart):
            raise ManifestError(
                f"{part.name} has {dim} = {values[apart[0]]}, which is not on the grid of freq= that begins at "
                f"{self.first}"
            )
        return places

    def all_of(self, values: npt.NDArray[Any], part: NamedSet, dim: str) -> npt.NDArray[Any]:
        """Return ``values``, which begin with the first one, and all steps between them."""
        last = int(self.places(values[-1:], part, dim)[0])
        if not 0 <= last < MOST:
            raise ManifestError(
                f"{dim!r} would have {last + 1:,} values with those of {part.name}, of {MOST:,} at most"
            )
        self.places(values, part, dim)
        return self.values(np.arange(last + 1))

    def values(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that are ``places`` steps after the first."""
        values: npt.NDArray[Any]
        if self.months:
            begin = self.since + np.rint(float(self.first) * self.unit / SECOND).astype("m8[s]")
            month = begin.astype("M8[M]")
            seconds = (month + places * self.months).astype("M8[s]") + (begin - month.astype("M8[s]")) - self.since
            values = seconds.astype(np.int64) / (self.unit / SECOND)
        elif self.dtype.kind in "iu":
            values = int(self.first) + places * int(self.step)
        else:
            values = float(self.first) + places * float(self.step)
            values = values if self.units is None else self.units.snap(values)
        return np.asarray(values, self.dtype)

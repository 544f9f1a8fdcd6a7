"""Sets that lack arrays or coordinate values of others: what one lacks are chunks that do not exist. No I/O here.

`completed` gives every set all arrays and the union of the coordinates along other dimensions; `filled` puts sets of
nothing where values of a regular coordinate are missing. Readers show the fill value there, so an array needs one that
means that values are missing: zeros would be taken for data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import Texts
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.keys import join
from refshard_fs.core.version_3 import for_xarray
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.cf_times import CHANGE, GREGORIAN, calendar_of, instant, parsed_units
from refshard_fs.formats.virtual_concat.document import difference
from refshard_fs.formats.virtual_concat.recutting import Placement
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.concatenation import coordinate_values, shown_value, without_coordinate
from refshard_fs.sets.cutting import trimmed
from refshard_fs.sets.variables import MOST, ChangedSet, Named, Variable, with_metadata

# ----------------------------------------------------------------------------------------------------
# Sets with all arrays, and the same coordinates.


class Aligned(NamedTuple):
    """Sets with the same coordinates, ``unions`` by the name of the dimension, where they differed.

    ``places`` say of each set where its elements lie along these.
    """

    parts: list[Named]
    places: list[dict[str, Placement]]
    unions: Mapping[str, npt.NDArray[Any]] = {}


Regular = Mapping[str, str | float]  # how far values of a coordinate are apart, by dimension


def completed(
    parts: Sequence[Named], dim: str | None, regular: Regular, *, lazy: bool, has_gaps: bool, is_outer: bool
) -> tuple[Aligned, dict[str, Any]]:
    """Return ``parts`` such that they can be joined, and the fill values (by path) that arrays need for it.

    If ``is_outer``, each gets all arrays along ``dim``, and the union of coordinates along other dimensions. If it
    ``has_gaps``, sets without chunks are to be put between the ``parts``. If ``lazy``, chunks are found when they are
    read: the sets only say what their arrays are like. ManifestError where that takes more than references can say, or
    where an array has no value that means "missing".
    """
    aligned = _aligned(parts, dim, regular, lazy=lazy) if is_outer else Aligned(list(parts), [{} for _ in parts])
    lacking = _lacking(aligned.parts, dim) if is_outer else set()
    incomplete = lacking | _incomplete(parts, aligned.unions)
    if has_gaps:
        incomplete |= {p for part in parts for p, v in part.variables.items() if dim in v.dims and not v.is_coordinate}
    fills = fills_of(parts, incomplete, lazy=lazy)
    return aligned._replace(parts=_with_all(aligned.parts, dim, lacking)), fills


def _lacking(parts: Sequence[Named], dim: str | None) -> set[str]:
    """Return the arrays along ``dim`` that not all sets have."""
    along = {path for part in parts for path, v in part.variables.items() if dim in v.dims}
    return {path for path in along if any(path not in part.variables for part in parts)}


def _with_all(parts: Sequence[Named], dim: str | None, lacking: set[str]) -> list[Named]:
    """Return sets each of which has the arrays that are ``lacking`` in some, those that it lacked without chunks."""
    first = {path: next(part for part in parts if path in part.variables) for path in sorted(lacking)}
    found = []
    for part in parts:
        missing = [path for path in first if path not in part.variables]
        lengths = {v.meta.shape[v.dims.index(dim)] for v in part.variables.values() if dim in v.dims}
        if missing and len(lengths) != 1:
            raise ManifestError(f"{part.name} has nothing along {dim!r} that says how long it is: {sorted(lengths)}")
        changing = ChangedSet(part)
        for path in missing:
            variable = first[path].variables[path]
            shape = list(variable.meta.shape)
            shape[variable.dims.index(dim)] = next(iter(lengths))
            attributes = first[path].refs.side.get(join(path, ".zattrs"))
            changing.put(variable, {**variable.meta.raw, "shape": shape}, attributes)
        found.append(changing.named() if missing else part)
    return found


def _aligned(parts: Sequence[Named], dim: str | None, regular: Regular, *, lazy: bool = False) -> Aligned:
    """Return ``parts`` with the union of their coordinates along all dimensions but ``dim``."""
    unions: dict[str, npt.NDArray[Any]] = {}  # by the name of a dimension, where sets differ
    own: dict[str, list[npt.NDArray[Any] | None]] = {}
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        first = next(part for part in parts if path in part.variables)
        name = first.variables[path].dims[0]
        if name is None or name == dim or name in own:
            continue
        values = [part.values(path) if path in part.variables else None for part in parts]
        known = [found for found in values if found is not None]
        if len(known) < 2 or all(np.array_equal(found, known[0]) for found in known):
            continue
        for part, found in zip(parts, values, strict=True):
            if path in part.variables and found is None:
                raise ManifestError(
                    f"the values of {path!r} are not the same in all sets, and those of {part.name} cannot be read"
                )
            if found is not None and len(np.unique(found)) < len(found):
                raise ManifestError(f"{part.name} has a value of {path!r} twice: nothing says which lies where")
            if found is not None:
                _check_units(path, first, part)
        union = np.unique(np.concatenate(known))
        if all(found[0] > found[-1] for found in known if len(found) > 1) and any(len(found) > 1 for found in known):
            union = union[::-1]
        if name in regular and len(union):
            union = _Steps.of(regular[name], first.variables[path], union[0], first.name).all_of(union, first, name)
        own[name], unions[name] = values, union
    if not unions:
        return Aligned(list(parts), [{} for _ in parts])
    moved, places = [], []
    for number, part in enumerate(parts):
        offsets: dict[str, Placement] = {}
        for name, union in unions.items():
            values_here = own[name][number]
            if values_here is not None:
                order = np.argsort(union)
                offsets[name] = Placement.of(order[np.searchsorted(union, values_here, sorter=order)])
        moved.append(_placed(part, dim, offsets, unions, lazy=lazy))
        places.append({d: p for d, p in offsets.items() if p.runs != ((0, len(unions[d])),)})
    return Aligned(moved, places, unions)


def _check_units(path: str, one: Named, other: Named) -> None:
    """Raise ManifestError unless the values of a coordinate mean the same in two sets."""
    for name in ("units", "calendar"):
        mine, theirs = (part.variables[path].attributes.get(name) for part in (one, other))
        if mine != theirs:
            raise difference(path, f"attribute {name}", one.name, mine, other.name, theirs)


def _incomplete(parts: Sequence[Named], unions: Mapping[str, npt.NDArray[Any]]) -> set[str]:
    """Return the arrays that have not all values of ``unions`` in some set."""
    return {
        path
        for part in parts
        for path, v in part.variables.items()
        for axis, d in enumerate(v.dims)
        if d is not None and d in unions and not v.is_coordinate and len(unions[d]) > v.meta.shape[axis]
    }


def _placed(
    part: Named,
    dim: str | None,
    offsets: Mapping[str, Placement],
    unions: Mapping[str, npt.NDArray[Any]],
    *,
    lazy: bool,
) -> Named:
    """Return a set whose arrays lie within longer ones: by dimension, where its elements lie, and all values of that.

    If ``lazy``, without chunks: these are found when they are read.
    """
    changing = ChangedSet(part)
    for path, variable in part.variables.items():
        within = {axis: offsets[d] for axis, d in enumerate(variable.dims) if d is not None and d in offsets}
        if not within:
            continue
        if variable.is_coordinate:
            union = unions[str(variable.dims[0])]
            changing.put_values(variable, union)
            continue
        meta, shape = variable.meta, list(variable.meta.shape)
        totals = {axis: len(unions[str(variable.dims[axis])]) for axis in within}
        for axis, placement in within.items():
            if placement.length != shape[axis]:
                name = variable.dims[axis]
                raise ManifestError(
                    f"{path!r} of {part.name} has {shape[axis]} elements along {name!r}, which has {placement.length}"
                )
            shape[axis] = totals[axis]
        doc = {**meta.raw, "shape": shape}
        if lazy:
            if dim not in variable.dims:
                names = ", ".join(repr(variable.dims[axis]) for axis in within)
                raise ManifestError(
                    f"{path!r} of {part.name} is not along {dim!r}, and not all sets have the same values of {names}, "
                    "along which it is: nothing says which set's values it has"
                )
            changing.put(variable, doc)
            continue
        chunks: dict[int, Placement] = {}
        for axis, placement in within.items():
            size = meta.chunks[axis] if meta.chunks else 0
            found = placement.in_chunks(size, totals[axis])
            if found is None:
                start = placement.runs[0][0] if placement.runs else 0
                raise ManifestError(
                    f"{path!r} of {part.name} has {placement.length} elements along {variable.dims[axis]!r} in chunks "
                    f"of {size}, and begins at {start} of the {totals[axis]} of all sets: its chunks do not meet "
                    "theirs, which references alone cannot say. concat(..., lazy=True) joins pieces of them when they "
                    "are read"
                )
            chunks[axis] = found
        changing.put_moved(variable, doc, {axis: found.places for axis, found in chunks.items()})
    return changing.named()


# ----------------------------------------------------------------------------------------------------
# What readers take for missing.


def fills_of(parts: Sequence[Named], paths: Iterable[str], *, lazy: bool = False) -> dict[str, Any]:
    """Return the fill values (by path) that arrays need so that readers take what is not there for missing.

    Where an array has none, and all chunks of the sets exist, it gets one: that of ``missing_value``, or of floating
    point numbers NaN. ManifestError where there is none.
    """
    return {path: fill for path in sorted(paths) if (fill := _fill(path, parts, lazy=lazy)) is not None}


def with_fills(part: Named, fills: Mapping[str, Any]) -> Named:
    """Return a set whose arrays have other fill values, by path."""
    shown = {path: part.variables[path] for path in fills if path in part.variables}
    return with_metadata(part, {v.key: {**v.meta.raw, "fill_value": fills[path]} for path, v in shown.items()})


def _fill(path: str, parts: Sequence[Named], *, lazy: bool = False) -> Any:
    """Return the fill value that an array is to have; None where it has one already.

    If ``lazy``, chunks of sets that have another one are recoded when they are read.
    """
    parts = [part for part in parts if path in part.variables]
    first = parts[0].variables[path]
    meta, dtype = first.meta, dtype_of(first.meta)
    fill, marked = meta.raw.get("fill_value"), first.attributes.get("_FillValue")
    if fill in ("NaN",) or (isinstance(fill, float) and math.isnan(fill)):
        return None
    if meta.zarr_format == 2 and fill is not None:
        return None
    if marked is not None and dtype is not None and (fill == marked or for_xarray(fill, dtype) == marked):
        return None
    value = first.attributes.get("missing_value")
    wanted = value if isinstance(value, int | float) else "NaN" if dtype is not None and dtype.kind == "f" else None
    if wanted is None or not (lazy or not any(_has_gaps(part, path) for part in parts)):
        what = "and chunks that do not exist already" if wanted is not None else "as missing values need"
        raise ManifestError(
            f"{path!r} of {parts[0].name} ({meta.dtype}) has no fill value that stands for missing ones, {what}: its "
            "gaps would be read as numbers. Give it a _FillValue"
        )
    return wanted


def _has_gaps(part: Named, path: str) -> bool:
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


class Filled(msgspec.Struct, frozen=True):
    """What is joined in one place: a set, or part of it, by its number; without one it is a gap."""

    number: int | None
    part: Named


def filled(parts: Sequence[Named], dim: str, freq: str | float) -> list[Filled]:
    """Return ``parts`` with sets of nothing where values of the coordinate ``dim`` are missing, one every ``freq``.

    ManifestError where values are not at that distance from the first one.
    """
    values = coordinate_values(parts, dim)
    if values is None:
        raise ManifestError(
            f"there is no coordinate {dim!r} of numbers in {without_coordinate(parts, dim)}, of which freq= could tell "
            "what is missing"
        )
    first = next(v for v in parts[0].variables.values() if v.is_coordinate and v.dims == (dim,))
    every = np.concatenate(values)
    if not len(every):
        return [Filled(number, part) for number, part in enumerate(parts)]
    steps = _Steps.of(freq, first, every[0], parts[0].name)
    places_of = [steps.places(own, part, dim) for part, own in zip(parts, values, strict=True)]
    if (np.diff(np.concatenate(places_of)) == 1).all():
        return [Filled(number, part) for number, part in enumerate(parts)]
    found: list[Filled] = []
    at = 0  # the step that comes next
    total = sum(map(len, values))
    for number, (part, own, places) in enumerate(zip(parts, values, places_of, strict=True)):
        starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        for start, stop in pairwise(starts):
            place = int(places[start])
            if place < at:
                raise ManifestError(
                    f"{part.name} has {dim} = {shown_value(own[start], parts[0], dim)} behind a later one: sort=True "
                    "puts sets in order"
                )
            total += place - at
            if total > MOST:
                raise ManifestError(
                    f"{dim!r} would have more than {MOST:,} values, one every {freq}, with {own[start]} of {part.name}"
                )
            if place > at:
                gap = steps.values(np.arange(at, place))
                found.append(Filled(None, nothing(parts[0], dim, gap, f"the gap before {part.name}")))
            found.append(Filled(number, trimmed(part, dim, start, stop)))
            at = place + stop - start
    return found


def nothing(like: Named, dim: str, values: npt.NDArray[Any], name: str) -> Named:
    """Return a set without chunks that has the arrays along ``dim`` of another one, and ``values`` there."""
    changing = _without_chunks(like, dim, len(values), name)
    for path, variable in like.variables.items():
        if variable.is_coordinate and variable.dims == (dim,):
            changing.put_values(variable, values, like.refs.side.get(join(path, ".zattrs")))
    return changing.named()


def gap_of(like: Named, dim: str, length: int, coordinate: Named) -> Named:
    """Return a set without chunks that has another one's arrays along ``dim``, and the ``coordinate`` of a third."""
    path = next((path for path, v in coordinate.variables.items() if v.is_coordinate and v.dims == (dim,)), None)
    values = None if path is None else coordinate.values(path)
    if values is not None:
        return nothing(like, dim, values, coordinate.name)
    changing = _without_chunks(like, dim, length, coordinate.name)
    if path is not None:  # text: chunks are what they are
        variable = coordinate.variables[path]
        attributes = coordinate.refs.side.get(join(path, ".zattrs"))
        changing.put(variable, variable.meta.raw, attributes, coordinate.inline.get(path, {}))
        if len(coordinate.refs.tables[path]):
            raise ManifestError(f"the values of {path!r} at {coordinate.name} are not known: other sets refer to them")
    return changing.named()


def _without_chunks(like: Named, dim: str, length: int, name: str) -> ChangedSet:
    changing = ChangedSet(Named(name, ReferenceSet(Texts.of([]), {}, {}), {}))
    for path, variable in like.variables.items():
        if dim in variable.dims and not variable.is_coordinate:
            shape = list(variable.meta.shape)
            shape[variable.dims.index(dim)] = length
            attributes = like.refs.side.get(join(path, ".zattrs"))
            changing.put(variable, {**variable.meta.raw, "shape": shape}, attributes)
    return changing


class _Steps(msgspec.Struct, frozen=True):
    """Values at equal distances: ``step`` units of the coordinate each, or whole months of that length on average."""

    first: Any
    dtype: np.dtype[Any]
    step: Fraction
    months: int = 0
    unit: int = 1  # in seconds, where there are months
    since: Any = None

    @classmethod
    def of(cls, freq: str | float, variable: Variable, first: Any, name: str) -> _Steps:
        dtype = np.dtype(first.dtype)
        where = f"freq={freq!r} and the units {variable.attributes.get('units')!r} of {variable.path!r} of {name}"
        if dtype.kind not in "iuf":
            raise ManifestError(f"{where}: its type is {dtype}, no number")
        try:
            if not isinstance(freq, str):
                steps = cls(first, dtype, Fraction(freq))
            else:
                match = _FREQUENCY.fullmatch(freq)
                count, name_of = (int(match[1] or 1), match[2]) if match else (0, "")
                if not count or name_of not in {*_SECONDS, *_MONTHS}:
                    raise ValueError(f"it is no number of {', '.join([*_SECONDS, *_MONTHS])}")
                unit, since = parsed_units(variable.attributes.get("units"))
                if name_of in _SECONDS:
                    steps = cls(first, dtype, Fraction(_SECONDS[name_of] * count, unit))
                else:
                    calendar = calendar_of(variable.attributes)
                    if calendar not in GREGORIAN:
                        raise ValueError(f"months are not known in the calendar {calendar!r}")
                    begin = instant(since)
                    if calendar != "proleptic_gregorian" and begin < datetime(*CHANGE):
                        raise ValueError("the standard calendar changes before 1582-10-15")
                    months = _MONTHS[name_of] * count
                    step = Fraction(months * _MONTH, unit)
                    steps = cls(first, dtype, step, months, unit, np.datetime64(begin, "s"))
        except ValueError as e:
            raise ManifestError(f"{where}: {e}") from e
        if not steps.months and (steps.step <= 0 or (dtype.kind in "iu" and steps.step.denominator != 1)):
            raise ManifestError(f"{where}: a step is {steps.step} of these units, which {dtype} cannot hold")
        return steps

    def places(self, values: npt.NDArray[Any], part: Named, dim: str) -> npt.NDArray[Any]:
        """Return how many steps each of ``values`` is behind the first; ManifestError where that is no number."""
        numbers = values.astype(np.float64)
        places: npt.NDArray[Any] = np.rint((numbers - float(self.first)) / float(self.step)).astype(np.int64)
        near = float(self.step) * 1e-6 if self.dtype.kind == "f" and not self.months else 0.0
        apart = np.flatnonzero(~(np.abs(self.values(places).astype(np.float64) - numbers) <= near))
        if len(apart):
            raise ManifestError(
                f"{part.name} has {dim} = {values[apart[0]]}, which is no whole number of steps (freq=) behind the "
                f"first value, {self.first}"
            )
        return places

    def all_of(self, values: npt.NDArray[Any], part: Named, dim: str) -> npt.NDArray[Any]:
        """Return ``values``, the first of which is that of the steps, with those between them."""
        last = int(self.places(values[-1:], part, dim)[0])
        if not 0 <= last < MOST:
            raise ManifestError(
                f"{dim!r} would have {last + 1:,} values with those of {part.name}, of {MOST:,} at most"
            )
        self.places(values, part, dim)
        return self.values(np.arange(last + 1))

    def values(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that many steps behind the first."""
        found: npt.NDArray[Any]
        if self.months:
            begin = self.since + np.rint(float(self.first) * self.unit).astype("m8[s]")
            month = begin.astype("M8[M]")
            seconds = (month + places * self.months).astype("M8[s]") + (begin - month.astype("M8[s]")) - self.since
            found = seconds.astype(np.int64) / self.unit
        elif self.dtype.kind in "iu":
            found = int(self.first) + places * int(self.step)
        else:
            found = float(self.first) + places * float(self.step)
        return np.asarray(found, self.dtype)

"""Sets that do not have all that others have: what is missing in one is chunks that do not exist. No I/O here.

`completed` gives every set all arrays and the union of the coordinates along other dimensions; `filled` puts sets of
nothing where values of a regular coordinate are missing. Readers show the fill value there, so an array needs one that
means that values are missing: zeros would be wrong without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import Texts
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.keys import join
from refshard_fs.core.version_3 import for_xarray
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.cf_times import CHANGE, GREGORIAN, calendar_of, instant, parsed_units
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.compatibility import with_metadata
from refshard_fs.sets.concatenation import coordinate_values, shown_value
from refshard_fs.sets.cutting import trimmed
from refshard_fs.sets.variables import MOST, ChangedSet, Moved, Named, Numbers, Variable, grid_of

# ----------------------------------------------------------------------------------------------------
# Sets with all arrays, and the same coordinates.


def completed(parts: Sequence[Named], dim: str | None, *, lazy: bool = False) -> list[Named]:
    """Return ``parts``, each with all arrays along ``dim``, and with the union of coordinates along other dimensions.

    ManifestError where that takes more than references can say, or where an array has no value that means "missing".
    With ``lazy`` the metadata of the first set are shown as they are.
    """
    parts = list(parts) if lazy else _aligned(parts, dim)
    first = _first_with(parts, dim)
    lacking = {path for path in first if any(path not in part.variables for part in parts)}
    for path in lacking:
        if lazy and path not in parts[0].variables:
            raise ManifestError(
                f"{parts[0].name} has no variable {path!r}, and lazy=True shows what the first set has: give "
                f"{first[path].name} first, or leave lazy=True out"
            )
    parts = with_missing(parts, lacking, lazy=lazy)
    first = _first_with(parts, dim)
    return [_with_all(part, first, lacking, dim) for part in parts]


def _first_with(parts: Sequence[Named], dim: str | None) -> dict[str, Named]:
    """Return the first set that has it, for each array along ``dim``."""
    first: dict[str, Named] = {}
    for part in parts:
        for path, variable in part.variables.items():
            if dim in variable.dims:
                first.setdefault(path, part)
    return first


def _with_all(part: Named, first: Mapping[str, Named], lacking: set[str], dim: str | None) -> Named:
    missing = [path for path in first if path in lacking and path not in part.variables]
    if not missing:
        return part
    found = {v.meta.shape[v.dims.index(dim)] for v in part.variables.values() if dim in v.dims}
    if len(found) != 1:
        raise ManifestError(f"{part.name} has nothing along {dim!r} that says how long it is: {sorted(found)}")
    changing = ChangedSet(part)
    for path in missing:
        variable = first[path].variables[path]
        shape = list(variable.meta.shape)
        shape[variable.dims.index(dim)] = next(iter(found))
        attributes = first[path].refs.side.get(join(path, ".zattrs"))
        changing.put(variable, {**variable.meta.raw, "shape": shape}, attributes)
    return changing.named()


def _aligned(parts: Sequence[Named], dim: str | None) -> list[Named]:
    """Return ``parts`` with the union of their coordinates along all dimensions but ``dim``."""
    unions: dict[str, npt.NDArray[Any]] = {}  # by the name of a dimension, where sets differ
    own: dict[str, list[npt.NDArray[Any] | None]] = {}
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        name = next(part.variables[path].dims[0] for part in parts if path in part.variables)
        if name is None or name == dim or name in own:
            continue
        values = [part.values(path) if path in part.variables else None for part in parts]
        known = [found for found in values if found is not None]
        if len(known) < 2 or all(np.array_equal(found, known[0]) for found in known):
            continue
        if any(path in part.variables and found is None for part, found in zip(parts, values, strict=True)):
            raise ManifestError(f"the values of {path!r} are not the same in all sets, and not all can be read")
        union = np.unique(np.concatenate(known))
        if any(len(found) > 1 and found[0] > found[-1] for found in known):
            union = union[::-1]
        own[name], unions[name] = values, union
    if not unions:
        return list(parts)
    incomplete = {
        path
        for part in parts
        for path, v in part.variables.items()
        for d in v.dims
        if d in unions and not v.is_coordinate and len(unions[d]) > v.meta.shape[v.dims.index(d)]
    }
    moved = []
    for number, part in enumerate(with_missing(parts, incomplete)):
        offsets = {}
        for name, union in unions.items():
            values_here = own[name][number]
            if values_here is None:
                continue
            places = np.flatnonzero(np.isin(union, values_here))
            start = int(places[0]) if len(places) else 0
            if not np.array_equal(union[start : start + len(values_here)], values_here):
                raise ManifestError(
                    f"the values of {name!r} of {part.name} are not in one piece of those of all sets, in their order: "
                    "references cannot say that"
                )
            offsets[name] = (start, union)
        moved.append(_placed(part, offsets))
    return moved


def _placed(part: Named, offsets: Mapping[str, tuple[int, npt.NDArray[Any]]]) -> Named:
    """Return a set whose arrays lie within longer ones: by dimension, where they begin, and its values."""
    changing = ChangedSet(part)
    for path, variable in part.variables.items():
        within = {axis: offsets[d] for axis, d in enumerate(variable.dims) if d is not None and d in offsets}
        if not within:
            continue
        meta, counts = variable.meta, part.refs.tables[path].grid.counts
        if variable.is_coordinate:
            changing.put_values(variable, within[0][1])
            continue
        shape, first = list(meta.shape), [0] * len(meta.shape)
        for axis, (start, union) in within.items():
            size = meta.chunks[axis] if meta.chunks else 0
            length = shape[axis]
            if not size or start % size or (length % size and start + length < len(union)):
                raise ManifestError(
                    f"{path!r} of {part.name} has {length} elements along {variable.dims[axis]!r} in chunks of {size}, "
                    f"and begins at {start} of the {len(union)} of all sets: its chunks do not meet theirs"
                )
            shape[axis], first[axis] = len(union), start // size
        doc = {**meta.raw, "shape": shape}
        new = grid_of(doc, f"{path!r} of {part.name}").counts
        changing.put_moved(variable, doc, partial(_moved, old=counts, new=new, first=first))
    return changing.named()


def _moved(numbers: Numbers, old: Sequence[int], new: Sequence[int], first: Sequence[int]) -> Moved:
    """Return the numbers of chunks in a larger grid, in which the old one begins at ``first``."""
    coords = np.unravel_index(numbers, old)
    found = np.zeros(len(numbers), np.int64)
    for coord, count, start in zip(coords, new, first, strict=True):
        found = found * count + coord + start
    return found, np.ones(len(numbers), np.bool_)


# ----------------------------------------------------------------------------------------------------
# What readers take for missing.


def with_missing(parts: Sequence[Named], paths: set[str], *, lazy: bool = False) -> list[Named]:
    """Return ``parts`` whose arrays ``paths`` have a fill value that readers take for missing values.

    Where an array has none, and all chunks of the sets exist, it gets one: that of ``missing_value``, or of floating
    point numbers NaN. ManifestError where there is none.
    """
    fills = {}
    for path in paths:
        having = [part for part in parts if path in part.variables]
        fill = _fill(path, having, lazy=lazy)
        if fill is not None:
            fills[path] = fill
    if not fills:
        return list(parts)
    found = []
    for part in parts:
        shown = {path: part.variables[path] for path in fills if path in part.variables}
        found.append(with_metadata(part, {v.key: {**v.meta.raw, "fill_value": fills[p]} for p, v in shown.items()}))
    return found


def _fill(path: str, parts: Sequence[Named], *, lazy: bool) -> Any:
    """Return the fill value that an array is to have; None where it has one already."""
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
    if wanted is None or lazy or any(_has_gaps(part, path) for part in parts):
        what = "and chunks that do not exist already" if wanted is not None and not lazy else "as missing values need"
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
_MONTHS: Final = {"MS": 1, "QS": 3, "YS": 12, "AS": 12}


class Filled(msgspec.Struct, frozen=True):
    """What is joined in one place: a set, or part of it, by its number; without one it is a gap."""

    number: int | None
    part: Named


def filled(parts: Sequence[Named], dim: str, freq: str | float, *, lazy: bool = False) -> list[Filled]:
    """Return ``parts`` with sets of nothing where values of the coordinate ``dim`` are missing, one every ``freq``.

    ManifestError where values are not at that distance from the first one, or where an array has no value that means
    "missing".
    """
    values = coordinate_values(parts, dim)
    if values is None:
        raise ManifestError(f"there is no coordinate {dim!r} of numbers of which freq= could tell what is missing")
    first = next(v for v in parts[0].variables.values() if v.is_coordinate and v.dims == (dim,))
    every = np.concatenate(values)
    if not len(every):
        return [Filled(number, part) for number, part in enumerate(parts)]
    steps = _Steps.of(freq, first, every[0], parts[0].name)
    places_of = [steps.places(own, part, dim) for part, own in zip(parts, values, strict=True)]
    if (np.diff(np.concatenate(places_of)) == 1).all():
        return [Filled(number, part) for number, part in enumerate(parts)]
    along = {path for part in parts for path, v in part.variables.items() if dim in v.dims and not v.is_coordinate}
    parts = with_missing(parts, along, lazy=lazy)
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
                raise ManifestError(f"{dim!r} would have more than {MOST:,} values, one every {freq}")
            if place > at:
                gap = steps.values(np.arange(at, place))
                found.append(Filled(None, nothing(parts[0], dim, gap, f"the gap before {part.name}")))
            found.append(Filled(number, trimmed(part, dim, start, stop)))
            at = place + stop - start
    return found


def nothing(like: Named, dim: str, values: npt.NDArray[Any], name: str) -> Named:
    """Return a set without chunks that has the arrays along ``dim`` of another one, and ``values`` there."""
    empty = Named(name, ReferenceSet(Texts.of([]), {}, {}), {})
    changing = ChangedSet(empty)
    for path, variable in like.variables.items():
        if dim not in variable.dims:
            continue
        attributes = like.refs.side.get(join(path, ".zattrs"))
        if variable.is_coordinate:
            changing.put_values(variable, values, attributes)
        else:
            shape = list(variable.meta.shape)
            shape[variable.dims.index(dim)] = len(values)
            changing.put(variable, {**variable.meta.raw, "shape": shape}, attributes)
    return changing.named()


class _Steps(msgspec.Struct, frozen=True):
    """Values at equal distances: ``step`` units of the coordinate each, or whole months."""

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
                    steps = cls(first, dtype, Fraction(0), _MONTHS[name_of] * count, unit, np.datetime64(begin, "s"))
        except ValueError as e:
            raise ManifestError(f"{where}: {e}") from e
        if not steps.months and (steps.step <= 0 or (dtype.kind in "iu" and steps.step.denominator != 1)):
            raise ManifestError(f"{where}: a step is {steps.step} of these units, which {dtype} cannot hold")
        return steps

    def places(self, values: npt.NDArray[Any], part: Named, dim: str) -> npt.NDArray[Any]:
        """Return how many steps each of ``values`` is behind the first; ManifestError where that is no number."""
        places: npt.NDArray[Any]
        if self.months:
            month, _ = self._month(values)
            begin, _ = self._month(np.asarray([self.first]))
            places = (month - begin).astype(np.int64) // self.months
        else:
            behind = values.astype(np.float64) - float(self.first)
            places = np.rint(behind / float(self.step)).astype(np.int64)
        expected = self.values(places)
        near = float(self.step) * 1e-6 if self.dtype.kind == "f" and not self.months else 0.0
        apart = np.flatnonzero(~(np.abs(expected.astype(np.float64) - values.astype(np.float64)) <= near))
        if len(apart):
            raise ManifestError(
                f"{part.name} has {dim} = {values[apart[0]]}, which is no whole number of steps (freq=) behind the "
                f"first value, {self.first}"
            )
        return places

    def values(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that many steps behind the first."""
        found: npt.NDArray[Any]
        if self.months:
            begin, rest = self._month(np.asarray([self.first]))
            seconds = (begin + places * self.months).astype("M8[s]") + rest - self.since
            found = seconds.astype(np.int64) / self.unit
        elif self.dtype.kind in "iu":
            found = int(self.first) + places * int(self.step)
        else:
            found = float(self.first) + places * float(self.step)
        return np.asarray(found, self.dtype)

    def _month(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the months in which values lie, and how far behind their beginning."""
        seconds = np.rint(values.astype(np.float64) * self.unit).astype("m8[s]")
        times = self.since + seconds
        months = times.astype("M8[M]")
        return months, times - months.astype("M8[s]")

"""Convert CF times whose units differ between sets to common units.

Each file of an archive may count from the beginning of its own year. A coordinate and the bounds of its cells, which
have the coordinate's units (CF conventions, section 7.1), are converted together. The common units are those of the
first set if they hold all times exactly, otherwise finer units. If no units hold all times exactly, floating-point
times are rounded.

References cannot describe converted numbers, so the numbers are read and kept in the set. A lazy cube keeps only the
numbers of the coordinate, and converts chunks of bounds when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.dtypes import dtype_of, make_plain_document
from refshard_fs.core.keys import join, parent
from refshard_fs.cubes.cf_times import (
    SECOND,
    UNITS,
    TimeUnits,
    are_alike,
    find_common_unit,
    get_calendar,
    get_calendar_family,
    is_time,
    list_finer_units,
    parse_units,
)
from refshard_fs.cubes.fit import make_difference_error
from refshard_fs.cubes.recoding import MISSING, convert_exactly, get_missing_values
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet, replace_metadata
from refshard_fs.sets.digests import read_small_arrays
from refshard_fs.sets.variables import BOUNDS, NamedSet, Variable, change_type, put_attributes


class SetsInCommonUnits(NamedTuple):
    """Sets whose times along a dimension are in common units.

    ``bounds`` and ``metadata`` are for the document of a lazy cube: ``bounds`` has, by path of an array, the path of
    the coordinate whose units the array has. ``metadata`` has, by key, the metadata documents of arrays that are shown
    in other units, or in a wider type, than the first set stores.
    """

    parts: list[NamedSet]
    bounds: dict[str, str]
    metadata: dict[str, dict[str, Any]]


def convert_to_common_units(
    parts: Sequence[NamedSet], dim: str | None, *, lazy: bool = False, fixed: Mapping[str, Any] = {}
) -> SetsInCommonUnits:
    """Return ``parts`` with times along ``dim`` in common units; ManifestError, with the reason, if none fit.

    ``fixed`` are units, by path, that must be kept.
    """
    common = SetsInCommonUnits(list(parts), {}, {})
    for path, bounds in find_times(parts, dim).items():
        times = _Times(path, bounds, [number for number, part in enumerate(parts) if path in part.variables])
        _check_calendars(common.parts, times)
        if times.has_different_units(common.parts, fixed.get(path)):
            _recode(common, times, lazy=lazy, fixed=fixed.get(path))
        elif not lazy:
            _read_values(common, times, only_mixed=True)
    return common


class _Times(NamedTuple):
    """An array of times, the other arrays with its units, and the numbers of the sets that contain it."""

    path: str
    bounds: Sequence[str]
    owners: Sequence[int]

    def list_arrays(self, parts: Sequence[NamedSet]) -> list[tuple[int, str]]:
        """Return all arrays, by number of their set and path."""
        return [(n, path) for path in (self.path, *self.bounds) for n in self.owners if path in parts[n].variables]

    def has_different_units(self, parts: Sequence[NamedSet], fixed: str | None) -> bool:
        """Return whether units differ between the sets, or from the ``fixed`` units."""
        every = {id(v): v.attributes for v in (parts[number].variables[self.path] for number in self.owners)}
        first = next(iter(every.values()))
        shown = {**first, "units": fixed or first.get("units")}
        return any(own.get("units") != shown["units"] or not are_alike(own, shown) for own in every.values())

    def get_units(self, part: NamedSet, path: str) -> dict[str, Any]:
        """Return the attributes that give the units of an array; those that it lacks come from the times."""
        both = part.variables[self.path].attributes, part.variables[path].attributes
        return {name: given[name] for given in both for name in UNITS if name in given}


def find_times(parts: Sequence[NamedSet], dim: str | None) -> dict[str, list[str]]:
    """Return the paths of the times along a dimension, each with the paths of its bounds, which have the same units."""
    times: dict[str, list[str]] = {}
    seen: set[int] = set()
    for part in parts:
        for path, variable in part.variables.items():
            if id(variable) in seen or dim not in variable.dims or not is_time(variable.attributes):
                continue
            seen.add(id(variable))  # sets that are alike share their variables
            known = times.setdefault(path, [])
            for name in map(variable.attributes.get, BOUNDS):
                bound = join(parent(path)[0], name) if isinstance(name, str) else path
                if bound != path and bound in part.variables and dim in part.variables[bound].dims:
                    known.append(bound)
    owned = {name for bounds in times.values() for name in bounds}
    return {path: list(dict.fromkeys(bounds)) for path, bounds in times.items() if path not in owned}


def _check_calendars(parts: Sequence[NamedSet], times: _Times) -> None:
    """Raise ManifestError if a time would get another date in the calendar of the first set.

    The standard and the proleptic Gregorian calendar have the same dates since 1582.
    """
    first = parts[times.owners[0]]
    mine = get_calendar(first.variables[times.path].attributes)
    for part in (parts[number] for number in times.owners):
        attributes = part.variables[times.path].attributes
        theirs = get_calendar(attributes)
        if theirs != mine and get_calendar_family(theirs) == get_calendar_family(mine):
            if not (_are_gregorian(first, times.path) and _are_gregorian(part, times.path)):
                raise make_difference_error(times.path, "attribute calendar", first.name, mine, part.name, theirs)


def _are_gregorian(part: NamedSet, path: str) -> bool:
    """Return whether times have the same dates in the standard and the proleptic calendar, as far as they are known."""
    values = part.decode_values(path)
    try:
        units = TimeUnits.of(part.variables[path].attributes)
    except ValueError:  # `_recode` raises the error
        return True
    return values is None or units.is_gregorian(values[~_find_missing(part, path)])


def make_comparable(variable: Variable, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the ``values`` of a coordinate in a form to compare: equal instants are equal, missing times are NaN."""
    if not is_time(variable.attributes) or values.dtype.kind not in "iuf":
        return values
    with suppress(ValueError):  # units of months have no fixed length
        values = TimeUnits.of(variable.attributes).snap(values)
    missing = _is_missing(variable, values)
    return np.where(missing, np.nan, values) if missing.any() else values


def _is_missing(variable: Variable, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the ``values`` of an array that mean "missing"."""
    found: npt.NDArray[np.bool_] = np.isin(values, _get_marks(variable, values.dtype))
    return found | np.isnan(values) if values.dtype.kind == "f" else found


def _find_missing(part: NamedSet, path: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the missing values of an array, whose values must be known."""
    values = part.decode_values(path)
    assert values is not None, "the values are known"
    return _is_missing(part.variables[path], values)


def _get_marks(variable: Variable, dtype: np.dtype[Any]) -> list[int | float]:
    """Return the numbers that mean "missing" in an array."""
    fill = variable.meta.raw.get("fill_value") if variable.meta.zarr_format == 2 else None
    fills = [fill] if isinstance(fill, int | float) else []
    return [*fills, *get_missing_values(variable.meta, variable.attributes, dtype)]


def _recode(common: SetsInCommonUnits, times: _Times, *, lazy: bool, fixed: str | None) -> None:
    """Put an array of times and its bounds into common units, in all sets that have it."""
    parts = common.parts
    first = parts[times.owners[0]]
    coordinate = first.variables[times.path]
    units: dict[tuple[int, str], TimeUnits] = {}
    for number, path in times.list_arrays(parts):
        attributes = times.get_units(parts[number], path)
        try:
            units[number, path] = TimeUnits.of(attributes)
            packed = next((name for name in PACKING if name in parts[number].variables[path].attributes), None)
            if packed is not None:
                raise ValueError(f"it has the attribute {packed}")
        except ValueError as e:
            raise _make_error(times, parts, number, e) from e
        mine, theirs = get_calendar(coordinate.attributes), get_calendar(attributes)
        if get_calendar_family(mine) != get_calendar_family(theirs):
            raise make_difference_error(path, "attribute calendar", first.name, mine, parts[number].name, theirs)
    if not lazy:
        _read_values(common, times)
    read = {at for at in units if not lazy or (coordinate.is_coordinate and at[1] == times.path)}
    if any(parts[number].decode_values(path) is None for number, path in read):
        return
    own = str(coordinate.attributes["units"])
    texts = [fixed] if fixed else [own, *list_finer_units(find_common_unit(units.values()), own)]
    closest = fixed or list_finer_units(min(SECOND, parse_units(own)[0]), own)[0]  # if no units hold all times exactly
    errors: list[ManifestError] = []
    for text, rounded in dict.fromkeys([*((exact, False) for exact in texts), (closest, True)]):
        to = TimeUnits.of({**coordinate.attributes, "units": text})
        converted: dict[tuple[int, str], npt.NDArray[Any] | None] = {}
        try:
            for at in units:
                like = first.variables.get(at[1], parts[at[0]].variables[at[1]])
                converted[at] = _convert(parts[at[0]], at[1], like, units[at], to, rounded=rounded, lazy=at not in read)
        except ValueError as e:
            errors.append(_make_error(times, parts, at[0], e))
            continue
        stored = {(number, path): times.get_units(parts[number], path) for number, path in units}
        for (number, path), numbers in converted.items():
            if numbers is not None:
                part = parts[number]
                marked = first.variables.get(path) if _find_missing(part, path).any() else None
                changed = ChangedSet(replace_metadata(part, _change_units(part.variables[path], text, marked)))
                changed.put_values(changed.part.variables[path], numbers)
                parts[number] = changed.finish()
        if lazy:
            _show_units(common, times, stored, text)
        return
    raise errors[0]


def _convert(
    part: NamedSet, path: str, like: Variable, units: TimeUnits, to: TimeUnits, *, rounded: bool, lazy: bool
) -> npt.NDArray[Any] | None:
    """Return the values of an array in the units ``to``, in its own type if this holds them; None if ``lazy``.

    Missing values become the fill value of ``like``, the array of the first set. ValueError if an instant would change.
    """
    if lazy:
        dtype = dtype_of(part.variables[path].meta)
        if not (rounded and dtype is not None and dtype.kind == "f") and find_common_unit([to, units]) % to.length:
            raise ValueError("some numbers cannot be converted exactly to the other units")
        return None
    values = part.decode_values(path)
    assert values is not None, "the values were read"
    missing, dtype = _find_missing(part, path), dtype_of(like.meta)
    known = units.convert(values[~missing], to, rounded=rounded and values.dtype.kind == "f")
    marks = [] if dtype is None else _get_marks(like, dtype)
    for mark in marks:
        if np.isin(known, mark).any():
            raise ValueError(f"its values include {mark}, which is the fill value of the first set")
    is_float = known.dtype.kind == "f" or (missing.any() and dtype is not None and dtype.kind == "f")
    if missing.any() and not marks and not is_float:
        raise ValueError(f"values are missing, and the first set has no fill value of the type {dtype} for them")
    numbers = np.full(
        values.shape, marks[0] if marks else np.nan if is_float else 0, np.float64 if is_float else np.int64
    )
    numbers[~missing] = known
    stored = convert_exactly(numbers, values.dtype) if values.dtype.kind == numbers.dtype.kind else None
    return numbers if stored is None else stored


def _make_error(times: _Times, parts: Sequence[NamedSet], number: int, error: ValueError) -> ManifestError:
    """Return the error for times that cannot be converted to common units: it names two sets with different units."""
    units = {n: parts[n].variables[times.path].attributes.get("units") for n in times.owners}
    first = times.owners[0]
    other = number if units[number] != units[first] else next((n for n in units if units[n] != units[first]), number)
    return ManifestError(
        f"{times.path!r} has the attribute units {units[first]!r} in {parts[first].name}, and {units[other]!r} in "
        f"{parts[other].name}, and cannot be converted: {error}. Leave one of these sets out, or rewrite its times in "
        "the units of the other set"
    )


def _read_values(common: SetsInCommonUnits, times: _Times, *, only_mixed: bool = False) -> None:
    """Read the values of times and of their bounds into the sets; ManifestError if that fails.

    If ``only_mixed``, read only arrays that some sets hold inline, and others in chunks: they are joined by values.
    """
    wanted: dict[int, list[str]] = {}
    for path in (times.path, *times.bounds):
        owners = [number for number in times.owners if path in common.parts[number].variables]
        lacking = [number for number in owners if common.parts[number].decode_values(path) is None]
        if not only_mixed or len(lacking) < len(owners):
            for number in lacking:
                wanted.setdefault(number, []).append(path)
    for number, chunks in read_small_arrays(common.parts, wanted):
        part = common.parts[number]
        for path in wanted[number]:
            if path not in chunks:
                reason = f"has the units of {times.path!r}, which differ between the sets. To convert it"
                if only_mixed:
                    reason = "is stored in chunks, but other sets hold its values inline. To join them"
                raise ManifestError(
                    f"{path!r} of {part.name} {reason}, its values must be read and held in the set, but it is too "
                    "large, or cannot be read: lazy=True reads its chunks when they are needed"
                )
            changed = ChangedSet(part)
            changed.put(part.variables[path], part.variables[path].meta.raw, chunks=chunks[path])
            part = changed.finish()
        common.parts[number] = part


def _change_units(variable: Variable, units: str, like: Variable | None = None) -> dict[str, dict[str, Any]]:
    """Return the documents, by key, of an array with other ``units``, if it has units; empty if nothing changes.

    With ``like``, the fill value and the attributes of missing values are those of ``like``.
    """
    doc, attributes = dict(variable.meta.raw), dict(variable.attributes)
    if "units" not in attributes and like is None:
        return {}
    if "units" in attributes:
        attributes["units"] = units
    if like is not None:
        doc["fill_value"] = like.meta.raw.get("fill_value")
        attributes = {name: value for name, value in attributes.items() if name not in MISSING}
        attributes |= {name: like.attributes[name] for name in MISSING if name in like.attributes}
    return {variable.key: doc, **put_attributes(variable.key, doc, attributes)}


def _show_units(
    common: SetsInCommonUnits, times: _Times, stored: Mapping[tuple[int, str], Mapping[str, Any]], text: str
) -> None:
    """Let a lazy cube show times and their bounds in the units ``text`` instead of the ``stored`` units."""
    first = times.owners[0]
    for (number, path), units in stored.items():
        part = common.parts[number]
        if number == first and units["units"] != text:
            documents = _change_units(part.variables[path], text)
            part = replace_metadata(part, documents)
            common.metadata.update(documents)
        if number == first and path in times.bounds:  # values of bounds are unknown, and may need a wider type
            documents = _widen(part.variables[path])
            part = replace_metadata(part, documents)
            common.metadata.update(documents)
        if path in times.bounds:
            common.bounds[path] = times.path
            shown = {**units, "units": text} if number == first else units
            part = msgspec.structs.replace(part, units={**part.units, path: shown})
        common.parts[number] = part


def _widen(variable: Variable) -> dict[str, dict[str, Any]]:
    """Return a document, by its key, that gives ``variable`` 64-bit numbers and no codecs; empty to keep its type."""
    meta, dtype = variable.meta, dtype_of(variable.meta)
    if dtype is None or meta.chunks is None or dtype.kind not in "iuf" or dtype.itemsize == 8:
        return {}
    wide = change_type(meta, np.dtype(np.float64 if dtype.kind == "f" else np.int64))
    return {variable.key: make_plain_document(wide, meta.shape, meta.chunks)}

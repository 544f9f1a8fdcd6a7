"""Times of sets that count from other times than those of the first set, as numbers of common units.

Each file of an archive may count from the beginning of its own year. What is stored along the dimension in such units
is recoded together: the coordinate, and the bounds of its cells, which have the coordinate's units (CF conventions,
section 7.1). The first set's units are kept where they hold all values, else finer ones are taken.

References alone cannot say that: the numbers are read then, and held by the set. In a lazy cube only the coordinate's
are, and chunks of bounds are recoded when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.keys import join, parent
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.cf_times import UNITS, TimeUnits, calendar_of, finest, is_time, spelled
from refshard_fs.formats.virtual_concat.document import difference
from refshard_fs.sets.compatibility import chunks_read
from refshard_fs.sets.variables import ChangedSet, Named, Variable, with_attributes, with_metadata

BOUNDS: Final = ("bounds", "climatology")  # attributes of a coordinate that name an array in its units


class CommonUnits(NamedTuple):
    """Sets whose times along a dimension are in common units.

    Of a lazy cube, ``bounds`` are its arrays that have the units of a coordinate, by path, and ``shown`` are documents
    (by key) that say other units than those of the first set do.
    """

    parts: list[Named]
    bounds: dict[str, str]
    shown: dict[str, dict[str, Any]]


def with_common_units(
    parts: Sequence[Named], dim: str | None, *, lazy: bool = False, fixed: Mapping[str, Any] = {}
) -> CommonUnits:
    """Return ``parts`` with times along ``dim`` in common units; ManifestError, which says why, where that cannot be.

    ``fixed`` are the units, by path, of what is there already.
    """
    found = CommonUnits(list(parts), {}, {})
    for path, bounds in times_along(parts, dim).items():
        times = _Times(path, bounds, [number for number, part in enumerate(parts) if path in part.variables])
        texts = {parts[number].variables[path].attributes.get("units") for number in times.having}
        if len(texts | {fixed.get(path) or next(iter(texts))}) > 1:
            _recode(found, times, lazy=lazy, fixed=fixed.get(path))
        elif not lazy:
            _hold(found, times, only_begun=True)
    return found


class _Times(NamedTuple):
    """An array of times, the arrays that have its units, and the sets (by number) that have it."""

    path: str
    bounds: Sequence[str]
    having: Sequence[int]

    def places(self, parts: Sequence[Named]) -> list[tuple[int, str]]:
        """Return all arrays, by number of their set and path."""
        return [(n, path) for path in (self.path, *self.bounds) for n in self.having if path in parts[n].variables]

    def attributes(self, part: Named, path: str) -> dict[str, Any]:
        """Return the attributes that say the units of an array: its own, and else those of the times."""
        both = part.variables[self.path].attributes, part.variables[path].attributes
        return {name: of[name] for of in both for name in UNITS if name in of}


def times_along(parts: Sequence[Named], dim: str | None) -> dict[str, list[str]]:
    """Return the arrays of times along a dimension, each with those along it that have its units."""
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


def _recode(found: CommonUnits, times: _Times, *, lazy: bool, fixed: str | None) -> None:
    """Put an array of times and its bounds into common units, in all sets that have it."""
    first = found.parts[times.having[0]]
    lead = first.variables[times.path]
    units: dict[tuple[int, str], TimeUnits] = {}
    stored: dict[tuple[int, str], dict[str, Any]] = {}
    for number, path in times.places(found.parts):
        part = found.parts[number]
        stored[number, path] = times.attributes(part, path)
        try:
            units[number, path] = TimeUnits.of(stored[number, path])
            packed = next((name for name in PACKING if name in part.variables[path].attributes), None)
            if packed is not None:
                raise ValueError(f"it has the attribute {packed}")
        except ValueError as e:
            raise _refused(times, found.parts, number, e) from e
    for number, path in units:
        mine, theirs = (calendar_of(stored[at]) for at in ((times.having[0], times.path), (number, path)))
        if mine != theirs:
            raise difference(path, "attribute calendar", first.name, mine, found.parts[number].name, theirs)
    if not lazy:
        _hold(found, times)
    parts = found.parts
    held = [at for at in units if not lazy or (lead.is_coordinate and at[1] == times.path)]
    values = {(number, path): parts[number].values(path) for number, path in held}
    if any(known is None for known in values.values()):
        return
    own = str(lead.attributes["units"])
    candidates = [fixed] if fixed else dict.fromkeys([own, spelled(finest(units.values()), own), spelled(1, own)])
    errors: list[ManifestError] = []
    for text in candidates:
        to = TimeUnits.of({**lead.attributes, "units": text})
        try:
            converted = {}
            for at in units:
                converted[at] = _converted(parts[at[0]].variables[at[1]], units[at], to, values.get(at))
        except ValueError as e:
            errors.append(_refused(times, parts, at[0], e))
            continue
        for (number, path), known in converted.items():
            if known is not None:
                parts[number] = _with_values(parts[number], path, known, text)
        if lazy:
            _show(found, times, stored, text)
        return
    raise errors[0]


def _converted(
    variable: Variable, units: TimeUnits, to: TimeUnits, values: npt.NDArray[Any] | None
) -> npt.NDArray[Any] | None:
    """Return the values of an array in other units, in its own type if that holds them; None where they are not known.

    ValueError where an instant would change.
    """
    dtype = dtype_of(variable.meta)
    if values is None:
        if dtype is not None and dtype.kind in "iu" and finest([to, units]) % to.seconds:
            raise ValueError("whole numbers are none in the other units")
        return None
    found = units.converted(values, to)
    fills = [variable.meta.raw.get("fill_value")] if variable.meta.zarr_format == 2 else []
    fills += [variable.attributes.get(name) for name in ("_FillValue", "missing_value")]
    for fill in fills:
        if isinstance(fill, int | float) and (np.isin(values, fill).any() or np.isin(found, fill).any()):
            raise ValueError(f"the value {fill}, which stands for missing ones, is among its values")
    with np.errstate(invalid="ignore", over="ignore"):
        stored = found.astype(values.dtype)
    return stored if np.array_equal(stored.astype(found.dtype), found, equal_nan=found.dtype.kind == "f") else found


def _refused(times: _Times, parts: Sequence[Named], number: int, error: ValueError) -> ManifestError:
    """Return the error of a set whose times cannot be those of the first one, or the reverse."""
    units = {n: parts[n].variables[times.path].attributes.get("units") for n in times.having}
    first = times.having[0]
    other = number if units[number] != units[first] else next((n for n in units if units[n] != units[first]), number)
    return ManifestError(
        f"{times.path!r} has the attribute units {units[first]!r} in {parts[first].name}, and {units[other]!r} in "
        f"{parts[other].name}, and cannot be carried over: {error}. Leave one out, or write its times anew in the "
        "units of the other"
    )


# ----------------------------------------------------------------------------------------------------
# Sets with other values, or other units.


def _hold(found: CommonUnits, times: _Times, *, only_begun: bool = False) -> None:
    """Have sets hold the values of arrays to which they refer; ManifestError where these cannot be read.

    If ``only_begun``, those of arrays whose values some sets hold already: such arrays are joined as values.
    """
    wanted: dict[int, list[str]] = {}
    for path in (times.path, *times.bounds):
        having = [number for number in times.having if path in found.parts[number].variables]
        lacking = [number for number in having if found.parts[number].values(path) is None]
        if not only_begun or len(lacking) < len(having):
            for number in lacking:
                wanted.setdefault(number, []).append(path)
    for number, chunks in chunks_read(found.parts, wanted):
        part = found.parts[number]
        for path in wanted[number]:
            if path not in chunks:
                raise ManifestError(
                    f"{path!r} of {part.name} has the units of {times.path!r}, which are not those of other sets, and "
                    "cannot be read to be held in the set: lazy=True recodes its chunks when they are read"
                )
            changed = ChangedSet(part)
            changed.put(part.variables[path], part.variables[path].meta.raw, chunks=chunks[path])
            part = changed.named()
        found.parts[number] = part


def _with_values(part: Named, path: str, values: npt.NDArray[Any], units: str) -> Named:
    """Return a set that holds ``values`` of an array, which are in ``units``."""
    changed = ChangedSet(with_metadata(part, _in_units(part.variables[path], units)))
    changed.put_values(changed.part.variables[path], values)
    return changed.named()


def _in_units(variable: Variable, units: str) -> dict[str, dict[str, Any]]:
    """Return the document, by key, of an array with other units; none if it has no units itself."""
    if "units" not in variable.attributes:
        return {}
    return with_attributes(variable.key, variable.meta.raw, {**variable.attributes, "units": units})


def _show(found: CommonUnits, times: _Times, stored: Mapping[tuple[int, str], Mapping[str, Any]], text: str) -> None:
    """Have a lazy cube show an array of times and its bounds in the units ``text``, whatever ``stored`` ones are."""
    for (number, path), units in stored.items():
        part = found.parts[number]
        is_first = number == times.having[0]
        if is_first and units["units"] != text:
            documents = _in_units(part.variables[path], text)
            part = with_metadata(part, documents)
            found.shown.update(documents)
        if path in times.bounds:
            found.bounds[path] = times.path
            units = {**units, "units": text} if is_first else units
            part = msgspec.structs.replace(part, units={**part.units, path: units})
        found.parts[number] = part

"""CF times whose units differ between sets, as numbers of common units.

Each file of an archive may count from the beginning of its own year. A coordinate and the bounds of its cells, which
have the coordinate's units (CF conventions, section 7.1), are recoded together. The first set's units are kept where
they hold all values, else finer ones are taken.

References alone cannot say that: the numbers are read, and kept in the set. A lazy cube keeps only the coordinate's;
chunks of bounds are recoded when they are read.
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
from refshard_fs.formats.virtual_concat.recoding import exactly, missing_values
from refshard_fs.sets.changed_set import ChangedSet, with_metadata
from refshard_fs.sets.compatibility import chunks_read
from refshard_fs.sets.variables import NamedSet, Variable, with_attributes

BOUNDS: Final = ("bounds", "climatology")  # attributes of a coordinate that name an array in its units


class CommonUnits(NamedTuple):
    """Sets whose times along a dimension are in common units.

    For the document of a lazy cube: ``bounds`` are arrays in the units of a coordinate, by path, and ``metadata`` are
    documents (by key) with other units than the first set's.
    """

    parts: list[NamedSet]
    bounds: dict[str, str]
    metadata: dict[str, dict[str, Any]]


def with_common_units(
    parts: Sequence[NamedSet], dim: str | None, *, lazy: bool = False, fixed: Mapping[str, Any] = {}
) -> CommonUnits:
    """Return ``parts`` with times along ``dim`` in common units; ManifestError, which says why, where that cannot be.

    ``fixed`` are units, by path, that must be kept.
    """
    common = CommonUnits(list(parts), {}, {})
    for path, bounds in times_along(parts, dim).items():
        times = _Times(path, bounds, [number for number, part in enumerate(parts) if path in part.variables])
        texts = {parts[number].variables[path].attributes.get("units") for number in times.owners}
        if len(texts | {fixed.get(path) or next(iter(texts))}) > 1:
            _recode(common, times, lazy=lazy, fixed=fixed.get(path))
        elif not lazy:
            _read_values(common, times, only_mixed=True)
    return common


class _Times(NamedTuple):
    """An array of times, the arrays that have its units, and the numbers of the sets that have it."""

    path: str
    bounds: Sequence[str]
    owners: Sequence[int]

    def places(self, parts: Sequence[NamedSet]) -> list[tuple[int, str]]:
        """Return all arrays, by number of their set and path."""
        return [(n, path) for path in (self.path, *self.bounds) for n in self.owners if path in parts[n].variables]

    def attributes(self, part: NamedSet, path: str) -> dict[str, Any]:
        """Return the attributes that say the units of an array: its own, and else those of the times."""
        both = part.variables[self.path].attributes, part.variables[path].attributes
        return {name: given[name] for given in both for name in UNITS if name in given}


def times_along(parts: Sequence[NamedSet], dim: str | None) -> dict[str, list[str]]:
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


def _recode(common: CommonUnits, times: _Times, *, lazy: bool, fixed: str | None) -> None:
    """Put an array of times and its bounds into common units, in all sets that have it."""
    parts = common.parts
    first = parts[times.owners[0]]
    coordinate = first.variables[times.path]
    units: dict[tuple[int, str], TimeUnits] = {}
    for number, path in times.places(parts):
        attributes = times.attributes(parts[number], path)
        try:
            units[number, path] = TimeUnits.of(attributes)
            packed = next((name for name in PACKING if name in parts[number].variables[path].attributes), None)
            if packed is not None:
                raise ValueError(f"it has the attribute {packed}")
        except ValueError as e:
            raise _refused(times, parts, number, e) from e
        mine, theirs = calendar_of(coordinate.attributes), calendar_of(attributes)
        if mine != theirs:
            raise difference(path, "attribute calendar", first.name, mine, parts[number].name, theirs)
    if not lazy:
        _read_values(common, times)
    kept = [at for at in units if not lazy or (coordinate.is_coordinate and at[1] == times.path)]
    values = {(number, path): parts[number].values(path) for number, path in kept}
    if any(known is None for known in values.values()):
        return
    own = str(coordinate.attributes["units"])
    candidates = [fixed] if fixed else dict.fromkeys([own, spelled(finest(units.values()), own), spelled(1, own)])
    errors: list[ManifestError] = []
    for text in candidates:
        to = TimeUnits.of({**coordinate.attributes, "units": text})
        try:
            converted = {}
            for at in units:
                converted[at] = _converted(parts[at[0]].variables[at[1]], units[at], to, values.get(at))
        except ValueError as e:
            errors.append(_refused(times, parts, at[0], e))
            continue
        stored = {(number, path): times.attributes(parts[number], path) for number, path in units}
        for (number, path), numbers in converted.items():
            if numbers is not None:
                changed = ChangedSet(with_metadata(parts[number], _in_units(parts[number].variables[path], text)))
                changed.put_values(changed.part.variables[path], numbers)
                parts[number] = changed.result()
        if lazy:
            _show_units(common, times, stored, text)
        return
    raise errors[0]


def _converted(
    variable: Variable, units: TimeUnits, to: TimeUnits, values: npt.NDArray[Any] | None
) -> npt.NDArray[Any] | None:
    """Return the ``values`` of an array, if they are known, in other units, in its own type if that holds them.

    ValueError where an instant would change.
    """
    dtype = dtype_of(variable.meta)
    if values is None:
        if dtype is not None and dtype.kind in "iu" and finest([to, units]) % to.seconds:
            raise ValueError("whole numbers are none in the other units")
        return None
    numbers = units.converted(values, to)
    fills = [variable.meta.raw.get("fill_value")] if variable.meta.zarr_format == 2 else []
    fills += missing_values(variable.meta, variable.attributes, values.dtype)
    for fill in fills:
        if isinstance(fill, int | float) and (np.isin(values, fill).any() or np.isin(numbers, fill).any()):
            raise ValueError(f"the value {fill}, which stands for missing ones, is among its values")
    stored = exactly(numbers, values.dtype)
    return numbers if stored is None else stored


def _refused(times: _Times, parts: Sequence[NamedSet], number: int, error: ValueError) -> ManifestError:
    """Return the error of a set whose times cannot be those of the first one, or the reverse."""
    units = {n: parts[n].variables[times.path].attributes.get("units") for n in times.owners}
    first = times.owners[0]
    other = number if units[number] != units[first] else next((n for n in units if units[n] != units[first]), number)
    return ManifestError(
        f"{times.path!r} has the attribute units {units[first]!r} in {parts[first].name}, and {units[other]!r} in "
        f"{parts[other].name}, and cannot be carried over: {error}. Leave one out, or write its times anew in the "
        "units of the other"
    )


def _read_values(common: CommonUnits, times: _Times, *, only_mixed: bool = False) -> None:
    """Read the values of arrays of times, so that sets have them; ManifestError where that fails.

    If ``only_mixed``, those of arrays whose values some sets have: such arrays are joined as values.
    """
    wanted: dict[int, list[str]] = {}
    for path in (times.path, *times.bounds):
        owners = [number for number in times.owners if path in common.parts[number].variables]
        lacking = [number for number in owners if common.parts[number].values(path) is None]
        if not only_mixed or len(lacking) < len(owners):
            for number in lacking:
                wanted.setdefault(number, []).append(path)
    for number, chunks in chunks_read(common.parts, wanted):
        part = common.parts[number]
        for path in wanted[number]:
            if path not in chunks:
                raise ManifestError(
                    f"{path!r} of {part.name} has the units of {times.path!r}, which are not those of other sets, and "
                    "cannot be read to be held in the set: lazy=True recodes its chunks when they are read"
                )
            changed = ChangedSet(part)
            changed.put(part.variables[path], part.variables[path].meta.raw, chunks=chunks[path])
            part = changed.result()
        common.parts[number] = part


def _in_units(variable: Variable, units: str) -> dict[str, dict[str, Any]]:
    """Return the document, by key, of an array with other units; none if it has no units itself."""
    if "units" not in variable.attributes:
        return {}
    return with_attributes(variable.key, variable.meta.raw, {**variable.attributes, "units": units})


def _show_units(
    common: CommonUnits, times: _Times, stored: Mapping[tuple[int, str], Mapping[str, Any]], text: str
) -> None:
    """Have a lazy cube show times and their bounds in the units ``text``, in place of those that are ``stored``."""
    first = times.owners[0]
    for (number, path), units in stored.items():
        part = common.parts[number]
        if number == first and units["units"] != text:
            documents = _in_units(part.variables[path], text)
            part = with_metadata(part, documents)
            common.metadata.update(documents)
        if path in times.bounds:
            common.bounds[path] = times.path
            shown = {**units, "units": text} if number == first else units
            part = msgspec.structs.replace(part, units={**part.units, path: shown})
        common.parts[number] = part

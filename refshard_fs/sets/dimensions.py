"""Find the dimensions to join sets along, if the caller names none. No I/O here.

Sets are joined along a dimension whose coordinate differs between them, as in xarray's ``combine_by_coords``; else
along a scalar coordinate that differs; else along a dimension without a coordinate whose length differs, or that is
the only unlimited dimension. If each set has a scalar time of its own, coordinates whose ranges overlap do not count.
A single set would be joined with further sets along its times; else its unlimited dimension; else another dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.cubes.cf_times import is_time
from refshard_fs.cubes.recoding import EXACT
from refshard_fs.errors import ManifestError
from refshard_fs.sets.arrange import are_descending
from refshard_fs.sets.common_units import convert_to_common_units
from refshard_fs.sets.coordinates import get_coordinate_values
from refshard_fs.sets.file_grid import NUMBER, FileGrid
from refshard_fs.sets.variables import NamedSet, Variable, find_auxiliary

# Scalars that CF and cfgrib derive from other scalars. The other scalars are preferred as dimensions.
DERIVED: Final = frozenset(["valid_time", "forecast_reference_time"])
RECORDS: Final = ("time", "t", "record", "Time")  # usual names of dimensions that grow from file to file
ADVICE: Final = (
    "name it (dim=), give it in the names of files (a pattern with fields: '{time:%Y%m%d}.nc'), or with each URL "
    "([(url, {'time': ...}), ...])"
)


FindUnlimited = Callable[[NamedSet], Sequence[str]]


class Arrangement(NamedTuple):
    """The dimensions of a join, the place of each set along them, and a remark that says why."""

    dims: tuple[str, ...]
    places: Sequence[tuple[int, ...]]
    reason: str


def find_dimensions(
    parts: Sequence[NamedSet], *, is_outer: bool = False, find_unlimited: FindUnlimited = lambda part: ()
) -> Arrangement:
    """Return the dimensions along which to join ``parts``; ManifestError, with the choices, if none fit.

    If ``is_outer``, places in a grid of sets may be empty. ``find_unlimited`` returns the unlimited dimensions of a
    set; it is called only if values and lengths do not tell the dimension.
    """
    in_a_row = [(number,) for number in range(len(parts))]
    coordinates = _identify_values(parts, _list_coordinates(parts))
    scalars = _identify_values(parts, _list_scalars(parts))
    if len(parts) == 1:
        only = _choose_dimension(parts[0], [*coordinates, *scalars], find_unlimited)
        return Arrangement((only,), in_a_row, "there is one set")
    for kind, known in (("coordinate", coordinates), ("scalar", scalars)):
        differing = {dim: of for dim, of in known.items() if len(set(of)) > 1}
        if kind == "scalar" and len(differing) > 1:
            differing = {dim: of for dim, of in differing.items() if dim not in DERIVED} or differing
        if kind == "coordinate" and _have_own_times(parts, scalars) and not _are_apart(parts, differing):
            continue  # the coordinates differ by rounding, or by other values of the same region
        found = _find_by_values(parts, differing, kind, is_outer=is_outer)
        if found is not None:
            return found
    dim = _find_record_dimension(parts) or _find_unlimited_dimension(parts, find_unlimited)
    if dim is not None:
        return Arrangement((dim,), in_a_row, f"{dim!r} has no coordinate")
    known_dims = sorted({dim for part in parts for v in part.variables.values() for dim in v.dims if dim is not None})
    raise ManifestError(
        f"{parts[0].name} and the others have the same values of all coordinates ({', '.join(coordinates) or 'none'}), "
        "so that the dimension along which to join them is not known. Their dimensions are "
        f"{', '.join(known_dims) or '(none)'}: {ADVICE}"
    )


def find_named_dimension(
    grid: FileGrid, parts: Mapping[tuple[int, ...], NamedSet]
) -> tuple[FileGrid, dict[tuple[int, ...], tuple[int, ...]]]:
    """Return ``grid`` with the dimension along which sets differ in place of a field that only distinguishes files.

    In "tas_{year}.nc", ``year`` is not a dimension if the coordinate ``time`` differs from year to year. Along such a
    dimension, sets have the order of the coordinate, unless files are missing. Also return the new positions of sets.
    """
    moved = {at: at for at in parts}
    known = {dim for part in parts.values() for variable in part.variables.values() for dim in variable.dims}
    dims = list(grid.dims)
    # Files are numbered in any order: they are sorted before sets with the same number are compared along other fields.
    for axis, field in sorted(enumerate(grid.dims), key=lambda pair: pair[1] != NUMBER):
        first = next(iter(parts))
        row = [part for at, part in parts.items() if _drop_axis(at, axis) == _drop_axis(first, axis)]
        if field in known or len(row) < 2:
            continue
        identities = _identify_values(row, [dim for dim in _list_coordinates(row) if dim not in dims])
        differing = [dim for dim, of in identities.items() if len(set(of)) == len(row)]
        if len(differing) == 1:
            dims[axis] = differing[0]
            if not grid.holes:
                to = _sort_along(parts, axis, differing[0])
                moved = {at: to[now] for at, now in moved.items()}
                parts = {to[at]: part for at, part in parts.items()}
    places = {dim: grid.places[field] for dim, field in zip(dims, grid.dims, strict=True)}
    return FileGrid(dims, places, {moved[at]: url for at, url in grid.files.items()}), moved


def _sort_along(
    parts: Mapping[tuple[int, ...], NamedSet], axis: int, dim: str
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return new positions of sets: along ``axis``, each row of sets gets the order of the coordinate ``dim``."""
    rows: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for at in parts:
        rows.setdefault(_drop_axis(at, axis), []).append(at)
    moved: dict[tuple[int, ...], tuple[int, ...]] = {}
    for row in rows.values():
        sets = [parts[at] for at in row]
        identities = _identify_values(sets, [dim]).get(dim, [])
        numbers = _find_positions(sets, dim, identities) if len(set(identities)) == len(row) else range(len(row))
        moved |= {at: (*at[:axis], number, *at[axis + 1 :]) for at, number in zip(row, numbers, strict=True)}
    return moved


def _drop_axis(at: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*at[:axis], *at[axis + 1 :])


def _list_coordinates(parts: Sequence[NamedSet]) -> list[str]:
    """Return the dimensions with a coordinate in the first set, in the order that its data variables have."""
    variables = parts[0].variables.values()
    dims = dict.fromkeys(dim for v in sorted(variables, key=lambda v: v.is_coordinate) for dim in v.dims)
    return [dim for dim in dims if dim is not None and parts[0].find_coordinate(dim) is not None]


def _list_scalars(parts: Sequence[NamedSet]) -> list[str]:
    """Return the scalars of the first set that are times, or that attributes describe as coordinates."""
    variables = parts[0].variables
    named = find_auxiliary(variables)
    scalars = [v for v in variables.values() if v.meta.shape == () and not parts[0].find_axes(v.path)]
    return [v.path for v in scalars if v.path in named or is_time(v.attributes) or "standard_name" in v.attributes]


def _identify_values(parts: Sequence[NamedSet], names: Iterable[str]) -> dict[str, list[Hashable]]:
    """Identify the values of each coordinate in each set, by name; skip coordinates that a set lacks."""
    found: dict[str, list[Hashable]] = {}
    for name in names:
        alike = _convert_times(parts, name)
        every = [_identify(part, _get_variable(part, name)) for part in alike]
        if None not in every:
            found[name] = every
    return found


def _get_variable(part: NamedSet, name: str) -> Variable | None:
    return part.find_coordinate(name) or part.variables.get(name)


def _convert_times(parts: Sequence[NamedSet], dim: str) -> Sequence[NamedSet]:
    """Return ``parts`` with the times of a dimension in common units, if there are any."""
    try:
        return convert_to_common_units(parts, dim, lazy=True).parts
    except ManifestError:  # the join raises it, if it needs these times
        return parts


def _identify(part: NamedSet, variable: Variable | None) -> Hashable:
    """Return the bytes, the kind and the units of an array's values; None if they are not known."""
    values = None if variable is None else part.decode_values(variable.path)
    if variable is None or values is None:
        return None
    if values.dtype.kind in "iu" and values.dtype.itemsize < 8:
        values = values.astype("i8")
    if is_time(variable.attributes) and (np.abs(values) < EXACT).all():
        values = values.astype("f8")
    return values.tobytes(), values.dtype.str, str(variable.attributes.get("units"))


def _find_by_values(
    parts: Sequence[NamedSet], differing: Mapping[str, list[Hashable]], kind: str, *, is_outer: bool
) -> Arrangement | None:
    """Return the dimensions along which ``differing`` values place each set; None if no values differ.

    ManifestError if sets do not form a grid along these dimensions, and no dimension of times orders them.
    """
    if not differing:
        return None
    numbers = range(len(parts))
    if len(differing) == 1:
        (dim,) = differing
        return Arrangement((dim,), [(number,) for number in numbers], f"the {kind} {dim!r} differs")
    dims = sorted(differing, key=lambda dim: not _is_of_times(parts[0], dim))
    tuples = list(zip(*(differing[dim] for dim in dims), strict=True))
    telling = [dim for dim in dims if _is_of_times(parts[0], dim) and len(set(differing[dim])) == len(parts)]
    is_whole = len(parts) == math.prod(len(set(differing[dim])) for dim in dims)
    if len(set(tuples)) == len(parts) and (is_whole or (is_outer and not telling)):
        along = [_find_positions(parts, dim, differing[dim]) for dim in dims]
        return Arrangement(
            tuple(dims), list(zip(*along, strict=True)), f"the {kind}s {', '.join(map(repr, dims))} differ"
        )
    telling = [dim for dim in telling if dim == "time"] or telling
    if not telling:
        raise ManifestError(
            f"sets differ in {', '.join(map(repr, dims))} ({parts[0].name} and others), and do not form a grid along "
            f"these dimensions: {ADVICE}; with join='outer', values that a set lacks are shown as missing; with "
            "tolerance=, coordinates that differ by rounding are equal"
        )
    return Arrangement((telling[0],), [(number,) for number in numbers], f"the {kind} {telling[0]!r} differs")


def _have_own_times(parts: Sequence[NamedSet], scalars: Mapping[str, list[Hashable]]) -> bool:
    """Return whether the sets have different values of a scalar time."""
    return any(_is_of_times(parts[0], name) and len(set(of)) == len(parts) for name, of in scalars.items())


def _are_apart(parts: Sequence[NamedSet], differing: Mapping[str, list[Hashable]]) -> bool:
    """Return whether the sets' ranges of each coordinate are equal or do not overlap, as those of tiles.

    Ranges of times may overlap: they are those of forecasts.
    """
    for dim, identities in differing.items():
        if _is_of_times(parts[0], dim):
            return True
        examples = dict(zip(identities, parts, strict=True)).values()
        coordinates = [(part, part.find_coordinate(dim)) for part in examples]
        values = [None if of is None else part.decode_values(of.path) for part, of in coordinates]
        ranges = sorted((min(own.tolist()), max(own.tolist())) for own in values if own is not None and own.size)
        if any(last >= first for (_, last), (first, _) in pairwise(ranges)):
            return False
    return True


def _is_of_times(part: NamedSet, dim: str) -> bool:
    variable = _get_variable(part, dim)
    return variable is not None and is_time(variable.attributes)


def _find_positions(parts: Sequence[NamedSet], dim: str, identities: Sequence[Hashable]) -> list[int]:
    """Return the position of each set along a dimension, by the order of the sets' first values.

    The order descends if the values in each set do.
    """
    examples = dict(zip(reversed(identities), reversed(parts), strict=True))
    order = list(dict.fromkeys(identities))
    sets = convert_to_common_units([examples[identity] for identity in order], dim, lazy=True).parts
    values = get_coordinate_values(sets, dim)
    firsts: list[Any] | None = None
    is_descending = False
    if values is not None and all(len(own) for own in values):
        firsts = [own[0] for own in values]
        is_descending = are_descending(values)
    elif all(_get_variable(part, dim) is not None for part in sets):
        every = [part.decode_values(dim) for part in sets]
        firsts = [own.reshape(-1)[0] for own in every if own is not None and own.size]
    if firsts is not None and len(firsts) == len(order):
        ranks = np.argsort(np.argsort(np.array(firsts), kind="stable"), kind="stable")
        place = dict(zip(order, (len(ranks) - 1 - ranks if is_descending else ranks).tolist(), strict=True))
    else:
        place = {identity: number for number, identity in enumerate(order)}
    return [place[identity] for identity in identities]


def _find_record_dimension(parts: Sequence[NamedSet]) -> str | None:
    """Return the only dimension whose length differs; if none does, the only one of `RECORDS` without a coordinate."""
    lengths_of: dict[str, set[int]] = {}
    for part in parts:
        for variable in part.variables.values():
            for dim, length in zip(variable.dims, variable.meta.shape, strict=True):
                if dim is not None:
                    lengths_of.setdefault(dim, set()).add(length)
    differing = [dim for dim, lengths in lengths_of.items() if len(lengths) > 1]
    if differing:
        return differing[0] if len(differing) == 1 else None
    records = [dim for dim in lengths_of if dim in RECORDS and parts[0].find_coordinate(dim) is None]
    return records[0] if len(records) == 1 else None


def _find_unlimited_dimension(parts: Sequence[NamedSet], find_unlimited: FindUnlimited) -> str | None:
    """Return the only unlimited dimension of the first set, if no set has a coordinate for it, and all have arrays."""
    dims = set(find_unlimited(parts[0]))
    dims = {dim for dim in dims if all(part.find_axes(dim) and part.find_coordinate(dim) is None for part in parts)}
    return dims.pop() if len(dims) == 1 else None


def _choose_dimension(part: NamedSet, known: Iterable[str], find_unlimited: FindUnlimited) -> str:
    """Return the dimension along which a single set would be joined with further sets.

    ``known`` are its coordinates and scalars. If several dimensions fit, the first is taken: a single set is shown as
    it is along any dimension. ManifestError if it has none.
    """
    names = [name for name in known if name not in DERIVED]
    times = [name for name in names if _is_of_times(part, name)]
    if times:
        return times[0]
    dims = list(dict.fromkeys(dim for v in part.variables.values() for dim in v.dims if dim is not None))
    unlimited = [dim for dim in find_unlimited(part) if dim in dims]
    records = [dim for dim in dims if dim in RECORDS]
    fitting: list[str] = [*(unlimited if len(unlimited) == 1 else ()), *records, *names, *dims]
    if not part.variables:
        raise ManifestError(f"{part.name} has no variables: expected one to join. Was the source written to the end?")
    if not fitting:
        raise ManifestError(f"{part.name} has no dimension along which it could be joined with others: {ADVICE}")
    return fitting[0]

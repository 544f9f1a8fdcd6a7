"""The values of a coordinate in several sets, and checks of them. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.cf_times import format_time
from refshard_fs.errors import ManifestError
from refshard_fs.sets.common_units import make_comparable
from refshard_fs.sets.compatibility import are_same_values
from refshard_fs.sets.variables import NamedSet


class OutOfOrder(ManifestError):
    """A set cannot be appended, because its values of the coordinate do not follow the values that are there."""


def get_coordinate_values(parts: Sequence[NamedSet], dim: str) -> list[npt.NDArray[Any]] | None:
    """Return the values of the coordinate of ``dim`` in each set, in a form in which they can be compared.

    None if a set lacks the coordinate, or if its values are not known. Times must be in common units.
    """
    first = parts[0].find_coordinate(dim)
    every = []
    if first is None:
        return None
    for part in parts:
        variable = part.variables.get(first.path)
        values = None if variable is None or variable.dims != (dim,) else part.decode_values(first.path)
        if variable is None or values is None:
            return None
        every.append(make_comparable(variable, values))
    return every


def check_groups_share_coordinate(parts: Sequence[NamedSet], dim: str) -> None:
    """Raise ManifestError if groups of a set have coordinates of ``dim`` with different values."""
    first = parts[0].find_coordinate(dim)
    if first is None:
        return
    for part in parts:
        for path, variable in part.variables.items():
            if variable.is_coordinate and variable.dims == (dim,) and path != first.path:
                check_same_coordinate(part, dim, first.path, path)


def check_same_coordinate(part: NamedSet, dim: str, one: str, other: str) -> None:
    """Raise ManifestError unless a set has the same values at ``one`` and ``other``, or lacks one of them."""
    if one in part.variables and other in part.variables:
        mine, theirs = part.decode_values(one), part.decode_values(other)
        if mine is None or theirs is None or not are_same_values(mine, theirs):
            raise ManifestError(
                f"{one!r} and {other!r} of {part.name} have different or unknown values: expected the same values of "
                f"{dim!r} in all groups, so that elements can be left out, moved or added"
            )


def name_set_without_values(parts: Sequence[NamedSet], dim: str) -> str:
    """Return the name of the first set that lacks known values of a dimension's coordinate."""
    return next((part.name for part in parts if get_coordinate_values([part], dim) is None), parts[0].name)


def format_value(value: Any, part: NamedSet, dim: str) -> str:
    """Format a value of the coordinate of ``dim`` for an error: a time as a date, others with their units, if any."""
    coordinate = part.find_coordinate(dim)
    attributes = {} if coordinate is None else coordinate.attributes
    return format_time(value, attributes) if isinstance(attributes.get("units"), str) else str(value)


def is_ordered(values: npt.NDArray[Any]) -> bool:
    """Return whether values only ascend, or only descend."""
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def check_order(old: npt.NDArray[Any], new: npt.NDArray[Any], part: NamedSet, name: str, dim: str) -> None:
    """Raise OutOfOrder if ``old`` values are sorted, but not together with the ``new`` values of the set ``name``.

    Both are in the units of ``part``.
    """
    if len(old) > 1 and is_ordered(old) and not is_ordered(np.concatenate([old, new])):
        first, last = (format_value(value, part, dim) for value in (new[0], old[-1]))
        raise OutOfOrder(
            f"{name} begins at {dim} = {first}, and the set ends at {last}: the set would no longer be sorted. "
            "on_error='skip' leaves it out, any_order=True appends it in any case; the document of a cube gets it in "
            "its place, if its own values are sorted in the order of the set"
        )

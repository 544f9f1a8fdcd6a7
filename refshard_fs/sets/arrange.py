"""Order sets by the coordinate of a dimension, and choose a set for each value that several sets have. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.errors import ManifestError
from refshard_fs.sets.coordinates import (
    check_groups_share_coordinate,
    format_value,
    get_coordinate_values,
    is_ordered,
    name_set_without_values,
)
from refshard_fs.sets.variables import NamedSet

# The set that gives a value, if several sets have it; "error" refuses such values.
Overlap = Literal["error", "first", "last"]


class SetSlice(NamedTuple):
    """The elements ``[start, stop)`` of the set ``number``, along the dimension."""

    number: int
    start: int
    stop: int


def are_descending(values: Sequence[npt.NDArray[Any]]) -> bool:
    """Return whether the values of all sets with several values descend; False if no set has several values."""
    longer = [own for own in values if len(own) > 1]
    return bool(longer) and all(own[0] > own[-1] for own in longer)


def arrange(
    parts: Sequence[NamedSet], dim: str, *, sort: bool = False, overlap: Overlap = "error"
) -> list[SetSlice] | None:
    """Return the slices of the sets to join along ``dim``, in order; None for all sets, whole, in the given order.

    With ``sort``, the sets are ordered by their first value. A set is divided if another set has values between its
    values. ManifestError if sets have values of the coordinate in common and ``overlap`` is "error".
    """
    values = get_coordinate_values(parts, dim)
    if values is None:
        if sort or overlap != "error":
            without = name_set_without_values(parts, dim)
            raise ManifestError(f"sort= and overlap= need a coordinate {dim!r} of numbers: {without} has none")
        return None
    order = [number for number, own in enumerate(values) if len(own)]
    if not order:
        return None
    is_descending = are_descending(values)
    if sort:
        order.sort(key=lambda number: values[number][0], reverse=is_descending)
    taken = np.concatenate([values[number] for number in order])
    lengths = [len(values[number]) for number in order]
    owners, starts = np.repeat(np.arange(len(order)), lengths), np.cumsum([0, *lengths])
    distinct = np.unique(taken, return_inverse=True, equal_nan=False)[1].reshape(-1)
    owner = np.full(len(taken), -1 if overlap == "last" else len(order))  # the set that owns each distinct value
    (np.maximum if overlap == "last" else np.minimum).at(owner, distinct, owners)
    keep = owners == owner[distinct]
    if overlap == "error" and not keep.all():
        place = int(np.flatnonzero(~keep)[0])
        one, other = (order[position] for position in (owners[place], owner[distinct[place]]))
        advice = "overlap='first' or overlap='last' decides from which set it is taken"
        if set(values[one].tolist()) == set(values[other].tolist()):
            advice = (
                f"they have the same values of {dim!r}. If they are different members, variables or regions, give each "
                "its place along a further dimension, for example by a field in the pattern "
                f"('{{member}}/*.nc'). If one replaces the other, {advice}"
            )
        raise ManifestError(
            f"{parts[one].name} has {dim} = {format_value(taken[place], parts[0], dim)}, and so has "
            f"{parts[other].name}: {advice}"
        )
    rows = np.flatnonzero(keep)
    if sort and all(is_ordered(own) and (len(own) < 2 or (own[0] > own[-1]) == is_descending) for own in values):
        rows = rows[np.argsort(taken[rows], kind="stable")[:: -1 if is_descending else 1]]
    cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(owners[rows]) != 0)) + 1
    slices = [
        SetSlice(order[owners[run[0]]], int(run[0] - starts[owners[run[0]]]), int(run[-1] - starts[owners[run[0]]]) + 1)
        for run in np.split(rows, cuts)
    ]
    if slices == [SetSlice(number, 0, len(own)) for number, own in enumerate(values)]:
        return None
    if not keep.all() or len(slices) > len(order):
        check_groups_share_coordinate(parts, dim)
    return slices

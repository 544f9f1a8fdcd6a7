"""Put gaps between sets where values of a coordinate are missing. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.errors import ManifestError
from refshard_fs.sets.coordinates import (
    check_groups_share_coordinate,
    format_value,
    get_coordinate_values,
    name_set_without_values,
)
from refshard_fs.sets.gap_set import make_extent
from refshard_fs.sets.steps import Steps
from refshard_fs.sets.trim import trim
from refshard_fs.sets.variables import MOST, NamedSet


class PlannedPiece(NamedTuple):
    """A piece of the join: the set ``number`` or a part of it; or, if ``number`` is None, a gap of known values."""

    number: int | None
    part: NamedSet


def insert_regular_gaps(
    parts: Sequence[NamedSet], dim: str, freq: str | float, *, lazy: bool = False
) -> list[PlannedPiece]:
    """Insert gaps between ``parts`` where the coordinate ``dim`` lacks a value of the grid with the step ``freq``.

    ManifestError if a value is not on the grid, which starts at the first value.
    """
    values = get_coordinate_values(parts, dim)
    if values is None:
        raise ManifestError(
            f"freq= needs a coordinate {dim!r} of numbers to find missing values: "
            f"{name_set_without_values(parts, dim)} has none"
        )
    first, every = parts[0].find_coordinate(dim), np.concatenate(values)
    if first is None or not len(every):
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    steps = Steps.of(freq, first, every[0], parts[0].name)
    places = [steps.count_steps(own, part, dim) for part, own in zip(parts, values, strict=True)]
    ends = [int(own.max(initial=0)) + 1 for own in places]
    if max(ends) > MOST:
        name = parts[ends.index(max(ends))].name
        raise ManifestError(
            f"with {name}, {dim!r} would have more than {MOST:,} values, one every {freq}: leave the set out, or give "
            "a longer freq="
        )
    return _insert_gaps(parts, dim, places, max(ends), steps.compute_values, lazy=lazy)


def insert_union_gaps(
    parts: Sequence[NamedSet], dim: str, union: npt.NDArray[Any], *, lazy: bool = False
) -> list[PlannedPiece]:
    """Insert gaps between ``parts`` where they lack values of ``union``, the sorted values of a coordinate."""
    values = get_coordinate_values(parts, dim)
    every = np.concatenate(values or [union[:0]])
    if not len(every) or values is None:
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    if every[0] > every[-1]:
        union = union[::-1]
    order = np.argsort(union)
    places = [order[np.searchsorted(union, own, sorter=order)] for own in values]
    return _insert_gaps(parts, dim, places, len(union), union.__getitem__, lazy=lazy)


def _insert_gaps(
    parts: Sequence[NamedSet],
    dim: str,
    places: Sequence[npt.NDArray[Any]],
    stop: int,
    values_at: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    *,
    lazy: bool,
) -> list[PlannedPiece]:
    """Insert gaps between ``parts`` at all places before ``stop`` that are not among their ``places`` along ``dim``.

    ``values_at`` returns the values of the coordinate at some places. A part with gaps within it becomes several
    pieces. ManifestError if places do not ascend.
    """
    if (np.diff(np.concatenate(places), prepend=-1, append=stop) == 1).all():
        return [PlannedPiece(number, part) for number, part in enumerate(parts)]
    check_groups_share_coordinate(parts, dim)
    first = parts[0].find_coordinate(dim)
    assert first is not None, "the values of the coordinate are known"
    pieces: list[PlannedPiece] = []
    expected = 0

    def put_gap(place: int, where: str) -> None:
        if place > expected:
            missing = values_at(np.arange(expected, place))
            pieces.append(PlannedPiece(None, make_extent(first, missing, parts[0], f"the gap {where}")))

    for number, (part, own) in enumerate(zip(parts, places, strict=True)):
        start = 0
        for run in np.split(own, np.flatnonzero(np.diff(own) != 1) + 1) if len(own) else ():
            if run[0] < expected:
                value = format_value(values_at(run[:1])[0], parts[0], dim)
                raise ManifestError(f"{part.name} has {dim} = {value} after a later value: sort=True sorts the sets")
            put_gap(int(run[0]), f"before {part.name}")
            pieces.append(PlannedPiece(number, trim(part, dim, start, start + len(run), lazy=lazy)))
            start, expected = start + len(run), int(run[-1]) + 1
    put_gap(stop, "at the end")
    return pieces

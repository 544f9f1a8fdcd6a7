"""Find the elements of a set that are appended to another one. No I/O here."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from refshard_fs.errors import ManifestError
from refshard_fs.sets.arrange import Overlap, arrange
from refshard_fs.sets.coordinates import check_groups_share_coordinate, check_order, format_value, get_coordinate_values
from refshard_fs.sets.variables import NamedSet

OnDuplicate = Literal["error", "skip", "replace"]  # for values of the coordinate that the old set has


class AppendRules(NamedTuple):
    """The arguments of `append`."""

    dim: str
    same: frozenset[str]
    on_duplicate: OnDuplicate
    any_order: bool
    message: str | None
    skips_unreadable: bool  # whether sets that cannot be opened or read are left out


class NewElements(NamedTuple):
    """The elements that are joined: the first ``old`` of the old set, and ``start`` to ``stop`` of the new set.

    If the new set replaces the beginning of the old one, ``old`` is 0.
    """

    old: int
    start: int
    stop: int


def find_new_elements(old: NamedSet, new: NamedSet, rules: AppendRules) -> NewElements | None:
    """Return the elements that are joined; None if no element is new. ManifestError if ``rules`` do not permit this.

    If only their order is not permitted, the error is OutOfOrder.
    """
    dim = rules.dim
    values = get_coordinate_values([old, new], dim)
    if values is None:
        return NewElements(old.find_length(dim), 0, new.find_length(dim))
    before, new_values = values
    known = np.isin(new_values, before)
    if known.any() and rules.on_duplicate != "error":
        check_groups_share_coordinate([old, new], dim)
    if known.all() and rules.on_duplicate == "skip":
        return None
    elements = NewElements(len(before), 0, len(new_values))
    if known.any():
        if rules.on_duplicate == "error":
            raise ManifestError(
                f"{old.name} has {dim} = {format_value(new_values[known][0], old, dim)} already: on_duplicate='skip' "
                "appends only other values, on_duplicate='replace' replaces the old elements. To join along a "
                f"dimension other than {dim!r}, make the set anew by concat with dim="
            )
        overlap: Overlap = "first" if rules.on_duplicate == "skip" else "last"
        arranged = arrange([old, new], dim, overlap=overlap) or []
        slices = {own.number: own for own in arranged}
        if len(slices) < len(arranged) and rules.on_duplicate == "replace":
            first, last = (format_value(new_values[place], old, dim) for place in (0, -1))
            raise ManifestError(
                f"{new.name} has {len(new_values)} values of {dim!r}, {first} to {last}: expected all values up to the "
                f"end of {old.name}, or, if that is the document of a cube, exactly the values of some pieces. "
                "Make the set anew: resume= of concat opens only the files that changed"
            )
        if len(slices) < len(arranged):
            raise ManifestError(
                f"{old.name} already has values of {dim!r} that lie between other values of {new.name}: append the new "
                "values as a separate set"
            )
        if 0 not in slices or slices[0].start != 0 or 1 not in slices:
            return NewElements(0, 0, len(new_values))
        elements = NewElements(slices[0].stop, slices[1].start, slices[1].stop)
    if not rules.any_order:
        check_order(before[: elements.old], new_values[elements.start : elements.stop], old, new.name, dim)
    return elements

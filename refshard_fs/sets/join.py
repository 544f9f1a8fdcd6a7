"""Join sets along dimensions that the caller names, or along those in which the sets differ."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Container, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.keys import parent
from refshard_fs.core.stats import format_count
from refshard_fs.cubes.cf_times import is_time
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.errors import ManifestError
from refshard_fs.sets.arrange import SetSlice, arrange
from refshard_fs.sets.common_units import convert_to_common_units
from refshard_fs.sets.compatibility import check_equal, check_merged
from refshard_fs.sets.coordinates import get_coordinate_values, is_ordered
from refshard_fs.sets.digests import add_digests
from refshard_fs.sets.dimensions import find_dimensions, find_named_dimension
from refshard_fs.sets.file_grid import NUMBER, FileGrid
from refshard_fs.sets.grid_join import GridJoin
from refshard_fs.sets.hold_texts import hold_texts
from refshard_fs.sets.inputs import Inputs
from refshard_fs.sets.opened_set import open_set
from refshard_fs.sets.set_row import Rules
from refshard_fs.sets.stacking import Stacking, stack_grid
from refshard_fs.sets.trim import trim
from refshard_fs.sets.variables import BOUNDS, DESCRIBING, NamedSet, find_named_arrays

logger = logging.getLogger(__package__)


class JoinResult(NamedTuple):
    """The result of a join: the document of a cube, and the set that it shows; or a set's name, and the set itself.

    ``documents`` has each document of the cube, with the sets that were read for it.
    """

    document: Any
    whole: NamedSet
    documents: list[tuple[ConcatDocument, Sequence[NamedSet]]]


def find_and_join(inputs: Inputs, read: Sequence[NamedSet], rules: Rules) -> JoinResult:
    """Join sets along the dimensions in which they differ, in the order of the values there.

    Sets with different variables become documents beside each other.
    """
    if inputs.grid is not None:
        grid, moved = find_named_dimension(inputs.grid, dict(zip(inputs.positions, read, strict=True)))
        if NUMBER in grid.dims:
            one, other = inputs.sources[:2]
            raise ManifestError(
                f"{one}, {other} and others have the same place along {', '.join(grid.dims[:-1])}: expected exactly "
                "one coordinate in which they differ, found none or several. To tell the files apart, put a further "
                "field in place of '*' into the pattern, or a further column into the table"
            )
        places = [moved[at] for at in inputs.positions]
        in_order = sorted(zip(places, inputs.sources, read, strict=True), key=itemgetter(0))
        positions, placed, read = zip(*in_order, strict=True)
        return join_sets(Inputs(tuple(grid.dims), positions, placed, grid), read, rules)
    groups = _group_by_variables(inputs.sources, read)
    joined = []
    for number, (sources, parts) in enumerate(groups):
        others = [part for n, (_, theirs) in enumerate(groups) if n != number for part in theirs]
        joined.append(_find_and_join_group(sources, parts, rules, others if rules.is_outer else ()))
    return joined[0] if len(joined) == 1 else _merge_documents(joined, rules.same)


def _find_and_join_group(
    sources: Sequence[Any], read: Sequence[NamedSet], rules: Rules, others: Sequence[NamedSet]
) -> JoinResult:
    """Join sets of the same variables; `join_sets` describes ``others``."""
    found = find_dimensions(read, is_outer=rules.is_outer, find_unlimited=_find_unlimited)
    logger.info("joining %s along %s: %s", format_count(len(read), "set"), found.dims, found.reason)
    in_order = sorted(zip(found.places, sources, read, strict=True), key=itemgetter(0))
    positions, sources, read = zip(*in_order, strict=True)
    dim = found.dims[0]
    coordinates = [part.find_coordinate(dim) or part.variables.get(dim) for part in read]  # perhaps of a group
    has_values = all(
        v is not None and part.decode_values(v.path) is not None for v, part in zip(coordinates, read, strict=True)
    )
    rules = msgspec.structs.replace(rules, sort=len(found.dims) == 1 and has_values)
    if rules.sort and rules.overlap == "error":
        _check_order(read, dim)
    counts = [1 + max(along) for along in zip(*positions, strict=True)]
    grid = None
    if len(read) < math.prod(counts):  # places of the grid are empty
        numbers: dict[str, list[Any]] = {d: list(range(n)) for d, n in zip(found.dims, counts, strict=True)}
        grid = FileGrid(found.dims, numbers, {at: part.name for at, part in zip(positions, read, strict=True)})
    return join_sets(Inputs(found.dims, positions, sources, grid), read, rules, others)


def _find_unlimited(part: NamedSet) -> list[str]:
    """Open a set again, and return its unlimited dimensions, which references do not keep."""
    if part.fo is None:
        return []
    keyspace = open_set(part.fo, part.options).source.open()
    return list(dict.fromkeys(dim for dims in keyspace.unlimited_dimensions.values() for dim in dims))


def join_sets(inputs: Inputs, read: Sequence[NamedSet], rules: Rules, others: Sequence[NamedSet] = ()) -> JoinResult:
    """Join the sets that were ``read`` from ``inputs``, along their dimensions.

    ``others`` are sets of other variables: values of the coordinate that only ``others`` have become gaps.
    """
    dims, positions, sources, grid = inputs
    lazy, dim = rules.lazy, dims[0] if len(dims) == 1 else None
    stored = read
    if grid is None and dim is not None:
        stacking = Stacking.by_scalar(dim, read)
        read = read if stacking is None else stacking.parts
    for along in dims:
        read = convert_to_common_units(read, along, lazy=lazy).parts
    if others and dim is not None:
        both = convert_to_common_units([*read, *others], dim, lazy=lazy).parts
        values = get_coordinate_values(both, dim)
        if values is not None:
            read = both[: len(read)]
            rules = msgspec.structs.replace(rules, union={dim: np.unique(np.concatenate(values))})
    if dim is not None:
        kept = arrange(read, dim, sort=rules.sort, overlap=rules.overlap)
        if kept is not None and rules.overlap != "error" and not rules.is_outer:
            _check_sets_left_out(read, kept, dim, rules.same)
        if lazy and kept is None and all(part.find_axes(dim) for part in read):  # documents cannot name empty sets
            every = [SetSlice(number, 0, part.find_length(dim)) for number, part in enumerate(read)]
            filled = [whole for whole in every if whole.stop]
            kept = filled if 0 < len(filled) < len(every) else None
        if kept is not None:
            read = [trim(read[number], dim, start, stop, lazy=lazy) for number, start, stop in kept]
            if lazy:
                stored = [trim(stored[number], dim, start, stop, lazy=True) for number, start, stop in kept]
            sources = tuple(sources[number] for number, _, _ in kept)
            positions, grid = tuple((number,) for number in range(len(kept))), None
    if rules.freq is not None:
        rules = msgspec.structs.replace(rules, regular={_find_regular_dimension(dims, grid, read): rules.freq})
    units = {p: v.attributes.get("units") for p, v in read[0].variables.items() if len(dims) > 1}
    if grid is not None:
        read = stack_grid(grid, dict(zip(positions, read, strict=True)))
    if not lazy:
        read = hold_texts(read, dims)
    read = add_digests(read, dims, rules.same, positions)
    if lazy:  # a document names sets as they are stored, and the dimensions to make
        pairs = zip(stored, read, strict=True)
        read = [
            part if compared.digests == part.digests else msgspec.structs.replace(part, digests=compared.digests)
            for part, compared in pairs
        ]
    cube = GridJoin(dims, grid, units, rules)
    document, whole = cube.join(dict(zip(positions, zip(sources, read, strict=True), strict=True)))
    return JoinResult(document, whole, cube.documents)


def _check_sets_left_out(read: Sequence[NamedSet], kept: Sequence[SetSlice], dim: str, same: Container[str]) -> None:
    """Raise ManifestError if a set is left out whose other coordinates differ from those of the first set.

    A set is left out if other sets give all of its values along ``dim``. With other coordinates, it holds other data.
    """
    taken = {piece.number for piece in kept}
    first = read[kept[0].number]
    for part in (part for number, part in enumerate(read) if number not in taken):
        for path, variable in part.variables.items():
            if variable.is_coordinate and dim not in variable.dims and path in first.variables and path not in same:
                check_equal(path, first, part, dim)


def _check_order(read: Sequence[NamedSet], dim: str) -> None:
    """Raise ManifestError if the values of each set are in order, but those of all sets together are not."""
    values = get_coordinate_values(convert_to_common_units(read, dim, lazy=True).parts, dim)
    if values is None or not all(len(own) < 2 or is_ordered(own) for own in values):
        return
    filled = sorted((own for own in values if len(own)), key=lambda own: own[0])
    whole = [np.concatenate(parts) for parts in (filled, filled[::-1]) if parts]
    if whole and len(np.unique(whole[0])) == len(whole[0]) > 1 and not any(map(is_ordered, whole)):
        raise ManifestError(
            f"the values of {dim!r} in {read[0].name} and others have no common order: dim={dim!r} joins sets in the "
            "order in which they are given"
        )


def _group_by_variables(sources: Sequence[Any], read: Sequence[NamedSet]) -> list[tuple[list[Any], list[NamedSet]]]:
    """Group sets that have variables in common, not counting coordinates: a folder may have files of each variable."""
    groups: list[tuple[set[str], list[Any], list[NamedSet]]] = []
    for source, part in zip(sources, read, strict=True):
        every = {path for path, v in part.variables.items() if not v.is_coordinate and v.dims}
        own = every - find_named_arrays(part.variables, DESCRIBING) or every
        near = [group for group in groups if not own or not group[0] or own & group[0]]
        names, theirs, parts = near[0] if near else (set(), [], [])
        for group in near[1:]:
            names |= group[0]
            theirs += group[1]
            parts += group[2]
            groups.remove(group)
        if not near:
            groups.append((names, theirs, parts))
        names |= own
        theirs.append(source)
        parts.append(part)
    return [(theirs, parts) for _, theirs, parts in groups]


def _merge_documents(groups: Sequence[JoinResult], same: frozenset[str]) -> JoinResult:
    """Merge documents of different variables; ManifestError if a variable of several documents is not equal in them.

    Bounds are not compared: they are equal if their coordinate is.
    """
    first, *others = groups
    joined = {path for group in groups for document, _ in group.documents for path in document.axes}
    counts = Counter(path for group in groups for path in group.whole.variables)
    common = {path for path, count in counts.items() if count > 1} - same
    firsts = add_digests([group.documents[0][1][0] for group in groups], [], same, only=common - joined)
    for number in range(1, len(groups)):
        for earlier in range(number):
            wholes = [groups[n].whole for n in (earlier, number)]
            bounds = find_named_arrays(wholes[0].variables, BOUNDS) & joined
            for path in common.intersection(*(whole.variables for whole in wholes)) - bounds:
                check_merged(path, *(wholes if path in joined else (firsts[earlier], firsts[number])))
    documents = [group.document for group in others]
    return first._replace(
        document=msgspec.structs.replace(first.document, beside=tuple(documents)),
        documents=[entry for group in groups for entry in group.documents],
    )


def _find_regular_dimension(dims: Sequence[str | None], grid: FileGrid | None, parts: Sequence[NamedSet]) -> str:
    """Return the dimension of ``freq=``: the first dimension of times, or else the first dimension."""
    first = parts[0].variables
    for dim in dims:
        coordinates = (v for v in first.values() if v.dims in ((dim,), ()) and parent(v.path)[1] == dim)
        if (grid is not None and grid.is_of_times(str(dim))) or any(is_time(v.attributes) for v in coordinates):
            return str(dim)
    return str(dims[0])

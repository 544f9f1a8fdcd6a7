"""Prepare sets for a join along a dimension. No I/O here.

With ``join="outer"``, `prepare_parts` gives every set all arrays along the joined dimension, and the union of the
coordinates along all other dimensions. Chunks that a set lacks do not exist in the result. Readers show the fill value
there, so the fill value must mean "missing": zeros would look like data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.fit import make_difference_error
from refshard_fs.cubes.moving import Move
from refshard_fs.cubes.placement import Placement
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.common_units import convert_to_common_units, make_comparable
from refshard_fs.sets.coordinates import check_same_coordinate
from refshard_fs.sets.fills import choose_fill_values
from refshard_fs.sets.steps import Steps
from refshard_fs.sets.text_widths import WidenedTexts, widen_texts
from refshard_fs.sets.variables import NamedSet


class AlignedSets(NamedTuple):
    """Sets with the same coordinates.

    ``unions`` has, for each dimension along which coordinates differed, the values of all sets. ``places`` has, for
    each set, the places of its elements along these dimensions.
    """

    parts: list[NamedSet]
    places: list[dict[str, Placement]]
    unions: Mapping[str, npt.NDArray[Any]] = {}


Regular = Mapping[str, str | float]  # the step between values of a coordinate, by dimension


def prepare_parts(
    parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool, has_gaps: bool, is_outer: bool
) -> tuple[AlignedSets, dict[str, Any]]:
    """Prepare ``parts`` for `concatenate`; return the prepared sets, and the new fill values of arrays, by path.

    If ``is_outer``, each part gets all arrays along ``dim``, and the union of the coordinates along other dimensions.
    ``has_gaps`` announces that sets without chunks will be put between the ``parts``. If ``lazy``, only metadata
    change, and texts get the same width in all parts: chunks are looked up when they are read. ManifestError if
    references cannot describe the result, or if an array needs a fill value that means "missing" and has none.
    """
    texts = widen_texts(parts, dim) if lazy else WidenedTexts(list(parts), [{}] * len(parts), {})
    parts = texts.parts
    aligned = _align(parts, dim, regular, lazy=lazy) if is_outer else AlignedSets(list(parts), [{}] * len(parts))
    missing = _find_missing_arrays(parts, dim) if is_outer else []
    incomplete = {*missing, *_find_incomplete_arrays(parts, aligned.unions)}
    if has_gaps:
        incomplete |= {path for part in parts for path in part.find_axes(dim) if not part.variables[path].is_coordinate}
    fills = choose_fill_values(parts, incomplete, lazy=lazy)
    pairs = zip(aligned.places, texts.places, strict=True)
    places = [{**own, **of_texts} if of_texts else own for own, of_texts in pairs]
    return AlignedSets(_add_arrays(aligned.parts, dim, missing), places, {**aligned.unions, **texts.unions}), fills


def _find_missing_arrays(parts: Sequence[NamedSet], dim: str | None) -> list[str]:
    """Return the paths of the arrays along ``dim`` that some sets lack."""
    along = {path for part in parts for path in part.find_axes(dim)}
    return sorted(path for path in along if any(path not in part.variables for part in parts))


def _add_arrays(parts: Sequence[NamedSet], dim: str | None, paths: Sequence[str]) -> list[NamedSet]:
    """Return ``parts`` in which each set has the arrays ``paths``: without chunks, if it lacked the array."""
    owners = {path: next(part for part in parts if path in part.variables) for path in paths}
    complete = []
    for part in parts:
        changed = ChangedSet(part)
        missing = [path for path in paths if path not in part.variables]
        for path in missing:
            changed.put_empty(owners[path], path, str(dim), part.find_length(str(dim)))
        complete.append(changed.finish() if missing else part)
    return complete


def _align(parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool) -> AlignedSets:
    """Return ``parts`` with the union of their coordinates along all dimensions but ``dim``."""
    for other in dict.fromkeys(v.dims[0] for part in parts for v in part.variables.values() if v.is_coordinate):
        if other is not None and other != dim:
            parts = convert_to_common_units(parts, other, lazy=lazy).parts
    unions: dict[str, npt.NDArray[Any]] = {}  # the union of values by dimension, if sets differ
    values_of: dict[str, list[npt.NDArray[Any] | None]] = {}  # the values of each set, by dimension
    path_of: dict[str, str] = {}  # the path of the coordinate, by dimension
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        first = next(part for part in parts if path in part.variables)
        name = first.variables[path].dims[0]
        if name is None or name == dim or name in values_of:
            continue
        values = [_get_values_to_compare(part, path) for part in parts]
        known = [coordinate for coordinate in values if coordinate is not None]
        if len(known) < 2 or all(np.array_equal(coordinate, known[0]) for coordinate in known):
            continue
        for part, coordinate in zip(parts, values, strict=True):
            if path in part.variables:
                _check_alignable(path, first, part, coordinate)
        union = np.unique(np.concatenate(known))
        longer = [coordinate for coordinate in known if len(coordinate) > 1]
        if longer and all(coordinate[0] > coordinate[-1] for coordinate in longer):
            union = union[::-1]
        if name in regular and len(union):
            union = Steps.of(regular[name], first.variables[path], union[0], first.name).fill_in(union, first, name)
        values_of[name], unions[name], path_of[name] = values, union, path
    for part in parts:
        for path, variable in part.variables.items():
            name = variable.dims[0] if variable.is_coordinate else None
            if name is not None and name in unions and path != path_of[name]:
                check_same_coordinate(part, name, path_of[name], path)
    if not unions:
        return AlignedSets(list(parts), [{}] * len(parts))
    moved, places = [], []
    for number, part in enumerate(parts):
        placements: dict[str, Placement] = {}
        for name, union in unions.items():
            values_here = values_of[name][number]
            if values_here is not None:
                order = np.argsort(union)
                placements[name] = Placement.of(order[np.searchsorted(union, values_here, sorter=order)])
        moved.append(_place_elements(part, dim, placements, unions, lazy=lazy))
        places.append({d: p for d, p in placements.items() if p.runs != ((0, len(unions[d])),)})
    return AlignedSets(moved, places, unions)


def _get_values_to_compare(part: NamedSet, path: str) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate in a form to compare; None if the set lacks it, or values are not known."""
    values = part.decode_values(path) if path in part.variables else None
    return None if values is None else make_comparable(part.variables[path], values)


def _check_alignable(path: str, first: NamedSet, part: NamedSet, values: npt.NDArray[Any] | None) -> None:
    """Raise ManifestError unless a coordinate's ``values`` are known, distinct, and in the units of ``first``."""
    if values is None:
        raise ManifestError(
            f"{part.name}: the values of {path!r}, which differ between the sets, cannot be read: leave this set out"
        )
    if len(np.unique(values)) < len(values):
        raise ManifestError(
            f"{part.name} has a value of {path!r} more than once: join='outer' places elements by their values, so "
            "each value must occur once. Leave this set out, or select a part of it"
        )
    for name in ("units", "calendar"):
        mine, theirs = (owner.variables[path].attributes.get(name) for owner in (first, part))
        if mine != theirs:
            raise make_difference_error(path, f"attribute {name}", first.name, mine, part.name, theirs)


def _find_incomplete_arrays(parts: Sequence[NamedSet], unions: Mapping[str, npt.NDArray[Any]]) -> set[str]:
    """Return the paths of the arrays that are shorter than the union of a dimension in some set."""
    return {
        path
        for part in parts
        for path, v in part.variables.items()
        for axis, d in enumerate(v.dims)
        if d is not None and d in unions and not v.is_coordinate and len(unions[d]) > v.meta.shape[axis]
    }


def _place_elements(
    part: NamedSet,
    dim: str | None,
    placements: Mapping[str, Placement],
    unions: Mapping[str, npt.NDArray[Any]],
    *,
    lazy: bool,
) -> NamedSet:
    """Return a set as long as the ``unions``, with its elements at their ``placements``, both by dimension."""
    changed = ChangedSet(part)
    for path, variable in part.variables.items():
        within = {axis: placements[d] for axis, d in enumerate(variable.dims) if d is not None and d in placements}
        if not within:
            continue
        if variable.is_coordinate:
            changed.put_values(variable, unions[str(variable.dims[0])])
            continue
        shape = list(variable.meta.shape)
        for axis, placement in within.items():
            if placement.length != shape[axis]:
                raise ManifestError(
                    f"{path!r} of {part.name} has {shape[axis]} elements along {variable.dims[axis]!r}, but the "
                    f"coordinate has {placement.length}: leave this set out, or pass drop={path!r}"
                )
            shape[axis] = len(unions[str(variable.dims[axis])])
        doc = {**variable.meta.raw, "shape": shape}
        if not lazy:
            moves = {
                axis: _place_chunks(part, path, axis, placement, shape[axis]) for axis, placement in within.items()
            }
            changed.put_moved(variable, doc, [(moves, None)])
        elif dim in variable.dims:
            changed.put(variable, doc)
        else:
            names = ", ".join(repr(variable.dims[axis]) for axis in within)
            raise ManifestError(
                f"{path!r} of {part.name} lacks the dimension {dim!r}, but has {names}, and the sets have different "
                f"values of {names}: the result would have the array of one set only. drop={path!r} leaves it out"
            )
    return changed.finish()


def _place_chunks(part: NamedSet, path: str, axis: int, placement: Placement, total: int) -> Move:
    """Return the move of chunks for a ``placement`` of elements along ``axis``; ManifestError if it divides a chunk."""
    variable = part.variables[path]
    size = variable.meta.chunks[axis] if variable.meta.chunks else 0
    chunks = placement.convert_to_chunks(size, total)
    if chunks is None:
        start = placement.runs[0][0] if placement.runs else 0
        raise ManifestError(
            f"{path!r} of {part.name} has {placement.length} elements along {variable.dims[axis]!r} in chunks of "
            f"{size}, and begins at {start} of the {total} elements of all sets: its chunks begin inside other chunks, "
            "which references cannot describe. concat(..., lazy=True) joins sections of chunks when they are read"
        )
    return chunks.find_places

"""Give sets the arrays and the coordinates of all others. No I/O here.

`prepare_parts` gives every set all arrays, and the union of the coordinates along other dimensions. Chunks that a set
lacks do not exist in the result. Readers show the fill value there, so an array needs one that means "missing": zeros
would be taken for data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.fit import difference
from refshard_fs.cubes.moving import Move
from refshard_fs.cubes.placement import Placement
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.common_units import convert_to_common_units, make_comparable
from refshard_fs.sets.coordinates import check_same_coordinate
from refshard_fs.sets.fills import choose_fill_values
from refshard_fs.sets.steps import Steps
from refshard_fs.sets.text_widths import Widened, widen_texts
from refshard_fs.sets.variables import NamedSet


class Aligned(NamedTuple):
    """Sets with the same coordinates; where these differed, their ``unions`` by dimension.

    ``places`` say of each set where its elements lie along these.
    """

    parts: list[NamedSet]
    places: list[dict[str, Placement]]
    unions: Mapping[str, npt.NDArray[Any]] = {}


Regular = Mapping[str, str | float]  # the step between values of a coordinate, by dimension


def prepare_parts(
    parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool, has_gaps: bool, is_outer: bool
) -> tuple[Aligned, dict[str, Any]]:
    """Prepare ``parts`` for `concatenate`; return also the fill values, by path, that arrays need for it.

    If ``is_outer``, each gets all arrays along ``dim``, and the union of coordinates along other dimensions. If it
    ``has_gaps``, sets without chunks will be put between the ``parts``. If ``lazy``, only metadata change, also of
    texts of other widths: chunks are looked up when they are read. ManifestError if references alone cannot describe
    the result, or if an array has no value that means "missing".
    """
    texts = widen_texts(parts, dim) if lazy else Widened(list(parts), [{}] * len(parts), {})
    parts = texts.parts
    aligned = _align(parts, dim, regular, lazy=lazy) if is_outer else Aligned(list(parts), [{}] * len(parts))
    lacking = _find_lacking(parts, dim) if is_outer else []
    incomplete = {*lacking, *_find_incomplete(parts, aligned.unions)}
    if has_gaps:
        incomplete |= {
            path for part in parts for path in part.axes_along(dim) if not part.variables[path].is_coordinate
        }
    fills = choose_fill_values(parts, incomplete, lazy=lazy)
    pairs = zip(aligned.places, texts.places, strict=True)
    places = [{**own, **of_texts} if of_texts else own for own, of_texts in pairs]
    return Aligned(_add_lacking(aligned.parts, dim, lacking), places, {**aligned.unions, **texts.unions}), fills


def _find_lacking(parts: Sequence[NamedSet], dim: str | None) -> list[str]:
    """Return the arrays along ``dim`` that not all sets have."""
    along = {path for part in parts for path in part.axes_along(dim)}
    return sorted(path for path in along if any(path not in part.variables for part in parts))


def _add_lacking(parts: Sequence[NamedSet], dim: str | None, lacking: Sequence[str]) -> list[NamedSet]:
    """Return ``parts`` with the arrays that are ``lacking`` in some: these get them without chunks."""
    owners = {path: next(part for part in parts if path in part.variables) for path in lacking}
    complete = []
    for part in parts:
        changed = ChangedSet(part)
        missing = [path for path in lacking if path not in part.variables]
        for path in missing:
            changed.put_empty(owners[path], path, str(dim), part.length(str(dim)))
        complete.append(changed.result() if missing else part)
    return complete


def _align(parts: Sequence[NamedSet], dim: str | None, regular: Regular, *, lazy: bool) -> Aligned:
    """Return ``parts`` with the union of their coordinates along all dimensions but ``dim``."""
    for other in dict.fromkeys(v.dims[0] for part in parts for v in part.variables.values() if v.is_coordinate):
        if other is not None and other != dim:
            parts = convert_to_common_units(parts, other, lazy=lazy).parts
    unions: dict[str, npt.NDArray[Any]] = {}  # the union of values by dimension, if sets differ
    own: dict[str, list[npt.NDArray[Any] | None]] = {}  # the values of each set, by dimension
    chosen: dict[str, str] = {}  # the path of the coordinate, by dimension
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        first = next(part for part in parts if path in part.variables)
        name = first.variables[path].dims[0]
        if name is None or name == dim or name in own:
            continue
        values = [_get_values_to_compare(part, path) for part in parts]
        known = [some for some in values if some is not None]
        if len(known) < 2 or all(np.array_equal(some, known[0]) for some in known):
            continue
        for part, some in zip(parts, values, strict=True):
            if path in part.variables:
                _check_alignable(path, first, part, some)
        union = np.unique(np.concatenate(known))
        if all(some[0] > some[-1] for some in known if len(some) > 1) and any(len(some) > 1 for some in known):
            union = union[::-1]
        if name in regular and len(union):
            union = Steps.of(regular[name], first.variables[path], union[0], first.name).fill_in(union, first, name)
        own[name], unions[name], chosen[name] = values, union, path
    for part in parts:
        for path, variable in part.variables.items():
            name = variable.dims[0] if variable.is_coordinate else None
            if name is not None and name in unions and path != chosen[name]:
                check_same_coordinate(part, name, chosen[name], path)
    if not unions:
        return Aligned(list(parts), [{}] * len(parts))
    moved, places = [], []
    for number, part in enumerate(parts):
        placements: dict[str, Placement] = {}
        for name, union in unions.items():
            values_here = own[name][number]
            if values_here is not None:
                order = np.argsort(union)
                placements[name] = Placement.of(order[np.searchsorted(union, values_here, sorter=order)])
        moved.append(_place_elements(part, dim, placements, unions, lazy=lazy))
        places.append({d: p for d, p in placements.items() if p.runs != ((0, len(unions[d])),)})
    return Aligned(moved, places, unions)


def _get_values_to_compare(part: NamedSet, path: str) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate as they are compared, if the set has it and they are known."""
    values = part.values(path) if path in part.variables else None
    return None if values is None else make_comparable(part.variables[path], values)


def _check_alignable(path: str, first: NamedSet, part: NamedSet, values: npt.NDArray[Any] | None) -> None:
    """Raise ManifestError unless the ``values`` of a coordinate tell where each element of the set belongs."""
    if values is None:
        raise ManifestError(f"the values of {path!r} differ between sets, and those of {part.name} cannot be read")
    if len(np.unique(values)) < len(values):
        raise ManifestError(f"{part.name} has a value of {path!r} twice: the place of the second is not known")
    for name in ("units", "calendar"):
        mine, theirs = (each.variables[path].attributes.get(name) for each in (first, part))
        if mine != theirs:
            raise difference(path, f"attribute {name}", first.name, mine, part.name, theirs)


def _find_incomplete(parts: Sequence[NamedSet], unions: Mapping[str, npt.NDArray[Any]]) -> set[str]:
    """Return the arrays with a dimension of ``unions`` along which some set lacks elements."""
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
    """Return a set as long as ``unions`` along these dimensions, its elements at their ``placements``."""
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
                    f"{path!r} of {part.name} has {shape[axis]} elements along {variable.dims[axis]!r}, which has "
                    f"{placement.length}"
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
                f"{path!r} of {part.name} has the dimension {names} and not {dim!r}, and the sets have different "
                f"values of {names}: which set's values it has is not known"
            )
    return changed.result()


def _place_chunks(part: NamedSet, path: str, axis: int, placement: Placement, total: int) -> Move:
    """Return where chunks go whose elements have a ``placement``; ManifestError where they do not stay whole."""
    variable = part.variables[path]
    size = variable.meta.chunks[axis] if variable.meta.chunks else 0
    chunks = placement.in_chunks(size, total)
    if chunks is None:
        start = placement.runs[0][0] if placement.runs else 0
        raise ManifestError(
            f"{path!r} of {part.name} has {placement.length} elements along {variable.dims[axis]!r} in chunks of "
            f"{size}, and begins at {start} of the {total} of all sets: its chunks begin inside others, which "
            "references cannot express. concat(..., lazy=True) joins pieces of them when they are read"
        )
    return chunks.find_places

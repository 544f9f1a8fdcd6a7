"""Join sets along several dimensions, one after the other."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.errors import ManifestError
from refshard_fs.sets.common_units import SetsInCommonUnits, convert_to_common_units
from refshard_fs.sets.cut_chunks import cut_chunks
from refshard_fs.sets.file_grid import FileGrid
from refshard_fs.sets.fills import choose_fill_values, set_fill_values
from refshard_fs.sets.gaps import PlannedPiece, insert_regular_gaps, insert_union_gaps
from refshard_fs.sets.inputs import Position
from refshard_fs.sets.set_row import Rules, SetRow
from refshard_fs.sets.stacking import Stacking, make_coordinate_set
from refshard_fs.sets.variables import NamedSet

Leaf = tuple[Any, NamedSet]  # the URL, the document or the name of a set, and the set


class GridJoin(msgspec.Struct, frozen=True):
    """A join of sets along several dimensions: to references, or to documents within documents.

    The last dimension is joined first.
    """

    dims: Sequence[str | None]
    grid: FileGrid | None  # if names of files give their places
    units: Mapping[str, Any]  # units of the first set's coordinates, by path: all sets get them
    rules: Rules
    documents: list[tuple[ConcatDocument, Sequence[NamedSet]]] = []  # with the sets that were read for each
    examples: dict[tuple[str | None, int], NamedSet] = {}  # a set, by dimension and number along it

    def join(self, leaves: Mapping[Position, Leaf]) -> Leaf:
        """Join all ``leaves``, sets by their positions, to one set; return its document or name, and the set."""
        rules = self.rules
        parts = {place: part for place, (_, part) in leaves.items()}
        if rules.subchunks:
            for place, part in parts.items():
                parts[place] = cut_chunks(part, rules.subchunks, lazy=rules.lazy)
        if self.grid is not None:
            known = find_dims(parts.values())
            for place, part in parts.items():
                for dim, number in zip(self.dims, place, strict=True):
                    if dim in known:
                        self.examples.setdefault((dim, number), part)
            for path in {path: None for part in parts.values() for path in part.variables} if self.grid.holes else ():
                self._check_holes(path, parts)
            if self.grid.holes and not rules.lazy:
                variables = [item for part in parts.values() for item in part.variables.items()]
                spread = {p for p, v in variables if not v.is_coordinate and not set(self.dims).isdisjoint(v.dims)}
                fills = choose_fill_values(list(parts.values()), spread)
                parts = {place: set_fill_values(part, fills) for place, part in parts.items()}
        sources = {place: source if rules.lazy else parts[place].name for place, (source, _) in leaves.items()}
        return self._join_below((), {place: (sources[place], parts[place]) for place in sorted(leaves)})

    def _check_holes(self, path: str, parts: Mapping[Position, NamedSet]) -> None:
        """Raise ManifestError if values of an array would be taken from places without a file.

        An array that lacks a dimension of the grid is taken from the first sets along this dimension.
        """
        having = {place: part for place, part in parts.items() if path in part.variables}
        variable = next(iter(having.values())).variables[path]
        own = [dim in variable.dims for dim in self.dims]
        if variable.is_coordinate or all(own) or not any(own):
            return
        for place, part in having.items():
            left = [*parts]
            for axis, is_own in enumerate(own):
                number = place[axis] if is_own else min(other[axis] for other in left)
                left = [other for other in left if other[axis] == number]
                if not left:
                    lacked = ", ".join(repr(dim) for dim, has in zip(self.dims, own, strict=True) if not has)
                    raise ManifestError(
                        f"{path!r} of {part.name} does not have the dimension {lacked}, so it is taken from the "
                        f"first sets along {lacked}; but these sets lack values of {path!r} that this set has: "
                        f"drop={path!r} leaves it out"
                    )

    def _join_below(self, start: Position, leaves: Mapping[Position, Leaf]) -> Leaf:
        """Join ``leaves``, whose positions begin with ``start``, to one set."""
        axis, dim = len(start), self.dims[len(start)]
        if axis == len(self.dims) - 1:
            below = {place[axis]: leaf for place, leaf in leaves.items()}
        else:
            groups: dict[int, dict[Position, Leaf]] = {}
            for place, leaf in leaves.items():
                groups.setdefault(place[axis], {})[place] = leaf
            below = {number: self._join_below((*start, number), group) for number, group in groups.items()}
        sources: list[Any] = [source for source, _ in below.values()]
        parts = [part for _, part in below.values()]
        stacking = self._stack(dim, parts, list(below))
        parts = parts if stacking is None else stacking.parts
        holes = self._make_holes(start, below, parts[0])
        # Holes come last, because all sets get the units of the first set.
        times = SetsInCommonUnits([*parts, *holes.values()], {}, {})
        if self.rules.lazy:
            times = convert_to_common_units(times.parts, dim, lazy=True, fixed=self.units)
        real = times.parts[: len(parts)]
        row = list(real)
        for number, hole in zip(holes, times.parts[len(parts) :], strict=True):
            sources.insert(number, "")
            row.insert(number, hole)
        if dim in self.rules.regular or dim in self.rules.union:
            sources, row = self._insert_gaps(sources, row, str(dim))
        if not self.rules.lazy:
            whole = SetRow(dim, sources, row, self.rules).make_references() if len(row) > 1 else row[0]
            return whole.name, whole
        metadata = {**(stacking.metadata if stacking else {}), **times.metadata}
        document, whole = SetRow(
            dim, sources, row, self.rules, metadata, times.bounds, stacking=stacking
        ).make_document()
        self.documents.append((document, real))
        return document, whole

    def _stack(self, dim: str | None, parts: Sequence[NamedSet], numbers: Sequence[int]) -> Stacking | None:
        """Add the dimension ``dim`` to sets; return None if they have it."""
        known = find_dims(parts)
        if dim is None or dim in known:
            return None
        if self.grid is None:
            return Stacking.by_scalar(dim, parts)
        return Stacking.of(self.grid, dim, parts, numbers, [name for name in self.dims if name in known])

    def _make_holes(self, start: Position, numbers: Container[int], like: NamedSet) -> dict[int, NamedSet]:
        """Return, by number, sets for the places without a file: they have only a coordinate, or only a length."""
        axis, dim = len(start), self.dims[len(start)]
        if self.grid is None or dim is None:
            return {}
        holes: dict[int, NamedSet] = {}
        for number in range(self.grid.shape[axis]):
            if number in numbers:
                continue
            name = f"the missing file at {self.grid.describe((*start, number))}"
            example = self.examples.get((dim, number))
            if example is None:
                holes[number] = make_coordinate_set(self.grid, dim, number, like, name)
                continue
            along = {path: example.variables[path] for path in example.find_axes(dim)}
            coordinates = {path: v for path, v in along.items() if v.is_coordinate}
            holes[number] = NamedSet(name, example.refs, coordinates or dict(list(along.items())[:1]))
        return holes

    def _insert_gaps(
        self, sources: Sequence[Any], parts: Sequence[NamedSet], dim: str
    ) -> tuple[list[Any], list[NamedSet]]:
        """Insert gaps between sources and sets where values of the coordinate are missing."""
        rules = self.rules
        regular, union = rules.regular.get(dim), rules.union.get(dim)
        pieces = [PlannedPiece(number, part) for number, part in enumerate(parts)]
        if regular is not None:
            pieces = insert_regular_gaps(parts, dim, regular, lazy=rules.lazy)
        if union is not None:
            numbers = [piece.number for piece in pieces]
            divided = insert_union_gaps([piece.part for piece in pieces], dim, union, lazy=rules.lazy)
            pieces = [PlannedPiece(None if p.number is None else numbers[p.number], p.part) for p in divided]
        return ["" if p.number is None else sources[p.number] for p in pieces], [piece.part for piece in pieces]


def find_dims(parts: Iterable[NamedSet]) -> set[str | None]:
    """Return the dimensions of all variables."""
    return {dim for part in parts for variable in part.variables.values() for dim in variable.dims}

"""Concatenate reference sets along a dimension, as columns. No I/O here.

References get new numbers, and their chunks are not read. Inline coordinates and times are joined to one new inline
chunk.

If sets cannot be joined, a ManifestError names the sets, the variable and the field.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING_TYPE
from refshard_fs.core.columns import ChunkTable, Part, Row, Texts
from refshard_fs.core.dtypes import make_plain_array
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.fit import make_difference_error
from refshard_fs.cubes.moving import Move, shift_by
from refshard_fs.cubes.recoding import convert_exactly
from refshard_fs.cubes.recutting import Recut, check_recut
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import object_in
from refshard_fs.security.origins import NOTHING, Origins
from refshard_fs.sets.changed_set import NO_CHUNKS, make_grid, place_chunks
from refshard_fs.sets.common_units import find_times
from refshard_fs.sets.compatibility import Joining, check_equal, check_joinable, check_merged, check_shapes
from refshard_fs.sets.variables import NamedSet, Variable, VariableReader, change_type, put_attributes


def concatenate(
    sets: Sequence[NamedSet],
    dim: str | None,
    same: Iterable[str] = (),
    *,
    recut: Mapping[str, tuple[int, ...]] | None = None,
    is_rectilinear: bool = False,
) -> NamedSet:
    """Join arrays with ``dim`` along it, in the order of ``sets``; merge all other arrays. Return one set.

    Variables without ``dim`` must be equal in all sets that have them, except variables in ``same``, which are taken
    from the first set. If ``recut`` is not None, the result is for the document of a cube, which recodes chunks when
    they are read: encodings may differ between sets, and the arrays in ``recut`` get chunks of this shape, without
    references. With ``is_rectilinear``, chunks may have another length along ``dim`` in each set.
    """
    joined = _Concatenation(sets, dim, frozenset(same), recut, is_rectilinear)
    name = sets[0].name if len(sets) == 1 else f"{sets[0].name} to {sets[-1].name}"
    refs = joined.make_references()
    return NamedSet(name, refs, VariableReader().read(refs, name), joined.digests)


class _Concatenation:
    """Collect the columns, the other keys and the digests of the joined set; `concatenate` explains the arguments."""

    def __init__(
        self,
        sets: Sequence[NamedSet],
        dim: str | None,
        same: frozenset[str],
        recut: Mapping[str, tuple[int, ...]] | None,
        is_rectilinear: bool,
    ) -> None:
        self.sets, self.dim, self.same, self.recut = sets, dim, same, recut
        self.is_rectilinear = is_rectilinear
        # Times whose values are all known are joined as values, in one chunk; in a document, only coordinates are.
        times = {} if recut is not None else find_times(sets, dim)
        self.joined_as_values = {path for coordinate, bounds in times.items() for path in (coordinate, *bounds)}
        self.first_targets = np.cumsum([0, *(len(part.refs.urls) for part in sets)]).tolist()
        self.tables: dict[str, ChunkTable] = {}
        self.side: dict[str, Value] = {}
        self.digests: dict[str, Hashable] = {}

    def make_references(self) -> ReferenceSet:
        """Return the references of the joined set; ManifestError if no variable has the dimension."""
        dims = {dim for part in self.sets for variable in part.variables.values() for dim in variable.dims}
        if self.dim is not None and self.dim not in dims:
            self._check_scalars(self.dim)
            raise ManifestError(
                f"no variable of {self.sets[0].name} or the other sets has the dimension {self.dim!r}: found "
                f"{', '.join(sorted(dim for dim in dims if dim is not None)) or 'no dimensions'}. "
                f"To make {self.dim!r}, its values are needed: a scalar variable of that name in each set, a pattern "
                "with fields ('{time:%Y%m%d}.nc'), or coords= with nested lists"
            )
        for path in dict.fromkeys(path for part in self.sets for path in part.variables):
            self._add_variable(path)
        self._add_others()
        pins = Pins.join([(part.refs.pins, len(part.refs.urls)) for part in self.sets])
        urls = Texts.concatenate([part.refs.urls for part in self.sets])
        return ReferenceSet(urls, self.tables, self.side, pins=pins, origins=self._collect_origins())

    def _collect_origins(self) -> Origins:
        if not any(part.refs.origins for part in self.sets):
            return NOTHING
        first = self.sets[0].refs.origins
        if all(part.refs.origins is first for part in self.sets):  # files of one server
            return first
        named = [(url, part.refs.origins.of(url)) for part in self.sets for url in part.refs.urls if url is not None]
        return Origins.combine(named, frozenset().union(*(part.refs.origins.servers for part in self.sets)))

    def _check_scalars(self, dim: str) -> None:
        """Raise ManifestError if only some sets have the scalar ``dim``, and name a set with and one without it."""
        known = [dim in part.variables and part.decode_values(dim) is not None for part in self.sets]
        if any(known) and not all(known):
            other = self.sets[known.index(False)]
            what = "cannot be read" if dim in other.variables else "does not exist"
            raise ManifestError(
                f"no variable has the dimension {dim!r}. The scalar variable {dim!r} would give its values, as in "
                f"{self.sets[known.index(True)].name}, but it {what} in {other.name}: leave this set out"
            )

    def _add_variable(self, path: str) -> None:
        """Add an array: joined if it has the dimension, otherwise as the first set has it."""
        owners = [number for number, part in enumerate(self.sets) if path in part.variables]
        first = self.sets[owners[0]]
        variable = first.variables[path]
        if self.dim is None or self.dim not in variable.dims:
            for part in (self.sets[number] for number in owners[1:]):
                if path in self.same or part.refs is first.refs:
                    continue
                if self.dim is None:
                    check_merged(path, first, part)
                else:
                    check_equal(path, first, part, self.dim)
            self._copy_array(path, owners[0])
            return
        if len(owners) < len(self.sets):
            lacking = next(part.name for part in self.sets if path not in part.variables)
            raise ManifestError(
                f"{lacking} has no variable {path!r}, which {first.name} has along {self.dim!r}: "
                "with join='outer', its values are missing there"
            )
        axis = variable.dims.index(self.dim)
        distinct = _choose_distinct_sets(self.sets, path)
        for part in distinct:
            check_shapes(path, first, part, axis)
        values = self._join_values(path, axis) if variable.is_coordinate or path in self.joined_as_values else None
        how: Joining = "as they are" if self.recut is None else "made when they are read"
        if self.is_rectilinear and variable.meta.zarr_format == 3:
            how = "of other lengths"
        recut = self._make_recut(variable, axis) if values is None else None
        if values is not None:
            how = "stored anew"
        for part in distinct if values is None else self.sets:
            check_joinable(path, first, part, axis, how, recut)
        if recut is not None:
            self._add_metadata(variable, recut.meta.raw)
            return
        if values is None:
            self._join(path, axis)
            return
        doc, data = make_plain_array(change_type(variable.meta, values.dtype), values)
        grid = self._add_metadata(variable, doc)
        self.tables[path] = ChunkTable.from_parts(grid, [])
        if values.size:
            self.side[join(path, grid.tail(0))] = data

    def _make_recut(self, variable: Variable, axis: int) -> Recut | None:
        """Return the recut form of a joined array; None if its chunks are not recut."""
        path = variable.path
        chunks = None if self.recut is None else self.recut.get(path)
        if chunks is None:
            return None
        check_recut(path, variable.meta, self.sets[0].name)
        shape = list(variable.meta.shape)
        shape[axis] = sum(part.variables[path].meta.shape[axis] for part in self.sets)
        return Recut.of(variable.meta, shape, chunks, f"{path!r} of {self.sets[0].name}")

    def _add_others(self) -> None:
        """Add keys that belong to no array, each from the first set that has it; make ``.zmetadata`` anew."""
        consolidated = False
        for number, part in enumerate(self.sets):
            for key, value in part.refs.side.items():
                directory, name = parent(key)
                if key == ".zmetadata":
                    consolidated = True
                elif key in self.side or (directory in part.variables and zarrmeta.is_metadata(key)):
                    continue
                elif type(value) is Row:
                    if find_chunk(part.refs.grids, key) is None:
                        target = value.target + self.first_targets[number]
                        self.side[key] = Row(target, value.offset, value.length)
                elif name == "zarr.json":
                    group = object_in(value, f"{key!r} of {part.name}")
                    # Consolidated metadata describe one set only.
                    self.side[key] = {k: v for k, v in group.items() if k != "consolidated_metadata"}
                elif find_chunk(part.refs.grids, key) is None:
                    self.side[key] = value
        if consolidated:
            names = (".zarray", ".zattrs", ".zgroup")
            documents = {k: v for k, v in self.side.items() if parent(k)[1] in names and type(v) is not Row}
            metadata = {k: object_in(v, repr(k)) for k, v in documents.items()}
            self.side[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": metadata}

    def _copy_array(self, path: str, number: int) -> None:
        """Add the array ``path`` of the set ``number``, unchanged."""
        part = self.sets[number]
        refs = part.refs
        self._copy_metadata(path, part)
        if path in refs.tables:
            grid = refs.tables[path].grid
            self.tables[path] = ChunkTable.from_parts(grid, [self._place_chunks(path, number, grid, {})])
        if path in part.digests:
            self.digests[path] = part.digests[path]

    def _copy_metadata(self, path: str, part: NamedSet) -> None:
        for name in (".zarray", "zarr.json", ".zattrs"):
            key = join(path, name)
            if key in part.refs.side:
                self.side[key] = part.refs.side[key]

    def _add_metadata(self, variable: Variable, doc: Mapping[str, Any]) -> ChunkGrid:
        """Add the metadata of an array that is joined; return its grid."""
        grid = make_grid(doc, f"{variable.path!r} of {self.sets[0].name}")
        self._copy_metadata(variable.path, self.sets[0])
        self.side[variable.key] = dict(doc)
        packing = {part.variables[variable.path].attributes.get(PACKING_TYPE) for part in self.sets}
        if len(packing) > 1 and PACKING_TYPE in variable.attributes:
            others = {name: value for name, value in variable.attributes.items() if name != PACKING_TYPE}
            self.side |= put_attributes(variable.key, doc, others)
        return grid

    def _place_chunks(self, path: str, number: int, grid: ChunkGrid, along: Mapping[int, Move]) -> Part:
        """Add a set's inline chunks of an array; return its references, with targets numbered over all sets."""
        rows, inline = place_chunks(self.sets[number], path, grid, along)
        self.side |= inline
        if rows is NO_CHUNKS:
            return rows
        targets = rows.ranges.targets + np.uint32(self.first_targets[number])
        return rows._replace(ranges=rows.ranges._replace(targets=targets))

    def _join(self, path: str, axis: int) -> None:
        """Add an array with the chunks of all sets."""
        variable = self.sets[0].variables[path]
        first = variable.meta
        lengths = [part.variables[path].meta.shape[axis] for part in self.sets]
        sizes = [self._find_chunk_length(part, path, axis) for part in self.sets]
        for part, length, size in zip(self.sets[:-1], lengths, sizes, strict=False):
            if size and length % size:
                raise ManifestError(
                    f"{part.name} has {length} elements of {path!r} along {self.dim!r}, not a multiple of its chunks "
                    f"of {size}: only the last set may end inside a chunk. lazy=True joins chunks when they are read"
                )
        doc = {**first.raw, "shape": [*first.shape[:axis], sum(lengths), *first.shape[axis + 1 :]]}
        if len(set(sizes)) > 1:
            doc["chunk_grid"] = _make_rectilinear_grid(first, axis, zip(sizes, lengths, strict=True))
        grid = self._add_metadata(variable, doc)
        start, parts = 0, []
        for number, (part, length, size) in enumerate(zip(self.sets, lengths, sizes, strict=True)):
            if path in part.refs.tables:
                placed = self._place_chunks(path, number, grid, {axis: shift_by(start)})
                parts += [] if placed is NO_CHUNKS else [placed]
            start += -(-length // size) if size else 0
        self.tables[path] = ChunkTable.from_parts(grid, parts)
        if all(path in part.digests for part in self.sets):
            self.digests[path] = tuple(part.digests[path] for part in self.sets)

    def _find_chunk_length(self, part: NamedSet, path: str, axis: int) -> int:
        """Return the length of a set's chunks along ``axis``.

        ManifestError if it has chunks of several lengths, or of other lengths than the first set along other axes.
        """
        chunks, first = part.variables[path].meta.chunks, self.sets[0].variables[path].meta.chunks
        if chunks is None or first is None:
            raise ManifestError(
                f"{part.name}: expected chunks of one size in {path!r}, found several sizes, or sizes not known: "
                f"concat with drop={path!r} leaves the variable out"
            )
        if [*chunks[:axis], *chunks[axis + 1 :]] != [*first[:axis], *first[axis + 1 :]]:
            raise make_difference_error(path, "chunks", self.sets[0].name, list(first), part.name, list(chunks))
        return chunks[axis]

    def _join_values(self, path: str, axis: int) -> npt.NDArray[Any] | None:
        """Return the joined values of an array; None if a set's values are not inline, or do not fit in shape.

        ManifestError if the common type cannot hold all of them.
        """
        every = [values for part in self.sets if (values := part.decode_values(path)) is not None]
        if len(every) < len(self.sets):
            return None
        try:
            joined = np.concatenate(every, axis)
        except ValueError:  # lengths along other dimensions differ
            return None
        stored = convert_exactly(joined, every[0].dtype)
        if stored is not None:
            return stored  # the first set's type, if it holds all values
        for part, values in zip(self.sets, every, strict=True):
            if convert_exactly(values, joined.dtype) is None:
                raise ManifestError(
                    f"{path!r} of {part.name} has values of type {values.dtype} that {joined.dtype}, the common type "
                    "of all sets, cannot hold exactly: leave this set out"
                )
        return joined


def _choose_distinct_sets(sets: Sequence[NamedSet], path: str) -> list[NamedSet]:
    """Return one set for each description of an array; sets with equal metadata share their `Variable`."""
    kinds: dict[Any, NamedSet] = {}
    for part in sets:
        kinds.setdefault((id(part.variables[path]), str(part.units.get(path))), part)
    return list(kinds.values())


def _make_rectilinear_grid(first: ArrayMeta, axis: int, pieces: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Return the metadata of a grid whose chunks have several lengths along ``axis``.

    ``pieces`` has, for each set, the length of a chunk and of the set.
    """
    edges: list[list[int]] = []  # the length of chunks, and their number
    for size, length in pieces:
        count = -(-length // size) if size else 0
        if edges and edges[-1][0] == size:
            edges[-1][1] += count
        elif count:
            edges.append([size, count])
    shapes: list[Any] = list(first.chunks or ())
    shapes[axis] = edges
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}

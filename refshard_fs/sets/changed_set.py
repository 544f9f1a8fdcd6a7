"""Sets with some arrays changed: other metadata, other chunks, a part along a dimension, smaller chunks. No I/O here.

No chunk is read: references are to whole chunks, or to ranges of chunks without a codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges
from refshard_fs.core.dtypes import make_plain_array
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.cubes.moving import Move, move_numbers
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import convert_documents
from refshard_fs.sets.variables import NamedSet, Variable, VariableReader, change_type

NO_CHUNKS: Final = Part(np.zeros(0, np.uint64), Ranges.make_absent(0))


# The moves of chunks along each axis, and the byte range that is taken of each chunk (None: the whole chunk).
ChunkMove = tuple[Mapping[int, Move], tuple[int, int] | None]


def make_grid(doc: Mapping[str, Any], where: str) -> ChunkGrid:
    """Return the chunk grid of an array with the metadata ``doc``; ManifestError, which names ``where``, if unknown."""
    meta = zarrmeta.array_meta(doc, where)
    if meta is None or meta.grid is None:
        found = " and ".join(zarrmeta.shorten(doc.get(name)) for name in ("chunk_grid", "chunk_key_encoding"))
        raise ManifestError(f"{where}: expected a known chunk_grid and chunk_key_encoding, found {found}")
    return meta.grid


class ChangedSet:
    """Replace arrays of a set; `finish` returns the changed set."""

    def __init__(self, part: NamedSet) -> None:
        self.part = part
        self.tables: dict[str, ChunkTable] = dict(part.refs.tables)
        self.members: dict[str, Value] = dict(part.refs.side.items())
        self._changed: set[str] = set()

    def put(
        self,
        variable: Variable,
        doc: Mapping[str, Any],
        attributes: Value | None = None,
        chunks: Mapping[int, bytes] = {},
    ) -> ChunkGrid:
        """Replace an array by one with the metadata ``doc`` and only these inline ``chunks``; return its grid."""
        path = variable.path
        grid = make_grid(doc, f"{path!r} of {self.part.name}")
        for number in self.part.find_inline_chunks(path):
            self.members.pop(join(path, self.part.refs.tables[path].grid.tail(number)), None)
        self.members[variable.key] = dict(doc)
        if attributes is not None:
            self.members[join(path, ".zattrs")] = attributes
        self.members |= {join(path, grid.tail(number)): data for number, data in chunks.items()}
        self.tables[path] = ChunkTable.from_parts(grid, [])
        self._changed.add(path)
        return grid

    def put_values(self, variable: Variable, values: npt.NDArray[Any], attributes: Value | None = None) -> None:
        """Replace an array by ``values``, in one inline chunk; change the data type if it cannot hold the values."""
        doc, data = make_plain_array(change_type(variable.meta, values.dtype), values)
        self.put(variable, doc, attributes, {0: data} if values.size else {})

    def put_empty(self, like: NamedSet, path: str, dim: str, length: int) -> None:
        """Add an array without chunks: like ``path`` of the set ``like``, but with this ``length`` along ``dim``."""
        variable = like.variables[path]
        shape = list(variable.meta.shape)
        shape[variable.dims.index(dim)] = length
        self.put(variable, {**variable.meta.raw, "shape": shape}, like.refs.side.get(join(path, ".zattrs")))

    def put_moved(self, variable: Variable, doc: Mapping[str, Any], moves: Iterable[ChunkMove]) -> None:
        """Replace an array by one with the metadata ``doc`` and the old chunks, moved; drop chunks that leave it."""
        path = variable.path
        grid, parts = self.put(variable, doc), []
        for along, byte_range in moves:
            rows, inline = place_chunks(self.part, path, grid, along, byte_range)
            parts.append(rows)
            self.members |= inline
        self.tables[path] = ChunkTable.from_parts(grid, parts)

    def put_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace metadata documents, by key; chunks stay as they are."""
        self.members |= {key: dict(doc) for key, doc in documents.items()}
        self._changed |= {parent(key)[0] for key in documents}

    def finish(self, *, keeps_digests: bool = False) -> NamedSet:
        """Return the changed set. Digests of replaced arrays are dropped, except with ``keeps_digests``."""
        part, changed = self.part, self._changed
        old = part.refs
        refs = ReferenceSet(old.urls, self.tables, self.members, pins=old.pins, origins=old.origins)
        variables = {**part.variables, **VariableReader().read(refs, part.name, changed)}
        stale = set() if keeps_digests else changed
        digests = {path: digest for path, digest in part.digests.items() if path not in stale}
        return msgspec.structs.replace(part, refs=refs, variables=variables, digests=digests)


def place_chunks(
    part: NamedSet, path: str, grid: ChunkGrid, along: Mapping[int, Move], byte_range: tuple[int, int] | None = None
) -> tuple[Part, dict[str, bytes]]:
    """Return the chunks of an array, moved to another ``grid``: references by number, inline chunks by key.

    ``along`` has the move along each axis; along other axes, both grids are the same. Chunks that would lie outside
    of the grid are dropped. ``byte_range`` is the offset and the length of the bytes to take of each chunk; None takes
    whole chunks.
    """
    table, chunks = part.refs.tables[path], part.find_inline_chunks(path)
    if not chunks and not len(table):  # usual for lazy joins of many files, whose chunks were not looked up
        return NO_CHUNKS, {}
    numbers, ranges = table.make_part()
    places, is_inside = move_numbers(numbers, table.grid, grid, along)
    rows = Part(places, ranges) if is_inside.all() else Part(places[is_inside], ranges.take(is_inside))
    if byte_range is not None:
        offset, length = byte_range
        kept = rows.ranges
        parts = Ranges(kept.targets, kept.offsets + np.uint64(offset), np.full_like(kept.lengths, length))
        rows = rows._replace(ranges=parts)
    if not chunks:
        return rows, {}
    places, is_inside = move_numbers(np.array(list(chunks), np.uint64), table.grid, grid, along)
    cut = slice(None) if byte_range is None else slice(byte_range[0], sum(byte_range))
    placed = zip(places.tolist(), is_inside.tolist(), chunks.values(), strict=True)
    return rows, {join(path, grid.tail(number)): data[cut] for number, stays, data in placed if stays}


def replace_metadata(part: NamedSet, documents: Mapping[str, Mapping[str, Any]]) -> NamedSet:
    """Return a set with metadata ``documents`` (by key) in place of its own."""
    if not documents:
        return part
    changed = ChangedSet(part)
    changed.put_documents(documents)
    return changed.finish(keeps_digests=True)


def convert_to_version_3(part: NamedSet) -> NamedSet:
    """Return the set with metadata of zarr version 3; ManifestError if version 3 cannot express its metadata."""
    refs = part.refs
    if not any(key.rpartition("/")[2] in (".zarray", ".zgroup") for key in refs.side):
        return part
    documents = {key: value for key, value in refs.side.items() if zarrmeta.is_metadata(key)}
    nodes = convert_documents(documents.items(), {path: table.grid for path, table in refs.tables.items()})
    members = {key: value for key, value in refs.side.items() if key not in documents}
    members |= {join(path, "zarr.json"): node for path, node in nodes.items()}
    converted = ReferenceSet(refs.urls, dict(refs.tables), members, pins=refs.pins, origins=refs.origins)
    return msgspec.structs.replace(part, refs=converted, variables=VariableReader().read(converted, part.name))

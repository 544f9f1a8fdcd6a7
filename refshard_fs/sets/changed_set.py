"""Sets with some arrays changed: other metadata, other chunks, a part along a dimension, smaller chunks. No I/O here.

Only references change: chunks are taken whole, and pieces of chunks without a codec as ranges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE, ChunkTable, Part, Ranges, Texts
from refshard_fs.core.dtypes import dtype_of, plain
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.cubes.moving import Move, move_numbers, shift_by
from refshard_fs.cubes.sections import contiguous, is_plain
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import convert_documents
from refshard_fs.sets.variables import NamedSet, Variable, VariableReader, with_type

NO_CHUNKS: Final = Part(np.zeros(0, np.uint64), Ranges.absent(0))
# Moves by axis, and the byte range of each chunk that is moved so (None: all of it).
Moved = tuple[Mapping[int, Move], tuple[int, int] | None]


def grid_of(doc: Mapping[str, Any], where: str) -> ChunkGrid:
    """Return the chunk grid of an array; ManifestError, which begins with ``where``, if it is not known."""
    meta = zarrmeta.array_meta(doc, where)
    if meta is None or meta.grid is None:
        raise ManifestError(f"{where} has no chunk grid")
    return meta.grid


class ChangedSet:
    """A set some of whose arrays are replaced; `result` returns it."""

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
        grid = grid_of(doc, f"{path!r} of {self.part.name}")
        for number in self.part.inline_chunks(path):
            self.members.pop(join(path, self.part.refs.tables[path].grid.tail(number)), None)
        self.members[variable.key] = dict(doc)
        if attributes is not None:
            self.members[join(path, ".zattrs")] = attributes
        self.members |= {join(path, grid.tail(number)): data for number, data in chunks.items()}
        self.tables[path] = ChunkTable.from_parts(grid, [])
        self._changed.add(path)
        return grid

    def put_values(self, variable: Variable, values: npt.NDArray[Any], attributes: Value | None = None) -> None:
        """Replace an array by one of ``values`` in one inline chunk, of a type that holds them."""
        doc, data = plain(with_type(variable.meta, values.dtype), values)
        self.put(variable, doc, attributes, {0: data} if values.size else {})

    def put_empty(self, like: NamedSet, path: str, dim: str, length: int) -> None:
        """Add an array of another set, of some ``length`` along ``dim`` and without chunks."""
        variable = like.variables[path]
        shape = list(variable.meta.shape)
        shape[variable.dims.index(dim)] = length
        self.put(variable, {**variable.meta.raw, "shape": shape}, like.refs.side.get(join(path, ".zattrs")))

    def put_moved(self, variable: Variable, doc: Mapping[str, Any], moves: Iterable[Moved]) -> None:
        """Replace an array by one with the metadata ``doc`` and this one's chunks, moved; those outside are dropped."""
        path = variable.path
        grid, parts = self.put(variable, doc), []
        for along, piece in moves:
            rows, inline = placed_chunks(self.part, path, grid, along, piece)
            parts.append(rows)
            self.members |= inline
        self.tables[path] = ChunkTable.from_parts(grid, parts)

    def put_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace metadata documents, by key; chunks stay as they are."""
        self.members |= {key: dict(doc) for key, doc in documents.items()}
        self._changed |= {parent(key)[0] for key in documents}

    def result(self, *, keeps_digests: bool = False) -> NamedSet:
        """Return the changed set. Digests of arrays that were replaced are dropped, unless it ``keeps_digests``."""
        part, changed = self.part, self._changed
        old = part.refs
        refs = ReferenceSet(old.urls, self.tables, self.members, pins=old.pins, origins=old.origins)
        variables = {**part.variables, **VariableReader().read(refs, part.name, changed)}
        stale = set() if keeps_digests else changed
        digests = {path: digest for path, digest in part.digests.items() if path not in stale}
        return msgspec.structs.replace(part, refs=refs, variables=variables, digests=digests)


def placed_chunks(
    part: NamedSet, path: str, grid: ChunkGrid, along: Mapping[int, Move], piece: tuple[int, int] | None = None
) -> tuple[Part, dict[str, bytes]]:
    """Return the chunks of a set's array as they lie in another ``grid``: references by number, inline ones by key.

    They are moved ``along`` these axes; along all others both grids are the same. Those that come to lie outside are
    dropped. ``piece`` is the byte range that is taken of each (None: all of it).
    """
    table, chunks = part.refs.tables[path], part.inline_chunks(path)
    if not chunks and not len(table):  # as in each of 100,000 files whose chunks are not looked up
        return NO_CHUNKS, {}
    numbers, ranges = table.part()
    places, is_inside = move_numbers(numbers, table.grid, grid, along)
    rows = Part(places, ranges) if is_inside.all() else Part(places[is_inside], ranges.take(is_inside))
    if piece is not None:
        offset, length = piece
        kept = rows.ranges
        pieces = Ranges(kept.targets, kept.offsets + np.uint64(offset), np.full_like(kept.lengths, length))
        rows = rows._replace(ranges=pieces)
    if not chunks:
        return rows, {}
    places, is_inside = move_numbers(np.array(list(chunks), np.uint64), table.grid, grid, along)
    cut = slice(None) if piece is None else slice(piece[0], sum(piece))
    placed = zip(places.tolist(), is_inside.tolist(), chunks.values(), strict=True)
    return rows, {join(path, grid.tail(number)): data[cut] for number, stays, data in placed if stays}


def with_metadata(part: NamedSet, documents: Mapping[str, Mapping[str, Any]]) -> NamedSet:
    """Return a set with metadata ``documents`` (by key) in place of its own."""
    if not documents:
        return part
    changed = ChangedSet(part)
    changed.put_documents(documents)
    return changed.result(keeps_digests=True)


def in_version_3(part: NamedSet) -> NamedSet:
    """Return a set with metadata of zarr version 3, whichever it has; ManifestError where that cannot say the same."""
    refs = part.refs
    if not any(key.rpartition("/")[2] in (".zarray", ".zgroup") for key in refs.side):
        return part
    documents = {key: value for key, value in refs.side.items() if zarrmeta.is_metadata(key)}
    nodes = convert_documents(documents.items(), {path: table.grid for path, table in refs.tables.items()})
    members = {key: value for key, value in refs.side.items() if key not in documents}
    members |= {join(path, "zarr.json"): node for path, node in nodes.items()}
    made = ReferenceSet(refs.urls, dict(refs.tables), members, pins=refs.pins, origins=refs.origins)
    return msgspec.structs.replace(part, refs=made, variables=VariableReader().read(made, part.name))


# ----------------------------------------------------------------------------------------------------
# Gaps: sets without chunks.


def coordinate_set(variable: Variable, values: npt.NDArray[Any], like: NamedSet, name: str) -> NamedSet:
    """Return a set of nothing but a coordinate with ``values``, stored as in another set."""
    changed = ChangedSet(NamedSet(name, ReferenceSet(Texts.of([]), {}, {}), {}))
    changed.put_values(variable, values, like.refs.side.get(join(variable.path, ".zattrs")))
    return changed.result()


def gap(
    like: NamedSet, dim: str, name: str, length: int, extent: NamedSet | None, *, with_others: bool = False
) -> NamedSet:
    """Return a set with the arrays of another one along ``dim``, without chunks, but with the coordinate of ``extent``.

    Without ``extent`` the coordinate has no chunks either. ``with_others`` it has all other arrays as well.
    """
    stored = None if extent is None else extent.coordinate(dim)
    values = None if extent is None or stored is None else extent.values(stored.path)
    empty = NamedSet(name, ReferenceSet(Texts.of([]), {}, {}), {}, units=like.units)
    changed = ChangedSet(msgspec.structs.replace(like, name=name) if with_others else empty)
    for path in like.along(dim):
        variable = like.variables[path]
        if extent is None or not variable.is_coordinate:
            changed.put_empty(like, path, dim, length)
        elif values is not None:
            changed.put_values(variable, values, like.refs.side.get(join(path, ".zattrs")))
    if extent is not None and stored is not None and values is None:  # text, in chunks of any kind
        path = stored.path
        changed.put(stored, stored.meta.raw, extent.refs.side.get(join(path, ".zattrs")), extent.inline_chunks(path))
        if len(extent.refs.tables[path]):
            raise ManifestError(f"the values of {path!r} at {extent.name} are not known: other sets refer to them")
    return changed.result()


# ----------------------------------------------------------------------------------------------------
# A part of a set along a dimension.


def trim(part: NamedSet, dim: str, start: int, stop: int, *, lazy: bool = False) -> NamedSet:
    """Return a set with only elements ``[start, stop)`` along ``dim``; ManifestError unless these are whole chunks.

    If ``lazy``, any elements can be taken: chunks are cut when they are read.
    """
    changed, coordinate = ChangedSet(part), part.coordinate(dim)
    is_changed = False
    for path, axis in part.along(dim).items():
        variable, meta = part.variables[path], part.variables[path].meta
        if start == 0 and stop == meta.shape[axis]:
            continue
        is_changed = True
        size = meta.chunks[axis] if meta.chunks is not None else 0
        are_whole = size and not start % size and (not stop % size or stop == meta.shape[axis])
        is_known = variable is coordinate if lazy else len(meta.shape) == 1 or not are_whole
        values = part.values(path) if is_known else None
        document = {**meta.raw, "shape": [*meta.shape[:axis], stop - start, *meta.shape[axis + 1 :]]}
        if values is not None:
            changed.put_values(variable, np.moveaxis(np.moveaxis(values, axis, 0)[start:stop], 0, axis))
        elif are_whole:
            changed.put_moved(variable, document, [({axis: shift_by(-(start // size))}, None)])
        elif lazy:
            changed.put(variable, document)
        else:
            raise ManifestError(
                f"{part.name}: elements {start} to {stop} along {dim!r} begin or end inside chunks of {path!r}, which "
                f"have {size}: references name whole chunks. lazy=True cuts chunks when they are read"
            )
    if not is_changed:
        return part
    trimmed = changed.result()
    if not lazy:
        return trimmed
    begin, total = part.take or (0, part.length(dim))
    return msgspec.structs.replace(trimmed, take=(begin + start, total))


# ----------------------------------------------------------------------------------------------------
# Smaller chunks, which are ranges of those that are stored.


def cut_chunks(part: NamedSet, subchunks: Mapping[str, int], *, lazy: bool) -> NamedSet:
    """Return a set with chunks shown in smaller pieces, as long as ``subchunks`` says by dimension.

    If ``lazy``, chunks are cut when they are read: the set is returned unchanged, once it is clear that they can be.
    """
    shapes = {path: _smaller_chunks(part, path, subchunks) for path in part.variables}
    if lazy or not any(shapes.values()):
        return part
    changed = ChangedSet(part)
    for path, shape in shapes.items():
        if shape is not None:
            _divide(changed, path, shape)
    return changed.result(keeps_digests=True)


def _smaller_chunks(part: NamedSet, path: str, subchunks: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an array's chunks by ``subchunks``; None for its own.

    ManifestError if a piece of a chunk is not one range.
    """
    variable = part.variables[path]
    chunks = variable.meta.chunks
    asked = [subchunks.get(dim or "") for dim in variable.dims]
    if variable.is_coordinate or not any(asked):
        return None
    where = f"the chunks of {path!r} of {part.name}"
    if chunks is None:
        raise ManifestError(f"{where} are not of one size, or not known: they have no smaller pieces")
    shape = tuple(size if n is None else min(n, size) for n, size in zip(asked, chunks, strict=True))
    dtype = dtype_of(variable.meta)
    if shape == chunks:
        return None
    if dtype is None or not is_plain(variable.meta):
        codecs = ", ".join(zarrmeta.codecs_of(variable.meta)) or f"order {variable.meta.order}"
        raise ManifestError(f"{where} are encoded ({codecs}), so that no range of one is a smaller chunk (subchunks=)")
    if contiguous(chunks, tuple((0, n) for n in shape), dtype.itemsize) is None:
        raise ManifestError(
            f"{where} have the shape {list(chunks)}: pieces of {list(shape)} are not in one range each. "
            "subchunks= divides the first dimension, or one before which chunks have the length 1"
        )
    return shape


def _divide(changed: ChangedSet, path: str, shape: Sequence[int]) -> None:
    part, variable = changed.part, changed.part.variables[path]
    meta, dtype = variable.meta, dtype_of(variable.meta)
    chunks = meta.chunks or ()
    assert dtype is not None, "`_smaller_chunks` has looked at it"
    if any(size % n for size, n in zip(chunks, shape, strict=True)):
        raise ManifestError(
            f"the chunks of {path!r} of {part.name} have the shape {list(chunks)}, no multiple of {list(shape)}: "
            "lazy=True takes pieces of any length"
        )
    size = math.prod(chunks) * dtype.itemsize
    if not np.isin(changed.tables[path].part().ranges.lengths, (size, WHOLE)).all():
        raise ManifestError(
            f"not all chunks of {path!r} of {part.name} have the {size} bytes of {list(chunks)} elements"
        )
    counts = tuple(a // b for a, b in zip(chunks, shape, strict=True))  # pieces of a chunk along each axis
    moves: list[Moved] = []
    for at in itertools.product(*map(range, counts)):
        box = tuple((k * n, (k + 1) * n) for k, n in zip(at, shape, strict=True))
        along = {axis: shift_by(k, factor=n) for axis, (n, k) in enumerate(zip(counts, at, strict=True))}
        moves.append((along, contiguous(chunks, box, dtype.itemsize)))
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    changed_grid = {"chunks": list(shape)} if meta.zarr_format == 2 else {"chunk_grid": grid}
    changed.put_moved(variable, {**meta.raw, **changed_grid}, moves)

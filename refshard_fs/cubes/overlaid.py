"""Gaps, and pieces that are shown with other metadata. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers
from refshard_fs.core.consolidated import may_repeat, parse_json, reconsolidate
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.keyspace import KeySpace, View, by_name
from refshard_fs.core.model import Entry, Inline, Listed, Steps
from refshard_fs.errors import ManifestError


class Gap(KeySpace):
    """A gap: a key space without any key."""

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return None

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        return None

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        yield from ()
        return ChunksBuilder(len(numbers)).finish()


class OverlaidPiece(View):
    """A piece with other ``metadata``, by key. Arrays in ``held``, by path, have these bytes as their one chunk."""

    def __init__(self, base: KeySpace, metadata: Mapping[str, Any], held: Mapping[str, bytes], where: str) -> None:
        super().__init__(base)
        self._metadata = metadata
        self._inline = {key: Inline(zarrmeta.dumps(doc)) for key, doc in metadata.items()}
        self._held = held
        for path, data in held.items():
            docs = [metadata[key] for key in (join(path, "zarr.json"), join(path, ".zarray")) if key in metadata]
            meta = zarrmeta.array_meta(docs[0], f"{path!r} of {where}") if docs else None
            if meta is None or meta.grid is None or meta.grid.size != 1:
                raise ManifestError(f"{where} holds the bytes of {path!r}: expected metadata of an array of one chunk")
            size = math.prod(meta.chunks or ()) * (itemsize_of(meta) or 0)
            if len(data) != size:
                raise ManifestError(
                    f"{where}: expected {size} bytes of {path!r} for its chunk of {meta.chunks}, got {len(data)}"
                )
            self._inline[join(path, meta.grid.tail(0))] = Inline(data)

    def lookup(self, key: str) -> Steps[Entry | None]:
        found = self._inline.get(key)
        if found is not None:
            return found
        if key == zarrmeta.CONSOLIDATED or key == "zarr.json":
            return (yield from self._make_consolidated_document(key))
        return None if self._is_hidden(key) else (yield from self.base.lookup(key))

    def _is_hidden(self, key: str) -> bool:
        """Return whether a key of the piece is a chunk of an array in ``held``, or a directory of such chunks."""
        return any(key.startswith(path + "/") for path in self._held) and not zarrmeta.is_metadata(key)

    def _make_consolidated_document(self, key: str) -> Steps[Entry | None]:
        """Return the root's document with the shown metadata in its consolidated metadata."""
        data = yield from self.base.read(key)
        if data is None or not may_repeat(key, data):
            return (yield from self.base.lookup(key))
        document = parse_json(data)  # bytes that are not JSON are returned unchanged
        changed = reconsolidate(key, document, self._metadata, lambda _: False)
        return Inline(data if changed is document else zarrmeta.dumps(changed))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        names = None if self._is_hidden(prefix) else (yield from self.base.children(prefix))
        found = {listed.name: listed for listed in names or () if not self._is_hidden(join(prefix, listed.name))}
        for key, entry in self._inline.items():
            directory, name = parent(key)
            if directory == prefix:
                found[name] = Listed(name, len(entry.data))
            elif is_within(directory, prefix):
                below = directory[len(prefix) :].strip("/").partition("/")[0]
                found.setdefault(below, Listed(below, None, True))
        return sorted(found.values(), key=by_name) if found or names is not None else None

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        found = yield from self.base.contents(prefix, errors)
        members: dict[str, Any] = {key: value for key, value in found.members.items() if not self._is_hidden(key)}
        arrays, others = dict(found.arrays), {k: size for k, size in found.others.items() if not self._is_hidden(k)}
        for key, entry in self._inline.items():
            path = parent(key)[0]
            if not is_within(path, prefix) or not zarrmeta.is_metadata(key):
                continue
            members[key] = entry.data
            grid = zarrmeta.grid_of(self._metadata[key]) if zarrmeta.is_array_document(key) else None
            if grid is not None and path in self._held:
                sizes = np.array([len(self._held[path])], np.uint64)
                arrays[path] = ArrayChunks(grid, np.zeros(1, np.uint64), sizes)
            elif grid is not None:
                known = arrays.get(path, ArrayChunks(grid))
                arrays[path] = ArrayChunks(grid, known.numbers, known.sizes)
        return Contents(members, arrays, others, found.indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if any(join(array, name) in self._metadata for name in zarrmeta.ARRAY_DOCUMENTS):
            return (yield from super().chunks(array, numbers, grid))
        return (yield from self.base.chunks(array, numbers, grid))


def stack_metadata(doc: Mapping[str, Any], chunks: Sequence[int], dim: str) -> dict[str, Any]:
    """Return the metadata ``doc`` of an array, which has ``chunks``, with ``dim``, of length 1, as first dimension."""
    found = {**doc, "shape": [1, *doc["shape"]]}
    if doc.get("zarr_format") == 2:
        return {**found, "chunks": [1, *chunks]}
    found["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [1, *chunks]}}
    return {**found, "dimension_names": [dim, *(doc.get("dimension_names") or [None] * len(chunks))]}

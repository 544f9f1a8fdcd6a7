"""Commits to a branch of an Icechunk repository: all edits of a source become one snapshot, or none is written.

References that Icechunk can read become virtual chunks, and other chunks native chunks. The branch must still be at the
snapshot that was opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fsspec.asyn import get_loop, sync

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, ChunksBuilder
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits, make_entry
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.core.model import Entry, Inline
from refshard_fs.errors import ConflictError, ManifestError, sanitize
from refshard_fs.security.origins import Origins
from refshard_fs.sinks.icechunk import (
    ROWS,
    VirtualStores,
    commit,
    encode_document,
    make_key,
    make_storage,
    open_session,
    put_document,
    put_native,
    put_virtual,
    translate_errors,
)
from refshard_fs.source.source import Source
from refshard_fs.source.transaction import Base

DOCUMENT = "zarr.json"


class IcechunkCommit:
    """One commit to the branch that the source at ``url`` shows."""

    def __init__(self, url: str, source: Source, base: Base, edits: Edits, message: str | None) -> None:
        """Prepare the ``edits`` of ``base``, the repository as it was opened."""
        self._url, self._source, self._edits, self._message = url, source, edits, message
        self._keyspace: Any = base.keyspace.source
        self._base = base
        self._grids = EditedKeySpace(base.keyspace, edits).grids
        self._removed: list[str] = []
        self._documents: dict[str, bytes] = {}
        self._blocks: dict[tuple[str, range], ChunksBuilder] = {}
        for key, edit in edits.list_changes().items():
            self._add(key, None if edit is REMOVED else make_entry(edit))

    def run(self) -> None:
        """Commit all edits, or none; ConflictError if the branch has another snapshot than when it was opened."""
        with translate_errors(self._url):
            self._commit()

    def _commit(self) -> None:
        import icechunk

        find_options = self._source.options.pool.find_options
        options = find_options(self._url)
        storage = make_storage(self._url, options if isinstance(options, Mapping) else {})
        resolve = self._base.keyspace.resolve
        blocks = [(*at, self._resolve_chunks(builder.finish(), resolve)) for at, builder in self._blocks.items()]
        stores = VirtualStores({}, find_options)
        repository = icechunk.Repository.open(storage)
        session = open_session(repository, self._keyspace.branch)
        if session.snapshot_id != self._keyspace.snapshot_name:
            raise ConflictError(
                f"the branch {self._keyspace.branch!r} of {sanitize(self._url)} is at another snapshot than when "
                "it was opened: another process committed to it. Nothing was committed, and your writes are kept: "
                "discard() drops them and shows the new snapshot, save() writes them to another place"
            )
        sync(get_loop(), self._write, session.store, blocks, stores)
        stores.save(storage)
        commit(repository, self._keyspace.branch, session, self._message, self._collect_origins(blocks))

    def _collect_origins(self, blocks: Sequence[tuple[str, range, Chunks]]) -> Origins:
        """Return the servers that named targets of the repository, including targets in the edits."""
        named = [pair for *_, chunks in blocks for pair in zip(chunks.urls, chunks.origins, strict=False)]
        origins: Origins = self._keyspace.origins
        return origins.with_urls(named)

    def _add(self, key: str, entry: Entry | None) -> None:
        """Add an edit to the removals, documents or blocks of chunks; ManifestError if a repository cannot hold it."""
        grids = self._base.keyspace.grids
        if entry is None:
            at = find_chunk(grids, key)
            if at is not None:
                self._removed.append(make_key(at.array, grids[at.array], at.number))
            elif parent(key)[1] == DOCUMENT:  # a repository has no other keys
                self._removed.append(key)
        elif parent(key)[1] == DOCUMENT and isinstance(entry, Inline):
            document = {n: v for n, v in zarrmeta.object_in(entry.data, key).items() if n != "consolidated_metadata"}
            self._documents[key] = encode_document(document, key)
        elif (at := find_chunk(self._grids, key)) is not None:
            start = at.number // ROWS * ROWS
            numbers = range(start, min(start + ROWS, self._grids[at.array].size))
            block = self._blocks.setdefault((at.array, numbers), ChunksBuilder(len(numbers)))
            block.put_entry(at.number - numbers.start, entry)
        else:
            raise ManifestError(
                f"{key!r} is neither metadata of zarr version 3 nor a chunk: an Icechunk repository holds nothing "
                "else. Remove this key, and commit again"
            )

    def _resolve_chunks(self, chunks: Chunks, resolve: Any) -> Chunks:
        """Return chunks with absolute URLs."""
        return msgspec.structs.replace(chunks, urls=[resolve(url) for url in chunks.urls])

    async def _write(self, store: Any, blocks: Sequence[tuple[str, range, Chunks]], stores: VirtualStores) -> None:
        """Write the edits to a session's store."""
        for prefix in self._edits.list_prefixes():
            await (store.delete_dir(prefix) if prefix else store.clear())
        for key in self._removed:
            await store.delete(key)
        for key in sorted(self._documents):
            await put_document(store, key, self._documents[key])
        for array, numbers, chunks in blocks:
            grid: ChunkGrid = self._grids[array]
            await put_virtual(store, array, grid, numbers, chunks, stores)
            await put_native(store, array, grid, numbers, chunks, stores, self._read)

    def _read(self, entries: Mapping[str, Entry | bytes]) -> Sequence[bytes]:
        left = {key: entry for key, entry in entries.items() if not isinstance(entry, bytes)}
        read = dict(zip(left, self._source.wait(self._source.read_entries, left), strict=True)) if left else {}
        return [entry if isinstance(entry, bytes) else read[key] for key, entry in entries.items()]

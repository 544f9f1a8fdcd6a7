"""A group of arrays that zarr did not write: their metadata at hand, their chunks where another tells. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.keyspace import place
from refshard_fs.model import Entry, Inline, Listed, Steps

__all__ = ["ArrayGroup", "Chunks"]

LISTABLE: Final = 1 << 24  # chunks; more are read, but not listed, for the number is only what a header says


class Chunks(Protocol):
    """Where the chunks of one array lie."""

    def entry(self, number: int) -> Steps[Entry | None]:
        """Return the entry of a chunk; None if there is no such chunk."""

    def listed(self) -> Steps[list[Listed] | None]:
        """Return the chunks there are, by their keys below the array; None if they are all of the grid."""


class ArrayGroup:
    """The keys of ``documents`` and of the chunks of ``grids``, both by path; ``reports`` tells what is not shown."""

    def __init__(
        self,
        documents: Mapping[str, bytes],
        grids: Mapping[str, ChunkGrid],
        chunks: Mapping[str, Chunks],
        reports: Mapping[str, str] | None = None,
    ) -> None:
        self.grids = grids
        self.reports = dict(reports or {})
        self._documents = documents
        self._chunks = chunks

    def lookup(self, key: str) -> Steps[Entry | None]:
        document = self._documents.get(key)
        if document is not None:
            return Inline(document)
        at = place(self.grids, key)
        if at is None:
            return None
        return (yield from self._chunks[at.array].entry(at.number))

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        if prefix and prefix not in self.grids:
            return None
        found = [] if prefix else [Listed(path, None, True) for path in self.grids]
        for key, document in self._documents.items():
            directory, _, name = key.rpartition("/")
            if directory == prefix:
                found.append(Listed(name, len(document)))
        if prefix:
            there = yield from self._chunks[prefix].listed()
            found += _all(prefix, self.grids[prefix]) if there is None else there
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return not prefix or prefix in self.grids


def _all(path: str, grid: ChunkGrid) -> list[Listed]:
    if grid.size > LISTABLE:
        raise ManifestError(
            f"{join(path, '*')}: {grid.size} chunks are too many to list; each can still be read by its key"
        )
    return [Listed(tail, None) for tail in grid.tails()]

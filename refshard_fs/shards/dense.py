"""A group of arrays of which every chunk exists: metadata at hand, chunks where another tells. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.keyspace import place
from refshard_fs.model import Entry, Inline, Listed, Steps

__all__ = ["Chunks", "DenseKeySpace"]

LISTABLE: Final = 1 << 24  # chunks; more are read, but not listed, for the number is only what a header says


class Chunks(Protocol):
    """Where the chunks of one array lie."""

    def entry(self, number: int) -> Steps[Entry]:
        """Return the entry of a chunk. It exists: where it does not, that is an error."""


class DenseKeySpace:
    """The keys of ``documents`` and of the chunks of ``grids``, both by path."""

    def __init__(
        self, documents: Mapping[str, bytes], grids: Mapping[str, ChunkGrid], chunks: Mapping[str, Chunks]
    ) -> None:
        self.grids = grids
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
        yield from ()
        if prefix and prefix not in self.grids:
            return None
        found = [] if prefix else [Listed(path, None, True) for path in self.grids]
        for key, document in self._documents.items():
            directory, _, name = key.rpartition("/")
            if directory == prefix:
                found.append(Listed(name, len(document)))
        grid = self.grids.get(prefix)
        if grid is not None:
            if grid.size > LISTABLE:
                raise ManifestError(f"{join(prefix, '*')}: {grid.size} chunks are too many to list")
            found += [Listed(tail, None) for tail in grid.tails()]
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return not prefix or prefix in self.grids

"""A base class of key spaces that hold all metadata, and read references of chunks in parts, when they are needed.

The parts are the partitions of a parquet set, or the manifests of an Icechunk repository. No I/O here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from refshard_fs.core.columns import ChunkTable, Part
from refshard_fs.core.keys import iterate_splits
from refshard_fs.core.keyspace import KeySpace, list_chunks_below, merge_listings
from refshard_fs.core.model import Listed, Steps
from refshard_fs.security.origins import NOTHING, Origins


class PartedKeySpace(KeySpace):
    """A key space in parts: it lists metadata by ``_documents``, and chunks by reading as few parts as possible."""

    _documents: KeySpace
    _origins: Origins = NOTHING

    @property
    def origins(self) -> Origins:
        return self._origins

    @property
    def strangers(self) -> frozenset[str]:
        return self._origins.servers

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        return self._documents.metadata_lacks(marks)

    @abstractmethod
    def parts(self, array: str, start: int, stop: int) -> Steps[list[Part]]:
        """Return the numbers and sizes of the chunks ``[start, stop)`` of an array; parts may have further chunks."""

    @abstractmethod
    def has_chunk(self, array: str, start: int, stop: int) -> Steps[bool]:
        """Return whether an array probably has any of the chunks ``[start, stop)``, with few reads."""

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        stem = prefix + "/" if prefix else ""
        documents = yield from self._documents.children(prefix)
        found: list[Sequence[Listed]] = []
        for array, rest in self.split_path(prefix):
            grid = self.grids[array]
            level = grid.find_directory(rest)
            if level is None or not level.numbers:
                continue
            start, stop = level.numbers.start, level.numbers.stop
            if len(level.numbers) == 1 and not level.is_leaf:
                if (yield from self.has_chunk(array, start, stop)):
                    found.append([Listed(level.name_child(start), None, True)])
            else:
                parts = yield from self.parts(array, start, stop)
                found.append(list_chunks_below(ChunkTable.from_parts(grid, parts), rest, stem))
        listed = merge_listings(*found, documents or ())
        return None if documents is None and not listed else listed

    def split_path(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (array, rest) for each array in which the directory ``prefix`` may lie."""
        return (at for at in ((prefix, ""), *iterate_splits(prefix)) if at[0] in self.grids)

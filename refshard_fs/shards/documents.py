"""Metadata as the unsharded view shows it: sharded arrays as arrays of their inner chunks. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs.documents import Shown, grid_of
from refshard_fs.keys import ChunkGrid
from refshard_fs.shards.layout import ShardLayout, shard_formats

__all__ = ["Seen", "Unshard"]


class Seen(NamedTuple):
    """What is known of one array: its grid as shown, its shards if inner chunks are, and what is in the way.

    ``stored`` is the metadata of an array whose inner chunks are shown, as the source has it.
    """

    grid: ChunkGrid | None
    layout: ShardLayout | None = None
    reason: str | None = None
    stored: Mapping[str, Any] | None = None


class Unshard(msgspec.Struct, frozen=True, cache_hash=True):
    """Shows sharded arrays, but for ``whole``, as arrays of inner chunks; ``options``: the user's ``shard_options``."""

    options: tuple[tuple[str, Any], ...] = ()
    whole: frozenset[str] = frozenset()

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[Seen]]:
        fitting = [known for known in shard_formats() if any(mark in data for mark in known.marks)]
        options = dict(self.options)

        def rewrite(doc: Mapping[str, Any], path: str) -> Shown[Seen]:
            if doc.get("node_type") == "group":
                return doc, None
            for known in () if path in self.whole else fitting:
                try:
                    found = known.unshard(doc, options)
                except ValueError as e:
                    return doc, Seen(grid_of(doc), None, str(e))
                if found is not None:
                    grid = grid_of(doc) if found.layout is None else found.layout.grid
                    return found.document, Seen(grid, found.layout, found.reason, doc if found.layout else None)
            return doc, Seen(grid_of(doc))

        return rewrite

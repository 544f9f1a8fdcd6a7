"""What writes to the keys of the view mean for the objects beneath it: documents as they are stored, chunks by shard.

No I/O here: what has to be read for it is yielded as a need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.documents import DocumentIndex, Shown
from refshard_fs.keys import parent
from refshard_fs.model import Steps
from refshard_fs.rounds import together
from refshard_fs.shards.documents import Seen, Unshard
from refshard_fs.shards.layout import ShardLayout
from refshard_fs.shards.resharding import resharded
from refshard_fs.shards.view import ShardView

__all__ = ["Restored", "inside", "restored", "sharded_by"]


class Restored(NamedTuple):
    """A metadata document as it is to be stored, and the arrays it tells of: their layouts, None for ordinary ones."""

    data: bytes
    layouts: Mapping[str, ShardLayout | None]


def restored(view: ShardView, key: str, data: bytes) -> Steps[Restored]:
    """Return the document ``key``, written as ``data`` for the keys of ``view``, as its base is to have it.

    Raises ManifestError where the shards of an array cannot hold it as it is written.
    """
    path, name = parent(key)
    there = DocumentIndex(path, name, -1, _Noting()).decode(data).arrays
    paths = list(there)
    found = yield from together([view.seen(array) for array in paths])
    stored = {p: seen.stored for p, seen in zip(paths, found, strict=True) if seen is not None and seen.stored}
    rewriting = _Resharding(stored, view.options)
    document = DocumentIndex(path, name, -1, rewriting).decode(data)
    return Restored(document.data, {array: seen.layout for array, seen in document.arrays.items()})


def inside(layout: ShardLayout, shard: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many chunks along each dimension of ``shard`` are of the array; the rest of an edge shard is not."""
    cuts = zip(layout.cuts, shard, layout.grid.counts, strict=True)
    return tuple(max(min(c.chunks(number).stop, count) - c.chunks(number).start, 0) for c, number, count in cuts)


def sharded_by(documents: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    """Return the paths of the arrays that ``documents`` (key and bytes), as they are written, shard by themselves."""
    found: set[str] = set()
    for key, data in documents:
        path, name = parent(key)
        if name in ("zarr.json", ".zarray"):
            arrays = DocumentIndex(path, name, -1, Unshard()).decode(data).arrays
            found |= {array for array, seen in arrays.items() if seen.layout is not None}
    return frozenset(found)


class _Noting(msgspec.Struct, frozen=True):
    """Changes nothing, and notes every array."""

    def over(self, data: bytes) -> Any:
        def rewrite(doc: Mapping[str, Any], path: str) -> Shown[Seen]:
            return doc, None if doc.get("node_type") == "group" else Seen(None)

        return rewrite


class _Resharding(msgspec.Struct, frozen=True):
    """Gives arrays the shards back that they have in ``stored``."""

    stored: Mapping[str, Mapping[str, Any]]
    options: tuple[tuple[str, Any], ...]

    def over(self, data: bytes) -> Any:
        options = dict(self.options)

        def rewrite(doc: Mapping[str, Any], path: str) -> Shown[Seen]:
            if doc.get("node_type") == "group":
                return doc, None
            there = self.stored.get(path)
            merged = None if there is None else resharded(there, doc, options)
            if merged is None:
                return doc, Seen(None)
            layout = Unshard(self.options).over(zarrmeta.dumps(merged))(merged, path)[1]
            return merged, Seen(None, None if layout is None else layout.layout)

        return rewrite

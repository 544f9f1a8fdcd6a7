"""Metadata documents as the unsharded view shows them: sharded arrays as arrays of their inner chunks. No I/O here.

Documents in which nothing is sharded stay as they are, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.shards.layout import ShardFormat, ShardLayout, shard_formats

__all__ = ["NAMES", "Document", "DocumentIndex", "Seen"]

NAMES = ("zarr.json", ".zarray", ".zmetadata")


class Seen(NamedTuple):
    """What is known of one array: its grid as shown, its shards if inner chunks are, and what is in the way."""

    grid: ChunkGrid | None
    layout: ShardLayout | None = None
    reason: str | None = None


class Document:
    """A metadata document as it is shown, and the arrays that it describes, by path."""

    __slots__ = ("arrays", "data")

    def __init__(self, data: bytes, arrays: Mapping[str, Seen]) -> None:
        self.data = data
        self.arrays = arrays

    @property
    def nbytes(self) -> int:
        return len(self.data) + 512 * len(self.arrays)


class DocumentIndex(msgspec.Struct, frozen=True, cache_hash=True):
    """How the metadata document ``name`` of the node at ``path`` is read and rewritten, for one view and no other."""

    path: str
    name: str
    view: int
    options: tuple[tuple[str, Any], ...] = ()

    def decode(self, data: bytes) -> Document:
        try:
            doc = zarrmeta.loads(data)
        except ValueError:
            return Document(data, {})  # whoever reads it sees the bytes as they are
        if not isinstance(doc, dict):
            return Document(data, {})
        fitting = [known for known in shard_formats() if any(mark in data for mark in known.marks)]
        reader = _Reader(fitting, dict(self.options))
        shown = reader.consolidated(doc, self.path) if self.name == ".zmetadata" else reader.node(doc, self.path)
        return Document(data if shown is doc else zarrmeta.dumps(shown), reader.arrays)


class _Reader:
    """Rewrites one document, and collects the arrays in it; a part that does not change is returned as it is."""

    def __init__(self, formats: list[ShardFormat], options: Mapping[str, Any]) -> None:
        self.arrays: dict[str, Seen] = {}
        self._formats = formats
        self._options = options

    def node(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        match doc:
            case {"consolidated_metadata": {"metadata": dict(members)} as inline, "node_type": "group"}:
                shown = {k: self._member(v, join(path, k)) for k, v in members.items()}
                if all(shown[k] is members[k] for k in members):
                    return doc
                return {**doc, "consolidated_metadata": {**inline, "metadata": shown}}
            case {"zarr_format": 2, "shape": _} | {"node_type": "array"}:
                return self._array(doc, path)
        return doc

    def consolidated(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        match doc:
            case {"metadata": dict(members)}:
                shown = dict(members)
                for key, member in members.items():
                    parent, _, name = key.rpartition("/")
                    if name in (".zarray", "zarr.json"):
                        shown[key] = self._member(member, join(path, parent))
                if any(shown[k] is not members[k] for k in members):
                    return {**doc, "metadata": shown}
        return doc

    def _member(self, value: Any, path: str) -> Any:
        return self.node(value, path) if isinstance(value, dict) else value

    def _array(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        for known in self._formats:
            try:
                found = known.unshard(doc, self._options)
            except ValueError as e:
                self.arrays[path] = Seen(_grid(doc), None, str(e))
                return doc
            if found is not None:
                grid = _grid(doc) if found.layout is None else found.layout.grid
                self.arrays[path] = Seen(grid, found.layout, found.reason)
                return found.document
        self.arrays[path] = Seen(_grid(doc))
        return doc


def _grid(doc: Mapping[str, Any]) -> ChunkGrid | None:
    try:
        meta = zarrmeta.array_meta(doc, "its metadata")
    except ManifestError:
        return None
    return None if meta is None else meta.grid

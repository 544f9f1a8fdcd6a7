"""A group of arrays that zarr did not write: their metadata at hand, their chunks where another tells. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join
from refshard_fs.core.keyspace import KeySpace, place
from refshard_fs.core.model import Entry, Inline, Listed, Steps
from refshard_fs.errors import ManifestError

__all__ = ["ArrayGroup", "Chunks", "Described", "ENCODINGS", "array_document", "configured", "documents"]

LISTABLE: Final = 1 << 24  # chunks; more are read, but not listed, for the number is only what a header says


class Chunks(Protocol):
    """Where the chunks of one array lie."""

    def entry(self, number: int) -> Steps[Entry | None]:
        """Return the entry of a chunk; None if there is no such chunk."""

    def listed(self) -> Steps[list[Listed] | None]:
        """Return the chunks there are, by their keys below the array; None if they are all of the grid."""


class ArrayGroup(KeySpace):
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

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        return True  # zarr did not write it: there are no shards and no chunk manifests in it

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


# ----------------------------------------------------------------------------------------------------
# The metadata documents of a group of arrays that zarr did not write, version 2 or 3, consolidated. No I/O here.


# How chunks are keyed, by zarr version: one level of names.
ENCODINGS: Final = {2: ChunkKeyEncoding("v2", "."), 3: ChunkKeyEncoding("default", ".")}


class Described(Protocol):
    """An array that can tell what zarr's metadata has to say of it."""

    def metadata(self, zarr_format: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of the array's metadata documents."""


def configured(name: str, **configuration: Any) -> dict[str, Any]:
    """Return a codec, grid or key encoding as zarr v3 spells it."""
    return {"name": name, "configuration": configuration}


def array_document(
    shape: Sequence[int], chunks: Sequence[int], dimensions: Sequence[str], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an array's zarr v3 metadata, but for its data type, fill value and codecs."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "chunk_grid": configured("regular", chunk_shape=chunks),
        "chunk_key_encoding": configured("default", separator=ENCODINGS[3].separator),
        "attributes": attributes,
        "dimension_names": dimensions,
    }


def documents(arrays: Mapping[str, Described], attributes: Mapping[str, Any], zarr_format: int) -> dict[str, bytes]:
    """Return all metadata of a group with ``arrays`` and ``attributes``, by key; consolidated in the root's."""
    members = {
        (path if zarr_format == 3 else join(path, name)): document
        for path, array in arrays.items()
        for name, document in array.metadata(zarr_format)
    }
    if zarr_format == 3:
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        root = {"zarr_format": 3, "node_type": "group", "attributes": attributes, "consolidated_metadata": consolidated}
        whole: dict[str, Any] = {"zarr.json": root, **{join(path, "zarr.json"): d for path, d in members.items()}}
    else:
        members = {".zgroup": {"zarr_format": 2}, ".zattrs": dict(attributes), **members}
        whole = {**members, ".zmetadata": {"zarr_consolidated_format": 1, "metadata": members}}
    return {key: zarrmeta.dumps(document) for key, document in whole.items()}

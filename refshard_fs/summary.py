"""What a filesystem of zarr keys holds: its groups and arrays, and how many of their chunks exist.

Metadata is read, data is not: one listing and one read of all metadata documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from fsspec.spec import AbstractFileSystem

from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, ChunkKeyEncoding, parent

__all__ = ["ArraySummary", "Summary", "summarise"]

_ARRAY, _GROUP, _NODE = ".zarray", ".zgroup", "zarr.json"
_METADATA = frozenset({_ARRAY, _GROUP, _NODE, ".zattrs", ".zmetadata"})


class ArraySummary(msgspec.Struct, frozen=True):
    """One array: ``chunks`` is the shape of a chunk, and sizes are those of the stored bytes.

    ``possible`` is None where chunks are of unequal shapes. Keys below the array that are
    no chunk of its grid are ``stray``: readers never ask for them.
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    dtype: str
    present: int
    possible: int | None
    stray: int
    bytes: int


class Summary(msgspec.Struct, frozen=True):
    """All of a source; ``bytes`` leaves out the ``unsized`` keys, whose size only their target knows.

    ``left_whole`` are arrays whose shards could not be opened, and why.
    """

    keys: int
    bytes: int
    unsized: int
    groups: tuple[str, ...]
    arrays: tuple[ArraySummary, ...]
    left_whole: dict[str, str] = {}


def summarise(fs: AbstractFileSystem) -> Summary:
    """Return what ``fs`` holds.

    Raises ManifestError where a metadata document is no JSON object.
    """
    sizes: dict[str, int | None] = {key: info["size"] for key, info in fs.find("", detail=True).items()}
    nodes = [key for key in sizes if parent(key)[1] in (_ARRAY, _GROUP, _NODE)]
    documents = {key: _document(key, text) for key, text in (fs.cat(nodes) if nodes else {}).items()}
    arrays: dict[str, _Tally] = {}
    groups = []
    for key, document in documents.items():
        name, kind = parent(key)
        if kind == _ARRAY or document.get("node_type") == "array":
            arrays[name] = _tally(key, document)
        else:
            groups.append(name)
    for key, size in sizes.items():
        name, last = parent(key)
        if last in _METADATA:
            continue
        while name and name not in arrays:
            name, _ = parent(name)
        if name in arrays:
            arrays[name].add(key[len(name) :].lstrip("/"), size)
    return Summary(
        keys=len(sizes),
        bytes=sum(size for size in sizes.values() if size is not None),
        unsized=sum(size is None for size in sizes.values()),
        groups=tuple(sorted(groups)),
        arrays=tuple(arrays[name].summary(name) for name in sorted(arrays)),
        left_whole=getattr(fs, "left_whole", {}),
    )


class _Tally:
    """Chunks of one array, counted as their keys come by."""

    def __init__(
        self, shape: tuple[int, ...], chunks: tuple[int, ...] | None, dtype: str, encoding: ChunkKeyEncoding
    ) -> None:
        self._shape, self._chunks, self._dtype = shape, chunks, dtype
        self._grid = None if chunks is None else ChunkGrid.regular(shape, chunks, encoding)
        self._present = self._stray = self._bytes = 0

    def add(self, tail: str, size: int | None) -> None:
        if self._grid is not None and self._grid.number(tail) is None:
            self._stray += 1
            return
        self._present += 1
        self._bytes += size or 0

    def summary(self, name: str) -> ArraySummary:
        possible = None if self._grid is None else self._grid.size
        return ArraySummary(
            name, self._shape, self._chunks, self._dtype, self._present, possible, self._stray, self._bytes
        )


def _document(key: str, text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as e:
        raise ManifestError(f"{key!r} is not JSON: {e}") from e
    if not isinstance(document, dict):
        raise ManifestError(f"{key!r} is no JSON object, but {type(document).__name__}")
    return document


def _tally(key: str, document: Mapping[str, Any]) -> _Tally:
    match document:
        case {"shape": [*shape], "chunks": [*chunks], "dtype": dtype}:
            encoding = ChunkKeyEncoding("v2", document.get("dimension_separator") or ".")
        case {"shape": [*shape], "chunk_grid": {"configuration": {"chunk_shape": [*chunks]}}, "data_type": dtype}:
            encoding = _encoding(document)
        case {"shape": [*shape], "chunk_grid": _, "data_type": dtype}:
            return _Tally(tuple(shape), None, _dtype(dtype), _encoding(document))
        case _:
            raise ManifestError(f"{key!r} lacks an array's shape, chunks or data type")
    return _Tally(tuple(shape), tuple(chunks), _dtype(dtype), encoding)


def _encoding(document: Mapping[str, Any]) -> ChunkKeyEncoding:
    match document.get("chunk_key_encoding"):
        case {"name": "v2", "configuration": {"separator": str(separator)}}:
            return ChunkKeyEncoding("v2", separator)
        case {"name": "v2"}:
            return ChunkKeyEncoding("v2", ".")
        case {"configuration": {"separator": str(separator)}}:
            return ChunkKeyEncoding("default", separator)
    return ChunkKeyEncoding("default", "/")


def _dtype(value: Any) -> str:
    match value:
        case str():
            return value
        case {"name": str(name)}:
            return name
    return json.dumps(value)

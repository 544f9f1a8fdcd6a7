"""The metadata of a source, checked; and chunks decoded on trial by zarr's own codecs, as readers would."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, MutableMapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, parent
from refshard_fs.core.zarrmeta import ArrayMeta, check_blosc, is_blosc, undecodable, unsafe
from refshard_fs.errors import ManifestError
from refshard_fs.tools.findings import Findings

__all__ = ["Trial", "check_documents", "has_zarr"]


def check_documents(texts: Mapping[str, bytes], found: Findings) -> None:
    """Check each metadata document by itself, and consolidated metadata against the documents that they tell of."""
    documents: dict[str, Mapping[str, Any]] = {}
    for name, text in texts.items():
        try:
            documents[name] = zarrmeta.object_in(text, repr(name))
            _check(name, documents[name], found)
        except ManifestError as e:
            found.add_error(name, e, "metadata")
    for name, document in documents.items():
        if parent(name)[1] in (".zmetadata", "zarr.json"):
            try:
                _compare(name, document, documents, found)
            except ManifestError as e:
                found.add_error(name, e, "metadata")


def _check(name: str, document: Mapping[str, Any], found: Findings) -> None:
    path, kind = parent(name)
    if kind in (".zattrs", ".zmetadata"):
        return
    version = 3 if kind == "zarr.json" else 2
    if document.get("zarr_format") != version:
        raise ManifestError(f"{name!r} has zarr_format {document.get('zarr_format')!r}, where it is {version}")
    meta = zarrmeta.array_meta(document, repr(name))
    if meta is not None and kind != ".zgroup":
        problem = undecodable(meta, path)
        if problem is not None:
            found.add("error", "metadata", name, text=problem)
    elif kind == ".zarray" or (version == 3 and document.get("node_type") != "group"):
        raise ManifestError(f"{name!r} describes neither an array nor a group")


def _compare(name: str, document: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], found: Findings) -> None:
    directory, kind = parent(name)
    for path, member in zarrmeta.consolidated_arrays(document, repr(name)):
        key = join(join(directory, path), ".zarray" if kind == ".zmetadata" else kind)
        if key not in others:
            found.add("warning", "consolidated", key, text=f"{name!r} has it, and the source does not")
        elif _meaning(member, key) != _meaning(others[key], key):
            found.add("warning", "consolidated", key, text=f"{name!r} has it, and says something else")


def _meaning(document: Mapping[str, Any], where: str) -> object:
    """Return what decides how an array is read: its document may be spelled in several ways."""
    meta = zarrmeta.array_meta(document, repr(where))
    if meta is None:
        return None
    rest = [document.get(field) for field in ("fill_value", "codecs", "compressor", "filters")]
    return meta.shape, meta.chunks, meta.grid, meta.dtype, meta.order, json.dumps(rest, sort_keys=True)


def has_zarr() -> bool:
    """Whether zarr is installed."""
    try:
        importlib.import_module("zarr")
    except ImportError:
        return False
    return True


class Trial:
    """An array without chunks, into which one stored chunk after the other is put, to be decoded. Not thread-safe.

    Raises ValueError where the array's chunks cannot be tried: no zarr here reads it, they differ in shape, or decoding
    them may do harm.
    """

    def __init__(self, meta: ArrayMeta) -> None:
        harm = unsafe(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("its chunks are of no one known shape")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no zarr reads the shards of the version 2 prototype")
        self._chunks, self._grid, self._shape = meta.chunks, meta.grid, meta.shape
        self._is_blosc = is_blosc(meta)
        zarr = importlib.import_module("zarr")
        self._is_zarr_2 = zarr.__version__.startswith("2.")
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._store: MutableMapping[str, Any] = {name: self._stored(zarrmeta.dumps(dict(meta.raw)))}
        try:
            store = self._store if self._is_zarr_2 else zarr.storage.MemoryStore(self._store)
            self._array = zarr.open_array(store, mode="r")
        except Exception as e:  # whatever codecs and extensions raise: it is the answer
            raise ValueError(f"zarr {zarr.__version__} does not open it: {type(e).__name__}: {e}") from e

    def decode(self, tail: str, data: bytes) -> None:
        """Decode the chunk keyed ``tail``; ValueError, saying why, where that fails."""
        number = self._grid.number(tail)
        if number is None:
            return
        starts = [c * size for c, size in zip(self._grid.coords(number), self._chunks, strict=True)]
        ends = [min(s + size, n) for s, size, n in zip(starts, self._chunks, self._shape, strict=True)]
        if self._is_blosc:
            check_blosc(data)
        self._store[tail] = self._stored(data)
        try:
            self._array[tuple(map(slice, starts, ends))]
        except Exception as e:  # as above
            raise ValueError(f"{type(e).__name__}: {e}") from e
        finally:
            del self._store[tail]

    def _stored(self, data: bytes) -> Any:
        if self._is_zarr_2:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)

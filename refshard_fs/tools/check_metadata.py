"""The metadata of a source, checked: each document by itself, and against what is consolidated."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, MutableMapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, parent
from refshard_fs.core.zarrmeta import ArrayMeta, check_blosc, is_blosc, undecodable, unsafe
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.tools.findings import Findings

__all__ = ["Metadata", "Trial", "zarr_version"]


class Metadata:
    """The documents of a source, and the ``arrays`` that they describe, by path; what is wrong goes to ``found``."""

    def __init__(self, found: Findings) -> None:
        self.arrays: dict[str, ArrayMeta] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._found = found

    def array_of(self, name: str) -> str:
        """Return the path of the array that the key ``name`` lies below; that of the root, if none."""
        path = parent(name)[0]
        while path and path not in self.arrays:
            path = parent(path)[0]
        return path

    def add(self, name: str, data: bytes | Exception) -> None:
        """Check the document ``name``, which has ``data``, or whose reading failed."""
        try:
            if isinstance(data, Exception):
                raise data
            document = self._documents[name] = zarrmeta.object_in(data, repr(name))
            self._check(name, document)
        except (RefShardError, OSError) as e:
            self._found.add_error(name, e, "metadata")

    def compare(self) -> None:
        """Compare what is consolidated with the documents that it tells of."""
        for name, document in self._documents.items():
            if parent(name)[1] in (".zmetadata", "zarr.json"):
                self._compare(name, document)

    def _check(self, name: str, document: Mapping[str, Any]) -> None:
        path, kind = parent(name)
        if kind in (".zattrs", ".zmetadata"):
            return
        version = 3 if kind == "zarr.json" else 2
        if document.get("zarr_format") != version:
            raise ManifestError(f"{name!r} has zarr_format {document.get('zarr_format')!r}, where it is {version}")
        meta = zarrmeta.array_meta(document, repr(name))
        if meta is not None and kind != ".zgroup":
            self.arrays[path] = meta
            problem = undecodable(meta, path)
            if problem is not None:
                self._found.add("error", "metadata", name, text=problem)
        elif kind == ".zarray" or (version == 3 and document.get("node_type") != "group"):
            raise ManifestError(f"{name!r} describes neither an array nor a group")

    def _compare(self, name: str, document: Mapping[str, Any]) -> None:
        directory, kind = parent(name)
        try:
            for path, member in zarrmeta.consolidated_arrays(document, repr(name)):
                key = join(join(directory, path), ".zarray" if kind == ".zmetadata" else kind)
                if key not in self._documents:
                    self._found.add("warning", "consolidated", key, text=f"{name!r} has it, and the source does not")
                elif _meaning(member, key) != _meaning(self._documents[key], key):
                    self._found.add("warning", "consolidated", key, text=f"{name!r} has it, and says something else")
        except ManifestError as e:
            self._found.add_error(name, e, "metadata")


def _meaning(document: Mapping[str, Any], where: str) -> object:
    """Return what decides how an array is read: its document may be spelled in several ways."""
    meta = zarrmeta.array_meta(document, repr(where))
    if meta is None:
        return None
    rest = [document.get(field) for field in ("fill_value", "codecs", "compressor", "filters")]
    return meta.shape, meta.chunks, meta.grid, meta.dtype, meta.order, json.dumps(rest, sort_keys=True)


# ----------------------------------------------------------------------------------------------------
# Decode stored chunks on trial, by zarr's own codecs: what fails here would fail for every reader.


def zarr_version() -> int | None:
    """Return the major version of the zarr that is installed, if any."""
    try:
        return int(importlib.import_module("zarr").__version__.split(".")[0])
    except ImportError:
        return None


class Trial:
    """One array without chunks, into which one after the other is put and read. Not thread-safe.

    Raises ValueError where the array's chunks cannot be tried: no zarr here reads it, they differ in shape, or decoding
    them may do harm.
    """

    def __init__(self, meta: ArrayMeta, version: int) -> None:
        harm = unsafe(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("its chunks are of no one known shape")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no zarr reads the shards of the version 2 prototype")
        self._chunks: tuple[int, ...] = meta.chunks
        self._grid, self._shape = meta.grid, meta.shape
        self._held: MutableMapping[str, Any] = {}
        self._version = version
        self._is_blosc = is_blosc(meta)
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._held[name] = self._packed(zarrmeta.dumps(dict(meta.raw)))
        zarr = importlib.import_module("zarr")
        try:
            store = self._held if version < 3 else zarr.storage.MemoryStore(self._held)
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
        self._held[tail] = self._packed(data)
        try:
            self._array[tuple(map(slice, starts, ends))]
        except Exception as e:  # as above
            raise ValueError(f"{type(e).__name__}: {e}") from e
        finally:
            del self._held[tail]

    def _packed(self, data: bytes) -> Any:
        if self._version < 3:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)

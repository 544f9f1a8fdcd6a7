"""The metadata of a source, checked: each document by itself, and against what is consolidated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from refshard_fs import zarrmeta
from refshard_fs.checking.findings import Findings
from refshard_fs.encodings import undecodable
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.keys import join, parent
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["Metadata"]


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

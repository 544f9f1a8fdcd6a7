"""A group of arrays that zarr did not write: formats describe them and say where their chunks lie. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join
from refshard_fs.core.keyspace import KeySpace, place
from refshard_fs.core.model import Entry, Inline, Listed, Steps
from refshard_fs.core.version_3 import version_3
from refshard_fs.errors import ManifestError

LISTABLE: Final = 1 << 24  # chunks; more are read, but not listed, for the number is only what a header says
# How chunks are keyed, by zarr version: one level of names.
ENCODINGS: Final = {2: ChunkKeyEncoding("v2", "."), 3: ChunkKeyEncoding("default", ".")}
_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # where xarray looks for names in version 2


class ArrayDescription(msgspec.Struct, frozen=True):
    """What zarr's metadata is to say of an array; ``where`` begins errors, ``order`` is that within a chunk.

    ``compressor`` and ``fill_value`` are as version 2 spells them. Version 3 must have a fill value: without one, it is
    zero, and xarray masks nothing by it.
    """

    where: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    compressor: Mapping[str, Any] | None
    dimensions: Sequence[str]
    attributes: Mapping[str, Any]
    fill_value: Any = None

    def grid(self, zarr_format: int) -> ChunkGrid:
        """Return the chunks and their keys."""
        return ChunkGrid.regular(self.shape, self.chunks, ENCODINGS[zarr_format])

    def metadata(self, zarr_format: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of the metadata documents."""
        attributes = {**self.attributes, _DIMENSIONS: self._dimensions()}
        document = {
            "zarr_format": 2,
            "shape": self.shape,
            "chunks": self.chunks,
            "dtype": self.dtype.str if self.dtype.names is None else self.dtype.descr,
            "compressor": self.compressor,
            "fill_value": self.fill_value,
            "order": self.order,
            "filters": None,
            "dimension_separator": ENCODINGS[2].separator,
        }
        if zarr_format == 3:
            yield "zarr.json", version_3(document, self.dtype, ENCODINGS[3], attributes, self.where)
            return
        if self.compressor is not None:  # of which version 2 says less
            document["compressor"] = {name: value for name, value in self.compressor.items() if name != "typesize"}
        yield ".zarray", document
        yield ".zattrs", attributes

    def _dimensions(self) -> list[str]:
        """Return the dimensions' names: those that the attributes give, if they name each one."""
        match self.attributes.get(_DIMENSIONS):
            case [*names] if len(set(map(str, names))) == len(self.shape) and all(type(n) is str for n in names):
                return names
        return list(self.dimensions)


class Chunks:
    """Where the chunks of one array lie."""

    def entry(self, number: int) -> Steps[Entry | None]:
        """Return the entry of a chunk; None if there is no such chunk."""
        raise NotImplementedError

    def listed(self) -> Steps[list[Listed] | None]:
        """Return the chunks there are, by their keys below the array; None if they are all of the grid."""
        yield from ()
        return None


class ArrayGroup(KeySpace):
    """The keys of ``arrays`` and of their ``chunks``, both by path, as zarr of version ``zarr_format`` has them.

    ``reports`` tells which arrays are not shown, and why; ``others`` are documents besides zarr's metadata.
    """

    def __init__(
        self,
        arrays: Mapping[str, ArrayDescription],
        chunks: Mapping[str, Chunks],
        zarr_format: int,
        attributes: Mapping[str, Any],
        reports: Mapping[str, str] | None = None,
        others: Mapping[str, bytes] | None = None,
    ) -> None:
        self.grids = {path: array.grid(zarr_format) for path, array in arrays.items()}
        self.reports = dict(reports or {})
        self._documents = {**(others or {}), **_documents(arrays, attributes, zarr_format)}
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
        stem = prefix + "/" if prefix else ""
        found = [] if prefix else [Listed(path, None, True) for path in self.grids]
        for key, document in self._documents.items():
            if key.rpartition("/")[0] == prefix:
                found.append(Listed(key[len(stem) :], len(document)))
        if prefix:
            found += yield from self._listed(prefix)
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return not prefix or prefix in self.grids

    def _listed(self, path: str) -> Steps[list[Listed]]:
        found = yield from self._chunks[path].listed()
        if found is not None:
            return found
        grid = self.grids[path]
        if grid.size > LISTABLE:
            raise ManifestError(
                f"{join(path, '*')}: {grid.size} chunks are too many to list; each can still be read by its key"
            )
        return [Listed(tail, None) for tail in grid.tails()]


def _documents(
    arrays: Mapping[str, ArrayDescription], attributes: Mapping[str, Any], zarr_format: int
) -> dict[str, bytes]:
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

"""The metadata documents of a group of arrays that zarr did not write, version 2 or 3, consolidated. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from refshard_fs import zarrmeta
from refshard_fs.keys import ChunkKeyEncoding, join

__all__ = ["ENCODINGS", "Described", "array_document", "configured", "documents"]

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

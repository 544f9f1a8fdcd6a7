"""Recognise reference sets in directories of Parquet files, in kerchunk's layout, by the content of ``.zmetadata``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT", "PARQUET", "get_extension"]

PARQUET = ".zmetadata"  # the name of the set's document; in a zarr hierarchy it has consolidated metadata


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(PARQUET)
    if document is None or b'"record_size"' not in document.data:
        return False
    try:
        content = zarrmeta.loads(document.data)
    except ValueError:
        return True  # the document is damaged: opening the set raises an error that says so
    return isinstance(content, dict) and ("record_size" in content or "record_size" in get_extension(content))


def get_extension(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object "refshard" of a ``.zmetadata``, which only this package reads; empty if absent or damaged."""
    extension = document.get("refshard")
    return extension if isinstance(extension, dict) else {}


FORMAT = Format(
    "kerchunk-parquet",
    _recognises,
    "refshard_fs.formats.kerchunk_parquet.source",
    markers=(PARQUET,),
    documents=(PARQUET,),
)

"""Reference sets as directories of Parquet files, in kerchunk's layout. Recognised by the content of ``.zmetadata``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT", "PARQUET", "own_members"]

PARQUET = ".zmetadata"  # the document of a set; in a zarr hierarchy it has other content


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(PARQUET)
    if document is None or b'"record_size"' not in document.data:
        return False
    try:
        spelled = zarrmeta.loads(document.data)
    except ValueError:
        return True  # damaged: opening it raises the error
    return isinstance(spelled, dict) and any("record_size" in members for members in (spelled, own_members(spelled)))


def own_members(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the members of a ``.zmetadata`` that only this package reads; none if they are damaged."""
    found = document.get("refshard")
    return found if isinstance(found, dict) else {}


FORMAT = Format(
    "kerchunk-parquet",
    _recognises,
    "refshard_fs.formats.kerchunk_parquet.source",
    markers=(PARQUET,),
    documents=(PARQUET,),
)

"""Reference sets as directories of Parquet files, as kerchunk writes them. Told by a ``.zmetadata`` of its own kind."""

from __future__ import annotations

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT", "PARQUET"]

PARQUET = ".zmetadata"  # the document of a set; a hierarchy may have one of another kind


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(PARQUET)
    if document is None or b'"record_size"' not in document.data:
        return False
    try:
        spelled = zarrmeta.loads(document.data)
    except ValueError:
        return True  # damaged: opening it says so
    return isinstance(spelled, dict) and "record_size" in spelled


FORMAT = Format(
    "kerchunk-parquet",
    _recognises,
    "refshard_fs.formats.kerchunk_parquet.source",
    markers=(PARQUET,),
    documents=(PARQUET,),
)

"""Reference sets as directories of Parquet files, in kerchunk's layout. Recognised by the content of ``.zmetadata``."""

from __future__ import annotations

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, Probe

__all__ = ["FORMAT", "PARQUET"]

PARQUET = ".zmetadata"  # the document of a set; in a zarr hierarchy it has other content


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(PARQUET)
    if document is None or b'"record_size"' not in document.data:
        return False
    try:
        spelled = zarrmeta.loads(document.data)
    except ValueError:
        return True  # damaged: opening it raises the error
    return isinstance(spelled, dict) and "record_size" in spelled


FORMAT = Format(
    "kerchunk-parquet",
    _recognises,
    "refshard_fs.formats.kerchunk_parquet.source",
    markers=(PARQUET,),
    documents=(PARQUET,),
)

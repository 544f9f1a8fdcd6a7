"""What tells reference sets, key maps and hierarchies from other sources. No I/O here.

What opens a source is imported when there is one to open: see `formats.reader`.
"""

from __future__ import annotations

from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, Probe, by_head, reader
from refshard_fs.formats.chunk_manifest import entries
from refshard_fs.formats.kerchunk_json.decompress import is_compressed
from refshard_fs.formats.virtual_concat.document import is_concat
from refshard_fs.formats.zarr_hierarchy import commit_record

__all__ = ["FORMATS", "HIERARCHY", "PARQUET"]

HIERARCHY: Final = ("zarr.json", ".zgroup", ".zarray")  # the documents that tell a node
PARQUET: Final = ".zmetadata"  # of a parquet set; a hierarchy may have one of another kind


def _is_hierarchy(probe: Probe) -> bool:
    if probe.is_directory and not probe.names.isdisjoint(HIERARCHY):
        return True
    consolidated = probe.documents.get(PARQUET)
    return consolidated is not None and b'"record_size"' not in consolidated.data


def _is_json(head: bytes) -> bool:
    if is_compressed(head):
        return True
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and not entries.is_map(head) and not is_concat(head)


def _is_parquet(probe: Probe) -> bool:
    document = probe.documents.get(PARQUET)
    if document is None or b'"record_size"' not in document.data:
        return False
    try:
        spelled = zarrmeta.loads(document.data)
    except ValueError:
        return True  # damaged: opening it says so
    return isinstance(spelled, dict) and "record_size" in spelled


FORMATS: Final = (
    Format(
        "zarr-hierarchy",
        _is_hierarchy,
        reader("refshard_fs.formats.zarr_hierarchy.source"),
        markers=(*HIERARCHY, commit_record.NAME),
    ),
    Format("kerchunk-json", by_head(_is_json), reader("refshard_fs.formats.kerchunk_json.source")),
    Format(
        "kerchunk-parquet",
        _is_parquet,
        reader("refshard_fs.formats.kerchunk_parquet.source"),
        markers=(PARQUET,),
        documents=(PARQUET,),
    ),
    Format(entries.NAME, by_head(entries.is_map), reader("refshard_fs.formats.chunk_manifest.prefix_map")),
    Format("refshard-concat", by_head(is_concat), reader("refshard_fs.formats.virtual_concat.keyspace")),
)

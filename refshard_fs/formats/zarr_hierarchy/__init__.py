"""Recognise directories of zarr by their metadata documents. Each object in such a directory is a key."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe
from refshard_fs.core.zarrmeta import CONSOLIDATED, NODE_DOCUMENTS


def _recognises(probe: Probe) -> bool:
    if any(name.rpartition("/")[2] in NODE_DOCUMENTS for name in probe.names):
        return True
    consolidated = probe.documents.get(CONSOLIDATED)
    return consolidated is not None and b'"record_size"' not in consolidated.data  # a parquet set has this member


FORMAT = Format("zarr-hierarchy", _recognises, "refshard_fs.formats.zarr_hierarchy.source", markers=NODE_DOCUMENTS)

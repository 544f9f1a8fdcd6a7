"""Neuroglancer's precomputed volumes, which are groups with an array for each scale. The file ``info`` marks them."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

INFO = "info"


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(INFO)
    return document is not None and b'"scales"' in document.data and b'"data_type"' in document.data


FORMAT = Format(
    "neuroglancer-precomputed",
    _recognises,
    "refshard_fs.formats.neuroglancer.volume",
    markers=(INFO,),
    documents=(INFO,),
)

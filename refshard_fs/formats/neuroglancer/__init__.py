"""Neuroglancer's precomputed volumes: a group with an array for each scale. Recognised by the document ``info``."""

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

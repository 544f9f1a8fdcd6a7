"""N5 hierarchies: groups and datasets, each with a document ``attributes.json``."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

ATTRIBUTES = "attributes.json"


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(ATTRIBUTES)
    if document is None:
        return False
    return b'"n5"' in document.data or (b'"dimensions"' in document.data and b'"blockSize"' in document.data)


FORMAT = Format("n5", _recognises, "refshard_fs.formats.n5.source", markers=(ATTRIBUTES,), documents=(ATTRIBUTES,))

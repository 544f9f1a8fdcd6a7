"""N5 hierarchies: groups and datasets, each with a document ``attributes.json``."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

ATTRIBUTES = "attributes.json"
# Attributes of a root group, and of groups with pyramids below the root: such a group can also be the source.
_GROUP_ATTRIBUTES = (b'"n5"', b'"scales"', b'"downsamplingFactors"', b'"pixelResolution"', b'"multiscales"', b'"axes"')


def _recognises(probe: Probe) -> bool:
    document = probe.documents.get(ATTRIBUTES)
    if document is None:
        return False
    if b'"dimensions"' in document.data and b'"blockSize"' in document.data:
        return True
    return any(name in document.data for name in _GROUP_ATTRIBUTES)


FORMAT = Format("n5", _recognises, "refshard_fs.formats.n5.source", markers=(ATTRIBUTES,), documents=(ATTRIBUTES,))

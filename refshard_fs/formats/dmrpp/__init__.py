"""DMR++ documents: XML with the locations of chunks in an HDF5 or NetCDF-4 file. Recognised by the root element."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe


def _recognises(probe: Probe) -> bool:
    head = probe.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] == b"<" and b"<Dataset" in head and b"/dmrpp/1.0.0#" in head


FORMAT = Format("dmrpp", _recognises, "refshard_fs.formats.dmrpp.source")

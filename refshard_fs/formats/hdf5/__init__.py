"""HDF5 and NetCDF-4 files, opened as they are: the file is its own manifest."""

from __future__ import annotations

import zlib

from refshard_fs.core.format import Format, Probe

SIGNATURE = b"\x89HDF\r\n\x1a\n"
GZIP = b"\x1f\x8b"


def _is_hdf5(probe: Probe) -> bool:
    return signature_at(probe.head) is not None or is_gzip(probe.head)


def signature_at(head: bytes) -> int | None:
    """Return where in ``head`` the superblock begins: at its start, or after a user block of 512 bytes, 1024, ..."""
    at = 0
    while at + len(SIGNATURE) <= len(head):
        if head.startswith(SIGNATURE, at):
            return at
        at = max(2 * at, 512)
    return None


def is_gzip(head: bytes) -> bool:
    """Whether a document is an HDF5 file that was compressed as a whole."""
    if not head.startswith(GZIP):
        return False
    try:
        return zlib.decompressobj(31).decompress(head, len(SIGNATURE)) == SIGNATURE
    except zlib.error:
        return False


FORMAT = Format("hdf5", _is_hdf5, "refshard_fs.formats.hdf5.source")

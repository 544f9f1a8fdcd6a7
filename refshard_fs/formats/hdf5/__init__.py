"""HDF5 and NetCDF-4 files: chunks are read where they lie in the file."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def _is_hdf5(probe: Probe) -> bool:
    return find_signature(probe.head) is not None


def find_signature(head: bytes) -> int | None:
    """Return the position of the superblock in ``head``: 0, or after a user block of 512 bytes, 1024, 2048, ...

    The result is None if there is no signature.
    """
    at = 0
    while at + len(SIGNATURE) <= len(head):
        if head.startswith(SIGNATURE, at):
            return at
        at = max(2 * at, 512)
    return None


FORMAT = Format("hdf5", _is_hdf5, "refshard_fs.formats.hdf5.source")

"""Count the bytes that tests of HDF5 files request from a server."""

from __future__ import annotations

from tests.servers.http import RangeServer
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_messages import file_of

__all__ = ["STEPS", "WRITERS", "bytes_seen", "file_of"]

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
STEPS = 300


def bytes_seen(server: RangeServer) -> int:
    """Return the number of bytes in the requests of a server's log."""
    return sum(request.sent for request in server.requests())

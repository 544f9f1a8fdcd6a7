"""Count the bytes that tests of HDF5 files request from a server."""

from __future__ import annotations

from tests.servers.http import RangeServer
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files

__all__ = ["STEPS", "WRITERS", "count_sent_bytes"]

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
STEPS = 300


def count_sent_bytes(server: RangeServer) -> int:
    """Return the number of bytes that a server has sent."""
    return sum(request.sent for request in server.requests())

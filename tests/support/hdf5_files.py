"""HDF5 files in memory, the writers of all kinds of them, and what a server was asked for."""

from __future__ import annotations

from tests.servers.http import RangeServer
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_messages import file_of

__all__ = ["STEPS", "WRITERS", "bytes_seen", "file_of"]

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
STEPS = 300


def bytes_seen(server: RangeServer) -> int:
    """Return how many bytes a server was asked for."""
    return sum(request.sent for request in server.requests())

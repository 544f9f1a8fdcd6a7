"""HDF5 files in memory, the writers of all kinds of them, and what a server was asked for."""

from __future__ import annotations

from collections.abc import Callable

import h5py

from tests.servers.http import RangeServer
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_messages import in_memory

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
STEPS = 300


def file_of(fill: Callable[[h5py.File], object]) -> bytes:
    with in_memory() as file:
        fill(file)
        file.flush()
        return bytes(file.id.get_file_image())


def bytes_seen(server: RangeServer) -> int:
    """Return how many bytes a server was asked for."""
    return sum(request.sent for request in server.requests())

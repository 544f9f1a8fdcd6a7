"""Take the messages of an object's header out of HDF5 files in memory, as the library writes them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence

import h5py

DATATYPE, PIPELINE = 0x03, 0x0B


def open_in_memory(libver: str = "earliest") -> h5py.File:
    """Return a new file that is never written to disk."""
    return h5py.File(f"{libver}.h5", "w", driver="core", backing_store=False, libver=libver)


def make_file_of_shared_messages(types: Sequence[int], low: str) -> h5py.File:
    """Return a new file in memory with tables of shared messages; each number has the bits of one table's types."""
    library = ctypes.CDLL(h5py.h5p.__file__)  # h5py does not expose these functions
    creation, access = h5py.h5p.create(h5py.h5p.FILE_CREATE), h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    bounds = {"earliest": h5py.h5f.LIBVER_EARLIEST, "latest": h5py.h5f.LIBVER_LATEST}
    access.set_libver_bounds(bounds[low], h5py.h5f.LIBVER_LATEST)
    access.set_fapl_core(1 << 16, False)
    creation.set_obj_track_times(False)
    assert library.H5Pset_shared_mesg_nindexes(ctypes.c_int64(creation.id), ctypes.c_uint(len(types))) == 0
    for number, some in enumerate(types):
        arguments = map(ctypes.c_uint, (number, some, 20))
        assert library.H5Pset_shared_mesg_index(ctypes.c_int64(creation.id), *arguments) == 0
    return h5py.File(h5py.h5f.create(b"shared.h5", h5py.h5f.ACC_TRUNC, creation, access))


def read_messages(dataset: h5py.h5d.DatasetID) -> dict[int, bytes]:
    """Return the bodies of the messages in the first block of a dataset's header, by their type."""
    file = h5py.h5i.get_file_id(dataset)
    h5py.h5f.flush(file)
    data = file.get_file_image()
    at = h5py.h5o.get_info(dataset).addr
    found: dict[int, bytes] = {}
    if data[at : at + 4] != b"OHDR":
        (size,) = struct.unpack_from("<I", data, at + 8)
        at += 16
        end = at + size
        while at < end:
            kind, length = struct.unpack_from("<HH", data, at)
            found.setdefault(kind, data[at + 8 : at + 8 + length])
            at += 8 + length
        return found
    flags = data[at + 5]
    at += 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    end = at + width + int.from_bytes(data[at : at + width], "little")
    at += width
    while at + 4 <= end:
        kind, length = struct.unpack_from("<BH", data, at)
        at += 6 if flags & 4 else 4
        found.setdefault(kind, data[at : at + length])
        at += length
    return found


def make_file(fill: Callable[[h5py.File], object]) -> bytes:
    with open_in_memory() as file:
        fill(file)
        file.flush()
        return bytes(file.id.get_file_image())

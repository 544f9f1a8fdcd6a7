"""HDF5 files: datasets whose values lie in the file, or an error of ours; checksums are not verified here.

They would keep nearly every input out of the structures that they protect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import h5py
import numpy as np

from refshard_fs.errors import RefShardError
from refshard_fs.formats.hdf5 import array_index, heaps, objects, structure
from refshard_fs.formats.hdf5.source import open_
from tests.fuzz.array_files import opened

__all__ = ["IS_TEXT", "WORDS", "configured", "one_input", "seeds"]

IS_TEXT = False
WORDS = (b"OHDR", b"OCHK", b"SNOD", b"TREE", b"HEAP", b"GCOL", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF", b"BTIN",
         b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"SMTB", b"\xff" * 8, b"\0" * 8, b"\x10\0", b"\x08\0",
         b"\x03\0", b"\x0b\0", b"\0\1\0\0")  # fmt: skip
_LARGEST = 1 << 20  # bytes of a chunk that is read
_READ = 4  # chunks of an array


def seeds() -> list[bytes]:
    made = [_file(low, kind) for low in ("earliest", "v110") for kind in ("arrays", "texts", "groups")]
    return [*made, _file("earliest", "arrays", userblock=512)]


def _file(low: str, kind: str, userblock: int = 0) -> bytes:
    options = {"userblock_size": userblock} if userblock else {}
    with h5py.File("seed.h5", "w", driver="core", backing_store=False, libver=(low, "latest"), **options) as file:
        if kind == "arrays":
            values = np.arange(24, dtype="<i4").reshape(4, 6)
            file.create_dataset("a", data=values, chunks=(2, 4), compression="gzip", shuffle=True, fillvalue=3)
            file.create_dataset("b", data=values, chunks=(1, 2), maxshape=(None, 6), fletcher32=True)
            file.create_dataset("c", data=values, chunks=(2, 2), maxshape=(None, None), scaleoffset=0)
            file["d"] = values.astype([("r", "<f8"), ("i", "<f8")])
            file.create_dataset("e", data=values[:, :2], chunks=(4, 2), compression="lzf")
        elif kind == "texts":
            file.create_dataset("a", data=["one", "two", "drei"], dtype=h5py.string_dtype())
            file.create_dataset("b", data=np.array([b"ab", b"c"]), chunks=(1,))
            file["x"] = np.arange(3.0)
            file["x"].make_scale("x")
            file["v"] = np.arange(3)
            file["v"].dims[0].attach_scale(file["x"])
            file["v"].attrs["_FillValue"] = 2
            file["v"].attrs["names"] = ["a", "b"]
            file["v"].attrs.create("enum", 1, dtype=h5py.enum_dtype({"p": 0, "q": 1}, "i1"))
        else:
            for number in range(12):
                file.create_group(f"g{number}").attrs["n"] = number
                file.attrs[f"attribute {number}"] = np.arange(number)
            file["g1/a"] = np.arange(3)
            file["soft"] = h5py.SoftLink("/g1/a")
            file["g2/hard"] = file["g1"]
            file["out"] = h5py.ExternalLink("x.h5", "/a")
        file.flush()
        return bytes(file.id.get_file_image())


@contextlib.contextmanager
def configured() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in (array_index, heaps, objects, structure):
            stack.enter_context(mock.patch.object(module, "verified", lambda data, what: data[:-4]))
        yield


def one_input(data: bytes) -> None:
    found = opened(open_, data)
    if found is None:
        return
    files, keys = found
    for path, grid in keys.grids.items():
        numbers = {0, 1, grid.size // 2, grid.size - 1} if grid.size else set()
        for number in sorted(n for n in numbers if n < grid.size)[:_READ]:
            try:
                entry = files.run(keys.lookup(f"{path}/{grid.tail(number)}"))
            except RefShardError:
                continue
            if entry is not None and (entry.size or 0) <= _LARGEST:
                with contextlib.suppress(ValueError, EOFError):  # which the engine makes errors of the key
                    files.bytes(entry)
        with contextlib.suppress(RefShardError):
            files.run(keys.children(path))

"""Open HDF5 files: values lie in the file, or an error of this package is raised.

Checksums are not verified, because nearly all inputs would fail at a checksum, before the structures are parsed.
"""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Callable, Iterator
from unittest import mock

import h5py
import numpy as np

from refshard_fs.core import array_group
from refshard_fs.errors import RefShardError
from refshard_fs.formats.hdf5 import chunk_index, file, structure, virtual
from refshard_fs.formats.hdf5.source import open_
from tests.fuzz.array_files import open_file
from tests.support.hdf5_messages import make_file_of_shared_messages
from tests.support.virtual_datasets import GROWS, create_virtual, select

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"OHDR", b"OCHK", b"SNOD", b"TREE", b"HEAP", b"GCOL", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF", b"BTIN",
         b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"\xff" * 8, b"\0" * 8, b"\x10\0", b"\x08\0",
         b"\x03\0", b"\x0b\0", b"\0\1\0\0")  # fmt: skip
_LARGEST = 1 << 20  # bytes of a chunk that is read
_READ = 4  # chunks of an array
_VALUES = np.arange(24, dtype="<i4").reshape(4, 6)


def make_seeds() -> list[bytes]:
    """Return small files of 1 to 6 kB with few structures, so that most changes hit a structure."""
    made = [_file(fill, low) for low in ("earliest", "v110") for fill in _FILLS]
    with make_file_of_shared_messages([1 << 1 | 1 << 3 | 1 << 5 | 1 << 11 | 1 << 12], "earliest") as file:
        for name in "ab":
            file.create_dataset(name, data=_VALUES, chunks=(2, 4), compression="gzip", fillvalue=3).attrs["n"] = _VALUES
        file.flush()
        made.append(bytes(file.id.get_file_image()))
    return [*made, _file(_filtered, "earliest", userblock_size=512), zlib.decompress(base64.b85decode(_TIMED))]


def _file(fill: Callable[[h5py.File], object], low: str, **options: int) -> bytes:
    with h5py.File("seed.h5", "w", driver="core", backing_store=False, libver=(low, "latest"), **options) as file:
        fill(file)
        file.flush()
        return bytes(file.id.get_file_image())


def _filtered(file: h5py.File) -> None:
    file.create_dataset("a", data=_VALUES, chunks=(2, 4), compression="gzip", shuffle=True, fillvalue=3)
    file.create_dataset("e", data=_VALUES[:, :2], chunks=(4, 2), compression="lzf", fletcher32=True)


def _growing_in_one_dimension(file: h5py.File) -> None:
    file.create_dataset("b", data=_VALUES, chunks=(1, 2), maxshape=(None, 6), fletcher32=True)


def _growing_in_two_dimensions(file: h5py.File) -> None:
    file.create_dataset("c", data=_VALUES, chunks=(2, 2), maxshape=(None, None), scaleoffset=0)


def _compact_and_contiguous(file: h5py.File) -> None:
    file["d"] = _VALUES.astype([("r", "<f8"), ("i", "<f8")])
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_obj_track_times(False)
    made.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file.id, b"f", h5py.h5t.STD_I16BE, space, made).write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3.0))


def _kinds(file: h5py.File) -> None:
    nested = np.dtype([("x", "<f4"), ("y", [("p", ">i2"), ("q", "S3")]), ("z", "<u2", (2, 2))])
    file.create_dataset("n", (2,), nested)
    file.create_dataset("o", (2,), np.dtype("V5"))
    file.attrs.create("enum", 1, dtype=h5py.enum_dtype({"p": 0, "q": 1}, "i1"))
    file.attrs["reference"] = file["n"].ref
    file.attrs["empty"] = h5py.Empty("f8")


def _elsewhere(file: h5py.File) -> None:
    file["l"] = h5py.ExternalLink("other.h5", "/a")
    file.create_dataset("r", (4, 6), "<i4", external=[("sub/a.bin", 4, 48), ("b.bin", 0, h5py.h5f.UNLIMITED)])
    file.create_dataset("s", (2,), np.dtype([("in", [("t", h5py.string_dtype()), ("n", ">i2")])]))


def _texts(file: h5py.File) -> None:
    file.create_dataset("a", data=["one", "two", "drei"], dtype=h5py.string_dtype())
    file.create_dataset("b", data=np.array([b"ab", b"c"]), chunks=(1,))


def _dimensions(file: h5py.File) -> None:
    file["x"] = np.arange(3.0)
    file["x"].make_scale("x")
    file["v"] = np.arange(3)
    file["v"].dims[0].attach_scale(file["x"])
    file["v"].attrs["_FillValue"] = 2
    file["v"].attrs["names"] = ["a", "b"]


def _many_attributes(file: h5py.File) -> None:
    for number in range(10):
        file.attrs[f"attribute {number}"] = np.arange(number)


def _groups(file: h5py.File) -> None:
    for number in range(9):
        file.create_group(f"g{number}", track_order=bool(number % 2))


def _links(file: h5py.File) -> None:
    file.create_group("g1")["a"] = np.arange(3)
    file["soft"] = h5py.SoftLink("/g1/a")
    file.create_group("g2")["hard"] = file["g1"]
    file["out"] = h5py.ExternalLink("x.h5", "/a")


def _virtual_of_blocks(file: h5py.File) -> None:
    file.create_dataset("a", data=_VALUES, chunks=(2, 4), compression="gzip")
    strides = select((4, 6), (0, 1), (2, 3), (2, 2), (1, 1))
    corner = select((4, 6), (0, 0), (1, 1), (1, 1), (2, 2))
    corner.select_hyperslab((2, 2), (1, 1), (1, 1), (1, 2), op=h5py.h5s.SELECT_OR)
    create_virtual(file, "v", (4, 6), [(strides, ".", "a", corner), (corner, ".", "a", strides)], ">i8")
    create_virtual(file, "w", (6,), [(select((6,), (0,), (1,), (1,), (6,)), ".", "v", strides)], ">i8")


def _virtual_of_chunks(file: h5py.File) -> None:
    file.create_dataset("a", data=_VALUES, chunks=(1, 6), shuffle=True)
    strides, rows = select((8, 6), (0, 0), (4, 1), (2, 1), (1, 6)), select((4, 6), (0, 0), (1, 1), (1, 1), (4, 6))
    create_virtual(file, "v", (8, 6), [(strides, ".", "a", rows)])
    create_virtual(file, "w", (4, 6), [(rows, ".", "v", strides)])


def _virtual_that_grow(file: h5py.File) -> None:
    for name in ("a0", "a1"):
        file.create_dataset(name, data=_VALUES[0], chunks=(3,), maxshape=(None,))
    place, block = select((6,), (0,), (GROWS,), (7,), (6,)), select((6,), (0,), (1,), (1,), (6,))
    every, later = select((6,), (1,), (GROWS,), (3,), (2,)), select((6,), (2,), (1,), (1,), (GROWS,))
    create_virtual(file, "v", (6,), [(place, ".", "a%b", block)])
    create_virtual(file, "w", (6,), [(every, ".", "a0", later), (later, ".", "v", every)])


_FILLS = (_filtered, _growing_in_one_dimension, _growing_in_two_dimensions, _compact_and_contiguous, _kinds, _texts,
          _dimensions, _many_attributes, _groups, _links, _elsewhere, _virtual_of_blocks, _virtual_of_chunks,
          _virtual_that_grow)  # fmt: skip


# A file with a named datatype, a dataset of this type, and a virtual dataset. It is stored here and not made, because
# libhdf5 always writes the time into such objects, and seeds must not change.
_TIMED = (
    b"c-rljze`*}5XZl}`_6k=e?5Q1J8V2b5F#8lNhjgrd7c=!5dQ%+3ML}KU%^xgRuU{MY*Gtan?gvNBBeIzQiuEnHVM($=j{1>AV#n`m=6ql^KN%;=e"
    b"zTEZl_wVwAx;4!VsPdW;%c65A*Y_Xk@BZEx*>-(4EPN9;=~%rWVkk*1qsE_80%&^k>HP4gbTQ;R$)%%E7yTf8s3^2EUudq!ptG2sz|)KfmX;KtJD"
    b"n>x%=?FRN}qE2Vfb{AetU);^64C1-3%i5uk;Zu8;3qJe2%-#@91RwvC9WS&v-S$ehsbQJm!#1jh0g~)Bvr)30Pbj0qYdNTB_lj_Ik?%BGO10)}58"
    b"Thm2G3}ccs3=4|ek^XY6F1PLuWkyAo$~c?)HqTepZ@+-DOJl<iq@CWd(Pt*N{5wF`2|qVjNiFo9yj-vc4H;`)75>gY?x9qyh~Y2$__bCx!F{)ftl"
    b"t-Dt@IJL)nRs+ba+R;h|C7^9*0q8NN=ke7!s(v#w8&QLjcTnd^M*WYl!gLFWDsbdgaj#ba)~IkNH5+RONwi4s>1v5Qo*En+6#fJ$skC;WWM2XEMI"
    b"c6NUC?c98E;pshM_>Pq27!zmbV~J(2+NCZ8K@bE%5ClOG1mS<V1fn5gn*"
)


@contextlib.contextmanager
def set_up() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in (chunk_index, file, structure, virtual):
            stack.enter_context(mock.patch.object(module, "verify_checksum", lambda data, what: data[:-4]))
        stack.enter_context(mock.patch.object(array_group, "LISTABLE", 1 << 16))  # long listings would take the second
        yield


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
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
                with contextlib.suppress(ValueError, EOFError, KeyError):  # the engine adds the key to these errors
                    files.bytes(entry)
        with contextlib.suppress(RefShardError):
            files.run(keys.children(path))

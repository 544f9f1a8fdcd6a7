"""Open N5 datasets, and decode a block: it has the size of a chunk, or an error of this package is raised."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import struct
import zlib
from contextlib import nullcontext as set_up

import numcodecs
import numpy as np

from refshard_fs.core.format import Document, OpenOptions, Probe
from refshard_fs.core.model import Facts, Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.n5 import ATTRIBUTES
from refshard_fs.formats.n5.source import DATA, BlockRecipe, open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = tuple(
    b"""
    "dimensions" "blockSize" "dataType" "compression" "compressionType" "type" "useZlib":true "scales" "uint64"
    "float32" [1,2] [4294967295] -1 null
    """.split()
)
_END = b"\n--\n"  # between the attributes and the block
_LARGEST = 1 << 20  # bytes of a chunk that is decoded


def make_seeds() -> list[bytes]:
    values = bytes(range(48))
    zstd, blosc = numcodecs.Zstd(1).encode(values), numcodecs.Blosc("lz4", shuffle=0).encode(values)
    coded = {
        "raw": values, "gzip": gzip.compress(values, mtime=0), "bzip2": bz2.compress(values),
        "xz": lzma.compress(values), "zstd": bytes(zstd), "blosc": bytes(blosc),
    }  # fmt: skip
    found = [_make_seed({"type": name}, data) for name, data in coded.items()]
    return [*found, _make_seed({"type": "gzip", "useZlib": True}, zlib.compress(values)), _make_seed("raw", values, 1)]


def _make_seed(compression: object, data: bytes, mode: int = 0) -> bytes:
    doc = {"dimensions": [7, 5], "blockSize": [4, 6], "dataType": "uint16", "compression": compression, "units": "nm"}
    head = struct.pack(">HHII", mode, 2, 4, 6) + (struct.pack(">I", 24) if mode else b"")
    return json.dumps(doc).encode() + _END + head + data


def check_input(data: bytes) -> None:
    document, _, block = data.partition(_END)
    files = Files({f"{ROOT}/0/0": block, f"{ROOT}/0": block})
    probe = Probe(ROOT, documents={ATTRIBUTES: Document(document, Facts(len(document)))})
    try:
        keys = files.run(open_(probe, OpenOptions(zarr_format=2 + len(data) % 2)))
    except RefShardError:
        return
    for path, grid in keys.grids.items():
        files.read(keys, f"{path}/.zarray" if len(data) % 2 == 0 else f"{path}/zarr.json")
        assert path == DATA
        if not grid.size:
            continue
        try:
            entry = files.run(keys.lookup(f"{path}/{grid.tail(0)}"))
            assert isinstance(entry, Packed)
            assert isinstance(entry.recipe, BlockRecipe)
            size = math.prod(entry.recipe.chunks) * np.dtype(entry.recipe.dtype).itemsize
            if size <= _LARGEST and entry.spans[0].url in files.files:
                assert len(files.bytes(entry)) == size
        except (RefShardError, ValueError):
            pass

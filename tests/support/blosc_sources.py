"""Make bcolz rootdirs and bloscpack files without their libraries."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
from numcodecs import blosc

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.formats.bcolz.blosc import CHECKSUMS
from tests.support.shards_in_memory import ROOT, Files


def make_carray(values: np.ndarray[Any, Any], chunklen: int, /, **changes: Any) -> dict[str, bytes]:
    """Return the files of a carray by URL, as bcolz would write them; ``changes`` replace fields of its metadata."""
    storage = {"dtype": str(values.dtype), "cparams": {"clevel": 5, "shuffle": 1, "cname": "lz4"},
               "chunklen": chunklen, "expectedlen": len(values), "dflt": 0}  # fmt: skip
    sizes = {"shape": list(values.shape), "nbytes": values.nbytes, "cbytes": 1}
    files = {}
    for i, start in enumerate(range(0, len(values), chunklen)):
        part = np.ascontiguousarray(values[start : start + chunklen])
        frame = blosc.compress(part, b"lz4", 5, 1)
        files[f"{ROOT}/data/__{i}.blp"] = b"blpk\1\0\0\0" + struct.pack("<q", 1) + frame
    storage.update({k: v for k, v in changes.items() if k in storage})
    sizes.update({k: v for k, v in changes.items() if k in sizes})
    files[f"{ROOT}/meta/storage"] = json.dumps(storage).encode()
    files[f"{ROOT}/meta/sizes"] = json.dumps(sizes).encode()
    return files


def make_table(**columns: dict[str, bytes]) -> dict[str, bytes]:
    files = {f"{ROOT}/__rootdirs__": json.dumps({"names": list(columns)}).encode()}
    for name, column in columns.items():
        files.update({url.replace(ROOT, f"{ROOT}/{name}"): data for url, data in column.items()})
    return files


def pack_values(
    values: np.ndarray[Any, Any],
    frame_size: int,
    *,
    checksum: int = 0,
    offsets: bool = True,
    spare: int = 0,
    metadata: dict[str, Any] | None = None,
    gap: int = 0,
) -> bytes:
    """Return a bloscpack file of ``values``, written by its specification; ``gap`` is bytes before each frame."""
    data = values.tobytes()
    parts = [data[i : i + frame_size] for i in range(0, len(data), frame_size)]
    digest = CHECKSUMS[checksum].digest
    typesize = values.dtype.itemsize
    frames = [blosc.compress(np.frombuffer(part, "u1"), b"lz4", 5, 1) for part in parts]
    out = struct.pack("<4sBBBBiiqq", b"blpk", 3, offsets + 2 * (metadata is not None), checksum, typesize,
                      frame_size, len(parts[-1]), len(parts), spare)  # fmt: skip
    if metadata is not None:
        text = json.dumps(metadata).encode()
        stored = zlib.compress(text)
        out += struct.pack("<8sBBBBIII8s", b"JSON", 0, 1, 1, 6, len(text), 2 * len(stored), len(stored), b"")
        out += stored.ljust(2 * len(stored), b"\0") + zlib.adler32(stored).to_bytes(4, "little")
    at = len(out) + (len(parts) + spare) * 8 * offsets
    table, body = [], b""
    for frame in frames:
        body += bytes(gap)
        table.append(at + len(body))
        body += frame + digest(frame)
    if offsets:
        out += struct.pack(f"<{len(parts) + spare}q", *table, *[-1] * spare)
    return out + body


def make_numpy_metadata(values: np.ndarray[Any, Any], order: str = "C") -> dict[str, Any]:
    return {"dtype": repr(values.dtype.str), "shape": list(values.shape), "order": order, "container": "numpy"}


def decode_file(data: bytes, **options: Any) -> bytes:
    """Return the bytes of all chunks of the one-dimensional array in a file."""
    files = Files({ROOT: data})
    keyspace = files.open(**options)
    shape = json.loads(files.read(keyspace, "data/.zarray") or b"")["shape"]
    return decode_chunks(files, keyspace)[: shape[0] * _read_itemsize(files, keyspace)]


def decode_chunks(files: Files, keyspace: KeySpace) -> bytes:
    keys = keyspace.grids["data"].tails()
    return b"".join(blosc.decompress(files.read(keyspace, f"data/{key}")) for key in keys)


def _read_itemsize(files: Files, keyspace: KeySpace) -> int:
    return np.dtype(json.loads(files.read(keyspace, "data/.zarray") or b"")["dtype"]).itemsize


VALUES = np.arange(2500)


PLAIN = pack_values(VALUES, 8000, checksum=1, spare=4, metadata=make_numpy_metadata(VALUES))


TABLE = PLAIN.index(struct.pack("<4q", -1, -1, -1, -1)) - 24


def put(at: int, new: bytes, data: bytes = PLAIN) -> bytes:
    return data[:at] + new + data[at + len(new) :]

"""An index in memory is used only for the version of the file from which it was read."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer

zarr = pytest.importorskip("zarr")

METADATA = (
    b'{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"uint8","fill_value":7,'
    b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},'
    b'"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
    b'"codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[1],"codecs":[{"name":"bytes"}],'
    b'"index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}],"index_location":"end"}}]}'
)


def shard(chunks: dict[int, bytes]) -> bytes:
    """Return a shard of four chunks of one byte: ``chunks`` by number, in this order; the others are missing."""
    slots = {number: at for at, number in enumerate(chunks)}
    absent = (1 << 64) - 1
    index = b"".join(struct.pack("<QQ", *((slots[i], 1) if i in slots else (absent, absent))) for i in range(4))
    return b"".join(chunks.values()) + index


OLD = shard({0: b"a", 1: b"b", 2: b"c", 3: b"d"})
NEW = shard({3: b"D", 2: b"C", 1: b"B", 0: b"A"})
assert len(OLD) == len(NEW)
assert zlib.crc32(OLD) != zlib.crc32(NEW)


def values(fs: RefShardFileSystem) -> bytes:
    return b"".join(fs.cat_file(f"c/{i}") for i in range(4))


def stores(tmp_path: Path, server: RangeServer) -> dict[str, tuple[str, Callable[[str, bytes], Any]]]:
    memory = fsspec.filesystem("memory")
    (tmp_path / "a" / "c").mkdir(parents=True)
    return {
        "local": (str(tmp_path / "a"), lambda path, data: (tmp_path / "a" / path).write_bytes(data)),
        "memory": ("memory://recall/a", lambda path, data: memory.pipe_file(f"/recall/a/{path}", data)),
        "http": (server.url + "/a", lambda path, data: server.put(f"/a/{path}", data)),
    }


@pytest.mark.parametrize("kind", ["local", "memory", "http"])
def test_new_filesystem_does_not_mix_old_index_and_new_bytes(
    tmp_path: Path, http_server: RangeServer, kind: str
) -> None:
    url, put = stores(tmp_path, http_server)[kind]
    put("zarr.json", METADATA)
    put("c/0", OLD)
    assert values(RefShardFileSystem(url)) == b"abcd"
    put("c/0", NEW)
    assert values(RefShardFileSystem(url)) == b"ABCD"


def test_index_in_memory_saves_requests_of_later_filesystems(http_server: RangeServer) -> None:
    http_server.put("/a/zarr.json", METADATA)
    http_server.put("/a/c/0", OLD)
    assert values(RefShardFileSystem(http_server.url + "/a")) == b"abcd"
    first = len(http_server.requests("/a/c/0"))
    http_server.clear()

    async def read() -> list[bytes]:
        fs = RefShardFileSystem(http_server.url + "/a", asynchronous=True)
        return await asyncio.gather(*(fs._cat_file(f"c/{i}") for i in range(4)))

    assert b"".join(asyncio.run(read())) == b"abcd"
    assert len(http_server.requests("/a/c/0")) < first

"""Members of a ZIP at another target are objects: a stored member is a range, a compressed one is inflated."""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs import RefShardError, RefShardFileSystem, TargetChanged
from refshard_fs.core.model import Facts, Listed, Pin
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from refshard_fs.targets import Pool, PoolOptions
from refshard_fs.targets import zip as zip_target
from refshard_fs.targets.failures import Unreadable
from tests.servers.http import RangeServer
from tests.support.target_reading import AT_ONCE, Reader, run_with_pool

DATA = os.urandom(3000)
RANGES = [(0, 10), (10, 2000), (2990, 3000), (0, 3000), (-7, None), (5, None), (0, None), (-9999, None), (9, 9)]


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, *, piped: bool = False) -> bytes:
    """Return an archive; with ``piped``, its writer cannot seek, so sizes and checksums are behind the members."""

    class Pipe(io.RawIOBase):
        data = b""

        def write(self, data: Any) -> int:
            self.data += bytes(data)
            return len(data)

        def writable(self) -> bool:
            return True

    file: Any = Pipe() if piped else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.data if piped else file.getvalue()


def ranges_asked(server: RangeServer) -> list[str]:
    return [r.headers.get("range", "") for r in server.requests(method="GET")]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("piped", [False, True])
def test_range_of_a_member_equals_a_slice(http_server: RangeServer, method: int, piped: bool) -> None:
    url = http_server.put("/a.zip", zipped({"before": b"x" * 70000, "d/m": DATA, "empty": b""}, method, piped=piped))
    for start, stop in RANGES:
        assert Reader().read(f"zip://d/m::{url}", start, stop) == DATA[start:stop]
    assert Reader().read(f"zip:///d/m::{url}", 1, 4) == DATA[1:4], "a slash before the member is ignored"
    assert Reader().read(f"zip://empty::{url}") == b""
    assert Reader().get_facts(f"zip://d/m::{url}").size == 3000
    assert Reader().list_names(f"zip://d::{url}") == (Listed("m", 3000),)
    assert Reader().list_names(f"zip::{url}") == (Listed("before", 70000), Listed("d", None, True), Listed("empty", 0))
    for name in ("none", "d", "d/m/x"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            Reader().read(f"zip://{name}::{url}", 0, 5)


@pytest.mark.evidence(id="T25")
def test_directory_is_read_once_for_many_stored_members(http_server: RangeServer) -> None:
    """On Python 3.12.0–3.12.8 and 3.13.0–3.13.1, open handles of one `ZipFile` mix up their positions
    ([gh-127847](https://github.com/python/cpython/issues/127847)): parallel reads returned wrong bytes.
    """
    members = {f"m{i}": bytes([i]) * 5000 for i in range(20)}
    url = http_server.put("/a.zip", zipped(members))

    async def read(pool: Pool) -> list[bytes]:
        async def one(i: int) -> bytes:
            place = pool.place(f"zip://m{i}::{url}")
            assert place is not None
            return (await place[0].read(place[1], 5, 50)).data

        return await asyncio.gather(*map(one, range(20)))

    assert run_with_pool(PoolOptions(), read) == [members[f"m{i}"][5:50] for i in range(20)]
    asked = ranges_asked(http_server)
    assert len(asked) == 21
    assert sum(r.sent for r in http_server.requests()[2:]) == 20 * 45
    assert len(http_server.requests(method="HEAD")) == 1


def test_member_with_local_header_costs_one_more_request(http_server: RangeServer) -> None:
    url = http_server.put("/a.zip", zipped({"m": DATA}, piped=True))

    async def read(pool: Pool) -> list[bytes]:
        opened, path = pool.place(f"zip://m::{url}")  # type: ignore[misc]  # it is not None
        return [a.data for a in await asyncio.gather(*(opened.read(path, i, i + 5) for i in range(10)))]

    assert run_with_pool(PoolOptions(), read) == [DATA[i : i + 5] for i in range(10)]
    assert len(ranges_asked(http_server)) == 1 + 1 + 10


def test_compressed_member_read_in_parts_is_inflated_once(http_server: RangeServer) -> None:
    url = http_server.put("/a.zip", zipped({"m": DATA}, zipfile.ZIP_DEFLATED))

    async def read(pool: Pool) -> list[bytes]:
        opened, path = pool.place(f"zip://m::{url}")  # type: ignore[misc]
        parts = await asyncio.gather(*(opened.read(path, i, i + 5) for i in range(10)))
        return [part.data for part in (*parts, await opened.read(path, 2000, 3000))]

    assert run_with_pool(PoolOptions(), read) == [*(DATA[i : i + 5] for i in range(10)), DATA[2000:]]
    assert len(ranges_asked(http_server)) == 2


def test_inflated_members_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch, http_server: RangeServer) -> None:
    monkeypatch.setattr(zip_target, "MOST_INFLATED", 7000)
    url = http_server.put("/a.zip", zipped(dict.fromkeys("abc", DATA) | {"large": DATA * 3}, zipfile.ZIP_DEFLATED))

    def fetched(*names: str) -> int:
        async def read(pool: Pool) -> None:
            for name in names:
                opened, path = pool.place(f"zip://{name}::{url}")  # type: ignore[misc]
                assert (await opened.read(path, 5, 50)).data == DATA[5:50]

        http_server.log.clear()
        run_with_pool(PoolOptions(), read)
        return len(http_server.requests()) - 2

    assert fetched(*"aabbaabb") == 2
    assert fetched(*"abcabc") == 6, "the oldest goes"
    http_server.log.clear()
    assert Reader().read(f"zip://large::{url}", 5, 50) == DATA[5:50]
    assert len(http_server.requests(method="HEAD")) == 2, "fsspec, which reads it as a stream, asks for its size, too"


@pytest.mark.parametrize("damage", ["stored", "deflated", "header"])
def test_damaged_member_or_local_header_is_an_error(http_server: RangeServer, damage: str) -> None:
    method = zipfile.ZIP_DEFLATED if damage == "deflated" else zipfile.ZIP_STORED
    data = bytearray(zipped({"member": DATA}, method, piped=damage == "header"))
    data[500 if damage != "header" else 0] ^= 1
    url = http_server.put("/a.zip", bytes(data))
    with pytest.raises(Unreadable, match="member"):
        Reader().read(f"zip://member::{url}")


@pytest.mark.parametrize("at", [8, 14, 18, 22, 30], ids=["method", "checksum", "stored", "size", "name"])
def test_local_header_that_contradicts_directory_is_error(http_server: RangeServer, at: int) -> None:
    data = bytearray(zipped({"member": DATA, "other": DATA}))
    data[at] ^= 1
    url = http_server.put("/a.zip", bytes(data))
    with pytest.raises(Unreadable, match="of the directory, no flag"):
        Reader().read(f"zip://member::{url}")
    with pytest.raises(RefShardError, match="of the directory, no flag"):
        RefShardFileSystem(fo=bytes(data)).cat_file("member")
    assert Reader().read(f"zip://other::{url}") == DATA


def test_error_of_an_encrypted_member_names_the_member(http_server: RangeServer) -> None:
    data = bytearray(zipped({"member": DATA}))
    for at in (6, data.index(b"PK\1\2") + 8):
        data[at] |= 1
    url = http_server.put("/a.zip", bytes(data))
    with pytest.raises(ReferenceNotReachable, match=r"key.*member.*encrypted"):
        RefShardFileSystem(fo={"key": [f"zip://member::{url}"]}).cat_file("key")


def test_unsupported_archive_is_left_to_fsspec(http_server: RangeServer) -> None:
    data = zipped({"m": DATA, "../up": DATA[::-1]})
    url = http_server.put("/a.zip", data[:-2] + struct.pack("<H", 9) + b"a comment" + b"and more")
    assert Reader().read(f"zip://m::{url}", 1, 9) == DATA[1:9]
    whole = http_server.put("/b.zip", data)
    assert Reader().read(f"zip://../up::{whole}", 1, 9) == DATA[::-1][1:9]
    cut = http_server.put("/c.zip", data[:-30])
    with pytest.raises(ManifestError, match="cut short"):
        Reader().read(f"zip://m::{cut}", 1, 9)


def test_unsupported_archive_of_a_remote_set_is_refused(http_server: RangeServer) -> None:
    data = zipped({"refs.json": json.dumps({"k": ["m", 1, 8]}).encode(), "m": DATA})
    archive = http_server.put("/a.zip", data)
    fs = RefShardFileSystem(fo=f"zip://refs.json::{archive}", skip_instance_cache=True)
    assert fs.cat_file("k") == DATA[1:9]
    http_server.put("/a.zip", data + b"more")
    with pytest.raises((ManifestError, ReferenceNotReachable, TargetChanged)):
        RefShardFileSystem(fo=f"zip://refs.json::{archive}", skip_instance_cache=True).cat_file("k")


def test_nested_and_cached_archives_are_read(http_server: RangeServer, tmp_path: Path) -> None:
    inner = zipped({"m": DATA})
    url = http_server.put("/outer.zip", zipped({"in/inner.zip": inner, "in/packed.zip": inner}))
    assert Reader().read(f"zip://m::zip://in/inner.zip::{url}", 5, 50) == DATA[5:50]
    assert len(ranges_asked(http_server)) == 3, "the ends of both, and the range"
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    chain = f"zip://m::zip://in/packed.zip::simplecache::{url}"
    assert Reader(by_prefix={chain: options}).read(chain, 5, 50) == DATA[5:50]
    assert len(os.listdir(tmp_path / "cache")) == 1


@pytest.mark.parametrize("where", ["file", "bare", "memory"])
def test_archives_in_local_files_and_memory_are_read(where: str, tmp_path: Path) -> None:
    data = zipped({"m": DATA})
    (tmp_path / "a.zip").write_bytes(data)
    MemoryFileSystem().pipe("/zips/a.zip", data)
    outer = {"file": f"file://{tmp_path}/a.zip", "bare": f"{tmp_path}/a.zip", "memory": "memory://zips/a.zip"}[where]
    assert Reader().read(f"zip://m::{outer}", 5, 50) == DATA[5:50]


@pytest.mark.parametrize("how", ["nested", "protocol", "instance", "prefix"])
def test_archive_is_opened_with_the_options_of_its_own_link(http_server: RangeServer, how: str) -> None:
    url = http_server.put("/a.zip", zipped({"m": DATA}))
    headers = {"headers": {"x-secret": "mine"}}
    given: dict[str, Any] = {
        "nested": {"by_prefix": {f"zip://m::{url}": {"http": headers}}},
        "protocol": {"by_protocol": {"http": headers}},
        "instance": {"by_protocol": {"http": HTTPFileSystem(**headers, skip_instance_cache=True)}},
        "prefix": {"by_prefix": {http_server.url: headers}},
    }[how]
    assert Reader(**given).read(f"zip://m::{url}", 5, 50) == DATA[5:50]
    assert {r.headers.get("x-secret") for r in http_server.requests()} == {"mine"}


def test_options_of_zipfilesystem_are_left_to_fsspec(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zip_target, "ZipTarget")
    url = http_server.put("/a.zip", zipped({"m": DATA}))
    assert Reader(by_protocol={"zip": {"mode": "r"}}).read(f"zip://m::{url}", 5, 50) == DATA[5:50]


def test_members_have_the_version_of_their_archive(http_server: RangeServer) -> None:
    url = http_server.put("/a.zip", zipped({"m": DATA}))
    etag = fsspec.filesystem("http").info(url)["ETag"]
    facts = Reader().get_facts(f"zip://m::{url}")
    assert (facts.size, facts.etag) == (3000, etag)
    assert Reader().read(f"zip://m::{url}", 5, 50, Pin(etag=etag)) == DATA[5:50]
    with pytest.raises(TargetChanged):
        Reader().read(f"zip://m::{url}", 5, 50, Pin(etag='"another"'))


def test_replaced_archive_is_noticed_and_reopened(http_server: RangeServer) -> None:
    url = http_server.put("/a.zip", zipped({"a": b"1" * 50, "m": DATA}))
    fs = RefShardFileSystem(fo={"k": [f"zip://m::{url}", 5, 45]}, skip_instance_cache=True)
    assert fs.cat_file("k") == DATA[5:50]
    http_server.put("/a.zip", zipped({"a": b"1" * 99, "m": DATA[::-1]}))
    with pytest.raises(TargetChanged):
        fs.cat_file("k")
    fs.invalidate_cache()
    assert fs.cat_file("k") == DATA[::-1][5:50]
    other = RefShardFileSystem(fo={"k": [f"zip://m::{url}", 6, 45]}, skip_instance_cache=True)
    assert other.cat_file("k") == DATA[::-1][6:51]


def test_pin_is_checked_by_a_request_if_answers_lack_versions() -> None:
    data = zipped({"m": DATA})

    class Told(AbstractFileSystem):  # type: ignore[misc]  # fsspec is untyped
        protocol = "told"
        etag = "1"

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
            return data[start:end]

        def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
            return {"name": path, "size": len(data), "type": "file", "ETag": self.etag}

    fs = Told()

    async def read(pool: Pool) -> None:
        opened, path = pool.place("zip://m::told://told/a.zip")  # type: ignore[misc]
        assert (await opened.read(path, 5, 50, Pin(etag="1"))).data == DATA[5:50]
        fs.etag = "2"
        with pytest.raises(TargetChanged):
            await opened.read(path, 50, 90, Pin(etag="1"))

    run_with_pool(PoolOptions({"told": fs}, retry=AT_ONCE), read)
    assert Reader(by_protocol={"told": fs}).get_facts("zip://m::told://told/a.zip") == Facts(3000, "2")

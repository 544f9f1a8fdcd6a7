"""Sets and their targets are read, listed and committed on FTP, SFTP and WebDAV servers, GCS and Azure."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import ConflictError, ReferenceNotReachable, RefShardFileSystem
from tests.servers.kinds import KINDS, Served
from tests.support.threads import wait_for_writes

DATA = bytes(range(256))

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # servers and cached filesystems of fsspec stay open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with KINDS[request.param](tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def served(server: Served, request: pytest.FixtureRequest) -> Served:
    """A directory for this test alone."""
    found = server.below(f"t{abs(hash(request.node.name))}")
    found.put("folder/data.bin", DATA)
    return found


def opened(served: Served, name: str, **more: Any) -> RefShardFileSystem:
    return RefShardFileSystem(f"{served.url}/{name}", target_options=served.options, index_cache=False, **more)


def test_options_of_a_set_apply_to_objects_beside_it(served: Served) -> None:
    absolute = f"{served.url}/folder/data.bin"
    refs = {"relative": ["data.bin", 10, 20], "absolute": [absolute, 5, 6], "whole": [absolute], "inline": "text"}
    served.put("folder/refs.json", json.dumps(refs).encode())
    fs = opened(served, "folder/refs.json")
    expected = {"relative": DATA[10:30], "absolute": DATA[5:11], "whole": DATA, "inline": b"text"}
    assert fs.cat(list(refs)) == expected
    assert fs.cat_file("whole", -6) == DATA[-6:]
    assert fs.size("whole") == len(DATA)


def test_disk_cache_has_the_current_version(served: Served, tmp_path: Path) -> None:
    refs = {f"a/{number}": ["data.bin", number * 16, 16] for number in range(16)}
    served.put("folder/refs.json", json.dumps(refs).encode())
    hits = []
    for data in (DATA, DATA, DATA[::-1] + b"x"):  # within a second, some servers show a change only by another size
        served.put("folder/data.bin", data)
        fs = opened(served, "folder/refs.json", cache_dir=tmp_path / "kept", skip_instance_cache=True)
        assert b"".join(fs.cat([*refs]).values()) == data[:256]
        wait_for_writes()
        hits.append(fs.stats()["disk_hits"])
    assert hits[0] == hits[2] == 0


def test_hierarchy_is_listed_and_read(served: Served) -> None:
    for name in (".zgroup", "g/.zgroup"):
        served.put(f"h.zarr/{name}", b'{"zarr_format": 2}')
    fs = opened(served, "h.zarr")
    assert sorted(fs.find("")) == [".zgroup", "g/.zgroup"]
    assert json.loads(fs.cat_file("g/.zgroup")) == {"zarr_format": 2}


@pytest.mark.parametrize("name", ["busy", "hangs-up"])
def test_busy_ftp_server_is_not_a_missing_key(tmp_path: Path, name: str) -> None:
    """fsspec's FTP filesystem reports every refusal, such as "450 busy", as a missing file, and keeps a broken
    connection. Keys of a hierarchy must not become missing because of that.
    """
    with KINDS["ftp"](tmp_path) as served:
        served.put(name, DATA)
        served.put("refs.json", json.dumps({"range": [name, 10, 20], "whole": [name]}).encode())
        fs = opened(served, "refs.json")
        assert fs.cat_file("whole") == DATA
        assert fs.cat_file("range") == DATA[10:30]
        for key in (".zgroup", f"a/{name}.0"):
            served.put(f"h.zarr/{key}", b"{}")
        assert opened(served, "h.zarr").cat_file(f"a/{name}.0") == b"{}"


def test_broken_ftp_connection_is_reopened(tmp_path: Path) -> None:
    with KINDS["ftp"](tmp_path) as served:
        served.put("data", DATA)
        ftp, _ = fsspec.core.url_to_fs(served.url, **served.options)
        fs = RefShardFileSystem({"range": ["/data", 10, 20], "gone": ["/none"]}, fs=ftp)
        assert fs.cat_file("range") == DATA[10:30]
        ftp.ftp.sock.shutdown(socket.SHUT_RDWR)
        assert fs.cat_file("range") == DATA[10:30]
        with pytest.raises(ReferenceNotReachable, match="was removed, or never existed"):
            fs.cat_file("gone")


def test_error_after_an_ftp_logout_has_the_servers_reply(tmp_path: Path) -> None:
    with KINDS["ftp"](tmp_path) as served:
        served.put("logged-out", DATA)
        served.put("refs.json", json.dumps({"key": ["logged-out"]}).encode())
        with pytest.raises(ReferenceNotReachable, match="Please login"):
            opened(served, "refs.json").cat_file("key")


@pytest.mark.evidence(id="T20")
@pytest.mark.evidence(id="T21")
@pytest.mark.evidence(id="T22")
def test_set_is_made_and_its_large_values_are_objects(served: Served) -> None:
    fs = opened(served, "made.json", mode="a")
    fs.pipe({"large": DATA * 10, "small": b"small"})
    fs.commit()
    again = opened(served, "made.json")
    assert again.cat(["large", "small"]) == {"large": DATA * 10, "small": b"small"}
    if served.directory is not None:
        assert (served.directory / "made.json.data").is_dir()
        assert not list(served.directory.rglob("*.tmp"))


@pytest.mark.evidence(id="T18")
@pytest.mark.evidence(id="T19")
def test_commit_over_another_writers_commit_is_a_conflict(served: Served) -> None:
    """Another writer's document may have the same size."""
    first = opened(served, "set.json", mode="a")
    first.pipe_file("k", b"000")
    first.commit()
    one, two = opened(served, "set.json", mode="a"), opened(served, "set.json", mode="a")
    assert one.cat_file("k") == two.cat_file("k") == b"000"
    one.pipe_file("k", b"111")
    two.pipe_file("k", b"222")
    one.commit()
    if served.directory is not None:  # these servers tell modification times in whole seconds
        later = time.time() + 2
        os.utime(served.directory / "set.json", (later, later))
    with pytest.raises(ConflictError):
        two.commit()
    two.discard()
    assert two.cat_file("k") == b"111"

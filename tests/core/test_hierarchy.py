"""Keys of a hierarchy are the objects below its URL, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import ManifestError
from refshard_fs.core.hierarchy import Hierarchy
from tests.servers.http import RangeServer
from tests.support.hierarchies import FILES, open_hierarchy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def server(http_server: RangeServer) -> RangeServer:
    for name, data in FILES.items():
        http_server.put("/d/" + name, data)
    return http_server


def test_reading_a_directory_or_below_a_file_is_file_not_found(folder: Path) -> None:
    fs = open_hierarchy(folder)
    assert fs.isdir("g/a")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a/0/x")  # below a file
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a/1")


@pytest.mark.parametrize(
    "key", ["../secret", "g/../../secret", "g/a/../../../secret", "..", ".", "g/./a/0", "/../secret"]
)
def test_keys_cannot_leave_the_hierarchy(folder: Path, key: str) -> None:
    (folder.parent / "secret").write_bytes(b"secret")
    fs = open_hierarchy(folder)
    with pytest.raises((FileNotFoundError, ValueError)):
        fs.cat_file(key)
    steps = Hierarchy(f"file://{folder}", listable=True).lookup(key)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value is None


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("s3://b/a.zarr", "s3://b/a.zarr/k/0"),
        ("s3://b/a.zarr/", "s3://b/a.zarr/k/0"),
        ("memory://", "memory://k/0"),
        ("/data/a.zarr", "/data/a.zarr/k/0"),
        ("https://h/a.zarr?sig=1", "https://h/a.zarr/k/0?sig=1"),
        ("zip://::s3://b/a.zip", "zip://k/0::s3://b/a.zip"),
        ("zip::s3://b/a.zip", "zip://k/0::s3://b/a.zip"),
        ("zip://x/a.zarr::s3://b/a.zip", "zip://x/a.zarr/k/0::s3://b/a.zip"),
        ("simplecache::https://h/a.zarr", "simplecache::https://h/a.zarr/k/0"),
    ],
)
def test_keys_become_urls(root: str, expected: str) -> None:
    with pytest.raises(StopIteration) as stop:
        next(Hierarchy(root, listable=True).lookup("k/0"))
    assert stop.value.value.url == expected


def test_key_with_double_colon_is_an_error_except_over_http(folder: Path, server: RangeServer) -> None:
    """fsspec takes a local path with `::` for a chain of URLs, so it cannot read the file; it must not look missing."""
    (folder / "a::b").write_bytes(b"x")
    fs = open_hierarchy(folder, mode="a")
    with pytest.raises(ManifestError, match="'a::b' has no URL"):
        fs.cat_file("a::b")
    fs.pipe_file("c::d", b"x")
    with pytest.raises(ManifestError, match="'c::d' has no URL"):
        fs.commit()
    assert not (folder / "c::d").exists()
    fs.discard()
    server.put("/d/a::b", b"x")
    assert open_hierarchy(f"{server.url}/d").cat_file("a::b") == b"x"

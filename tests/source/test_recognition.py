"""A source is recognised by its content, or its format is named."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem, SourceNotReachable, UnknownSource
from refshard_fs.errors import NoSuchSource
from refshard_fs.sharding.view import ShardView
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


def test_local_folder_is_recognised(folder: Path) -> None:
    for fo in (folder, str(folder), f"file://{folder}", f"{folder}/"):
        fs = open_hierarchy(fo)
        assert fs.find("") == sorted(FILES)
        for name, data in FILES.items():
            assert fs.cat_file(name) == data
            assert fs.info(name)["size"] == len(data)
        assert [r["name"] for r in fs.ls("g")] == ["g/.zgroup", "g/a"]


def test_directory_page_is_not_the_source(server: RangeServer) -> None:
    server.put("/d", b"<!DOCTYPE html><html>Index of /d</html>")
    assert open_hierarchy(f"{server.url}/d").cat_file("g/a/0") == b"12345678"
    server.put("/other", b"<!DOCTYPE html><html>Nothing</html>")
    with pytest.raises(UnknownSource, match="DOCTYPE"):
        open_hierarchy(f"{server.url}/other").ls("")


def test_format_option_opens_an_unrecognisable_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/zarr.json").write_text("{}")
    with pytest.raises(UnknownSource, match="zarr-hierarchy"):
        open_hierarchy(tmp_path).ls("")
    fs = open_hierarchy(tmp_path, format="zarr-hierarchy")
    assert fs.cat_file("a/zarr.json") == b"{}"
    assert isinstance(fs.source.open(), ShardView)
    assert not isinstance(open_hierarchy(tmp_path, format="zarr-hierarchy", shards="whole").source.open(), ShardView)


@pytest.mark.parametrize(("name", "requests"), [("/refs.json", 1), ("/store/", 4)])
def test_silent_server_gets_one_round_of_requests(name: str, requests: int) -> None:
    """Each further round of requests would wait for the timeout again."""
    with socket.create_server(("127.0.0.1", 0), backlog=32) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}{name}"
        with pytest.raises(SourceNotReachable, match="no answer"):
            open_hierarchy(url, timeout=0.2, retries=0).find("")
        silent.settimeout(0.05)
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                silent.accept()[0].close()
                count += 1
    assert count == requests


@pytest.mark.parametrize(("name", "requests"), [("/refs.json", 1), ("/store.zarr", 4)])
def test_server_with_a_login_gets_one_round_of_requests(http_server: RangeServer, name: str, requests: int) -> None:
    http_server.fault(401)
    with pytest.raises(SourceNotReachable, match="401.*Credentials go into"):
        open_hierarchy(http_server.url + name).find("")
    assert len(http_server.requests()) == requests


def test_error_names_the_piece_that_requires_a_login(http_server: RangeServer) -> None:
    """The document of the cube is readable, but one of its pieces is not."""
    part = http_server.put("/part.nc", b"x")
    http_server.fault(401, "/part.nc")
    document = {"refshard": "concat", "dim": "t", "axes": {"v": 0}, "sets": [[part, 1]]}
    cube = http_server.put("/cube.json", json.dumps(document).encode())
    with pytest.raises(SourceNotReachable, match=r"^http\S+/part.nc cannot be opened: HTTP 401.*Credentials go into"):
        open_hierarchy(cube).find("")


def test_names_of_a_web_directory_are_requested_once(http_server: RangeServer) -> None:
    with pytest.raises(NoSuchSource):
        RefShardFileSystem(f"{http_server.url}/d").find("")
    asked = [request.path for request in http_server.requests() if request.method == "HEAD"]
    assert "/d/attributes.json" in asked
    assert "/d/manifest.safe" in asked
    assert sorted(set(asked)) == sorted(asked)


def test_path_of_a_file_that_ends_in_a_slash_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text("{}")
    with pytest.raises(NoSuchSource, match="Without the '/' at its end, it is the path of a file"):
        RefShardFileSystem(f"{tmp_path}/refs.json/").ls("")


def test_error_for_a_folder_of_a_web_server_advises_a_pattern(http_server: RangeServer) -> None:
    with pytest.raises(NoSuchSource, match=r"open 'http://.*/days/\*' if .* or pass a list of their URLs"):
        RefShardFileSystem(f"{http_server.url}/days/").ls("")


def test_directory_that_fits_several_formats_needs_format(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "attributes.json").write_text('{"n5": "2.0.0"}')
    with pytest.raises(UnknownSource, match=r"several formats \(zarr-hierarchy, n5\)\. Pass the format with format="):
        RefShardFileSystem(str(tmp_path)).ls("")
    assert RefShardFileSystem(str(tmp_path), format="zarr-hierarchy").exists("zarr.json")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "is an empty document: .* Was it written to the end"),
        (bytes(10240), "is a file whose first 10,240 bytes are zero: .* Was it written to the end"),  # an empty tar
        (gzip.compress(b""), "is an empty document, compressed as a whole with gzip. Was it written to the end"),
        (b"[]", "A set of references is a JSON object. To join the sources in a JSON list, pass the loaded list"),
    ],
    ids=["nothing", "zeros", "gzip", "list"],
)
def test_empty_document_is_an_error_that_says_so(tmp_path: Path, data: bytes, error: str) -> None:
    (tmp_path / "source").write_bytes(data)
    with pytest.raises(UnknownSource, match=error):
        RefShardFileSystem(str(tmp_path / "source")).source.open()

"""Whole attacks fail through many public interfaces: a malicious set is opened, read, checked and joined.

CI runs them with the newest and with the oldest permitted versions of zarr, numcodecs, xarray and fsspec.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

import refshard_fs
from refshard_fs import ReferenceNotReachable, RefShardFileSystem, SourceNotReachable, TargetNotAllowed
from refshard_fs.cli import main
from tests.servers.http import RangeServer

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
IS_ZARR_2 = zarr.__version__.startswith("2")
V2 = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0, "filters": None}
V3 = {
    "zarr_format": 3, "node_type": "array", "shape": [1], "data_type": "uint8", "fill_value": 0,
    "dimension_names": ["t"],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "attributes": {},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
}  # fmt: skip
PICKLED: dict[str, dict[str, Any]] = {
    "filter": {"filters": [{"id": "pickle"}]},
    "compressor": {"compressor": {"id": "pickle", "protocol": 5}},
    "second filter": {"filters": [{"id": "delta", "dtype": "<i8"}, {"id": "pickle"}]},
    "objects": {"dtype": "|O", "filters": [{"id": "pickle"}]},
    "objects without a codec": {"dtype": "|O"},
    "fields of objects": {"dtype": [["a", "|O"]], "filters": [{"id": "pickle"}]},
    "fill value": {"dtype": "|O", "filters": [{"id": "pickle"}], "fill_value": "EVIL"},
    "other spelling": {"compressor": {"id": "numcodecs.pickles.Pickle"}},
    "codec of objects": {"dtype": "|O", "object_codec": {"id": "pickle"}},
    "v3": {"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]},
    "v3 in a member": {"codecs": [{"name": "numcodecs.zlib", "configuration": {"id": "pickle"}}]},
    "v3 in a shard": {
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [1], "codecs": [{"name": "numcodecs.pickle"}], "index_codecs": [{"name": "bytes"}],
                },
            }
        ]
    },
}  # fmt: skip


class Marks:
    """An object whose pickle makes a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def strangers(server: RangeServer, refs: dict[str, Any], name: str = "refs") -> str:
    return server.put(f"/{name}.json", json.dumps({"version": 1, "refs": refs}).encode())


def array(data: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Return references of a coordinate ``t`` of one chunk."""
    if "codecs" in more:
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        return {"zarr.json": json.dumps(group), "t/zarr.json": json.dumps({**V3, **more}), "t/c/0": data}
    return {
        ".zgroup": '{"zarr_format": 2}', ".zattrs": "{}", "t/.zarray": json.dumps({**V2, "compressor": None, **more}),
        "t/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"]}', "t/0": data,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_in_many_ways(source: Any) -> None:
    """Read the source through many interfaces that run its codecs; ignore errors."""
    fs = RefShardFileSystem(source, skip_instance_cache=True)
    for call in (
        lambda: xr.open_dataset(source, engine="refshard", chunks=None).load(),
        lambda: xr.open_dataset(fs.get_mapper(""), engine="zarr", consolidated=False).load(),
        lambda: zarr.open_group(fs.get_mapper("") if IS_ZARR_2 else "refshard::" + source, mode="r")["t"][...],
        lambda: refshard_fs.check(fs, "full"),
        lambda: refshard_fs.concat([source, source], dim="t"),
        lambda: refshard_fs.concat([source, source], dim="t", lazy=True),
        lambda: fs.visualize("t"),
        lambda: main(["info", source]),
    ):
        with suppress(Exception, SystemExit):
            call()


@pytest.mark.parametrize("how", PICKLED)
def test_reading_a_remote_set_loads_no_pickle(how: str, http_server: RangeServer, tmp_path: Path) -> None:
    mark = tmp_path / "code-ran"
    evil = base64.b64encode(pickle.dumps(Marks(mark))).decode()
    more = {key: evil if value == "EVIL" else value for key, value in PICKLED[how].items()}
    read_in_many_ways(strangers(http_server, array("base64:" + evil, more)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["evil_codec", "evil_codec:X", "evil_codec.X", "numcodecs.evil_codec", "../evil_codec"]
)
def test_codec_name_of_a_strangers_set_imports_no_module(
    name: str, http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_codec.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    for more in ({"filters": [{"id": name}]}, {"codecs": [{"name": name}], "data_type": {"name": name}}):
        read_in_many_ways(strangers(http_server, array("x", more)))
    assert not (tmp_path / "ran").exists()
    assert "evil_codec" not in sys.modules


INTERFACES: dict[str, Callable[[str, Path], Any]] = {
    "xarray": lambda url, _: xr.open_dataset(url, engine="refshard").load(),
    "a chain": lambda url, _: xr.open_dataset("refshard::" + url, engine="refshard").load(),
    "mapper": lambda url, _: fsspec.get_mapper("refshard::" + url)["t/0"],
    "open": lambda url, _: fsspec.open("refshard://t/0::" + url).open().read(),
    "pickle": lambda url, _: pickle.loads(pickle.dumps(RefShardFileSystem(url))).cat_file("t/0"),
    "JSON": lambda url, _: fsspec.AbstractFileSystem.from_json(RefShardFileSystem(url).to_json()).cat_file("t/0"),
    "ranges": lambda url, _: RefShardFileSystem(url).cat_ranges(["t/0"], [0], [1], on_error="raise"),
    "get": lambda url, folder: RefShardFileSystem(url).get("t/0", str(folder / "got")),
    "head": lambda url, _: RefShardFileSystem(url).head("t/0"),
    "prefetch": lambda url, _: (RefShardFileSystem(url).prefetch(["t/0"]), RefShardFileSystem(url).cat_file("t/0")),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("where", ["file", "private network", "chain"])
def test_interface_refuses_files_and_private_networks(
    interface: str, where: str, http_server: RangeServer, tmp_path: Path
) -> None:
    """The secret is one byte, which any read beyond the rules would return."""
    (tmp_path / "secret").write_bytes(b"\x07")
    with RangeServer() as inside:
        url = inside.put("/secret", b"\x07")
        target = {"file": str(tmp_path / "secret"), "private network": url, "chain": f"simplecache::{url}"}[where]
        source = strangers(http_server, array([target, 0, 1], {}), name=interface.replace(" ", ""))
        with pytest.raises(Exception) as caught:  # noqa: PT011  # zarr and fsspec may wrap our error: it is searched for below
            INTERFACES[interface](source, tmp_path)
        assert any(isinstance(e, TargetNotAllowed) for e in chain(caught.value)), caught.value
        assert inside.requests() == []
    assert not (tmp_path / "got").exists()


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_answers_without_a_body_are_errors(http_server: RangeServer) -> None:
    source = strangers(http_server, array([http_server.put("/empty", b"x"), 0, 1], {}))
    for status in (204, 205, 304, 503):
        http_server.fault(status, "/empty")
        fs = RefShardFileSystem(source, retries=0, timeout=3, skip_instance_cache=True)
        with pytest.raises((ReferenceNotReachable, SourceNotReachable)):
            fs.cat_file("t/0")
        http_server.heal()

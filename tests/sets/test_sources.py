"""Sources of several kinds are joined, within the limits that `allow=` sets; each document is read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, TargetNotAllowed, UnknownSource
from refshard_fs.cli import main
from refshard_fs.references.values import encode
from tests.servers.http import RangeServer
from tests.support.day_sets import make_days
from tests.support.joined_sets import VERSIONS, make_day_set, read
from tests.support.set_files import make_plain_file

zarr = pytest.importorskip("zarr")


@pytest.mark.skipif(len(VERSIONS) == 1, reason="chunk manifests are zarr version 3")
def test_chunk_manifests_are_joined(tmp_path: Any) -> None:
    parts = [make_day_set(0, 2, 3), make_day_set(2, 2, 3)]
    for i, part in enumerate(parts):
        RefShardFileSystem(part).save(str(tmp_path / f"part{i}"), "chunk-manifest")
    both = refshard_fs.concat([str(tmp_path / "part0"), str(tmp_path / "part1")], dim="time")
    expected = read(refshard_fs.concat(parts, dim="time"))
    for name, values in read(both).items():
        np.testing.assert_array_equal(values, expected[name])


def test_sets_with_templates_and_other_key_order_are_joined(tmp_path: Any) -> None:
    parts = [make_day_set(0, 2), make_day_set(2, 2), make_day_set(4, 2), make_day_set(6, 2)]
    expected = read(refshard_fs.concat(parts, dim="time"))
    url = parts[1]["air/0.0"][0]
    parts[1]["air/0.0"] = ["{{u}}", *parts[1]["air/0.0"][1:]]
    documents = [parts[0], {"version": 1, "templates": {"u": url}, "refs": parts[1]},
                 {"version": 1, "refs": dict(reversed(parts[2].items()))}, parts[3]]  # fmt: skip
    paths = []
    for i, document in enumerate(documents):
        paths.append(str(tmp_path / f"{i}.json"))
        RefShardFileSystem(document).save(paths[-1], "json")
        if i == 1:
            text = json.loads((tmp_path / "1.json").read_text())
            text["refs"]["air/0.0"] = parts[1]["air/0.0"]
            (tmp_path / "1.json").write_text(json.dumps({**text, "version": 1, "templates": {"u": url}}))
    for sets in (documents, paths):
        for name, values in read(refshard_fs.concat(sets, dim="time")).items():
            np.testing.assert_array_equal(values, expected[name])


def test_documents_are_read_once_each(http_server: Any) -> None:
    parts = [make_day_set(0, 2), make_day_set(2, 2), make_day_set(4, 2)]
    urls = []
    for i, part in enumerate(parts):
        if i % 2 == 0:
            part["time/0"] = np.arange(2 * i, 2 * i + 2, dtype="<i4").tobytes()
        inline = {key: value for key, value in part.items() if not key.startswith(("x/", "time/"))}
        urls.append(http_server.put(f"{i}.json", json.dumps(inline).encode()))
    refshard_fs.concat(urls, dim="time", allow="any")
    assert sorted(entry.path for entry in http_server.log.requests(method="GET")) == [f"/{i}.json" for i in range(3)]


def make_set(url: str) -> bytes:
    """Return the JSON of a set whose array ``air`` refers to ``url``."""
    refs = {
        **make_day_set(0, 2),
        "time/0": encode(bytes([0, 0, 0, 0, 1, 0, 0, 0])),
        "air/0.0": [url, 0, 24],
        "air/0.1": [url],
    }
    return json.dumps({key: value for key, value in refs.items() if not key.startswith("x/")}).encode()


def test_allowed_files_are_joined_and_read_by_one_request(http_server: RangeServer) -> None:
    """The first bytes of each file are requested once, and read again from memory, as without `allow=`."""
    urls = [http_server.put(f"a/{n}.nc", make_plain_file(n)) for n in range(6)]
    allow = [http_server.url + "/a/"]
    cube = refshard_fs.open(urls, "time", same=["x_bounds"], allow=allow)
    assert len(http_server.requests()) == len(urls)
    found = RefShardFileSystem(cube, allow=allow).cat([f"t/{n}.0" for n in range(6)])
    assert [np.frombuffer(chunk, ">f4")[0] for chunk in found.values()] == [*range(6)]
    assert len(http_server.requests()) == len(urls)


@pytest.mark.parametrize("place", ["beside", "given", "local"])
def test_references_outside_allow_are_refused(http_server: RangeServer, tmp_path: Path, place: str) -> None:
    """A set may not point to a file of its own server that is not listed, even if the user gives this file."""
    other = http_server.put("other/x.nc", make_plain_file(0))
    url = http_server.put("a/0.json", make_set(other))
    if place == "local":
        (tmp_path / "0.json").write_bytes(make_set(other))
        url = str(tmp_path / "0.json")
    allow = [http_server.url + "/a/"]
    with pytest.raises(TargetNotAllowed, match="outside allow="):
        refshard_fs.concat([other, url] if place == "given" else [url], dim="time", allow=allow, on_error="skip")


def test_files_given_outside_allow_are_joined(http_server: RangeServer, tmp_path: Path) -> None:
    urls = [http_server.put(f"a/{n}.nc", make_plain_file(n)) for n in range(2)]
    (tmp_path / "2.nc").write_bytes(make_plain_file(2))
    assert len(refshard_fs.open([*urls, str(tmp_path / "2.nc")], "time", allow=[])) == 3


def test_kept_scans_are_not_used_with_another_allow(http_server: RangeServer, tmp_path: Path) -> None:
    url = http_server.put("a/0.json", make_set(http_server.url + "/other/x"))
    given: dict[str, Any] = {"dim": "time", "resume": tmp_path / "scans"}
    refshard_fs.concat([url], **given, allow=[http_server.url + "/"])
    with pytest.raises(TargetNotAllowed, match="outside allow="):
        refshard_fs.concat([url], **given, allow=[http_server.url + "/a/"])


def test_kept_scans_are_not_used_with_other_prefixes(http_server: RangeServer, tmp_path: Path) -> None:
    with RangeServer() as inside:
        url = http_server.put("0.json", make_set(inside.put("x", b"0")))
        given: dict[str, Any] = {"dim": "time", "resume": tmp_path / "scans"}
        refshard_fs.concat([url], **given, options={inside.url + "/": {}})
        with pytest.raises(TargetNotAllowed, match="private networks"):
            refshard_fs.concat([url], **given)


def test_set_may_not_point_to_the_server_of_another_source(http_server: RangeServer) -> None:
    """A set may not point to the server of another source, whose options the user gave for all sources."""
    with RangeServer() as inside:
        other = inside.put("x.nc", make_plain_file(0))
        url = http_server.put("0.json", make_set(other))
        with pytest.raises(TargetNotAllowed, match="private networks"):
            refshard_fs.concat([url, other], dim="time", target_options={"headers": {"a": "b"}})


def test_parquet_sets_and_paths_are_joined(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    parts = []
    for i, kind in enumerate(["parquet", "json"]):
        path = str(tmp_path / f"part{i}.{kind}")
        RefShardFileSystem(make_day_set(2 * i, 2)).save(path, kind)
        parts.append(path)
    assert main(["concat", *parts, "-o", str(tmp_path / "all.json"), "--dim", "time"]) == 0
    found = read(str(tmp_path / "all.json"))
    np.testing.assert_array_equal(
        found["air"], read(refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 2)], "time"))["air"]
    )


def test_error_of_an_unreadable_source_says_how_to_skip_it(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text("no source")
    with pytest.raises(UnknownSource) as caught:
        refshard_fs.concat([str(tmp_path / "0.json"), str(tmp_path / "1.json")], "time")
    assert "on_error='skip' leaves out sources that cannot be opened" in caught.value.__notes__


def choose_days(source: RefShardFileSystem) -> RefShardFileSystem:
    return source.select(keep=["t"])


@pytest.mark.skipif(zarr.__version__.startswith("2."), reason="zarr 3 opens filesystems on its own event loop")
@pytest.mark.parametrize(
    "options",
    [{}, {"concat": {"preprocess": choose_days}}, {"remote_protocol": "file"}],
    ids=["scanned", "chosen", "one by one"],
)
def test_zarr_opens_a_pattern_on_its_event_loop(tmp_path: Path, http_server: RangeServer, options: Any) -> None:
    urls = []
    for number in range(2):
        data = json.dumps(make_days(2 * number, 2)).encode()
        (tmp_path / f"{number}.json").write_bytes(data)
        urls.append(http_server.put(f"{number}.json", data))
    group = zarr.open_group(f"refshard::{tmp_path}/*.json", mode="r", storage_options={"refshard": options})
    assert group["time"].shape == (4,)
    remote = zarr.open_group("refshard://", mode="r", storage_options={"fo": urls, "allow": "any", **options})
    assert remote["time"].shape == (4,)

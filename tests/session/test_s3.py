"""Manifests and targets on a real S3 server, with keys and anonymously."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from numcodecs.zstd import Zstd

from refshard_fs import ReferenceNotReachable, RefShardFileSystem, TargetChanged, snapshot
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.tools.info import summarise
from tests.servers.proxy import CountingProxy
from tests.support.reference_sets import VALUES, make_reference_set, open_group


@pytest.fixture
def bucket(s3_server: Any, request: pytest.FixtureRequest) -> str:
    name = "t" + str(abs(hash(request.node.name)))[:12]
    s3_server.create_bucket(name)
    refs, data = make_reference_set(f"s3://{name}/deep/x.bin")
    s3_server.put(f"{name}/deep/x.bin", data)
    s3_server.put(f"{name}/refs.json.zst", bytes(Zstd().encode(json.dumps({"version": 1, "refs": refs}).encode())))
    return name


@pytest.mark.parametrize("who", ["keys", "anonymous"])
def test_manifest_and_targets_on_s3_are_read(who: str, s3_server: Any, bucket: str) -> None:
    options = s3_server.storage_options if who == "keys" else s3_server.anonymous_options
    fs = fsspec.filesystem(
        "refshard",
        fo=f"s3://{bucket}/refs.json.zst",
        remote_protocol="s3",
        remote_options=options,
        target_options=options,
    )
    np.testing.assert_array_equal(open_group(fs)["a"][...], VALUES)
    assert fs.cat_file("g/b/3.1") == VALUES[6:, 3:].tobytes()
    assert fs.stats()["requests"] > 0


@pytest.mark.parametrize("mode", ["r", "a"])
def test_changes_by_other_writers_are_seen_by_new_readers(mode: str, s3_server: Any, bucket: str) -> None:
    """A new filesystem, and one after `discard()`, must not use what was known before another process replaced or
    removed the objects: reads raised `TargetChanged`.
    """
    for name in ("h/zarr.json", "h/x", "h/y"):
        s3_server.put(f"{bucket}/{name}", b'{"zarr_format": 3, "node_type": "group"}')

    def open_fs() -> RefShardFileSystem:
        options = s3_server.storage_options
        return RefShardFileSystem(f"s3://{bucket}/h", mode=mode, target_options=options, skip_instance_cache=True)

    fs = open_fs()
    assert fs.exists("x")
    assert fs.exists("y")
    s3_server.put(f"{bucket}/h/x", b"new")
    s3_server.delete(f"{bucket}/h/y")
    if mode == "a":
        fs.discard()
    else:
        fs = open_fs()
    assert fs.info("x")["size"] == 3
    assert fs.cat_file("x") == b"new"  # no TargetChanged
    assert not fs.exists("y")


def test_remote_options_also_open_the_manifest(s3_server: Any, bucket: str) -> None:
    fs = RefShardFileSystem(
        fo=f"s3://{bucket}/refs.json.zst", remote_protocol="s3", remote_options=s3_server.anonymous_options
    )
    assert fs.cat_file("a/0.0") == VALUES[:2, :3].tobytes()


def test_options_apply_by_url_prefix(s3_server: Any, bucket: str) -> None:
    options = {f"s3://{bucket}/": s3_server.storage_options}
    fs = RefShardFileSystem(fo=f"s3://{bucket}/refs.json.zst", options=options)
    assert fs.cat_file("a/0.0") == VALUES[:2, :3].tobytes()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_instance_of_s3fs_serves_the_references(asynchronous: bool, s3_server: Any, bucket: str) -> None:
    instance = fsspec.filesystem("s3", **s3_server.storage_options, asynchronous=asynchronous, skip_instance_cache=True)
    refs, _ = make_reference_set(f"s3://{bucket}/deep/x.bin")
    group = open_group(RefShardFileSystem(fo=refs, fs=instance))
    np.testing.assert_array_equal(group["a"][...], VALUES)


@pytest.mark.parametrize("who", ["keys", "anonymous"])
@pytest.mark.case(id="P5")
def test_plain_arguments_apply_to_the_source_and_its_bucket(who: str, s3_server: Any, bucket: str) -> None:
    """xarray passes ``storage_options={"anon": True}`` as such arguments."""
    options = s3_server.storage_options if who == "keys" else s3_server.anonymous_options
    fs = RefShardFileSystem(f"s3://{bucket}/refs.json.zst", **options)
    assert fs.cat_file("a/0.0") == VALUES[:2, :3].tobytes()
    xarray = pytest.importorskip("xarray")
    given = {"engine": "refshard", "storage_options": {**options, "skip_instance_cache": True}, "chunks": None}
    with xarray.open_dataset(f"s3://{bucket}/refs.json.zst", decode_cf=False, **given) as data:
        np.testing.assert_array_equal(data["a"].values, VALUES)


@pytest.mark.parametrize("how", ["remote_options", "protocol", "prefix", "environment"])
@pytest.mark.case(id="P12")
def test_saved_set_of_the_own_bucket_is_read(
    how: str, s3_server: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved set records that its references came from the bucket; options of the user permit it."""
    options, out = s3_server.storage_options, str(tmp_path / "out.json")
    RefShardFileSystem(f"s3://{bucket}/refs.json.zst", **options).save(out)
    given: dict[str, Any] = {
        "remote_options": {"remote_options": options},
        "protocol": {"remote_protocol": "s3", "remote_options": options},
        "prefix": {"options": {f"s3://{bucket}": options}},
        "environment": {},
    }[how]
    if how == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    fs = RefShardFileSystem(out, **given)
    assert fs.source.open().strangers == {f"s3://{bucket}"}
    assert fs.cat_file("a/0.0") == VALUES[:2, :3].tobytes()


@pytest.mark.parametrize("fast", [True, False])
def test_pins_are_compared_by_each_s3_reader(fast: bool, s3_server: Any, bucket: str) -> None:
    refs, data = make_reference_set(f"s3://{bucket}/deep/x.bin")
    options = {"remote_options": s3_server.storage_options, "fast_s3": fast, "skip_instance_cache": True}
    pinned = snapshot(refs, **options)
    assert RefShardFileSystem(pinned, **options).cat_file("a/0.0") == data[: refs["a/0.0"][2]]
    s3_server.put(f"{bucket}/deep/x.bin", data[::-1])
    with pytest.raises(TargetChanged):
        RefShardFileSystem(pinned, **options).cat_file("a/0.0")


def test_refused_bucket_is_named_in_the_line_to_paste(s3_server: Any, bucket: str) -> None:
    wrong = {**s3_server.storage_options, "secret": "wrong"}
    fs = RefShardFileSystem({"k": [f"s3://{bucket}/deep/x.bin", 0, 4]}, options={"s3://": wrong}, retries=0)
    with pytest.raises(ReferenceNotReachable, match=rf"options=\{{'s3://{bucket}/': \{{'anon': True\}}\}}"):
        fs.cat_file("k")


@pytest.fixture(scope="module")
def stored_image(s3_server: Any) -> str:
    """Return the URL of a hierarchy with an array, whose keys have slashes."""
    bucket = "stored-image"
    s3_server.create_bucket(bucket)
    array = {"zarr_format": 2, "shape": [2, 3, 4], "chunks": [1, 1, 1], "dtype": "|u1", "order": "C", "fill_value": 0}
    put = partial(s3_server.put, data=b"x")
    s3_server.put(f"{bucket}/i.zarr/.zgroup", b'{"zarr_format": 2}')
    document = {**array, "filters": None, "compressor": None, "dimension_separator": "/"}
    s3_server.put(f"{bucket}/i.zarr/p/a/.zarray", json.dumps(document).encode())
    for coords in np.ndindex(2, 3, 4):
        put(f"{bucket}/i.zarr/p/a/" + "/".join(map(str, coords)))
    put(f"{bucket}/i.zarr-other/x")
    return f"s3://{bucket}/i.zarr"


@pytest.fixture
def image(stored_image: str, s3_server: Any, s3_proxy: CountingProxy) -> RefShardFileSystem:
    """Return the hierarchy, as it is read through a proxy that has logged nothing yet."""
    options = {"key": "ak", "secret": s3_server.secret, "endpoint_url": s3_proxy.url}
    fs = RefShardFileSystem(stored_image, target_options=options, skip_instance_cache=True)
    assert fs.exists("p/a/.zarray")
    s3_proxy.clear()
    return fs


def list_listings(proxy: CountingProxy) -> list[str]:
    return [request.path for request in proxy.requests() if "list-type" in request.query]


def test_find_on_s3_takes_one_flat_listing(image: RefShardFileSystem, s3_proxy: CountingProxy) -> None:
    every = image.find("")
    assert len(list_listings(s3_proxy)) == 1
    assert len(every) == 2 + 24
    assert {".zgroup", "p/a/.zarray", "p/a/0/0/0", "p/a/1/2/3"} <= set(every)
    walked = {f"{root}/{name}".strip("/") for root, _, files in image.walk("") for name in files}
    assert walked == set(every)


@pytest.mark.parametrize(
    "ask",
    [
        lambda fs: fs.du("p") > 24,
        lambda fs: len(fs.find("p/a", withdirs=True)) == 1 + 2 + 6 + 25,
        lambda fs: {"p/a/1/2", "p/a/1/2/3"} <= set(fs.glob("p/**")),
        lambda fs: fs.find("p/a/1/2/3") == ["p/a/1/2/3"],
        lambda fs: fs.find("q") == [],
        lambda fs: summarise(fs).arrays[0].present == 24,
        lambda fs: len(collect_references(fs).tables["p/a"]) == 24,
    ],
)
def test_recursive_listings_on_s3_take_few_requests(
    ask: Callable[[RefShardFileSystem], bool], image: RefShardFileSystem, s3_proxy: CountingProxy
) -> None:
    assert ask(image)
    assert len(list_listings(s3_proxy)) <= 3


@pytest.mark.parametrize("ask", [lambda fs: fs.find(""), summarise, lambda fs: collect_references(fs)])
def test_documents_missing_from_a_listing_are_not_requested(
    ask: Callable[[RefShardFileSystem], Any], image: RefShardFileSystem, s3_proxy: CountingProxy
) -> None:
    ask(image)
    asked = [r.path.partition("/i.zarr/")[2] for r in s3_proxy.requests() if "list-type" not in r.query]
    assert set(asked) <= {".zgroup", "p/a/.zarray"}
    assert len(asked) == len(set(asked))


def test_find_reads_documents_of_all_levels_in_one_round(s3_server: Any, bucket: str, s3_proxy: CountingProxy) -> None:
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    for path in ("a", "g/a", "g/h/a"):
        document = json.dumps({**array, "filters": None, "compressor": None})
        s3_server.put(f"{bucket}/deep.zarr/{path}/.zarray", document.encode())
        s3_server.put(f"{bucket}/deep.zarr/{path}/0", b"x")
    s3_server.put(f"{bucket}/deep.zarr/.zgroup", b'{"zarr_format": 2}')
    options = {"key": "ak", "secret": s3_server.secret, "endpoint_url": s3_proxy.url}
    fs = RefShardFileSystem(f"s3://{bucket}/deep.zarr", target_options=options, skip_instance_cache=True)
    assert fs.exists("a/0")
    s3_proxy.clear()
    s3_proxy.latency = 0.2
    assert len(fs.find("")) == 7
    assert max(request.round for request in s3_proxy.requests()) == 2  # a listing, and the documents


def test_each_request_to_s3_is_logged(
    image: RefShardFileSystem, s3_proxy: CountingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        image.find("")
        image.ls("p")
        image.cat(["p/a/0/0/0", "p/a/1/2/3"])
    logged = [record.getMessage() for record in caplog.records if record.name == "refshard_fs.targets"]
    assert sum("list-type=2" in text for text in logged) == len(list_listings(s3_proxy)) > 0
    chunks = [request.path.rpartition("/p/")[2] for request in s3_proxy.requests() if "/p/" in request.path]
    assert len(chunks) == 2
    assert all(any(f"/p/{chunk}:" in text for text in logged) for chunk in chunks)
    assert len(logged) == len(s3_proxy.requests())
    assert image.stats()["listings"] > 0

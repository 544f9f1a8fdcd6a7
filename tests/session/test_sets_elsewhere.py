"""Sources in object stores and behind chains: their options, names, and neighbouring objects."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission
from refshard_fs.security.policy import resolve
from tests.servers.s3 import SeaweedServer

DATA = b"0123456789"
NAMES = [
    "x y.bin",
    "a+b",
    "a%20b",
    "50%",
    "~t",
    "a#b",
    "häß",
    "日本",
    "a&b=c",
    "(x)'!*",
    "a:b",
    "[x]",
    "{x}",
    "a;b",
    "a@b",
]


@pytest.fixture(scope="module")
def bucket(s3_server: SeaweedServer) -> str:
    """A bucket with a hierarchy, the same in an archive, and objects with odd names."""
    s3_server.create_bucket("elsewhere")
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for key, body in {".zgroup": b'{"zarr_format": 2}', "k": DATA}.items():
            s3_server.put(f"elsewhere/a.zarr/{key}", body)
            archive.writestr(key, body)
    s3_server.put("elsewhere/a.zip", held.getvalue())
    refs: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        s3_server.put(f"elsewhere/my data/{name}", DATA)
        refs |= {f"absolute/{number}": [f"s3://elsewhere/my data/{name}", 2, 3], f"relative/{number}": [name, 2, 3]}
    s3_server.put("elsewhere/my data/refs.json", json.dumps(refs).encode())
    return "s3://elsewhere"


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.evidence(id="T17")
def test_objects_with_special_names_get_the_options_of_the_set(
    bucket: str, s3_server: SeaweedServer, fast: bool
) -> None:
    fs = RefShardFileSystem(
        f"{bucket}/my data/refs.json", target_options=s3_server.storage_options, fast_s3=fast, index_cache=False
    )
    keys = [f"{kind}/{number}" for kind in ("absolute", "relative") for number in range(len(NAMES))]
    assert fs.cat(keys) == dict.fromkeys(keys, b"234")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # blockcache leaves its file open
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
@pytest.mark.evidence(id="T23")
def test_hierarchy_is_read_through_the_users_own_cache(
    bucket: str, s3_server: SeaweedServer, cache: str, tmp_path: Path
) -> None:
    options = {"s3": s3_server.storage_options, cache: {"cache_storage": str(tmp_path)}}
    fs = RefShardFileSystem(f"{cache}::{bucket}/a.zarr", target_options=options)
    assert fs.cat_file("k") == DATA
    assert list(tmp_path.iterdir())


def test_archive_is_opened_with_options_of_its_server(bucket: str, s3_server: SeaweedServer) -> None:
    fs = RefShardFileSystem(f"zip::{bucket}/a.zip", target_options={"s3": s3_server.storage_options})
    assert fs.cat_file("k") == DATA


def test_cache_protocol_does_not_change_admission() -> None:
    rule = Admission.of("simplecache::s3://b/a.zarr", None, (), ())
    assert rule.admit("simplecache::s3://b/a.zarr/k")[1] is Access.OWN
    assert rule.admit("simplecache::s3://b/other")[1] is Access.OWN
    for url in (
        "simplecache::file:///etc/passwd",
        "filecache::s3://b/x",
        "simplecache::s3://else/x",
        "zip::s3://b/a.zip",
    ):
        with pytest.raises(TargetNotAllowed):
            rule.admit(url)


@pytest.mark.parametrize("key", ["a//b", "a/./b", "./b", "a/.", "x y", "#", "?"])
def test_object_store_names_are_taken_literally(key: str) -> None:
    rule = Admission.of("s3://b/set.json", None, (), ())
    assert rule.admit(f"s3://b/{key}") == (f"s3://b/{key}", Access.OWN)
    if not key.startswith("./"):
        assert resolve(key, "s3://b", None) == f"s3://b/{key}"


@pytest.mark.parametrize("url", ["s3://b/a/../b", "s3://b/%2e%2E/b", "https://h/a/./b", "s3://b/a\\b", "s3://b/a\nb"])
def test_ambiguous_object_names_are_refused(url: str) -> None:
    with pytest.raises(TargetNotAllowed):
        Admission.of("s3://b/set.json", None, (), ()).admit(url)

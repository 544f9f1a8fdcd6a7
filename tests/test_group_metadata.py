"""Metadata of groups are read as zarr reads them, in few requests; missing groups are errors."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.group_metadata import GroupNode, read_groups
from tests.servers.http import RangeServer

ARRAY_2 = {
    "zarr_format": 2,
    "shape": [2],
    "chunks": [2],
    "dtype": "|u1",
    "order": "C",
    "fill_value": 0,
    "filters": None,
    "compressor": None,
}
ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
    "attributes": {"units": "m"},
}
GROUP_3 = {"zarr_format": 3, "node_type": "group", "attributes": {"title": "g"}}

VERSION_2: dict[str, Any] = {
    ".zgroup": {"zarr_format": 2},
    ".zattrs": {"title": "g"},
    "a/.zarray": ARRAY_2,
    "a/.zattrs": {"units": "m"},
    "z/.zgroup": {"zarr_format": 2},
    "z/inner/.zgroup": {"zarr_format": 2},
    "z/inner/b/.zarray": ARRAY_2,
    "b/.zgroup": {"zarr_format": 2},
}
VERSION_3: dict[str, Any] = {
    "zarr.json": GROUP_3,
    "a/zarr.json": ARRAY_3,
    "z/zarr.json": GROUP_3,
    "z/inner/zarr.json": GROUP_3,
    "z/inner/b/zarr.json": ARRAY_3,
    "b/zarr.json": GROUP_3,
}


def consolidate(documents: dict[str, Any]) -> dict[str, Any]:
    """Return ``documents`` with consolidated metadata at the root."""
    if ".zgroup" in documents:
        return {**documents, ".zmetadata": {"zarr_consolidated_format": 1, "metadata": documents}}
    members = {key.removesuffix("/zarr.json"): value for key, value in documents.items() if key != "zarr.json"}
    inline = {"kind": "inline", "must_understand": False, "metadata": members}
    return {**documents, "zarr.json": {**documents["zarr.json"], "consolidated_metadata": inline}}


def make_references(documents: dict[str, Any]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in documents.items()}


def read(source: Any, path: str = "", **options: Any) -> dict[str, GroupNode]:
    fs = RefShardFileSystem(source, skip_instance_cache=True)
    found: dict[str, GroupNode] = fs.source.wait(lambda: read_groups(fs.source, path, **options))
    return found


@pytest.mark.parametrize("documents", [VERSION_2, VERSION_3], ids=["2", "3"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_group_has_its_members_in_the_order_of_the_source(documents: dict[str, Any], consolidated: bool) -> None:
    refs = make_references(consolidate(documents) if consolidated else documents)
    group = read(refs, consolidated=consolidated)[""]
    assert (group.attributes, [*group.arrays], group.groups) == ({"title": "g"}, ["a"], ["z", "b"])
    assert group.arrays["a"].attributes == {"units": "m"}
    assert group.arrays["a"].document["shape"] == [2]


@pytest.mark.parametrize("documents", [VERSION_2, VERSION_3], ids=["2", "3"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_groups_come_before_the_groups_in_them(documents: dict[str, Any], consolidated: bool) -> None:
    refs = make_references(consolidate(documents) if consolidated else documents)
    assert [*read(refs, consolidated=consolidated, is_deep=True)] == ["", "z", "z/inner", "b"]
    below = read(refs, "z", consolidated=consolidated, is_deep=True)
    assert [*below] == ["z", "z/inner"]
    assert [*below["z/inner"].arrays] == ["b"]


@pytest.mark.parametrize("documents", [VERSION_2, VERSION_3], ids=["2", "3"])
def test_consolidated_metadata_take_no_request_of_their_own(
    documents: dict[str, Any], http_server: RangeServer
) -> None:
    """They were already requested when the source was recognised."""
    for key, value in consolidate(documents).items():
        http_server.put(f"/store/{key}", json.dumps(value).encode())
    fs = RefShardFileSystem(f"{http_server.url}/store", skip_instance_cache=True)
    fs.source.open()
    before = len(http_server.requests())
    fs.source.wait(lambda: read_groups(fs.source, "", consolidated=True, is_deep=True))
    assert len(http_server.requests()) == before


def test_metadata_that_are_not_consolidated_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected consolidated metadata at the root"):
        read(make_references(VERSION_2), consolidated=True)


@pytest.mark.parametrize("consolidated", [True, False])
def test_missing_group_is_an_error_with_the_groups_that_exist(consolidated: bool) -> None:
    refs = make_references(consolidate(VERSION_2))
    with pytest.raises(FileNotFoundError, match="no group 'nope': the groups at the root are b, z"):
        read(refs, "nope", consolidated=consolidated)
    with pytest.raises(ValueError, match="expected a group at 'a', found an array"):
        read(refs, "a", consolidated=consolidated)


def test_version_of_zarr_metadata_may_be_chosen() -> None:
    both = make_references(
        {**VERSION_2, "zarr.json": {**GROUP_3, "attributes": {"title": "three"}}, "a/zarr.json": ARRAY_3}
    )
    assert read(both, consolidated=False)[""].zarr_format == 3
    assert read(both, consolidated=False, zarr_format=2)[""].attributes == {"title": "g"}


@pytest.mark.parametrize("key", ["z/.zgroup", "a/.zarray"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_document_of_another_version_is_an_error(key: str, consolidated: bool) -> None:
    documents = {**VERSION_2, key: {**VERSION_2[key], "zarr_format": 9}}
    refs = make_references(consolidate(documents) if consolidated else documents)
    with pytest.raises(ManifestError, match=f"'{key}': expected zarr_format 2, got 9"):
        read(refs, consolidated=consolidated)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([], "found no key at all. Was it written to the end?"),
        (["b.nc"], "found 'b.nc'. To read a file in the archive, open 'zip://b.nc::{url}'"),
        (["g/.zgroup"], "found 'g'. A group or an array below the root is opened by its path"),
    ],
)
def test_zip_without_a_root_group_is_an_error_with_its_names(tmp_path: Path, members: list[str], found: str) -> None:
    url = str(tmp_path / "a.zip")
    with zipfile.ZipFile(url, "w") as file:
        for name in members:
            file.writestr(name, '{"zarr_format": 2}')
    with pytest.raises(FileNotFoundError) as caught:
        read(url, consolidated=False)
    expected = f"{url} (format zip) has no group at its root: expected a key 'zarr.json' or '.zgroup', "
    assert str(caught.value).startswith(expected + found.format(url=url))


@pytest.mark.parametrize("document", ["{}", '{"version": 1, "refs": {}}'])
def test_empty_set_of_references_is_an_error_that_says_so(tmp_path: Path, document: str) -> None:
    (tmp_path / "refs.json").write_text(document)
    expected = "has no group at its root: expected a key 'zarr.json' or '.zgroup', found no key at all"
    for source, name in ((str(tmp_path / "refs.json"), "kerchunk-json"), (json.loads(document), "in memory")):
        with pytest.raises(FileNotFoundError, match=f"{name}.*{expected}"):
            read(source, consolidated=False)


def test_source_that_cannot_be_listed_has_an_error_without_names(http_server: RangeServer) -> None:
    url = http_server.put("s.zarr/a/.zarray", json.dumps(ARRAY_2).encode()).removesuffix("/a/.zarray")
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert fs.cat_file("a/.zarray")
    with pytest.raises(FileNotFoundError, match=r"or '\.zgroup'\. A group or an array below the root"):
        fs.source.wait(lambda: read_groups(fs.source, "", consolidated=False))

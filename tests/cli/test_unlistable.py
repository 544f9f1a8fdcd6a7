"""Commands on a zarr hierarchy over plain HTTP, which has no listings: they show the known arrays, or name a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.support.cli_sets import ARRAY, V3_ARRAY

SHARDED = V3_ARRAY | {
    "shape": [8, 4],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 4],
                "codecs": [{"name": "bytes"}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            },
        }
    ],
}
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
INLINE = {"kind": "inline", "must_understand": False}


def put(server: RangeServer, store: str, documents: dict[str, Any], **chunks: bytes) -> str:
    """Put a store on the server; return its URL."""
    for key, document in documents.items():
        server.put(f"/{store}/{key}", json.dumps(document).encode())
    for key, data in chunks.items():
        server.put(f"/{store}/{key.replace('_', '/')}", data)
    return f"{server.url}/{store}"


@pytest.fixture
def consolidated(http_server: RangeServer) -> str:
    members = {"a": V3_ARRAY, "g": GROUP, "g/s": SHARDED}
    root = GROUP | {"consolidated_metadata": INLINE | {"metadata": members}}
    documents = {"zarr.json": root, **{f"{path}/zarr.json": doc for path, doc in members.items()}}
    return put(http_server, "whole.zarr", documents, a_c_1_0=bytes(8))


@pytest.fixture
def version_2(http_server: RangeServer) -> str:
    metadata = {".zgroup": {"zarr_format": 2}, "a/.zarray": ARRAY, "a/.zattrs": {"units": "K"}}
    documents = metadata | {".zmetadata": {"zarr_consolidated_format": 1, "metadata": metadata}}
    return put(http_server, "two.zarr", documents, a_0=b"ab")


def test_info_shows_arrays_and_says_that_chunks_are_not_known(
    consolidated: str, version_2: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", consolidated]) == 0
    said = capsys.readouterr().out
    assert "2 groups, 2 arrays" in said
    assert "not listable of 2 " in said
    assert "not listable of 4 " in said  # inner chunks
    assert "warning: chunks of 2 arrays cannot be listed" in said
    assert "none of its" not in said
    assert main(["info", "--json", version_2]) == 0
    (array,) = json.loads(capsys.readouterr().out)["arrays"]
    assert (array["name"], array["present"], array["possible"]) == ("a", None, 3)


def test_tree_reads_only_metadata(
    consolidated: str, http_server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tree", consolidated]) == 0
    assert "s (8 × 4) uint8" in capsys.readouterr().out
    read = {request.path for request in http_server.requests() if request.status != 404}
    assert read
    assert all(path.endswith("/zarr.json") for path in read)


@pytest.mark.parametrize("document", ["zarr.json", ".zarray"])
def test_array_at_the_root_needs_no_consolidated_metadata(
    document: str, http_server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"zarr.json": V3_ARRAY, ".zarray": ARRAY}[document]
    chunk = {"zarr.json": "c_0_0", ".zarray": "1"}[document]
    url = put(http_server, "one.zarr", {document: one}, **{chunk: bytes(8)})
    assert main(["info", url]) == 0
    assert "not listable of " in capsys.readouterr().out
    assert main(["snapshot", url, str(tmp_path / "refs.json")]) == 0
    capsys.readouterr()
    assert main(["info", "--json", str(tmp_path / "refs.json"), "--option", "allow=any"]) == 0
    (array,) = json.loads(capsys.readouterr().out)["arrays"]
    assert array["present"] == 1


def test_unlistable_group_error_has_a_remedy(http_server: RangeServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = put(http_server, "bare.zarr", {"zarr.json": GROUP, "a/zarr.json": V3_ARRAY})
    for command in (["info", url], ["tree", url], ["ls", url], ["diff", url, url], ["map", url, "-o", "x.svg"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert url in said
        assert "zarr.consolidate_metadata" in said
    assert main(["tree", url, "a"]) == 0


def test_map_error_names_array_and_remedy(
    consolidated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", consolidated, "a", "-o", str(tmp_path / "x.svg")]) == 2
    said = capsys.readouterr().err
    assert f"'a' in {consolidated}" in said
    assert "refshard snapshot" in said
    assert main(["snapshot", consolidated, str(tmp_path / "refs.json")]) == 0
    assert main(["map", str(tmp_path / "refs.json"), "a", "-o", str(tmp_path / "x.svg")]) == 0
    assert "1 of 2 chunks" in capsys.readouterr().out


def test_diff_names_arrays_with_uncompared_chunks(
    consolidated: str, http_server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", consolidated, consolidated]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"? chunks of {path} cannot be listed in both sources, and were not compared" for path in ("a", "g/s")
    ]
    other = put(http_server, "other.zarr", {"zarr.json": V3_ARRAY | {"fill_value": 1}})
    alike = put(http_server, "alike.zarr", {"zarr.json": V3_ARRAY})
    assert main(["diff", "--json", alike, other]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["metadata_changed"] == [{"key": "zarr.json", "fields": ["fill_value"]}]
    assert (found["not_compared"], found["same"]) == ([""], False)


def test_failed_metadata_read_is_an_error(
    consolidated: str, http_server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    http_server.fault(403, "/whole.zarr/g/s/zarr.json")
    assert main(["info", consolidated]) == 2
    assert "g/s/zarr.json" in capsys.readouterr().err


def test_check_names_unlisted_arrays(consolidated: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", consolidated]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(finding["kind"], finding["key"]) for finding in report["findings"]] == [
        ("not-listable", "a"),
        ("not-listable", "g/s"),
    ]
    assert (report["arrays"], report["missing"]) == (2, 0)

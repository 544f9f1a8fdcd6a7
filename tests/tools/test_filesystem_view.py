"""Filesystems in a notebook: no I/O, and no secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.notebook_views import ARRAY, check_html


def test_filesystem_over_references_shows_its_arrays_and_targets() -> None:
    said = check_html(RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2]})._repr_html_())
    cells = re.findall(r"<t[dh](?: [^>]*)?>([^<]*)<", said)
    assert cells[:10] == ["array", "shape", "dtype", "chunk", "chunks", "a", "4", "|u1", "2", "2"]
    assert "<summary>1 target</summary>" in said
    assert "<td>s3://b/k</td>" in said
    assert "a source in memory" in said


def test_filesystem_view_names_the_source() -> None:
    fs, other = (RefShardFileSystem("https://me:secret@host/refs.json", allow=["s3://b/"], retries=n) for n in (1, 2))
    assert repr(fs).startswith("<RefShardFileSystem of https://...@host/refs.json at 0x")
    assert repr(fs) != repr(other)
    assert repr(RefShardFileSystem({})).startswith("<RefShardFileSystem of a source in memory at 0x")


def test_view_makes_no_request(http_server: RangeServer) -> None:
    url = http_server.put("/refs.json", json.dumps({"a/.zarray": ARRAY, "m/.zarray": ["x", 0, 9]}).encode())
    fs = RefShardFileSystem(url)
    assert "not opened yet" in check_html(fs._repr_html_())
    assert http_server.log.requests() == []
    fs.ls("")
    before = len(http_server.log.requests())
    said = check_html(fs._repr_html_())
    assert "kerchunk-json" in said
    assert "<td>a</td>" in said
    assert len(http_server.log.requests()) == before


@pytest.mark.parametrize("name", ["shards/zarrs-rust-8x8", "values/air.parq", "zips/ome-zarr-simple-0.5.zip"])
def test_sources_of_three_formats_can_be_shown(shared_data: Path, name: str) -> None:
    fs = RefShardFileSystem(str(shared_data / name))
    check_html(fs._repr_html_())
    fs.find("")
    before = fs.stats()
    assert "<th" in check_html(fs._repr_html_())
    assert fs.stats() == before


@pytest.mark.case(id="P22")
def test_view_hides_secrets_and_escapes_keys() -> None:
    refs: dict[str, Any] = {
        "<script>/.zarray": ARRAY,
        "<script>/0": ["https://me:hush@h/x?token=secret", 0, 2],
        "<script>/1": ["s3://<img src=x>\x1b[31m", 0, 2],
    }
    fs = RefShardFileSystem(refs, remote_options={"key": "hush", "secret": "hush"}, remote_protocol="s3")
    said = check_html(fs._repr_html_())
    assert "hush" not in said
    assert "token=secret" not in said
    assert "<script" not in said
    assert "<img" not in said
    assert "\x1b" not in said


def test_list_of_many_arrays_is_cut_short() -> None:
    said = RefShardFileSystem({f"a{i}/.zarray": ARRAY for i in range(100)})._repr_html_()
    assert "and 70 more" in said
    assert said.count("<tr>") < 50


def test_view_of_damaged_metadata_names_the_document() -> None:
    meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "fill_value": 0}
    refs = {f"v{i}/.zarray": json.dumps(meta) for i in range(1000)}
    fs = RefShardFileSystem({**refs, "v7/.zarray": json.dumps(meta | {"shape": [-1]})})
    assert len(fs.ls("")) == 1000
    assert "its arrays cannot be listed: &#x27;v7/.zarray&#x27;" in fs._repr_html_()

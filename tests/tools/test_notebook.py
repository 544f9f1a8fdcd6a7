"""What a notebook shows: no I/O, nothing secret, and pictures."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.stats import Counters
from tests.servers.http import RangeServer

META = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}
ARRAY = json.dumps(META | {"filters": None, "compressor": None})


def well_formed(html: str) -> str:
    ElementTree.fromstring(html)
    return html


def test_a_filesystem_over_references_shows_its_arrays_and_targets() -> None:
    said = well_formed(RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2]})._repr_html_())
    cells = re.findall(r"<t[dh][^>]*>([^<]*)<", said)
    assert cells[:12] == ["array", "shape", "dtype", "chunk", "chunks", "shard", "a", "4", "|u1", "2", "2", ""]
    assert "1 target: <code>s3://b/k</code>" in said
    assert "references in memory" in said


def test_what_a_filesystem_is_called_names_its_source_and_tells_it_from_others() -> None:
    fs, other = (RefShardFileSystem("https://me:secret@host/refs.json", allow=["s3://b/"], retries=n) for n in (1, 2))
    assert repr(fs).startswith("<RefShardFileSystem of https://...@host/refs.json at 0x")
    assert repr(fs) != repr(other)
    assert repr(RefShardFileSystem({})).startswith("<RefShardFileSystem of references in memory at 0x")


def test_showing_it_reads_nothing(http_server: RangeServer) -> None:
    url = http_server.put("/refs.json", json.dumps({"a/.zarray": ARRAY, "m/.zarray": ["x", 0, 9]}).encode())
    fs = RefShardFileSystem(url)
    assert "not opened yet" in well_formed(fs._repr_html_())
    assert http_server.log.requests() == []
    fs.ls("")
    before = len(http_server.log.requests())
    said = well_formed(fs._repr_html_())
    assert "kerchunk-json" in said
    assert '<td style="text-align:left">a</td>' in said
    assert len(http_server.log.requests()) == before


@pytest.mark.parametrize("name", ["shards/zarrs-rust-8x8", "values/air.parq", "zips/ome-zarr-simple-0.5.zip"])
def test_every_source_can_be_shown(shared_data: Path, name: str) -> None:
    fs = RefShardFileSystem(str(shared_data / name))
    well_formed(fs._repr_html_())
    fs.find("")
    before = fs.stats()
    assert "<th" in well_formed(fs._repr_html_())
    assert fs.stats() == before


def test_nothing_secret_and_no_markup_of_keys_is_shown() -> None:
    refs: dict[str, Any] = {
        "<script>/.zarray": ARRAY,
        "<script>/0": ["https://me:hush@h/x?token=secret", 0, 2],
        "<script>/1": ["s3://<img src=x>\x1b[31m", 0, 2],
    }
    fs = RefShardFileSystem(refs, remote_options={"key": "hush", "secret": "hush"}, remote_protocol="s3")
    said = well_formed(fs._repr_html_())
    assert "hush" not in said
    assert "token=secret" not in said
    assert "<script" not in said
    assert "<img" not in said
    assert "\x1b" not in said


def test_many_arrays_are_cut_short() -> None:
    said = RefShardFileSystem({f"a{i}/.zarray": ARRAY for i in range(100)})._repr_html_()
    assert "and 70 more arrays" in said
    assert said.count("<tr>") < 50


def test_damaged_metadata_among_many_arrays_are_told_where_arrays_are_listed() -> None:
    meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "fill_value": 0}
    refs = {f"v{i}/.zarray": json.dumps(meta) for i in range(1000)}
    fs = RefShardFileSystem({**refs, "v7/.zarray": json.dumps(meta | {"shape": [-1]})})
    assert len(fs.ls("")) == 1000
    assert "its arrays cannot be told: &#x27;v7/.zarray&#x27;" in fs._repr_html_()


def test_counters_are_a_dict_that_prints_as_a_table() -> None:
    fs = RefShardFileSystem({"a": "text"})
    fs.cat("a")
    counters = fs.stats()
    assert counters == dict(counters)
    assert pickle.loads(pickle.dumps(counters)) == counters
    assert json.loads(json.dumps(counters)) == counters
    assert repr(Counters(keys=1234, bytes_fetched=2048)) == "keys           1,234\nbytes_fetched  2,048  (2.0 KiB)"
    assert '<td style="text-align:right">1,234</td>' in well_formed(Counters(keys=1234)._repr_html_())


def test_visualize_makes_a_picture_that_saves_itself(tmp_path: Path) -> None:
    fs = RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2]})
    made = fs.visualize("a", slice(0, 2))
    assert repr(made) == "<Picture: Where the bytes of a lie: 2 of 2 chunks in 1 file; reads 1 chunk in 1 request: 2 B>"
    for name in ("a.svg", "a.html"):
        made.save(tmp_path / name)
        assert "a[0:2]  reads 1 chunk" in (tmp_path / name).read_text()
    well_formed(made._repr_html_())
    assert fs.visualize(select="a[1:]").map.asked is not None
    with pytest.raises(ValueError, match=r"\.gif"):
        made.save(tmp_path / "a.gif")


def test_a_filesystem_of_an_event_loop_of_its_own_can_be_pictured(shared_data: Path) -> None:
    fs = RefShardFileSystem(str(shared_data / "shards" / "zarrs-rust-8x8"), asynchronous=True)
    assert len(fs.visualize().map.extents) == 4

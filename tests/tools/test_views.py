"""What a notebook shows: no I/O, nothing secret, and pictures."""

from __future__ import annotations

import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.tools.views import Counters
from tests.servers.http import RangeServer
from tests.support.notebook_views import ARRAY, views


def well_formed(html: str) -> str:
    ElementTree.fromstring(html)
    return html


def test_filesystem_over_references_shows_its_arrays_and_targets() -> None:
    said = well_formed(RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2]})._repr_html_())
    cells = re.findall(r"<t[dh](?: [^>]*)?>([^<]*)<", said)
    assert cells[:10] == ["array", "shape", "dtype", "chunk", "chunks", "a", "4", "|u1", "2", "2"]
    assert "<summary>1 target</summary>" in said
    assert "<td>s3://b/k</td>" in said
    assert "references in memory" in said


class Structure(HTMLParser):
    """What a view is made of: its tables as rows of cells, the summaries of its details, the text outside of both."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.tables: list[list[list[str]]] = []
        self.summaries: list[str] = []
        self.open_details = 0
        self._inside = ""
        self.feed(well_formed(html))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open_details += tag == "details" and any(name == "open" for name, _ in attrs)
        self._inside = tag
        match tag:
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "td" | "th":
                self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self._inside == "summary":
            self.summaries.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def test_views_have_no_empty_columns_and_fold_details(tmp_path: Path) -> None:
    for name, shown in views(tmp_path).items():
        found = Structure(shown._repr_html_())
        assert found.tables, name
        assert found.open_details == 0
        assert found.tags <= {
            *("div", "style", "h4", "small", "p", "details", "summary", "table", "thead", "tbody", "tr", "th", "td")
        }
        for heading, *rows in found.tables:
            assert rows
            assert all(len(row) == len(heading) for row in rows)
            assert all(any(cells) for cells in zip(*rows, strict=True)), (name, heading)


def test_views_tell_dimensions_and_what_was_joined_and_checked(tmp_path: Path) -> None:
    found = {name: Structure(shown._repr_html_()) for name, shown in views(tmp_path).items()}
    assert found["filesystem"].tables[0] == [
        ["array", "shape", "dtype", "chunk", "chunks"],
        ["<air>", "<time> 2 × x 3", "|u1", "1 × 3", "2"],
    ]
    assert found["concat"].tables[0][1][:2] == ["<air>", "<time> 24 × x 3"]
    assert found["concat"].summaries == ["12 targets"]
    lazy = found["lazy"].tables[0]
    assert lazy[0] == ["set", "starts at", "length"]
    assert lazy[2][1:] == ["2", "2"]
    assert len(lazy) == 11
    assert found["check"].tables[0][1][:3] == ["error", "outside-grid", "<a>/7"]
    assert found["check"].summaries == ["What was looked at"]


def test_a_plan_is_a_list_that_prints_as_a_table_of_80_columns() -> None:
    url = "https://me:secret@host/archive/of/model/runs/air-temperature.nc"
    refs = {f"air/{n}.0.0": [url, 10**11 + n * 10**9, 10**6] for n in range(30)}
    fs = RefShardFileSystem({**refs, "text": "x", "log": ["s3://bucket/log"]})
    plan = fs.plan([*refs, "text", "log"])
    assert isinstance(plan, list)
    assert plan[0] == (url, 10**11, 10**11 + 10**6, ("air/0.0.0",))
    lines = repr(plan).splitlines()
    assert lines[0] == "31 requests for 31 keys of 2 targets: 29 MiB and 1 of unknown size"
    assert lines[1] == "https://...@host/archive/of/model/runs/air-temperature.nc"
    assert lines[2].split("  ") == ["", "100,000,000,000 to 100,001,000,000", "977 KiB", "air/0.0.0"]
    assert lines[-1] == "and 11 more"
    assert max(map(len, lines)) <= 80
    shown = Structure(plan._repr_html_())
    assert shown.tables[0][0] == ["target", "bytes", "size", "keys"]
    assert len(shown.tables[0]) == 21
    assert repr(fs.plan("log")).splitlines()[0] == "1 request for 1 key of 1 target: 1 of unknown size"
    assert "0 to the end" in repr(fs.plan("log"))
    assert repr(fs.plan("text")) == "no request: the source itself has it all"


def test_views_follow_the_theme_of_the_notebook() -> None:
    said = Counters(keys=1)._repr_html_()
    for theme in ("prefers-color-scheme:dark", 'data-jp-theme-light="false"', ".vscode-dark", 'data-theme="dark"'):
        assert theme in said


def test_cells_of_views_look_as_they_should_in_jupyterlab_too() -> None:
    """Its style for tables, of one class, puts all cells on the right."""
    style = Counters(keys=1)._repr_html_().partition("<style>")[2].partition("</style>")[0]
    aligned = [line for line in style.splitlines() if "text-align" in line]
    assert len(aligned) == 2
    assert [line for line in aligned if not line.startswith(".rs.rs-view th")] == []


def test_name_of_a_filesystem_tells_its_source() -> None:
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
    assert "<td>a</td>" in said
    assert len(http_server.log.requests()) == before


@pytest.mark.parametrize("name", ["shards/zarrs-rust-8x8", "values/air.parq", "zips/ome-zarr-simple-0.5.zip"])
def test_every_source_can_be_shown(shared_data: Path, name: str) -> None:
    fs = RefShardFileSystem(str(shared_data / name))
    well_formed(fs._repr_html_())
    fs.find("")
    before = fs.stats()
    assert "<th" in well_formed(fs._repr_html_())
    assert fs.stats() == before


@pytest.mark.case(id="P22")
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
    assert "and 70 more" in said
    assert said.count("<tr>") < 50


def test_damaged_metadata_among_many_is_told_where_listed() -> None:
    meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "fill_value": 0}
    refs = {f"v{i}/.zarray": json.dumps(meta) for i in range(1000)}
    fs = RefShardFileSystem({**refs, "v7/.zarray": json.dumps(meta | {"shape": [-1]})})
    assert len(fs.ls("")) == 1000
    assert "its arrays cannot be listed: &#x27;v7/.zarray&#x27;" in fs._repr_html_()


def test_counters_are_a_dict_that_prints_as_a_table() -> None:
    fs = RefShardFileSystem({"a": "text"})
    fs.cat("a")
    counters = fs.stats()
    assert counters == dict(counters)
    assert pickle.loads(pickle.dumps(counters)) == counters
    assert json.loads(json.dumps(counters)) == counters
    assert repr(Counters(keys=1234, bytes_fetched=2048)) == "keys           1,234\nbytes_fetched  2,048  (2.0 KiB)"
    assert "1,234</td>" in well_formed(Counters(keys=1234)._repr_html_())


def test_visualize_makes_a_picture_that_saves_itself(tmp_path: Path) -> None:
    fs = RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2]})
    made = fs.visualize("a", slice(0, 2))
    assert repr(made) == "<Picture: Where the bytes of a lie: 2 of 2 chunks in 1 file; reads 1 chunk in 1 request: 2 B>"
    for name in ("a.svg", "a.html"):
        made.save(tmp_path / name)
        assert "reads 1 chunk in 1 request" in (tmp_path / name).read_text()
    well_formed(made._repr_html_())
    assert fs.visualize(select="a[1:]").map.selection is not None
    with pytest.raises(ValueError, match=r"\.gif"):
        made.save(tmp_path / "a.gif")


def test_filesystem_of_event_loop_of_its_own_can_be_pictured(shared_data: Path) -> None:
    fs = RefShardFileSystem(str(shared_data / "shards" / "zarrs-rust-8x8"), asynchronous=True)
    assert len(fs.visualize().map.arrays[0]) == 4

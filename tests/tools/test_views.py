"""Views in notebooks need no I/O, contain no secrets, and show pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.tools.counters import Counters
from tests.support.notebook_views import ARRAY, Structure, check_html, make_views


def test_views_have_no_empty_columns_and_fold_details(tmp_path: Path) -> None:
    for name, shown in make_views(tmp_path).items():
        found = Structure(shown._repr_html_())
        assert found.tables, name
        assert found.open_details == 0
        assert found.tags <= {
            *("div", "style", "span", "p", "details", "summary", "table", "thead", "tbody", "tr", "th", "td")
        }
        for heading, *rows in found.tables:
            assert rows
            assert all(len(row) == len(heading) for row in rows)
            assert all(any(cells) for cells in zip(*rows, strict=True)), (name, heading)


def test_views_show_dimensions_parts_and_checks(tmp_path: Path) -> None:
    found = {name: Structure(shown._repr_html_()) for name, shown in make_views(tmp_path).items()}
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
    assert found["check"].summaries == ["Checks"]


def test_views_follow_the_theme_of_the_notebook() -> None:
    said = Counters(keys=1)._repr_html_()
    for theme in ("prefers-color-scheme:dark", 'data-jp-theme-light="false"', ".vscode-dark", 'data-theme="dark"'):
        assert theme in said


def test_view_cells_have_styles_for_jupyterlab() -> None:
    """JupyterLab's own style for tables would align all cells on the right."""
    style = Counters(keys=1)._repr_html_().partition("<style>")[2].partition("</style>")[0]
    aligned = [line for line in style.splitlines() if "text-align" in line]
    assert len(aligned) == 2
    assert [line for line in aligned if not line.startswith(".rs.rs-view th")] == []


def test_visualize_makes_a_picture_that_can_be_saved(tmp_path: Path) -> None:
    fs = RefShardFileSystem({"a/.zarray": ARRAY, "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2]})
    made = fs.visualize("a", slice(0, 2))
    assert repr(made) == "<Picture: Where the bytes of a lie: 2 of 2 chunks in 1 file; reads 1 chunk in 1 request: 2 B>"
    for name in ("a.svg", "a.html"):
        made.save(tmp_path / name)
        assert "reads 1 chunk in 1 request" in (tmp_path / name).read_text()
    check_html(made._repr_html_())
    assert fs.visualize(select="a[1:]").map.selection is not None
    with pytest.raises(ValueError, match=r"\.gif"):
        made.save(tmp_path / "a.gif")


def test_asynchronous_filesystem_can_be_drawn(shared_data: Path) -> None:
    fs = RefShardFileSystem(str(shared_data / "shards" / "zarrs-rust-8x8"), asynchronous=True)
    assert len(fs.visualize().map.arrays[0]) == 4

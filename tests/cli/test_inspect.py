"""``refshard tree``, and the output of all commands: plain text in a pipe, tables on a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from refshard_fs.cli import main
from refshard_fs.tools import diff
from tests.support.cli_sets import ARRAY, V3_ARRAY, Refs


def test_tree_shows_groups_and_arrays(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", refs()]) == 0
    assert capsys.readouterr().out.splitlines() == ["/", "├── a (5) |u1", "└── b/", "    └── c (4 × 4) uint8"]


def test_tree_takes_a_path_and_a_depth(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", refs(), "b"]) == 0
    assert capsys.readouterr().out.splitlines() == ["b/", "└── c (4 × 4) uint8"]
    assert main(["tree", refs(), "-L", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == ["/", "├── a (5) |u1", "└── b/ ..."]
    assert main(["tree", refs(), "b/c"]) == 0
    assert capsys.readouterr().out.splitlines() == ["b/c (4 × 4) uint8"]
    assert main(["tree", refs(), "nothing"]) == 2
    assert capsys.readouterr().err == "refshard: no such key or file: nothing\n"


def test_tree_as_json_has_nested_children(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "--json", refs()]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": "",
        "kind": "group",
        "children": [
            {"path": "a", "kind": "array", "shape": [5], "dtype": "|u1"},
            {
                "path": "b",
                "kind": "directory",
                "children": [{"path": "b/c", "kind": "array", "shape": [4, 4], "dtype": "uint8"}],
            },
        ],
    }


def test_tree_shows_the_arrays_of_a_zip_file(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", str(shared_data / "zips" / "ome-zarr-simple-0.5.zip")]) == 0
    assert " uint" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "document", "why"),
    [
        ("a/.zarray", {**ARRAY, "filters": 5}, "a: its member 'filters' is 5: expected codecs with an 'id'"),
        (
            "b/c/zarr.json",
            {**V3_ARRAY, "codecs": None},
            "b/c: its codecs are null: expected a list of codecs with names",
        ),
        (
            "b/c/zarr.json",
            {**V3_ARRAY, "storage_transformers": [{"name": "other"}]},
            'b/c: its storage_transformers are [{"name":"other"}]: expected none, since none are supported',
        ),
    ],
)
def test_info_warns_of_arrays_that_cannot_be_decoded(
    refs: Refs, capsys: pytest.CaptureFixture[str], key: str, document: dict[str, Any], why: str
) -> None:
    assert main(["info", refs({key: document})]) == 0
    assert f"warning: {why}" in capsys.readouterr().out


def test_info_counts_references_of_unknown_size(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    """Earlier, the table showed 0 B for the array, and a warning repeated the first lines."""
    assert main(["info", refs({"a/.zarray": json.dumps(ARRAY), "a/0": ["s3://b/one"], "a/1": ["s3://b/two"]})]) == 0
    said = capsys.readouterr().out
    assert "(2 of unknown size, to the end of their targets)" in said
    assert "warning" not in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("a ")] == ["?"]


@pytest.mark.case(id="P22")
def test_control_characters_of_keys_do_not_reach_the_terminal(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs({"a\x1b[31mb\u202e": "x"})
    for command in ("ls", "tree", "info"):
        assert main([command, path]) == 0
        said = capsys.readouterr().out
        assert "\x1b" not in said
        assert "\u202e" not in said
    assert main(["ls", path]) == 0
    assert capsys.readouterr().out == "a\\x1b[31mb\\u202e\n"


@pytest.mark.parametrize(
    ("terminal", "wishes", "coloured"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_colours_are_for_terminals_only(
    terminal: bool,
    wishes: dict[str, str],
    coloured: bool,
    refs: Refs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **wishes}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["info", refs()]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 (+1 outside)" in said
    assert ("\x1b[33mwarning" in said) == ("\x1b" in said) == coloured


def test_diff_command_sets_a_small_cache_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default of 128, the cached partitions of sets of 5 million references take 130 MB."""
    kept: list[int] = []
    original = diff.compare

    def compare(*sources: Any) -> Any:
        kept.extend(source.storage_options["cache_size"] for source in sources)
        return original(*sources)

    monkeypatch.setattr(diff, "compare", compare)
    source = tmp_path / "refs.json"
    source.write_text(json.dumps({".zgroup": '{"zarr_format": 2}'}))
    assert main(["diff", str(source), str(source)]) == 0
    assert kept == [2, 2]

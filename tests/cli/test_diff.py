"""``refshard diff`` prints differences, and exits with 1 if there are any."""

from __future__ import annotations

import json

import pytest

from refshard_fs.cli import main
from tests.support.cli_sets import ARRAY, REFS, Refs


def test_equal_sets_have_no_difference(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", refs(name="a.json"), refs(name="b.json")]) == 0
    assert capsys.readouterr().out == ""


def test_diff_names_differences(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    new = {k: v for k, v in REFS.items() if not k.startswith("b/")}
    new |= {
        "a/.zarray": {**ARRAY, "fill_value": 1},
        "a/0": "AB",
        "a/1": ["data.bin", 4, 2],
        "a/2": "n",
        "d/.zarray": ARRAY,
    }
    new["a/.zattrs"] = {"units": "K"}
    assert main(["diff", refs(name="a.json"), refs(new, name="b.json")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "- array b/c",
        "+ array d",
        "- metadata b/c/zarr.json",
        "+ metadata a/.zattrs",
        "+ metadata d/.zarray",
        "~ metadata a/.zarray: fill_value",
        "chunks of a: 1 added, 2 changed",
        "  + a/2",
        "  ~ a/0",
        "  ~ a/1",
        "chunks of b/c: 1 removed",
        "  - b/c/c/1/0",
    ]


def test_json_output_has_counts_and_some_keys(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"a/{i}": ["data.bin", i, 1] for i in range(20)}
    meta = {"a/.zarray": {**ARRAY, "shape": [40]}}
    moved = {key: ["other.bin", *where[1:]] for key, where in many.items()}
    assert main(["diff", "--json", refs(meta | many, name="a.json"), refs(meta | moved, name="b.json")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert found["metadata_changed"] == []
    (changes,) = found["keys"]
    assert (changes["path"], changes["added"], changes["removed"], changes["changed"]) == ("a", 0, 0, 20)
    assert changes["some_changed"] == [f"a/{i}" for i in range(10)]


def test_unreadable_source_exits_with_2(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", refs(), "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err

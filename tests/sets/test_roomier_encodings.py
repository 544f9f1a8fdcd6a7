"""The encoding that a cube shows for arrays with different encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from tests.support.day_sets import make_days, write_refs


def join(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the array ``t`` of days with these ``changes``, as a cube shows it."""
    files = []
    for number, change in enumerate(changes):
        refs = make_days(number, 1)
        document = json.loads(refs["t/.zarray"])
        attributes = json.loads(refs["t/.zattrs"])
        refs["t/.zarray"] = json.dumps(document | change.get("array", {}))
        refs["t/.zattrs"] = json.dumps(attributes | change.get("attributes", {}))
        files.append(write_refs(folder, f"{number}.json", refs))
    shown: dict[str, Any] = json.loads(
        RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True)).cat("t/.zarray")
    )
    return shown


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [("|u1", "<u2", "<u2"), ("<i2", "|u1", "<i2"), ("|u1", "<f4", "<f4"), ("<u4", "<i4", "<i8")],
)
def test_numbers_have_a_type_that_holds_those_of_both_sets(tmp_path: Path, first: str, second: str, shown: str) -> None:
    assert join(tmp_path, {"array": {"dtype": first}}, {"array": {"dtype": second}})["dtype"] == shown


def test_sets_of_different_packing_are_shown_unpacked(tmp_path: Path) -> None:
    assert (
        join(tmp_path, {"attributes": {"scale_factor": 0.5}}, {"attributes": {"scale_factor": 0.25}})["dtype"] == "<f8"
    )


def test_equal_packing_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    assert join(tmp_path, *[{"attributes": {"scale_factor": 0.5}}] * 2)["dtype"] == "|u1"

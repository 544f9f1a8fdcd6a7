"""The line that explains why only this package reads a document."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs.cli import main
from tests.support.day_sets import make_days, write_refs


def test_remark_of_a_plain_cube_proposes_eager_concat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write_refs(tmp_path, f"{number}.json", make_days(number, 1)) for number in (1, 2)]
    cube = refshard_fs.concat(files, "time", lazy=True)
    remark = cube.save(str(tmp_path / "cube.refshard"))
    assert remark.endswith("this document; concat without lazy=True makes references that other programs read, too")
    assert pickle.loads(pickle.dumps(cube)).remark == remark
    assert main(["concat", *files, "-o", str(tmp_path / "cube"), "--dim", "time", "--lazy"]) == 0
    assert "only refshard can read this document; concat without --lazy makes references" in capsys.readouterr().out


def test_remark_counts_the_sets_whose_arrays_are_converted() -> None:
    sets = [make_days(number, 1) for number in (1, 2, 3)]
    for refs in sets[1:]:
        refs["t/.zarray"] = refs["t/.zarray"].replace("|u1", "<u2")
    paths = [f"memory://remark/{number}.json" for number in range(3)]
    for path, refs in zip(paths, sets, strict=True):
        refshard_fs.RefShardFileSystem(refs).save(path)
    cube = refshard_fs.concat(paths, "time", lazy=True)
    assert cube.remark.startswith(
        "only refshard can read this document: 't' is converted while reading in 1 of 3 sets. "
    )


def test_remark_names_arrays_whose_chunks_are_joined(tmp_path: Path) -> None:
    files = [write_refs(tmp_path, f"{first}.json", make_days(first, 3, chunk=2)) for first in (1, 4)]
    assert "chunks of 't' are joined while reading" in refshard_fs.concat(files, "time", lazy=True).remark

"""``refshard recover``: what a killed commit has left of a hierarchy is what there was before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.cli.program import main
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.undo import Undo

GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


def test_a_commit_that_was_cut_short_is_undone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = Objects(str(tmp_path), {})
    objects.put("zarr.json", [GROUP])
    objects.put("notes", [b"old"])
    undo = Undo.begin(objects)
    undo.keep({"notes": objects.facts("notes"), "more": None})
    objects.put("notes", [b"new"])
    objects.put("more", [b"new"])
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == ["notes", "zarr.json"]
    assert main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "the commit that was cut short is undone\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "zarr.json"]
    assert (tmp_path / "notes").read_bytes() == b"old"
    assert main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "there is no commit that was cut short\n"
    assert RefShardFileSystem(str(tmp_path)).find("") == ["notes", "zarr.json"]


def test_what_is_no_hierarchy_has_nothing_to_recover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refs.json").write_text("{}")
    assert main(["recover", str(tmp_path / "refs.json")]) == 0
    assert main(["recover", str(tmp_path / "nothing")]) == 0
    assert not (tmp_path / "nothing").exists()
    assert capsys.readouterr().out.count("there is no commit") == 2
    assert main(["recover", "https://host/store.zarr"]) == 2
    assert "takes no objects" in capsys.readouterr().err

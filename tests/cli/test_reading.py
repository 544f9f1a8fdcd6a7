"""``refshard cat`` and ``refshard get`` write exact bytes, and no file outside the destination."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refshard_fs.cli import inspect as reading
from refshard_fs.cli import main
from refshard_fs.errors import ManifestError
from tests.support.cli_sets import Refs

pytestmark = pytest.mark.case(id="P20")


def read_files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_cat_writes_the_bytes_of_keys(refs: Refs, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["cat", refs({"k": "base64:/wD+", "l": ["data.bin", 2, 3]}), "k", "l"]) == 0
    assert capsysbinary.readouterr().out == b"\xff\x00\xfe234"


def test_cat_of_a_missing_key_names_it(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", refs(), "a/9"]) == 2
    assert capsys.readouterr().err == "refshard: no such key or file: a/9\n"


def test_get_writes_one_file(refs: Refs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = refs(), tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    assert main(["get", path, "a/1"]) == 0
    assert main(["get", path, "a/0", "b/new"]) == 0
    assert main(["get", path, "b/c/c/1/0", "."]) == 0
    assert read_files(out) == {"1": b"34", "b/new": b"ab", "0": b"01234567"}


def test_get_writes_all_below_a_path(refs: Refs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = refs(), tmp_path / "out"
    assert main(["get", "-r", path, "b", str(out)]) == 0
    assert f"{out}: 2 files, " in capsys.readouterr().out
    assert sorted(read_files(out)) == ["c/c/1/0", "c/zarr.json"]
    assert main(["get", "-r", path, "", str(tmp_path / "all")]) == 0
    assert len(read_files(tmp_path / "all")) == 7
    assert main(["get", "-r", path, "a/1", str(tmp_path / "one")]) == 0
    assert read_files(tmp_path / "one") == {"1": b"34"}


def test_get_of_a_directory_needs_the_option_r(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", refs(), "b"]) == 2
    assert "-r gets all keys below it" in capsys.readouterr().err


def test_failed_get_leaves_no_file(refs: Refs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = refs({"a/x": "fine", "a/y": ["gone.bin", 0, 4]}), tmp_path / "out"
    assert main(["get", "-r", path, "a", str(out)]) == 2
    assert "'a/y'" in capsys.readouterr().err
    assert os.listdir(out) == []


def test_get_of_an_empty_value_writes_an_empty_file(refs: Refs, tmp_path: Path) -> None:
    assert main(["get", refs({"k": ""}), "k", str(tmp_path / "k")]) == 0
    assert (tmp_path / "k").read_bytes() == b""


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a\0b", ".."])
def test_paths_outside_the_destination_or_with_nul_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises((ManifestError, ValueError)):
        reading._make_path_below(str(tmp_path), name)


def test_link_out_of_the_destination_is_not_followed(refs: Refs, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "c").symlink_to(elsewhere)
    assert main(["get", "-r", refs(), "b", str(out)]) == 2
    assert read_files(elsewhere) == {}


@pytest.mark.parametrize("key", ["../evil", "a/../../evil", "/../evil", "a/\0", "..\\evil"])
def test_get_of_a_hostile_key_fails_and_writes_no_file(
    key: str, refs: Refs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = refs({key: "evil"})
    before = read_files(tmp_path)
    assert main(["get", "-r", path, "", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("refshard: ")
    assert printed.count("\n") == 1
    assert read_files(tmp_path) == before

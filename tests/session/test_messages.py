"""Errors for users who do not know this package: key, place and remedy."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.cli_sets import ARRAY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target of eight bytes, an archive, and an empty directory."""
    (tmp_path / "data.bin").write_bytes(b"01234567")
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(".zgroup", '{"zarr_format": 2}')
    return tmp_path


def refs(folder: Path, **references: Any) -> RefShardFileSystem:
    path = folder / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": {"a/.zarray": json.dumps(ARRAY), **references}}))
    return RefShardFileSystem(str(path), skip_instance_cache=True)


def write(folder: Path) -> None:
    fs = RefShardFileSystem(str(folder / "x.zip"), mode="a")
    fs.pipe_file("a", b"1")
    try:
        fs.commit()
    finally:
        fs.discard()


Failing = Callable[[Path], Any]
CASES: dict[str, tuple[Failing, tuple[str, ...]]] = {
    "a target that is gone": (
        lambda folder: refs(folder, **{"a/0": ["gone.bin", 0, 2]}).cat("a/0"),
        ("'a/0'", "/gone.bin [0:2]", "refshard check", "refshard rebase"),
    ),
    "a target that is too short": (
        lambda folder: refs(folder, **{"a/0": ["data.bin", 4, 20]}).cat("a/0"),
        ("'a/0'", "/data.bin [4:24]", "8 bytes", "refshard check"),
    ),
    "a target that is a directory": (
        lambda folder: refs(folder, **{"a/0": ["empty", 0, 2]}).cat("a/0"),
        ("'a/0'", "/empty [0:2]", "references must point to files"),
    ),
    "a reference without a URL": (
        lambda folder: refs(folder, **{"a/0": [None, 0, 2]}).cat("a/0"),
        ("'a/0'", "refs.json", "target="),
    ),
    "an unknown protocol": (
        lambda folder: RefShardFileSystem({"a/0": ["nope://x/y", 0, 2]}).cat("a/0"),
        ("'a/0'", "nope://x/y [0:2]", "Install the package"),
    ),
    "a source that is gone": (
        lambda folder: RefShardFileSystem(str(folder / "none.json")).ls(""),
        ("none.json", "Check the path"),
    ),
    "a source that is gone from a server": (
        lambda folder: RefShardFileSystem("memory://gone/none.json").ls(""),
        ("memory://gone/none.json", "Check the path"),
    ),
    "an empty directory": (
        lambda folder: RefShardFileSystem(str(folder / "empty")).ls(""),
        ("/empty", "is an empty directory", "open a pattern"),
    ),
    "a missing array": (
        lambda folder: refs(folder).prefetch("b", (0,)),
        ("'b'", "refshard tree SOURCE"),
    ),
    "a picture of a missing array": (
        lambda folder: refs(folder).visualize("b"),
        ("'b'", "refshard tree SOURCE"),
    ),
    "an invalid key": (
        lambda folder: refs(folder, **{"../b": "x"}).ls(""),
        ("'../b'", "refs.json", "it is not a valid key"),
    ),
    "a commit to an archive": (write, ("x.zip", "fs.save(url)")),
    "references of an archive": (
        lambda folder: RefShardFileSystem(str(folder / "x.zip")).references,
        ("only a set of references has references", "fs.save(url)"),
    ),
    "a write without a mode": (
        lambda folder: refs(folder).pipe_file("a/0", b"x"),
        ("'a/0'", "refs.json", "mode='a'"),
    ),
    "an invalid argument": (
        lambda folder: RefShardFileSystem({"a": "x"}, shards="outer"),
        ("shards='outer'", "'inner' or 'whole'"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_error_names_place_and_remedy(case: str, folder: Path) -> None:
    failing, facts = CASES[case]
    with pytest.raises(Exception, match=".") as caught:  # of whatever type: other tests look at these
        failing(folder)
    said = str(caught.value)
    assert [fact for fact in facts if fact not in said] == [], said
    assert "\n" not in said
    assert "KeySpace" not in said

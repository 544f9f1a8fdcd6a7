"""Sources are recognised by content, and every format is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, UnknownSource
from refshard_fs.known_formats import BUILT_IN, load_formats


def test_every_module_that_opens_a_source_is_registered() -> None:
    folder = Path(refshard_fs.__path__[0])
    readers = {p.relative_to(folder) for p in folder.rglob("*.py") if "\ndef open_(probe" in p.read_text()}
    modules = {f"refshard_fs.{'.'.join(path.with_suffix('').parts)}" for path in readers}
    assert modules == {known.module for known in BUILT_IN}
    assert len(readers) == len(BUILT_IN)
    assert "kerchunk-json" in load_formats()


def test_error_for_unknown_content_names_candidates(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF")
    with pytest.raises(UnknownSource, match=r"ELF.*kerchunk-json"):
        RefShardFileSystem(fo=tmp_path / "x").ls("")
    with pytest.raises(UnknownSource, match="format='nope'"):
        RefShardFileSystem(fo=tmp_path / "x", format="nope").ls("")


def test_package_has_a_version() -> None:
    assert refshard_fs.__version__

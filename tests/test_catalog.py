"""Sources are recognised by content, and every format is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, UnknownSource, catalog, manifests, shards


def test_every_module_with_a_format_is_listed() -> None:
    for package in (manifests, shards):
        folder = Path(package.__path__[0])
        declared = {p.stem for p in folder.glob("*.py") if "\nFORMAT = " in p.read_text()}
        assert declared == set(package.FORMATS)
    assert "kerchunk-json" in catalog.formats()


def test_unknown_content_names_the_candidates(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF")
    with pytest.raises(UnknownSource, match=r"ELF.*kerchunk-json"):
        RefShardFileSystem(fo=tmp_path / "x").ls("")
    with pytest.raises(UnknownSource, match="format='nope'"):
        RefShardFileSystem(fo=tmp_path / "x", format="nope").ls("")


def test_version_is_told() -> None:
    assert refshard_fs.__version__

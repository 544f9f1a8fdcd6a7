"""Sources are recognised by content, and every format is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, UnknownSource, catalog, manifests, shards
from refshard_fs.manifests import recognised as reference_sets
from refshard_fs.shards import recognised as archives


def test_every_module_that_opens_a_source_is_registered() -> None:
    for package, registry in ((manifests, reference_sets), (shards, archives)):
        folder = Path(package.__path__[0])
        readers = {p.stem for p in folder.glob("*.py") if "\ndef open_(probe" in p.read_text()}
        assert len(readers) == len(registry.FORMATS)
        assert all(f'reader(__package__, "{name}")' in Path(registry.__file__).read_text() for name in readers)
    assert "kerchunk-json" in catalog.formats()


def test_unknown_content_names_the_candidates(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF")
    with pytest.raises(UnknownSource, match=r"ELF.*kerchunk-json"):
        RefShardFileSystem(fo=tmp_path / "x").ls("")
    with pytest.raises(UnknownSource, match="format='nope'"):
        RefShardFileSystem(fo=tmp_path / "x", format="nope").ls("")


def test_version_is_told() -> None:
    assert refshard_fs.__version__

"""Sources are recognised by content, and every format is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, UnknownSource, formats
from refshard_fs.formats import recognition as reference_sets
from refshard_fs.formats import recognition_archives as archives
from refshard_fs.session import recognition as catalog


def test_every_module_that_opens_a_source_is_registered() -> None:
    folder = Path(formats.__path__[0])
    readers = {p.relative_to(folder) for p in folder.rglob("*.py") if "\ndef open_(probe" in p.read_text()}
    known = reference_sets.FORMATS + archives.FORMATS
    assert len(readers) == len(known)
    registries = "".join(Path(registry.__file__).read_text() for registry in (reference_sets, archives))
    for path in readers:
        assert f'reader("refshard_fs.formats.{".".join(path.with_suffix("").parts)}")' in registries
    assert "kerchunk-json" in catalog.formats()


def test_unknown_content_names_the_candidates(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF")
    with pytest.raises(UnknownSource, match=r"ELF.*kerchunk-json"):
        RefShardFileSystem(fo=tmp_path / "x").ls("")
    with pytest.raises(UnknownSource, match="format='nope'"):
        RefShardFileSystem(fo=tmp_path / "x", format="nope").ls("")


def test_version_is_told() -> None:
    assert refshard_fs.__version__

"""Reads of metadata while a file is opened: overlapping and long structures."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Inline
from refshard_fs.formats.hdf5.file import LEAST_READ, TIMES_READ, MetadataFile


def test_overlapping_structures_are_refused() -> None:
    file = MetadataFile(Inline(bytes(1 << 20)), 1 << 20, b"")
    for _ in range(TIMES_READ + LEAST_READ // (1 << 20)):
        list(file.read(0, 1 << 20, "a heap"))
    with pytest.raises(ValueError, match="overlap"):
        list(file.read(0, 1 << 20, "a heap"))


def test_texts_may_be_longer_than_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["d"] = ["t" * 100_000]
    monkeypatch.setattr("refshard_fs.formats.hdf5.file.MOST_METADATA", 1 << 16)
    assert RefShardFileSystem(str(path)).cat_file("d/0").endswith(b"t" * 100_000)

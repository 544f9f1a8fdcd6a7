"""Reads of metadata while a file is opened: overlapping and long structures."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Inline, Load, Raw, Span, Steps
from refshard_fs.formats.hdf5.file import FAR, FREE_READ, PAGE, TIMES_READ, MetadataFile


def test_overlapping_structures_are_refused() -> None:
    file = MetadataFile(Inline(bytes(1 << 20)), 1 << 20, b"")
    for _ in range(TIMES_READ + FREE_READ // (1 << 20)):
        list(file.read(0, 1 << 20, "a heap"))
    with pytest.raises(ValueError, match="overlap"):
        list(file.read(0, 1 << 20, "a heap"))


def test_texts_may_exceed_the_limit_of_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["d"] = ["t" * 100_000]
    monkeypatch.setattr("refshard_fs.formats.hdf5.file.MOST_METADATA", 1 << 16)
    assert RefShardFileSystem(str(path)).cat_file("d/0").endswith(b"t" * 100_000)


@pytest.mark.parametrize(("count", "gap", "runs"), [(100, FAR // PAGE, 1), (100, 2 * FAR // PAGE, 100), (3, 300, 3)])
def test_pages_are_read_in_one_run_if_many_and_near(count: int, gap: int, runs: int) -> None:
    """Groups of a large file lie apart: a request for each page of their metadata would take longer than the gaps."""
    file = MetadataFile(Span("memory://file", 0, 1 << 30), 1 << 30, b"")
    file._rounds = 9  # a round whose blocks would be large
    starts = [number * (gap + 1) * PAGE for number in range(1 << 8, (1 << 8) + count)]

    def read() -> Steps[list[bytes]]:
        needs = tuple(Load(Span("memory://file", start, start + 8), Raw()) for start in starts)
        return list((yield needs))

    steps = file.run(read())
    loads = steps.send(None)
    assert isinstance(loads, tuple)
    assert len(loads) == runs
    pages = [load.entry for load in loads if isinstance(load, Load)]
    answers = tuple(bytes(entry.size or 0) for entry in pages)
    with pytest.raises(StopIteration) as done:
        steps.send(answers)
    assert done.value.value == [bytes(8)] * count

"""A set is opened once: filesystems are used as they are, with their uncommitted writes."""

from __future__ import annotations

from pathlib import Path

from refshard_fs import RefShardFileSystem
from refshard_fs.sets.opened_set import OpenedSet, is_open, open_set


def test_open_set_returns_an_open_set_unchanged() -> None:
    fs = RefShardFileSystem({"a": "b"})
    assert open_set(fs, {}) is fs
    opened = OpenedSet(fs.source)
    assert open_set(opened, {}) is opened


def test_source_is_opened_with_the_keywords(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text('{"a/0": "hello"}')
    opened = open_set(str(tmp_path / "refs.json"), {"max_gap": 7})
    assert opened.source.options.limits.gap == 7
    assert opened.storage_options == {"max_gap": 7}
    assert opened.writer is None
    assert not opened.source.reads_small_files_whole


def test_is_open_is_false_for_a_url_and_a_mapping() -> None:
    assert not is_open("a.json")
    assert not is_open({"source": 1, "writer": 2, "storage_options": 3})

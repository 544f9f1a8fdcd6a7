"""Edits hide the keys of the source; their values are kept in memory, and in temporary files beyond a limit."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core import edits as module
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits, Spool
from refshard_fs.core.model import Inline
from tests.support.shard_writers import make_sparse, write_prototype
from tests.support.shards_in_memory import Files


def test_many_lookups_return_edits_beside_stored_entries(tmp_path: Path) -> None:
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2))
    files, edits = Files.of(tmp_path), Edits()
    keyspace = EditedKeySpace(files.open(), edits)
    keys = [f"{row}.{column}" for row in range(7) for column in range(2)]
    before = [files.run(keyspace.lookup(key)) for key in keys]
    edits.put("1.1", Inline(b"new"))
    edits.put("4.0", REMOVED)
    found = {keys[at]: entry for places, steps in keyspace.make_lookups(keys)
             for at, entry in zip(places, files.run(steps), strict=True)}  # fmt: skip
    assert found == {**dict(zip(keys, before, strict=True)), "1.1": Inline(b"new"), "4.0": None}
    assert len(keyspace.make_lookups(keys)) == 4 + 2


@pytest.fixture
def switching() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_edit_stays_present_while_another_thread_replaces_it() -> None:
    """Without the edit, a thread that reads the key would see the source's value."""
    edits, done = Edits(), threading.Event()
    edits.put("a/b/0", Inline(b""))

    def write() -> None:
        for number in range(10_000):
            edits.put("a/b/0", Inline(b"%d" % number))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert edits.get("a/b/0") is not None
    writer.join()


@pytest.mark.parametrize("mode", [{}, {"mode": "a"}])
def test_key_spaces_are_freed_with_the_filesystem(tmp_path: Path, mode: dict[str, Any]) -> None:
    """Temporary files of edits may have hundreds of megabytes: freeing them must not wait for the garbage collector."""
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2))
    fs = RefShardFileSystem(str(tmp_path), skip_instance_cache=True, **mode)
    assert fs.find("")
    opened: Any = fs.source.open()
    left = []
    while opened is not None:
        left.append(weakref.ref(opened))
        opened = opened.base
    gc.disable()
    try:
        del fs
        assert [ref() for ref in left] == [None] * len(left)
    finally:
        gc.enable()


def test_replaced_values_free_disk_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FILE", 1000)
    spool, edits = Spool(), Edits()
    spool.memory = 0
    edits.put("kept", spool.keep(b"kept" * 25))
    for number in range(200):
        edits.put("replaced", spool.keep(b"%3d." % number * 25, edits.get("replaced")))
    assert sum(file.end for file in spool._files) <= 4 * 1000
    assert edits.get("kept").data == b"kept" * 25  # type: ignore[union-attr]
    assert edits.get("replaced").data == b"199." * 25  # type: ignore[union-attr]


def test_many_spooled_values_share_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE", 1000)
    spool = Spool()
    spool.memory = 0
    kept = [spool.keep(b"%3d." % number * 25) for number in range(1000)]
    assert len(spool._files) < 10
    assert [edit.data for edit in kept] == [b"%3d." % number * 25 for number in range(1000)]


def test_mapped_bytes_are_whole_if_another_thread_maps_less() -> None:
    class Shorter(module._File):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value[:2] if name == "_mapped" else value)

    file = Shorter()
    start = file.add(b"bytes")
    assert bytes(file.map(start, start + 5)) == b"bytes"

"""Key spaces with edits over them find keys together as they find them alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits
from refshard_fs.core.model import Inline
from tests.sharding.in_memory import Files
from tests.sharding.writers import sparse, write_prototype


def test_edited_keys_are_found_as_they_are_now_and_the_others_together(tmp_path: Path) -> None:
    write_prototype(tmp_path, sparse((20, 3)), (3, 2), (2, 2))
    files, edits = Files.of(tmp_path), Edits()
    keyspace = EditedKeySpace(files.open(), edits)
    keys = [f"{row}.{column}" for row in range(7) for column in range(2)]
    before = [files.run(keyspace.lookup(key)) for key in keys]
    edits.put("1.1", Inline(b"new"))
    edits.put("4.0", REMOVED)
    found = {keys[at]: entry for places, steps in keyspace.lookups(keys)
             for at, entry in zip(places, files.run(steps), strict=True)}  # fmt: skip
    assert found == {**dict(zip(keys, before, strict=True)), "1.1": Inline(b"new"), "4.0": None}
    assert len(keyspace.lookups(keys)) == 4 + 2


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_a_key_that_is_written_again_never_shows_the_source() -> None:
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

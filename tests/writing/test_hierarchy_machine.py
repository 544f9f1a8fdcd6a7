"""A sharded hierarchy behaves like a dict in random writes, removals, commits, crashes and reopenings."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refshard_fs import CostlyPattern, RefShardFileSystem
from refshard_fs.stores.objects import Objects
from tests.support.shard_codecs import CRC, LITTLE, make_sharding, make_version_2, make_version_3
from tests.support.shard_packing import find_layout

DOCUMENTS: dict[str, dict[str, Any]] = {
    "sharded": make_version_3((9, 5), (4, 4), [make_sharding([2, 2])]),
    "nested": make_version_3(
        (9, 5), (8, 8), [make_sharding([4, 4], [make_sharding([2, 2], at="start")]), CRC], separator="."
    ),
    "prototype": make_version_2((9, 5), (2, 2), (2, 2), dimension_separator="/"),
    "plain": make_version_3((9, 5), (2, 2), [LITTLE]),
}
GRIDS = {name: find_layout(doc).grid for name, doc in DOCUMENTS.items() if name != "plain"}
GRIDS["plain"] = GRIDS["sharded"]
KEYS = [
    f"{name}/{grid.encoding.encode(at)}"
    for name, grid in GRIDS.items()
    for at in itertools.product(*map(range, grid.counts))
]


class Crash(BaseException):
    """Stands for the end of the process."""


class Machine(RuleBasedStateMachine):
    """``committed`` has the chunks of the source by key, and ``now`` the chunks that the filesystem shows."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        (self.root / ".zgroup").write_text('{"zarr_format": 2}')
        for name, doc in DOCUMENTS.items():
            (self.root / name).mkdir()
            (self.root / name / ("zarr.json" if doc["zarr_format"] == 3 else ".zarray")).write_text(json.dumps(doc))
        self.committed: dict[str, bytes] = {}
        self.now: dict[str, bytes] = {}
        self.fs = self.opened()

    def opened(self) -> RefShardFileSystem:
        return RefShardFileSystem(str(self.root), mode="a", skip_instance_cache=True, write_memory=200)

    @initialize(payload=st.binary(min_size=1, max_size=40))
    def begin(self, payload: bytes) -> None:
        self.write(dict.fromkeys(KEYS[::3], payload))
        self.commit()

    @rule(changes=st.dictionaries(st.sampled_from(KEYS), st.binary(min_size=1, max_size=60), max_size=6))
    def write(self, changes: dict[str, bytes]) -> None:
        for key, data in changes.items():
            self.fs.pipe_file(key, data)
        self.now |= changes

    @rule(name=st.sampled_from(list(DOCUMENTS)), payload=st.binary(min_size=1, max_size=20))
    def write_all(self, name: str, payload: bytes) -> None:
        self.write({key: payload for key in KEYS if key.startswith(name + "/")})

    @rule(keys=st.sets(st.sampled_from(KEYS), max_size=8))
    def remove(self, keys: set[str]) -> None:
        for key in sorted(keys & self.now.keys()):
            self.fs.rm_file(key)
            del self.now[key]

    @rule(directory=st.sampled_from(["sharded/c", "sharded/c/1", "plain/c/0", "prototype/2"]))
    def remove_directory(self, directory: str) -> None:
        below = [key for key in self.now if key.startswith(directory + "/")]
        if below:
            self.fs.rm(directory, recursive=True)
        for key in below:
            del self.now[key]

    @rule()
    def commit(self) -> None:
        self.fs.commit()
        self.committed = dict(self.now)

    @rule()
    def discard(self) -> None:
        self.fs.discard()
        self.now = dict(self.committed)

    @rule()
    def reopen(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the warning that uncommitted writes are lost
            self.fs = self.opened()
            gc.collect()
        self.now = dict(self.committed)

    @precondition(lambda self: self.now != self.committed)
    @rule(after=st.integers(0, 30))
    def crash_in_a_commit(self, after: int) -> None:
        """Crash after some steps of a commit, and check that each chunk has its old or its new value."""
        left = [after]

        def crashing(call: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash
                return call(*args)

            return step

        with pytest.MonkeyPatch.context() as patch:
            for name in ("put", "remove"):
                patch.setattr(Objects, name, crashing(getattr(Objects, name)))
            with contextlib.suppress(Crash):
                self.fs.commit()
        before, after_it = self.committed, self.now
        self.reopen()
        found = {key: self.fs.cat_file(key) for key in KEYS if self.fs.exists(key)}
        for key in KEYS:
            assert found.get(key) in (before.get(key), after_it.get(key))
        self.committed, self.now = found, dict(found)

    @invariant()
    def filesystem_shows_all_writes(self) -> None:
        for key in KEYS[::5]:
            if key in self.now:
                assert self.fs.cat_file(key) == self.now[key]
            else:
                assert not self.fs.exists(key)

    @invariant()
    def others_see_the_committed_chunks(self) -> None:
        fresh = RefShardFileSystem(str(self.root), skip_instance_cache=True)
        listed = [key for key in fresh.find("") if not key.endswith((".zarray", ".zgroup", "zarr.json"))]
        assert fresh.cat(listed) == self.committed if listed else not self.committed

    def teardown(self) -> None:
        self.fs.discard()
        shutil.rmtree(self.root)


Machine.TestCase.settings = settings(max_examples=8, stateful_step_count=12, deadline=None)
TestMachine = pytest.mark.filterwarnings(f"ignore::{CostlyPattern.__module__}.CostlyPattern")(Machine.TestCase)

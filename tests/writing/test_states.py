"""A source behaves like a dict in random writes, removals, commits, discards and crashes."""

from __future__ import annotations

import gc
import itertools
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refshard_fs import RefShardFileSystem
from tests.support.hierarchy_model import (
    FORMATS,
    make_array_document,
    make_group_document,
    make_path,
    open_for_writes,
    parse_model,
    read_keys,
)

ARRAYS = {"a": 1, "g/b": 2}
VALUES = st.one_of(st.binary(min_size=0, max_size=12), st.binary(min_size=17, max_size=40))


class Failure(Exception):
    """Raised within a transaction, so that it fails."""


class Source(RuleBasedStateMachine):
    """One source and one writer; ``stored`` has the committed keys, and ``seen`` the keys that the writer reads."""

    format = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = make_path(self.folder, self.format)
        self.stored: dict[str, bytes] = {}
        self.seen: dict[str, bytes] = {}
        self.title = 0
        self.content = False
        self.open()

    def open(self) -> None:
        self.content = not self.content
        self.fs = open_for_writes(self.path, self.format, content_addressed=self.content)

    def teardown(self) -> None:
        self.fs.discard()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.write("zarr.json", make_group_document())
        self.write("g/zarr.json", make_group_document())
        for path, ndim in ARRAYS.items():
            self.write(f"{path}/zarr.json", make_array_document((3,) * ndim))
        self.commit()

    def write(self, key: str, data: bytes) -> None:
        self.fs.pipe_file(key, data)
        self.seen[key] = data

    def counts(self, path: str) -> tuple[int, ...]:
        shape: list[int] = parse_model(self.seen)[f"{path}/zarr.json"]["shape"]
        return tuple(shape)

    def chunks(self) -> list[str]:
        there = [path for path in ARRAYS if f"{path}/zarr.json" in self.seen]
        return [
            "/".join([path, "c", *map(str, at)])
            for path in there
            for at in itertools.product(*map(range, self.counts(path)))
        ]

    @precondition(lambda self: self.chunks())
    @rule(data=st.data(), value=VALUES)
    def write_a_chunk(self, data: st.DataObject, value: bytes) -> None:
        self.write(data.draw(st.sampled_from(self.chunks())), value)

    @precondition(lambda self: any("/c/" in key for key in self.seen))
    @rule(data=st.data())
    def remove_a_chunk(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.seen if "/c/" in key)))
        self.fs.rm_file(key)
        del self.seen[key]

    @precondition(lambda self: self.chunks() and any("/c/" in key for key in self.seen))
    @rule(data=st.data(), moves=st.booleans())
    def copy_or_move_a_chunk(self, data: st.DataObject, moves: bool) -> None:
        source = data.draw(st.sampled_from(sorted(key for key in self.seen if "/c/" in key)))
        key = data.draw(st.sampled_from(self.chunks()))
        if source == key:
            return
        self.seen[key] = self.seen[source]
        if moves:
            self.fs.mv(source, key)
            del self.seen[source]
        else:
            self.fs.cp_file(source, key)

    @rule(data=st.data(), directory=st.sampled_from(["a", "g/b", "g/b/c", "g/b/c/1", "a/c"]))
    def remove_a_directory(self, data: st.DataObject, directory: str) -> None:
        below = [key for key in self.seen if key.startswith(directory + "/")]
        if not below:
            with pytest.raises(FileNotFoundError):
                self.fs.rm(directory, recursive=True)
            return
        self.fs.rm(directory, recursive=True)
        for key in below:
            del self.seen[key]

    @rule(path=st.sampled_from(list(ARRAYS)), data=st.data())
    def resize_or_make(self, path: str, data: st.DataObject) -> None:
        counts = tuple(data.draw(st.integers(1, 7)) for _ in range(ARRAYS[path]))
        self.title += 1
        inside = {"/".join([path, "c", *map(str, at)]) for at in itertools.product(*map(range, counts))}
        for key in sorted(key for key in self.seen if key.startswith(f"{path}/c/") and key not in inside):
            self.fs.rm_file(key)  # as zarr does
            del self.seen[key]
        self.write(f"{path}/zarr.json", make_array_document(counts, self.title))

    @rule()
    def commit(self) -> None:
        self.fs.commit()
        self.stored = dict(self.seen)

    @rule()
    def discard(self) -> None:
        self.fs.discard()
        self.seen = dict(self.stored)

    @rule(value=VALUES)
    def fail_in_a_transaction(self, value: bytes) -> None:
        before = dict(self.seen)
        try:
            with self.fs.transaction:
                self.write("zarr.json", make_group_document())
                for key in self.chunks()[:3]:
                    self.write(key, value)
                raise Failure
        except Failure:
            self.seen = before

    @rule()
    def crash(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            del self.fs
            gc.collect()
        self.seen = dict(self.stored)
        self.open()

    @invariant()
    def the_writer_sees_what_was_written(self) -> None:
        assert read_keys(self.fs) == parse_model(self.seen)

    @invariant()
    def others_see_the_last_commit(self) -> None:
        if self.stored:
            assert read_keys(RefShardFileSystem(str(self.path))) == parse_model(self.stored)


@pytest.mark.usefixtures("cheap_collections")
@pytest.mark.parametrize("format", FORMATS)
def test_source_behaves_like_a_dict_in_random_steps(format: str) -> None:
    machine = type(f"Source_{format}", (Source,), {"format": format})
    case = machine.TestCase
    case.settings = settings(
        max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    case("runTest").runTest()

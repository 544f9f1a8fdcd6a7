"""Random operations on the references of a filesystem give the results of the same operations on a dict.

Sources are in memory, JSON sets and parquet sets. Keys have special characters. Operations go through the dict or
through the filesystem, and sets are committed, saved and opened again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refshard_fs import RefShardFileSystem

DATA = bytes(range(256))
ARRAYS = ["a", "T [K]", "g/x*y?", "ä ö/日本", "a%20b", "50% #1", "~u", "k;v=w&x", "{u}", "'q\"", "c:d"]
OTHERS = ["notes", "T [K]/notes", "g/.hidden", "g/x*y?/odd name", "..x", "a/b/c/d", "-", "[", "*", "plain.json"]
CHUNKS = 5
METADATA = json.dumps(
    {
        "zarr_format": 2,
        "shape": [CHUNKS],
        "chunks": [1],
        "dtype": "|u1",
        "order": "C",
        "fill_value": 0,
        "filters": None,
        "compressor": None,
    },
    separators=(",", ":"),  # as metadata in parquet sets are spelled
)

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=12), st.sampled_from(["base64:", "base64:AAA=", "{{u}}", '{"x": 1}', "x" * 600])
)
INLINE = st.one_of(st.binary(max_size=12), st.sampled_from([b"base64:AAA=", b"\xff" * 600, b"{}"]))


def _decode(value: str | bytes) -> bytes:
    """Return the bytes of an inline value, as fsspec decodes it."""
    data = value.encode() if isinstance(value, str) else value
    if not data.startswith(b"base64:"):
        return data
    return b"\0\0" if data == b"base64:AAA=" else b""


class Machine(RuleBasedStateMachine):
    """``now`` are the references that the filesystem shows, ``stored`` the references at its URL."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "data.bin").write_bytes(DATA)
        self.path = str(self.folder / ("refs.parq" if self.kind == "parquet" else "refs.json"))
        self.now: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self.fs = self.open_fs({} if self.kind == "memory" else self.path)

    def open_fs(self, fo: Any) -> RefShardFileSystem:
        if self.kind == "memory":
            return RefShardFileSystem(fo)
        return RefShardFileSystem(fo, mode="a", format=self.kind, record_size=2, inline_threshold=1 << 20)

    def teardown(self) -> None:
        if self.kind != "memory":
            self.fs.discard()
        shutil.rmtree(self.folder)

    @initialize(arrays=st.sets(st.sampled_from(ARRAYS), min_size=1, max_size=4))
    def begin(self, arrays: set[str]) -> None:
        self.arrays = sorted(arrays)
        self.keys = [f"{array}/{number}" for array in self.arrays for number in range(CHUNKS)]
        if self.kind != "parquet":  # a parquet set holds only arrays and their metadata
            self.keys += OTHERS
        refs = {".zgroup": '{"zarr_format":2}'} | {f"{array}/.zarray": METADATA for array in self.arrays}
        self.fs.references.update(refs)
        self.now |= {key: text.encode() for key, text in refs.items()}

    @rule(
        number=st.integers(0, 99), value=TEXTS | INLINE, how=st.sampled_from(["item", "update", "or", "pipe", "file"])
    )
    def put(self, number: int, value: Any, how: str) -> None:
        key = self.keys[number % len(self.keys)]
        self.now[key] = _decode(value)
        match how:
            case "item":
                self.fs.references[key] = value
            case "update":
                self.fs.references.update({key: value})
            case "or":
                references = self.fs.references
                references |= {key: value}
            case "pipe":
                self.now[key] = _decode(value) if isinstance(value, str) else value
                self.fs.pipe(key, value)
            case "file":
                self.now[key] = value.encode() if isinstance(value, str) else value
                with self.fs.open(key, "wb") as file:
                    file.write(self.now[key])

    @rule(number=st.integers(0, 99), start=st.integers(0, 200), length=st.integers(1, 50), as_tuple=st.booleans())
    def refer(self, number: int, start: int, length: int, as_tuple: bool) -> None:
        key = self.keys[number % len(self.keys)]
        value = [str(self.folder / "data.bin"), start, length]
        self.fs.references[key] = tuple(value) if as_tuple else value
        self.now[key] = DATA[start : start + length]

    @rule(number=st.integers(0, 99))
    def refer_to_all(self, number: int) -> None:
        key = self.keys[number % len(self.keys)]
        self.fs.references[key] = [str(self.folder / "data.bin")]
        self.now[key] = DATA

    @rule(number=st.integers(0, 99), how=st.sampled_from(["del", "pop", "rm", "rm list", "mapper"]))
    def remove(self, number: int, how: str) -> None:
        key = self.keys[number % len(self.keys)]
        was_there = self.now.pop(key, None) is not None
        try:
            match how:
                case "del":
                    del self.fs.references[key]
                case "pop":
                    self.fs.references.pop(key)
                case "rm":
                    self.fs.rm_file(key)
                case "rm list":
                    self.fs.rm([key])
                case "mapper":
                    del self.fs.get_mapper("")[key]
        except (KeyError, FileNotFoundError):
            assert not was_there

    @rule(number=st.integers(0, 9))
    def remove_an_array(self, number: int) -> None:
        array = self.arrays[number % len(self.arrays)]
        if self.fs.exists(array):
            self.fs.rm([array], recursive=True)
        self.now = {key: data for key, data in self.now.items() if key != array and not key.startswith(array + "/")}
        self.fs.references[f"{array}/.zarray"] = METADATA
        self.now[f"{array}/.zarray"] = METADATA.encode()

    @precondition(lambda self: self.kind != "memory")
    @rule(flush=st.booleans())
    def commit(self, flush: bool) -> None:
        if flush:
            self.fs.references.flush()  # type: ignore[attr-defined]
        else:
            self.fs.commit()
        self.stored = dict(self.now)

    @precondition(lambda self: self.kind != "memory" and self.stored)
    @rule(discard=st.booleans())
    def reopen(self, discard: bool) -> None:
        self.fs.discard()
        if not discard:
            self.fs = self.open_fs(self.path)
        self.now = dict(self.stored)

    @precondition(lambda self: self.kind == "memory")
    @rule(how=st.sampled_from(["json", "copy", "references", "pickled"]))
    def make_anew(self, how: str) -> None:
        match how:
            case "json":
                self.fs.save_json(self.path)
                self.fs = self.open_fs(json.loads(Path(self.path).read_bytes()))
            case "copy":
                self.fs = self.open_fs(self.fs.references.copy())  # type: ignore[attr-defined]
            case "references":
                self.fs = self.open_fs(self.fs.references)
            case "pickled":
                self.fs = self.open_fs(dict(self.fs.references))

    @invariant()
    def it_is_the_dict(self) -> None:
        references = self.fs.references
        keys = set(references) - {".zmetadata"}
        assert keys == self.now.keys()
        assert len(references) - (".zmetadata" in references) == len(self.now)
        assert dict(references).keys() - {".zmetadata"} == keys
        assert self.fs.cat(sorted(self.now)) == self.now
        assert {key for key in self.fs.find("") if key != ".zmetadata"} == self.now.keys()
        for key in (*self.now, "none", "T [K]/99"):
            assert (key in references) == (key in self.now) == self.fs.isfile(key)


@pytest.mark.parametrize(("kind", "examples"), [("memory", 12), ("json", 24), ("parquet", 10)])
def test_random_operations_agree_with_a_dict(kind: str, examples: int) -> None:
    search(kind, examples=examples, steps=15, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "examples"), [("memory", 150), ("json", 300), ("parquet", 125)])
def test_many_random_operations_agree_with_a_dict(kind: str, examples: int) -> None:
    search(kind, examples=examples, steps=15, derandomize=True)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_random_operations_agree_with_a_dict_for_ten_minutes() -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        for kind in ("memory", "json", "parquet"):
            search(kind, examples=10, steps=60, derandomize=False)


def search(kind: str, *, examples: int, steps: int, derandomize: bool) -> None:
    """Run random operations on sources of ``kind``; with ``derandomize``, the same operations each time."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        type(f"Machine of {kind}", (Machine,), {"kind": kind}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Progress bars: long operations have one in a terminal or notebook, and none elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from fsspec.callbacks import DEFAULT_CALLBACK, Callback, NoOpCallback

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.tools.progress import show_progress

META = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}
REFS = {
    "a/.zarray": json.dumps(META | {"filters": None, "compressor": None}),
    "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    "a/0": "ab",
    "a/1": "cd",
}


class Bar:
    """A stand-in for tqdm in fsspec's callback; ``made`` has all instances."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, total: int | None, **options: Any) -> None:
        self.total, self.options, self.n, self.is_closed = total, options, 0, False
        Bar.made.append(self)

    def update(self, count: int) -> None:
        self.n += count

    def close(self) -> None:
        self.is_closed = True


def simulate_viewer(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, shell: object = None) -> None:
    """Simulate a terminal, a notebook's shell, or neither."""
    seen = SimpleNamespace(
        stderr=SimpleNamespace(isatty=lambda: terminal), modules={"IPython": SimpleNamespace(get_ipython=lambda: shell)}
    )
    monkeypatch.setattr("refshard_fs.tools.progress.sys", seen)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    """Stand in for tqdm and for a terminal, and return the bars that are made."""
    tqdm, auto = ModuleType("tqdm"), ModuleType("tqdm.auto")
    tqdm.tqdm = auto.tqdm = Bar  # type: ignore[attr-defined]  # of a module made here
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    simulate_viewer(monkeypatch, terminal=True)
    monkeypatch.setattr(Bar, "made", [])
    return Bar.made


def test_long_operations_have_a_delayed_bar(bars: list[Bar], tmp_path: Path) -> None:
    fs = RefShardFileSystem(REFS)
    fs.save(str(tmp_path / "refs.json"))
    refshard_fs.concat([REFS, REFS], "x").save(str(tmp_path / "both.json"))
    refshard_fs.append(str(tmp_path / "both.json"), REFS, "x")
    refshard_fs.check(fs, "full")
    refshard_fs.snapshot(str(tmp_path / "refs.json"))
    assert {"save", "concat", "append", "check"} <= {bar.options["desc"] for bar in bars}
    assert all(bar.is_closed and bar.options["delay"] >= 1 and not bar.options["leave"] for bar in bars)
    assert all(bar.n == bar.total for bar in bars if bar.total is not None)


def test_user_callback_replaces_the_bar(bars: list[Bar], tmp_path: Path) -> None:
    RefShardFileSystem(REFS).save(str(tmp_path / "refs.json"), callback=NoOpCallback())
    mine = Callback()
    refshard_fs.concat([REFS, REFS], "x", callback=mine)
    assert bars == []
    assert (mine.size, mine.value) == (2, 2)


def test_no_bar_outside_terminals_and_notebooks(bars: list[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_viewer(monkeypatch, terminal=False)
    with show_progress("read") as shown:
        assert shown is DEFAULT_CALLBACK


def test_notebook_kernel_gets_a_bar(bars: list[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_viewer(monkeypatch, terminal=False, shell=SimpleNamespace(kernel=object()))
    with show_progress("read") as shown:
        shown.set_size(2)
    assert [(bar.total, bar.is_closed) for bar in bars] == [(2, True)]


def test_no_bar_without_tqdm(bars: list[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # type: ignore[arg-type]  # importing it fails
    with show_progress("read") as shown:
        assert shown is DEFAULT_CALLBACK

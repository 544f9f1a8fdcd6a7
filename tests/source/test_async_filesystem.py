"""Asynchronous filesystems have blocking methods, and are freed with their last reference."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.reference_sets import make_reference_set


@pytest.fixture
def source(tmp_path: Path) -> str:
    refs, data = make_reference_set("x.bin")
    (tmp_path / "x.bin").write_bytes(data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


def test_asynchronous_filesystem_has_synchronous_methods(source: str) -> None:
    fs = RefShardFileSystem(source, asynchronous=True)
    assert fs.info(".zgroup") == RefShardFileSystem(source).info(".zgroup")
    assert fs.cat_file(".zgroup") == RefShardFileSystem(source).cat_file(".zgroup")

    async def within() -> Any:
        return fs.info(".zgroup")["type"], fs.ls("", detail=False)

    assert asyncio.run(within()) == ("file", RefShardFileSystem(source).ls("", detail=False))


def test_unreferenced_filesystem_is_freed_at_once(source: str) -> None:
    """dask unpickles a filesystem for each task, and the garbage collector may not run for a while."""
    gc.collect()
    gc.disable()
    try:
        fs = pickle.loads(pickle.dumps(RefShardFileSystem(source)))
        assert fs.ls("", detail=False)
        gone = weakref.ref(fs)
        del fs
        assert gone() is None
    finally:
        gc.enable()


def test_blocking_methods_call_the_coroutines_of_a_subclass(source: str) -> None:
    class Counting(RefShardFileSystem):
        calls = 0

        async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
            self.calls += 1
            return await super()._ls(path, detail=detail, **kwargs)

    fs = Counting(source)
    assert fs.ls("", detail=False) == RefShardFileSystem(source).ls("", detail=False)
    assert fs.calls == 1

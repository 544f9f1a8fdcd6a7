"""fsspec's transactions commit or discard the writes to a source."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.written_references import LARGE, list_objects


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a set of two keys, one inline and one that is a range of a file; return its path."""
    (tmp_path / "data").write_bytes(LARGE)
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"text": "inline", "range": ["data", 10, 20]}))
    return path


def test_asynchronous_copy_shares_the_transaction(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    twin = type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": True})
    fs.pipe_file("before", b"kept")

    def fail() -> None:
        with fs.transaction:
            asyncio.run(twin._pipe_file("a", LARGE))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert fs.find("") == ["before", "range", "text"]
    assert not list_objects(path)
    fs.start_transaction()
    asyncio.run(twin._pipe_file("a", LARGE))
    fs.end_transaction()
    assert RefShardFileSystem(str(path)).find("") == ["a", "before", "range", "text"]


@pytest.mark.parametrize("settle", ["commit", "discard"])
def test_commit_or_discard_within_a_failed_transaction_stays(path: Path, settle: str) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", LARGE)
    with contextlib.suppress(ZeroDivisionError), fs.transaction:
        fs.pipe_file("a", LARGE + b"new")
        getattr(fs, settle)()
        fs.pipe_file("b", LARGE)
        raise ZeroDivisionError
    seen = fs.cat("", recursive=True)
    assert seen.get("a") == {"commit": LARGE + b"new", "discard": None}[settle]
    assert "b" not in seen
    fs.commit()
    assert RefShardFileSystem(str(path)).cat("", recursive=True) == seen

"""Large indexes are loaded in pieces and in threads, and once in a process."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Entry, Span
from refshard_fs.formats.kerchunk_json.source import JsonIndex
from refshard_fs.reading import loading
from refshard_fs.reading.loading import load
from refshard_fs.source.source import INDEXES
from tests.support.loads import ARRAY, make_document, make_load, run_steps

ARRAY |= {"order": "C", "filters": None}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MANY", 1000)
    monkeypatch.setattr(loading, "PIECE", 5000)
    monkeypatch.setattr(loading, "REMOTE_PIECE", 20000)


class Reads:
    """A source that records in ``spans`` which ranges were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.spans: list[tuple[int, int | None]] = []

    async def __call__(self, entry: Entry) -> bytes:
        assert isinstance(entry, Span)
        self.spans.append((entry.start, entry.stop))
        return self.data[entry.start : entry.stop]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("url", "step"), [("/refs.json", 5000), ("https://host/refs.json", 20000)])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_large_source_is_read_in_pieces(url: str, step: int, compress: Any) -> None:
    data = compress(make_document())
    reads = Reads(data)
    refs, weight = asyncio.run(load(make_load(data, url), reads, run_steps))
    assert len(refs) == 5002
    assert weight == refs.nbytes
    assert reads.spans == [(at, min(at + step, len(data))) for at in range(0, len(data), step)] or len(data) <= step


def test_manifest_is_parsed_once_by_several_filesystems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    INDEXES.clear()
    path = tmp_path / "refs.json"
    path.write_bytes(make_document())
    fs = RefShardFileSystem(str(path), index_cache=False)
    assert fs.cat("c") == b"text"
    monkeypatch.delattr(JsonIndex, "decode")
    monkeypatch.delattr(JsonIndex, "make_decoder")
    again = RefShardFileSystem(str(path), index_cache=False)
    assert again.cat("c") == b"text"

    async def read() -> Any:
        other = RefShardFileSystem(str(path), index_cache=False, asynchronous=True)
        return await other._cat_file("c")

    assert asyncio.run(read()) == b"text"


def test_rewritten_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    for text in ("one", "two"):
        path.write_text(json.dumps({"a": text}))
        assert RefShardFileSystem(str(path)).cat("a") == text.encode()


@pytest.mark.usefixtures("small_pieces")
def test_remote_source_read_in_pieces_has_its_references(http_server: Any) -> None:
    INDEXES.clear()
    http_server.put("/refs.json", make_document())
    fs = RefShardFileSystem(http_server.url + "/refs.json", index_cache=False)
    assert fs.references["a/4999"] == ["s3://b/x", 4999, 1]
    assert len(fs.references) == 5002


def test_source_in_memory_filesystem_is_read() -> None:
    INDEXES.clear()
    fsspec.filesystem("memory").pipe_file("/refs-of-loading.json", make_document())
    assert len(RefShardFileSystem("memory://refs-of-loading.json", index_cache=False).references) == 5002

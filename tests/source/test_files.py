"""fsspec's functions open, list and copy keys as files."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem
from tests.support.conventions import not_installed
from tests.support.reference_sets import VALUES, make_reference_set


@pytest.fixture
def source(tmp_path: Path) -> str:
    refs, data = make_reference_set("x.bin")
    (tmp_path / "x.bin").write_bytes(data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


@not_installed
@pytest.mark.parametrize("url", ["refshard://a/*.0", "refshard://a/*.0::{}"])
def test_open_files_expands_a_pattern(url: str, source: str) -> None:
    options = {} if "::" in url else {"fo": source}
    files = fsspec.open_files(url.format(f"file://{source}"), **options)
    assert [file.path for file in files] == ["a/0.0", "a/1.0", "a/2.0", "a/3.0"]
    with files as opened:
        assert b"".join(file.read() for file in opened) == b"".join(
            VALUES[row : row + 2, :3].tobytes() for row in range(0, 8, 2)
        )


@not_installed
def test_open_files_finds_metadata_of_arrays_by_pattern(source: str) -> None:
    assert [file.path for file in fsspec.open_files("refshard://*/.zarray", fo=source)] == ["a/.zarray"]
    assert [file.path for file in fsspec.open_files("refshard://**/.zarray", fo=source)] == ["a/.zarray", "g/b/.zarray"]


@not_installed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # older fsspec leaves a file open
def test_open_reads_text_and_open_local_makes_a_copy(source: str) -> None:
    with fsspec.open("refshard://.zattrs", "rt", fo=source) as file:
        assert json.load(file) == {"title": "x"}
    copy = fsspec.open_local("simplecache::refshard://a/0.0", refshard={"fo": source})
    assert Path(copy).read_bytes() == VALUES[:2, :3].tobytes()


@pytest.fixture(params=["local", "memory", "http"])
def replaceable(request: pytest.FixtureRequest, tmp_path: Path, http_server: Any) -> Any:
    """Return the URL of an object of eight bytes, and a function that replaces it, with a modification time."""
    match request.param:
        case "local":
            path = tmp_path / "data.bin"
            return str(path), lambda data, when: (path.write_bytes(data), os.utime(path, (when, when)))
        case "memory":
            memory = fsspec.filesystem("memory")
            return "memory://h24/data.bin", lambda data, when: memory.pipe_file("/h24/data.bin", data)
    url = f"{http_server.url}/data.bin"
    return url, lambda data, when: http_server.put("data.bin", data, modified=when)


def test_ukey_and_checksum_change_with_the_bytes(replaceable: Any) -> None:
    url, replace = replaceable
    replace(b"01234567", 1_000_000_000)
    references = {"a/0": [url, 0, 4], "a/1": "inline"}
    fs = RefShardFileSystem(references, skip_instance_cache=True)
    ukey, checksum, inline = fs.ukey("a/0"), fs.checksum("a/0"), fs.ukey("a/1")
    assert (fs.ukey("a/0"), fs.checksum("a/0")) == (ukey, checksum)
    assert RefShardFileSystem(references, skip_instance_cache=True).ukey("a/0") == ukey
    assert RefShardFileSystem({"a/0": [url, 4, 4]}).ukey("a/0") != ukey
    replace(b"76543210", 1_000_000_007)
    assert fs.ukey("a/0") != ukey
    assert fs.checksum("a/0") != checksum
    assert fs.ukey("a/1") == inline
    assert fs.ukey("a") == fs.ukey("a")
    with pytest.raises(FileNotFoundError):
        fs.ukey("a/2")


def test_modified_is_the_time_of_the_target(replaceable: Any) -> None:
    url, replace = replaceable
    replace(b"01234567", 1_000_000_000)
    fs = RefShardFileSystem({"a/0": [url, 0, 4], "a/1": "inline"}, skip_instance_cache=True)
    own, path = fsspec.core.url_to_fs(url)
    expected = own.modified(path) if own.protocol == "memory" else datetime.fromtimestamp(1_000_000_000, UTC)
    assert fs.modified("a/0") == expected.replace(tzinfo=UTC)
    for key in ("a", "a/1"):
        with pytest.raises(NotImplementedError, match="no modification time|has a modification time"):
            fs.modified(key)
    with pytest.raises(NotImplementedError, match=r"modified\(\)"):
        fs.created("a/0")


def test_inline_data_has_the_modification_time_of_its_manifest(source: str) -> None:
    own, path = fsspec.core.url_to_fs(source)
    assert abs(RefShardFileSystem(source).modified(".zgroup") - own.modified(path)) < timedelta(milliseconds=1)


def test_open_async_reads_the_bytes_of_cat(source: str) -> None:
    async def read() -> tuple[bytes, bytes, bytes]:
        fs = RefShardFileSystem(source, asynchronous=True)
        key = next(name for name in await fs._find("") if name.endswith("0"))
        async with await fs.open_async(key) as file:
            parts = await file.read(3), await file.read()
        with pytest.raises(ValueError, match="_pipe_file"):
            await fs.open_async(key, "wb")
        with pytest.raises(FileNotFoundError):
            await fs.open_async("none")
        return *parts, await fs._cat_file(key)

    first, rest, whole = asyncio.run(read())
    assert (first, first + rest) == (whole[:3], whole)


def test_opening_a_directory_as_a_file_is_an_error(source: str) -> None:
    with pytest.raises(IsADirectoryError, match=r"ls\(\)"):
        RefShardFileSystem(source).open("")

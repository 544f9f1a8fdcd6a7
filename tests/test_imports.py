"""Imports load heavy modules only when they are used."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.servers.http import RangeServer

HEAVY = (  # and aiohttp, before anything is read over HTTP
    "pandas",
    "pyarrow",
    "zarr",
    "xarray",
    "dask",
    "s3fs",
    "botocore",
    "aiobotocore",
    "jinja2",
    "numcodecs",
    "h5py",
)


@cache
def _list_modules(code: str) -> frozenset[str]:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import sys\n{code}\nprint(*sys.modules)",
    ]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return frozenset([*modules, *(module.partition(".")[0] for module in modules)])


@pytest.mark.parametrize(
    "code",
    [
        "from refshard_fs import RefShardFileSystem as FS\nassert FS({'a': 'text'}).cat('a') == b'text'",
        "from refshard_fs import RefShardFileSystem as FS\nassert FS(b'{\"a\":\"text\"}').cat('a') == b'text'",
    ],
)
def test_import_and_reading_text_load_no_heavy_module(code: str) -> None:
    assert _list_modules(code).isdisjoint([*HEAVY, "aiohttp"])


def test_local_hierarchy_needs_no_aiohttp(tmp_path: Path) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    code = f"from refshard_fs import RefShardFileSystem as FS\nfs = FS({str(tmp_path)!r})"
    assert "aiohttp" not in _list_modules(f"{code}\nassert fs.cat(['.zgroup', 'a/0'], on_error='omit')")


def test_help_of_the_command_needs_no_filesystem() -> None:
    loaded = _list_modules("from refshard_fs.cli.program import make_parser\nmake_parser().format_help()")
    assert loaded.isdisjoint([*HEAVY, "aiohttp", "numpy", "refshard_fs.fs"])


def test_importing_the_package_imports_little_beyond_fsspec() -> None:
    ours = {"refshard_fs", "refshard_fs.errors"}
    beside = _list_modules("import refshard_fs") - _list_modules("import fsspec.implementations.reference")
    assert {name for name in beside if name.startswith("refshard_fs")} == ours
    assert beside.isdisjoint({"numpy", "aiohttp", "msgspec"})


def test_reading_over_http_imports_no_heavy_module(http_server: RangeServer) -> None:
    url = http_server.put("x", b"0123")
    loaded = _list_modules(
        f"from refshard_fs import RefShardFileSystem as FS\nassert FS({{'a': [{url!r}, 1, 2]}}).cat('a') == b'12'"
    )
    assert "aiohttp" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_import_of_filesystem_loads_neither_openers_nor_writers() -> None:
    needless = {
        *("source.collect", "writing.save", "writing.commit", "sets", "tools.check", "tools.map", "cli"),
        *("formats.kerchunk_json.source", "references.builder", "formats.zip.source"),
    }
    loaded = _list_modules("from refshard_fs import RefShardFileSystem")
    assert loaded.isdisjoint({f"refshard_fs.{name}" for name in needless})
    assert "difflib" not in loaded


def test_readers_of_other_formats_are_not_imported() -> None:
    readers = {"bcolz.rootdir", "bcolz.bloscpack", "neuroglancer.volume", "zip.source"}
    loaded = _list_modules(
        "from refshard_fs import RefShardFileSystem as FS\nassert FS(b'{\"a\":\"text\"}').cat('a') == b'text'"
    )
    assert "refshard_fs.formats.kerchunk_json.source" in loaded
    assert loaded.isdisjoint({f"refshard_fs.formats.{name}" for name in readers})

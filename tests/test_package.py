"""The installed package: what it registers, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import refshard_fs


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("refshard_fs")
    except metadata.PackageNotFoundError:
        pytest.skip("refshard_fs is on the path, but not installed")


@pytest.mark.parametrize(
    ("group", "name"), [("fsspec.specs", "refshard"), ("xarray.backends", "refshard"), ("console_scripts", "refshard")]
)
def test_entry_points_lead_to_what_they_name(group: str, name: str) -> None:
    if group == "xarray.backends":
        pytest.importorskip("xarray")
    (point,) = (p for p in _distribution().entry_points if (p.group, p.name) == (group, name))
    assert callable(point.load())


def test_there_is_one_version() -> None:
    assert _distribution().version == refshard_fs.__version__


EXTRAS = ["jinja2", "pyarrow", "xarray", "zarr", "dask", "pandas", "kerchunk"]


def _python(code: str, folder: Path) -> list[str]:
    (folder / "refs.json").write_text('{"version": 1, "templates": {"u": "text"}, "refs": {"a/0": "text"}}')
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


def test_importing_it_imports_no_extra(tmp_path: Path) -> None:
    code = f"import sys, refshard_fs, refshard_fs.cli; print(*set({EXTRAS!r}).intersection(sys.modules))"
    assert _python(code, tmp_path) == []


def test_a_set_opens_where_no_extra_is_installed(tmp_path: Path) -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))"
    opened = 'from refshard_fs import RefShardFileSystem as FS; print(FS("refs.json").cat("a/0").decode())'
    assert _python(f"{absent}; {opened}", tmp_path) == ["text"]

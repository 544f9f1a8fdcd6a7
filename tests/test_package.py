"""The installed package: what it registers, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

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


def test_importing_it_needs_no_extra() -> None:
    extras = ["jinja2", "pyarrow", "xarray", "zarr", "dask", "pandas", "kerchunk", "rich"]
    code = f"import sys, refshard_fs, refshard_fs.cli; print(*set({extras!r}).intersection(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []

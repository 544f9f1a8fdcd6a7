"""Make cubes along two dimensions with missing parts, and compute their values by xarray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.sets.lazy_set import LazySet
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent

DIMS = ("time", "member")


versions = pytest.mark.parametrize("version", VERSIONS)


def list_in_turn(*cases: Any) -> list[tuple[Any, int]]:
    """Return each case with one zarr version in turn, because versions differ only in the keys."""
    return list(zip(cases, itertools.cycle(VERSIONS), strict=False))


def make_member_day(
    day: int, member: int, xs: Sequence[float] = (0, 1, 2, 3), names: Sequence[str] = ("v",), since: str = "2024-01-01"
) -> Any:
    """Return a day of a member; each value depends on variable, day, member and place."""
    shift = int((np.datetime64(since) - np.datetime64("2024-01-01")).astype(int))
    fields = {}
    for k, name in enumerate(names):
        data = np.array([[[10000 * (k + 1) + 1000 * member + 10 * day + x for x in xs]]], "f4")
        fields[name] = (("time", "member", "x"), data)
    time = xr.DataArray([day - shift], dims="time", attrs={"units": f"days since {since}"})
    return xr.Dataset(fields, coords={"time": time, "member": [member], "x": list(xs)})


def write_member_day(
    path: Path, ds: Any, chunk: int = 2, fill: float | None = np.nan, dtype: str = "f4", **storage: Any
) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    fields = {
        name: {"chunksizes": (1, 1, min(chunk, ds.sizes["x"])), "_FillValue": fill, "dtype": dtype, **storage}
        for name in ds.data_vars
    }
    whole = {name: {"_FillValue": None} for name in ds.coords}
    ds.to_netcdf(path, engine="h5netcdf", encoding={**fields, **whole})
    return str(path)


def load_each(files: Any) -> Any:
    return [load_each(file) for file in files] if isinstance(files, list) else xr.load_dataset(files, engine="h5netcdf")


def check_values(cube: Any, expected: Any, tmp_path: Path) -> RefShardFileSystem:
    """Save a cube, and assert that it has the expected values and all keys that it lists."""
    url = str(tmp_path / ("cube.refshard" if isinstance(cube, LazySet) else "cube.json"))
    cube.save(url)
    xr.testing.assert_equal(load_dataset(url).transpose(*expected.dims), expected.transpose(*expected.dims))
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    keys = fs.find("")
    assert len(set(keys)) == len(keys)
    data = fs.cat(keys)
    assert [fs.info(key)["size"] in (None, len(data[key])) for key in keys] == [True] * len(keys)
    assert all(fs.exists(key) for key in keys)
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings
    return fs


def open_combined(files: Any) -> Any:
    return xr.combine_nested(
        load_each(files), concat_dim=list(DIMS), join="outer", compat="no_conflicts", coords="minimal"
    )

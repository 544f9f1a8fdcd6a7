"""Sets whose chunks become references of one set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.errors import ManifestError
from tests.support.day_sets import UNITS
from tests.support.joined_sets import VERSIONS, make_day_set
from tests.support.set_values import read_values

zarr = pytest.importorskip("zarr")


def test_netcdf_files_of_a_pattern_are_joined(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf")
    for number in (2, 10, 1):
        time = xr.DataArray([number], dims="time", attrs={"units": UNITS})
        data = np.full((1, 4), number, "<f4")
        part = xr.Dataset({"t": (("time", "x"), data)}, coords={"time": time})
        part.to_netcdf(tmp_path / f"day{number}.nc", engine="h5netcdf", unlimited_dims=["time"])
    for lazy in (False, True):
        made = refshard_fs.concat(f"{tmp_path}/day*.nc", "time", lazy=lazy)
        assert read_values(made, "time", "<i8") == [1, 2, 10]
        fs = refshard_fs.RefShardFileSystem(made)
        rows = [np.frombuffer(fs.cat_file(f"t/{i}.0"), "<f4").tolist() for i in range(3)]
        assert rows == [[1.0] * 4, [2.0] * 4, [10.0] * 4]


def test_only_the_last_set_may_end_within_a_chunk() -> None:
    with pytest.raises(ManifestError, match=r"set 0 has 3 elements of 'air' along 'time'.*chunks of 2"):
        refshard_fs.concat([make_day_set(0, 3), make_day_set(4, 2)], dim="time")
    assert refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 3)], dim="time")


@pytest.mark.skipif(2 not in VERSIONS or len(VERSIONS) == 1, reason="zarr 2 has no shards")
def test_sharded_arrays_are_joined_by_their_shards(tmp_path: Any) -> None:
    paths, values = [], []
    for i in range(2):
        path = str(tmp_path / f"part{i}.zarr")
        group = zarr.open_group(path, mode="w", zarr_format=3)
        data = np.random.default_rng(i).integers(0, 99, (4, 4)).astype("<i2")
        array = group.create_array("air", shape=(4, 4), shards=(4, 4), chunks=(2, 2), dtype="<i2",
                                   dimension_names=["time", "x"])  # fmt: skip
        array[...] = data
        values.append(data)
        paths.append(path)
    both = refshard_fs.concat(paths, dim="time")
    assert sorted(key for key in both.references if "/c/" in key) == ["air/c/0/0", "air/c/1/0"]
    store = zarr.storage.FsspecStore(RefShardFileSystem(both, asynchronous=True), read_only=True, path="")
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["air"][...], np.concatenate(values))


def test_consolidated_metadata_describes_the_whole() -> None:
    one = make_day_set(0, 2)
    one[".zmetadata"] = json.dumps({"zarr_consolidated_format": 1, "metadata": {"air/.zarray": {}}})
    both = refshard_fs.concat([one, make_day_set(2, 2)], dim="time")
    assert both.references[".zmetadata"]["metadata"]["air/.zarray"]["shape"] == [4, 5]

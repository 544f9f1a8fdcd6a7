"""xarray writes into sharded arrays: regions, appended days, and dask's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.support.shard_writers import IS_ZARR_2

xr = pytest.importorskip("xarray")
if IS_ZARR_2:
    pytest.skip("zarr 2 writes no sharded arrays of version 3", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]


def days(first: int, count: int) -> Any:
    """Return a dataset of ``count`` days from the day ``first`` on, each with other values."""
    time = np.arange(first, first + count)
    air = np.random.default_rng(1).random((40, 6, 10))[first : first + count].astype("f4")
    return xr.Dataset({"air": (("time", "y", "x"), air)}, coords={"time": time, "y": np.arange(6), "x": np.arange(10)})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Let xarray write twelve days, in shards of four days and chunks of 2 x 5 values of one day."""
    encoding = {"air": {"chunks": (1, 2, 5), "shards": (4, 6, 10), "fill_value": -1.0}}
    days(0, 12).to_zarr(tmp_path / "days", encoding=encoding, zarr_format=3, consolidated=True)
    return tmp_path / "days"


def opened(root: Path) -> Any:
    return RefShardFileSystem(str(root), mode="a", skip_instance_cache=True)


def found(root: Path) -> Any:
    """Return the dataset that xarray reads without this package."""
    return xr.open_zarr(root).load()


def test_regions_written_to_shards_are_read_by_zarr(root: Path) -> None:
    fs = opened(root)
    expected = days(0, 12)
    for first, count in ((0, 4), (5, 3)):
        part = days(0, 12).isel(time=slice(first, first + count)) * 2
        expected["air"][first : first + count] = part["air"]
        with fs.transaction:
            part.drop_vars(["y", "x"]).to_zarr(
                fs.get_mapper(), region={"time": slice(first, first + count)}, consolidated=False
            )
    assert found(root).drop_vars("time").identical(expected.drop_vars("time"))


@pytest.mark.parametrize("consolidated", [True, False])
def test_appended_days_keep_the_sharding(root: Path, consolidated: bool) -> None:
    fs = opened(root)
    for first, count in ((12, 4), (16, 1), (17, 2)):
        with fs.transaction:
            days(first, count).to_zarr(fs.get_mapper(), append_dim="time", consolidated=consolidated)
        there = xr.open_zarr(root, consolidated=consolidated).load()
        assert there.identical(days(0, first + count))
    assert sorted(p.name for p in (root / "air" / "c").iterdir()) == ["0", "1", "2", "3", "4"]
    assert xr.open_zarr(fs.get_mapper(), consolidated=False)["air"].encoding["chunks"] == (1, 2, 5)


def test_inner_chunks_written_by_dask_are_read_by_zarr(root: Path) -> None:
    fs = opened(root)
    with fs.transaction:
        changed = (days(0, 12) + 1).chunk({"time": 1, "y": 2, "x": 5}).drop_vars(["y", "x", "time"])
        changed.to_zarr(fs.get_mapper(), region={"time": slice(0, 12)}, consolidated=False)
    assert found(root)["air"].identical((days(0, 12) + 1)["air"])


def test_overwritten_dataset_of_equal_chunks_keeps_its_shards(root: Path) -> None:
    fs = opened(root)
    with fs.transaction:
        encoding = {"air": {"chunks": (1, 2, 5), "fill_value": -1.0}}
        days(3, 9).to_zarr(fs.get_mapper(), mode="w", encoding=encoding, consolidated=True)
    assert found(root).identical(days(3, 9))
    import zarr

    assert zarr.open_array(str(root), path="air", mode="r").shards == (4, 6, 10)

"""Make a dataset of days that xarray writes through the filesystem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem

xr = pytest.importorskip("xarray")


zarr = pytest.importorskip("zarr")


NAMES = ["refs.json", "refs.parq"]


def make_dataset(start: int, steps: int) -> Any:
    time = np.arange(start, start + steps, dtype="int64")
    data = np.random.default_rng(7).random((50, 20, 10))[start : start + steps]
    return xr.Dataset(
        {"air": (("time", "y", "x"), data)},
        coords={"time": time, "y": np.arange(20), "x": np.arange(10)},
        attrs={"title": "made"},
    ).chunk({"time": 2})


def open_dataset(path: Path) -> Any:
    fs = RefShardFileSystem(str(path))
    return xr.open_zarr(fs.get_mapper(), consolidated=False).load()

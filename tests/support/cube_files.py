"""Write NetCDF files, and open the cube of several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import refshard_fs

DAYS = pd.date_range("2024-01-01", periods=6).as_unit("ns")


X = np.arange(4.0)


def make_values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((*shape, 4)).astype("f4")


def write(ds: xr.Dataset, path: Path, **encoding: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def open_cube(fo: Any, **arguments: Any) -> xr.Dataset:
    return xr.open_dataset(refshard_fs.cube(fo, **arguments), engine="refshard").load()

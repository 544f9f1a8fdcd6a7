"""Write files of daily fields, with missing days."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")


UNITS = "days since 2024-01-01"


def write_days(
    path: Path,
    days: Sequence[float],
    names: Sequence[str] = ("v",),
    xs: Sequence[int] = (0, 1),
    fill: float | None = np.nan,
    units: str = UNITS,
    calendar: str | None = None,
    dtype: str = "f4",
) -> str:
    """Write daily fields, with a chunk for each day; the values depend on variable, day and place."""
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    data = np.add.outer(np.asarray(days) * 100, np.asarray(xs))
    arrays = {name: (("time", "x"), (data + 10 * k).astype(dtype)) for k, name in enumerate(names)}
    ds = xr.Dataset(arrays, coords={"time": ("time", np.asarray(days), attributes), "x": list(xs)})
    storage = {name: {"chunksizes": (1, 2), "_FillValue": fill} for name in names}
    ds.to_netcdf(path, engine="h5netcdf", encoding={**storage, "time": {"_FillValue": None}})
    return str(path)


def load_all(files: Sequence[str]) -> list[Any]:
    return [xr.load_dataset(file, engine="h5netcdf") for file in files]


lazy_or_not = pytest.mark.parametrize("lazy", [False, True])

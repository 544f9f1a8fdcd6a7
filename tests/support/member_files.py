"""Write files of members and days, whose names form a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")


MEMBERS = ("r1", "r2", "r10")


DIMS = ("time", "member")


def write_member(folder: Path, member: str, day: int, **storage: Any) -> str:
    """Write a file of a member's day; its values depend on both."""
    path = folder / member / f"202401{day:02d}.nc"
    path.parent.mkdir(exist_ok=True)
    data = np.full((1, 2, 3), 100 * int(member[1:]) + day, "f4") + np.arange(6).reshape(1, 2, 3) / 10
    time = xr.DataArray([day - 1], dims="time", attrs={"units": "days since 2024-01-01"})
    ds = xr.Dataset({"v": (("time", "y", "x"), data)}, coords={"time": time, "x": [1, 2, 3]})
    encoding = {"v": {"chunksizes": (1, 2, 3), **storage}, "time": {"_FillValue": None}, "x": {"_FillValue": None}}
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return str(path)


def open_members(folder: Path, members: Sequence[str] = MEMBERS, days: Sequence[int] = (1, 2), **storage: Any) -> Any:
    files = [[write_member(folder, member, day, **storage) for member in members] for day in days]
    loaded = [[xr.load_dataset(file, engine="h5netcdf") for file in row] for row in files]
    return xr.combine_nested(loaded, concat_dim=["time", "member"])

"""Write files of days whose names are not in the order of the days."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from tests.support.cube_files import DAYS, X, make_values, write


def combine_by_coords(folder: Path) -> xr.Dataset:
    parts = [xr.open_dataset(path, engine="h5netcdf") for path in sorted(folder.rglob("*.nc"))]
    return xr.combine_by_coords(parts, data_vars="minimal", coords="minimal", compat="equals").load()  # type: ignore[return-value]


def write_days(folder: Path, order: str = "dcab") -> None:
    for day, name in enumerate(order):
        ds = xr.Dataset({"t": (("time", "x"), make_values(1, seed=day))}, {"time": DAYS[day : day + 1], "x": X})
        units = f"days since 2024-01-0{1 + day % 3}"
        write(ds, folder / f"{name}.nc", time={"units": units, "dtype": "f8"})

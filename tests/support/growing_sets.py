"""Write sets and files for tests of append."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import refshard_fs
from refshard_fs import RefShardFileSystem

pytest.importorskip("zarr")


TARGETS = ["json", "parquet", "lazy"]


def open_anew(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def write_target(folder: Path, kind: str, parts: list[dict[str, Any]]) -> str:
    url = str(folder / ("grows.json" if kind in ("json", "lazy") else "grows"))
    if kind == "lazy":
        refshard_fs.concat([write_part(folder, part, i) for i, part in enumerate(parts)], "time", lazy=True).save(url)
    else:
        open_anew(refshard_fs.concat(parts, "time")).save(url, kind)  # type: ignore[arg-type]
    return url


def write_part(folder: Path, part: dict[str, Any], number: int) -> str:
    path = str(folder / f"part{number}.json")
    open_anew(part).save(path, "json")
    return path


def write_day(folder: Path, day: int, value: float) -> str:
    time = ("time", [day], {"units": "days since 2024-01-01"})
    path = folder / f"{day}.nc"
    xr.Dataset({"t": ("time", [value])}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return str(path)


def write_variable(folder: Path, name: str, *years: int, **shifted: int) -> list[str]:
    """Write a file of the variable ``name`` for each year, which has two times, and return their paths."""
    paths = []
    for year in years:
        data = xr.DataArray([10.0 * year, 10.0 * year + 1], dims="time")
        times = ("time", [2 * year + shifted.get("by", 0), 2 * year + 1], {"units": "days since 2024-01-01"})
        paths.append(str(folder / f"{name}_{year}.nc"))
        xr.Dataset({name: data}, {"time": times}).to_netcdf(paths[-1], engine="h5netcdf")
    return paths

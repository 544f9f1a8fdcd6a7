"""Write small files of a cube by several writers; each file has one day of a quantity at four places."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import pytest

import refshard_fs

UNITS: Final = "days since 2024-01-01"
PLACES: Final = 4


def with_h5py(path: Path, day: int) -> None:
    with h5py.File(path, "w", track_order=True) as file:
        time = file.create_dataset("time", data=np.array([day], "<i4"))
        time.attrs["units"] = UNITS
        time.make_scale("time")
        x = file.create_dataset("x", data=np.arange(PLACES, dtype="<f4"))
        x.make_scale("x")
        t = file.create_dataset("t", data=np.full((1, PLACES), day, "<f4"))
        bounds = file.create_dataset("x_bounds", data=np.arange(PLACES, dtype="<f4") - 0.5)
        t.dims[0].attach_scale(time)
        t.dims[1].attach_scale(x)
        bounds.dims[0].attach_scale(x)


def with_netcdf4(path: Path, day: int) -> None:
    netCDF4 = pytest.importorskip("netCDF4")  # the package has this name
    with netCDF4.Dataset(path, "w") as file:
        _fill(file, day)


def with_scipy(path: Path, day: int) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    with scipy_io.netcdf_file(path, "w") as file:
        _fill(file, day)


def _fill(file: Any, day: int) -> None:
    file.createDimension("time", 1)
    file.createDimension("x", PLACES)
    time = file.createVariable("time", "i4", ("time",))
    time.units = UNITS
    time[:] = [day]
    file.createVariable("x", "f4", ("x",))[:] = np.arange(PLACES)
    file.createVariable("x_bounds", "f4", ("x",))[:] = np.arange(PLACES) - 0.5
    file.createVariable("t", "f4", ("time", "x"))[:] = np.full((1, PLACES), day)


def write_references(path: Path, day: int) -> None:
    """Write a reference set of a day, and its target beside it."""

    def array(dtype: str, shape: list[int]) -> str:
        meta = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "order": "C"}
        return json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})

    def inline(values: Any) -> str:
        return "base64:" + base64.b64encode(values.tobytes()).decode()

    data = path.with_suffix(".bin")
    data.write_bytes(np.full(PLACES, day, "<f4").tobytes() + (np.arange(PLACES, dtype="<f4") - 0.5).tobytes())
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for name, dtype, shape, dims in (
        ("time", "<i4", [1], ["time"]),
        ("x", "<f4", [PLACES], ["x"]),
        ("x_bounds", "<f4", [PLACES], ["x"]),
        ("t", "<f4", [1, PLACES], ["time", "x"]),
    ):
        refs[f"{name}/.zarray"] = array(dtype, shape)
        attributes = {"_ARRAY_DIMENSIONS": dims} | ({"units": UNITS} if name == "time" else {})
        refs[f"{name}/.zattrs"] = json.dumps(attributes)
    refs["time/0"] = inline(np.array([day], "<i4"))
    refs["x/0"] = inline(np.arange(PLACES, dtype="<f4"))
    refs["x_bounds/0"] = [data.name, 4 * PLACES, 4 * PLACES]
    refs["t/0.0"] = [data.name, 0, 4 * PLACES]
    path.write_text(json.dumps(refs))


WRITERS: Final[dict[str, tuple[str, Callable[[Path, int], None]]]] = {
    "h5py": (".h5", with_h5py),
    "netCDF4": (".nc", with_netcdf4),
    "scipy": (".nc3", with_scipy),
    "references": (".json", write_references),
}


def write_day_files(folder: Path, writer: str, count: int) -> list[str]:
    """Write ``count`` days, and return their paths."""
    suffix, write = WRITERS[writer]
    paths = [folder / f"day{number}{suffix}" for number in range(count)]
    for number, path in enumerate(paths):
        write(path, number)
    return list(map(str, paths))


def read_days(fo: Any) -> list[int]:
    """Return the times of a cube, whatever their encoding."""
    fs = fo if isinstance(fo, refshard_fs.RefShardFileSystem) else refshard_fs.RefShardFileSystem(fo)
    dtype = json.loads(fs.cat_file("time/.zarray"))["dtype"]
    found: list[int] = np.frombuffer(fs.cat_file("time/0"), dtype).tolist()
    return found


def read_first_values(fo: Any, count: int) -> list[float]:
    """Return the first value of each of ``count`` days."""
    fs = refshard_fs.RefShardFileSystem(fo, skip_instance_cache=True)
    dtype = json.loads(fs.cat_file("t/.zarray"))["dtype"]
    return [float(np.frombuffer(fs.cat_file(f"t/{day}.0"), dtype)[0]) for day in range(count)]


def make_plain_file(day: int) -> bytes:
    """Return a NetCDF-3 file of a day, made in memory."""
    scipy_io = pytest.importorskip("scipy.io")
    memory = io.BytesIO()
    with scipy_io.netcdf_file(memory, "w") as file:
        _fill(file, day)
        file.flush()
        return memory.getvalue()

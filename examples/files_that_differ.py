"""Join files that store the same quantity differently to one cube with the right values.

Different programs wrote the days of an archive: some files hold floating-point numbers, others integers with their own
scale_factor and add_offset, another byte order, or compressed chunks. If chunks were joined unchanged, the second day
would be decoded with the first day's attributes, and be wrong by many degrees. With ``lazy=True`` each chunk is decoded
by the attributes of its own file, and encoded like the chunks of the first file. If a value cannot be converted
exactly, reading the chunk is an error.

    python examples/files_that_differ.py [--plot files_that_differ.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from netcdf_archive import SOURCE, STEPS_A_DAY

import refshard_fs

DAYS = 9
# The encodings of consecutive days, which repeat. The first encoding can hold the values of all others.
ENCODINGS: list[dict[str, Any]] = [
    {"dtype": "f8", "_FillValue": None},
    {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768, "zlib": True},
    {"dtype": ">f4", "_FillValue": None, "zlib": True, "shuffle": True},
]


def main() -> None:
    """Write files that differ, join them, and check and plot the values."""
    parser = argparse.ArgumentParser(description="Files that store the same quantity differently, as one cube.")
    parser.add_argument("--plot", type=Path, default=Path("files_that_differ.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name:
        files = write(Path(name))
        joined = refshard_fs.concat(files, dim="time", lazy=True)
        print(joined.save(f"{name}/cube.refshard"))
        with xr.open_dataset(f"{name}/cube.refshard", engine="refshard") as ds:
            cube = ds["air"].load()
        for day, file in enumerate(files):
            steps = slice(day * STEPS_A_DAY, (day + 1) * STEPS_A_DAY)
            np.testing.assert_array_equal(cube[steps].values, unpack_values(file))
        print("every value equals that of its own file")
        stored = np.concatenate([read_stored_values(file) for file in files])

    plot(cube, stored, plot_file)
    print(f"plot: {plot_file}")


def write(folder: Path) -> list[str]:
    """Write a file for each day, with another encoding than that of the day before; return the paths."""
    files = []
    with xr.open_dataset(SOURCE, engine="h5netcdf", decode_times=False) as month:
        for day in range(DAYS):
            one = month.isel(time=slice(day * STEPS_A_DAY, (day + 1) * STEPS_A_DAY)).load().drop_encoding()
            file = str(folder / f"air-{day:02}.nc")
            chunks = {"chunksizes": tuple(one.sizes[dimension] for dimension in one["air"].dims)}
            one.to_netcdf(file, engine="h5netcdf", encoding={"air": chunks | ENCODINGS[day % len(ENCODINGS)]})
            files.append(file)
    return files


def read_stored_values(file: str) -> np.ndarray[Any, Any]:
    """Return the stored numbers of a file, before unpacking, as floating-point numbers."""
    with xr.open_dataset(file, engine="h5netcdf", mask_and_scale=False) as ds:
        return ds["air"].values.astype("f8")


def unpack_values(file: str) -> np.ndarray[Any, Any]:
    """Return the values of a file, unpacked by its own attributes."""
    with xr.open_dataset(file, engine="h5netcdf", mask_and_scale=False) as ds:
        attributes = ds["air"].attrs
    return read_stored_values(file) * attributes.get("scale_factor", 1.0) + attributes.get("add_offset", 0.0)


def plot(cube: xr.DataArray, stored: np.ndarray[Any, Any], file: Path) -> None:
    """Plot the mean over time of the cube, and that of the stored numbers."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    days = np.arange(len(stored)) / STEPS_A_DAY
    axes.plot(days, stored.mean((1, 2)), "--", label="stored numbers")
    axes.plot(days, cube.mean(("lat", "lon")), linewidth=3, label="the cube")
    axes.set(title="Mean over the region", xlabel="day", ylabel="K")
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

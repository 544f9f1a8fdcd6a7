"""Files that store the same quantity differently, as one cube whose every value is right.

The days of an archive were written by programs that changed: some hold floating-point numbers, others whole numbers
with a scale_factor and an add_offset of their own, in another byte order, or compressed. Who joins their chunks as they
are reads the second day with the first one's numbers, and is wrong by many degrees. With ``lazy=True`` a chunk is
decoded as its own file says, and served as the first file's would be: exactly, or reading it is an error.

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
# How a day is stored, and those after it; the first can hold the values of all others.
ENCODINGS: list[dict[str, Any]] = [
    {"dtype": "f8", "_FillValue": None},
    {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768, "zlib": True},
    {"dtype": ">f4", "_FillValue": None, "zlib": True, "shuffle": True},
]


def main() -> None:
    """Write files that differ, join them, read, check and plot."""
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
            np.testing.assert_array_equal(cube[steps].values, unpacked(file))
        print("every value equals what its own file says")
        stored = np.concatenate([stored_values(file) for file in files])

    plot(cube, stored, plot_file)
    print(f"plot: {plot_file}")


def write(folder: Path) -> list[str]:
    """Write a file a day, each encoded otherwise than the one before."""
    files = []
    with xr.open_dataset(SOURCE, engine="h5netcdf", decode_times=False) as month:
        for day in range(DAYS):
            one = month.isel(time=slice(day * STEPS_A_DAY, (day + 1) * STEPS_A_DAY)).load().drop_encoding()
            file = str(folder / f"air-{day:02}.nc")
            chunks = {"chunksizes": tuple(one.sizes[dimension] for dimension in one["air"].dims)}
            one.to_netcdf(file, engine="h5netcdf", encoding={"air": chunks | ENCODINGS[day % len(ENCODINGS)]})
            files.append(file)
    return files


def stored_values(file: str) -> np.ndarray[Any, Any]:
    """Return the numbers that lie in a file, as floating-point ones."""
    with xr.open_dataset(file, engine="h5netcdf", mask_and_scale=False) as ds:
        return ds["air"].values.astype("f8")


def unpacked(file: str) -> np.ndarray[Any, Any]:
    """Return the values of a file as its own attributes say."""
    with xr.open_dataset(file, engine="h5netcdf", mask_and_scale=False) as ds:
        attributes = ds["air"].attrs
    return stored_values(file) * attributes.get("scale_factor", 1.0) + attributes.get("add_offset", 0.0)


def plot(cube: xr.DataArray, stored: np.ndarray[Any, Any], file: Path) -> None:
    """Save the course of the mean as the cube shows it, and as the stored numbers would give it."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    days = np.arange(len(stored)) / STEPS_A_DAY
    axes.plot(days, stored.mean((1, 2)), "--", label="numbers as they are stored")
    axes.plot(days, cube.mean(("lat", "lon")), linewidth=3, label="the cube")
    axes.set(title="Mean over the region", xlabel="day", ylabel="K")
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

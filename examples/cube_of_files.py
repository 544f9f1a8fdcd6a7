"""Open a folder of NetCDF files as one cube, and append new files by a daily job, without copying chunks.

A month of real data lies in a folder as one NetCDF file for each day. `refshard_fs.concat` scans each file once, and
the result is saved as a small document that names the files. xarray opens the document as one dataset, and a file is
opened when one of its chunks is read. New days are appended. If the job runs twice, the second run changes nothing.

    python examples/cube_of_files.py [--plot cube_of_files.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from netcdf_archive import SOURCE, STEPS_A_DAY, write_archive

import refshard_fs

NEW = 3  # days that are appended one after the other


def main() -> None:
    """Make a cube of the first days, append the new days, and check and plot a point."""
    parser = argparse.ArgumentParser(description="A folder of NetCDF files as one cube, which grows by a day.")
    parser.add_argument("--plot", type=Path, default=Path("cube_of_files.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_archive(folder)
        later = folder / "later"  # the files of days that are appended below
        later.mkdir()
        for file in files[-NEW:]:
            file.rename(later / file.name)

        cube = str(folder / "cube.refshard")
        refshard_fs.concat(f"{folder}/air-*.nc", dim="time", lazy=True).save(cube)
        print(f"files {len(files) - NEW}, the document has {Path(cube).stat().st_size:,} bytes")

        for file in files[-NEW:]:
            (later / file.name).rename(file)
            for _ in range(2):  # the second run of the job changes nothing
                added = refshard_fs.append(cube, str(file), dim="time", on_duplicate="skip")
                print(f"{file.name}: {f'{added:+} steps' if added else 'nothing new'}")

        with xr.open_dataset(cube, engine="refshard", chunks={}) as ds:
            print(f"cube {dict(ds.sizes)}, dask chunks {ds['air'].data.npartitions}")
            point = ds["air"].sel(lat=50.0, lon=250.0, method="nearest").load()
        with xr.open_dataset(SOURCE, engine="h5netcdf") as month:
            xr.testing.assert_equal(point, month["air"].sel(lat=50.0, lon=250.0, method="nearest").load())
        print("every value of the point equals that of the files")

    plot(point, plot_file)
    print(f"plot: {plot_file}")


def plot(point: xr.DataArray, file: Path) -> None:
    """Plot a point over time, with the appended days in another colour."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    first = point.sizes["time"] - NEW * STEPS_A_DAY
    axes.plot(point["time"][: first + 1], point[: first + 1] - 273.15, label="found in the folder")
    axes.plot(point["time"][first:], point[first:] - 273.15, linewidth=3, label="appended")
    axes.set(title="One point through all files", ylabel="°C")
    axes.tick_params(axis="x", rotation=20)
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

"""Go from a bucket's name to a plot of a climatology in five lines, and compare them with `open_mfdataset`.

A month of real data is served on loopback as one NetCDF file for each day, and the server has a page of links to the
files. The five lines join the files, and compute the mean for each hour of the day. The files are not copied, and no
reference set exists.

    python examples/first_hour.py [--plot first_hour.png]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec
import xarray as xr
from _server import serve
from matplotlib.figure import Figure
from netcdf_archive import write_archive

MERGED: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "exact"}


def main() -> None:
    """Serve the archive, run the five lines and `open_mfdataset`, and print the time and the requests of each."""
    parser = argparse.ArgumentParser(description="From a bucket's name to a plot of a climatology.")
    parser.add_argument("--plot", type=Path, default=Path("first_hour.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name, serve(Path(name)) as server:
        files = write_archive(Path(name))
        bucket = server.url
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes = figure.subplots()
        began = time.perf_counter()

        ds = xr.open_dataset(f"{bucket}/air-*.nc", engine="refshard", chunks={})
        climatology = ds["air"].groupby("time.hour").mean()
        celsius = (climatology.mean(("lat", "lon")) - 273.15).compute()
        elapsed = time.perf_counter() - began
        celsius.plot(ax=axes, marker="o")
        figure.savefig(plot_file, dpi=120)

        print(f"refshard: {elapsed:.1f} s, requests {server.requests.total()}")

        server.reset_counters()
        began = time.perf_counter()
        opened = [fsspec.open(f"{bucket}/{file.name}").open() for file in files]
        with xr.open_mfdataset(opened, engine="h5netcdf", combine="nested", concat_dim="time", **MERGED) as expected:
            theirs = (expected["air"].groupby("time.hour").mean().mean(("lat", "lon")) - 273.15).compute()
        print(f"open_mfdataset: {time.perf_counter() - began:.1f} s, requests {server.requests.total()}")
        xr.testing.assert_allclose(celsius.drop_attrs(), theirs.drop_attrs())
        print("every mean equals that of open_mfdataset")
    print(f"plot: {plot_file}")


if __name__ == "__main__":
    main()

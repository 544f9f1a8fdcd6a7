"""Read a table that bcolz wrote as a dataframe of dask, without bcolz, which no longer installs everywhere.

bcolz wrote the table in data/air.bcolz: time, latitude, longitude and air temperature of a month, with a row for each
value. Its columns are shown as zarr arrays with bcolz's chunks, which dask reads in parallel. The means are compared
with the NetCDF file from which the table was made, and plotted.

    python examples/bcolz_table.py [--plot bcolz_table.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from matplotlib.figure import Figure

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Open the table, compute means, and check and plot them."""
    parser = argparse.ArgumentParser(description="A bcolz table as a dask dataframe.")
    parser.add_argument("--plot", type=Path, default=Path("bcolz_table.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    table = zarr.open_group("refshard://", mode="r", storage_options={"fo": str(DATA / "air.bcolz")})
    columns = {name: da.from_array(table[name], chunks=table[name].chunks) for name in ("time", "lat", "air")}
    frame = dd.concat([dd.from_dask_array(column, columns=name) for name, column in columns.items()], axis=1)
    print(f"{table.attrs['title']}: rows {table['air'].shape[0]:,}, partitions {frame.npartitions}")

    frame["day"] = (frame["time"] - int(np.datetime64("2014-10-01", "s").astype(int))) // 86_400 + 1
    means = frame.groupby(["day", "lat"])["air"].mean().compute().unstack("lat") - 273.15
    print(means.iloc[::10, ::5].round(1).to_string())

    with xr.open_dataset(DATA / "air.nc", engine="h5netcdf") as source:
        expected = source["air"].mean("lon").groupby("time.day").mean() - 273.15
        np.testing.assert_allclose(means, expected.sel(lat=means.columns).transpose("day", "lat"), atol=1e-3)
    print("every mean equals that of the NetCDF file")

    plot(means, plot_file)
    print(f"plot: {plot_file}")


def plot(means: pd.DataFrame, file: Path) -> None:
    """Plot the mean of each latitude over time."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    for latitude in means.columns[::5]:
        axes.plot(means.index, means[latitude], label=f"{latitude:g}°N")
    axes.set(title="Daily means by latitude", xlabel="day of October 2014", ylabel="°C")
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

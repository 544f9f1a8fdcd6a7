"""Read a NetCDF file over HTTP as if it were zarr, with few requests.

Everything is local: real data are written as a chunked NetCDF file and served on loopback. The file itself says where
its chunks lie, so that no references are needed. This file is small, and the first request reads all of it. From a
larger file, only the needed chunks are read. The values are compared with those of h5netcdf, and plotted.

    python examples/quickstart.py [--plot quickstart.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from _server import serve
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

SOURCE = Path(__file__).parent / "data" / "air.nc"
STEPS_A_DAY = 4


def main() -> None:
    """Write and serve the file, read it, and check and plot the values."""
    parser = argparse.ArgumentParser(description="A NetCDF file, read over HTTP where it lies.")
    parser.add_argument("--plot", type=Path, default=Path("quickstart.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name, serve(Path(name)) as server:
        folder = Path(name)
        write_netcdf(folder / "air.nc")

        # With chunks={}, which makes dask arrays, each thread would request fewer chunks at a time.
        server.reset_counters()
        ds = xr.open_dataset(f"{server.url}/air.nc", engine="refshard")
        day = ds["air"].sel(time="2014-10-17").load()
        report("opening it, and one day", day, server.requests["air.nc"], server.bytes["air.nc"])

        server.reset_counters()
        month = ds["air"].load()
        report("the month", month, server.requests["air.nc"], server.bytes["air.nc"])

        with xr.open_dataset(folder / "air.nc", engine="h5netcdf") as expected:
            xr.testing.assert_equal(ds.load(), expected.load())
            np.testing.assert_array_equal(day, expected["air"].sel(time="2014-10-17"))
        print("every value equals that of h5netcdf")

    plot(month, plot_file)
    print(f"plot: {plot_file}")


def write_netcdf(file: Path) -> None:
    """Write the field, packed in 16 bits, with one compressed chunk for each day, as real files have."""
    with xr.open_dataset(SOURCE, engine="h5netcdf", mask_and_scale=False) as source:
        chunks = (STEPS_A_DAY, source.sizes["lat"], source.sizes["lon"])
        packed = {"chunksizes": chunks, "zlib": True, "complevel": 4, "shuffle": True}
        source.to_netcdf(file, engine="h5netcdf", encoding={"air": packed})


def report(what: str, field: xr.DataArray, requests: int, received: int) -> None:
    """Print the requests and the bytes that reading ``field`` took."""
    chunks = -(-field.sizes["time"] // STEPS_A_DAY)
    print(f"{what}: chunks {chunks}, requests {requests}, received {received:,} bytes, values {field.nbytes:,} bytes")


def plot(air: xr.DataArray, file: Path) -> None:
    """Plot a map of the mean, and the values at one place over time."""
    celsius = air.mean("time") - 273.15
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    field, series = figure.subplots(1, 2, width_ratios=(3, 2))
    mesh = field.pcolormesh(air["lon"], air["lat"], celsius, cmap="RdYlBu_r", shading="nearest")
    figure.colorbar(mesh, ax=field, label="°C")
    field.set(title="Mean air temperature, October 2014", xlabel="longitude (°E)", ylabel="latitude (°N)")
    place = air.sel(lat=58.8, lon=265.9, method="nearest")
    series.plot(air["time"], place - 273.15, linewidth=1)
    series.set(title=f"Near Churchill, Manitoba ({float(place['lat']):g}°N, {float(place['lon']):g}°E)", ylabel="°C")
    dates = AutoDateLocator(maxticks=6)
    series.xaxis.set_major_locator(dates)
    series.xaxis.set_major_formatter(ConciseDateFormatter(dates))
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

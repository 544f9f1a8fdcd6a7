"""Join references to an archive of NetCDF files to one cube, which dask reads in place.

A month of real data is written as one NetCDF file for each day and served on loopback. kerchunk (or VirtualiZarr) makes
references to the chunks of each file. `refshard_fs.concat` joins these thirty-one sets along time, and reads no chunks
except coordinates. xarray opens the result as one dataset. Its values are compared with the files, and plotted.

    python examples/netcdf_archive.py [--writer kerchunk|virtualizarr] [--plot netcdf_archive.png]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from _server import serve
from matplotlib.figure import Figure

import refshard_fs

SOURCE = Path(__file__).parent / "data" / "air.nc"
STEPS_A_DAY = 4


def main() -> None:
    """Write the archive, make references, join them, and check and plot the values."""
    parser = argparse.ArgumentParser(description="A folder of NetCDF files, read as one cube.")
    parser.add_argument("--writer", choices=sorted(WRITERS), default="kerchunk", help="package that makes references")
    parser.add_argument("--plot", type=Path, default=Path("netcdf_archive.png"), help="where to save the plot")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name, serve(Path(name)) as server:
        folder = Path(name)
        files = write_archive(folder)
        sets = [WRITERS[arguments.writer](file, f"{server.url}/{file.name}") for file in files]
        cube = refshard_fs.concat(sets, dim="time")
        cube.save(str(folder / "cube.parquet"))  # a few kilobytes
        print(f"files {len(files)}, references {len(cube)}")

        ds = xr.open_dataset(str(folder / "cube.parquet"), engine="refshard", chunks={})
        print(f"cube {dict(ds.sizes)}, dask chunks {ds['air'].data.npartitions}")

        server.reset_counters()
        daily = ds["air"].resample(time="1D").mean().compute()
        print(f"daily means: requests {server.requests.total()}, received {server.bytes.total():,} bytes")

        with xr.open_mfdataset(files, engine="h5netcdf", combine="nested", concat_dim="time", **MERGED) as expected:
            xr.testing.assert_equal(daily, expected["air"].resample(time="1D").mean().compute())
        print("every mean equals that of the files")

    plot(daily, arguments.plot)
    print(f"plot: {arguments.plot}")


# Without these arguments, xarray warns that their defaults will change.
MERGED: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "exact"}


def write_archive(folder: Path) -> list[Path]:
    """Write a file for each day of the month, packed and compressed, with one chunk; return the paths."""
    files = []
    with xr.open_dataset(SOURCE, engine="h5netcdf", mask_and_scale=False, decode_times=False) as month:
        for day in range(month.sizes["time"] // STEPS_A_DAY):
            one = month.isel(time=slice(day * STEPS_A_DAY, (day + 1) * STEPS_A_DAY))
            file = folder / f"air-2014-10-{day + 1:02}.nc"
            chunks = tuple(one.sizes[dimension] for dimension in one["air"].dims)
            packed = {"chunksizes": chunks, "zlib": True, "complevel": 4, "shuffle": True}
            one.to_netcdf(file, engine="h5netcdf", encoding={"air": packed})
            files.append(file)
    return files


def refer_by_kerchunk(file: Path, url: str) -> Mapping[str, Any]:
    """Return kerchunk's references to the chunks of ``file``, which readers find at ``url``."""
    from kerchunk.hdf import SingleHdf5ToZarr

    with file.open("rb") as opened:
        references: Mapping[str, Any] = SingleHdf5ToZarr(opened, url).translate()
    return references


def refer_by_virtualizarr(file: Path, url: str) -> Mapping[str, Any]:
    """Return VirtualiZarr's references to the chunks of ``file``, which readers find at ``url``."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    with open_virtual_dataset(file.as_uri(), registry=registry, parser=HDFParser(), decode_times=False) as virtual:
        references: Mapping[str, Any] = virtual.vz.to_kerchunk(format="dict")
    return refshard_fs.rebase(references, {str(file): url}).references


WRITERS: dict[str, Callable[[Path, str], Mapping[str, Any]]] = {
    "kerchunk": refer_by_kerchunk,
    "virtualizarr": refer_by_virtualizarr,
}


def plot(daily: xr.DataArray, file: Path) -> None:
    """Plot the mean over the region by day, and the mean of each latitude by day."""
    celsius = daily - 273.15
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    course, latitudes = figure.subplots(1, 2)
    course.plot(daily["time"].dt.day, celsius.mean(("lat", "lon")))
    course.set(title="Mean over the region", xlabel="day of October 2014", ylabel="°C")
    mesh = latitudes.pcolormesh(
        daily["time"].dt.day, daily["lat"], celsius.mean("lon").T, cmap="RdYlBu_r", shading="nearest"
    )
    figure.colorbar(mesh, ax=latitudes, label="°C")
    latitudes.set(title="Mean over longitudes", xlabel="day of October 2014", ylabel="latitude (°N)")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

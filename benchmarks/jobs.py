"""Real jobs, each beside what people use today: a year of ERA5-like months as one cube.

    python -m benchmarks.jobs [--quick] [--latency SECONDS]

Twelve NetCDF-4 files of a month each, 16-bit numbers with a scale and an offset for each file, a chunk a step, shuffled
and deflated, behind a loopback server that delays each request by 20 ms. ``concat(lazy=True)`` makes the cube, which is
saved, opened by xarray with ``chunks={}`` and with ``chunks={"time": 31}``, and read by dask: one point through all
steps, and monthly means. ``open_mfdataset`` opens the same files through h5netcdf, at xarray's own block cache. Both
compute the same values, in one process and in turns. Requests are counted at the server. ``--quick``: a step a day.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5netcdf
import numpy as np
import xarray as xr

import refshard_fs
from benchmarks.engine import Link, Server
from benchmarks.measure import Goal, Row, show
from refshard_fs.xarray_backend import RefShardBackend

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SHAPE = (73, 144)
REPEATS = 3
JOBS: dict[str, Callable[[xr.Dataset], Any]] = {
    "a point through all steps": lambda ds: ds["t2m"][:, 10, 20].values,
    "monthly means": lambda ds: ds["t2m"].resample(time="MS").mean().values,
}


def write(path: Path, number: int, steps: int) -> None:
    """Write the file of one month, of so many steps a day."""
    first, count = sum(DAYS[:number]), DAYS[number] * steps
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": count, "latitude": SHAPE[0], "longitude": SHAPE[1]}
        hours = file.create_variable("time", ("time",), "i4", data=np.arange(count) * (24 // steps) + first * 24)
        hours.attrs.update(units="hours since 2000-01-01", calendar="gregorian")
        file.create_variable("latitude", ("latitude",), "f4", data=np.linspace(90, -90, SHAPE[0]))
        file.create_variable("longitude", ("longitude",), "f4", data=np.linspace(0, 357.5, SHAPE[1]))
        values = np.random.default_rng(number).integers(-30, 31, (count, *SHAPE)).cumsum(2).astype("i2")
        air = file.create_variable(
            "t2m", ("time", "latitude", "longitude"), "i2", data=values, chunks=(1, *SHAPE),
            compression="gzip", shuffle=True, fillvalue=-32767,
        )  # fmt: skip
        air.attrs.update(scale_factor=0.001 + 0.0001 * number, add_offset=280.0 + number)


def ours(saved: str, chunks: dict[str, int]) -> xr.Dataset:
    """Open the saved cube, with nothing remembered of it."""
    fs = refshard_fs.RefShardFileSystem(saved, skip_instance_cache=True)
    fs.invalidate_cache()
    options = {"skip_instance_cache": True}
    return xr.open_dataset(saved, engine=RefShardBackend, chunks=chunks, storage_options=options)


def theirs(urls: list[str], chunks: dict[str, int]) -> xr.Dataset:
    """Open the files by xarray's own means."""
    http = fsspec.filesystem("http", skip_instance_cache=True)
    options = {"block_size": 4 << 20, "cache_type": "blockcache"}  # as xarray opens URLs
    return xr.open_mfdataset(
        [http.open(url, **options) for url in urls], engine="h5netcdf", chunks=chunks, combine="nested",
        concat_dim="time", data_vars="minimal", coords="minimal", compat="override", join="override",
    )  # fmt: skip


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a step a day, once")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of each request")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{number:02d}.nc" for number in range(len(DAYS))]
        for number, name in enumerate(names):
            write(Path(folder, name), number, 1 if arguments.quick else 4)
        with contextlib.closing(Server(folder)) as server:
            server.pace(Link(arguments.latency, None))
            urls = [f"{server.url}/{name}" for name in names]
            saved = f"{folder}/year.refshard"
            refshard_fs.concat(urls, "time", lazy=True).save(saved)
            sides = {"mfdataset": lambda chunks: theirs(urls, chunks), "refshard": lambda chunks: ours(saved, chunks)}
            for chunks in ({}, {"time": 31}):
                for name, job in JOBS.items():
                    times: dict[str, list[float]] = {side: [] for side in sides}
                    requests, values = {}, {}
                    for _ in range(1 if arguments.quick else REPEATS):
                        for side, opened in sides.items():
                            server.get("/__clear__")
                            began = time.perf_counter()
                            with opened(chunks) as ds:
                                values[side] = job(ds)
                            times[side].append(time.perf_counter() - began)
                            requests[side], _ = server.seen()
                    np.testing.assert_allclose(values["refshard"], values["mfdataset"], rtol=1e-6)
                    baseline, found = (statistics.median(times[side]) for side in sides)
                    rows.append(Row(f"{name}, chunks={chunks}", "s", baseline, found, Goal(ratio=2)))
                    rows.append(Row("  requests", "", requests["mfdataset"], requests["refshard"], Goal()))
    show("jobs", rows, "mfdataset", "refshard")


if __name__ == "__main__":
    main()

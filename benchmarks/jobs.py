"""What people do, beside what they do it with today: one process a job and side, everything imported before.

    python -m benchmarks.jobs [NAME ...] [--quick] [--links 0 20 50 20+60] [--repeats 3]

Each job runs over HTTP from a loopback server that delays each request. The values of both sides are compared, and
requests and bytes are counted at the server. xarray reads files with h5netcdf and its own default block cache. A job is
one class below: it writes its files once, and has a method for each side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import xarray as xr
import zarr

import refshard_fs
from benchmarks.engine import Link, Server
from benchmarks.measure import shown
from benchmarks.record import Case, keep
from refshard_fs.xarray_backend import RefShardBackend

LINKS = {"0": Link(0.0, None), "20": Link(0.02, None), "50": Link(0.05, None), "20+60": Link(0.02, 60e6)}
JOBS: dict[str, Job] = {}


class Job(ABC):
    """One thing that people do: ``ours`` and ``theirs`` do it at the server ``base``, and return the same values."""

    title: str
    peer = "xarray"
    goal = 1.0  # their time divided by ours

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "title" in cls.__dict__:
            JOBS[cls.__name__.lower()] = cls()

    @abstractmethod
    def write(self, folder: Path, *, quick: bool) -> None:
        """Write the files that the job reads."""

    def prepare(self, folder: Path, base: str) -> None:  # noqa: B027  # most jobs need nothing
        """Make what users have before they begin, such as a saved cube. It is not measured."""

    @abstractmethod
    def ours(self, folder: Path, base: str) -> Any:
        """Do it with refshard."""

    @abstractmethod
    def theirs(self, folder: Path, base: str) -> Any:
        """Do it as people do today."""


def field(seed: int, steps: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Return whole numbers that compress about as well as those of a reanalysis."""
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 1, (rows, columns)), 0), 1)
    return np.asarray((smooth + rng.normal(0, 20, (steps, rows, columns))) * 4).clip(-32000, 32000).astype("i2")


# ----------------------------------------------------------------------------------------------------
# Months of a reanalysis, each with a packing of its own.


class _Months(Job):
    months, steps, shape = 12, 120, (121, 240)
    chunks: Any = {}  # noqa: RUF012  # nobody changes it
    goal = 3.0

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.glob("month*.nc"))

    def write(self, folder: Path, *, quick: bool) -> None:
        months, steps = (4, 40) if quick else (self.months, self.steps)
        for month in range(months):
            with h5netcdf.File(folder / f"month{month:03d}.nc", "w") as file:
                file.dimensions = {"time": steps, "latitude": self.shape[0], "longitude": self.shape[1]}
                times = file.create_variable("time", ("time",), "i4")
                times[:] = np.arange(month * steps, (month + 1) * steps) * 6
                times.attrs["units"] = "hours since 2020-01-01"
                for name, size in zip(("latitude", "longitude"), self.shape, strict=True):
                    file.create_variable(name, (name,), "f4")[:] = np.linspace(-60, 60, size)
                t2m = file.create_variable(
                    "t2m", ("time", "latitude", "longitude"), "i2", chunks=(1, *self.shape), compression="gzip",
                    compression_opts=4, shuffle=True, fillvalue=np.int16(-32767),
                )  # fmt: skip
                t2m.attrs["scale_factor"], t2m.attrs["add_offset"] = 0.002 + month * 1e-5, 273.0 + month / 10
                t2m[:] = field(month, steps, *self.shape)

    def prepare(self, folder: Path, base: str) -> None:
        urls = [f"{base}/{name}" for name in self.names(folder)]
        refshard_fs.concat(urls, dim="time", lazy=True, allow=[base]).save(
            str(folder / "cube.refshard"), overwrite=True
        )

    def ours(self, folder: Path, base: str) -> Any:
        options = {"allow": [base]}
        with xr.open_dataset(
            folder / "cube.refshard", engine=RefShardBackend, chunks=self.chunks, storage_options=options
        ) as ds:
            return self.result(ds)

    def theirs(self, folder: Path, base: str) -> Any:
        urls = [f"{base}/{name}" for name in self.names(folder)]
        with xr.open_mfdataset(
            urls, engine="h5netcdf", chunks=self.chunks, combine="nested", concat_dim="time", data_vars="minimal",
            coords="minimal", compat="override", join="override",
        ) as ds:  # fmt: skip
            return self.result(ds)

    def result(self, ds: xr.Dataset) -> Any:
        return ds["t2m"][:, 50, 100].values


class Point(_Months):
    title = "ERA5 months, chunks={}: a point through all steps"


class PointOfMonths(_Months):
    title = "ERA5 months, chunks of 31 steps: a point through all steps"
    chunks = {"time": 31}  # noqa: RUF012  # nobody changes it


class Means(_Months):
    title = "ERA5 months, chunks={}: monthly means"
    goal = 2.0

    def result(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].groupby("time.month").mean().values


class MeansOfMonths(Means):
    title = "ERA5 months, chunks of 31 steps: monthly means"
    chunks = {"time": 31}  # noqa: RUF012  # nobody changes it


class FirstStep(_Months):
    title = "ERA5 months, chunks={}: opened, and the first step"

    def result(self, ds: xr.Dataset) -> Any:
        return ds["t2m"][0].values


class Training(_Months):
    title = "ERA5 months, no dask: 32 crops at random"
    chunks = None
    goal = 2.0

    def result(self, ds: xr.Dataset) -> Any:
        rng = np.random.default_rng(1)
        picks = [(int(rng.integers(ds.sizes["time"])), *map(int, rng.integers(0, 50, 2))) for _ in range(32)]
        return np.stack([ds["t2m"][t, y : y + 64, x : x + 64].values for t, y, x in picks])

    def theirs(self, folder: Path, base: str) -> Any:
        self_chunks = {}
        urls = [f"{base}/{name}" for name in self.names(folder)]
        with xr.open_mfdataset(
            urls, engine="h5netcdf", chunks=self_chunks, combine="nested", concat_dim="time", data_vars="minimal",
            coords="minimal", compat="override", join="override",
        ) as ds:  # fmt: skip
            return self.result(ds)


# ----------------------------------------------------------------------------------------------------
# One file.


class _File(_Months):
    months = 1
    goal = 1.0

    def prepare(self, folder: Path, base: str) -> None:
        pass

    def ours(self, folder: Path, base: str) -> Any:
        with xr.open_dataset(f"{base}/month000.nc", engine=RefShardBackend, chunks=self.chunks) as ds:
            return self.result(ds)

    def theirs(self, folder: Path, base: str) -> Any:
        with xr.open_dataset(f"{base}/month000.nc", engine="h5netcdf", chunks=self.chunks) as ds:
            return self.result(ds)

    def result(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].values


class Whole(_File):
    title = "a NetCDF-4 file: a whole variable, no dask"
    chunks = None
    steps, shape = 480, (181, 360)
    goal = 2.0


class WholeByChunk(Whole):
    title = "a NetCDF-4 file, chunks={}: a whole variable"
    chunks: Any = {}  # noqa: RUF012  # nobody changes it


class WholeByHundred(Whole):
    title = "a NetCDF-4 file, chunks of 100 steps: a whole variable"
    chunks: Any = {"time": 100}  # noqa: RUF012  # nobody changes it


class Small(_File):
    title = "a small NetCDF-4 file: ds.load()"
    chunks = None
    steps, shape = 8, (61, 120)

    def result(self, ds: xr.Dataset) -> Any:
        return ds.load()["t2m"].values


# ----------------------------------------------------------------------------------------------------
# A zarr store that nobody has opened yet.


class _Store(Job):
    zarr_format: Any = 2
    shards: Any = None
    consolidated = True
    peer = "xr.open_zarr"

    def write(self, folder: Path, *, quick: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # consolidated metadata are not in the specification of version 3
            group = zarr.open_group(str(folder / "store.zarr"), mode="w", zarr_format=self.zarr_format)
            for number in range(6):
                self._array(group, f"v{number}", ("time", "y", "x"), field(number, 40, 100, 100), (1, 100, 100))
            for name, size in (("time", 40), ("y", 100), ("x", 100)):
                self._array(group, name, (name,), np.arange(size, dtype="i4"), (size,))
            if self.consolidated:
                zarr.consolidate_metadata(group.store)

    def _array(self, group: Any, name: str, dims: tuple[str, ...], values: Any, chunks: tuple[int, ...]) -> None:
        is_sharded = self.shards is not None and len(chunks) > 1
        named = {"dimension_names": dims} if self.zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": dims}}
        made = group.create_array(
            name,
            shape=values.shape,
            chunks=chunks,
            dtype=values.dtype,
            shards=self.shards if is_sharded else None,
            **named,
        )
        made[...] = values

    def ours(self, folder: Path, base: str) -> Any:
        with xr.open_dataset(f"{base}/store.zarr", engine=RefShardBackend) as ds:
            return self.result(ds)

    def theirs(self, folder: Path, base: str) -> Any:
        with xr.open_zarr(f"{base}/store.zarr", chunks=None, consolidated=True if self.consolidated else None) as ds:
            return self.result(ds)

    def result(self, ds: xr.Dataset) -> Any:
        return ds["v3"][5].values


class ColdStore2(_Store):
    title = "a cold zarr store, v2, consolidated: one step"


class ColdStore3(_Store):
    title = "a cold zarr store, v3, consolidated: one step"
    zarr_format: Any = 3


class ColdShards(_Store):
    title = "a cold zarr store, v3, sharded: a row of steps"
    zarr_format: Any = 3
    shards: Any = (10, 100, 100)

    def result(self, ds: xr.Dataset) -> Any:
        return ds["v3"][10:20].values


# ----------------------------------------------------------------------------------------------------
# Running them.


def child(name: str, side: str, folder: str, base: str) -> None:
    """Do one side of a job, or what comes before it, and print the seconds; its values go to a file."""
    warnings.simplefilter("ignore")
    job = JOBS[name]
    if side == "prepare":
        job.prepare(Path(folder), base)
        print(json.dumps({}))
        return
    import dask.array  # noqa: F401  # everything is imported before
    import fsspec.implementations.http  # noqa: F401

    cpu, began = time.process_time(), time.perf_counter()
    values = getattr(job, side)(Path(folder), base)
    seconds = time.perf_counter() - began
    np.save(Path(folder) / f"{side}.npy", values)
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu}))


def run(name: str, side: str, folder: str, server: Server) -> dict[str, float]:
    """Run one side of a job in a process of its own; return its seconds, requests and bytes."""
    server.get("/__clear__")
    command = [sys.executable, "-m", "benchmarks.jobs", "--child", name, side, folder, server.url]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  # its own
    if done.returncode:
        sys.exit(f"{name}, {side}:\n{done.stderr}")
    requests, size = server.seen()
    return {**json.loads(done.stdout.splitlines()[-1]), "requests": requests, "bytes": size}


def measure(name: str, links: list[str], repeats: int, *, quick: bool) -> list[tuple[str, ...]]:
    """Return the lines of a job's table, and keep them for the report."""
    job, lines = JOBS[name], []
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder), quick=quick)
        with contextlib.closing(Server(folder)) as server:
            run(name, "prepare", folder, server)
            for link in links:
                server.pace(LINKS[link])
                found: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
                for _ in range(repeats):
                    for side, results in found.items():
                        results.append(run(name, side, folder, server))
                values = [np.load(Path(folder) / f"{side}.npy") for side in found]
                np.testing.assert_allclose(*values, rtol=1e-6)
                theirs, ours = (
                    {key: statistics.median(r[key] for r in results) for key in results[0]}
                    for results in found.values()
                )
                title, ratio = f"{job.title}, {link} ms", theirs["seconds"] / ours["seconds"]
                sides = {job.peer: theirs, "refshard": ours}
                keep(
                    Case(
                        "jobs", title, "s", {side: one["seconds"] for side, one in sides.items()},
                        ("refshard",), job.peer,
                        {side: int(one["requests"]) for side, one in sides.items()},
                        {side: one["bytes"] for side, one in sides.items()}, f"≥ {job.goal:g}×", ratio >= job.goal,
                    )
                )  # fmt: skip
                seconds = [shown(one["seconds"], "s") for one in sides.values()]
                requests = " / ".join(f"{one['requests']:.0f}" for one in sides.values())
                size = " / ".join(f"{one['bytes'] / 1e6:.1f}" for one in sides.values())
                verdict = "win" if ratio >= 1 else "LOSS"
                lines.append((title, *seconds, f"{ratio:.2f}×", f"≥ {job.goal:g}×", verdict, requests, f"{size} MB"))
    return lines


def main() -> None:
    """Measure the jobs that are named, or all, and print a line each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(JOBS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller files, 20 ms, once")
    parser.add_argument("--links", nargs="*", choices=LINKS, help="milliseconds a request waits, and MB/s")
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(JOBS):
        parser.error(f"there is no job {', '.join(sorted(unknown))}")
    links = arguments.links or (["20"] if arguments.quick else list(LINKS))
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    print("job | today | refshard | ratio | goal | | requests | bytes")
    for name in arguments.names or JOBS:
        for line in measure(name, links, repeats, quick=arguments.quick):
            print(" | ".join(line), flush=True)


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :])
    else:
        main()

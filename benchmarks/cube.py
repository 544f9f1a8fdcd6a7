"""Join a folder of small files to a cube, save it, open it and read it, compared with xarray's open_mfdataset.

    python -m benchmarks.cube [--quick] [--writer scipy]

There are ten thousand files of a day each, on this machine's disk and behind a loopback server that delays each request
by 20 ms. Each of four writers (h5py, netCDF4, scipy's NetCDF-3, reference sets in JSON) writes a quarter of them, which
is joined to one cube. The baseline of joining is a GET of the first bytes of each file, 128 at a time. A cube is made
by ``concat(lazy=True)``, saved, opened by xarray, and one point is read from all of its files. open_mfdataset reads the
point from 200 files on the disk, and its time is scaled to all files. ``--quick``: 100 files by two
writers. ``--writer``: one writer writes all files.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

import aiohttp
import numpy as np
import xarray as xr

import refshard_fs
from benchmarks.links import Link, Server
from benchmarks.measure import Goal, Row, print_table, run_in_turns
from refshard_fs.xarray_backend import RefShardBackend
from tests.support.set_files import WRITERS

FILES, QUICK = 10_000, 100
QUICK_WRITERS = ("h5py", "references")
PEER = 200  # files of each writer that open_mfdataset opens
LATENCY = 0.02  # seconds of each request
IN_FLIGHT = 128  # requests


def write_files(folder: str, writer: str, count: int) -> list[str]:
    """Write the files of ``writer`` that are missing in ``folder``; return the names of all its files."""
    suffix, write = WRITERS[writer]
    names = [f"{writer}-{day:05d}{suffix}" for day in range(count)]
    for day, name in enumerate(names):
        if not (Path(folder) / name).exists():
            write(Path(folder) / name, day)
    return names


# The following functions run in a new process. They read two files before they measure, so that all is imported.


def time_requests(urls: list[str]) -> float:
    """Return the seconds that a GET of the first bytes of each file takes."""

    async def get(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url, headers={"Range": "bytes=0-65535"}) as answer:
            await answer.read()

    async def get_all() -> None:
        left = iter(urls)

        async def get_next() -> None:
            for url in left:
                await get(session, url)

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
            await asyncio.gather(*[get_next() for _ in range(IN_FLIGHT)])

    start = time.perf_counter()
    asyncio.run(get_all())
    return time.perf_counter() - start


def time_reads(paths: list[str]) -> float:
    """Return the seconds that reading the first bytes of each file takes."""
    start = time.perf_counter()
    for path in paths:
        with open(path, "rb") as file:
            file.read(65536)
    return time.perf_counter() - start


def measure_cube(sources: list[str], saved: str) -> dict[str, float]:
    """Return the seconds in which a cube is made, opened and read, its bytes, and the process's MiB of memory."""
    for names, url in ((sources[:2], saved + ".warm"), (sources, saved)):
        began, cpu = time.perf_counter(), time.process_time()
        refshard_fs.concat(names, "time", same=["x_bounds"], lazy=True, index_cache=False).save(url)
        found = {"made": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        found["bytes"] = os.path.getsize(url)
        began = time.perf_counter()
        with xr.open_dataset(url, engine=RefShardBackend) as ds:
            found["opened"] = time.perf_counter() - began
            point = ds["t"][:, 3].values
        found["read"] = time.perf_counter() - began
        np.testing.assert_array_equal(point, np.arange(len(names), dtype="f4"))
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def measure_mfdataset(paths: list[str]) -> dict[str, float]:
    """Return the seconds that open_mfdataset takes until the point is read."""
    engine = "scipy" if paths[0].endswith(".nc3") else "h5netcdf"
    began = 0.0
    for names in (paths[:2], paths):
        began = time.perf_counter()
        with xr.open_mfdataset(
            names, engine=engine, combine="nested", concat_dim="time", data_vars="minimal", coords="minimal",
            compat="override", join="override",
        ) as ds:  # fmt: skip
            point = ds["t"][:, 3].values
        np.testing.assert_array_equal(point, np.arange(len(names), dtype="f4"))
    return {"read": time.perf_counter() - began}


def run_child(what: str, folder: str, writer: str, count: int, base: str) -> None:
    """Measure ``what`` with the files of one writer, and print the figures as JSON."""
    warnings.simplefilter("ignore")
    sources = [f"{base}/{name}" for name in write_files(folder, writer, count)]
    match what:
        case "cube":
            alone = time_requests if base.startswith("http") else time_reads
            with tempfile.TemporaryDirectory() as out:
                found = {"alone": alone(sources), **measure_cube(sources, f"{out}/cube.refshard")}
        case _:
            found = measure_mfdataset(sources[:PEER])
    print(json.dumps(found))


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cube", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} files by {' and '.join(QUICK_WRITERS)}")
    parser.add_argument("--writer", choices=WRITERS, help="one writer of all files")
    arguments = parser.parse_args()
    total = QUICK if arguments.quick else FILES
    writers = [arguments.writer] if arguments.writer else list(QUICK_WRITERS if arguments.quick else WRITERS)
    count = total // len(writers)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for writer in writers:
            write_files(folder, writer, count)
        with contextlib.closing(Server(folder)) as server:
            server.set_pace(Link(LATENCY, None))
            for where, base in (("HTTP, 20 ms", server.url), ("disk", folder)):
                cases = [("cube", folder, writer, str(count), base) for writer in writers]
                found = run_in_turns("benchmarks.cube", cases, 1)
                for writer, cubes in zip(writers, found, strict=True):
                    goal = Goal(ratio=0.5) if where != "disk" else Goal()
                    rows.append(
                        Row(
                            f"{count} files by {writer}, {where}: made and saved",
                            "s",
                            cubes["alone"],
                            cubes["made"],
                            goal,
                        )
                    )
                    rows.append(Row("  of processor time, a file", "s", None, cubes["cpu"] / count, Goal(most=0.002)))
                    rows.append(Row("  the document, a file", "B", None, cubes["bytes"] / count, Goal(most=200)))
                    rows.append(Row("  opened", "s", None, cubes["opened"], Goal(most=0.1)))
                    rows.append(Row("  most memory of the process", "MiB", None, cubes["memory"], Goal()))
                    if where == "disk" and writer != "references":
                        (peer,) = run_in_turns(
                            "benchmarks.cube", [("mfdataset", folder, writer, str(count), folder)], 1
                        )
                        scaled = peer["read"] * count / min(PEER, count)
                        rows.append(Row("  a point through all files", "s", scaled, cubes["read"], Goal(ratio=10)))
                    else:
                        rows.append(Row("  a point through all files", "s", None, cubes["read"], Goal()))
    print_table("cube", rows, "alone, or mfdataset", "refshard")


if __name__ == "__main__":
    if "--child" in sys.argv:
        what, folder, writer, count, base = sys.argv[sys.argv.index("--child") + 1 :]
        run_child(what, folder, writer, int(count), base)
    else:
        main()

"""A folder of small files as one cube: looked at, saved, opened, read through; beside xarray's open_mfdataset.

    python -m benchmarks.cube [--quick] [--writer scipy]

Ten thousand files of a day each, a quarter of them by each of four writers (h5py, netCDF4, scipy's NetCDF-3, reference
sets in JSON), on this machine's disk and behind a loopback server that delays each request by 20 ms. Each quarter is a
cube. What the requests alone need is a GET of the first bytes of each file, 128 at a time. A cube is made by
``concat(lazy=True)``, saved, opened by xarray, and one point is read through all of its files; open_mfdataset does that
with 200 of them on the disk, and its time is scaled up. ``--quick``: 100 files. ``--writer``: by one writer.
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
from benchmarks.engine import Link, Server
from benchmarks.measure import Goal, Row, in_turns, show
from refshard_fs.xarray_backend import RefShardBackend
from tests.support.set_files import WRITERS

FILES, QUICK = 10_000, 100
PEER = 200  # files that open_mfdataset opens, of each writer's
LATENCY = 0.02  # seconds of each request
IN_FLIGHT = 128


def made(folder: str, writer: str, count: int) -> list[str]:
    """Return the names of the files of ``writer`` in ``folder``; those that are missing are written."""
    suffix, write = WRITERS[writer]
    names = [f"{writer}-{day:05d}{suffix}" for day in range(count)]
    for day, name in enumerate(names):
        if not (Path(folder) / name).exists():
            write(Path(folder) / name, day)
    return names


# What a process of its own measures. Two files are read before, so that all is imported.


def requests_alone(urls: list[str]) -> float:
    """Return the seconds that a GET of the first bytes of each file takes."""

    async def get(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url, headers={"Range": "bytes=0-65535"}) as answer:
            await answer.read()

    async def every() -> None:
        left = iter(urls)

        async def some() -> None:
            for url in left:
                await get(session, url)

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
            await asyncio.gather(*[some() for _ in range(IN_FLIGHT)])

    start = time.perf_counter()
    asyncio.run(every())
    return time.perf_counter() - start


def reads_alone(paths: list[str]) -> float:
    """Return the seconds that reading the first bytes of each file takes."""
    start = time.perf_counter()
    for path in paths:
        with open(path, "rb") as file:
            file.read(65536)
    return time.perf_counter() - start


def cube(sources: list[str], saved: str) -> dict[str, float]:
    """Return the seconds that our cube takes to be made, opened and read through, its bytes, and MiB of memory."""
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


def mfdataset(paths: list[str]) -> dict[str, float]:
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


def child(what: str, folder: str, writer: str, count: int, base: str) -> None:
    """Measure ``what`` of one quarter of the files, and print it as JSON."""
    warnings.simplefilter("ignore")
    sources = [f"{base}/{name}" for name in made(folder, writer, count)]
    match what:
        case "cube":
            alone = requests_alone if base.startswith("http") else reads_alone
            with tempfile.TemporaryDirectory() as out:
                found = {"alone": alone(sources), **cube(sources, f"{out}/cube.refshard")}
        case _:
            found = mfdataset(sources[:PEER])
    print(json.dumps(found))


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cube", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} files")
    parser.add_argument("--writer", choices=WRITERS, help="one writer of all files")
    arguments = parser.parse_args()
    total = QUICK if arguments.quick else FILES
    writers = [arguments.writer] if arguments.writer else list(WRITERS)
    count = total // len(writers)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for writer in writers:
            made(folder, writer, count)
        with contextlib.closing(Server(folder)) as server:
            server.pace(Link(LATENCY, None))
            for where, base in (("HTTP, 20 ms", server.url), ("disk", folder)):
                cases = [("cube", folder, writer, str(count), base) for writer in writers]
                found = in_turns("benchmarks.cube", cases, 1)
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
                        (peer,) = in_turns("benchmarks.cube", [("mfdataset", folder, writer, str(count), folder)], 1)
                        scaled = peer["read"] * count / min(PEER, count)
                        rows.append(Row("  a point through all files", "s", scaled, cubes["read"], Goal(ratio=10)))
                    else:
                        rows.append(Row("  a point through all files", "s", None, cubes["read"], Goal()))
    show("cube", rows, "alone, or mfdataset", "refshard")


if __name__ == "__main__":
    if "--child" in sys.argv:
        what, folder, writer, count, base = sys.argv[sys.argv.index("--child") + 1 :]
        child(what, folder, writer, int(count), base)
    else:
        main()

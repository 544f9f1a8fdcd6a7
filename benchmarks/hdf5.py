"""Read a NetCDF file in place, compared with h5netcdf over fsspec, pyfive, kerchunk and VirtualiZarr.

    python -m benchmarks.hdf5 [--quick]

One file has four variables of 3,000 steps, written step by step (351 MB), on a loopback server that delays each request
by 20 ms. Another file has 500 variables of 100 kB in 20 groups, at 50 ms. Every measurement is a new process, which has
imported the reader and read another file before, so that nothing of the file is cached. All readers must return the
same values. Requests and bytes are counted by the server. ``--quick``: 300 steps and 100 variables, read by this
package and one other.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import h5py
import numpy as np
import xarray as xr

from benchmarks.links import Link, Server
from benchmarks.measure import Goal, format_figure, run_in_turns
from benchmarks.record import Case, record_case

STEPS, VARIABLES, PLANE = 3000, 4, (60, 122)
GROUPS, MEMBERS, FIELD = 20, 25, (100, 250)
REPEATS = 3
LATENCIES = {"steps.nc": 0.02, "groups.nc": 0.05}


def write_steps(path: Path, steps: int) -> None:
    """Write variables step by step, as a model does: for each step, a chunk of each variable."""
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        file.create_dataset("time", (0,), "<f8", chunks=(512,), maxshape=(None,))
        for name, size in zip("yx", PLANE, strict=True):
            file[name] = np.arange(size, dtype="<f8")
        for name in ("time", "y", "x"):
            file[name].make_scale(name)
        for number in range(VARIABLES):
            v = file.create_dataset(f"v{number}", (0, *PLANE), "<f4", chunks=(1, *PLANE), maxshape=(None, *PLANE))
            v.attrs["units"] = "m"
            for axis, name in enumerate(("time", "y", "x")):
                v.dims[axis].attach_scale(file[name])
        plane = rng.normal(size=PLANE).astype("<f4")
        for step in range(steps):
            file["time"].resize((step + 1,))
            file["time"][step] = step
            for number in range(VARIABLES):
                file[f"v{number}"].resize((step + 1, *PLANE))
                file[f"v{number}"][step] = plane + (step + number)


def write_groups(path: Path, groups: int) -> None:
    """Write many variables of 100 kB with attributes, in groups that each have two dimensions."""
    with h5py.File(path, "w") as file:
        for place in range(groups):
            group = file.create_group(f"group{place:02d}")
            group.attrs["title"] = f"the group {place}"
            for name, size in zip("yx", FIELD, strict=True):
                group[name] = np.arange(size, dtype="<f8")
                group[name].make_scale(name)
            for number in range(MEMBERS - 2):
                v = group.create_dataset(f"v{number:02d}", data=np.full(FIELD, number, "<f4"))
                for axis, name in enumerate("yx"):
                    v.dims[axis].attach_scale(group[name])
                v.attrs["units"], v.attrs["long_name"] = "kg m-2", f"the variable {number}"


# Readers: each opens a URL, and returns an object whose items are variables.


def open_refshard(url: str) -> xr.Dataset:
    """Open a file with this package."""
    from refshard_fs.xarray_backend import RefShardBackend

    return xr.open_dataset(url, engine=RefShardBackend)


def open_h5netcdf(url: str, **cache: Any) -> xr.Dataset:
    """Open a file with h5netcdf, over an open file of fsspec with the options ``cache``."""
    return xr.open_dataset(_open_file(url, **cache), engine="h5netcdf")


def _open_file(url: str, **cache: Any) -> Any:
    fs = fsspec.filesystem(urlsplit(url).scheme, skip_instance_cache=True)
    return fs.open(url, **cache)


class Pyfive:
    """A file that pyfive opens, with the variables as items."""

    def __init__(self, url: str) -> None:
        import pyfive

        self._file = pyfive.File(_open_file(url, cache_type="blockcache", block_size=1 << 20))

    def __getitem__(self, name: str) -> Any:
        return self._file[name]


BLOCKS = {"cache_type": "blockcache", "block_size": 1 << 20}
READERS: dict[str, Callable[[str], Any]] = {
    "refshard": open_refshard,
    "h5netcdf": open_h5netcdf,
    "h5netcdf, 1 MiB blocks": partial(open_h5netcdf, **BLOCKS),
    "pyfive": Pyfive,
}


def count_variables(url: str, reader: str) -> int:
    """Open all groups with all attributes; return the number of variables."""
    if reader == "refshard":
        from refshard_fs.xarray_backend import RefShardBackend

        groups = RefShardBackend().open_groups_as_dict(url)
    else:
        cache = BLOCKS if "blocks" in reader else {}
        groups = xr.open_groups(_open_file(url, **cache), engine="h5netcdf")
    return sum(len(ds.variables) for ds in groups.values())


def count_references(url: str, reader: str) -> int:
    """Make references to the whole file; return the number of references to chunks of the variable v0."""
    if reader == "refshard":
        from refshard_fs import RefShardFileSystem

        with tempfile.TemporaryDirectory() as folder:
            RefShardFileSystem(fo=url).save(f"{folder}/refs.json")
            refs = json.loads(Path(folder, "refs.json").read_text())["refs"]
        return sum(key.startswith("v0/") and key[3].isdigit() for key in refs)
    if reader == "kerchunk":
        from kerchunk.hdf import SingleHdf5ToZarr

        refs = SingleHdf5ToZarr(_open_file(url), url).translate()["refs"]
        return sum(key.startswith("v0/") and key[3].isdigit() for key in refs)
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    server = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    store = HTTPStore.from_url(server, client_options={"allow_http": True})
    ds = open_virtual_dataset(url, registry=ObjectStoreRegistry({server: store}), parser=HDFParser())
    return len(ds["v0"].variable.data.manifest.dict())


MEASURES: dict[str, Callable[[str, str], Any]] = {
    "one step": lambda url, reader: float(np.asarray(READERS[reader](url)["v1"][50]).sum()),
    "a hundred steps": lambda url, reader: float(np.asarray(READERS[reader](url)["v1"][100:200]).sum()),
    "a point through all steps": lambda url, reader: float(np.asarray(READERS[reader](url)["v1"][:, 5, 5]).sum()),
    "the whole index": count_references,
    "all groups": count_variables,
}

FILE_READERS = tuple(READERS)
# File, readers (the first is ours), and the goal: the time of the second reader, with its best cache, divided by ours.
CASES: dict[str, tuple[str, tuple[str, ...], Goal]] = {
    "one step": ("steps.nc", FILE_READERS, Goal(ratio=1)),
    "a hundred steps": ("steps.nc", FILE_READERS, Goal(ratio=2)),
    "a point through all steps": ("steps.nc", FILE_READERS[:3], Goal(ratio=8)),
    "the whole index": ("steps.nc", ("refshard", "kerchunk", "virtualizarr"), Goal(ratio=5)),
    "all groups": ("groups.nc", ("refshard", "h5netcdf", "h5netcdf, 1 MiB blocks"), Goal(ratio=10)),
}


def run_child(measure: str, reader: str, server: str) -> None:
    """Measure once, and print the figures as JSON."""
    warnings.simplefilter("ignore")
    name = CASES[measure][0]
    MEASURES[measure](f"{server}/small-{name}", reader)  # imports, connections, threads
    control = Server.attach(server)
    control.set_pace(Link(LATENCIES[name], None))
    control.get("/__clear__")
    gc.collect()  # otherwise the collector may run during the measurement of a reader
    start = time.perf_counter()
    value = MEASURES[measure](f"{server}/{name}", reader)
    seconds = time.perf_counter() - start
    control.set_pace(Link(0.0, None))
    requests, sent = control.read_counts()
    print(json.dumps({"s": seconds, "requests": requests, "bytes": sent, "value": value}))


def main() -> None:
    """Write the files, measure in turns, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hdf5", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller file, once, two readers")
    parser.add_argument("--child", nargs=3, metavar=("MEASURE", "READER", "SERVER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(*arguments.child)
        return
    steps, groups = (300, 4) if arguments.quick else (STEPS, GROUPS)
    with tempfile.TemporaryDirectory() as folder:
        for prefix, some_steps, some_groups in (("", steps, groups), ("small-", 220, 2)):
            write_steps(Path(folder, f"{prefix}steps.nc"), some_steps)
            write_groups(Path(folder, f"{prefix}groups.nc"), some_groups)
        server = Server(folder)
        try:
            for measure, (name, readers, goal) in CASES.items():
                readers = readers[:2] if arguments.quick else readers
                cases = [(measure, reader, server.url) for reader in readers]
                found = run_in_turns("benchmarks.hdf5", cases, 1 if arguments.quick else REPEATS)
                report_measure(measure, dict(zip(readers, found, strict=True)), goal, LATENCIES[name])
        finally:
            server.close()


def report_measure(measure: str, found: dict[str, dict[str, float]], goal: Goal, latency: float) -> None:
    """Print and record the figures of one measure; exit with an error if the readers' values differ."""
    ours, *others = found
    if len({round(result["value"], 3) for result in found.values()}) != 1:
        sys.exit(f"{measure}: the readers returned different values: {found}")
    rival = others[0]
    fastest = min((r for r in others if r.startswith(rival)), key=lambda reader: found[reader]["s"])
    ratio = found[fastest]["s"] / found[ours]["s"]
    met = goal.ratio is None or ratio >= goal.ratio
    print(f"\n{measure}, {latency * 1000:.0f} ms a request")
    for reader, result in found.items():
        seconds, size = format_figure(result["s"], "s"), format_figure(result["bytes"], "B")
        print(f"  {reader:24} {seconds:>9}  {result['requests']:>6.0f} requests  {size:>9}")
    print(f"  {ratio:.1f} x as fast as {fastest}; goal >= {goal.ratio:g} x: {'met' if met else 'MISSED'}", flush=True)
    record_case(
        Case(
            "hdf5",
            measure,
            "s",
            {reader: result["s"] for reader, result in found.items()},
            (ours,),
            fastest,
            requests={reader: int(result["requests"]) for reader, result in found.items()},
            goal=f">= {goal.ratio:g} x",
            met=met,
            latency=latency,
        )
    )


if __name__ == "__main__":
    main()

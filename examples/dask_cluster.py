"""Read one million references on a `distributed` cluster, whose workers open the set in milliseconds.

The set is a JSON document of some 40 MB, with a reference for each time step; it repeats the steps of a real month. The
first process that opens the set writes its index to a file, and every other process reads this file. A filesystem that
is sent to a worker has a few hundred bytes. The workers read all ranges, and the sum of the values is checked. Then
xarray and dask read a part of the steps on the same cluster.

    python examples/dask_cluster.py [--workers 2] [--references 1000000] [--plot dask_cluster.png]
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from distributed import Client, LocalCluster, get_worker
from matplotlib.figure import Figure

from refshard_fs import RefShardFileSystem

SOURCE = Path(__file__).parent / "data" / "air.nc"
TASK = 2_500  # references that one task reads


def main() -> None:
    """Write the set, start the cluster, read all references, and check and plot the values."""
    parser = argparse.ArgumentParser(description="A cluster that reads a million references.")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--references", type=int, default=1_000_000, help="time steps of the set")
    parser.add_argument("--plot", type=Path, default=Path("dask_cluster.png"), help="where to save the plot")
    arguments = parser.parse_args()
    steps: int = arguments.references

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        month = write(folder, steps)
        size = (folder / "refs.json").stat().st_size
        print(f"references {steps:,}, document {size:,} bytes")

        options: dict[str, Any] = {"index_cache": str(folder / "index")}  # by default: the user's cache directory
        fs = RefShardFileSystem(str(folder / "refs.json"), **options)
        for attempt in ("first", "again"):
            start = time.perf_counter()
            RefShardFileSystem(str(folder / "refs.json"), skip_instance_cache=True, **options).info("air/0.0.0")
            print(f"opened, {attempt}: {1000 * (time.perf_counter() - start):,.1f} ms")
        print(f"sent to a worker: {len(pickle.dumps(fs)):,} bytes")

        with start_cluster(arguments.workers) as cluster, Client(cluster) as client:
            start = time.perf_counter()
            spans = [(first, min(first + TASK, steps)) for first in range(0, steps, TASK)]
            found = client.gather(client.map(read, spans, fs=fs))
            seconds = time.perf_counter() - start
            workers = {worker for worker, _, _ in found}
            print(f"read: {sum(count for _, count, _ in found):,} by {len(workers)} workers in {seconds:.1f} s")

            whole, rest = divmod(steps, len(month))
            expected = whole * month.sum(dtype=np.int64) + month[:rest].sum(dtype=np.int64)
            if sum(total for _, _, total in found) != expected:
                raise SystemExit("the sum is wrong")
            print("the sum of all values is right")

            ds = xr.open_dataset(
                str(folder / "refs.json"), engine="refshard", chunks={"time": 31}, storage_options=options
            )
            stretch = ds["air"].isel(time=slice(steps // 2, steps // 2 + len(month)))
            course = stretch.mean(("lat", "lon")).compute()  # the workers compute it
            np.testing.assert_allclose(
                course, 0.01 * np.roll(month, -(steps // 2 % len(month)), axis=0).mean((1, 2)), atol=1e-3
            )
            print(f"xarray on the cluster: {course.size} steps of {ds.sizes['time']:,}")

    plot(course, found, arguments.plot)
    print(f"plot: {arguments.plot}")


def read(span: tuple[int, int], fs: RefShardFileSystem) -> tuple[str, int, int]:
    """Read the steps of ``span`` on a worker; return the worker's name, the number of steps and the sum of values."""
    values = np.frombuffer(b"".join([fs.cat_file(f"air/{step}.0.0") for step in range(*span)]), "<i2")
    return str(get_worker().name), span[1] - span[0], int(values.sum(dtype=np.int64))


def start_cluster(workers: int) -> LocalCluster:
    """Start a cluster of processes on this machine. Only this function changes for a real cluster."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    )


def write(folder: Path, steps: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Write the month's values as one file, and a set of ``steps`` references to them; return the values."""
    with xr.open_dataset(SOURCE, engine="h5netcdf", mask_and_scale=False) as source:
        month = source["air"].values.astype("<i2")
    (folder / "air.bin").write_bytes(month.tobytes())
    size = month[0].nbytes
    array = {
        "zarr_format": 2,
        "shape": [steps, *month.shape[1:]],
        "chunks": [1, *month.shape[1:]],
        "dtype": "<i2",
        "order": "C",
        "fill_value": None,
        "filters": None,
        "compressor": None,
    }
    attributes = {"_ARRAY_DIMENSIONS": ["time", "lat", "lon"], "scale_factor": 0.01, "units": "degK"}
    documents = {".zgroup": {"zarr_format": 2}, "air/.zarray": array, "air/.zattrs": attributes}
    lines = [f"{json.dumps(key)}: {json.dumps(json.dumps(document))}" for key, document in documents.items()]
    lines += [f'"air/{step}.0.0": ["air.bin", {step % len(month) * size}, {size}]' for step in range(steps)]
    (folder / "refs.json").write_text('{"version": 1, "refs": {\n' + ",\n".join(lines) + "}}")
    return month


def plot(course: xr.DataArray, found: list[tuple[str, int, int]], file: Path) -> None:
    """Plot the mean over time in the middle of the set, and the number of references that each worker read."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    left.plot(course - 273.15)
    left.set(title="Mean over the region, in the middle of the set", xlabel="step", ylabel="°C")
    counts: dict[str, int] = {}
    for worker, count, _ in found:
        counts[worker] = counts.get(worker, 0) + count
    right.bar(sorted(counts), [counts[worker] for worker in sorted(counts)])
    right.set(title="References read", xlabel="worker")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

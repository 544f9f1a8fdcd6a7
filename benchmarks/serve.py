"""Serve the chunks of a zarr store over HTTP with ``refshard serve``, nginx and xpublish, and measure the server.

    python -m benchmarks.serve [--quick] [--clients 8]

Each client requests random chunks on its own connection, and compares each chunk with the file. *store* is a store of
small or large chunks. *cube*, for refshard only, is a cube of two NetCDF files with different packings; its chunks are
made on demand, and cached. Wall seconds include the work of the clients, which run on the same machine; seconds of CPU
are those of the server only. nginx is left out if it is not installed, and so is xpublish (up to 0.4: later versions do
not serve zarr).
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmarks.record import Case, record_case
from refshard_fs import RefShardFileSystem
from tests.servers.nginx import nginx_binary
from tests.servers.ports import free_ports

REQUESTS, QUICK_REQUESTS = 20_000, 2_000
SMALL, LARGE = 32, 512  # elements along each side of a chunk of float32: 4 KiB and 1 MiB

XPUBLISH = """
import sys, xarray, xpublish
ds = xarray.open_zarr(sys.argv[1], consolidated=False)
ds["t"].encoding["compressor"] = None  # xarray's name for it is newer
xpublish.SingleDatasetRest(ds).serve(host="127.0.0.1", port=int(sys.argv[2]))
"""
NGINX = """
daemon off; master_process off; pid {folder}.pid; error_log stderr; events {{}}
http {{ access_log {folder}.log; server {{ listen 127.0.0.1:{port}; root "{folder}"; }}
  client_body_temp_path {folder}.1; proxy_temp_path {folder}.2; fastcgi_temp_path {folder}.3;
  uwsgi_temp_path {folder}.4; scgi_temp_path {folder}.5; }}
"""


def write_store(folder: Path, side: int) -> dict[str, bytes]:
    """Write a store of uncompressed chunks of ``side`` × ``side`` elements; return their bytes by key."""
    count = 16 if side == SMALL else 4
    values = np.random.default_rng(0).random((count * side, count * side), np.float32)
    ds = xr.Dataset({"t": (("y", "x"), values)})
    ds.to_zarr(folder, zarr_format=2, consolidated=False, encoding={"t": {"chunks": (side, side), "compressors": None}})
    chunks = (folder / "t").glob("[0-9]*")
    return {str(path.relative_to(folder)): path.read_bytes() for path in chunks}


def write_cube(folder: Path) -> tuple[str, dict[str, bytes]]:
    """Write two files with different packings; return a pattern of their paths, and the chunks of their cube by key."""
    folder.mkdir()
    for number in range(2):
        values = np.random.default_rng(number).integers(0, 1000, (8, LARGE, LARGE)) * 0.5
        t = (("time", "y", "x"), values)
        ds = xr.Dataset({"t": t}, {"time": np.arange(8) + 8 * number})
        packing = {
            "dtype": "i2",
            "scale_factor": 0.5 + number / 2,
            "chunksizes": (1, LARGE, LARGE),
            "zlib": True,
            "_FillValue": -1,
        }
        ds.to_netcdf(folder / f"{number}.nc", engine="h5netcdf", encoding={"t": packing})
    fs = RefShardFileSystem(f"{folder}/*.nc")
    keys = [key for key in fs.find("t") if not key.rpartition("/")[2].startswith(".")]
    return f"{folder}/*.nc", {key: fs.cat_file(key) for key in keys}


@contextmanager
def run_server(command: list[str], url: str) -> Iterator[int]:
    """Run a server until the end of the block; yield the id of its process after its first answer."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603  # our own
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(url).read()  # noqa: S310  # loopback
                    break
                except OSError:
                    time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()


def read_cpu(pid: int) -> float:
    """Return the seconds of CPU of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_reads(port: int, prefix: str, chunks: Mapping[str, bytes], requests: int, clients: int) -> float:
    """Return the seconds in which ``clients`` together send ``requests`` requests and compare the answers."""

    def read(seed: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        keys = random.Random(seed).choices(list(chunks), k=requests // clients)
        for key in keys:
            connection.request("GET", prefix + key)
            answer = connection.getresponse()
            assert answer.read() == chunks[key], f"{key}: {answer.status}"
        connection.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(read, range(clients)))
    return time.perf_counter() - began


def measure(case: str, servers: Mapping[str, Any], chunks: Mapping[str, bytes], requests: int, clients: int) -> None:
    """Measure the servers one after the other, and print their rates and CPU time."""
    mean = sum(map(len, chunks.values())) / len(chunks)
    print(f"\n{case}: {len(chunks)} chunks of {mean / 1024:.0f} KiB, {requests:,} requests by {clients} clients")
    rates, costs = {}, {}
    for name, (opened, port, prefix) in servers.items():
        with opened as pid:
            time_reads(port, prefix, chunks, min(requests, 500), clients)  # warm
            before = read_cpu(pid)
            seconds = time_reads(port, prefix, chunks, requests, clients)
            cpu = read_cpu(pid) - before
        rates[name], costs[name] = requests / seconds, cpu / requests * 1e6
        megabytes = requests * mean / seconds / 1e6
        print(f"{name:16} {rates[name]:8.0f} requests/s {megabytes:8.0f} MB/s {costs[name]:8.0f} us of CPU a request")
    baseline = "nginx" if "nginx" in costs else None
    record_case(Case("serve", f"{case}: CPU of the server a request", "us", costs, ("refshard serve",), baseline))


def main() -> None:
    """Write the stores, serve them, and measure the servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS} requests")
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    requests = QUICK_REQUESTS if given.quick else REQUESTS
    with tempfile.TemporaryDirectory() as directory:
        for side, divided in ((SMALL, 1), (LARGE, 10)):
            folder = Path(directory, f"{side}.zarr")
            chunks = write_store(folder, side)
            measure(
                f"store of {side} x {side}",
                make_servers(folder, str(folder)),
                chunks,
                requests // divided,
                given.clients,
            )
        pattern, chunks = write_cube(Path(directory, "cube"))
        measure("cube, recoded", make_servers(None, pattern), chunks, requests // 10, given.clients)


def make_servers(folder: Path | None, source: str) -> dict[str, Any]:
    """Return servers of ``source`` by name: a context manager of the process, the port, and the prefix of keys.

    ``folder`` is the folder of a store; None for a cube, which only refshard serves.
    """
    ours, theirs, static = free_ports(3)
    command = [sys.executable, "-m", "refshard_fs", "serve", source, "--port", str(ours)]
    found: dict[str, Any] = {"refshard serve": (run_server(command, f"http://127.0.0.1:{ours}/"), ours, "/")}
    if folder is None:
        return found
    binary = nginx_binary()
    if binary is not None:
        config = folder.with_suffix(".conf")
        config.write_text(NGINX.format(folder=folder, port=static))
        command = [binary, "-p", str(folder.parent), "-c", str(config), "-e", "stderr"]
        found["nginx"] = (run_server(command, f"http://127.0.0.1:{static}/.zgroup"), static, "/")
    if any(plugin.name == "zarr" for plugin in entry_points(group="xpublish.plugin")):
        command = [sys.executable, "-c", XPUBLISH, str(folder), str(theirs)]
        found["xpublish"] = (run_server(command, f"http://127.0.0.1:{theirs}/zarr/.zmetadata"), theirs, "/zarr/")
    return found


if __name__ == "__main__":
    main()

"""Read the same references from each kind of target with this package and with fsspec's ``reference``.

    python -m benchmarks.targets [NAME ...] [--quick]

An object has 128 chunks of 100 kB. Half of the chunks, and every fourth chunk, are requested together, as zarr does for
a selection; 16 chunks are requested one after the other. Servers are on loopback, each in a new process. Those of HTTP
and S3 answer each request after 10 ms, and their requests are counted. Each filesystem has read a chunk before its time
is measured; the count of requests includes this chunk.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from benchmarks.measure import format_figure
from benchmarks.record import Case, record_case
from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.servers.kinds import KINDS
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

CHUNK = 100_000  # bytes
CHUNKS = 128
LATENCY = 0.01  # seconds
DATA = os.urandom(CHUNK * CHUNKS // 16) * 16
# The numbers of the chunks, and whether they are requested together, as zarr does for a selection.
WORK = {
    "half": (list(range(CHUNKS // 2)), True),
    "every fourth": (list(range(0, CHUNKS, 4)), True),
    "one by one": ([i * 37 % CHUNKS for i in range(16)], False),
}

QUICK = ("HTTP", "ZIP, stored")


class Kind(NamedTuple):
    """The URL of the object, the options of its protocol, and the server that logs requests, if there is one."""

    url: str
    options: dict[str, Any]
    server: RangeServer | CountingProxy | None = None


@contextlib.contextmanager
def serve_http(folder: Path) -> Iterator[Kind]:
    """Serve the object on a web server."""
    with RangeServer(latency=LATENCY) as server:
        yield Kind(server.put("/data", DATA), {}, server)


@contextlib.contextmanager
def serve_simplecache(folder: Path) -> Iterator[Kind]:
    """Serve the object on a web server, and read it through an empty cache of whole files."""
    with RangeServer(latency=LATENCY) as server:
        yield Kind(f"simplecache::{server.put('/data', DATA)}", {}, server)


@contextlib.contextmanager
def serve_member(folder: Path, method: int = zipfile.ZIP_STORED) -> Iterator[Kind]:
    """Serve the object as a member of a ZIP archive on a web server."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("data", DATA)
    with RangeServer(latency=LATENCY) as server:
        url = server.put("/a.zip", file.getvalue())
        yield Kind(f"zip://data::{url}", {}, server)


def serve_compressed_member(folder: Path) -> contextlib.AbstractContextManager[Kind]:
    """Serve the object as a compressed member of a ZIP archive on a web server."""
    return serve_member(folder, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def serve_s3(folder: Path) -> Iterator[Kind]:
    """Serve the object by SeaweedFS, through a proxy that counts requests."""
    with SeaweedServer() as store, CountingProxy(store.endpoint_url, latency=LATENCY) as proxy:
        store.create_bucket("bench")
        yield Kind(
            store.put("bench/data", DATA), {"key": "ak", "secret": store.secret, "endpoint_url": proxy.url}, proxy
        )


def make_server(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Kind]]:
    """Return a function that serves the object by the server ``name`` of `KINDS`."""

    @contextlib.contextmanager
    def serve_target(folder: Path) -> Iterator[Kind]:
        with KINDS[name](folder) as found:
            found.put("data", DATA)
            yield Kind(
                f"{found.url.rstrip('/')}/data" if not found.url.endswith("://") else f"{found.url}data", found.options
            )

    return serve_target


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Kind]]] = {
    "HTTP": serve_http,
    "S3": serve_s3,
    "ZIP, stored": serve_member,
    "ZIP, compressed": serve_compressed_member,
    "simplecache": serve_simplecache,
    **{name: make_server(name) for name in KINDS if name != "gcs"},  # the tests set gcsfs up in their own process
}


def open_refshard(kind: Kind) -> Any:
    """Open the references with this package."""
    protocol = kind.url.partition("://")[0]
    options = {protocol: kind.options} if kind.options else None
    return RefShardFileSystem(_make_references(kind.url), fs=options, skip_instance_cache=True)


def open_reference(kind: Kind) -> Any:
    """Open the references with fsspec's ``reference``, over a new filesystem for the target."""
    target, path = fsspec.core.url_to_fs(kind.url, **kind.options, skip_instance_cache=True)
    is_cache = kind.url.startswith("simplecache::")
    url = path if is_cache else target.unstrip_protocol(path)
    fs = {url.partition("://")[0]: target}
    return fsspec.filesystem("reference", fo=_make_references(url), fs=fs, skip_instance_cache=True)


def _make_references(url: str) -> dict[str, Any]:
    return {f"c/{i}": [url, i * CHUNK, CHUNK] for i in range(CHUNKS)}


class Remote:
    """A target that `serve_target` serves in a new process; LookupError if there is no server for it."""

    def __init__(self, name: str) -> None:
        self._child = subprocess.Popen(  # noqa: S603  # its own
            [sys.executable, "-m", "benchmarks.targets", "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        url, options = self._read_line()
        pairs = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}  # JSON has no tuples
        self.kind = Kind(url, options | pairs)

    def requests(self) -> int | None:
        """Return the number of requests since the last call; None if the server does not count them."""
        assert self._child.stdin is not None
        print(file=self._child.stdin, flush=True)
        return self._read_line()

    def stop(self) -> None:
        """Close the standard input of the server, and wait until it ends."""
        self._child.communicate()

    def _read_line(self) -> Any:
        assert self._child.stdout is not None
        answer = json.loads(self._child.stdout.readline() or '"its process ended"')
        if isinstance(answer, str):
            self.stop()
            raise LookupError(answer)  # noqa: TRY004  # the answer is the reason why there is no server
        return answer


def serve_target(name: str) -> None:
    """Serve a target: print its URL and options, and for each line of the standard input the number of requests."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        try:
            kind = stack.enter_context(PLACES[name](Path(folder)))
        except pytest.skip.Exception as missing:
            print(json.dumps(str(missing)), flush=True)
            return
        print(json.dumps([kind.url, kind.options]), flush=True)
        for _ in sys.stdin:
            print(json.dumps(None if kind.server is None else len(kind.server.requests())), flush=True)
            if kind.server is not None:
                kind.server.clear()


def measure_read(opened: Any, remote: Remote, numbers: list[int], *, together: bool) -> tuple[float, int | None]:
    """Open the references by ``opened``, read chunks, and return the seconds and the number of requests."""
    remote.requests()
    fs = opened(remote.kind)
    fs.cat_file(f"c/{CHUNKS - 1}")
    began = time.perf_counter()
    keys = [f"c/{i}" for i in numbers]
    found = fs.cat(keys) if together else {key: fs.cat_file(key) for key in keys}
    seconds = time.perf_counter() - began
    assert all(len(found[key]) == CHUNK for key in keys)
    return seconds, remote.requests()


def compare(name: str, remote: Remote, repeats: int) -> None:
    """Measure both filesystems in turns, and print and record the medians."""
    for what, (numbers, together) in WORK.items():
        found: dict[str, list[tuple[float, int | None]]] = {"reference": [], "refshard": []}
        for _ in range(repeats):
            found["reference"].append(measure_read(open_reference, remote, numbers, together=together))
            found["refshard"].append(measure_read(open_refshard, remote, numbers, together=together))
        seconds = {who: statistics.median(one for one, _ in every) for who, every in found.items()}
        requests = {who: n for who, [*_, (_, n)] in found.items() if n is not None}
        record_case(Case("targets", f"{name}, {what}", "s", seconds, ("refshard",), "reference", requests))
        figures = "  ".join(f"{who} {format_figure(s, 's'):>8}" for who, s in seconds.items())
        counted = f"{requests['reference']:4} requests → {requests['refshard']}" if requests else ""
        ratio = seconds["reference"] / seconds["refshard"]
        print(f"{name + ', ' + what:30}{figures} {ratio:6.1f}× {'' if ratio >= 1 else 'LOSS'} {counted}", flush=True)


def main() -> None:
    """Measure every kind of target whose server is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="times that each is measured; the median counts")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)} alone, once")
    parser.add_argument("--serve", choices=PLACES, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=f"one of {', '.join(PLACES)}; default: all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # servers issue warnings
    if arguments.serve:
        serve_target(arguments.serve)
        return
    for name in arguments.names or (QUICK if arguments.quick else PLACES):
        try:
            remote = Remote(name)
        except LookupError as e:
            print(f"{name}: left out, {e}")
            continue
        try:
            compare(name, remote, 1 if arguments.quick else arguments.repeats)
        finally:
            remote.stop()


if __name__ == "__main__":
    main()

"""The same references read from each kind of target: by this package, and by fsspec's ``reference``, side by side.

Of an object's 128 chunks of 100 kB, half and every fourth are asked for together, as zarr asks, and some one after the
other. Servers are on loopback; those of HTTP and of S3 answer each request after 10 ms, and their requests are counted.
Each server is a process of its own. The filesystems are made, and have read a chunk, before the clock starts; requests
are counted from the beginning. Run ``python -m benchmarks.targets``.
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

from benchmarks.measure import shown
from benchmarks.record import Case, keep
from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.servers.kinds import KINDS
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

CHUNK = 100_000  # bytes
CHUNKS = 128
LATENCY = 0.01  # seconds
DATA = os.urandom(CHUNK * CHUNKS // 16) * 16
# Which chunks are read, and whether they are asked for together, as zarr asks for a selection.
WORK = {
    "half": (list(range(CHUNKS // 2)), True),
    "every fourth": (list(range(0, CHUNKS, 4)), True),
    "one by one": ([i * 37 % CHUNKS for i in range(16)], False),
}

QUICK = ("HTTP", "ZIP, stored")


class Kind(NamedTuple):
    """Where the object lies: its URL, the options of its protocol, and what logs requests, where that is possible."""

    url: str
    options: dict[str, Any]
    server: RangeServer | CountingProxy | None = None


@contextlib.contextmanager
def http(folder: Path) -> Iterator[Kind]:
    """Give an object of a web server."""
    with RangeServer(latency=LATENCY) as server:
        yield Kind(server.put("/data", DATA), {}, server)


@contextlib.contextmanager
def simplecache(folder: Path) -> Iterator[Kind]:
    """Give the same through a cache of whole files, which is empty."""
    with RangeServer(latency=LATENCY) as server:
        yield Kind(f"simplecache::{server.put('/data', DATA)}", {}, server)


@contextlib.contextmanager
def members(folder: Path, method: int = zipfile.ZIP_STORED) -> Iterator[Kind]:
    """Give a member of an archive on a web server."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("data", DATA)
    with RangeServer(latency=LATENCY) as server:
        url = server.put("/a.zip", file.getvalue())
        yield Kind(f"zip://data::{url}", {}, server)


def compressed(folder: Path) -> contextlib.AbstractContextManager[Kind]:
    """Give a compressed member."""
    return members(folder, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[Kind]:
    """Give an object of SeaweedFS."""
    with SeaweedServer() as store, CountingProxy(store.endpoint_url, latency=LATENCY) as proxy:
        store.create_bucket("bench")
        yield Kind(
            store.put("bench/data", DATA), {"key": "ak", "secret": store.secret, "endpoint_url": proxy.url}, proxy
        )


def served(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Kind]]:
    """Return what gives a file of the server called ``name``."""

    @contextlib.contextmanager
    def serve(folder: Path) -> Iterator[Kind]:
        with KINDS[name](folder) as found:
            found.put("data", DATA)
            yield Kind(
                f"{found.url.rstrip('/')}/data" if not found.url.endswith("://") else f"{found.url}data", found.options
            )

    return serve


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Kind]]] = {
    "HTTP": http,
    "S3": s3,
    "ZIP, stored": members,
    "ZIP, compressed": compressed,
    "simplecache": simplecache,
    **{name: served(name) for name in KINDS if name != "gcs"},  # the tests set gcsfs up in their own process
}


def ours(kind: Kind) -> Any:
    """Return this package's filesystem."""
    protocol = kind.url.partition("://")[0]
    options = {protocol: kind.options} if kind.options else None
    return RefShardFileSystem(_references(kind.url), fs=options, skip_instance_cache=True)


def theirs(kind: Kind) -> Any:
    """Return fsspec's, of a filesystem that has not been used before."""
    target, path = fsspec.core.url_to_fs(kind.url, **kind.options, skip_instance_cache=True)
    is_cache = kind.url.startswith("simplecache::")
    url = path if is_cache else target.unstrip_protocol(path)
    fs = {url.partition("://")[0]: target}
    return fsspec.filesystem("reference", fo=_references(url), fs=fs, skip_instance_cache=True)


def _references(url: str) -> dict[str, Any]:
    return {f"c/{i}": [url, i * CHUNK, CHUNK] for i in range(CHUNKS)}


class Remote:
    """What `serve` serves, in a process of its own."""

    def __init__(self, name: str) -> None:
        self._child = subprocess.Popen(  # noqa: S603  # its own
            [sys.executable, "-m", "benchmarks.targets", "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        url, options = self._told()
        pairs = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}  # JSON has no tuples
        self.kind = Kind(url, options | pairs)

    def requests(self) -> int | None:
        """Return how many requests there were since this was asked last; None if that is not known."""
        assert self._child.stdin is not None
        print(file=self._child.stdin, flush=True)
        return self._told()

    def stop(self) -> None:
        """End the server, and wait for that."""
        self._child.communicate()

    def _told(self) -> Any:
        assert self._child.stdout is not None
        told = json.loads(self._child.stdout.readline() or '"it ended"')
        if isinstance(told, str):
            self.stop()
            raise LookupError(told)  # noqa: TRY004  # it says why there is none
        return told


def serve(name: str) -> None:
    """Print URL and options of a target, and the number of requests whenever a line comes in, until that ends."""
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


def measured(opened: Any, remote: Remote, numbers: list[int], *, together: bool) -> tuple[float, int | None]:
    """Return the seconds that reading took, and all requests."""
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
    """Measure both in turns, and print and keep the medians."""
    for what, (numbers, together) in WORK.items():
        found: dict[str, list[tuple[float, int | None]]] = {"reference": [], "refshard": []}
        for _ in range(repeats):
            found["reference"].append(measured(theirs, remote, numbers, together=together))
            found["refshard"].append(measured(ours, remote, numbers, together=together))
        seconds = {who: statistics.median(one for one, _ in every) for who, every in found.items()}
        requests = {who: n for who, [*_, (_, n)] in found.items() if n is not None}
        keep(Case("targets", f"{name}, {what}", "s", seconds, ("refshard",), "reference", requests))
        figures = "  ".join(f"{who} {shown(s, 's'):>8}" for who, s in seconds.items())
        counted = f"{requests['reference']:4} requests → {requests['refshard']}" if requests else ""
        ratio = seconds["reference"] / seconds["refshard"]
        print(f"{name + ', ' + what:30}{figures} {ratio:6.1f}× {'' if ratio >= 1 else 'LOSS'} {counted}", flush=True)


def main() -> None:
    """Measure every kind of target that there is a server for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="times that each is measured; the median counts")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)} alone, once")
    parser.add_argument("--serve", choices=PLACES, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PLACES)}; default: all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of the servers
    if arguments.serve:
        serve(arguments.serve)
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

"""Read compressed chunks over HTTP, in not much more time than the slower of the network and the codec.

    python -m benchmarks.compressed [--quick]

An array of 64 MB lies in chunks of 100 kB, 1 MB or 4 MB, compressed by zstd or blosc, on a loopback server in another
process. The server delays each request by 10 ms, and sends 1 Gbit/s in all, or 60 MB/s on each connection. With the
second limit, sending takes time of the cores that decode, so that network and decoding cannot overlap fully. The
contenders are:

- *reference* and *ours*: zarr over fsspec's reference filesystem, and over this filesystem;
- *network*: the ideal client of `benchmarks.engine`, which decodes nothing;
- *decoding*: only the codec, on the same chunks in memory, in as many threads as there are cores;
- *dict*: zarr reading these chunks from memory.

The goal of *ours* is 1.3 times the slower of *network* and *decoding*. *floor* is the CPU time of the server, of the
ideal client and of decoding in the same rounds, divided by the number of cores: if it is above the goal, this machine
has too few cores for the goal. The peak of memory is that of one read in a new process, without the result; its goal is
``max_memory``. In that process glibc returns freed memory to the system, which it otherwise keeps for the next chunk,
some megabytes for each thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import numcodecs
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore

from benchmarks.links import MB, Link, Server
from benchmarks.measure import measure_usage
from benchmarks.record import Case, record_case
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.plan import Limits, coalesce

SIZE = 64 * MB  # of the array, decoded
SIZES = {"100 kB": 100_000, "1 MB": MB, "4 MB": 4 * MB}
CODECS = {
    "zstd": {"id": "zstd", "level": 3},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
}
LINKS = {"1 Gbit/s": Link(0.010, None, 125e6), "60 MB/s each": Link(0.010, 60e6)}
MEMORY = 16 * MB  # max_memory of the read whose peak is measured
GOAL = 1.3
REPEATS, QUICK = 5, 2


def write_array(path: Path, size: int, codec: dict[str, Any], url: str) -> dict[str, Any]:
    """Write an array that compresses to about half, and return references to its chunks; ``size`` is bytes a chunk."""
    compressor = numcodecs.get_codec(codec)
    width = size // 4
    count = SIZE // size
    meta = {"zarr_format": 2, "shape": [count * width], "chunks": [width], "dtype": "<u4", "order": "C"}
    meta |= {"fill_value": 0, "filters": None, "compressor": codec}
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta)}
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for number in range(count):
            data = compressor.encode(random.integers(0, 1 << 16, width, np.uint32))
            refs[f"a/{number}"] = [url, file.tell(), len(data)]
            file.write(data)
    return refs


def time_refshard(refs: dict[str, Any], **options: Any) -> float:
    """Return the seconds of zarr over this filesystem."""
    return _time_filesystem(RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, **options))


def time_reference(refs: dict[str, Any]) -> float:
    """Return the seconds of zarr over fsspec's reference filesystem."""
    options = {"remote_protocol": "http", "remote_options": {"asynchronous": True}, "asynchronous": True}
    return _time_filesystem(fsspec.filesystem("reference", fo=refs, skip_instance_cache=True, **options))


def time_memory(refs: dict[str, Any], data: bytes) -> float:
    """Return the seconds of zarr over the same chunks in memory, decoding included."""
    kept = {
        key: value.encode() if isinstance(value, str) else data[value[1] : value[1] + value[2]]
        for key, value in refs.items()
    }
    buffer = default_buffer_prototype().buffer
    return _time_store(MemoryStore({key: buffer.from_bytes(value) for key, value in kept.items()}))


def _time_filesystem(fs: Any) -> float:
    return _time_store(FsspecStore(fs, read_only=True, path=""))


def _time_store(store: Any) -> float:
    array = zarr.open_group(store, mode="r")["a"]
    began = time.perf_counter()
    values = array[:]
    took = time.perf_counter() - began
    assert int(values.max()) < 1 << 16
    return took


def time_network(refs: dict[str, Any]) -> float:
    """Return the seconds of a client that knows all ranges, and decodes nothing."""
    url = refs["a/0"][0]
    ranges = [(value[1], value[1] + value[2]) for key, value in refs.items() if key[2:].isdigit()]
    blocks = coalesce(ranges, Limits(0, MB))

    async def run() -> float:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:

            async def get(block: Any) -> int:
                async with session.get(url, headers={"Range": f"bytes={block.start}-{block.stop - 1}"}) as answer:
                    return len(await answer.read())

            began = time.perf_counter()
            assert sum(await asyncio.gather(*map(get, blocks))) == sum(stop - start for start, stop in ranges)
            return time.perf_counter() - began

    return asyncio.run(run())


def time_decoding(refs: dict[str, Any], data: bytes) -> float:
    """Return the seconds of the codec on all chunks, on all cores."""
    meta = json.loads(refs["a/.zarray"])
    codec = numcodecs.get_codec(meta["compressor"])
    chunks = [data[value[1] : value[1] + value[2]] for key, value in refs.items() if key[2:].isdigit()]
    out = np.empty(meta["shape"], "<u4").reshape(len(chunks), -1)

    def decode(number: int) -> None:
        out[number] = np.frombuffer(codec.decode(chunks[number]), "<u4")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        began = time.perf_counter()
        list(pool.map(decode, range(len(chunks))))
        return time.perf_counter() - began


def _print_peak(path: str) -> None:
    """Print the peak of memory of a read in bytes, without the result (in a child process).

    An array of one chunk is read before, so that imports and connections are not counted.
    """
    refs = json.loads(Path(path).read_text())
    small = dict(refs)
    meta = json.loads(refs["a/.zarray"])
    small["a/.zarray"] = json.dumps(meta | {"shape": meta["chunks"]})
    time_refshard(small)
    found: list[Any] = []
    with measure_usage(found.append):
        time_refshard(refs, max_memory=MEMORY)
    print(found[0].peak - SIZE)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compressed", description="Compressed chunks over HTTP.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, chunks of one size")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _print_peak(options.child)
        return
    repeats = QUICK if options.quick else REPEATS
    sizes = {"1 MB": MB} if options.quick else SIZES
    print("median ms; memory beyond the result\n")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            for codec, config in CODECS.items():
                for name, size in sizes.items():
                    file = Path(folder, f"{codec}-{size}.bin")
                    refs = write_array(file, size, config, f"{server.url}/{file.name}")
                    for link, pace in LINKS.items():
                        server.set_pace(pace)
                        _compare(f"{codec}, chunks of {name}, {link}", refs, file.read_bytes(), server, repeats)
                    _measure_memory(f"{codec}, chunks of {name}: memory", refs, folder)
        finally:
            server.close()


def _compare(what: str, refs: dict[str, Any], data: bytes, server: Server, repeats: int) -> None:
    contenders: dict[str, Callable[[], float]] = {
        "reference": lambda: time_reference(refs),
        "ours": lambda: time_refshard(refs),
        "network": lambda: time_network(refs),
        "decoding": lambda: time_decoding(refs, data),
        "dict": lambda: time_memory(refs, data),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    cpus: dict[str, list[float]] = {name: [] for name in contenders}  # of this process and the server
    for _ in range(repeats):
        for name, run in contenders.items():
            before = server.read_cpu(), time.process_time()
            times[name].append(run())
            spent = time.process_time() - before[1]
            cpus[name].append(spent + server.read_cpu() - before[0])
    took = {name: statistics.median(some) for name, some in times.items()}
    cpu = {name: statistics.median(some) for name, some in cpus.items()}
    bound = max(took["network"], took["decoding"])
    floor = (cpu["network"] + cpu["decoding"]) / (os.cpu_count() or 1)
    goal = f"≤ {GOAL} × the slower ({floor / bound:.2f} × at the floor)"
    met = took["ours"] <= GOAL * bound
    record_case(Case("compressed", what, "s", took, ("ours",), "reference", goal=goal, met=met))
    print(
        f"{what:40}"
        + "".join(f"{name} {seconds * 1e3:7.1f}   " for name, seconds in took.items())
        + f"{took['reference'] / took['ours']:4.1f} x faster   {took['ours'] / bound:4.2f} x the slower"
        + f" ({floor / bound:4.2f} at the floor)   CPU {cpu['ours'] * 1e3:5.0f} ms, "
        + f"{cpu['ours'] / (cpu['network'] + cpu['decoding']):4.2f} x that of network and decoding",
        flush=True,
    )


def _measure_memory(what: str, refs: dict[str, Any], folder: str) -> None:
    document = Path(folder, "refs.json")
    document.write_text(json.dumps(refs))
    command = [sys.executable, "-m", "benchmarks.compressed", "--child", str(document)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)  # noqa: S603  # ours
    record_case(Case("compressed", what, "B", {"ours": peak}, ("ours",), goal=f"≤ {MEMORY:,}", met=peak <= MEMORY))
    print(f"{what:40}{peak / MB:5.1f} MB", flush=True)


if __name__ == "__main__":
    main()

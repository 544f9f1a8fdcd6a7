"""Measure the CPU time of a client for one ranged GET from S3: this package, s3fs, and a plain aiohttp request.

    python -m benchmarks.s3 [--quick]

The store is SeaweedFS on loopback, in another process, so that the processor time of this process is that of the
client.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import s3fs
from yarl import URL

from benchmarks.record import Case, record_case
from refshard_fs.targets import Pool, PoolOptions
from tests.servers.s3 import SeaweedServer

Read = Callable[[int], Awaitable[bytes]]

IN_FLIGHT = 16  # requests
OBJECT = 16 << 20  # bytes


async def measure(read: Read, expected: bytes, size: int, count: int) -> float:
    """Return the microseconds of CPU for each of ``count`` reads, ``IN_FLIGHT`` at a time; compare every byte."""
    offsets = iter([i * 7919 * 64 % (OBJECT - size) for i in range(count)])

    async def work() -> None:
        for offset in offsets:
            data = await read(offset)
            assert data == expected[offset : offset + size]

    await asyncio.gather(*(read(0) for _ in range(IN_FLIGHT)))
    before = time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return (time.process_time() - before) / count * 1e6


async def run(server: SeaweedServer, expected: bytes, count: int, rounds: int) -> None:
    """Measure all readers, signed and anonymous, with small and large ranges, and print the table."""
    loop = asyncio.get_running_loop()
    print(f"{'':10}" + "".join(f"{name:>16}" for name in ("s3fs", "refshard", "aiohttp", "s3fs/refshard")))
    for label, options in (("signed", server.storage_options), ("anonymous", server.anonymous_options)):
        theirs = s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)
        await theirs.set_session()
        pool = Pool(PoolOptions({"s3": options}), loop)
        place = pool.place("s3://bench/object")
        assert place is not None
        target, path = place
        url = URL(server.presign("bench/object"), encoded=True)
        async with aiohttp.ClientSession() as session:
            for size in (4 << 10, 100_000):
                best: dict[str, float] = {}
                for _ in range(rounds):
                    for name, read in _make_readers(theirs, target, path, session, url, size).items():
                        spent = await measure(read, expected, size, count)
                        best[name] = min(best.get(name, spent), spent)
                values = {name: spent / 1e6 for name, spent in best.items()}
                record_case(
                    Case(
                        "s3",
                        f"CPU a request, {label} {size} bytes",
                        "s",
                        values,
                        ("refshard",),
                        "s3fs",
                        goal="≥ 5×",
                        met=best["s3fs"] >= 5 * best["refshard"],
                    )
                )
                ratio = best["s3fs"] / best["refshard"]
                figures = "".join(f"{best[name]:13.0f} µs" for name in ("s3fs", "refshard", "aiohttp"))
                print(f"{label + ' ' + str(size):18}{figures[8:]}{ratio:15.1f}×")
        await pool.close()
        await theirs._s3creator.__aexit__(None, None, None)


def _make_readers(
    theirs: Any, target: Any, path: str, session: aiohttp.ClientSession, url: URL, size: int
) -> dict[str, Read]:
    async def read_by_s3fs(offset: int) -> bytes:
        return bytes(await theirs._cat_file("bench/object", start=offset, end=offset + size))

    async def read_by_refshard(offset: int) -> bytes:
        return bytes((await target.read(path, offset, offset + size)).data)

    async def read_by_aiohttp(offset: int) -> bytes:
        async with session.get(url, headers={"Range": f"bytes={offset}-{offset + size - 1}"}) as response:
            return await response.read()

    return {"s3fs": read_by_s3fs, "refshard": read_by_refshard, "aiohttp": read_by_aiohttp}


def main() -> None:
    """Start the store, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1000, help="requests per figure")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured; the best counts")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, once")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.count, arguments.rounds = arguments.count // 10, 1
    data = os.urandom(OBJECT)
    with SeaweedServer() as server:
        server.create_bucket("bench")
        server.put("bench/object", data)
        asyncio.run(run(server, data, arguments.count, arguments.rounds))


if __name__ == "__main__":
    main()

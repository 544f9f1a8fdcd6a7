"""A thousand workers that read a hundred million references from object storage: requests, bytes, money and wall time.

    python -m benchmarks.simulation [--quick] [--seed 0]

A discrete simulation, not a measurement; what a client costs is measured first, on this machine: CPU a chunk, requests
a chunk and bytes a chunk of 512 chunks read through zarr over a loopback server, and seconds and memory that opening
takes, a reference. The rest is assumed, and printed. `SETTING` holds all of it.

Each task reads 1,000 chunks and is given to the worker that is idle first. Its requests go out in as many streams as
the client has in flight, each a latency (log-normal, heavy tail) and a transfer at a connection's bandwidth; a task
cannot end before its CPU time, its bytes at the worker's bandwidth, or its share of the request rate that the store
allows to all. Requests over that rate wait; none is lost. *slabs* are 1,000 consecutive chunks of files that hold them
in order; *scattered* are chunks that lie alone, which nobody can merge. ``--quick`` takes a tenth of the workers, the
work and the store. The same seed gives the same figures from the same costs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import engine
from benchmarks.manifests import MODULE as MANIFESTS
from benchmarks.manifests import write
from benchmarks.measure import in_turns
from benchmarks.record import Case, keep


class Setting(NamedTuple):
    """What is assumed of the store, the workers and the work."""

    references: int = 100_000_000
    workers: int = 1_000
    chunks_a_task: int = 1_000
    chunk: int = 100_000  # bytes
    requests_a_second: float = 5_500 * 16  # GETs of a prefix, and prefixes
    latency: float = 0.030  # seconds, the median
    spread: float = 0.5  # of its logarithm
    tail: float = 0.001  # of the requests wait longer, by
    tail_seconds: float = 1.0  # on average
    stream: float = 60e6  # bytes a second of one connection
    worker: float = 250e6  # bytes a second of one worker
    dollars_a_million: float = 0.40  # GETs
    dollars_an_hour: float = 0.10  # of one worker
    memory: float = 16e9  # bytes of one worker


SETTING = Setting()
QUICK = SETTING._replace(references=10_000_000, workers=100, requests_a_second=5_500 * 1.6)


class Client(NamedTuple):
    """What a client costs, and how it reads."""

    in_flight: int
    cpu: float  # seconds a chunk
    requests: float  # a chunk
    amplification: float  # bytes read, as a multiple of what is needed
    open_seconds: float  # a reference
    open_bytes: float  # a reference


class Outcome(NamedTuple):
    """What the work took."""

    requests: int
    bytes: float
    seconds: float
    dollars: float
    memory: float  # of each worker, for the references


def simulate(client: Client, setting: Setting, seed: int) -> Outcome:
    """Return what all tasks took, from the first open to the end of the last."""
    random = np.random.default_rng(seed)
    tasks = setting.references // setting.chunks_a_task
    count = max(1, round(client.requests * setting.chunks_a_task))
    size = setting.chunk * setting.chunks_a_task * client.amplification
    transfer = size / count / setting.stream
    streams = min(client.in_flight, count)
    turns = -(-count // streams)
    floor = max(client.cpu * setting.chunks_a_task, size / setting.worker)
    opened = client.open_seconds * setting.references
    idle = [opened] * setting.workers
    granted = opened  # until when the store's rate is used up
    end = busy = 0.0
    for _ in range(tasks):
        began = heapq.heappop(idle)
        waits = random.lognormal(np.log(setting.latency), setting.spread, turns * streams)
        slow = random.binomial(waits.size, setting.tail)
        if slow:
            waits[random.integers(0, waits.size, slow)] += random.exponential(setting.tail_seconds, slow)
        waits[count:] = -transfer
        network = (waits + transfer).reshape(turns, streams).sum(axis=0).max()
        granted = max(granted, began) + count / setting.requests_a_second
        done = max(began + max(float(network), floor), granted)
        heapq.heappush(idle, done)
        end = max(end, done)
        busy += done - began
    requests = count * tasks
    hours = setting.workers * end / 3600
    dollars = requests / 1e6 * setting.dollars_a_million + hours * setting.dollars_an_hour
    return Outcome(requests, size * tasks, end, dollars, client.open_bytes * setting.references)


# zarr's own pipeline asks for ten chunks at a time; ours for a whole selection, in up to `concurrency=` requests.
IN_FLIGHT = {
    ("fsspec", "slabs"): 10,
    ("refshard", "slabs"): 128,
    ("fsspec", "scattered"): 10,
    ("refshard", "scattered"): 128,
}

Contender = Callable[[engine.Pattern, engine.Scene], tuple[float, int]]


def cost(contender: Contender, on: engine.Scene, pattern: engine.Pattern) -> tuple[float, float, float]:
    """Return CPU seconds, requests and bytes a chunk (the latter of what is needed), the median of three."""
    figures = []
    for _ in range(3):
        on.server.get("/__clear__")
        began = time.process_time()
        contender(pattern, on)
        spent = time.process_time() - began
        requests, sent = on.server.seen()
        chunks = len(pattern.numbers)
        figures.append((spent / chunks, requests / chunks, sent / chunks / engine.CHUNK))
    return sorted(figures)[1]


def opening(references: int) -> dict[str, tuple[float, float]]:
    """Return seconds and bytes a reference that opening a set takes, by contender; ours opens its compiled form."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "refs.json")
        write(path, references, "compact")
        cases = {"fsspec": ("open", "fsspec"), "refshard": ("compiled", "refshard")}
        in_turns(MANIFESTS, [("compiled", "refshard", str(path))], 1)  # which keeps it
        found = in_turns(MANIFESTS, [(*case, str(path)) for case in cases.values()], 3)
    return {
        name: (f["seconds"] / references, max(f["added"], 0.0) / references)
        for name, f in zip(cases, found, strict=True)
    }


def clients(references: int) -> dict[str, dict[str, Client]]:
    """Return the clients, by the way to read and their names, with what they cost on this machine."""
    opened = opening(references)
    known = engine.patterns()
    found: dict[str, dict[str, Client]] = {}
    with engine.scene() as on:
        on.server.pace(engine.LINKS["10ms"])
        contenders: dict[str, Contender] = {"fsspec": engine.reference, "refshard": engine.ours}
        for reads, name in (("slabs", "whole"), ("scattered", "strided")):
            for contender in contenders.values():
                contender(known[name], on)  # imports, and whatever else the first time takes
            found[reads] = {
                who: Client(IN_FLIGHT[who, reads], *cost(contender, on, known[name]), *opened[who])
                for who, contender in contenders.items()
            }
    return found


def main() -> None:
    """Measure the costs, simulate, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="A thousand workers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    setting = QUICK if given.quick else SETTING
    print("assumed:", json.dumps(setting._asdict()))
    for reads, by_name in clients(100_000 if given.quick else 1_000_000).items():
        outcomes = {name: simulate(client, setting, given.seed) for name, client in by_name.items()}
        print(f"\n{reads}, {setting.references:,} references, {setting.workers:,} workers")
        for name, out in outcomes.items():
            client = by_name[name]
            print(
                f"  {name:10}{out.requests:14,} requests {out.bytes / 1e12:7.2f} TB {out.seconds:9.0f} s"
                f" {out.dollars:9.2f} $   (a chunk: {client.cpu * 1e3:.2f} ms CPU, {client.requests:.2f} requests)"
            )
            if out.memory > setting.memory:
                print(f"{'':12}its references need {out.memory / 1e9:.0f} GB on each worker: more than there is")
        for unit, values in (
            ("requests", {name: float(out.requests) for name, out in outcomes.items()}),
            ("s", {name: out.seconds for name, out in outcomes.items()}),
            ("$", {name: out.dollars for name, out in outcomes.items()}),
            ("B", {name: out.memory for name, out in outcomes.items()}),
        ):
            what = {"B": "memory of a worker for references", "s": "wall time", "$": "money"}.get(unit, unit)
            keep(Case("simulation", f"{reads}: {what}", unit, values, ("refshard",), "fsspec"))


if __name__ == "__main__":
    main()

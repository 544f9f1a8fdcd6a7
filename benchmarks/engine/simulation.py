"""Simulate a thousand workers that read a hundred million references: requests, bytes, money and wall time.

    python -m benchmarks.engine.simulation [--quick] [--seed 0]

This is a simulation, not a measurement. The costs of a client are measured first, on this machine: CPU time, requests
and bytes for each of 512 chunks that zarr reads from a loopback server, and seconds and memory of opening for each
reference. All other figures are assumed, printed, and defined in `SETTING`.

Each task reads 1,000 chunks, and is given to the first idle worker. Its requests are divided into as many streams as
the client has requests in flight. A request takes a latency (log-normal, with a heavy tail) and a transfer at the
bandwidth of a connection. A task cannot end before its CPU time, the transfer of its bytes at the worker's bandwidth,
and its share of the request rate that the store permits to all workers. Requests over that rate wait; none is lost.
*slabs* are 1,000 consecutive chunks of files that hold them in order; *scattered* are chunks that lie far apart, so
that no requests can be merged. ``--quick`` uses a tenth of the workers, the work and the store's rate. The same seed
and the same costs give the same figures.
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

from benchmarks.engine import contenders
from benchmarks.manifests import MODULE as MANIFESTS
from benchmarks.manifests import write_set
from benchmarks.measure import run_in_turns
from benchmarks.record import Case, record_case


class Setting(NamedTuple):
    """The assumptions about the store, the workers and the work."""

    references: int = 100_000_000
    workers: int = 1_000
    chunks_a_task: int = 1_000
    chunk: int = 100_000  # bytes
    requests_a_second: float = 5_500 * 16  # GETs that the store permits for a prefix, times the number of prefixes
    latency: float = 0.030  # seconds, the median
    spread: float = 0.5  # standard deviation of the latency's logarithm
    tail: float = 0.001  # the fraction of requests that wait longer
    tail_seconds: float = 1.0  # the mean of this longer wait
    stream: float = 60e6  # bytes a second of one connection
    worker: float = 250e6  # bytes a second of one worker
    dollars_a_million: float = 0.40  # for a million GETs
    dollars_an_hour: float = 0.10  # for an hour of one worker
    memory: float = 16e9  # bytes of one worker


SETTING = Setting()
QUICK = SETTING._replace(references=10_000_000, workers=100, requests_a_second=5_500 * 1.6)


class Client(NamedTuple):
    """The costs of a client."""

    in_flight: int  # requests
    cpu: float  # seconds for a chunk
    requests: float  # for a chunk
    amplification: float  # received bytes, as a multiple of the bytes of the chunks
    open_seconds: float  # for a reference
    open_bytes: float  # bytes of memory for a reference


class Outcome(NamedTuple):
    """The result of a simulation."""

    requests: int
    bytes: float
    seconds: float
    dollars: float
    memory: float  # bytes on each worker, for the references


def simulate(client: Client, setting: Setting, seed: int) -> Outcome:
    """Simulate all tasks, from opening the set to the end of the last task."""
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
    granted = opened  # the time until which the store's rate is used up
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


# zarr's own pipeline requests ten chunks at a time; ours a whole selection, by up to `concurrency=` requests.
IN_FLIGHT = {
    ("fsspec", "slabs"): 10,
    ("refshard", "slabs"): 128,
    ("fsspec", "scattered"): 10,
    ("refshard", "scattered"): 128,
}

Contender = Callable[[contenders.Pattern, contenders.Scene], tuple[float, int]]


def measure_cost(contender: Contender, on: contenders.Scene, pattern: contenders.Pattern) -> tuple[float, float, float]:
    """Return seconds of CPU, requests and bytes (as a multiple of the chunk) for a chunk, the median of three reads."""
    figures = []
    for _ in range(3):
        on.server.get("/__clear__")
        began = time.process_time()
        contender(pattern, on)
        spent = time.process_time() - began
        requests, sent = on.server.read_counts()
        chunks = len(pattern.numbers)
        figures.append((spent / chunks, requests / chunks, sent / chunks / contenders.CHUNK))
    return sorted(figures)[1]


def measure_opening(references: int) -> dict[str, tuple[float, float]]:
    """Return the seconds and bytes of opening for a reference, by contender; ours opens from its index cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "refs.json")
        write_set(path, references, "compact")
        cases = {"fsspec": ("open", "fsspec"), "refshard": ("compiled", "refshard")}
        run_in_turns(MANIFESTS, [("compiled", "refshard", str(path))], 1)  # writes the index cache
        found = run_in_turns(MANIFESTS, [(*case, str(path)) for case in cases.values()], 3)
    return {
        name: (f["seconds"] / references, max(f["added"], 0.0) / references)
        for name, f in zip(cases, found, strict=True)
    }


def measure_clients(references: int) -> dict[str, dict[str, Client]]:
    """Measure the costs of clients on this machine; return them by the way to read and by name."""
    opened = measure_opening(references)
    known = contenders.make_patterns()
    found: dict[str, dict[str, Client]] = {}
    with contenders.serve_scene() as on:
        on.server.set_pace(contenders.LINKS["10ms"])
        clients: dict[str, Contender] = {"fsspec": contenders.read_reference, "refshard": contenders.read_refshard}
        for reads, name in (("slabs", "whole"), ("scattered", "strided")):
            for contender in clients.values():
                contender(known[name], on)  # imports, and other work of the first read
            found[reads] = {
                who: Client(IN_FLIGHT[who, reads], *measure_cost(contender, on, known[name]), *opened[who])
                for who, contender in clients.items()
            }
    return found


def main() -> None:
    """Measure the costs, simulate the work, and print and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.simulation", description="A thousand workers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    setting = QUICK if given.quick else SETTING
    print("assumed:", json.dumps(setting._asdict()))
    for reads, by_name in measure_clients(100_000 if given.quick else 1_000_000).items():
        outcomes = {name: simulate(client, setting, given.seed) for name, client in by_name.items()}
        print(f"\n{reads}, {setting.references:,} references, {setting.workers:,} workers")
        for name, out in outcomes.items():
            client = by_name[name]
            print(
                f"  {name:10}{out.requests:14,} requests {out.bytes / 1e12:7.2f} TB {out.seconds:9.0f} s"
                f" {out.dollars:9.2f} $   (a chunk: {client.cpu * 1e3:.2f} ms CPU, {client.requests:.2f} requests)"
            )
            if out.memory > setting.memory:
                print(f"{'':12}its references need {out.memory / 1e9:.0f} GB on each worker, which has less memory")
        for unit, values in (
            ("requests", {name: float(out.requests) for name, out in outcomes.items()}),
            ("s", {name: out.seconds for name, out in outcomes.items()}),
            ("$", {name: out.dollars for name, out in outcomes.items()}),
            ("B", {name: out.memory for name, out in outcomes.items()}),
        ):
            what = {"B": "memory of a worker for references", "s": "wall time", "$": "money"}.get(unit, unit)
            record_case(Case("simulation", f"{reads}: {what}", unit, values, ("refshard",), "fsspec"))


if __name__ == "__main__":
    main()

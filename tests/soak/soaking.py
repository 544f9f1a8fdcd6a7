"""Threads of this process and dask's worker processes read side by side; what they held is looked over afterwards."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.servers.process import RangeServerProcess
from tests.soak.reading import Sample, content, read, write_set

__all__ = ["Outcome", "soak"]

MIB: Final = 1 << 20
FAULTS: Final = (
    *(("short_body", 0.005), ("long_body", 0.005), ("wrong_content_range", 0.005), ("hang_up", 0.005)),
    *(("reset", 0.005), ("dropped", 0.005), ("ignored_range", 0.001), (503, 0.01), (500, 0.01), (403, 0.02)),
)


class Outcome(NamedTuple):
    """What came of a soak: reads, and how much more each process held in its last quarter than in its second."""

    seconds: float
    right: int
    errors: int
    processes: int
    memory: int
    peak: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.right} reads right and {self.errors} errors in {self.seconds:.0f} s, {self.processes} processes; "
            f"after warm-up none grew by more than {self.memory / MIB:.1f} MiB (to {self.peak / MIB:.0f} MiB) "
            f"and {self.files} file descriptors"
        )


def soak(folder: Path, keys: int, reads: int, threads: int, processes: int, patience: float, each: int) -> Outcome:
    """Read ``reads`` of ``keys`` random keys, ``each`` at a time; TimeoutError where that does not end."""
    began = time.monotonic()
    with RangeServerProcess() as server:
        url = server.put("/data", content(keys))
        path = str(folder / "refs.json")
        write_set(Path(path), url, keys)
        read(path, keys, 0, 10)  # leaves the decoded set in the index cache, for all processes
        for number, (kind, probability) in enumerate(FAULTS):
            server.fault(kind, probability=probability, seed=number)  # type: ignore[arg-type]  # they are kinds
        share = reads * threads // (threads + processes) if processes else reads
        with _cluster(processes) as client:
            seeds = count(1)
            tasks = [next(seeds) for _ in range((reads - share) // each)] if processes else []
            futures = [client.submit(read, path, keys, seed, each, pure=False) for seed in tasks]
            samples = _in_threads(lambda: read(path, keys, next(seeds), each), threads, share // each, patience)
            try:
                samples += [future.result(timeout=patience) for future in futures]
            except TimeoutError as e:
                raise TimeoutError(f"a worker process does not end: {client.call_stack()}") from e
            order = [*samples]
    return _outcome(time.monotonic() - began, order)


def _in_threads(work: Callable[[], Sample], threads: int, times: int, patience: float) -> list[Sample]:
    """Return what ``work`` returns, called ``times`` times by so many threads."""
    left = iter(range(times))
    lock = threading.Lock()
    found: list[Sample] = []
    failures: list[BaseException] = []

    def run() -> None:
        while not failures:
            with lock:
                if next(left, None) is None:
                    return
            try:
                found.append(work())
            except BaseException as e:  # handed to the caller
                failures.append(e)

    pool = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    end = time.monotonic() + patience
    for thread in pool:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in pool):
        faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]  # there is one
        raise TimeoutError(f"threads still read after {patience} s")
    if failures:
        raise failures[0]
    return found


@contextlib.contextmanager
def _cluster(processes: int) -> Iterator[Any]:
    if not processes:
        yield None
        return
    import dask
    import distributed

    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "120s"}),
        distributed.LocalCluster(  # type: ignore[no-untyped-call]  # as the next one
            n_workers=processes, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as running,
        distributed.Client(running) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


def _outcome(seconds: float, samples: Sequence[Sample]) -> Outcome:
    memory = files = 0
    pids = {sample.pid for sample in samples}
    for pid in pids:
        own = [sample for sample in samples if sample.pid == pid]
        quarter = len(own) // 4
        if not quarter:
            continue
        before, after = own[quarter : 2 * quarter], own[-quarter:]
        memory = max(memory, max(s.memory for s in after) - max(s.memory for s in before))
        # Connections come and go; what leaks is there at all times.
        files = max(files, min(s.files for s in after) - min(s.files for s in before))
    right, errors = (sum(sample[i] for sample in samples) for i in (1, 2))
    return Outcome(seconds, right, errors, len(pids), memory, max(s.memory for s in samples), files)

"""Let threads of this process and dask's worker processes read side by side, and compute how much they grew."""

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
    """The result of a run: the numbers of reads and errors, and the largest growth of a process.

    Growth of ``memory`` (bytes) and ``files`` (descriptors) is that from a process's second quarter of reads to its
    last quarter; ``peak`` is the largest memory of a process in bytes.
    """

    seconds: float
    right: int
    errors: int
    processes: int
    memory: int
    peak: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.right} right reads and {self.errors} errors in {self.seconds:.0f} s, {self.processes} processes; "
            f"after warm-up each grew by at most {self.memory / MIB:.1f} MiB (to at most {self.peak / MIB:.0f} MiB) "
            f"and {self.files} file descriptors"
        )


def soak(folder: Path, keys: int, reads: int, threads: int, processes: int, patience: float, each: int) -> Outcome:
    """Read ``reads`` random keys of a set of ``keys``; each task or call reads ``each`` of them.

    Raise TimeoutError if the reads take longer than ``patience`` seconds.
    """
    began = time.monotonic()
    with RangeServerProcess() as server:
        url = server.put("/data", content(keys))
        path = str(folder / "refs.json")
        write_set(Path(path), url, keys)
        read(path, keys, 0, 10)  # writes the decoded set to the index cache, which all processes read
        for number, (kind, probability) in enumerate(FAULTS):
            server.fault(kind, probability=probability, seed=number)  # type: ignore[arg-type]  # they are kinds
        share = reads * threads // (threads + processes) if processes else reads
        with _start_cluster(processes) as client:
            seeds = count(1)
            tasks = [next(seeds) for _ in range((reads - share) // each)] if processes else []
            futures = [client.submit(read, path, keys, seed, each, pure=False) for seed in tasks]
            samples = _run_in_threads(lambda: read(path, keys, next(seeds), each), threads, share // each, patience)
            try:
                samples += [future.result(timeout=patience) for future in futures]
            except TimeoutError as e:
                raise TimeoutError(f"a worker still reads after {patience} s: {client.call_stack()}") from e
            order = [*samples]
    return _summarise(time.monotonic() - began, order)


def _run_in_threads(work: Callable[[], Sample], threads: int, times: int, patience: float) -> list[Sample]:
    """Call ``work`` ``times`` times in all, from this number of threads; return the results."""
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
            except BaseException as e:  # raised again below
                failures.append(e)

    pool = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    end = time.monotonic() + patience
    for thread in pool:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in pool):
        faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]  # it is not None
        raise TimeoutError(f"threads still read after {patience} s")
    if failures:
        raise failures[0]
    return found


@contextlib.contextmanager
def _start_cluster(processes: int) -> Iterator[Any]:
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


def _summarise(seconds: float, samples: Sequence[Sample]) -> Outcome:
    memory = files = 0
    pids = {sample.pid for sample in samples}
    for pid in pids:
        own = [sample for sample in samples if sample.pid == pid]
        quarter = len(own) // 4
        if not quarter:
            continue
        before, after = own[quarter : 2 * quarter], own[-quarter:]
        memory = max(memory, max(s.memory for s in after) - max(s.memory for s in before))
        # The number of connections varies: leaked descriptors raise the minimum.
        files = max(files, min(s.files for s in after) - min(s.files for s in before))
    right, errors = (sum(sample[i] for sample in samples) for i in (1, 2))
    return Outcome(seconds, right, errors, len(pids), memory, max(s.memory for s in samples), files)

"""Run jobs: each side of a job runs in a new process, which has imported everything before its time is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import statistics
import time
import traceback
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.jobs import cubes, files, notebook, stores  # noqa: F401  # importing them registers their jobs
from benchmarks.jobs.job import JOBS, Data, Job, Site
from benchmarks.links import Link, Server
from benchmarks.record import Case
from tests.servers.s3 import SeaweedServer

__all__ = ["LINKS", "Failed", "Runner", "Side", "choose_jobs", "make_title"]

LINKS = {
    "0": Link(0.0, None),
    "20": Link(0.02, None),
    "30": Link(0.03, None),
    "50": Link(0.05, None),
    "20+60": Link(0.02, 60e6),
}
LONG = 30.0  # seconds: a side that takes longer is not repeated
STUCK = 1800  # seconds: a side that takes longer has failed


class Failed(Exception):
    """A side raised an error, or the values of both sides differ."""


class Side(NamedTuple):
    """The figures of one side of a job; ``cpu`` is that of its process and of child processes that have ended."""

    seconds: float
    cpu: float
    requests: float
    bytes: float

    @classmethod
    def compute_median(cls, sides: list[Side]) -> Side:
        """Return the medians of ``sides``, figure by figure."""
        return cls(*map(statistics.median, zip(*sides, strict=True)))


class Runner:
    """The servers and the files of one run; ``size`` is ``"quick"``, ``"usual"`` or ``"large"``."""

    def __init__(self, folder: Path, size: str, server: Server, s3: tuple[SeaweedServer, Server] | None) -> None:
        self.folder = folder
        self.size = size
        self._server = server
        self._s3 = s3
        self._prepared: dict[tuple[str, Data], Site] = {}

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder: Path, size: str, *, with_s3: bool) -> Iterator[Runner]:
        """Start the servers; stop them at the end of the block."""
        get_context().set_forkserver_preload(["benchmarks.jobs.warm"])
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(contextlib.closing(Server(str(folder))))
            s3 = None
            if with_s3:
                store = stack.enter_context(SeaweedServer())
                store.create_bucket("jobs")
                s3 = store, stack.enter_context(contextlib.closing(Server(str(folder), store.endpoint_url)))
            yield cls(folder, size, server, s3)

    def measure(self, job: Job, link: str, repeats: int) -> tuple[Side, Side]:
        """Return the medians of the other tool's side and of ours, which take turns; Failed if their values differ."""
        site, server = self._site(job)
        server.set_pace(LINKS[link])
        taken: dict[str, list[Side]] = {"theirs": [], "ours": []}
        values: dict[str, Any] = {}
        for _ in range(repeats):
            for side, sides in taken.items():
                if sides and sides[-1].seconds > LONG:
                    continue
                server.get("/__clear__")
                seconds, cpu, values[side] = run_in_process(run_side, job, side, site)
                sides.append(Side(seconds, cpu, *server.read_counts()))
        try:
            compare(values["ours"], values["theirs"])
        except AssertionError as e:
            raise Failed(str(e)) from None
        return Side.compute_median(taken["theirs"]), Side.compute_median(taken["ours"])

    def _site(self, job: Job) -> tuple[Site, Server]:
        """Return the site of a job's data, and its server; write the data unless another job has equal data."""
        data = job.sizes.of(self.size)
        name = f"{job.store}-{sha256(repr(data).encode()).hexdigest()[:8]}"
        folder = self.folder / name
        site, server = Site(folder, f"{self._server.url}/{name}", {}), self._server
        if job.store == "s3":
            assert self._s3 is not None, "expected a Runner that was started with_s3=True"
            store, server = self._s3
            options = {"anon": True, "client_kwargs": {"endpoint_url": server.url}}
            site = Site(folder, f"s3://jobs/{name}", options)
        if (job.store, data) not in self._prepared:
            if not folder.exists():
                folder.mkdir()
                run_in_process(data.write, folder)
            if job.store == "s3":
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        store.put(f"jobs/{name}/{path.relative_to(folder)}", path.read_bytes())
            server.set_pace(LINKS["0"])
            run_in_process(data.prepare, site)
            self._prepared[job.store, data] = site
        return site, server

    def make_case(self, job: Job, link: str, theirs: Side, ours: Side) -> Case:
        """Return the measured figures as a case of the report."""
        sides = {job.peer: theirs, "refshard": ours}
        return Case(
            "jobs", f"{make_title(job, self.size)}, {link} ms", "s",
            {name: side.seconds for name, side in sides.items()},
            ("refshard",), job.peer, {name: int(side.requests) for name, side in sides.items()},
            goal=f"≥ {job.goal:g}×", met=theirs.seconds >= job.goal * ours.seconds, latency=LINKS[link].latency,
        )  # fmt: skip


def make_title(job: Job, size: str) -> str:
    """Return the title of a job, with the numbers of its data at ``size``."""
    data = job.sizes.of(size)
    return job.title.format(**{name: getattr(data, name) for name in ("count", "total") if hasattr(data, name)})


def get_context() -> Any:
    """Return the context in which processes start: forked from a server that has imported everything."""
    return multiprocessing.get_context("forkserver")


def run_in_process(function: Any, *arguments: Any) -> Any:
    """Call ``function`` in a new process, and return its result; Failed if it raises or takes more than `STUCK` s."""
    receiving, sending = get_context().Pipe(duplex=False)
    process = get_context().Process(target=_send_result, args=(sending, function, arguments))
    process.start()
    sending.close()
    try:
        if not receiving.poll(STUCK):
            raise Failed(f"expected a result within {STUCK} s, got none")
        failure, result = receiving.recv()
    except EOFError:
        raise Failed("the process ended without a result") from None
    finally:
        process.join(10)  # the process closes its connections
        process.kill()
    if failure is not None:
        raise Failed(failure)
    return result


def _send_result(sending: Connection, function: Any, arguments: Any) -> None:
    """Call ``function``, and send its result, or the traceback of its error."""
    warnings.simplefilter("ignore")
    try:
        sending.send((None, function(*arguments)))
    except BaseException:  # noqa: BLE001  # the parent raises it as Failed
        sending.send((traceback.format_exc(), None))


def run_side(job: Job, side: str, site: Site) -> tuple[float, float, Any]:
    """Run one side (``ours`` or ``theirs``) of a job; return the seconds, the seconds of CPU, and the values."""
    for name in job.needs:
        with contextlib.suppress(ImportError):
            __import__(name)
    with type(job).setup():
        cpu, began = _read_cpu(), time.perf_counter()
        values = getattr(job, f"run_{side}")(site)
        seconds, cpu = time.perf_counter() - began, _read_cpu() - cpu
        return seconds, cpu, np.asarray(values() if callable(values) else values)


def _read_cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(ours: Any, theirs: Any) -> None:
    """Raise AssertionError if values differ by more than rounding errors."""
    if ours.dtype.kind in "fc":
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours, theirs)


def choose_jobs(patterns: list[str]) -> list[Job]:
    """Return the jobs whose names match one of ``patterns``; without patterns, all jobs."""
    return [job for name, job in JOBS.items() if not patterns or any(fnmatch(name, p.lower()) for p in patterns)]

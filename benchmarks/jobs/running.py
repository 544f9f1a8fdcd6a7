"""Runs jobs: each side of each in a process of its own, which has imported everything before its clock starts."""

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

from benchmarks.engine import Link, Server
from benchmarks.jobs import cubes, files, notebook, stores  # noqa: F401  # they register their jobs
from benchmarks.jobs.job import JOBS, Data, Job, Site
from benchmarks.record import Case
from tests.servers.s3 import SeaweedServer

__all__ = ["LINKS", "Failed", "Runner", "Side", "chosen", "titled"]

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
    """A side raised, or the values of both differ."""


class Side(NamedTuple):
    """What one side of a job took; ``cpu`` is that of its process and of processes that it has waited for."""

    seconds: float
    cpu: float
    requests: float
    bytes: float

    @classmethod
    def median(cls, sides: list[Side]) -> Side:
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
    def started(cls, folder: Path, size: str, *, with_s3: bool) -> Iterator[Runner]:
        """Start the servers; stop them at the end."""
        context().set_forkserver_preload(["benchmarks.jobs.warm"])
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(contextlib.closing(Server(str(folder))))
            s3 = None
            if with_s3:
                store = stack.enter_context(SeaweedServer())
                store.create_bucket("jobs")
                s3 = store, stack.enter_context(contextlib.closing(Server(str(folder), store.endpoint_url)))
            yield cls(folder, size, server, s3)

    def measure(self, job: Job, link: str, repeats: int) -> tuple[Side, Side]:
        """Return the medians of their side and of ours, which take turns; raise Failed if their values differ."""
        site, server = self._site(job)
        server.pace(LINKS[link])
        taken: dict[str, list[Side]] = {"theirs": [], "ours": []}
        values: dict[str, Any] = {}
        for _ in range(repeats):
            for side, sides in taken.items():
                if sides and sides[-1].seconds > LONG:
                    continue
                server.get("/__clear__")
                seconds, cpu, values[side] = in_process(run_side, job, side, site)
                sides.append(Side(seconds, cpu, *server.seen()))
        try:
            compare(values["ours"], values["theirs"])
        except AssertionError as e:
            raise Failed(str(e)) from None
        return Side.median(taken["theirs"]), Side.median(taken["ours"])

    def _site(self, job: Job) -> tuple[Site, Server]:
        """Return the site of a job's data, which are written first if no other job had the same, and its server."""
        data = job.sizes.of(self.size)
        name = f"{job.store}-{sha256(repr(data).encode()).hexdigest()[:8]}"
        folder = self.folder / name
        site, server = Site(folder, f"{self._server.url}/{name}", {}), self._server
        if job.store == "s3":
            assert self._s3 is not None, "started with S3 if a job needs it"
            store, server = self._s3
            options = {"anon": True, "client_kwargs": {"endpoint_url": server.url}}
            site = Site(folder, f"s3://jobs/{name}", options)
        if (job.store, data) not in self._prepared:
            if not folder.exists():
                folder.mkdir()
                in_process(data.write, folder)
            if job.store == "s3":
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        store.put(f"jobs/{name}/{path.relative_to(folder)}", path.read_bytes())
            server.pace(LINKS["0"])
            in_process(data.prepare, site)
            self._prepared[job.store, data] = site
        return site, server

    def case(self, job: Job, link: str, theirs: Side, ours: Side) -> Case:
        """Return what was measured, for the report."""
        sides = {job.peer: theirs, "refshard": ours}
        return Case(
            "jobs", f"{titled(job, self.size)}, {link} ms", "s", {name: side.seconds for name, side in sides.items()},
            ("refshard",), job.peer, {name: int(side.requests) for name, side in sides.items()},
            goal=f"≥ {job.goal:g}×", met=theirs.seconds >= job.goal * ours.seconds, latency=LINKS[link].latency,
        )  # fmt: skip


def titled(job: Job, size: str) -> str:
    """Return the title of a job with the figures of its data at that size."""
    data = job.sizes.of(size)
    return job.title.format(**{name: getattr(data, name) for name in ("count", "total") if hasattr(data, name)})


def context() -> Any:
    """Return the way that processes start: forked from one that has imported everything and done nothing."""
    return multiprocessing.get_context("forkserver")


def in_process(function: Any, *arguments: Any) -> Any:
    """Return what ``function`` returns in a process of its own."""
    receiving, sending = context().Pipe(duplex=False)
    process = context().Process(target=_answer, args=(sending, function, arguments))
    process.start()
    sending.close()
    try:
        if not receiving.poll(STUCK):
            raise Failed(f"expected an answer within {STUCK} s")
        failure, result = receiving.recv()
    except EOFError:
        raise Failed("the process ended without an answer") from None
    finally:
        process.join(10)  # it closes what it has opened
        process.kill()
    if failure is not None:
        raise Failed(failure)
    return result


def _answer(sending: Connection, function: Any, arguments: Any) -> None:
    """Send what ``function`` returns, or its traceback."""
    warnings.simplefilter("ignore")
    try:
        sending.send((None, function(*arguments)))
    except BaseException:  # noqa: BLE001  # the parent tells of it
        sending.send((traceback.format_exc(), None))


def run_side(job: Job, side: str, site: Site) -> tuple[float, float, Any]:
    """Do one side of a job; return the seconds, the seconds of CPU, and the values."""
    for name in job.needs:
        with contextlib.suppress(ImportError):
            __import__(name)
    with type(job).setup():
        cpu, began = _cpu(), time.perf_counter()
        values = getattr(job, side)(site)
        seconds, cpu = time.perf_counter() - began, _cpu() - cpu
        return seconds, cpu, np.asarray(values() if callable(values) else values)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(ours: Any, theirs: Any) -> None:
    """Raise AssertionError if values differ by more than the rounding of another order of operations."""
    if ours.dtype.kind in "fc":
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours, theirs)


def chosen(patterns: list[str]) -> list[Job]:
    """Return the jobs whose names match one of ``patterns``, or all."""
    return [job for name, job in JOBS.items() if not patterns or any(fnmatch(name, p.lower()) for p in patterns)]

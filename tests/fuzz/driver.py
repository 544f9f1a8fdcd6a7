"""Run a harness on many inputs, and report hangs, too much memory, and errors that are not of this package.

A child process runs the inputs one after the other. If it ends or hangs, also in C code where Python cannot interrupt
it, this process reports the input, and a new child process continues with the next input.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import pkgutil
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, cast

from tests.fuzz import parsers
from tests.fuzz.mutation import Mutator

__all__ = ["Failure", "Harness", "Hang", "Most", "list_names", "load_harness", "make_mutator", "run", "search"]

PATIENCE: Final = 1.0  # seconds of processor time that one input may take
# The driver looks about once a second; a process that has not gone to its next input after so many looks has hung.
STANDSTILL: Final = 60
MEMORY: Final = 256 << 20  # bytes of memory that a harness may take in addition to those after its seeds
ADDRESSES: Final = 4 << 30  # bytes of address space that a child process may take in addition: larger allocations fail
ENOUGH: Final = 20  # failures after which a search ends


class Harness(Protocol):
    """The interface of a module in ``parsers``. Its docstring says what it checks."""

    IS_TEXT: bool
    WORDS: Sequence[bytes]

    def make_seeds(self) -> list[bytes]:
        """Return valid inputs."""

    def check_input(self, data: bytes) -> None:
        """Parse ``data``; every error that this raises is a failure."""

    def set_up(self) -> AbstractContextManager[object]:
        """Return the context in which inputs run."""


class Hang(BaseException):
    """An input takes too long. It is not an Exception, so that no parser catches it."""


class Failure(NamedTuple):
    """One input that fails, with its number and the reason."""

    number: int
    data: bytes
    reason: str


def list_names() -> list[str]:
    """Return the names of all harnesses."""
    return sorted(module.name for module in pkgutil.iter_modules(parsers.__path__))


def load_harness(name: str) -> Harness:
    """Import and return the harness ``name``."""
    return cast(Harness, importlib.import_module(f"{parsers.__name__}.{name}"))


def make_mutator(found: Harness, seed: int) -> Mutator:
    """Return a Mutator that makes the inputs of a harness."""
    return Mutator(found.make_seeds(), seed, is_text=found.IS_TEXT, words=found.WORDS)


@contextlib.contextmanager
def _limit_time() -> Iterator[Callable[[float], object]]:
    """Yield a function that sets a limit of processor time in seconds, after which Hang is raised; 0 clears it."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {PATIENCE} s")

    before = signal.signal(signal.SIGPROF, hang)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(slots=True)
class Most:
    """The largest processor time of an input in seconds, and the growth of memory in bytes since the seeds."""

    seconds: float = 0.0
    memory: int = 0


def search(
    name: str, numbers: range, seed: int = 1, note: Callable[[int], object] = lambda n: None, most: Most | None = None
) -> Iterator[Failure]:
    """Yield the failures among ``numbers`` inputs of the harness ``name``, run in this process."""
    most = Most() if most is None else most
    found = load_harness(name)
    make = make_mutator(found, seed).input
    check_input = found.check_input
    with found.set_up(), _limit_time() as limit:
        for data in found.make_seeds():
            check_input(data)
        base = first = _read_peak()
        for number in numbers:
            note(number)
            data = make(number)
            began = time.process_time()
            try:
                limit(PATIENCE)
                check_input(data)
                limit(0)
            except (Exception, Hang) as e:  # the harness catches the errors that a parser may raise
                limit(0)
                yield Failure(number, data, "".join(traceback.format_exception(e)))
            most.seconds = max(most.seconds, time.process_time() - began)
            peak = _read_peak()
            most.memory = max(most.memory, peak - first)
            if peak - base > MEMORY:
                yield Failure(number, data, f"it takes {peak - base} bytes of memory: expected at most {MEMORY}\n")
                base = peak


def _read_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _run_inputs(name: str, numbers: range, seed: int, at: Any, mosts: Any, tell: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, resource.RLIM_INFINITY))

    most = Most(*mosts)
    parent = multiprocessing.parent_process()

    def note(number: int) -> None:
        if number % 1024 == 0 and parent is not None and not parent.is_alive():
            raise SystemExit("the process that reports failures has ended")
        at.value = number
        mosts[:] = most.seconds, most.memory

    for failure in search(name, numbers, seed, note, most):
        tell.send(failure)
    note(numbers.stop)


def run(
    name: str, count: int, seed: int, say: Callable[[str], object], keep: Callable[[Failure], object]
) -> list[Failure]:
    """Run inputs 0 to ``count`` in child processes, and return up to `ENOUGH` failures; ``say`` reports progress.

    ``keep`` is called with each failure when it is found: a run may take an hour.
    """
    context = multiprocessing.get_context("spawn")
    at = context.RawValue(ctypes.c_longlong, -1)
    mosts = context.RawArray(ctypes.c_double, 2)
    found: list[Failure] = []
    began = time.monotonic()
    start = 0

    def describe_progress(done: int) -> str:
        return (
            f"{name}: {max(done, 0)} of {count} inputs in {time.monotonic() - began:.0f} s, {len(found)} failures; "
            f"the slowest took {mosts[0]:.3f} s of processor time, and all {mosts[1] / (1 << 20):.1f} MiB"
        )

    def add(failure: Failure) -> None:
        found.append(failure)
        keep(failure)

    while start < count and len(found) < ENOUGH:
        ours, theirs = context.Pipe(duplex=False)
        at.value = -1
        worker = context.Process(
            target=_run_inputs, args=(name, range(start, count), seed, at, mosts, theirs), daemon=True
        )
        worker.start()
        theirs.close()
        stuck = _watch(worker, ours, at, found, add, lambda: say(describe_progress(at.value)))
        last = at.value
        if last >= count or len(found) >= ENOUGH:
            break
        if last < 0:
            raise RuntimeError(
                f"{name}: the process of the harness ended with {worker.exitcode} before its first input"
            )
        reason = (
            f"the process hung for more than {STANDSTILL} s" if stuck else f"the process ended with {worker.exitcode}"
        )
        add(Failure(last, make_mutator(load_harness(name), seed).input(last), reason))
        start = last + 1
    say(describe_progress(min(at.value, count)))
    return found


def _watch(
    worker: Any,
    tell: Any,
    at: Any,
    found: Sequence[Failure],
    add: Callable[[Failure], object],
    say: Callable[[], object],
) -> bool:
    """Add failures until the process ends; return True if it was killed because it hung."""
    seen, looks, said = -2, 0, time.monotonic()
    stuck = False
    while True:
        with contextlib.suppress(EOFError, OSError):
            while tell.poll(1.0):
                add(tell.recv())
                if len(found) >= ENOUGH:
                    worker.kill()
        looks = 0 if at.value != seen else looks + 1  # not seconds: both processes may be stopped for a while
        seen = at.value
        if looks > STANDSTILL:
            stuck = True
            worker.kill()
        if time.monotonic() - said > 60:
            said = time.monotonic()
            say()
        worker.join(0.2)
        if worker.exitcode is not None:
            with contextlib.suppress(EOFError, OSError):
                while tell.poll(0):
                    add(tell.recv())
            return stuck

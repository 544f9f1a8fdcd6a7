"""Run a harness over many inputs and judge it: no hang, bounded memory, and only errors of this package.

The inputs run in a process of their own, one after the other, without a fork for each. This process sees it end or
stand still even where Python does not (in C code), notes the input, and has the next process go on behind it.
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

__all__ = ["Failure", "Harness", "Hang", "Most", "harness", "names", "run", "search"]

PATIENCE: Final = 1.0  # seconds of processor time that one input may take,
STANDSTILL: Final = 60.0  # and of real time, in code that no signal interrupts
MEMORY: Final = 256 << 20  # bytes that a harness may take, over what it has after its seeds
ADDRESSES: Final = 4 << 30  # bytes of address space over that: allocations beyond fail before they are made
ENOUGH: Final = 20  # failures, after which a search ends


class Harness(Protocol):
    """What a module in ``parsers`` offers, beside a docstring that says what it holds a parser to."""

    IS_TEXT: bool
    WORDS: Sequence[bytes]

    def seeds(self) -> list[bytes]:
        """Return valid inputs."""

    def one_input(self, data: bytes) -> None:
        """Have ``data`` parsed; whatever this raises is a failure."""

    def configured(self) -> AbstractContextManager[object]:
        """Return what has to be entered before inputs are run."""


class Hang(BaseException):
    """An input takes too long. No Exception: no parser may take it for something of its own."""


class Failure(NamedTuple):
    """One input that must not be like this."""

    number: int
    data: bytes
    reason: str


def names() -> list[str]:
    """Return the names of all harnesses."""
    return sorted(module.name for module in pkgutil.iter_modules(parsers.__path__))


def harness(name: str) -> Harness:
    """Return one harness."""
    return cast(Harness, importlib.import_module(f"{parsers.__name__}.{name}"))


def mutator(found: Harness, seed: int) -> Mutator:
    """Return what makes the inputs of a harness."""
    return Mutator(found.seeds(), seed, is_text=found.IS_TEXT, words=found.WORDS)


@contextlib.contextmanager
def _alarmed() -> Iterator[Callable[[float], object]]:
    """Provide what sets, and with 0 clears, a limit on processor time."""

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
    """The most that any one input took: seconds of processor time, and bytes of memory over what the seeds took."""

    seconds: float = 0.0
    memory: int = 0


def search(
    name: str, numbers: range, seed: int = 1, note: Callable[[int], object] = lambda n: None, most: Most | None = None
) -> Iterator[Failure]:
    """Yield the failures among ``numbers`` inputs of the harness ``name``, run in this process."""
    most = Most() if most is None else most
    found = harness(name)
    make = mutator(found, seed).input
    one_input = found.one_input
    with found.configured(), _alarmed() as limit:
        for data in found.seeds():
            one_input(data)
        base = first = _peak()
        for number in numbers:
            note(number)
            data = make(number)
            began = time.process_time()
            try:
                limit(PATIENCE)
                one_input(data)
                limit(0)
            except (Exception, Hang) as e:  # whatever a parser lets out
                limit(0)
                yield Failure(number, data, "".join(traceback.format_exception(e)))
            most.seconds = max(most.seconds, time.process_time() - began)
            peak = _peak()
            most.memory = max(most.memory, peak - first)
            if peak - base > MEMORY:
                yield Failure(number, data, f"{peak - base} bytes of memory, and {MEMORY} are allowed\n")
                base = peak


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _work(name: str, numbers: range, seed: int, at: Any, mosts: Any, tell: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, resource.RLIM_INFINITY))

    most = Most(*mosts)

    def note(number: int) -> None:
        at.value = number
        mosts[:] = most.seconds, most.memory

    for failure in search(name, numbers, seed, note, most):
        tell.send(failure)
    note(numbers.stop)


def run(name: str, count: int, seed: int, say: Callable[[str], object] = print) -> list[Failure]:
    """Run inputs 0 to ``count`` and return the failures, up to `ENOUGH`."""
    context = multiprocessing.get_context("spawn")
    at = context.RawValue(ctypes.c_longlong, -1)
    mosts = context.RawArray(ctypes.c_double, 2)
    found: list[Failure] = []
    began = time.monotonic()
    start = 0

    def progress(done: int) -> str:
        return (
            f"{name}: {max(done, 0)} of {count} inputs in {time.monotonic() - began:.0f} s, {len(found)} failures; "
            f"the slowest took {mosts[0]:.3f} s of processor time, and all {mosts[1] / (1 << 20):.1f} MiB"
        )

    while start < count and len(found) < ENOUGH:
        ours, theirs = context.Pipe(duplex=False)
        at.value = -1
        worker = context.Process(target=_work, args=(name, range(start, count), seed, at, mosts, theirs), daemon=True)
        worker.start()
        theirs.close()
        stuck = _watch(worker, ours, at, found, lambda: say(progress(at.value)))
        last = at.value
        if last >= count or len(found) >= ENOUGH:
            break
        if last < 0:
            raise RuntimeError(
                f"{name}: the harness ends by itself (exit code {worker.exitcode}) before its first input"
            )
        reason = f"stood still for {STANDSTILL} s" if stuck else f"the process ended with {worker.exitcode}"
        found.append(Failure(last, mutator(harness(name), seed).input(last), reason))
        start = last + 1
    say(progress(min(at.value, count)))
    return found


def _watch(worker: Any, tell: Any, at: Any, found: list[Failure], say: Callable[[], object]) -> bool:
    """Collect failures until the process ends; return whether it had to be ended because it stood still."""
    seen, since, said = -2, time.monotonic(), time.monotonic()
    stuck = False
    while True:
        with contextlib.suppress(EOFError, OSError):
            while tell.poll(1.0):
                found.append(tell.recv())
                print(f"input {found[-1].number}: {found[-1].reason.splitlines()[-1]}", flush=True)
                if len(found) >= ENOUGH:
                    worker.kill()
        now = time.monotonic()
        if at.value != seen:
            seen, since = at.value, now
        elif now - since > STANDSTILL:
            stuck = True
            worker.kill()
        if now - said > 60:
            said = now
            say()
        worker.join(0.2)
        if worker.exitcode is not None:
            with contextlib.suppress(EOFError, OSError):
                while tell.poll(0):
                    found.append(tell.recv())
            return stuck

"""What a target answers, and the check that it is what was asked for."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from refshard_fs.model import OWN, Facts, Listed
from refshard_fs.targets.failures import Incomplete, TooLarge, Unfit

__all__ = ["OWN", "UNTOLD", "Answer", "Target", "check", "hold"]

UNTOLD: Final = 8 << 30  # bytes that are read of an object of which nobody says how many it has: it may have no end


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an object, and what came with them about the whole: its size, ETag and modification time.

    They may be in one of the pool's `Buffers`: who takes a part of them makes the only copy, and who has no more use
    for them may give that back.
    """

    data: bytes | memoryview
    size: int | None = None
    etag: str | None = None
    last_modified: str | None = None
    waited: float | None = None  # seconds until the first of it came, where that is known


class Target(Protocol):
    """Objects of one kind, read in ranges. Bound to one event loop.

    A missing object is FileNotFoundError; every other failure is some other error. What
    failed for a passing reason is worth ``most_retries`` further tries: few, where some
    layer below has tried again already. One that has not begun to answer after ``patience``
    seconds never will.
    """

    @property
    def most_retries(self) -> int: ...

    @property
    def patience(self) -> float: ...

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``; ``stop=None`` reads to the end, then a negative start counts from it.

        The answer may be shorter only where the object ends before ``stop``: `check` tells.
        A target that can be asked for a version alone is asked for ``etag``, a strong one.
        What is read to its end and has more than ``most`` bytes is TooLarge, and hardly more of it is read. Without
        ``most``, that goes for what has more than `UNTOLD` bytes and does not say so beforehand.
        """

    async def facts(self, path: str) -> Facts:
        """Return what is known of an object without its bytes."""

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        """Return what lies directly below ``path``, or None if this target cannot list."""

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        """Return the same bytes at once, in any thread, or None where that takes an event loop."""

    async def close(self) -> None:
        """Let go of connections and files."""


def hold(size: int | None, most: int | None) -> None:
    """Raise `TooLarge` where an object of ``size`` bytes has more than ``most``, if both are known."""
    if size is not None and most is not None and size > most:
        raise TooLarge(most)


def check(answer: Answer, start: int, stop: int | None, *, exact: bool) -> None:
    """Raise `Unfit` unless ``answer`` is all of the range that was asked for."""
    got = len(answer.data)
    if stop is None:
        if start < 0 and (got > -start or (answer.size is not None and got != min(-start, answer.size))):
            raise Unfit(f"asked for the last {-start} bytes, got {got}")
        if start >= 0 and answer.size is not None and got != max(answer.size - start, 0):
            raise Unfit(f"asked for all {answer.size} bytes from {start}, got {got}")
        return
    want = stop - start
    if got == want:
        return
    there = None if answer.size is None else max(min(stop, answer.size) - start, 0)
    if got == there and not exact:
        return
    end = "" if answer.size is None else f" (the object has {answer.size} bytes)"
    text = f"asked for bytes [{start}, {stop}), got {got} of {want}{end}"
    raise Incomplete(text) if there is not None and got < there else Unfit(text)

"""One object as a session reads it: passing failures are tried again, and every answer is of one version."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from refshard_fs.errors import RefShardError
from refshard_fs.model import Facts, Listed, Pin
from refshard_fs.stats import Stats
from refshard_fs.targets.answer import Answer, Target, check
from refshard_fs.targets.deadline import Deadlines
from refshard_fs.targets.failures import HttpStatus, Unfit, as_failure
from refshard_fs.targets.retry import Retry
from refshard_fs.targets.versions import Seen, Version

__all__ = ["Opened"]

T = TypeVar("T")

_NO_LONGER = 412
_NO_SUFFIX = frozenset([400, 416, 501])
_SLOWEST = 8192  # bytes per second; a server that sends fewer, behind a connection that is shared by many, has stalled


class Opened:
    """An object of ``target``: it answers like one, and knows what was seen of the object before."""

    __slots__ = ("_deadlines", "_hint", "_retry", "_stats", "_version", "target")

    def __init__(
        self, target: Target, version: Version, retry: Retry, stats: Stats, deadlines: Deadlines | None, hint: str = ""
    ) -> None:
        """Take what is read, and the ``hint`` to give where the server denies it."""
        self.target = target
        self._version = version
        self._retry = retry
        self._stats = stats
        self._deadlines = deadlines
        self._hint = hint

    @property
    def size(self) -> int | None:
        """Bytes that the object has, as far as reading it has shown that."""
        return self._version.size

    async def read(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer:
        """Return bytes ``[start, stop)``, fewer where the object ends; ``pin`` is what the manifest says of the object.

        With ``stop=None`` an object of more than ``most`` bytes is `TooLarge`.

        Raises FileNotFoundError if there is no such object, TargetChanged if it is another
        one than before or than ``pin`` says, and some other OSError if it cannot be had.
        """
        size = math.inf if stop is None else stop - start
        answer = await self._persist(size, self._read, path, start, stop, pin, most)
        self._version.observe(answer.etag, answer.last_modified, answer.size, pin)
        return answer

    async def _read(self, path: str, start: int, stop: int | None, pin: Pin | None, most: int | None) -> Answer:
        version = self._version
        try:
            answer = await self._ask(path, start, stop, version.condition(pin), most)
            if pin is not None and version.seen is None and answer.etag is None and answer.size is None:
                facts = await self.target.facts(path)  # such targets tell a version only when asked
                answer = Answer(answer.data, facts.size, facts.etag, facts.last_modified)
        except HttpStatus as e:
            if e.status == _NO_LONGER:
                raise version.refuse(pin) from e
            raise
        if answer.size is not None:
            check(answer, start, stop, exact=False)
        return answer

    async def _ask(self, path: str, start: int, stop: int | None, etag: str | None, most: int | None) -> Answer:
        try:
            return await self.target.read(path, start, stop, etag, most)
        except (Unfit, HttpStatus) as e:
            if start >= 0 or (isinstance(e, HttpStatus) and e.status not in _NO_SUFFIX):
                raise
            # Some servers know no ranges that count from the end, or do not tell of how many bytes that is.
            size = self._version.size
            if size is None:
                size = (await self.target.facts(path)).size
            if size is None:
                raise
        return await self.target.read(path, max(size + start, 0), size, etag)

    async def facts(self, path: str) -> Facts:
        """Return what is known of the object without its bytes."""
        facts = await self._persist(0, self.target.facts, path)
        self._version.observe(facts.etag, facts.last_modified, facts.size, None)
        return facts

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        """Return what lies directly below ``path``, or None if the target cannot list."""
        return await self._persist(math.inf, self.target.names, path)

    def facts_now(self, path: str) -> Facts:
        """Return the same facts as `facts` at once, of a target that needs no event loop."""
        facts: Facts = _at_once(self.target.facts(path))
        self._version.observe(facts.etag, facts.last_modified, facts.size, None)
        return facts

    def names_now(self, path: str) -> tuple[Listed, ...] | None:
        """Return the same as `names` at once, of a target that needs no event loop."""
        names: tuple[Listed, ...] | None = _at_once(self.target.names(path))
        return names

    def read_now(
        self, path: str, start: int, stop: int | None, pin: Pin | None = None, most: int | None = None
    ) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None where that takes an event loop."""
        answer = self.target.read_now(path, start, stop, most)
        if answer is not None:
            self._version.observe(answer.etag, answer.last_modified, answer.size, pin)
        return answer

    def holds(self, path: str, seen: Seen) -> bool:
        """Whether the object is the one that was ``seen`` before; if only a request can tell, it is held to be."""
        if self._version.seen is None:
            try:
                now = self.target.read_now(path, 0, 0)
            except OSError:
                return False
            if now is not None:
                self._version.observe(now.etag, now.last_modified, now.size, None)
        return self._version.is_like(seen)

    async def _persist(self, size: float, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return what ``call`` returns of some ``size`` bytes, in as many tries as `Retry` allows."""
        retry, deadlines = self._retry, self._deadlines
        assert deadlines is not None, "a target that needs no event loop was asked for in one"
        now = asyncio.get_running_loop().time
        began = now()
        end = began + retry.timeout
        patience = self.target.patience + size / _SLOWEST
        tried = 0
        while True:
            limit = deadlines.at(min(now() + patience, end))
            try:
                with limit:
                    return await call(*args)
            except RefShardError:
                raise
            except Exception as e:  # noqa: BLE001  # raised again as what it means
                failure = as_failure(e)
            if limit.passed:
                earlier = f", the last of {tried + 1} tries" if tried else ""
                late = TimeoutError(f"no answer after {now() - began:.1f} s{earlier}")
                late.__cause__ = failure
                failure = late
            tried += 1
            wait = retry.pause(failure, tried)
            if wait is None or now() + wait >= end:
                if self._hint and isinstance(failure, PermissionError):
                    failure.add_note(self._hint)
                raise failure
            self._stats.add(retries=1)
            await asyncio.sleep(wait)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a target that needs no event loop waited for one")

"""One object as a session reads it: passing failures are tried again, and every answer is of one version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from refshard_fs.errors import RefShardError
from refshard_fs.model import Facts, Listed, Pin
from refshard_fs.stats import Stats
from refshard_fs.targets.answer import Answer, Target, check
from refshard_fs.targets.deadline import Deadline
from refshard_fs.targets.failures import HttpStatus, as_failure
from refshard_fs.targets.retry import Retry
from refshard_fs.targets.versions import Version

__all__ = ["Opened"]

T = TypeVar("T")

_NO_LONGER = 412


class Opened:
    """An object of ``target``: it answers like one, and knows what was seen of the object before."""

    __slots__ = ("_retry", "_stats", "_version", "target")

    def __init__(self, target: Target, version: Version, retry: Retry, stats: Stats) -> None:
        self.target = target
        self._version = version
        self._retry = retry
        self._stats = stats

    async def read(self, path: str, start: int, stop: int | None, pin: Pin | None = None) -> Answer:
        """Return bytes ``[start, stop)``, fewer where the object ends; ``pin`` is what the manifest says of the object.

        Raises FileNotFoundError if there is no such object, TargetChanged if it is another
        one than before or than ``pin`` says, and some other OSError if it cannot be had.
        """
        answer = await self._persist(self._read, path, start, stop, pin)
        self._version.observe(answer.etag, answer.last_modified, answer.size, pin)
        return answer

    async def _read(self, path: str, start: int, stop: int | None, pin: Pin | None) -> Answer:
        version = self._version
        try:
            answer = await self.target.read(path, start, stop, version.condition(pin))
            if pin is not None and not version.seen and answer.etag is None and answer.size is None:
                facts = await self.target.facts(path)  # such targets tell a version only when asked
                answer = Answer(answer.data, facts.size, facts.etag, facts.last_modified)
        except HttpStatus as e:
            if e.status == _NO_LONGER:
                raise version.refuse(pin) from e
            raise
        if answer.size is not None:
            check(answer, start, stop, exact=False)
        return answer

    async def facts(self, path: str) -> Facts:
        """Return what is known of the object without its bytes."""
        facts = await self._persist(self.target.facts, path)
        self._version.observe(facts.etag, facts.last_modified, facts.size, None)
        return facts

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        """Return what lies directly below ``path``, or None if the target cannot list."""
        return await self._persist(self.target.names, path)

    def read_now(self, path: str, start: int, stop: int | None, pin: Pin | None = None) -> Answer | None:
        """Return the same bytes as `read` at once, in any thread, or None where that takes an event loop."""
        answer = self.target.read_now(path, start, stop)
        if answer is not None:
            self._version.observe(answer.etag, answer.last_modified, answer.size, pin)
        return answer

    async def _persist(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        retry = self._retry
        loop = asyncio.get_running_loop()
        tried = 0
        failure: OSError | None = None
        limit = Deadline(loop.time() + retry.timeout)
        try:
            with limit:
                while True:
                    try:
                        return await call(*args)
                    except RefShardError:
                        raise
                    except Exception as e:  # noqa: BLE001  # raised again as what it means
                        failure = as_failure(e)
                    tried += 1
                    wait = retry.pause(failure, tried)
                    if wait is None or loop.time() + wait > limit.when:
                        raise failure
                    self._stats.add(retries=1)
                    await asyncio.sleep(wait)
        except TimeoutError as e:
            if not limit.passed:
                raise
            tries = f" and {tried} {'try' if tried == 1 else 'tries'} that failed" if tried else ""
            raise TimeoutError(f"no answer after {retry.timeout:g} s{tries}") from (failure or e)

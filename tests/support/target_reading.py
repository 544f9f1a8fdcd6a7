"""Read an object as the engine reads it, in a new event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from refshard_fs.core.model import Facts, Listed, Pin
from refshard_fs.core.stats import Stats
from refshard_fs.targets import Answer, Pool, PoolOptions, Retry, Versions, check
from refshard_fs.targets.versioned import VersionedObject

__all__ = ["AT_ONCE", "Reader", "run_with_pool"]

T = TypeVar("T")

AT_ONCE = Retry(retries=0, timeout=20)
"""Options without retries, for tests of single answers."""


class Reader:
    """Reads through a new pool in each call; all calls share the versions that they have seen."""

    def __init__(self, options: PoolOptions | None = None, **given: Any) -> None:
        self.options = options or PoolOptions(**{"retry": AT_ONCE, **given})
        self.versions = Versions()
        self.stats = Stats()

    def read(self, url: str, start: int = 0, stop: int | None = None, pin: Pin | None = None) -> bytes:
        """Read and check a range, and return its bytes."""
        return self.answer(url, start, stop, pin).data

    def answer(self, url: str, start: int = 0, stop: int | None = None, pin: Pin | None = None) -> Answer:
        async def read(opened: VersionedObject, path: str) -> Answer:
            answer = await opened.read(path, start, stop, pin)
            check(answer, start, stop, exact=True)
            return answer

        return self.run(url, read)

    def get_facts(self, url: str) -> Facts:
        return self.run(url, lambda opened, path: opened.get_facts(path))

    def list_names(self, url: str) -> tuple[Listed, ...] | None:
        return self.run(url, lambda opened, path: opened.list_names(path))

    def run(self, url: str, use: Callable[[VersionedObject, str], Awaitable[T]]) -> T:
        async def go(pool: Pool) -> T:
            place = pool.place(url)
            assert place is not None
            return await use(*place)

        return run_with_pool(self.options, go, self.versions, self.stats)


def run_with_pool(
    options: PoolOptions,
    use: Callable[[Pool], Awaitable[T]],
    versions: Versions | None = None,
    stats: Stats | None = None,
) -> T:
    """Call ``use`` with a new pool in a new event loop, and return its result."""

    async def go() -> T:
        pool = Pool(options, asyncio.get_running_loop(), versions, stats)
        try:
            return await use(pool)
        finally:
            await pool.close()

    return asyncio.run(go())

"""Read a file that is compressed as a whole (``decompress::URL``) as the object that decompressing it makes.

No part of such a file can be read alone. The first read fetches and decompresses all of it, and the process keeps the
bytes for later reads.
"""

from __future__ import annotations

import asyncio
import threading

from refshard_fs.core.compression import MOST_DECOMPRESSED, decompress_file, too_large_to_decompress
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, clamp
from refshard_fs.targets.answer import Answer, Target, check_size
from refshard_fs.targets.failures import TooLarge
from refshard_fs.targets.generic import run_in_thread, share_task
from refshard_fs.targets.versioned import VersionedObject

_kept: LRU[object, tuple[bytes, Facts]] = LRU(MOST_DECOMPRESSED)  # of all files that the process has read
_turns = [fork_safe(threading.Lock()) for _ in range(4)]  # files are decompressed so many at a time


class DecompressedTarget(Target):
    """The decompressed bytes of ``file``, which lies at ``url`` and at ``path`` in its target."""

    most_retries = 0  # the target of the file tries again
    logs_requests = True  # by the target of the file

    def __init__(self, file: VersionedObject, path: str, url: str) -> None:
        self.tells_versions = file.target.tells_versions
        self._file = file
        self._path = path
        self._url = url
        self._key: object = None  # of the file's version in `_kept`
        self._reading: dict[str, asyncio.Task[tuple[bytes, Facts]]] = {}

    async def close(self) -> None:
        for task in self._reading.values():
            task.cancel()

    async def facts(self, path: str) -> Facts:
        return (await self._content())[1]

    async def current_facts(self, path: str) -> Facts:
        now = await self._file.target.current_facts(self._path)
        data, _ = await self._content()
        return Facts(len(data), now.etag, now.last_modified)

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        data, facts = await self._content()
        begin, end = clamp(start, stop, len(data))
        if stop is None:
            check_size(end - begin, most)
        return Answer(data[begin:end], facts)

    async def _content(self) -> tuple[bytes, Facts]:
        """Return the decompressed bytes, and their size with the version of the file."""
        found = None if self._key is None else _kept.get(self._key)
        return found if found is not None else await share_task(self._reading, "", self._find)

    async def _find(self) -> tuple[bytes, Facts]:
        try:
            if any(_is_of(key, self._url) for key in _kept.keys()):  # noqa: SIM118  # a method: it has no iterator
                self._key = self._key_of(await self._file.facts(self._path))  # another source has read the file
                if (found := _kept.get(self._key)) is not None:
                    return found
            return await self._read_whole()
        finally:
            self._reading.clear()  # a task would keep its result

    async def _read_whole(self) -> tuple[bytes, Facts]:
        try:
            answer = await self._file.read(self._path, 0, None, most=MOST_DECOMPRESSED)
        except TooLarge:
            raise too_large_to_decompress(self._url) from None
        data = await run_in_thread(lambda: self._decompress(answer.data))
        found = data, Facts(len(data), answer.facts.etag, answer.facts.last_modified)
        self._key = self._key_of(answer.facts)
        _kept.put(self._key, found, len(data))
        return found

    def _key_of(self, file: Facts) -> tuple[str, object]:
        # Without a version, another source cannot know whether it would read the same bytes.
        has_version = file.etag is not None or file.last_modified is not None
        return self._url, file if has_version else self

    def _decompress(self, data: bytes) -> bytes:
        with _turns[hash(self._url) % len(_turns)]:
            return decompress_file(data, self._url)


def _is_of(key: object, url: str) -> bool:
    return isinstance(key, tuple) and key[0] == url

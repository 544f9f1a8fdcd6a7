"""Read a file that is compressed as a whole (``decompress::URL``) as if it were not compressed.

No part of such a file can be read alone. The first read fetches and decompresses all of it, and the process keeps the
bytes for later reads.
"""

from __future__ import annotations

import asyncio
import threading
from typing import NamedTuple

import msgspec

from refshard_fs.core.compression import MOST_DECOMPRESSED, decompress_file, make_size_error
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, clamp
from refshard_fs.targets.answer import Answer, Target, check_size
from refshard_fs.targets.failures import TooLarge
from refshard_fs.targets.generic import run_in_thread, share_task
from refshard_fs.targets.versioned import VersionedObject


class _File(NamedTuple):
    """A decompressed file.

    ``version`` is the version of the compressed file. If the target of that file reports no versions, ``version`` is a
    token that only one reader has, so that no other reader uses these bytes.
    """

    version: object
    data: bytes
    facts: Facts


_kept: LRU[str, _File] = LRU(MOST_DECOMPRESSED)  # decompressed files of the process, by URL
_turns = [fork_safe(threading.Lock()) for _ in range(4)]  # at most so many files are decompressed at a time


class DecompressedTarget(Target):
    """The decompressed bytes of ``file``, which is at ``url``, and at ``path`` in its own target."""

    most_retries = 0  # the target of the file tries again
    logs_requests = True  # the target of the file logs requests

    def __init__(self, file: VersionedObject, path: str, url: str) -> None:
        self.tells_versions = file.target.tells_versions
        self._file = file
        self._path = path
        self._url = url
        self._version: object = None  # the version of the file, if known
        self._reading: dict[str, asyncio.Task[_File]] = {}

    async def close(self) -> None:
        for task in self._reading.values():
            task.cancel()

    async def get_facts(self, path: str) -> Facts:
        return (await self._find()).facts

    async def get_current_facts(self, path: str) -> Facts:
        now = await self._file.target.get_current_facts(self._path)
        return Facts(len((await self._find()).data), now.etag, now.last_modified)

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        _, data, facts = await self._find()
        begin, end = clamp(start, stop, len(data))
        if stop is None:
            check_size(end - begin, most)
        return Answer(data[begin:end], facts)

    async def _find(self) -> _File:
        kept = _kept.get(self._url)
        if kept is not None and kept.version == self._version:
            return kept
        return await share_task(self._reading, "", self._confirm_or_read)

    async def _confirm_or_read(self) -> _File:
        try:
            kept = _kept.get(self._url)
            if kept is not None and isinstance(kept.version, Facts):  # another source has read it: is it still current?
                self._version = await self._file.get_facts(self._path)
                if kept.version == self._version:
                    return kept
            return await self._read_whole()
        finally:
            self._reading.clear()  # a task keeps its result in memory

    async def _read_whole(self) -> _File:
        try:
            answer = await self._file.read(self._path, 0, None, most=MOST_DECOMPRESSED)
        except TooLarge:
            raise make_size_error(self._url) from None
        _, etag, modified = msgspec.structs.astuple(answer.facts)
        self._version = object() if etag is None and modified is None else answer.facts
        data = await run_in_thread(lambda: self._decompress(answer.data))
        found = _File(self._version, data, Facts(len(data), etag, modified))
        _kept.put(self._url, found, len(data))
        return found

    def _decompress(self, data: bytes) -> bytes:
        with _turns[hash(self._url) % len(_turns)]:
            return decompress_file(data, self._url)

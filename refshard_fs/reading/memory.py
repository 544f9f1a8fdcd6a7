"""Limit the memory that reading a source takes, on all event loops of a process together.

``max_memory`` limits the sum of:

==================================  ==================================================================================
blocks under way, or fetched ahead  `Dispatch`, of each event loop; data fetched ahead up to `Budget.ahead`
bytes between ranges                a quarter, for each event loop, for a minute; dropped when a reader needs memory
windows, rest of small files        at most half, for each event loop, for a minute; dropped when needed, too
chunks of selections                `SelectionRead`: from the request until they are decoded
decoded chunks                      `source.DECODED`, at most an eighth; dropped first when a reader needs memory
bytes of several arrays             `Span.mixed`, at most half; dropped when a reader needs memory
==================================  ==================================================================================

The sum does not include results (the arrays that readers get, and a chunk in each thread that decodes), an answer while
it is divided into chunks, and these data, which have limits of their own:

==================================  ==================================================================================
chunks for reading again            ``block_cache=`` bytes a source; none by default
manifests and decoded indexes       `source.INDEXES`, a gibibyte a process; while files are scanned, 32 MiB
the head of a source, or all        `versioned.SMALL_FILE`, 4 MiB a source
inflated members of archives        `zip.MOST_INFLATED`, 128 MiB an event loop
files compressed as a whole         `compression.MOST_DECOMPRESSED`, 256 MiB a process
chunks that wait for ``cache_dir``  `chunk_cache.WAITING`, 32 MiB a process
versions of objects                 `versioned.MAX_VERSIONS`, 65,536 a source
ranges of pieces with metadata      `scanning.REMEMBERED`, 32 MiB a set that `concat` returned
open local files                    `local.OPEN_FILES` a process
places of ranges that readers got   `fetch.LAST_RANGES` an object, about 8 kB, of `fetch.FILES` objects an event loop
open pieces of a cube               ``cache_size=`` a source
==================================  ==================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.reading.plan import MIB


class Budget(msgspec.Struct, frozen=True):
    """The limits of reading: ``requests`` at a time to one host, and bytes of ``memory`` in all."""

    requests: int = 128
    memory: int = 256 * MIB

    @property
    def ahead(self) -> int:
        """The number of bytes in use at which fetching ahead stops; the rest of ``memory`` is kept for readers."""
        return self.memory * 3 // 4


class SharedMemory:
    """The memory of a source: ``memory`` bytes for all readers, on any event loops. Thread-safe.

    Each reader has a `Share`, which reserves memory before it reads. The content of ``caches`` counts, too, and is
    dropped when a reader needs memory.
    """

    def __init__(self, memory: int, caches: Sequence[LRU[Any, Any]] = ()) -> None:
        self.memory = memory
        self._caches = caches
        # Reentrant: the garbage collector may end a dropped read, which gives memory back, while the lock is held.
        self._lock = fork_safe(threading.RLock())
        self._shares: list[weakref.ref[Any]] = []  # a WeakSet takes three times as long
        self._refused: set[weakref.ref[Share]] = set()

    @property
    def used_bytes(self) -> int:
        """Bytes that are reserved, or kept in caches."""
        shares: int = sum(each.used for each in self._list_alive(self._shares))
        return shares + sum(cache.weight for cache in self._caches)

    def empty_caches(self) -> bool:
        """Clear the caches; return False if they were empty."""
        is_any = any(cache.weight for cache in self._caches)
        for cache in self._caches:
            cache.clear()
        return is_any

    def wake(self, share: Share) -> None:
        """Begin requests that were refused, on other loops than that of ``share``, since memory is free now."""
        with self._lock:  # waits for a loop that is being refused at this moment, so that it is in the list
            refused = list(self._refused)
            self._refused.clear()
        for each in self._list_alive(refused):
            if each is not share:
                with contextlib.suppress(RuntimeError):  # its loop was closed
                    each.loop.call_soon_threadsafe(each.pump)

    def _list_alive(self, among: Iterable[weakref.ref[Any]]) -> list[Any]:
        known = [ref() for ref in among]
        return [each for each in known if each is not None and not each.loop.is_closed()]


class Share:
    """The bytes of a `SharedMemory` that one reader on the running event loop has reserved.

    ``spare`` bytes are left to other readers. A reader without reserved bytes may always reserve some, so that no
    reader waits for one that has stopped. A share counts until its loop is closed or the share is garbage-collected.
    """

    def __init__(self, memory: SharedMemory, spare: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.used = 0  # bytes
        self.most = max(memory.memory - spare, memory.memory // 2)
        self._memory = memory
        with memory._lock:
            memory._shares = [weakref.ref(each) for each in (*memory._list_alive(memory._shares), self)]

    def count_active(self, host: str) -> int:
        """Return the number of this reader's requests to ``host`` that are under way."""
        return 0

    def count_request(self, host: str) -> None:
        """Count one more request to ``host``."""

    def pump(self) -> None:
        """Begin requests that were refused."""

    def lacks(self, size: int, most: int) -> bool:
        """Return whether ``size`` more bytes would exceed ``most``, and this reader has bytes to give back."""
        with self._memory._lock:
            return bool(self.used) and self._memory.used_bytes + size > most

    def take(self, sizes: Iterable[int]) -> int:
        """Reserve as many of the first ``sizes`` as there is room for; return their number."""
        taken = 0
        with self._memory._lock:
            used = self._memory.used_bytes
            for size in sizes:
                if used + size > self.most and self._memory.empty_caches():
                    used = self._memory.used_bytes
                if self.used and used + size > self.most:
                    break
                self.used += size
                used += size
                taken += 1
        return taken

    def give_back(self, size: int) -> None:
        """Give ``size`` bytes back."""
        with self._memory._lock:
            self.used -= size
        if self._memory._refused:
            self._memory.wake(self)


class SharedBudget(SharedMemory):
    """One `Budget` for all event loops that read a source: its memory, and its requests to each host.

    A loop calls `begin` before each request. A refused loop is woken when another loop gives memory back.
    """

    def __init__(self, budget: Budget, caches: Sequence[LRU[Any, Any]] = ()) -> None:
        super().__init__(budget.memory, caches)
        self.budget = budget

    def begin(self, share: Share, host: str, size: int, most: int) -> bool:
        """Count a request of ``size`` bytes to ``host``, and return True; or return False if it has to wait.

        The request has to wait if all shares would use more than ``most`` bytes, unless this share uses none; or if the
        host has too many requests, unless none of them is of this share.
        """
        with self._lock:
            is_over = size and share.used and self.used_bytes + size > most
            active = sum(each.count_active(host) for each in self._list_alive(self._shares))
            if is_over or (share.count_active(host) and active >= self.budget.requests):
                self._refused.add(weakref.ref(share))
                return False
            share.used += size
            share.count_request(host)
        return True

"""What the process remembers between reads: a least-recently-used store, bounded in bytes and safe in threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from refshard_fs.model import Quota

__all__ = ["Cache"]

_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


class Cache:
    """Values by key, the least recently used dropped first when their weights pass ``capacity`` bytes.

    A value heavier than the capacity is not kept. Values are shared: they must not be changed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, tuple[Any, int, Quota | None]] = OrderedDict()
        self._members: dict[str, OrderedDict[Hashable, None]] = {}  # keys by the name of their quota
        self._weight = 0
        _caches.add(self)

    @property
    def weight(self) -> int:
        """Bytes that the values weigh together."""
        return self._weight

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Hashable, default: Any = None) -> Any:
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return default
            self._items.move_to_end(key)
            if item[2] is not None:
                self._members[item[2].name].move_to_end(key)
            return item[0]

    def put(self, key: Hashable, value: Any, weight: int, quota: Quota | None = None) -> None:
        """Keep ``value``, ``weight`` bytes heavy, under ``key``; the least recently used of a full quota makes room."""
        with self._lock:
            self._drop(key)
            if weight > self.capacity:
                return
            self._items[key] = value, weight, quota
            self._weight += weight
            if quota is not None:
                members = self._members.setdefault(quota.name, OrderedDict())
                members[key] = None
                while len(members) > max(quota.most, 1):
                    self._drop(next(iter(members)))
            while self._weight > self.capacity:
                self._drop(next(iter(self._items)))

    def discard(self, key: Hashable) -> None:
        """Forget ``key``."""
        with self._lock:
            self._drop(key)

    def discard_where(self, is_stale: Callable[[Hashable], bool]) -> None:
        """Forget every key of which ``is_stale`` says so."""
        with self._lock:
            for key in [key for key in self._items if is_stale(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._members.clear()
            self._weight = 0

    def _drop(self, key: Hashable) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._weight -= item[1]
            if item[2] is not None:
                members = self._members[item[2].name]
                del members[key]
                if not members:
                    del self._members[item[2].name]


def _after_fork() -> None:
    for cache in list(_caches):  # another thread of the parent may have held the lock
        cache._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

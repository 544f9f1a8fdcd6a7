"""A thread-safe cache in memory, bounded by weight: the least recently used values are dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.model import Quota

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Values by key; the least recently used are dropped while the sum of weights exceeds ``capacity``.

    Weights are bytes; with the default weight 1, the capacity is a number of values. A value heavier than the capacity
    is not kept. Values are shared, so callers must not change them.

    >>> cache = LRU(2)
    >>> for key in "abc":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c"), cache.weight
    (None, 'C', 2)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.weight = 0  # sum of the weights of all values
        self._lock = fork_safe(threading.Lock())
        self._items: OrderedDict[K, tuple[V, int, Quota | None]] = OrderedDict()
        self._members: dict[str, OrderedDict[K, None]] = {}  # keys by the name of their quota

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, and mark it as used; None if the key has no value.

        While no value has a quota, and at most half of the capacity is used, nothing will be dropped soon: then the
        value is not marked.
        """
        if self.weight <= self.capacity // 2 and not self._members:
            return self.peek(key)
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            if item[2] is not None:
                self._members[item[2].name].move_to_end(key)
            return item[0]

    def peek(self, key: K) -> V | None:
        """Return the value of ``key`` without a lock and without marking it as used; None if the key has no value."""
        item = self._items.get(key)
        return None if item is None else item[0]

    def keys(self) -> list[K]:
        """Return the keys, the least recently used first."""
        with self._lock:
            return list(self._items)

    def put(self, key: K, value: V, weight: int = 1, quota: Quota | None = None) -> None:
        """Keep ``value`` under ``key``, unless ``weight`` exceeds the capacity; drop the least recently used values.

        If its ``quota`` is full, values of the quota are dropped first.
        """
        with self._lock:
            self._drop(key)
            if weight > self.capacity:
                return
            self._items[key] = value, weight, quota
            self.weight += weight
            if quota is not None:
                members = self._members.setdefault(quota.name, OrderedDict())
                members[key] = None
                while len(members) > max(quota.most, 1):
                    self._drop(next(iter(members)))
            while self.weight > self.capacity:
                self._drop(next(iter(self._items)))

    def discard(self, key: K) -> None:
        """Forget ``key``."""
        with self._lock:
            self._drop(key)

    def discard_where(self, is_stale: Callable[[K], bool]) -> None:
        """Forget the keys for which ``is_stale`` returns True."""
        with self._lock:
            for key in [key for key in self._items if is_stale(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._members.clear()
            self.weight = 0

    def _drop(self, key: K) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self.weight -= item[1]
            if item[2] is not None:
                members = self._members[item[2].name]
                del members[key]
                if not members:
                    del self._members[item[2].name]

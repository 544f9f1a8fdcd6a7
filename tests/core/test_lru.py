"""The cache in memory drops the least recently used values."""

from __future__ import annotations

from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Quota


def test_least_recently_used_value_is_dropped_first() -> None:
    cache: LRU[str, int] = LRU(3)
    for number, key in enumerate("abc"):
        cache.put(key, number)
    cache.get("a")
    cache.peek("b")
    cache.put("d", 3)
    assert cache.keys() == ["c", "a", "d"]


def test_weights_stay_within_the_capacity() -> None:
    cache: LRU[str, bytes] = LRU(10)
    for key, weight in [("a", 4), ("b", 4), ("b", 6), ("c", 11), ("d", 3)]:
        cache.put(key, bytes(weight), weight)
    assert (cache.keys(), cache.weight) == (["b", "d"], 9)


def test_full_quota_drops_only_its_own_values() -> None:
    cache: LRU[str, int] = LRU(10)
    quota = Quota("pages", 2)
    cache.put("x", 0)
    for number, key in enumerate("abc"):
        cache.put(key, number, 1, quota)
    assert cache.keys() == ["x", "b", "c"]
    cache.discard_where(lambda key: key == "b")
    cache.put("d", 4, 1, quota)
    assert cache.keys() == ["x", "c", "d"]
    cache.clear()
    assert (cache.keys(), cache.weight) == ([], 0)

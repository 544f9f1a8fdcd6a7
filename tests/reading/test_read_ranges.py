"""Tests of `refshard_fs.reading.read_ranges`."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.core.model import Facts
from refshard_fs.reading import read_ranges
from refshard_fs.reading.read_ranges import ReadRanges

URL = "https://host/a"
FACTS = Facts(100, "v1")
DATA = bytes(range(100))


def put(ranges: ReadRanges, *parts: tuple[int, int]) -> None:
    for start, stop in parts:
        ranges.put(URL, (), FACTS, start, DATA[start:stop])


@pytest.mark.parametrize(
    "parts", [[(10, 30), (30, 60)], [(30, 60), (10, 30)], [(10, 40), (20, 60)], [(10, 60), (20, 30)]]
)
def test_touching_ranges_are_joined(parts: list[tuple[int, int]]) -> None:
    ranges = ReadRanges(1000)
    put(ranges, *parts)
    assert ranges.find(URL, (), 10, 60) == (FACTS, DATA[10:60])
    assert ranges.find(URL, (), 9, 20) is None
    assert ranges.find(URL, (), 50, 61) is None


def test_range_ends_where_the_object_ends() -> None:
    ranges = ReadRanges(1000)
    put(ranges, (90, 100))
    assert ranges.find(URL, (), 95, 200) == (FACTS, DATA[95:])
    assert ranges.find(URL, (), 100, 200) is None
    assert ranges.find(URL, (), -10, 100) is None


def test_ranges_of_another_version_are_forgotten() -> None:
    ranges = ReadRanges(1000)
    put(ranges, (0, 10))
    ranges.put(URL, (), Facts(100, "v2"), 10, b"new")
    assert ranges.find(URL, (), 0, 10) is None
    assert ranges.find(URL, (), 10, 13) == (Facts(100, "v2"), b"new")


def test_ranges_by_another_origin_are_not_found() -> None:
    ranges = ReadRanges(1000)
    put(ranges, (0, 10))
    assert ranges.find(URL, ("host",), 0, 10) is None


def test_kept_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ranges, "MOST", 20)
    ranges = ReadRanges(30)
    put(ranges, (0, 21))
    assert ranges.find(URL, (), 0, 1) is None
    put(ranges, (0, 20))
    ranges.put("https://host/b", (), FACTS, 0, DATA[:20])
    assert ranges.find(URL, (), 0, 1) is None
    assert ranges.find("https://host/b", (), 0, 20) == (FACTS, DATA[:20])


def test_random_ranges_have_the_bytes_of_their_object() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        ranges, known = ReadRanges(1000), np.zeros(100, bool)
        for start, stop in np.sort(rng.integers(0, 101, (8, 2))).tolist():
            put(ranges, (start, stop))
            known[start:stop] = True
            first, last = sorted(rng.integers(0, 101, 2).tolist())
            is_kept = first < last and bool(known[first:last].all())
            assert ranges.find(URL, (), first, last) == ((FACTS, DATA[first:last]) if is_kept else None)


def test_absence_is_kept_until_the_object_has_ranges() -> None:
    ranges = ReadRanges(1000)
    put(ranges, (0, 10))
    ranges.put_absence(URL, ())
    assert ranges.is_absent(URL, ())
    assert not ranges.is_absent(URL, ("host",))
    assert ranges.find(URL, (), 0, 10) is None
    put(ranges, (0, 10))
    assert not ranges.is_absent(URL, ())
    assert ranges.find(URL, (), 0, 10) == (FACTS, DATA[:10])
    ranges.put_absence(URL, ())
    ranges.clear()
    assert not ranges.is_absent(URL, ())

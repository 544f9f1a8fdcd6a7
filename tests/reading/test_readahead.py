"""Simulate `ReadAhead` for patterns of reads, and count waits of the reader and unused chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.reading.readahead import ReadAhead

CHUNK = 100_000
MOST = 64 << 20
WINDOW = 5_000_000  # 20 ms at 250 MB/s


class Outcome(NamedTuple):
    waits: int
    """The number of ticks in which a chunk had not been fetched ahead."""
    overread: float
    """The number of fetched chunks for each read chunk."""


def simulate(*counts: int, numbers: Iterable[int], together: int = 10, most: int = MOST, chunk: int = CHUNK) -> Outcome:
    """Read ``numbers`` in order, ``together`` in each tick; chunks that are fetched ahead arrive by the next tick."""
    policy = ReadAhead(*counts)
    wanted = list(numbers)
    have: set[int] = set()
    fetched = waits = 0
    for first in range(0, len(wanted), together):
        tick = wanted[first : first + together]
        advice = policy.observe(tick, chunk, WINDOW, most)
        missing = [n for n in tick if n not in have]
        waits += bool(missing)
        have.difference_update(tick, advice.drop)
        assert have.isdisjoint(advice.fetch)
        have.update(advice.fetch)
        fetched += len(missing) + len(advice.fetch)
        assert len(have) * chunk <= most
    return Outcome(waits, fetched / len(wanted))


def box(counts: tuple[int, ...], *ranges: range) -> list[int]:
    numbers = [0]
    for count, part in zip(counts, ranges, strict=True):
        numbers = [n * count + i for n in numbers for i in part]
    return numbers


GRID = (64, 8)
CUBE = (8, 8, 8)
PATTERNS = [
    pytest.param((512,), range(512), 1, 1.0, id="whole"),
    pytest.param((512,), range(511, -1, -1), 1, 1.0, id="reversed"),
    pytest.param((512,), range(0, 512, 4), 1, 1.0, id="strided"),
    pytest.param((512,), range(256), 1, 1.2, id="first-half"),
    pytest.param((512,), range(256, 512), 1, 1.0, id="second-half"),
    pytest.param(GRID, box(GRID, range(64), range(3, 4)), 1, 1.0, id="column"),
    pytest.param(GRID, box(GRID, range(64), range(3, 5)), 3, 1.1, id="two-columns"),
    pytest.param(GRID, box(GRID, range(64), range(2, 6)), 3, 1.1, id="columns"),
    pytest.param((16, 32), box((16, 32), range(16), range(16)), 6, 1.12, id="half-rows"),
    pytest.param((16, 33), box((16, 33), range(16), range(0, 33, 4)), 3, 1.3, id="stride-that-wraps"),
    pytest.param(CUBE, box(CUBE, range(8), range(8), range(4)), 3, 1.1, id="slab-3d"),
    pytest.param(CUBE, box(CUBE, range(8), range(2, 6), range(2, 6)), 6, 1.25, id="box-3d"),
    pytest.param((512,), [i for s in range(496, -1, -16) for i in range(s, s + 16)], 3, 1.1, id="slabs-backwards"),
    pytest.param(GRID, [row * 8 + column for column in range(8) for row in range(64)], 3, 1.0, id="Fortran"),
    pytest.param((512,), [n for i in range(256) for n in (i, 256 + i)], 3, 1.1, id="interleaved"),
]


@pytest.mark.parametrize(("counts", "numbers", "waits", "overread"), PATTERNS)
def test_readahead_of_runs_has_few_waits_and_little_waste(
    counts: tuple[int, ...], numbers: list[int], waits: int, overread: float
) -> None:
    got = simulate(*counts, numbers=numbers)
    assert got.waits <= waits
    assert got.overread <= overread


@pytest.mark.parametrize(("counts", "numbers", "waits", "overread"), PATTERNS)
def test_loop_over_single_chunks_is_read_ahead(
    counts: tuple[int, ...], numbers: list[int], waits: int, overread: float
) -> None:
    got = simulate(*counts, numbers=numbers, together=1)
    assert got.waits <= 5 + waits
    assert got.overread <= overread


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("together", [1, 10, 128])
def test_random_reads_start_little_readahead(seed: int, together: int) -> None:
    chosen = random.Random(seed).sample(range(512), 26)
    assert simulate(512, numbers=chosen, together=together).overread <= 1.1
    assert simulate(512, numbers=sorted(chosen), together=together).overread <= 1.1


def test_dense_random_reads_start_little_readahead() -> None:
    got = [simulate(512, numbers=sorted(random.Random(seed).sample(range(512), 128))).overread for seed in range(40)]
    assert sum(got) / len(got) <= 1.1


@pytest.mark.parametrize("size", range(1, 8))
def test_few_chunks_read_together_start_no_readahead(size: int) -> None:
    assert ReadAhead(512).observe(range(size), CHUNK, WINDOW, MOST).fetch == []


def test_chunks_already_read_are_not_fetched_ahead() -> None:
    policy = ReadAhead(256)
    numbers = sorted(range(256), key=str, reverse=True)  # dask's threads read chunks in the order of their names
    read: set[int] = set()
    for number in numbers:
        read.add(number)
        assert read.isdisjoint(policy.observe([number], CHUNK, WINDOW, MOST).fetch)
    again = [n for number in range(40) for n in policy.observe([number], CHUNK, WINDOW, MOST).fetch]
    assert again  # a second pass over the array is read ahead, too


# Two orders in which two threads of dask read months: for one point in all months, and for the mean of each month.
POINT = [*range(9, 4, -1), *range(46, 38, -1), 4, *range(38, 26, -1), 3, *range(26, 19, -1), 2, *range(19, 9, -1), 1, 0]
MEANS = [
    14, 15, 12, 13, 11, 9, 8, 7, 10, *range(6, -1, -1), *range(23, 15, -1), 39, 38, 37, 36, 35, 33, 32, 31, 34,
    *range(30, 23, -1), 43, 42, 41, 40, 46, 45, 44,
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "waits"), [(POINT, 11), (MEANS, 19)], ids=["point", "means"])
def test_boxes_read_in_the_order_of_two_threads_are_read_ahead(numbers: list[int], waits: int) -> None:
    got = simulate(47, numbers=numbers, together=1, chunk=10 * CHUNK)
    assert got.waits <= waits
    assert got.overread <= 1.15


def test_chunks_read_nearly_in_order_are_read_ahead() -> None:
    """Several threads read chunks nearly in order; after a run in order, the next chunks may come in any order."""
    rng = random.Random(1)
    numbers = [*range(20), *sorted(range(20, 256), key=lambda n: n + rng.uniform(0, 2))]
    got = simulate(256, numbers=numbers, together=1)
    assert got.waits <= 30
    assert got.overread <= 1.1


@pytest.mark.parametrize("together", [1, 8])
def test_readahead_stays_in_a_plane_that_is_read_alone(together: int) -> None:
    got = simulate(2, 32, 8, 8, numbers=range(5 * 64, 6 * 64), together=together, chunk=CHUNK // 4)
    assert got.overread == 1.0
    assert got.waits <= 8


def test_planes_read_in_order_are_read_ahead() -> None:
    """After the reader has gone from one row or plane to the next one, further rows or planes are fetched ahead."""
    got = simulate(2, 32, 8, 8, numbers=range(2 * 32 * 64), together=1)
    assert got.waits <= 9
    assert got.overread == 1.0


@pytest.mark.parametrize("size", [8, 16])
def test_readahead_of_a_selection_is_at_most_thrice_its_size(size: int) -> None:
    policy = ReadAhead(10_000)  # for example planes of an image, of which only one may be read
    assert len(policy.observe(range(size), CHUNK, 1000 * CHUNK, 2000 * CHUNK).fetch) <= 3 * size


def test_unused_readahead_is_at_most_a_quarter() -> None:
    """If runs end early, chunks that were fetched beyond them count as unused until enough other chunks were read."""
    policy = ReadAhead(10_000)
    read, vain = 0, 0
    for start in range(0, 8000, 400):
        fetched = len(policy.observe(range(start, start + 20), CHUNK, WINDOW, MOST).fetch)
        elsewhere = random.Random(start).sample(range(8000, 10_000), 60)
        drops = [policy.observe([e], CHUNK, WINDOW, MOST).drop for e in elsewhere]
        read, vain = read + 80, vain + sum(map(len, drops))
        assert vain * CHUNK <= max(1 << 20, read * CHUNK // 4)
        assert fetched or vain * CHUNK > max(1 << 20, read * CHUNK // 4) - (1 << 20)
    assert vain > 80


def test_window_grows_with_read_bytes() -> None:
    policy = ReadAhead(1 << 20)
    ahead = 0
    for first in range(0, 1000, 10):
        ahead += len(policy.observe(range(first, first + 10), CHUNK, WINDOW, MOST, late=first > 0).fetch)
        unread = ahead - first
        assert unread * CHUNK <= max(1 << 20, (first + 10) * CHUNK // 4) + 10 * CHUNK
    assert unread > 200


def test_chunks_of_a_forgotten_run_are_not_dropped_later() -> None:
    policy = ReadAhead(512)
    assert policy.observe(range(10), CHUNK, WINDOW, MOST).fetch
    policy.forget()
    elsewhere = random.Random(0).sample(range(100, 512), 60)
    assert [n for e in elsewhere for n in policy.observe([e], CHUNK, WINDOW, MOST).drop] == []


@given(
    window=st.integers(0, 64 * CHUNK),
    most=st.integers(0, 64 * CHUNK),
    late=st.booleans(),
    reads=st.lists(
        st.one_of(
            st.lists(st.integers(0, 199), min_size=1, max_size=12),
            st.builds(lambda a, n, s: list(range(a, a + n * s, s)), st.integers(0, 99), st.integers(1, 12), st.just(1)),
        ),
        max_size=30,
    ),
)
def test_advice_fetches_chunks_once_and_drops_only_fetched_ones(
    window: int, most: int, late: bool, reads: list[list[int]]
) -> None:
    policy = ReadAhead(200)
    issued: set[int] = set()
    for tick in reads:
        advice = policy.observe(tick, CHUNK, window, most, late=late)
        issued.difference_update(tick)
        assert issued.issuperset(set(advice.drop) - set(tick))
        issued.difference_update(advice.drop)
        assert all(0 <= n < 200 for n in advice.fetch)
        assert len(set(advice.fetch)) == len(advice.fetch)
        assert issued.isdisjoint(advice.fetch)
        issued.update(advice.fetch)
        assert len(issued) * CHUNK <= most

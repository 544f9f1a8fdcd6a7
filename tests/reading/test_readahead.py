"""The read-ahead policy, simulated: how often a reader waits, and how much is fetched in vain, for each way to read."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.reading.readahead import ReadAhead, Run

CHUNK = 100_000
MOST = 64 << 20


def grid(*counts: int) -> ChunkGrid:
    return ChunkGrid(counts, ChunkKeyEncoding("v2", "."))


class Outcome(NamedTuple):
    waits: int
    """Ticks in which something had not been fetched ahead."""
    overread: float
    """Chunks fetched per chunk read."""


def simulate(
    counts: tuple[int, ...],
    numbers: Iterable[int],
    *,
    together: int = 10,
    growth: float = 5,
    most: int = MOST,
    known: bool = False,
) -> Outcome:
    """Read ``numbers`` in order, ``together`` in a tick, with what was advised at hand in the next one.

    ``known``: how many follow is.
    """
    policy = ReadAhead(grid(*counts))
    wanted = list(numbers)
    have: set[int] = set()
    fetched = waits = 0
    for first in range(0, len(wanted), together):
        tick = wanted[first : first + together]
        left = len(wanted) - first - len(tick)
        advice = policy.observe(tick, CHUNK, growth, most, 1, lambda left=left: left if known else None)
        missing = [n for n in tick if n not in have]
        waits += bool(missing)
        have.difference_update(tick, advice.drop)
        assert have.isdisjoint(advice.fetch)
        have.update(advice.fetch)
        fetched += len(missing) + len(advice.fetch)
        assert len(have) * CHUNK <= most
    return Outcome(waits, fetched / len(wanted))


def box(counts: tuple[int, ...], *ranges: range) -> list[int]:
    numbers = [0]
    for count, part in zip(counts, ranges, strict=True):
        numbers = [n * count + i for n in numbers for i in part]
    return numbers


GRID = (64, 8)
CUBE = (8, 8, 8)


@pytest.mark.parametrize(
    ("counts", "numbers", "waits", "overread"),
    [
        pytest.param((512,), range(512), 1, 1.0, id="whole"),
        pytest.param(GRID, range(512), 1, 1.0, id="whole-2d"),
        pytest.param(CUBE, range(512), 2, 1.0, id="whole-3d"),
        pytest.param((512,), range(511, -1, -1), 1, 1.0, id="reversed"),
        pytest.param((512,), range(0, 512, 4), 1, 1.0, id="strided"),
        pytest.param((512,), range(256), 1, 1.2, id="first-half"),
        pytest.param((512,), range(256, 512), 1, 1.0, id="second-half"),
        pytest.param(GRID, box(GRID, range(64), range(3, 4)), 2, 1.0, id="column"),
        pytest.param(GRID, box(GRID, range(64), range(3, 5)), 3, 1.1, id="two-columns"),
        pytest.param(GRID, box(GRID, range(64), range(2, 6)), 2, 1.1, id="columns"),
        pytest.param((16, 32), box((16, 32), range(16), range(16)), 2, 1.1, id="half-rows"),
        pytest.param((16, 33), box((16, 33), range(16), range(0, 33, 4)), 2, 1.1, id="stride-that-wraps"),
        pytest.param(CUBE, box(CUBE, range(8), range(8), range(4)), 2, 1.1, id="slab-3d"),
        pytest.param(CUBE, box(CUBE, range(8), range(2, 6), range(2, 6)), 4, 1.5, id="box-3d"),
        pytest.param((512,), [i for s in range(496, -1, -16) for i in range(s, s + 16)], 3, 1.1, id="slabs-backwards"),
    ],
)
def test_runs_are_read_ahead(counts: tuple[int, ...], numbers: list[int], waits: int, overread: float) -> None:
    got = simulate(counts, numbers)
    assert got.waits <= waits
    assert got.overread <= overread


@pytest.mark.parametrize(
    ("counts", "numbers", "waits", "overread"),
    [
        pytest.param((512,), range(512), 1, 1.0, id="whole"),
        pytest.param(GRID, range(512), 1, 1.0, id="whole-2d"),
        pytest.param(CUBE, range(512), 1, 1.0, id="whole-3d"),
        pytest.param((16, 32), range(512), 1, 1.0, id="whole-in-rows-of-many"),
        pytest.param((512,), range(511, -1, -1), 1, 1.0, id="reversed"),
        pytest.param((16, 32), range(511, -1, -1), 1, 1.0, id="reversed-2d"),
        pytest.param((512,), range(0, 512, 4), 1, 1.0, id="strided"),
        pytest.param((512,), range(7, 93), 1, 1.0, id="some"),
        pytest.param((512,), range(256), 1, 1.0, id="half"),
        pytest.param((512,), range(10), 1, 1.0, id="ten"),
        pytest.param(GRID, box(GRID, range(64), range(3, 4)), 1, 1.0, id="column"),
        pytest.param(GRID, box(GRID, range(20, 41), range(3, 4)), 1, 1.0, id="part-of-a-column"),
        pytest.param(GRID, box(GRID, range(64), range(3, 5)), 2, 1.0, id="two-columns"),
        pytest.param((16, 32), box((16, 32), range(3, 9), range(32)), 2, 1.0, id="rows"),
        pytest.param((7, 29), box((7, 29), range(2, 6), range(29)), 1, 1.0, id="rows-of-an-odd-length"),
        pytest.param((16, 32), box((16, 32), range(16), range(16)), 2, 1.1, id="half-rows"),
        pytest.param((16, 33), box((16, 33), range(16), range(0, 33, 4)), 2, 1.0, id="stride-that-wraps"),
        pytest.param(CUBE, box(CUBE, range(8), range(8), range(4)), 2, 1.0, id="slab-3d"),
        pytest.param(CUBE, box(CUBE, range(8), range(2, 6), range(2, 6)), 4, 1.3, id="box-3d"),
    ],
)
def test_what_is_known_to_follow_is_fetched_and_no_more(
    counts: tuple[int, ...], numbers: list[int], waits: int, overread: float
) -> None:
    got = simulate(counts, numbers, known=True)
    assert got.waits <= waits
    assert got.overread <= overread


def test_one_call_after_the_other_is_read_ahead() -> None:
    policy = ReadAhead(grid(512))
    assert policy.observe(range(8), CHUNK, 5, MOST, 1, lambda: 0).fetch == ()  # they were all
    assert policy.observe(range(8, 16), CHUNK, 5, MOST, 1, lambda: 0).fetch


def test_reads_that_are_known_to_follow_elsewhere_are_not_taken_for_the_rest_of_a_run() -> None:
    policy = ReadAhead(grid(512))
    fetched = policy.observe(range(10), CHUNK, 5, MOST, 1, lambda: 100).fetch
    assert fetched == tuple(range(10, 110))
    rng = random.Random(1)
    sizes = []
    for _ in range(5):
        policy.forget()
        start = rng.randrange(400)
        for number in rng.sample(range(512), 30):
            policy.observe([number], CHUNK, 5, MOST, 1, lambda: 100)
        sizes.append(len(policy.observe(range(start, start + 10), CHUNK, 5, MOST, 1, lambda: 100).fetch))
    assert sum(sizes) <= 200


@pytest.mark.parametrize(
    ("counts", "first", "fetched"),
    [
        pytest.param((512,), range(0, 40, 4), 40, id="strided"),
        pytest.param((63,), range(10), 53, id="line"),
        pytest.param((8, 71), range(10), 25 + 1, id="half-a-line"),
        pytest.param(GRID, range(3, 80, 8), 54, id="column"),
        pytest.param((72, 8), range(3, 80, 8), 40, id="longer-column"),
    ],
)
def test_a_few_more_are_fetched_where_the_end_is_near(counts: tuple[int, ...], first: range, fetched: int) -> None:
    assert len(ReadAhead(grid(*counts)).observe(first[:10], CHUNK, 4, MOST).fetch) == fetched


@pytest.mark.parametrize(
    ("step", "chunk", "fetched"),
    [(1, CHUNK, 54 + 1), (2, CHUNK, 118), (2, 4 * CHUNK, 54 + 1)],
)
def test_half_an_array_is_an_end_but_of_a_stride_of_few_bytes(step: int, chunk: int, fetched: int) -> None:
    policy = ReadAhead(grid(128 * step))
    assert len(policy.observe(range(0, 10 * step, step), chunk, 9, MOST).fetch) == fetched


@pytest.mark.parametrize("numbers", [range(512), range(511, -1, -1), range(0, 512, 2)])
def test_a_loop_over_single_chunks_is_read_ahead(numbers: range) -> None:
    got = simulate((512,), numbers, together=1)
    assert got.waits <= 6
    assert got.overread <= 1.05


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("together", [1, 10, 128])
def test_random_reads_are_left_alone(seed: int, together: int) -> None:
    chosen = random.Random(seed).sample(range(512), 26)
    assert simulate((512,), chosen, together=together).overread <= 1.1
    assert simulate((512,), sorted(chosen), together=together).overread <= 1.1


def test_dense_random_reads_are_left_alone_on_the_whole() -> None:
    got = [simulate((512,), sorted(random.Random(seed).sample(range(512), 128))).overread for seed in range(40)]
    assert sum(got) / len(got) <= 1.1


@pytest.mark.parametrize("size", range(1, 8))
def test_a_few_chunks_read_together_are_all_there_is(size: int) -> None:
    assert ReadAhead(grid(512)).observe(range(size), CHUNK, 5, MOST).fetch == ()


def test_what_was_read_out_of_order_is_not_fetched_again() -> None:
    policy = ReadAhead(grid(256))
    numbers = sorted(range(256), key=str, reverse=True)  # as dask's threads come to them: by their names
    read: set[int] = set()
    for number in numbers:
        read.add(number)
        assert read.isdisjoint(policy.observe([number], CHUNK, 5, MOST).fetch)
    again = [n for number in range(40) for n in policy.observe([number], CHUNK, 5, MOST).fetch]
    assert again  # another pass is read ahead of like the first


def test_interleaved_runs_are_told_apart() -> None:
    numbers = [n for pair in zip(range(256), range(256, 512), strict=True) for n in pair]
    got = simulate((512,), numbers, together=2)
    assert got.waits <= 10
    assert got.overread <= 1.2


def test_a_left_run_is_dropped_and_trusted_less_the_next_time() -> None:
    policy = ReadAhead(grid(10_000))
    sizes = []
    for start in (0, 2000, 4000, 6000):
        sizes.append(len(policy.observe(range(start, start + 10), CHUNK, 5, MOST).fetch))
        elsewhere = random.Random(start).sample(range(8000, 10_000), 60)
        dropped = [n for e in elsewhere for n in policy.observe([e], CHUNK, 5, MOST).drop]
        assert set(range(start + 10, start + 10 + sizes[-1])) <= set(dropped)
    assert sizes[0] > sizes[-1]


def test_a_wrong_guess_takes_no_trust_from_what_is_known_to_follow() -> None:
    policy, most = ReadAhead(grid(100, 10)), 100 * CHUNK
    column = box((100, 10), range(100), range(1))
    for first in range(3):  # the fourth is guessed, in vain
        for tick in range(0, 100, 10):
            policy.observe([first + n for n in column[tick : tick + 10]], CHUNK, 5, most, 1, lambda t=tick: 90 - t)
    for first in (7, 5):
        begun = [first + n for n in column]
        assert policy.observe(begun[:10], CHUNK, 5, most, 1, lambda: 90).fetch == tuple(begun[10:])
        for tick in range(10, 100, 10):
            policy.observe(begun[tick : tick + 10], CHUNK, 5, most, 1, lambda t=tick: 90 - t)


def test_columns_that_were_begun_long_ago_are_no_part_of_a_run() -> None:
    policy, have = ReadAhead(grid(100, 10)), set[int]()
    for first in (0, 1, 1, 6, 2, 5, 4, 3, 0, 9):
        column = [10 * row + first for row in range(100)]
        for left in range(100, 0, -10):
            some = column[100 - left :][:10]
            assert left == 100 or have.issuperset(some)
            advice = policy.observe(some, CHUNK, 5, 200 * CHUNK, 1, lambda left=left: left - 10)
            have.difference_update(some, advice.drop)
            have.update(advice.fetch)


def test_what_was_known_to_follow_and_did_not_is_trusted_less_the_next_time() -> None:
    policy = ReadAhead(grid(10_000))
    sizes = []
    for start in (0, 2000, 4000, 6000):
        sizes.append(len(policy.observe(range(start, start + 10), CHUNK, 5, MOST, 1, lambda: 60).fetch))
        elsewhere = random.Random(start).sample(range(8000, 10_000), 60)
        for left, number in enumerate(reversed(elsewhere)):
            policy.observe([number], CHUNK, 5, MOST, 1, lambda left=left: 59 - left)
    assert sizes[0] == 60
    assert max(sizes[1:]) <= 30


def test_nothing_is_expected_after_giving_up() -> None:
    policy = ReadAhead(grid(512))
    fetched = policy.observe(range(10), CHUNK, 5, MOST).fetch
    assert policy.forget() == fetched
    assert policy.observe([10], CHUNK, 5, MOST).hits == ()


@given(
    growth=st.floats(0, 8),
    most=st.integers(0, 64 * CHUNK),
    queued=st.one_of(st.none(), st.integers(0, 50)),
    reads=st.lists(
        st.one_of(
            st.lists(st.integers(0, 199), min_size=1, max_size=12),
            st.builds(lambda a, n, s: list(range(a, a + n * s, s)), st.integers(0, 99), st.integers(1, 12), st.just(1)),
        ),
        max_size=30,
    ),
)
def test_advice_is_consistent_whatever_is_read(
    growth: float, most: int, queued: int | None, reads: list[list[int]]
) -> None:
    policy = ReadAhead(grid(10, 20))
    issued: set[int] = set()
    for tick in reads:
        advice = policy.observe(tick, CHUNK, growth, most, 1, lambda: queued)
        assert issued.issuperset(advice.hits)
        issued.difference_update(advice.hits)
        assert issued.issuperset(advice.drop)
        issued.difference_update(advice.drop)
        assert all(0 <= n < 200 for n in advice.fetch)
        assert len(set(advice.fetch)) == len(advice.fetch)
        assert issued.isdisjoint(advice.fetch)
        issued.update(advice.fetch)


def sharded(*counts: int, shards: tuple[int, ...]) -> ReadAhead:
    return ReadAhead(ChunkGrid(counts, ChunkKeyEncoding("v2", "."), shards))


def test_one_line_of_a_shard_fetches_none_of_the_next() -> None:
    advice = sharded(100, 10, shards=(10, 10)).observe(range(10), CHUNK, 1.0, MOST)
    assert set(advice.fetch) <= {10}


@pytest.mark.parametrize("growth", [0.0, 1.5, 5.0])
def test_the_second_line_of_a_shard_fetches_the_rest_of_it_and_no_more(growth: float) -> None:
    policy = sharded(100, 10, shards=(10, 10))
    first = policy.observe(range(200, 210), CHUNK, growth, MOST)
    second = policy.observe(range(210, 214), CHUNK, growth, MOST)
    assert set(first.fetch) | set(second.fetch) | {*range(210, 214)} == {*range(210, 300)}


def test_where_the_next_line_and_the_next_shard_are_as_likely_nothing_is_fetched_until_it_shows() -> None:
    for numbers in ([row * 100 + column for row in range(10) for column in range(10)], range(100)):
        policy = sharded(10, 100, shards=(10, 10))
        assert policy.observe(numbers[:10], CHUNK, 5, MOST, 1, lambda: 90).fetch == ()
        fetched = policy.observe(numbers[10:20], CHUNK, 5, MOST, 1, lambda: 80).fetch
        assert len(fetched) >= 30
        assert fetched == tuple(numbers[20 : 20 + len(fetched)])


def test_a_box_as_wide_as_its_shard_is_followed_to_the_end_of_the_shard() -> None:
    policy = sharded(100, 40, shards=(10, 10))
    rows = [[row * 40 + column for column in range(20, 30)] for row in range(30, 40)]
    fetched: set[int] = set()
    for row in rows[:4]:
        fetched |= set(policy.observe(row, CHUNK, 1.0, MOST).fetch)
    assert fetched >= {n for row in rows[4:] for n in row}
    assert max(fetched) < 40 * 40


def test_shards_of_more_dimensions_are_read_ahead_plane_by_plane() -> None:
    policy = sharded(8, 8, 8, shards=(4, 4, 8))
    policy.observe(range(8), CHUNK, 1.0, MOST)
    advice = policy.observe(range(8, 16), CHUNK, 1.0, MOST)
    assert max(advice.fetch) < 32  # where the shards that this plane lies in end
    assert len(advice.fetch) == 16


def test_what_is_fetched_of_a_shard_stays_within_what_may_be() -> None:
    policy = sharded(100, 10, shards=(10, 10))
    policy.observe(range(10), CHUNK, 1.0, 20 * CHUNK)
    assert len(policy.observe(range(10, 14), CHUNK, 1.0, 20 * CHUNK).fetch) <= 20


def test_a_column_that_has_entered_a_further_shard_does_not_stop_at_half_of_the_array() -> None:
    policy = sharded(100, 10, shards=(10, 10))
    assert policy.observe(range(2, 100, 10), CHUNK, 5.0, MOST).fetch == ()
    assert policy.observe(range(102, 200, 10), CHUNK, 5.0, MOST).fetch == tuple(range(202, 1000, 10))


def test_whole_shards_are_read_ahead_to_half_of_the_array() -> None:
    policy = sharded(100, 10, shards=(10, 10))
    fetched = (
        policy.observe(range(100), CHUNK, 5.0, MOST).fetch + policy.observe(range(100, 300), CHUNK, 5.0, MOST).fetch
    )
    assert 300 <= max(fetched) < 600


def test_two_columns_are_no_sign_of_a_third_and_three_are_of_all_others() -> None:
    policy = sharded(100, 10, shards=(10, 10))

    def first_ten_of(column: int) -> tuple[int, ...]:
        return policy.observe(range(column, 100, 10), CHUNK, 5.0, 10 * MOST).fetch

    def others_of(column: int) -> None:
        for first in range(100, 1000, 100):
            policy.observe(range(first + column, first + 100, 10), CHUNK, 5.0, 10 * MOST)

    assert first_ten_of(0) == ()
    others_of(0)
    assert first_ten_of(1) == tuple(range(101, 1000, 10))
    others_of(1)
    assert set(first_ten_of(2)) == {n for n in range(1000) if n % 10 >= 2} - set(range(2, 100, 10))


@pytest.mark.parametrize("step", [1, 3])
def test_columns_go_over_no_chunk_twice(step: int) -> None:
    run = Run(0, 10, doubt=0)
    for number in range(30, 1000, 10):
        run.take(number)
    run.branch(step)
    for number in range(step + 10, 1000, 10):
        run.take(number)
    assert list(run.ahead(1000)) == [column + row for column in range(2 * step, 10, step) for row in range(0, 1000, 10)]

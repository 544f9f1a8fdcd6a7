"""Planned requests contain each range once, fetch no byte twice, and respect the limits."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.model import Entry, Inline, Packed, Span
from refshard_fs.errors import ReferenceNotReachable
from refshard_fs.reading.plan import (
    KIB,
    MIB,
    PARTS,
    Limits,
    ReadPlan,
    Request,
    coalesce,
    plan_read,
    plan_requests,
    split_block,
)

RANGES = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 300)).map(lambda p: (p[0], p[0] + p[1])), max_size=60)
LIMITS = st.builds(Limits, gap=st.integers(-1, 200), block=st.integers(1, 1000))


@given(ranges=RANGES, limits=LIMITS)
def test_every_range_is_served_once_by_a_block_that_holds_it(ranges: list[tuple[int, int]], limits: Limits) -> None:
    blocks = coalesce(ranges, limits)
    assert sorted(i for block in blocks for i in block.members) == list(range(len(ranges)))
    for block in blocks:
        assert all(block.start <= ranges[i][0] and ranges[i][1] <= block.stop for i in block.members)
        assert block.start == min(ranges[i][0] for i in block.members)
        assert block.stop == max(ranges[i][1] for i in block.members)


@given(ranges=RANGES, limits=LIMITS)
def test_no_byte_is_fetched_twice(ranges: list[tuple[int, int]], limits: Limits) -> None:
    blocks = coalesce(ranges, limits)
    assert all(a.stop <= b.start for a, b in pairwise(blocks))


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(-1, [(0, 10), (10, 20), (30, 40)]), (0, [(0, 20), (30, 40)]), (9, [(0, 20), (30, 40)]), (10, [(0, 40)])],
)
def test_gaps_up_to_the_limit_are_merged(gap: int, expected: list[tuple[int, int]]) -> None:
    blocks = coalesce([(30, 40), (10, 20), (0, 10)], Limits(gap, 100))
    assert [(b.start, b.stop) for b in blocks] == expected


def test_blocks_stay_below_their_size_unless_ranges_overlap() -> None:
    apart = coalesce([(i * 100, i * 100 + 100) for i in range(8)], Limits(0, 250))
    assert {b.stop - b.start for b in apart} == {200}
    overlapping = coalesce([(i * 100, i * 100 + 101) for i in range(8)], Limits(0, 250))
    assert len(overlapping) == 1


@pytest.mark.parametrize(("count", "expected"), [(10, [1000]), (12, [1200]), (13, [1000, 300]), (22, [1000, 1200])])
def test_short_rest_of_a_run_is_read_with_the_last_block(count: int, expected: list[int]) -> None:
    """A month of daily chunks is often a little longer than a block."""
    run = [(n * 100, n * 100 + 100) for n in range(count)]
    blocks = coalesce(run, Limits(0, 1000))
    assert [block.stop - block.start for block in blocks] == expected
    assert [member for block in blocks for member in block.members] == [*range(count)]
    apart = coalesce([*run, (count * 100 + 1, count * 100 + 2)], Limits(0, 1000))
    assert len(apart) == len(blocks) + 1, "a range behind a gap is not merged"


@given(start=st.integers(0, 1000), size=st.integers(1, 64 * MIB), block=st.integers(1, 8 * MIB))
def test_parts_of_a_split_block_cover_it_in_order(start: int, size: int, block: int) -> None:
    cut = split_block(start, start + size, Limits(0, block))
    assert cut[0][0] == start
    assert cut[-1][1] == start + size
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    lengths = [b - a for a, b in cut]
    assert max(lengths) <= max(block, MIB) * 3 / 2 + 1
    assert len(cut) == 1 or min(lengths) >= max(block, MIB) * 2 // 3  # also if the limits forbid merging


def test_large_range_becomes_parts_of_about_a_block() -> None:
    for size, count in ((MIB * 3 // 2 - 9, 1), (MIB * 3 // 2 + 9, 2), (4 * MIB, 4), (10 * MIB + 7, 10)):
        lengths = [b - a for a, b in split_block(0, size, Limits(16 * KIB, MIB))]
        assert len(lengths) == count
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.case(id="P26")
def test_huge_range_has_a_bounded_number_of_parts() -> None:
    cut = split_block(5, 2**63, Limits(16 * KIB, MIB))
    assert (cut[0][0], cut[-1][1], len(cut)) == (5, 2**63, PARTS)


def test_plan_names_the_keys_of_each_request() -> None:
    wanted: list[tuple[str, int, int | None]] = [
        ("b", 100, 200),
        ("a", 0, 100),
        ("far", 5000, 5001),
        ("whole", 0, None),
    ]
    planned = plan_requests("u", wanted, Limits(0, 1000))
    assert {(p.start, p.stop, frozenset(p.keys)) for p in planned} == {
        (0, None, frozenset({"whole"})),
        (0, 200, frozenset({"a", "b"})),
        (5000, 5001, frozenset({"far"})),
    }


def test_dense_ranges_are_merged_over_larger_gaps() -> None:
    limits = Limits(gap=16, block=1000).dense
    rows = [(n * 100, n * 100 + 100) for n in (0, 2, 8, 10, 32, 34, 40, 42, 80, 82)]
    assert [(b.start, b.stop) for b in coalesce(rows, Limits(gap=16, block=1000))] == rows
    near = [(0, 1100), (3200, 4300), (8000, 8300)]
    assert [(b.start, b.stop) for b in coalesce(rows, limits)] == near  # over gaps of at most 512 bytes
    sparse = [(0, 10), (400, 410), (800, 810)]
    assert [b.members for b in coalesce(sparse, limits)] == [(0,), (1,), (2,)]  # less than a third is needed
    tiny = [(0, 1), (10, 11), (20, 21)]
    assert len(coalesce(tiny, limits)) == 1  # ranges are always merged over small gaps
    assert [b.members for b in coalesce(rows, Limits(gap=-1).dense)] == [(i,) for i in range(10)]


@pytest.mark.parametrize("count", [100, 600])
def test_dense_ranges_are_each_served_once(count: int) -> None:
    ranges = [((i * 7919 % count) * 150, (i * 7919 % count) * 150 + 100) for i in range(count)]
    blocks = coalesce(ranges, Limits(gap=16, block=1000).dense)
    assert sorted(i for b in blocks for i in b.members) == list(range(count))
    assert all(b.start <= ranges[i][0] and ranges[i][1] <= b.stop for b in blocks for i in b.members)
    assert max(b.stop - b.start for b in blocks) <= 16000


def test_separate_ranges_are_merged_if_adjacent_or_overlapping() -> None:
    ranges = [(0, 10), (10, 20), (21, 30), (25, 40)]
    assert [(b.start, b.stop) for b in coalesce(ranges, Limits().apart)] == [(0, 20), (21, 40)]
    assert [(b.start, b.stop) for b in coalesce(ranges, Limits(gap=-1).apart)] == [(0, 10), (10, 20), (21, 40)]


class Reversed(msgspec.Struct, frozen=True):
    """A recipe that reverses its input."""

    def make(self, raw: bytes) -> bytes:
        if raw == b"damaged":
            raise ValueError("it is damaged")
        return raw[::-1]


URL = "https://host.example/x"
PART = Span(URL, 0, 4)
ABSENT_PART = Span(URL + "y", 0, 4, optional=True)
WINDOWS = [(None, None), (0, 0), (2, 5), (-3, None), (None, -2), (3, None), (7, 2), (90, 99)]


@pytest.mark.parametrize(("start", "end"), WINDOWS)
@pytest.mark.parametrize(
    "entry",
    [
        Span(URL, 10, 18),
        Inline(b"abcdefgh"),
        Packed(Span(URL, 10, 18), Reversed(), made=8),
        Packed(PART, Reversed(), made=8, parts=(Span(URL, 10, 14), Inline(b"xyz"), Span(URL, 40, 41))),
    ],
)
def test_assembled_bytes_equal_slices(entry: Entry, start: int | None, end: int | None) -> None:
    def read(start: int | None, end: int | None) -> bytes:
        plan = plan_read(Request("k", start, end), entry, None)
        assert plan is not None
        return plan.assemble([bytes(range(span.start, span.stop or 0)) for span in plan.window.spans])

    assert read(start, end) == read(None, None)[start:end]


@pytest.mark.parametrize(
    ("start", "end", "is_sized"), [(2, 5, False), (-3, None, False), (-3, -1, True), (2, -1, True)]
)
def test_size_is_requested_only_for_a_negative_end(start: int, end: int | None, is_sized: bool) -> None:
    assert (plan_read(Request("k", start, end), Span(URL), None) is None) is is_sized


@pytest.mark.parametrize(
    ("entry", "part", "error"),
    [
        (ABSENT_PART, FileNotFoundError("y"), FileNotFoundError),
        (PART, FileNotFoundError("x"), ReferenceNotReachable),
        (PART, OSError("reset"), ReferenceNotReachable),
        (PART, asyncio.CancelledError(), asyncio.CancelledError),
        (Packed(ABSENT_PART, Reversed()), FileNotFoundError("y"), FileNotFoundError),
        (Packed(ABSENT_PART, Reversed()), OSError("reset"), ReferenceNotReachable),
        (Packed(PART, Reversed()), FileNotFoundError("x"), ReferenceNotReachable),
        (Packed(PART, Reversed()), b"damaged", ReferenceNotReachable),
    ],
)
def test_failed_plan_raises_an_error_with_its_key(
    entry: Entry, part: bytes | BaseException, error: type[BaseException]
) -> None:
    plan = plan_read(Request("some/key"), entry, None)
    assert plan is not None
    with pytest.raises(error, match=None if error is asyncio.CancelledError else "some/key") as caught:
        plan.assemble([part])
    assert type(caught.value) is error


@pytest.mark.parametrize("part", [FileNotFoundError("y"), OSError("reset")])
def test_failed_plan_without_a_key_raises_the_error_unchanged(part: Exception) -> None:
    with pytest.raises(type(part), match=str(part)) as caught:
        ReadPlan(None, PART).assemble([part])
    assert caught.value is part
    assert caught.value.__cause__ is None

"""Buffers that are used again: never while they are in use, never more than a bound."""

from __future__ import annotations

import gc
import weakref

import pytest

from refshard_fs.targets.buffers import KEPT, LARGE, SHARE, SLAB, Buffers


def test_a_buffer_that_was_given_back_is_taken_again_and_by_one_only() -> None:
    buffers = Buffers()
    first = buffers.take(LARGE)
    own = first.obj
    assert buffers.take(LARGE).obj is not own
    buffers.give(first)
    assert buffers.take(LARGE - 5).obj is own
    assert buffers.take(LARGE - 5).obj is not own


def test_a_buffer_is_as_long_as_was_asked_for_and_not_much_larger() -> None:
    buffers = Buffers()
    buffers.give(buffers.take(4 * LARGE))
    assert len(buffers.take(LARGE)) == LARGE
    assert len(buffers.take(3 * LARGE)) == 3 * LARGE
    assert len(buffers.take(0)) == 0


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, 1_000_000, SHARE, SHARE + 1, 3 * SLAB])
def test_buffers_in_use_share_no_bytes(size: int) -> None:
    buffers = Buffers()
    taken = [buffers.take(size) for _ in range(12)]
    for number, buffer in enumerate(taken):
        buffer[:] = bytes([number]) * size
    assert [set(buffer) for buffer in taken] == [{number} for number in range(12)]


def test_what_is_kept_is_bounded_and_what_is_none_of_ours_is_not_kept() -> None:
    buffers = Buffers()
    for taken in [buffers.take(1 << 20) for _ in range(100)]:
        buffers.give(taken)
    for other in (b"x" * LARGE, memoryview(b"x" * LARGE), memoryview(bytearray(LARGE)), None):
        buffers.give(other)
    assert sum(map(len, buffers._free)) == KEPT
    buffers.clear()
    assert not buffers._free


def test_buffers_of_a_size_that_nobody_asks_for_any_more_make_room() -> None:
    buffers = Buffers()
    for taken in [buffers.take(LARGE) for _ in range(KEPT // LARGE)]:
        buffers.give(taken)
    large = buffers.take(4 * LARGE)
    own = large.obj
    buffers.give(large)
    assert buffers.take(4 * LARGE).obj is own
    assert sum(map(len, buffers._free)) <= KEPT


def test_memory_goes_back_when_nothing_of_it_is_used_or_kept() -> None:
    buffers = Buffers()
    taken = [buffers.take(1 << 20) for _ in range(SLAB // (1 << 20))]
    slab = weakref.ref(taken[0].obj.base)  # type: ignore[attr-defined]  # an array of numpy's
    for buffer in taken[1:]:
        buffers.give(buffer)
    buffers.clear()
    gc.collect()
    assert slab() is not None
    del taken, buffer
    gc.collect()
    assert slab() is None

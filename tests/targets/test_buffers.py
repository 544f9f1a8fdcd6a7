"""Buffers that are used again: never while they are in use, never more than a bound."""

from __future__ import annotations

from refshard_fs.targets.buffers import KEPT, LARGE, Buffers


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


def test_what_is_kept_is_bounded_and_what_is_none_of_ours_is_not_kept() -> None:
    buffers = Buffers()
    for taken in [buffers.take(1 << 20) for _ in range(40)]:
        buffers.give(taken)
    for other in (b"x" * LARGE, memoryview(b"x" * LARGE), None, buffers.take(LARGE - 1)):
        buffers.give(other)
    assert sum(map(len, buffers._free)) == KEPT
    buffers.clear()
    assert not buffers._free

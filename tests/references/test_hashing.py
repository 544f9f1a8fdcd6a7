"""Hashes of many pieces are those of each, and equal pieces are told from those that only hash alike."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refshard_fs.core.swar import PAD, Positions, groups_of, hash_of, hashes, join_pieces

pieces = st.lists(st.one_of(st.binary(max_size=30), st.binary(min_size=500, max_size=530)), max_size=80)


def in_a_row(found: list[bytes]) -> tuple[bytes, Positions, Positions]:
    stops = len(PAD) + np.cumsum(np.fromiter(map(len, found), np.int64, len(found)))
    return b"".join((PAD, *found, PAD)), stops - [len(piece) for piece in found], stops


@settings(deadline=None)
@given(pieces)
@example([b"x" * 512, b"x" * 513, b"", b"x" * 8])
def test_a_hash_is_the_same_in_a_text_and_alone(found: list[bytes]) -> None:
    text, starts, stops = in_a_row(found)
    assert hashes(text, starts, stops, 7).tolist() == [hash_of(piece, 7) for piece in found]
    assert len(set(map(hash_of, found))) == len(set(found))


def test_the_seed_decides_which_pieces_hash_alike() -> None:
    assert hash_of(b"a", 1) != hash_of(b"a", 2)
    zeros = [bytes(n) for n in range(100)]
    assert len(set(map(hash_of, zeros))) == 100


@settings(deadline=None)
@given(pieces)
@example([b"a" * 20] * 70)
@example([b"a" * n for n in range(15, 20)] * 20)
def test_joined_pieces_lie_one_after_the_other(found: list[bytes]) -> None:
    text, starts, stops = in_a_row(found)
    assert join_pieces(text, starts, stops) == b"".join(found)


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=2), st.sampled_from([b"x" * 600, b"x" * 599 + b"y"])), max_size=60))
def test_equal_pieces_are_in_one_group_also_where_others_have_the_same_hash(found: list[bytes]) -> None:
    text, starts, stops = in_a_row(found)
    order = list(dict.fromkeys(found))
    for hashed in (hashes(text, starts, stops), np.zeros(len(found), np.uint64)):
        groups = groups_of(text, starts, stops, hashed)
        assert groups.firsts.tolist() == [found.index(piece) for piece in order]
        assert groups.groups.tolist() == [order.index(piece) for piece in found]

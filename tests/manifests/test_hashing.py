"""Hashes of many pieces are those of each, and equal pieces are told from those that only hash alike."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refshard_fs.core.swar import PAD, Positions, alike, gathered, grouped, hash_of, hashes

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
def test_gathered_pieces_lie_one_after_the_other(found: list[bytes]) -> None:
    text, starts, stops = in_a_row(found)
    assert gathered(text, starts, stops) == b"".join(found)


@settings(deadline=None)
@given(pieces, st.data())
def test_pieces_are_alike_where_their_bytes_are(found: list[bytes], data: st.DataObject) -> None:
    changed = [
        piece[:-1] + bytes([piece[-1] ^ 1]) if piece and data.draw(st.booleans(), label="change") else piece
        for piece in found
    ]
    text, starts, stops = in_a_row(found)
    other, others, _ = in_a_row(changed)
    equal = alike(text, starts, other, others, stops - starts)
    assert equal.tolist() == [a == b for a, b in zip(found, changed, strict=True)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_groups_are_numbered_as_their_first_members_come(values: list[int]) -> None:
    groups = grouped(np.array([value << 60 | 5 for value in values], np.uint64))
    order = list(dict.fromkeys(values))
    assert groups.firsts.tolist() == [values.index(value) for value in order]
    assert groups.groups.tolist() == [order.index(value) for value in values]

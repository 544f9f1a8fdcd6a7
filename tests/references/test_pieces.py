"""Functions for many pieces of one text give the same results as loops over the pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from refshard_fs.references.pieces import (
    HASHED,
    PAD,
    Positions,
    compute_hash,
    compute_hashes,
    find_distinct,
    find_runs,
    join_pieces,
    parse_numbers_before,
)

pieces = st.lists(st.one_of(st.binary(max_size=30), st.binary(min_size=500, max_size=530)), max_size=80)


def join_with_positions(found: list[bytes]) -> tuple[bytes, Positions, Positions]:
    stops = np.cumsum(np.fromiter(map(len, found), np.int64, len(found)))
    return b"".join((*found, PAD)), stops - [len(piece) for piece in found], stops


@given(pieces)
@example([b"x" * HASHED, b"x" * (HASHED - 1), b"", b"x" * 8])
def test_hashes_of_many_pieces_equal_hashes_of_single_pieces(found: list[bytes]) -> None:
    text, starts, stops = join_with_positions(found)
    assert compute_hashes(text, starts, stops, 7).tolist() == [compute_hash(piece, 7) for piece in found]
    assert len(set(map(compute_hash, found))) == len(set(found))


def test_hash_depends_on_the_seed() -> None:
    assert compute_hash(b"a", 1) != compute_hash(b"a", 2)
    zeros = [bytes(n) for n in range(100)]
    assert len(set(map(compute_hash, zeros))) == 100


@given(pieces)
@example([b"a" * 20] * 70)
@example([b"a" * n for n in range(15, 20)] * 20)
def test_join_pieces_equals_joining_single_pieces(found: list[bytes]) -> None:
    text, starts, stops = join_with_positions(found)
    assert join_pieces(text, starts, stops) == b"".join(found)


@given(
    st.lists(st.one_of(st.binary(max_size=2), st.sampled_from([b"x" * 60, b"x" * 59 + b"y", b"x" * 600])), max_size=60)
)
def test_runs_and_distinct_pieces_are_found(found: list[bytes]) -> None:
    text, starts, stops = join_with_positions(found)
    expected = [i for i, piece in enumerate(found) if not i or found[i - 1] != piece]
    begun = find_runs(text, starts, stops).tolist()
    assert begun == expected
    is_first, numbers = find_distinct(text, starts, stops)
    different = list(dict.fromkeys(found))
    assert [piece for piece, first in zip(found, is_first.tolist(), strict=True) if first] == different
    assert [different[number] for number in numbers.tolist()] == found


@given(st.lists(st.one_of(st.integers(0, 99), st.integers(0, 10**15 - 1)), min_size=1, max_size=60))
def test_parse_numbers_before_parses_canonical_numbers_only(found: list[int]) -> None:
    text, _, stops = join_with_positions([b"x%d" % number for number in found])
    numbers = parse_numbers_before(text, stops)
    assert numbers is not None
    assert numbers.values.tolist() == found
    assert numbers.digits.tolist() == [len(str(number)) for number in found]
    for wrong in (b"x", b"00", b"01", b"x1.", b"1" * 16, b"0" * 16 + b"1"):
        text, _, stops = join_with_positions([b"x1", b"x" + wrong, b"x2"])
        assert parse_numbers_before(text, stops) is None

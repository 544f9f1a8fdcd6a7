"""Selections of numpy and zarr touch exactly the chunks that hold a selected element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from refshard_fs.core.selection import Mode, select_chunk_numbers

SHAPE, CHUNKS = (10, 7, 5), (3, 7, 2)


def touched(selection: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[int]:
    """Return the chunks of the elements that numpy selects."""
    counts = [-(-s // c) for s, c in zip(shape, chunks, strict=True)]
    coords = np.meshgrid(*[np.arange(s) // c for s, c in zip(shape, chunks, strict=True)], indexing="ij")
    owners = np.ravel_multi_index(coords, counts)
    return sorted(set(np.asarray(owners[selection]).ravel().tolist()))


@given(data=st.data())
def test_basic_selection_finds_the_chunks_of_its_elements(data: st.DataObject) -> None:
    shape = data.draw(hn.array_shapes(min_dims=1, max_dims=3, max_side=12))
    chunks = tuple(data.draw(st.integers(1, 5)) for _ in shape)
    selection = data.draw(hn.basic_indices(shape, allow_newaxis=True))
    assert select_chunk_numbers(selection, shape, chunks).tolist() == touched(selection, shape, chunks)


@given(data=st.data())
def test_points_find_the_chunks_of_their_elements(data: st.DataObject) -> None:
    selection = data.draw(hn.integer_array_indices(SHAPE))
    assert select_chunk_numbers(selection, SHAPE, CHUNKS).tolist() == touched(selection, SHAPE, CHUNKS)


@given(mask=hn.arrays(bool, SHAPE))
def test_full_mask_finds_the_chunks_of_its_elements(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    assert select_chunk_numbers(mask, SHAPE, CHUNKS).tolist() == touched(mask, SHAPE, CHUNKS)


@pytest.mark.parametrize(
    "selection",
    [
        (np.array([0, 9]), slice(None), np.array([4, 0])),
        (slice(None), np.array([True] * 3 + [False] * 4), [1]),
        (..., [0, 1]),
        np.array([], int),
        [],
        (2, ..., np.array([-1, 0])),
    ],
)
def test_orthogonal_arrays_select_along_each_dimension(selection: Any) -> None:
    full = selection if isinstance(selection, tuple) else (selection,)
    at = next((i for i, part in enumerate(full) if part is Ellipsis), len(full))
    rest = tuple(p for p in full if p is not Ellipsis)
    full = rest[:at] + (slice(None),) * (3 - len(rest)) + rest[at:]
    axes = [
        np.arange(n)[p]
        if isinstance(p, slice)
        else np.arange(n)[np.atleast_1d(np.asarray(p, None if len(np.atleast_1d(p)) else int))]
        for n, p in zip(SHAPE, full, strict=True)
    ]
    expected = touched(np.ix_(*axes), SHAPE, CHUNKS)
    assert select_chunk_numbers(selection, SHAPE, CHUNKS, "orthogonal").tolist() == expected


@pytest.mark.parametrize(
    ("selection", "expected"),
    [((0, 0, 0), [0]), (slice(1, 3), [3, 4, 5, 6, 7, 8]), ((-1, 0, slice(None, None, 2)), [9, 11])],
)
def test_block_selection_indexes_chunks_instead_of_elements(selection: Any, expected: list[int]) -> None:
    assert select_chunk_numbers(selection, SHAPE, CHUNKS, "block").tolist() == expected


def test_array_without_dimensions_has_one_chunk() -> None:
    assert select_chunk_numbers((), (), ()).tolist() == select_chunk_numbers(..., (), ()).tolist() == [0]


@pytest.mark.parametrize(
    ("selection", "mode"),
    [
        ((0, 0, 0, 0), "numpy"),
        ((..., 0, ...), "numpy"),
        (10, "numpy"),
        (-11, "numpy"),
        (4, "block"),
        ("x", "numpy"),
        (1.5, "numpy"),
        (np.ones(9, bool), "numpy"),
        ((np.array([0, 1]), np.array([0, 1, 2])), "numpy"),
    ],
)
def test_invalid_selection_is_an_index_error(selection: Any, mode: Mode) -> None:
    with pytest.raises(IndexError):
        select_chunk_numbers(selection, SHAPE, CHUNKS, mode)

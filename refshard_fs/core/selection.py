"""Find the chunks that a selection of an array touches, by the rules of zarr and numpy. No I/O here.

A selection may have slices (of any step), integers, one Ellipsis, None (a new axis), integer and boolean arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from refshard_fs.errors import ManifestError

MOST: Final = 20_000_000  # the most chunks of a selection: each takes 16 bytes while they are sorted
Integers = npt.NDArray[np.int64]
Mode = Literal["numpy", "orthogonal", "block"]


def select_chunk_numbers(selection: Any, shape: Sequence[int], chunks: Sequence[int], mode: Mode = "numpy") -> Integers:
    """Return the numbers (positions in C order, ascending) of the chunks that ``selection`` touches.

    In the mode ``numpy``, several integer arrays are the coordinates of points. In the mode ``orthogonal`` (zarr's
    ``oindex``), each array selects along its own dimension. In the mode ``block``, integers and slices count chunks. A
    boolean array may span several dimensions. Raises IndexError if the selection does not fit ``shape``.

    >>> select_chunk_numbers(np.s_[5:25, 3], (40, 4), (10, 2)).tolist()
    [1, 3, 5]
    """
    counts = [-(-size // step) if step else 0 for size, step in zip(shape, chunks, strict=True)]
    if mode == "block":
        shape, chunks = counts, [1] * len(counts)
    parts = _spread(selection, len(shape))
    strides = [math.prod(counts[d + 1 :]) for d in range(len(counts))]
    sets: list[Integers] = []  # for each part, coordinates of chunks times the stride; all combinations are added
    points: list[tuple[Integers, int, int]] = []  # integer arrays to broadcast, each with chunk length and stride
    dimension = 0
    for part in parts:
        spanned = slice(dimension, dimension + _count_dimensions(part))
        sizes, steps, weights = shape[spanned], chunks[spanned], strides[spanned]
        dimension = spanned.stop
        if isinstance(part, slice):
            sets.append(_select_slice(part, sizes[0], steps[0]) * weights[0])
            continue
        if part.dtype == bool and part.shape != tuple(sizes):
            raise IndexError(f"expected a boolean array of shape {tuple(sizes)}, got {part.shape}")
        coords = np.nonzero(part) if part.dtype == bool else [_wrap_index(part, sizes[0])]
        terms = zip(coords, steps, weights, strict=True)
        selected = [(at.astype(np.int64), step, weight) for at, step, weight in terms]
        if mode == "orthogonal" or len(selected) > 1 or part.ndim == 0:
            sets.append(_combine(selected))
        else:
            points += selected
    if points:
        sets.append(_combine(points))
    _check_count(math.prod(map(len, sets)))
    total = np.zeros(1, np.int64)
    for numbers in sets:
        total = np.add.outer(total, numbers).ravel()
    if (total[1:] > total[:-1]).all():  # the usual case, of ascending slices: sorting a million numbers is slow
        return total
    return np.unique(total)


def _spread(selection: Any, ndim: int) -> list[slice | npt.NDArray[Any]]:
    """Expand a selection to a part for each dimension; a boolean array covers as many dimensions as it has."""
    items = selection if isinstance(selection, tuple) else (selection,)
    parts: list[Any] = [_convert_item(item) for item in items if item is not None]
    places = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(places) > 1:
        raise IndexError(f"expected at most one Ellipsis in an index, got {len(places)}")
    missing = ndim - sum(_count_dimensions(part) for part in parts if part is not Ellipsis)
    if missing < 0:
        raise IndexError(
            f"too many indices: expected at most {ndim}, the dimensions of the array, got {ndim - missing}"
        )
    at = places[0] if places else len(parts)
    return parts[:at] + [slice(None)] * missing + parts[at + 1 :]


def _convert_item(part: Any) -> Any:
    """Return a slice or Ellipsis unchanged, and anything else as an array of integers or booleans."""
    if part is Ellipsis or isinstance(part, slice):
        return part
    array = np.asarray(part)
    if array.size == 0 and array.dtype == float:  # an empty list
        array = array.astype(np.int64)
    if array.dtype != bool and not np.issubdtype(array.dtype, np.integer):
        raise IndexError(f"expected integers, slices, Ellipsis, and integer or boolean arrays as index, got {part!r}")
    return array


def _count_dimensions(part: Any) -> int:
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def _wrap_index(index: npt.NDArray[Any], size: int) -> Integers:
    """Convert negative indexes to positive ones; IndexError if an index is out of bounds."""
    numbers = index.astype(np.int64)
    if numbers.size and (numbers.min() < -size or numbers.max() >= size):
        wrong = numbers[(numbers < -size) | (numbers >= size)].flat[0]
        raise IndexError(
            f"index {wrong} is out of bounds for a dimension of size {size}: expected {-size} to {size - 1}"
        )
    return np.where(numbers < 0, numbers + size, numbers)


def _select_slice(part: slice, size: int, step: int) -> Integers:
    """Return the chunks of ``step`` elements that a slice touches."""
    taken = range(*part.indices(size))
    if not taken:
        return np.empty(0, np.int64)
    _check_count(abs(taken[-1] - taken[0]) // (step if abs(taken.step) <= step else abs(taken.step)) + 1)
    if abs(taken.step) <= step:
        low, high = sorted((taken[0], taken[-1]))
        return np.arange(low // step, high // step + 1)
    return np.unique(np.arange(taken.start, taken.stop, taken.step, dtype=np.int64) // step)


def _check_count(count: int) -> None:
    """Raise ManifestError if so many chunks are selected that their numbers would take too much memory."""
    if count > MOST:
        raise ManifestError(f"the selection has {count} chunks: expected at most {MOST}; select a part at a time")


def _combine(points: Sequence[tuple[Integers, int, int]]) -> Integers:
    """Return the chunks that contain the points whose coordinates are broadcast together.

    ``points`` has, for each dimension, an array of coordinates, the length of a chunk, and the stride of chunk numbers.
    """
    try:
        total = sum(np.asarray(at // step * weight) for at, step, weight in points)
    except ValueError as e:
        raise IndexError(f"index arrays cannot be broadcast together: {e}") from e
    return np.unique(np.asarray(total, np.int64))

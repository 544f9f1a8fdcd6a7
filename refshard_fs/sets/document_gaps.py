"""Gaps in the document of a cube, and places between its pieces: find and fill them. No I/O here."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.sets.coordinates import is_ordered


class Run(NamedTuple):
    """Elements of a new set that lie together: the number of a document's elements before them, and their number."""

    at: int
    length: int


def replace_piece(
    document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any]
) -> tuple[ConcatDocument, int]:
    """Replace the piece with exactly the coordinate ``new_values`` by a gap; return the document and the gap's length.

    If no piece has these values, or only the first one, the length is 0, and the document is unchanged.
    """
    first = np.flatnonzero(np.isin(values, new_values[:1]))
    number = bisect_right(document.starts, int(first[0])) - 1 if len(first) == 1 else 0
    start, stop = document.starts[number : number + 2]
    piece = document.pieces[number]
    is_first = number == document.first  # the metadata of the first piece describe all pieces
    if len(first) != 1 or is_first or piece.is_gap or not np.array_equal(values[start:stop], new_values):
        return document, 0
    gap = Piece("", piece.length, piece.values)
    pieces = [*document.pieces[:number], gap, *document.pieces[number + 1 :]]
    return msgspec.structs.replace(document, pieces=tuple(pieces)), piece.length


def list_values_in_gaps(document: ConcatDocument, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of the coordinate that lie in gaps."""
    by_piece = zip(np.split(values, document.starts[1:-1]), document.pieces, strict=True)
    return np.concatenate([values[:0], *(own for own, piece in by_piece if piece.is_gap)])


def find_gap(
    document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any]
) -> tuple[int, int] | None:
    """Find the gap with ``new_values`` in a row; return its number, and the offset of the first value."""
    first = np.flatnonzero(np.isin(values, new_values[:1]))
    if len(first) != 1:
        return None
    start, stop = int(first[0]), int(first[0]) + len(new_values)
    number = bisect_right(document.starts, start) - 1
    begin, end = document.starts[number], document.starts[number + 1]
    is_in_gap = document.pieces[number].is_gap and stop <= end and np.array_equal(values[start:stop], new_values)
    return (number, start - begin) if is_in_gap else None


def fill_gap(document: ConcatDocument, place: tuple[int, int]) -> ConcatDocument:
    """Move the last piece of a document into the gap at ``place``, its number and an offset in it."""
    number, start = place
    *pieces, new = document.pieces
    gap = pieces[number]
    filled = [gap.cut(0, start), new, gap.cut(start + new.length, gap.length)]
    pieces[number : number + 1] = [piece for piece in filled if piece.length]
    return msgspec.structs.replace(document, pieces=tuple(pieces))


def find_runs(values: npt.NDArray[Any], new_values: npt.NDArray[Any]) -> list[Run] | None:
    """Divide ``new_values`` into runs that lie between two of the sorted ``values`` of the coordinate, or at an end.

    Return None if all ``new_values`` follow all ``values``, or if both cannot be sorted together in their order.
    """
    is_descending = len(values) > 1 and values[0] > values[-1]
    if is_descending:
        places = len(values) - np.searchsorted(values[::-1], new_values)
    else:
        places = np.searchsorted(values, new_values)
    if (places == len(values)).all() or (np.diff(places) < 0).any():
        return None
    every = np.insert(values, places, new_values)
    if not is_ordered(every) or (every[0] > every[-1]) != is_descending:
        return None
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    lengths = np.diff(starts, append=len(places))
    return [Run(int(places[start]), int(length)) for start, length in zip(starts, lengths, strict=True)]


def insert_last_piece(document: ConcatDocument, runs: Sequence[Run]) -> ConcatDocument:
    """Move the ``runs`` of the last piece of a document between elements of the other pieces, which are divided."""
    *pieces, new = document.pieces
    left, inserted = deque(runs), 0
    found: list[Piece] = []
    for piece, start in zip(pieces, document.starts, strict=False):
        done = 0
        while left and left[0].at < start + piece.length:
            at, length = left.popleft()
            found += [piece.cut(done, at - start), new.cut(inserted, inserted + length)]
            done, inserted = at - start, inserted + length
        found.append(piece.cut(done, piece.length) if done else piece)
    found += [new.cut(inserted, new.length)] if left else []
    return msgspec.structs.replace(document, pieces=tuple(piece for piece in found if piece.length))


def cut_off(document: ConcatDocument, stop: int) -> ConcatDocument:
    """Cut off all elements of a document from ``stop`` on."""
    pieces = [
        piece.cut(0, min(piece.length, stop - start))
        for piece, start in zip(document.pieces, document.starts, strict=False)
        if start < stop
    ]
    return msgspec.structs.replace(document, pieces=tuple(pieces))

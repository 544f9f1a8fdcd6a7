"""Gaps in the document of a cube, and places between its pieces: find and fill them. No I/O here."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.sets.coordinates import is_ordered


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


def find_place(document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any]) -> int | None:
    """Return the number of the piece before which ``new_values`` keep the ``values`` of the coordinate sorted.

    Return None if ``new_values`` follow all values, lie within a piece, or surround one.
    """
    is_descending = len(values) > 1 and values[0] > values[-1]
    start = int((values > new_values[0] if is_descending else values < new_values[0]).sum())
    number = bisect_right(document.starts, start) - 1
    if number == len(document.pieces) or document.starts[number] != start:
        return None
    every = np.concatenate([values[:start], new_values, values[start:]])
    return number if is_ordered(every) and (every[0] > every[-1]) == is_descending else None


def move_last_piece(document: ConcatDocument, number: int) -> ConcatDocument:
    """Move the last piece of a document before the piece ``number``."""
    *pieces, new = document.pieces
    return msgspec.structs.replace(document, pieces=(*pieces[:number], new, *pieces[number:]))


def cut_off(document: ConcatDocument, stop: int) -> ConcatDocument:
    """Cut off all elements of a document from ``stop`` on."""
    pieces = [
        piece.cut(0, min(piece.length, stop - start))
        for piece, start in zip(document.pieces, document.starts, strict=False)
        if start < stop
    ]
    return msgspec.structs.replace(document, pieces=tuple(pieces))

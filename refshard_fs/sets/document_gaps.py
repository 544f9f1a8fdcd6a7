"""Gaps in the document of a cube, and places between its pieces: find and fill them. No I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
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


class Filling(NamedTuple):
    """Elements of a new set that fill a part of a gap: the gap's number, the offset in the gap, and their number."""

    gap: int
    offset: int
    length: int


def replace_pieces(
    document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any], *, with_first: bool = False
) -> tuple[ConcatDocument, int]:
    """Replace pieces by gaps if ``new_values`` are all of their values; return the document, and the gaps' length.

    The pieces need not follow each other. If ``new_values`` are only some of the values of a piece, the length is 0,
    and the document is unchanged; also if they are values of the first piece, whose metadata describe all pieces,
    unless ``with_first``.
    """
    places = _find_places(values, new_values)
    if places is None:
        return document, 0
    numbers, counts = np.unique(np.searchsorted(document.starts, places, side="right") - 1, return_counts=True)
    by_piece = zip(numbers.tolist(), counts.tolist(), strict=True)
    touched = {number: count for number, count in by_piece if not document.pieces[number].is_gap}
    if document.first in touched and not with_first:
        return document, 0
    if any(count != document.pieces[number].length for number, count in touched.items()):
        return document, 0
    pieces: list[Piece] = []
    for number, piece in enumerate(document.pieces):
        if number not in touched:
            pieces.append(piece)
        elif number - 1 in touched and not document.stacked:  # one gap, so that one piece of the new set fills it
            last = pieces.pop()
            both = None if last.values is None or piece.values is None else last.values + piece.values
            pieces.append(Piece("", last.length + piece.length, both))
        else:
            pieces.append(Piece("", piece.length, piece.values))
    return msgspec.structs.replace(document, pieces=tuple(pieces)), sum(touched.values())


def list_values_in_gaps(document: ConcatDocument, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of the coordinate that lie in gaps."""
    ranges = zip(pairwise(document.starts), document.pieces, strict=True)
    return np.concatenate([values[:0], *(values[start:stop] for (start, stop), piece in ranges if piece.is_gap)])


def find_fillings(
    document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any]
) -> list[Filling] | None:
    """Divide ``new_values`` into parts that fill gaps; None unless all of them lie in gaps, in their order there."""
    places = _find_places(values, new_values)
    if places is None:
        return None
    numbers = np.searchsorted(document.starts, places, side="right") - 1
    if not all(document.pieces[number].is_gap for number in np.unique(numbers)):
        return None
    follows = (np.diff(places) == 1) & (np.diff(numbers) == 0)
    firsts = np.flatnonzero(np.append(True, ~follows))
    lengths = np.diff(firsts, append=len(places))
    return [
        Filling(int(numbers[first]), int(places[first]) - document.starts[numbers[first]], int(length))
        for first, length in zip(firsts, lengths, strict=True)
    ]


def _find_places(values: npt.NDArray[Any], new_values: npt.NDArray[Any]) -> npt.NDArray[np.intp] | None:
    """Return the places of ``new_values`` in ``values``; None unless each is there once, in the same order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begin, end = (np.searchsorted(ordered, new_values, side=side) for side in ("left", "right"))
    if not len(new_values) or (end - begin != 1).any():
        return None
    places = order[begin]
    return places if (np.diff(places) > 0).all() else None


def fill_gaps(document: ConcatDocument, fillings: Sequence[Filling]) -> ConcatDocument:
    """Move parts of the last piece of a document into gaps; the rest of each gap stays a gap."""
    *pieces, new = document.pieces
    left, done = deque(fillings), 0
    found: list[Piece] = []
    for number, piece in enumerate(pieces):
        at = 0
        while left and left[0].gap == number:
            _, offset, length = left.popleft()
            found += [piece.cut(at, offset), new.cut(done, done + length)]
            at, done = offset + length, done + length
        found.append(piece.cut(at, piece.length) if at else piece)
    return msgspec.structs.replace(document, pieces=tuple(piece for piece in found if piece.length))


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
    starts = document.starts
    if stop >= starts[-1]:
        return document
    pieces = list(document.pieces[: bisect_left(starts, stop)])
    if pieces:
        pieces[-1] = pieces[-1].cut(0, stop - starts[len(pieces) - 1])
    return msgspec.structs.replace(document, pieces=tuple(pieces))

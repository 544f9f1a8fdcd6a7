"""Gaps in the document of a cube: find one, fill it, and make one. No I/O here."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.document import ConcatDocument, Piece
from refshard_fs.errors import ManifestError
from refshard_fs.sets.variables import NamedSet


def replace_piece(
    document: ConcatDocument, values: npt.NDArray[Any], new_values: npt.NDArray[Any]
) -> tuple[ConcatDocument, int]:
    """Replace the piece that has exactly the coordinate ``new_values`` by a gap; return the document and its length.

    The length is 0, and the document unchanged, if there is no such piece, or if it is the first one.
    """
    first = np.flatnonzero(np.isin(values, new_values[:1]))
    number = bisect_right(document.starts, int(first[0])) - 1 if len(first) == 1 else 0
    start, stop = document.starts[number : number + 2]
    part = document.pieces[number]
    is_first = number == document.first  # the metadata of the first piece describe all pieces
    if len(first) != 1 or is_first or part.is_gap or not np.array_equal(values[start:stop], new_values):
        return document, 0
    gap_there = Piece("", part.length, part.values)
    parts = [*document.pieces[:number], gap_there, *document.pieces[number + 1 :]]
    return msgspec.structs.replace(document, pieces=tuple(parts)), part.length


def list_values_in_gaps(document: ConcatDocument, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of the coordinate that lie in gaps."""
    pieces = np.split(values, document.starts[1:-1])
    return np.concatenate([values[:0], *(v for v, part in zip(pieces, document.pieces, strict=True) if part.is_gap)])


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


def check_chunks_of_gap(document: ConcatDocument, new: NamedSet, start: int, name: str) -> None:
    """Raise ManifestError if the new set, at ``start`` in a gap, begins or ends within a chunk."""
    length = new.length(document.dim)
    for path, axis in document.axes.items():
        variable = new.variables.get(path)
        size = None if variable is None or variable.meta.chunks is None else variable.meta.chunks[axis]
        if size and path not in (document.coordinate, *document.chunks) and (start % size or length % size):
            raise ManifestError(
                f"{new.name} fills elements {start} to {start + length} of a gap of {name}, and {path!r} has chunks of "
                f"{size} along {document.dim!r}: make the document anew, with chunks="
            )


def fill_gap(document: ConcatDocument, place: tuple[int, int]) -> ConcatDocument:
    """Move the last piece of a document into the gap at ``place``, its number and an offset in it."""
    number, start = place
    *parts, new = document.pieces
    old = parts[number]
    split = [old.cut(0, start), new, old.cut(start + new.length, old.length)]
    parts[number : number + 1] = [part for part in split if part.length]
    return msgspec.structs.replace(document, pieces=tuple(parts))


def cut_off(document: ConcatDocument, stop: int) -> ConcatDocument:
    """Cut off all elements of a document from ``stop`` on."""
    parts = [
        part.cut(0, min(part.length, stop - start))
        for part, start in zip(document.pieces, document.starts, strict=False)
        if start < stop
    ]
    return msgspec.structs.replace(document, pieces=tuple(parts))

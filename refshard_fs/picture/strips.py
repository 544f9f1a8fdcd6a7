"""The bytes of one target as a strip: which of them chunks take, in which order, and what requests fetch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.columns import WHOLE
from refshard_fs.survey.extents import Extents

__all__ = ["Segment", "Strip", "strip_of"]

FINE: Final = 240  # pieces that a line of a strip is drawn in, at most
_UNKNOWN = np.uint64(WHOLE)


class Segment(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` that chunks take; ``rank`` (0 to 1) is where these come among the file's in C order."""

    start: float
    stop: float
    rank: float


class Strip(msgspec.Struct, frozen=True):
    """One target: its chunks and their bytes, up to its ``end``, which is the last byte that they take.

    ``order`` is the share of chunks that lie after the one before them in C order, None of less than two. ``is_whole``:
    chunks reach to the end of the target, wherever that is. ``requests`` are byte ranges. Where there is much to see,
    it is drawn as several ``lines``.
    """

    target: int
    url: str
    chunks: int
    bytes: int
    end: int
    order: float | None
    is_whole: bool
    segments: tuple[Segment, ...]
    requests: tuple[tuple[int, int], ...]
    lines: int = 1


def strip_of(
    target: int,
    url: str,
    extents: Extents,
    rows: npt.NDArray[np.intp],
    requests: Sequence[tuple[int, int | None]] = (),
    lines: int = 1,
) -> Strip:
    """Return the strip of ``target``, of which ``rows`` of ``extents`` are the chunks."""
    starts, stops = extents.starts[rows], extents.stops[rows]
    known = stops != _UNKNOWN
    end = int(max(stops[known].max(initial=0), starts.max(initial=0)))
    end = max([end, *(stop for _, stop in requests if stop is not None)])
    is_whole = not bool(known.all())
    if is_whole and not end:
        end = 1
    order = None
    if len(rows) > 1:
        order = float((starts[1:] >= starts[:-1]).mean())
    closed = np.where(known, stops, np.uint64(end))
    return Strip(
        target=target,
        url=url,
        chunks=len(rows),
        bytes=int((stops - starts)[known].sum()),
        end=end,
        order=order,
        is_whole=is_whole,
        segments=_segments(starts, closed, max(end, 1), FINE * lines),
        requests=tuple((start, end if stop is None else stop) for start, stop in requests),
        lines=lines,
    )


def _segments(
    starts: npt.NDArray[np.uint64], stops: npt.NDArray[np.uint64], end: int, fine: int
) -> tuple[Segment, ...]:
    count = len(starts)
    ranks = np.arange(count) / (count - 1) if count > 1 else np.ones(count)
    if count <= fine:
        order = np.argsort(starts, kind="stable")
        return tuple(Segment(float(starts[i]), float(stops[i]), float(ranks[i])) for i in order)
    edges = np.linspace(0, end, fine + 1)
    first = np.clip(np.searchsorted(edges, starts.astype(float), side="right") - 1, 0, fine - 1)
    last = np.clip(np.searchsorted(edges, stops.astype(float), side="left") - 1, first, fine - 1)
    taken, uses, sums = (np.zeros(fine + 1) for _ in range(3))
    np.add.at(taken, first, 1)
    np.add.at(taken, last + 1, -1)
    middle = (first + last) // 2
    np.add.at(uses, middle, 1)
    np.add.at(sums, middle, ranks)
    there = np.flatnonzero(np.cumsum(taken)[:fine] > 0)
    filled = np.flatnonzero(uses)
    rank = np.interp(np.arange(fine), filled, sums[filled] / uses[filled])
    return tuple(Segment(float(edges[i]), float(edges[i + 1]), float(rank[i])) for i in there)

"""What a picture of an array says: its chunks, the files they lie in, and the requests that a selection causes. No I/O.

Files are in the order in which the array's chunks, in C order, come to them.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Sequence
from types import EllipsisType
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE
from refshard_fs.errors import redacted
from refshard_fs.reading.plan import Planned
from refshard_fs.tools.survey import INLINE, Extents

__all__ = [
    "Asked",
    "ChunkMap",
    "Fold",
    "NOTHING",
    "Plane",
    "Segment",
    "Strip",
    "chunk_map",
    "fold",
    "parse_selection",
    "plane_of",
    "strip_of",
]

# ----------------------------------------------------------------------------------------------------
# A chunk grid of any number of dimensions as cells of a plane: what lies where, as much of it as can be seen. Pure.
#
# Leading dimensions become rows and trailing ones columns; a long line is folded. Where there are more chunks than can
# be seen, a cell stands for a box of rows and columns.


Integers = npt.NDArray[np.int64]

NOTHING: Final = -2  # where no chunk exists
MOST_ROWS: Final = 56
MOST_COLUMNS: Final = 72


class Fold(NamedTuple):
    """How chunk numbers (in C order) become rows and columns: a row has ``width`` chunks.

    ``split`` dimensions lead and make the rows; None where a single line is folded to fit.
    """

    rows: int
    width: int
    split: int | None


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks.

    ``room`` is how many chunks a cell has room for, ``present`` how many exist, ``asked`` how many are selected;
    ``target`` is the one that has most of them, or `NOTHING`.
    """

    fold: Fold
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Integers
    present: Integers
    asked: Integers
    target: Integers


def fold(counts: Sequence[int]) -> Fold:
    """Return how a grid of ``counts`` chunks along each dimension is laid out, as near to a page as it can be."""
    size = math.prod(counts)
    if size == 0:
        return Fold(0, 0, None)
    long = [count for count in counts if count > 1]
    if len(long) <= 1 and size > MOST_COLUMNS:  # one line
        width = min(size, math.ceil(math.sqrt(size * MOST_COLUMNS / MOST_ROWS)))
        return Fold(-(-size // width), width, None)
    if len(long) <= 1:
        return Fold(1, size, 0)
    splits = range(len(counts) + 1)

    def oddness(split: int) -> float:
        rows, columns = math.prod(counts[:split]), math.prod(counts[split:])
        return abs(math.log(columns / rows * MOST_ROWS / MOST_COLUMNS))

    split = min(splits, key=oddness)
    return Fold(math.prod(counts[:split]), math.prod(counts[split:]), split)


def plane_of(
    counts: Sequence[int],
    numbers: npt.NDArray[np.uint64],
    targets: Integers,
    asked: npt.NDArray[np.integer] | None,
) -> Plane:
    """Return the plane of a grid in which chunks ``numbers`` exist, and ``asked`` are selected."""
    folded = fold(counts)
    size = math.prod(counts)
    step = (-(-folded.rows // MOST_ROWS) or 1, -(-folded.width // MOST_COLUMNS) or 1)
    shape = (-(-folded.rows // step[0]), -(-folded.width // step[1]))
    count = shape[0] * shape[1]
    at = _cells(numbers.astype(np.int64), folded, shape, step)
    chosen = np.zeros(count, np.int64)
    if asked is not None:
        chosen = np.bincount(_cells(asked.astype(np.int64), folded, shape, step), minlength=count)
    target = np.full(count, NOTHING, np.int64)
    if len(at):
        low = int(targets.min())
        span = int(targets.max()) - low + 1
        pairs = np.sort(at * span + (targets - low))
        first = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
        uses = np.diff(np.append(first, len(pairs)))
        order = np.argsort(uses, kind="stable")  # of a cell, the one that is used most is written last
        target[pairs[first[order]] // span] = pairs[first[order]] % span + low
    present = np.bincount(at, minlength=count)
    return Plane(
        folded,
        shape,
        step,
        _room(size, folded, shape, step).reshape(shape),
        present.reshape(shape),
        chosen.reshape(shape),
        target.reshape(shape),
    )


def _cells(numbers: Integers, folded: Fold, shape: tuple[int, int], step: tuple[int, int]) -> Integers:
    rows, columns = np.divmod(numbers, max(folded.width, 1))
    cells: Integers = rows // step[0] * shape[1] + columns // step[1]
    return cells


def _room(size: int, folded: Fold, shape: tuple[int, int], step: tuple[int, int]) -> Integers:
    heights = np.minimum(step[0], folded.rows - np.arange(shape[0]) * step[0])
    widths = np.minimum(step[1], folded.width - np.arange(shape[1]) * step[1])
    room = np.outer(heights, widths)
    missing = folded.rows * folded.width - size  # of a folded line, at the end of its last row
    if missing:
        last = np.arange(folded.width - missing, folded.width) // step[1]
        room[-1] -= np.bincount(last, minlength=shape[1])
    return room.astype(np.int64)


# ----------------------------------------------------------------------------------------------------
# The bytes of one target as a strip: which of them chunks take, in which order, and what requests fetch. Pure.


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
    starts, stops = extents.chunks.starts[rows], extents.chunks.stops[rows]
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


SHOWN: Final = 10  # files that have a strip of their own
LINES: Final = 12  # of all strips together, where a few have many chunks
DETAIL: Final = 40  # chunks that a line of a strip is for, where there is room for several


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A selection: the numbers of its chunks, how many of these exist, and the requests that reading them makes."""

    text: str
    numbers: Integers
    present: int
    requests: tuple[Planned, ...]
    wanted: int  # bytes of chunks
    fetched: int  # bytes of requests, as far as known


class ChunkMap(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn. Targets in ``plane`` are places in ``files``; ``strips`` are some of those.

    ``shard_of`` has the shard of each cell, where cells are chunks that lie in shards. URLs have nothing in them that
    gives access; ``base`` is the directory that all files lie below.
    """

    source: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None
    counts: tuple[int, ...]
    shards: tuple[int, ...]
    dimensions: tuple[str, ...]
    present: int
    possible: int
    bytes: int
    inline: int
    plane: Plane
    shard_of: Integers | None
    files: tuple[str, ...]
    base: str
    strips: tuple[Strip, ...]
    asked: Asked | None


def chunk_map(
    source: str, extents: Extents, urls: Sequence[str], dimensions: Sequence[str] = (), asked: Asked | None = None
) -> ChunkMap:
    """Return what a picture of the array of ``extents`` says; ValueError where its chunks form no grid."""
    meta = extents.meta
    if meta.grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no grid that is known here: there is nothing to draw")
    files, local = _files(extents)
    names = tuple(redacted(urls[i]) for i in files.tolist())
    plane = plane_of(meta.grid.counts, extents.chunks.numbers, local, None if asked is None else asked.numbers)
    return ChunkMap(
        source=redacted(source),
        path=extents.path,
        shape=meta.shape,
        dtype=meta.dtype,
        chunks=meta.chunks,
        counts=meta.grid.counts,
        shards=extents.shards,
        dimensions=tuple(dimensions),
        present=len(extents),
        possible=meta.grid.size,
        bytes=int(extents.sizes.sum()),
        inline=int((local == INLINE).sum()),
        plane=plane,
        shard_of=_shard_of(plane, meta.grid.counts, extents.shards),
        files=names,
        base=_base(names),
        strips=_strips(extents, local, files, urls, names, asked),
        asked=asked,
    )


def _files(extents: Extents) -> tuple[Integers, Integers]:
    """Return the targets in the order in which they are come to, and each chunk's place among them."""
    there = extents.chunks.targets != INLINE
    known, first = np.unique(extents.chunks.targets[there], return_index=True)
    files = known[np.argsort(first, kind="stable")]
    place = np.empty(int(known.max(initial=-1)) + 1, np.int64)
    place[files] = np.arange(len(files))
    local = np.full(len(extents), INLINE, np.int64)
    local[there] = place[extents.chunks.targets[there]]
    return files, local


def _strips(
    extents: Extents, local: Integers, files: Integers, urls: Sequence[str], names: Sequence[str], asked: Asked | None
) -> tuple[Strip, ...]:
    ranges: dict[str, list[tuple[int, int | None]]] = {}
    for request in () if asked is None else asked.requests:
        ranges.setdefault(request.url, []).append((request.start, request.stop))
    of_file = {urls[target]: place for place, target in enumerate(files.tolist())}
    first = sorted(of_file[url] for url in ranges if url in of_file)
    others = sorted(set(range(len(files))).difference(first))
    shown = _spaced(first, SHOWN)
    places = sorted([*shown, *_spaced(others, SHOWN - len(shown))])
    strips = []
    for place in places:
        rows = np.flatnonzero(local == place)
        lines = max(1, min(LINES // len(places), -(-len(rows) // DETAIL)))
        asked_of = ranges.get(urls[int(files[place])], ())
        strips.append(strip_of(place, names[place], extents, rows, asked_of, lines))
    return tuple(strips)


def _spaced(places: list[int], most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    if len(places) <= most:
        return places
    return [places[round(i * (len(places) - 1) / max(most - 1, 1))] for i in range(most)]


def _base(names: Sequence[str]) -> str:
    """Return the directory that all of ``names`` lie in; empty if there is none, or it is but a protocol."""
    if len(names) < 2:
        return ""
    common = posixpath.commonprefix([min(names), max(names)])
    base = common[: common.rfind("/") + 1]
    return "" if base.endswith("://") or len(base) < 8 else base


def _shard_of(plane: Plane, counts: tuple[int, ...], shards: tuple[int, ...]) -> Integers | None:
    if not shards or plane.step != (1, 1) or plane.fold.split is None:
        return None
    numbers = np.arange(plane.shape[0] * plane.shape[1])
    coords = np.unravel_index(numbers, counts)
    across = [-(-count // shard) for count, shard in zip(counts, shards, strict=True)]
    places = [coord // shard for coord, shard in zip(coords, shards, strict=True)]
    return np.ravel_multi_index(places, across).astype(np.int64).reshape(plane.shape)


# ----------------------------------------------------------------------------------------------------
# A selection as people write it, ``air[0:10, :, -1]``, read without evaluating anything. Pure.


Part = int | slice | EllipsisType
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")


def parse_selection(text: str) -> tuple[str, tuple[Part, ...]]:
    """Return the array (empty if none is named) and the selection in ``text``; ValueError if it is none.

    >>> parse_selection("g/air[0:10, ..., -1]")
    ('g/air', (slice(0, 10, None), Ellipsis, -1))
    """
    name, bracket, inside = text.strip().rpartition("[")
    if not bracket or not inside.endswith("]"):
        raise ValueError(f'{text!r} is no selection: write one as "air[0:10, :, -1]"')
    parts = inside[:-1].split(",")
    if len(parts) > 1 and not parts[-1].strip():  # as in [1,]
        parts.pop()
    return name.strip().strip("/"), tuple(_part(part.strip(), text) for part in parts)


def _part(part: str, text: str) -> Part:
    if part == "...":
        return ...
    bounds = [bound.strip() for bound in part.split(":")]
    if len(bounds) > 3 or not all(_INTEGER.fullmatch(bound) or (not bound and len(bounds) > 1) for bound in bounds):
        raise ValueError(f"{part!r} in {text!r} is no index: use integers, slices such as 0:10 or ::2, and ...")
    numbers = [int(bound) if bound else None for bound in bounds]
    if len(numbers) == 1 and numbers[0] is not None:
        return numbers[0]
    if numbers[2:] == [0]:
        raise ValueError(f"{part!r} in {text!r} has a step of 0")
    return slice(*numbers)

"""What a picture of an array says: its chunks, the files they lie in, and the requests that a selection causes.

A picture of a whole set says which arrays there are, and where their bytes lie.

Metadata and indexes are read, and no chunk. Files are in the order in which the array's chunks, in C order, come to
them.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import EllipsisType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.keys import normalise
from refshard_fs.core.selection import chunk_numbers
from refshard_fs.errors import ManifestError, NotListable, redacted
from refshard_fs.reading.plan import Planned
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.survey import INLINE, Chunks, Extents, Positions, Survey, Surveyed, survey

Floats = npt.NDArray[np.float64]
Ranges = list[tuple[float, float]]


# ----------------------------------------------------------------------------------------------------
# A chunk grid of any number of dimensions as cells of a plane. Leading dimensions become rows and trailing ones
# columns; a long line is folded. Where there are more chunks than can be seen, a cell stands for a box of them.


NOTHING: Final = -1  # the chunk of a cell where none exists
MOST_DIMENSIONS: Final = 64  # of an array, as numpy has it
MOST_ROWS: Final = 56
MOST_COLUMNS: Final = 72


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks; a row has ``width`` chunks.

    ``split`` dimensions lead and make the rows; None where a single line is folded to fit. ``room`` is how many chunks
    a cell has room for, ``present`` how many exist, ``asked`` how many are selected; ``first`` is the first of those
    that exist, as a place among them, or `NOTHING`.
    """

    width: int
    split: int | None
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Positions
    present: Positions
    asked: Positions
    first: Positions


def _layout(counts: Sequence[int]) -> tuple[int, int, int | None]:
    """Return rows, columns and split of a grid of ``counts`` chunks, as near to the form of a page as they can be."""
    size = math.prod(counts)
    if sum(count > 1 for count in counts) <= 1:  # one line
        if size <= MOST_COLUMNS:
            return min(size, 1), size, 0 if size else None
        width = min(size, math.ceil(math.sqrt(size * MOST_COLUMNS / MOST_ROWS)))
        return -(-size // width), width, None
    if not size:
        return 0, 0, None
    forms = [(math.prod(counts[:split]), math.prod(counts[split:]), split) for split in range(len(counts) + 1)]
    return min(forms, key=lambda form: abs(math.log(form[1] / form[0] * MOST_ROWS / MOST_COLUMNS)))


def plane_of(counts: Sequence[int], numbers: UInt64s, asked: Positions | None) -> Plane:
    """Return the plane of a grid in which chunks ``numbers`` exist, and ``asked`` are selected."""
    rows, width, split = _layout(counts)
    step = (-(-rows // MOST_ROWS) or 1, -(-width // MOST_COLUMNS) or 1)
    shape = (-(-rows // step[0]), -(-width // step[1]))
    count = shape[0] * shape[1]

    def cells(of: npt.NDArray[np.integer[Any]]) -> Positions:
        row, column = np.divmod(of.astype(np.int64), max(width, 1))
        found: Positions = row // step[0] * shape[1] + column // step[1]
        return found

    at = cells(numbers)
    chosen = np.zeros(count, np.int64) if asked is None else np.bincount(cells(asked), minlength=count)
    first = np.full(count, NOTHING, np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # what is written last is the first one
    heights = np.minimum(step[0], rows - np.arange(shape[0]) * step[0])
    begins = np.arange(shape[1]) * step[1]
    ends = np.minimum(begins + step[1], width)
    room = np.outer(heights, ends - begins).ravel()
    if count:  # of a folded line, there are none at the end of its last row
        last = math.prod(counts) - (rows - 1) * width
        room[-shape[1] :] -= np.maximum(ends - np.maximum(begins, last), 0)
    present = np.bincount(at, minlength=count)
    return Plane(width, split, shape, step, *(column.reshape(shape) for column in (room, present, chosen, first)))


# ----------------------------------------------------------------------------------------------------
# The bytes of one file as a strip: which of them chunks take, in which order, and what requests fetch.


SHOWN: Final = 6  # files that have a strip of their own
FINE: Final = 240  # pieces that a strip is drawn in, at most
FEW: Final = 7  # files, or arrays of a set, that have a colour of their own


class Segment(NamedTuple):
    """Bytes ``[start, stop)`` that a chunk takes, which is the one at the place ``chunk`` among those that exist."""

    start: float
    stop: float
    chunk: int


class Strip(msgspec.Struct, frozen=True):
    """One file: its chunks and their bytes, up to its ``end``, which is the last byte that they take.

    ``is_whole``: chunks reach to the end of the file, wherever that is. ``requests`` are byte ranges. ``file`` is None
    for all files, one after the other: then bytes are counted from the start of the first, or in files where sizes are
    not known.
    """

    file: int | None
    url: str
    chunks: int
    bytes: int
    end: float
    is_whole: bool
    segments: list[Segment]
    requests: Ranges


def _segments(chunks: Positions, starts: Floats, stops: Floats, end: float) -> list[Segment]:
    order = np.argsort(starts, kind="stable")
    chunks, starts, stops = chunks[order], starts[order], stops[order]
    if len(starts) <= FINE:
        return list(map(Segment, starts.tolist(), stops.tolist(), chunks.tolist()))
    edges = np.linspace(0, end, FINE + 1)
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, FINE - 1)
    last = np.clip(np.searchsorted(edges, stops, side="left") - 1, first, FINE - 1)
    begun, ended = np.bincount(first, minlength=FINE + 1), np.bincount(last + 1, minlength=FINE + 1)
    covered = np.flatnonzero(np.cumsum(begun - ended)[:FINE] > 0)
    drawn = chunks[np.searchsorted(first, covered, side="right") - 1]  # the last one that begins there or before
    return list(map(Segment, edges[covered].tolist(), edges[covered + 1].tolist(), drawn.tolist()))


# ----------------------------------------------------------------------------------------------------
# All that is drawn.


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A selection: the numbers of its chunks, how many of these exist, and the requests that reading them makes."""

    text: str
    numbers: Positions
    present: int
    requests: list[Planned]
    wanted: int  # bytes of chunks
    fetched: int  # bytes of requests, as far as known


class Files(msgspec.Struct, frozen=True, eq=False):
    """Where chunks lie: the file of each, as a place in ``names``, or `INLINE`; ``strips`` are some of the files.

    URLs have nothing in them that gives access; ``base`` is the directory that all files lie below.
    """

    file_of: Positions
    names: tuple[str, ...]
    base: str
    strips: list[Strip]


class ChunkMap(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn of one array.

    ``shard_of`` has the shard that each cell begins in, where chunks lie in shards that can be seen. ``ranks`` (0 to 1)
    are where chunks come, in C order, in their file where there are `FEW`, and else in all files one after the other.
    """

    source: str
    title: str
    extents: Extents
    counts: tuple[int, ...]
    plane: Plane
    shard_of: Positions | None
    files: Files
    ranks: Floats
    asked: Asked | None


class SetMap(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn of a whole set: its arrays, those with the most bytes first, and the files.

    ``array_of`` has the array of each chunk, as a place in ``arrays``.
    """

    source: str
    arrays: tuple[Extents, ...]
    array_of: Positions
    files: Files


def map_of(fs: Surveyed, array: str | None = None, select: Any = None) -> ChunkMap | SetMap:
    """Return what a picture of ``array`` says, as `visualize` explains; without one, of the set or its only array.

    Raises FileNotFoundError if there is no such array, NotListable where its source cannot list chunks, ValueError
    where its chunks form no grid or ``select`` is no selection, IndexError where it does not fit.
    """
    text = ""
    if isinstance(select, str):
        named, select, text = *parse_selection(select), select.strip()
        array = array if array is not None or not named else named
        if named and normalise(array or "") != normalise(named):
            raise ValueError(f"the selection {text!r} is of {named!r}, and the picture of {array!r}")
    elif select is not None:
        text = f"{array or ''}[{spelled(select)}]"
    source = "references in memory"
    if isinstance(fs.fo, str):
        source = PurePath(fs.fo).name if protocol_of(fs.fo) is None else fs.fo
    found = survey(fs, None if array is None else normalise(array))
    if not found.arrays:
        raise FileNotFoundError(f"there is no array in {source}")
    ordered = sorted(found.arrays.values(), key=lambda extents: (int(extents.sizes.sum()), len(extents)), reverse=True)
    if array is None and select is None and len(ordered) > 1:
        return set_map(source, ordered, found)
    extents = ordered[0] if array is None else found.arrays[normalise(array)]
    if not extents.listed:
        raise NotListable(
            f"the chunks of {extents.path or '/'!r} in {source} cannot be listed, as over plain HTTP, so there "
            "is nothing to draw: 'refshard snapshot SOURCE refs.json' asks for each of them; then draw refs.json"
        )
    asked = None if select is None else _asked(fs, extents, select, text)
    return chunk_map(source, extents, found.urls, asked)


def chunk_map(source: str, extents: Extents, urls: Sequence[str], asked: Asked | None = None) -> ChunkMap:
    """Return what a picture of the array of ``extents`` says; ValueError where its chunks form no grid."""
    grid, chunks = extents.meta.grid, extents.chunks
    if grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no grid that is known here: there is nothing to draw")
    if len(grid.counts) > MOST_DIMENSIONS:
        raise ManifestError(
            f"{extents.path!r} has {len(grid.counts)} dimensions; arrays have {MOST_DIMENSIONS} at most"
        )
    files = _files(chunks, urls, () if asked is None else asked.requests)
    plane = plane_of(grid.counts, chunks.numbers, None if asked is None else asked.numbers)
    return ChunkMap(
        source=redacted(source),
        title=extents.path or redacted(source).rstrip("/").rpartition("/")[2],
        extents=extents,
        counts=grid.counts,
        plane=plane,
        shard_of=_shards(grid.counts, extents.shards, plane),
        files=files,
        ranks=_ranks(files),
        asked=asked,
    )


def set_map(source: str, arrays: Sequence[Extents], found: Survey) -> SetMap:
    """Return what a picture of all of ``arrays`` says, which are those of a source that was ``found``."""
    chunks = Chunks(*(np.concatenate(columns) for columns in zip(*(array.chunks for array in arrays), strict=True)))
    return SetMap(
        source=redacted(source),
        arrays=tuple(arrays),
        array_of=np.repeat(np.arange(len(arrays)), [len(extents) for extents in arrays]),
        files=_files(chunks, found.urls, ()),
    )


def _shards(counts: tuple[int, ...], shards: tuple[int, ...], plane: Plane) -> Positions | None:
    """Return the shard of the first chunk of each cell; None where shards are no larger than cells."""
    if not shards or plane.split is None or not plane.first.size:
        return None
    rows, columns = np.indices(plane.shape)
    numbers = rows * plane.step[0] * plane.width + columns * plane.step[1]
    coords = np.unravel_index(numbers, counts)
    of = np.ravel_multi_index([coord // length for coord, length in zip(coords, shards, strict=True)], counts)
    return of.astype(np.int64) if 2 * len(np.unique(of)) <= of.size else None


def _files(chunks: Chunks, urls: Sequence[str], asked: Sequence[Planned]) -> Files:
    """Return the files that ``chunks`` lie in, in the order in which the chunks come to them."""
    in_files = chunks.targets != INLINE
    known, first, places = np.unique(chunks.targets[in_files], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    file_of = np.full(len(chunks.targets), INLINE, np.int64)
    file_of[in_files] = np.argsort(order)[places]
    found = [urls[i] for i in known[order].tolist()]
    names = tuple(map(redacted, found))
    common = posixpath.commonprefix(list(names)) if len(names) > 1 else ""
    base = common[: common.rfind("/") + 1]
    base = "" if base.endswith("://") or len(base) < 8 else base  # it is but a protocol
    requests: dict[int, list[Planned]] = {}
    number = {url: i for i, url in enumerate(found)}
    for request in asked:
        if request.url in number:
            requests.setdefault(number[request.url], []).append(request)
    return Files(file_of, names, base, _strips(chunks, file_of, names, requests))


def _strips(
    chunks: Chunks, file_of: Positions, names: Sequence[str], requests: Mapping[int, Sequence[Planned]]
) -> list[Strip]:
    rows = np.flatnonzero(file_of != INLINE)
    known = chunks.stops != WHOLE
    ends = np.ones(len(names))  # the last byte that is used, as far as known
    np.maximum.at(ends, file_of[rows], np.where(known, chunks.stops, chunks.starts)[rows].astype(float))
    for file, several in requests.items():
        ends[file] = max(ends[file], *(request.stop or request.start for request in several))
    starts = chunks.starts.astype(float)
    stops = np.where(known, chunks.stops.astype(float), ends[file_of] if len(names) else 0.0)
    ranges = {
        file: [(float(request.start), ends[file] if request.stop is None else float(request.stop)) for request in some]
        for file, some in requests.items()
    }

    def strip(file: int | None, rows: Positions, starts: Floats, stops: Floats, end: float, asked: Ranges) -> Strip:
        url = "all files" if file is None else names[file]
        size = int((chunks.stops - chunks.starts)[rows][known[rows]].sum())
        segments = _segments(rows, starts, stops, end)
        return Strip(file, url, len(rows), size, end, not bool(known[rows].all()), segments, asked)

    shown = _spaced(sorted(requests), SHOWN)
    shown += _spaced([i for i in range(len(names)) if i not in requests], SHOWN - len(shown))
    strips = []
    for file in sorted(shown):
        its = np.flatnonzero(file_of == file)
        strips.append(strip(file, its, starts[its], stops[its], float(ends[file]), ranges.get(file, [])))
    if len(names) > SHOWN:  # each chunk has its place here, also those of files that have no strip
        scale = ends if known[rows].all() else np.ones(len(names))
        before = np.cumsum(scale) - scale

        def place(file: Any, at: Any) -> Any:
            return before[file] + at * scale[file] / ends[file]

        files = file_of[rows]
        asked = [(place(file, start), place(file, stop)) for file in sorted(ranges) for start, stop in ranges[file]]
        whole = strip(None, rows, place(files, starts[rows]), place(files, stops[rows]), float(scale.sum()), asked)
        strips.insert(0, whole)
    return strips


def _ranks(files: Files) -> Floats:
    """Return where each chunk comes among those of its file, if there are few files; else among all, by file."""
    order = np.argsort(files.file_of, kind="stable")
    order = order[files.file_of[order] != INLINE]
    ranks = np.zeros(len(files.file_of))
    if not 1 < len(files.names) <= FEW:
        ranks[order] = np.arange(len(order)) / max(len(order) - 1, 1)
        return ranks
    counts = np.bincount(files.file_of[order], minlength=len(files.names))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    last = np.repeat(counts, counts) - 1
    ranks[order] = np.where(last > 0, place / np.maximum(last, 1), 1)
    return ranks


def _spaced(places: list[int], most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    chosen = np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(int)
    return [places[i] for i in chosen.tolist()]


def _asked(fs: Surveyed, extents: Extents, select: Any, text: str) -> Asked:
    meta = extents.meta
    if meta.chunks is None or meta.grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no regular grid, so a selection does not tell chunks")
    numbers = chunk_numbers(select, meta.shape, meta.chunks)
    rows = np.flatnonzero(np.isin(extents.chunks.numbers, numbers.astype(np.uint64)))
    requests = fs.plan(extents.keys(rows.tolist()))
    sizes = extents.sizes
    fetched = sum(request.stop - request.start for request in requests if request.stop is not None)
    whole = {key for request in requests if request.stop is None for key in request.keys}
    if whole:
        fetched += sum(int(sizes[row]) for row in rows.tolist() if extents.key(row) in whole)
    return Asked(text, numbers, len(rows), requests, int(sizes[rows].sum()), fetched)


# ----------------------------------------------------------------------------------------------------
# A selection as people write it, ``air[0:10, :, -1]``: read without evaluating anything, and spelled.


Part = int | slice | EllipsisType
_INDEX: Final = re.compile(r"[+-]?\d{1,18}|(\s*([+-]?\d{1,18})?\s*:){1,2}\s*([+-]?\d{1,18})?", re.ASCII)


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
    if not _INDEX.fullmatch(part):
        raise ValueError(f"{part!r} in {text!r} is no index: use integers, slices such as 0:10 or ::2, and ...")
    bounds = [int(bound) if bound.strip() else None for bound in part.split(":")]
    if bounds[2:] == [0]:
        raise ValueError(f"{part!r} in {text!r} has a step of 0")
    return slice(*bounds) if ":" in part else int(part)


def spelled(select: Any) -> str:
    """Return a selection as it is written between brackets."""
    return ", ".join(map(_spelled, select if isinstance(select, tuple) else (select,)))


def _spelled(part: Any) -> str:
    match part:
        case slice(start=start, stop=stop, step=step):
            bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop))
            return bounds if step is None else f"{bounds}:{step}"
        case _ if part is Ellipsis:
            return "..."
        case int():
            return str(part)
    return np.array2string(np.asarray(part), threshold=4, separator=", ")

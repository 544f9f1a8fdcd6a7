"""What a picture of an array says: its chunks, the files they lie in, and the requests that a selection causes.

Metadata and indexes are read, and no chunk. Files are in the order in which the array's chunks, in C order, come to
them.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Sequence
from pathlib import PurePath
from types import EllipsisType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.keys import join, normalise
from refshard_fs.core.selection import chunk_numbers
from refshard_fs.core.zarrmeta import dimension_names
from refshard_fs.errors import ManifestError, NotListable, redacted
from refshard_fs.reading.plan import Planned
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.survey import INLINE, Extents, Positions, Surveyed, survey

__all__ = ["NOTHING", "Asked", "ChunkMap", "Plane", "Segment", "Strip", "chunk_map", "map_of", "parse_selection"]
__all__ += ["plane_of", "spelled"]


# ----------------------------------------------------------------------------------------------------
# A chunk grid of any number of dimensions as cells of a plane. Leading dimensions become rows and trailing ones
# columns; a long line is folded. Where there are more chunks than can be seen, a cell stands for a box of them.


NOTHING: Final = -2  # the target of a cell where no chunk exists
MOST_DIMENSIONS: Final = 64  # of an array, as numpy has it
MOST_ROWS: Final = 56
MOST_COLUMNS: Final = 72


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks; a row has ``width`` chunks.

    ``split`` dimensions lead and make the rows; None where a single line is folded to fit. ``room`` is how many chunks
    a cell has room for, ``present`` how many exist, ``asked`` how many are selected; ``target`` is the one that has
    most of them, or `NOTHING`.
    """

    width: int
    split: int | None
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Positions
    present: Positions
    asked: Positions
    target: Positions


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


def plane_of(counts: Sequence[int], numbers: UInt64s, targets: Positions, asked: Positions | None) -> Plane:
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
    target = np.full(count, NOTHING, np.int64)
    low = int(targets.min(initial=0))
    span = int(targets.max(initial=0)) - low + 1
    pairs, uses = np.unique(at * span + (targets - low), return_counts=True)
    pairs = pairs[np.argsort(uses, kind="stable")]  # of a cell, the target that is used most is written last
    target[pairs // span] = pairs % span + low
    heights = np.minimum(step[0], rows - np.arange(shape[0]) * step[0])
    begins = np.arange(shape[1]) * step[1]
    ends = np.minimum(begins + step[1], width)
    room = np.outer(heights, ends - begins).ravel()
    if count:  # of a folded line, there are none at the end of its last row
        last = math.prod(counts) - (rows - 1) * width
        room[-shape[1] :] -= np.maximum(ends - np.maximum(begins, last), 0)
    present = np.bincount(at, minlength=count)
    return Plane(width, split, shape, step, *(column.reshape(shape) for column in (room, present, chosen, target)))


# ----------------------------------------------------------------------------------------------------
# The bytes of one file as a strip: which of them chunks take, in which order, and what requests fetch.


SHOWN: Final = 10  # files that have a strip of their own
FINE: Final = 240  # pieces that a strip is drawn in, at most


class Segment(NamedTuple):
    """Bytes ``[start, stop)`` that chunks take; ``rank`` (0 to 1) is where these come among the file's in C order."""

    start: float
    stop: float
    rank: float


class Strip(msgspec.Struct, frozen=True):
    """One file: its chunks and their bytes, up to its ``end``, which is the last byte that they take.

    ``order`` is the share of chunks that lie after the one before them in C order, None of less than two. ``is_whole``:
    chunks reach to the end of the file, wherever that is. ``requests`` are byte ranges.
    """

    file: int
    url: str
    chunks: int
    bytes: int
    end: int
    order: float | None
    is_whole: bool
    segments: list[Segment]
    requests: list[tuple[int, int]]


def _segments(starts: UInt64s, stops: UInt64s, end: int) -> list[Segment]:
    ranks = np.linspace(0, 1, len(starts)) if len(starts) > 1 else np.ones(1)
    if len(starts) <= FINE:
        order = np.argsort(starts, kind="stable")
        columns = starts[order].astype(float), stops[order].astype(float), ranks[order]
        return list(map(Segment, *(column.tolist() for column in columns)))
    edges = np.linspace(0, end, FINE + 1)
    first = np.clip(np.searchsorted(edges, starts.astype(float), side="right") - 1, 0, FINE - 1)
    last = np.clip(np.searchsorted(edges, stops.astype(float), side="left") - 1, first, FINE - 1)
    begun, ended = np.bincount(first, minlength=FINE + 1), np.bincount(last + 1, minlength=FINE + 1)
    uses = np.bincount((first + last) // 2, minlength=FINE)
    sums = np.bincount((first + last) // 2, weights=ranks, minlength=FINE)
    filled = np.flatnonzero(uses)
    rank = np.interp(np.arange(FINE), filled, sums[filled] / uses[filled])
    covered = np.flatnonzero(np.cumsum(begun - ended)[:FINE] > 0)
    return [Segment(float(edges[i]), float(edges[i + 1]), float(rank[i])) for i in covered]


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


class ChunkMap(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn. Targets in ``plane`` are places in ``files``; ``strips`` are some of those.

    ``shard_of`` has the shard of each cell, where cells are chunks that lie in shards. URLs have nothing in them that
    gives access; ``base`` is the directory that all files lie below.
    """

    source: str
    extents: Extents
    counts: tuple[int, ...]
    dimensions: tuple[str, ...]
    plane: Plane
    shard_of: Positions | None
    files: tuple[str, ...]
    base: str
    strips: list[Strip]
    asked: Asked | None

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.extents.path


def map_of(fs: Surveyed, array: str | None = None, select: Any = None) -> ChunkMap:
    """Return what a picture of ``array`` (by default the one with the most bytes) says, as `visualize` explains.

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
    extents = max(found.arrays.values(), key=lambda extents: (int(extents.sizes.sum()), len(extents)))
    if array is not None:
        extents = found.arrays[normalise(array)]
    if not extents.listed:
        raise NotListable(
            f"the chunks of {extents.path or '/'!r} in {source} cannot be listed, as over plain HTTP, so there "
            "is nothing to draw: 'refshard snapshot SOURCE refs.json' asks for each of them; then draw refs.json"
        )
    asked = None if select is None else _asked(fs, extents, select, text)
    attributes = found.documents.get(join(extents.path, ".zattrs"))
    names = dimension_names(extents.meta.raw, len(extents.meta.shape), attributes)
    return chunk_map(source, extents, found.urls, names, asked)


def chunk_map(
    source: str, extents: Extents, urls: Sequence[str], dimensions: tuple[str, ...] = (), asked: Asked | None = None
) -> ChunkMap:
    """Return what a picture of the array of ``extents`` says; ValueError where its chunks form no grid."""
    grid, chunks = extents.meta.grid, extents.chunks
    if grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no grid that is known here: there is nothing to draw")
    if len(grid.counts) > MOST_DIMENSIONS:
        raise ManifestError(
            f"{extents.path!r} has {len(grid.counts)} dimensions; arrays have {MOST_DIMENSIONS} at most"
        )
    in_files = chunks.targets != INLINE
    known, first, places = np.unique(chunks.targets[in_files], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # of files, as they are come to
    file_of = np.full(len(extents), INLINE, np.int64)
    file_of[in_files] = np.argsort(order)[places]
    files = [urls[i] for i in known[order].tolist()]
    names = tuple(map(redacted, files))
    plane = plane_of(grid.counts, chunks.numbers, file_of, None if asked is None else asked.numbers)
    shard_of = None
    if extents.shards and plane.step == (1, 1) and plane.split is not None:
        coords = np.indices(grid.counts).reshape(len(grid.counts), -1)
        shards = [coord // length for coord, length in zip(coords, extents.shards, strict=True)]
        shard_of = np.ravel_multi_index(shards, grid.counts).astype(np.int64).reshape(plane.shape)
    common = posixpath.commonprefix(list(names)) if len(names) > 1 else ""
    base = common[: common.rfind("/") + 1]
    return ChunkMap(
        source=redacted(source),
        extents=extents,
        counts=grid.counts,
        dimensions=dimensions,
        plane=plane,
        shard_of=shard_of,
        files=names,
        base="" if base.endswith("://") or len(base) < 8 else base,  # it is but a protocol
        strips=_strips(extents, file_of, files, asked),
        asked=asked,
    )


def _strips(extents: Extents, file_of: Positions, files: Sequence[str], asked: Asked | None) -> list[Strip]:
    requests: dict[str, list[Planned]] = {}
    for request in () if asked is None else asked.requests:
        requests.setdefault(request.url, []).append(request)
    shown = _spaced([i for i, url in enumerate(files) if url in requests], SHOWN)
    shown += _spaced([i for i, url in enumerate(files) if url not in requests], SHOWN - len(shown))
    strips = []
    for file in sorted(shown):
        rows = np.flatnonzero(file_of == file)
        starts, stops = extents.chunks.starts[rows], extents.chunks.stops[rows]
        ranges = requests.get(files[file], [])
        known = stops != WHOLE
        ends = [request.stop for request in ranges if request.stop is not None]
        end = max([int(stops[known].max(initial=0)), int(starts.max(initial=0)), *ends]) or 1
        strip = Strip(
            file=file,
            url=redacted(files[file]),
            chunks=len(rows),
            bytes=int((stops - starts)[known].sum()),
            end=end,
            order=float((starts[1:] >= starts[:-1]).mean()) if len(rows) > 1 else None,
            is_whole=not bool(known.all()),
            segments=_segments(starts, np.where(known, stops, np.uint64(end)), end),
            requests=[(request.start, end if request.stop is None else request.stop) for request in ranges],
        )
        strips.append(strip)
    return strips


def _spaced(places: list[int], most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    if len(places) <= most:
        return places
    return [places[round(i * (len(places) - 1) / max(most - 1, 1))] for i in range(most)]


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

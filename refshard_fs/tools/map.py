"""The picture of an array: its chunks, the files they lie in, and the requests for a selection; or that of a whole set.

Metadata and indexes are read, and no chunk. Files are in the order in which the array's chunks, in C order, come to
them. A chunk has one colour, in the grid and in its file.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import EllipsisType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.keys import normalise
from refshard_fs.core.selection import chunk_numbers
from refshard_fs.core.stats import bytes_text, count_text, shape_text
from refshard_fs.errors import ManifestError, NotListable, printable, redact
from refshard_fs.reading.plan import Planned
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.picture import HUES, MARGIN, ROOM, Box, Page, Picture, Swatch, boxes_at, mix, ramp, width_of
from refshard_fs.tools.survey import INLINE, Extents, PlacedChunks, Positions, Surveyed, survey

Floats = npt.NDArray[np.float64]

GRID_HEIGHT: Final = 320.0  # lengths are in units of the picture
LARGEST: Final = 56.0  # side of a cell
BAR: Final = 14.0  # height of a strip
POINTED: Final = 600  # cells up to which each has a text of its own to show
SHADES: Final = 24  # in the ramp of colours, and of one file's colour
LEVELS: Final = 4  # of how full a cell is
ARRAYS: Final = 12  # arrays of a set that are named
SHOWN: Final = 6  # files that have a strip of their own
FINE: Final = 240  # pieces that a strip is drawn in, at most
FEW: Final = len(HUES)  # files, or arrays of a set, that have a colour of their own


# ----------------------------------------------------------------------------------------------------
# A chunk grid of any number of dimensions as cells of a plane. Leading dimensions become rows and trailing ones
# columns; a long line is folded. Where there are more chunks than can be seen, a cell stands for a box of them.


NO_CHUNK: Final = -1  # of a cell none of whose chunks exists
MOST_DIMENSIONS: Final = 64  # of an array, as numpy has it
MOST_ROWS: Final = 56
MOST_COLUMNS: Final = 72


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks; a row has ``width`` chunks.

    ``split`` dimensions lead and make the rows; None where a single line is folded to fit. ``room`` is how many chunks
    a cell stands for, ``present`` how many of them exist, ``selected`` how many are selected; ``first`` is the first
    one that exists, as an index into all existing chunks, or `NO_CHUNK`.
    """

    width: int
    split: int | None
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Positions
    present: Positions
    selected: Positions
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


def plane_of(counts: Sequence[int], numbers: UInt64s, selected: Positions | None) -> Plane:
    """Return the plane of a grid in which chunks ``numbers`` exist, and ``selected`` are selected."""
    rows, width, split = _layout(counts)
    step = (-(-rows // MOST_ROWS) or 1, -(-width // MOST_COLUMNS) or 1)
    shape = (-(-rows // step[0]), -(-width // step[1]))
    count = shape[0] * shape[1]

    def cells(of: npt.NDArray[np.integer[Any]]) -> Positions:
        row, column = np.divmod(of.astype(np.int64), max(width, 1))
        found: Positions = row // step[0] * shape[1] + column // step[1]
        return found

    at = cells(numbers)
    chosen = np.zeros(count, np.int64) if selected is None else np.bincount(cells(selected), minlength=count)
    first = np.full(count, NO_CHUNK, np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # the last write wins: the first position
    heights = np.minimum(step[0], rows - np.arange(shape[0]) * step[0])
    begins = np.arange(shape[1]) * step[1]
    ends = np.minimum(begins + step[1], width)
    room = np.outer(heights, ends - begins).ravel()
    if count:  # of a folded line, there are none at the end of its last row
        last = math.prod(counts) - (rows - 1) * width
        room[-shape[1] :] -= np.maximum(ends - np.maximum(begins, last), 0)
    present = np.bincount(at, minlength=count)
    return Plane(width, split, shape, step, *(column.reshape(shape) for column in (room, present, chosen, first)))


def _shards(counts: tuple[int, ...], shards: tuple[int, ...], plane: Plane) -> Positions | None:
    """Return the shard of the first chunk of each cell; None where shards are no larger than cells."""
    if not shards or plane.split is None or not plane.first.size:
        return None
    rows, columns = np.indices(plane.shape)
    numbers = rows * plane.step[0] * plane.width + columns * plane.step[1]
    coords = np.unravel_index(numbers, counts)
    of = np.ravel_multi_index([coord // length for coord, length in zip(coords, shards, strict=True)], counts)
    return of.astype(np.int64) if 2 * len(np.unique(of)) <= of.size else None


# ----------------------------------------------------------------------------------------------------
# The files that chunks lie in, and the bytes of some of them as strips.


class Strip(msgspec.Struct, frozen=True, eq=False):
    """One file, up to its ``end``, which is the last byte that its chunks or requests take.

    ``pieces`` are columns: the start and the stop of a piece, and the index of its chunk among those that exist.
    ``requests`` are starts and stops. ``is_whole``: chunks reach to the end of the file, wherever that is.
    ``file`` is the index of the file; None for all files, one after the other, whose bytes are counted from the start
    of the first one. Where sizes are not known, each file counts as one byte there.
    """

    file: int | None
    url: str
    chunks: int
    bytes: int
    end: float
    is_whole: bool
    pieces: tuple[Floats, Floats, Positions]
    requests: tuple[Floats, Floats]


class Files(msgspec.Struct, frozen=True, eq=False):
    """Where chunks lie: the file of each, as an index into ``names``, or `INLINE`; ``strips`` are some of the files.

    URLs are without credentials; ``base`` is the directory that all files lie below.
    """

    file_of: Positions
    names: tuple[str, ...]
    base: str
    strips: list[Strip]


class _Ranges(NamedTuple):
    """Byte ranges of files as columns; ``stops`` are infinite at the end of a file."""

    files: Positions
    starts: Floats
    stops: Floats


def _files(chunks: PlacedChunks, urls: Sequence[str], requests: Sequence[Planned]) -> Files:
    """Return the files that ``chunks`` lie in, in the order in which the chunks come to them."""
    in_files = chunks.targets != INLINE
    known, first, places = np.unique(chunks.targets[in_files], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    file_of = np.full(len(chunks.targets), INLINE, np.int64)
    file_of[in_files] = np.argsort(order)[places]
    found = [urls[i] for i in known[order].tolist()]
    names = tuple(map(redact, found))
    common = posixpath.commonprefix(list(names)) if len(names) > 1 else ""
    base = common[: common.rfind("/") + 1]
    base = "" if base.endswith("://") or len(base) < 8 else base  # it is but a protocol
    number = {url: i for i, url in enumerate(found)}
    rows = [(number[r.url], r.start, math.inf if r.stop is None else r.stop) for r in requests if r.url in number]
    files, *bounds = np.array(rows, float).reshape(-1, 3).T
    return Files(file_of, names, base, _strips(chunks, file_of, names, _Ranges(files.astype(np.int64), *bounds)))


def _strips(chunks: PlacedChunks, file_of: Positions, names: Sequence[str], requests: _Ranges) -> list[Strip]:
    is_known = chunks.stops != WHOLE
    stops = np.where(is_known, chunks.stops.astype(float), math.inf)
    places = np.flatnonzero(file_of != INLINE)
    taken = _Ranges(file_of[places], chunks.starts[places].astype(float), stops[places])
    ends = np.ones(len(names))  # the last byte that is used, as far as known
    for ranges in (taken, requests):
        np.maximum.at(ends, ranges.files, np.where(np.isinf(ranges.stops), ranges.starts, ranges.stops))
    scale = ends if is_known[places].all() else np.ones(len(names))  # of a file in the strip of all files
    before = np.cumsum(scale) - scale

    def strip(file: int | None) -> Strip:
        def cut(ranges: _Ranges) -> tuple[Positions, Floats, Floats]:
            rows = np.flatnonzero((ranges.files == file) | (file is None))
            of = ranges.files[rows]
            starts, stops = ranges.starts[rows], np.minimum(ranges.stops[rows], ends[of])
            if file is None:
                return rows, before[of] + starts * scale[of] / ends[of], before[of] + stops * scale[of] / ends[of]
            return rows, starts, stops

        rows, starts, stops = cut(taken)
        its, end = places[rows], float(scale.sum() if file is None else ends[file])
        size = int((chunks.stops - chunks.starts)[its][is_known[its]].sum())
        return Strip(
            file,
            "all files" if file is None else names[file],
            len(its),
            size,
            end,
            not bool(is_known[its].all()),
            _pieces(starts, stops, its, end),
            cut(requests)[1:],
        )

    read = np.unique(requests.files)
    chosen = _choose_spaced(read, SHOWN)
    chosen += _choose_spaced(np.setdiff1d(np.arange(len(names)), read), SHOWN - len(chosen))
    all_files = [None] if len(names) > SHOWN else []  # each chunk has its place there, whatever its file
    return [strip(file) for file in (*all_files, *sorted(chosen))]


def _choose_spaced(places: Positions, most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    chosen: list[int] = places[np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(int)].tolist()
    return chosen


def _pieces(starts: Floats, stops: Floats, chunks: Positions, end: float) -> tuple[Floats, Floats, Positions]:
    """Return what a strip is drawn in: the bytes of each chunk, or of more than can be seen, `FINE` equal parts."""
    order = np.argsort(starts, kind="stable")
    starts, stops, chunks = starts[order], stops[order], chunks[order]
    if len(starts) <= FINE:
        return starts, stops, chunks
    edges = np.linspace(0, end, FINE + 1)
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, FINE - 1)
    last = np.clip(np.searchsorted(edges, stops, side="left") - 1, first, FINE - 1)
    begun, ended = np.bincount(first, minlength=FINE + 1), np.bincount(last + 1, minlength=FINE + 1)
    covered = np.flatnonzero(np.cumsum(begun - ended)[:FINE] > 0)
    drawn = chunks[np.searchsorted(first, covered, side="right") - 1]  # the last one that begins there or before
    return edges[covered], edges[covered + 1], drawn


# ----------------------------------------------------------------------------------------------------
# All that is drawn.


class Selection(msgspec.Struct, frozen=True, eq=False):
    """A selection: the numbers of its chunks, how many of these exist, and the requests that reading them makes."""

    text: str
    numbers: Positions
    present: int
    requests: list[Planned]
    wanted: int  # bytes of chunks
    fetched: int  # bytes of requests, as far as known


class Map(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn of one array; of a set, its ``arrays`` and ``files``, and no ``plane``.

    ``colours`` has that of each chunk, of all arrays. ``shard_of`` has the shard that each cell begins in, where chunks
    lie in shards that can be seen.
    """

    source: str
    arrays: tuple[Extents, ...]
    files: Files
    colours: npt.NDArray[np.str_]
    plane: Plane | None = None
    shard_of: Positions | None = None
    selection: Selection | None = None


def picture_of(fs: Surveyed, array: str | None = None, select: Any = None) -> Picture:
    """Return the picture of ``array``, as `visualize` explains; without one, of the set or its only array.

    Raises FileNotFoundError if there is no such array, NotListable where its source cannot list chunks, ValueError
    where its chunks form no grid or ``select`` is not a selection, IndexError where it does not fit.
    """
    text = ""
    if isinstance(select, str):
        named, select, text = *parse_selection(select), select.strip()
        array = array if array is not None or not named else named
        if named and normalise(array or "") != normalise(named):
            raise ValueError(f"the selection {text!r} is of {named!r}, and the picture of {array!r}")
    elif select is not None:
        text = f"{array or ''}[{spell_selection(select)}]"
    source = "references in memory"
    if isinstance(fs.fo, str):
        source = PurePath(fs.fo).name if protocol_of(fs.fo) is None else fs.fo
    try:
        found = survey(fs, None if array is None else normalise(array))
    except FileNotFoundError as e:
        if array is not None and array.endswith("]"):
            raise FileNotFoundError(f"{e}. A selection is given as select={array!r} (--select)") from None
        raise
    if not found.arrays:
        raise FileNotFoundError(f"there is no array in {source}")
    ordered = sorted(found.arrays.values(), key=lambda extents: (int(extents.sizes.sum()), len(extents)), reverse=True)
    if array is None and select is None and len(ordered) > 1:
        return as_picture(map_of_set(source, ordered, found.urls))
    extents = ordered[0] if array is None else found.arrays[normalise(array)]
    if not extents.listed:
        raise NotListable(
            f"the chunks of {extents.path or '/'!r} in {source} cannot be listed, as over plain HTTP, so there "
            "is nothing to draw: 'refshard snapshot SOURCE refs.json' asks for each of them; then draw refs.json"
        )
    selection = None if select is None else _selection_of(fs, extents, select, text)
    return as_picture(map_of_array(source, extents, found.urls, selection))


def map_of_array(source: str, extents: Extents, urls: Sequence[str], selection: Selection | None = None) -> Map:
    """Return what a picture of one array says; ValueError where its chunks form no grid."""
    grid, chunks = extents.meta.grid, extents.chunks
    if grid is None:
        raise ValueError(f"the chunks of {extents.path!r} do not form a known grid: they cannot be drawn")
    if len(grid.counts) > MOST_DIMENSIONS:
        raise ManifestError(
            f"{extents.path!r} has {len(grid.counts)} dimensions; arrays have {MOST_DIMENSIONS} at most"
        )
    plane = plane_of(grid.counts, chunks.numbers, None if selection is None else selection.numbers)
    shard_of = _shards(grid.counts, extents.shards, plane)
    files = _files(chunks, urls, [] if selection is None else selection.requests)
    return Map(redact(source), (extents,), files, _colours_by_file(files), plane, shard_of, selection)


def map_of_set(source: str, arrays: Sequence[Extents], urls: Sequence[str]) -> Map:
    """Return what a picture of a whole set says; each array has a colour."""
    chunks = PlacedChunks(
        *(np.concatenate(columns) for columns in zip(*(array.chunks for array in arrays), strict=True))
    )
    colours = np.repeat([_hue(i) for i in range(len(arrays))], [len(extents) for extents in arrays])
    return Map(redact(source), tuple(arrays), _files(chunks, urls, []), colours)


def _hue(array: int) -> str:
    return HUES[array] if array < FEW else "inline"


def _colours_by_file(files: Files) -> npt.NDArray[np.str_]:
    """Return the colour of each chunk of an array: lighter or darker by its place in its file, or in all files."""
    file_of, is_few = files.file_of, _has_few(files)
    order = np.argsort(file_of, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    groups = file_of if is_few else np.minimum(file_of, 0)  # in which the first and the last chunk are told apart
    first, after = (np.searchsorted(groups[order], groups, side) for side in ("left", "right"))
    last = after - first - 1
    shades = np.rint(SHADES * np.where(last > 0, (place - first) / np.maximum(last, 1), float(is_few))).astype(int)
    palette = [ramp(i / SHADES) for i in range(SHADES + 1)]
    if is_few:
        palette = [_lighter(hue, i / SHADES) for hue in HUES for i in range(SHADES + 1)]
        shades += file_of * (SHADES + 1)
    colours: npt.NDArray[np.str_] = np.array([*palette, "inline"])[np.where(file_of == INLINE, -1, shades)]
    return colours


def _has_few(files: Files) -> bool:
    """Whether each of several files has a colour of its own."""
    return 1 < len(files.names) <= FEW


def _lighter(colour: str, rank: float) -> str:
    """Return the colour of a file's chunk, whose ``rank`` is 0 for its first and 1 for its last."""
    return mix(colour, "#ffffff", 0.6 * (1 - rank))


def _selection_of(fs: Surveyed, extents: Extents, select: Any, text: str) -> Selection:
    meta = extents.meta
    if meta.chunks is None or meta.grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no regular grid, so a selection does not name chunks")
    numbers = chunk_numbers(select, meta.shape, meta.chunks)
    rows = np.flatnonzero(np.isin(extents.chunks.numbers, numbers.astype(np.uint64)))
    keys = extents.keys(rows.tolist())
    size_of = dict(zip(keys, extents.sizes[rows].tolist(), strict=True))
    requests = fs.plan(keys)
    fetched = sum(sum(map(size_of.__getitem__, r.keys)) if r.stop is None else r.stop - r.start for r in requests)
    return Selection(text, numbers, len(rows), requests, sum(size_of.values()), fetched)


# ----------------------------------------------------------------------------------------------------
# A selection as people write it, ``air[0:10, :, -1]``: read without evaluating anything, and spelled.


Part = int | slice | EllipsisType
_INDEX: Final = re.compile(r"[+-]?\d{1,18}|(\s*([+-]?\d{1,18})?\s*:){1,2}\s*([+-]?\d{1,18})?", re.ASCII)


def parse_selection(text: str) -> tuple[str, tuple[Part, ...]]:
    """Return the array (empty if none is named) and the selection in ``text``; ValueError if it is malformed.

    >>> parse_selection("g/air[0:10, ..., -1]")
    ('g/air', (slice(0, 10, None), Ellipsis, -1))
    """
    name, bracket, inside = text.strip().rpartition("[")
    if not bracket or not inside.endswith("]"):
        raise ValueError(f'{text!r} is not a selection: write one as "air[0:10, :, -1]"')
    parts = inside[:-1].split(",")
    if len(parts) > 1 and not parts[-1].strip():  # as in [1,]
        parts.pop()
    return name.strip().strip("/"), tuple(_part(part.strip(), text) for part in parts)


def _part(part: str, text: str) -> Part:
    if part == "...":
        return ...
    if not _INDEX.fullmatch(part):
        raise ValueError(f"{part!r} in {text!r} is not an index: use integers, slices such as 0:10 or ::2, and ...")
    bounds = [int(bound) if bound.strip() else None for bound in part.split(":")]
    if bounds[2:] == [0]:
        raise ValueError(f"{part!r} in {text!r} has a step of 0")
    return slice(*bounds) if ":" in part else int(part)


def spell_selection(select: Any) -> str:
    """Return a selection as it is written between brackets."""
    return ", ".join(map(_spell_part, select if isinstance(select, tuple) else (select,)))


def _spell_part(part: Any) -> str:
    match part:
        case slice(start=start, stop=stop, step=step):
            bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop))
            return bounds if step is None else f"{bounds}:{step}"
        case _ if part is Ellipsis:
            return "..."
    return np.array2string(np.asarray(part), threshold=4, separator=", ")


# ----------------------------------------------------------------------------------------------------
# The picture: its title, the chunk grid or the arrays, and the files.


def as_picture(content: Map) -> Picture:
    """Return the picture that says all of ``content``."""
    page, files = Page(), count_text(len(content.files.names), "file")
    if content.plane is None:
        name, summary = content.source, f"{count_text(len(content.arrays), 'array')} in {files}"
        _draw_arrays(page, content, files)
    else:
        name, summary = _draw_array(page, content, content.plane, files)
    _draw_files(page, content)
    return Picture(content, page.scene(f"Where the bytes of {printable(name or '/')} lie", summary))


def _draw_array(page: Page, content: Map, plane: Plane, files: str) -> tuple[str, str]:
    """Draw all of an array but its files; return its name, and what the picture says in words."""
    (extents,), selection, meta = content.arrays, content.selection, content.arrays[0].meta
    title = extents.path or content.source.rstrip("/").rpartition("/")[2]
    page.heading(title or "root array", "" if title == content.source else content.source)
    what = [f"{shape_text(meta.shape, extents.dimensions)} {meta.dtype}"]
    if meta.chunks is not None:
        what.append(f"chunks of {shape_text(meta.chunks)}")
        if extents.shard_shape is not None:
            what.append(f"shards of {shape_text(extents.shard_shape)}")
    page.parts(what)
    present = f"{len(extents):,} of {count_text(extents.possible or 0, 'chunk')}"
    size = int(extents.sizes.sum())
    page.parts([present, *([bytes_text(size)] if size or not extents.unsized else []), files])
    summary = f"{present} in {files}"
    missing = 0
    if selection is not None:
        reading = _reading(selection)
        summary += f"; {reading}"
        missing = len(selection.numbers) - selection.present
        page.y += 6
        page.add("", [Box(MARGIN + 1, page.y + 5, 9, 9)], stroke="asked", line=2, radius=2)
        page.y += 19
        page.text(MARGIN + 18, page.y - 5, selection.text, ROOM - 18, bold=True)
        page.parts(reading.split(": ", 1), "ink")
        if extents.shards and selection.requests:
            page.line("once the shards' indexes are read")
    _draw_grid(page, content, plane)
    page.legend(_meanings(content))
    if missing:
        page.line(f"{count_text(missing, 'selected chunk')} missing: for these, nothing is requested")
    return title, summary


def _reading(selection: Selection) -> str:
    """Return, in words, what reading the selection takes."""
    if not len(selection.numbers):
        return "is empty: nothing is read"
    summary = f"reads {count_text(len(selection.numbers), 'chunk')} in {count_text(len(selection.requests), 'request')}"
    if len(selection.requests) > 1:
        summary += f" to {count_text(len({request.url for request in selection.requests}), 'file')}"
    if selection.requests and selection.fetched:
        summary += f": {bytes_text(selection.fetched)}"
        if bytes_text(selection.fetched) != bytes_text(selection.wanted):
            summary += f", of which {bytes_text(selection.wanted)} wanted"
    return summary


def _draw_arrays(page: Page, content: Map, files: str) -> None:
    """Draw the arrays of a set, each with a bar of its bytes."""
    sizes = [int(extents.sizes.sum()) for extents in content.arrays]
    page.heading(content.source, "")
    page.parts([count_text(len(sizes), "array"), files, bytes_text(sum(sizes))])
    page.section("Arrays", "bytes of each")
    for i, (extents, size) in enumerate(zip(content.arrays[:ARRAYS], sizes, strict=False)):
        possible = "" if extents.possible is None else f"{extents.possible:,} "
        figures = [f"{len(extents):,} of {possible}chunks", bytes_text(size)]
        page.name(_hue(i), extents.path or "/", figures if extents.listed else ["chunks cannot be listed"])
        page.line(f"{shape_text(extents.meta.shape, extents.dimensions)} {extents.meta.dtype}")
        page.add("faint", [Box(MARGIN, page.y, ROOM, 6)])
        page.add(_hue(i), [Box(MARGIN, page.y, max(ROOM * size / (max(sizes) or 1), 1.4), 6)])
        page.y += 14
    if len(sizes) > ARRAYS:
        page.line(f"and {count_text(len(sizes) - ARRAYS, 'more array')}")


def _draw_grid(page: Page, content: Map, plane: Plane) -> None:
    rows, columns = plane.shape
    page.section("Chunk grid", _axes(content.arrays[0], plane.split))
    if plane.step != (1, 1):
        page.line(f"a cell is {plane.step[0]} × {plane.step[1]} chunks")
    if not rows or not columns:
        page.line("there are no chunks: a dimension is empty")
        return
    wide, high = min(ROOM / columns, LARGEST), min(GRID_HEIGHT / rows, LARGEST)
    wide, high = min(wide, 5 * high), min(high, 5 * wide)
    smaller, top = min(wide, high), page.y + 3
    gap = 1.0 if smaller >= 5 else 0.5 if smaller >= 3 else 0.0
    cells = np.nonzero(plane.room)
    boxes = boxes_at(MARGIN + cells[1] * wide, top + cells[0] * high, wide - gap, high - gap)
    first, full = plane.first[cells], np.ceil(LEVELS * plane.present[cells] / plane.room[cells]) / LEVELS
    fills = np.append(content.colours, "faint")[first]  # the last one for `NO_CHUNK`
    opacities = np.where((full >= 1) | (first == NO_CHUNK), 1, 0.3 + 0.6 * full)
    is_pointed = len(boxes) <= POINTED
    titles = [_title(content, plane, *cell) if is_pointed else "" for cell in np.transpose(cells).tolist()]
    page.add("faint", [boxes[i] for i in np.flatnonzero(opacities < 1)])  # which shows through
    looks = zip(fills.tolist(), opacities.tolist(), titles, strict=True)
    page.paint(boxes, looks, radius=2 if smaller >= 10 and is_pointed else 0)
    corner = Box(MARGIN - gap / 2, top - gap / 2, wide, high)
    if content.shard_of is not None:
        _outline(page, np.pad(content.shard_of, 1, constant_values=NO_CHUNK), corner, "ink", 1.6, 3.6)
    if content.selection is not None:
        _outline(page, np.pad(plane.selected > 0, 1), corner, "asked", 2.6, 5)
    page.y = top + rows * high


def _axes(extents: Extents, split: int | None) -> str:
    counts = extents.counts
    names = [name or f"dim {i}" for i, name in enumerate(extents.dimensions or [""] * len(counts))]
    sized = [f"{name} ({count:,})" if count > 1 else "" for name, count in zip(names, counts, strict=True)]
    if split is None:
        return f"→ {' × '.join(filter(None, sized))}, line by line"
    down, across = (" × ".join(filter(None, part)) for part in (sized[:split], sized[split:]))
    return "   ".join([f"↓ {down}"] * bool(down) + [f"→ {across}"] * bool(across)) or "one chunk"


def _title(content: Map, plane: Plane, row: int, column: int) -> str:
    """Return what a cell stands for: its chunks, and where the bytes of the first one lie."""
    extents, first = content.arrays[0], int(plane.first[row, column])
    if plane.step == (1, 1):
        coords = np.unravel_index(row * plane.width + column, extents.counts) if extents.counts else ()
        summary = f"chunk {', '.join(map(str, coords))}".rstrip()
        if first == NO_CHUNK:
            return f"{summary}: missing"
    else:
        summary = f"{plane.present[row, column]:,} of {count_text(int(plane.room[row, column]), 'chunk')}"
        if first == NO_CHUNK:
            return summary
        summary += ", the first"
    file = int(content.files.file_of[first])
    if file == INLINE:
        return f"{summary}: inline"
    start, stop = int(extents.chunks.starts[first]), int(extents.chunks.stops[first])
    where = "" if stop == WHOLE and not start else f", bytes {start:,} to {'the end' if stop == WHOLE else f'{stop:,}'}"
    return f"{summary}: {printable(content.files.names[file].rstrip('/').rpartition('/')[2])}{where}"


def _outline(page: Page, labels: npt.NDArray[np.generic], corner: Box, fill: str, line: float, border: float) -> None:
    """Draw the borders between cells whose ``labels`` differ; these have a further row and column on each side.

    The borders are as wide as ``line``, and stand on a wider one in the colour of the paper.
    """
    x, y, wide, high = corner
    level = np.nonzero(labels[:-1, 1:-1] != labels[1:, 1:-1])
    upright = np.nonzero(labels[1:-1, :-1] != labels[1:-1, 1:])
    for colour, width in (("paper", border), (fill, line)):
        left, top = x - width / 2, y - width / 2
        boxes = boxes_at(left + level[1] * wide, top + level[0] * high, wide + width, width)
        page.add(colour, boxes + boxes_at(left + upright[1] * wide, top + upright[0] * high, width, high + width))


def _meanings(content: Map) -> Iterator[tuple[str, list[Swatch]]]:
    """Yield texts, each with the fills and strokes that it explains."""
    files, strips, (extents,) = len(content.files.names), content.files.strips, content.arrays
    if _has_few(content.files):
        yield "a colour for each file", [(colour, "") for colour in HUES[:files]]
        if any(strip.chunks > 1 for strip in strips):
            yield "its first to last chunk", [(_lighter("#59636e", i / 3), "") for i in range(4)]
    elif files:
        what = "first to last chunk" + (", file by file" if files > 1 else "")
        yield what, [(ramp(i / 7), "") for i in range(8)]
    has_gaps = any(strip.bytes < 0.99 * strip.end for strip in strips if not strip.is_whole)  # that can be seen
    if len(extents) < (extents.possible or 0):
        yield "missing; in files: other bytes" if has_gaps else "missing", [("faint", "")]
    elif has_gaps:
        yield "other bytes of the file", [("faint", "")]
    inline = int((content.files.file_of == INLINE).sum())
    if inline:
        yield f"inline ({inline:,})", [("inline", "")]
    if content.shard_of is not None:
        yield "shards", [("", "ink")]
    if content.selection is not None:
        yield "selected, and requested", [("", "asked")]


def _draw_files(page: Page, content: Map) -> None:
    """Draw the bytes of files as strips, each with a scale."""
    files, selection = content.files, content.selection
    page.section("Files", f"below {files.base}" if files.base else "bytes up to the last that is used")
    if not files.strips:
        page.line("every chunk there is lies in the source itself")
    for strip in files.strips:
        _draw_strip(page, strip, strip.url.removeprefix(files.base), content)
    own = [strip for strip in files.strips if strip.file is not None]
    left = len(files.names) - len(own)
    if left:
        read = 0 if selection is None else len({request.url for request in selection.requests})
        hidden = read - sum(len(strip.requests[0]) > 0 for strip in own)
        more = f", of which {hidden:,} are read from" if hidden else ""
        page.line(f"and {count_text(left, 'more file')}{more}")


def _draw_strip(page: Page, strip: Strip, name: str, content: Map) -> None:
    figures = [count_text(strip.chunks, "chunk"), bytes_text(strip.bytes) if strip.bytes else "whole"]
    requests = len(strip.requests[0])
    page.y += 4
    page.name("", name, [*figures, count_text(requests, "request")] if requests else figures)
    scale = ROOM / strip.end

    def boxes(starts: Floats, stops: Floats, height: float) -> list[Box]:
        widths = np.maximum((stops - starts) * scale, 1.4)  # to be seen
        return boxes_at(MARGIN + np.minimum(starts * scale, ROOM - widths), page.y, widths, height)

    starts, stops, chunks = strip.pieces
    page.add("faint", [Box(MARGIN, page.y, ROOM, BAR)], title=printable(strip.url))
    page.paint(boxes(starts, stops, BAR), ((fill, 1, "") for fill in content.colours[chunks].tolist()))
    page.y += BAR + 2
    if content.selection is not None:
        page.add("asked", boxes(*strip.requests, 5))
        page.y += 6
    if strip.is_whole:
        return
    step = 1  # of the scale, a power of two
    while strip.end > 4 * step:
        step *= 2
    page.y += 14
    for tick in range(0, int(strip.end) + 1, step):
        x, text = MARGIN + tick * scale, bytes_text(tick) if tick else "0"
        if x + 4 + width_of(text, 11) <= MARGIN + ROOM:
            page.add("muted", [Box(x, page.y - 13, 1, 11)])
            page.text(x + 4, page.y - 3, text, size=11, fill="muted")

"""Find the files in which chunks lie, and divide the bytes of some files into strips to draw. No I/O here."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE
from refshard_fs.errors import redact
from refshard_fs.reading.plan import PlannedRequest
from refshard_fs.tools.colours import HUES, mix_colours, pick_shade
from refshard_fs.tools.survey import INLINE, PlacedChunks, Positions

SHOWN: Final = 6  # the most files that have a strip
FINE: Final = 240  # the most pieces of a strip
Floats = npt.NDArray[np.float64]
SHADES: Final = 24  # steps in a ramp of colours, and shades of the colour of one file
FEW: Final = len(HUES)  # the most files, or arrays of a set, that get different colours


class Strip(msgspec.Struct, frozen=True, eq=False):
    """One file, up to ``end``: the end of its last chunk or request.

    ``pieces`` are columns: the start and the stop of a piece, and the index of its chunk among the chunks that exist.
    ``requests`` are starts and stops. ``is_whole`` means that chunks reach to the end of the file, which is not known.
    ``file`` is the index of the file. It is None for a strip of all files, one after the other, whose bytes are counted
    from the start of the first file; if sizes are not known, each file counts as one byte.
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
    """The files of chunks: ``file_of`` has an index into ``names``, or `INLINE`, for each; ``strips`` are some files.

    URLs are without credentials; ``base`` is the directory of all files, or empty.
    """

    file_of: Positions
    names: tuple[str, ...]
    base: str
    strips: list[Strip]


class _Ranges(NamedTuple):
    """Byte ranges of files as columns; a stop is infinite if the range ends at the unknown end of its file."""

    files: Positions
    starts: Floats
    stops: Floats


def find_files(chunks: PlacedChunks, urls: Sequence[str], requests: Sequence[PlannedRequest]) -> Files:
    """Return the files in which ``chunks`` lie, in the order of their first chunks."""
    in_files = chunks.targets != INLINE
    known, first, places = np.unique(chunks.targets[in_files], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    file_of = np.full(len(chunks.targets), INLINE, np.int64)
    file_of[in_files] = np.argsort(order)[places]
    found = [urls[i] for i in known[order].tolist()]
    names = tuple(map(redact, found))
    common = posixpath.commonprefix(list(names)) if len(names) > 1 else ""
    base = common[: common.rfind("/") + 1]
    base = "" if base.endswith("://") or len(base) < 8 else base  # only a protocol, or too short to be worth a line
    number = {url: i for i, url in enumerate(found)}
    rows = [(number[r.url], r.start, math.inf if r.stop is None else r.stop) for r in requests if r.url in number]
    files, *bounds = np.array(rows, float).reshape(-1, 3).T
    return Files(file_of, names, base, _make_strips(chunks, file_of, names, _Ranges(files.astype(np.int64), *bounds)))


def _make_strips(chunks: PlacedChunks, file_of: Positions, names: Sequence[str], requests: _Ranges) -> list[Strip]:
    """Return a strip for each of at most `SHOWN` files, in the order of files.

    Requested files are chosen before others. If there are more files, a strip of all files comes first.
    """
    is_known = chunks.stops != WHOLE
    stops = np.where(is_known, chunks.stops.astype(float), math.inf)
    places = np.flatnonzero(file_of != INLINE)
    taken = _Ranges(file_of[places], chunks.starts[places].astype(float), stops[places])
    ends = np.ones(len(names))  # the last byte that is used, as far as known
    for ranges in (taken, requests):
        np.maximum.at(ends, ranges.files, np.where(np.isinf(ranges.stops), ranges.starts, ranges.stops))
    scale = ends if is_known[places].all() else np.ones(len(names))  # the length of a file in the strip of all files
    before = np.cumsum(scale) - scale

    def make_strip(file: int | None) -> Strip:
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
            _make_pieces(starts, stops, its, end),
            cut(requests)[1:],
        )

    read = np.unique(requests.files)
    chosen = _choose_spaced(read, SHOWN)
    chosen += _choose_spaced(np.setdiff1d(np.arange(len(names)), read), SHOWN - len(chosen))
    all_files = [None] if len(names) > SHOWN else []  # one strip for the chunks of all files
    return [make_strip(file) for file in (*all_files, *sorted(chosen))]


def _choose_spaced(places: Positions, most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    chosen: list[int] = places[np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(int)].tolist()
    return chosen


def _make_pieces(starts: Floats, stops: Floats, chunks: Positions, end: float) -> tuple[Floats, Floats, Positions]:
    """Return the pieces of a strip: the bytes of each chunk, or the parts with chunks among `FINE` equal parts."""
    order = np.argsort(starts, kind="stable")
    starts, stops, chunks = starts[order], stops[order], chunks[order]
    if len(starts) <= FINE:
        return starts, stops, chunks
    edges = np.linspace(0, end, FINE + 1)
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, FINE - 1)
    last = np.clip(np.searchsorted(edges, stops, side="left") - 1, first, FINE - 1)
    begun, ended = np.bincount(first, minlength=FINE + 1), np.bincount(last + 1, minlength=FINE + 1)
    covered = np.flatnonzero(np.cumsum(begun - ended)[:FINE] > 0)
    drawn = chunks[np.searchsorted(first, covered, side="right") - 1]  # the last chunk that begins at or before a place
    return edges[covered], edges[covered + 1], drawn


def pick_hue(array: int) -> str:
    """Return the colour of an array in a picture of several, by its number."""
    return HUES[array] if array < FEW else "inline"


def colour_chunks(files: Files) -> npt.NDArray[np.str_]:
    """Return the colour of each chunk of an array: lighter or darker by its place in its file, or in all files."""
    file_of, is_few = files.file_of, have_own_colours(files)
    order = np.argsort(file_of, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    groups = file_of if is_few else np.minimum(file_of, 0)  # shades run from the first to the last chunk of a group
    first, after = (np.searchsorted(groups[order], groups, side) for side in ("left", "right"))
    last = after - first - 1
    shades = np.rint(SHADES * np.where(last > 0, (place - first) / np.maximum(last, 1), float(is_few))).astype(int)
    palette = [pick_shade(i / SHADES) for i in range(SHADES + 1)]
    if is_few:
        palette = [lighten(hue, i / SHADES) for hue in HUES for i in range(SHADES + 1)]
        shades += file_of * (SHADES + 1)
    colours: npt.NDArray[np.str_] = np.array([*palette, "inline"])[np.where(file_of == INLINE, -1, shades)]
    return colours


def have_own_colours(files: Files) -> bool:
    """Return whether there are several files, each with a different colour."""
    return 1 < len(files.names) <= FEW


def lighten(colour: str, rank: float) -> str:
    """Return the shade of a file's ``colour`` for one of its chunks: ``rank`` is 0 for the first, 1 for the last."""
    return mix_colours(colour, "#ffffff", 0.6 * (1 - rank))

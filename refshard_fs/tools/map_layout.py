"""A map as a scene, in one column that a phone can show: what it is, the chunk grid or the arrays, and the files.

A scene is made of values: rectangles and labels, each where it stands. Nothing is drawn here. Every text is cut to the
room that it has, so that none lies over another. A chunk has one colour, in the grid and in its file.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, product
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE
from refshard_fs.core.stats import bytes_text, count_text, shape_text
from refshard_fs.errors import printable
from refshard_fs.tools.map import FEW, NOTHING, Asked, ChunkMap, Files, SetMap, Strip
from refshard_fs.tools.survey import INLINE, Extents

# ----------------------------------------------------------------------------------------------------
# How wide text will be, at most, whatever font a viewer has; and text cut to fit.


# Widths of characters as parts of the font size, at most, in sans serifs as wide as DejaVu Sans.
_NARROW: Final = frozenset(" !'(),-./:;I[\\]fijlrt|·")
_BROAD: Final = frozenset("#%&+<=>@MOQW^mw~")
_BOLD: Final = 1.17


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of ``text`` at a font size, in the unit of that size."""
    return sum(map(_width, text)) * size * (_BOLD if bold else 1)


def _width(char: str) -> float:
    if char in _NARROW:
        return 0.43
    if char in _BROAD:
        return 1.02
    if char < "\x7f":
        return 0.8 if char.isupper() else 0.66
    is_wide = unicodedata.east_asian_width(char) in "WF" or ord(char) > 0xFFFF  # such as emoji
    return 1.8 if is_wide else 1.0


def _shortened(text: str, size: float, room: float, *, bold: bool, keep_end: bool) -> str:
    """Return ``text``, or what fits of its start (``keep_end``: of its end) with an ellipsis; "" if nothing does."""
    if width_of(text, size, bold=bold) <= room:
        return text
    left = room - width_of("…", size, bold=bold)
    ends = accumulate(width_of(char, size, bold=bold) for char in (reversed(text) if keep_end else text))
    kept = sum(end <= left for end in ends)
    if not kept:
        return ""
    return "…" + text[-kept:] if keep_end else text[:kept].rstrip() + "…"


# ----------------------------------------------------------------------------------------------------
# Colours that tell files apart, also for the colour-blind.


# Hues that stay apart in all common kinds of colour blindness (after M. Okabe and K. Ito), less black.
_HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")

# For many files, from the first to the last: lightness rises all the way, so that order shows in any eye.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")


def _ramp(position: float) -> str:
    """Return the colour at ``position``, 0 to 1, of the ramp."""
    at = position * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    return _mixed(_RAMP[first], _RAMP[first + 1], at - first)


def _mixed(one: str, other: str, share: float) -> str:
    """Return ``one`` with a ``share`` of ``other``, both as #rrggbb."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _lighter(colour: str, rank: float) -> str:
    """Return the colour of a file's chunk, whose ``rank`` is 0 for its first and 1 for its last."""
    return _mixed(colour, "#ffffff", 0.6 * (1 - rank))


# ----------------------------------------------------------------------------------------------------
# What a scene is made of. A fill is a colour, or the name of a role ("paper", "asked": see `ROLES`), which has a
# colour by day and one by night.


Anchor = Literal["start", "end"]


class Box(NamedTuple):
    """One rectangle."""

    x: float
    y: float
    width: float
    height: float


class Boxes(msgspec.Struct, frozen=True):
    """Rectangles of one colour. ``stroke`` draws an outline; ``title`` shows when they are pointed at."""

    fill: str
    boxes: Sequence[Box]
    opacity: float = 1
    stroke: str = ""
    line: float = 1
    radius: float = 0
    title: str = ""


class Label(msgspec.Struct, frozen=True):
    """One line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    anchor: Anchor
    bold: bool
    title: str

    @property
    def box(self) -> Box:
        """The room that the text takes, at most."""
        width = width_of(self.text, self.size, bold=self.bold)
        left = width if self.anchor == "end" else 0
        return Box(self.x - left, self.y - 0.95 * self.size, width, 1.2 * self.size)


class Scene(msgspec.Struct, frozen=True):
    """All of a picture; what comes later lies above. ``title`` and ``text`` say in words what it shows."""

    width: float
    height: float
    shapes: tuple[Boxes | Label, ...]
    title: str
    text: str

    @property
    def labels(self) -> list[Label]:
        """The labels, in their order."""
        return [shape for shape in self.shapes if isinstance(shape, Label)]


# Lengths are in units of the picture: it is shown 360 to 640 pixels wide, so that 12 units are 8 pixels at least.
WIDTH: Final = 520.0
MARGIN: Final = 20.0
ROOM: Final = WIDTH - 2 * MARGIN
GRID_HEIGHT: Final = 320.0
LARGEST: Final = 56.0  # side of a cell
BAR: Final = 14.0  # height of a strip
POINTED: Final = 600  # cells up to which each has a text of its own to show
SHADES: Final = 24  # of the ramp, and of a file's colour
LEVELS: Final = 4  # of how full a cell is
ARRAYS: Final = 12  # of a set that are named

Colour = Callable[[int], str]


def scene_of(shown: ChunkMap | SetMap) -> Scene:
    """Return the picture of ``shown``."""
    return _array_scene(shown) if isinstance(shown, ChunkMap) else _set_scene(shown)


def _array_scene(shown: ChunkMap) -> Scene:
    extents, asked, files = shown.extents, shown.asked, shown.files
    draft, colour = _Draft(), _colour_of_chunks(shown)
    present = f"{len(extents):,} of {count_text(extents.possible or 0, 'chunk')}"
    draft.heading(shown.title or "root array", "" if shown.title == shown.source else shown.source)
    what = [f"{shape_text(extents.meta.shape, extents.dimensions)} {extents.meta.dtype}"]
    if extents.meta.chunks is not None:
        what.append(f"chunks of {shape_text(extents.meta.chunks)}")
        if extents.shards:
            shard = [chunk * count for chunk, count in zip(extents.meta.chunks, extents.shards, strict=True)]
            what.append(f"shards of {shape_text(shard)}")
    draft.parts(what)
    size = int(extents.sizes.sum())
    known = [bytes_text(size)] if size or not extents.unsized else []
    draft.parts([present, *known, count_text(len(files.names), "file")])
    if asked is not None:
        draft.selected(asked, is_sharded=bool(extents.shards))
    _grid(draft, shown, colour)
    draft.legend(_meanings(shown))
    missing = 0 if asked is None else len(asked.numbers) - asked.present
    if missing:
        draft.line(f"{count_text(missing, 'selected chunk')} missing: for these, nothing is requested")
    _files(draft, files, colour, asked)
    said = f"{present} in {count_text(len(files.names), 'file')}"
    if asked is not None:
        said += f"; {_reading(asked)}"
    return draft.scene(f"Where the bytes of {printable(shown.title or '/')} lie", said)


def _set_scene(shown: SetMap) -> Scene:
    """Return the picture of a set: its arrays, and its files with a colour for each array."""
    draft, arrays, files = _Draft(), shown.arrays, shown.files

    def hue(array: int) -> str:
        return _HUES[array] if array < FEW else "inline"

    def colour(chunk: int) -> str:
        return hue(int(shown.array_of[chunk]))

    sizes = [int(extents.sizes.sum()) for extents in arrays]
    said = f"{count_text(len(arrays), 'array')} in {count_text(len(files.names), 'file')}"
    draft.heading(shown.source, "")
    draft.parts([count_text(len(arrays), "array"), count_text(len(files.names), "file"), bytes_text(sum(sizes))])
    draft.section("Arrays", "bytes of each")
    for i, extents in enumerate(arrays[:ARRAYS]):
        shape = f"{shape_text(extents.meta.shape, extents.dimensions)} {extents.meta.dtype}"
        draft.bar(hue(i), extents.path or "/", _figures(extents, sizes[i]), shape, sizes[i] / (max(sizes) or 1))
    if len(arrays) > ARRAYS:
        draft.line(f"and {count_text(len(arrays) - ARRAYS, 'more array')}")
    _files(draft, files, colour, None)
    return draft.scene(f"Where the bytes of {printable(shown.source)} lie", said)


def _figures(extents: Extents, size: int) -> list[str]:
    if not extents.listed:
        return ["chunks cannot be listed"]
    possible = "" if extents.possible is None else f"{extents.possible:,} "
    return [f"{len(extents):,} of {possible}chunks", bytes_text(size)]


def _colour_of_chunks(shown: ChunkMap) -> Colour:
    """Return the colour of each chunk of an array, by its place among those that exist."""
    file_of, ranks = shown.files.file_of, shown.ranks
    is_few = 1 < len(shown.files.names) <= FEW

    def colour(chunk: int) -> str:
        file, shade = int(file_of[chunk]), round(float(ranks[chunk]) * SHADES) / SHADES
        if file == INLINE:
            return "inline"
        return _lighter(_HUES[file], shade) if is_few else _ramp(shade)

    return colour


class _Draft:
    """A scene as it grows downward: ``y`` is where the next thing goes."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._shapes: list[Boxes | Label] = []

    def scene(self, title: str, said: str) -> Scene:
        height = self.y + MARGIN - 4
        paper = Boxes("paper", [Box(0.5, 0.5, WIDTH - 1, height - 1)], stroke="edge", radius=8)
        return Scene(WIDTH, height, (paper, *self._shapes), title, said)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        room: float,
        size: float = 13,
        fill: str = "ink",
        anchor: Anchor = "start",
        *,
        bold: bool = False,
        keep_end: bool = False,
    ) -> float:
        """Place one line of text, cut to ``room``; return its width."""
        text = printable(text)
        cut = _shortened(text, size, room, bold=bold, keep_end=keep_end)
        if cut:
            self._shapes.append(Label(x, y, cut, size, fill, anchor, bold, text if cut != text else ""))
        return width_of(cut, size, bold=bold)

    def add(self, boxes: Boxes) -> None:
        self._shapes.append(boxes)

    def line(self, text: str, fill: str = "muted", *, keep_end: bool = False) -> None:
        """Place one line, and go below it."""
        self.y += 19
        self.text(MARGIN, self.y - 5, text, ROOM, 13, fill, keep_end=keep_end)

    def heading(self, title: str, source: str) -> None:
        self.y += 28
        self.text(MARGIN, self.y - 8, title, ROOM, 22, bold=True, keep_end=True)
        if source:
            self.line(source, keep_end=True)

    def parts(self, parts: Sequence[str], fill: str = "muted") -> None:
        """Place ``parts`` on as many lines as they take."""
        several: list[str] = []
        for part in parts:
            longer = f"{several[-1]}  ·  {part}" if several else ""
            if several and width_of(longer, 13) <= ROOM:
                several[-1] = longer
            else:
                several.append(part)
        for one in several:
            self.line(one, fill)

    def section(self, title: str, said: str) -> None:
        self.y += 34
        width = self.text(MARGIN, self.y - 8, title, ROOM, 15, bold=True)
        self.text(MARGIN + width + 12, self.y - 8, said, ROOM - width - 12, 13, "muted", keep_end=True)

    def selected(self, asked: Asked, *, is_sharded: bool) -> None:
        self.y += 6
        self.add(Boxes("", [Box(MARGIN + 1, self.y + 5, 9, 9)], stroke="asked", line=2, radius=2))
        self.y += 19
        self.text(MARGIN + 18, self.y - 5, asked.text, ROOM - 18, 13, bold=True)
        self.parts(_reading(asked).split(": ", 1), "ink")
        if is_sharded and asked.requests:
            self.line("once the shards' indexes are read")

    def bar(self, colour: str, name: str, figures: list[str], said: str, share: float) -> None:
        """Place what an array or a file is called and has, and a bar of its ``share`` of the room; "" for no text."""
        self.name(colour, name, figures)
        self.line(said)
        self.add(Boxes("faint", [Box(MARGIN, self.y, ROOM, 6)]))
        self.add(Boxes(colour, [Box(MARGIN, self.y, max(ROOM * share, 1.4), 6)]))
        self.y += 14

    def name(self, colour: str, name: str, figures: list[str]) -> None:
        """Place a name behind a swatch of its colour, if it has one, and its figures on the right."""
        self.y += 19
        taken = self.text(WIDTH - MARGIN, self.y - 5, "  ·  ".join(figures), ROOM - 130, 12, "muted", "end")
        left = MARGIN
        if colour:
            self.add(Boxes(colour, [Box(MARGIN, self.y - 15, 11, 11)], radius=2))
            left += 17
        self.text(left, self.y - 5, name, WIDTH - MARGIN - taken - 12 - left, 13, keep_end=True)

    def legend(self, entries: Iterator[tuple[str, list[tuple[str, str]]]]) -> None:
        """Place texts, each behind the fills and strokes that it explains."""
        self.y += 8
        x, y = MARGIN, self.y + 14
        for text, swatches in entries:
            is_one = len(swatches) == 1
            wide = 12.0 if is_one else 6.0 * len(swatches)
            needed = wide + 6 + width_of(text, 13)
            if x > MARGIN and x + needed > MARGIN + ROOM:
                x, y = MARGIN, y + 20
            for i, (fill, stroke) in enumerate(swatches):
                box = Box(x + 6 * i, y - 11, 12 if is_one else 6, 12)
                self.add(Boxes(fill, [box], stroke=stroke, line=2, radius=2 if is_one else 0))
            self.text(x + wide + 6, y, text, MARGIN + ROOM - x - wide - 6, 13, "muted")
            x += needed + 18
        self.y = y + 5


# ----------------------------------------------------------------------------------------------------
# The chunk grid, and what its colours mean.


def _grid(draft: _Draft, shown: ChunkMap, colour: Colour) -> None:
    plane = shown.plane
    rows, columns = plane.shape
    draft.section("Chunk grid", _axes(shown))
    if plane.step != (1, 1):
        draft.line(f"a cell is {plane.step[0]} × {plane.step[1]} chunks")
    if not rows or not columns:
        draft.line("there are no chunks: a dimension is empty")
        return
    wide, high = min(ROOM / columns, LARGEST), min(GRID_HEIGHT / rows, LARGEST)
    wide, high = min(wide, 5 * high), min(high, 5 * wide)
    smaller, top = min(wide, high), draft.y + 3
    gap = 1.0 if smaller >= 5 else 0.5 if smaller >= 3 else 0.0
    places = [place for place in product(range(rows), range(columns)) if plane.room[place]]
    boxes = {
        (row, column): Box(MARGIN + column * wide, top + row * high, wide - gap, high - gap) for row, column in places
    }
    fills = {place: _cell(shown, colour, *place) for place in places}
    below = [boxes[place] for place in places if fills[place][1] < 1]  # what shows through
    if below:
        draft.add(Boxes("faint", below))
    groups: dict[tuple[str, float, str], list[Box]] = {}
    for place in places:
        title = _title(shown, *place) if len(places) <= POINTED else ""
        groups.setdefault((*fills[place], title), []).append(boxes[place])
    radius = 2 if smaller >= 10 and len(places) <= POINTED else 0
    for (fill, opacity, title), group in groups.items():
        draft.add(Boxes(fill, group, opacity, radius=radius, title=title))
    corner = Box(MARGIN - gap / 2, top - gap / 2, wide, high)
    if shown.shard_of is not None:
        _outline(draft, np.pad(shown.shard_of, 1, constant_values=NOTHING), corner, "ink", 1.6, 3.6)
    if shown.asked is not None:
        _outline(draft, np.pad(plane.asked > 0, 1), corner, "asked", 2.6, 5)
    draft.y = top + rows * high


def _axes(shown: ChunkMap) -> str:
    split = shown.plane.split
    names = [name or f"dim {i}" for i, name in enumerate(shown.extents.dimensions or [""] * len(shown.counts))]
    sized = [f"{name} ({count:,})" if count > 1 else "" for name, count in zip(names, shown.counts, strict=True)]
    if split is None:
        return f"→ {' × '.join(filter(None, sized))}, line by line"
    down, across = (" × ".join(filter(None, part)) for part in (sized[:split], sized[split:]))
    return "   ".join([f"↓ {down}"] * bool(down) + [f"→ {across}"] * bool(across)) or "one chunk"


def _cell(shown: ChunkMap, colour: Colour, row: int, column: int) -> tuple[str, float]:
    """Return the fill and the opacity of a cell: it has the colour of its first chunk."""
    plane = shown.plane
    first = int(plane.first[row, column])
    if first == NOTHING:
        return "faint", 1.0
    full = -(-LEVELS * int(plane.present[row, column]) // int(plane.room[row, column])) / LEVELS
    return colour(first), 1.0 if full >= 1 else 0.3 + 0.6 * full


def _title(shown: ChunkMap, row: int, column: int) -> str:
    """Return what a cell stands for: its chunks, and where the bytes of the first one lie."""
    plane, chunks = shown.plane, shown.extents.chunks
    present, room, first = (int(of[row, column]) for of in (plane.present, plane.room, plane.first))
    if plane.step == (1, 1):
        coords = np.unravel_index(row * plane.width + column, shown.counts) if shown.counts else ()
        said = f"chunk {', '.join(map(str, coords))}".rstrip()
        if first == NOTHING:
            return f"{said}: missing"
    else:
        said = f"{present:,} of {count_text(room, 'chunk')}"
        if first == NOTHING:
            return said
        said += ", the first"
    file = int(shown.files.file_of[first])
    if file == INLINE:
        return f"{said}: inline"
    start, stop = int(chunks.starts[first]), int(chunks.stops[first])
    where = "" if stop == WHOLE and not start else f", bytes {start:,} to {'the end' if stop == WHOLE else f'{stop:,}'}"
    return f"{said}: {printable(_name(shown.files.names[file]))}{where}"


def _outline(
    draft: _Draft, labels: npt.NDArray[np.generic], corner: Box, fill: str, line: float, border: float
) -> None:
    """Draw the sides between cells of different ``labels``, around which are those of what lies outside.

    They are as wide as ``line``, on a border of paper.
    """
    x, y, wide, high = corner
    level = np.argwhere(labels[:-1, 1:-1] != labels[1:, 1:-1]).tolist()
    upright = np.argwhere(labels[1:-1, :-1] != labels[1:-1, 1:]).tolist()
    if not level and not upright:
        return
    for colour, width in (("paper", border), (fill, line)):
        left, top = x - width / 2, y - width / 2
        boxes = [Box(left + column * wide, top + row * high, wide + width, width) for row, column in level]
        boxes += [Box(left + column * wide, top + row * high, width, high + width) for row, column in upright]
        draft.add(Boxes(colour, boxes))


def _meanings(shown: ChunkMap) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield texts, each with the fills and strokes that it explains."""
    files, strips = len(shown.files.names), shown.files.strips
    if 1 < files <= FEW:
        yield "a colour for each file", [(colour, "") for colour in _HUES[:files]]
        if any(strip.chunks > 1 for strip in strips):
            yield "its first to last chunk", [(_lighter("#59636e", i / 3), "") for i in range(4)]
    elif files:
        what = "first to last chunk" + (", file by file" if files > 1 else "")
        yield what, [(_ramp(i / 7), "") for i in range(8)]
    has_gaps = any(strip.bytes < 0.99 * strip.end for strip in strips if not strip.is_whole)  # that can be seen
    if len(shown.extents) < (shown.extents.possible or 0):
        yield "missing; in files: other bytes" if has_gaps else "missing", [("faint", "")]
    elif has_gaps:
        yield "other bytes of the file", [("faint", "")]
    inline = int((shown.files.file_of == INLINE).sum())
    if inline:
        yield f"inline ({inline:,})", [("inline", "")]
    if shown.shard_of is not None:
        yield "shards", [("", "ink")]
    if shown.asked is not None:
        yield "selected, and requested", [("", "asked")]


# ----------------------------------------------------------------------------------------------------
# The files: their bytes as strips, each with a scale.


def _files(draft: _Draft, files: Files, colour: Colour, asked: Asked | None) -> None:
    draft.section("Files", f"below {files.base}" if files.base else "bytes up to the last that is used")
    if not files.strips:
        draft.line("every chunk there is lies in the source itself")
        return
    for strip in files.strips:
        _strip(draft, strip, strip.url.removeprefix(files.base), colour, has_requests=asked is not None)
    shown = [strip for strip in files.strips if strip.file is not None]
    left = len(files.names) - len(shown)
    if left:
        more = f"and {count_text(left, 'more file')}"
        read = 0 if asked is None else len({request.url for request in asked.requests})
        hidden = read - sum(bool(strip.requests) for strip in shown)
        draft.line(more + (f", of which {hidden:,} are read from" if hidden else ""))


def _strip(draft: _Draft, strip: Strip, name: str, colour: Colour, *, has_requests: bool) -> None:
    figures = [count_text(strip.chunks, "chunk"), bytes_text(strip.bytes) if strip.bytes else "whole"]
    if strip.requests:
        figures.append(count_text(len(strip.requests), "request"))
    draft.y += 4
    draft.name("", name, figures)
    top, scale = draft.y, ROOM / strip.end

    def piece(start: float, stop: float, y: float, height: float) -> Box:
        width = max((stop - start) * scale, 1.4)  # to be seen
        return Box(MARGIN + min(start * scale, ROOM - width), y, width, height)

    draft.add(Boxes("faint", [Box(MARGIN, top, ROOM, BAR)], title=printable(strip.url)))
    groups: dict[str, list[Box]] = {}
    for start, stop, chunk in strip.segments:
        groups.setdefault(colour(chunk), []).append(piece(start, stop, top, BAR))
    for fill, pieces in groups.items():
        draft.add(Boxes(fill, pieces))
    draft.y += BAR + 2
    if strip.requests:
        draft.add(Boxes("asked", [piece(start, stop, draft.y, 5) for start, stop in strip.requests]))
    if has_requests:
        draft.y += 6
    if not strip.is_whole:
        _scale(draft, strip.end, scale)


def _scale(draft: _Draft, end: float, scale: float) -> None:
    """Draw a scale of bytes below a strip, in steps that are a power of two."""
    step = 1
    while end > 4 * step:
        step *= 2
    draft.y += 14
    for tick in range(int(end // step) + 1):
        x, text = MARGIN + tick * step * scale, bytes_text(tick * step) if tick else "0"
        if x + 4 + width_of(text, 11) <= WIDTH - MARGIN:
            draft.add(Boxes("muted", [Box(x, draft.y - 13, 1, 11)]))
            draft.text(x + 4, draft.y - 3, text, ROOM, 11, "muted")


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _reading(asked: Asked) -> str:
    """Say what reading a selection takes."""
    if not len(asked.numbers):
        return "is empty: nothing is read"
    said = f"reads {count_text(len(asked.numbers), 'chunk')} in {count_text(len(asked.requests), 'request')}"
    if len(asked.requests) > 1:
        said += f" to {count_text(len({request.url for request in asked.requests}), 'file')}"
    if asked.requests and asked.fetched:
        said += f": {bytes_text(asked.fetched)}"
        if bytes_text(asked.fetched) != bytes_text(asked.wanted):
            said += f", of which {bytes_text(asked.wanted)} wanted"
    return said

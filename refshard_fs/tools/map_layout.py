"""A chunk map as a scene: the chunk grid on the left, the files on the right, and what colours mean below.

A scene is made of values: rectangles and labels, each where it stands. Nothing is drawn here. Every text is cut to the
room that it has, so that none lies over another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.stats import bytes_text, count_text, shape_text
from refshard_fs.errors import printable
from refshard_fs.tools.map import Asked, ChunkMap, Strip
from refshard_fs.tools.survey import INLINE

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
    kept = 0
    for char in reversed(text) if keep_end else text:
        left -= width_of(char, size, bold=bold)
        if left < 0:
            break
        kept += 1
    if not kept:
        return ""
    return "…" + text[-kept:] if keep_end else text[:kept].rstrip() + "…"


# ----------------------------------------------------------------------------------------------------
# Colours that tell files apart, also for the colour-blind; and those of paper and ink, by day and by night.


# Hues that stay apart in all common kinds of colour blindness (after M. Okabe and K. Ito), less black.
_HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")

# For many files, from the first to the last: lightness rises all the way, so that order shows in any eye.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")

# Roles of colours, by day and by night.
ROLES: Final = {
    "paper": ("#ffffff", "#14181d"),
    "edge": ("#d8dee4", "#2c333b"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9aa5b1"),
    "faint": ("#eef1f4", "#232a31"),
    "asked": ("#c2185b", "#ff6fa5"),
    "inline": ("#8b949e", "#7d8792"),
}


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


# Lengths are in pixels of an SVG that is shown at its own size.
WIDTH: Final = 1120.0
MARGIN: Final = 36.0
GRID: Final = 488.0  # width of the chunk grid at most
GRID_HEIGHT: Final = 432.0
LARGEST: Final = 64.0  # side of a cell
FILES_X: Final = 592.0
FILES: Final = WIDTH - MARGIN - FILES_X
BAR: Final = 15.0  # height of a strip
POINTED: Final = 600  # cells up to which each has a text of its own to show
SHADES: Final = 24  # of the ramp, in the grid of an array in one file
LEVELS: Final = 4  # of how full a cell is


def scene_of(shown: ChunkMap) -> Scene:
    """Return the picture of ``shown``."""
    return _Layout(shown).scene()


class _Layout:
    def __init__(self, shown: ChunkMap) -> None:
        self._map, self._plane, self._extents = shown, shown.plane, shown.extents
        self._shapes: list[Boxes | Label] = []
        count = len(shown.files)
        self._is_few = count <= len(_HUES)
        self._colours = list(_HUES[:count]) if self._is_few else [_ramp(i / (count - 1)) for i in range(count)]
        possible = count_text(self._extents.possible or 0, "chunk")
        self._present = f"{len(self._extents):,} of {possible}"

    def scene(self) -> Scene:
        shown = self._map
        top = self._heading()
        left, right = self._grid(top), self._files(top)
        height = max(self._legend(left), right) + MARGIN - 8
        paper = Boxes("paper", [Box(0.5, 0.5, WIDTH - 1, height - 1)], stroke="edge", radius=10)
        said = f"{self._present} in {count_text(len(shown.files), 'file')}"
        if shown.asked is not None:
            said += f"; {_reading(shown.asked)}"
        title = f"Where the bytes of {printable(shown.path or '/')} lie"
        return Scene(WIDTH, height, (paper, *self._shapes), title, said)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        room: float,
        size: float = 12,
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

    def _boxes(self, fill: str, *boxes: Box, stroke: str = "", line: float = 1, title: str = "") -> None:
        self._shapes.append(Boxes(fill, boxes, stroke=stroke, line=line, radius=2, title=title))

    # ------------------------------------------------------------------ what it is

    def _heading(self) -> float:
        shown, extents, room = self._map, self._extents, WIDTH - 2 * MARGIN
        name = self._text(MARGIN, 48, shown.path or "/", room * 0.6, 22, bold=True, keep_end=True)
        self._text(WIDTH - MARGIN, 48, shown.source, room - name - 24, 12, "muted", "end", keep_end=True)
        parts = [f"{shape_text(extents.meta.shape)} {extents.meta.dtype}"]
        if extents.meta.chunks is not None:
            parts.append(f"chunks of {shape_text(extents.meta.chunks)}")
            if extents.shards:
                shard = [chunk * count for chunk, count in zip(extents.meta.chunks, extents.shards, strict=True)]
                parts.append(f"shards of {shape_text(shard)}")
        parts += [self._present, bytes_text(int(extents.sizes.sum())), count_text(len(shown.files), "file")]
        self._text(MARGIN, 72, "  ·  ".join(parts), room, 13, "muted")
        if shown.asked is None:
            return 112
        self._boxes("", Box(MARGIN + 1, 85.5, 9, 9), stroke="asked", line=2)
        said = f"{shown.asked.text}  {_reading(shown.asked)}"
        if extents.shards and shown.asked.requests:
            said += ", once the shards' indexes are read"
        self._text(MARGIN + 18, 95, said, room - 18, 13, bold=True)
        return 136

    # ------------------------------------------------------------------ the grid

    def _grid(self, top: float) -> float:
        shown, plane = self._map, self._plane
        self._text(MARGIN, top, "Chunk grid", GRID, 14, bold=True)
        rows, columns = plane.shape
        self._text(MARGIN, top + 19, self._axes(), GRID, 12, "muted")
        if not rows or not columns:
            self._text(MARGIN, top + 48, "there are no chunks: a dimension is empty", GRID, 12, "muted")
            return top + 60
        wide, high = min(GRID / columns, LARGEST), min(GRID_HEIGHT / rows, LARGEST)
        wide, high = min(wide, 5 * high), min(high, 5 * wide)
        smaller = min(wide, high)
        gap = 1.0 if smaller >= 5 else 0.5 if smaller >= 3 else 0.0
        places = [place for place in product(range(rows), range(columns)) if plane.room[place]]
        boxes = {
            (row, column): Box(MARGIN + column * wide, top + 32 + row * high, wide - gap, high - gap)
            for row, column in places
        }
        fills = {place: self._cell(*place) for place in places}
        below = [boxes[place] for place in places if fills[place][1] < 1]  # what shows through
        if below:
            self._shapes.append(Boxes("faint", below))
        groups: dict[tuple[str, float, str], list[Box]] = {}
        for place in places:
            title = self._title(*place) if len(places) <= POINTED else ""
            groups.setdefault((*fills[place], title), []).append(boxes[place])
        radius = 2 if smaller >= 10 and len(places) <= POINTED else 0
        for (fill, opacity, title), group in groups.items():
            self._shapes.append(Boxes(fill, group, opacity, radius=radius, title=title))
        corner = Box(MARGIN - gap / 2, top + 32 - gap / 2, wide, high)
        if shown.shard_of is not None:
            self._outline(np.pad(shown.shard_of, 1, "edge"), corner, "ink", 1.2, 0.55)
        if shown.asked is not None:
            self._outline(np.pad(plane.asked > 0, 1), corner, "asked", 2.4, 1)
        return top + 32 + rows * high

    def _axes(self) -> str:
        shown, split = self._map, self._plane.split
        names = [name or f"dim {i}" for i, name in enumerate(shown.dimensions or [""] * len(shown.counts))]
        sized = [f"{name} ({count:,})" if count > 1 else "" for name, count in zip(names, shown.counts, strict=True)]
        if split is None:
            said = f"→ {' × '.join(filter(None, sized))}, line by line"
        else:
            down, across = (" × ".join(filter(None, part)) for part in (sized[:split], sized[split:]))
            said = "   ".join([f"↓ {down}"] * bool(down) + [f"→ {across}"] * bool(across)) or "one chunk"
        step = self._plane.step
        return said if step == (1, 1) else f"{said}  ·  a cell is {step[0]} × {step[1]} chunks"

    def _cell(self, row: int, column: int) -> tuple[str, float]:
        """Return the fill and the opacity of a cell."""
        plane = self._plane
        present, room = int(plane.present[row, column]), int(plane.room[row, column])
        if not present:
            return "faint", 1.0
        full = -(-LEVELS * present // room) / LEVELS
        opacity = 1.0 if full >= 1 else 0.3 + 0.6 * full
        if self._map.asked is not None and not plane.asked[row, column]:
            opacity *= 0.4
        target = int(plane.target[row, column])
        if target == INLINE:
            return "inline", opacity
        if len(self._colours) > 1:
            return self._colours[target], opacity
        rank = (row * plane.shape[1] + column) / max(plane.shape[0] * plane.shape[1] - 1, 1)
        return _ramp(round(rank * SHADES) / SHADES), opacity

    def _title(self, row: int, column: int) -> str:
        """Return what a cell stands for: its chunks, and their file."""
        shown, plane = self._map, self._plane
        present, room, target = (int(of[row, column]) for of in (plane.present, plane.room, plane.target))
        if plane.step != (1, 1):
            said = f"{present:,} of {count_text(room, 'chunk')}"
            if not present:
                return said
        else:
            coords = np.unravel_index(row * plane.width + column, shown.counts) if shown.counts else ()
            said = f"chunk {', '.join(map(str, coords))}".rstrip()
            if not present:
                return f"{said}: missing"
        if target == INLINE:
            return f"{said}: inline"
        return said if len(shown.files) == 1 else f"{said}: {printable(_name(shown.files[target]))}"

    def _outline(self, labels: npt.NDArray[np.generic], corner: Box, fill: str, line: float, opacity: float) -> None:
        """Draw the sides between cells of different ``labels``, around which are those of what lies outside."""
        x, y, wide, high = corner
        half = line / 2
        level = np.argwhere(labels[:-1, 1:-1] != labels[1:, 1:-1]).tolist()
        upright = np.argwhere(labels[1:-1, :-1] != labels[1:-1, 1:]).tolist()
        boxes = [Box(x + column * wide - half, y + row * high - half, wide + line, line) for row, column in level]
        boxes += [Box(x + column * wide - half, y + row * high - half, line, high + line) for row, column in upright]
        if boxes:
            self._shapes.append(Boxes(fill, boxes, opacity))

    # ------------------------------------------------------------------ the files

    def _files(self, top: float) -> float:
        shown = self._map
        self._text(FILES_X, top, "Files", FILES, 14, bold=True)
        if not shown.strips:
            self._text(FILES_X, top + 19, "every chunk there is lies in the source itself", FILES, 12, "muted")
            return top + 32
        said = "the bytes of each, up to the last that is used"
        self._text(FILES_X, top + 19, f"below {shown.base}" if shown.base else said, FILES, 12, "muted")
        y = top + 46
        for strip in shown.strips:
            y = self._strip(strip, y)
        left = len(shown.files) - len(shown.strips)
        if left:
            more = f"and {count_text(left, 'more file')}"
            read = 0 if shown.asked is None else len({request.url for request in shown.asked.requests})
            hidden = read - sum(bool(strip.requests) for strip in shown.strips)
            if hidden:
                more += f", of which {hidden:,} are read from"
            self._text(FILES_X, y, more, FILES, 12, "muted")
            y += 18
        return y

    def _strip(self, strip: Strip, y: float) -> float:
        shown, colour = self._map, self._colours[strip.file]
        is_single = len(self._colours) == 1
        is_vague = strip.is_whole and not strip.bytes
        figures = [count_text(strip.chunks, "chunk"), "whole file" if is_vague else bytes_text(strip.bytes)]
        if strip.order is not None and not is_vague:
            figures.append({0.0: "backwards", 1.0: "in order"}.get(strip.order, f"{strip.order:.0%} in order"))
        if strip.requests:
            figures.append(count_text(len(strip.requests), "request"))
        said = self._text(WIDTH - MARGIN, y, "  ·  ".join(figures), FILES - 120, 11, "muted", "end")
        self._boxes(_ramp(0.5) if is_single else colour, Box(FILES_X, y - 9, 10, 10))
        self._text(FILES_X + 16, y, strip.url.removeprefix(shown.base), FILES - said - 32, 12, keep_end=True)
        top = y + 7
        self._boxes("faint", Box(FILES_X, top, FILES, BAR), title=printable(strip.url))
        groups: dict[str, list[Box]] = {}
        for start, stop, rank in strip.segments:
            shade = round(rank * SHADES) / SHADES
            pieces = groups.setdefault(_ramp(shade) if is_single else _lighter(colour, shade), [])
            pieces.append(_piece(strip, start, stop, top, BAR))
        self._shapes += [Boxes(fill, pieces) for fill, pieces in groups.items()]
        if strip.requests:
            asked = [_piece(strip, start, stop, top + BAR + 2.5, 5) for start, stop in strip.requests]
            self._shapes.append(Boxes("asked", asked))
        return top + BAR + (20 if shown.asked is None else 27)

    # ------------------------------------------------------------------ what it means

    def _legend(self, top: float) -> float:
        asked, x, y = self._map.asked, MARGIN, top + 28
        for text, swatches in self._entries():
            is_one = len(swatches) == 1
            wide = 12.0 if is_one else 6.0 * len(swatches)
            needed = wide + 6 + width_of(text, 12)
            if x > MARGIN and x + needed > MARGIN + GRID:
                x, y = MARGIN, y + 20
            for i, (fill, stroke) in enumerate(swatches):
                box = Box(x + 6 * i, y - 10, 12 if is_one else 6, 12)
                self._shapes.append(Boxes(fill, [box], stroke=stroke, line=2, radius=2 if is_one else 0))
            self._text(x + wide + 6, y, text, MARGIN + GRID - x - wide - 6, 12, "muted")
            x += needed + 20
        missing = 0 if asked is None else len(asked.numbers) - asked.present
        if missing:
            y += 20
            said = f"{count_text(missing, 'selected chunk')} missing: for these, nothing is requested"
            self._text(MARGIN, y, said, GRID, 12, "muted")
        return y + 6

    def _entries(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield texts, each with the fills and strokes that it explains."""
        shown, files = self._map, len(self._map.files)
        ramp = [(_ramp(i / 7), "") for i in range(8)]
        if files == 1:
            yield "first to last chunk", ramp
        elif not self._is_few:
            yield "first to last file", ramp
        elif files:
            yield "a colour for each file", [(colour, "") for colour in self._colours]
        if files > 1 and any(strip.chunks > 1 for strip in shown.strips):
            yield "a file's first to last chunk", [(_lighter(ROLES["muted"][0], i / 3), "") for i in range(4)]
        has_gaps = any(strip.bytes < 0.99 * strip.end for strip in shown.strips)  # that can be seen
        if len(self._extents) < (self._extents.possible or 0):
            yield "missing; in files: other bytes" if has_gaps else "missing", [("faint", "")]
        elif has_gaps:
            yield "other bytes of the file", [("faint", "")]
        inline = int((self._extents.chunks.targets == INLINE).sum())
        if inline:
            yield f"inline ({inline:,})", [("inline", "")]
        if shown.shard_of is not None:
            yield "shards", [("", "ink")]
        if shown.asked is not None:
            yield "selected, and requested", [("", "asked")]


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


def _piece(strip: Strip, start: float, stop: float, y: float, height: float) -> Box:
    """Return the box of bytes ``[start, stop)`` of a strip, wide enough to be seen."""
    scale = FILES / max(strip.end, 1)
    width = max((stop - start) * scale, 1.4)
    return Box(FILES_X + min(start * scale, FILES - width), y, width, height)

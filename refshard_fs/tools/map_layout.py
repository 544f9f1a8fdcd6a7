"""A chunk map as a scene: the chunk grid on the left, the files on the right, and what colours mean below. Pure.

Every text is cut to the room that it has, so that none lies over another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.formatting import bytes_text, count_text, printable, shape_text
from refshard_fs.tools.chunk_map import NOTHING, Asked, ChunkMap, Strip
from refshard_fs.tools.survey import INLINE

__all__ = [
    "Anchor",
    "Box",
    "Cell",
    "Cells",
    "DARK",
    "FEW",
    "LIGHT",
    "Label",
    "Scene",
    "file_colours",
    "mixed",
    "ramp",
    "scene_of",
    "shortened",
    "width_of",
]

# ----------------------------------------------------------------------------------------------------
# How wide text will be, at most, whatever font a viewer has; and text cut to fit. No I/O here.


# Thousandths of the font size, for the characters from space to ~, in DejaVu Sans: hardly any sans serif is wider.
_WIDTHS: Final = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
_HINTED: Final = 1.02  # letters are moved to whole pixels
_BOLD: Final = 1.17
_OTHER: Final = 1000
_WIDE: Final = 1800  # full-width characters, and emoji
ELLIPSIS: Final = "…"


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of ``text`` at a font size, in the unit of that size."""
    total = sum(map(_width, text))
    return total * size / 1000 * _HINTED * (_BOLD if bold else 1)


def shortened(text: str, size: float, room: float, *, bold: bool = False, keep_end: bool = False) -> str:
    """Return ``text``, or what fits of its start (``keep_end``: of its end) with an ellipsis; "" if nothing does."""
    if width_of(text, size, bold=bold) <= room:
        return text
    left = room - width_of(ELLIPSIS, size, bold=bold)
    kept: list[str] = []
    for char in reversed(text) if keep_end else text:
        left -= width_of(char, size, bold=bold)
        if left < 0:
            break
        kept.append(char)
    if not kept:
        return ""
    return ELLIPSIS + "".join(reversed(kept)) if keep_end else "".join(kept).rstrip() + ELLIPSIS


def _width(char: str) -> int:
    code = ord(char) - 32
    if 0 <= code < len(_WIDTHS):
        return _WIDTHS[code]
    return _WIDE if unicodedata.east_asian_width(char) in "WF" or code > 0xFFFF else _OTHER


# ----------------------------------------------------------------------------------------------------
# Colours that tell files apart, also for the colour-blind; and those of paper and ink, by day and by night. Pure.


# Eight hues that stay apart in all common kinds of colour blindness (after M. Okabe and K. Ito), less black.
_HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")
FEW: Final = len(_HUES)

# For many files, from the first to the last: lightness rises all the way, so that order shows in any eye.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")

LIGHT: Final = {
    "paper": "#ffffff",
    "edge": "#d8dee4",
    "ink": "#1f2328",
    "muted": "#59636e",
    "faint": "#eef1f4",
    "rule": "#c3cbd3",
    "asked": "#c2185b",
    "inline": "#8b949e",
}
DARK: Final = {
    "paper": "#14181d",
    "edge": "#2c333b",
    "ink": "#e6edf3",
    "muted": "#9aa5b1",
    "faint": "#232a31",
    "rule": "#46505b",
    "asked": "#ff6fa5",
    "inline": "#7d8792",
}


def file_colours(count: int) -> list[str]:
    """Return a colour for each of ``count`` files: hues for a few, a ramp for many."""
    if count <= FEW:
        return list(_HUES[:count])
    return [ramp(i / (count - 1)) for i in range(count)]


def ramp(position: float) -> str:
    """Return the colour at ``position``, 0 to 1, of the ramp."""
    at = min(max(position, 0.0), 1.0) * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    return mixed(_RAMP[first], _RAMP[first + 1], at - first)


def mixed(one: str, other: str, share: float) -> str:
    """Return ``one`` with a ``share`` of ``other``, both as #rrggbb."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


# ----------------------------------------------------------------------------------------------------
# A picture as values: boxes, many small cells of one colour, and labels, each where it stands. Nothing is drawn here.
#
# A fill is the name of a role ("paper", "asked", see `palette`), which has a colour by day and one by night, or a
# colour.


Anchor = Literal["start", "middle", "end"]


class Cell(NamedTuple):
    """One rectangle."""

    x: float
    y: float
    width: float
    height: float


class Box(msgspec.Struct, frozen=True):
    """A rectangle with a text that shows when it is pointed at; ``stroke`` draws its outline."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    stroke: str = ""
    title: str = ""
    radius: float = 0
    line: float = 1
    opacity: float = 1


class Cells(msgspec.Struct, frozen=True):
    """Many rectangles of one colour."""

    fill: str
    cells: tuple[Cell, ...]
    opacity: float = 1


class Label(msgspec.Struct, frozen=True):
    """One line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    size: float = 12
    fill: str = "ink"
    anchor: Anchor = "start"
    bold: bool = False
    title: str = ""

    @property
    def box(self) -> Cell:
        """The room that the text takes, at most."""
        width = width_of(self.text, self.size, bold=self.bold)
        left = {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return Cell(self.x - left, self.y - 0.95 * self.size, width, 1.2 * self.size)


class Scene(msgspec.Struct, frozen=True):
    """All of a picture; what comes later lies above. ``title`` and ``text`` say in words what it shows."""

    width: float
    height: float
    shapes: tuple[Box | Cells | Label, ...]
    title: str
    text: str

    @property
    def labels(self) -> list[Label]:
        """The labels, in their order."""
        return [shape for shape in self.shapes if isinstance(shape, Label)]


WIDTH: Final = 1120.0
MARGIN: Final = 36.0
GRID: Final = 488.0  # at most, both ways
GRID_HEIGHT: Final = 432.0
LARGEST: Final = 64.0  # side of a cell
FILES_X: Final = 592.0
FILES: Final = WIDTH - MARGIN - FILES_X
BAR: Final = 15.0
POINTED: Final = 600  # cells that have a text of their own to show
SEAM: Final = 0.3  # by which neighbours overlap, so that no viewer shows a line between them
SHADES: Final = 24  # of the ramp, in the grid of an array in one file
LEVELS: Final = 4  # of how full a cell is


def scene_of(shown: ChunkMap) -> Scene:
    """Return the picture of ``shown``."""
    return _Layout(shown).scene()


class _Layout:
    def __init__(self, shown: ChunkMap) -> None:
        self._map = shown
        self._shapes: list[Box | Cells | Label] = []
        self._colours = file_colours(len(shown.files))

    def scene(self) -> Scene:
        shown = self._map
        top = self._heading()
        left = self._grid(top)
        right = self._files(top)
        height = max(self._legend(left), right) + MARGIN - 8
        paper = Box(0.5, 0.5, WIDTH - 1, height - 1, "paper", "edge", radius=10)
        name = printable(shown.path or "/")
        words = [
            f"{shown.present:,} of {count_text(shown.possible, 'chunk')} in {count_text(len(shown.files), 'file')}"
        ]
        if shown.asked is not None:
            words.append(_reading(shown.asked))
        return Scene(WIDTH, height, (paper, *self._shapes), f"Where the bytes of {name} lie", "; ".join(words))

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
        cut = shortened(text, size, room, bold=bold, keep_end=keep_end)
        if cut:
            self._shapes.append(Label(x, y, cut, size, fill, anchor, bold, text if cut != text else ""))
        return width_of(cut, size, bold=bold)

    # ------------------------------------------------------------------ what it is

    def _heading(self) -> float:
        shown, room = self._map, WIDTH - 2 * MARGIN
        name = self._text(MARGIN, 48, shown.path or "/", room * 0.6, 22, bold=True, keep_end=True)
        self._text(WIDTH - MARGIN, 48, shown.source, room - name - 24, 12, "muted", "end", keep_end=True)
        parts = [f"{shape_text(shown.shape)} {shown.dtype}"]
        if shown.chunks is not None:
            parts.append(f"chunks of {shape_text(shown.chunks)}")
            if shown.shards:
                shard = [chunk * count for chunk, count in zip(shown.chunks, shown.shards, strict=True)]
                parts.append(f"shards of {shape_text(shard)}")
        present = f"{shown.present:,} of {count_text(shown.possible, 'chunk')}"
        parts += [present, bytes_text(shown.bytes), count_text(len(shown.files), "file")]
        self._text(MARGIN, 72, "  ·  ".join(parts), room, 13, "muted")
        if shown.asked is None:
            return 112
        mark = 14.0
        self._shapes.append(Box(MARGIN + 1, 85.5, 9, 9, "", "asked", radius=2, line=2))
        said = f"{shown.asked.text}  {_reading(shown.asked)}"
        if shown.shards and shown.asked.requests:
            said += ", once the shards' indexes are read"
        self._text(MARGIN + mark + 4, 95, said, room - mark - 4, 13, bold=True)
        return 136

    # ------------------------------------------------------------------ the grid

    def _grid(self, top: float) -> float:
        shown, plane = self._map, self._map.plane
        self._text(MARGIN, top, "Chunk grid", GRID, 14, bold=True)
        rows, columns = plane.shape
        self._text(MARGIN, top + 19, self._axes(), GRID, 12, "muted")
        if not rows or not columns:
            self._text(MARGIN, top + 48, "there are no chunks: a dimension is empty", GRID, 12, "muted")
            return top + 60
        y = top + 32
        wide, high = min(GRID / columns, LARGEST), min(GRID_HEIGHT / rows, LARGEST)
        wide, high = min(wide, 5 * high), min(high, 5 * wide)
        gap = 1.0 if min(wide, high) >= 5 else 0.5 if min(wide, high) >= 3 else 0.0

        def at(row: int, column: int) -> Cell:
            return Cell(MARGIN + column * wide, y + row * high, wide - gap, high - gap)

        below: list[Cell] = []  # what shows through
        groups: dict[tuple[str, float], list[Cell]] = {}
        for row in range(rows):
            for column in range(columns):
                if not plane.room[row, column]:
                    continue
                fill, opacity = self._cell(row, column)
                if opacity < 1:
                    below.append(at(row, column))
                groups.setdefault((fill, opacity), []).append(at(row, column))
        if below:
            self._shapes.append(Cells("faint", tuple(below)))
        radius = 2.0 if min(wide, high) >= 10 else 0.0
        if rows * columns <= POINTED:
            places = ((r, c) for r in range(rows) for c in range(columns) if plane.room[r, c])
            titles = {at(*place): self._title(*place) for place in places}
            self._shapes += [
                Box(*cell, fill, opacity=opacity, radius=radius, title=titles[cell])
                for (fill, opacity), cells in groups.items()
                for cell in cells
            ]
        else:
            self._shapes += [Cells(fill, tuple(cells), opacity) for (fill, opacity), cells in groups.items()]
        if shown.shard_of is not None:
            shards = shown.shard_of
            self._edges(at, gap, "ink", 1.2, 0.55, lambda a, b: bool(shards[a] != shards[b]), border=False)
        if shown.asked is not None:
            asked = plane.asked > 0
            self._edges(at, gap, "asked", 2.4, 1.0, lambda a, b: bool(asked[a] and not asked[b]), border=True)
        return y + rows * high

    def _axes(self) -> str:
        shown, plane = self._map, self._map.plane
        names = [name or f"dim {i}" for i, name in enumerate(shown.dimensions or [""] * len(shown.counts))]
        sized = [f"{name} ({count:,})" if count > 1 else "" for name, count in zip(names, shown.counts, strict=True)]
        if plane.fold.split is None:
            said = f"→ {' × '.join(filter(None, sized))}, line by line"
        else:
            down = " × ".join(filter(None, sized[: plane.fold.split]))
            across = " × ".join(filter(None, sized[plane.fold.split :]))
            said = "   ".join(filter(None, (f"↓ {down}" * bool(down), f"→ {across}" * bool(across)))) or "one chunk"
        if plane.step != (1, 1):
            said += f"  ·  a cell is {plane.step[0]} × {plane.step[1]} chunks"
        return said

    def _cell(self, row: int, column: int) -> tuple[str, float]:
        shown, plane = self._map, self._map.plane
        present, room = int(plane.present[row, column]), int(plane.room[row, column])
        if not present:
            return "faint", 1.0
        full = -(-LEVELS * present // room) / LEVELS
        opacity = 1.0 if full >= 1 else 0.3 + 0.6 * full
        if shown.asked is not None and not plane.asked[row, column]:
            opacity *= 0.4
        target = int(plane.target[row, column])
        assert target != NOTHING
        if target == INLINE:
            return "inline", opacity
        if len(self._colours) > 1:
            return self._colours[target], opacity
        rank = (row * plane.shape[1] + column) / max(plane.shape[0] * plane.shape[1] - 1, 1)
        return ramp(round(rank * SHADES) / SHADES), opacity

    def _title(self, row: int, column: int) -> str:
        shown, plane = self._map, self._map.plane
        present, room, target = (int(column_of[row, column]) for column_of in (plane.present, plane.room, plane.target))
        if plane.step == (1, 1):
            number = row * plane.fold.width + column
            said = f"chunk {', '.join(map(str, np.unravel_index(number, shown.counts)))}" if shown.counts else "chunk"
            if not present:
                return f"{said}: missing"
        else:
            said = f"{present:,} of {count_text(room, 'chunk')}"
            if not present:
                return said
        if len(shown.files) == 1 and target != INLINE:
            return said
        where = "inline" if target == INLINE else printable(shown.files[target].rstrip("/").rpartition("/")[2])
        return f"{said}: {where}"

    def _edges(
        self,
        at: Callable[[int, int], Cell],
        gap: float,
        fill: str,
        line: float,
        opacity: float,
        differs: Callable[[tuple[int, int], tuple[int, int]], bool],
        *,
        border: bool,
    ) -> None:
        """Draw the sides between cells that differ; ``border``: and those where the grid ends."""
        rows, columns = self._map.plane.shape
        cells: list[Cell] = []
        half, shift = line / 2, gap / 2
        for row in range(rows):
            for column in range(columns):
                here = (row, column)
                x, y, wide, high = at(row, column)
                for dr, dc in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                    there = (row + dr, column + dc)
                    inside = 0 <= there[0] < rows and 0 <= there[1] < columns
                    if not (differs(here, there) if inside else border and self._map.plane.asked[here] > 0):
                        continue
                    if dc == 0:
                        edge = y - shift if dr < 0 else y + high + shift
                        cells.append(Cell(x - shift - half, edge - half, wide + gap + line, line))
                    else:
                        edge = x - shift if dc < 0 else x + wide + shift
                        cells.append(Cell(edge - half, y - shift - half, line, high + gap + line))
        if cells:
            self._shapes.append(Cells(fill, tuple(cells), opacity))

    # ------------------------------------------------------------------ the files

    def _files(self, top: float) -> float:
        shown = self._map
        self._text(FILES_X, top, "Files", FILES, 14, bold=True)
        if not shown.strips:
            self._text(FILES_X, top + 19, "every chunk there is lies in the source itself", FILES, 12, "muted")
            return top + 32
        said = "the bytes of each, up to the last that is used"
        if any(strip.lines > 1 for strip in shown.strips):
            said += ", line by line"
        if shown.base:
            said = f"below {shown.base}"
        self._text(FILES_X, top + 19, said, FILES, 12, "muted")
        y = top + 46
        for strip in shown.strips:
            y = self._strip(strip, y)
        left = len(shown.files) - len(shown.strips)
        if left:
            more = f"and {count_text(left, 'more file')}"
            if shown.asked is not None:
                read = len({request.url for request in shown.asked.requests})
                hidden = read - sum(bool(strip.requests) for strip in shown.strips)
                more += f", of which {hidden:,} are read from" if hidden else ""
            self._text(FILES_X, y, more, FILES, 12, "muted")
            y += 18
        return y

    def _strip(self, strip: Strip, y: float) -> float:
        shown, colour = self._map, self._colours[strip.target]
        figures = [count_text(strip.chunks, "chunk")]
        is_vague = strip.is_whole and not strip.bytes
        figures.append("whole file" if is_vague else bytes_text(strip.bytes))
        if strip.order is not None and not is_vague:
            figures.append(_order(strip.order))
        if strip.requests:
            figures.append(count_text(len(strip.requests), "request"))
        said = self._text(WIDTH - MARGIN, y, "  ·  ".join(figures), FILES - 120, 11, "muted", "end")
        self._shapes.append(Box(FILES_X, y - 9, 10, 10, colour if len(self._colours) > 1 else ramp(0.5), radius=2))
        name = strip.url.removeprefix(shown.base)
        self._text(FILES_X + 16, y, name, FILES - said - 32, 12, keep_end=True)
        bar, pitch = y + 7, BAR + (4 if shown.asked is None else 11)
        for line in range(strip.lines):
            title = printable(strip.url)
            self._shapes.append(Box(FILES_X, bar + line * pitch, FILES, BAR, "faint", radius=2, title=title))
        groups: dict[str, list[Cell]] = {}
        for segment in strip.segments:
            rank = round(segment.rank * SHADES) / SHADES
            fill = ramp(rank) if len(self._colours) == 1 else mixed(colour, "#ffffff", 0.6 * (1 - rank))
            pieces = _pieces(strip, segment.start, segment.stop, 0.75)
            groups.setdefault(fill, []).extend(Cell(x, bar + line * pitch, w, BAR) for line, x, w in pieces)
        self._shapes += [Cells(fill, tuple(_joined(cells))) for fill, cells in groups.items()]
        asked = [
            Cell(x, bar + line * pitch + BAR + 2.5, max(w - 0.6, 1.4), 5)
            for start, stop in strip.requests
            for line, x, w in _pieces(strip, start, stop, 2)
        ]
        if asked:
            self._shapes.append(Cells("asked", tuple(asked)))
        return bar + strip.lines * pitch + 16

    # ------------------------------------------------------------------ what it means

    def _legend(self, top: float) -> float:
        shown, y = self._map, top + 28
        x = MARGIN
        for text, draw, wide in self._entries():
            needed = wide + 6 + width_of(text, 12)
            if x > MARGIN and x + needed > MARGIN + GRID:
                x, y = MARGIN, y + 20
            self._shapes += draw(x, y)
            self._text(x + wide + 6, y, text, MARGIN + GRID - x - wide - 6, 12, "muted")
            x += needed + 20
        if shown.asked is not None and shown.asked.present < len(shown.asked.numbers):
            y += 20
            gone = len(shown.asked.numbers) - shown.asked.present
            said = f"{count_text(gone, 'selected chunk')} missing: for these, nothing is requested"
            self._text(MARGIN, y, said, GRID, 12, "muted")
        return y + 6

    def _entries(self) -> Iterator[tuple[str, Callable[[float, float], list[Box | Cells | Label]], float]]:
        shown = self._map

        def swatch(fill: str, stroke: str = "") -> Callable[[float, float], list[Box | Cells | Label]]:
            return lambda x, y: [Box(x, y - 10, 12, 12, fill, stroke, radius=2, line=2 if stroke else 1)]

        def shades(colours: list[str]) -> Callable[[float, float], list[Box | Cells | Label]]:
            return lambda x, y: [Cells(c, (Cell(x + 6 * i, y - 10, 6, 12),)) for i, c in enumerate(colours)]

        if len(shown.files) == 1:
            yield "first to last chunk", shades([ramp(i / 7) for i in range(8)]), 48
        elif len(shown.files) > FEW:
            yield "first to last file", shades([ramp(i / 7) for i in range(8)]), 48
        elif shown.files:
            yield "a colour for each file", shades(self._colours), 6.0 * len(self._colours)
        if len(shown.files) > 1 and any(strip.chunks > 1 for strip in shown.strips):
            light = [mixed("#59636e", "#ffffff", 0.6 * (1 - i / 3)) for i in range(4)]
            yield "a file's first to last chunk", shades(light), 24
        has_gaps = any(strip.bytes < 0.99 * strip.end for strip in shown.strips)  # that can be seen
        if shown.present < shown.possible:
            yield "missing; in files: other bytes" if has_gaps else "missing", swatch("faint"), 12
        elif has_gaps:
            yield "other bytes of the file", swatch("faint"), 12
        if shown.inline:
            yield f"inline ({shown.inline:,})", swatch("inline"), 12
        if shown.shard_of is not None:
            yield "shards", swatch("", "ink"), 12
        if shown.asked is not None:
            yield "selected, and requested", swatch("", "asked"), 12


def _reading(asked: Asked) -> str:
    """Say what reading a selection takes."""
    if not len(asked.numbers):
        return "is empty: nothing is read"
    hosts = len({request.url for request in asked.requests})
    said = f"reads {count_text(len(asked.numbers), 'chunk')} in {count_text(len(asked.requests), 'request')}"
    if len(asked.requests) > 1:
        said += f" to {count_text(hosts, 'file')}"
    if asked.requests and asked.fetched:
        said += f": {bytes_text(asked.fetched)}"
        if bytes_text(asked.fetched) != bytes_text(asked.wanted):
            said += f", of which {bytes_text(asked.wanted)} wanted"
    return said


def _order(share: float) -> str:
    """Say how many of a file's chunks lie after the one before."""
    return "in order" if share == 1 else "backwards" if share == 0 else f"{share:.0%} in order"


def _pieces(strip: Strip, start: float, stop: float, least: float) -> Iterator[tuple[int, float, float]]:
    """Yield line, place and width, at ``least``, of bytes ``[start, stop)`` on the lines of ``strip``."""
    line_bytes = max(strip.end, 1) / strip.lines
    line = min(int(start / line_bytes), strip.lines - 1)
    while True:
        low, high = max(start, line * line_bytes), min(stop, (line + 1) * line_bytes)
        wide = max((high - low) / line_bytes * FILES, least)
        x = min((low / line_bytes - line) * FILES, FILES - wide)
        yield line, FILES_X + x, min(wide + SEAM, FILES - x)
        line += 1
        if line >= strip.lines or line * line_bytes >= stop:
            return


def _joined(cells: list[Cell]) -> Iterator[Cell]:
    """Yield neighbours on one line as one."""
    last: Cell | None = None
    for cell in sorted(cells, key=lambda cell: (cell.y, cell.x)):
        if last is not None and cell.y == last.y and cell.x <= last.x + last.width + 0.05:
            last = last._replace(width=max(last.width, cell.x + cell.width - last.x))
            continue
        if last is not None:
            yield last
        last = cell
    if last is not None:
        yield last

"""Shapes of a picture, and a page on which they are placed from top to bottom. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.errors import escape_controls
from refshard_fs.tools.text_width import BOLD, measure_text, shorten_text

Numbers = npt.NDArray[np.floating[Any] | np.integer[Any]] | float
Swatch = tuple[str, str]  # a fill and a stroke


class Box(NamedTuple):
    """A rectangle; ``x`` and ``y`` are its left and its top."""

    x: float
    y: float
    width: float
    height: float


def make_boxes(x: Numbers, y: Numbers, width: Numbers, height: Numbers) -> list[Box]:
    """Return a box for each element of the arrays; a number is used for all boxes."""
    return list(map(Box, *(column.tolist() for column in np.broadcast_arrays(np.atleast_1d(x), y, width, height))))


class Boxes(msgspec.Struct, frozen=True):
    """Rectangles of one colour. ``stroke`` is the colour of the outline, ``line`` its width, ``title`` a tooltip."""

    fill: str
    boxes: Sequence[Box]
    opacity: float = 1
    stroke: str = ""
    line: float = 1
    radius: float = 0
    title: str = ""


class Label(msgspec.Struct, frozen=True):
    """One line of text; ``y`` is its baseline, and ``x`` its start, or its end (``ends_there``)."""

    x: float
    y: float
    text: str
    size: float = 13
    fill: str = "ink"
    ends_there: bool = False
    bold: bool = False
    title: str = ""

    @property
    def width(self) -> float:
        """The greatest width of the text."""
        return measure_text(self.text, self.size, bold=self.bold)

    @property
    def box(self) -> Box:
        """The box around the text at its greatest width."""
        left = self.x - self.width if self.ends_there else self.x
        return Box(left, self.y - 0.95 * self.size, self.width, 1.2 * self.size)


class Scene(msgspec.Struct, frozen=True):
    """A whole picture: later shapes lie above earlier ones. ``title`` and ``text`` describe it in words."""

    width: float
    height: float
    shapes: tuple[Boxes | Label, ...]
    title: str
    text: str

    @property
    def labels(self) -> list[Label]:
        """The shapes that are labels, in drawing order."""
        return [shape for shape in self.shapes if isinstance(shape, Label)]


# Lengths are in units of the picture: it is shown 360 to 640 pixels wide, so that 12 units are at least 8 pixels.
WIDTH: Final = 520.0
MARGIN: Final = 20.0
ROOM: Final = WIDTH - 2 * MARGIN


class Page:
    """A picture that grows downward: ``y`` is the top of the next line or section."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._shapes: list[Boxes | Label] = []

    def make_scene(self, title: str, description: str) -> Scene:
        """Return all shapes, on paper of the height that they need."""
        height = self.y + MARGIN - 4
        paper = Boxes("paper", [Box(0.5, 0.5, WIDTH - 1, height - 1)], stroke="edge", radius=8)
        return Scene(WIDTH, height, (paper, *self._shapes), title, description)

    def add_text(
        self, x: float, y: float, text: str, room: float = ROOM, *, keep_end: bool = False, **look: Any
    ) -> float:
        """Place one line of text, cut to the width ``room``; ``look`` are members of its `Label`. Return its width."""
        text = escape_controls(text)
        label = Label(x, y, text, **look)
        size = label.size * (BOLD if label.bold else 1)
        cut = shorten_text(text, room / size, keep_end=keep_end)
        if cut != text:
            label = msgspec.structs.replace(label, text=cut, title=text)
        if cut:
            self._shapes.append(label)
        return label.width

    def add(self, fill: str, boxes: Sequence[Box], **more: Any) -> None:
        """Place boxes of one colour, if there are any."""
        if boxes:
            self._shapes.append(Boxes(fill, boxes, **more))

    def paint(self, boxes: Iterable[Box], looks: Iterable[tuple[str, float, str]], radius: float = 0) -> None:
        """Place boxes, each with its fill, its opacity and its tooltip; boxes with equal looks become one shape."""
        groups: dict[tuple[str, float, str], list[Box]] = {}
        for box, look in zip(boxes, looks, strict=True):
            groups.setdefault(look, []).append(box)
        for (fill, opacity, title), group in groups.items():
            self.add(fill, group, opacity=opacity, title=title, radius=radius)

    def add_heading(self, title: str, source: str) -> None:
        """Place the title of the picture, and the source below it."""
        self.y += 28
        self.add_text(MARGIN, self.y - 8, title, size=22, bold=True, keep_end=True)
        if source:
            self.add_line(source, keep_end=True)

    def add_line(self, text: str, fill: str = "muted", *, keep_end: bool = False) -> None:
        """Place one line."""
        self.y += 19
        self.add_text(MARGIN, self.y - 5, text, fill=fill, keep_end=keep_end)

    def add_parts(self, parts: Sequence[str], fill: str = "muted") -> None:
        """Place ``parts`` one after the other, on as many lines as they need."""
        line, *rest = parts
        for part in rest:
            longer = f"{line}  ·  {part}"
            if measure_text(longer) > ROOM:
                self.add_line(line, fill)
                longer = part
            line = longer
        self.add_line(line, fill)

    def add_section(self, title: str, note: str) -> None:
        """Place the title of a section, and a note beside it."""
        self.y += 34
        width = self.add_text(MARGIN, self.y - 8, title, size=15, bold=True)
        self.add_text(MARGIN + width + 12, self.y - 8, note, ROOM - width - 12, fill="muted", keep_end=True)

    def add_name(self, colour: str, name: str, figures: Sequence[str]) -> None:
        """Place a swatch of ``colour``, if it is not empty; then ``name``, and ``figures`` on the right."""
        self.y += 19
        right, left = WIDTH - MARGIN, MARGIN + (17 if colour else 0)
        taken = self.add_text(
            right, self.y - 5, "  ·  ".join(figures), ROOM - 130, size=12, fill="muted", ends_there=True
        )
        if colour:
            self.add(colour, [Box(MARGIN, self.y - 15, 11, 11)], radius=2)
        self.add_text(left, self.y - 5, name, right - taken - 12 - left, keep_end=True)

    def add_legend(self, entries: Iterable[tuple[str, Sequence[Swatch]]]) -> None:
        """Place texts, each after the fills and strokes that it explains."""
        self.y += 8
        x, y = MARGIN, self.y + 14
        for text, swatches in entries:
            is_one = len(swatches) == 1
            wide = 12.0 if is_one else 6.0 * len(swatches)
            needed = wide + 6 + measure_text(text)
            if x > MARGIN and x + needed > MARGIN + ROOM:
                x, y = MARGIN, y + 20
            for i, (fill, stroke) in enumerate(swatches):
                box = Box(x + 6 * i, y - 11, 12 if is_one else 6, 12)
                self.add(fill, [box], stroke=stroke, line=2, radius=2 if is_one else 0)
            self.add_text(x + wide + 6, y, text, MARGIN + ROOM - x - wide - 6, fill="muted")
            x += needed + 18
        self.y = y + 5

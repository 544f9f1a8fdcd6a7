"""A picture as values: boxes, many small cells of one colour, and labels, each where it stands. Nothing is drawn here.

A fill is the name of a role ("paper", "asked", see `palette`), which has a colour by day and one by night, or a colour.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from refshard_fs.picture.lettering import width_of

__all__ = ["Anchor", "Box", "Cell", "Cells", "Label", "Scene"]

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

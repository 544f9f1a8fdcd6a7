"""A picture of boxes and lines of text: made from top to bottom, and written as SVG, as a page of HTML, or as PNG.

The picture is one column, narrow enough for a phone. Every text is cut to its room, so that none overlaps another.
Keys and URLs are escaped: whatever they hold, nothing is loaded and no script runs. Colours follow the viewer's light
or dark mode.
"""

from __future__ import annotations

import io
import os
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.errors import printable
from refshard_fs.stores.drafts import replace_file
from refshard_fs.stores.links import path_to_write
from refshard_fs.tools.views import ROLES, colours

# ----------------------------------------------------------------------------------------------------
# The greatest width that a text may have, whatever font the viewer has; and texts cut to fit.


# Greatest widths of characters, in font sizes, in sans serifs up to the width of DejaVu Sans.
_WIDTHS: Final = dict.fromkeys(" !'(),-./:;I[\\]fijlrt|·", 0.43) | dict.fromkeys("#%&+<=>@MOQW^mw~", 1.02)
_BOLD: Final = 1.17


def width_of(text: str, size: float = 13, *, bold: bool = False) -> float:
    """Return the width of one line of ``text`` at a font size, in the unit of that size."""
    return sum(map(_width, text)) * size * (_BOLD if bold else 1)


def _width(char: str) -> float:
    if char in _WIDTHS:
        return _WIDTHS[char]
    if char < "\x7f":
        return 0.8 if char.isupper() else 0.66
    is_wide = unicodedata.east_asian_width(char) in "WF" or ord(char) > 0xFFFF  # such as emoji
    return 1.8 if is_wide else 1.0


def _shorten(text: str, room: float, *, keep_end: bool) -> str:
    """Return ``text``, or what fits of its start (``keep_end``: of its end) with an ellipsis; "" if nothing does.

    ``room`` is in font sizes.
    """
    if width_of(text, 1) <= room:
        return text
    ends = accumulate(map(_width, reversed(text) if keep_end else text), initial=_width("…"))
    kept = sum(end <= room for end in ends) - 1
    if kept < 1:
        return ""
    return "…" + text[-kept:] if keep_end else text[:kept].rstrip() + "…"


# ----------------------------------------------------------------------------------------------------
# Colours. A fill is a colour as #rrggbb, or the name of a role (see `ROLES`), which differs by day and by night.


# Hues that stay apart in all common kinds of colour blindness (after M. Okabe and K. Ito), less black.
HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")

# Lightness rises all the way, so that order shows in any eye.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")


def ramp(position: float) -> str:
    """Return the colour at ``position``, 0 to 1, of the ramp."""
    at = position * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    return mix(_RAMP[first], _RAMP[first + 1], at - first)


def mix(one: str, other: str, share: float) -> str:
    """Return ``one`` with a ``share`` of ``other``, both as #rrggbb."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


# ----------------------------------------------------------------------------------------------------
# What a picture is made of, and a page on which it grows.


Numbers = npt.NDArray[np.floating[Any] | np.integer[Any]] | float


class Box(NamedTuple):
    """One rectangle."""

    x: float
    y: float
    width: float
    height: float


def boxes_at(x: Numbers, y: Numbers, width: Numbers, height: Numbers) -> list[Box]:
    """Return a box for each element of the arguments; a number counts for all of them."""
    return list(map(Box, *(column.tolist() for column in np.broadcast_arrays(np.atleast_1d(x), y, width, height))))


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
        """The width that the text takes, at most."""
        return width_of(self.text, self.size, bold=self.bold)

    @property
    def box(self) -> Box:
        """The room that the text takes, at most."""
        left = self.x - self.width if self.ends_there else self.x
        return Box(left, self.y - 0.95 * self.size, self.width, 1.2 * self.size)


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

Swatch = tuple[str, str]  # a fill and a stroke


class Page:
    """A picture as it grows downward: ``y`` is where the next thing goes."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._shapes: list[Boxes | Label] = []

    def scene(self, title: str, description: str) -> Scene:
        """Return the picture."""
        height = self.y + MARGIN - 4
        paper = Boxes("paper", [Box(0.5, 0.5, WIDTH - 1, height - 1)], stroke="edge", radius=8)
        return Scene(WIDTH, height, (paper, *self._shapes), title, description)

    def text(self, x: float, y: float, text: str, room: float = ROOM, *, keep_end: bool = False, **look: Any) -> float:
        """Place one line of text, cut to ``room``, which looks as a `Label` of ``look``; return its width."""
        text = printable(text)
        label = Label(x, y, text, **look)
        size = label.size * (_BOLD if label.bold else 1)
        cut = _shorten(text, room / size, keep_end=keep_end)
        if cut != text:
            label = msgspec.structs.replace(label, text=cut, title=text)
        if cut:
            self._shapes.append(label)
        return label.width

    def add(self, fill: str, boxes: Sequence[Box], **more: Any) -> None:
        """Place boxes of one colour, where there are any."""
        if boxes:
            self._shapes.append(Boxes(fill, boxes, **more))

    def paint(self, boxes: Iterable[Box], looks: Iterable[tuple[str, float, str]], radius: float = 0) -> None:
        """Place boxes, each with its fill, its opacity and its title; those that look the same become one shape."""
        groups: dict[tuple[str, float, str], list[Box]] = {}
        for box, look in zip(boxes, looks, strict=True):
            groups.setdefault(look, []).append(box)
        for (fill, opacity, title), group in groups.items():
            self.add(fill, group, opacity=opacity, title=title, radius=radius)

    def heading(self, title: str, source: str) -> None:
        """Place what the picture is of, and where that is."""
        self.y += 28
        self.text(MARGIN, self.y - 8, title, size=22, bold=True, keep_end=True)
        if source:
            self.line(source, keep_end=True)

    def line(self, text: str, fill: str = "muted", *, keep_end: bool = False) -> None:
        """Place one line."""
        self.y += 19
        self.text(MARGIN, self.y - 5, text, fill=fill, keep_end=keep_end)

    def parts(self, parts: Sequence[str], fill: str = "muted") -> None:
        """Place ``parts`` on as many lines as they take."""
        line, *rest = parts
        for part in rest:
            longer = f"{line}  ·  {part}"
            if width_of(longer) > ROOM:
                self.line(line, fill)
                longer = part
            line = longer
        self.line(line, fill)

    def section(self, title: str, note: str) -> None:
        """Place the title of what follows, and a note beside it."""
        self.y += 34
        width = self.text(MARGIN, self.y - 8, title, size=15, bold=True)
        self.text(MARGIN + width + 12, self.y - 8, note, ROOM - width - 12, fill="muted", keep_end=True)

    def name(self, colour: str, name: str, figures: Sequence[str]) -> None:
        """Place a name behind a swatch of its colour, if it has one, and its figures on the right."""
        self.y += 19
        right, left = WIDTH - MARGIN, MARGIN + (17 if colour else 0)
        taken = self.text(right, self.y - 5, "  ·  ".join(figures), ROOM - 130, size=12, fill="muted", ends_there=True)
        if colour:
            self.add(colour, [Box(MARGIN, self.y - 15, 11, 11)], radius=2)
        self.text(left, self.y - 5, name, right - taken - 12 - left, keep_end=True)

    def legend(self, entries: Iterable[tuple[str, Sequence[Swatch]]]) -> None:
        """Place texts, each behind the fills and strokes that it explains."""
        self.y += 8
        x, y = MARGIN, self.y + 14
        for text, swatches in entries:
            is_one = len(swatches) == 1
            wide = 12.0 if is_one else 6.0 * len(swatches)
            needed = wide + 6 + width_of(text)
            if x > MARGIN and x + needed > MARGIN + ROOM:
                x, y = MARGIN, y + 20
            for i, (fill, stroke) in enumerate(swatches):
                box = Box(x + 6 * i, y - 11, 12 if is_one else 6, 12)
                self.add(fill, [box], stroke=stroke, line=2, radius=2 if is_one else 0)
            self.text(x + wide + 6, y, text, MARGIN + ROOM - x - wide - 6, fill="muted")
            x += needed + 18
        self.y = y + 5


# ----------------------------------------------------------------------------------------------------
# The picture as files.


class Picture:
    """A picture of an array or of a whole set, which notebooks show; ``map`` has its content as data."""

    def __init__(self, content: Any, scene: Scene) -> None:
        self.map = content
        self.scene = scene

    def save(self, path: str | Path) -> None:
        """Write the picture to ``path``, in the format that its name ends in: .svg, .html or .png (with matplotlib)."""
        data = self.encode(Path(path).suffix)
        with replace_file(path_to_write(os.fspath(path))) as file:
            file.write(data)

    def encode(self, suffix: str) -> bytes:
        """Return the picture as a file of a name that ends in ``suffix``."""
        match suffix.lower():
            case ".svg":
                return _svg(self.scene).encode()
            case ".html" | ".htm":
                return _PAGE.format(title=_title_element(self.scene.title), svg=_svg(self.scene)).encode()
            case ".png":
                return _png(self.scene)
        what = suffix or "a file without a suffix"
        raise ValueError(f"unknown kind of picture {what}: expected .svg, .html or .png")

    def _repr_svg_(self) -> str:
        return _svg(self.scene)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:640px">{_svg(self.scene)}</div>'

    def __repr__(self) -> str:
        return f"<Picture: {self.scene.title}: {self.scene.text}>"


_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
{title}
<style>:root{{color-scheme:light dark}}body{{margin:2rem auto;max-width:720px;padding:0 1rem;background:#f6f8fa}}\
.rs{{width:100%;height:auto;display:block}}@media(prefers-color-scheme:dark){{body{{background:#0d1117}}}}</style>
</head>
<body>
{svg}</body>
</html>
"""


def _svg(scene: Scene) -> str:
    """Return ``scene`` as one SVG element, which stands by itself or in HTML."""
    fills = "".join(f".rs .f-{role}{{fill:var(--rs-{role})}}.rs .s-{role}{{stroke:var(--rs-{role})}}" for role in ROLES)
    body = "\n".join(_label(shape) if isinstance(shape, Label) else _boxes(shape) for shape in scene.shapes)
    size = f"{_number(scene.width)} {_number(scene.height)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" viewBox="0 0 {size}" role="img" '
        f'font-family="{escape(_FONT)}">\n'
        f"{_title_element(scene.title)}\n<desc>{_text(scene.text)}</desc>\n<style>{colours()}{fills}</style>\n{body}\n</svg>\n"
    )


def _boxes(shape: Boxes) -> str:
    paint = _paint(shape.fill, shape.stroke)
    if shape.opacity < 1:
        paint += f' fill-opacity="{_number(shape.opacity)}"'
    boxes = [tuple(map(_number, box)) for box in shape.boxes]
    if not (shape.radius or shape.stroke or shape.title):
        path = "".join(f"M{x} {y}h{width}v{height}h-{width}z" for x, y, width, height in boxes)
        return f'<path d="{path}"{paint}/>'
    if shape.radius:
        paint += f' rx="{_number(shape.radius)}"'
    if shape.stroke:
        paint += f' stroke-width="{_number(shape.line)}"'
    return "\n".join(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}"{paint}>{_title_element(shape.title)}</rect>'
        for x, y, width, height in boxes
    )


def _label(label: Label) -> str:
    attributes = f'x="{_number(label.x)}" y="{_number(label.y)}" font-size="{_number(label.size)}"'
    attributes += _paint(label.fill) + (' text-anchor="end"' if label.ends_there else "")
    attributes += ' font-weight="600"' if label.bold else ""
    return f'<text {attributes} xml:space="preserve">{_title_element(label.title)}{_text(label.text)}</text>'


def _title_element(title: str) -> str:
    return f"<title>{_text(title)}</title>" if title else ""


def _paint(fill: str, stroke: str = "") -> str:
    """Return the attributes of a fill and a stroke: a role has its colour from the style, and by day without one."""
    roles = [f"{kind}-{name}" for kind, name in (("f", fill), ("s", stroke)) if name in ROLES]
    painted = f' class="{" ".join(roles)}"' if roles else ""
    painted += f' fill="{_by_day(fill)}"'
    return painted + (f' stroke="{_by_day(stroke)}"' if stroke else "")


def _by_day(colour: str) -> str:
    return ROLES[colour][0] if colour in ROLES else escape(colour) or "none"


def _text(text: str) -> str:
    return escape(printable(text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ----------------------------------------------------------------------------------------------------
# PNG, drawn by matplotlib, which is not needed for anything else.


SCALE: Final = 2  # pixels for a unit of the scene


def _png(scene: Scene) -> bytes:
    """Return ``scene`` as a PNG image, by day; ImportError, which says what to do, without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError(
            'a PNG needs matplotlib: pip install "refshard_fs[png]", or save the picture as .svg or .html'
        ) from e
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=72 * SCALE, facecolor=ROLES["paper"][0])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    for order, shape in enumerate(scene.shapes):
        draw(axes, shape, order)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Title": scene.title, "Description": scene.text})
    return out.getvalue()


def draw(axes: Any, shape: Boxes | Label, order: int) -> Any:
    """Draw one shape on matplotlib's ``axes``, and return the drawn artists."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import FancyBboxPatch

    colour = _by_day(shape.fill)
    if isinstance(shape, Label):
        font: Any = {"fontsize": shape.size, "family": "DejaVu Sans", "weight": "bold" if shape.bold else "normal"}
        side = "right" if shape.ends_there else "left"
        return axes.text(shape.x, shape.y, shape.text, color=colour, ha=side, parse_math=False, zorder=order, **font)
    corners = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
    patches = [FancyBboxPatch((x, y), width, height, corners) for x, y, width, height in shape.boxes]
    painted = PatchCollection(patches, fc=colour, ec=_by_day(shape.stroke), lw=shape.line, alpha=shape.opacity)
    painted.set_zorder(order)
    painted.set_snap(False)
    return axes.add_collection(painted, autolim=False)

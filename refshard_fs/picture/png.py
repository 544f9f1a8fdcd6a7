"""A scene as PNG, drawn by matplotlib, which is not needed for anything else."""

from __future__ import annotations

import io
from typing import Any, Final

from refshard_fs.picture.palette import LIGHT
from refshard_fs.picture.scene import Box, Cell, Cells, Label, Scene

__all__ = ["png"]

SCALE: Final = 2  # pixels for a unit of the scene
_DPI: Final = 72 * SCALE


def png(scene: Scene) -> bytes:
    """Return ``scene`` as a PNG image, by day; ImportError, which says what to do, without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError("a PNG needs matplotlib: pip install matplotlib, or save the picture as .svg or .html") from e
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=_DPI, facecolor=LIGHT["paper"])
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


def draw(axes: Any, shape: Box | Cells | Label, order: int) -> Any:
    """Draw one shape on matplotlib's ``axes``, and return what was drawn."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import FancyBboxPatch, Rectangle

    match shape:
        case Box(x, y, width, height):
            fill = _colour(shape.fill) or "none"
            style: dict[str, Any] = {
                "facecolor": fill,
                "edgecolor": _colour(shape.stroke) or "none",
                "linewidth": shape.line,
            }
            alpha = shape.opacity if shape.opacity < 1 else None
            patch: Any
            if shape.radius:
                round_style = f"round,pad=0,rounding_size={shape.radius}"
                patch = FancyBboxPatch((x, y), width, height, round_style, alpha=alpha, zorder=order, **style)
            else:
                patch = Rectangle((x, y), width, height, alpha=alpha, zorder=order, **style)
            return axes.add_patch(patch)
        case Cells(fill, cells, opacity):
            corners = list(map(_corners, cells))
            painted = PolyCollection(corners, facecolors=_colour(fill), edgecolors="none", alpha=opacity, zorder=order)
            painted.set_snap(False)
            return axes.add_collection(painted, autolim=False)
        case Label(x, y, text, size):
            return axes.text(
                x,
                y,
                text,
                fontsize=size,
                color=_colour(shape.fill),
                family="DejaVu Sans",
                weight="bold" if shape.bold else "normal",
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                verticalalignment="baseline",
                parse_math=False,
                zorder=order,
            )


def _colour(name: str) -> str:
    return LIGHT.get(name, name)


def _corners(cell: Cell) -> list[tuple[float, float]]:
    x, y, width, height = cell
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]

"""Draw a scene as PNG, by matplotlib."""

from __future__ import annotations

import io
from typing import Any, Final

from refshard_fs.tools.colours import resolve_by_day
from refshard_fs.tools.scene import Boxes, Label, Scene
from refshard_fs.tools.views import ROLES

SCALE: Final = 2  # pixels for a unit of the scene


def draw_png(scene: Scene) -> bytes:
    """Return ``scene`` as a PNG image in the colours of the day; ImportError, with advice, without matplotlib."""
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
    """Draw one shape on matplotlib's ``axes``, above shapes of a lower ``order``; return the artist."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import FancyBboxPatch

    colour = resolve_by_day(shape.fill)
    if isinstance(shape, Label):
        font: Any = {"fontsize": shape.size, "family": "DejaVu Sans", "weight": "bold" if shape.bold else "normal"}
        side = "right" if shape.ends_there else "left"
        return axes.text(shape.x, shape.y, shape.text, color=colour, ha=side, parse_math=False, zorder=order, **font)
    corners = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
    patches = [FancyBboxPatch((x, y), width, height, corners) for x, y, width, height in shape.boxes]
    painted = PatchCollection(patches, fc=colour, ec=resolve_by_day(shape.stroke), lw=shape.line, alpha=shape.opacity)
    painted.set_zorder(order)
    painted.set_snap(False)
    return axes.add_collection(painted, autolim=False)

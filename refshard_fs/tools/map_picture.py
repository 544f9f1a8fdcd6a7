"""Draw a map: its title, the chunk grid or the arrays, and the files. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE
from refshard_fs.core.stats import format_bytes, format_count, format_shape
from refshard_fs.errors import escape_controls
from refshard_fs.reading.plan import PlannedRequest
from refshard_fs.tools.chunk_files import Files, Floats, Strip, have_own_colours, lighten, pick_hue
from refshard_fs.tools.colours import HUES, pick_shade
from refshard_fs.tools.picture import Picture
from refshard_fs.tools.plane import NO_CHUNK, Plane
from refshard_fs.tools.scene import MARGIN, ROOM, Box, Page, Swatch, make_boxes
from refshard_fs.tools.survey import INLINE, Extents, Positions
from refshard_fs.tools.text_width import measure_text

GRID_HEIGHT: Final = 320.0  # lengths are in units of the picture
LARGEST: Final = 56.0  # the longest side of a cell
BAR: Final = 14.0  # height of a strip
TOOLTIPS: Final = 600  # a grid with more cells has no tooltips
LEVELS: Final = 4  # opacities of cells whose chunks exist in part
ARRAYS: Final = 12  # the most arrays of a set that are named


class Selection(msgspec.Struct, frozen=True, eq=False):
    """A selection: the numbers of its chunks, how many of these exist, and the requests that reading them sends."""

    text: str
    numbers: Positions
    present: int
    requests: list[PlannedRequest]
    wanted: int  # bytes of chunks
    fetched: int  # bytes of requests, as far as known


class Map(msgspec.Struct, frozen=True, eq=False):
    """The content of a picture, of one array or of a set. A picture of a set has no ``plane``.

    ``colours`` has the colour of each chunk of all arrays. ``shard_of`` has the shard in which each cell begins, if
    shards are large enough to be drawn.
    """

    source: str
    arrays: tuple[Extents, ...]
    files: Files
    colours: npt.NDArray[np.str_]
    plane: Plane | None = None
    shard_of: Positions | None = None
    selection: Selection | None = None


def draw_map(content: Map) -> Picture:
    """Return the picture of ``content``: a heading, the grid of the array or the arrays of the set, and the files."""
    page, files = Page(), format_count(len(content.files.names), "file")
    if content.plane is None:
        name, summary = content.source, f"{format_count(len(content.arrays), 'array')} in {files}"
        _draw_arrays(page, content, files)
    else:
        name, summary = _draw_array(page, content, content.plane, files)
    _draw_files(page, content)
    return Picture(content, page.make_scene(f"Where the bytes of {escape_controls(name or '/')} lie", summary))


def _draw_array(page: Page, content: Map, plane: Plane, files: str) -> tuple[str, str]:
    """Draw an array, except its files; return its name, and a summary of the picture in words."""
    (extents,), selection, meta = content.arrays, content.selection, content.arrays[0].meta
    title = extents.path or content.source.rstrip("/").rpartition("/")[2]
    page.add_heading(title or "root array", "" if title == content.source else content.source)
    what = [f"{format_shape(meta.shape, extents.dimensions)} {meta.dtype}"]
    if meta.chunks is not None:
        what.append(f"chunks of {format_shape(meta.chunks)}")
        if extents.shard_shape is not None:
            what.append(f"shards of {format_shape(extents.shard_shape)}")
    page.add_parts(what)
    present = f"{len(extents):,} of {format_count(extents.possible or 0, 'chunk')}"
    size = int(extents.sizes.sum())
    page.add_parts([present, *([format_bytes(size)] if size or not extents.unsized_count else []), files])
    summary = f"{present} in {files}"
    missing = 0
    if selection is not None:
        reading = _describe_reading(selection)
        summary += f"; {reading}"
        missing = len(selection.numbers) - selection.present
        page.y += 6
        page.add("", [Box(MARGIN + 1, page.y + 5, 9, 9)], stroke="asked", line=2, radius=2)
        page.y += 19
        page.add_text(MARGIN + 18, page.y - 5, selection.text, ROOM - 18, bold=True)
        page.add_parts(reading.split(": ", 1), "ink")
        if extents.shards and selection.requests:
            page.add_line("once the shards' indexes are read")
    _draw_grid(page, content, plane)
    page.add_legend(_make_legend(content))
    if missing:
        page.add_line(f"{format_count(missing, 'selected chunk')} missing: for these, nothing is requested")
    return title, summary


def _describe_reading(selection: Selection) -> str:
    """Return, in words, the requests and the bytes that reading the selection takes."""
    if not len(selection.numbers):
        return "is empty: nothing is read"
    summary = (
        f"reads {format_count(len(selection.numbers), 'chunk')} in {format_count(len(selection.requests), 'request')}"
    )
    if len(selection.requests) > 1:
        summary += f" to {format_count(len({request.url for request in selection.requests}), 'file')}"
    if selection.requests and selection.fetched:
        summary += f": {format_bytes(selection.fetched)}"
        if format_bytes(selection.fetched) != format_bytes(selection.wanted):
            summary += f", of which {format_bytes(selection.wanted)} wanted"
    return summary


def _draw_arrays(page: Page, content: Map, files: str) -> None:
    """Draw the first `ARRAYS` arrays of a set, each with a bar of its bytes."""
    sizes = [int(extents.sizes.sum()) for extents in content.arrays]
    page.add_heading(content.source, "")
    page.add_parts([format_count(len(sizes), "array"), files, format_bytes(sum(sizes))])
    page.add_section("Arrays", "bytes of each")
    for i, (extents, size) in enumerate(zip(content.arrays[:ARRAYS], sizes, strict=False)):
        possible = "" if extents.possible is None else f"{extents.possible:,} "
        figures = [f"{len(extents):,} of {possible}chunks", format_bytes(size)]
        page.add_name(pick_hue(i), extents.path or "/", figures if extents.listed else ["chunks cannot be listed"])
        page.add_line(f"{format_shape(extents.meta.shape, extents.dimensions)} {extents.meta.dtype}")
        page.add("faint", [Box(MARGIN, page.y, ROOM, 6)])
        page.add(pick_hue(i), [Box(MARGIN, page.y, max(ROOM * size / (max(sizes) or 1), 1.4), 6)])
        page.y += 14
    if len(sizes) > ARRAYS:
        page.add_line(f"and {format_count(len(sizes) - ARRAYS, 'more array')}")


def _draw_grid(page: Page, content: Map, plane: Plane) -> None:
    rows, columns = plane.shape
    page.add_section("Chunk grid", _describe_axes(content.arrays[0], plane.split))
    if plane.step != (1, 1):
        page.add_line(f"a cell is {plane.step[0]} × {plane.step[1]} chunks")
    if not rows or not columns:
        page.add_line("the array has no chunks: one of its dimensions has the length 0")
        return
    wide, high = min(ROOM / columns, LARGEST), min(GRID_HEIGHT / rows, LARGEST)
    wide, high = min(wide, 5 * high), min(high, 5 * wide)
    smaller, top = min(wide, high), page.y + 3
    gap = 1.0 if smaller >= 5 else 0.5 if smaller >= 3 else 0.0
    cells = np.nonzero(plane.room)
    boxes = make_boxes(MARGIN + cells[1] * wide, top + cells[0] * high, wide - gap, high - gap)
    first, full = plane.first[cells], np.ceil(LEVELS * plane.present[cells] / plane.room[cells]) / LEVELS
    fills = np.append(content.colours, "faint")[first]  # `NO_CHUNK` is -1: the last one
    opacities = np.where((full >= 1) | (first == NO_CHUNK), 1, 0.3 + 0.6 * full)
    has_tooltips = len(boxes) <= TOOLTIPS
    titles = [_make_tooltip(content, plane, *cell) if has_tooltips else "" for cell in np.transpose(cells).tolist()]
    page.add("faint", [boxes[i] for i in np.flatnonzero(opacities < 1)])  # the background shows through
    looks = zip(fills.tolist(), opacities.tolist(), titles, strict=True)
    page.paint(boxes, looks, radius=2 if smaller >= 10 and has_tooltips else 0)
    corner = Box(MARGIN - gap / 2, top - gap / 2, wide, high)
    if content.shard_of is not None:
        _outline(page, np.pad(content.shard_of, 1, constant_values=NO_CHUNK), corner, "ink", 1.6, 3.6)
    if content.selection is not None:
        _outline(page, np.pad(plane.selected > 0, 1), corner, "asked", 2.6, 5)
    page.y = top + rows * high


def _describe_axes(extents: Extents, split: int | None) -> str:
    """Return the dimensions that run down and across the grid, with the number of chunks along each."""
    counts = extents.counts
    names = [name or f"dim {i}" for i, name in enumerate(extents.dimensions or [""] * len(counts))]
    sized = [f"{name} ({count:,})" if count > 1 else "" for name, count in zip(names, counts, strict=True)]
    if split is None:
        return f"→ {' × '.join(filter(None, sized))}, line by line"
    down, across = (" × ".join(filter(None, part)) for part in (sized[:split], sized[split:]))
    return "   ".join([f"↓ {down}"] * bool(down) + [f"→ {across}"] * bool(across)) or "one chunk"


def _make_tooltip(content: Map, plane: Plane, row: int, column: int) -> str:
    """Return the tooltip of a cell: its chunks, and the place of the bytes of the first one."""
    extents, first = content.arrays[0], int(plane.first[row, column])
    if plane.step == (1, 1):
        coords = np.unravel_index(row * plane.width + column, extents.counts) if extents.counts else ()
        summary = f"chunk {', '.join(map(str, coords))}".rstrip()
        if first == NO_CHUNK:
            return f"{summary}: missing"
    else:
        summary = f"{plane.present[row, column]:,} of {format_count(int(plane.room[row, column]), 'chunk')}"
        if first == NO_CHUNK:
            return summary
        summary += ", the first"
    file = int(content.files.file_of[first])
    if file == INLINE:
        return f"{summary}: inline"
    start, stop = int(extents.chunks.starts[first]), int(extents.chunks.stops[first])
    where = "" if stop == WHOLE and not start else f", bytes {start:,} to {'the end' if stop == WHOLE else f'{stop:,}'}"
    return f"{summary}: {escape_controls(content.files.names[file].rstrip('/').rpartition('/')[2])}{where}"


def _outline(page: Page, labels: npt.NDArray[np.generic], corner: Box, fill: str, line: float, border: float) -> None:
    """Draw the borders between cells whose ``labels`` differ; ``labels`` has a further row and column on each side.

    Each border is drawn twice: ``border`` wide in the colour of the paper, and on it ``line`` wide in ``fill``.
    """
    x, y, wide, high = corner
    level = np.nonzero(labels[:-1, 1:-1] != labels[1:, 1:-1])
    upright = np.nonzero(labels[1:-1, :-1] != labels[1:-1, 1:])
    for colour, width in (("paper", border), (fill, line)):
        left, top = x - width / 2, y - width / 2
        boxes = make_boxes(left + level[1] * wide, top + level[0] * high, wide + width, width)
        page.add(colour, boxes + make_boxes(left + upright[1] * wide, top + upright[0] * high, width, high + width))


def _make_legend(content: Map) -> Iterator[tuple[str, list[Swatch]]]:
    """Yield the texts of the legend, each with the fills and strokes that it explains."""
    files, strips, (extents,) = len(content.files.names), content.files.strips, content.arrays
    if have_own_colours(content.files):
        yield "a colour for each file", [(colour, "") for colour in HUES[:files]]
        if any(strip.chunks > 1 for strip in strips):
            yield "its first to last chunk", [(lighten("#59636e", i / 3), "") for i in range(4)]
    elif files:
        what = "first to last chunk" + (", file by file" if files > 1 else "")
        yield what, [(pick_shade(i / 7), "") for i in range(8)]
    has_gaps = any(strip.bytes < 0.99 * strip.end for strip in strips if not strip.is_whole)  # visible gaps
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
    page.add_section("Files", f"below {files.base}" if files.base else "bytes up to the last that is used")
    if not files.strips:
        page.add_line("all existing chunks lie in the source itself")
    for strip in files.strips:
        _draw_strip(page, strip, strip.url.removeprefix(files.base), content)
    own = [strip for strip in files.strips if strip.file is not None]
    left = len(files.names) - len(own)
    if left:
        read = 0 if selection is None else len({request.url for request in selection.requests})
        hidden = read - sum(len(strip.requests[0]) > 0 for strip in own)
        more = f", of which {hidden:,} are read from" if hidden else ""
        page.add_line(f"and {format_count(left, 'more file')}{more}")


def _draw_strip(page: Page, strip: Strip, name: str, content: Map) -> None:
    figures = [format_count(strip.chunks, "chunk"), format_bytes(strip.bytes) if strip.bytes else "whole"]
    requests = len(strip.requests[0])
    page.y += 4
    page.add_name("", name, [*figures, format_count(requests, "request")] if requests else figures)
    scale = ROOM / strip.end

    def boxes(starts: Floats, stops: Floats, height: float) -> list[Box]:
        widths = np.maximum((stops - starts) * scale, 1.4)  # narrower boxes would be invisible
        return make_boxes(MARGIN + np.minimum(starts * scale, ROOM - widths), page.y, widths, height)

    starts, stops, chunks = strip.pieces
    page.add("faint", [Box(MARGIN, page.y, ROOM, BAR)], title=escape_controls(strip.url))
    page.paint(boxes(starts, stops, BAR), ((fill, 1, "") for fill in content.colours[chunks].tolist()))
    page.y += BAR + 2
    if content.selection is not None:
        page.add("asked", boxes(*strip.requests, 5))
        page.y += 6
    if strip.is_whole:
        return
    step = 1  # step of the scale, a power of two
    while strip.end > 4 * step:
        step *= 2
    page.y += 14
    for tick in range(0, int(strip.end) + 1, step):
        x, text = MARGIN + tick * scale, format_bytes(tick) if tick else "0"
        if x + 4 + measure_text(text, 11) <= MARGIN + ROOM:
            page.add("muted", [Box(x, page.y - 13, 1, 11)])
            page.add_text(x + 4, page.y - 3, text, size=11, fill="muted")

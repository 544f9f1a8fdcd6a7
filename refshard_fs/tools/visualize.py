"""Make a picture of where an array's bytes lie. Metadata and indexes are read, and no chunk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from refshard_fs.core.columns import WHOLE
from refshard_fs.core.keys import join, normalise
from refshard_fs.core.selection import chunk_numbers
from refshard_fs.errors import NotListable
from refshard_fs.reading.plan import MANY, Planned, coalesce, parts
from refshard_fs.security.policy import protocol_of
from refshard_fs.session.session import Session
from refshard_fs.tools.chunk_map import Asked, ChunkMap, chunk_map, parse_selection
from refshard_fs.tools.map_drawing import html_page, png, svg
from refshard_fs.tools.map_layout import Scene, scene_of
from refshard_fs.tools.survey import INLINE, Extents, Positions, Survey, Surveyed, survey

__all__ = ["Picture", "picture"]

FORMATS = (".svg", ".html", ".png")


class Pictured(Surveyed, Protocol):
    """What is needed of a filesystem: `RefShardFileSystem`."""

    @property
    def fo(self) -> Any: ...
    def plan(self, paths: Sequence[str]) -> list[Planned]: ...
    @property
    def _session(self) -> Session: ...


class Picture:
    """A picture of one array, which notebooks show; ``map`` has what it says, as data."""

    def __init__(self, shown: ChunkMap) -> None:
        self.map = shown
        self.scene: Scene = scene_of(shown)

    def save(self, path: str | Path) -> None:
        """Write the picture to ``path``, in the format that its name ends in: .svg, .html or .png (with matplotlib)."""
        path = Path(path)
        data = self.encoded(path.suffix)
        path.write_bytes(data)

    def encoded(self, suffix: str) -> bytes:
        """Return the picture as a file of a name that ends in ``suffix``."""
        match suffix.lower():
            case ".svg":
                return svg(self.scene).encode()
            case ".html" | ".htm":
                return html_page(self.scene).encode()
            case ".png":
                return png(self.scene)
        raise ValueError(f"a picture is not written as {suffix or 'a file without a suffix'}: use {', '.join(FORMATS)}")

    def _repr_svg_(self) -> str:
        return svg(self.scene)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:{self.scene.width:.0f}px">{svg(self.scene)}</div>'

    def __repr__(self) -> str:
        return f"<Picture: {self.scene.title}: {self.scene.text}>"


def picture(fs: Pictured, array: str | None = None, select: Any = None) -> Picture:
    """Return a picture of ``array`` (by default the one with the most bytes), and of the requests for ``select``.

    ``select`` is what numpy takes between brackets, or text: ``"air[0:10, :, :]"``.

    Raises FileNotFoundError if there is no such array, NotListable where its source cannot list chunks, ValueError
    where its chunks form no grid or ``select`` is no selection, IndexError where it does not fit.
    """
    text = ""
    if isinstance(select, str):
        named, select, text = *parse_selection(select), select.strip()
        array = array if array is not None or not named else named
        if named and normalise(array or "") != normalise(named):
            raise ValueError(f"the selection {text!r} is of {named!r}, and the picture of {array!r}")
    elif select is not None:
        text = f"{array or ''}[{spelled(select)}]"
    found = survey(fs, None if array is None else normalise(array))
    extents = _chosen(found, fs.fo) if array is None else found.arrays[normalise(array)]
    if not extents.listed:
        raise NotListable(
            f"the chunks of {extents.path or '/'!r} in {_source(fs.fo)} cannot be listed, as over plain HTTP, so there "
            "is nothing to draw: 'refshard snapshot SOURCE refs.json' asks for each of them; then draw refs.json"
        )
    asked = None if select is None else _asked(fs, extents, found.urls, select, text)
    return Picture(chunk_map(_source(fs.fo), extents, found.urls, _dimensions(found, extents), asked))


def _source(fo: Any) -> str:
    """Return what a source is called: its URL, or the name of a file that is at hand."""
    match fo:
        case str() if protocol_of(fo) is None:
            return PurePath(fo).name
        case str():
            return fo
    return "references in memory"


def _chosen(found: Survey, fo: Any) -> Extents:
    if not found.arrays:
        raise FileNotFoundError(f"there is no array in {_source(fo)}")
    return max(found.arrays.values(), key=lambda extents: (int(extents.sizes.sum()), len(extents)))


def _asked(fs: Pictured, extents: Extents, urls: Sequence[str], select: Any, text: str) -> Asked:
    meta = extents.meta
    if meta.chunks is None or meta.grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no regular grid, so a selection does not tell chunks")
    numbers = chunk_numbers(select, meta.shape, meta.chunks)
    rows = np.flatnonzero(np.isin(extents.chunks.numbers, numbers.astype(np.uint64)))
    requests = _requests(fs, extents, urls, rows)
    sizes = extents.sizes
    wanted = int(sizes[rows].sum())
    open_ended = {key for request in requests if request.stop is None for key in request.keys}
    fetched = sum(request.stop - request.start for request in requests if request.stop is not None)
    if open_ended:
        fetched += sum(int(sizes[row]) for row in rows.tolist() if extents.key(row) in open_ended)
    return Asked(text, numbers, len(rows), tuple(requests), wanted, fetched)


def _requests(fs: Pictured, extents: Extents, urls: Sequence[str], rows: Positions) -> list[Planned]:
    """Return ``fs.plan`` of the chunks at ``rows``; where they are many and plain, from columns, and without keys."""
    targets, starts, stops = extents.chunks.targets[rows], extents.chunks.starts[rows], extents.chunks.stops[rows]
    if len(rows) < MANY or not extents.plain or (targets == INLINE).any() or (stops == WHOLE).any():
        return fs.plan([extents.key(int(row)) for row in rows]) if len(rows) else []
    limits = fs._session.options.limits
    order = np.argsort(targets, kind="stable")
    found = []
    for some in np.split(order, np.flatnonzero(np.diff(targets[order])) + 1):
        url = urls[int(targets[some[0]])]
        for block in coalesce(list(zip(starts[some].tolist(), stops[some].tolist(), strict=True)), limits):
            found += [Planned(url, first, last, ()) for first, last in parts(block.start, block.stop, limits)]
    return found


def _dimensions(found: Survey, extents: Extents) -> tuple[str, ...]:
    """Return the names of the array's dimensions, where its metadata has them."""
    names = extents.meta.raw.get("dimension_names")
    if names is None:
        text = found.documents.get(join(extents.path, ".zattrs"))
        try:
            attributes = json.loads(text) if text else None
        except ValueError:
            attributes = None
        names = attributes.get("_ARRAY_DIMENSIONS") if isinstance(attributes, dict) else None
    if not isinstance(names, list) or len(names) != len(extents.meta.shape):
        return ()
    return tuple(name if isinstance(name, str) else "" for name in names)


def spelled(select: Any) -> str:
    """Return a selection as it is written between brackets."""
    parts = select if isinstance(select, tuple) else (select,)
    return ", ".join(map(_spelled, parts))


def _spelled(part: Any) -> str:
    match part:
        case slice(start=start, stop=stop, step=step):
            bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop))
            return bounds if step is None else f"{bounds}:{step}"
        case _ if part is Ellipsis:
            return "..."
        case int():
            return str(part)
    return np.array2string(np.asarray(part), threshold=4, separator=", ")

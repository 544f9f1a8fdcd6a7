"""Make the picture of an array, with its chunks, their files and the requests for a selection; or of a whole set.

Metadata and indexes are read, but no chunk. Files are in the order of their first chunks, in C order of the array. A
chunk has the same colour in the grid and in its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from refshard_fs.core.keys import normalise
from refshard_fs.core.selection import select_chunk_numbers
from refshard_fs.errors import ManifestError, NotListable, redact
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.array_selection import format_selection, parse_selection
from refshard_fs.tools.chunk_files import colour_chunks, find_files, pick_hue
from refshard_fs.tools.map_picture import Map, Selection, draw_map
from refshard_fs.tools.picture import Picture
from refshard_fs.tools.plane import MOST_DIMENSIONS, find_shards, fold_grid
from refshard_fs.tools.survey import Extents, PlacedChunks, SurveyedFileSystem, survey


def make_picture(fs: SurveyedFileSystem, array: str | None = None, select: Any = None) -> Picture:
    """Return the picture of ``array``, as `visualize` explains.

    Without ``array``, the picture is of the set; if it has only one array, of this array; with ``select``, of the
    largest array.
    FileNotFoundError if there is no such array; NotListable if its source cannot list chunks; ValueError if its chunks
    form no grid, or ``select`` is not a selection; IndexError if the selection does not fit the array.
    """
    text = ""
    if isinstance(select, str):
        named, select, text = *parse_selection(select), select.strip()
        array = array if array is not None or not named else named
        if named and normalise(array or "") != normalise(named):
            raise ValueError(f"select={text!r} names the array {named!r}, but array={array!r}: leave one of them out")
    elif select is not None:
        text = f"{array or ''}[{format_selection(select)}]"
    source = "a source in memory"
    if isinstance(fs.fo, str):
        source = PurePath(fs.fo).name if protocol_of(fs.fo) is None else fs.fo
    try:
        found = survey(fs, None if array is None else normalise(array))
    except FileNotFoundError as e:
        if array is not None and array.endswith("]"):
            raise FileNotFoundError(f"{e}. A selection is given as select={array!r} (--select)") from None
        raise
    if not found.arrays:
        raise FileNotFoundError(f"cannot draw a map of {source}: expected at least one array, found none")
    ordered = sorted(found.arrays.values(), key=lambda extents: (int(extents.sizes.sum()), len(extents)), reverse=True)
    if array is None and select is None and len(ordered) > 1:
        return draw_map(make_set_map(source, ordered, found.urls))
    extents = ordered[0] if array is None else found.arrays[normalise(array)]
    if not extents.listed:
        raise NotListable(
            f"the chunks of {extents.path or '/'!r} in {source} cannot be listed, as over plain HTTP, so there "
            "is nothing to draw: 'refshard snapshot SOURCE refs.json' requests each of them; then draw refs.json"
        )
    selection = None if select is None else _make_selection(fs, extents, select, text)
    return draw_map(make_array_map(source, extents, found.urls, selection))


def make_array_map(source: str, extents: Extents, urls: Sequence[str], selection: Selection | None = None) -> Map:
    """Return the content of a picture of one array.

    ValueError if its chunks form no grid; ManifestError if it has too many dimensions.
    """
    grid, chunks = extents.meta.grid, extents.chunks
    if grid is None:
        raise ValueError(f"{extents.path!r}: expected a known grid of chunks for a picture, found another kind of grid")
    if len(grid.counts) > MOST_DIMENSIONS:
        raise ManifestError(
            f"{extents.path!r} has {len(grid.counts)} dimensions: expected at most {MOST_DIMENSIONS} in a picture"
        )
    plane = fold_grid(grid.counts, chunks.numbers, None if selection is None else selection.numbers)
    shard_of = find_shards(grid.counts, extents.shards, plane)
    files = find_files(chunks, urls, [] if selection is None else selection.requests)
    return Map(redact(source), (extents,), files, colour_chunks(files), plane, shard_of, selection)


def make_set_map(source: str, arrays: Sequence[Extents], urls: Sequence[str]) -> Map:
    """Return the content of a picture of a whole set, in which the first arrays have colours of their own."""
    chunks = PlacedChunks(
        *(np.concatenate(columns) for columns in zip(*(array.chunks for array in arrays), strict=True))
    )
    colours = np.repeat([pick_hue(i) for i in range(len(arrays))], [len(extents) for extents in arrays])
    return Map(redact(source), tuple(arrays), find_files(chunks, urls, []), colours)


def _make_selection(fs: SurveyedFileSystem, extents: Extents, select: Any, text: str) -> Selection:
    """Return the chunks of a selection, and the requests that reading them would send."""
    meta = extents.meta
    if meta.chunks is None or meta.grid is None:
        raise ValueError(
            f"{extents.path!r}: expected a regular grid of chunks for a selection, found another kind of grid"
        )
    numbers = select_chunk_numbers(select, meta.shape, meta.chunks)
    rows = np.flatnonzero(np.isin(extents.chunks.numbers, numbers.astype(np.uint64)))
    keys = extents.make_keys(rows.tolist())
    size_of = dict(zip(keys, extents.sizes[rows].tolist(), strict=True))
    requests = fs.plan(keys)
    fetched = sum(sum(map(size_of.__getitem__, r.keys)) if r.stop is None else r.stop - r.start for r in requests)
    return Selection(text, numbers, len(rows), requests, sum(size_of.values()), fetched)

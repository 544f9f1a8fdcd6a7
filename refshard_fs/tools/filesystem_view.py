"""Show a filesystem in a notebook, without reading anything: unknown values are left out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice
from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline
from refshard_fs.core.stats import format_count, format_shape
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS
from refshard_fs.errors import ManifestError
from refshard_fs.source.source import Source
from refshard_fs.tools.counters import Counters
from refshard_fs.tools.views import render_folded, render_paragraph, render_table, render_view

ARRAYS: Final = 30  # the most arrays in the table
TARGETS: Final = 10  # the most targets in the table


def render_filesystem(source: Source) -> str:
    """Return the HTML that a notebook shows for the filesystem of ``source``."""
    url = source.options.source
    title = url if isinstance(url, str) else "a source in memory"
    keyspace = source.open_now()
    if keyspace is None:
        return render_view(title, "refshard", render_paragraph("not opened yet: the first use opens the source"))
    counts = source.stats.snapshot()
    read = render_folded("Reads", Counters(counts).table()) if any(counts.values()) else ""
    targets = _render_targets(keyspace.urls)
    return render_view(title, f"refshard, {keyspace.format}", render_arrays(keyspace), targets, read)


def _render_targets(urls: Sequence[str | None]) -> str:
    shown = ((url,) for url in islice(urls, TARGETS) if url is not None)
    return (
        render_folded(format_count(len(urls), "target"), render_table(("target",), shown, total=len(urls)))
        if urls
        else ""
    )


def render_arrays(keyspace: KeySpace) -> str:
    """Return the table of the arrays of a source, as HTML."""
    grids = keyspace.grids
    try:
        if not grids:
            return render_paragraph("no array is known yet")
    except ManifestError as e:  # metadata of many small arrays are read on demand
        return render_paragraph(f"its arrays cannot be listed: {e}")
    heading = ("array", "shape", "dtype", "chunk", "chunks", "chunks of a shard")
    rows = (_make_row(keyspace, path, grids[path]) for path in keyspace.sort_paths(sorted(grids))[:ARRAYS])
    return render_table(heading, rows, right=["chunks"], total=len(grids))


def _make_row(keyspace: KeySpace, path: str, grid: ChunkGrid) -> tuple[str, ...]:
    """Return a row of the table of arrays; shape and dtype are empty if the metadata would have to be fetched."""
    texts: dict[str, bytes] = {}
    meta = None
    for name in (*ARRAY_DOCUMENTS, ".zattrs"):
        with contextlib.suppress(ValueError, TypeError):  # the document is damaged
            entry = keyspace.find(join(path, name))
            if isinstance(entry, Inline):
                texts[name] = entry.data
                if name in ARRAY_DOCUMENTS:
                    meta = meta or zarrmeta.array_meta(zarrmeta.loads(entry.data), name)
    shape = dtype = chunk = ""
    if meta is not None:
        shape, dtype = format_shape(meta.shape, zarrmeta.dimension_names(meta, texts.get(".zattrs"))), meta.dtype
        chunk = "" if meta.chunks is None else format_shape(meta.chunks)
    return path or "/", shape, dtype, chunk, f"{grid.size:,}", format_shape(grid.shards) if grid.shards else ""

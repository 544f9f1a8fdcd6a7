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
from refshard_fs.core.stats import count_text, shape_text
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS
from refshard_fs.errors import ManifestError
from refshard_fs.source.source import Source
from refshard_fs.tools.counters import Counters
from refshard_fs.tools.views import fold, paragraph, render_view, table

ARRAYS: Final = 30  # the most arrays in the table
TARGETS: Final = 10  # the most targets in the table


def render_filesystem(source: Source) -> str:
    """Return the HTML that a notebook shows for the filesystem of ``source``."""
    url = source.options.source
    title = url if isinstance(url, str) else "references in memory"
    keyspace = source.open_now()
    if keyspace is None:
        return render_view(title, "refshard", paragraph("not opened yet: its first use reads it"))
    counts = source.stats.snapshot()
    read = fold("What was read", Counters(counts).table()) if any(counts.values()) else ""
    return render_view(title, f"refshard, {keyspace.format}", render_arrays(keyspace), _targets(keyspace.urls), read)


def _targets(urls: Sequence[str | None]) -> str:
    shown = ((url,) for url in islice(urls, TARGETS) if url is not None)
    return fold(count_text(len(urls), "target"), table(("target",), shown, total=len(urls))) if urls else ""


def render_arrays(keyspace: KeySpace) -> str:
    """Return the table of the arrays of a source, as HTML."""
    grids = keyspace.grids
    try:
        if not grids:
            return paragraph("no array is known yet")
    except ManifestError as e:  # metadata of many small arrays are read on demand
        return paragraph(f"its arrays cannot be listed: {e}")
    heading = ("array", "shape", "dtype", "chunk", "chunks", "chunks of a shard")
    rows = (_figures(keyspace, path, grids[path]) for path in keyspace.sort_paths(sorted(grids))[:ARRAYS])
    return table(heading, rows, right=["chunks"], total=len(grids))


def _figures(keyspace: KeySpace, path: str, grid: ChunkGrid) -> tuple[str, ...]:
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
        shape, dtype = shape_text(meta.shape, zarrmeta.dimension_names(meta, texts.get(".zattrs"))), meta.dtype
        chunk = "" if meta.chunks is None else shape_text(meta.chunks)
    return path or "/", shape, dtype, chunk, f"{grid.size:,}", shape_text(grid.shards) if grid.shards else ""

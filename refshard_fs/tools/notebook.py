"""What a notebook shows of a filesystem: sources, arrays, counters, and pictures of where arrays lie.

Showing a filesystem reads nothing: what is not known yet is said to be so. Nothing that gives access is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from itertools import islice
from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline
from refshard_fs.core.stats import Counters, count_text, shape_text
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, ArrayMeta
from refshard_fs.errors import ManifestError, told
from refshard_fs.session.session import Session

ARRAYS: Final = 30  # that are listed
TARGETS: Final = 5


def html_of(session: Session) -> str:
    """Return what a notebook shows of the filesystem that reads through ``session``."""
    source = session.options.source if isinstance(session.options.source, str) else "references in memory"
    keyspace = session.opened()
    parts = [f"<b>refshard</b> <code>{_escaped(source)}</code>"]
    if keyspace is None:
        parts.append("<p>not opened yet: its first use reads it</p>")
    else:
        parts[0] += f" ({_escaped(session.format)})"
        parts += [_targets(keyspace.urls), _arrays(keyspace)]
    counters = Counters(session.stats.snapshot())
    parts.append(f"<details><summary>counters</summary>{counters._repr_html_()}</details>")
    return f"<div>{''.join(parts)}</div>"


def _targets(urls: Sequence[str | None]) -> str:
    if not urls:
        return ""
    shown = [url for url in islice(urls, TARGETS) if url is not None]
    more = f" and {len(urls) - len(shown):,} more" if len(urls) > len(shown) else ""
    named = ", ".join(f"<code>{escape(told(url)[:200])}</code>" for url in shown)
    return f"<p>{count_text(len(urls), 'target')}: {named}{more}</p>"


def _arrays(keyspace: KeySpace) -> str:
    grids = keyspace.grids
    try:
        if not grids:
            return "<p>no array is known yet</p>"
    except ManifestError as e:  # of many small arrays, metadata are read when they are asked for
        return f"<p>its arrays cannot be told: {_escaped(str(e))}</p>"
    rows = [_row(("array", "shape", "dtype", "chunk", "chunks", "shard"), "th")]
    rows += [_row(_figures(keyspace, path, grids[path]), "td") for path in sorted(grids)[:ARRAYS]]
    more = f"<p>and {count_text(len(grids) - ARRAYS, 'more array')}</p>" if len(grids) > ARRAYS else ""
    return f"<table>{''.join(rows)}</table>{more}"


def _figures(keyspace: KeySpace, path: str, grid: ChunkGrid) -> Iterator[str]:
    meta = _meta(keyspace, path)
    yield path or "/"
    yield "?" if meta is None else shape_text(meta.shape)
    yield "?" if meta is None else meta.dtype
    yield "?" if meta is None or meta.chunks is None else shape_text(meta.chunks)
    yield f"{grid.size:,}"
    yield f"{shape_text(grid.shards)} chunks" if grid.shards else ""


def _meta(keyspace: KeySpace, path: str) -> ArrayMeta | None:
    """Return what the metadata of an array says, if it takes no reading to know."""
    for name in ARRAY_DOCUMENTS:
        with suppress(ValueError, TypeError):  # it is damaged, or has to be read
            entry = keyspace.find(join(path, name))
            if isinstance(entry, Inline):
                return zarrmeta.array_meta(zarrmeta.loads(entry.data), name)
    return None


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align:left">{_escaped(cell)}</{tag}>' for cell in cells) + "</tr>"


def _escaped(text: str) -> str:
    return escape(told(text))

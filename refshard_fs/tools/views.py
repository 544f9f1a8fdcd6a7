"""HTML views for notebooks, counters and plans that print as tables, and progress bars.

Colours of views follow the notebook's theme (JupyterLab, VS Code, Sphinx and mkdocs say it on the page), and without
one the system's day or night. Text from a source is escaped, and shown without credentials.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any, Final

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline
from refshard_fs.core.stats import bytes_text, count_text, shape_text
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS
from refshard_fs.errors import ManifestError, printable, sanitize
from refshard_fs.reading.plan import Planned
from refshard_fs.source.source import Source

# The colour of each role: by day, by night, and the variable of JupyterLab's theme for it, if there is one.
ROLES: Final = {
    "paper": ("#ffffff", "#14181d", "--jp-layout-color0"),
    "edge": ("#d8dee4", "#2c333b", "--jp-border-color2"),
    "ink": ("#1f2328", "#e6edf3", "--jp-content-font-color1"),
    "muted": ("#59636e", "#9aa5b1", "--jp-content-font-color2"),
    "faint": ("#eef1f4", "#232a31", ""),
    "asked": ("#c2185b", "#ff6fa5", ""),
    "inline": ("#8b949e", "#7d8792", ""),
}

_DAY: Final = ('[data-jp-theme-light="true"]', '[data-theme="light"]', '[data-md-color-scheme="default"]')
_NIGHT: Final = ('[data-jp-theme-light="false"]', '[data-theme="dark"]', '[data-md-color-scheme="slate"]')
# Cells need the class twice: with it once, JupyterLab's own style of tables, and that of saved pages, would win.
_LAYOUT: Final = """\
.rs-view{color:var(--rs-ink);font-family:system-ui,sans-serif;font-size:13px;line-height:1.5}
.rs-view h4{font-size:14px;margin:0 0 4px;font-weight:600;overflow-wrap:anywhere}
.rs-view p{margin:4px 0;overflow-wrap:anywhere}
.rs-view small,.rs-view th{color:var(--rs-muted)}
.rs-view summary{cursor:pointer;padding:2px 0}
.rs-wide{overflow-x:auto}
.rs.rs-view table{border-collapse:collapse;margin:4px 0;font-size:13px}
.rs.rs-view th,.rs.rs-view td{text-align:left;vertical-align:top;padding:2px 16px 2px 0;border:0;background:none;\
border-bottom:1px solid var(--rs-edge);white-space:nowrap;max-width:40em;overflow:hidden;text-overflow:ellipsis}
.rs.rs-view tbody tr,.rs.rs-view thead{background:none}
.rs.rs-view td.rs-long{white-space:normal;overflow-wrap:anywhere;min-width:16em}
.rs.rs-view th.rs-right,.rs.rs-view td.rs-right{text-align:right;font-variant-numeric:tabular-nums}
.rs-view code{font-size:12px;color:inherit;background:none;padding:0}
"""


def colours() -> str:
    """Return the CSS that defines the colour of each role as a variable, for elements in ``.rs``."""

    def roles(night: int) -> str:
        named = ((role, both[night], both[2]) for role, both in ROLES.items())
        return "".join(f"--rs-{role}:{f'var({own},{colour})' if own else colour};" for role, colour, own in named)

    def where(themes: Sequence[str], editor: str) -> str:
        return ",".join(f"{theme} .rs" for theme in (*themes, editor))

    return (
        f".rs{{{roles(0)}}}\n@media(prefers-color-scheme:dark){{.rs{{{roles(1)}}}}}\n"
        f"{where(_DAY, '.vscode-light')}{{{roles(0)}}}\n{where(_NIGHT, '.vscode-dark')}{{{roles(1)}}}\n"
    )


def view(title: str, subtitle: str, *parts: str) -> str:
    """Return one view: a title, a subtitle, and ``parts`` that are HTML."""
    heading = f"<h4>{text(title)}{f' <small>{text(subtitle)}</small>' if subtitle else ''}</h4>"
    return f'<div class="rs rs-view"><style>{colours()}{_LAYOUT}</style>{heading}{"".join(parts)}</div>'


def text(value: object) -> str:
    """Return ``value`` escaped for HTML, without credentials."""
    return escape(sanitize(str(value)))


def paragraph(value: str) -> str:
    """Return a paragraph of text; nothing for no text."""
    return f"<p>{text(value)}</p>" if value else ""


def fold(summary: str, *parts: str) -> str:
    """Return ``parts`` folded under a ``summary`` to click on; "" if there are none."""
    body = "".join(parts)
    return f"<details><summary>{text(summary)}</summary>{body}</details>" if body else ""


def table(
    heading: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), most: int = 30, total: int = 0
) -> str:
    """Return a table of the first ``most`` of ``total`` rows, without columns that are empty in all of them.

    Columns named ``right`` are numbers; a column named "text" may have several lines.
    """
    shown = list(islice(rows, most))
    kept = [place for place in range(len(heading)) if any(row[place] for row in shown)]
    kinds = {**dict.fromkeys(right, ' class="rs-right"'), "text": ' class="rs-long"'}

    def line(row: Sequence[str], tag: str) -> str:
        cells = (f"<{tag}{kinds.get(heading[place], '')}>{text(row[place])}</{tag}>" for place in kept)
        return f"<tr>{''.join(cells)}</tr>"

    if not shown:
        return ""
    body = "".join(line(row, "td") for row in shown)
    more = paragraph(f"and {total - len(shown):,} more") if total > len(shown) else ""
    return f'<div class="rs-wide"><table><thead>{line(heading, "th")}</thead><tbody>{body}</tbody></table></div>{more}'


class Shown(msgspec.Struct, frozen=True):
    """A value with texts of a source: its repr escapes characters that control a terminal, or are invisible."""

    def __repr__(self) -> str:
        return printable(super().__repr__())


# ----------------------------------------------------------------------------------------------------
# Counters: a dict that prints as a table, in a notebook as one of HTML.


class Counters(dict[str, int]):
    """Counters by name, as `refshard_fs.core.stats` explains them; a dict that prints as a table.

    >>> Counters(keys=1200, bytes_fetched=3 << 20)
    keys           1,200
    bytes_fetched  3,145,728  (3.0 MiB)

    ``note`` is a sentence that is printed after them.
    """

    note: str | None = None

    def __repr__(self) -> str:
        wide = max(map(len, self), default=0)
        lines = [f"{name:<{wide}}  {_figure(name, value)}" for name, value in self.items()]
        return "\n".join([*lines, self.note] if self.note else lines)

    def _repr_html_(self) -> str:
        return view("What was read", "", self.table(), paragraph(self.note or ""))

    def table(self) -> str:
        """Return the counters as a table of HTML."""
        rows = [(name, _figure(name, value)) for name, value in self.items()]
        return table(("counter", "value"), rows, right=["value"])


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, int):
        return str(value)
    is_bytes = "bytes" in name or name == "ahead_wasted"
    return f"{value:,}  ({bytes_text(value)})" if is_bytes and value > 999 else f"{value:,}"


# ----------------------------------------------------------------------------------------------------
# A plan: a list that prints as a table of requests, in a notebook as one of HTML.


REQUESTS: Final = 20  # of a plan that are shown


class Plan(list[Planned]):
    """Requests that a read would make, target by target: a list that prints as a table.

    >>> Plan([Planned("s3://b/x.nc", 0, 2000, ("a/0", "a/1")), Planned("s3://b/y.nc", 9000, 9100, ("a/2",))])
    2 requests for 3 keys of 2 targets: 2.1 KiB
    s3://b/x.nc
          0 to 2,000  2.0 KiB  a/0 and 1 more
    s3://b/y.nc
      9,000 to 9,100    100 B  a/2
    """

    def __repr__(self) -> str:
        rows = [_request(request) for request in self[:REQUESTS]]
        wide = [max((len(row[place]) for row in rows), default=0) for place in (1, 2)]
        lines, before = [self._summary()], ""
        for target, span, size, keys in rows:
            if target != before:
                lines.append(target)
            lines.append(f"  {span:>{wide[0]}}  {size:>{wide[1]}}  {keys}")
            before = target
        return "\n".join([*lines, f"and {len(self) - REQUESTS:,} more"] if len(self) > REQUESTS else lines)

    def _repr_html_(self) -> str:
        heading = ("target", "bytes", "size", "keys")
        return view(
            "What would be read",
            self._summary(),
            table(heading, map(_request, self[:REQUESTS]), right=heading[1:3], total=len(self)),
        )

    def _summary(self) -> str:
        """Return in one line how much is requested."""
        if not self:
            return "no request: the source itself has it all"
        keys = {key for request in self for key in request.keys}
        targets = {request.url for request in self}
        known = [request.stop - request.start for request in self if request.stop is not None]
        sizes = [bytes_text(sum(known))] if known else []
        if len(known) < len(self):
            sizes.append(f"{len(self) - len(known):,} of unknown size")
        requests, served = count_text(len(self), "request"), count_text(len(keys), "key")
        return f"{requests} for {served} of {count_text(len(targets), 'target')}: {' and '.join(sizes)}"


def _request(request: Planned) -> tuple[str, str, str, str]:
    """Return a row of a plan: the target, the bytes of it, how many these are, and the keys that they serve."""
    url, start, stop, keys = request
    first = sanitize(keys[0]) if keys else ""
    return (
        sanitize(url),
        f"{start:,} to the end" if stop is None else f"{start:,} to {stop:,}",
        "" if stop is None else bytes_text(stop - start),
        f"{first} and {len(keys) - 1:,} more" if len(keys) > 1 else first,
    )


# ----------------------------------------------------------------------------------------------------
# A filesystem in a notebook. Showing it reads nothing: unknown values are left out.


ARRAYS: Final = 30  # that are listed
TARGETS: Final = 10


def html_of(session: Source) -> str:
    """Return the HTML that a notebook shows for the filesystem of ``session``."""
    source = session.options.source
    title = source if isinstance(source, str) else "references in memory"
    keyspace = session.open_now()
    if keyspace is None:
        return view(title, "refshard", paragraph("not opened yet: its first use reads it"))
    counts = session.stats.snapshot()
    read = fold("What was read", Counters(counts).table()) if any(counts.values()) else ""
    return view(title, f"refshard, {keyspace.format}", arrays_table(keyspace), _targets(keyspace.urls), read)


def _targets(urls: Sequence[str | None]) -> str:
    shown = ((url,) for url in islice(urls, TARGETS) if url is not None)
    return fold(count_text(len(urls), "target"), table(("target",), shown, total=len(urls))) if urls else ""


def arrays_table(keyspace: KeySpace) -> str:
    """Return the table of the arrays of a source, as HTML."""
    grids = keyspace.grids
    try:
        if not grids:
            return paragraph("no array is known yet")
    except ManifestError as e:  # of many small arrays, metadata are read when they are asked for
        return paragraph(f"its arrays cannot be listed: {e}")
    heading = ("array", "shape", "dtype", "chunk", "chunks", "chunks of a shard")
    rows = (_figures(keyspace, path, grids[path]) for path in keyspace.in_order(sorted(grids))[:ARRAYS])
    return table(heading, rows, right=["chunks"], total=len(grids))


def _figures(keyspace: KeySpace, path: str, grid: ChunkGrid) -> tuple[str, ...]:
    """Return a row of the table of arrays; shape and dtype are empty where the metadata would have to be fetched."""
    texts: dict[str, bytes] = {}
    meta = None
    for name in (*ARRAY_DOCUMENTS, ".zattrs"):
        with contextlib.suppress(ValueError, TypeError):  # it is damaged
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


# ----------------------------------------------------------------------------------------------------
# A bar while something takes longer than a second, in a terminal and in a notebook.


DELAY: Final = 1.0  # seconds before a bar appears: shorter work needs none


@contextlib.contextmanager
def progress(what: str, callback: Callback = DEFAULT_CALLBACK) -> Iterator[Callback]:
    """Yield ``callback``, or instead of fsspec's default one that shows a progress bar called ``what``.

    There is a bar in terminals and notebooks if tqdm (the extra `cli`) is installed. It appears after a second.
    Silent: ``TQDM_DISABLE=1`` in the environment, or a callback of one's own (``fsspec.callbacks.NoOpCallback()``).
    """
    bar = _tqdm() if callback is DEFAULT_CALLBACK and _is_watched() else None
    if bar is None:
        yield callback
        return
    with TqdmCallback(tqdm_kwargs={"desc": what, "leave": False, "delay": DELAY}, tqdm_cls=bar) as shown:
        yield shown


def _is_watched() -> bool:
    """Whether somebody sees stderr as it is written: in a terminal, or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") or (sys.stderr is not None and sys.stderr.isatty())


def _tqdm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a notebook without ipywidgets has a bar of text
        try:
            return importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            return None

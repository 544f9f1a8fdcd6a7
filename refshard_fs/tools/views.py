"""HTML views for notebooks: titles, paragraphs, tables, and parts that fold.

Colours follow the notebook's theme (JupyterLab, VS Code, Sphinx and mkdocs mark it on the page), or else the light or
dark mode of the system. Text from a source is escaped, and shown without credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Final

import msgspec

from refshard_fs.errors import escape_controls, sanitize

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


# Rules for cells name the class twice: JupyterLab's styles of tables, and those of saved pages, would win otherwise.
_LAYOUT: Final = """\
.rs-view{color:var(--rs-ink);font-family:system-ui,sans-serif;font-size:13px;line-height:1.5}
.rs-view .rs-title{font-size:14px;margin:0 0 4px;font-weight:600;overflow-wrap:anywhere}
.rs-view p{margin:4px 0;overflow-wrap:anywhere}
.rs-view .rs-note,.rs-view th{color:var(--rs-muted)}
.rs-view .rs-note{font-size:smaller}
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


def make_colour_css() -> str:
    """Return the CSS that defines the colour of each role as a variable, for elements in ``.rs``."""

    def format_roles(night: int) -> str:
        named = ((role, both[night], both[2]) for role, both in ROLES.items())
        return "".join(f"--rs-{role}:{f'var({own},{colour})' if own else colour};" for role, colour, own in named)

    def select_themes(themes: Sequence[str], editor: str) -> str:
        return ",".join(f"{theme} .rs" for theme in (*themes, editor))

    return (
        f".rs{{{format_roles(0)}}}\n@media(prefers-color-scheme:dark){{.rs{{{format_roles(1)}}}}}\n"
        f"{select_themes(_DAY, '.vscode-light')}{{{format_roles(0)}}}\n"
        f"{select_themes(_NIGHT, '.vscode-dark')}{{{format_roles(1)}}}\n"
    )


def render_view(title: str, subtitle: str, *parts: str) -> str:
    """Return one view: a title, a subtitle, and ``parts`` that are HTML."""
    note = f' <span class="rs-note">{escape_text(subtitle)}</span>' if subtitle else ""
    heading = f'<div class="rs-title">{escape_text(title)}{note}</div>'
    return f'<div class="rs rs-view"><style>{make_colour_css()}{_LAYOUT}</style>{heading}{"".join(parts)}</div>'


def escape_text(value: object) -> str:
    """Return ``value`` escaped for HTML, without credentials."""
    return escape(sanitize(str(value)))


def render_paragraph(value: str) -> str:
    """Return a paragraph of text; "" for an empty text."""
    return f"<p>{escape_text(value)}</p>" if value else ""


def render_folded(summary: str, *parts: str) -> str:
    """Return ``parts`` folded under a ``summary`` to click on; "" if all are empty."""
    body = "".join(parts)
    return f"<details><summary>{escape_text(summary)}</summary>{body}</details>" if body else ""


def render_table(
    heading: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), most: int = 30, total: int = 0
) -> str:
    """Return a table of the first ``most`` of ``total`` rows, without columns that are empty in all of them.

    Columns named ``right`` are numbers; a column named "text" may have several lines.
    """
    shown = list(islice(rows, most))
    kept = [place for place in range(len(heading)) if any(row[place] for row in shown)]
    kinds = {**dict.fromkeys(right, ' class="rs-right"'), "text": ' class="rs-long"'}

    def make_line(row: Sequence[str], tag: str) -> str:
        cells = (f"<{tag}{kinds.get(heading[place], '')}>{escape_text(row[place])}</{tag}>" for place in kept)
        return f"<tr>{''.join(cells)}</tr>"

    if not shown:
        return ""
    body = "".join(make_line(row, "td") for row in shown)
    more = render_paragraph(f"and {total - len(shown):,} more") if total > len(shown) else ""
    head = make_line(heading, "th")
    return f'<div class="rs-wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>{more}'


class EscapedStruct(msgspec.Struct, frozen=True):
    """A value with texts of a source: its repr escapes characters that control a terminal, or are invisible."""

    def __repr__(self) -> str:
        return escape_controls(super().__repr__())

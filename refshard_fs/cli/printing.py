"""What commands print: lines, tables, JSON, progress.

Tables are drawn by rich where that is installed and stdout is a terminal, and are plain text elsewhere: nothing but
text goes into a pipe or a file. ``NO_COLOR`` is heeded. Control characters in keys and URLs are spelled out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

from refshard_fs.amounts import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_json", "print_line", "print_table", "progress"]

Side = Literal["left", "right"]
Style = Literal["", "bold", "green", "red", "yellow"]


def print_line(text: str = "", style: Style = "") -> None:
    """Print one line, coloured where that is wanted."""
    if style and _draws():
        from rich.text import Text  # an extra, and only for terminals

        _console().print(Text(printable(text), style=style), soft_wrap=True)
    else:
        print(printable(text))


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], sides: Sequence[Side] = ()) -> None:
    """Print ``rows`` in columns below their ``heading``; ``sides`` say where the text of each column stands."""
    rows = [[printable(cell) for cell in row] for row in rows]
    aligned: list[Side] = [*sides, *(["left"] * (len(heading) - len(sides)))]  # type: ignore[list-item]  # literals
    if _draws():
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for title, side in zip(heading, aligned, strict=True):
            table.add_column(title, justify=side, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        _console().print(table)
        return
    columns = zip(heading, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    for row in (heading, *rows):
        cells = (
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(row, widths, aligned, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print ``value`` for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def progress(what: str) -> Callback:
    """Return a callback that shows progress on stderr, where that is a terminal and tqdm is installed."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return TqdmCallback(tqdm_kwargs={"desc": what, "leave": False, "file": sys.stderr})
    return DEFAULT_CALLBACK


def _draws() -> bool:
    """Whether tables and colours are drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and _has_rich()


@cache
def _has_rich() -> bool:
    try:
        return importlib.util.find_spec("rich.console") is not None
    except ImportError:
        return False


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)

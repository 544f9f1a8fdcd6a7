"""What commands print: tables, JSON, progress."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

__all__ = ["print_json", "print_table", "progress"]


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows``, of which the first is the heading, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(_padded(row, widths)).rstrip())


def print_json(value: Any) -> None:
    """Print ``value`` for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def progress(what: str) -> Callback:
    """Return a callback that shows progress on stderr, where that is a terminal and tqdm is installed."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return TqdmCallback(tqdm_kwargs={"desc": what, "leave": False, "file": sys.stderr})
    return DEFAULT_CALLBACK


def _padded(row: Sequence[str], widths: Iterable[int]) -> list[str]:
    return [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]

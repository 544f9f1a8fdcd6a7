"""Counters as people see them: a mapping that prints as a small table, in a notebook as one of HTML. No I/O here."""

from __future__ import annotations

from html import escape
from typing import Any

from refshard_fs.amounts import bytes_text

__all__ = ["Counters"]


class Counters(dict[str, int]):
    """Counters by name, as `refshard_fs.stats` explains them; a dict in all but its looks.

    >>> Counters(keys=1200, bytes_fetched=3 << 20)
    keys           1,200
    bytes_fetched  3,145,728  (3.0 MiB)
    """

    def __repr__(self) -> str:
        wide = max(map(len, self), default=0)
        return "\n".join(f"{name:<{wide}}  {_text(name, value)}" for name, value in self.items())

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td>'
            f'<td style="text-align:right">{escape(_text(name, value))}</td></tr>'
            for name, value in self.items()
        )
        return f"<table>{rows}</table>"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, int):
        return str(value)
    is_bytes = "bytes" in name or name == "ahead_wasted"
    return f"{value:,}  ({bytes_text(value)})" if is_bytes and value > 999 else f"{value:,}"

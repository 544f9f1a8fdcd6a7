"""A dict of counters that prints as a table; notebooks show a table of HTML."""

from __future__ import annotations

from typing import Any

from refshard_fs.core.stats import format_bytes
from refshard_fs.tools.views import render_paragraph, render_table, render_view


class Counters(dict[str, int]):
    """Counters by name, as `refshard_fs.core.stats` explains them; a dict that prints as a table.

    >>> Counters(keys=1200, bytes_fetched=3 << 20)
    keys           1,200
    bytes_fetched  3,145,728  (3.0 MiB)

    ``note`` is a sentence that is printed after the table.
    """

    note: str | None = None

    def __repr__(self) -> str:
        wide = max(map(len, self), default=0)
        lines = [f"{name:<{wide}}  {_format_figure(name, value)}" for name, value in self.items()]
        return "\n".join([*lines, self.note] if self.note else lines)

    def _repr_html_(self) -> str:
        return render_view("Reads", "", self.table(), render_paragraph(self.note or ""))

    def table(self) -> str:
        """Return the counters as a table of HTML."""
        rows = [(name, _format_figure(name, value)) for name, value in self.items()]
        return render_table(("counter", "value"), rows, right=["value"])


def _format_figure(name: str, value: Any) -> str:
    if not isinstance(value, int):
        return str(value)
    is_bytes = "bytes" in name or name == "ahead_wasted"
    return f"{value:,}  ({format_bytes(value)})" if is_bytes and value > 999 else f"{value:,}"

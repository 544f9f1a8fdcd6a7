"""Make the page of options from the fields of `Options`: ``python docs/options.py >docs/pages/options.md``."""

from __future__ import annotations

import sys

from refshard_fs.source.options import Option, Options

HEAD = """\
# Options

This page lists the keywords of `RefShardFileSystem`, which `storage_options=` and fsspec's configuration take, too.
`docs/options.py` makes it from `refshard_fs.source.options`. The [API reference](api.md) describes each keyword.
"""
GROUPS = {
    "source": "The source, and the shown part of it",
    "trust": "Where a source may point, and the options for each URL",
    "reading": "How targets are read",
    "caching": "Caches",
    "writing": "Where writes go",
}


def make_page() -> str:
    """Return the page, as Markdown."""
    return "\n".join([HEAD, *(_section(GROUPS[group], options) for group, options in Options.table().items())])


def _section(title: str, options: list[Option]) -> str:
    rows = [f"| `{o.name}` | {_code(o.kind)} | {_code(_number(o))} | {o.effect} |" for o in options]
    return "\n".join([f"## {title}\n", "| option | type | default | effect |", "|---|---|---|---|", *rows, ""])


def _number(option: Option) -> str:
    """Return the default with its unit; a number of bytes in GiB, MiB or KiB if it is a multiple of that unit."""
    size = int(option.default) if option.unit == "bytes" else 0
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and not size % unit:
            return f"{size // unit} {name}"
    return f"{option.default} {option.unit}".strip()


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(make_page())

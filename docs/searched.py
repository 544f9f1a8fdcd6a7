"""Whether the site has its pictures, and its search finds all names: ``python docs/searched.py docs/site``.

Names are those of errors, commands and the rest of the API. Prints missing names, and then exits with status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import refshard_fs
from refshard_fs.cli.program import parser


def names() -> list[str]:
    """Return what people look for: the errors and the rest of the API, and the commands."""
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [*refshard_fs.__all__, *(f"refshard {command}" for command in commands.choices)]


def missing(titles: Iterable[str]) -> list[str]:
    """Return the names that are in none of ``titles``, as words of their own."""
    together = "\n".join(titles)
    return [name for name in names() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", together)]


def titles(site: Path) -> list[str]:
    """Return the title of each entry that the search of ``site`` has: of each page, and of each heading."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return [entry["title"] for entry in index["docs"]]


def pictures(site: Path) -> list[str]:
    """Return the pictures that pages of ``site`` show and that are not there, with the pages."""
    shown = [
        (page, name)
        for page in site.glob("*.html")
        for name in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text())
    ]
    return [f"{name} of {page.name}" for page, name in shown if not (site / name).is_file()]


if __name__ == "__main__":
    site = Path(sys.argv[1])
    lacking = [*missing(titles(site)), *pictures(site)]
    sys.exit(f"the search does not find, or the site has not: {', '.join(lacking)}" if lacking else 0)

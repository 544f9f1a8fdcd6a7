"""Check that the site has its pictures, and that its search finds all names: ``python docs/searched.py docs/site``.

The names are those of the commands and of the API, errors included. If a name or a picture is missing, print the names
and pictures, and exit with status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import refshard_fs
from refshard_fs.cli.program import make_parser


def list_names() -> list[str]:
    """Return the names that the search must find: those of the API, errors included, and of the commands."""
    (commands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [*refshard_fs.__all__, *(f"refshard {command}" for command in commands.choices)]


def find_missing(titles: Iterable[str]) -> list[str]:
    """Return the names that occur in none of ``titles`` as whole words."""
    together = "\n".join(titles)
    return [name for name in list_names() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", together)]


def read_titles(site: Path) -> list[str]:
    """Return the titles in the search index of ``site``: those of all pages and headings."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return [entry["title"] for entry in index["docs"]]


def find_missing_pictures(site: Path) -> list[str]:
    """Return each picture that a page of ``site`` shows and whose file is missing, with the name of the page."""
    shown = [
        (page, name)
        for page in site.glob("*.html")
        for name in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text())
    ]
    return [f"{name} of {page.name}" for page, name in shown if not (site / name).is_file()]


if __name__ == "__main__":
    site = Path(sys.argv[1])
    lacking = [*find_missing(read_titles(site)), *find_missing_pictures(site)]
    sys.exit(f"missing in the search of the site, or in the site itself: {', '.join(lacking)}" if lacking else 0)

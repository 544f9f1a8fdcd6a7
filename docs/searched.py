"""Whether the site's search finds every error, command and public name: ``python docs/searched.py docs/site``.

Prints what it does not find, and then ends with status 1.
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


if __name__ == "__main__":
    lacking = missing(titles(Path(sys.argv[1])))
    sys.exit(f"the search does not find: {', '.join(lacking)}" if lacking else 0)

"""The command ``diff``: what differs between two sources."""

from __future__ import annotations

from argparse import Namespace
from typing import Literal

import msgspec

from refshard_fs.amounts import count_text
from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source
from refshard_fs.cli.printing import print_json, print_line
from refshard_fs.survey.comparing import Changes, Difference, compare

__all__ = ["COMMANDS"]


def _diff(arguments: Namespace) -> int:
    found = compare(open_source(arguments, "A"), open_source(arguments, "B"))
    if arguments.json:
        print_json({"same": found.is_empty, **msgspec.to_builtins(found)})
    else:
        _print_difference(found)
    return int(not found.is_empty)


def _print_difference(found: Difference) -> None:
    for what, added, removed in (
        ("group", found.groups_added, found.groups_removed),
        ("array", found.arrays_added, found.arrays_removed),
        ("metadata", found.metadata_added, found.metadata_removed),
    ):
        for path in removed:
            print_line(f"- {what} {path or '/'}", "red")
        for path in added:
            print_line(f"+ {what} {path or '/'}", "green")
    for document in found.metadata_changed:
        print_line(f"~ metadata {document.key}: {', '.join(document.fields)}", "yellow")
    for changes in found.keys:
        _print_changes(changes)
    for path in found.not_compared:
        print_line(f"? chunks of {path or '/'} cannot be listed in both sources, and were not compared", "yellow")


def _print_changes(changes: Changes) -> None:
    what = "keys that are no chunks" if changes.path is None else f"chunks of {changes.path or '/'}"
    counts = ((changes.removed, "removed"), (changes.added, "added"), (changes.changed, "changed"))
    print_line(f"{what}: " + ", ".join(f"{count:,} {name}" for count, name in counts if count))
    _print_keys("-", "red", changes.removed, changes.some_removed)
    _print_keys("+", "green", changes.added, changes.some_added)
    _print_keys("~", "yellow", changes.changed, changes.some_changed)


def _print_keys(sign: str, style: Literal["red", "green", "yellow"], count: int, some: tuple[str, ...]) -> None:
    for key in some:
        print_line(f"  {sign} {key}", style)
    if count > len(some):
        print_line(f"  {sign} and {count_text(count - len(some), 'more', 'more')}", style)


COMMANDS = (Command("diff", "arrays, metadata and references that differ", _diff, sources=("A", "B"), json=True),)

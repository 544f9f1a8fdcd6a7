"""Commands that show what a source holds: ``info``, ``ls``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import msgspec

from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source
from refshard_fs.cli.printing import print_json, print_table
from refshard_fs.summary import Summary, summarise

__all__ = ["COMMANDS"]


def _info(arguments: Namespace) -> None:
    found = summarise(open_source(arguments))
    if arguments.json:
        print_json({"source": arguments.source, **msgspec.to_builtins(found)})
    else:
        print(arguments.source)
        _print_summary(found)


def _print_summary(found: Summary) -> None:
    unsized = f" ({found.unsized:,} of unknown size)" if found.unsized else ""
    groups, arrays = len(found.groups), len(found.arrays)
    print(f"keys {found.keys:,}{unsized}, bytes {found.bytes:,}, groups {groups:,}, arrays {arrays:,}")
    if not found.arrays:
        return
    print()
    rows = [("array", "shape", "chunk", "dtype", "chunks", "bytes")]
    for array in found.arrays:
        present = f"{array.present:,} of {'?' if array.possible is None else f'{array.possible:,}'}"
        stray = f" (+{array.stray:,} outside)" if array.stray else ""
        chunk = "varied" if array.chunks is None else _shape(array.chunks)
        rows.append((array.name or "/", _shape(array.shape), chunk, array.dtype, present + stray, f"{array.bytes:,}"))
    print_table(rows)
    for name, reason in sorted(found.left_whole.items()):
        print(f"{name or '/'}: its shards are left whole: {reason}")


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="?", default="", help="a directory or a key; default: the root")
    parser.add_argument("-l", "--long", action="store_true", help="sizes in bytes too")


def _ls(arguments: Namespace) -> None:
    entries = sorted(open_source(arguments).ls(arguments.path, detail=True), key=lambda entry: str(entry["name"]))
    if arguments.json:
        print_json([{name: entry[name] for name in ("name", "type", "size")} for entry in entries])
        return
    names = [entry["name"] + ("/" if entry["type"] == "directory" else "") for entry in entries]
    if arguments.long:
        sizes = [_size(entry) for entry in entries]
        width = max(map(len, sizes), default=0)
        names = [f"{size:>{width}}  {name}" for size, name in zip(sizes, names, strict=True)]
    for name in names:
        print(name)


def _size(entry: dict[str, Any]) -> str:
    if entry["type"] == "directory":
        return "-"
    return "?" if entry["size"] is None else str(entry["size"])


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


COMMANDS = (
    Command("info", "groups, arrays, and chunks present of possible", _info, json=True),
    Command("ls", "keys directly below a path", _ls, _ls_arguments, json=True),
)

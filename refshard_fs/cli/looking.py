"""Commands that show what a source holds: ``info``, ``ls``, ``tree``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from refshard_fs.amounts import bytes_text, count_text, shape_text
from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source, positive
from refshard_fs.cli.printing import print_json, print_line, print_table
from refshard_fs.errors import redacted
from refshard_fs.nodes import Node, tree
from refshard_fs.summary import ArraySummary, Summary, summarise

__all__ = ["COMMANDS"]


def _info(arguments: Namespace) -> None:
    found = summarise(open_source(arguments))
    if arguments.json:
        print_json({"source": redacted(arguments.source), **msgspec.to_builtins(found)})
    else:
        print_line(redacted(arguments.source), "bold")
        _print_summary(found)


def _print_summary(found: Summary) -> None:
    version = "" if found.version is None else f" version {found.version}"
    zarr = "".join(f", zarr v{number}" for number in found.zarr_formats)
    print_line(f"{found.format}{version}{zarr}")
    unsized = f" ({found.unsized:,} of unknown size)" if found.unsized else ""
    unlisted = " and chunks that cannot be listed" if any(array.present is None for array in found.arrays) else ""
    print_line(
        f"{count_text(found.keys, 'key')}{unlisted}{unsized}, {bytes_text(found.bytes)}; "
        f"{count_text(len(found.groups), 'group')}, {count_text(len(found.arrays), 'array')}; "
        f"inline: {count_text(found.inline_keys, 'key')}, {bytes_text(found.inline_bytes)}"
    )
    if found.arrays:
        print_line()
        _print_arrays(found.arrays)
    targets = found.targets
    if targets.count:
        protocols = ", ".join(f"{name} {count:,}" for name, count in targets.protocols.items())
        print_line()
        print_line(
            f"{count_text(targets.count, 'target')} ({protocols}): {count_text(targets.references, 'reference')}, "
            f"{bytes_text(targets.bytes)}"
        )
        rows = [(target.url, f"{target.references:,}", bytes_text(target.bytes)) for target in targets.top]
        if targets.count > len(rows):
            rows.append((f"and {targets.count - len(rows):,} more", "", ""))
        print_table(("target", "references", "bytes"), rows, ("left", "right", "right"))
    if found.warnings:
        print_line()
    for warning in found.warnings:
        print_line(f"warning: {warning}", "yellow")


def _print_arrays(arrays: tuple[ArraySummary, ...]) -> None:
    sharded = any(array.shards is not None for array in arrays)
    rows = []
    for array in arrays:
        known = "not listable" if array.present is None else f"{array.present:,}"
        present = f"{known} of {'?' if array.possible is None else f'{array.possible:,}'}"
        stray = f" (+{array.stray:,} outside)" if array.stray else ""
        chunk = "varied" if array.chunks is None else shape_text(array.chunks)
        shard = [] if not sharded else ["-" if array.shards is None else shape_text(array.shards)]
        codecs = ", ".join(array.codecs) or "none"
        row = [array.name or "/", shape_text(array.shape), chunk, *shard, array.dtype, codecs, present + stray]
        rows.append([*row, "?" if array.present is None else bytes_text(array.bytes)])
    heading = ["array", "shape", "chunk", *(["shard"] if sharded else []), "dtype", "codecs", "chunks", "bytes"]
    print_table(heading, rows, [*(["left"] * (len(heading) - 1)), "right"])  # type: ignore[list-item]  # literals


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
        print_line(name)


def _size(entry: dict[str, Any]) -> str:
    if entry["type"] == "directory":
        return "-"
    return "?" if entry["size"] is None else str(entry["size"])


def _tree_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="?", default="", help="a group or an array; default: the root")
    parser.add_argument("-L", "--depth", metavar="N", type=positive, help="levels of groups below PATH")


def _tree(arguments: Namespace) -> None:
    found = tree(open_source(arguments), arguments.path, arguments.depth)
    if arguments.json:
        print_json(msgspec.to_builtins(found))
    else:
        print_line(_label(found, found.path or "/"), "bold")
        _print_below(found, "")


def _print_below(node: Node, indent: str) -> None:
    for child in node.children:
        last = child is node.children[-1]
        name = child.path.rpartition("/")[2]
        print_line(f"{indent}{'└── ' if last else '├── '}{_label(child, name)}")
        _print_below(child, indent + ("    " if last else "│   "))


def _label(node: Node, name: str) -> str:
    if node.kind == "array":
        return f"{name} ({shape_text(node.shape or ())}) {node.dtype}"
    return name + ("" if name == "/" else "/") + (" ..." if node.cut else "")


COMMANDS = (
    Command("info", "format, groups, arrays, targets, and chunks present of possible", _info, json=True),
    Command("ls", "keys directly below a path", _ls, _ls_arguments, json=True),
    Command("tree", "groups and arrays, with shapes and dtypes", _tree, _tree_arguments, json=True),
)

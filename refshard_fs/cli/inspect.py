"""Commands that show what a source holds: ``info``, ``ls``, ``tree``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import Any, Literal

import msgspec
from fsspec.callbacks import Callback

from refshard_fs.cli.command import Command, open_source, positive, print_json, print_line, print_table, progress
from refshard_fs.core.directories import Node, tree
from refshard_fs.core.formatting import bytes_text, count_text, shape_text
from refshard_fs.core.keys import normalise
from refshard_fs.errors import ManifestError, redacted
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.tools.check import check
from refshard_fs.tools.diff import Changes, Difference, compare
from refshard_fs.tools.findings import Report
from refshard_fs.tools.info import ArraySummary, Summary, summarise

__all__ = ["LOOKING", "CHECKS", "COMPARING", "PICTURING", "READING"]


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


LOOKING = (
    Command("info", "format, groups, arrays, targets, and chunks present of possible", _info, json=True),
    Command("ls", "keys directly below a path", _ls, _ls_arguments, json=True),
    Command("tree", "groups and arrays, with shapes and dtypes", _tree, _tree_arguments, json=True),
)


# ----------------------------------------------------------------------------------------------------
# The command ``check``: what is wrong with a source.


def _check_arguments(parser: ArgumentParser) -> None:
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--head", action="store_true", help="ask each target, read no chunk (default)")
    depth.add_argument("--read", metavar="N", type=positive, help="read N chunks too, evenly spaced over all")
    depth.add_argument("--full", action="store_true", help="read all chunks, and decode them where zarr is installed")


def _check(arguments: Namespace) -> int:
    fs = open_source(arguments, index_cache=False)  # as it is now, not as it was
    with progress("check") as shown:
        if arguments.full:
            report = check(fs, "full", callback=shown)
        elif arguments.read is not None:
            report = check(fs, "read", sample=arguments.read, callback=shown)
        else:
            report = check(fs, callback=shown)
    if arguments.json:
        print_json(
            {"source": redacted(arguments.source), "has_errors": report.has_errors, **msgspec.to_builtins(report)}
        )
    else:
        print_line(redacted(arguments.source), "bold")
        _print_report(report)
    return int(report.has_errors)


def _print_report(report: Report) -> None:
    print_line(
        f"keys {report.keys:,}, arrays {report.arrays:,}, chunks {report.chunks:,} (missing {report.missing:,}), "
        f"targets {report.targets:,}; read {report.read:,} chunks, {report.bytes_read:,} bytes, "
        f"decoded {report.decoded:,}"
    )
    for finding in report.findings:
        where = ": ".join(filter(None, (finding.key, finding.url)))
        print_line(f"{finding.severity}: {finding.kind}: {where}{': ' if where else ''}{finding.text}")
    shown = Counter(finding.kind for finding in report.findings)
    for kind, count in sorted(report.counts.items()):
        if count > shown[kind]:
            print_line(f"{kind}: {count - shown[kind]:,} more")
    for note in report.notes:
        print_line(f"note: {note}")
    if not report.findings:
        print_line("nothing wrong was found")


CHECKS = (
    Command("check", "what is wrong with metadata, ranges, targets and data", _check, _check_arguments, json=True),
)


# ----------------------------------------------------------------------------------------------------
# The command ``diff``: what differs between two sources.


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


COMPARING = (Command("diff", "arrays, metadata and references that differ", _diff, sources=("A", "B"), json=True),)


# ----------------------------------------------------------------------------------------------------
# The command ``map``: a picture of where an array's bytes lie.


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("array", metavar="ARRAY", nargs="?", help="path of the array; default: the largest")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="where to write it: FILE.svg, FILE.html or FILE.png"
    )
    parser.add_argument("--select", metavar="TEXT", help='mark the requests that a slice causes: "air[0:10, :, :]"')


def _map(arguments: Namespace) -> None:
    made = open_source(arguments).visualize(arguments.array, arguments.select)
    made.save(arguments.output)
    print_line(f"{arguments.output}: {made.scene.title}: {made.scene.text}")


PICTURING = (Command("map", "draw where an array's bytes lie, and the requests for a slice", _map, _arguments),)


# ----------------------------------------------------------------------------------------------------
# Commands that read keys: ``cat``, ``get``.


def _cat_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("keys", metavar="KEY", nargs="+", help="written one after the other")


def _cat(arguments: Namespace) -> None:
    fs = open_source(arguments)
    for key in arguments.keys:
        fs.get_file(key, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _get_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a key; with -r, a directory or '' for all")
    parser.add_argument(
        "destination", metavar="DEST", nargs="?", help="a file or a directory; default: the last part of KEY"
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="all keys below KEY, into the directory DEST")


def _get(arguments: Namespace) -> None:
    fs, key = open_source(arguments), normalise(arguments.key)
    name = key.rpartition("/")[2]
    with progress("get") as shown:
        if arguments.recursive:
            _get_all(fs, key, arguments.destination or name or ".", shown)
            return
        destination = arguments.destination or name
        if not name or fs.isdir(key):
            raise IsADirectoryError(f"{key or '/'} is a directory: -r gets all keys below it")
        if os.path.isdir(destination):
            destination = os.path.join(destination, name)
        _put(fs, {key: destination}, os.path.dirname(destination) or ".", shown)


def _get_all(fs: RefShardFileSystem, key: str, destination: str, shown: Callback) -> None:
    keys = fs.find(key)
    if not keys:
        raise FileNotFoundError(key)
    cut = len(key) + 1 if key and keys != [key] else len(key.rpartition("/")[0]) + 1 if "/" in key else 0
    _put(fs, {name: _below(destination, name[cut:]) for name in keys}, destination, shown)


def _put(fs: RefShardFileSystem, files: dict[str, str], directory: str, shown: Callback) -> None:
    """Write keys to files; all are fetched aside, in ``directory``, before the first one appears."""
    os.makedirs(directory, exist_ok=True)
    aside = tempfile.mkdtemp(prefix=".refshard-", dir=directory)
    try:
        parts = [os.path.join(aside, str(number)) for number in range(len(files))]
        if len(files) == 1:
            fs.get_file(*files, *parts, callback=shown)  # it counts bytes
        else:
            fs.get(list(files), parts, callback=shown)
        for part, path in zip(parts, files.values(), strict=True):
            if not os.path.exists(part):  # nothing was read: it has no bytes
                open(part, "wb").close()
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            os.replace(part, path)
    finally:
        shutil.rmtree(aside)


def _below(directory: str, name: str) -> str:
    """Return the path of ``name`` below ``directory``; ManifestError if it would lie elsewhere."""
    root = os.path.realpath(directory)
    path = os.path.join(directory, *name.split("/"))
    if "\0" in name or os.path.isabs(name) or os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ManifestError(f"{name!r} is no path below {directory!r}: nothing is written")
    return path


READING = (
    Command("cat", "write the bytes of keys to stdout", _cat, _cat_arguments),
    Command("get", "copy a key, or all keys below a path, to files", _get, _get_arguments),
)

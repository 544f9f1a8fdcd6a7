"""Commands that show what a source holds, check it, compare it, draw it, and read its keys."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from typing import Any

import msgspec
from fsspec.callbacks import Callback

from refshard_fs.cli.command import Command, Style, argument, open_source, positive, print_json, print_line, print_table
from refshard_fs.core.keys import normalise
from refshard_fs.core.stats import bytes_text, count_text, shape_text
from refshard_fs.errors import ManifestError, redacted
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.tools.check import CheckMode, check
from refshard_fs.tools.diff import compare
from refshard_fs.tools.info import ArraySummary, Node, summarise, tree
from refshard_fs.tools.views import progress


def _info(arguments: Namespace) -> None:
    found = summarise(open_source(arguments))
    source = redacted(arguments.source)
    if arguments.json:
        print_json({"source": source, **msgspec.to_builtins(found)})
        return
    print_line(source, "bold")
    version = "" if found.version is None else f" version {found.version}"
    print_line(f"{found.format}{version}" + "".join(f", zarr v{number}" for number in found.zarr_formats))
    unsized = f" ({found.unsized:,} of unknown size)" if found.unsized else ""
    unlisted = " and chunks that cannot be listed" if any(array.present is None for array in found.arrays) else ""
    print_line(
        f"{count_text(found.keys, 'key')}{unlisted}{unsized}, {bytes_text(found.bytes)}; "
        f"{count_text(len(found.groups), 'group')}, {count_text(len(found.arrays), 'array')}; "
        f"inline: {count_text(found.inline_keys, 'key')}, {bytes_text(found.inline_bytes)}"
    )
    if found.arrays:
        print_line()
        heading = ["array", "shape", "chunk", "shard", "dtype", "codecs", "chunks", "bytes"]
        rows = list(map(_array_row, found.arrays))
        if all(array.shards is None for array in found.arrays):
            for row in (*rows, heading):
                del row[heading.index("shard")]
        print_table(heading, rows, ["bytes"])
    targets = found.targets
    if targets.count:
        protocols = ", ".join(f"{name} {count:,}" for name, count in targets.protocols.items())
        references = count_text(targets.references, "reference")
        print_line()
        print_line(f"{count_text(targets.count, 'target')} ({protocols}): {references}, {bytes_text(targets.bytes)}")
        some = [(target.url, f"{target.references:,}", bytes_text(target.bytes)) for target in targets.top]
        if targets.count > len(some):
            some.append((f"and {targets.count - len(some):,} more", "", ""))
        print_table(("target", "references", "bytes"), some, ["references", "bytes"])
    if found.warnings:
        print_line()
    for warning in found.warnings:
        print_line(f"warning: {warning}", "yellow")


def _array_row(array: ArraySummary) -> list[str]:
    present = "not listable" if array.present is None else f"{array.present:,}"
    possible = "?" if array.possible is None else f"{array.possible:,}"
    stray = f" (+{array.stray:,} outside)" if array.stray else ""
    return [
        (array.name or "/") + (f" ({', '.join(array.dimensions)})" if any(array.dimensions) else ""),
        shape_text(array.shape),
        "varied" if array.chunks is None else shape_text(array.chunks),
        "-" if array.shards is None else shape_text(array.shards),
        array.dtype,
        ", ".join(array.codecs) or "none",
        f"{present} of {possible}{stray}",
        "?" if array.present is None else bytes_text(array.bytes),
    ]


def _ls(arguments: Namespace) -> None:
    entries = sorted(open_source(arguments).ls(arguments.path, detail=True), key=lambda entry: str(entry["name"]))
    if arguments.json:
        print_json([{name: entry[name] for name in ("name", "type", "size")} for entry in entries])
        return
    sizes = [_size(entry) for entry in entries]
    width = max(map(len, sizes), default=0)
    for entry, size in zip(entries, sizes, strict=True):
        name = entry["name"] + ("/" if entry["type"] == "directory" else "")
        print_line(f"{size:>{width}}  {name}" if arguments.long else name)


def _size(entry: dict[str, Any]) -> str:
    if entry["type"] == "directory":
        return "-"
    return "?" if entry["size"] is None else str(entry["size"])


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
        return f"{name} ({shape_text(node.shape or (), node.dimensions)}) {node.dtype}"
    return name + ("" if name == "/" else "/") + (" ..." if node.cut else "")


def _check(arguments: Namespace) -> int:
    fs = open_source(arguments, index_cache=False)  # as it is now, not as it was
    mode: CheckMode = "full" if arguments.full else "read" if arguments.read else "head"
    report = check(fs, mode, sample=arguments.read or 1)
    source = redacted(arguments.source)
    status = 2 if "source" in report.counts else int(report.has_errors)
    if arguments.json:
        print_json({"source": source, "has_errors": report.has_errors, **msgspec.to_builtins(report)})
        return status
    print_line(source, "bold")
    print_line(
        f"keys {report.keys:,}, arrays {report.arrays:,}, chunks {report.chunks:,} (missing {report.missing:,}), "
        f"targets {report.targets:,}"
    )
    if report.mode != "head":  # which reads no chunk
        decoded = f"decoded {report.decoded:,}" if report.decoded or arguments.full else "decoded none (--full does)"
        print_line(f"read {report.read:,} chunks, {report.bytes_read:,} bytes, {decoded}")
    for finding in report.findings:
        where = [part for part in (finding.key, finding.url) if part]
        print_line(": ".join([finding.severity, finding.kind, *where, finding.text]))
    left = Counter(report.counts)
    left.subtract(finding.kind for finding in report.findings)
    for kind in sorted(+left):
        print_line(f"{kind}: {left[kind]:,} more")
    for note in report.notes:
        print_line(f"note: {note}")
    if not report.findings:
        print_line("nothing wrong was found")
    return status


def _diff(arguments: Namespace) -> int:
    found = compare(open_source(arguments, "A"), open_source(arguments, "B"))
    if arguments.json:
        print_json({"same": found.is_empty, **msgspec.to_builtins(found)})
        return int(not found.is_empty)
    for what, removed, added in (
        ("group", found.groups_removed, found.groups_added),
        ("array", found.arrays_removed, found.arrays_added),
        ("metadata", found.metadata_removed, found.metadata_added),
    ):
        _print_keys(f"- {what}", "red", len(removed), removed)
        _print_keys(f"+ {what}", "green", len(added), added)
    for document in found.metadata_changed:
        print_line(f"~ metadata {document.key}: {', '.join(document.fields)}", "yellow")
    for changes in found.keys:
        what = "keys that are no chunks" if changes.path is None else f"chunks of {changes.path or '/'}"
        counts = ((changes.removed, "removed"), (changes.added, "added"), (changes.changed, "changed"))
        print_line(f"{what}: " + ", ".join(f"{count:,} {name}" for count, name in counts if count))
        _print_keys("  -", "red", changes.removed, changes.some_removed)
        _print_keys("  +", "green", changes.added, changes.some_added)
        _print_keys("  ~", "yellow", changes.changed, changes.some_changed)
    for path in found.not_compared:
        print_line(f"? chunks of {path or '/'} cannot be listed in both sources, and were not compared", "yellow")
    return int(not found.is_empty)


def _print_keys(sign: str, style: Style, count: int, some: tuple[str, ...]) -> None:
    for key in some:
        print_line(f"{sign} {key or '/'}", style)
    if count > len(some):
        print_line(f"{sign} and {count - len(some):,} more", style)


def _map(arguments: Namespace) -> None:
    made = open_source(arguments).visualize(arguments.array, arguments.select)
    made.save(arguments.output)
    print_line(f"{arguments.output}: {made.scene.title}: {made.scene.text}")


def _cat(arguments: Namespace) -> None:
    fs = open_source(arguments)
    for key in arguments.keys:
        fs.get_file(key, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _get(arguments: Namespace) -> None:
    fs, key = open_source(arguments), normalise(arguments.key)
    above, _, name = key.rpartition("/")
    with progress("get") as shown:
        if arguments.recursive:
            destination = arguments.destination or name or "."
            keys = fs.find(key)
            if not keys:
                raise FileNotFoundError(key)
            root = above if keys == [key] else key
            files = {found: _below(destination, found[len(root) + 1 :] if root else found) for found in keys}
            _write(fs, files, destination, shown)
        else:
            destination = arguments.destination or name
            if not name or fs.isdir(key):
                raise IsADirectoryError(f"{key or '/'} is a directory: -r gets all keys below it")
            if os.path.isdir(destination):
                destination = os.path.join(destination, name)
            files = {key: destination}
            _write(fs, files, os.path.dirname(destination) or ".", shown)
    size = bytes_text(sum(map(os.path.getsize, files.values())))
    took = time.monotonic() - arguments.began
    print_line(f"{destination}: {count_text(len(files), 'file')}, {size}, written in {took:.1f} s")


def _write(fs: RefShardFileSystem, files: dict[str, str], directory: str, shown: Callback) -> None:
    """Write keys to files; all are fetched into a directory of their own before the first one appears."""
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".refshard-", dir=directory) as fetched:
        parts = [os.path.join(fetched, str(number)) for number in range(len(files))]
        if len(files) == 1:
            fs.get_file(*files, *parts, callback=shown)  # it counts bytes
        else:
            fs.get(list(files), parts, callback=shown)
        for part, path in zip(parts, files.values(), strict=True):
            if not os.path.exists(part):  # nothing was read: it has no bytes
                open(part, "wb").close()
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            os.replace(part, path)


def _below(directory: str, name: str) -> str:
    """Return the path of ``name`` below ``directory``; ManifestError if it would lie elsewhere."""
    root = os.path.realpath(directory)
    path = os.path.join(directory, *name.split("/"))
    if "\0" in name or os.path.isabs(name) or os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ManifestError(f"{name!r} is no path below {directory!r}: nothing is written")
    return path


_ROOT: Any = {"nargs": "?", "default": ""}
_LS = [
    argument("path", "a directory or a key; default: the root", "PATH", **_ROOT),
    argument("-l --long", "sizes in bytes too"),
]
_TREE = [
    argument("path", "a group or an array; default: the root", "PATH", **_ROOT),
    argument("-L --depth", "levels of groups below PATH", "N", type=positive),
]
_CAT = [argument("keys", "written one after the other", "KEY", nargs="+")]
_GET = [
    argument("key", "a key; with -r, a directory or '' for all", "KEY"),
    argument("destination", "a file or a directory; default: the last part of KEY", "DEST", nargs="?"),
    argument("-r --recursive", "all keys below KEY, into the directory DEST"),
]
_MAP = [
    argument("array", "path of the array; default: all arrays and their files", "ARRAY", nargs="?"),
    argument("-o --output", "where to write it: FILE.svg, FILE.html or FILE.png", "FILE", required=True),
    argument("--select", 'mark the requests that a slice causes: "air[0:10, :, :]"', "TEXT"),
]
_CHECK = [
    argument("--head", "ask each target, read no chunk (default)", group="depth"),
    argument("--read", "read N chunks too, evenly spaced over all", "N", group="depth", type=positive),
    argument("--full", "read all chunks, and decode them where zarr is installed", group="depth"),
]
COMMANDS = (
    Command(
        "info",
        "show format, groups, arrays and targets, and how many chunks exist",
        _info,
        json=True,
        example="refs.json",
    ),
    Command("ls", "list the keys directly below a path", _ls, _LS, json=True, example="refs.json air"),
    Command("tree", "show groups and arrays, with shapes and dtypes", _tree, _TREE, json=True, example="refs.json"),
    Command("cat", "write the bytes of keys to the standard output", _cat, _CAT, example="refs.json air/.zattrs"),
    Command("get", "copy a key, or all keys below a path, to files", _get, _GET, example="-r refs.json air DEST"),
    Command(
        "diff",
        "show arrays, metadata and references that differ",
        _diff,
        sources=("A", "B"),
        json=True,
        example="refs.json newer.json",
    ),
    Command(
        "map",
        "draw where an array's or a set's bytes lie, and the requests for a slice",
        _map,
        _MAP,
        example='refs.json air -o map.svg --select "air[0:10, :, :]"',
    ),
    Command(
        "check",
        "find what is wrong with metadata, ranges, targets and data",
        _check,
        _CHECK,
        json=True,
        example="refs.json --read 20",
    ),
)

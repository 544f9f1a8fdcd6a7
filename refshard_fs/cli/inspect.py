"""Define the commands that show, check, compare and draw sources, and read their keys."""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from operator import itemgetter
from typing import Literal

import refshard_fs
from refshard_fs.cli.command import (
    Style,
    argument,
    command,
    name_options,
    open_source,
    parse_positive,
    print_json,
    print_line,
    print_table,
    print_written,
)
from refshard_fs.core.keys import make_relative, normalise
from refshard_fs.core.stats import format_bytes, format_count, format_shape
from refshard_fs.errors import ManifestError, redact


@command("refs.json", json=True)
def _info(arguments: Namespace) -> None:
    """Show format, groups, arrays and targets, and how many chunks exist."""
    from refshard_fs.tools.info import summarise

    summary = summarise(open_source(arguments))
    source = redact(arguments.source)
    if arguments.json:
        print_json(summary, source=source)
        return
    print_line(source, "bold")
    version = "" if summary.version is None else f" version {summary.version}"
    print_line(f"{summary.format}{version}" + "".join(f", zarr v{number}" for number in summary.zarr_formats))
    unsized = f" ({summary.unsized:,} of unknown size, to the end of their targets)" if summary.unsized else ""
    unlisted = " and chunks that cannot be listed" if any(array.present is None for array in summary.arrays) else ""
    print_line(
        f"{format_count(summary.keys, 'key')}{unlisted}{unsized}, {format_bytes(summary.bytes)}; "
        f"{format_count(len(summary.groups), 'group')}, {format_count(len(summary.arrays), 'array')}; "
        f"inline: {format_count(summary.inline_keys, 'key')}, {format_bytes(summary.inline_bytes)}"
    )
    if summary.arrays:
        print_line()
        heading = ["array", "shape", "chunk", "shard", "dtype", "codecs", "chunks", "bytes"]
        rows = list(map(_make_array_row, summary.arrays))
        if all(array.shards is None for array in summary.arrays):
            for row in (*rows, heading):
                del row[heading.index("shard")]
        print_table(heading, rows, ["bytes"])
    targets = summary.targets
    if targets.count:
        protocols = ", ".join(f"{name} {count:,}" for name, count in targets.protocols.items())
        references = format_count(targets.references, "reference")
        print_line()
        print_line(
            f"{format_count(targets.count, 'target')} ({protocols}): {references}, {format_bytes(targets.bytes)}"
        )
        lines = [(target.url, f"{target.references:,}", format_bytes(target.bytes)) for target in targets.top]
        if targets.count > len(lines):
            lines.append((f"and {targets.count - len(lines):,} more", "", ""))
        print_table(("target", "references", "bytes"), lines, ["references", "bytes"])
    if summary.warnings:
        print_line()
    for warning in summary.warnings:
        print_line(f"warning: {name_options(warning)}", "yellow")


def _make_array_row(array: refshard_fs.ArraySummary) -> list[str]:
    present = "not listable" if array.present is None else f"{array.present:,}"
    possible = "?" if array.possible is None else f"{array.possible:,}"
    stray = f" (+{array.stray:,} outside)" if array.stray else ""
    return [
        (array.name or "/") + (f" ({', '.join(array.dimensions)})" if any(array.dimensions) else ""),
        format_shape(array.shape),
        "varied" if array.chunks is None else format_shape(array.chunks),
        "-" if array.shards is None else format_shape(array.shards),
        array.dtype,
        ", ".join(array.codecs) or "none",
        f"{present} of {possible}{stray}",
        "?" if array.present is None or (array.unsized and not array.bytes) else format_bytes(array.bytes),
    ]


@command(
    "refs.json air",
    argument("path", "a directory or a key; default: the root", "PATH", nargs="?", default=""),
    argument("-l --long", "print sizes in bytes, too"),
    json=True,
)
def _ls(arguments: Namespace) -> None:
    """List the keys directly below a path."""
    entries = sorted(open_source(arguments).ls(arguments.path, detail=True), key=itemgetter("name"))
    if arguments.json:
        print_json([{name: entry[name] for name in ("name", "type", "size")} for entry in entries])
        return
    directories = [entry["type"] == "directory" for entry in entries]
    sizes = ["?" if entry["size"] is None else str(entry["size"]) for entry in entries]
    sizes = ["-" if is_directory else size for size, is_directory in zip(sizes, directories, strict=True)]
    width = max(map(len, sizes), default=0)
    for entry, size, is_directory in zip(entries, sizes, directories, strict=True):
        name = entry["name"] + ("/" if is_directory else "")
        print_line(f"{size:>{width}}  {name}" if arguments.long else name)


@command(
    "refs.json",
    argument("path", "a group or an array; default: the root", "PATH", nargs="?", default=""),
    argument("-L --depth", "levels of groups below PATH", "N", type=parse_positive),
    json=True,
)
def _tree(arguments: Namespace) -> None:
    """Show groups and arrays, with shapes and dtypes."""
    from refshard_fs.tools.info import make_tree

    root = make_tree(open_source(arguments), arguments.path, arguments.depth)
    if arguments.json:
        print_json(root)
    else:
        print_line(_make_label(root, root.path or "/"), "bold")
        _print_below(root, "")


def _print_below(node: refshard_fs.Node, indent: str) -> None:
    for child in node.children:
        last = child is node.children[-1]
        name = child.path.rpartition("/")[2]
        print_line(f"{indent}{'└── ' if last else '├── '}{_make_label(child, name)}")
        _print_below(child, indent + ("    " if last else "│   "))


def _make_label(node: refshard_fs.Node, name: str) -> str:
    if node.kind == "array":
        return f"{name} ({format_shape(node.shape or (), node.dimensions)}) {node.dtype}"
    return name + ("" if name == "/" else "/") + (" ..." if node.cut else "")


@command(
    "refs.json --read 20",
    argument("--head", "request size and version of each target, and read no chunk (default)", group="depth"),
    argument("--read", "read N chunks, too, evenly spaced over all", "N", group="depth", type=parse_positive),
    argument("--full", "read all chunks, and decode them if zarr is installed", group="depth"),
    json=True,
)
def _check(arguments: Namespace) -> int:
    """Find faults in metadata, ranges, targets and data."""
    fs = open_source(arguments, index_cache=False)  # check the present source, not a kept index
    mode: Literal["full", "read", "head"] = "full" if arguments.full else "read" if arguments.read else "head"
    report = refshard_fs.check(fs, mode, sample=arguments.read or 1)
    source = redact(arguments.source)
    status = 2 if "source" in report.counts else int(report.has_errors)
    if arguments.json:
        print_json(report, source=source, has_errors=report.has_errors)
        return status
    print_line(source, "bold")
    print_line(
        f"keys {report.keys:,}, arrays {report.arrays:,}, chunks {report.chunks:,} (missing {report.missing:,}), "
        f"targets {report.targets:,}"
    )
    if report.mode != "head":  # "head" reads no chunks
        decoded = (
            f"decoded {report.decoded:,}" if report.decoded or arguments.full else "decoded none (--full decodes all)"
        )
        print_line(f"read {report.read:,} chunks, {report.bytes_read:,} bytes, {decoded}")
    for finding in report.findings:
        where = [part for part in (finding.key, finding.url) if part]
        print_line(": ".join([finding.severity, finding.kind, *where, name_options(finding.text)]))
    left = Counter(report.counts)
    left.subtract(finding.kind for finding in report.findings)
    for kind in sorted(+left):
        print_line(f"{kind}: {left[kind]:,} more")
    for note in report.notes:
        print_line(f"note: {note}")
    if not report.findings:
        print_line("no faults were found")
    return status


@command("refs.json newer.json", sources=("A", "B"), json=True)
def _diff(arguments: Namespace) -> int:
    """Show arrays, metadata and references that differ."""
    from refshard_fs.tools.diff import compare

    # compare() goes through chunks in their order, so a cache of two partitions is enough.
    difference = compare(*(open_source(arguments, name, cache_size=2) for name in ("A", "B")))
    if arguments.json:
        print_json(difference, same=difference.is_empty)
        return int(not difference.is_empty)
    for what, removed, added in (
        ("group", difference.groups_removed, difference.groups_added),
        ("array", difference.arrays_removed, difference.arrays_added),
        ("metadata", difference.metadata_removed, difference.metadata_added),
    ):
        _print_keys(f"- {what}", "red", len(removed), removed)
        _print_keys(f"+ {what}", "green", len(added), added)
    for document in difference.metadata_changed:
        print_line(f"~ metadata {document.key}: {', '.join(document.fields)}", "yellow")
    for changes in difference.keys:
        what = "keys that are not chunks" if changes.path is None else f"chunks of {changes.path or '/'}"
        counts = ((changes.removed, "removed"), (changes.added, "added"), (changes.changed, "changed"))
        print_line(f"{what}: " + ", ".join(f"{count:,} {name}" for count, name in counts if count))
        _print_keys("  -", "red", changes.removed, changes.some_removed)
        _print_keys("  +", "green", changes.added, changes.some_added)
        _print_keys("  ~", "yellow", changes.changed, changes.some_changed)
    for path in difference.not_compared:
        print_line(f"? chunks of {path or '/'} cannot be listed in both sources, and were not compared", "yellow")
    return int(not difference.is_empty)


def _print_keys(sign: str, style: Style, count: int, keys: tuple[str, ...]) -> None:
    """Print ``keys``, the first of ``count`` keys, after a ``sign``."""
    for key in keys:
        print_line(f"{sign} {key or '/'}", style)
    if count > len(keys):
        print_line(f"{sign} and {count - len(keys):,} more", style)


@command(
    'refs.json air -o map.svg --select "air[0:10, :, :]"',
    argument("array", "path of the array; default: all arrays and their files", "ARRAY", nargs="?"),
    argument("-o --output", "where to write the picture: FILE.svg, FILE.html or FILE.png", "FILE", required=True),
    argument("--select", 'mark the requests for a slice, such as "air[0:10, :, :]"', "TEXT"),
)
def _map(arguments: Namespace) -> None:
    """Draw where an array's or a set's bytes lie, and the requests for a slice."""
    fs = open_source(arguments)
    try:
        picture = fs.visualize(arguments.array, arguments.select)
    except IndexError as e:
        raise ValueError(f"--select {arguments.select!r} does not fit the array: {e}") from e
    picture.save(arguments.output)
    print_line(f"{arguments.output}: {picture.scene.title}: {picture.scene.text}")


@command("refs.json air/.zattrs", argument("keys", "the keys to write, one after the other", "KEY", nargs="+"))
def _cat(arguments: Namespace) -> None:
    """Write the bytes of keys to the standard output."""
    fs = open_source(arguments)
    for key in arguments.keys:
        fs.get_file(key, sys.stdout.buffer)
    sys.stdout.buffer.flush()


@command(
    "-r refs.json air DEST",
    argument("key", "a key; with -r, a directory or '' for all", "KEY"),
    argument("destination", "a file or a directory; default: the last part of KEY", "DEST", nargs="?"),
    argument("-r --recursive", "all keys below KEY, into the directory DEST"),
)
def _get(arguments: Namespace) -> None:
    """Copy a key, or all keys below a path, to files."""
    from refshard_fs.tools.progress import show_progress

    fs, key = open_source(arguments), normalise(arguments.key)
    above, _, name = key.rpartition("/")
    destination = directory = arguments.destination or name or "."
    if arguments.recursive:
        keys = fs.find(key)
        if not keys:
            raise FileNotFoundError(key)
        root = above if keys == [key] else key
        files = {found: _make_path_below(directory, make_relative(found, root)) for found in keys}
    else:
        if not name or fs.isdir(key):
            raise IsADirectoryError(f"expected a key, got the directory {key or '/'}: -r gets all keys below it")
        if os.path.isdir(destination):
            destination = os.path.join(destination, name)
        files, directory = {key: destination}, os.path.dirname(destination) or "."
    os.makedirs(directory, exist_ok=True)
    # Fetch all keys into a separate directory first: after an error, no file has appeared.
    with show_progress("get") as shown, tempfile.TemporaryDirectory(prefix=".refshard-", dir=directory) as fetched:
        parts = [os.path.join(fetched, str(number)) for number in range(len(files))]
        if len(files) == 1:
            fs.get_file(*files, *parts, callback=shown)  # the callback counts bytes of a single file
        else:
            fs.get(list(files), parts, callback=shown)
        for part, path in zip(parts, files.values(), strict=True):
            if not os.path.exists(part):  # the value is empty
                open(part, "wb").close()
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            os.replace(part, path)
    print_written(arguments, destination, [format_count(len(files), "file")], files.values())


def _make_path_below(directory: str, name: str) -> str:
    """Return the path of ``name`` below ``directory``; ManifestError if it would lie elsewhere."""
    root = os.path.realpath(directory)
    path = os.path.join(directory, *name.split("/"))
    if "\0" in name or os.path.isabs(name) or os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ManifestError(
            f"expected keys below {directory!r}, got {name!r}: nothing was written. Get the keys that you need one by "
            "one, without -r"
        )
    return path


COMMANDS = (_info, _ls, _tree, _cat, _get, _diff, _map, _check)

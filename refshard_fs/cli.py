"""The command ``refshard``: what a source holds, on a terminal or as JSON; checks of it; references in other formats.

Exit status: 0, or 1 where the source or a key cannot be read (one line on stderr says
why) or a check finds errors, or 2 where the command line is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

from refshard_fs import __version__
from refshard_fs.checking.findings import Report
from refshard_fs.checking.validate import check
from refshard_fs.errors import RefShardError
from refshard_fs.formats import RECORD_SIZE
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.sets.concatenating import concat
from refshard_fs.sets.rebasing import rebase
from refshard_fs.summary import Summary, summarise

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit status."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int | None] = arguments.command
    status = None
    try:
        status = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError as e:
        return _fail(f"no such key or file: {e.filename or e}")
    except (RefShardError, OSError, ValueError, ImportError) as e:
        return _fail(str(e) or type(e).__name__)
    return status or 0


def _fail(reason: str) -> int:
    print(f"refshard: {reason}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    source = argparse.ArgumentParser(add_help=False)
    source.add_argument("source", metavar="SOURCE", help="path or fsspec URL of a reference set")
    opening = source.add_argument_group("how it is opened")
    opening.add_argument(
        "--fo-option", metavar="KEY=VALUE", type=_pair, action="append", help="option of the source's filesystem"
    )
    opening.add_argument("--remote-protocol", metavar="NAME", help="protocol of references that name none")
    opening.add_argument("--remote-options", metavar="JSON", type=_mapping, help="options of the targets' filesystem")
    opening.add_argument(
        "--option",
        metavar="KEY=VALUE",
        type=_pair,
        action="append",
        help="any other argument of RefShardFileSystem; VALUE is JSON, or else text",
    )

    printing = argparse.ArgumentParser(add_help=False)
    printing.add_argument("--json", action="store_true", help="print JSON")

    parser = argparse.ArgumentParser(
        prog="refshard", description="See what a reference set or an archive holds; convert it."
    )
    parser.add_argument("--version", action="version", version=f"refshard_fs {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info", parents=[source, printing], help="groups, arrays, and chunks present of possible"
    )
    info.set_defaults(command=_info)
    ls = commands.add_parser("ls", parents=[source, printing], help="keys directly below a path")
    ls.add_argument("path", metavar="PATH", nargs="?", default="", help="a directory or a key; default: the root")
    ls.add_argument("-l", "--long", action="store_true", help="sizes in bytes too")
    ls.set_defaults(command=_ls)
    convert = commands.add_parser("convert", parents=[source], help="write references as parquet, JSON or manifests")
    convert.add_argument("destination", metavar="DESTINATION", help="path or fsspec URL; a name in .json makes it JSON")
    formats = ["parquet", "json", "chunk-manifest"]
    convert.add_argument("--format", choices=formats, help="default: JSON or parquet, by the name of DESTINATION")
    convert.add_argument(
        "--record-size", metavar="N", type=int, default=RECORD_SIZE, help="references per parquet file (%(default)s)"
    )
    convert.add_argument("--overwrite", action="store_true", help="replace a parquet set or a hierarchy that is there")
    convert.add_argument(
        "--to-option", metavar="KEY=VALUE", type=_pair, action="append", help="option of DESTINATION's filesystem"
    )
    convert.set_defaults(command=_convert)
    checking = commands.add_parser(
        "check", parents=[source, printing], help="what is wrong with metadata, ranges, targets and data"
    )
    depth = checking.add_mutually_exclusive_group()
    depth.add_argument("--head", action="store_true", help="ask each target, read no chunk (default)")
    depth.add_argument("--read", metavar="N", type=_positive, help="read N chunks too, evenly spaced over all")
    depth.add_argument("--full", action="store_true", help="read all chunks, and decode them where zarr is installed")
    checking.set_defaults(command=_check)
    rebase = commands.add_parser("rebase", parents=[source], help="write a reference set whose targets have moved")
    rebase.add_argument("destination", metavar="DESTINATION", help="path or fsspec URL; a name in .json makes it JSON")
    rebase.add_argument("--from", metavar="PREFIX", dest="old", action="append", required=True, help="old URL prefix")
    rebase.add_argument("--to", metavar="PREFIX", dest="new", action="append", default=[], help="what replaces it")
    rebase.set_defaults(command=_rebase)
    concat = commands.add_parser("concat", help="write several reference sets as one, joined along a dimension")
    concat.add_argument("sources", metavar="SOURCE", nargs="+", help="path or fsspec URL of a reference set")
    concat.add_argument("-o", "--output", metavar="DESTINATION", required=True, help="path or fsspec URL")
    concat.add_argument("--dim", metavar="NAME", help="the dimension; without it, variables are merged")
    concat.add_argument("--same", metavar="PATH", action="append", default=[], help="a variable of the first set")
    concat.set_defaults(command=_concat)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"not JSON: {e}") from e
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _open(arguments: argparse.Namespace, **defaults: Any) -> RefShardFileSystem:
    options = defaults | dict(arguments.option or ())
    if arguments.fo_option:
        options["target_options"] = dict(arguments.fo_option)
    if arguments.remote_protocol is not None:
        options["remote_protocol"] = arguments.remote_protocol
    if arguments.remote_options is not None:
        options["remote_options"] = arguments.remote_options
    return RefShardFileSystem(fo=arguments.source, **options)


def _info(arguments: argparse.Namespace) -> None:
    found = summarise(_open(arguments))
    if arguments.json:
        _print_json({"source": arguments.source, **msgspec.to_builtins(found)})
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
    _print_table(rows)
    for name, reason in sorted(found.left_whole.items()):
        print(f"{name or '/'}: its shards are left whole: {reason}")


def _ls(arguments: argparse.Namespace) -> None:
    entries = sorted(_open(arguments).ls(arguments.path, detail=True), key=lambda entry: str(entry["name"]))
    if arguments.json:
        _print_json([{name: entry[name] for name in ("name", "type", "size")} for entry in entries])
        return
    names = [entry["name"] + ("/" if entry["type"] == "directory" else "") for entry in entries]
    if arguments.long:
        sizes = [_size(entry) for entry in entries]
        width = max(map(len, sizes), default=0)
        names = [f"{size:>{width}}  {name}" for size, name in zip(sizes, names, strict=True)]
    for name in names:
        print(name)


def _convert(arguments: argparse.Namespace) -> None:
    _open(arguments, index_cache=False).save(  # read once, to be replaced
        arguments.destination,
        arguments.format,
        record_size=arguments.record_size,
        overwrite=arguments.overwrite,
        **dict(arguments.to_option or ()),
    )


def _check(arguments: argparse.Namespace) -> int:
    fs = _open(arguments, index_cache=False)  # as it is now, not as it was
    with _progress() as progress:
        if arguments.full:
            report = check(fs, "full", callback=progress)
        elif arguments.read is not None:
            report = check(fs, "read", sample=arguments.read, callback=progress)
        else:
            report = check(fs, callback=progress)
    if arguments.json:
        _print_json({"source": arguments.source, "has_errors": report.has_errors, **msgspec.to_builtins(report)})
    else:
        print(arguments.source)
        _print_report(report)
    return int(report.has_errors)


def _progress() -> Callback:
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return TqdmCallback(tqdm_kwargs={"desc": "check", "leave": False, "file": sys.stderr})
    return DEFAULT_CALLBACK


def _print_report(report: Report) -> None:
    print(
        f"keys {report.keys:,}, arrays {report.arrays:,}, chunks {report.chunks:,} (missing {report.missing:,}), "
        f"targets {report.targets:,}; read {report.read:,} chunks, {report.bytes_read:,} bytes, "
        f"decoded {report.decoded:,}"
    )
    for finding in report.findings:
        where = ": ".join(filter(None, (finding.key, finding.url)))
        print(f"{finding.severity}: {finding.kind}: {where}{': ' if where else ''}{finding.text}")
    shown = Counter(finding.kind for finding in report.findings)
    for kind, count in sorted(report.counts.items()):
        if count > shown[kind]:
            print(f"{kind}: {count - shown[kind]:,} more")
    for note in report.notes:
        print(f"note: {note}")
    if not report.findings:
        print("nothing wrong was found")


def _rebase(arguments: argparse.Namespace) -> None:
    if len(arguments.old) != len(arguments.new):
        raise ValueError("each --from PREFIX needs its --to PREFIX")
    prefixes = dict(zip(arguments.old, arguments.new, strict=True))
    rebase(_open(arguments, index_cache=False), prefixes).save(arguments.destination)


def _concat(arguments: argparse.Namespace) -> None:
    concat(arguments.sources, arguments.dim, same=arguments.same, index_cache=False).save(arguments.output)


def _size(entry: dict[str, Any]) -> str:
    if entry["type"] == "directory":
        return "-"
    return "?" if entry["size"] is None else str(entry["size"])


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(_padded(row, widths)).rstrip())


def _padded(row: Sequence[str], widths: Iterable[int]) -> list[str]:
    return [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))

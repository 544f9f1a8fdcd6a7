"""Commands that write references: ``convert``, ``rebase``, ``concat``, ``append``, ``snapshot``."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from typing import Any

from refshard_fs.cli.command import Command, open_source, opening_arguments, options_of, pair, progress
from refshard_fs.sets.append import append
from refshard_fs.sets.concat import concat
from refshard_fs.sets.rebase import rebase
from refshard_fs.sets.snapshot import INLINE, snapshot
from refshard_fs.writing.options import RECORD_SIZE

__all__ = ["COMMANDS"]

DESTINATION = "path or fsspec URL: .json (.json.gz, ...) makes it JSON, .zarr chunk manifests, all else parquet"


def _convert_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help=DESTINATION)
    formats = ["parquet", "json", "chunk-manifest"]
    parser.add_argument("--format", choices=formats, help="default: by the name of DESTINATION")
    parser.add_argument(
        "--record-size", metavar="N", type=int, default=RECORD_SIZE, help="references per parquet file (%(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a parquet set or a hierarchy that is there")
    parser.add_argument(
        "--to-option", metavar="KEY=VALUE", type=pair, action="append", help="option of DESTINATION's filesystem"
    )


def _convert(arguments: Namespace) -> None:
    with progress("convert") as shown:
        open_source(arguments, index_cache=False).save(  # read once, to be replaced
            arguments.destination,
            arguments.format,
            record_size=arguments.record_size,
            overwrite=arguments.overwrite,
            callback=shown,
            **dict(arguments.to_option or ()),
        )


def _rebase_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help=DESTINATION)
    parser.add_argument("--from", metavar="PREFIX", dest="old", action="append", required=True, help="old URL prefix")
    parser.add_argument("--to", metavar="PREFIX", dest="new", action="append", default=[], help="what replaces it")


def _rebase(arguments: Namespace) -> None:
    if len(arguments.old) != len(arguments.new):
        raise ValueError("each --from PREFIX needs its --to PREFIX")
    prefixes = dict(zip(arguments.old, arguments.new, strict=True))
    new = rebase(open_source(arguments, index_cache=False), prefixes)
    with progress("rebase") as shown:
        new.save(arguments.destination, callback=shown)


def _concat_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="path or fsspec URL of a reference set")
    opening_arguments(parser)
    parser.add_argument("-o", "--output", metavar="DESTINATION", required=True, help=DESTINATION)
    along = parser.add_mutually_exclusive_group()
    along.add_argument("--dim", metavar="NAME", help="the dimension; without it, variables are merged")
    along.add_argument(
        "--dims", metavar="NAME,NAME...", help="dimensions of a grid of sets, the last one varying fastest"
    )
    parser.add_argument("--counts", metavar="N,N...", help="with --dims: how many sets there are along each")
    parser.add_argument("--same", metavar="PATH", action="append", default=[], help="a variable of the first set")
    parser.add_argument("--lazy", action="store_true", help="write a document that names the sets, a line for each")


def _concat(arguments: Namespace) -> None:
    options = options_of(arguments, index_cache=False)
    with progress("concat") as shown:
        if arguments.dims is not None:
            if arguments.lazy:
                raise ValueError("--lazy joins along one dimension: --dim; a SOURCE may be such a document itself")
            dims = arguments.dims.split(",")
            grid = _grid(arguments.sources, _counts(arguments.counts, dims, len(arguments.sources)))
            made = concat(grid, dims=dims, same=arguments.same, callback=shown, **options)
        elif arguments.lazy:
            lazy = concat(arguments.sources, arguments.dim, same=arguments.same, lazy=True, callback=shown, **options)
            lazy.save(arguments.output)
            return
        else:
            made = concat(arguments.sources, arguments.dim, same=arguments.same, callback=shown, **options)
        made.save(arguments.output)


def _counts(text: str | None, dims: list[str], sources: int) -> list[int]:
    counts = [int(part) for part in (text or "").split(",") if part.isdecimal()]
    if len(counts) != len(dims) or math.prod(counts) != sources:
        raise ValueError(
            f"--counts gives how many sets there are along each of {', '.join(dims)}: their product is {sources}"
        )
    return counts


def _grid(sources: list[Any], counts: list[int]) -> list[Any]:
    """Return ``sources`` as nested lists, the last of ``counts`` varying fastest."""
    for count in reversed(counts[1:]):
        sources = [sources[i : i + count] for i in range(0, len(sources), count)]
    return sources


def _append_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dim", metavar="NAME", required=True, help="the dimension")
    parser.add_argument("--same", metavar="PATH", action="append", default=[], help="a variable of TARGET")


def _append(arguments: Namespace) -> None:
    with progress("append") as shown:
        append(
            arguments.target,
            arguments.source,
            arguments.dim,
            same=arguments.same,
            callback=shown,
            **options_of(arguments),
        )


def _snapshot_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help="path or fsspec URL of a JSON set")
    parser.add_argument("--shards", choices=["whole", "inner"], default="whole", help="what references are to")
    parser.add_argument("--inline", metavar="BYTES", type=int, default=INLINE, help="metadata kept in it (%(default)s)")


def _snapshot(arguments: Namespace) -> None:
    options = options_of(arguments, index_cache=False)
    options.pop("shards", None)
    with progress("snapshot") as shown:
        found = snapshot(
            arguments.source, shards=arguments.shards, inline_threshold=arguments.inline, callback=shown, **options
        )
    manifests = arguments.destination.endswith(".zarr")
    found.save(arguments.destination, "chunk-manifest" if manifests else "json")


COMMANDS = (
    Command("convert", "write references as parquet, JSON or manifests", _convert, _convert_arguments),
    Command("rebase", "write a reference set whose targets have moved", _rebase, _rebase_arguments),
    Command("concat", "write several reference sets as one, joined along a dimension", _concat, _concat_arguments, ()),
    Command(
        "append",
        "let a reference set go on with another one",
        _append,
        _append_arguments,
        ("TARGET", "SOURCE"),
    ),
    Command("snapshot", "write references that hold a store to what it is now", _snapshot, _snapshot_arguments),
)

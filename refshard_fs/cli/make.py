"""Commands that write references: ``convert``, ``rebase``, ``concat``, ``append``, ``snapshot``."""

from __future__ import annotations

import contextlib
import math
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from refshard_fs.cli.command import Command, argument, lengths, open_source, opening_options, pair, print_line
from refshard_fs.core.stats import bytes_text, count_text
from refshard_fs.session.options import RECORD_SIZE
from refshard_fs.sets.append import append
from refshard_fs.sets.concat import LazySet, concat
from refshard_fs.sets.rebase import INLINE, MadeSet, rebase, snapshot


@contextlib.contextmanager
def _telling(arguments: Namespace, destination: str, made: MadeSet | LazySet | None = None) -> Iterator[None]:
    """Print, when the block ends, what was written: where, how much, and how long the command took."""
    yield
    what = [] if made is None else [count_text(len(made), "key" if isinstance(made, MadeSet) else "part")]
    size = _size_of(destination)
    what += [] if size is None else [bytes_text(size)]
    print_line(f"{destination}: " + ", ".join([*what, f"written in {time.monotonic() - arguments.began:.1f} s"]))


def _size_of(path: str) -> int | None:
    """Return the size of a local file, or of all files in a directory; None for what lies elsewhere."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    if os.path.isdir(path):
        return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(path) for name in names)
    return None


def _convert(arguments: Namespace) -> None:
    with _telling(arguments, arguments.destination):
        remark = open_source(arguments, index_cache=False).save(  # read once, to be replaced
            arguments.destination,
            arguments.format,
            record_size=arguments.record_size,
            overwrite=arguments.overwrite,
            **dict(arguments.to_option or ()),
        )
    if remark:
        print_line(remark)


def _rebase(arguments: Namespace) -> None:
    if len(arguments.old) != len(arguments.new):
        raise ValueError("each --from PREFIX needs its --to PREFIX")
    prefixes = dict(zip(arguments.old, arguments.new, strict=True))
    new = rebase(open_source(arguments, index_cache=False), prefixes, missing=arguments.missing)
    with _telling(arguments, arguments.destination, new):
        new.save(arguments.destination)


def _concat(arguments: Namespace) -> None:
    options = opening_options(arguments, index_cache=False) | _given(arguments, "same", "join", "freq", "grid", "lazy")
    options |= {"subchunks": dict(arguments.subchunks) or None, "chunks": dict(arguments.chunks) or None}
    if arguments.resume is not None:
        options["resume"] = arguments.resume
    is_pattern = len(arguments.sources) == 1 and "{" in arguments.sources[0]
    sources = arguments.sources[0] if is_pattern else arguments.sources
    if arguments.dims is None:
        options |= _given(arguments, "dim", "sort", "overlap", "on_error")
    else:
        options["dims"] = arguments.dims.split(",")
        if is_pattern and arguments.counts is None:
            options["on_error"] = arguments.on_error
        else:
            sources = _grid(arguments.sources, options["dims"], arguments.counts)
    made = concat(sources, **options)
    with _telling(arguments, arguments.output, made):
        remark = made.save(arguments.output)
    if remark:
        print_line(remark.replace("concat without lazy=True", "concat without --lazy"))


def _given(arguments: Namespace, *names: str) -> dict[str, Any]:
    """Return arguments of the command line that have the same names in Python."""
    return {name: getattr(arguments, name) for name in names}


def _grid(sources: list[Any], dims: list[str], text: str | None) -> list[Any]:
    """Return ``sources`` as nested lists, the last of the counts in ``text`` varying fastest."""
    counts = [int(part) for part in (text or "").split(",") if part.isdecimal()]
    if len(counts) != len(dims) or math.prod(counts) != len(sources):
        raise ValueError(
            f"--counts gives how many sets there are along each of {', '.join(dims)}: their product is {len(sources)}"
        )
    for count in reversed(counts[1:]):
        sources = [sources[i : i + count] for i in range(0, len(sources), count)]
    return sources


def _append(arguments: Namespace) -> None:
    options = opening_options(arguments) | _given(arguments, "same", "on_duplicate", "any_order")
    added = append(arguments.target, arguments.source, arguments.dim, **options)
    is_changed = added or arguments.on_duplicate == "replace"
    what = f"{arguments.dim}: {added:+,}" if is_changed else "nothing new, left as it is"
    print_line(f"{arguments.target}: {what}")


def _snapshot(arguments: Namespace) -> None:
    options = opening_options(arguments, index_cache=False)
    options |= {"shards": arguments.shards, "inline_threshold": arguments.inline}
    found = snapshot(arguments.source, **options)
    with _telling(arguments, arguments.destination, found):
        found.save(arguments.destination, "chunk-manifest" if arguments.destination.endswith(".zarr") else "json")


_WHERE = "path or fsspec URL: .json (.json.gz, ...) makes it JSON, .zarr chunk manifests, all else parquet"
_DESTINATION = argument("destination", _WHERE, "DESTINATION")
_MANY: Any = {"action": "append", "default": []}
_OVERLAP: Any = {"choices": ["error", "first", "last"], "default": "error"}
_OUTER: Any = {"choices": ["exact", "outer"], "default": "exact"}
_GRID: Any = {"choices": ["regular", "rectilinear"], "default": "regular"}
_ON_ERROR: Any = {"choices": ["raise", "skip"], "default": "raise"}
_ON_DUPLICATE: Any = {"choices": ["error", "skip", "replace"], "default": "error"}
_CONVERT = [
    _DESTINATION,
    argument("--format", "default: by the name of DESTINATION", choices=["parquet", "json", "chunk-manifest"]),
    argument("--record-size", "references per parquet file (%(default)s)", "N", type=int, default=RECORD_SIZE),
    argument("--overwrite", "replace a parquet set or a hierarchy that is there"),
    argument("--to-option", "option of DESTINATION's filesystem", "KEY=VALUE", type=pair, action="append"),
]
_REBASE = [
    _DESTINATION,
    argument("--from", "old URL prefix", "PREFIX", dest="old", action="append", required=True),
    argument("--to", "what replaces it", "PREFIX", dest="new", **_MANY),
    argument(
        "--missing", "whether a prefix must begin a URL (%(default)s)", choices=["raise", "ignore"], default="raise"
    ),
]
_CONCAT = [
    argument("-o --output", _WHERE, "DESTINATION", required=True),
    argument("--dim", "the dimension; without it, variables are merged", "NAME", group="along"),
    argument("--dims", "dimensions of a grid of sets, the last one varying fastest", "NAME,NAME...", group="along"),
    argument("--counts", "with --dims: how many sets there are along each", "N,N..."),
    argument("--same", "a variable of the first set", "PATH", **_MANY),
    argument("--lazy", "write a document that names the sets, a line for each"),
    argument("--sort", "order the sets by their first value along the dimension"),
    argument("--overlap", "whose values are taken that several sets have (%(default)s)", **_OVERLAP),
    argument("--join", "whether sets may lack variables and coordinates (%(default)s)", **_OUTER),
    argument("--freq", "fill in the coordinate: a value every 1D, 6h, MS, ...", "STEP"),
    argument("--grid", "whether chunks may have several lengths along the dimension (%(default)s)", **_GRID),
    argument("--chunks", "with --lazy: length of chunks along a dimension", "NAME=N", type=lengths, **_MANY),
    argument("--subchunks", "show chunks without a codec in pieces of that length", "NAME=N", type=lengths, **_MANY),
    argument("--on-error", "whether sets that cannot be opened are left out (%(default)s)", **_ON_ERROR),
    argument("--resume", "a file that keeps what was found of each SOURCE, for the next run", "FILE"),
]
_APPEND = [
    argument("--dim", "the dimension", "NAME", required=True),
    argument("--same", "a variable of TARGET", "PATH", **_MANY),
    argument("--on-duplicate", "what is done with values that TARGET has already (%(default)s)", **_ON_DUPLICATE),
    argument("--any-order", "append also what is not behind the last value"),
]
_SNAPSHOT = [
    argument("destination", "path or fsspec URL of a JSON set", "DESTINATION"),
    argument("--shards", "what references are to", choices=["whole", "inner"], default="whole"),
    argument("--inline", "metadata kept in it (%(default)s)", "BYTES", type=int, default=INLINE),
]
_JOIN = "write several reference sets as one, joined along a dimension"
COMMANDS = (
    Command(
        "convert", "write references as parquet, JSON or manifests", _convert, _CONVERT, example="file.nc refs.parquet"
    ),
    Command(
        "rebase",
        "write a reference set whose targets have moved",
        _rebase,
        _REBASE,
        example="refs.json moved.json --from https://host/ --to s3://bucket/",
    ),
    Command("concat", _JOIN, _concat, _CONCAT, sources=("SOURCE...",), example="'2024/*.nc' -o all.json --dim time"),
    Command(
        "append",
        "add another set to a reference set, in place",
        _append,
        _APPEND,
        sources=("TARGET", "SOURCE"),
        example="all.json today.nc --dim time --on-duplicate skip",
    ),
    Command(
        "snapshot",
        "write references that are pinned to what a store holds now",
        _snapshot,
        _SNAPSHOT,
        example="s3://bucket/store.zarr refs.json",
    ),
)

"""Define the commands that write references, such as ``convert``, ``concat`` and ``append``."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any, Final

import refshard_fs
from refshard_fs.cli.command import (
    argument,
    command,
    get_opening_options,
    open_source,
    parse_attributes,
    parse_extent,
    parse_labels,
    parse_length,
    parse_pair,
    parse_positive,
    parse_renaming,
    print_line,
    print_written,
)
from refshard_fs.core.stats import format_count

DOCUMENT = ".refshard"  # the suffix of documents of cubes
_WHERE = (
    "path or fsspec URL; its suffix decides the format: .json (.json.gz, ...), .zarr (chunk manifests), .icechunk (a "
    "repository), .refshard (the document of a cube), any other: parquet"
)


class _Formats(list[str]):
    """Names of formats: the built-in ones, and those of plug-ins once an unknown name was looked up."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            from refshard_fs.sinks import load_sinks  # not imported for --help

            self[:] = load_sinks()
        return super().__contains__(name)


_FORMATS = _Formats(["parquet", "json", "chunk-manifest", "icechunk"])
_DESTINATION = argument("destination", _WHERE, "DESTINATION")
_OVERWRITE = argument("--overwrite", "replace an existing parquet set or hierarchy, or the content of a repository")
_NAMED: Final = 5  # the most arrays that a message names
_MANY: Any = {"action": "append", "default": []}
_ON_ERROR = argument(
    "--on-error", "whether SOURCEs that are damaged or out of order are left out (%(default)s)", choices="raise skip"
)
_PART = (
    argument("--keep", "keep only this variable or group, with its coordinates; may be repeated", "NAME", **_MANY),
    argument("--drop", "leave out this variable or group; may be repeated", "NAME", **_MANY),
    argument("--rename", "rename a variable, group or dimension", "OLD=NEW", type=parse_renaming, **_MANY),
    argument(
        "--attrs",
        "set attributes of a variable or group (no NAME: of the root); null removes one",
        "NAME=JSON",
        type=parse_attributes,
        **_MANY,
    ),
)


def _read_assigned(value: Any) -> Any:
    """Return values, or a tuple (dims, values, attrs) for a list of JSON whose second member is a list."""
    return tuple(value) if isinstance(value, list) and len(value) in (2, 3) and isinstance(value[1], list) else value


@command(
    "file.nc refs.parquet",
    _DESTINATION,
    argument("--format", "default: by the name of DESTINATION", choices=_FORMATS, default=None),
    argument("--record-size", "references per parquet file (%(default)s)", "N", type=parse_positive, default=10_000),
    _OVERWRITE,
    argument("--to-option", "option of DESTINATION's filesystem", "KEY=VALUE", type=parse_pair, action="append"),
    *_PART,
    argument("--isel", "take a range of elements, or one element", "NAME=START:STOP", type=parse_extent, **_MANY),
    argument("--sel", "take labels, such as time=2024-01/2024-03", "NAME=FROM/TO", type=parse_labels, **_MANY),
    argument("--squeeze", "leave out this dimension, of length 1", "NAME", **_MANY),
    argument(
        "--assign",
        "show these values, or [dims, values, attrs], as a coordinate",
        "NAME=JSON",
        type=parse_pair,
        **_MANY,
    ),
)
def _convert(arguments: Namespace) -> None:
    """Write references as parquet, JSON, chunk manifests or an Icechunk repository, or the document of a cube."""
    source = open_source(arguments, index_cache=False)  # a cache is useless for a source that is read once
    words = _get_part(arguments) | {name: dict(getattr(arguments, name)) for name in ("isel", "sel")}
    words["assign"] = {name: _read_assigned(value) for name, value in arguments.assign}
    words = {name: value for name, value in (words | {"squeeze": arguments.squeeze}).items() if value}
    if arguments.destination.endswith(DOCUMENT) and arguments.format is None:
        cube = refshard_fs.LazySet.of(source)
        if cube is None:
            raise ValueError(
                f"a {DOCUMENT} document is for a source that joins sets, and {arguments.source} joins none: write "
                ".parquet, .json or .zarr instead"
            )
        _save(arguments, cube.select(**words) if words else cube, arguments.destination)
        return
    if words:
        source = source.select(**words)
    decoded = source.source.open().source.file_codecs
    if decoded:
        names = ", ".join(f"{path} ({', '.join(codecs)})" for path, codecs in list(decoded.items())[:_NAMED])
        more = f" and {len(decoded) - _NAMED} others" if len(decoded) > _NAMED else ""
        print_line(f"zarr cannot decode the chunks of {names}{more}: they are decoded and copied")
    remark = source.save(
        arguments.destination,
        arguments.format,
        record_size=arguments.record_size,
        overwrite=arguments.overwrite,
        **dict(arguments.to_option or ()),
    )
    print_written(arguments, arguments.destination)
    if remark:
        print_line(remark)


@command(
    "refs.json moved.json --from https://host/ --to s3://bucket/",
    _DESTINATION,
    argument("--from", "old URL prefix", "PREFIX", dest="old", action="append", required=True),
    argument("--to", "new URL prefix", "PREFIX", dest="new", **_MANY),
    argument("--missing", "what to do if no URL begins with an old prefix (%(default)s)", choices="raise ignore"),
    _OVERWRITE,
)
def _rebase(arguments: Namespace) -> None:
    """Write a reference set whose targets have moved."""
    if len(arguments.old) != len(arguments.new):
        raise ValueError(
            f"expected a --to PREFIX for each --from PREFIX, got {len(arguments.old)} --from and "
            f"{len(arguments.new)} --to"
        )
    prefixes = dict(zip(arguments.old, arguments.new, strict=True))
    moved = refshard_fs.rebase(open_source(arguments, index_cache=False), prefixes, missing=arguments.missing)
    _save(arguments, moved, arguments.destination)


def _get_part(arguments: Namespace) -> dict[str, Any]:
    """Return the options in `_PART` that are set, as arguments of `RefShardFileSystem.select`."""
    words = {"keep": arguments.keep, "drop": arguments.drop}
    words |= {name: dict(getattr(arguments, name)) for name in ("rename", "attrs")}
    return {name: value for name, value in words.items() if value}


def _save(
    arguments: Namespace, source: refshard_fs.MadeSet | refshard_fs.LazySet, destination: str, *format: Any
) -> None:
    """Write a set, and print a summary of it."""
    from refshard_fs.source.settings import format_by_suffix  # not imported for --help

    is_lazy = isinstance(source, refshard_fs.LazySet)
    # A document always replaces another one.
    is_document = is_lazy and not format and format_by_suffix(destination) != "icechunk"
    remark = source.save(destination, *format, **({} if is_document else {"overwrite": arguments.overwrite}))
    print_written(arguments, destination, [format_count(len(source), "part" if is_lazy else "key")])
    if remark:
        print_line(remark.replace("concat without lazy=True", "concat without --lazy"))


@command(
    "'2024/*.nc' -o all.json --dim time",
    argument("-o --output", _WHERE, "DESTINATION", required=True),
    argument("--dim", "the dimension; without it, --lazy finds it, else variables are merged", "NAME", group="along"),
    argument("--dims", "dimensions of a grid of sets, the last one varying fastest", "NAME,NAME...", group="along"),
    argument("--counts", "with --dims: the number of sets along each dimension", "N,N..."),
    argument("--same", "take this variable from the first set, without comparing it", "PATH", **_MANY),
    *_PART,
    argument("--lazy", "write a document that names the sets, with a line for each set (the default for .refshard)"),
    argument("--sort", "order the sets by their first value along the dimension"),
    argument("--overlap", "which set gives a value that several sets have (%(default)s)", choices="error first last"),
    argument("--join", "outer: sets may lack variables and coordinates (%(default)s)", choices="exact outer"),
    argument("--freq", "fill in the coordinate: a value every 1D, 6h, MS, ...", "STEP"),
    argument(
        "--grid",
        "whether chunks may have several lengths along the dimension (%(default)s)",
        choices="regular rectilinear",
    ),
    argument("--chunks", "with --lazy: length of chunks along a dimension", "NAME=N", type=parse_length, **_MANY),
    argument("--subchunks", "cut chunks without a codec to this length", "NAME=N", type=parse_length, **_MANY),
    argument(
        "--on-error",
        "whether sets that cannot be opened are left out, or shown as missing (%(default)s)",
        choices="raise skip hole",
    ),
    argument("--tolerance", "the most by which coordinates may differ by rounding", "X", type=float, default=0.0),
    argument("--resume", "a file that keeps the scan of each SOURCE, for the next run", "FILE"),
    _OVERWRITE,
    sources=("SOURCE...",),
)
def _concat(arguments: Namespace) -> None:
    """Write several reference sets as one, joined along a dimension."""
    options = get_opening_options(arguments, index_cache=False)
    options |= _get_arguments(arguments, "same", "join", "freq", "grid", "lazy", "tolerance") | _get_part(arguments)
    options |= {"subchunks": dict(arguments.subchunks) or None, "chunks": dict(arguments.chunks) or None}
    if arguments.resume is not None:
        options["resume"] = arguments.resume
    is_pattern = len(arguments.sources) == 1 and "{" in arguments.sources[0]
    sources = arguments.sources[0] if is_pattern else arguments.sources
    if arguments.dims is None:
        options |= _get_arguments(arguments, "dim", "sort", "overlap", "on_error")
    else:
        options["dims"] = arguments.dims.split(",")
        if is_pattern and arguments.counts is None:
            options["on_error"] = arguments.on_error
        else:
            sources = _nest_sources(arguments.sources, options["dims"], arguments.counts)
    is_lazy = options.pop("lazy") or arguments.output.endswith(DOCUMENT)
    from refshard_fs.source.normalizing import TABLES  # slow to import, and not needed for the help

    is_table = arguments.dims is None and len(sources) == 1 and sources[0].endswith(TABLES)
    if is_lazy and is_table:
        _save(arguments, refshard_fs.open(sources[0], **options), arguments.output)
        return
    _save(arguments, refshard_fs.concat(sources, lazy=is_lazy, **options), arguments.output)


def _get_arguments(arguments: Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}


def _nest_sources(sources: list[str], dims: list[str], text: str | None) -> Any:
    """Nest ``sources`` in lists by the counts in ``text``; the last dimension varies fastest."""
    counts = [int(part) for part in (text or "").split(",") if part.isdecimal()]
    if len(counts) != len(dims) or math.prod(counts) != len(sources):
        raise ValueError(
            f"expected --counts N,... of sets along {', '.join(dims)}, with the product {len(sources)}, the number of "
            f"sources; got {text or 'none'}"
        )
    import numpy as np  # not imported for --help

    return np.array(sources, object).reshape(counts).tolist()


@command(
    "all.refshard '2024/*.nc' --create",
    argument("--dim", "the dimension; not needed for the document of a cube", "NAME"),
    argument("--create", "make the document of a cube if TARGET does not exist"),
    argument("--same", "a variable that need not be the same as in TARGET; may be repeated", "PATH", **_MANY),
    argument(
        "--on-duplicate",
        "what happens to values that TARGET already has (%(default)s)",
        choices="error skip replace",
    ),
    _ON_ERROR,
    argument("--any-order", "append values that are out of order, too; a cube gets late files in order without it"),
    sources=("TARGET", "SOURCE..."),
)
def _append(arguments: Namespace) -> None:
    """Append sets, or all that match patterns, to a reference set or a cube, in place."""
    options = get_opening_options(arguments)
    options |= _get_arguments(arguments, "same", "on_duplicate", "on_error", "any_order", "create")
    sources = arguments.sources if len(arguments.sources) > 1 else arguments.sources[0]
    added = refshard_fs.append(arguments.target, sources, arguments.dim, **options)
    is_changed = added or arguments.on_duplicate == "replace"
    what = f"{arguments.dim or _find_dim(arguments)}: {added:+,}" if is_changed else "nothing new, left as it is"
    print_line(f"{arguments.target}: {what}")


@command(
    "'s3://bucket/2024/*.nc' -o all.refshard",
    argument(
        "-o --output", "path or fsspec URL of the document of a cube", "DESTINATION", required=True, dest="target"
    ),
    argument("--dim", "the dimension; by default, it is found", "NAME"),
    argument("--same", "a variable that need not be the same as in the cube; may be repeated", "PATH", **_MANY),
    _ON_ERROR,
)
def _watch(arguments: Namespace) -> None:
    """Append the files of a pattern, or of a directory (DIR/), that a cube lacks; the first run makes the cube."""
    arguments.sources = [arguments.source]
    if arguments.source.endswith("/"):
        arguments.sources = [f"{arguments.source}**/*.*"]  # directories rarely have a dot in their names
    arguments.on_duplicate, arguments.any_order, arguments.create = "error", False, True
    _append.run(arguments)


def _find_dim(arguments: Namespace) -> str:
    """Return the dimension of the cube at TARGET, or "length" if TARGET is not a cube."""
    cube = refshard_fs.LazySet.of(refshard_fs.RefShardFileSystem(arguments.target, **get_opening_options(arguments)))
    return "length" if cube is None else cube.document.dim


@command(
    "s3://bucket/store.zarr refs.json",
    argument(
        "destination", "path or fsspec URL of a set: .zarr (chunk manifests), .icechunk, else JSON", "DESTINATION"
    ),
    argument("--shards", "whether to refer to whole shards or to inner chunks (%(default)s)", choices="whole inner"),
    argument(
        "--inline", "keep metadata of at most this size in the set (%(default)s)", "BYTES", type=int, default=65_536
    ),
    _OVERWRITE,
)
def _snapshot(arguments: Namespace) -> None:
    """Write references pinned to the present versions of the objects in a store."""
    from refshard_fs.source.settings import check_set_name, format_by_suffix  # not imported for --help

    options = get_opening_options(arguments, index_cache=False)
    options |= {"shards": arguments.shards, "inline_threshold": arguments.inline}
    check_set_name(arguments.destination)
    format = format_by_suffix(arguments.destination)
    if format == "parquet" and not arguments.destination.rstrip("/").lower().endswith((".parquet", ".parq")):
        format = "json"
    if format == "parquet":
        raise ValueError(
            f"expected the name of a JSON set (.json), of chunk manifests (.zarr) or of a repository (.icechunk), got "
            f"{arguments.destination!r}: parquet sets keep no versions"
        )
    _save(arguments, refshard_fs.snapshot(arguments.source, **options), arguments.destination, format)


COMMANDS = (_convert, _rebase, _concat, _append, _watch, _snapshot)

"""Commands that write references: ``convert``, ``rebase``, ``concat``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source, pair
from refshard_fs.formats import RECORD_SIZE
from refshard_fs.sets.concatenating import concat
from refshard_fs.sets.rebasing import rebase

__all__ = ["COMMANDS"]


def _convert_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help="path or fsspec URL; a name in .json makes it JSON")
    formats = ["parquet", "json", "chunk-manifest"]
    parser.add_argument("--format", choices=formats, help="default: JSON or parquet, by the name of DESTINATION")
    parser.add_argument(
        "--record-size", metavar="N", type=int, default=RECORD_SIZE, help="references per parquet file (%(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a parquet set or a hierarchy that is there")
    parser.add_argument(
        "--to-option", metavar="KEY=VALUE", type=pair, action="append", help="option of DESTINATION's filesystem"
    )


def _convert(arguments: Namespace) -> None:
    open_source(arguments, index_cache=False).save(  # read once, to be replaced
        arguments.destination,
        arguments.format,
        record_size=arguments.record_size,
        overwrite=arguments.overwrite,
        **dict(arguments.to_option or ()),
    )


def _rebase_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help="path or fsspec URL; a name in .json makes it JSON")
    parser.add_argument("--from", metavar="PREFIX", dest="old", action="append", required=True, help="old URL prefix")
    parser.add_argument("--to", metavar="PREFIX", dest="new", action="append", default=[], help="what replaces it")


def _rebase(arguments: Namespace) -> None:
    if len(arguments.old) != len(arguments.new):
        raise ValueError("each --from PREFIX needs its --to PREFIX")
    prefixes = dict(zip(arguments.old, arguments.new, strict=True))
    rebase(open_source(arguments, index_cache=False), prefixes).save(arguments.destination)


def _concat_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="path or fsspec URL of a reference set")
    parser.add_argument("-o", "--output", metavar="DESTINATION", required=True, help="path or fsspec URL")
    parser.add_argument("--dim", metavar="NAME", help="the dimension; without it, variables are merged")
    parser.add_argument("--same", metavar="PATH", action="append", default=[], help="a variable of the first set")


def _concat(arguments: Namespace) -> None:
    concat(arguments.sources, arguments.dim, same=arguments.same, index_cache=False).save(arguments.output)


COMMANDS = (
    Command("convert", "write references as parquet, JSON or manifests", _convert, _convert_arguments),
    Command("rebase", "write a reference set whose targets have moved", _rebase, _rebase_arguments),
    Command("concat", "write several reference sets as one, joined along a dimension", _concat, _concat_arguments, ()),
)

"""What a command is: a name, a line of help, the arguments it takes, and what it does with them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback, TqdmCallback

from refshard_fs.core.formatting import printable
from refshard_fs.fs import RefShardFileSystem

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Command",
    "no_arguments",
    "open_source",
    "opening_arguments",
    "options_of",
    "pair",
    "positive",
    "print_json",
    "print_line",
    "print_table",
    "progress",
    "source_arguments",
]


def no_arguments(parser: ArgumentParser) -> None:
    """Take none but those that come with ``sources`` and ``json``."""


class Command(msgspec.Struct, frozen=True):
    """One command. ``run`` returns the exit status, None for 0.

    ``sources`` are the names of the sources that it takes, with how they are opened. ``json``: it takes ``--json``.
    """

    name: str
    help: str
    run: Callable[[Namespace], int | None]
    arguments: Callable[[ArgumentParser], None] = no_arguments
    sources: tuple[str, ...] = ("SOURCE",)
    json: bool = False


# ----------------------------------------------------------------------------------------------------
# What commands print: lines, tables, JSON, progress.
#
# Tables are drawn by rich where that is installed and stdout is a terminal, and are plain text elsewhere: nothing but
# text goes into a pipe or a file. ``NO_COLOR`` is heeded. Control characters in keys and URLs are spelled out.


Side = Literal["left", "right"]
Style = Literal["", "bold", "green", "red", "yellow"]


def print_line(text: str = "", style: Style = "") -> None:
    """Print one line, coloured where that is wanted."""
    if style and _draws():
        from rich.text import Text  # an extra, and only for terminals

        _console().print(Text(printable(text), style=style), soft_wrap=True)
    else:
        print(printable(text))


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], sides: Sequence[Side] = ()) -> None:
    """Print ``rows`` in columns below their ``heading``; ``sides`` say where the text of each column stands."""
    rows = [[printable(cell) for cell in row] for row in rows]
    aligned: list[Side] = [*sides, *(["left"] * (len(heading) - len(sides)))]  # type: ignore[list-item]  # literals
    if _draws():
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for title, side in zip(heading, aligned, strict=True):
            table.add_column(title, justify=side, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        _console().print(table)
        return
    columns = zip(heading, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    for row in (heading, *rows):
        cells = (
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(row, widths, aligned, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print ``value`` for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def progress(what: str) -> Callback:
    """Return a callback that shows progress on stderr, where that is a terminal and tqdm is installed."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return TqdmCallback(tqdm_kwargs={"desc": what, "leave": False, "file": sys.stderr})
    return DEFAULT_CALLBACK


def _draws() -> bool:
    """Whether tables and colours are drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and _has_rich()


@cache
def _has_rich() -> bool:
    try:
        return importlib.util.find_spec("rich.console") is not None
    except ImportError:
        return False


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


# ----------------------------------------------------------------------------------------------------
# SOURCE on the command line, and the options that say how it is opened.


def source_arguments(names: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser, to be the parent of a command's, that takes sources of these names, and how they are opened."""
    parser = argparse.ArgumentParser(add_help=False)
    for name in names:
        parser.add_argument(
            name.lower(), metavar=name, help="path or fsspec URL of a reference set, archive, hierarchy or volume"
        )
    opening_arguments(parser)
    return parser


def opening_arguments(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take how sources are opened."""
    opening = parser.add_argument_group("how it is opened")
    opening.add_argument(
        "--fo-option", metavar="KEY=VALUE", type=pair, action="append", help="option of the source's filesystem"
    )
    opening.add_argument("--remote-protocol", metavar="NAME", help="protocol of references that name none")
    opening.add_argument("--remote-options", metavar="JSON", type=_mapping, help="options of the targets' filesystem")
    opening.add_argument(
        "--option",
        metavar="KEY=VALUE",
        type=pair,
        action="append",
        help="any other argument of RefShardFileSystem; VALUE is JSON, or else text",
    )


def open_source(arguments: argparse.Namespace, name: str = "SOURCE", **defaults: Any) -> RefShardFileSystem:
    """Return the filesystem of the source of that name; ``defaults`` are arguments that ``--option`` overrides."""
    return RefShardFileSystem(fo=getattr(arguments, name.lower()), **options_of(arguments, **defaults))


def options_of(arguments: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of a filesystem that the command line gives."""
    options = defaults | dict(arguments.option or ())
    if arguments.fo_option:
        options["target_options"] = dict(arguments.fo_option)
    if arguments.remote_protocol is not None:
        options["remote_protocol"] = arguments.remote_protocol
    if arguments.remote_options is not None:
        options["remote_options"] = arguments.remote_options
    return options


def pair(text: str) -> tuple[str, Any]:
    """Return the two sides of KEY=VALUE; VALUE is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def positive(text: str) -> int:
    """Return a number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"not JSON: {e}") from e
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value

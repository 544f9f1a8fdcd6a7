"""SOURCE on the command line, and the options that say how it is opened."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from refshard_fs.fs import RefShardFileSystem

__all__ = ["open_source", "opening_arguments", "options_of", "pair", "positive", "source_arguments"]


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

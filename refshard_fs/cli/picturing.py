"""The command ``map``: a picture of where an array's bytes lie."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source
from refshard_fs.cli.printing import print_line
from refshard_fs.picture.picturing import picture

__all__ = ["COMMANDS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("array", metavar="ARRAY", nargs="?", help="path of the array; default: the largest")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="where to write it: FILE.svg, FILE.html or FILE.png"
    )
    parser.add_argument("--select", metavar="TEXT", help='mark the requests that a slice causes: "air[0:10, :, :]"')


def _map(arguments: Namespace) -> None:
    made = picture(open_source(arguments), arguments.array, arguments.select)
    made.save(arguments.output)
    print_line(f"{arguments.output}: {made.scene.title}: {made.scene.text}")


COMMANDS = (Command("map", "draw where an array's bytes lie, and the requests for a slice", _map, _arguments),)

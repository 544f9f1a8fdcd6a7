"""The command ``recover``: a commit that was cut short, undone at once."""

from __future__ import annotations

from argparse import Namespace

from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import open_source
from refshard_fs.cli.printing import print_line

__all__ = ["COMMANDS"]


def _recover(arguments: Namespace) -> None:
    undone = open_source(arguments, mode="a").recover()
    print_line("the commit that was cut short is undone" if undone else "there is no commit that was cut short")


COMMANDS = (Command("recover", "undo a commit to a zarr hierarchy whose writer is dead, at once", _recover),)

"""The command ``refshard``: what a source holds, on a terminal or as JSON; checks of it; references in other formats.

Exit status: 0, or 1 where the source or a key cannot be read (one line on stderr says
why) or a check finds errors, or 2 where the command line is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from refshard_fs import __version__
from refshard_fs.cli import checks, looking, making
from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import source_arguments
from refshard_fs.errors import RefShardError

__all__ = ["COMMANDS", "main", "parser"]

COMMANDS: tuple[Command, ...] = (*looking.COMMANDS, *making.COMMANDS, *checks.COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit status."""
    arguments = parser().parse_args(argv)
    command: Command = arguments.command
    status = None
    try:
        status = command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError as e:
        return _fail(f"no such key or file: {e.filename or e}")
    except (RefShardError, OSError, ValueError, ImportError) as e:
        return _fail(str(e) or type(e).__name__)
    return status or 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: a subparser for each of `COMMANDS`."""
    source = source_arguments()
    printing = argparse.ArgumentParser(add_help=False)
    printing.add_argument("--json", action="store_true", help="print JSON")
    whole = argparse.ArgumentParser(
        prog="refshard", description="See what a reference set or an archive holds; convert it."
    )
    whole.add_argument("--version", action="version", version=f"refshard_fs {__version__}")
    below = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        parents = [source] * command.source + [printing] * command.json
        one = below.add_parser(command.name, parents=parents, help=command.help)
        command.arguments(one)
        one.set_defaults(command=command)
    return whole


def _fail(reason: str) -> int:
    print(f"refshard: {reason}", file=sys.stderr)
    return 1

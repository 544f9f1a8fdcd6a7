"""The command ``refshard``: what a source holds, on a terminal or as JSON; checks of it; references in other formats.

Exit status: 0; 1 where ``check`` finds errors or ``diff`` a difference; 2 where the command line is wrong, or a source
or a key cannot be read: then one line on stderr says why.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Final

from refshard_fs import __version__
from refshard_fs.amounts import printable
from refshard_fs.cli import checks, comparing, completion, looking, making, picturing, reading, recovering
from refshard_fs.cli.command import Command
from refshard_fs.cli.opening import source_arguments
from refshard_fs.cli.wording import as_options
from refshard_fs.errors import RefShardError, redacted

__all__ = ["COMMANDS", "main", "parser"]

COMMANDS: tuple[Command, ...] = (
    *looking.COMMANDS,
    *reading.COMMANDS,
    *comparing.COMMANDS,
    *picturing.COMMANDS,
    *checks.COMMANDS,
    *making.COMMANDS,
    *recovering.COMMANDS,
    *completion.COMMANDS,
)


FAILED: Final = 2
INTERRUPTED: Final = 130  # as shells have it
_SENTENCE: Final = "there is no "
_SPEAKING = (RefShardError, OSError, ValueError, ImportError)  # their texts say what is wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit status."""
    arguments = parser().parse_args(argv)
    command: Command = arguments.command
    status = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError as e:
        return _fail(str(e) if _SENTENCE in str(e) else f"no such key or file: {e.filename or e}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as e:  # noqa: BLE001  # whatever went wrong, a command line's user is told in one line
        return _fail(str(e) if isinstance(e, _SPEAKING) and str(e) else f"{type(e).__name__}: {e}")
    return status or 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: a subparser for each of `COMMANDS`."""
    printing = argparse.ArgumentParser(add_help=False)
    printing.add_argument("--json", action="store_true", help="print JSON")
    whole = argparse.ArgumentParser(
        prog="refshard", description="See what a reference set or an archive holds; convert it."
    )
    whole.add_argument("--version", action="version", version=f"refshard_fs {__version__}")
    below = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        parents = [source_arguments(command.sources)] * bool(command.sources) + [printing] * command.json
        one = below.add_parser(command.name, parents=parents, help=command.help)
        command.arguments(one)
        one.set_defaults(command=command, parser=whole)
    return whole


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    print(f"refshard: warning: {printable(redacted(str(message)))}", file=sys.stderr)


def _fail(reason: str) -> int:
    line = " ".join(as_options(redacted(reason)).split())
    print(f"refshard: {printable(line)}", file=sys.stderr)
    return FAILED

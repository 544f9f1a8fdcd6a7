"""Run the command ``refshard``, which shows and checks sources, and writes references in other formats.

Exit status: 0; 1 if ``check`` finds errors or ``diff`` a difference; 2 if the command line is wrong, or a source or a
key cannot be read. Then one line on stderr has the reason.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, Final

from refshard_fs import __version__
from refshard_fs.cli import inspect, make, rule, serve
from refshard_fs.cli.command import Command, argument, as_options, command
from refshard_fs.errors import RefShardError, redact, sanitize


@command("bash", argument("shell", "bash, zsh or fish", "SHELL", "bash zsh fish"), sources=())
def _completion(arguments: argparse.Namespace) -> None:
    """Print a script that lets your shell complete this command."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError as e:
        raise ImportError('completion needs shtab: pip install "refshard_fs[cli]"') from e
    whole: argparse.ArgumentParser = arguments.parser
    (below,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    for subparser in below.choices.values():
        for action in subparser._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE
    print(shtab.complete(whole, arguments.shell), end="")


COMMANDS: tuple[Command, ...] = (*inspect.COMMANDS, *make.COMMANDS, *rule.COMMANDS, *serve.COMMANDS, _completion)

FAILED: Final = 2
INTERRUPTED: Final = 130  # the status of shells for an interrupt
_EXPLAINED: Final = (RefShardError, OSError, TypeError, ValueError, ImportError)  # errors whose texts are enough


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the arguments of the process), and return the exit status."""
    began = time.monotonic()
    arguments = parser().parse_args(argv)
    arguments.began = began
    status = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = arguments.command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the program that reads the output (head, less) has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError as e:
        return _fail(str(e) if "there is no " in str(e) else f"no such key or file: {e.filename or e}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as e:  # noqa: BLE001  # any error becomes one line for the user
        return _fail(str(e) if isinstance(e, _EXPLAINED) and str(e) else f"{type(e).__name__}: {e}")
    return status or 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: a subparser for each of `COMMANDS`."""
    whole = argparse.ArgumentParser(
        prog="refshard", description="See what a reference set or an archive holds; convert it."
    )
    whole.add_argument("--version", action="version", version=f"refshard_fs {__version__}")
    below = whole.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        subparser = below.add_parser(
            each.name,
            help=each.help,
            description=f"{each.help[:1].upper()}{each.help[1:]}.",
            epilog=f"example: refshard {each.name} {each.example}",
        )
        each.add_to(subparser)
        subparser.set_defaults(command=each, parser=whole)
    return whole


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    print(f"refshard: warning: {sanitize(as_options(str(message)))}", file=sys.stderr)


def _fail(reason: str) -> int:
    print(f"refshard: {sanitize(' '.join(as_options(redact(reason)).split()))}", file=sys.stderr)
    return FAILED

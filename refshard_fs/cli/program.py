"""Run the command ``refshard``, which shows and checks sources, and writes references in other formats.

Exit status: 0; 1 if ``check`` finds errors, ``diff`` a difference, or ``rule check`` files that differ from the rule; 2
after any other error; 130 after an interrupt. With status 2, stderr has the reason in one line; if ``check`` cannot
read a source, the reason is a finding.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from refshard_fs import __version__
from refshard_fs.cli import inspect, make, rule, serve
from refshard_fs.cli.command import Command, argument, command, name_options
from refshard_fs.errors import RefShardError, redact, sanitize


@command("bash", argument("shell", "the shell", "SHELL", "bash zsh fish"), sources=())
def _completion(arguments: argparse.Namespace) -> None:
    """Print a script that lets your shell complete this command."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError as e:
        raise ImportError('completion needs shtab: pip install "refshard_fs[cli]"') from e
    parser: argparse.ArgumentParser = arguments.parser
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for subparser in commands.choices.values():
        for action in subparser._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE
    print(shtab.complete(parser, arguments.shell), end="")


COMMANDS: tuple[Command, ...] = (*inspect.COMMANDS, *make.COMMANDS, *rule.COMMANDS, *serve.COMMANDS, _completion)

FAILED: Final = 2
INTERRUPTED: Final = 130  # the status of shells for an interrupt
_EXPLAINED: Final = (RefShardError, OSError, TypeError, ValueError, ImportError)  # shown without the error's class


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the arguments of the process), and return the exit status."""
    began = time.monotonic()
    arguments = make_parser().parse_args(argv)
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


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: a subparser for each of `COMMANDS`."""
    parser = _Parser(prog="refshard", description="See what a reference set or an archive holds; convert it.")
    parser.add_argument("--version", action="version", version=f"refshard_fs {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subcommand in COMMANDS:
        subparser = commands.add_parser(
            subcommand.name,
            help=subcommand.help,
            description=f"{subcommand.help[:1].upper()}{subcommand.help[1:]}.",
            epilog=f"example: refshard {subcommand.name} {subcommand.example}",
        )
        subcommand.add_to(subparser)
        subparser.set_defaults(command=subcommand, parser=parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose error suggests quotes if the shell has replaced a pattern by the names of files."""

    def error(self, message: str) -> NoReturn:
        extra = message.removeprefix("unrecognized arguments: ")
        if extra != message and os.path.exists(extra.split(" -", 1)[0].rpartition(" ")[2]):
            suffix = os.path.splitext(extra)[1]
            message += f". Quote a pattern, so that the shell does not replace it by names of files: '*{suffix}'"
        super().error(message)


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    print(f"refshard: warning: {sanitize(name_options(str(message)))}", file=sys.stderr)


def _fail(reason: str) -> int:
    """Print the ``reason`` as one line to standard error; return the exit status."""
    print(f"refshard: {sanitize(' '.join(name_options(redact(reason)).split()))}", file=sys.stderr)
    return FAILED

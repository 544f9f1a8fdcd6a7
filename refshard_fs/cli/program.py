"""The command ``refshard``: what a source holds, on a terminal or as JSON; checks of it; references in other formats.

Exit status: 0; 1 where ``check`` finds errors or ``diff`` a difference; 2 where the command line is wrong, or a source
or a key cannot be read: then one line on stderr says why.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, Final

from refshard_fs import __version__
from refshard_fs.cli import inspect, make
from refshard_fs.cli.command import Command, argument, command
from refshard_fs.errors import RefShardError, redacted, told


@command("bash", argument("shell", "bash, zsh or fish", "SHELL", "bash zsh fish"), sources=())
def _completion(arguments: argparse.Namespace) -> None:
    """Print a script that lets your shell complete this command."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError as e:
        raise ImportError('completion scripts are made by shtab: pip install "refshard_fs[cli]"') from e
    whole: argparse.ArgumentParser = arguments.parser
    (below,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    for one in below.choices.values():
        for action in one._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE
    print(shtab.complete(whole, arguments.shell), end="")


COMMANDS: tuple[Command, ...] = (*inspect.COMMANDS, *make.COMMANDS, _completion)

FAILED: Final = 2
INTERRUPTED: Final = 130  # as shells have it
_EXPLAINED: Final = (RefShardError, OSError, ValueError, ImportError)  # their texts say what is wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit status."""
    began = time.monotonic()
    arguments = parser().parse_args(argv)
    arguments.began = began
    status = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = arguments.command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError as e:
        return _fail(str(e) if "there is no " in str(e) else f"no such key or file: {e.filename or e}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as e:  # noqa: BLE001  # whatever went wrong, a command line's user is told in one line
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
        one = below.add_parser(
            each.name,
            help=each.help,
            description=f"{each.help[:1].upper()}{each.help[1:]}.",
            epilog=f"example: refshard {each.name} {each.example}",
        )
        each.add_to(one)
        one.set_defaults(command=each, parser=whole)
    return whole


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    print(f"refshard: warning: {told(str(message))}", file=sys.stderr)


def _fail(reason: str) -> int:
    print(f"refshard: {told(' '.join(as_options(redacted(reason)).split()))}", file=sys.stderr)
    return FAILED


# ----------------------------------------------------------------------------------------------------
# What errors say of Python's arguments, said as options of the command line.


_OPTIONS: Final = (
    *("any_order", "chunks", "dim", "dims", "freq", "grid", "join", "lazy", "missing", "on_duplicate", "on_error"),
    *("overlap", "overwrite", "remote_options", "remote_protocol", "resume", "same", "sort", "subchunks"),
)
_OTHERS: Final = (  # arguments that --option takes
    *("allow", "base_url", "format", "max_manifest_bytes", "options", "shards", "simple_templates", "target"),
    *("account_name", "endpoint_url", "target_protocol", "template_overrides"),
)
# Between words, and nowhere in a URL; a text in quotes, a word, a number, or nothing.
_ARGUMENT: Final = re.compile(
    rf"(?<![^\s(])({'|'.join((*_OPTIONS, *_OTHERS))})=('[\w.-]*'|\w+(?![\w'\[({{])|(?=[\s,;:.)]|$))"
)


# The options of one URL prefix, as errors say what to paste.
_PREFIXED: Final = re.compile(r"(?<![^\s(])options=(\{'[^'\s]*': \{[^{}]*(?:\{\.\.\.\})?\}\})")


def as_options(text: str) -> str:
    """Return the text of an error with the options that take the place of the arguments it names.

    >>> as_options("it is not empty; overwrite=True replaces a set. Add 's3://b/' to allow= if you trust it")
    "it is not empty; --overwrite replaces a set. Add 's3://b/' to --option allow=[...] if you trust it"
    >>> print(as_options("if it is public: options={'s3://b/': {'anon': True}}"))
    if it is public: --option 'options={"s3://b/": {"anon": true}}'
    """
    return _ARGUMENT.sub(_option, _PREFIXED.sub(_as_json, text))


def _as_json(match: re.Match[str]) -> str:
    spelled = match[1].replace("'", '"').replace("True", "true").replace("False", "false")
    return f"--option 'options={spelled}'"


def _option(match: re.Match[str]) -> str:
    name, value = match[1], match[2].strip("'")
    if name == "format" and value in ("parquet", "json", "chunk-manifest"):
        return f"--format {value}"
    if name in ("account_name", "endpoint_url"):  # of the source's filesystem
        return f"--fo-option {name}=..."
    if name in _OPTIONS:
        option = f"--{name.replace('_', '-')}"
        return option if value in ("", "True") else f"{option} {value}"
    given = {"": "[...]" if name == "allow" else "...", "True": "true", "False": "false"}.get(value, value)
    return f"--option {name}={given}"

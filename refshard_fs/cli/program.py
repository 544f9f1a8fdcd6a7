"""The command ``refshard``: what a source holds, on a terminal or as JSON; checks of it; references in other formats.

Exit status: 0; 1 where ``check`` finds errors or ``diff`` a difference; 2 where the command line is wrong, or a source
or a key cannot be read: then one line on stderr says why.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from refshard_fs import __version__
from refshard_fs.cli import inspect, make
from refshard_fs.cli.command import Command, source_arguments
from refshard_fs.core.formatting import printable
from refshard_fs.errors import RefShardError, redacted

__all__ = ["COMMANDS", "COMPLETION", "SHELLS", "as_options", "main", "parser", "script"]

# ----------------------------------------------------------------------------------------------------
# What errors say of Python's arguments, said as options of the command line.


_OWN: Final = ("dim", "dims", "lazy", "overwrite", "remote_options", "remote_protocol", "same")  # options themselves
_OTHERS: Final = (
    *("allow", "base_url", "format", "max_manifest_bytes", "options", "shards", "simple_templates", "target"),
    *("target_options", "target_protocol", "template_overrides"),
)
_WRITTEN: Final = "parquet|json|chunk-manifest"  # formats, which commands that write have an option for
# Between words, and nowhere in a URL; a text in quotes, a word, a number, or nothing.
_ARGUMENT: Final = re.compile(
    rf"(?<![^\s(])({'|'.join((*_OWN, *_OTHERS))})=('[\w.-]*'|\w+(?![\w'\[({{])|(?=[\s,;:.)]|$))"
)


def as_options(text: str) -> str:
    """Return the text of an error with the options that take the place of the arguments it names.

    >>> as_options("it is not empty; overwrite=True replaces a set. Add 's3://b/' to allow= if you trust it")
    "it is not empty; --overwrite replaces a set. Add 's3://b/' to --option allow=[...] if you trust it"
    """
    return _ARGUMENT.sub(_option, text)


def _option(match: re.Match[str]) -> str:
    name, value = match[1], match[2].strip("'")
    if name == "format" and re.fullmatch(_WRITTEN, value):
        return f"--format {value}"
    if name in _OWN:
        option = f"--{name.replace('_', '-')}"
        return option if value in ("", "True") else f"{option} {value}"
    given = {"": "[...]" if name == "allow" else "...", "True": "true", "False": "false"}.get(value, value)
    return f"--option {name}={given}"


# ----------------------------------------------------------------------------------------------------
# The command ``completion``: a script that lets a shell complete commands, options and their values.
#
# It is written from the parser itself, and names nothing else: completing runs none of our code.


SHELLS: Final = ("bash", "zsh", "fish")

_BASH = """\
# {shell} completion for refshard: commands, options, the values of some options, and file names.
_refshard() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} offered=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
        return
    fi
    case "${{COMP_WORDS[1]}} $prev" in
{values}
    esac
    if [ -z "$offered" ] && [ "${{cur:0:1}}" = - ]; then
        case "${{COMP_WORDS[1]}}" in
{options}
        esac
    fi
    if [ -n "$offered" ]; then
        COMPREPLY=($(compgen -W "$offered" -- "$cur"))
    else
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}}
complete -o filenames -F _refshard refshard
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
# In zsh `words` is the shell's own, so the script has no such variable.
_WORD = re.compile(r"[A-Za-z0-9_.=/-]+")


class _Option(NamedTuple):
    flags: list[str]
    choices: list[str]
    takes_value: bool
    help: str


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of ``parser``, which has subcommands, for ``shell``."""
    commands = dict(_commands(parser))
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish(commands))
    values, options = [], []
    for name, (_, found) in commands.items():
        flags = [flag for option in found for flag in option.flags]
        options.append(f'            {name}) offered="{" ".join(flags)}" ;;')
        for option in found:
            if option.choices:
                cases = "|".join(f'"{name} {flag}"' for flag in option.flags or [name])
                values.append(f'        {cases}) offered="{" ".join(option.choices)}" ;;')
    filled = _BASH.format(
        shell=shell,
        commands=" ".join([*commands, "--help", "--version"]),
        values="\n".join(values),
        options="\n".join(options),
    )
    return (_ZSH if shell == "zsh" else "") + filled


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, tuple[str, list[_Option]]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield name, (helps.get(name, ""), list(map(_option_completion, below._actions)))


def _option_completion(action: argparse.Action) -> _Option:
    choices = [str(choice) for choice in action.choices or ()]
    assert all(map(_WORD.fullmatch, [*choices, *action.option_strings])), "it goes into a shell script unquoted"
    text = "" if action.help is None or action.help == argparse.SUPPRESS else action.help
    return _Option(
        list(action.option_strings), choices, action.nargs != 0, text.replace("%(default)s", str(action.default))
    )


def _fish(commands: dict[str, tuple[str, list[_Option]]]) -> Iterator[str]:
    yield "# fish completion for refshard"
    yield "complete -c refshard -n __fish_use_subcommand -f -l help"
    yield "complete -c refshard -n __fish_use_subcommand -f -l version"
    for name, (text, options) in commands.items():
        yield f"complete -c refshard -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        seen = f"'__fish_seen_subcommand_from {name}'"
        for flags, choices, takes_value, about in options:
            spelled = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in flags]
            parts = ["complete -c refshard -n", seen, *spelled]
            if choices:
                parts += ["-x" if flags else "-f", "-a", _quoted(" ".join(choices))]
            elif not flags:
                continue
            elif takes_value:
                parts.append("-r")
            yield " ".join([*parts, "-d", _quoted(about)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def _completion(arguments: argparse.Namespace) -> None:
    print(script(arguments.parser, arguments.shell), end="")


COMPLETION = (
    Command("completion", "print a script that lets your shell complete this command", _completion, _arguments, ()),
)


COMMANDS: tuple[Command, ...] = (
    *inspect.LOOKING,
    *inspect.READING,
    *inspect.COMPARING,
    *inspect.PICTURING,
    *inspect.CHECKS,
    *make.COMMANDS,
    *COMPLETION,
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

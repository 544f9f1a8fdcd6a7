"""The command ``completion``: a script that lets a shell complete commands, options and their values.

It is written from the parser itself, and names nothing else: completing runs none of our code.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from refshard_fs.cli.command import Command

__all__ = ["COMMANDS", "SHELLS", "script"]

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
                yield name, (helps.get(name, ""), list(map(_option, below._actions)))


def _option(action: argparse.Action) -> _Option:
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


COMMANDS = (
    Command("completion", "print a script that lets your shell complete this command", _completion, _arguments, ()),
)

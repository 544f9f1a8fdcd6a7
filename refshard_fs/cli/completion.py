"""The command ``completion``: a script that lets a shell complete commands, options and their values.

It is written from the parser itself, and names nothing else: completing runs none of our code.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from refshard_fs.cli.command import Command, argument

__all__ = ["COMMANDS", "script"]

_BASH: Final = """\
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
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of ``parser``, which has subcommands, for ``shell``."""
    (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    commands = {name: command._actions for name, command in below.choices.items()}
    if shell == "fish":
        helps = {choice.dest: choice.help or "" for choice in below._choices_actions}
        return "".join(f"{line}\n" for line in _fish(commands, helps))
    values, options = [], []
    for name, actions in commands.items():
        flags = [flag for action in actions for flag in action.option_strings]
        options.append(f'            {name}) offered="{" ".join(flags)}" ;;')
        for action in filter(_choices, actions):
            cases = "|".join(f'"{name} {flag}"' for flag in action.option_strings or [name])
            values.append(f'        {cases}) offered="{" ".join(_choices(action))}" ;;')
    filled = _BASH.format(
        shell=shell,
        commands=" ".join([*commands, "--help", "--version"]),
        values="\n".join(values),
        options="\n".join(options),
    )
    return (_ZSH if shell == "zsh" else "") + filled


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _fish(commands: dict[str, list[Any]], helps: dict[str, str]) -> Iterator[str]:
    first = "complete -c refshard -n __fish_use_subcommand -f"
    yield f"# fish completion for refshard\n{first} -l help\n{first} -l version"
    for name, actions in commands.items():
        yield f"{first} -a {name} -d {_quoted(helps[name])}"
        for action in actions:
            flags, choices = action.option_strings, _choices(action)
            if not flags and not choices:
                continue
            spelled = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in flags]
            if choices:
                spelled += ["-x" if flags else "-f", "-a", _quoted(" ".join(choices))]
            elif action.nargs != 0:
                spelled.append("-r")
            text = (action.help or "").replace("%(default)s", str(action.default))
            seen = f"'__fish_seen_subcommand_from {name}'"
            yield " ".join(["complete -c refshard -n", seen, *spelled, "-d", _quoted(text)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _completion(arguments: argparse.Namespace) -> None:
    print(script(arguments.parser, arguments.shell), end="")


_SHELL = argument("shell", "bash, zsh or fish", "SHELL", choices=("bash", "zsh", "fish"))
_HELP = "print a script that lets your shell complete this command"
COMMANDS = (Command("completion", _HELP, _completion, [_SHELL], sources=()),)

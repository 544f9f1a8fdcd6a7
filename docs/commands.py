"""The page of the command line, made of its parser: ``python docs/commands.py >docs/pages/commands.md``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from refshard_fs.cli.program import parser

HEAD = """\
# Command line

Made of the parser of `refshard` by `docs/commands.py`; `refshard COMMAND --help` says the same. SOURCE is all that
`fo=` takes. The exit status is 0; 1 where `check` finds errors or `diff` a difference; 2 where something cannot be
read, and one line says why.

Commands that open a SOURCE take, besides their own:
"""
HELP = "--help"
OF_SOURCES = ("--fo-option", "--remote-protocol", "--remote-options", "--option")


def page() -> str:
    """Return the page, as Markdown."""
    return "\n".join([HEAD, *_commands(parser())])


def _commands(whole: argparse.ArgumentParser) -> Iterator[str]:
    for action in whole._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        yield _table([o for o in action.choices["info"]._actions if OF_SOURCES.count("".join(o.option_strings))])
        for name, command in action.choices.items():
            options = [option for option in command._actions if HELP not in option.option_strings]
            places = [_spelled(option) for option in options if not option.option_strings]
            yield f"## refshard {' '.join([name, *places])}\n\n{helps[name][:1].upper()}{helps[name][1:]}.\n"
            yield f"For {command.epilog}\n".replace("refshard ", "`refshard ", 1).replace("\n", "`\n")
            yield _table([option for option in options if not OF_SOURCES.count("".join(option.option_strings))])


def _table(options: list[argparse.Action]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| `{_spelled(option)}` | {_about(option)} |\n" for option in options)


def _spelled(option: argparse.Action) -> str:
    value = "" if option.nargs == 0 else option.metavar or option.dest.upper()
    if isinstance(value, tuple):
        value = " ".join(value)
    if not option.option_strings:
        return {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(str(option.nargs), value)
    return f"{', '.join(option.option_strings)} {value}".rstrip()


def _about(option: argparse.Action) -> str:
    text = (option.help or "").replace("%(default)s", str(option.default)).replace("%%", "%")
    choices = "" if not option.choices else f"{'; ' if text else ''}one of {', '.join(map(str, option.choices))}"
    return (text + choices).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())

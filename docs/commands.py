"""Make the page of the command line from its parser: ``python docs/commands.py >docs/pages/commands.md``."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from refshard_fs.cli.program import main, make_parser

HEAD = """\
# Command line

`docs/commands.py` makes this page from the parser of `refshard`; `refshard COMMAND --help` describes the same
arguments. If `refshard` is not on the PATH, use `python -m refshard_fs COMMAND`. SOURCE is a path or URL, as for `fo=`.
The exit status is 0 after success. It is 1 if `check` finds errors, `diff` finds a difference, or `rule check` finds
files that differ from the rule; and 2 after any other error.

All commands that open a SOURCE take these options:
"""
HELP = "--help"
OF_SOURCES = ("--fo-option", "--remote-protocol", "--remote-options", "--option")


def make_page() -> str:
    """Return the page, as Markdown."""
    return "\n".join([HEAD, *_commands(make_parser())])


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
            if name in SHOWN:
                yield f"```text\n{run_commands(SHOWN[name])}```\n"


# Commands whose output the page shows, by their subcommand. They run on the sets of `_write_sets`.


SHOWN = {
    "info": ["info moved.json"],
    "ls": ["ls -l refs.json air"],
    "tree": ["tree refs.json"],
    "get": ["get refs.json air/0.0.0 chunk"],
    "diff": ["diff refs.json moved.json"],
    "map": ["map refs.json air -o air.svg"],
    "check": ["check refs.json", "check cut.json"],
    "convert": ["convert refs.json store.zarr"],
    "rebase": ["rebase moved.json other.json --from https://host/ --to s3://bucket/"],
    "concat": ["concat refs.json next.json -o both.json --dim time"],
    "append": ["append refs.json next.json --dim time", "append refs.json next.json --dim time --on-duplicate skip"],
    "snapshot": ["snapshot refs.json pinned.json"],
}


def run_commands(commands: list[str]) -> str:
    """Run ``commands``, and return their output on a terminal of 80 columns, each after a line with the command."""
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        os.chdir(directory)
        os.environ["COLUMNS"] = "80"
        try:
            _write_sets(Path(directory))
            for command in commands:
                out.write(f"$ refshard {command}\n")
                main(shlex.split(command))
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns
    text = out.getvalue().replace(os.path.realpath(directory), "/data").replace(directory, "/data")
    # Sizes and times differ from run to run.
    return re.sub(r"[\d.]+ \w+, written in [\d.]+ s", "1.2 KiB, written in 0.1 s", text)


def _write_sets(directory: Path) -> None:
    """Write four sets: of a day, of the next day, of the first day at another URL, and one whose file is too short."""
    (directory / "air.nc").write_bytes(bytes(400))
    array = {"zarr_format": 2, "order": "C", "fill_value": None, "filters": None, "compressor": None}
    air = {**array, "shape": [4, 5, 10], "chunks": [2, 5, 10], "dtype": "<i2"}
    time = {**array, "shape": [4], "chunks": [4], "dtype": "|u1"}

    def refs(first: int, target: str = "air.nc") -> dict[str, object]:
        return {
            ".zgroup": '{"zarr_format": 2}',
            "air/.zarray": json.dumps(air),
            "air/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", "lat", "lon"]}',
            "air/0.0.0": [target, 0, 200],
            "air/1.0.0": [target, 200, 200],
            "time/.zarray": json.dumps(time),
            "time/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}',
            "time/0": bytes(range(first, first + 4)).decode("latin-1"),
        }

    cut = {**refs(0), "air/1.0.0": ["air.nc", 300, 200]}
    sets = {"refs": refs(0), "next": refs(4), "moved": refs(0, "https://host/air.nc"), "cut": cut}
    for name, references in sets.items():
        (directory / f"{name}.json").write_text(json.dumps({"version": 1, "refs": references}))


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
    sys.stdout.write(make_page())

"""Define commands, open their sources, and print lines, tables and JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

import refshard_fs
from refshard_fs.core.stats import format_bytes
from refshard_fs.core.zarrmeta import object_in
from refshard_fs.errors import ManifestError, escape_controls


class Argument(NamedTuple):
    """The names and keywords of `ArgumentParser.add_argument`. Arguments of one ``group`` exclude each other."""

    names: list[str]
    keywords: dict[str, Any]
    group: str


def argument(
    names: str, help: str, metavar: str = "", choices: str | list[str] = "", group: str = "", **keywords: Any
) -> Argument:
    """Return an argument. It is a flag without ``choices`` and ``metavar``.

    The default is the first of ``choices``, unless ``keywords`` has another one.
    """
    if metavar:
        keywords["metavar"] = metavar
    if choices:
        known = choices.split() if isinstance(choices, str) else choices
        keywords = {"choices": known, "default": known[0], **keywords}
    elif not metavar:
        keywords["action"] = "store_true"
    return Argument(names.split(), {"help": help, **keywords}, group)


_SOURCE: Final = "path or fsspec URL of a reference set, a file of arrays (NetCDF, TIFF ...), an archive or a hierarchy"
_TARGET: Final = "path or fsspec URL of a JSON or parquet set, of a cube's document, or of an Icechunk repository"
Run = Callable[[Namespace], int | None]


class Command(msgspec.Struct, frozen=True):
    """One command. ``run`` returns the exit status, None for 0. ``--help`` shows the command with ``example``.

    ``sources`` are names of arguments ("SOURCE...": one or more). A command with sources has the options for opening
    them. ``json`` adds the option ``--json``.
    """

    name: str
    help: str
    run: Run
    arguments: Sequence[Argument]
    sources: Sequence[str]
    json: bool
    example: str

    def add_to(self, parser: ArgumentParser) -> None:
        """Add this command's arguments to ``parser``."""
        for name in self.sources:
            where = _TARGET if name == "TARGET" else _SOURCE
            if name.endswith("..."):
                parser.add_argument("sources", metavar=name.removesuffix("..."), nargs="+", help=where)
            else:
                parser.add_argument(name.lower(), metavar=name, help=where)
        if self.sources:
            _add_opening_options(parser)
        if self.json:
            parser.add_argument("--json", action="store_true", help="print JSON")
        groups: dict[str, Any] = {"": parser}
        for names, keywords, group in self.arguments:
            if group not in groups:
                groups[group] = parser.add_mutually_exclusive_group()
            groups[group].add_argument(*names, **keywords)


def command(
    example: str, *arguments: Argument, sources: Sequence[str] = ("SOURCE",), json: bool = False
) -> Callable[[Run], Command]:
    """Return a decorator that makes a `Command` of a function; its docstring is the help text."""

    def make_command(run: Run) -> Command:
        text = (run.__doc__ or "").removesuffix(".")
        return Command(run.__name__.strip("_"), text[:1].lower() + text[1:], run, arguments, sources, json, example)

    return make_command


def _add_opening_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("options for opening sources")
    pairs: Any = {"metavar": "KEY=VALUE", "type": parse_pair, "action": "append"}
    group.add_argument("--fo-option", help="option of the source's filesystem", **pairs)
    group.add_argument("--remote-protocol", metavar="NAME", help="protocol of references that name none")
    group.add_argument(
        "--remote-options", metavar="JSON", type=_parse_mapping, help="options of the targets' filesystem"
    )
    group.add_argument(
        "--option", help="any other argument of RefShardFileSystem; VALUE is JSON, or else text", **pairs
    )


def open_source(arguments: Namespace, name: str = "SOURCE", **defaults: Any) -> refshard_fs.RefShardFileSystem:
    """Open the source in the argument ``name``; ``--option`` overrides ``defaults``."""
    options = get_opening_options(arguments, **defaults)
    return refshard_fs.RefShardFileSystem(fo=getattr(arguments, name.lower()), **options)


_VERSIONS: Final = ("branch", "tag", "snapshot", "as_of")


def get_opening_options(arguments: Namespace, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of a filesystem from the command line; ``--option`` overrides ``defaults``."""
    options = defaults | dict(arguments.option or ())
    if arguments.fo_option:
        options["target_options"] = dict(arguments.fo_option)
        for name in _VERSIONS:  # fsspec's filesystems ignore unknown options, so another version would be shown
            if name in options["target_options"]:
                raise ValueError(
                    f"--fo-option has no {name!r}: write --option {name}=..., which chooses the version of a repository"
                )
    for name in ("remote_protocol", "remote_options"):
        value = getattr(arguments, name)
        if value is not None:
            options[name] = value
    return options


def parse_length(text: str) -> tuple[str, int]:
    """Split NAME=N, a dimension and a length."""
    name, _, number = text.partition("=")
    if not name or not number.isdecimal() or not int(number):
        raise ArgumentTypeError(f"expected NAME=N, a dimension and a number of at least 1, got {text!r}")
    return name, int(number)


def parse_renaming(text: str) -> tuple[str, str]:
    """Split OLD=NEW, two names."""
    old, _, new = text.partition("=")
    if not old or not new:
        raise ArgumentTypeError(f"expected OLD=NEW, two names, got {text!r}")
    return old, new


def parse_extent(text: str) -> tuple[str, int | slice]:
    """Parse NAME=START:STOP or NAME=PLACE, a dimension and positions; either bound may be left out."""
    name, _, bounds = text.partition("=")
    try:
        places = [int(bound) if bound else None for bound in bounds.split(":")]
    except ValueError:
        name = ""
    if not name or not bounds or len(places) > 2:
        raise ArgumentTypeError(f"expected NAME=START:STOP or NAME=PLACE, a dimension and integers, got {text!r}")
    return name, slice(*places) if len(places) == 2 else int(bounds)


def parse_labels(text: str) -> tuple[str, Any]:
    """Parse NAME=FROM/TO or NAME=LABEL, a dimension and labels; either end may be left out."""
    name, _, rest = text.partition("=")
    ends = [_parse_label(end) if end else None for end in rest.split("/")]
    if not name or not rest or len(ends) > 2:
        raise ArgumentTypeError(f"expected NAME=FROM/TO or NAME=LABEL, such as time=2024-01/2024-03, got {text!r}")
    return name, slice(*ends) if len(ends) == 2 else ends[0]


def _parse_label(text: str) -> float | str:
    try:
        return text if re.fullmatch(r"\d{4}(\d\d){0,2}", text) else float(text)  # 2024 is a year, not a number
    except ValueError:
        return text


def parse_pair(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE; VALUE is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_attributes(text: str) -> tuple[str, dict[str, Any]]:
    """Split NAME=JSON, a variable or group and its attributes; without NAME, they are the attributes of the root."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f'expected NAME=JSON, such as \'air={{"units": "K"}}\', got {text!r}')
    return name, _parse_mapping(value)


def parse_positive(text: str) -> int:
    """Parse a number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _parse_mapping(text: str) -> dict[str, Any]:
    try:
        return object_in(text, repr(text))
    except ManifestError as e:
        raise ArgumentTypeError(str(e)) from e


Style = Literal["", "bold", "red", "green", "yellow"]
_CODES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33}


def print_line(text: str = "", style: Style = "") -> None:
    """Print one line, with control characters escaped; use ``style`` only on a terminal with colours."""
    text = escape_controls(text)
    has_colours = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    print(f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and has_colours else text)


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print ``rows`` in columns below their ``heading``; the columns named ``right`` are aligned on the right.

    The table is as wide as the terminal at most, unless a word is wider. Wrap long cells at spaces. A first cell with a
    word that is wider than its column gets a line of its own.
    """
    table = [heading, *([escape_controls(cell) for cell in row] for row in rows)]
    widths = _measure_widths(table, shutil.get_terminal_size().columns)
    for row in table:
        style: Style = "bold" if row is heading else ""
        cells = [textwrap.wrap(cell, width, **_WHOLE_WORDS) for cell, width in zip(row, widths, strict=True)]
        if max(map(len, cells[0]), default=0) > widths[0]:
            print_line(row[0], style)
            cells[0] = []
        for parts in zip_longest(*cells, fillvalue=""):
            whole = zip(heading, parts, widths, strict=True)
            line = "  ".join(part.rjust(width) if name in right else part.ljust(width) for name, part, width in whole)
            print_line(line.rstrip(), style)


_WHOLE_WORDS: Final[Any] = {"break_long_words": False, "break_on_hyphens": False}


def _measure_widths(table: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the widths of columns that, with two spaces between them, fit into ``most`` characters.

    No column but the first is narrower than its longest word.
    """
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    least = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    least[0] = len(table[0][0])
    over = sum(widths) + 2 * (len(widths) - 1) - most
    while over > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda i: widths[i] if widths[i] > least[i] else 0)
        widths[widest] -= 1
        over -= 1
    return widths


def print_json(value: Any, **more: Any) -> None:
    """Print ``value`` as JSON, after the members in ``more``."""
    built = msgspec.to_builtins(value)
    built = {**more, **built} if more else built
    print(json.dumps(built, indent=2).replace("\x7f", "\\u007f"))  # in ASCII: no key controls a terminal


def print_written(arguments: Namespace, destination: str, what: Sequence[str] = (), files: Iterable[str] = ()) -> None:
    """Print ``destination``, ``what``, the size of local ``files`` (default: all at ``destination``), and the time."""
    path = Path(destination)
    written = list(map(Path, files)) or (
        [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    )
    size = [format_bytes(sum(file.stat().st_size for file in written))] if written else []
    took = f"written in {time.monotonic() - arguments.began:.1f} s"
    print_line(f"{destination}: {', '.join([*what, *size, took])}")


# Errors name arguments of Python's functions. In their texts, these names are replaced by options of the command line.


_OPTIONS: Final = (
    *(
        "any_order",
        "assign",
        "attrs",
        "chunks",
        "create",
        "dim",
        "dims",
        "drop",
        "freq",
        "grid",
        "isel",
        "join",
        "keep",
        "lazy",
        "missing",
    ),
    *("on_duplicate", "on_error", "rename"),
    *("overlap", "overwrite", "remote_options", "remote_protocol", "resume", "same", "sel", "sort", "squeeze"),
    *("subchunks", "tolerance"),
)
_OTHERS: Final = (  # arguments that --option takes
    *("allow", "base_url", "format", "head", "max_manifest_bytes", "options", "shards", "simple_templates", "target"),
    *("account_name", "endpoint_url", "target_protocol", "template_overrides", "zarr_format"),
)
# An argument between words, not in a URL. Its value is a text in quotes, a word, a number, or nothing.
_ARGUMENT: Final = re.compile(
    rf"(?<![^\s(])({'|'.join((*_OPTIONS, *_OTHERS))})=('[\w./-]*'|\w+(?![\w'\[({{])|(?=[\s,;:.?)]|$))"
)
# A dict for users to copy: the options of one URL prefix, or of all targets.
_DICT: Final = re.compile(
    r"(?<![^\s(])(options|remote_options|target_options)=(\{'[^'\s]*': (?:\.\.\.|\{[^{}]*(?:\{\.\.\.\})?\})\})"
)


def name_options(text: str) -> str:
    """Replace the names of Python's arguments in the text of an error by options of the command line.

    >>> name_options("it is not empty; overwrite=True replaces a set. Add 's3://b/' to allow= if you trust it")
    "it is not empty; --overwrite replaces a set. Add 's3://b/' to --option allow=[...] if you trust it"
    >>> print(name_options("if it is public: options={'s3://b/': {'anon': True}}"))
    if it is public: --option 'options={"s3://b/": {"anon": true}}'
    """
    return _ARGUMENT.sub(_format_option, _DICT.sub(_format_dict, text))


def _format_dict(match: re.Match[str]) -> str:
    if match[1] == "target_options":
        return "--fo-option " + match[2].strip("{}").replace("'", "").replace(": ", "=")
    spelled = match[2].replace("'", '"').replace("True", "true").replace("False", "false")
    return f"--option 'options={spelled}'" if match[1] == "options" else f"--remote-options '{spelled}'"


def _format_option(match: re.Match[str]) -> str:
    name, value = match[1], match[2].strip("'")
    if name == "format" and value in ("parquet", "json", "chunk-manifest", "icechunk"):
        return f"--format {value}"
    if name in ("account_name", "endpoint_url"):  # options of the source's filesystem
        return f"--fo-option {name}=..."
    if name in _OPTIONS:
        option = f"--{name.replace('_', '-')}"
        return option if value in ("", "True") else f"{option} {value}"
    spelled = {"": "[...]" if name == "allow" else "...", "True": "true", "False": "false"}.get(value, value)
    return f"--option {name}={spelled}"

"""What errors say of Python's arguments, said as options of the command line."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["as_options"]

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

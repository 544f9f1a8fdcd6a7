"""Fence the examples in docstrings (``>>>``) as code, because Markdown would show them as quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """An extension of griffe that puts a fence around each example: lines from ``>>>`` to an empty line."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples in the docstring of ``obj``, before griffe parses the docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )

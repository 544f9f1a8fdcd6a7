"""What a command is: a name, a line of help, the arguments it takes, and what it does with them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import msgspec

__all__ = ["Command", "no_arguments"]


def no_arguments(parser: ArgumentParser) -> None:
    """Take none but those that come with ``sources`` and ``json``."""


class Command(msgspec.Struct, frozen=True):
    """One command. ``run`` returns the exit status, None for 0.

    ``sources`` are the names of the sources that it takes, with how they are opened. ``json``: it takes ``--json``.
    """

    name: str
    help: str
    run: Callable[[Namespace], int | None]
    arguments: Callable[[ArgumentParser], None] = no_arguments
    sources: tuple[str, ...] = ("SOURCE",)
    json: bool = False

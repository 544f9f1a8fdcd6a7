"""Record measured cases for the report, as lines of JSON in the file that an environment variable names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["FILE", "Case", "record_case", "read_cases"]

FILE: Final = "REFSHARD_BENCHMARK_RECORD"  # the variable that names the file; without it, nothing is recorded


class Case(msgspec.Struct, frozen=True):
    """Medians of one case, by contender. ``ours`` and ``baseline`` are names of contenders.

    ``bytes`` are received bytes as a multiple of the needed bytes. ``goal`` is a text, and ``met`` is None without one.
    """

    benchmark: str
    case: str
    unit: str
    values: dict[str, float]
    ours: tuple[str, ...]
    baseline: str | None = None
    requests: dict[str, int] = {}
    bytes: dict[str, float] = {}
    goal: str = ""
    met: bool | None = None
    latency: float | None = None  # seconds a request waits
    size: int | None = None  # references


def record_case(case: Case) -> None:
    """Append ``case`` to the file that `FILE` names, if it is set."""
    path = os.environ.get(FILE)
    if path:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(case) + b"\n")


def read_cases(path: Path) -> list[Case]:
    """Return all cases in the file at ``path``; none if there is no file."""
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines()] if path.exists() else []

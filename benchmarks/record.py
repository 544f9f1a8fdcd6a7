"""What a benchmark measured, kept for the report: a line of JSON a case, where the command that runs them asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["FILE", "Case", "keep", "kept"]

FILE: Final = "REFSHARD_BENCHMARK_RECORD"  # names the file; unset: nothing is kept


class Case(msgspec.Struct, frozen=True):
    """Medians of one case, by contender; ``bytes`` are multiples of what was needed; ``size`` is of the work."""

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


def keep(case: Case) -> None:
    """Append ``case`` to the record, if there is one."""
    path = os.environ.get(FILE)
    if path:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(case) + b"\n")


def kept(path: Path) -> list[Case]:
    """Return all cases of a record."""
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines()] if path.exists() else []

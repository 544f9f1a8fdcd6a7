"""The matrix of faults: the result for each fault, filesystem and operation, and its report by pytest."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import pytest

__all__ = ["MATRIX", "Matrix", "summarize"]

# By (filesystem, fault, operation): "right", "error" or the name of an error class.
Matrix: TypeAlias = dict[tuple[str, str, str], str]
MATRIX: pytest.StashKey[Matrix] = pytest.StashKey()


def summarize(cells: Matrix, *, whole: bool) -> list[str]:
    """Return lines with the counts of results, and, if ``whole``, with all results."""
    if not cells:
        return []
    kinds = Counter("right" if outcome == "right" else "an error" for outcome in cells.values())
    systems = list(dict.fromkeys(system for system, _, _ in cells))
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), reverse=True))
    lines = [f"{len(cells)} cells of fault × filesystem ({', '.join(systems)}) × operation: {said}, none else"]
    if whole:
        operations = list(dict.fromkeys(operation for _, _, operation in cells))
        lines.append(f"{'':36}" + "".join(f"{name:>14}" for name in operations))
        for system, fault in dict.fromkeys((system, fault) for system, fault, _ in cells):
            row: list[Any] = [cells.get((system, fault, operation), "") for operation in operations]
            lines.append(f"{system:7}{fault:29}" + "".join(f"{outcome:>14}" for outcome in row))
    return lines

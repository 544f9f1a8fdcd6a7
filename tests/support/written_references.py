"""Values that are too large for the set itself, and the objects that hold them."""

from __future__ import annotations

from pathlib import Path

LARGE = b"0123456789" * 60


def objects(path: Path) -> list[Path]:
    """The objects that were put for writes to the source at ``path``."""
    return [file for file in path.with_name(path.name + ".data").rglob("*") if file.is_file()]

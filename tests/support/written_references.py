"""Find the objects that hold values too large for the set itself."""

from __future__ import annotations

from pathlib import Path

LARGE = b"0123456789" * 60


def list_objects(path: Path) -> list[Path]:
    """Return the objects that writes to the source at ``path`` put."""
    return [file for file in path.with_name(path.name + ".data").rglob("*") if file.is_file()]

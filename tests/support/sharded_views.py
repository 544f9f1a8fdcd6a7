"""List the shards of an array in a folder, and count reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.shard_writers import (
    make_sparse,
)

DATA = make_sparse((20, 3))


CHUNKS, SHARDS = (3, 2), (2, 2)


def list_shards(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "a").iterdir() if not p.name.startswith("."))


def count_reads(fs: Any, what: Any) -> int:
    before = fs.stats()["requests"]
    what()
    after: int = fs.stats()["requests"]
    return after - before

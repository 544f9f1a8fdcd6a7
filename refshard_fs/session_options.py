"""Everything that decides what a source shows and how its targets are read, as one value."""

from __future__ import annotations

from typing import Any

import msgspec

from refshard_fs.formats import OpenOptions
from refshard_fs.held import Held
from refshard_fs.overlay import Overlay
from refshard_fs.reading.dispatch import Budget
from refshard_fs.reading.plan import Limits
from refshard_fs.targets import PoolOptions

__all__ = ["SessionOptions"]


class SessionOptions(msgspec.Struct, frozen=True, eq=False):
    """Everything that decides what a source shows and how its targets are read."""

    source: str | Held
    open: OpenOptions
    format: str | None
    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options given without a protocol
    limits: Limits
    budget: Budget
    readahead: int
    block_cache: int
    token: str
    index_cache: bool | str | None = None
    overlay: Overlay | None = None  # of what is written; without one, nothing is

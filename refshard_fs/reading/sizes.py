"""Indexes told how long their objects are: what answers say of that comes too late for those who ask for the index."""

from __future__ import annotations

from refshard_fs.model import Index, Load, Span
from refshard_fs.targets import Pool

__all__ = ["sized"]


def sized(need: Load, pool: Pool) -> Index:
    """Return the index of ``need``, whose bytes were read, told the size of their object if it wants to know that."""
    tell = getattr(need.index, "sized", None)
    if tell is None or not isinstance(need.entry, Span):
        return need.index
    place = pool.place(need.entry.url)
    size = None if place is None else place[0].size
    index: Index = need.index if size is None else tell(size)
    return index

"""Decide what to read of a chain of records: each record names the start of the next one. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PERIOD: Final = 64  # records after which lengths may repeat, as those of the fields of each time step
# Records up to this length are read whole, not by windows: if lengths differ, windows find one record a round, and
# whole reads find several. A round takes as long as these bytes at 12 MB/s.
UNEVEN: Final = 256 << 10
EVEN: Final = 64 << 10  # the same if lengths can be foreseen: this saves a request, as long as these bytes at 160 MB/s
FIRST_BLOCK: Final = 256 << 10  # bytes of the first such read; each further read is twice as long,
LAST_BLOCK: Final = 16 << 20  # up to these


def foresee(lengths: Sequence[int]) -> Sequence[int]:
    """Return the last lengths if they repeat the lengths before them, as a single length does; else return none."""
    if len(lengths) == 1:
        return lengths
    periods = (lengths[-size:] for size in range(1, min(PERIOD, len(lengths) // 2) + 1))
    return next((period for period in periods if period == lengths[-2 * len(period) : -len(period)]), [])

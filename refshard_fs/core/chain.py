"""Decide how many bytes to read from a chain of records: each record names the start of the next. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PERIOD: Final = 64  # the most records after which lengths repeat, for example, the fields of each time step
# Bytes: records up to this length are read whole. Longer ones are read by windows, which find only one record in each
# round if lengths differ. Reading so many bytes takes as long as a round of 20 ms, at 12 MB/s.
UNEVEN: Final = 256 << 10
EVEN: Final = 64 << 10  # bytes: the same limit if lengths can be foreseen, so that windows find several records
FIRST_BLOCK: Final = 256 << 10  # bytes of the first whole read; each later one is twice as long
LAST_BLOCK: Final = 16 << 20  # bytes: whole reads do not grow beyond this


def foresee(lengths: Sequence[int]) -> Sequence[int]:
    """Return the shortest run of ``lengths`` at the end that equals the run before it: records probably repeat it.

    A single length repeats itself. Return an empty sequence if lengths do not repeat.
    """
    if len(lengths) == 1:
        return lengths
    periods = (lengths[-size:] for size in range(1, min(PERIOD, len(lengths) // 2) + 1))
    return next((period for period in periods if period == lengths[-2 * len(period) : -len(period)]), [])

"""Small ranges of files at hand that are read in order: one system call brings the next of them, too. No I/O here.

To see that a file is what it was and to read a range take longer than all else that a small one costs, the more so as
other threads run meanwhile. What is held is of one version, and of use for a moment only.
"""

from __future__ import annotations

from time import monotonic
from typing import Final, NamedTuple

from refshard_fs.model import Span

__all__ = ["SMALL", "Strip"]

SMALL: Final = 1 << 14  # bytes of a range, at most
WIDTH: Final = 1 << 16  # bytes that are read at once
IN_ORDER: Final = 3  # ranges that follow each other until more is read than was asked for
FRESH: Final = 0.02  # seconds, after which it is seen to again whether the file is the same


class _Held(NamedTuple):
    """Bytes ``[start, stop)`` of an object, of use until a time."""

    span: Span
    start: int
    stop: int
    data: bytes
    until: float


_NOTHING = _Held(Span(""), 0, 0, b"", 0.0)


class Strip:
    """What was read last and not asked for yet; thread-safe."""

    def __init__(self) -> None:
        self._held = _NOTHING
        self._next = _NOTHING.span, 0, 0  # the last range, where the one behind it begins, and how many there were

    def take(self, span: Span, stop: int) -> bytes | None:
        """Return the bytes of ``span``, which ends at ``stop``, if they are held."""
        like, start, end, data, until = self._held
        if (
            start <= span.start
            and stop <= end
            and span.url == like.url
            and span.pin is like.pin
            and monotonic() < until
        ):
            return data[span.start - start : stop - start]
        return None

    def widened(self, span: Span, stop: int) -> Span | None:
        """Return what to read for ``span``, which ends at ``stop``: more than that, or None."""
        last, start, count = self._next
        held = self._held
        if held.start < span.start <= held.stop and held.span.url == span.url:
            count = IN_ORDER  # all that is held was read
        elif start != span.start or last.url != span.url:
            count = 0
        self._next = span, stop, count + 1
        if count + 1 < IN_ORDER:
            return None
        return Span(span.url, span.start, span.start + WIDTH, exact=False, optional=span.optional, pin=span.pin)

    def hold(self, span: Span, data: bytes) -> None:
        """Hold ``data``, which `widened` said to read for ``span``, for those that come next."""
        self._held = _Held(span, span.start, span.start + len(data), data, monotonic() + FRESH)

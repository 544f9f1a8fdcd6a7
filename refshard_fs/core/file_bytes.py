"""The bytes of a file while a format opens it: known ones cost no read, others are read in one round. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

from refshard_fs.core.model import Entry, Inline, Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError


class FileBytes:
    """The file ``source`` of ``size`` bytes, of which the first, ``head``, are known."""

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        self.url = url
        self.size = size
        self.source = source
        self._windows = [(0, head)]  # where known bytes begin, and they; the head first

    def part(self, start: int, size: int) -> Entry:
        """Return where bytes of the file lie; ManifestError where that is outside."""
        if start + size > self.size:
            raise ManifestError(
                f"{self.url}: it is cut short, or damaged: what it names ends at byte {start + size} of {self.size}"
            )
        return self.source.part(start, size)

    def known(self, start: int, size: int) -> bytes | None:
        """Return bytes of the file; None where they were not read."""
        for first, data in self._windows:
            if first <= start and start + size <= first + len(data):
                return data[start - first : start - first + size]
        return None

    def load(self, ranges: Sequence[tuple[int, int]], window: int = 0, ahead: Sequence[int] = ()) -> Steps[list[bytes]]:
        """Return the bytes of (start, size) ``ranges``: those that are not known are read in one round.

        With a ``window``, so many bytes are read where the file has them, also at places ``ahead``, and known until
        the next windows are read.
        """
        found = {r: self.known(*r) for r in ranges}
        missing = [r for r, data in found.items() if data is None]
        if missing:
            missing += [(start, 1) for start in ahead]
            longer = [(start, max(size, min(window, self.size - start))) for start, size in missing]
            answers: Sequence[bytes] = yield tuple(Load(self.part(*r), Raw()) for r in longer)
            if window:
                self._windows[1:] = [(start, data) for (start, _), data in zip(missing, answers, strict=True)]
            found |= {(start, size): data[:size] for (start, size), data in zip(missing, answers, strict=True)}
        return [found[r] or b"" for r in ranges]

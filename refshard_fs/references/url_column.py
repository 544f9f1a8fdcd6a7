"""The URLs of a reference set as they come, each with a number; without an object for each where they are many.

What comes in one block has one number in it. In the end `settled` says which numbers are one URL's. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from refshard_fs.core.columns import UInt32s, UInt64s
from refshard_fs.core.strings import Texts
from refshard_fs.core.swar import PAD, Positions, groups_of, hash_of, hashes, join_pieces, runs
from refshard_fs.errors import ManifestError

__all__ = ["NotExpanded", "Urls"]

FEW: Final = 256  # URLs that are looked for one by one


class NotExpanded(Exception):
    """The URL ``text`` with this ``number`` cannot be expanded."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


class Urls:
    """All URLs so far; None, the default target, may be one of them."""

    def __init__(self) -> None:
        self._singly: dict[bytes | None, int] = {}
        self._texts: list[bytes] = []  # of the others,
        self._sizes: list[Positions] = []  # each as long as these say,
        self._hashes: list[UInt64s] = []
        self._numbers: list[Positions] = []  # and with these numbers
        self._count = 0

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._count

    def number(self, url: bytes | None) -> int:
        """Return the number of one URL."""
        found = self._singly.get(url)
        if found is None:
            found = self._singly[url] = self._count
            self._count += 1
        return found

    def numbers(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        """Return the number of each piece of ``text``; those that equal the one before are told by words alone."""
        if not len(starts):
            return np.zeros(0, np.uint32)
        firsts = runs(text, starts, stops)
        begins, ends = starts[firsts], stops[firsts]
        if len(firsts) > FEW:
            found = self._many(text, begins, ends)
        else:
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            pieces = [text[start:stop] for start, stop in spans]
            known = self._singly
            new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
            known.update(zip(new, range(self._count, self._count + len(new)), strict=True))
            self._count += len(new)
            found = np.fromiter(map(known.__getitem__, pieces), np.uint32, len(pieces))
        return found.repeat(np.diff(firsts, append=len(starts)))

    def _many(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        """Return the numbers of pieces by their hashes."""
        keyed = hashes(text, starts, stops)
        chosen, groups = groups_of(text, starts, stops, keyed)
        self._texts.append(join_pieces(text, starts[chosen], stops[chosen]))
        self._sizes.append((stops - starts)[chosen])
        self._hashes.append(keyed[chosen])
        self._numbers.append(np.arange(self._count, self._count + len(chosen)))
        numbers = groups + np.uint32(self._count)
        self._count += len(chosen)
        return numbers

    def expand(self, expanded: Callable[[str], str]) -> UInt32s | None:
        """Expand each URL that has ``{{`` in it, once; return what each number has become, None where all stay.

        `NotExpanded`, with a number, where ``expanded`` raises ManifestError.
        """
        if not any(b"{{" in text for text in (*self._texts, *filter(None, self._singly))):
            return None
        column, moved = self.settled()
        known: dict[bytes | None, int] = {}
        became = np.empty(len(column), np.uint32)
        for number, url in enumerate(column):
            if url is not None and "{{" in url:
                try:
                    url = expanded(url)
                except ManifestError as e:
                    first = number if moved is None else int(np.flatnonzero(moved == number)[0])
                    raise NotExpanded(first, url) from e
            encoded = None if url is None else url.encode("utf-8", "surrogatepass")
            became[number] = known.setdefault(encoded, len(known))
        if moved is not None:
            became = became[moved]
        count = self._count
        for old in (self._texts, self._sizes, self._hashes, self._numbers):
            old.clear()
        self._singly, self._count = known, len(known)
        return None if (became == np.arange(count)).all() else became

    def settled(self) -> tuple[Texts, UInt32s | None]:
        """Return all URLs, and which of them each number has become: None where all are as they were."""
        if not self._texts:
            return Texts.of(self._singly), None
        singly = [url for url in self._singly if url is not None]
        places = [number for url, number in self._singly.items() if url is not None]
        text = b"".join((PAD, *self._texts, *singly, PAD))
        sizes = np.concatenate((*self._sizes, np.fromiter(map(len, singly), np.int64, len(singly))))
        keyed = np.concatenate((*self._hashes, np.fromiter(map(hash_of, singly), np.uint64, len(singly))))
        numbers = np.concatenate((*self._numbers, np.array(places, np.int64)))
        stops = len(PAD) + sizes.cumsum()
        starts = stops - sizes
        if len(singly):  # as they came first
            order = np.argsort(numbers)
            starts, stops, keyed, numbers = starts[order], stops[order], keyed[order], numbers[order]
        chosen, became = groups_of(text, starts, stops, keyed)
        starts, stops = starts[chosen], stops[chosen]
        urls = Texts.of_sizes(join_pieces(text, starts, stops), stops - starts)
        if len(became) == self._count:
            return urls, None if len(urls) == self._count else became
        moved = np.full(self._count, len(urls), np.uint32)  # of None, if there is one
        moved[numbers] = became
        return Texts.joined([urls, Texts.of([None])]), moved

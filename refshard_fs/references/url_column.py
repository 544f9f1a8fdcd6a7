"""The URLs of a reference set while it is read: each has a number, and none is an object where they are many.

A URL that comes in two large blocks has a number in each. In the end `finish` says which numbers are of one URL. No
I/O here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.core.columns import Texts, UInt32s, UInt64s
from refshard_fs.core.swar import PAD, Positions, groups_of, hash_of, hashes, join_pieces, runs
from refshard_fs.errors import ManifestError

FEW: Final = 256  # URLs of a block that are looked for one by one


class NotExpanded(Exception):
    """The URL ``text`` with this ``number`` cannot be expanded."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


class _Block(NamedTuple):
    """URLs one after the other, and what is known of each."""

    text: bytes
    sizes: Positions
    hashes: UInt64s
    numbers: Positions


class Urls:
    """All URLs so far; None, the default target, may be one of them."""

    def __init__(self) -> None:
        self._by_text: dict[bytes | None, int] = {}
        self._blocks: list[_Block] = []  # of all others
        self._count = 0

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._count

    def number(self, url: bytes | None) -> int:
        """Return the number of one URL."""
        found = self._by_text.get(url)
        if found is None:
            found = self._by_text[url] = self._count
            self._count += 1
        return found

    def numbers(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        """Return the number of each piece of ``text``; most are the same as the one before."""
        if not len(starts):
            return np.zeros(0, np.uint32)
        firsts = runs(text, starts, stops)
        begins, ends = starts[firsts], stops[firsts]
        if len(firsts) > FEW:
            found = self._block(text, begins, ends)
        else:
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            found = np.array([self.number(text[start:stop]) for start, stop in spans], np.uint32)
        return found.repeat(np.diff(firsts, append=len(starts)))

    def _block(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        hashed = hashes(text, starts, stops)
        chosen, groups = groups_of(text, starts, stops, hashed)
        starts, stops = starts[chosen], stops[chosen]
        numbers = np.arange(self._count, self._count + len(chosen))
        self._blocks.append(_Block(join_pieces(text, starts, stops), stops - starts, hashed[chosen], numbers))
        groups = groups + np.uint32(self._count)
        self._count += len(chosen)
        return groups

    def expand(self, expand: Callable[[str], str]) -> UInt32s | None:
        """Expand each URL that has ``{{`` in it, once; return what each number has become, None where all stay.

        `NotExpanded`, with a number, where ``expand`` raises ManifestError.
        """
        if not any(b"{{" in text for text in (*(block.text for block in self._blocks), *filter(None, self._by_text))):
            return None
        urls, moved = self.finish()
        known: dict[bytes | None, int] = {}
        became = np.empty(len(urls), np.uint32)
        for number, url in enumerate(urls):
            if url is not None and "{{" in url:
                try:
                    url = expand(url)
                except ManifestError as e:
                    first = number if moved is None else int(np.flatnonzero(moved == number)[0])
                    raise NotExpanded(first, url) from e
            encoded = None if url is None else url.encode("utf-8", "surrogatepass")
            became[number] = known.setdefault(encoded, len(known))
        if moved is not None:
            became = became[moved]
        count, self._count = self._count, len(known)
        self._by_text = known
        self._blocks.clear()
        return None if (became == np.arange(count)).all() else became

    def finish(self) -> tuple[Texts, UInt32s | None]:
        """Return all URLs, each once, and which of them each number has become: None where all stay."""
        if not self._blocks:
            return Texts.of(self._by_text), None
        single = {url: number for url, number in self._by_text.items() if url is not None}
        sizes, hashed = np.fromiter(map(len, single), np.int64), np.fromiter(map(hash_of, single), np.uint64)
        blocks = [*self._blocks, _Block(b"".join(single), sizes, hashed, np.array([*single.values()], np.int64))]
        texts, *columns = zip(*blocks, strict=True)
        sizes, hashed, numbers = map(np.concatenate, columns)
        stops = len(PAD) + sizes.cumsum()
        starts, text = stops - sizes, b"".join((PAD, *texts, PAD))
        if single:  # in the order in which they came first
            order = np.argsort(numbers)
            starts, stops, hashed, numbers = starts[order], stops[order], hashed[order], numbers[order]
        chosen, groups = groups_of(text, starts, stops, hashed)
        starts, stops = starts[chosen], stops[chosen]
        is_whole = not single and len(chosen) == len(groups)
        data = text[len(PAD) : -len(PAD)] if is_whole else join_pieces(text, starts, stops)
        urls = Texts.of_sizes(data, stops - starts)
        if len(groups) == self._count:
            return urls, None if len(urls) == self._count else groups
        became = np.full(self._count, len(urls), np.uint32)  # of None, which is one of them
        became[numbers] = groups
        return Texts.joined([urls, Texts.of([None])]), became

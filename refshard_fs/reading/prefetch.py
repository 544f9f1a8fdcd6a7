"""Fetching ahead: what the read-ahead policy guesses, and what `prefetch` announces.

Either way the `Fetcher` keeps the bytes, within its budget, until they are read, or until nobody goes on reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace, place
from refshard_fs.core.model import Entry, Packed, Span
from refshard_fs.reading.boxes import Boxes
from refshard_fs.reading.dispatch import Block
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.lookups import Lookups
from refshard_fs.reading.plan import KIB, MIB
from refshard_fs.reading.readahead import ReadAhead

ARRAYS = 256  # followed at once
WAVE = 4096  # keys that are looked up together
BOX = 256  # chunks of a selection, at most, that is followed: more tell little of what is read next
MOST_PARTS = 5  # of two to the power of so many parts, at most, are opened ahead
MANY = 16  # keys from which on they may be nearly all of a shard
UNREAD_SECONDS = 60.0  # in which nothing arrives, is announced or read, after which memory is given back
# Bytes a second that a machine's link carries: what is fetched ahead at first fills a round trip of it,
BANDWIDTH = 250e6
LATENCY = 0.02  # of so many seconds where that is not known
REQUEST = 16 * KIB  # bytes that a request costs as much as: a small chunk counts for so many


class Asked(NamedTuple):
    """Whole keys that were asked for as one, and the ranges that have their bytes: none of those that do not exist."""

    keyspace: KeySpace
    keys: Sequence[str]
    spans: Sequence[Span]


class _Array:
    """One array, read in ``boxes`` of chunks, whose reads are followed, and what was fetched ahead of it."""

    def __init__(self, keyspace: KeySpace, path: str, boxes: Boxes) -> None:
        self.keyspace, self.path, self.boxes = keyspace, path, boxes
        self.policy = ReadAhead(boxes.size)
        self.chunk = 0  # bytes of a box, roughly
        self.url = ""  # of the last one
        self.issued: dict[int, Sequence[Span] | None] = {}  # by box; None: it is being looked up

    @property
    def fetched(self) -> list[Span]:
        """All ranges that were fetched ahead, or are being fetched."""
        return [span for spans in self.issued.values() for span in spans or ()]


class Ahead:
    """What is fetched before it is asked for, on one event loop.

    ``most`` bounds guesses, in bytes (0: none); ranges that ``immediate`` reads are never fetched ahead.
    """

    def __init__(self, lookups: Lookups, most: int, immediate: Immediate) -> None:
        self._lookups = lookups
        self._fetcher = lookups.fetcher
        self._most = most
        self._immediate = immediate
        self._arrays: dict[tuple[int, str], _Array] = {}
        self._expected: Counter[str] = Counter()  # keys that the reader said would be read, and how often
        self._feeding: set[asyncio.Task[None]] = set()  # what fetches announced keys
        self._announced = 0  # so many times
        self._lookups_done: Counter[int] = Counter()  # that needed reads, by key space
        self._watch: asyncio.TimerHandle | None = None

    async def _find(self, keyspace: KeySpace, keys: Sequence[str]) -> list[Sequence[Span]]:
        """Return the ranges that have each of ``keys``; none where there is nothing to fetch.

        Whoever reads a key meets its error.
        """
        found: list[Sequence[Span]] = []
        for key, entry in zip(keys, await self._lookups.find_all(keyspace, keys), strict=True):
            spans = () if entry is None or isinstance(entry, Exception) else entry.spans
            found.append(spans if all(span.size and not self._immediate.reaches(span) for span in spans) else ())
            if found[-1] and not isinstance(entry, Exception | None):
                self._immediate.foresee(keyspace, key, entry)
        return found

    @contextlib.asynccontextmanager
    async def full_shards(self, keyspace: KeySpace, keys: Sequence[str]) -> AsyncGenerator[None, None]:
        """Meanwhile fetch the shards that ``keys``, which are read, nearly fill, together with their indexes.

        Those that share a target cost fewer requests if it is known first where everything lies.
        """
        begun: list[Block] = []
        # What is on disk would be fetched again: which ranges are there is known after the look-up.
        if len(keys) >= MANY and not self._fetcher.has_disk:
            (shards,) = await self._lookups.run_all([keyspace.full_shards(keys)])
            if not isinstance(shards, Exception):  # whoever reads the key meets the error again
                shared = Counter(span.url for span in shards)
                begun = self._fetcher.begin(
                    span for span in shards if shared[span.url] == 1 and not self._immediate.reaches(span)
                )
        try:
            yield
        finally:
            self._fetcher.release(begun)

    # ------------------------------------------------------------------ guesses

    def open_parts(self, keyspace: KeySpace, keys: Sequence[str], found: Sequence[Entry | Exception | None]) -> None:
        """Open parts of ``keyspace`` that may be read next: looking ``keys`` up opened theirs, and was not free.

        The first look-ups open one part, the second ones two more, the third ones four, and so on: what reads at random
        reads most parts soon, and waits for few.
        """
        spans = (span for entry in found if isinstance(entry, Span | Packed) for span in entry.spans)
        if all(self._immediate.reaches(span) and not self._fetcher.is_on_disk(span) for span in spans):
            return
        token = id(keyspace)
        self._lookups_done[token] += 1
        count = 1 << min(self._lookups_done[token] - 1, MOST_PARTS)
        others = list(islice(keyspace.keys_of_other_parts(keys[0]), count)) if count > 1 and self._most else []
        if others:
            self._lookups.start(self._find(keyspace, others))

    def note_selection(self, keyspace: KeySpace, keys: Sequence[str], spans: Sequence[Span]) -> None:
        """Take note of a selection of several chunks, such as a task of dask reads."""
        is_large = len(keys) > BOX or sum(span.size or 0 for span in spans) > self._most // 4
        if not is_large and self._expected.keys().isdisjoint(keys) and not all(map(self._immediate.reaches, spans)):
            self.note([Asked(keyspace, keys, spans)])

    def note(self, asked: Iterable[Asked]) -> None:
        """Take note of what is read, in order, and fetch what will probably be read next."""
        if not self._most:
            return
        read: dict[_Array, list[int]] = {}
        late: set[_Array] = set()
        for keyspace, keys, spans in asked:
            places = [place(keyspace.grids, key) for key in keys]
            numbers = [at.number for at in places if at is not None]
            if len(numbers) < len(keys) or places[0] is None:
                continue
            array = self._array(keyspace, places[0].array, numbers)
            number = None if array is None else array.boxes.number_of(numbers)
            if array is None or number is None:
                continue
            read.setdefault(array, []).append(number)
            ahead = array.issued.pop(number, None)
            if any(map(self._fetcher.awaits, ahead or ())):
                late.add(array)
            sizes = [span.size or 0 for span in spans]
            if sizes and all(sizes):
                size = sum(sizes)
                array.url = spans[0].url
                array.chunk = size if not array.chunk else (3 * array.chunk + size) // 4
        for array, numbers in read.items():
            if array.chunk:  # of no known size, nothing can be fetched ahead
                self._follow(array, numbers, late=array in late)

    def give_up(self) -> None:
        """Stop all guesses under way: the reader has stopped."""
        for array in self._arrays.values():
            array.policy.forget()
            self._fetcher.drop(array.fetched, stop=True)
            array.issued.clear()

    def _array(self, keyspace: KeySpace, path: str, numbers: Sequence[int]) -> _Array | None:
        """Return the array, read in boxes of which one has the chunks ``numbers``; None if these fill no such box."""
        token, grid = (id(keyspace), path), keyspace.grids[path]
        array = self._arrays.get(token)
        # Its chunks are others once it is known to be sharded, or has grown.
        if array is not None and array.boxes.grid == grid and array.boxes.number_of(numbers) is not None:
            return array
        boxes = Boxes.around(grid, numbers)
        if boxes is None:
            return None
        if array is not None or len(self._arrays) >= ARRAYS:
            left = self._arrays.pop(token if array is not None else next(iter(self._arrays)))
            self._fetcher.drop(left.fetched)
        array = self._arrays[token] = _Array(keyspace, path, boxes)
        return array

    def _follow(self, array: _Array, numbers: list[int], *, late: bool) -> None:
        latency = self._fetcher.requests.latency(array.url)
        window = max(MIB, int((LATENCY if latency is None else latency) * BANDWIDTH))
        advice = array.policy.observe(numbers, max(array.chunk, REQUEST), window, self._most, late=late)
        if advice.drop:
            wrong = [array.issued.pop(number, None) or () for number in advice.drop]
            self._fetcher.drop(span for spans in wrong for span in spans)
        if not advice.fetch:
            return
        array.issued.update(dict.fromkeys(advice.fetch))
        self._lookups.start(self._guess(array, advice.fetch))

    async def _guess(self, array: _Array, numbers: Sequence[int]) -> None:
        """Fetch the boxes ``numbers``."""
        chunks = [(number, chunk) for number in numbers for chunk in array.boxes.chunks(number)]
        keys = [join(array.path, array.boxes.grid.tail(chunk)) for _, chunk in chunks]
        async with self.full_shards(array.keyspace, keys):
            by_box: dict[int, list[Span]] = {number: [] for number in numbers}
            for (number, _), spans_of_chunk in zip(chunks, await self._find(array.keyspace, keys), strict=True):
                by_box[number] += spans_of_chunk
            room = self._most
            spans: list[Span] = []
            for number, found in by_box.items():
                if array.issued.get(number, ...) is not None:
                    continue  # it has been read meanwhile, or is not expected any more
                size = sum(span.size or 0 for span in found)
                if not found or room < size:
                    del array.issued[number]
                    continue
                room -= size
                array.issued[number] = found
                spans += found
            self._fetcher.read((), spans)
        self._watch_unread()

    # ------------------------------------------------------------------ what the reader says

    def was_announced(self, key: str) -> bool:
        """Return whether ``key``, which is read now, was announced; one announcement of it is used up."""
        if key not in self._expected:
            return False
        self._expected[key] -= 1
        if not self._expected[key]:
            del self._expected[key]
        return True

    async def announce(
        self, keyspace: KeySpace, keys: Sequence[str], *, wait: bool, on_progress: Callable[[int], object]
    ) -> None:
        """Fetch ``keys``, which will be read, in waves within the budget.

        ``wait`` until nothing more of it can arrive before some of it is read; cancelled meanwhile, take it back.
        ``on_progress(n)`` is called as n requests more are answered.
        """
        self._expected.update(keys)
        spans: list[Span] = []
        feeding = self._lookups.start(self._feed(keyspace, keys, spans))
        self._feeding.add(feeding)
        feeding.add_done_callback(self._feeding.discard)
        self._announced += 1
        self._watch_unread()
        requests = self._fetcher.requests
        try:
            while wait and (requests.active or not (feeding.done() or requests.queued)):
                before = self._fetcher.progress
                await requests.change()
                on_progress(self._fetcher.progress - before)
        except asyncio.CancelledError:
            feeding.cancel()
            self._fetcher.drop(spans, stop=True)
            for key in keys:
                self.was_announced(key)
            raise

    async def _feed(self, keyspace: KeySpace, keys: Sequence[str], spans: list[Span]) -> None:
        """Fetch ``keys`` in waves, as far as they were not read meanwhile; note where they lie in ``spans``."""
        requests = self._fetcher.requests
        try:
            for first in range(0, len(keys), WAVE):
                some = [key for key in keys[first : first + WAVE] if key in self._expected]
                async with self.full_shards(keyspace, some):
                    wave: dict[str, Sequence[Span]] = {}
                    for key, found in zip(some, await self._find(keyspace, some), strict=True):
                        if not found:
                            self.was_announced(key)
                        elif key in self._expected:
                            wave[key] = found
                    fetched = [span for found in wave.values() for span in found]
                    spans += fetched
                    self._fetcher.read((), fetched)
                while requests.queued and first + WAVE < len(keys):
                    await requests.change()
        finally:
            requests.changed()

    # ------------------------------------------------------------------ what nobody reads

    @property
    def _progress(self) -> int:
        return self._announced + self._fetcher.progress

    def _watch_unread(self) -> None:
        """Begin to watch whether what was fetched ahead is still being read: see `drop_unread`."""
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(UNREAD_SECONDS, _drop_unread, weakref.ref(self), self._progress)

    def drop_unread(self, progress: int) -> None:
        """Give the memory of all announcements and guesses back, if nothing was read since ``progress`` was noted."""
        self._watch = None
        if progress != self._progress:
            if self._expected or self._fetcher.has_unread:
                self._watch_unread()
            return
        for task in self._feeding:
            task.cancel()
        self._expected.clear()
        self.give_up()
        self._fetcher.drop_unread()


def _drop_unread(ahead_ref: weakref.ref[Ahead], progress: int) -> None:
    ahead = ahead_ref()
    if ahead is not None:
        ahead.drop_unread(progress)

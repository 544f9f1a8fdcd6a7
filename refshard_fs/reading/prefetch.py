"""Fetch data ahead of reads: data that `ReadAhead` predicts, and data that the user announces by `fs.prefetch`.

In both cases the `Fetcher` keeps the bytes, within its budget, until they are read, or until reading stops.
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
from refshard_fs.core.keyspace import KeySpace, find_chunk
from refshard_fs.core.model import Entry, Packed, Span
from refshard_fs.reading.boxes import Boxes
from refshard_fs.reading.dispatch import Block
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.lookups import Lookups
from refshard_fs.reading.plan import KIB, MIB
from refshard_fs.reading.readahead import ReadAhead

ARRAYS = 256  # the most arrays whose reads are followed at a time
WAVE = 4096  # keys that are looked up together
BOX = 256  # the most chunks of a selection from which reads are predicted: larger ones say little about the next read
MOST_PARTS = 5  # at most 2 ** 5 parts are opened ahead at a time
MANY = 16  # keys of a read: fewer never count as nearly all chunks of a shard, and predict no further reads
UNREAD_SECONDS = 60.0  # after this time without arrivals, announcements and reads, memory is given back
# Bytes a second of a machine's network: the first window of read-ahead has the bytes of one round trip.
BANDWIDTH = 250e6
LATENCY = 0.02  # seconds of a round trip, until one has been measured
# Bytes: handling a range takes as much CPU time as receiving these, so that smaller chunks count as this many.
LEAST_CHUNK = 16 * KIB
LEAST_OBJECT = 64 * KIB  # bytes: the same for chunks that are whole objects, each of which takes a request


class KeysRead(NamedTuple):
    """Keys that were read whole and together, and the ranges of the keys that exist."""

    keyspace: KeySpace
    keys: Sequence[str]
    spans: Sequence[Span]


class _Array:
    """An array whose reads are followed, in ``boxes`` of chunks, and its ranges that were fetched ahead."""

    def __init__(self, keyspace: KeySpace, path: str, boxes: Boxes) -> None:
        self.keyspace, self.path, self.boxes = keyspace, path, boxes
        self.policy = ReadAhead(*boxes.counts)
        self.chunk = 0  # the approximate size of a box in bytes
        self.url = ""  # the target of the last box
        self.objects: Sequence[Span] = ()  # the whole objects of the last box: their answers tell their sizes
        self.issued: dict[int, Sequence[Span] | None] = {}  # ranges fetched ahead, by box; None during the look-up

    @property
    def ranges_ahead(self) -> list[Span]:
        """All ranges that were fetched ahead, or are being fetched."""
        return [span for spans in self.issued.values() for span in spans or ()]


class Prefetcher:
    """Fetch data ahead of reads on one event loop.

    At most ``most`` bytes of predicted data are held; 0 turns predictions off. Ranges that ``immediate`` can read are
    never fetched ahead.
    """

    def __init__(self, lookups: Lookups, most: int, immediate: Immediate) -> None:
        self._lookups = lookups
        self._fetcher = lookups.fetcher
        self._most = most
        self._immediate = immediate
        self._arrays: dict[tuple[int, str], _Array] = {}
        self._expected: Counter[str] = Counter()  # announced keys, and the number of expected reads
        self._feeding: set[asyncio.Task[None]] = set()  # tasks that fetch announced keys
        self._announced = 0  # the number of announcements
        self._lookups_done: Counter[int] = Counter()  # the number of look-ups with reads, by key space
        self._watch: asyncio.TimerHandle | None = None

    async def _find(self, keyspace: KeySpace, keys: Sequence[str]) -> list[Sequence[Span]]:
        """Return the ranges of each of ``keys``; no ranges if nothing has to be fetched.

        Errors are ignored: reading the key raises them again.
        """
        found: list[Sequence[Span]] = []
        for key, entry in zip(keys, await self._lookups.find_all(keyspace, keys), strict=True):
            spans = () if entry is None or isinstance(entry, Exception) else entry.spans
            found.append(spans if all(map(self._can_wait, spans)) else ())
            if found[-1] and not isinstance(entry, Exception | None):
                self._immediate.remember_place(keyspace, key, entry)
        return found

    def _can_wait(self, span: Span) -> bool:
        """Return whether to fetch ``span`` ahead: a remote range, or a whole object if the source is read-only."""
        is_whole = span.stop is None and not span.start and not self._immediate.is_writable
        return bool(span.size or is_whole) and not self._immediate.reaches(span)

    @contextlib.asynccontextmanager
    async def fetch_full_shards(self, keyspace: KeySpace, keys: Sequence[str]) -> AsyncGenerator[None, None]:
        """In the ``with`` block, fetch whole shards, with their indexes, if ``keys`` are nearly all of their chunks.

        Shards in the same target are not fetched whole: merged ranges of their chunks take fewer requests.
        """
        begun: list[Block] = []
        # Not with a cache on disk: only the look-up finds out which ranges are in it.
        if len(keys) >= MANY and not self._fetcher.has_disk:
            (shards,) = await self._lookups.run_all([keyspace.find_full_shards(keys)])
            if not isinstance(shards, Exception):  # reading the key raises the error again
                shared = Counter(span.url for span in shards)
                begun = self._fetcher.begin(
                    span for span in shards if shared[span.url] == 1 and not self._immediate.reaches(span)
                )
        try:
            yield
        finally:
            self._fetcher.release(begun)

    def begin_look_up(self, keyspace: KeySpace, keys: Sequence[str]) -> None:
        """Open further parts of ``keyspace`` during the look-up of ``keys``, if an earlier look-up led to reads.

        The second look-up opens two further parts, the third look-up four, and so on: random reads soon need most
        parts, and then wait for few of them.
        """
        if self._lookups_done[id(keyspace)]:
            self._open_parts(keyspace, keys, self._lookups_done[id(keyspace)])

    def end_look_up(self, keyspace: KeySpace, keys: Sequence[str], found: Sequence[Entry | Exception | None]) -> None:
        """Note the look-up of ``keys``; after the first one, open further parts if more reads will probably follow.

        More reads probably follow the read of many keys. If the cache on disk has one of the chunks, it probably has
        chunks of all parts, which are read as soon as the parts are open.
        """
        spans = [span for entry in found if isinstance(entry, Span | Packed) for span in entry.spans]
        is_on_disk = any(map(self._fetcher.is_on_disk, spans))
        if not is_on_disk and all(map(self._immediate.reaches, spans)):
            return
        self._lookups_done[id(keyspace)] += 1
        if is_on_disk:
            self._open_parts(keyspace, keys, MOST_PARTS)
        elif self._lookups_done[id(keyspace)] == 1 and len(keys) >= MANY:
            self._open_parts(keyspace, keys, 1)

    def _open_parts(self, keyspace: KeySpace, keys: Sequence[str], level: int) -> None:
        """Open up to ``2 ** level`` parts of ``keyspace``, other than the part that has the first of ``keys``."""
        if self._most:
            others = (key for key in keyspace.list_keys_of_other_parts(keys[0]) if key != keys[0])
            if keys_of_parts := list(islice(others, 1 << min(level, MOST_PARTS))):
                self._lookups.start(self._find(keyspace, keys_of_parts))

    def note_selection(self, keyspace: KeySpace, keys: Sequence[str], spans: Sequence[Span]) -> None:
        """Note the read of a selection of several chunks, as by a task of dask."""
        is_large = len(keys) > BOX or sum(span.size or 0 for span in spans) > self._most // 4
        if not is_large and self._expected.keys().isdisjoint(keys) and not all(map(self._immediate.reaches, spans)):
            self.note([KeysRead(keyspace, keys, spans)])

    def note(self, reads: Iterable[KeysRead]) -> None:
        """Note reads, in order, and fetch the chunks that will probably be read next."""
        if not self._most:
            return
        read: dict[_Array, list[int]] = {}
        late: set[_Array] = set()
        for keyspace, keys, spans in reads:
            places = [find_chunk(keyspace.grids, key) for key in keys]
            numbers = [at.number for at in places if at is not None]
            if len(numbers) < len(keys) or places[0] is None:
                continue
            array = self._find_array(keyspace, places[0].array, numbers)
            number = None if array is None else array.boxes.number_of(numbers)
            if array is None or number is None:
                continue
            read.setdefault(array, []).append(number)
            ahead = array.issued.pop(number, None)
            if any(map(self._fetcher.is_under_way, ahead or ())):
                late.add(array)
            sizes = [span.size or 0 for span in spans]
            if spans and spans[0].stop is None:
                sizes = [self._find_size(span) for span in array.objects]
                array.objects = spans
            if sizes and all(sizes):
                size = sum(sizes)
                array.url = spans[0].url
                array.chunk = size if not array.chunk else (3 * array.chunk + size) // 4
        for array, numbers in read.items():
            if array.chunk:  # 0 while sizes are unknown: then nothing is fetched ahead
                self._follow(array, numbers, late=array in late)

    def _find_size(self, span: Span) -> int:
        """Return the size of a whole object, or 0 if it has not been read."""
        facts = self._fetcher.requests.pool.versions.find_known_facts(span.url)
        return (facts.size or 0) if facts is not None else 0

    def give_up(self) -> None:
        """Drop all predicted data, since the reader has stopped."""
        for array in self._arrays.values():
            array.policy.forget()
            self._fetcher.drop(array.ranges_ahead, stop=True)
            array.issued.clear()

    def _find_array(self, keyspace: KeySpace, path: str, numbers: Sequence[int]) -> _Array | None:
        """Return the array at ``path``, in boxes like the box of the chunks ``numbers``; None if they form no box."""
        token, grid = (id(keyspace), path), keyspace.grids[path]
        array = self._arrays.get(token)
        # The grid changes when the array turns out to be sharded, or grows.
        if array is not None and array.boxes.grid == grid and array.boxes.number_of(numbers) is not None:
            return array
        boxes = Boxes.divide(grid, numbers)
        if boxes is None:
            return None
        if array is not None or len(self._arrays) >= ARRAYS:
            dropped = self._arrays.pop(token if array is not None else next(iter(self._arrays)))
            self._fetcher.drop(dropped.ranges_ahead)
        array = self._arrays[token] = _Array(keyspace, path, boxes)
        return array

    def _follow(self, array: _Array, numbers: list[int], *, late: bool) -> None:
        latency = self._fetcher.requests.find_latency(array.url)
        window = max(MIB, int((LATENCY if latency is None else latency) * BANDWIDTH))
        chunk = max(array.chunk, LEAST_OBJECT if array.objects else LEAST_CHUNK)
        advice = array.policy.observe(numbers, chunk, window, self._most, late=late)
        if advice.drop:
            wrong = [array.issued.pop(number, None) or () for number in advice.drop]
            self._fetcher.drop(span for spans in wrong for span in spans)
        if not advice.fetch:
            return
        array.issued.update(dict.fromkeys(advice.fetch))
        self._lookups.start(self._fetch_boxes(array, advice.fetch))

    async def _fetch_boxes(self, array: _Array, numbers: Sequence[int]) -> None:
        """Fetch the boxes ``numbers`` of ``array`` ahead, as far as they fit into the limit."""
        chunks = [(number, chunk) for number in numbers for chunk in array.boxes.chunks(number)]
        keys = [join(array.path, array.boxes.grid.tail(chunk)) for _, chunk in chunks]
        async with self.fetch_full_shards(array.keyspace, keys):
            by_box: dict[int, list[Span]] = {number: [] for number in numbers}
            for (number, _), spans_of_chunk in zip(chunks, await self._find(array.keyspace, keys), strict=True):
                by_box[number] += spans_of_chunk
            room = self._most
            spans: list[Span] = []
            for number, found in by_box.items():
                if array.issued.get(number, ...) is not None:
                    continue  # it has been read in the meantime, or is no longer expected
                size = sum(span.size or array.chunk for span in found)
                if not found or room < size:
                    del array.issued[number]
                    continue
                room -= size
                array.issued[number] = found
                spans += found
            self._fetcher.read((), spans)
        self._watch_unread()

    def was_announced(self, key: str) -> bool:
        """Return whether ``key``, which is being read, was announced; remove one announcement of it."""
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

        With ``wait``, return when all that fits into the budget has arrived; if cancelled, drop the announcement.
        Then, ``on_progress(n)`` is called when n more requests, or reads of bytes fetched ahead, are answered.
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
            while wait and (requests.active or not (feeding.done() or requests.has_queued)):
                before = self._fetcher.progress
                await requests.wait_for_change()
                on_progress(self._fetcher.progress - before)
        except asyncio.CancelledError:
            feeding.cancel()
            self._fetcher.drop(spans, stop=True)
            for key in keys:
                self.was_announced(key)
            raise

    async def _feed(self, keyspace: KeySpace, keys: Sequence[str], spans: list[Span]) -> None:
        """Fetch the ``keys`` that have not been read yet, in waves; append their ranges to ``spans``."""
        requests = self._fetcher.requests
        try:
            for first in range(0, len(keys), WAVE):
                unread = [key for key in keys[first : first + WAVE] if key in self._expected]
                async with self.fetch_full_shards(keyspace, unread):
                    wave: dict[str, Sequence[Span]] = {}
                    for key, found in zip(unread, await self._find(keyspace, unread), strict=True):
                        if not found:
                            self.was_announced(key)
                        elif key in self._expected:
                            wave[key] = found
                    fetched = [span for found in wave.values() for span in found]
                    spans += fetched
                    self._fetcher.read((), fetched)
                while requests.has_queued and first + WAVE < len(keys):
                    await requests.wait_for_change()
        finally:
            requests.notify()

    @property
    def _progress(self) -> int:
        return self._announced + self._fetcher.progress

    def _watch_unread(self) -> None:
        """Start the timer after which `drop_unread` drops data that nobody reads any more."""
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(UNREAD_SECONDS, _drop_unread, weakref.ref(self), self._progress)

    def drop_unread(self, progress: int) -> None:
        """Drop all announced and predicted data, if there was no progress since ``progress`` was noted."""
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


def _drop_unread(ahead_ref: weakref.ref[Prefetcher], progress: int) -> None:
    ahead = ahead_ref()
    if ahead is not None:
        ahead.drop_unread(progress)

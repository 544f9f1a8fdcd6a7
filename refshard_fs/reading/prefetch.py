"""Fetching ahead: what the read-ahead policy guesses from what is read, and what the reader says beforehand.

Either way the bytes are held by the `Fetcher`, within its budget, until they are read.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import CoroutineType
from typing import Any, NamedTuple

import msgspec

from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, place
from refshard_fs.core.model import Entry, Span
from refshard_fs.reading.blocks import Block
from refshard_fs.reading.lookups import Finding, Lookups
from refshard_fs.reading.readahead import ReadAhead

__all__ = ["Ahead", "Chunk", "Queued"]

ARRAYS = 256  # followed at once
WAVE = 4096  # keys that are looked up together
PLACES = 4 * WAVE  # that are remembered
UNREAD = 64 << 10  # bytes that a chunk is taken to have, where none has been found yet
UNREAD_SECONDS = 60.0  # in which nothing arrives, is announced or read, after which what is held gives its memory back
MANY = 16  # keys from which on they may be nearly all of a shard


class Chunk(msgspec.Struct, frozen=True):
    """A whole key that was asked for, where its bytes lie (None: it does not exist), and whether to guess from it."""

    keyspace: KeySpace
    key: str
    span: Span | None
    guess: bool


class Announced(NamedTuple):
    """Keys that will be read, their ranges as far as they are known, and the task that fetches them."""

    keys: Sequence[str]
    spans: list[Span]
    feeding: asyncio.Task[None]


class _Array:
    """One array whose reads are followed, and what was fetched ahead of it."""

    def __init__(self, keyspace: KeySpace, path: str, grid: ChunkGrid) -> None:
        self.keyspace, self.path, self.grid = keyspace, path, grid
        self._prefix = f"{path}/" if path else ""
        self.policy = ReadAhead(grid)
        self.chunk = 0  # bytes of one, roughly
        self.url = ""  # of the last one
        self.issued: dict[int, Span | None] = {}  # None: it is being looked up
        self.coming: set[int] = set()  # chunks that were noted when they were asked for, and are being looked up

    def number(self, chunk: Chunk) -> int | None:
        """Return the number of ``chunk``; None if it is none of this array's."""
        if chunk.keyspace is not self.keyspace or not chunk.key.startswith(self._prefix):
            return None
        return self.grid.number(chunk.key[len(self._prefix) :])

    def keys(self, numbers: Iterable[int]) -> list[str]:
        return [join(self.path, self.grid.tail(number)) for number in numbers]


class Ahead:
    """What is fetched before it is asked for, on one event loop.

    ``most`` bounds guesses, in bytes (0: none); what is ``near`` is read at once, and never fetched ahead; ``queued``
    returns how many reads will follow those that are noted, if that is known.
    """

    def __init__(
        self,
        lookups: Lookups,
        most: int,
        near: Callable[[str], bool],
        queued: Callable[[], int | None],
    ) -> None:
        self._lookups = lookups
        self._fetcher = lookups.fetcher
        self._most = most
        self._near = near
        self._queued = queued
        self._arrays: dict[tuple[int, str], _Array] = {}
        self._told: dict[str, int] = {}  # keys that the reader said would be read, and how often
        self._places: dict[str, Span] = {}  # where keys lie that have been looked up, and will be read,
        self._of: KeySpace | None = None  # of this one
        self._feeding: set[asyncio.Task[None]] = set()  # what fetches announced keys
        self._announced = 0  # so many times
        self._watch: asyncio.TimerHandle | None = None

    def place(self, keyspace: KeySpace, key: str) -> Span | None:
        """Return where ``key``, which is read now, lies; None if it has not been looked up beforehand."""
        return self._places.pop(key, None) if keyspace is self._of else None

    def _remember(self, keyspace: KeySpace, places: Iterable[tuple[str, Span]]) -> None:
        if keyspace is not self._of or len(self._places) > PLACES:
            self._places.clear()
            self._of = keyspace
        if not keyspace.may_change:
            self._places.update(places)

    # ------------------------------------------------------------------ guesses

    def note(self, chunks: Iterable[Chunk], *, found: bool = True) -> list[Span]:
        """Take note of what is read, in order; return the ranges to fetch along with it.

        What is not ``found`` yet is noted again when it is. What that takes for those that follow is read meanwhile.
        """
        by_array: dict[_Array, list[int]] = {}
        told = self._told
        array: _Array | None = None
        for chunk in chunks:
            if told and chunk.key in told:
                if found:
                    self._read(chunk.key)
                continue
            if not chunk.guess or not self._most:
                continue
            number = None if array is None else array.number(chunk)  # most are of the same array as the one before
            if array is None or number is None:
                at = place(chunk.keyspace.grids, chunk.key)
                if at is None:
                    continue
                array, number = self._array(chunk.keyspace, at.array), at.number
                by_array.setdefault(array, [])
            if number not in array.coming:
                by_array[array].append(number)
                if not found:
                    array.coming.add(number)
            elif found:
                array.coming.discard(number)
                array.issued.pop(number, None)
            span = chunk.span
            if span is not None and (size := span.size):
                array.url = span.url
                array.chunk = size if not array.chunk else (3 * array.chunk + size) // 4
        ahead: list[Span] = []
        for array, numbers in by_array.items():
            if numbers and (array.chunk or not found):  # of no known size, nothing can be fetched ahead
                ahead += self._follow(array, numbers, found=found)
        return ahead

    def _note_announced(self, keyspace: KeySpace, wave: dict[str, Span]) -> list[Span]:
        """Take note of what is announced; return what to fetch: that, and what may be announced next."""
        wanted = dict(wave)
        places = [(key, at) for key in wave if (at := place(keyspace.grids, key)) is not None]
        guessed: list[Span] = []
        for path in {at.array for _, at in places}:
            array = self._array(keyspace, path)
            keys = {at.number: key for key, at in places if at.array == path}
            array.url = wave[next(iter(keys.values()))].url
            array.chunk = sum(wave[key].size or 0 for key in keys.values()) // len(keys)
            held = {number for number in keys if number in array.issued}
            guessed += self._follow(array, list(keys), announced=True)
            for number in held:
                if self._fetcher.covers(wave[keys[number]]):
                    del wanted[keys[number]]  # the guess was right, and holds it
        return [*wanted.values(), *guessed]

    def give_up(self) -> None:
        """Stop all guesses under way: whoever was reading reads no more."""
        for array in self._arrays.values():
            array.policy.forget()
            self._fetcher.drop(filter(None, array.issued.values()), stop=True)
            array.issued.clear()
            array.coming.clear()

    def _array(self, keyspace: KeySpace, path: str) -> _Array:
        token, grid = (id(keyspace), path), keyspace.grids[path]
        array = self._arrays.get(token)
        if array is None or array.grid != grid:  # its chunks are others once it is known to be sharded, or has grown
            if array is not None or len(self._arrays) >= ARRAYS:
                left = self._arrays.pop(token if array is not None else next(iter(self._arrays)))
                self._fetcher.drop(filter(None, left.issued.values()))
            array = self._arrays[token] = _Array(keyspace, path, grid)
        return array

    def _follow(self, array: _Array, numbers: list[int], *, found: bool = True, announced: bool = False) -> list[Span]:
        growth = self._growth(array.url) if array.chunk else 0.0
        chunk = array.chunk or UNREAD
        if announced:
            advice = array.policy.observe(numbers, chunk, min(growth, 2.0), self._most, 3)
        else:
            advice = array.policy.observe(numbers, chunk, growth, self._most, 1, self._queued)
        issued = array.issued
        for number in advice.hits:
            if number not in array.coming:
                issued.pop(number, None)
        if advice.drop:
            self._fetcher.drop(filter(None, [issued.pop(number, None) for number in advice.drop]))
        if not advice.fetch:
            return []
        keys = array.keys(advice.fetch)
        if array.keyspace.in_memory:
            entries = [_found(array.keyspace, key) for key in keys]
            return self._expect(array, zip(advice.fetch, keys, entries, strict=True))
        finding = self._lookups.finding(array.keyspace, keys)
        if finding.late:
            issued.update((advice.fetch[i], None) for i in finding.late)
            asked = [] if found else array.keys(numbers)
            asked += [keys[i] for i in finding.late]
            self._lookups.start(self._follow_slowly(array, advice.fetch, keys, asked, finding))
        return self._expect(array, [(advice.fetch[i], keys[i], entry) for i, entry in finding.found])

    async def _follow_slowly(
        self, array: _Array, numbers: Sequence[int], keys: Sequence[str], asked: Sequence[str], finding: Finding
    ) -> None:
        begun = await self.begin(array.keyspace, asked)
        try:
            found = await finding.rest()
            # The others have been read meanwhile, or are not expected any more.
            left = [(numbers[i], keys[i], entry) for i, entry in found if array.issued.pop(numbers[i], ...) is None]
            self._fetcher.read((), self._expect(array, left))
        finally:
            self._fetcher.release(begun)

    def _expect(self, array: _Array, found: Iterable[tuple[int, str, Any]]) -> list[Span]:
        """Take note of chunks that are fetched ahead; return where they lie."""
        room = self._most
        places: list[tuple[str, Span]] = []
        for number, key, entry in found:  # an error is told to whoever reads the key
            if isinstance(entry, Span) and entry.size and room >= entry.size and not self._near(entry.url):
                room -= entry.size
                array.issued[number] = entry
                places.append((key, entry))
        self._remember(array.keyspace, places)
        if places:
            self._watch_unread()
        return [span for _, span in places]

    def _growth(self, url: str) -> float:
        """Return how many chunks to fetch ahead for each that was read: many only where waiting is long."""
        latency = self._fetcher.requests.latency(url)
        if latency is None:
            return 4.0
        return 1.5 if latency < 0.002 else 3.0 if latency < 0.008 else 5.0

    # ------------------------------------------------------------------ what nobody reads

    def _watch_unread(self) -> None:
        """See that what is held gives its memory back where nobody goes on reading."""
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(UNREAD_SECONDS, _drop_unread, weakref.ref(self), self._progress)

    @property
    def _progress(self) -> int:
        return self._announced + self._fetcher.progress

    def drop_unread(self, progress: int) -> None:
        """Take all announcements and guesses back, unless there was more ``progress`` meanwhile."""
        self._watch = None
        if progress != self._progress:
            if self._told or self._fetcher.holds:
                self._watch_unread()
            return
        for task in self._feeding:
            task.cancel()
        self._told.clear()
        self._places.clear()
        self.give_up()
        self._fetcher.drop_unread()

    # ------------------------------------------------------------------ what the reader says

    def expects(self, key: str) -> bool:
        """Whether ``key`` was said to be read, and has not been."""
        return key in self._told

    def tell(self, keyspace: KeySpace, keys: Sequence[str]) -> Announced:
        """Fetch ``keys``, which will be read, in waves within the budget."""
        for key in keys:
            self._told[key] = self._told.get(key, 0) + 1
        spans: list[Span] = []
        feeding = self._lookups.start(self._feed(keyspace, keys, spans))
        self._feeding.add(feeding)
        feeding.add_done_callback(self._feeding.discard)
        self._announced += 1
        self._watch_unread()
        return Announced(keys, spans, feeding)

    async def arrived(self, announced: Announced) -> None:
        """Wait until nothing more of what was told can arrive before some of it is read; cancelled, take it back."""
        keys, spans, feeding = announced
        try:
            while not (self._fetcher.requests.active == 0 and (feeding.done() or self._fetcher.requests.queued)):
                await self._fetcher.requests.change()
        except asyncio.CancelledError:
            feeding.cancel()
            self._fetcher.drop(spans, stop=True)
            for key in keys:
                self._read(key)
            raise

    async def begin(self, keyspace: KeySpace, keys: Sequence[str]) -> list[Block]:
        """Fetch the shards that ``keys``, which are read, nearly fill, together with their indexes.

        Those that share a target cost fewer requests if it is known first where everything lies.
        """
        if len(keys) < MANY:
            return []
        (found,) = await self._lookups.run_all([keyspace.full_shards(keys)])
        if not isinstance(found, list):
            return []  # an error is told to whoever reads the key
        shared = Counter(span.url for span in found)
        return self._fetcher.begin(span for span in found if shared[span.url] == 1 and not self._near(span.url))

    async def _feed(self, keyspace: KeySpace, keys: Sequence[str], spans: list[Span]) -> None:
        begun: list[Block] = []
        try:
            for first in range(0, len(keys), WAVE):
                some = [key for key in keys[first : first + WAVE] if key in self._told]
                begun = await self.begin(keyspace, some)
                entries = await self._lookups.find_all(keyspace, some)
                wave: dict[str, Span] = {}
                for key, entry in zip(some, entries, strict=True):
                    if not (isinstance(entry, Span) and entry.size) or self._near(entry.url):
                        self._read(key)  # nothing to hold
                    elif key in self._told:
                        wave[key] = entry
                spans += wave.values()
                self._remember(keyspace, wave.items())
                small = len(keys) <= WAVE and self._most > 0
                self._fetcher.read((), self._note_announced(keyspace, wave) if small else wave.values())
                self._fetcher.release(begun)
                while self._fetcher.requests.queued and first + WAVE < len(keys):
                    await self._fetcher.requests.change()
        finally:
            self._fetcher.release(begun)
            self._fetcher.requests.changed()

    def _read(self, key: str) -> None:
        count = self._told.get(key, 0)
        if count > 1:
            self._told[key] = count - 1
        else:
            self._told.pop(key, None)


def _drop_unread(of: weakref.ref[Ahead], progress: int) -> None:
    ahead = of()
    if ahead is not None:
        ahead.drop_unread(progress)


def _found(keyspace: KeySpace, key: str) -> Entry | None:
    try:
        return keyspace.find(key)
    except Exception:  # noqa: BLE001  # whoever reads the key is told what is wrong
        return None


# ----------------------------------------------------------------------------------------------------
# How many reads wait behind those that were asked for, as the tasks of the event loop tell. No I/O here.
#
# Who reads many chunks makes a task of each, and lets some of them at a time past a semaphore, as zarr does: the tasks
# that wait there, and run the same coroutine as those that have come through, are the reads that follow.


_ENTERING = (asyncio.Semaphore.__aenter__.__code__, asyncio.Semaphore.acquire.__code__)
MANY_QUEUED = 1024  # tasks from which on they are not gone through for each that asks, where none waits:
SELDOM = 64  # but for one in so many times fewer


class Queued:
    """The reads that follow on the running loop; to be used from that loop only."""

    def __init__(self) -> None:
        self._asking: weakref.ref[asyncio.Task[Any]] | None = None
        self._semaphores: list[weakref.ref[asyncio.Semaphore]] = []  # that reads were seen to wait for
        self._left = 0  # of those reads, as many as have not come
        self._together = 0  # reads that came in this tick, none of which was known to follow
        self._passed = 0  # of the known ones, as many as may have gone past the semaphore and not come yet
        self._begins = False  # a call of which nothing is known yet
        self._rest = 0  # tasks that ask before reads that wait are looked for again

    def asked(self) -> None:
        """Take note of the running task: it asks for what is read next."""
        task = asyncio.current_task()
        self._asking = None if task is None else weakref.ref(task)
        self._rest -= self._rest > 0
        self._together = 0

    def came(self) -> None:
        """Take note that a read was asked for."""
        if self._left:
            self._left -= 1
        else:
            self._begins = True
            self._together += 1

    def count(self) -> int | None:
        """Return how many reads wait behind those of one selection; None if that is not known.

        Of several selections that are read at once it is the mean.
        """
        # The semaphores know it at once: to go through all tasks takes longer than to read, where they are thousands.
        if self._left:
            return self._waiting()
        if not self._begins or self._rest:
            return 0
        task = None if self._asking is None else self._asking()
        code = None if task is None else _code(task.get_coro())
        if code is None:
            return None
        self._begins, self._passed = False, 1 + self._together
        tasks = asyncio.all_tasks()
        found = {id(s): s for task in tasks if (s := _awaited(task, code)) is not None}
        self._semaphores = [weakref.ref(semaphore) for semaphore in found.values()]
        if not found and len(tasks) > MANY_QUEUED:
            self._rest = len(tasks) // SELDOM
        self._left = sum(map(_waiters, self._semaphores))
        return self._waiting()

    def _waiting(self) -> int:
        self._semaphores = [ref for ref in self._semaphores if ref() is not None]
        found = list(map(_waiters, self._semaphores))
        selections = sum(count > 0 for count in found)
        # Fewer may come: what the references hold is not asked for. Who has passed a semaphore keeps it alive.
        self._left = min(self._left, sum(found) + self._passed) if found else 0
        return -(-self._left // max(selections, 1))


def _waiters(semaphore: weakref.ref[asyncio.Semaphore]) -> int:
    # It has no public name. If this one goes, nothing is known to follow, and only what earlier calls read is a sign.
    return len(getattr(semaphore(), "_waiters", None) or ())


def _code(coroutine: object) -> object:
    return coroutine.cr_code if isinstance(coroutine, CoroutineType) else None


def _awaited(task: asyncio.Task[Any], code: object) -> asyncio.Semaphore | None:
    """Return the semaphore that ``task`` waits for, if it runs ``code``.

    Tasks that have not begun are those of a reader's other work: its own have got as far as the semaphore.
    """
    coroutine = task.get_coro()
    if not isinstance(coroutine, CoroutineType) or coroutine.cr_code is not code:
        return None
    entering = coroutine.cr_await
    if not isinstance(entering, CoroutineType) or entering.cr_code not in _ENTERING or entering.cr_frame is None:
        return None
    found = entering.cr_frame.f_locals.get("self")
    return found if isinstance(found, asyncio.Semaphore) else None

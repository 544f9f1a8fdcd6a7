"""Read ranges of targets by few requests: ranges are merged and shared, and requests and memory are limited.

A `Fetcher` belongs to one event loop. Callers pass ranges that readers wait for, and ranges that will be read later. A
range is taken from blocks that are under way or kept; missing parts of it are requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from operator import attrgetter, itemgetter
from typing import Any, Final

from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Span
from refshard_fs.core.stats import Stats
from refshard_fs.reading import plan
from refshard_fs.reading.chunk_cache import ChunkCache, may_keep
from refshard_fs.reading.dispatch import OVER, QUEUED, Block, Dispatch, Reader
from refshard_fs.reading.file_ahead import MOST, SHARE, FileAhead
from refshard_fs.reading.loading import Answers
from refshard_fs.reading.memory import SharedBudget
from refshard_fs.security.policy import server_of
from refshard_fs.targets import Answer, Pool, Unfit, check
from refshard_fs.targets.failures import NOT_FOUND
from refshard_fs.targets.versioned import SMALL_FILE, Version, VersionedObject

FIRST = 8 * plan.MIB  # bytes at the start of an object that are fetched while look-ups find out what to read of it
SPARE = 16 * plan.MIB  # bytes of windows that may be unread in any case; after many rounds, more
SPARE_SECONDS = 60.0  # time for which bytes between metadata or chunks are kept: the file's arrays are often read soon
# A small source is fetched whole for look-ups, since more rounds follow. For its first chunks, it is fetched whole only
# if its missing bytes are at most twice the bytes of these chunks, plus IN_VAIN bytes (20 ms at 100 Mbit/s).
IN_VAIN: Final = 256 << 10
LARGE = 1 << 30  # bytes: for larger ranges, memory is allocated before the request, since there may not be enough
TURN = 32  # ranges that are read from the disk at a time, before their readers get them
# If so many parts of an index are read together, they are merged over gaps of up to REQUEST bytes: receiving these
# takes as much CPU time as another request. Chunks lie in the gaps, and are kept for a while.
MANY_APART: Final = 32
REQUEST: Final = 64 * plan.KIB
INTERLEAVED: Final = 128 * plan.KIB  # the same for ranges that are `Span.interleaved`: the next array is in the gaps
FILES = 4096  # files whose next bytes are predicted
LAST_RANGES: Final = 64  # ranges of a file that readers got last: they are not fetched again with the bytes around them
NEAREST = 4  # so many blocks before a range are searched for one that contains its start
# Seconds for which a whole object that was fetched ahead serves readers: nothing pins its version, as an index pins the
# version of a file, and it may be written meanwhile. A loop over an array reads its next chunks within a second.
FRESH = 10.0


class Fetcher:
    """Read ranges of targets on one event loop; use it only from this loop."""

    def __init__(
        self,
        pool: Pool,
        limits: plan.Limits,
        budget: SharedBudget,
        stats: Stats,
        kept: LRU[Span, bytes] | None = None,
        on_disk: ChunkCache | None = None,
        answers: Answers | None = None,
        mixed: LRU[Span, bytes] | None = None,
    ) -> None:
        self.limits = limits
        self.requests = Dispatch(pool, budget, stats, self)
        self._stats = stats
        self._kept = kept  # a cache of bytes by span
        self._mixed = mixed  # the same, of spans that are `Span.mixed`
        self._on_disk = on_disk
        self._answers = answers  # has bytes of the pieces of a cube that this process made
        self._recalls: dict[asyncio.Task[None], list[Reader]] = {}  # readers that wait for the disk
        self._asking: dict[tuple[str, tuple[str, ...]], asyncio.Task[None]] = {}  # requests for versions, by object
        self._known = BlockIndex()
        self._waiting: dict[asyncio.Future[bytes], Reader] = {}
        self._for_whole: dict[Version, list[Reader]] = {}  # readers that wait for the whole of a small object
        self._idle: dict[Block, None] = {}  # arrived blocks that are kept, oldest first
        self._windows: dict[Block, None] = {}  # parts of windows that were fetched whole, oldest first
        self._rounds = 0  # how often readers had to wait for chunks
        self.progress = 0  # the number of answered requests, plus the number of reads from blocks fetched ahead
        self._unversioned: set[str] = set()  # objects whose servers report no version
        self._questions = asyncio.Semaphore(budget.budget.requests)
        self.most_ahead = MOST  # the most bytes of a file that are fetched ahead of readers that go through the file
        self._files: LRU[Hashable, FileAhead] = LRU(FILES)
        self._last_ranges: LRU[Hashable, deque[tuple[int, int]]] = LRU(FILES)  # that readers got, by object

    def read(self, readers: Iterable[Reader], ahead: Iterable[Span] = ()) -> None:
        """Set the future of each reader; also fetch the spans ``ahead``, and keep them until they are read.

        Spans ahead are exact ranges, or whole objects.
        """
        readers = list(readers)
        fresh: list[tuple[Span, Reader | None]] = []
        recalled: list[Reader] = []
        in_ranges: set[Version] = set()  # small sources from which these readers need only a small part
        keys = 0
        for reader in readers:
            if reader.future.done():
                continue
            keys += reader.key is not None
            if (cache := self._find_cache(reader.span)) is not None and (data := cache.get(reader.span)) is not None:
                self._stats.add(cache_hits=1)
                reader.future.set_result(data)
            elif self._read_known_bytes(reader) or self._read_kept(reader, readers, in_ranges):
                continue
            elif self._may_be_on_disk(reader):
                recalled.append(reader)
            else:
                fresh += self._begin_reader(reader)
        self._stats.count("keys", keys)
        if recalled:
            self._begin_recall(recalled)
        for span in ahead:
            if self.is_on_disk(span) or (self._answers is not None and self._answers.has_bytes(span)):
                continue
            for start, stop, block in self._known.cover(span):
                if block is None and span.stop is not None:
                    fresh.append((_cut_span(span, start, stop), None))
                else:
                    (block or self._open(span, urgent=False)).expect(start, stop)
        self._fetch(fresh)
        self.requests.pump()

    def _find_cache(self, span: Span) -> LRU[Span, bytes] | None:
        """Return the cache of the bytes of ``span``; None if they are not kept."""
        if span.mixed and span.pin is not None and (span.pin.etag or span.pin.last_modified):
            return self._mixed
        return self._kept

    def _read_known_bytes(self, reader: Reader) -> bool:
        """Serve ``reader`` from the bytes that were read when the set was made, if these contain its bytes."""
        try:
            data = None if self._answers is None else self._answers.find_bytes(reader.span, self.requests.pool)
        except Exception as e:  # noqa: BLE001  # the reader gets any error
            reader.fail(e)
            return True
        if data is None:
            return False
        self._stats.add(cache_hits=1, bytes_wanted=len(data))
        reader.future.set_result(data)
        return True

    def _read_kept(self, reader: Reader, all_readers: Sequence[Reader], in_ranges: set[Version]) -> bool:
        """Serve ``reader`` from kept bytes of the source, or fetch a small source whole; return False to do neither.

        ``all_readers`` are the readers of the same call. If they need only a small part of the source, it is added to
        ``in_ranges``, and its ranges are fetched.
        """
        span = reader.span
        version = self.requests.pool.versions.find_kept(span)
        if version is None:
            return False
        rest = version.rest
        if version.holds(span):
            try:
                answer = version.answer(span.start, span.stop, span.pin)
                check(answer, span.start, span.stop, exact=span.exact)
            except Exception as e:  # noqa: BLE001  # the reader gets any error
                reader.fail(e)
            else:
                self._stats.add(cache_hits=1, bytes_wanted=len(answer.data))
                reader.future.set_result(bytes(answer.data))
            return True
        if rest is None:
            return False
        waiting = self._for_whole.get(version)
        if waiting is None:
            if span.start < 0 or span.stop is None or not span.exact or version in in_ranges:
                return False
            if reader.most is None and not version.is_sampled:  # a chunk: no further look-ups depend on it
                others = (other.span for other in all_readers if other.span.url == span.url)
                wanted = sum(other.size or 0 for other in others if not version.holds(other))
                if rest[1] - rest[0] > 2 * wanted + IN_VAIN:
                    version.is_sampled = True
                    in_ranges.add(version)
                    return False
            waiting = self._for_whole[version] = []
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: self._on_rest(version, future))
            whole = Reader(None, Span(span.url, *rest), future, keep=reader.keep and may_keep(span, reader.most))
            if self._may_be_on_disk(whole):
                self._begin_recall([whole])
            else:
                self._fetch(self._begin_reader(whole))
        waiting.append(reader)
        return True

    def _on_rest(self, version: Version, future: asyncio.Future[bytes]) -> None:
        """Serve the readers that wait for the rest of a small object; if it was not fetched, fetch their ranges."""
        if future.cancelled() or future.exception() is not None:
            version.is_kept, version.content = False, b""
        else:
            version.content += future.result()
        readers = self._for_whole.pop(version)
        if future.cancelled():
            for reader in readers:
                reader.future.cancel()
        self.read(readers)

    def begin(self, spans: Iterable[Span]) -> list[Block]:
        """Fetch the first bytes of ``spans``, before look-ups show which are needed, and keep them until `release`."""
        begun = []
        for span in spans:
            stop = span.start + FIRST if span.size is None else min(span.stop or 0, span.start + FIRST)
            start = Span(span.url, span.start, stop, exact=False, pin=span.pin, dense=True, origin=span.origin)
            if span.start < 0:
                continue
            ((_, _, block), *_) = self._known.cover(_cut_span(start, start.start, start.start + 1))
            if block is None:
                block = self._open(start, urgent=False)
            elif not block.begun:
                continue
            block.begun += 1
            begun.append(block)
        self.requests.pump()
        return begun

    def release(self, begun: list[Block]) -> None:
        """Empty the list that `begin` returned, and drop its blocks, unless readers need them."""
        while begun:
            block = begun.pop()
            block.begun -= 1
            if not block.is_wanted:
                self._forget(block)
        self.requests.pump()

    @property
    def has_disk(self) -> bool:
        """Whether there is a cache on disk."""
        return self._on_disk is not None

    def is_on_disk(self, span: Span) -> bool:
        """Return whether ``span`` is kept on disk, in any version."""
        return self._on_disk is not None and self._on_disk.has(span)

    def is_under_way(self, span: Span) -> bool:
        """Return whether ``span`` is being fetched."""
        return any(block is not None and block.state != OVER for _, _, block in self._known.cover(span))

    def drop(self, spans: Iterable[Span], *, stop: bool = False) -> None:
        """Stop expecting reads of ``spans``, and remove their queued requests.

        Requests under way are cancelled only with ``stop``, since a cancelled request closes its connection.
        """
        for span in spans:
            for first, last, block in self._known.cover(span):
                if block is None:
                    continue
                self._stats.add(ahead_wasted=block.expect_less(first, last))
                if block.is_wanted:
                    block.spare = block.spare or not stop
                elif stop or block.state == QUEUED:
                    self._forget(block)
                else:
                    block.spare = True
                    if block.data is not None:
                        self._keep_or_drop(block)
        self.requests.pump()

    def drop_unread(self) -> None:
        """Drop all blocks that no reader and no look-up waits for, whether fetched or not."""
        for block in [block for block in self._known if not block.begun]:
            self._count_waste(block)
            if not block.readers:
                self._forget(block)
        self.requests.pump()

    async def close(self) -> None:
        """Cancel all requests, and wait until they have ended."""
        tasks = [block.task for reader in self._waiting.values() for block in reader.blocks]
        tasks += [block.task for block in self._known]
        tasks += [*self._recalls, *self._asking.values()]
        self.abandon()
        await asyncio.gather(*filter(None, dict.fromkeys(tasks)), return_exceptions=True)

    def abandon(self) -> None:
        """Drop all blocks, and cancel all readers."""
        for block in list(self._known):
            self._forget(block)
        for reader in list(self._waiting.values()):
            for block in reader.blocks:
                self._forget(block)
            reader.future.cancel()
        for task in (*self._recalls, *self._asking.values()):
            task.cancel()

    def _may_be_on_disk(self, reader: Reader) -> bool:
        """Return whether ``reader`` should wait for the cache on disk, or first for the version of its object."""
        span = reader.span
        if self._on_disk is None or not may_keep(span, reader.most) or not reader.keep:
            return False
        if span.size and any(block is not None for _, _, block in self._known.cover(span)):
            return False  # a part of it is in memory, or under way
        place = self._find_remote_object(span)
        if place is None:
            return False
        # For whole objects, requesting the version first would double the requests.
        if self.requests.pool.versions.find_confirmed_facts(span.url, None) is None:
            if span.url in self._unversioned:
                return False
            if span.stop is not None and not place.target.tells_versions:
                return True
        return self._on_disk.has(span)

    def _find_remote_object(self, span: Span) -> VersionedObject | None:
        """Return the remote object of ``span``; None if it is local, or cannot be opened: its readers get the error."""
        with contextlib.suppress(Exception):
            place = self.requests.pool.place(span.url, span.origin)
            if place is not None and place[0].is_remote:
                return place[0]
        return None

    def _begin_recall(self, readers: list[Reader]) -> None:
        task = self.requests.loop.create_task(self._recall(readers))
        self._recalls[task] = readers
        task.add_done_callback(self._on_recall_end)

    async def _recall(self, readers: list[Reader]) -> None:
        """Serve ``readers`` from the disk, if it has the current version, and fetch the rest."""
        versions = self.requests.pool.versions
        spans = [reader.span for reader in readers]
        unseen = {(span.url, span.origin) for span in spans if versions.find_confirmed_facts(span.url, None) is None}
        await asyncio.gather(*map(self._ask_version, unseen))
        fresh: list[tuple[Span, Reader | None]] = []
        for first in range(0, len(readers), TURN):
            turn = [reader for reader in readers[first : first + TURN] if not reader.future.done()]
            found = await asyncio.to_thread(self._read_disk, [reader.span for reader in turn])
            for reader, data in zip(turn, found, strict=True):
                if reader.future.done():
                    continue
                if data is None or (reader.most is not None and len(data) > reader.most):
                    fresh += self._begin_reader(reader)
                    continue
                if (cache := self._find_cache(reader.span)) is not None:
                    cache.put(reader.span, data, len(data))
                self._stats.add(disk_hits=1, disk_bytes=len(data), bytes_wanted=len(data))
                reader.future.set_result(data)
        self._fetch(fresh)
        self.requests.pump()

    def _read_disk(self, spans: Sequence[Span]) -> list[bytes | None]:
        versions, on_disk = self.requests.pool.versions, self._on_disk
        assert on_disk is not None
        return [on_disk.get(span, versions.find_confirmed_facts(span.url, span.pin)) for span in spans]

    async def _ask_version(self, place: tuple[str, tuple[str, ...]]) -> None:
        """Request the current version of the object at ``place``, its URL and origin, once for concurrent callers."""
        task = self._asking.get(place)
        if task is None:
            task = self._asking[place] = self.requests.loop.create_task(self._request_version(*place))
            task.add_done_callback(lambda _: self._asking.pop(place, None))
        await asyncio.shield(task)

    async def _request_version(self, url: str, origin: tuple[str, ...]) -> None:
        with contextlib.suppress(Exception):  # reading the object will raise the error again
            async with self._questions:
                place = self.requests.pool.place(url, origin)
                if place is not None:
                    await place[0].ask_version(place[1])
        if self.requests.pool.versions.find_confirmed_facts(url, None) is None:
            self._unversioned.add(url)

    def _on_recall_end(self, task: asyncio.Task[None]) -> None:
        """Set the error of readers if their recall failed, or cancel them if it was cancelled."""
        readers = self._recalls.pop(task)
        error = None if task.cancelled() else task.exception()
        for reader in readers:
            if reader.future.done():
                continue
            if isinstance(error, Exception):
                reader.fail(error)
            elif task.cancelled():
                reader.future.cancel()

    def _begin_reader(self, reader: Reader) -> list[tuple[Span, Reader | None]]:
        """Let ``reader`` wait for blocks with parts of its range; return the parts that have to be fetched."""
        span = reader.span
        if (span.size or 0) > LARGE:
            try:
                reader.buffer = BytesIO(bytes(span.size or 0))  # zeros take address space, and memory only when written
            except (MemoryError, OverflowError):
                reader.fail(MemoryError(f"not enough memory for a range of {span.size} bytes"))
                return []
        self._waiting[reader.future] = reader
        reader.future.add_done_callback(self._on_reader_done)
        if not span.size:
            whole = self._find_whole_ahead(reader) or self._open(span, urgent=True, shared=False)
            self._join(reader, whole, span.start, span.start)
            return []
        reader.missing = span.size
        if (file := self._files.get(_identify_object(span))) is not None:
            file.read += span.size
        parts = list(self._known.cover(span))
        gaps = [(start, stop) for start, stop, block in parts if block is None]
        if len(gaps) > 1 or len(parts) == len(gaps):  # one request is cheaper than a request for each of several gaps
            return [(span, reader)]
        start, stop, first = parts[0]
        if first is not None and ((start, stop) in first.expected or first in self._windows):
            self._stats.count("ahead_hits", 1)
        if file is not None and not gaps:
            file.note(span.start, span.stop or 0)
        for start, stop, block in parts:
            if block is not None:
                self._join(reader, block, start, stop)
        return [(_cut_span(span, start, stop), reader) for start, stop in gaps]

    def _find_whole_ahead(self, reader: Reader) -> Block | None:
        """Return the block of a whole object that was fetched ahead for ``reader``, unless it is no longer fresh."""
        if reader.span.start or reader.span.stop is not None or reader.most is not None:
            return None
        ((_, _, block),) = self._known.cover(reader.span)
        if block is not None and block.state == OVER and self.requests.loop.time() > block.arrived + FRESH:
            self._count_waste(block)
            self._forget(block)
            return None
        if block is not None:
            self._stats.count("ahead_hits", 1)
        return block

    def _join(self, reader: Reader, block: Block, start: int, stop: int) -> None:
        """Let ``reader`` wait for ``[start, stop)`` of ``block``, or give it the bytes if they have arrived."""
        if block.data is not None or block.absence is not None:
            is_spare = block in self._idle and not block.is_wanted
            self._give(reader, block, start, stop)
            if not is_spare:
                self._keep_or_drop(block)
            return
        if not block.readers and block.state == QUEUED:  # it was in the queue for later, and is now urgent
            block.host.urgent.append(block)
        reader.blocks.append(block)
        block.readers.append((reader, start, stop))

    def _give(self, reader: Reader, block: Block, start: int, stop: int) -> None:
        """Give ``reader`` bytes ``[start, stop)`` of ``block``, its whole object, or the error that it is missing."""
        span = reader.span
        if span.stop is None:
            start, stop = 0, len(block.data or b"")
        else:
            self._note_range(span, start, stop)
        if block.expected:
            self.progress += 1
            block.note_read(start, stop)
            if block.is_passed:  # indexes in the gaps may still be read
                block.expected.clear()
                self._keep_for_a_while(block)
        if block.absence is not None:
            reader.fail(block.absence)
            return
        assert block.data is not None
        first = start - block.span.start
        part = block.data if span.size is None else memoryview(block.data)[first : first + stop - start]
        is_first = reader.missing == (span.size or 0)
        reader.facts = block.facts if is_first or reader.facts == block.facts else None
        reader.missing -= stop - start
        if reader.buffer is not None or reader.missing > 0:
            if reader.buffer is None:
                reader.buffer = BytesIO(bytes(span.size or 0))
            with reader.buffer.getbuffer() as view:
                view[start - span.start : stop - span.start] = part
        if reader.missing > 0:
            return
        if reader.buffer is not None:
            data = reader.buffer.getvalue()
        else:
            data = bytes(block.data) if len(part) == len(block.data) else bytes(part)  # bytes(bytes) does not copy
        del self._waiting[reader.future]
        if (cache := self._find_cache(span)) is not None:
            cache.put(span, data, len(data))
        if self._on_disk is not None and reader.keep and may_keep(span, reader.most):
            self._on_disk.put(span, reader.facts, data)
        self._stats.count("bytes_wanted", len(data))
        if not reader.future.done():
            reader.future.set_result(data)

    def _note_range(self, span: Span, start: int, stop: int) -> None:
        """Note that a reader got ``[start, stop)`` of the object of ``span``."""
        object_id = _identify_object(span)
        ranges = self._last_ranges.get(object_id)
        if ranges is None:
            ranges = deque(maxlen=LAST_RANGES)
            self._last_ranges.put(object_id, ranges)
        if ranges and ranges[-1][0] <= start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], stop)
        else:
            ranges.append((start, stop))

    def _detach(self, reader: Reader) -> None:
        """Remove ``reader`` from its blocks."""
        for block in reader.blocks:
            block.readers = [other for other in block.readers if other[0] is not reader]
            if not block.is_wanted:
                self._forget(block)
        self._waiting.pop(reader.future, None)

    def _on_reader_done(self, future: asyncio.Future[bytes]) -> None:
        reader = self._waiting.get(future)
        if reader is not None:  # the read failed, or was cancelled
            self._detach(reader)
            self.requests.pump()

    def _fetch(self, fresh: Iterable[tuple[Span, Reader | None]], *, extends: bool = True) -> None:
        """Merge spans and request them for their readers; without a reader, keep the bytes until they are read.

        With ``extends``, the requests may be extended by bytes that will probably be read next.
        """
        by_object: dict[Hashable, list[tuple[Span, Reader | None]]] = {}
        for span, reader in fresh:
            by_object.setdefault(_identify_object(span), []).append((span, reader))
        self._rounds += any(reader is not None and reader.most is None for _, reader in fresh)
        for object_id, members in by_object.items():
            url, pin, origin = members[0][0].url, members[0][0].pin, members[0][0].origin
            dense = all(span.dense for span, _ in members)
            limits = self.limits.dense if dense else self.limits
            merging = limits.apart if any(span.apart for span, _ in members) else limits
            last_urgent: Block | None = None
            ranges = [(s.start, s.stop or 0) for s, _ in members]
            pieces = plan.coalesce(ranges, merging)
            has_gaps = False  # whether the requests have other chunks between the ranges
            is_index = all(span.apart and reader is not None and reader.most is not None for span, reader in members)
            is_mixed = any(span.mixed or span.interleaved for span, _ in members)
            is_mixed = is_mixed and self.requests.pool.versions.of(url).is_kept  # its other arrays are probably read
            if is_mixed and limits.gap > 0 and any(span.interleaved for span, _ in members):
                wider = plan.coalesce(ranges, plan.Limits(max(INTERLEAVED, limits.gap), self._room_for_spare))
                has_gaps, pieces = len(wider) < len(pieces), wider
            elif is_index and limits.gap > 0 and len(pieces) >= MANY_APART:
                wider = plan.coalesce(ranges, plan.Limits(REQUEST, limits.block))
                has_gaps = sum(stop - start for start, stop, _ in wider) <= self._room_for_spare
                pieces = wider if has_gaps else pieces
            round_bytes = self._measure_round(url) if len(by_object) == 1 else SMALL_FILE
            window = self._find_window(object_id, members, round_bytes) if extends and merging.gap > 0 else []
            if window:
                pieces = plan.coalesce([*ranges, *window], merging)
            for start, stop, places in pieces:
                merged = [members[i] for i in places if i < len(members)]
                urgent = any(reader is not None for _, reader in merged)
                cuts = plan.split_block(start, stop, limits)
                blocks = [
                    self._open(Span(url, first, last, pin=pin, dense=dense, origin=origin), urgent=urgent)
                    for first, last in cuts
                ]
                for span, reader in merged:
                    for i in range(bisect_right(cuts, span.start, key=itemgetter(0)) - 1, len(cuts)):
                        begin, end = max(span.start, cuts[i][0]), min(span.stop or 0, cuts[i][1])
                        if begin >= end:
                            break
                        if reader is None:
                            blocks[i].expect(begin, end)
                        else:
                            self._join(reader, blocks[i], begin, end)
                for block in blocks:
                    if has_gaps or (is_mixed and any(span.mixed for span, _ in merged)):
                        self._keep_for_a_while(block)
                    if window:
                        self._expect_all(block)
                last_urgent = blocks[-1] if urgent else last_urgent
            if any(reader is None for _, reader in members):  # `ReadAhead` follows an array of the file
                self._files.discard(object_id)
            elif not window and extends and last_urgent is not None and merging.gap > 0 and self.most_ahead > 0:
                is_of_chunks = all(reader is not None and reader.most is None for _, reader in members)
                self._extend(last_urgent, object_id, is_of_chunks=is_of_chunks)

    def _find_window(
        self, object_id: Hashable, members: Sequence[tuple[Span, Reader | None]], round_bytes: int
    ) -> list[tuple[int, int]]:
        """Return the unread ranges around ``members``, all of one object, to fetch with them; none to fetch only them.

        Reads at random places of a file would take a round each. The file is divided into windows of `SMALL_FILE`
        bytes. After N requests for chunks of a file of 2 N - 1 windows, each request fetches its window: the next 2 N
        requests probably find most of their chunks in windows. So the rest of a small file is fetched at the second
        request. If ``round_bytes``, which cost as much as a round, are more than `SMALL_FILE`, fewer requests are
        enough, and windows are larger, up to half of ``round_bytes``. Of all windows, `_find_room_for_windows` bytes
        may be unread, or a quarter of the bytes that readers asked for, if that is more.
        """
        url = members[0][0].url
        facts, file = self.requests.pool.versions.find_known_facts(url), self._files.peek(object_id)
        if (
            facts is None
            or facts.size is None
            or file is None
            or facts.size > 2 * file.requests * round_bytes - SMALL_FILE
        ):
            return []
        if self._stats.ignores_ranges(server_of(url)):  # it answers each request with the whole file
            return []
        for span, reader in members:
            if reader is None or reader.most is not None or not span.exact or (span.stop or 0) > facts.size:
                return []
            if (span.start, span.stop) in file.last:  # read again
                return []
        start, stop = min(span.start for span, _ in members), max(span.stop or 0 for span, _ in members)
        extent = SMALL_FILE << max((round_bytes // (2 * SMALL_FILE)).bit_length() - 1, 0)
        first = start // extent * extent
        window = _cut_span(members[0][0], first, max(min(first + extent, facts.size), stop))
        gaps = [(low, high) for low, high, block in self._known.cover(window) if block is None and low <= start < high]
        if not gaps or stop > gaps[0][1] or stop - first > extent + extent // 4:
            return []
        unread = plan.leave_out(*gaps[0], self._last_ranges.peek(object_id) or ())
        size = sum(high - low for low, high in unread)
        room = self._find_room_for_windows(url)
        if size > min(room, self.most_ahead) or 2 * file.read > facts.size:
            return []
        counts = self._stats.snapshot()
        spare = counts["ahead_wasted"] + sum(sum(block.expected.values()) for block in self._windows)
        if spare + size > max(room, counts["bytes_wanted"] // SHARE):
            return []
        file.requests += 1
        # Of the parts between chunks that readers got, only long ones are worth a request of their own.
        least = plan.MIB if size <= plan.MIB else REQUEST
        starts = sorted(span.start for span, _ in members)
        has_member = [bisect_left(starts, low) < bisect_left(starts, high) for low, high in unread]
        return [part for part, has in zip(unread, has_member, strict=True) if has or part[1] - part[0] > least]

    def _expect_all(self, block: Block) -> None:
        """Expect reads of all bytes of ``block``, a part of a window, while there is room."""
        block.expect(block.span.start, block.span.stop or 0)
        self._windows[block] = None
        room = self._find_room_for_windows(block.span.url)
        self.requests.loop.call_later(SPARE_SECONDS, partial(_drop_window, weakref.ref(self), block))
        while sum(each.span.size or 0 for each in self._windows) > room:
            self.drop_window(next(iter(self._windows)))

    def drop_window(self, block: Block) -> None:
        """Expect no further reads of ``block``, a part of a window."""
        if block in self._windows:
            del self._windows[block]
            self._count_waste(block)
            if not block.readers:
                self._forget(block)

    def _extend(self, block: Block, object_id: Hashable, *, is_of_chunks: bool) -> None:
        """Extend the request for ``block`` by bytes of its object that will probably be read next.

        ``is_of_chunks``: of this object, only chunks are requested now, no index or document.
        """
        span = block.span
        if span.stop is None or self._find_remote_object(span) is None:
            return
        file = self._files.get(object_id)
        if file is None:
            file = FileAhead()
            file.read = span.size or 0
            self._files.put(object_id, file)
        file.requests += is_of_chunks
        facts = self.requests.pool.versions.find_known_facts(span.url)
        if facts is None or facts.size is None:
            file.note(span.start, span.stop)
            return
        stop = file.extend(span.start, span.stop, facts.size, self._known.count_unread(object_id), self.most_ahead)
        if stop == span.stop:
            return
        # Bytes that other blocks have are not fetched again.
        for first, last, known in list(self._known.cover(_cut_span(span, span.stop, stop))):
            if known is None and first == span.stop:
                block.expect(first, last)
                block.span = _cut_span(span, span.start, last)
            elif known is None:
                self._open(_cut_span(span, first, last), urgent=False).expect(first, last)

    def _open(self, span: Span, *, urgent: bool, shared: bool = True) -> Block:
        """Make a block, and queue its request."""
        block = Block(span, self.requests.find_host(span.url), shared)
        if shared:
            self._known.put(block)
        (block.host.urgent if urgent else block.host.later).append(block)
        return block

    def _forget(self, block: Block) -> None:
        """Drop ``block``, and cancel its request."""
        self.requests.stop(block)
        if block.shared:
            block.shared = False
            self._known.take(block)
        self._idle.pop(block, None)
        self._windows.pop(block, None)
        block.data = None  # freed here, since a block and its task refer to each other

    def _keep_or_drop(self, block: Block) -> None:
        """Keep an arrived block if it is wanted or spare, else drop it. The caller must call `pump` afterwards."""
        if block.is_wanted or (block.spare and block.shared):
            self._idle.setdefault(block)
        else:
            self._forget(block)
        if block.spare and not block.is_wanted:
            # Spare blocks take a small part of the memory, so that room remains for fetching ahead.
            room = self._room_for_spare
            for spare in reversed([idle for idle in self._idle if not idle.is_wanted]):
                room -= len(spare.data or b"")
                if room < 0:
                    self._forget(spare)

    def _find_room_for_windows(self, url: str) -> int:
        """Return the most unread bytes of windows.

        That is as many as arrive in the time of all rounds so far, or `SPARE` if that is more; at most half of the
        memory.
        """
        return min(max(SPARE, self._rounds * self._measure_round(url)), self.requests.budget.memory // 2)

    def _measure_round(self, url: str) -> int:
        """Return the bytes of ``url`` that may be fetched to save a round: as many as arrive in it, or `SMALL_FILE`."""
        return max(SMALL_FILE, self.requests.measure_round(url))

    @property
    def _room_for_spare(self) -> int:
        """The most bytes that are kept, though no read of them is expected.

        dask reads chunks in the order of their names (0, 1, 10, 100, ...), and returns later to chunks that it skipped.
        """
        return self.requests.budget.memory // 4

    def _keep_for_a_while(self, block: Block) -> None:
        """Make ``block`` spare, for at most `SPARE_SECONDS`."""
        block.spare = True
        self.requests.loop.call_later(SPARE_SECONDS, partial(_forget_spare, weakref.ref(self), block))

    def _count_waste(self, block: Block) -> None:
        wasted = sum(block.expected.values())
        self._stats.add(ahead_wasted=wasted)
        if (file := self._files.get(_identify_object(block.span))) is not None:
            file.wasted += wasted
        block.expected.clear()

    @property
    def has_unread(self) -> bool:
        """Whether arrived blocks are kept."""
        return bool(self._idle)

    def make_room(self) -> bool:
        """Drop the oldest arrived block; return False if there is none."""
        block = next(iter(self._idle), None)
        if block is None:
            return False
        self._count_waste(block)
        self._forget(block)
        return True

    def on_arrival(self, block: Block, answer: Answer) -> None:
        """Give the bytes of ``block`` to its readers."""
        block.data = answer.data
        if block.shared and not block.span.exact:
            self._measure(block, len(answer.data))
        self._answer(block)

    def _answer(self, block: Block) -> None:
        """Give the bytes of ``block``, or the absence of its object, to its readers."""
        self.progress += 1
        if block.shared and block.span.stop is None:  # now its size is known
            size = len(block.data or b"")
            block.arrived = self.requests.loop.time()
            block.expected = {(0, size): size} if block.expected else {}
            self.requests.keep(block, size)
        for reader, start, stop in block.readers:
            self._give(reader, block, start, stop)
        block.readers = []
        self._keep_or_drop(block)

    def _measure(self, block: Block, size: int) -> None:
        """Set the end of ``block``, which has ``size`` bytes, and request again the ranges that end beyond it."""
        end = block.span.start + size
        block.span = _cut_span(block.span, block.span.start, end)
        self._request_again([reader for reader, _, stop in block.readers if stop > end])
        for piece in [piece for piece in block.expected if piece[1] > end]:
            del block.expected[piece]

    def _request_again(self, readers: Iterable[Reader]) -> None:
        """Request the ranges of ``readers`` separately."""
        alone: dict[Span, list[Reader]] = {}
        for reader in readers:
            self._detach(reader)
            if not reader.future.done():
                alone.setdefault(reader.span, []).append(reader)
        for span, readers_of_span in alone.items():
            for reader in readers_of_span:
                reader.blocks, reader.buffer, reader.missing = [], None, span.size or 0
                self._waiting[reader.future] = reader
                if span.stop is None:
                    self._join(reader, self._open(span, urgent=True, shared=False), 0, 0)
            if span.stop is not None:
                self._fetch([(span, reader) for reader in readers_of_span], extends=False)

    def on_failure(self, block: Block, error: Exception) -> None:
        """Raise ``error`` in the readers of ``block``, or request their ranges again if merging may be its cause."""
        readers = [reader for reader, _, _ in block.readers]
        is_merged = {(start, stop) for _, start, stop in block.readers} != {(block.span.start, block.span.stop)}
        is_whole = block.shared and block.span.stop is None
        if is_whole and isinstance(error, NOT_FOUND):
            block.state, block.absence = OVER, error
            self._answer(block)
            return
        is_more_than_wanted = is_whole or (
            block.shared and (not block.span.exact or (is_merged and isinstance(error, Unfit)))
        )
        if (file := self._files.get(_identify_object(block.span))) is not None:
            file.wasted += sum(block.expected.values())  # so that the next request is extended less
        block.readers, block.expected = [], {}
        self._forget(block)
        if is_more_than_wanted:
            self._request_again(readers)
            return
        for reader in readers:
            self._detach(reader)
            reader.fail(error)


def _drop_window(fetcher_ref: weakref.ref[Fetcher], block: Block) -> None:
    fetcher = fetcher_ref()
    if fetcher is not None:
        fetcher.drop_window(block)
        fetcher.requests.pump()


def _forget_spare(fetcher_ref: weakref.ref[Fetcher], block: Block) -> None:
    fetcher = fetcher_ref()
    block.spare = False
    if fetcher is not None and block in fetcher._idle and not block.is_wanted:
        fetcher._forget(block)
        fetcher.requests.pump()


class BlockIndex:
    """The blocks that readers may join, in order of their ranges."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, list[Block]] = {}  # by object, in ascending order
        self._whole: dict[Hashable, Block] = {}  # whole objects

    def __iter__(self) -> Iterator[Block]:
        for blocks in self._blocks.values():
            yield from blocks
        yield from self._whole.values()

    def put(self, block: Block) -> None:
        if block.span.stop is None:
            self._whole[_identify_object(block.span)] = block
            return
        blocks = self._blocks.setdefault(_identify_object(block.span), [])
        blocks.insert(bisect_right(blocks, block.span.start, key=_START), block)

    def take(self, block: Block) -> None:
        object_id = _identify_object(block.span)
        if block.span.stop is None:
            del self._whole[object_id]
            return
        blocks = self._blocks[object_id]
        del blocks[blocks.index(block, bisect_left(blocks, block.span.start, key=_START))]
        if not blocks:
            del self._blocks[object_id]

    def count_unread(self, object_id: Hashable) -> int:
        """Return the number of bytes of an object that are in blocks, and expected to be read.

        Short gaps that readers passed over do not count: they cost less than another request.
        """
        blocks = self._blocks.get(object_id, ())
        return sum(sum(block.expected.values()) - block.passed for block in blocks if block.expected)

    def cover(self, span: Span) -> Iterator[tuple[int, int, Block | None]]:
        """Divide ``span`` into parts; yield the start and stop of each, and a block that has it, or None.

        Only near blocks are searched. A whole object has one part, which is empty until the object arrives.
        """
        if span.stop is None:
            whole = self._whole.get(_identify_object(span))
            yield 0, 0 if whole is None else len(whole.data or b""), whole
            return
        blocks = self._blocks.get(_identify_object(span), ())
        at, end = span.start, span.stop or 0
        while True:
            i = bisect_right(blocks, at, key=_START)
            near = [block for block in blocks[max(i - NEAREST, 0) : i] if at < (block.span.stop or 0)]
            block = max(near, key=_STOP) if near else None
            last = end
            if block is not None:
                last = min(end, block.span.stop or 0)
            elif i < len(blocks):
                last = min(end, blocks[i].span.start)
            yield at, last, block
            at = last
            if at >= end:
                return


_START: Callable[[Block], Any] = attrgetter("span.start")
_STOP: Callable[[Block], Any] = attrgetter("span.stop")


def _identify_object(span: Span) -> Hashable:
    """Return the URL, pin and origin of ``span``: ranges share a request only if these three are equal."""
    return span.url, span.pin, span.origin


def _cut_span(span: Span, start: int, stop: int) -> Span:
    """Return ``[start, stop)`` of the object of ``span``."""
    flags = span.dense, span.apart, span.origin, False, span.interleaved
    return Span(span.url, start, stop, True, False, span.pin, *flags)

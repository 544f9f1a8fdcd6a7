"""Read local files, memory and inline data without an event loop, in any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Entry, Head, Inline, Load, Need, Origin, Packed, Pin, Span, Steps
from refshard_fs.core.stats import Stats
from refshard_fs.errors import RefShardError, TargetChanged, sanitize_cause
from refshard_fs.reading.chunk_cache import ChunkCache, may_keep
from refshard_fs.reading.failures import make_read_error, name_key
from refshard_fs.reading.loading import (
    Answers,
    Outcome,
    advance,
    choose_index_for_size,
    decode,
    is_scanned,
    is_streamed,
    name_location,
)
from refshard_fs.reading.plan import KIB, MIB, Limits, ReadPlan, Request, UnmadeBytes, coalesce, plan_read
from refshard_fs.targets import Answer, Pool, TooLarge, check, check_size
from refshard_fs.targets.failures import NOT_FOUND

SMALL: Final = 64 * KIB  # bytes: ranges up to this size are read together, since a read takes as long as copying them
TOUCHING: Final = Limits(gap=4 * KIB, block=MIB)  # the limits for merging small ranges
# A read is slow if it takes SLOW seconds more than its bytes at PACE. Starting a thread takes 0.1 ms, and a read from
# the system's cache 0.02 ms.
SLOW: Final = 0.001
PACE: Final = 1e9  # bytes a second: reads from the system's cache are faster
LARGE: Final = 4 * MIB  # bytes: reading more takes longer than SLOW, even from the system's cache
FORESEEN: Final = 1 << 14  # the most chunks whose entries are remembered while they are fetched ahead


Job = tuple[Request, Entry]


class _Read(msgspec.Struct, frozen=True):
    """The result of reading the ranges of a plan."""

    parts: list[bytes | BaseException]  # the bytes or the error of each range
    size: int | None  # the sum of the bytes; None if a range has an error
    are_kept: bool  # whether all bytes were in memory


class Immediate:
    """Read without an event loop. The methods that read or look up return None if an event loop is needed."""

    def __init__(
        self,
        pool: Pool,
        answers: Answers,
        stats: Stats,
        on_disk: ChunkCache | None = None,
        mixed: LRU[Span, bytes] | None = None,
        *,
        is_writable: bool = False,
    ) -> None:
        """Remember no entries if ``is_writable``, since a write may move a key between two look-ups.

        ``mixed`` is the cache of ranges that are `Span.mixed`.
        """
        self._pool = pool
        self.is_writable = is_writable
        self._foreseen: dict[str, tuple[KeySpace, Entry]] = {}  # the entries of chunks that are fetched ahead, by key
        self._on_disk = on_disk
        self._mixed = mixed
        self._stats = stats
        self._answers = answers
        self._loading = fork_safe(threading.Lock())
        self._slow_reads = 0  # consecutive slow reads: one alone may come from a busy machine, several from a slow disk

    def read(self, keyspace: KeySpace, request: Request, *, may_load: bool = False) -> bytes | None:
        """Return the bytes of ``request``; FileNotFoundError if the key does not exist."""
        entry = self.find(keyspace, request.key, may_load=may_load)
        return None if entry is None else self.take(request, entry)

    def take(self, request: Request, entry: Entry) -> bytes | None:
        """Return the bytes of ``request``, whose key has the entry ``entry``."""
        if type(entry) is not Span or entry.stop is None or not request.is_whole:
            unmade = self.take_unmade(request, entry)
            return None if unmade is None else unmade.make()
        try:  # the usual case needs no plan
            kept = self._find_kept(entry)
            answer = self._fetch(entry) if kept is None else kept
        except Exception as e:  # noqa: BLE001  # any error becomes one that names the key
            raise make_read_error(request.key, entry, e) from sanitize_cause(e)
        if answer is None:
            return None
        data = bytes(answer.data)
        self._count(1, len(data), len(data), entry, are_kept=kept is not None)
        return data

    def take_unmade(self, request: Request, entry: Entry) -> UnmadeBytes | None:
        """Read the ranges of ``request``, whose key has the entry ``entry``, without assembling them.

        Return None if the read needs an event loop.
        """
        try:
            plan = plan_read(request, entry, self._answers.longest)
            if plan is None and isinstance(entry, Span):
                nothing = Span(entry.url, 0, 0, optional=entry.optional, origin=entry.origin)
                empty = self._find_kept(nothing) or self._fetch(nothing)
                if empty is None or empty.size is None:
                    return None
                entry = entry.resolve_end(empty.size)
                plan = plan_read(request, entry, self._answers.longest)
        except Exception as e:  # noqa: BLE001  # any error becomes one that names the key
            raise make_read_error(request.key, entry, e) from sanitize_cause(e)
        assert plan is not None, "the size is known"
        read = self._read(plan)
        if read is None:
            return None
        if isinstance(plan.window, Inline):
            self._stats.count("keys", 1)
        elif read.size is not None:
            self._count(1, read.size, read.size, plan.window, are_kept=read.are_kept)
        return UnmadeBytes(plan, read.parts)

    async def take_async(self, request: Request, entry: Entry) -> bytes | None:
        """Return the result of `take`; use a thread if reading would block the event loop for long."""
        is_slow = self._slow_reads > 1 or (entry.size or 0) > LARGE
        if is_slow and not isinstance(entry, Inline) and self.has(entry):
            return await asyncio.to_thread(self.take, request, entry)
        return self.take(request, entry)

    def group_jobs(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Group ``jobs`` for `take_together`, by position: small ranges that lie together, or a single job."""
        small: dict[tuple[str, Pin | None, Origin], list[int]] = {}
        ranges: dict[int, tuple[int, int]] = {}
        found: list[list[int]] = []
        for place, (request, entry) in enumerate(jobs):
            span = _get_only_span(entry)
            if (
                span is not None
                and (span.size or SMALL + 1) <= SMALL
                and request.is_whole
                and (self._on_disk is None or self.is_here(entry))
            ):
                ranges[place] = span.start, span.stop or 0
                small.setdefault((span.url, span.pin, span.origin), []).append(place)
            else:
                found.append([place])
        for places in small.values():
            blocks = coalesce([ranges[place] for place in places], TOUCHING)
            found += [[places[i] for i in block.members] for block in blocks]
        return found

    def take_together(self, jobs: Sequence[Job]) -> list[Any]:
        """Take ``jobs``, a group of `group_jobs`, by one read if possible; return the result or the error of each."""
        together = self._read_together(jobs)
        out: list[Any] = []
        for place, (request, entry) in enumerate(jobs):
            try:
                out.append(self.take(request, entry) if together is None else together[place].make())
            except Exception as e:  # noqa: BLE001  # any error of this job
                out.append(e)
        return out

    def take_chunks(self, jobs: Sequence[Job]) -> list[UnmadeBytes | None] | None:
        """Read the whole keys of ``jobs``; return None if this needs an event loop. A missing key is None in the list.

        Small ranges that lie together are read by one read.
        """
        out: list[UnmadeBytes | None] = [None] * len(jobs)
        for places in self.group_jobs(jobs):
            together = self._read_together([jobs[place] for place in places])
            if together is not None:
                for place, unmade in zip(places, together, strict=True):
                    out[place] = unmade
                continue
            for place in places:
                with contextlib.suppress(FileNotFoundError):  # in a hierarchy, the file of a missing chunk is missing
                    out[place] = self.take_unmade(*jobs[place])
                    if out[place] is None:
                        return None
        return out

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Read the bytes of ``span`` into ``buffer``, which has their size; False if they have to be read otherwise.

        After False, the buffer has undefined content.
        """
        with contextlib.suppress(OSError, RefShardError):  # the other read has the same error, which names the key
            place = self._pool.place(span.url, span.origin)
            if place is not None and place[0].read_into(place[1], span.start, buffer, span.pin):
                self._stats.add_read(len(buffer))
                return True
        return False

    def _read_together(self, jobs: Sequence[Job]) -> list[UnmadeBytes] | None:
        """Read ``jobs``, a group of `group_jobs`, by one read; return None if each has to be read alone."""
        if len(jobs) == 1:
            return None
        spans = [span for _, entry in jobs if (span := _get_only_span(entry)) is not None]
        first, last = min(span.start for span in spans), max(span.stop or 0 for span in spans)
        with contextlib.suppress(OSError, RefShardError):  # then each job is read alone, and has its own error
            block = Span(spans[0].url, first, last, pin=spans[0].pin, origin=spans[0].origin)
            answer = self._find_kept(block) or self._fetch(block)
            if answer is not None:
                parts = [bytes(answer.data[span.start - first : (span.stop or 0) - first]) for span in spans]
                self._count(len(jobs), sum(map(len, parts)), last - first, spans[0], are_kept=self._is_kept(spans[0]))
                plans = [plan_read(request, entry, self._answers.longest) for request, entry in jobs]
                return [UnmadeBytes(plan, [part]) for plan, part in zip(plans, parts, strict=True) if plan is not None]
        return None

    def _count(self, keys: int, wanted: int, fetched: int, entry: Entry, *, are_kept: bool) -> None:
        """Count keys that one read, or data in memory, served."""
        if are_kept:
            self._stats.add(keys=keys, bytes_wanted=wanted, cache_hits=1)
        elif self._on_disk is not None and not self.is_here(entry):
            self._stats.add(keys=keys, bytes_wanted=wanted)
        elif keys == 1:
            self._stats.add_read(fetched)
        else:
            self._stats.add(keys=keys, requests=1, bytes_wanted=wanted, bytes_fetched=fetched)

    def _is_kept(self, span: Span) -> bool:
        kept = self._pool.versions.find_kept(span)
        return (kept is not None and kept.holds(span)) or self._find_mixed(span) is not None

    def _find_mixed(self, span: Span) -> bytes | None:
        """Return the bytes of a range that is `Span.mixed`, if they are kept."""
        return self._mixed.get(span) if self._mixed is not None and span.mixed and span.pin is not None else None

    def find(self, keyspace: KeySpace, key: str, *, may_load: bool = False) -> Entry | None:
        """Return the entry of ``key``; FileNotFoundError if the key does not exist."""
        try:
            if keyspace.in_memory:
                entry = keyspace.find(key)
            else:
                found = self.run(keyspace.lookup(key), may_load=may_load)
                if found is None:
                    return None
                entry = found.value
        except Exception as e:  # noqa: BLE001  # `name_key` converts any error
            raise name_key(key, e) from sanitize_cause(e.__cause__ or e)
        if entry is None:
            raise FileNotFoundError(key)
        return entry

    def find_all(
        self, keyspace: KeySpace, keys: Sequence[str], *, may_load: bool = False, keeps: bool = False
    ) -> list[Outcome | None]:
        """Return the entries of ``keys`` that are found without reads; `Outcome(None)` stands for a missing key.

        With ``may_load``, reads that need no event loop are permitted. With ``keeps``, entries of chunks that are
        fetched ahead stay remembered: another look-up reads the chunks.
        """
        # After an error, the event loop looks the keys up again, and finds the key that fails.
        if keyspace.in_memory:
            with contextlib.suppress(Exception):
                return [Outcome(keyspace.find(key)) for key in keys]
        out: list[Outcome | None] = [None] * len(keys)
        if self._foreseen:
            out = [self._take_foreseen(keyspace, key, keeps=keeps) for key in keys]
        unknown = [place for place, found in enumerate(out) if found is None]
        for look_up in keyspace.make_lookups([keys[place] for place in unknown]) if unknown else ():
            with contextlib.suppress(Exception):
                found = self.run(look_up.steps, may_load=may_load)
                for place, entry in zip(look_up.places, () if found is None else found.value, strict=False):
                    out[unknown[place]] = Outcome(entry)
        return out

    def remember_place(self, keyspace: KeySpace, key: str, entry: Entry) -> None:
        """Remember the entry of a chunk that is fetched ahead, until the chunk is looked up."""
        if not self.is_writable:
            if len(self._foreseen) >= FORESEEN:  # chunks that were never read would remain for ever
                self._foreseen.clear()
            self._foreseen[key] = keyspace, entry

    def _take_foreseen(self, keyspace: KeySpace, key: str, *, keeps: bool) -> Outcome | None:
        known = self._foreseen.get(key) if keeps else self._foreseen.pop(key, None)
        return Outcome(known[1]) if known is not None and known[0] is keyspace else None

    def reaches(self, span: Span) -> bool:
        """Return whether the bytes of ``span`` can be read without an event loop; False if opening fails."""
        if self._is_kept(span):
            return True
        try:
            if self._pool.place(span.url, span.origin) is not None:
                return True
        except Exception:  # noqa: BLE001  # a filesystem's class may raise anything
            return False
        if self._on_disk is None or self._pool.versions.find_confirmed_facts(span.url, span.pin) is None:
            return False
        return self._on_disk.has(span)

    def is_here(self, entry: Entry) -> bool:
        """Return whether the objects of ``entry`` are on this machine."""
        return all(self._pool.place(span.url, span.origin) is not None for span in entry.spans)

    def has(self, entry: Entry) -> bool:
        """Return whether the bytes of ``entry`` can be read without an event loop."""
        return all(map(self.reaches, entry.spans))

    def run(self, steps: Steps[Any], *, may_load: bool = True) -> Outcome | None:
        """Run ``steps`` and return their result; None if an answer is not in a cache.

        With ``may_load``, other answers are read and decoded if this needs no event loop: for callers that may block.
        """
        try:
            advance(steps, None, lambda need: self._answer(need, may_load))
        except StopIteration as stop:
            return Outcome(stop.value)
        except (OSError, TargetChanged):  # the event loop tries again, and handles or raises the error
            return None
        steps.close()
        return None

    def _answer(self, need: Need, may_load: bool) -> Outcome | None:
        """Return the answer to ``need``; None if this needs an event loop."""
        known = self._answers.find(need, self._pool)
        if known is not None:
            return known
        if not may_load:
            return None
        return self._load(need) if isinstance(need, Load) else self._read_head(need) if isinstance(need, Head) else None

    def _read_head(self, need: Head) -> Outcome | None:
        """Return the facts and the first bytes of an object; None if this needs an event loop."""
        place = self._pool.place(need.url, need.origin)
        try:
            answer = None if place is None else place[0].read_now(place[1], 0, need.length)
        except NOT_FOUND:
            return Outcome(None)
        if answer is None or answer.size is None:
            return None
        self._stats.add(requests=1, bytes_fetched=len(answer.data))
        return Outcome((answer.facts, answer.data))

    def _load(self, need: Load) -> Outcome | None:
        """Load the answer to ``need``; None if this needs an event loop, or fails: the loop then raises the error."""
        entry = need.entry
        if isinstance(entry, Packed) or is_scanned(need.index) or is_streamed(need.index):
            return None
        with self._loading:  # one of several threads loads, and the others then find the answer in the cache
            value = self._answers.get(need, self._pool)
            if value is not None:
                return Outcome(value)
            with name_location(entry):
                try:
                    check_size(entry.size, self._answers.longest)
                    plan = ReadPlan(None, entry, self._answers.longest)
                    read = self._read(plan)
                    data = None if read is None else plan.assemble(read.parts)
                except TooLarge:
                    raise
                except NOT_FOUND:
                    return Outcome(None) if isinstance(entry, Span) and entry.optional else None
                except OSError:
                    return None
                if data is None:
                    return None
                value = decode(choose_index_for_size(need, self._pool), data)
            self._answers.put(need, value, getattr(value, "nbytes", len(data)), self._pool)
            return Outcome(value)

    def _read(self, plan: ReadPlan) -> _Read | None:
        """Read each range of ``plan``; None if this needs an event loop."""
        parts: list[bytes | BaseException] = []
        size: int | None = 0
        are_kept = True
        for span in plan.window.spans:
            try:
                answer = self._find_kept(span)
                if answer is None:
                    are_kept = False
                    answer = self._fetch(span, plan.most)
            except Exception as e:  # noqa: BLE001  # the plan converts any error
                parts.append(e)
                size = None
            else:
                if answer is None:
                    return None
                data = bytes(answer.data)
                parts.append(data)
                if size is not None:
                    size += len(data)
        return _Read(parts, size, are_kept)

    def _find_kept(self, span: Span) -> Answer | None:
        """Return the bytes of ``span`` if they are kept in memory."""
        kept = self._pool.versions.find_kept(span)
        if kept is not None and kept.holds(span):
            found = kept.answer(span.start, span.stop, span.pin)
            check(found, span.start, span.stop, exact=span.exact)
            return found
        data = self._find_mixed(span) if span.mixed else None
        return None if data is None else Answer(data)

    def _fetch(self, span: Span, most: int | None = None) -> Answer | None:
        """Read ``span`` from its target or from the cache on disk; None if this needs an event loop."""
        place = self._pool.place(span.url, span.origin)
        began = time.perf_counter()
        if place is None:
            answer = self._recall(span, most)
        else:
            answer = place[0].read_now(place[1], span.start, span.stop, span.pin, most)
        took = time.perf_counter() - began
        if answer is None:
            return None
        self._slow_reads = self._slow_reads + 1 if took > SLOW + len(answer.data) / PACE else 0
        if span.stop is None or len(answer.data) != span.stop - span.start:
            check(answer, span.start, span.stop, exact=span.exact)
        if self._mixed is not None and span.mixed and span.pin is not None:
            self._mixed.put(span, bytes(answer.data), len(answer.data))
        return answer

    def _recall(self, span: Span, most: int | None) -> Answer | None:
        """Return the bytes of ``span`` from the cache on disk, if its version is known and matches."""
        if self._on_disk is None or not may_keep(span, most):
            return None
        facts = self._pool.versions.find_confirmed_facts(span.url, span.pin)
        data = None if facts is None else self._on_disk.get(span, facts)
        if data is None or facts is None:
            return None
        self._stats.add(disk_hits=1, disk_bytes=len(data))
        if span.stop is None:
            check_size(len(data), most)
        return Answer(data, facts)


def _get_only_span(entry: Entry) -> Span | None:
    """Return the range of an entry that is read as one range of a known size; None for other entries."""
    if type(entry) is Packed and not entry.parts:
        entry = entry.source
    return entry if type(entry) is Span and entry.exact else None

"""Reads that need no event loop: local files, memory, inline data. Any thread may do them at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Load, Need, Origin, Pin, Span, Steps
from refshard_fs.core.stats import Stats
from refshard_fs.errors import RefShardError, TargetChanged, sanitize_cause
from refshard_fs.reading.chunk_cache import ChunkCache, keeps
from refshard_fs.reading.failures import blame, cause_of, fail
from refshard_fs.reading.loading import Answers, Found, Scanned, Streamed, advance, decode, naming, sized
from refshard_fs.reading.plan import KIB, MIB, Limits, ReadPlan, Request, Unmade, coalesce, plan_read
from refshard_fs.targets import Answer, Pool, TooLarge, check, check_size
from refshard_fs.targets.failures import ABSENT

SMALL: Final = 16 * KIB  # bytes of a range, at most, that is read together with others,
TOUCHING: Final = Limits(gap=4 * KIB, block=MIB)  # where they lie so near
SLOW: Final = 0.001  # seconds of one read; a thread costs 0.1 ms, and what the system has cached takes 0.02 ms
PACE: Final = 1e9  # bytes a second that come beside it: slower than any cache
LARGE: Final = 4 * MIB  # bytes that take so long wherever they are
FORESEEN: Final = 1 << 14  # chunks that are fetched ahead, whose places are remembered


Job = tuple[Request, Entry]


class Immediate:
    """Reads without an event loop; each method returns None where one is needed."""

    def __init__(
        self, pool: Pool, answers: Answers, stats: Stats, on_disk: ChunkCache | None = None, *, is_written: bool = False
    ) -> None:
        """``is_written``: keys may move between two look-ups, because the source has uncommitted writes."""
        self._pool = pool
        self._is_written = is_written
        self._foreseen: dict[str, tuple[KeySpace, Entry]] = {}  # where chunks lie that are fetched ahead
        self._on_disk = on_disk
        self._stats = stats
        self._answers = answers
        self._loading = fork_safe(threading.Lock())
        self._slow_reads = 0  # in a row: of a slow disk, or of a network's; one alone may be a busy machine

    def read(self, keyspace: KeySpace, request: Request, *, may_load: bool = False) -> bytes | None:
        """Return the bytes of ``request``; FileNotFoundError means that there is no such key."""
        entry = self.find(keyspace, request.key, may_load=may_load)
        return None if entry is None else self.take(request, entry)

    def take(self, request: Request, entry: Entry) -> bytes | None:
        """Return the bytes of ``request``, whose key is at ``entry``."""
        unmade = self.take_unmade(request, entry)
        return None if unmade is None else unmade.make()

    def take_unmade(self, request: Request, entry: Entry) -> Unmade | None:
        """Return what the bytes of ``request`` are made of, whose key is at ``entry``."""
        try:
            plan = plan_read(request, entry, self._answers.longest)
            if plan is None and isinstance(entry, Span):
                empty = self._fetch(Span(entry.url, 0, 0, optional=entry.optional, origin=entry.origin))
                if empty is None or empty.size is None:
                    return None
                entry = entry.resized(empty.size)
                plan = plan_read(request, entry, self._answers.longest)
        except Exception as e:  # noqa: BLE001  # raised again as what it means: never as a missing key
            raise fail(request.key, entry, e) from cause_of(e)
        assert plan is not None, "the size is known"
        parts = self._read(plan)
        if parts is None:
            return None
        unmade = Unmade(plan, parts)
        if isinstance(plan.window, Inline):
            self._stats.count("keys", 1)
        elif unmade.is_complete:
            self._count(1, unmade.size, unmade.size, plan.window)
        return unmade

    async def take_soon(self, request: Request, entry: Entry) -> bytes | None:
        """Return the same as `take`, from a thread where that would keep the event loop from its other work."""
        is_slow = self._slow_reads > 1 or (entry.size or 0) > LARGE
        if is_slow and not isinstance(entry, Inline) and self.has(entry):
            return await asyncio.to_thread(self.take, request, entry)
        return self.take(request, entry)

    def together(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return the places of ``jobs`` by what one read serves: small ranges that lie together, or one alone."""
        small: dict[tuple[str, Pin | None, Origin], list[int]] = {}
        found: list[list[int]] = []
        for place, (request, entry) in enumerate(jobs):
            if (
                type(entry) is Span
                and entry.exact
                and request.is_whole
                and (entry.size or SMALL + 1) <= SMALL
                and (self._on_disk is None or self._is_here(entry))
            ):
                small.setdefault((entry.url, entry.pin, entry.origin), []).append(place)
            else:
                found.append([place])
        for places in small.values():
            spans = [span for place in places if isinstance(span := jobs[place][1], Span)]
            ranges = [(span.start, span.stop or 0) for span in spans]
            found += [[places[i] for i in block.members] for block in coalesce(ranges, TOUCHING)]
        return found

    def take_together(self, jobs: Sequence[Job]) -> list[Any]:
        """Return what `take` returns or raises for each of ``jobs``, which one read serves."""
        if len(jobs) > 1:
            spans = [entry for _, entry in jobs if isinstance(entry, Span)]
            first, last = min(span.start for span in spans), max(span.stop or 0 for span in spans)
            with contextlib.suppress(OSError, RefShardError):  # reading each alone tells why
                answer = self._fetch(Span(spans[0].url, first, last, pin=spans[0].pin, origin=spans[0].origin))
                if answer is not None:
                    parts = [bytes(answer.data[span.start - first : (span.stop or 0) - first]) for span in spans]
                    wanted = sum(map(len, parts))
                    self._count(len(jobs), wanted, last - first, spans[0])
                    return list(parts)
        out: list[Any] = []
        for request, entry in jobs:
            try:
                out.append(self.take(request, entry))
            except Exception as e:  # noqa: BLE001  # of this one alone
                out.append(e)
        return out

    def _count(self, keys: int, wanted: int, fetched: int, entry: Entry) -> None:
        """Count keys that one read served, or memory."""
        if all(map(self._is_kept, entry.spans)):
            self._stats.add(keys=keys, bytes_wanted=wanted, cache_hits=1)
        elif self._on_disk is not None and not self._is_here(entry):
            self._stats.add(keys=keys, bytes_wanted=wanted)
        elif keys == 1:
            self._stats.add_read(fetched)
        else:
            self._stats.add(keys=keys, requests=1, bytes_wanted=wanted, bytes_fetched=fetched)

    def _is_kept(self, span: Span) -> bool:
        kept = self._pool.versions.kept(span)
        return kept is not None and kept.is_whole

    def find(self, keyspace: KeySpace, key: str, *, may_load: bool = False) -> Entry | None:
        """Return where the bytes of ``key`` are; FileNotFoundError means that there is no such key."""
        try:
            if keyspace.in_memory:
                entry = keyspace.find(key)
            else:
                found = self.run(keyspace.lookup(key), may_load=may_load)
                if found is None:
                    return None
                entry = found.value
        except Exception as e:  # noqa: BLE001  # `blame` tells which
            raise blame(key, e) from sanitize_cause(e.__cause__ or e)
        if entry is None:
            raise FileNotFoundError(key)
        return entry

    def find_all(self, keyspace: KeySpace, keys: Sequence[str]) -> list[Found | None]:
        """Return where each of ``keys`` lies, `Found` of None if there is no such key, as far as that is remembered."""
        # After an error the event loop looks the keys up, and tells whose it is.
        if keyspace.in_memory:
            with contextlib.suppress(Exception):
                return [Found(keyspace.find(key)) for key in keys]
        out: list[Found | None] = [None] * len(keys)
        if self._foreseen:
            out = [self._take_foreseen(keyspace, key) for key in keys]
        unknown = [place for place, found in enumerate(out) if found is None]
        for look_up in keyspace.lookups([keys[place] for place in unknown]) if unknown else ():
            with contextlib.suppress(Exception):
                found = self.run(look_up.steps, may_load=False)
                for place, entry in zip(look_up.places, () if found is None else found.value, strict=False):
                    out[unknown[place]] = Found(entry)
        return out

    def foresee(self, keyspace: KeySpace, key: str, entry: Entry) -> None:
        """Remember where a chunk lies that is fetched ahead, until it is looked up."""
        if not self._is_written:
            if len(self._foreseen) >= FORESEEN:  # chunks that were expected, and never read
                self._foreseen.clear()
            self._foreseen[key] = keyspace, entry

    def _take_foreseen(self, keyspace: KeySpace, key: str) -> Found | None:
        known = self._foreseen.pop(key, None)
        return Found(known[1]) if known is not None and known[0] is keyspace else None

    def reaches(self, span: Span) -> bool:
        """Whether the bytes of ``span`` need no event loop. Of what may not be read, or opened, its reader is told."""
        if self._is_kept(span):
            return True
        try:
            if self._pool.place(span.url, span.origin) is not None:
                return True
        except Exception:  # noqa: BLE001  # a filesystem's class may raise anything
            return False
        if self._on_disk is None or self._pool.versions.proven(span.url, span.pin) is None:
            return False
        return self._on_disk.has(span)

    def _is_here(self, entry: Entry) -> bool:
        """Whether the objects of ``entry``, which may be read, are on this machine."""
        return all(self._pool.place(span.url, span.origin) is not None for span in entry.spans)

    def has(self, entry: Entry) -> bool:
        """Whether the bytes of ``entry`` need no event loop."""
        return all(map(self.reaches, entry.spans))

    def run(self, steps: Steps[Any], *, may_load: bool = True) -> Found | None:
        """Return what ``steps`` return, if all that they need is remembered.

        With ``may_load`` what is not is read and decoded, if that takes no event loop: for callers that may block.
        """
        try:
            advance(steps, None, lambda need: self._answer(need, may_load))
        except StopIteration as stop:
            return Found(stop.value)
        except (OSError, TargetChanged):  # the event loop finds out again, tells the look-up, or says what is wrong
            return None
        steps.close()
        return None

    def _answer(self, need: Need, may_load: bool) -> Found | None:
        """Return the answer to ``need``; None where that takes an event loop."""
        known = self._answers.get(need, self._pool)
        if known is not None:
            return Found(known)
        return self._load(need) if may_load and isinstance(need, Load) else None

    def _load(self, need: Load) -> Found | None:
        """Return the answer to ``need``; None where an event loop is needed, or is to find out what went wrong."""
        entry = need.entry
        if not isinstance(entry, Span) or isinstance(need.index, Scanned | Streamed):
            return None
        with self._loading:  # of several threads one loads, and the others find it
            value = self._answers.get(need, self._pool)
            if value is not None:
                return Found(value)
            with naming(entry):
                try:
                    check_size(entry.size, self._answers.longest)
                    plan = ReadPlan(None, entry, self._answers.longest)
                    parts = self._read(plan)
                    data = None if parts is None else plan.assemble(parts)
                except TooLarge:
                    raise
                except ABSENT:
                    return Found(None) if entry.optional else None
                except OSError:
                    return None
                if data is None:
                    return None
                value = decode(sized(need, self._pool), data)
            self._answers.put(need, value, getattr(value, "nbytes", len(data)), self._pool)
            return Found(value)

    def _read(self, plan: ReadPlan) -> list[bytes | BaseException] | None:
        """Return the bytes of each range of ``plan``, or its error; None where they take an event loop."""
        parts: list[bytes | BaseException] = []
        for span in plan.window.spans:
            try:
                answer = self._fetch(span, plan.most)
            except Exception as e:  # noqa: BLE001  # the plan says what it means
                parts.append(e)
            else:
                if answer is None:
                    return None
                parts.append(bytes(answer.data))
        return parts

    def _fetch(self, span: Span, most: int | None = None) -> Answer | None:
        kept = self._pool.versions.kept(span)
        if kept is not None and kept.is_whole:
            found = kept.answer(span.start, span.stop, span.pin)
            check(found, span.start, span.stop, exact=span.exact)
            return found
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
        return answer

    def _recall(self, span: Span, most: int | None) -> Answer | None:
        """Return what is kept on disk of ``span``, if the session knows that this is its version."""
        if self._on_disk is None or not keeps(span, most):
            return None
        facts = self._pool.versions.proven(span.url, span.pin)
        data = None if facts is None else self._on_disk.get(span, facts)
        if data is None or facts is None:
            return None
        self._stats.add(disk_hits=1, disk_bytes=len(data))
        if span.stop is None:
            check_size(len(data), most)
        return Answer(data, facts)

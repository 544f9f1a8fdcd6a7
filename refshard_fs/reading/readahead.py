"""Which chunks will be read next, guessed from those that were: a pure policy, fed with chunk numbers. No I/O here.

A *run* is a nested arithmetic progression of chunk numbers, which is what slices of an
array are in C order, forwards or backwards, strided, rows, columns or boxes; where the
bytes lie does not matter. Runs are found in what is read, and followed: what is fetched
ahead grows with what has been read of a run, halts at natural ends (of rows, halves of
an array), is dropped where the run ends, and shrinks for arrays where much was dropped.
Where it is known how many reads will follow, that many are fetched at once, and no more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from refshard_fs.core.keys import ChunkGrid
from refshard_fs.reading.plan import MIB

__all__ = ["Advice", "Ends", "ReadAhead", "Run"]

# ----------------------------------------------------------------------------------------------------
# A nested arithmetic progression of chunk numbers: how far it has been read, and how it goes on. No I/O here.


LEVELS = 4
LEAST = 5  # chunks of a run before any is fetched ahead


class Level:
    __slots__ = ("count", "index", "start", "step")

    def __init__(self, step: int, start: int, index: int) -> None:
        self.step, self.start, self.index = step, start, index
        self.count: int | None = None  # None: unknown, it goes on


class Run:
    """One nested progression and how far it has been read; ``levels[0]`` changes fastest."""

    __slots__ = (
        "beyond", "call", "calls", "doubt", "early", "first", "frontier", "idle", "issued", "known", "last", "length",
        "levels", "limit", "tentative", "wasted",
    )  # fmt: skip

    def __init__(self, first: int, step: int, doubt: int) -> None:
        self.levels = [Level(step, first, 2)]
        self.first = first
        self.last = first + 2 * step
        self.length = 3
        self.doubt = doubt
        self.issued: dict[int, None] = {}
        self.early: dict[int, None] = {}  # read before their turn
        self.frontier: list[tuple[int, int]] | None = None  # (start, index) of each level, as far as was issued
        self.beyond = 0  # chunks of the frontier past `limit`, the natural end that was in its way
        self.limit: int | None = None
        self.idle = self.call = self.calls = self.wasted = 0
        self.tentative = False
        self.known = False  # what was issued last is known to follow

    @property
    def step(self) -> int:
        """The step of the outermost level."""
        return self.levels[-1].step

    @property
    def is_sure(self) -> bool:
        """Whether it has gone on for long enough to be followed."""
        return not self.tentative and self.length >= LEAST + self.doubt

    @property
    def repeats_once(self) -> bool:
        """Whether it goes through the same progression for the second time."""
        return len(self.levels) > 1 and self.levels[-1].index == 1

    @property
    def repetition(self) -> int:
        """Chunks of one repetition."""
        return math.prod(level.count or 1 for level in self.levels[:-1])

    def takes(self, number: int) -> bool:
        if number in self.issued or self._advancing(number) is not None:
            return True
        return bool(self.early) and number == next(reversed(self.early)) + self.levels[0].step

    def take(self, number: int) -> bool:
        """Go on to ``number``; return whether it was learned that a level is shorter than it looked."""
        if number in self.issued:
            del self.issued[number]
        else:
            self.frontier = None
        self.length += 1
        level = self._advancing(number)
        if level is None:
            return self._skip(number)
        learned = self._advance(level, number)
        while self.early:
            following = next(self.ahead(1 << 63), None)
            if following not in self.early:
                break
            del self.early[following]
            level = self._advancing(following)
            assert level is not None
            self._advance(level, following)
        return learned

    def _skip(self, number: int) -> bool:
        """Take a number before its turn: out of order, or what the run really goes on with."""
        step = self.levels[0].step
        previous = next(reversed(self.early), None)
        self.early[number] = None
        if previous is None or number != previous + step:
            return False
        self.early.clear()
        self.length -= 1
        if not self.branch(previous):
            self._jump(previous)
        level = self._advancing(number)
        if level is not None:
            self._advance(level, number)
        return True

    def _jump(self, number: int) -> None:
        """Go on at ``number``, as a run of its own."""
        self.levels = [Level(self.levels[0].step, number, 0)]
        self.first = self.last = number

    def branch(self, number: int) -> bool:
        """Try ``number`` as the start of the same progression elsewhere; the next one confirms it or ends the run."""
        top = self.levels[-1]
        if len(self.levels) == LEVELS or number == top.start or any(not _complete(v) for v in self.levels[:-1]):
            return False
        self.levels.append(Level(number - top.start, top.start, 0))
        self._advance(len(self.levels) - 1, number)
        self.length += 1
        self.tentative = True
        return True

    def _advancing(self, number: int) -> int | None:
        for k, level in enumerate(self.levels):
            if (level.count is None or level.index + 1 < level.count) and (
                number == level.start + (level.index + 1) * level.step
            ):
                return k
            if not _complete(level):
                return None
        return None

    def _advance(self, k: int, number: int) -> bool:
        learned = False
        for level in self.levels[:k]:
            if level.count is None:
                level.count = level.index + 1
                learned = True
            level.start, level.index = number, 0
        self.levels[k].index += 1
        self.last = number
        if k == 0 and self.tentative:
            self.tentative = False
            learned = True
        return learned

    def _count(self, k: int) -> float:
        """Return how many repetitions level ``k`` has room for: columns end where they would go over the first."""
        level = self.levels[k]
        if level.count is not None:
            return level.count
        step, within = abs(level.step), abs(self.levels[k - 1].step)
        return math.ceil(within / step) if k and 0 < step < within else math.inf

    def state(self) -> list[tuple[int, int]]:
        return [(level.start, level.index) for level in self.levels]

    def ahead(self, size: int) -> Iterator[int]:
        """Yield the numbers expected next, in a grid of ``size`` chunks."""
        return self.steps_from(self.state(), size)

    def steps_from(self, state: list[tuple[int, int]], size: int) -> Iterator[int]:
        """Yield the numbers expected after ``state``, and keep it at the last one."""
        counts = [self._count(k) for k in range(len(self.levels))]
        while True:
            for k, level in enumerate(self.levels):
                start, index = state[k]
                number = start + (index + 1) * level.step
                if index + 1 < counts[k] and 0 <= number < size:
                    state[k] = start, index + 1
                    for j in range(k):
                        state[j] = number, 0
                    break
            else:
                return
            yield number


def _complete(level: Level) -> bool:
    return level.count is None or level.index + 1 == level.count


# ----------------------------------------------------------------------------------------------------
# Where reading an array may well end, or turn elsewhere: after a row, half of one, a shard. No I/O here.


HALVES = 64  # chunks in a line from which on its half is a natural end,
HALF = 8 * MIB  # and of a stride if it has so many bytes: to fetch fewer in vain costs less than to wait once more


class Ends:
    """The ends of one array's lines (rows, planes, ...) and shards; numbers are those of chunks."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._grid = grid
        self._lines = _lines(grid.counts)
        self._bands = _bands(grid)

    def natural(self, run: Run, chunk: int) -> int | None:
        """Return the number before which (in the run's direction) reading may well end; None if nothing is special."""
        step, first, last = run.step, run.first, run.last
        found: int | None = None
        sparse = self.is_sparse(run)
        dense = abs(step) == 1 or bool(self._grid.shards)
        for line in self._lines:
            if line <= abs(step) or first // line != last // line:
                continue
            start = last // line * line
            half = start + line // 2
            steps = line // abs(step)
            halves = not sparse and steps >= HALVES and (dense or steps // 2 * chunk >= HALF)
            if step > 0:
                end = half if halves and last < half else start + line
                found = end if found is None else min(found, end)
            else:
                end = half if halves and last >= half else start
                found = end if found is None else max(found, end)
        return found

    def of_shards(self, run: Run) -> int | None:
        """Return where the row of shards ends that a run goes through line by line; None if it goes through none."""
        end = None
        for line, band, plane in self._bands:
            if run.step > 0 and run.last - run.first >= line:
                start = run.last // plane * plane
                first = start + (run.last - start) // band * band
                end = min(first + band, start + plane) if run.first >= first else None
        return end

    def is_sparse(self, run: Run) -> bool:
        """Whether ``run`` is a column that has gone on into a further shard.

        Little is lost if it ends, and each halt costs two waits.
        """
        return bool(self._grid.shards) and abs(run.step) > 1 and self._shard_of(run.first) != self._shard_of(run.last)

    def all_follow(self, run: Run, following: int) -> bool:
        """Whether ``following`` reads more can only be of ``run``, and not of lines of which it has read no end yet."""
        step, first, last = abs(run.step), run.first, run.last
        total = run.length + following
        for line in self._lines[:-1]:
            if line <= step or first // line != last // line:
                continue
            start, lines = first % line, self._lines[-1] // line - first // line
            if run.step < 0:
                start, lines = line - 1 - start, first // line + 1
            width = -(-(line - start) // step)
            fills = start < step and total % width == 0
            if not fills or any(total % w == 0 and total // w <= lines for w in range(run.length, width)):
                return False
        return self.edge(run) is None

    def edge(self, run: Run) -> int | None:
        """Return where the shard ends, within its line, that a run has not left yet; None if it is as long as its line.

        What follows may be the next line of the same shard as well as the next shard.
        """
        lower = 1
        for width, line in zip(reversed(self._grid.shards), self._lines[:-1], strict=False):
            if line > abs(run.step):
                start = run.last // line * line
                band = width * lower
                place = (run.last - start) // band
                if band >= line or run.first < start + place * band or run.first >= start + (place + 1) * band:
                    return None
                return min(start + (place + 1) * band, start + line) if run.step > 0 else start + place * band
            lower = line
        return None

    def _shard_of(self, number: int) -> tuple[int, ...]:
        grid = self._grid
        return tuple(c // s for c, s in zip(grid.coords(number), grid.shards, strict=True))


def _bands(grid: ChunkGrid) -> tuple[tuple[int, int, int], ...]:
    """Return, for each dimension that shards extend along, how many chunks a line has, a row of shards, and a plane."""
    lines = (1, *_lines(grid.counts))[::-1]  # lines[d] chunks have the same coordinates before dimension d
    dimensions = range(max(len(grid.shards) - 2, 0), -1, -1) if grid.shards else ()
    return tuple((lines[d + 1], lines[d + 1] * grid.shards[d], lines[d]) for d in dimensions)


def _lines(counts: Sequence[int]) -> tuple[int, ...]:
    """Return how many chunks a row has, a plane, and so on, up to the whole array."""
    lines, size = [], 1
    for count in reversed(counts):
        size *= count
        lines.append(size)
    return tuple(lines)


RUNS = 8  # followed at once in one array
PASS = 1 << 16  # numbers that are remembered as read
STRAYS = 16  # numbers of no run that are remembered, to find runs among them
SHARD_GROWTH = 8  # chunks of the shards that are being read, or of a column through them, to fetch for each that was
FIRST = 8  # chunks of a run before any is fetched ahead in the call that begins it, unless more are known to follow
FADED = 64  # numbers of runs in a row after which no stray counts
IDLE = 24  # numbers read elsewhere after which a run counts as left
SLACK = 0.15  # how far past a natural end to go, as a part of what has been read
FORESEEN = 0.75  # of the last numbers, those that must have been foreseen for any to be fetched ahead
LEAST_TRUST = 1 / 16
LONG = 32  # chunks of a column, say, from which on two of them are no sign of a third,
ONCE = -1  # and the natural end is the second one's
REST = 0.5  # of what may be fetched ahead: fetched beyond that where a natural end is so near


class Advice(msgspec.Struct, frozen=True):
    """Chunks to fetch ahead, in the order that they are expected in; those not expected any more; and those that
    were and have been read.
    """

    fetch: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()


_NOTHING = Advice()


class _Reach(NamedTuple):
    """How far ahead to fetch."""

    allowed: int
    """Chunks ahead of the last one that was read."""
    limit: int | None = None
    """The number before which, in the run's direction, reading may well end."""
    slack: int = 0
    """Chunks to go past ``limit``."""
    rest: int = 0
    """Chunks more than ``allowed``, where they reach ``limit``."""
    once: bool = False
    """Whether the run's second repetition ends there, and ``limit`` says nothing."""

    def within(self, following: int, edge: int | None) -> _Reach:
        """Return how far to go where ``following`` reads follow, and may turn elsewhere at ``edge``."""
        if edge is not None:
            return _Reach(min(self.allowed, following), edge)
        rest = min(self.rest, max(following - self.allowed, 0))
        return self._replace(allowed=min(self.allowed, following), rest=rest)


def _unknown() -> None:
    return None


class ReadAhead:
    """The policy for one array; not thread-safe."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._grid = grid
        self._size = grid.size
        self._ends = Ends(grid)
        self._runs: list[Run] = []
        self._strays: deque[int] = deque(maxlen=STRAYS)
        self._recent: Run | None = None  # took the last number
        self._taken = 0  # numbers that runs took since the last that none did
        self._foreseen: deque[bool] = deque(maxlen=STRAYS)  # whether the last numbers were those of a run
        self._call = 0  # to whoever reads: of several ticks, where reads are known to follow
        self._continues = False
        self._trust = {False: 1.0, True: 1.0}  # in what is guessed, and in what is known to follow
        self._known: set[int] = set()  # numbers that were read in this pass: threads read in strange orders

    def observe(
        self,
        numbers: Sequence[int],
        chunk: int,
        growth: float,
        most: int,
        calls: int = 1,
        queued: Callable[[], int | None] = _unknown,
    ) -> Advice:
        """Take note that chunks ``numbers``, about ``chunk`` bytes each, were asked for, together and in this order.

        ``growth`` chunks may be fetched ahead for each one that was read of a run, and up
        to ``most`` bytes; but nothing before a run has gone on for ``calls`` calls. ``queued``
        returns how many reads will follow these in the same call, of all runs, if that is known.
        """
        if not self._continues:
            self._call += 1
        self._continues = False
        drop: list[int] = []
        hits: list[int] = []
        touched: list[Run] = []
        for number in numbers:
            if number in self._known or len(self._known) >= PASS:
                self._known.clear()  # another pass begins
            self._known.add(number)
            run = self._take(number, hits, drop)
            if run is not None and run not in touched:
                touched.append(run)
        following = queued()
        self._continues = bool(following)
        if following:  # of all runs of this selection together
            following = -(-following // max(sum(r.call == self._call and r.is_sure for r in self._runs), 1))
        fetch: list[int] = []
        for run in touched:
            if run in self._runs and run.calls >= calls and run.is_sure:
                fetch += self._extend(run, max(chunk, 1), growth, most, following)
        for run in [r for r in self._runs if r.idle > IDLE]:
            self._end(run, drop)
        if drop and (both := set(drop).intersection(fetch)):  # given up by one run and wanted by another: as it was
            fetch = [n for n in fetch if n not in both]
            drop = [n for n in drop if n not in both]
        return Advice(tuple(fetch), tuple(drop), tuple(hits)) if fetch or drop or hits else _NOTHING

    def forget(self) -> tuple[int, ...]:
        """Give all runs up; return the chunks that are not expected any more."""
        drop: list[int] = []
        for run in list(self._runs):
            drop += run.issued
            self._runs.remove(run)
        self._strays.clear()
        self._recent = None
        return tuple(drop)

    # ------------------------------------------------------------------ finding and following runs

    def _take(self, number: int, hits: list[int], drop: list[int]) -> Run | None:
        for run in self._runs:
            run.idle += 1
        for run in reversed(self._runs):
            if run.takes(number):
                if number in run.issued:
                    hits.append(number)
                self._follow(run, number, drop)
                self._foreseen.append(True)
                self._taken += 1
                if self._taken == FADED:
                    self._strays.clear()  # reading goes elsewhere now
                return run
        self._taken = 0
        self._unsettle(drop)
        found = self._discover(number)
        recent = self._recent
        self._foreseen.append(found is not None)
        if found is None:
            self._strays.append(number)
        elif found.doubt == 0:
            self._foreseen.extend((True, True, True))
        if found is not None:
            self._runs.append(found)
            self._touch(found)
            if len(self._runs) > RUNS:
                self._end(self._runs[0], drop)
            return found
        if recent is not None and recent in self._runs and recent.branch(number):
            self._touch(recent)
            return recent
        self._recent = None
        return None

    def _follow(self, run: Run, number: int, drop: list[int]) -> None:
        if self._recent is not run:
            self._unsettle(drop)
        if run.take(number):  # it is narrower than it looked
            right = set(islice(run.ahead(self._size), 2 * len(run.issued) + 8))
            wrong = [n for n in run.issued if n not in right]
            for n in wrong:
                del run.issued[n]
            run.wasted += len(wrong)
            drop += wrong
            run.frontier = None
        self._touch(run)

    def _touch(self, run: Run) -> None:
        run.idle = 0
        if run.call != self._call:
            run.call = self._call
            run.calls += 1
        self._recent = run

    def _unsettle(self, drop: list[int]) -> None:
        """End the run that branched with the last number, for this one does not go on there."""
        if self._recent is not None and self._recent.tentative:
            self._end(self._recent, drop)

    def _discover(self, number: int) -> Run | None:
        """Return the run that ``number`` makes with two strays, the latest first."""
        strays = self._strays
        for i in range(len(strays) - 1, 0, -1):
            middle = strays[i]
            first = 2 * middle - number
            if middle == number:
                continue
            for j in range(i - 1, -1, -1):
                if strays[j] == first:
                    adjacent = i == len(strays) - 1 and j == i - 1
                    run = Run(first, middle - first, doubt=0 if adjacent else 2)
                    del strays[i], strays[j]
                    return run
        return None

    def _end(self, run: Run, drop: list[int]) -> None:
        self._runs.remove(run)
        if self._recent is run:
            self._recent = None
        wasted = run.wasted + len(run.issued)
        drop += run.issued
        if wasted > 0.3 * run.length:
            self._trust[run.known] = max(self._trust[run.known] / 2, LEAST_TRUST)
        elif run.length >= 32:
            self._trust[run.known] = min(self._trust[run.known] * 2, 1.0)

    # ------------------------------------------------------------------ how far ahead

    def _extend(self, run: Run, chunk: int, growth: float, most: int, following: int | None) -> list[int]:
        if sum(self._foreseen) < FORESEEN * len(self._foreseen):
            return []
        if following and self._ends.all_follow(run, following):
            fetch = self._fetch(run, chunk, most, _Reach(int(self._trust[True] * following)))
            run.known = run.known or bool(fetch)
            if fetch or run.calls == 1:
                return fetch
        if run.calls == 1 and (following == 0 or run.length < FIRST + run.doubt):
            return []
        reach = self._guess(run, chunk, growth)
        if following and run.calls == 1:
            reach = reach.within(following, self._ends.edge(run))
        fetch = self._fetch(run, chunk, most, reach)
        run.known = run.known and not fetch
        return fetch

    def _guess(self, run: Run, chunk: int, growth: float) -> _Reach:
        """Return how far to go where it is not known what follows."""
        ends, shards = self._ends, self._grid.shards
        limit = ends.natural(run, chunk)
        if (end := ends.of_shards(run)) is not None:
            limit = end if limit is None else min(limit, end)
        if end is not None or ends.is_sparse(run):
            growth = max(growth, SHARD_GROWTH)
        if once := run.repeats_once and run.repetition >= LONG:
            limit = ONCE
        elif abs(run.levels[0].step) > abs(run.step):  # column after column: each goes past any end
            limit = None
        allowed = int(growth * self._trust[False] * run.length)
        if shards:  # past their end is an index to be read
            return _Reach(allowed, limit, once=once)
        return _Reach(allowed, limit, int(SLACK * (run.length + len(run.issued))), int(REST * allowed), once)

    def _fetch(self, run: Run, chunk: int, most: int, reach: _Reach) -> list[int]:
        """Return the chunks that follow in ``run``, as far as ``reach`` lets it go and they are not fetched yet."""
        limit, slack, once = reach.limit, reach.slack, reach.once
        allowed = min(reach.allowed, most // chunk)
        room = allowed - len(run.issued)
        if room <= 0 or (run.beyond and limit == run.limit and run.frontier is not None):
            return []
        state = run.state() if run.frontier is None else list(run.frontier)
        beyond = 0 if run.frontier is None else run.beyond
        fetch: dict[int, None] = {}  # a box may overlap itself
        before = list(state)
        others = [other.issued for other in self._runs if other is not run and other.issued]
        ended = True
        full: tuple[list[tuple[int, int]], int, int] | None = None  # state, beyond and what was to be fetched at `room`
        most_room = min(room + reach.rest, most // chunk - len(run.issued))
        for number in islice(run.steps_from(state, self._size), 4 * allowed + STRAYS):
            if once:
                past = state[-1][1] > 1
            else:
                past = limit is not None and (number >= limit if run.step > 0 else number < limit)
            beyond = beyond + 1 if past else 0
            if len(fetch) == room and full is None:
                full = before, beyond - past, len(fetch)
            if (full is not None and (past or len(fetch) >= most_room)) or beyond > slack:
                state, beyond, ended = before, beyond - past, False
                break
            if number not in run.issued and number not in self._known and not any(number in o for o in others):
                fetch[number] = None
            before = list(state)
        if full is not None and not ended and len(fetch) >= most_room:  # it goes on: the end is not near
            state, beyond, count = full
            fetch = dict.fromkeys(islice(fetch, count))
        if not ended and not beyond and len(fetch) < allowed / 2 and len(fetch) * chunk < MIB:
            return []  # too little to be worth a request: wait until there is more room
        run.frontier, run.beyond, run.limit = state, beyond, limit
        run.issued.update(fetch)
        return list(fetch)

"""A nested arithmetic progression of chunk numbers: how far it has been read, and how it goes on. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["Run"]

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

"""Which chunks will be read next, guessed from those that were: a pure policy, fed with chunk numbers. No I/O here.

It is for callers who ask for one chunk after the other: who asks for a whole selection is served all of it at once,
and nothing is guessed. A *run* is a series of chunks whose steps repeat, as those of rows, columns and boxes do,
forwards or backwards, strided or not; where the bytes lie does not matter. One window, in bytes, says how far ahead
of a run to fetch: it begins at what the link carries in a round trip, doubles when a chunk that was foreseen had to
be waited for, and halves when chunks were fetched in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from refshard_fs.reading.plan import MIB

SURE = 4  # chunks of a run that it foresaw, from which on it is followed;
SURE_AT_ONCE = 6  # if all were asked for together, which may be all there is
STEPS = 256  # of a run, in which is looked for how it goes on
PASS = 1 << 16  # chunks that are remembered as read, and not fetched again
LEAST = 16  # a window does not become smaller than this part of the one that it began with


class Advice(NamedTuple):
    """Chunks to fetch ahead, in the order that they are expected in, and those that are not expected any more."""

    fetch: list[int]
    drop: list[int]


class ReadAhead:
    """The policy for one array of ``size`` chunks; not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._run: _Run | None = None
        self._unread: set[int] = set()  # chunks that were fetched ahead
        self._known: set[int] = set()  # chunks that were read in this pass: threads read in strange orders
        self._calls = 0
        self._bytes = 0  # that were read
        self._window = 0  # bytes

    def observe(self, numbers: Sequence[int], chunk: int, window: int, most: int, *, late: bool = False) -> Advice:
        """Take note that chunks ``numbers``, about ``chunk`` bytes each, were asked for, together and in this order.

        ``window`` is what to fetch ahead of a run at first, ``most`` the bytes to hold at most. ``late``: one of the
        chunks was fetched ahead, and has not arrived.
        """
        self._calls += 1
        self._bytes += len(numbers) * chunk
        drop: list[int] = []
        for number in numbers:
            if number in self._known or len(self._known) >= PASS:
                if self._run is not None and self._run.last == number:
                    continue  # the same once more
                self._known.clear()  # another pass begins
            self._known.add(number)
            self._follow(number, drop)
        self._resize(window, late=late, wasted=bool(drop))
        run = self._run
        if run is None or run.foreseen < (SURE if run.calls > 1 else SURE_AT_ONCE):
            return Advice([], drop)
        return Advice(self._fetch(run, max(chunk, 1), most), drop)

    def forget(self) -> None:
        """Expect nothing any more."""
        self._run = None
        self._unread.clear()

    def _resize(self, window: int, *, late: bool, wasted: bool) -> None:
        self._window = self._window or window
        if wasted:
            self._window = max(self._window // 2, window // LEAST)
        elif late:  # what is fetched in vain is no more than what was read
            self._window = max(self._window, min(2 * self._window, self._bytes))

    def _follow(self, number: int, drop: list[int]) -> None:
        """Take note of one chunk, with which the run goes on, turns, or begins anew."""
        run = self._run
        if run is None:
            run = _Run([], number, self._size)
        elif number in self._unread and run.turns_with(number):
            run = self._branch(run, run.latest_early, drop)
            run.take(number)
        elif not run.take(number):
            run = self._branch(run, number, drop)
        self._unread.discard(number)
        self._run = run
        run.note(self._calls)

    def _branch(self, run: _Run, number: int, drop: list[int]) -> _Run:
        """Return ``run`` as it goes on from ``number``; what is not expected after that is dropped."""
        new = run.branch(number)
        wrong = self._unread.difference(islice(new.following(), 2 * len(self._unread) + STEPS), (number,))
        self._unread -= wrong
        drop += wrong
        return new

    def _fetch(self, run: _Run, chunk: int, most: int) -> list[int]:
        """Return the chunks that follow in ``run``, as far as the window lets it go and they are not fetched yet."""
        window = min(self._window, most)
        room = min(window // chunk - len(run.coming), most // chunk - len(self._unread))
        if room <= 0 or room * chunk < min(window // 2, MIB):  # too little to be worth a request
            return []
        fetch: list[int] = []
        for _ in range(4 * room):
            number = run.go_on() if len(fetch) < room else None
            if number is None:
                break
            if number in self._known:
                run.skip(number)
            elif number not in self._unread:
                self._unread.add(number)
                fetch.append(number)
        return fetch


class _Run:
    """Chunks read one after the other, and those that follow if its steps are repeated.

    ``steps`` are the differences of the numbers, each with how often it came in a row: rows of a box are ``[(1, 15),
    (17, 1), (1, 15), ...]``. What followed the same steps before is expected to follow them again.
    """

    def __init__(self, steps: list[tuple[int, int]], last: int, size: int) -> None:
        self.last = last
        self.foreseen = 0  # chunks that came as expected, some of them those of the run that this one branched from
        self.went_on = False  # as it was expected to, once at least
        self.calls = 0
        self.coming: dict[int, None] = {}  # the next chunks, in order, as far as they were looked at
        self._early: dict[int, None] = {}  # those of them that were read before their turn
        self._call = 0
        self._steps = steps
        self._size = size
        self._further = self.following()
        self.next = next(self._further, None)  # after those that are coming

    @property
    def latest_early(self) -> int:
        """The chunk that was read last before its turn."""
        return next(reversed(self._early))

    def note(self, call: int) -> None:
        """Take note of the call in which the run was read."""
        self.calls += call != self._call
        self._call = call

    def go_on(self) -> int | None:
        """Return the chunk after those that are coming, and count it among them; None at the end of the array."""
        number = self.next
        if number is not None:
            self.coming[number] = None
            self.next = next(self._further, None)
        return number

    def skip(self, number: int) -> None:
        """Take note that ``number``, one of those that are coming, was read long ago."""
        self._early[number] = None

    def take(self, number: int) -> bool:
        """Take note that ``number`` was read; False, and nothing changes, if it was not expected."""
        first = next(iter(self.coming), None)
        if first is None:
            if self.next != number:
                return False
            first = self.go_on()
        elif number not in self.coming:
            return False
        self.went_on = True
        self.foreseen += 1
        self._early[number] = None
        while first in self._early:
            del self.coming[first], self._early[first]
            self._steps = _stepping(self._steps, first - self.last)
            self.last = first
            first = next(iter(self.coming), None)
        if len(self._steps) > 2 * STEPS:
            del self._steps[:-STEPS]
        return True

    def turns_with(self, number: int) -> bool:
        """Whether the chunk that was read last before its turn is where the run really goes on, and ``number`` next."""
        return bool(self._early) and number - self.latest_early == self._steps[-1][0]

    def branch(self, number: int) -> _Run:
        """Return this run as it goes on if ``number`` follows, which was not expected."""
        known = self._steps[-STEPS if self.went_on else -3 :]  # what nothing followed on may be at random
        run = _Run(_stepping(known, number - self.last), number, self._size)
        run.foreseen = min(self.foreseen, SURE - 1) if self.went_on else 0
        run.calls, run._call = self.calls, self._call
        return run

    def following(self) -> Iterator[int]:
        """Yield the chunks that follow the last one."""
        cycle, done = self._cycle()
        number = self.last
        while cycle:
            for step, times in cycle:
                while done < times:
                    number += step
                    if not 0 <= number < self._size:
                        return
                    yield number
                    done += 1
                done = 0

    def _cycle(self) -> tuple[list[tuple[int, float]], int]:
        """Return the steps that will be repeated, and how often the first of them was taken already."""
        steps = self._steps
        if not steps:
            return [], 0
        step, count = steps[-1]
        longest, begin = -1, 0
        for place in range(len(steps) - 2, -1, -1):
            if steps[place][0] == step and steps[place][1] >= count:
                same = 0  # steps before that are those before the last one, too
                while same < place and steps[place - 1 - same] == steps[-2 - same]:
                    same += 1
                if same > longest:
                    longest, begin = same, place
        if longest >= 0:
            return [*steps[begin:-1]], count
        if count == 1 and len(steps) > 1:  # the first step of its kind: all that came before, once more
            return [steps[-1], *steps[:-1]], 1
        self._steps = [steps[-1]]
        return [(step, math.inf)], count


def _stepping(steps: list[tuple[int, int]], step: int) -> list[tuple[int, int]]:
    """Return ``steps``, which are changed, and then one more."""
    if steps and steps[-1][0] == step:
        steps[-1] = step, steps[-1][1] + 1
    else:
        steps.append((step, 1))
    return steps

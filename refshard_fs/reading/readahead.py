"""Which chunks will be read next, guessed from those that were: a pure policy, fed with chunk numbers. No I/O here.

It is for callers who ask for one chunk after the other, or for one box of chunks that are read together.

The differences between the numbers of successive chunks (*steps*) are expected to repeat. In a line or a stride they
are all the same; in a box those of a row come again after a larger step. Several threads, and dask, which sorts numbers
as texts, read neighbours in no such order: once `RUN` of them were read, those beyond are expected, and a single chunk
elsewhere changes nothing. Where the bytes lie does not matter. A window in bytes says how far ahead to fetch: it begins
at what the link carries in a round trip, doubles when a chunk that was foreseen had to be waited for, and halves when
chunks were fetched in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle, islice, takewhile
from typing import NamedTuple

from refshard_fs.reading.plan import MIB

SURE = 4  # chunks that were foreseen, from which on more are fetched ahead;
SURE_AT_ONCE = 6  # if all were asked for together, which may be all there is
RUN = 8  # neighbours that were all read, in whatever order, after which those beyond them are expected
STEPS = 512  # the last ones, in which is looked for what comes next,
ALIKE = 32  # and those that are compared: few, since all this is done at each unexpected chunk
PASS = 1 << 16  # chunks that are remembered as read, and not fetched again
LEAST = 16  # a window does not become smaller than this part of the one that it began with
# What is fetched ahead and not read, so far or ever, has at most so many bytes, or this part of what was read.
FREE = MIB
SHARE = 4


class Advice(NamedTuple):
    """Chunks to fetch ahead, in the order that they are expected in, and those that are not expected any more."""

    fetch: list[int]
    drop: list[int]


class ReadAhead:
    """The policy for one array of ``size`` chunks; not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._window = 0  # bytes
        self._bytes = 0  # that were read
        self._dropped: set[int] = set()  # chunks that were fetched ahead and not expected any more, nor read since
        self._read: set[int] = set()  # chunks of this pass over the array: threads read in strange orders
        self.forget()

    def forget(self) -> None:
        """Expect nothing any more."""
        self._calls = 0
        self._last: int | None = None  # the chunk up to which all came in the expected order
        self._steps: list[int] = []  # up to there
        self._coming: dict[int, bool] = {}  # chunks that are expected, in order: whether they were read before that
        self._further: Iterator[int] = iter(())  # those that are expected after them
        self._next: int | None = None  # the first of these
        self._early: int | None = None  # the last chunk that was read and expected, perhaps before its turn
        self._foreseen = 0  # chunks that came as expected
        self._goes_on = False  # one at least since the expected ones were chosen
        self._unread: set[int] = set()  # chunks that were fetched ahead
        self._is_run = False  # neighbours are expected, and not the steps again
        self._is_astray = False  # the last chunk lies elsewhere

    def observe(self, numbers: Sequence[int], chunk: int, window: int, most: int, *, late: bool = False) -> Advice:
        """Take note that chunks ``numbers``, about ``chunk`` bytes each, were asked for, together and in this order.

        ``window`` is what to fetch ahead at first, ``most`` the bytes to hold at most. ``late``: one of the chunks was
        fetched ahead, and has not arrived.
        """
        self._calls += 1
        self._bytes += len(numbers) * chunk
        drop: list[int] = []
        for number in numbers:
            if number in self._read or len(self._read) >= PASS:
                if number == self._last:
                    continue  # the same once more
                self._read.clear()  # another pass begins
            self._read.add(number)
            self._follow(number, drop)
            self._unread.discard(number)
            self._dropped.discard(number)  # it may have been kept
        self._dropped.update(drop)
        self._window = self._window or window
        if drop:
            self._window = max(self._window // 2, window // LEAST)
        elif late:  # what is fetched in vain is no more than what was read
            self._window = max(self._window, min(2 * self._window, self._bytes))
        is_sure = self._foreseen >= (SURE if self._calls > 1 else SURE_AT_ONCE)
        return Advice(self._fetch(max(chunk, 1), most) if is_sure else [], drop)

    def _follow(self, number: int, drop: list[int]) -> None:
        """Take note of one chunk, whether it was expected or not."""
        early = self._early
        is_near = not self._is_run and early in self._coming and number in self._unread
        if early is not None and is_near and self._steps[-1:] == [number - early]:
            self._turn(early, drop)  # the chunk that came before its turn was where the reader really goes on
        if self._take(number):
            self._is_astray = False
        elif self._is_run and not self._is_astray:
            self._is_astray = True
        else:
            self._turn(number, drop)

    def _take(self, number: int) -> bool:
        """Take note that ``number`` was read; False, and nothing changes, if it was not expected."""
        if number not in self._coming:
            if self._coming or self._next != number:
                return False
            self._go_on()
        self._coming[number] = True
        self._goes_on = True
        self._foreseen += 1
        self._early = number
        while self._coming.get(first := next(iter(self._coming), -1)):
            del self._coming[first]
            self._step_to(first)
        return True

    def _turn(self, number: int, drop: list[int]) -> None:
        """Expect what follows ``number``, which was not expected; what is not expected after that is dropped."""
        if not self._goes_on:
            del self._steps[:-ALIKE]  # steps that nothing followed may be at random
        self._foreseen = min(self._foreseen, SURE - 1) if self._goes_on else 0
        self._goes_on = False
        self._step_to(number)
        self._coming.clear()
        beyond = self._beyond(number)
        self._is_run, self._is_astray = beyond is not None, False
        if beyond is not None:
            self._foreseen = max(self._foreseen, SURE)
        following = self._following() if beyond is None else iter(beyond)
        wrong = self._unread.difference(islice(following, 2 * len(self._unread) + STEPS), (number,))
        self._unread -= wrong
        drop += wrong
        self._further = self._following() if beyond is None else iter(beyond)
        self._next = next(self._further, None)

    def _beyond(self, number: int) -> range | None:
        """Return the chunks beyond the run of neighbours at ``number``, at its nearer end; None if it is short."""
        low = high = number
        while number - low < RUN and low - 1 in self._read:
            low -= 1
        while high - number < RUN and high + 1 in self._read:
            high += 1
        if high - low + 1 < RUN:
            return None
        return range(high + 1, self._size) if high - number <= number - low else range(low - 1, -1, -1)

    def _step_to(self, number: int) -> None:
        if self._last is not None:
            self._steps.append(number - self._last)
            if len(self._steps) > 2 * STEPS:
                del self._steps[:-STEPS]
        self._last = number

    def _following(self) -> Iterator[int]:
        """Yield the chunks that follow the last one: what came after the same steps before, again and again."""
        assert self._last is not None
        again = cycle(self._steps[-_period(self._steps) :])
        return takewhile(range(self._size).__contains__, islice(accumulate(again, initial=self._last), 1, None))

    def _go_on(self) -> int | None:
        """Return the chunk after those that are coming, and count it among them; None at the end of the array."""
        number = self._next
        if number is not None:
            self._coming[number] = False
            self._next = next(self._further, None)
        return number

    def _fetch(self, chunk: int, most: int) -> list[int]:
        """Return the chunks that are expected, as far as the window reaches and they are not fetched yet."""
        window = min(self._window, most, max(FREE, self._bytes // SHARE) - len(self._dropped) * chunk)
        room = min(window // chunk - len(self._coming), most // chunk - len(self._unread))
        if room <= 0 or room * chunk < min(window // 2, MIB):  # too little to be worth a request
            return []
        fetch: list[int] = []
        for _ in range(4 * room):
            number = self._go_on() if len(fetch) < room else None
            if number is None:
                break
            if number in self._read:
                self._coming[number] = True
            elif number not in self._unread:
                self._unread.add(number)
                fetch.append(number)
        return fetch


def _period(steps: Sequence[int]) -> int:
    """Return how many steps ago those came that are most like the last ones; all of them, if the last one is new."""
    period, longest, last = len(steps), 0, len(steps) - 1
    for place in range(last - 1, -1, -1):
        same = 0
        while same <= min(place, ALIKE) and steps[place - same] == steps[last - same]:
            same += 1
        if same > longest:
            period, longest = last - place, same
    return period

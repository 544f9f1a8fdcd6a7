"""Predict the chunks that will be read next from the numbers of the chunks that were read. No I/O here.

The policy is for callers that read one chunk, or one box of chunks, after the other.

The differences between the numbers of successive chunks (*steps*) are expected to repeat. In a line or a stride all
steps are equal; in a box the steps of a row repeat after a larger step. Several threads, and dask, which sorts numbers
as text, read neighbours in other orders: when the last `NEAR` chunks are neighbours, or `RUN` neighbours have been
read, the chunks beyond them are expected, and a single chunk elsewhere does not change this. After such a run, two
neighbours in its direction begin another. The location of bytes does not matter. A window in bytes limits how far
ahead chunks are fetched: it begins with the capacity of a round trip of the link, doubles when a reader has to wait for
a predicted chunk, and halves when chunks were fetched in vain. Chunks of another row or plane are fetched ahead after a
reader has gone from one to another: many readers want a single plane of an image.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle, islice, takewhile
from typing import NamedTuple

from refshard_fs.reading.plan import MIB

SURE = 4  # after so many correctly predicted chunks, chunks are fetched ahead
SURE_AT_ONCE = 6  # the same, if all chunks came in one call: the reader may need no others
NEAR = 4  # if this many neighbours were read one after the other, in any order, chunks beyond them are expected
RUN = 8  # if this many neighbours were read, in any order and among other chunks, chunks beyond them are expected
STEPS = 512  # last steps that are searched for a repetition
ALIKE = 32  # the most steps that are compared at one place, since each unexpected chunk starts a search
PASS = 1 << 16  # the most chunks that are remembered as read, and not fetched again
LEAST = 16  # the window never becomes smaller than 1/16 of the first window
# The limit for bytes that were fetched ahead and not read: FREE, or 1/SHARE of the read bytes if that is more.
FREE = MIB
SHARE = 4


class Advice(NamedTuple):
    """Chunks to fetch ahead, in the expected order of reads, and chunks that are no longer expected."""

    fetch: list[int]
    drop: list[int]


class ReadAhead:
    """Predict the next reads of one array with ``counts`` chunks along its dimensions. Not thread-safe."""

    def __init__(self, *counts: int) -> None:
        sizes = list(accumulate(reversed(counts), operator.mul, initial=1))  # chunks in a row, a plane, ...
        self._size = sizes[-1]
        self._planes = [size for size in sizes if size > 1] or [1]
        self._window = 0  # bytes
        self._bytes = 0  # bytes read
        self._dropped: set[int] = set()  # chunks that were fetched ahead, are no longer expected, and were not read
        self._read: set[int] = set()  # chunks that were read in this pass over the array, in any order
        self.forget()

    def forget(self) -> None:
        """Forget all expectations."""
        self._calls = 0
        self._plane = self._planes[0]  # chunks in the smallest row or plane that the reader has not left
        self._at: int | None = None  # the last chunk that was read
        self._recent: deque[int] = deque(maxlen=NEAR)  # the last chunks that came in calls of their own
        self._direction = 0  # direction of the last run: 1 upwards, -1 downwards
        self._last: int | None = None  # the chunk up to which all chunks came in the expected order
        self._steps: list[int] = []  # the steps up to this chunk
        self._coming: dict[int, bool] = {}  # the next expected chunks, in order; True: read before its turn
        self._further: Iterator[int] = iter(())  # the chunks that are expected after the chunks in `_coming`
        self._next: int | None = None  # the first chunk of `_further`
        self._early: int | None = None  # the last expected chunk that was read, perhaps before its turn
        self._foreseen = 0  # the number of chunks that came as expected
        self._goes_on = False  # whether a chunk came as expected since the expectation last changed
        self._unread: set[int] = set()  # chunks that were fetched ahead and not read yet
        self._is_run = False  # whether the chunks beyond a run of neighbours are expected, not repeated steps
        self._is_astray = False  # whether the last chunk was unexpected

    def observe(self, numbers: Sequence[int], chunk: int, window: int, most: int, *, late: bool = False) -> Advice:
        """Note the read of chunks ``numbers``, of about ``chunk`` bytes each, together and in this order.

        ``window`` is the first window in bytes, ``most`` the most bytes to hold. ``late``: one of the chunks was
        fetched ahead, but has not arrived yet.
        """
        self._calls += 1
        self._bytes += len(numbers) * chunk
        drop: list[int] = []
        for number in numbers:
            if number in self._read or len(self._read) >= PASS:
                if number == self._last:
                    continue  # the same chunk again
                self._read.clear()  # a new pass over the array begins
            self._read.add(number)
            self._go_to(number)
            if len(numbers) == 1:
                self._recent.append(number)
            self._follow(number, drop)
            self._unread.discard(number)
            self._dropped.discard(number)  # it was useful after all, if its bytes were kept
        self._dropped.update(drop)
        self._window = self._window or window
        if drop:
            self._window = max(self._window // 2, window // LEAST)
        elif late:  # at most the bytes that were read, which limits bytes fetched in vain
            self._window = max(self._window, min(2 * self._window, self._bytes))
        is_sure = self._foreseen >= (SURE if self._calls > 1 else SURE_AT_ONCE)
        return Advice(self._fetch(max(chunk, 1), most) if is_sure else [], drop)

    def _go_to(self, number: int) -> None:
        """Note where the reader is, and which rows and planes it has left."""
        last, self._at = self._at, number
        if last is not None and last // self._plane != number // self._plane:
            self._plane = next(size for size in self._planes if last // size == number // size)

    def _follow(self, number: int, drop: list[int]) -> None:
        """Note the read of one chunk."""
        early = self._early
        is_near = not self._is_run and early in self._coming and number in self._unread
        if early is not None and is_near and self._steps[-1:] == [number - early]:
            self._change_expectation(early, drop)  # the reader continues from the chunk that came before its turn
        if self._take_expected(number):
            self._is_astray = False
            if not self._is_run and self._find_run_of_last() and set(self._steps[1 - NEAR :]) not in ({1}, {-1}):
                # The steps repeat by chance: the last chunks are an unordered run.
                self._change_expectation(number, drop)
        elif self._is_run and not self._is_astray:
            self._is_astray = True
        else:
            self._change_expectation(number, drop)

    def _take_expected(self, number: int) -> bool:
        """Note the read of an expected chunk; if the chunk was not expected, change nothing and return False."""
        if number not in self._coming:
            if self._coming or self._next != number:
                return False
            self._expect_next()
        self._coming[number] = True
        self._goes_on = True
        self._foreseen += 1
        self._early = number
        while self._coming.get(first := next(iter(self._coming), -1)):
            del self._coming[first]
            self._step_to(first)
        return True

    def _change_expectation(self, number: int, drop: list[int]) -> None:
        """Expect the chunks that follow ``number``, an unexpected chunk; move all others to ``drop``."""
        if not self._goes_on:
            del self._steps[:-ALIKE]  # the steps before a wrong prediction may be random
        self._foreseen = min(self._foreseen, SURE - 1) if self._goes_on else 0
        self._goes_on = False
        self._step_to(number)
        self._coming.clear()
        beyond = self._find_beyond(number)
        self._is_run, self._is_astray = beyond is not None, False
        if beyond is not None:
            self._foreseen = max(self._foreseen, SURE)
        following = self._iterate_following() if beyond is None else iter(beyond)
        wrong = self._unread.difference(islice(following, 2 * len(self._unread) + STEPS), (number,))
        self._unread -= wrong
        drop += wrong
        self._further = self._iterate_following() if beyond is None else iter(beyond)
        self._next = next(self._further, None)

    def _find_beyond(self, number: int) -> range | None:
        """Return the chunks beyond the run that ``number`` belongs to; None if the run is short."""
        beyond = self._find_run_of_last() or self._find_run_of_all(number)
        if beyond is None and self._direction and list(self._recent)[-2:] == [number - self._direction, number]:
            beyond = self._list_from(number, self._direction)
        self._direction = 0 if beyond is None else beyond.step
        return beyond

    def _find_run_of_last(self) -> range | None:
        """Return the chunks beyond the last `NEAR` chunks that were read, in the direction of reading.

        Return None if these `NEAR` chunks are not neighbours.
        """
        if len(self._recent) < NEAR or max(self._recent) - min(self._recent) >= NEAR:
            return None
        *before, last, latest = self._recent
        is_up = last + latest > sum(before)
        return self._list_from(max(self._recent), 1) if is_up else self._list_from(min(self._recent), -1)

    def _find_run_of_all(self, number: int) -> range | None:
        """Return the chunks beyond the nearer end of the run of read chunks around ``number``; None if it is short."""
        low = high = number
        while number - low < RUN and low - 1 in self._read:
            low -= 1
        while high - number < RUN and high + 1 in self._read:
            high += 1
        if high - low + 1 < RUN:
            return None
        return self._list_from(high, 1) if high - number <= number - low else self._list_from(low, -1)

    def _list_from(self, number: int, step: int) -> range:
        """Return the chunks after ``number`` in one direction."""
        return range(number + step, self._size if step > 0 else -1, step)

    def _step_to(self, number: int) -> None:
        if self._last is not None:
            self._steps.append(number - self._last)
            if len(self._steps) > 2 * STEPS:
                del self._steps[:-STEPS]
        self._last = number

    def _iterate_following(self) -> Iterator[int]:
        """Yield the chunks that follow the last one, by repeating the steps of the last period."""
        assert self._last is not None
        again = cycle(self._steps[-_find_period(self._steps) :])
        return takewhile(range(self._size).__contains__, islice(accumulate(again, initial=self._last), 1, None))

    def _expect_next(self) -> int | None:
        """Add the next chunk to the expected ones and return it; None at the end of the array."""
        number = self._next
        if number is not None:
            self._coming[number] = False
            self._next = next(self._further, None)
        return number

    def _fetch(self, chunk: int, most: int) -> list[int]:
        """Return the expected chunks within the window that have not been fetched yet."""
        window = min(self._window, most, max(FREE, self._bytes // SHARE) - len(self._dropped) * chunk)
        room = min(window // chunk - len(self._coming), most // chunk - len(self._unread))
        if room <= 0 or room * chunk < min(window // 2, MIB):  # too few bytes for a request
            return []
        fetch: list[int] = []
        for _ in range(4 * room):
            number = self._expect_next() if len(fetch) < room and self._is_in_plane(self._next) else None
            if number is None:
                break
            if number in self._read:
                self._coming[number] = True
            elif number not in self._unread:
                self._unread.add(number)
                fetch.append(number)
        return fetch

    def _is_in_plane(self, number: int | None) -> bool:
        """Return whether ``number`` is in the row or plane that the reader has not left."""
        return number is not None and self._at is not None and number // self._plane == self._at // self._plane


def _find_period(steps: Sequence[int]) -> int:
    """Return after how many steps the last steps recur: the distance to the earlier steps that agree longest.

    If the last step did not occur before, return the number of all steps.
    """
    period, longest, last = len(steps), 0, len(steps) - 1
    for place in range(last - 1, -1, -1):
        same = 0
        while same <= min(place, ALIKE) and steps[place - same] == steps[last - same]:
            same += 1
        if same > longest:
            period, longest = last - place, same
    return period

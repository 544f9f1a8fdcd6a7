"""The objects that keys lie in, asked once each, and the ranges of them that keys take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import numpy as np
from fsspec.callbacks import Callback

from refshard_fs.amounts import count_text
from refshard_fs.checking.findings import SHOWN, Findings
from refshard_fs.checking.ranges import Columns, Ranges
from refshard_fs.columns import WHOLE, UInt64s
from refshard_fs.errors import TargetChanged
from refshard_fs.model import Facts, Pin, Stat
from refshard_fs.targets import Versions

__all__ = ["Targets"]

TOGETHER: Final = 1024  # targets that are asked at a time


class Targets:
    """The targets of ``ranges``; what is wrong goes to ``found``, and ``callback`` counts those that have answered."""

    def __init__(self, ranges: Ranges, found: Findings, callback: Callback) -> None:
        self._ranges, self._found, self._callback = ranges, found, callback

    async def check(self, columns: Columns, need: Callable[[Stat], Awaitable[Any]]) -> None:
        """Ask each target once, by ``need``, and compare ``columns``, the ranges that are settled, with the answers."""
        self._compare(columns, await self._sizes(columns, need))

    async def _sizes(self, columns: Columns, need: Callable[[Stat], Awaitable[Any]]) -> UInt64s:
        """Return the size of each target, WHOLE where there is none to be had."""
        urls = self._ranges.urls
        sizes = np.full(len(urls), WHOLE, np.uint64)
        first, uses = columns.users(len(urls))
        for start in range(0, len(urls), TOGETHER):
            some = range(start, min(start + TOGETHER, len(urls)))
            answers = await asyncio.gather(*(self._ask(need, urls[i]) for i in some))
            for i, answer in zip(some, answers, strict=True):
                key = columns.key(int(first[i])) if first[i] >= 0 else ""
                match answer:
                    case Facts(size):
                        if size is None:
                            self._found.add("warning", "unsized", key, urls[i], "its target does not tell its size")
                        else:
                            sizes[i] = size
                        self._check_pins(key, urls[i], answer, self._ranges.pins.get(i, ()))
                    case None:
                        text = f"there is no such object; {count_text(int(uses[i]), 'reference')} to it"
                        self._found.add("error", "unreachable", key, urls[i], text)
                    case error:
                        self._found.add_error(key, error, "unreachable", urls[i])
        return sizes

    async def _ask(self, need: Callable[[Stat], Awaitable[Any]], url: str) -> Facts | Exception | None:
        try:
            if url in self._ranges.faults:
                return self._ranges.faults[url]
            answer: Facts | None = await need(Stat(url, fresh=True))
            return answer
        except Exception as e:  # noqa: BLE001  # whatever the target's library raises, it becomes a finding
            return e
        finally:
            self._callback.relative_update()

    def _check_pins(self, key: str, url: str, facts: Facts, pins: Iterable[Pin]) -> None:
        for pin in pins:
            try:
                Versions().of(url).observe(facts.etag, facts.last_modified, facts.size, pin)
            except TargetChanged as e:
                self._found.add("error", "changed", key, url, e.reason)
                return

    def _compare(self, columns: Columns, sizes: UInt64s) -> None:
        beyond = columns.beyond(sizes)
        for i in beyond[:SHOWN].tolist():
            text = f"{_range(columns, i)} reaches beyond the {sizes[columns.targets[i]]:,} bytes there are"
            self._found.add("error", "beyond-target", columns.key(i), self._ranges.urls[columns.targets[i]], text)
        self._found.count("beyond-target", len(beyond) - SHOWN)
        again, before, within, outer = columns.alike(sizes)
        for kind, rows, others, verb in (
            ("duplicate-range", again, before, "are also those of"),
            ("overlapping-range", within, outer, "begin within those of"),
        ):
            for i, other in zip(rows[:SHOWN].tolist(), others[:SHOWN].tolist(), strict=True):
                text = f"{_range(columns, i)} {verb} {columns.key(other)!r}"
                self._found.add("warning", kind, columns.key(i), self._ranges.urls[columns.targets[i]], text)
            self._found.count(kind, len(rows) - SHOWN)


def _range(columns: Columns, i: int) -> str:
    stop = columns.stops[i]
    return f"bytes [{columns.starts[i]}, {'end' if stop == np.uint64(WHOLE) else stop})"

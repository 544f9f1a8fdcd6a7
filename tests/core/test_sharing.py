"""Concurrent look-ups share one run of steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refshard_fs.core.model import Stat, Steps
from refshard_fs.core.sharing import Sharing

NEEDS = [Stat("a"), Stat("b")]


class CountedSteps:
    """Steps that need two answers, and count how often they begin."""

    def __init__(self, damaged: bool = False) -> None:
        self.begun = 0
        self.known: dict[str, Any] = {}
        self._damaged = damaged

    def make(self) -> Steps[list[Any]]:
        self.begun += 1
        answers = [(yield NEEDS[0])]
        answers.append((yield NEEDS[1]))
        if self._damaged:
            raise ValueError("damaged")
        self.known["x"] = answers
        return answers


def run_shared(sharing: Sharing, opened: CountedSteps) -> Steps[list[Any]]:
    found: Callable[[], list[Any] | None] = lambda: opened.known.get("x")  # noqa: E731
    return sharing.run_once("x", found, opened.make)


def test_concurrent_callers_share_one_load() -> None:
    opened, sharing = CountedSteps(), Sharing()
    first, second = run_shared(sharing, opened), run_shared(sharing, opened)
    assert (next(first), next(second)) == (NEEDS[0], NEEDS[0])
    assert first.send("A") == NEEDS[1]
    assert second.send("late") == NEEDS[1]
    for steps in (second, first):
        with pytest.raises(StopIteration) as stopped:
            steps.send("B")
        assert stopped.value.value == ["A", "B"]
    assert opened.begun == 1


def test_cancelled_caller_leaves_the_other_running() -> None:
    opened, sharing = CountedSteps(), Sharing()
    first, second = run_shared(sharing, opened), run_shared(sharing, opened)
    next(first), next(second)
    first.send("A")
    first.close()
    assert second.send("A") == NEEDS[1]
    with pytest.raises(StopIteration):
        second.send("B")
    assert opened.begun == 1


def test_failed_read_is_an_error_of_its_caller_only() -> None:
    opened, sharing = CountedSteps(), Sharing()
    first, second, third = (run_shared(sharing, opened) for _ in range(3))
    next(first), next(second), next(third)
    with pytest.raises(OSError, match="mine"):
        first.throw(OSError("mine"))
    with pytest.raises(OSError, match="its own"):
        third.throw(OSError("its own"))
    assert second.send("A") == NEEDS[0]  # the steps begin again
    assert second.send("A") == NEEDS[1]
    with pytest.raises(StopIteration):
        second.send("B")
    assert opened.begun == 2


def test_damage_is_reported_to_both_callers() -> None:
    opened, sharing = CountedSteps(damaged=True), Sharing()
    first, second = run_shared(sharing, opened), run_shared(sharing, opened)
    next(first), next(second)
    first.send("A"), second.send("A")
    for steps in (first, second):
        with pytest.raises(ValueError, match="damaged"):
            steps.send("B")
    assert opened.begun == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_loads_by_itself() -> None:
    opened, sharing = CountedSteps(), Sharing()
    entered, leave = threading.Event(), threading.Event()

    def slow() -> Steps[list[Any]]:
        entered.set()
        leave.wait()
        return (yield from opened.make())

    thread = threading.Thread(target=lambda: next(sharing.run_once("x", lambda: None, slow)))
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        first = run_shared(sharing, opened)
        os._exit(0 if next(first) == NEEDS[0] else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0

"""Several look-ups as one: what they need in a round is asked for together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from refshard_fs.model import Need, Steps

__all__ = ["together"]

T = TypeVar("T")


def together(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Return what each of ``many`` returns, in their order; the first error of any ends them all."""
    results: list[Any] = [None] * len(many)
    answers: list[Any] = [None] * len(many)
    waiting = list(range(len(many)))
    while waiting:
        needs: list[Need] = []
        spans: list[tuple[int, int | slice]] = []
        for i in waiting:
            try:
                need = many[i].send(answers[i])
            except StopIteration as stop:
                results[i] = stop.value
                continue
            first = len(needs)
            if isinstance(need, tuple):
                needs += need
                spans.append((i, slice(first, len(needs))))
            else:
                needs.append(need)
                spans.append((i, first))
        waiting = [i for i, _ in spans]
        if waiting:
            met = yield tuple(needs)
            for i, place in spans:
                answers[i] = met[place]
    return results

"""Look-ups in a document of somebody else's, within one of the user's own: held to what that document may reach.

The engine judges what a source asks for as the source's. What a part of it asks for is judged here, as the part's, on
its way there; no I/O. Where a part may read something only without the user's credentials, it may not read it at all.
"""

from __future__ import annotations

from typing import Any, TypeVar

from refshard_fs.core.model import Inline, Load, Names, Need, Packed, Span, Stat, Steps
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission

__all__ = ["judged"]

T = TypeVar("T")


def judged(steps: Steps[T], rule: Admission) -> Steps[T]:
    """Return what ``steps`` return; TargetNotAllowed where they need, or return, what ``rule`` does not admit."""
    if rule.admits_all:
        return (yield from steps)
    answer: Any = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            _judge(result, rule)
            return result
        for one in need if isinstance(need, tuple) else (need,):
            _judge_need(one, rule)
        answer = yield need


def _judge_need(need: Need, rule: Admission) -> None:
    match need:
        case Load(entry):
            _judge(entry, rule)
        case Stat(url) | Names(url):
            _admit(url, rule)


def _judge(result: object, rule: Admission) -> None:
    match result:
        case Span(url) | Packed(Span(url)):
            _admit(url, rule)
        case Inline():
            pass


def _admit(url: str, rule: Admission) -> None:
    spelled, access = rule.admit(url)
    if access is Access.NONE or spelled != url:
        what = "a set that is part of another one may point beside itself, and to what an option names"
        raise TargetNotAllowed(url, what, "Name its protocol or prefix in an option, or in allow=, if you trust it")

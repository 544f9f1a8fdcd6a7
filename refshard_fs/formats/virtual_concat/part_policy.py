"""Parts that are somebody else's, within a document of the user's: they reach what such a set may reach. No I/O here.

The engine judges what a source asks for by the rule for the source. What a part of it asks for is judged here, by the
rule for the part. What the part might read only without the user's credentials, it may not read at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from refshard_fs.core.keyspace import KeySpace, View
from refshard_fs.core.model import Entry, Listed, Load, Names, Need, Packed, Span, Stat, Steps
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Access, Admission

__all__ = ["AdmittedView", "admitted"]

T = TypeVar("T")


class AdmittedView(View):
    """A part whose look-ups are held to ``rule``."""

    def __init__(self, base: KeySpace, rule: Admission) -> None:
        super().__init__(base)
        self._rule = rule

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from admitted(self.base.lookup(key), self._rule))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from admitted(self.base.children(prefix), self._rule))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from admitted(self.base.is_directory(prefix), self._rule))


def admitted(steps: Steps[T], rule: Admission) -> Steps[T]:
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


def _admit(url: str, rule: Admission) -> None:
    spelled, access = rule.admit(url)
    if access is Access.NONE or spelled != url:
        what = "a set that is part of another one may point beside itself, and to what an option names"
        raise TargetNotAllowed(url, what, "Name its protocol or prefix in an option, or in allow=, if you trust it")

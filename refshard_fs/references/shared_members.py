"""Members of similar sets: a set keeps its own, and shares all others. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from refshard_fs.references.key_table import Value


class SharedMembers(Mapping[str, Value]):
    """The members of ``base`` and of ``own``; a member of ``own`` replaces one of ``base``, or comes after them.

    A hundred thousand files of one writer differ in one or two members. A dict of all members takes 600 bytes or more
    for each file.
    """

    __slots__ = ("_base", "_own")

    def __init__(self, base: Mapping[str, Value], own: Mapping[str, Value]) -> None:
        self._base = base
        self._own = own

    def __getitem__(self, key: str) -> Value:
        return self._own[key] if key in self._own else self._base[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (key for key in self._own if key not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self._own)

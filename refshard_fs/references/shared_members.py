"""Let similar sets share their equal members. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from refshard_fs.references.key_table import Value


class SharedMembers(Mapping[str, Value]):
    """The members of ``base``, some of them replaced by members of ``own``, and then the new members of ``own``.

    Sets of a hundred thousand files by one writer differ in one or two members, whose keys are the same. For each file,
    a dict of all members takes 600 bytes or more, and a dict of its own members 180.
    """

    __slots__ = ("_base", "_places", "_values")

    def __init__(self, base: Mapping[str, Value], own: Mapping[str, Value]) -> None:
        self._base = base
        self._places = _number_keys(tuple(own))
        self._values = tuple(own.values())

    def __getitem__(self, key: str) -> Value:
        place = self._places.get(key)
        return self._base[key] if place is None else self._values[place]

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (key for key in self._places if key not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self._places)


@lru_cache(256)
def _number_keys(keys: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each key; equal ``keys`` share one dict."""
    return {key: place for place, key in enumerate(keys)}

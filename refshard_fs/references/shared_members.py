"""Let similar sets share their equal members. No I/O here."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
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

    def __contains__(self, key: object) -> bool:
        return key in self._places or key in self._base

    def __iter__(self) -> Iterator[str]:
        return iter({**self._base, **self._places})

    def __len__(self) -> int:
        return len({**self._base, **self._places})

    def items(self) -> ItemsView[str, Value]:
        """Return the items of a dict that exists as long as this view: far faster than a look-up for each key."""
        return {**self._base, **dict(zip(self._places, self._values, strict=True))}.items()


@lru_cache(256)
def _number_keys(keys: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each key; equal ``keys`` share one dict."""
    return {key: place for place, key in enumerate(keys)}

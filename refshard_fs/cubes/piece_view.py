"""Mark the needs of a piece with the server that the piece comes from, whose rules then apply to these needs.

Nothing is read here. The needs of a piece within a piece have both origins, and must be permitted for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from refshard_fs.core.chunks import Chunks, Contents, Numbers
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import KeySpace, LookUp, View
from refshard_fs.core.model import Entry, Listed, Need, Origin, Steps, add_origin, drive

T = TypeVar("T")


class PieceView(View):
    """A piece of a cube that comes from ``origin``: all of its entries and needs get this origin."""

    def __init__(self, base: KeySpace, origin: str) -> None:
        super().__init__(base)
        self._origin = (origin,)

    @property
    def strangers(self) -> frozenset[str]:
        return self.base.strangers.union(self._origin)

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from with_origin_of_piece(self.base.lookup(key), self._origin))

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        return [LookUp(places, self._add_origin(steps)) for places, steps in self.base.make_lookups(keys)]

    def _add_origin(self, steps: Steps[Sequence[Entry | None]]) -> Steps[Sequence[Entry | None]]:
        return [add_origin(entry, self._origin) for entry in (yield from with_origin_of_piece(steps, self._origin))]

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from with_origin_of_piece(self.base.children(prefix), self._origin))

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        return (yield from with_origin_of_piece(self.base.contents(prefix, errors), self._origin))

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        return (yield from with_origin_of_piece(self.base.chunks(array, numbers, grid), self._origin)).add_origin(
            self._origin
        )

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from with_origin_of_piece(self.base.is_directory(prefix), self._origin))


def with_origin_of_piece(steps: Steps[T], origin: Origin) -> Steps[T]:
    """Run ``steps``; add ``origin`` to all of their needs, and to their result."""

    def add_to_need(need: Need | tuple[Need, ...]) -> Steps[Any]:
        return (yield add_origin(need, origin))

    return add_origin((yield from drive(steps, add_to_need)), origin)

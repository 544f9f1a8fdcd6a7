"""Arrays that a commit makes longer: they begin empty there, whatever a commit that was cut short left. No I/O here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from refshard_fs.edited import grid_of
from refshard_fs.formats import Raw
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Load, Steps
from refshard_fs.shards.layout import ShardLayout

__all__ = ["Growth", "growth"]


class Growth(NamedTuple):
    """The chunks of the array ``path`` before and after, as they are shown, and how they lie in shards."""

    path: str
    before: tuple[int, ...]
    after: ChunkGrid
    layout: ShardLayout | None

    @property
    def added(self) -> int:
        """Number of chunks that there was no room for."""
        return self.after.size - math.prod(map(min, self.before, self.after.counts))

    def is_new(self, coords: tuple[int, ...]) -> bool:
        """Whether there was no room for the chunk at ``coords``, and is now."""
        return any(map(int.__ge__, coords, self.before)) and all(map(int.__lt__, coords, self.after.counts))

    def has(self, name: str) -> bool:
        """Whether ``name`` is that of an object of which no chunk was of the array before."""
        tail = name[len(self.path) + 1 :] if self.path else name
        coords = self.after.encoding.decode(tail, len(self.before))
        if coords is None or self.layout is None:
            return coords is not None and self.is_new(coords)
        places = [cut.chunks(number) for cut, number in zip(self.layout.cuts, coords, strict=True)]
        return all(map(len, places)) and self.is_new(tuple(place.start for place in places))

    def names(self) -> Iterator[str]:
        """Yield these names, each once; as many as there are chunks `added`, at most."""
        seen: set[str] = set()
        for coords in self._new():
            if self.layout is not None:
                coords = tuple(cut.shard(coord)[0] for cut, coord in zip(self.layout.cuts, coords, strict=True))
            name = join(self.path, self.after.encoding.encode(coords))
            if name not in seen and self.has(name):
                seen.add(name)
                yield name

    def _new(self) -> Iterator[tuple[int, ...]]:
        counts = self.after.counts
        for axis, (before, after) in enumerate(zip(self.before, counts, strict=True)):
            kept = [range(min(b, c)) for b, c in zip(self.before[:axis], counts[:axis], strict=True)]
            yield from itertools.product(*kept, range(before, after), *map(range, counts[axis + 1 :]))


def growth(keyspace: KeySpace, key: str, written: bytes, path: str, layout: ShardLayout | None) -> Steps[Growth | None]:
    """Return how the array ``path``, whose document ``key`` is now ``written``, grows; None if it does not."""
    entry = yield from keyspace.lookup(key)
    if entry is None:
        return None
    old, new = grid_of((yield Load(entry, Raw())), key), grid_of(written, key)
    if old is None or new is None or old.encoding != new.encoding or len(old.counts) != len(new.counts):
        return None
    return Growth(path, old.counts, new, layout) if any(map(int.__lt__, old.counts, new.counts)) else None

"""A source as keys: what may be asked of it, and what the answer is where a source has none of its own. No I/O here.

`KeySpace` is the one interface between formats and the engine. Formats compose by
wrapping one another: a sharded view asks its base for the shard's entry, and so on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from refshard_fs.core.keys import ChunkGrid, splits
from refshard_fs.core.model import Entry, Listed, Span, Steps


class Place(NamedTuple):
    """A chunk key's place: the array's path (empty for the root) and the chunk's number in its grid."""

    array: str
    number: int


class LookUp(NamedTuple):
    """One look-up of several keys: their places in what was asked, and the steps that return their entries."""

    places: Sequence[int]
    steps: Steps[Sequence[Entry | None]]


class KeySpace(ABC):
    """An immutable set of keys and their entries, shared by threads and event loops. Keys are normal (`normalise`).

    A format has to say how a key is looked up and what lies in a directory. All else here has a default, which is
    right for every source, if not the fastest answer.
    """

    # The chunk grids of the arrays that are known without further reads, by array path.
    grids: Mapping[str, ChunkGrid] = {}
    # The key space that this one is made of, if it is made of one.
    base: KeySpace | None = None
    # The URLs of all targets, as far as they are known without reads; and of the document that a commit replaces last.
    urls: Sequence[str | None] = ()
    document_url: str | None = None
    # The URL of a key's object, where each key is one object.
    url_of: Callable[[str], str] | None = None
    # Arrays that are not shown, or whose shards are left whole, by path, and why.
    reports: Mapping[str, str] = {}
    # Whether look-ups never need a read: `find` tells a key's entry at once.
    in_memory = False
    # Whether the metadata of every array is known without reads, so that none is learnt of by reading.
    holds_all_metadata = False
    # Whether the chunk manifests of its arrays, if they have any, are resolved already.
    resolves_manifests = False

    @abstractmethod
    def lookup(self, key: str) -> Steps[Entry | None]:
        """Return the entry of ``key``, or None if there is no such key; directories are no keys."""

    @abstractmethod
    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        """Return what lies directly below ``prefix``, sorted by name, or None if it is no directory.

        Names are relative to ``prefix``. Sizes are those of the bytes a read would return.
        """

    def is_directory(self, prefix: str) -> Steps[bool]:
        """Return whether ``prefix`` is a directory; the root always is."""
        return not prefix or (yield from self.children(prefix)) is not None

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``, or None, without any read; of key spaces that are ``in_memory`` alone."""
        try:
            need = next(self.lookup(key))
        except StopIteration as done:
            found: Entry | None = done.value
            return found
        raise TypeError(f"{type(self).__name__} says that it is in memory, and needs {need} for {key!r}")

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups that find all of ``keys``; an error is that of all keys of one of them.

        Those that the same index tells of are worth finding together.
        """
        return [self.single_lookup(place, key) for place, key in enumerate(keys)]

    def single_lookup(self, place: int, key: str) -> LookUp:
        """Return the look-up of one key, the one at ``place`` among those that were asked."""
        return LookUp((place,), _as_sequence(self.lookup(key)))

    def is_empty(self, key: str) -> Steps[bool]:
        """Return whether ``key``, which has no entry, is said to be empty on purpose; chunk manifests can say so."""
        yield from ()
        return False

    def is_inner(self, key: str) -> bool:
        """Return whether ``key`` is that of an inner chunk, of an array that is known so far."""
        return False

    def full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        """Return where those shards lie that are worth reading whole if ``keys`` are read in this order."""
        yield from ()
        return []

    def some_urls(self) -> Steps[Sequence[str | None]]:
        """Return URLs of some targets, as written; a set that is read lazily has to look for them."""
        yield from ()
        return self.urls

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        """The grids of the arrays whose metadata documents can be looked up and read without any read."""
        return self.grids

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        """Return whether the metadata of the root and of all arrays is known to have none of ``marks`` in its text."""
        return False


class Grids(Mapping[str, ChunkGrid]):
    """The chunk grids of arrays, found as they are asked for; ``paths`` names all that there may be."""

    def find(self, path: str) -> ChunkGrid | None:
        """Return the grid of the array ``path``, if it is known."""
        raise NotImplementedError

    def paths(self) -> Iterable[str]:
        """Return the paths of all arrays that may be known, each once."""
        raise NotImplementedError

    def get(self, path: str, default: Any = None) -> Any:
        found = self.find(path)
        return default if found is None else found

    def __getitem__(self, path: str) -> ChunkGrid:
        found = self.find(path)
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter([path for path in self.paths() if self.find(path) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class View(KeySpace):
    """The keys of ``base``, some of them shown otherwise; whatever a view does not say, its base does."""

    base: KeySpace

    def __init__(self, base: KeySpace) -> None:
        self.base = base
        self.grids = base.grids
        self.urls = base.urls
        self.document_url = base.document_url
        self.url_of = base.url_of
        self.reports = base.reports

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from self.base.lookup(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from self.base.children(prefix))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from self.base.is_directory(prefix))

    def is_empty(self, key: str) -> Steps[bool]:
        return (yield from self.base.is_empty(key))

    def some_urls(self) -> Steps[Sequence[str | None]]:
        return (yield from self.base.some_urls())


def place(grids: Mapping[str, ChunkGrid], key: str) -> Place | None:
    """Return the place of ``key`` among ``grids``, or None if it is no chunk key of theirs."""
    for path, rest in splits(key):
        grid = grids.get(path)
        number = None if grid is None else grid.number(rest)
        if number is not None:
            return Place(path, number)
    return None


def _as_sequence(steps: Steps[Entry | None]) -> Steps[Sequence[Entry | None]]:
    return ((yield from steps),)

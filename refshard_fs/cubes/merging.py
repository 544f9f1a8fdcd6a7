"""Sources shown as one, each with arrays that the others lack. No I/O here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Numbers
from refshard_fs.core.keys import ChunkGrid, add_to_tree, is_within, join, nearest, parent
from refshard_fs.core.keyspace import KeySpace, LookUp, View, by_name, merged
from refshard_fs.core.model import Directories, Entry, Inline, Listed, Span, Steps, together
from refshard_fs.cubes.choice import Choice, documents_of, nodes_of
from refshard_fs.cubes.selection import Selection, all_documents


class MergedKeySpace(View):
    """The arrays and groups of ``base``, and those of ``others`` that it and the others before lack.

    ``documents`` are the metadata documents of each, by key, in the same order. Keys that belong to no array are not
    shown.
    """

    resolves_manifests = True  # in the bases
    holds_all_metadata = True

    def __init__(
        self, base: KeySpace, others: Sequence[KeySpace], documents: Sequence[Mapping[str, dict[str, Any]]]
    ) -> None:
        super().__init__(base)
        self._spaces = (base, *others)
        owners: dict[str, KeySpace] = {}  # by the path of an array or a group
        shown: dict[str, dict[str, Any]] = {}
        for space, theirs in zip(self._spaces, documents, strict=True):
            nodes = {parent(key)[0] for key in theirs} - owners.keys()
            owners.update(dict.fromkeys(nodes, space))
            shown |= {key: document for key, document in theirs.items() if parent(key)[0] in nodes}
        nodes_shown = nodes_of(shown)
        self._documents = {key: zarrmeta.dumps(document) for key, document in documents_of(nodes_shown).items()}
        self._arrays = {path: owners[path] for path, node in nodes_shown.items() if node.is_array}
        self.grids = {path: space.grids[path] for path, space in self._arrays.items() if path in space.grids}
        self._tree: dict[str, dict[str, bool]] = {"": {}}
        for key in self._documents:
            add_to_tree(self._tree, key)
        for path in nodes_shown:
            add_to_tree(self._tree, path, is_directory=True)
            self._tree.setdefault(path, {})
        for name in ("attribute_dtypes", "unlimited_dimensions", "reports"):
            every = [getattr(space, name) for space in reversed(self._spaces)]
            setattr(self, name, {path: value for found in every for path, value in found.items()})

    @classmethod
    def of(cls, base: KeySpace, others: Sequence[KeySpace]) -> Steps[KeySpace]:
        """Return ``base`` with the arrays of ``others``; all are read for their metadata."""
        documents = yield from together([all_documents(space) for space in (base, *others)])
        return cls(base, others, documents)

    @property
    def strangers(self) -> frozenset[str]:
        return frozenset().union(*(space.strangers for space in self._spaces))

    @property
    def source(self) -> KeySpace:
        return self  # it cannot be written as it is stored

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # it takes no commits
        return None

    # ------------------------------------------------------------------ keys

    def _owner(self, key: str) -> KeySpace | None:
        """Return the source that has what lies below an array; None for metadata and keys of no array."""
        path = nearest(key, self._arrays)
        return None if path is None or zarrmeta.is_metadata(key) else self._arrays[path]

    def lookup(self, key: str) -> Steps[Entry | None]:
        data = self._documents.get(key)
        owner = self._owner(key)
        if data is not None or owner is None:
            return None if data is None else Inline(data)
        return (yield from owner.lookup(key))

    def _by_owner(self, keys: Sequence[str]) -> Iterator[tuple[KeySpace | None, list[int]]]:
        """Yield each source that has any of ``keys``, and the places of these; None with those of all others."""
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            owner = self._owner(key)
            number = -1 if owner is None else self._spaces.index(owner)
            places.setdefault(number, []).append(place)
        return ((None if n < 0 else self._spaces[n], some) for n, some in places.items())

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        found: list[LookUp] = []
        for space, places in self._by_owner(keys):
            if space is None:
                found += [self.single_lookup(place, keys[place]) for place in places]
            else:
                theirs = space.lookups([keys[place] for place in places])
                found += [LookUp([places[n] for n in numbers], steps) for numbers, steps in theirs]
        return found

    def likely(self, keys: Sequence[str]) -> dict[int, Span]:
        found: dict[int, Span] = {}
        for space, places in self._by_owner(keys):
            if space is not None:
                theirs = space.likely([keys[place] for place in places])
                found |= {places[number]: span for number, span in theirs.items()}
        return found

    def full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        spans: list[Span] = []
        known = list(keys)
        for space, places in self._by_owner(known):
            if space is not None:
                spans += yield from space.full_shards([known[place] for place in places])
        return spans

    def is_inner(self, key: str) -> bool:
        owner = self._owner(key)
        return owner is not None and owner.is_inner(key)

    def is_empty(self, key: str) -> Steps[bool]:
        owner = self._owner(key)
        return owner is not None and (yield from owner.is_empty(key))

    def object_of(self, key: str) -> str:
        owner = self._owner(key)
        return key if owner is None else owner.object_of(key)

    def keys_of_other_parts(self, key: str) -> Iterator[str]:
        owner = self._owner(key)
        return iter(()) if owner is None else owner.keys_of_other_parts(key)

    def some_urls(self) -> Steps[Sequence[str | None]]:
        urls: list[str | None] = []
        for space in self._spaces:
            urls += yield from space.some_urls()
        return urls

    # ------------------------------------------------------------------ listing

    def directories(self, prefix: str) -> Steps[Directories | None]:
        yield from ()
        return None

    def is_directory(self, prefix: str) -> Steps[bool]:
        owner = self._owner(prefix)
        return prefix in self._tree or (owner is not None and (yield from owner.is_directory(prefix)))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        known = self._tree.get(prefix)
        own = None if known is None else sorted(map(self._to_row, itertools.repeat(prefix), known.items()), key=by_name)
        owner = self._arrays.get(prefix) or self._owner(prefix)
        if owner is None:
            return own
        names = yield from owner.children(prefix)
        chunks = names if own is None else [one for one in names or () if not zarrmeta.is_metadata(one.name)]
        return merged(chunks or (), own or ()) if own is not None or chunks else None

    def _to_row(self, prefix: str, name: tuple[str, bool]) -> Listed:
        data = self._documents.get(join(prefix, name[0]))
        return Listed(name[0], None if data is None else len(data), name[1])

    # ------------------------------------------------------------------ whole arrays

    def documents(self, prefix: str = "") -> Steps[dict[str, bytes]]:
        yield from ()
        return {key: data for key, data in self._documents.items() if is_within(key, prefix)}

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        members: dict[str, Any] = yield from self.documents(prefix)
        arrays: dict[str, ArrayChunks] = {}
        others: dict[str, int | None] = {}
        indexes: set[str] = set()
        for space in self._spaces:
            found = yield from space.contents(prefix, errors)
            arrays |= {path: chunks for path, chunks in found.arrays.items() if self._arrays.get(path) is space}
            members |= {key: value for key, value in found.members.items() if self._owner(key) is space}
            others |= {key: size for key, size in found.others.items() if self._owner(key) is space}
            indexes |= {key for key in found.indexes if self._owner(key) is space}
        return Contents(members, arrays, others, frozenset(indexes))

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        return (yield from self._arrays.get(array, self.base).chunks(array, numbers, grid))

    def snapshot(self, threshold: int, on_progress: Any) -> Steps[Any]:
        yield from ()
        return None


def selected(base: KeySpace, choices: Iterable[Choice]) -> Steps[KeySpace]:
    """Return ``base`` with each of ``choices`` taken of what the one before it shows."""
    for choice in choices:
        base = yield from Selection.of(base, choice)
        if choice.assign:
            is_version_3 = any(key.endswith("zarr.json") for key in (yield from base.documents()))
            base = yield from MergedKeySpace.of(base, [choice.added(3 if is_version_3 else 2)])
    return base

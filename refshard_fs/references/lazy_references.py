"""The references of a set as a mapping for users, which reads one part of the set at a time. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, Contents, Numbers
from refshard_fs.core.columns import Row
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace, Run, find_chunk

MEMO: Final = 4096  # the most values in the cache of a mapping
ROWS: Final = 1 << 16  # the most references that iteration loads at a time


class LazyReferences(Mapping[str, Any]):
    """The references of a set by key, with values as in JSON: an object, bytes, or a list with the URL as written.

    A look-up loads one part of the set. Iteration and ``len`` load all parts, one after another: a set does not state
    how many chunks exist. ``run(key, make)`` runs the steps that ``make()`` returns; errors name ``key``.
    """

    def __init__(self, keyspace: KeySpace, run: Run) -> None:
        self._keyspace = keyspace
        self._run = run
        self._memo: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._memo.get(key)
        if value is None:
            value = self._find(key)
            if value is None:
                raise KeyError(key)
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[key] = value
        return value if isinstance(value, bytes) else value.copy()

    def _find(self, key: str) -> Any:
        """Return the JSON value of ``key``; None if the key does not exist."""
        at = find_chunk(self._keyspace.grids, key)
        if at is None:
            data: bytes | None = self._run(key, partial(self._keyspace.read, key))
            is_object = zarrmeta.is_metadata(key) and parent(key)[1] != zarrmeta.CONSOLIDATED
            return data if data is None or not is_object else zarrmeta.object_in(data, repr(key))
        numbers = range(at.number, at.number + 1)
        chunks: Chunks = self._run(key, partial(self._keyspace.chunks, at.array, numbers))
        value = chunks.get_value(0)
        return value.to_json(chunks.urls[value.target]) if isinstance(value, Row) else value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        contents = self._load_contents()
        yield from self._list_members(contents)
        for array, numbers, chunks in self._iterate_parts(contents):
            tail = contents.arrays[array].grid.tail
            for row in chunks.list_present():
                yield join(array, tail(int(numbers[row])))

    def __len__(self) -> int:
        contents = self._load_contents()
        return len(self._list_members(contents)) + sum(
            len(chunks.list_present()) for *_, chunks in self._iterate_parts(contents)
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._keyspace.root_url}, {len(self._keyspace.grids)} arrays>"

    def _load_contents(self) -> Contents:
        found: Contents = self._run("", self._keyspace.contents)
        return found

    def _list_members(self, contents: Contents) -> list[str]:
        """Return the keys that are not chunks. Parquet sets of zarr version 3 do not list their ``.zmetadata``."""
        document = zarrmeta.CONSOLIDATED
        return [*contents.members, *([document] if document not in contents.members and document in self else [])]

    def _iterate_parts(self, contents: Contents) -> Iterator[tuple[str, Numbers, Chunks]]:
        """Yield (array, numbers of chunks, chunks), at most `ROWS` chunks at a time."""
        for array, listed in contents.arrays.items():
            for numbers, _ in listed.iterate_batches(ROWS):
                yield array, numbers, self._run(array, partial(self._keyspace.chunks, array, numbers, listed.grid))

"""Show users the references of a parquet set as a mapping, which reads one partition at a time. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from refshard_fs.core.chunks import Chunks, Contents, Numbers
from refshard_fs.core.columns import Row
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import Run
from refshard_fs.core.model import Steps
from refshard_fs.formats.kerchunk_parquet import PARQUET

MEMO: Final = 4096  # the most values in the cache of a mapping

Value = dict[str, Any] | bytes | tuple[str | None, Row]


class ParquetSet(Protocol):
    """The part of a parquet set's key space that `LazyReferences` uses."""

    root: str
    document: bytes
    grids: Mapping[str, ChunkGrid]

    @property
    def metadata(self) -> Mapping[str, dict[str, Any]]: ...
    def value(self, key: str) -> Steps[Value | None]: ...
    def contents(self) -> Steps[Contents]: ...
    def chunks(self, array: str, numbers: Numbers) -> Steps[Chunks]: ...


class LazyReferences(Mapping[str, Any]):
    """The references of a parquet set by key, with values as in JSON: an object, bytes, or a list.

    A look-up loads one partition. Iteration loads all partitions, one after the other. ``len`` does so, too, because a
    set does not state how many chunks exist. ``run(key, steps)`` runs the steps of a look-up for ``key``.
    """

    def __init__(self, keyspace: ParquetSet, run: Run) -> None:
        self.keyspace = keyspace
        self._run = run
        self._memo: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._memo.get(key)
        if value is None:
            raw: Value | None = self._run(key, lambda: self.keyspace.value(key))
            value = self.keyspace.document if raw is None and key == PARQUET else _to_json(raw)
            if value is None:
                raise KeyError(key)
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[key] = value
        return value if isinstance(value, bytes) else value.copy()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        if PARQUET not in self.keyspace.metadata:
            yield PARQUET
        yield from self.keyspace.metadata
        for array, base, partition in self._partitions():
            tail = self.keyspace.grids[array].tail
            for row in partition.present():
                yield join(array, tail(base + row))

    def __len__(self) -> int:
        metadata = self.keyspace.metadata
        chunks = sum(len(partition.present()) for _, _, partition in self._partitions())
        return len(metadata.keys() | {PARQUET}) + chunks

    def __repr__(self) -> str:
        return f"<LazyReferences: {self.keyspace.root}, {len(self.keyspace.grids)} arrays>"

    def _partitions(self) -> Iterator[tuple[str, int, Chunks]]:
        """Yield (array, number of the first chunk, partition) for each partition that exists."""
        contents: Contents = self._run("", self.keyspace.contents)
        for array, listed in contents.arrays.items():
            for numbers in listed.numbers:
                yield array, numbers.start, self._run(array, partial(self.keyspace.chunks, array, numbers))


def _to_json(value: Value | None) -> Any:
    """Return a reference as a list; other values as they are."""
    match value:
        case (url, Row() as row):
            return row.to_json(url)
        case _:
            return value

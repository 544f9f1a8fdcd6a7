"""A parquet set as the mapping that its expanded JSON would be, loaded a partition at a time. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from refshard_fs.columns import Row
from refshard_fs.keys import join
from refshard_fs.manifests.kerchunk_parquet import ParquetKeySpace, Value, partition_name
from refshard_fs.manifests.partition import Partition
from refshard_fs.manifests.recognised import PARQUET
from refshard_fs.model import Steps

__all__ = ["LazyReferences", "Look"]

# Runs a look-up that may take several tries, on behalf of a key.
Look = Callable[[str, Callable[[], Steps[Any]]], Any]

MEMO = 4096  # values that are remembered


class LazyReferences(Mapping[str, Any]):
    """The references below a parquet set's root; ``run`` meets the needs of a look-up (on behalf of a key).

    A look-up loads one partition; iterating loads them one after the other, and so does
    ``len``: how many chunks exist stands nowhere.
    """

    def __init__(self, keyspace: ParquetKeySpace, run: Look) -> None:
        self.keyspace = keyspace
        self._run = run
        self._memo: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._memo.get(key)
        if value is None:
            found: Value | None = self._run(key, lambda: self.keyspace.value(key))
            value = self.keyspace.document if found is None and key == PARQUET else _spelled(found)
            if value is None:
                raise KeyError(key)
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[key] = value
        return value if isinstance(value, bytes) else value.copy()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        if PARQUET not in self.keyspace.layout.metadata:
            yield PARQUET
        yield from self.keyspace.layout.metadata
        for array, base, partition in self._partitions():
            tail = self.keyspace.grids[array].tail
            for row in partition.present(0, len(partition)):
                yield join(array, tail(base + row))

    def __len__(self) -> int:
        metadata = self.keyspace.layout.metadata
        chunks = sum(len(partition.present(0, len(partition))) for _, _, partition in self._partitions())
        return len(metadata.keys() | {PARQUET}) + chunks

    def __repr__(self) -> str:
        return f"<LazyReferences: {self.keyspace.root}, {len(self.keyspace.grids)} arrays>"

    def _partitions(self) -> Iterator[tuple[str, int, Partition]]:
        """Yield (array, number of its first chunk, partition) of each partition that exists."""
        keyspace = self.keyspace
        for array in keyspace.grids:
            size = keyspace.grids[array].size
            for number in self._run(array, partial(keyspace.stored, array, 0, size)):
                partition = self._run(partition_name(array, number), partial(keyspace.partition, array, number))
                if partition is not None:
                    yield array, number * keyspace.layout.record_size, partition


def _spelled(value: Value | None) -> Any:
    match value:
        case (url, Row() as row):
            return row.spelled(url)
        case _:
            return value

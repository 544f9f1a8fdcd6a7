"""All of a parquet set, a partition at a time: as a mapping for users, and as a stream for writers. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from refshard_fs.core.columns import Row
from refshard_fs.core.keys import join
from refshard_fs.core.model import Steps
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace, Value, partition_name
from refshard_fs.references.partition import Partition, PartitionBuilder
from refshard_fs.references.stream import Respell

__all__ = ["LazyReferences", "Look", "ParquetStream"]

# Runs a look-up that may take several tries, on behalf of a key.
Look = Callable[[str, Callable[[], Steps[Any]]], Any]

MEMO: Final = 4096  # values that are remembered


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
            for row in partition.present():
                yield join(array, tail(base + row))

    def __len__(self) -> int:
        metadata = self.keyspace.layout.metadata
        chunks = sum(len(partition.present()) for _, _, partition in self._partitions())
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


class ParquetStream:
    """The stream of a parquet set, of which a partition at a time is loaded."""

    in_memory = False

    def __init__(self, keyspace: ParquetKeySpace, respell: Respell) -> None:
        self.grids = keyspace.grids
        self._keyspace = keyspace
        self._respell = respell

    def pins(self) -> None:
        """A parquet set has none."""

    def documents(self) -> Iterator[tuple[str, Any]]:
        """Yield all metadata, and where that is zarr's version 2, the same consolidated."""
        metadata = self._keyspace.layout.metadata
        yield from metadata.items()
        old = {key: value for key, value in metadata.items() if not key.endswith("zarr.json")}
        if old and PARQUET not in metadata:
            yield PARQUET, {"metadata": old, "zarr_consolidated_format": 1}

    def ranges(self, array: str, size: int) -> Steps[list[range]]:
        stop, own = self.grids[array].size, self._keyspace.layout.record_size
        stored = yield from self._keyspace.stored(array, 0, stop)
        starts: dict[int, None] = {}
        for number in stored:
            last = min((number + 1) * own, stop) - 1
            starts.update(dict.fromkeys(range(number * own // size, last // size + 1)))
        return [range(i * size, min((i + 1) * size, stop)) for i in starts]

    def partition(self, array: str, numbers: range) -> Steps[Partition]:
        own = self._keyspace.layout.record_size
        builder = PartitionBuilder(len(numbers))
        for number in range(numbers.start // own, (numbers.stop - 1) // own + 1):
            part = yield from self._keyspace.partition(array, number)
            if part is None:
                continue
            start = number * own  # of the part's rows
            rows = slice(max(numbers.start - start, 0), min(numbers.stop - start, len(part)))
            moved = start - numbers.start
            urls = [self._respell(url) for url in part.urls]
            builder.put(slice(rows.start + moved, rows.stop + moved), urls, part.ranges.take(rows))
            builder.inline.update((r + moved, data) for r, data in part.inline.items() if rows.start <= r < rows.stop)
        return builder.finish()

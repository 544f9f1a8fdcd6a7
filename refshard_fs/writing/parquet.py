"""Commits to parquet sets: changed partitions under names of their own, then ``.zmetadata``, which names them.

That one PUT is the commit. What follows gives the partitions their usual names, for readers that know no others: if it
is interrupted, the names in ``.zmetadata`` stay, and readers of this package follow them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Texts
from refshard_fs.core.keys import is_within, join
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import Layout, ParquetKeySpace, partition_name
from refshard_fs.formats.kerchunk_parquet.writing import (
    Change,
    document_with,
    edited_partition,
    new_layout,
    parquet_partition,
    plan,
)
from refshard_fs.references.reference_set import ReferenceSet, with_edits, within
from refshard_fs.references.stream import FlatStream, Partition
from refshard_fs.session.collect import columns_of
from refshard_fs.session.recognition import beneath
from refshard_fs.writing.committer import Committing, DirectoryCommit
from refshard_fs.writing.save import as_written

ABANDONED: Final = 900  # seconds after which an earlier commit is not renaming partitions any more
TIDYING: Final = 300  # seconds that one takes for that at most

Renamed = dict[str, dict[int, str | None]]


class ParquetCommit(DirectoryCommit):
    """One commit to the set at the source's URL, which is made if there is none."""

    def __init__(self, committing: Committing) -> None:
        require_pyarrow()
        super().__init__(committing, PARQUET)
        found = beneath(committing.base.keyspace)
        self._old = found if isinstance(found, ParquetKeySpace) and committing.base.facts is not None else None
        empty = zarrmeta.dumps({"metadata": {}, "record_size": committing.options.record_size})
        self._layout = Layout(empty, self._url) if self._old is None else self._old.layout
        self._before = zarrmeta.loads(empty if self._old is None else self._old.document)
        self._now = 0  # seconds since 1970, when the commit is made
        self._last = b""  # the document when all partitions have their usual names
        self._renamed: Renamed = {array: dict(names) for array, names in self._layout.renamed.items()}

    def _put_objects(self) -> bytes:
        layout, document = new_layout(self._layout, self._edits, self._url)
        changes = plan(self._layout, layout, self._edits)
        for array in changes.gone:
            self._drop(array, 0)
        for array, change in changes.changes.items():
            self._change(layout, array, change)
        self._now = int(time.time())
        self._renamed = {array: names for array, names in self._renamed.items() if names}
        self._last = document_with(document, {}, self._token, self._now)
        return document_with(document, self._renamed, self._token, self._now)

    # ------------------------------------------------------------------ partitions under names of their own

    def _change(self, layout: Layout, array: str, change: Change) -> None:
        if change.anew:
            self._make_anew(layout, array, keeps=change.keeps)
            return
        for number in sorted({*change.rows, *change.cut}):
            before = None
            if self._old is not None and number < self._layout.partitions(array):
                before = self._run(partition_name(array, number), partial(self._old.partition, array, number))
            rows = change.rows.get(number, {})
            if before is not None or rows:
                self._put(layout, array, number, edited_partition(before, layout.chunks(array, number), rows))
        self._drop(array, layout.partitions(array))

    def _make_anew(self, layout: Layout, array: str, *, keeps: bool) -> None:
        grid = layout.grids[array]
        refs = ReferenceSet(Texts.of(()), {}, {})
        if keeps and self._old is not None:
            refs = columns_of(self._old, self._run, as_written, array)
        side = {key: value for key, value in refs.side.items() if is_within(key, array)}
        metadata = {key: value for key, value in layout.metadata.items() if is_within(key, array)}
        refs = with_edits(ReferenceSet(refs.urls, refs.tables, side | metadata), within(self._edits, array), self._url)
        stream = FlatStream(refs, as_written)
        self._drop(array, 0)
        for numbers in self._run(array, partial(stream.ranges, array, layout.record_size)):
            part = self._run(array, partial(stream.partition, array, numbers))
            assert len(part) <= grid.size
            self._put(layout, array, numbers.start // layout.record_size, part)

    def _put(self, layout: Layout, array: str, number: int, part: Partition) -> None:
        start = number * layout.record_size
        numbers = range(start, start + len(part))
        name = f"refs.{number}.{self._token}.parq"
        data = parquet_partition(array, layout.grids[array], numbers, part)
        self._written.append(join(array, name))
        self._store.put(join(array, name), (data,))
        self._renamed.setdefault(array, {})[number] = name

    def _drop(self, array: str, start: int) -> None:
        """Let there be none of the array's partitions from ``start`` on."""
        if self._old is None or array not in self._layout.grids:
            return
        size = self._layout.grids[array].size
        stored = self._run(array, partial(self._old.stored, array, start * self._layout.record_size, size))
        renamed = self._renamed.setdefault(array, {})
        renamed.update(dict.fromkeys(stored))
        renamed.update((number, None) for number in list(renamed) if number >= start)

    # ------------------------------------------------------------------ and their usual names

    def _may_tidy(self) -> bool:
        """Whether there are partitions to rename, and no other process can be at it."""
        if not self._renamed:
            return False
        match self._before.get("refshard"):
            case {"at": int(at)}:
                return self._now - at > ABANDONED
        return not self._layout.renamed

    def _tidy(self) -> None:
        if not self._may_tidy():
            return
        until = time.monotonic() + TIDYING
        unique: list[str] = []
        for array, names in self._renamed.items():
            for number, name in names.items():
                if time.monotonic() > until:
                    return
                usual = partition_name(array, number)
                if name is None:
                    self._store.remove_all([usual])
                else:
                    self._store.copy(join(array, name), usual)
                    unique.append(join(array, name))
        for array, before in self._layout.renamed.items():
            now = self._renamed.get(array, {})
            unique += [join(array, name) for n, name in before.items() if name is not None and now.get(n) != name]
        self._publish_again(self._last)
        self._store.remove_all(unique)

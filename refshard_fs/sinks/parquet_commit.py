"""Commits to parquet sets: new partitions are put first, then the document that names them.

The PUT of the document is the commit. Later steps give partitions their usual names, for readers that do not know the
new names. If they are interrupted, the document lists the remaining steps, and readers of this package use it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import Ranges, Texts
from refshard_fs.core.edits import Edits
from refshard_fs.core.keys import is_within, join
from refshard_fs.errors import ConflictError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import PartitionHistory, require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import KEPT, Layout, ParquetKeySpace, make_partition_name
from refshard_fs.formats.kerchunk_parquet.writing import (
    Change,
    edit_partition,
    encode_checked_partition,
    encode_partition,
    make_document,
    make_layout,
    plan_changes,
)
from refshard_fs.references.reference_set import ReferenceSet, apply_edits, select_edits
from refshard_fs.references.stream import ReferenceStream, keep_url
from refshard_fs.source.collect import gather
from refshard_fs.source.source import Source
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import is_same_version

Finish = Callable[[], None]  # the remaining steps after a commit


# Changed partitions are put under unique names; after the commit they get their usual names. The partitions that they
# replace are copied first, for readers that have the set open; a later commit removes the copies.

ABANDONED: Final = 900  # seconds after which an earlier commit no longer renames its partitions
TIDYING: Final = 300  # seconds that a commit may take to rename them
EARLIER: Final = 8  # earlier versions that the latest version of a partition names
MOST_KEPT: Final = 1000  # the most copies of replaced partitions

Renamed = dict[str, dict[int, str | None]]  # by array and number, the unique name of a partition; None: it is removed


class ParquetCommit:
    """One commit to the set at the source's URL, which is created if it does not exist."""

    def __init__(self, url: str, source: Source, base: Base, edits: Edits, record_size: int, sent: set[bytes]) -> None:
        """Take the ``edits`` of the set at ``url``, which was ``base`` when it was opened.

        ``record_size`` applies to a new set. ``sent`` are checksums of documents that this process put at the URL
        without an answer.
        """
        require_pyarrow()
        self._run = source.run
        self._edits = edits
        self._stores = source.stores
        self._store = Objects(url, self._stores)
        self._url = self._store.url_of(PARQUET)
        self._document = DocumentObject(self._url, self._stores, base.facts, sent)
        self._token = uuid.uuid4().hex  # makes the names of new objects unique
        self._written: list[str] = []
        found: Any = base.keyspace.source
        is_parquet = found.committed_as == "kerchunk-parquet" and base.facts is not None
        self._old: ParquetKeySpace | None = found.copy_for_commit() if is_parquet else None
        empty = zarrmeta.dumps({"metadata": {}, "record_size": record_size})
        self._layout = Layout(empty, self._url) if self._old is None else self._old.layout
        self._renamed: Renamed = {array: dict(names) for array, names in self._layout.renamed.items()}
        self._generation = self._layout.generation + 1
        self._now = int(time.time())
        self._kept = dict(self._layout.kept)  # replaced files in the document
        self._copied: dict[str, str] = {}  # usual names of partitions that are replaced, and names of their copies

    def run(self) -> Finish:
        """Commit all edits, or none. Return the remaining steps, which serve readers that do not know the new names."""
        data = None
        try:
            data, tidy = self._put_objects()
            self._document.put(data)
        except BaseException as e:
            # If the document may have been put, or may still be put, keep the objects that it names.
            is_refused = isinstance(e, ConflictError) and e.is_certain
            if data is None or is_refused or not self._document.may_be_stored(data):
                with contextlib.suppress(OSError):
                    self._store.remove_all(self._written)
            raise

        def finish() -> None:
            # The commit has succeeded, and its document lists the remaining steps.
            with contextlib.suppress(OSError, ConflictError):
                tidy()

        return finish

    def _put_objects(self) -> tuple[bytes, Finish]:
        """Put all new objects. Return the new document, and the steps after the commit that rename objects."""
        layout, document = make_layout(self._layout, self._edits, self._url)
        changes = plan_changes(self._layout, layout, self._edits)
        for array in changes.removed:
            self._drop(array, 0)
        for array, change in changes.changes.items():
            self._change(layout, array, change)
        self._renamed = {array: names for array, names in self._renamed.items() if names}
        gone = [path for path, when in self._kept.items() if self._now - when > KEPT]
        gone += sorted(set(self._list_copies()) - {*gone}, key=lambda path: self._kept[path])[:-MOST_KEPT]
        kept = {path: when for path, when in self._kept.items() if path not in gone}
        may_rename = self._may_rename()
        at = self._now if may_rename else self._layout.renaming_since
        alone = self._layout.is_for_us_alone
        first = make_document(
            document, self._token, self._generation, self._kept, self._renamed, at, is_for_us_alone=alone
        )
        last = make_document(document, self._token, self._generation, kept)
        return first, partial(self._rename, last, gone) if may_rename else _leave_partitions

    def _change(self, layout: Layout, array: str, change: Change) -> None:
        if change.is_rewritten:
            self._make_anew(layout, array, keeps=change.keeps_chunks)
            return
        for number in sorted({*change.rows, *change.resized}):
            before = None
            name = make_partition_name(array, number)
            if self._old is not None and number < self._layout.count_partitions(array):
                before = self._run(name, partial(self._old.load_partition, array, number))
            rows = change.rows.get(number, {})
            earlier: tuple[int | None, ...] = (None,)
            if before is not None:
                history = before.history
                earlier = (history.generation, *history.earlier)[:EARLIER]
                if number not in self._layout.renamed.get(array, {}):  # otherwise, an older one has the usual name
                    self._copied[name] = make_partition_name(array, number, history.generation)
                    self._kept[self._copied[name]] = self._now
            if before is not None or rows:
                part = edit_partition(before, layout.count_chunks(array, number), rows)
                self._put(layout, array, number, part, earlier)
        self._drop(array, layout.count_partitions(array))

    def _make_anew(self, layout: Layout, array: str, *, keeps: bool) -> None:
        refs = ReferenceSet(Texts.of(()), {}, {})
        if keeps and self._old is not None:
            refs, _ = self._run(array, partial(gather, self._old, array))
        side = {key: value for key, value in refs.side.items() if is_within(key, array)}
        metadata = {key: value for key, value in layout.metadata.items() if is_within(key, array)}
        refs = apply_edits(
            ReferenceSet(refs.urls, refs.tables, side | metadata), select_edits(self._edits, array), self._url
        )
        self._drop(array, 0)
        for numbers, part in ReferenceStream.of_set(refs, keep_url).partitions(array, layout.record_size):
            self._put(layout, array, numbers.start // layout.record_size, part)

    def _put(self, layout: Layout, array: str, number: int, part: Chunks, earlier: tuple[int | None, ...] = ()) -> None:
        start = number * layout.record_size
        numbers = range(start, start + len(part))
        name = f"refs.{number}.{self._token}.parq"
        data = encode_partition(array, layout.grids[array], numbers, part, PartitionHistory(self._generation, earlier))
        self._written.append(join(array, name))
        self._store.put(join(array, name), (data,))
        self._renamed.setdefault(array, {})[number] = name
        self._kept.pop(make_partition_name(array, number), None)

    def _drop(self, array: str, start: int) -> None:
        """Remove the partitions of the array from ``start`` on.

        For a while, an empty partition has the usual name of each: readers that have the set open raise TargetChanged.
        """
        if self._old is None or array not in self._layout.grids:
            return
        size = self._layout.grids[array].size
        stored = self._run(array, partial(self._old.list_partitions, array, start * self._layout.record_size, size))
        renamed = self._renamed.setdefault(array, {})
        renamed.update(dict.fromkeys(stored))
        renamed.update((number, None) for number in list(renamed) if number >= start)
        self._kept.update((make_partition_name(array, n), self._now) for n, name in renamed.items() if name is None)

    def _list_copies(self) -> Iterator[str]:
        """Yield the copies among the kept files; a reader whose copy is gone gets an error, not a missing chunk."""
        return (path for path in self._kept if path.count(".", path.rfind("/") + 1) == 3)

    def _may_rename(self) -> bool:
        """Return whether partitions are to be renamed, and no other process renames them. Local sets have a lock."""
        is_abandoned = self._now - self._layout.renaming_since > ABANDONED
        is_free = self._store.is_local or not self._layout.renamed or is_abandoned
        return bool(self._renamed) and is_free

    def _rename(self, document: bytes, gone: list[str]) -> None:
        """Give the partitions of the commit their usual names; then replace the document by ``document``.

        Files in ``gone``, which were kept long enough, are removed.
        """
        with self._store.lock():
            facts = self._document.new_facts
            if facts is not None and not is_same_version(facts, self._store.find_version(PARQUET)):
                return  # a later commit does all of this
            unique = self._copy(time.monotonic() + TIDYING)
        if unique is not None:
            self._replace_document(document)
            self._store.sweep_stale([PARQUET, *self._written])
            self._store.remove_all([*unique, *gone])

    def _copy(self, until: float) -> list[str] | None:
        """Copy partitions to their usual names; return the names that are no longer needed, or None after ``until``."""
        unique: list[str] = []
        rows = self._layout.record_size
        empty = encode_checked_partition(Chunks((), Ranges.make_absent(rows), {}), PartitionHistory(self._generation))
        for array, names in self._renamed.items():
            for number, name in names.items():
                if time.monotonic() > until:
                    return None
                usual = make_partition_name(array, number)
                if usual in self._copied:
                    self._store.copy(usual, self._copied[usual])
                if name is not None:
                    self._store.copy(join(array, name), usual)
                    unique.append(join(array, name))
            removed = [make_partition_name(array, number) for number, name in names.items() if name is None]
            self._store.put_all(dict.fromkeys(removed, empty))
        for array, before in self._layout.renamed.items():
            kept = self._renamed.get(array, {})
            unique += [join(array, name) for n, name in before.items() if name is not None and kept.get(n) != name]
        return unique

    def _replace_document(self, data: bytes) -> None:
        """Replace the document that this commit has put."""
        DocumentObject(self._url, self._stores, self._document.new_facts).put(data)


def _leave_partitions() -> None:
    """Do nothing: a later commit renames the partitions of this one."""

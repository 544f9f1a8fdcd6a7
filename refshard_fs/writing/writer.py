"""Writes to one source: keys go into an overlay, which is committed or discarded."""

from __future__ import annotations

from typing import Any

from fsspec.transaction import Transaction

from refshard_fs.core.edits import EditedKeySpace, Edits
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Span
from refshard_fs.errors import ReadOnlyError, RefShardError
from refshard_fs.session.in_memory_source import InMemorySource
from refshard_fs.session.options import WriteOptions
from refshard_fs.session.overlay import Base, Overlay, OverlayCopy
from refshard_fs.session.session import Session
from refshard_fs.sharding.view import ShardView
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.staging import Values, clear, merge

_ELSEWHERE = (
    "this filesystem came from another process, and writes for that: what was written here is safe, and is committed, "
    "or discarded, there"
)


class Writer:
    """Writes to the overlay of a session, which is read at once by all that share it. Any thread may use it.

    The source itself is not touched before a commit.
    """

    def __init__(self, session: Session, options: WriteOptions) -> None:
        self.session = session
        self.options = options
        self._values: Values | None = None

    @property
    def overlay(self) -> Overlay:
        """The uncommitted writes; a source in memory has an overlay from the first use on."""
        return self.session.edited()

    @property
    def source(self) -> str | InMemorySource:
        """What is written to."""
        return self.session.options.source

    # ------------------------------------------------------------------ keys

    def write_now(self, key: str, data: bytes) -> bool:
        """Let ``key`` hold ``data``, and return True, where that takes no event loop; for callers that may block."""
        base = self.overlay.base  # None before the source is opened: its format says where values go
        return base is not None and self.values_over(base).write_now(key, data)

    def refer_now(self, key: str, span: Span) -> bool:
        """Let ``key`` refer to ``span``, and return True, where that takes no event loop."""
        if self.overlay.worker is not None or self.overlay.base is None:
            return False
        self.overlay.put(key, span)
        return True

    async def link(self, key: str, entry: Entry) -> bool:
        """Let ``key`` refer to where ``entry`` is, and return True; False where its bytes have to be copied."""
        values = await self.values()
        if values.keeps(key):
            return False
        if not isinstance(entry, Span) or entry.optional or entry.pin is not None:
            return False
        if entry.size is None and (entry.start, entry.stop) != (0, None):
            return False
        await values.refer(key, entry)
        return True

    # ------------------------------------------------------------------ commits

    def commit(self) -> None:
        """Make all that was written durable in the source."""
        self._refuse_elsewhere()
        self._commit()
        self.overlay.costs.tell()

    def _commit(self) -> None:
        from refshard_fs.writing.commit import commit, waits  # not imported for reading

        overlay = self.overlay
        with overlay.lock:
            if overlay.is_shared and self.options.data_url is not None:
                does_wait = waits(self.source, self.base(), self.options)
                merge(overlay, self._store(), self.options, waits=does_wait)
            if not overlay.edits:
                return
            base = self.base()
            edits = overlay.savepoint()
            if self.options.data_url is not None:
                self._store().make_durable(overlay.objects())
            try:
                stored, finish = commit(self, base, edits)
            except RefShardError:  # nothing was committed
                raise
            except BaseException:  # the store may have done it all the same: `discard` removes no object that it names
                overlay.entrust()
                raise
            try:
                if finish is not None:
                    finish()
            finally:  # the commit is made, also where Ctrl-C ends this
                left = overlay.settle(edits, stored)
        self._remove_objects(left)

    def discard(self) -> None:
        """Drop all edits, and remove their objects."""
        self._refuse_elsewhere()
        with self.overlay.lock:
            if self.overlay.is_shared and self.options.data_url is not None:
                clear(self.overlay, self._store())
            left = self.overlay.drop()
        self._remove_objects(left)

    def roll_back(self, savepoint: Edits) -> None:
        """Drop the edits since ``savepoint``, one of the overlay."""
        with self.overlay.lock:
            left = self.overlay.roll_back(savepoint)
        self._remove_objects(left)

    # ------------------------------------------------------------------ the source and the overlay

    def base(self) -> Base:
        """Return the source as it was opened, below the edits."""
        self.session.open()
        base = self.overlay.base
        assert base is not None, "opening the source sets the base of the overlay"
        return base

    def stored(self) -> KeySpace:
        """Return the keys as a commit would store them: those of shards, not of inner chunks.

        Other sets may refer to their objects, so that none of these is removed from now on.
        """
        from refshard_fs.writing.shards import shard_edits  # as in `commit`

        keyspace = self.session.open()
        if self.session.options.overlay is None:
            return keyspace
        match keyspace:
            case EditedKeySpace(base=ShardView() as view, edits=edits) if len(edits):
                values = self.values_over(self.base())
                keyspace = EditedKeySpace(view.base, shard_edits(view, edits, self.session.run, self.overlay, values))
        self.overlay.entrust()
        return keyspace

    def overlay_copy(self) -> OverlayCopy | None:
        """Return ``overlay=`` of copies in other processes; None where this is such a copy, and has been given one."""
        overlay = self.session.options.overlay
        return None if overlay is None or overlay.worker is not None else overlay.copy()

    def _refuse_elsewhere(self) -> None:
        if self.overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)

    def _remove_objects(self, urls: list[str]) -> None:
        if urls and self.options.data_url is not None:
            store = self._store()
            store.remove_all(name for name in map(store.name_of, urls) if name is not None)

    def _store(self) -> Objects:
        url = self.options.data_url
        assert url is not None
        return Objects(url, self.session.given(url))

    # ------------------------------------------------------------------ where values go

    def values_over(self, base: Base) -> Values:
        from refshard_fs.writing.commit import waits  # not imported for reading

        options, values = self.options, self._values
        if values is None:
            store = None if options.data_url is None else self._store()
            values = self._values = Values(self.overlay, options, store)
        values.waits = waits(self.source, base, options)
        values.is_inner = base.keyspace.is_inner
        return values

    async def values(self) -> Values:
        """Return what takes single values and removals, and may take an event loop for them."""
        while True:
            await self.session.keyspace()
            base = self.overlay.base
            if base is not None:  # no other thread has replaced the edits meanwhile
                return self.values_over(base)


class OverlayTransaction(Transaction):  # type: ignore[misc]  # fsspec is untyped
    """Commits, or drops, all that was written meanwhile to the overlay, also by other filesystems that share it.

    If the commit fails, the edits are kept: they can be committed again, saved elsewhere or discarded.
    """

    fs: Any

    def __init__(self, fs: Any, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self._begin()  # fsspec's `start_transaction` never calls `start`

    def start(self) -> None:
        super().start()
        self._begin()

    def _begin(self) -> None:
        self._savepoint = self.fs._writing("begin a transaction").overlay.savepoint()

    def complete(self, commit: bool = True) -> None:
        fs, self.fs = self.fs, None
        fs._intrans = False
        fs._transaction = None
        writer = fs._writing("commit")
        if not commit:
            writer.roll_back(self._savepoint)
        elif writer.overlay.worker is None and isinstance(writer.session.options.source, str):
            # A process that writes for another one leaves it to that, and a source in memory has what was written.
            writer.commit()

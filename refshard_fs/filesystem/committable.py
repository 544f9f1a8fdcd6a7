"""What was written and not committed: an overlay, made durable or forgotten, by any instance that shares it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from refshard_fs.edits import Edits
from refshard_fs.errors import ReadOnlyError, RefShardError
from refshard_fs.filesystem.sourced import Sourced
from refshard_fs.model import Steps
from refshard_fs.overlay import Base, Overlay
from refshard_fs.targets.store import Store
from refshard_fs.writes.destination import waits
from refshard_fs.writes.options import WriteOptions
from refshard_fs.writes.staging import clear, merge
from refshard_fs.writes.transaction import OverlayTransaction
from refshard_fs.writes.values import Values

if TYPE_CHECKING:
    from refshard_fs.writes.interrupts import Stop

__all__ = ["Committable"]

_ELSEWHERE = (
    "this filesystem came from another process, and writes for that: what was written here is safe, and is committed, "
    "or discarded, there"
)


class Committable(Sourced):
    """What writes go to is an overlay: reads see it at once, and the source is not touched before a commit."""

    transaction_type = OverlayTransaction

    _write_options: WriteOptions

    def _writes_with(self, overlay: Overlay | None, options: WriteOptions) -> None:
        """Take what is written to; None refuses all writes."""
        self._overlay = overlay
        self._write_options = options
        self._values: Values | None = None

    @property
    def overlay(self) -> str | None:
        """The name of what is written and not committed: ``overlay=`` of another instance in this process shares it."""
        return None if self._overlay is None else self._overlay.id

    def known_by(self, arguments: object) -> None:
        """Let filesystems that are made from a URL with ``arguments`` write where this one does; None for none."""
        if arguments is not None and self._overlay is not None:
            self._overlay.arguments = arguments

    def commit(self) -> None:
        """Make all that was written durable in the source, whole or not at all; nothing happens if there is nothing.

        Raises ConflictError if somebody else wrote the source since it was opened, and ReadOnlyError if it cannot be
        written: then it is as it was, and what was written is kept for `save` or another try.
        """
        from refshard_fs.writes.costs import costs_of  # what writes: who reads need not wait for it
        from refshard_fs.writes.interrupts import Stop, to_its_end

        overlay = self._writing("commit")
        if overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)
        stop = Stop()
        to_its_end(partial(self._make, overlay, stop), stop)
        costs_of(overlay).tell()

    def _make(self, overlay: Overlay, stop: Stop) -> None:
        from refshard_fs.writes.commit import Committing, commit  # as above
        from refshard_fs.writes.recovery import recover_opened

        with overlay.lock:
            if overlay.is_shared and self._write_options.data_url is not None:
                self._merge(overlay)
            if overlay.is_empty:
                return
            base = self._base(overlay)
            undone = recover_opened(base.keyspace, self._session.given)
            if undone is not None:
                overlay.reopen(undone)  # what was seen of these, where they lie, is of that commit
                base = self._base(overlay)
            edits = overlay.savepoint()
            source = self._session.options.source
            if self._write_options.data_url is not None:
                self._store().settle(overlay.objects())
            given, values = self._session.given, self._writer_over(overlay, base)
            options = self._write_options

            def run(key: str, steps: Callable[[], Steps[Any]]) -> Any:
                stop.check()
                return self._look(key, steps)

            committing = Committing(source, base, edits, overlay, run, given, options, values, stop)
            try:
                stored = commit(committing)
            except RefShardError:  # nothing was committed
                raise
            except BaseException:  # the store may have done it all the same: `discard` removes no object that it names
                overlay.entrust()
                raise
            left = overlay.settle(edits, stored)
        self._remove_objects(left)

    def _base(self, overlay: Overlay) -> Base:
        self._opened()
        base = overlay.base
        assert base is not None, "whoever opens the source shares it"
        return base

    def _merge(self, overlay: Overlay) -> None:
        base = self._base(overlay)
        does_wait = waits(self._session.options.source, base, self._write_options)
        merge(overlay, self._store(), self._write_options, waits=does_wait)

    async def _commit(self) -> None:
        await asyncio.to_thread(self.commit)

    def flush(self) -> None:
        """Commit: what fsspec's ``LazyReferenceMapper`` calls it."""
        self.commit()

    def discard(self) -> None:
        """Forget all that was written and not committed, and remove its objects; reads see the source as it is now."""
        overlay = self._writing("discard")
        if overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)
        with overlay.lock:
            if overlay.is_shared and self._write_options.data_url is not None:
                clear(overlay, self._store())
            left = overlay.drop()
        self._remove_objects(left)

    def recover(self) -> bool:
        """Undo a commit to the zarr hierarchy that was cut short, and return True; False if there is none.

        The next commit does so, too, but waits where nothing but time tells that a writer is dead: on object stores.
        This does not: it is for who knows that nobody is at a commit.
        """
        from refshard_fs.writes.interrupts import Stop, to_its_end
        from refshard_fs.writes.recovery import recover_at

        self._writing("recover")
        source = self._session.options.source
        if not isinstance(source, str):
            return False
        undone = to_its_end(partial(recover_at, source, self._session.given(source)), Stop())
        if undone:
            self.invalidate_cache()
        return undone

    def savepoint(self) -> Edits:
        """Return what was written and not committed so far, for `go_back`."""
        return self._writing("begin a transaction").savepoint()

    def go_back(self, savepoint: Edits) -> None:
        """Forget what was written since `savepoint`."""
        overlay = self._writing("go back")
        with overlay.lock:
            left = overlay.go_back(savepoint)
        self._remove_objects(left)

    def end_of_transaction(self) -> None:
        """Commit; in a process that writes for another one, whose commit it will be, do nothing."""
        if self._writing("commit").worker is None:
            self.commit()

    def _remove_objects(self, urls: list[str]) -> None:
        if urls and self._write_options.data_url is not None:
            store = self._store()
            store.remove(urls)
            store.tidy()

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        if self._overlay is not None and self._overlay.worker is None:
            options = {**options, "overlay": self._overlay.travelling()}
        return make, (cls, args, options)

    def _writing(self, what: str) -> Overlay:
        """Return what is written to; ReadOnlyError, which names ``what`` was to be done, if that is nothing."""
        if self._overlay is None:
            raise ReadOnlyError(
                f"cannot {what}: {self._session.options.source} was opened for reading; mode='a' lets one write. "
                "fsspec keeps it from the options of a URL: those are {'refshard': {'fo': ..., 'mode': 'a'}}, or the "
                "arguments of a filesystem that you hold, fsspec.filesystem('refshard', ..., mode='a')"
            )
        return self._overlay

    def _store(self) -> Store:
        url = self._write_options.data_url
        assert url is not None
        return Store(url, self._session.given(url))

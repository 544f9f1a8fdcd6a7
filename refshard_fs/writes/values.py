"""Where a written value goes: small ones and metadata into the overlay, others into objects, at once.

Those that have a place of their own wait in the overlay, and the commit puts them there: all of a zarr hierarchy, and
the chunks that lie in shards.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable

from refshard_fs.edits import REMOVED
from refshard_fs.model import Inline, Span
from refshard_fs.overlay import Overlay
from refshard_fs.targets.store import Buffer, Store
from refshard_fs.writes.options import WriteOptions
from refshard_fs.zarrmeta import is_metadata

__all__ = ["Values", "never"]


class Values:
    """Writes to one overlay: what a method has returned from, readers see. Any thread and event loop may call it."""

    def __init__(self, overlay: Overlay, options: WriteOptions, store: Store | None) -> None:
        self._overlay = overlay
        self._options = options
        self._store = store
        self.waits = False  # for a commit that has a place for them
        self.is_inner: Callable[[str], bool] = never  # whether a key is of a chunk that lies in a shard

    def keeps(self, key: str) -> bool:
        """Whether the value of ``key`` waits for the commit."""
        return (self.waits or self.is_inner(key)) and not is_metadata(key)

    def stored(self, data: Buffer) -> Inline | Span:
        """Return an edit that holds ``data``; a large one is an object, durable when this returns. May block."""
        return self._stored(data, durable=True) if self._is_large(data) else Inline(bytes(data))

    async def write(self, key: str, data: bytes) -> None:
        """Let ``key`` hold ``data``; its object, if it has one, is whole when this returns."""
        if self.write_now(key, data):
            return
        assert self._store is not None
        name = self._name(data)
        if not self._is_known(name) and not (
            self._options.content_addressed and await asyncio.to_thread(self._store.has, name)
        ):
            await self._store.put(name, data)
        self._overlay.put(key, self._made(name, data))

    def write_now(self, key: str, data: bytes) -> bool:
        """Do the same at once, and return True, where that takes no event loop."""
        overlay = self._overlay
        if self.keeps(key):
            overlay.put(key, overlay.spool.keep(data, overlay.edits.get(key)))
            return True
        if self.waits or is_metadata(key) or not self._is_large(data):
            overlay.put(key, Inline(data))
            return True
        if self._store is None or not self._store.is_at_hand:
            return False
        overlay.put(key, self._stored(data))
        return True

    async def refer(self, key: str, span: Span) -> None:
        """Let ``key`` hold what is at ``span``."""
        self._overlay.put(key, span)

    async def remove(self, key: str) -> None:
        """Let there be no ``key``."""
        self._overlay.put(key, REMOVED)

    async def remove_below(self, prefix: str) -> None:
        """Let there be nothing at ``prefix``, nor below it."""
        self._overlay.remove_below(prefix)

    def _is_large(self, data: Buffer) -> bool:
        """Whether ``data`` is to be an object."""
        return self._store is not None and len(data) > self._options.inline_threshold

    def _stored(self, data: Buffer, *, durable: bool = False) -> Span:
        assert self._store is not None
        name = self._name(data)
        if not self._is_known(name) and not (self._options.content_addressed and self._store.has(name)):
            self._store.put_now(name, data, durable=durable)
        return self._made(name, data)

    def _made(self, name: str, data: Buffer) -> Span:
        """Take note of the object ``name``, which has ``data``."""
        assert self._store is not None
        url = self._store.url_of(name)
        if self._options.content_addressed:
            self._overlay.names.add(name)  # and never removed: others may have found it, and refer to it
        else:
            self._overlay.made(url)
        return Span(url, 0, len(data))

    def _is_known(self, name: str) -> bool:
        return self._options.content_addressed and name in self._overlay.names

    def _name(self, data: Buffer) -> str:
        """Return the name of an object for ``data``: two letters are a directory, for no directory to be too large."""
        name = hashlib.sha256(data).hexdigest() if self._options.content_addressed else uuid.uuid4().hex
        return f"{name[:2]}/{name[2:]}"


def never(key: str) -> bool:
    """Whether ``key`` lies in a shard, where nothing does."""
    return False

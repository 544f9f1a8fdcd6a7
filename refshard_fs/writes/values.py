"""Where a written value goes: small ones and metadata into the overlay, others into objects, at once.

Of a zarr hierarchy, all wait in the overlay: they have a place in the source itself, and the commit puts them there.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid

from refshard_fs.edits import REMOVED
from refshard_fs.model import Inline, Span
from refshard_fs.overlay import Overlay
from refshard_fs.targets.store import Store
from refshard_fs.writes.options import WriteOptions
from refshard_fs.zarrmeta import is_metadata

__all__ = ["Values"]


class Values:
    """Writes to one overlay: what a method has returned from, readers see. Any thread and event loop may call it."""

    def __init__(self, overlay: Overlay, options: WriteOptions, store: Store | None) -> None:
        self._overlay = overlay
        self._options = options
        self._store = store
        self.waits = False  # for a commit that has a place for them

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
        self._put(key, name, data)

    def write_now(self, key: str, data: bytes) -> bool:
        """Do the same at once, and return True, where that takes no event loop."""
        overlay = self._overlay
        if self.waits and not is_metadata(key):
            overlay.put(key, overlay.spool.keep(data, overlay.edits.get(key)))
            return True
        if self.waits or self._store is None or is_metadata(key) or len(data) <= self._options.inline_threshold:
            overlay.put(key, Inline(data))
            return True
        if not self._store.is_at_hand:
            return False
        name = self._name(data)
        if not self._is_known(name) and not (self._options.content_addressed and self._store.has(name)):
            self._store.put_now(name, data)
        self._put(key, name, data)
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

    def _put(self, key: str, name: str, data: bytes) -> None:
        assert self._store is not None
        url = self._store.url_of(name)
        if self._options.content_addressed:
            self._overlay.names.add(name)  # and never removed: others may have found it, and refer to it
        else:
            self._overlay.made(url)
        self._overlay.put(key, Span(url, 0, len(data)))

    def _is_known(self, name: str) -> bool:
        return self._options.content_addressed and name in self._overlay.names

    def _name(self, data: bytes) -> str:
        """Return the name of an object for ``data``: two letters are a directory, for no directory to be too large."""
        name = hashlib.sha256(data).hexdigest() if self._options.content_addressed else uuid.uuid4().hex
        return f"{name[:2]}/{name[2:]}"

"""Write keys of one source into an overlay, which users commit or discard.

In the process that commits, small values and metadata go into the overlay, and other values into new objects at once.
Without a directory for new objects, all values go into the overlay. Values that the commit itself stores wait there,
too: all chunks of a zarr hierarchy or an Icechunk repository, and chunks of shards in other sources. Other processes
stage each change: see `staging`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from refshard_fs.core.chunks import Listing
from refshard_fs.core.edits import REMOVED, Edits
from refshard_fs.core.keys import parent
from refshard_fs.core.model import Entry, Inline, Span, add_origin
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ReadOnlyError, sanitize
from refshard_fs.security.origins import find_origin
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.options import Options
from refshard_fs.source.settings import READ_AS, WriteSettings, format_by_suffix
from refshard_fs.source.source import Source
from refshard_fs.source.transaction import Base, OverlayCopy, Transaction
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import Buffer, compute_checksum
from refshard_fs.targets.generic import run_in_thread
from refshard_fs.writing.staging import clear, encode_reference, stage

HIERARCHY: Final = "zarr-hierarchy"
ICECHUNK: Final = "icechunk"
HOLD_VALUES: Final = (HIERARCHY, ICECHUNK)  # formats whose commit stores every value
_NEW: Final = READ_AS | {name: name for name in READ_AS.values()}

_ELSEWHERE = (
    "this filesystem is a copy from another process: call commit() or discard() there. The writes of this process are "
    "safe"
)


class Writer:
    """Write to the overlay of a source; all filesystems that share the overlay see the writes at once.

    The source itself does not change before a commit. Any thread and event loop may use a writer.
    """

    def __init__(self, source: Source, options: WriteSettings) -> None:
        self.source = source
        self.options = options

    @classmethod
    def of(cls, options: Options) -> Writer:
        """Return the writer of a source that is opened with ``options``; ReadOnlyError if these forbid writing."""
        settings = WriteSettings.of(options)
        if settings is None:
            raise ReadOnlyError(f"cannot write to {options.source.fo}: expected mode='a' or mode='w'")
        return cls(Source.of(options), settings)

    @property
    def overlay(self) -> Transaction:
        """The uncommitted writes; a source in memory gets its overlay here, at the first use."""
        return self.source.ensure_transaction()

    @property
    def fo(self) -> str | InMemorySource:
        """The URL of the source, or the source in memory."""
        return self.source.options.source

    @cached_property
    def store(self) -> Objects | None:
        """The directory of new objects; None if all values stay in memory."""
        url = self.options.data_url
        return None if url is None else Objects(url, self.source.stores)

    def format_of(self, base: Base) -> str | None:
        """Return the format that a commit writes; None if the source does not support commits.

        ReadOnlyError for a new source in a format that a commit cannot begin.
        """
        if base.facts is None and base.url == self.fo:  # nothing exists at the URL
            format = self.options.format
            format = format or format_by_suffix(str(self.fo))
            if format == ICECHUNK:
                raise ReadOnlyError(
                    f"there is no Icechunk repository at {sanitize(str(self.fo))}, and a commit makes none: write to "
                    "another source, such as a .json set, and save it to this place by fs.save(url)"
                )
            if format not in _NEW:
                raise ReadOnlyError(f"unknown format={format!r}: expected one of {', '.join(_NEW)}")
            return _NEW[format]
        return base.keyspace.committed_as

    async def write(self, key: str, data: bytes) -> None:
        """Set ``key`` to ``data``; if the data become an object, the object is complete when this returns."""
        if not self._write_at_once(await self._open_async(), key, data):
            await run_in_thread(lambda: self._put(key, data))

    def write_now(self, key: str, data: bytes) -> bool:
        """Set ``key`` to ``data``, if this takes no event loop; otherwise return False. For callers that may block."""
        base = self.overlay.base  # None before the source is opened: its format determines where values are stored
        return base is not None and self._write_at_once(base, key, data)

    async def refer(self, key: str, span: Span) -> None:
        """Make ``key`` refer to ``span``."""
        await self._open_async()
        await self._stage("r", key, encode_reference(span))
        self.overlay.put(key, span)

    def refer_now(self, key: str, span: Span) -> bool:
        """Make ``key`` refer to ``span``, if this takes no event loop; otherwise return False."""
        if self.overlay.worker is not None or self.overlay.base is None:
            return False
        self.overlay.put(key, span)
        return True

    async def link(self, key: str, entry: Entry) -> bool:
        """Make ``key`` refer to the bytes of ``entry``; return False if the bytes have to be copied instead."""
        if self._is_held(await self._open_async(), key):
            return False
        if not isinstance(entry, Span) or entry.optional or entry.pin is not None:
            return False
        if entry.size is None and (entry.start, entry.stop) != (0, None):
            return False
        await self.refer(key, add_origin(entry, find_origin(self.source.admission, entry.url)))
        return True

    async def find_manifests(self, keys: Iterable[str]) -> set[str]:
        """Return the chunk manifests in the directories of ``keys``."""
        keyspace = (await self._open_async()).keyspace.whole_shards
        found: set[str] = set()
        for directory in {parent(key)[0] for key in keys}:
            listing: Listing | None = await self.source.look_up(directory, keyspace.list_chunks(directory))
            found |= listing.indexes if listing is not None else set()
        return found

    async def remove(self, key: str) -> None:
        await self._stage("d", key)
        self.overlay.put(key, REMOVED)

    async def remove_below(self, prefix: str) -> None:
        """Remove all keys at and below ``prefix``."""
        await self._stage("p", prefix)
        self.overlay.remove_below(prefix)

    def make_edit(self, parts: Sequence[Buffer]) -> Inline | Span:
        """Return an edit with the bytes of ``parts``; a large value becomes a durable object. May block."""
        if not self._is_large(sum(map(len, parts))):
            return Inline(b"".join(parts))
        span, removable = self._put_parts(parts, durable=True)
        if removable is not None:
            self.overlay.remember_object(removable)
        return span

    def _is_held(self, base: Base, key: str) -> bool:
        """Return whether the value of ``key`` waits for the commit, which stores it."""
        if self.overlay.worker is not None or is_metadata(key):
            return False
        return self.format_of(base) in HOLD_VALUES or base.keyspace.is_inner(key)

    def _write_at_once(self, base: Base, key: str, data: bytes) -> bool:
        """Set ``key`` to ``data``, if this takes no network; otherwise return False."""
        overlay, store = self.overlay, self.store
        if self._is_held(base, key):
            overlay.put(key, overlay.spool.keep(data, overlay.edits.get(key)))
        elif overlay.worker is None and (is_metadata(key) or not self._is_large(len(data))):
            overlay.put(key, Inline(data))
        elif store is not None and store.is_immediate:
            self._put(key, data)
        else:
            return False
        return True

    def _put(self, key: str, data: bytes) -> None:
        """Put an object with ``data``, and set ``key`` to it; in a worker, to small ``data`` themselves."""
        if self.overlay.worker is None:
            self.overlay.put(key, *self._put_parts([data]))
        else:
            span = Span(stage(self.overlay, self.store, "w", key, data), 0, len(data))
            is_small = is_metadata(key) or not self._is_large(len(data))
            self.overlay.put(key, Inline(data) if is_small else span)

    async def _stage(self, kind: str, key: str, data: bytes = b"-") -> None:
        """Stage a change if another process commits it."""
        if self.overlay.worker is not None:
            await run_in_thread(lambda: stage(self.overlay, self.store, kind, key, data))

    def _is_large(self, size: int) -> bool:
        """Return whether a value of ``size`` bytes becomes an object."""
        return self.store is not None and size > self.options.inline_threshold

    def _put_parts(self, parts: Sequence[Buffer], *, durable: bool = False) -> tuple[Span, str | None]:
        """Put an object with ``parts``; return its span, and its URL if it may be removed later (else None).

        An object that is named by its content must stay, because other keys may refer to it.
        """
        overlay, store, by_content = self.overlay, self.store, self.options.content_addressed
        assert store is not None
        name = compute_checksum(parts).hex() if by_content else uuid.uuid4().hex
        name = f"{name[:2]}/{name[2:]}"  # the first two letters are a directory, so that none has too many files
        if not (by_content and (name in overlay.names or store.get_facts(name) is not None)):
            store.put(name, parts, durable=durable)
        url = store.url_of(name)
        if by_content:
            overlay.names.add(name)
        return Span(url, 0, sum(map(len, parts))), None if by_content else url

    def discard(self) -> None:
        """Drop all edits, and remove their objects, except objects that are named by their content."""
        self.refuse_in_worker()
        with self.overlay.lock:
            if self.overlay.is_shared and self.store is not None:
                clear(self.overlay, self.store)
            left = self.overlay.drop()
        self.remove_objects(left)

    def roll_back(self, savepoint: Edits) -> None:
        """Drop the edits since ``savepoint``, and the staged edits of workers that began after it."""
        with self.overlay.lock:
            if self.overlay.is_shared and self.overlay.worker is None and self.store is not None:
                clear(self.overlay, self.store, savepoint.number)
            left = self.overlay.roll_back(savepoint)
        self.remove_objects(left)

    def get_base(self) -> Base:
        """Return the opened source, without the edits."""
        self.source.open()
        base = self.overlay.base
        assert base is not None, "opening the source sets the base of the overlay"
        return base

    async def _open_async(self) -> Base:
        """Return the opened source, as `get_base` does, on an event loop."""
        while True:
            await self.source.keyspace()
            base = self.overlay.base
            if base is not None:  # otherwise another thread has just changed the edits: open again
                return base

    def copy_overlay(self) -> OverlayCopy | None:
        """Return the value of the option ``overlay`` for copies in other processes; it contains the edits so far."""
        overlay = self.source.transaction
        return None if overlay is None else overlay.copy()

    def refuse_in_worker(self) -> None:
        """Raise ReadOnlyError if another process has to commit."""
        if self.overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)

    def remove_objects(self, urls: list[str]) -> None:
        """Remove the objects at ``urls`` that are in the store."""
        if urls and self.store is not None:
            self.store.remove_all(name for name in map(self.store.name_of, urls) if name is not None)

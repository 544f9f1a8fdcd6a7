"""Shards put together as soon as all of their chunks are written: one object each, in a file, until a commit puts it.

The chunks take no memory from then on: what was written of each is a part of that object. None of it is where others
look before the commit, which takes an object as it is unless a chunk of it was written again.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from refshard_fs.core.edits import REMOVED, Spooled, buffers
from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Inline, Steps
from refshard_fs.core.overlay import Overlay
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import RefShardError
from refshard_fs.sharding.layout import Buffer, Misfit, ShardLayout
from refshard_fs.sharding.places import ChunkInShard, in_shard, inside
from refshard_fs.writing.planning import ShardPlan, array_at

__all__ = ["Assembly", "assembly_of"]

Payload = Inline | Spooled
Look = Callable[[str, Callable[[], Steps[Any]]], Any]
LookLater = Callable[[str, Steps[Any]], Awaitable[Any]]


class _Filling(NamedTuple):
    """A shard of which some chunks have been written: those, by place, of all that it takes."""

    layout: ShardLayout
    lengths: tuple[int, ...]
    total: int
    keys: dict[tuple[int, ...], str]


class _Whole(NamedTuple):
    """A shard that was put together, and what of it each of its chunks is."""

    layout: ShardLayout
    object: Spooled
    parts: Mapping[tuple[int, ...], Payload | None]


class Assembly:
    """The shards that the writes to one overlay fill. Any thread may use it."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = weakref.ref(overlay)
        self._lock = threading.Lock()
        self._arrays: dict[str, tuple[str, ShardLayout | None]] = {}  # by directory
        self._filling: dict[str, _Filling] = {}
        self._whole: dict[str, _Whole] = {}
        overlay.join(self)

    def whole(self, shard: ShardPlan) -> Spooled | None:
        """Return the object that ``shard``, all of whose chunks were written, is; None if it is to be put together."""
        known = self._whole.get(shard.key)
        if known is None or known.layout is not shard.layout or len(known.parts) != len(shard.changes):
            return None
        missing = object()
        are_parts = all(known.parts.get(place, missing) is edit for place, edit in shard.changes.items())
        return known.object if are_parts else None

    # ------------------------------------------------------------------ what was written

    def written(self, key: str, keyspace: KeySpace, look: Look) -> None:
        """Take note that ``key`` was written, or removed; ``look`` meets what look-ups need, for callers that block."""
        overlay = self._overlay()
        if overlay is None or is_metadata(key):
            return
        known = self._arrays.get(parent(key)[0])
        if known is None:
            try:
                known = look(key, partial(array_at, keyspace, overlay.edits, key))
            except RefShardError:  # the commit finds out again, and says what is wrong
                return
        filled = self._note(key, *known)
        if filled is not None:
            self._put_together(*filled, overlay)

    async def written_later(self, key: str, keyspace: KeySpace, look: LookLater) -> None:
        """Do the same on an event loop, which is not kept waiting."""
        overlay = self._overlay()
        if overlay is None or is_metadata(key):
            return
        known = self._arrays.get(parent(key)[0])
        if known is None:
            try:
                known = await look(key, array_at(keyspace, overlay.edits, key))
            except RefShardError:  # as above
                return
        filled = self._note(key, *known)
        if filled is not None:
            await asyncio.to_thread(self._put_together, *filled, overlay)

    def _note(self, key: str, array: str, layout: ShardLayout | None) -> tuple[str, _Filling] | None:
        """Return the shard that the chunk ``key`` was the last of, if it was."""
        directory = parent(key)[0]
        at = None if layout is None else in_shard(layout, array, key)
        with self._lock:
            if directory:  # in the root, keys tell
                self._arrays[directory] = array, layout
            if layout is None or at is None:
                return None
            filling = self._filling.get(at.shard)
            if filling is None or filling.layout is not layout:
                filling = self._filling[at.shard] = _begun(layout, at)
            filling.keys[at.place] = key
            if len(filling.keys) < filling.total:
                return None
            del self._filling[at.shard]
            return at.shard, filling

    def _put_together(self, shard: str, filling: _Filling, overlay: Overlay) -> None:
        payloads: dict[tuple[int, ...], Payload | None] = {}
        for place, key in filling.keys.items():
            match overlay.edits.get(key):
                case Inline() | Spooled() as edit:
                    payloads[place] = edit
                case edit if edit is REMOVED:
                    payloads[place] = None
                case _:  # what was written has been taken back since
                    return
        held = {place: edit for place, edit in payloads.items() if edit is not None}
        lying: dict[tuple[int, ...], Buffer] = dict(zip(held, buffers(list(held.values())), strict=True))
        try:
            parts = filling.layout.rewrite(filling.lengths, None, dict.fromkeys(payloads) | lying)
        except Misfit:  # as above
            return
        if parts is None:
            return
        whole = overlay.spool.aside(parts)
        places: dict[int, int] = {}
        offset = 0
        for part in parts:
            places[id(part)] = offset  # of equal ones any will do
            offset += len(part)
        there: dict[tuple[int, ...], Payload | None] = dict.fromkeys(payloads)
        for place, edit in held.items():
            start = places.get(id(lying[place]))
            if start is None:  # a layout that copies what it lays out
                return
            there[place] = piece = whole.part(start, edit.size)
            if overlay.edits.exchange(filling.keys[place], edit, piece):
                overlay.spool.let_go(edit)
        with self._lock:
            self._whole[shard] = _Whole(filling.layout, whole, there)

    # ------------------------------------------------------------------ what the overlay tells its readers

    def forget(self) -> None:
        """Begin anew: there are other edits, or the source is another one."""
        with self._lock:
            self._arrays.clear()
            self._filling.clear()
            self._whole.clear()

    def wrote(self, key: str) -> None:
        """Take note that arrays may be others now."""
        with self._lock:
            self._arrays.clear()

    def seen(self, url: str) -> Facts | None:
        """Return None: nothing is read here."""
        return None

    def replaced(self, urls: Collection[str]) -> None:
        """Do nothing: what was put is what was written."""


def _begun(layout: ShardLayout, at: ChunkInShard) -> _Filling:
    return _Filling(layout, at.lengths, math.prod(inside(layout, at.coords)), {})


_known: weakref.WeakKeyDictionary[Overlay, Assembly] = weakref.WeakKeyDictionary()
_registry = threading.Lock()


def assembly_of(overlay: Overlay) -> Assembly:
    """Return what fills the shards of ``overlay``, the same for all who write to it."""
    with _registry:
        found = _known.get(overlay)
        if found is None:
            found = _known[overlay] = Assembly(overlay)
        return found


def _after_fork() -> None:
    global _registry
    _registry = threading.Lock()  # another thread of the parent may have held it
    _known.clear()  # what the parent had not committed, it commits


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

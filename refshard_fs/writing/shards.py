"""Plan a commit: turn edits of keys into objects to put, shards to rewrite, and objects to remove.

Keys are the keys of the view, which shows shards as inner chunks. `plan_commit` collects inner chunks by shard, and
converts documents back to documents of sharded arrays; `pack_shard` joins the bytes of a shard. The commit of a zarr
hierarchy puts each shard under its key. For other sources, `shard_edits` makes a new object of each shard that changes,
or an inline value if the shard is small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits, Spool, SpooledValue
from refshard_fs.core.keys import ChunkGrid, is_within, iterate_splits, join, make_relative, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.sharding.index import Buffer, Misfit
from refshard_fs.sharding.layout import ChunkInShard, ShardLayout
from refshard_fs.sharding.view import ShardView
from refshard_fs.sharding.writing import restore_document
from refshard_fs.source.source import Source
from refshard_fs.writing.writer import Writer


class Growth(NamedTuple):
    """An array that a commit makes longer: its chunk counts before, its grid after, and the layout of its shards.

    An interrupted commit may have left objects in the new part of the array. They must be removed, because they would
    be shown as chunks.
    """

    path: str
    before: tuple[int, ...]
    after: ChunkGrid
    layout: ShardLayout | None

    @property
    def new_chunk_count(self) -> int:
        """The number of chunks in the new part."""
        return self.after.size - math.prod(map(min, self.before, self.after.counts))

    def is_new(self, coords: tuple[int, ...]) -> bool:
        """Return whether the chunk at ``coords`` is in the new part."""
        return any(map(int.__ge__, coords, self.before)) and all(map(int.__lt__, coords, self.after.counts))

    def has(self, name: str) -> bool:
        """Return whether the object ``name`` has only chunks of the new part."""
        coords = self.after.encoding.decode(make_relative(name, self.path), len(self.before))
        if coords is None or self.layout is None:
            return coords is not None and self.is_new(coords)
        ranges = self.layout.find_slot_ranges(coords)
        return all(map(len, ranges)) and self.is_new(tuple(part.start for part in ranges))

    def list_names(self) -> Iterator[str]:
        """Yield the names of the objects that have only chunks of the new part."""
        seen: set[str] = set()
        for coords in self._iterate_new():
            if self.layout is not None:
                coords = tuple(cut.find_shard(coord)[0] for cut, coord in zip(self.layout.cuts, coords, strict=True))
            name = join(self.path, self.after.encoding.encode(coords))
            if name not in seen and self.has(name):
                seen.add(name)
                yield name

    def _iterate_new(self) -> Iterator[tuple[int, ...]]:
        counts = self.after.counts
        for axis, (before, after) in enumerate(zip(self.before, counts, strict=True)):
            common = [range(min(b, c)) for b, c in zip(self.before[:axis], counts[:axis], strict=True)]
            yield from itertools.product(*common, range(before, after), *map(range, counts[axis + 1 :]))


def _find_growth(
    keyspace: KeySpace, key: str, written: bytes, path: str, layout: ShardLayout | None
) -> Steps[Growth | None]:
    """Return the growth of the array ``path``, whose document ``key`` becomes ``written``; None if it does not grow."""
    old, new = zarrmeta.grid_of((yield from keyspace.read(key))), zarrmeta.grid_of(written)
    if old is None or new is None or old.encoding != new.encoding or len(old.counts) != len(new.counts):
        return None
    return Growth(path, old.counts, new, layout) if any(map(int.__lt__, old.counts, new.counts)) else None


_NODES: Final = (*zarrmeta.ARRAY_DOCUMENTS, zarrmeta.CONSOLIDATED)  # documents in which arrays are described
_LAST: Final = (".zgroup", ".zattrs", "zarr.json", ".zmetadata")  # documents of the root, in this order


class ShardPlan(NamedTuple):
    """A shard that changes, and its changed chunks by their place in the shard; None means a removed chunk.

    ``lengths`` are the lengths of the shard in chunks; only its first ``inside`` chunks along each dimension lie in the
    array. ``old`` says whether the stored shard may have chunks to keep.
    """

    key: str
    array: str
    layout: ShardLayout
    lengths: tuple[int, ...]
    changes: dict[tuple[int, ...], Inline | SpooledValue | None]
    old: bool
    inside: tuple[int, ...]

    @property
    def is_removed(self) -> bool:
        """Whether the shard will be empty, whatever is stored now."""
        return not self.old and all(edit is None for edit in self.changes.values())

    @property
    def is_full(self) -> bool:
        """Whether all of the array's chunks in this shard were written."""
        written = sum(all(map(int.__lt__, place, self.inside)) for place in self.changes)
        return written == math.prod(self.inside)


class Plan(NamedTuple):
    """The steps of a commit, in this order: shards and other chunks, then documents, then removals."""

    shards: list[ShardPlan]
    data: dict[str, Inline | SpooledValue | Span]
    documents: list[tuple[str, bytes]]
    removed: list[str]
    prefixes: list[str]  # the commit removes all objects below these prefixes, except the objects that it puts
    replaced: list[str]  # the commit removes all shards of these arrays, except the shards that it puts
    grown: list[Growth]  # arrays that become longer

    def list_names(self) -> list[str]:
        """Return the names of all objects that may be put."""
        return [*(shard.key for shard in self.shards), *self.data, *(name for name, _ in self.documents)]


def plan_commit(keyspace: KeySpace, edits: Edits, spool: Spool, *, loads_all: bool) -> Steps[Plan]:
    """Plan the commit of ``edits`` of the keys of ``keyspace``.

    If the value of a document, or of a chunk in a shard, was written as a reference, its bytes are loaded into
    ``spool``; with ``loads_all``, this is done for all references. Raise ManifestError if the shards of an array do not
    fit its new metadata.
    """

    def load(edit: Inline | SpooledValue | Span) -> Steps[Inline | SpooledValue]:
        if isinstance(edit, Span):
            data: bytes = yield Load(edit, Raw())
            return spool.keep(data)
        return edit

    changes = edits.list_changes()
    view: ShardView | None = keyspace.shard_view
    documents: dict[str, bytes] = {}
    layouts: dict[str, ShardLayout | None] = {}
    grown: dict[str, Growth] = {}
    for key, edit in changes.items():
        if zarrmeta.is_metadata(key) and edit is not REMOVED:
            documents[key] = written = bytes((yield from load(edit)).data)
            if view is not None and parent(key)[1] in _NODES:
                found = yield from restore_document(view, key, documents[key])
                documents[key] = found.data
                if parent(key)[1] != ".zmetadata":
                    layouts |= {path: layout for path, layout in found.layouts.items() if path == parent(key)[0]}
            path, name = parent(key)
            if name in zarrmeta.ARRAY_DOCUMENTS and not edits.hides(key):
                longer = yield from _find_growth(keyspace, key, written, path, layouts.get(path))
                grown |= {} if longer is None else {path: longer}
    arrays = _Arrays(view, edits, layouts)
    whole, within = yield from _split_prefixes(view, arrays, edits)
    shards: dict[str, ShardPlan] = {}
    data: dict[str, Inline | SpooledValue | Span] = {}
    removed: list[str] = []
    for key, edit in [*((key, REMOVED) for key in within if key not in changes), *changes.items()]:
        if key in documents:
            continue
        path, layout = yield from arrays.find(key)
        at = None if layout is None else layout.find_shard(path, key)
        if layout is not None and at is not None:
            shard = shards.get(at.shard)
            if shard is None:
                shard = shards[at.shard] = _plan_new_shard(at, path, layout, grown.get(path), old=not edits.hides(path))
            shard.changes[at.place] = None if edit is REMOVED else (yield from load(edit))
        elif edit is REMOVED:
            removed.append(key)
        else:
            data[key] = (yield from load(edit)) if loads_all else edit
    return Plan(
        [shard._replace(old=shard.old and not shard.is_full) for shard in shards.values()],
        data,
        sorted(documents.items(), key=lambda item: _make_sort_key(item[0])),
        sorted(removed, key=lambda key: (not zarrmeta.is_metadata(key), key)),
        whole,
        list(arrays.replaced),
        list(grown.values()),
    )


class _Arrays:
    """Find the array of a key after the edits, and the layout of its shards.

    ``replaced`` are arrays that were sharded before the edits, and are not sharded after them.
    """

    def __init__(self, view: ShardView | None, edits: Edits, written: Mapping[str, ShardLayout | None]) -> None:
        self._view = view
        self._edits = edits
        self._written = written
        self._known: dict[str, tuple[str, ShardLayout | None]] = {}  # arrays by directory
        self.replaced: dict[str, None] = {}

    def find(self, key: str) -> Steps[tuple[str, ShardLayout | None]]:
        """Return the path of the array of ``key``, and the layout of its shards (None: not sharded)."""
        directory = parent(key)[0]
        known = self._known.get(directory)
        if known is None:
            known = yield from self._look_up(key)
            if directory:  # keys in the root may belong to an array at the root, or not
                self._known[directory] = known
        return known

    def _look_up(self, key: str) -> Steps[tuple[str, ShardLayout | None]]:
        for path, _ in iterate_splits(key):
            if path in self._written:
                layout = self._written[path]
                if layout is None and self._view is not None and not self._edits.hides(path):
                    seen = yield from self._view.find_array_info(path)
                    if seen is not None and seen.layout is not None:
                        self.replaced[path] = None
                return path, layout
        if self._view is None:
            return "", None
        found = yield from self._view.discover_array(key)
        if found is None:
            return "", None
        seen = yield from self._view.find_array_info(found)
        is_removed = all(self._edits.get(join(found, name)) is REMOVED for name in zarrmeta.ARRAY_DOCUMENTS)
        return (found, None) if seen is None or is_removed else (found, seen.layout)


def _split_prefixes(view: ShardView | None, arrays: _Arrays, edits: Edits) -> Steps[tuple[list[str], list[str]]]:
    """Return the removed prefixes below which all objects are removed, and the keys below all other prefixes.

    The other prefixes are inside sharded arrays. They have no objects of their own, because their keys are chunks in
    shards.
    """
    whole: list[str] = []
    within: list[str] = []
    for prefix in edits.list_prefixes():
        path, layout = yield from arrays.find(join(prefix, "0"))
        if view is None or layout is None or is_within(path, prefix):
            whole.append(prefix)
        else:
            within += yield from list_keys(view, prefix)
    return whole, within


def list_keys(view: KeySpace, prefix: str) -> Steps[list[str]]:
    """Return all keys of ``view`` below ``prefix``."""
    found: list[str] = []
    pending = [prefix]
    while pending:
        directory = pending.pop()
        for listed in (yield from view.children(directory)) or ():
            (pending if listed.is_directory else found).append(join(directory, listed.name))
    return found


def _plan_new_shard(at: ChunkInShard, array: str, layout: ShardLayout, grown: Growth | None, *, old: bool) -> ShardPlan:
    """Return the plan of a shard without new chunks; chunks in the new part of a growing array count as removed."""
    limits = tuple(map(len, layout.find_chunks(at.coords)))
    shard = ShardPlan(at.shard, array, layout, at.lengths, {}, old, limits)
    if grown is not None:
        begins = [ranges.start for ranges in layout.find_slot_ranges(at.coords)]
        for place in itertools.product(*map(range, limits)):
            if grown.is_new(tuple(map(int.__add__, begins, place))):
                shard.changes[place] = None
    return shard


def pack_shard(shard: ShardPlan, old: Buffer | None, url: str) -> list[Buffer] | None:
    """Return the parts of the new bytes of ``shard``, from its ``old`` bytes at ``url``; None if it becomes empty.

    Raise DamagedIndex if the old shard is damaged, ManifestError if this kind of shard cannot hold a chunk.
    """
    payloads = {place: None if edit is None else edit.data for place, edit in shard.changes.items()}
    try:
        return shard.layout.rewrite(shard.lengths, old, payloads)
    except Misfit as e:
        raise ManifestError(f"shard {shard.key!r} of array {shard.array!r}: {e}") from e
    except ValueError as e:
        raise DamagedIndex(shard.key, url, str(e)) from e


def _make_sort_key(key: str) -> tuple[bool, int, int, str]:
    """Return the sort key of a document: inner nodes come before outer ones, the root's consolidated metadata last."""
    path, name = parent(key)
    depth = path.count("/") + 1 if path else 0
    return not path, -depth, _LAST.index(name) if name in _LAST else -1, key


def shard_edits(writer: Writer, view: KeySpace, edits: Edits) -> Edits:
    """Convert ``edits`` of the keys of ``view`` to edits of the keys of its base; ``writer`` puts the shards.

    Raise ManifestError if the shards of an array do not fit its new metadata, DamagedIndex if an old shard is damaged.
    """
    stored = view.whole_shards
    run, overlay = writer.source.run, writer.overlay
    plan: Plan = run("", partial(plan_commit, view, edits, overlay.spool, loads_all=False))
    converted = Edits()
    for prefix in plan.prefixes:
        converted.remove_below(prefix)
    for path in plan.replaced:
        for key in run(path, partial(list_keys, stored, path)):
            if not is_metadata(key):
                converted.put(key, REMOVED)
    for key in plan.removed:
        converted.put(key, REMOVED)
    for key, document in plan.documents:
        converted.put(key, Inline(document))
    for key, edit in plan.data.items():
        converted.put(key, edit if isinstance(edit, Span) else writer.make_edit([edit.data]))
    for shard in plan.shards:
        url, old = run(shard.key, partial(_read_old, stored, shard.key)) if shard.old else ("", None)
        parts = None if shard.is_removed else pack_shard(shard, old, url)
        converted.put(shard.key, REMOVED if parts is None else writer.make_edit(parts))
        if not shard.is_removed:
            overlay.costs.count_write(shard.key, shard.array, len(shard.changes), read=old is not None)
    return converted


def _read_old(stored: KeySpace, key: str) -> Steps[tuple[str, Buffer | None]]:
    """Return the URL and the bytes of the stored shard ``key``; no bytes (None) if the shard does not exist."""
    entry = yield from stored.lookup(key)
    match entry:
        case None:
            return "", None
        case Inline(data):
            return "", data
        case Span(url) | Packed(Span(url)):
            found: bytes | None = yield Load(entry, Raw())
            return url, found


def make_stored_keyspace(source: Source, writer: Writer | None) -> KeySpace:
    """Return the key space of a source, with uncommitted writes as a commit would store them: in shards.

    The caller may make sets that refer to objects of uncommitted writes, so none of these objects is removed any more.
    """
    keyspace = source.open()
    if writer is None or source.transaction is None:
        return keyspace
    view, edits = keyspace.base, keyspace.edits
    if view is not None and edits is not None and len(edits) and view.whole_shards is not view:
        keyspace = EditedKeySpace(view.whole_shards, shard_edits(writer, view, edits))
    writer.overlay.keep_objects()
    return keyspace

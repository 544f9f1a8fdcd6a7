"""Where written values go, in the process that commits and in others that write for it.

In the committing process small values and metadata go into the overlay, and others into objects of their own, at once.
Values that have a place in the source wait for the commit in the overlay: all of a zarr hierarchy, chunks of shards.

In other processes each write becomes an object in a staging place, and `merge` takes these into the overlay:
``<data_url>/<overlay>/<writer>.<number>/<sequence>-<kind>/<key>``. ``writer`` is one process, and ``number`` says how
much of the overlay it had seen. Of kind ``w`` the object is the value, of ``r`` it is ``[url, start, stop]``; ``d``
removes the key and ``p`` all that is below it. Values are not copied: the committed source refers to these objects.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.keys import is_within
from refshard_fs.core.model import Inline, Span
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ReadOnlyError
from refshard_fs.session.options import WriteOptions
from refshard_fs.session.overlay import Overlay
from refshard_fs.targets.generic import in_thread
from refshard_fs.targets.objects import Buffer, Objects, sum_of

_NAME: Final = re.compile(r"[^/]+/([0-9a-f]+)\.(\d+)/(\d+)-([wrdp])/(.+)")  # writer, seen, number, kind and key
_LATER: Final = "another process and, after that one began, by this one"
_ROOT: Final = "%"  # stands for the empty key: no quoted key is that


class Values:
    """Writes to one overlay; readers see a value when the method returns. Any thread and event loop may call it.

    Where another process commits, each change is staged before it becomes an edit.
    """

    def __init__(self, overlay: Overlay, options: WriteOptions, store: Objects | None) -> None:
        self._overlay = overlay
        self._options = options
        self._store = store
        self.waits = False  # whether all values wait for a commit that has a place for them
        self.is_inner: Callable[[str], bool] = lambda key: False  # whether a key is a chunk of a shard

    def keeps(self, key: str) -> bool:
        """Whether the value of ``key`` waits for the commit."""
        return self._overlay.worker is None and (self.waits or self.is_inner(key)) and not is_metadata(key)

    def stored(self, parts: Sequence[Buffer]) -> Inline | Span:
        """Return an edit that holds ``parts``; large ones are an object, durable when this returns. May block."""
        if self._is_large(sum(map(len, parts))):
            span = self._as_object(parts, durable=True)
            if (made := self._made(span)) is not None:
                self._overlay.made(made)
            return span
        return Inline(b"".join(parts))

    async def write(self, key: str, data: bytes) -> None:
        """Let ``key`` hold ``data``; its object, if it has one, is whole when this returns."""
        if not self.write_now(key, data):
            await in_thread(lambda: self._put(key, data))

    def write_now(self, key: str, data: bytes) -> bool:
        """Do the same at once, and return True, where that needs no network."""
        overlay = self._overlay
        if self.keeps(key):
            overlay.put(key, overlay.spool.keep(data, overlay.edits.get(key)))
        elif overlay.worker is None and (self.waits or is_metadata(key) or not self._is_large(len(data))):
            overlay.put(key, Inline(data))
        elif self._store is not None and self._store.is_immediate:
            self._put(key, data)
        else:
            return False
        return True

    async def refer(self, key: str, span: Span) -> None:
        """Let ``key`` hold what is at ``span``."""
        await self._tell("r", key, msgspec.json.encode([span.url, span.start, span.stop]))
        self._overlay.put(key, span)

    async def remove(self, key: str) -> None:
        """Let there be no ``key``."""
        await self._tell("d", key)
        self._overlay.put(key, REMOVED)

    async def remove_below(self, prefix: str) -> None:
        """Let there be nothing at ``prefix``, nor below it."""
        await self._tell("p", prefix)
        self._overlay.remove_below(prefix)

    def _put(self, key: str, data: bytes) -> None:
        """Let ``key`` hold ``data``, by an object of its own."""
        if self._overlay.worker is None:
            span = self._as_object([data])
            self._overlay.put(key, span, self._made(span))
        else:
            span = Span(self._stage("w", key, data), 0, len(data))
            is_small = is_metadata(key) or not self._is_large(len(data))
            self._overlay.put(key, Inline(data) if is_small else span)

    def _is_large(self, size: int) -> bool:
        """Whether a value of ``size`` bytes becomes an object."""
        return self._store is not None and size > self._options.inline_threshold

    def _made(self, span: Span) -> str | None:
        """Return the URL of an object that may be removed; not one named by its content: others may refer to it."""
        return None if self._options.content_addressed else span.url

    def _as_object(self, parts: Sequence[Buffer], *, durable: bool = False) -> Span:
        """Put an object of ``parts``, and return where it is. One named by its content may be there already."""
        overlay, store, by_content = self._overlay, self._store, self._options.content_addressed
        assert store is not None
        name = sum_of(parts).hex() if by_content else uuid.uuid4().hex
        name = f"{name[:2]}/{name[2:]}"  # two letters are a directory, so that none has too many files
        if not (by_content and (name in overlay.names or store.facts(name) is not None)):
            store.put(name, parts, durable=durable)
        if by_content:
            overlay.names.add(name)
        return Span(store.url_of(name), 0, sum(map(len, parts)))

    async def _tell(self, kind: str, key: str, data: bytes = b"-") -> None:
        """Stage a change where another process commits it."""
        if self._overlay.worker is not None:
            await in_thread(lambda: self._stage(kind, key, data))

    def _stage(self, kind: str, key: str, data: bytes) -> str:
        """Put the object that tells the committing process of one change; return its URL."""
        overlay, worker, store = self._overlay, self._overlay.worker, self._store
        if store is None:
            raise ReadOnlyError("this source has no place where several processes could write: pass data_url=")
        assert worker is not None
        writer, number = f"{worker.name}.{worker.seen}", next(worker.numbers)
        name = f"{overlay.id}/{writer}/{number:09}-{kind}/{quote(key, safe='/') or _ROOT}"
        url = store.url_of(name)
        worker.staged.append((overlay.edits.number, url))
        store.put(name, (data,), durable=False)
        return url


class _Staged(NamedTuple):
    name: str
    writer: str
    seen: int
    number: int
    kind: str
    key: str
    size: int


class _Writer(NamedTuple):
    """The edits of one process, and the number of the last edit of the overlay that it knew, by key."""

    edits: Edits
    seen: dict[str, int]  # by key


def merge(overlay: Overlay, store: Objects, options: WriteOptions, *, waits: bool) -> None:
    """Add the edits that other processes staged to ``overlay``. ConflictError if two processes differ on a key.

    Then nothing is added. What was merged before is skipped. With ``waits``, where the commit stores all values, they
    are read now.
    """
    found = [staged for staged in _listed(overlay, store) if staged.name not in overlay.merged]
    if not found:
        return
    small = [s.name for s in found if s.kind == "r" or (s.kind == "w" and _is_small(s, options))]
    read = store.read(small)
    writers: dict[str, _Writer] = {}
    for staged in sorted(found, key=lambda s: (s.writer, s.number)):
        writer = writers.setdefault(staged.writer, _Writer(Edits(), {}))
        _take(writer, staged, store, read.get(staged.name))
    _refuse_conflicts(overlay, writers.values(), store)
    for writer in writers.values():
        for prefix in writer.edits.prefixes():
            overlay.remove_below(prefix)
    for writer in writers.values():
        for key, edit in writer.edits.changes().items():
            overlay.put(key, _loaded(overlay, edit, store) if waits else edit)
    for staged in found:
        overlay.merged.add(staged.name)
        overlay.made(store.url_of(staged.name))


def _loaded(overlay: Overlay, edit: Edit, store: Objects) -> Edit:
    """Return ``edit`` with the bytes of the staged object that it refers to."""
    data = _bytes(edit, store) if isinstance(edit, Span) else None
    return edit if data is None else overlay.spool.keep(data)


def clear(overlay: Overlay, store: Objects) -> None:
    """Remove the objects that other processes staged and no commit has merged."""
    left = [staged.name for staged in _listed(overlay, store) if staged.name not in overlay.merged]
    store.remove_all(left)


def _listed(overlay: Overlay, store: Objects) -> Iterable[_Staged]:
    for name, facts in store.found(overlay.id).items():
        match = _NAME.fullmatch(name)
        if match is not None:
            writer, seen, number, kind, quoted = match.groups()
            key = "" if quoted == _ROOT else unquote(quoted)
            yield _Staged(name, writer, int(seen), int(number), kind, key, facts.size or 0)


def _is_small(staged: _Staged, options: WriteOptions) -> bool:
    return is_metadata(staged.key) or staged.size <= options.inline_threshold


def _take(writer: _Writer, staged: _Staged, store: Objects, data: bytes | None) -> None:
    edits, key = writer.edits, staged.key
    writer.seen[key] = staged.seen
    match staged.kind:
        case "p":
            edits.remove_below(key)
        case "d":
            edits.put(key, REMOVED)
        case "r" if data is not None:
            edits.put(key, Span(*msgspec.json.decode(data, type=tuple[str, int, int | None])))
        case _:
            edits.put(key, Span(store.url_of(staged.name), 0, staged.size) if data is None else Inline(data))


def _refuse_conflicts(overlay: Overlay, writers: Iterable[_Writer], store: Objects) -> None:
    """Raise ConflictError if two writers, or one and (after that one began) this process, differ on a key."""
    others = Edits()  # of the writers before
    later = {seen: overlay.edits.since(seen) for writer in writers for seen in writer.seen.values()}
    for writer in writers:
        changes, prefixes = writer.edits.changes(), writer.edits.prefixes()
        for key, edit in changes.items():
            _refuse_other(key, edit, others.get(key), "two processes", store)
            _refuse_other(key, edit, later[writer.seen[key]].get(key), _LATER, store)
        for prefix in prefixes:
            for rival, who in ((others, "two processes"), (later[writer.seen[prefix]], _LATER)):
                for key, edit in rival.changes().items():
                    if is_within(key, prefix) and key not in changes:
                        _refuse_other(key, REMOVED, edit, who, store)
        others.add(prefixes, changes)


def _refuse_other(key: str, edit: Edit, other: Edit | None, who: str, store: Objects) -> None:
    if other is not None and other is not edit and not _same(other, edit, store):
        raise ConflictError(
            f"{key!r} was written or removed by {who}, and not the same: nothing was committed. Give each worker keys "
            "of its own (regions that end where chunks do), or discard()"
        )


def _same(one: Edit, other: Edit, store: Objects) -> bool:
    if one != other and isinstance(one, Span) and isinstance(other, Span):
        return one.size == other.size and _bytes(one, store) == _bytes(other, store)
    return one == other


def _bytes(span: Span, store: Objects) -> bytes | None:
    name = store.name_of(span.url)
    return None if name is None else store.read([name])[name][span.start : span.stop]

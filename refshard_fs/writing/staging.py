"""Stage the writes of worker processes and forks for the process that commits.

Each write becomes an object, and `merge` adds these objects to the overlay of the committing process. Their names are
``<data_url>/<overlay>/<writer>.<number>/<sequence>-<kind>/<key>``. ``writer`` is the name of the fork, if there is
one, and the name of the process. ``number`` is the last change of the overlay that the process had. The key is
percent-encoded. The kind ``w`` is a value, and ``r`` a reference, ``[url, start, stop]``; ``d`` removes the key, and
``p`` all keys below it. A committed reference set refers to the objects of large values. Small values become inline,
and the commit of a zarr hierarchy or an Icechunk repository copies all values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.keys import is_within
from refshard_fs.core.model import Inline, Origin, Span
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ReadOnlyError
from refshard_fs.source.transaction import Transaction
from refshard_fs.stores.objects import Objects

_NAME: Final = re.compile(r"[^/]+/([0-9a-f]+)\.(\d+)/(\d+)-([wrdp])/(.+)")  # writer, seen, number, kind and key
_LATER: Final = "another process and later by this one"
_NAME_LENGTH: Final = 32  # letters in the name of a process or of a fork
_ROOT: Final = "%"  # stands for the empty key; a percent-encoded key is never a single "%"
_CUT: Final = "%/"  # separates the parts of a long segment; percent-encoded keys never contain it
_LONG: Final = re.compile(r"[^/]{200}(?=[^/])")  # names of files have 255 bytes at most, and drafts have longer names


def stage(overlay: Transaction, store: Objects | None, kind: str, key: str, data: bytes) -> str:
    """Put the object of one change, for the committing process; return its URL. May block."""
    worker = overlay.worker
    if store is None:
        raise ReadOnlyError(
            "cannot write from this process: its writes need a directory, from which another process commits them. "
            "Pass data_url="
        )
    assert worker is not None
    writer, number = f"{worker.name}.{worker.seen}", next(worker.numbers)
    name = f"{overlay.origin}/{writer}/{number:09}-{kind}/{_quote(key)}"
    url = store.url_of(name)
    worker.staged.append((overlay.edits.number, url))
    store.put(name, (data,), durable=False)
    return url


def _quote(key: str) -> str:
    """Convert ``key`` to a part of an object's name: percent-encoded, with long segments cut."""
    return _LONG.sub(lambda part: part.group() + _CUT, quote(key, safe="/")) or _ROOT


def _unquote(name: str) -> str:
    return "" if name == _ROOT else unquote(name.replace(_CUT, ""))


class _StagedObject(NamedTuple):
    """A staged object: its name, the parts of the name, and its size in bytes."""

    name: str
    writer: str
    seen: int
    number: int
    kind: str
    key: str
    size: int

    @property
    def fork(self) -> str:
        """The name of the fork that wrote this; empty for a copy of the filesystem in another process."""
        return self.writer[:-_NAME_LENGTH]


class _Process(NamedTuple):
    """The edits of one process; ``seen`` has by key the last change of the overlay that the process had."""

    edits: Edits
    seen: dict[str, int]


IMPLICIT: Final = ""  # stands for the name of a fork: copies of a filesystem in other processes


def merge(
    overlay: Transaction,
    store: Objects,
    inline_threshold: int,
    *,
    reads_all: bool,
    forks: Collection[str] = (IMPLICIT,),
) -> None:
    """Add the edits that ``forks`` staged to ``overlay``; edits that were merged before are skipped.

    Raise ConflictError, and add nothing, if two processes have different values for a key. With ``reads_all``, all
    values are read, for a commit that stores them itself.
    """
    listed = (staged for staged in _list_staged(overlay, store) if staged.name not in overlay.merged)
    found = [staged for staged in listed if staged.fork in forks]
    if not found:
        return
    small = (s.name for s in found if s.kind == "w" and (is_metadata(s.key) or s.size <= inline_threshold))
    read = store.read([*small, *(s.name for s in found if s.kind == "r")])
    writers: dict[str, _Process] = {}
    for staged in sorted(found, key=lambda s: (s.writer, s.number)):
        writer = writers.setdefault(staged.writer, _Process(Edits(), {}))
        _add_edit(writer, staged, store, read.get(staged.name))
    _refuse_conflicts(overlay, writers, store)
    for writer in writers.values():
        for prefix in writer.edits.list_prefixes():
            overlay.remove_below(prefix)
    for name, writer in writers.items():
        for key, change in writer.edits.list_changes().items():
            edit = _load(overlay, change, store) if reads_all else change
            overlay.put(key, edit)
            overlay.taken[key] = name, edit
    for staged in found:
        overlay.merged.add(staged.name)
        overlay.remember_object(store.url_of(staged.name))


def _load(overlay: Transaction, edit: Edit, store: Objects) -> Edit:
    """Return ``edit``; if it refers to a staged object, the bytes of the object are copied into the spool first."""
    data = _read_staged_bytes(edit, store) if isinstance(edit, Span) else None
    return edit if data is None else overlay.spool.keep(data)


def clear(overlay: Transaction, store: Objects, since: int = 0) -> None:
    """Remove staged objects that were not merged, of processes and forks that began after the change ``since``."""
    listed = (staged for staged in _list_staged(overlay, store) if staged.seen >= since)
    left = [staged.name for staged in listed if staged.name not in overlay.merged]
    store.remove_all(left)


def _list_staged(overlay: Transaction, store: Objects) -> Iterable[_StagedObject]:
    for name, facts in store.find(overlay.id).items():
        match = _NAME.fullmatch(name)
        if match is not None:
            writer, seen, number, kind, quoted = match.groups()
            yield _StagedObject(name, writer, int(seen), int(number), kind, _unquote(quoted), facts.size or 0)


class _Reference(msgspec.Struct, array_like=True):
    """The content of a staged reference."""

    url: str
    start: int
    stop: int | None
    origin: Origin = ()


def encode_reference(span: Span) -> bytes:
    """Return the bytes of the staged object for a reference to ``span``."""
    return msgspec.json.encode(_Reference(span.url, span.start, span.stop, span.origin))


def _add_edit(writer: _Process, staged: _StagedObject, store: Objects, data: bytes | None) -> None:
    edits, key = writer.edits, staged.key
    writer.seen[key] = staged.seen
    match staged.kind:
        case "p":
            edits.remove_below(key)
        case "d":
            edits.put(key, REMOVED)
        case "r" if data is not None:
            found = msgspec.json.decode(data, type=_Reference)
            edits.put(key, Span(found.url, found.start, found.stop, origin=found.origin))
        case _:
            edits.put(key, Span(store.url_of(staged.name), 0, staged.size) if data is None else Inline(data))


def _refuse_conflicts(overlay: Transaction, writers: Mapping[str, _Process], store: Objects) -> None:
    """Raise ConflictError if two writers have different values for a key, or this process has changed it later."""
    others = Edits()  # edits of earlier writers
    later = {seen: overlay.edits.select_since(seen) for writer in writers.values() for seen in writer.seen.values()}
    for name, writer in writers.items():
        changes, prefixes = writer.edits.list_changes(), writer.edits.list_prefixes()
        for key, edit in changes.items():
            _refuse_other(key, edit, others.get(key), "two processes", store)
            _refuse_other(
                key, edit, _skip_written_by(name, key, later[writer.seen[key]].get(key), overlay), _LATER, store
            )
        for prefix in prefixes:
            for rival, who in ((others, "two processes"), (later[writer.seen[prefix]], _LATER)):
                for key, edit in rival.list_changes().items():
                    if is_within(key, prefix) and key not in changes:
                        _refuse_other(key, REMOVED, _skip_written_by(name, key, edit, overlay), who, store)
        others.add(prefixes, changes)


def _skip_written_by(writer: str, key: str, edit: Edit | None, overlay: Transaction) -> Edit | None:
    """Return ``edit``; None if it was merged from ``writer``, which may change its own edits."""
    name, taken = overlay.taken.get(key, ("", None))
    return None if edit is taken and name == writer else edit


def _refuse_other(key: str, edit: Edit, other: Edit | None, who: str, store: Objects) -> None:
    if other is not None and other is not edit and not _are_equal(other, edit, store):
        raise ConflictError(
            f"{key!r} was written or removed by {who} in different ways: nothing was committed. Let each worker write "
            "different keys (regions that end at the edges of chunks), or discard()"
        )


def _are_equal(one: Edit, other: Edit, store: Objects) -> bool:
    if one != other and isinstance(one, Span) and isinstance(other, Span):
        return one.size == other.size and _read_staged_bytes(one, store) == _read_staged_bytes(other, store)
    return one == other


def _read_staged_bytes(span: Span, store: Objects) -> bytes | None:
    name = store.name_of(span.url)
    return None if name is None else store.read([name])[name][span.start : span.stop]

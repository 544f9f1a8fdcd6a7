"""Any key space as references: its metadata read, its chunks looked up and put into columns. No I/O here.

What is no range of an object and no data (chunks that are made from other bytes) is a ManifestError that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refshard_fs import zarrmeta
from refshard_fs.columns import ChunkTable, Part, Row
from refshard_fs.errors import ManifestError
from refshard_fs.formats import Raw
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.checked import Checked
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.manifests.manifest_view import ManifestView
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.values import Value
from refshard_fs.model import Entry, Inline, Load, Packed, Pin, Span, Steps
from refshard_fs.pins import Pins
from refshard_fs.texts import Texts

__all__ = ["Extras", "gather"]

Extras = Mapping[str, Mapping[int, Mapping[str, str]]]

ROWS = 1 << 16  # references that become columns at a time


class _Array(NamedTuple):
    grid: ChunkGrid
    parts: list[Part]
    rows: list[tuple[int, Row]]
    extras: dict[int, dict[str, str]]

    def add(self, number: int, row: Row) -> None:
        self.rows.append((number, row))
        if len(self.rows) == ROWS:
            self.parts.append(Part.from_rows(self.rows))
            self.rows.clear()

    def table(self) -> ChunkTable:
        return ChunkTable.from_parts(self.grid, [*self.parts, Part.from_rows(self.rows)])


def gather(keyspace: KeySpace, prefix: str = "") -> Steps[tuple[ReferenceSet, Extras]]:
    """Return all that ``keyspace`` holds below ``prefix``, and what only a chunk manifest can say of chunks.

    The latter by array and number. ConflictError while a commit to the hierarchy beneath goes on.
    """
    beneath = keyspace
    while (base := getattr(beneath, "base", None)) is not None:
        beneath = base
    match beneath:
        case Hierarchy(before=before):
            before.check_settled()
    gathering = _Gathering(keyspace)
    yield from gathering.directory(prefix, None)
    arrays = gathering.arrays
    urls = Texts.of(url.encode("utf-8", "surrogatepass") for url in gathering.urls)
    refs = ReferenceSet(
        urls,
        {path: array.table() for path, array in arrays.items()},
        gathering.side,
        pins=Pins.matched(gathering.pins, urls),
    )
    return refs, {path: array.extras for path, array in arrays.items() if array.extras}


class _Gathering:
    def __init__(self, keyspace: KeySpace) -> None:
        self.urls: dict[str, int] = {}
        self.pins: dict[str, Pin] = {}
        self.side: dict[str, Value] = {}
        self.arrays: dict[str, _Array] = {}
        self._keyspace = keyspace
        self._manifests: set[str] = set()

    def directory(self, prefix: str, within: str | None) -> Steps[None]:
        """Take in all keys below ``prefix``, which lies in the array ``within``, if in one."""
        names = (yield from self._keyspace.children(prefix)) or ()
        documents = [n.name for n in names if not n.is_directory and zarrmeta.is_metadata(n.name)]
        for name in documents:
            yield from self._document(prefix, name)
        if prefix in self.arrays:
            within = prefix
            if (yield from self._mapped(prefix)):
                return
        for listed in names:
            key = join(prefix, listed.name)
            if listed.is_directory:
                yield from self.directory(key, within)
            elif listed.name not in documents:
                yield from self._file(key, within)

    def _document(self, prefix: str, name: str) -> Steps[None]:
        key = join(prefix, name)
        entry = yield from self._keyspace.lookup(key)
        match entry:
            case None:
                return
            case Inline(data):
                pass
            case _:
                data = yield Load(entry, Raw())
        self.side[key] = data
        if name not in (".zarray", "zarr.json"):
            return
        try:
            doc: Any = zarrmeta.loads(data)
        except ValueError:
            return
        meta = zarrmeta.array_meta(doc, repr(key)) if isinstance(doc, dict) else None
        if meta is not None and meta.grid is not None:
            self.arrays[prefix] = _Array(meta.grid, [], [], {})

    def _mapped(self, path: str) -> Steps[bool]:
        """Take in the array ``path`` if it has a manifest: what else lies in it are not its chunks."""
        view = self._keyspace
        if not isinstance(view, ManifestView):
            return False
        found = yield from view.chunks(path)
        if found is None:
            return False
        manifest = view.manifest_key(path)
        if manifest is not None:
            self._manifests.add(manifest)
            self.side.pop(manifest, None)
        present, empty = found
        array = self.arrays[path]
        for number in present.tolist():
            yield from self._chunk(array, number, join(path, array.grid.tail(number)), checks=True)
        for number in empty.tolist():
            array.extras[number] = {}
        return True

    def _file(self, key: str, within: str | None) -> Steps[None]:
        if within is not None:
            array = self.arrays[within]
            number = array.grid.number(key[len(within) + 1 :] if within else key)
            if number is not None:
                yield from self._chunk(array, number, key, checks=False)
                return
        if key in self._manifests:
            return
        entry = yield from self._keyspace.lookup(key)
        if entry is not None:
            value, _ = self._value(key, entry, checks=False)
            self.side[key] = value

    def _chunk(self, array: _Array, number: int, key: str, *, checks: bool) -> Steps[None]:
        entry = yield from self._keyspace.lookup(key)
        if entry is None:
            return
        value, extras = self._value(key, entry, checks=checks)
        match value:
            case Row():
                array.add(number, value)
            case _:
                self.side[key] = value
        if extras:
            array.extras[number] = extras

    def _value(self, key: str, entry: Entry, *, checks: bool) -> tuple[Row | bytes, dict[str, str]]:
        extras: dict[str, str] = {}
        match entry:
            case Packed(source=source, recipe=Checked(checksum), start=None, stop=None):
                entry = source
                extras["checksum"] = checksum
        match entry:
            case Inline(data):
                return data, extras
            case Span(url, start, stop, pin=pin) if start >= 0:
                if pin is not None and pin.exact:
                    self.pins[url] = pin
                elif checks and pin is not None:
                    pinned = {"etag": pin.etag, "last_modified": pin.last_modified}
                    extras |= {name: value for name, value in pinned.items() if value is not None}
                target = self.urls.setdefault(url, len(self.urls))
                return Row(target, start, None if stop is None else stop - start), extras
        raise ManifestError(f"{key!r} is made from other bytes: no reference can stand for it")

"""Whatever a source is, as one reference set in columns: URLs absolute, metadata at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.checksums import Checked
from refshard_fs.core.columns import ABSENT, ChunkTable, Part, Row
from refshard_fs.core.edited_keyspace import EditedKeySpace
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Load, Packed, Pin, Raw, Span, Steps
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.view import ManifestView
from refshard_fs.formats.kerchunk_json.source import parse_document
from refshard_fs.formats.kerchunk_parquet.contents import ParquetStream
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.formats.zarr_hierarchy.snapshot import pinned, taken
from refshard_fs.references.edit import with_edits
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.references.stream import Respell
from refshard_fs.references.values import Value
from refshard_fs.session.recognition import beneath
from refshard_fs.sharding.view import ShardView

# ----------------------------------------------------------------------------------------------------
# Any key space as references: its metadata read, its chunks looked up and put into columns. No I/O here.
#
# What is no range of an object and no data (chunks that are made from other bytes) is a ManifestError that names the
# key.


Extras = Mapping[str, Mapping[int, Mapping[str, str]]]

ROWS_GATHERED = 1 << 16  # references that become columns at a time


class _Array(NamedTuple):
    grid: ChunkGrid
    parts: list[Part]
    rows: list[tuple[int, Row]]
    extras: dict[int, dict[str, str]]

    def add(self, number: int, row: Row) -> None:
        self.rows.append((number, row))
        if len(self.rows) == ROWS_GATHERED:
            self.parts.append(Part.from_rows(self.rows))
            self.rows.clear()

    def table(self) -> ChunkTable:
        return ChunkTable.from_parts(self.grid, [*self.parts, Part.from_rows(self.rows)])


def gather(keyspace: KeySpace, prefix: str = "") -> Steps[tuple[ReferenceSet, Extras]]:
    """Return all that ``keyspace`` holds below ``prefix``, and what only a chunk manifest can say of chunks.

    The latter by array and number.
    """
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


# Returns what a look-up (made anew for each try) returns, on behalf of a key.
Run = Callable[[str, Callable[[], Steps[Any]]], Any]

ROWS = 1 << 17  # references of a parquet set that are taken at a time


def collect(keyspace: KeySpace, run: Run, respell: Respell) -> ReferenceSet:
    """Return all references of ``keyspace``, their URLs respelled; ``run`` meets what it takes to load them.

    Raises ManifestError where a reference set cannot hold what there is.
    """
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    match keyspace:
        case EditedKeySpace(base=base, edits=edits):
            assert not isinstance(base, ShardView), "edits are of keys that are stored: `shard_edits` makes them"
            return with_edits(collect(base, run, respell), edits.loaded(), "what was written")
        case ManifestView(maps_anything=True):
            pass
        case _:
            match beneath(keyspace):
                case FlatKeySpace() as flat:
                    refs: ReferenceSet = run("", partial(_with_metadata, flat))
                    return respelled(refs, respell)
                case ParquetKeySpace() as lazy:
                    return columns_of(lazy, run, respell)
    refs, extras = run("", partial(gather, keyspace))
    if extras:
        raise ManifestError(
            f"the chunk manifest of {next(iter(extras))!r} says more of chunks than where they are: "
            "a set of references cannot hold that"
        )
    return respelled(refs, respell)


def pin(
    keyspace: KeySpace,
    run: Run,
    respell: Respell,
    threshold: int,
    shard_options: tuple[tuple[str, Any], ...] | None,
    tell: Callable[[int], object],
) -> ReferenceSet:
    """Return all references of ``keyspace`` pinned to what their targets are now, as `snapshots` does.

    ``tell`` hears of how many more objects are known. With ``shard_options`` sharded arrays become arrays of their
    inner chunks.
    """
    found: ReferenceSet
    if isinstance(keyspace, EditedKeySpace) and not len(keyspace.edits):
        keyspace = keyspace.base
    match keyspace if isinstance(keyspace, EditedKeySpace) else beneath(keyspace):
        case Hierarchy() as hierarchy:
            found = respelled(run("", partial(taken, hierarchy, threshold, tell)), respell)
        case _:
            refs = collect(keyspace, run, respell)
            found = run("", partial(pinned, refs, tell))
    return found if shard_options is None else run("", partial(_flattened, found, shard_options))


def _flattened(refs: ReferenceSet, shard_options: tuple[tuple[str, Any], ...]) -> Steps[ReferenceSet]:
    """Return ``refs`` with references to inner chunks in place of those to shards."""
    base = FlatKeySpace(refs, str, "the snapshot")
    mapped = ManifestView(base, OpenOptions())
    yield from mapped.learn(has_root=True)
    if mapped.maps_anything:
        raise ManifestError("chunk manifests are among the keys: their shards cannot be flattened; use shards='whole'")
    view = ShardView(base, shard_options)
    yield from view.learn()
    if not view.shards_anything:
        return refs
    flat, _ = yield from gather(view)
    return flat


def respelled(refs: ReferenceSet, respell: Respell) -> ReferenceSet:
    """Return ``refs`` with other URLs; the columns are shared."""
    urls = list(refs.urls)
    new = list(map(respell, urls))
    return refs if new == urls else msgspec.structs.replace(refs, urls=texts_of(new))


def texts_of(urls: list[str | None]) -> Texts:
    """Return URLs as they lie in a set."""
    return Texts.of(None if url is None else url.encode("utf-8", "surrogatepass") for url in urls)


def _with_metadata(keyspace: FlatKeySpace) -> Steps[ReferenceSet]:
    """Return the references; documents that are references themselves are read, and made inline."""
    refs = keyspace.refs
    missing = [key for key, value in refs.side.items() if type(value) is Row and zarrmeta.is_metadata(key)]
    if not missing:
        return refs
    found: dict[str, Any] = {}
    for key in missing:
        entry = yield from keyspace.lookup(key)
        if entry is not None:
            found[key] = yield Load(entry, Raw())
    inline = parse_document(dict(References(refs)) | found, keyspace.where, {})
    if refs.pins is None:
        return inline
    return msgspec.structs.replace(inline, pins=Pins.matched(refs.pins.by_url(refs.urls), inline.urls))


def columns_of(keyspace: ParquetKeySpace, run: Run, respell: Respell, array: str | None = None) -> ReferenceSet:
    """Return the references of a parquet set in columns; or those of one array."""
    stream = ParquetStream(keyspace, respell)
    side: dict[str, Any] = dict(stream.documents())
    urls: dict[str | None, int] = {}
    tables = {}
    for path, grid in stream.grids.items():
        if array is not None and path != array:
            continue
        parts = []
        for numbers in run(path, partial(stream.ranges, path, ROWS)):
            partition = run(path, partial(stream.partition, path, numbers))
            codes = np.array([urls.setdefault(url, len(urls)) for url in partition.urls], np.uint32)
            rows = np.flatnonzero(partition.ranges.targets != ABSENT)
            targets, offsets, lengths = partition.ranges.take(rows)
            parts.append(Part((rows + numbers.start).astype(np.uint64), codes[targets], offsets, lengths))
            side.update((join(path, grid.tail(numbers.start + row)), data) for row, data in partition.inline.items())
        tables[path] = ChunkTable.from_parts(grid, parts)
    return ReferenceSet(texts_of(list(urls)), tables, side)

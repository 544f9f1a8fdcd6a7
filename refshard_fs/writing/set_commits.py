"""Commits to parquet sets and hierarchies with chunk manifests: new objects first, then the document that names them.

That one PUT is the commit. Readers that know no new names are served by what follows it. If that is interrupted, the
document says what is left to do, and readers of this package follow it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import Ranges, Texts
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import ChunkGrid, is_key, is_within, join, nearest, parent, relative
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import ABSENT, Inline, Steps
from refshard_fs.errors import ConflictError, ManifestError, ReadOnlyError
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.formats.chunk_manifest import manifest as manifest_writing
from refshard_fs.formats.chunk_manifest.view import root_with
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import StoredPartition, Written, require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import KEPT, Layout, ParquetKeySpace, partition_name
from refshard_fs.formats.kerchunk_parquet.writing import (
    Change,
    document_with,
    edited_partition,
    encode,
    new_layout,
    parquet_partition,
    plan,
)
from refshard_fs.references.reference_set import ReferenceSet, with_edits, within
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.session.collect import gather
from refshard_fs.session.overlay import Base
from refshard_fs.session.recognition import manifests_of
from refshard_fs.sinks.chunk_manifest import manifest_of
from refshard_fs.stores.document import Document
from refshard_fs.stores.objects import PUT_AT_ONCE, Objects
from refshard_fs.stores.store import Condition, is_version
from refshard_fs.writing.save import absolute, as_written
from refshard_fs.writing.writer import Writer

Finish = Callable[[], None]  # what is left to do after a commit


class DirectoryCommit:
    """One commit to a directory whose document ``name`` lists its objects: these are put first, the document last."""

    def __init__(self, writer: Writer, base: Base, edits: Edits, name: str) -> None:
        self._run = writer.session.run
        self._edits = edits
        root = str(writer.source).rstrip("/")
        self._stores = writer.session.stores
        self._store = Objects(root, self._stores)
        self._url = self._store.url_of(name)
        self._document = Document(self._url, self._stores, base.facts, writer.overlay.sent)
        self._token = uuid.uuid4().hex  # makes the names of new objects unique
        self._written: list[str] = []

    def run(self) -> Finish:
        """Make the commit: all of it or nothing. Return what is left to do for readers that know no new names."""
        data = None
        try:
            data, tidy = self._put_objects()
            self._document.put(data)
        except BaseException as e:
            # Where the document may have been put, or may still be, the objects that it names stay.
            is_refused = isinstance(e, ConflictError) and e.is_certain
            if data is None or is_refused or not self._document.may_be(data):
                with contextlib.suppress(OSError):
                    self._store.remove_all(self._written)
            raise

        def finish() -> None:
            with contextlib.suppress(OSError, ConflictError):  # the commit is made, and its document says what is left
                tidy()

        return finish

    def _put_objects(self) -> tuple[bytes, Finish]:
        """Put all new objects. Return the new document, and what gives objects their usual names after the commit."""
        raise NotImplementedError

    def _publish_again(self, data: bytes) -> None:
        """Replace the document that this commit has put."""
        Document(self._url, self._stores, self._document.made).put(data)


# ----------------------------------------------------------------------------------------------------
# Parquet sets: changed partitions under names of their own; after the commit they get their usual names. What they
# replace there is copied before, for readers that have the set open; a later commit removes that.

ABANDONED: Final = 900  # seconds after which an earlier commit no longer renames its partitions
TIDYING: Final = 300  # seconds that a commit may take to rename them
EARLIER: Final = 8  # versions of a partition that a reader may find by the latest one
MOST_KEPT: Final = 1000  # copies of replaced partitions

Renamed = dict[str, dict[int, str | None]]


class ParquetCommit(DirectoryCommit):
    """One commit to the set at the source's URL, which is made if there is none."""

    def __init__(self, writer: Writer, base: Base, edits: Edits) -> None:
        require_pyarrow()
        super().__init__(writer, base, edits, PARQUET)
        found: Any = base.keyspace.source
        is_parquet = found.committed_as == "kerchunk-parquet" and base.facts is not None
        self._old: ParquetKeySpace | None = found if is_parquet else None
        empty = zarrmeta.dumps({"metadata": {}, "record_size": writer.options.record_size})
        self._layout = Layout(empty, self._url) if self._old is None else self._old.layout
        self._renamed: Renamed = {array: dict(names) for array, names in self._layout.renamed.items()}
        self._generation = self._layout.generation + 1
        self._now = int(time.time())
        self._kept = dict(self._layout.kept)  # as in the document
        self._copied: dict[str, str] = {}  # usual names of partitions that are replaced, and those of their copies

    def _put_objects(self) -> tuple[bytes, Finish]:
        layout, document = new_layout(self._layout, self._edits, self._url)
        changes = plan(self._layout, layout, self._edits)
        for array in changes.gone:
            self._drop(array, 0)
        for array, change in changes.changes.items():
            self._change(layout, array, change)
        self._renamed = {array: names for array, names in self._renamed.items() if names}
        gone = [path for path, when in self._kept.items() if self._now - when > KEPT]
        gone += sorted(set(self._copies()) - {*gone}, key=lambda path: self._kept[path])[:-MOST_KEPT]
        kept = {path: when for path, when in self._kept.items() if path not in gone}
        may_rename = self._may_rename()
        at = self._now if may_rename else self._layout.begun
        first = document_with(document, self._token, self._generation, self._kept, self._renamed, at)
        last = document_with(document, self._token, self._generation, kept)
        return first, partial(self._rename, last, gone) if may_rename else _nothing

    # ------------------------------------------------------------------ partitions under names of their own

    def _change(self, layout: Layout, array: str, change: Change) -> None:
        if change.anew:
            self._make_anew(layout, array, keeps=change.keeps)
            return
        for number in sorted({*change.rows, *change.cut}):
            before = None
            name = partition_name(array, number)
            if self._old is not None and number < self._layout.partitions(array):
                before = self._run(name, partial(self._old.partition, array, number))
            rows = change.rows.get(number, {})
            earlier: tuple[int | None, ...] = (None,)
            if before is not None:
                written = before.written if isinstance(before, StoredPartition) else Written()
                earlier = (written.generation, *written.earlier)[:EARLIER]
                if number not in self._layout.renamed.get(array, {}):  # else another version has its usual name
                    self._copied[name] = partition_name(array, number, written.generation)
                    self._kept[self._copied[name]] = self._now
            if before is not None or rows:
                part = edited_partition(before, layout.chunks(array, number), rows)
                self._put(layout, array, number, part, earlier)
        self._drop(array, layout.partitions(array))

    def _make_anew(self, layout: Layout, array: str, *, keeps: bool) -> None:
        refs = ReferenceSet(Texts.of(()), {}, {})
        if keeps and self._old is not None:
            refs, _ = self._run(array, partial(gather, self._old, array))
        side = {key: value for key, value in refs.side.items() if is_within(key, array)}
        metadata = {key: value for key, value in layout.metadata.items() if is_within(key, array)}
        refs = with_edits(ReferenceSet(refs.urls, refs.tables, side | metadata), within(self._edits, array), self._url)
        self._drop(array, 0)
        for numbers, part in ReferenceStream.of_set(refs, as_written).partitions(array, layout.record_size):
            self._put(layout, array, numbers.start // layout.record_size, part)

    def _put(self, layout: Layout, array: str, number: int, part: Chunks, earlier: tuple[int | None, ...] = ()) -> None:
        start = number * layout.record_size
        numbers = range(start, start + len(part))
        name = f"refs.{number}.{self._token}.parq"
        data = parquet_partition(array, layout.grids[array], numbers, part, Written(self._generation, earlier))
        self._written.append(join(array, name))
        self._store.put(join(array, name), (data,))
        self._renamed.setdefault(array, {})[number] = name
        self._kept.pop(partition_name(array, number), None)

    def _drop(self, array: str, start: int) -> None:
        """Let there be none of the array's partitions from ``start`` on.

        For a while an empty one has the usual name of each: it tells readers who have the set open to open it anew.
        """
        if self._old is None or array not in self._layout.grids:
            return
        size = self._layout.grids[array].size
        stored = self._run(array, partial(self._old.stored, array, start * self._layout.record_size, size))
        renamed = self._renamed.setdefault(array, {})
        renamed.update(dict.fromkeys(stored))
        renamed.update((number, None) for number in list(renamed) if number >= start)
        self._kept.update((partition_name(array, n), self._now) for n, name in renamed.items() if name is None)

    # ------------------------------------------------------------------ and their usual names

    def _copies(self) -> Iterator[str]:
        """Yield the files that are kept as copies: a reader who misses one is told."""
        return (path for path in self._kept if path.count(".", path.rfind("/") + 1) == 3)

    def _may_rename(self) -> bool:
        """Whether there are partitions to rename, and no other process is doing that: on this machine a lock tells."""
        is_free = self._store.is_local or not self._layout.renamed or self._now - self._layout.begun > ABANDONED
        return bool(self._renamed) and is_free

    def _rename(self, document: bytes, gone: list[str]) -> None:
        """Give the partitions of the commit their usual names; ``document`` is then the one of the set.

        Files that are ``gone`` are removed then: they were kept long enough.
        """
        with self._store.lock():
            made = self._document.made
            if made is not None and not is_version(made, self._store.version(PARQUET)):
                return  # a later commit has all that this one would do
            unique = self._copy(time.monotonic() + TIDYING)
        if unique is not None:
            self._publish_again(document)
            self._store.remove_all([*unique, *gone])

    def _copy(self, until: float) -> list[str] | None:
        """Copy partitions to their usual names; return the names that are no longer needed. None: there was no time."""
        unique: list[str] = []
        rows = self._layout.record_size
        empty = encode(Chunks((), Ranges.absent(rows), {}), Written(self._generation))
        for array, names in self._renamed.items():
            for number, name in names.items():
                if time.monotonic() > until:
                    return None
                usual = partition_name(array, number)
                if usual in self._copied:
                    self._store.copy(usual, self._copied[usual])
                if name is not None:
                    self._store.copy(join(array, name), usual)
                    unique.append(join(array, name))
            removed = [partition_name(array, number) for number, name in names.items() if name is None]
            self._store.put_all(dict.fromkeys(removed, empty))
        for array, before in self._layout.renamed.items():
            kept = self._renamed.get(array, {})
            unique += [join(array, name) for n, name in before.items() if name is not None and kept.get(n) != name]
        return unique


def _nothing() -> None:
    """Leave the partitions of the commit to another one."""


# ----------------------------------------------------------------------------------------------------
# Hierarchies with chunk manifests: the root's document has all metadata; after the commit each node gets its own.

_ROOT = "zarr.json"
Nodes = dict[str, dict[str, Any]]


class ManifestCommit(DirectoryCommit):
    """One commit to the hierarchy at the source's URL, which is made if there is none."""

    def __init__(self, writer: Writer, base: Base, edits: Edits) -> None:
        super().__init__(writer, base, edits, _ROOT)
        is_new = base.facts is None
        self._view = None if is_new else manifests_of(base.keyspace)
        if not is_new and not (self._view and isinstance(self._view.base, Hierarchy | EditedKeySpace)):
            raise ReadOnlyError(f"{self._store.url} maps the keys of its whole source, and takes no writes")

    def _put_objects(self) -> tuple[bytes, Finish]:
        old: Nodes = {} if self._view is None else self._run("", partial(_documents, self._view.base))
        nodes = self._nodes(old)
        root = old.get("", {})
        arrays = {path: doc for path, doc in nodes.items() if doc.get("node_type") == "array"}
        with_gone = {*arrays, *(path for path, doc in old.items() if doc.get("node_type") == "array")}
        for key, edit in self._edits.changes().items():  # chunks of arrays that are gone go with these
            if edit is not REMOVED and not zarrmeta.is_metadata(key) and nearest(key, with_gone) is None:
                raise _no_chunk(key)
        touched = {path for path, doc in arrays.items() if self._touches(path, doc, old.get(path))}
        # The next commit removes the manifests that this one replaces: readers have had time to open the set again.
        # Those of nodes that are gone do not stay, for with them their directories would.
        done = [join(path, name) for path in sorted(touched) if (name := _manifest(old.get(path)))]
        useless = [join(path, name) for path in old.keys() - nodes.keys() if (name := _manifest(old.get(path)))]
        for path in nodes:
            write = self._write if path in touched else _declaring
            nodes[path] = write(path, nodes[path], old.get(path))
        changed = {path for path, doc in nodes.items() if path and doc != old.get(path)}
        changed |= _unfinished(root, "pending").intersection(nodes)
        gone = sorted({*old, *_unfinished(root, "gone")} - set(nodes) - {""})
        documents = {join(path, _ROOT): zarrmeta.dumps(nodes[path]) for path in sorted(changed)}
        removed = [join(path, _ROOT) for path in gone]
        # Versions from before the commit: what a later one has put meanwhile is not written over.
        versions = self._versions([*documents, *removed])

        def tidy() -> None:
            with self._store.lock():
                for name, data in documents.items():
                    self._store.put(name, (data,), versions[name])
                for name in removed:
                    if versions[name] is not ABSENT:
                        self._store.check(name, versions[name])  # not every store compares before it removes
                        self._store.remove(name, versions[name])
            self._store.tidy(removed)
            self._publish_again(zarrmeta.dumps(root_with(nodes, [], [], done)))
            self._store.remove_all([*useless, *_replaced(root)])

        return zarrmeta.dumps(root_with(nodes, sorted(changed), gone, done)), tidy

    def _versions(self, names: Sequence[str]) -> dict[str, Condition]:
        with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
            found = pool.map(self._store.facts, names)
            return {name: ABSENT if facts is None else facts for name, facts in zip(names, found, strict=True)}

    # ------------------------------------------------------------------ metadata

    def _nodes(self, old: Nodes) -> Nodes:
        """Return the documents of all groups and arrays after the edits, without what declares their manifests."""
        edits = self._edits
        shown: dict[str, Any] = {}
        for path in old:  # which is empty without a view
            assert self._view is not None
            entry = self._run(path, partial(self._view.read, join(path, _ROOT)))
            if entry is not None and not edits.hides(join(path, _ROOT)):
                shown[join(path, _ROOT)] = entry
        for key, edit in edits.changes().items():
            if not zarrmeta.is_metadata(key):
                continue
            if isinstance(edit, Inline):
                shown[key] = edit.data
            else:
                shown.pop(key, None)
        arrays = {key: zarrmeta.object_in(shown[key], repr(key)) for key in shown if zarrmeta.is_array_document(key)}
        found = ((parent(key)[0], _grid(parent(key)[0], doc)) for key, doc in arrays.items())
        grids = {path: grid for path, grid in found if grid is not None}
        return manifest_writing.hierarchy(shown.items(), grids)

    def _touches(self, path: str, doc: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
        """Whether the array ``path`` needs another manifest."""
        edits = self._edits
        if old is None or edits.hides(path) or _grid(path, doc) != _grid(path, old):
            return True
        has_chunks = any(is_within(key, path) and not zarrmeta.is_metadata(key) for key in edits.changes())
        return has_chunks or any(is_within(prefix, path) for prefix in edits.prefixes())

    # ------------------------------------------------------------------ manifests

    def _write(self, path: str, doc: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
        """Write the manifest of the array ``path``, and return its metadata, which names that."""
        grid = _grid(path, doc)
        if grid is None:
            raise ManifestError(f"{join(path, _ROOT)!r}: its chunk grid or chunk keys are not known")
        refs, extras = ReferenceSet(Texts.of(()), {}, {}), {}
        if self._view is not None and old is not None and not self._edits.hides(path):
            refs, found = self._run(path, partial(gather, self._view, path))
            extras = _moved(found.get(path, {}), _grid(path, old), grid)
        edits = within(self._edits, path)
        edits.put(join(path, _ROOT), Inline(zarrmeta.dumps(doc)))
        for key in edits.changes():
            number = grid.number(relative(key, path))
            if number is not None:
                extras.pop(number, None)
        refs = with_edits(refs, edits, self._url)
        for key in refs.side:
            if not zarrmeta.is_metadata(key) and grid.number(relative(key, path)) is None:
                raise _no_chunk(key)
        stream = ReferenceStream.of_set(refs, lambda url: None if url is None else absolute(url), {path: extras})
        data = manifest_of(stream, path)
        name = f"manifest.{self._token}.json"
        self._written.append(join(path, name))
        self._store.put(join(path, name), (data,))
        return manifest_writing.with_manifest(doc, refs.origins, name)


def _no_chunk(key: str) -> ManifestError:
    return ManifestError(f"{key!r} is neither metadata nor a chunk of an array: a chunk manifest cannot hold it")


def _documents(keyspace: KeySpace) -> Steps[Nodes]:
    """Return the document of every node as it is stored, by path: as the root has them, or each one's own."""
    root = yield from _document(keyspace, _ROOT)
    if root is None:
        return {}
    match root:
        case {"consolidated_metadata": {"metadata": dict(members)}}:
            return {"": root, **{path: doc for path, doc in members.items() if isinstance(doc, dict)}}
    found = {"": root}
    groups = [""] if root.get("node_type") == "group" else []
    while groups:
        path = groups.pop()
        for listed in (yield from keyspace.children(path)) or ():
            below = join(path, listed.name)
            doc = (yield from _document(keyspace, join(below, _ROOT))) if listed.is_directory else None
            if doc is not None:
                found[below] = doc
                if doc.get("node_type") == "group":
                    groups.append(below)
    return found


def _document(keyspace: KeySpace, key: str) -> Steps[dict[str, Any] | None]:
    data = yield from keyspace.read(key)
    return None if data is None else zarrmeta.object_in(data, repr(key))


def _grid(path: str, doc: Mapping[str, Any]) -> ChunkGrid | None:
    meta = zarrmeta.array_meta(doc, repr(join(path, _ROOT)))
    return None if meta is None else meta.grid


def _manifest(doc: Mapping[str, Any] | None) -> str | None:
    """Return the name of the manifest, beside it, that an array's document declares and that a commit wrote."""
    match doc:
        case {"storage_transformers": [{"name": name, "configuration": {"manifest": str(path)}}]} if name == NAME:
            plain = path.removeprefix("./")
            return plain if plain.startswith("manifest.") and "/" not in plain else None
    return None


def _declaring(path: str, doc: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the new metadata of an array that is not touched: it declares the manifest that the old one does."""
    if old is None or "storage_transformers" not in old:
        return doc
    return {**doc, "storage_transformers": old["storage_transformers"]}


def _unfinished(root: Mapping[str, Any], what: str) -> set[str]:
    match root:
        case {"consolidated_metadata": {"refshard": {**ours}}}:
            paths: Any = ours.get(what, ())
            return {path for path in paths if isinstance(path, str) and is_key(path)}
    return set()


def _replaced(root: Mapping[str, Any]) -> list[str]:
    found = _unfinished(root, "replaced")
    return sorted(key for key in found if parent(key)[1].startswith("manifest."))


def _moved(
    extras: Mapping[int, Mapping[str, str]], before: ChunkGrid | None, after: ChunkGrid
) -> dict[int, Mapping[str, str]]:
    """Return what is said of chunks by their numbers in another grid; of those outside of it, nothing."""
    if before is None or len(before.counts) != len(after.counts):
        return {}
    moved = {after.number_of(before.coords(number)): said for number, said in extras.items()}
    return {number: said for number, said in moved.items() if number is not None}

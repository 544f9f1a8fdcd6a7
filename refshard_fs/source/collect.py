"""Collect the references of any source in one reference set in columns, with absolute URLs and inline metadata."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING, PACKING_TYPE
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, make_column
from refshard_fs.core.columns import NO_TARGET, WHOLE, ChunkTable, Part, Row, Texts, UInt64s
from refshard_fs.core.edits import Edits, unwrap_if_unedited
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import ChunkGrid, find_nearest, join, parent
from refshard_fs.core.keyspace import KeySpace, Run
from refshard_fs.core.model import (
    Entry,
    Inline,
    Load,
    Origin,
    Pin,
    Raw,
    Span,
    Stat,
    Steps,
    iterate_batches,
    run_together,
)
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet, apply_edits
from refshard_fs.references.stream import Respell
from refshard_fs.references.values import METADATA
from refshard_fs.references.versions import pin_targets
from refshard_fs.security.origins import Origins
from refshard_fs.security.policy import DECOMPRESS
from refshard_fs.source.recognition import open_references

# Checksums and versions of single chunks, which a `ReferenceSet` cannot hold, by array and by the number of the chunk.
# An empty mapping stands for a chunk that a chunk manifest marks as missing.
Checks = Mapping[str, Mapping[int, Mapping[str, str]]]

# A chunk is computed if no range of an object has its bytes, for example a padded last chunk.
MAX_INLINE = 64 << 20  # the most bytes of computed chunks that a set may hold
MAX_COMPARED = 1 << 20  # the most bytes of computed chunks of one array that a join reads to compare them
COPY_BATCH = 16 << 20  # bytes of computed chunks in memory at a time
MAX_STATS = 64  # the most chunks of an array whose existence is checked one by one if they cannot be listed
KEY_BATCH = 1 << 14  # keys in one look-up
ROW_BATCH = 1 << 17  # references of a set in one batch


class UnreadArrays(NamedTuple):
    """The rule for the arrays whose values a join does not read.

    Arrays that have all joined dimensions, ``dims``, are joined without being read. Data arrays with paths in ``same``
    are taken from the first set, and not compared. Coordinates of dimensions are always read.
    """

    dims: frozenset[str]
    same: frozenset[str] = frozenset()

    def choose(self, documents: Mapping[str, Value], paths: Iterable[str]) -> set[str]:
        """Return the ``paths`` of arrays that are not read, according to their metadata in ``documents``."""
        stated = {path: _read_attributes(documents, path) for path in paths}
        known = self.dims.intersection(itertools.chain.from_iterable(own.dims for own in stated.values()))
        named = {join(parent(path)[0], name) for path, own in stated.items() for name in own.coordinates}
        unread: set[str] = set()
        for path, own in stated.items():
            if own.dims == [parent(path)[1]]:  # a coordinate
                continue
            is_data = len(own.dims) > 0 and path not in named
            # If the set has no joined dimension, the join adds the dimensions to the set's data arrays.
            is_joined = known.issubset(own.dims) if known else is_data
            if is_joined or (is_data and path in self.same):
                unread.add(path)
        return unread


def gather(
    keyspace: KeySpace, prefix: str = "", unread: UnreadArrays | None = None
) -> Steps[tuple[ReferenceSet, Checks]]:
    """Return references to all keys of ``keyspace`` below ``prefix``, and the checksums and versions of chunks.

    Computed chunks are read and stored inline. Raises ManifestError, which names the key, if these have more than
    `MAX_INLINE` bytes. With ``unread``, a computed chunk that the join does not compare becomes a reference to the
    first range that it is computed from: the document of a cube needs only the names of existing chunks.
    """
    if unread is not None and keyspace.url_of is not None:  # listing a hierarchy takes a request for 1,000 chunks
        collection = Collection(keyspace, (yield from _list_contents_to_compare(keyspace, unread)))
        yield from run_together([collection.add_array(path) for path in collection.paths])
    elif unread is not None:
        collection = yield from _collect_all(keyspace, (yield from keyspace.contents_to_join(unread.choose)))
    else:
        collection = yield from collect_keys(keyspace, prefix)
    if unread is not None:
        collection.skip(unread)
    if (key := collection.find_first_beyond_limit()) is not None:
        raise ManifestError(
            f"{key!r} is computed from other bytes, so it has to be copied, but a set holds at most "
            f"{MAX_INLINE >> 20} MiB of copies. Convert this source alone, to a directory where an object for the "
            "copies can be written beside the set; or read the source in place"
        )
    for batch in collection.iterate_batches():
        read: Sequence[bytes] = yield tuple(Load(packed.entry, Raw()) for packed in batch)
        for packed, data in zip(batch, read, strict=True):
            collection.add_bytes(packed, data)
    return collection.finish()


def _list_contents_to_compare(keyspace: KeySpace, unread: UnreadArrays) -> Steps[Contents]:
    """Return the metadata of a hierarchy, with all chunks of the arrays that the join compares.

    Other arrays are returned with their first chunk only: their directories are not listed.
    """
    members = yield from keyspace.documents()
    grids: dict[str, ChunkGrid] = {}
    for key, data in members.items():
        document = zarrmeta.object_in(data, repr(key)) if parent(key)[1] in METADATA else {}
        meta = zarrmeta.array_meta(document, repr(key)) if document else None
        if meta is not None and meta.grid is not None:
            grids[parent(key)[0]] = meta.grid
    skipped = unread.choose(members, grids)
    compared = [path for path in grids if path not in skipped]
    listed = yield from run_together([_find_chunks(keyspace, path, grids[path]) for path in compared])
    first_chunks = {path: ArrayChunks(grids[path], [range(min(grids[path].size, 1))]) for path in skipped}
    return Contents(members, first_chunks | dict(zip(compared, listed, strict=True)))


def _find_chunks(keyspace: KeySpace, path: str, grid: ChunkGrid) -> Steps[ArrayChunks]:
    """List the chunks of an array. If listing is not possible, and there are few chunks, check each for existence."""
    if grid.size > MAX_STATS or (yield from keyspace.can_list()):
        try:
            found = (yield from keyspace.contents(path)).arrays
            return found.get(path, ArrayChunks(grid))
        except NotListable:
            if grid.size > MAX_STATS:
                raise
    entries = yield from keyspace.find_entries([join(path, grid.tail(number)) for number in range(grid.size)])
    spans = {number: entry for number, entry in enumerate(entries) if isinstance(entry, Span)}
    facts = (yield tuple(Stat(span.url, origin=span.origin) for span in spans.values())) if spans else ()
    present = [number for number, known in zip(spans, facts, strict=True) if known is not None]
    return ArrayChunks(grid, np.array(present, np.uint64))


class PackedKey(NamedTuple):
    """A key of computed bytes, and its entry. For a chunk, ``array`` is the path of its array; else it is None."""

    key: str
    entry: Entry
    array: str | None
    number: int

    @property
    def size(self) -> int:
        """The size in bytes; if it is unknown before the bytes are computed, the size of the ranges to read."""
        return self.entry.size if self.entry.size is not None else sum(span.size or 0 for span in self.entry.spans)


def collect_keys(
    keyspace: KeySpace, prefix: str = "", *, with_lengths: bool = False, for_others: bool = False
) -> Steps[Collection]:
    """Collect the references of all keys of ``keyspace`` below ``prefix``; computed keys are in `Collection.packed`.

    With ``with_lengths``, chunks that are whole objects get their sizes from listings. With ``for_others``, chunks in
    files that are compressed as a whole count as computed, since other packages cannot read ranges of these files.
    """
    contents = yield from keyspace.contents(prefix)
    return (yield from _collect_all(keyspace, contents, with_lengths=with_lengths, for_others=for_others))


def _collect_all(keyspace: KeySpace, contents: Contents, **options: bool) -> Steps[Collection]:
    """Collect the references of all keys in ``contents``; ``options`` are those of `Collection`."""
    collection = Collection(keyspace, contents, **options)
    yield from run_together([collection.add_array(path) for path in contents.arrays])
    others = list(contents.others.keys() - contents.indexes)
    others += [key for key, value in contents.members.items() if isinstance(value, list)]
    with_manifests = {path: array for path, array in contents.arrays.items() if array.pins_chunks}
    if with_manifests:  # the directories of these arrays may hold objects of earlier commits
        others = [key for key in others if find_nearest(key, with_manifests) is None]
    for keys in iterate_batches(sorted(others), KEY_BATCH):
        for key, entry in zip(keys, (yield from keyspace.find_entries(keys)), strict=True):
            collection.add(key, entry)
    return collection


class Collection:
    """Build a set of references from the keys of a key space: add arrays and keys, then call `finish`."""

    def __init__(
        self, keyspace: KeySpace, contents: Contents, *, with_lengths: bool = False, for_others: bool = False
    ) -> None:
        self._with_lengths = with_lengths
        self._for_others = for_others
        self.urls: dict[str | None, int] = {}  # the number of each URL in the set
        self.packed: list[PackedKey] = []
        self._keyspace = keyspace
        self._arrays = contents.arrays
        self._pins: dict[str, Pin] = {}
        self._origins: dict[str, Origin] = {}  # by URL: the sets that refer to it
        types = keyspace.attribute_dtypes
        self._side: dict[str, Value] = {
            key: add_packing_type(value, key, types) if isinstance(value, bytes) else value
            for key, value in contents.members.items()
            if not isinstance(value, list)  # ranges of targets are looked up, because they may have pins
        }
        self._parts: dict[str, list[Part]] = {path: [] for path in contents.arrays}
        self._checks: dict[str, dict[int, Mapping[str, str]]] = {}

    @property
    def paths(self) -> Sequence[str]:
        """The paths of all arrays."""
        return list(self._arrays)

    def add_array(self, path: str) -> Steps[None]:
        """Add the chunks of the array ``path``."""
        array = self._arrays[path]
        for numbers, sizes in array.iterate_batches(ROW_BATCH if self._keyspace.is_reference_set else KEY_BATCH):
            chunks = yield from self._keyspace.chunks(path, numbers, array.grid)
            if self._with_lengths and sizes is not None:
                lengths = chunks.ranges.lengths
                np.copyto(lengths, sizes, where=(lengths == WHOLE) & (chunks.ranges.offsets == 0))
            self._add_chunks(path, make_column(numbers), chunks)

    def _add_chunks(self, path: str, numbers: UInt64s, chunks: Chunks) -> None:
        array = self._arrays[path]
        computed = {**chunks.packed, **(_find_decompressed(chunks) if self._for_others else {})}
        is_range = chunks.ranges.targets != NO_TARGET
        is_range[list(computed)] = False
        rows = np.flatnonzero(is_range)
        ranges = chunks.ranges.take(rows)
        pins = chunks.pins or [None] * len(chunks.urls)
        origins = chunks.origins or [()] * len(chunks.urls)
        targets = zip(chunks.urls, pins, origins, strict=True)
        codes = np.array([self._add_target(*target) for target in targets], np.uint32)
        if len(rows):
            self._parts[path].append(Part(numbers[rows], ranges._replace(targets=codes[ranges.targets])))
        for row, data in chunks.inline.items():
            self._side[join(path, array.grid.tail(int(numbers[row])))] = data
        checks = dict(chunks.checks)
        if array.pins_chunks and chunks.pins:
            versions = [{} if pin is None or pin.exact else pin.version for pin in pins]
            for row, target in zip(rows.tolist(), ranges.targets.tolist(), strict=True):
                if version := versions[target]:
                    checks[row] = {**checks[row], **version} if row in checks else version
        if checks:
            self._checks.setdefault(path, {}).update((int(numbers[row]), own) for row, own in checks.items())
        for row, entry in computed.items():
            number = int(numbers[row])
            self._add_packed(PackedKey(join(path, array.grid.tail(number)), entry, path, number))

    def add(self, key: str, entry: Entry | None) -> None:
        """Add a key that is not a chunk."""
        chunks = ChunksBuilder(1)
        chunks.put_entry(0, entry)
        columns = chunks.finish()
        value = columns.get_value(0)
        if isinstance(value, Row):
            code = self._add_target(columns.urls[0], columns.pins[0] if columns.pins else None, *columns.origins)
            self._side[key] = Row(code, value.offset, value.length)
        elif value is not None:
            self._side[key] = value
        elif columns.packed:
            self._add_packed(PackedKey(key, columns.packed[0], None, 0))

    def _add_packed(self, packed: PackedKey) -> None:
        if isinstance(packed.entry, Span) and packed.entry.start < 0:
            raise ManifestError(
                f"{packed.key!r} is the last {-packed.entry.start} bytes of {packed.entry.url}: expected a range with "
                "an offset, because a reference set cannot hold a range that is counted from the end of an object"
            )
        self.packed.append(packed)

    def _add_target(self, url: str | None, pin: Pin | None, origin: Origin = ()) -> int:
        """Return the number of ``url`` in the set, and remember its pin and its origins."""
        if url is not None:
            self._origins[url] = self._origins.get(url, origin) and origin
            if pin is not None and pin.exact and self._pins.setdefault(url, pin) != pin:
                raise ManifestError(
                    f"the references need two versions of {url}, but a set can hold only one version of each URL: make "
                    "the references of the older version again"
                )
        return self.urls.setdefault(url, len(self.urls))

    def add_bytes(self, packed: PackedKey, value: Row | bytes) -> None:
        """Add a computed key: its bytes, or a reference to a copy of these."""
        if packed.array is None or not isinstance(value, Row):
            self._side[packed.key] = value
        else:
            self._parts[packed.array].append(Part.from_rows([(packed.number, value)]))

    def find_first_beyond_limit(self) -> str | None:
        """Return the first computed key with which the copies exceed `MAX_INLINE` bytes; None if all keys fit."""
        ends = itertools.accumulate(packed.size for packed in self.packed)
        return next((packed.key for packed, end in zip(self.packed, ends, strict=True) if end > MAX_INLINE), None)

    def iterate_batches(self) -> Iterator[list[PackedKey]]:
        """Yield the computed keys in batches of about `COPY_BATCH` bytes."""
        ends = itertools.accumulate(packed.size for packed in self.packed)
        for _, group in itertools.groupby(zip(self.packed, ends, strict=True), lambda pair: pair[1] // COPY_BATCH):
            yield [packed for packed, _ in group]

    def skip(self, unread: UnreadArrays) -> None:
        """Replace computed chunks by references to their first ranges, except for chunks that the join compares."""
        sizes: dict[str | None, int] = {}
        for packed in self.packed:
            sizes[packed.array] = sizes.get(packed.array, 0) + packed.size
        skipped = unread.choose(self._side, self._arrays)
        large = [path for path in self._arrays if sizes.get(path, 0) > MAX_COMPARED]
        stated = {path: _read_attributes(self._side, path) for path in large}
        skipped |= {path for path, own in stated.items() if own.dims != [parent(path)[1]]}
        computed, self.packed = self.packed, []
        rows: dict[str, list[tuple[int, Row]]] = {}
        for packed in computed:
            spans = packed.entry.spans
            if spans and packed.array in skipped:
                target = self._add_target(spans[0].url, None, spans[0].origin)
                rows.setdefault(packed.array, []).append(
                    (packed.number, Row(target, max(spans[0].start, 0), packed.size))
                )
            else:
                self.packed.append(packed)
        for path, rows_of_array in rows.items():
            self._parts[path].append(Part.from_rows(rows_of_array))

    def finish(self) -> tuple[ReferenceSet, Checks]:
        """Build the set of references; return it, with the checksums and versions of chunks, which it cannot hold."""
        tables = {path: ChunkTable.from_parts(array.grid, self._parts[path]) for path, array in self._arrays.items()}
        urls = Texts.of(self.urls)
        keyspace = self._keyspace
        combined = Origins.combine([*self._origins.items()], keyspace.strangers)
        origins = keyspace.origins if keyspace.is_reference_set else combined
        return ReferenceSet(urls, tables, self._side, pins=Pins.match(self._pins, urls), origins=origins), self._checks


class _Attributes(NamedTuple):
    """The names of an array's dimensions and auxiliary coordinates in its metadata."""

    dims: Sequence[str | None] = ()
    coordinates: Sequence[str] = ()


def _find_decompressed(chunks: Chunks) -> dict[int, Entry]:
    """Return the entries of chunks in files that are compressed as a whole, by row."""
    codes = [code for code, url in enumerate(chunks.urls) if (url or "").startswith(DECOMPRESS)]
    rows = np.flatnonzero(np.isin(chunks.ranges.targets, codes)).tolist()
    return {row: entry for row in rows if (entry := chunks.find_entry(row)) is not None}


def _read_attributes(side: Mapping[str, Value], path: str) -> _Attributes:
    for name in ("zarr.json", ".zattrs"):
        data = side.get(join(path, name))
        if isinstance(data, bytes):
            doc = zarrmeta.object_in(data, join(path, name))
            attributes = doc.get("attributes") if name == "zarr.json" else doc
            dims = doc.get("dimension_names" if name == "zarr.json" else "_ARRAY_DIMENSIONS")
            names = attributes.get("coordinates") if isinstance(attributes, dict) else None
            return _Attributes(
                [dim if isinstance(dim, str) else None for dim in dims] if isinstance(dims, list) else (),
                names.split() if isinstance(names, str) else (),
            )
    return _Attributes()


def add_packing_type(data: bytes, key: str, by_array: Mapping[str, Mapping[str, str]]) -> bytes:
    """Add an attribute to a metadata document if the array's scale_factor and add_offset are 32-bit numbers.

    xarray decodes to the type of these two numbers, but JSON does not keep types. ``by_array``: the types of
    attributes, by array and name.
    """
    path, name = parent(key)
    dtypes = by_array.get(path, {})
    if name not in ("zarr.json", ".zattrs") or {
        np.dtype(dtypes[name]).newbyteorder("=") for name in PACKING if name in dtypes
    } != {np.dtype("f4")}:
        return data
    doc = zarrmeta.object_in(data, key)
    own = {PACKING_TYPE: "float32"}
    added = {"attributes": {**(doc.get("attributes") or {}), **own}} if "node_type" in doc else own
    return zarrmeta.dumps({**doc, **added})


def collect(keyspace: KeySpace, run: Run, respell: Respell, unread: UnreadArrays | None = None) -> ReferenceSet:
    """Return all references of ``keyspace``, with ``respell`` applied to URLs; ``run`` runs the look-ups.

    For ``unread`` see `gather`. Raises ManifestError if a reference set cannot hold the content.
    """
    keyspace = unwrap_if_unedited(keyspace.whole_shards)
    if keyspace.edits is not None and keyspace.base is not None:
        return apply_edits(collect(keyspace.base, run, respell), keyspace.edits.load_all(), "the uncommitted writes")
    found: ReferenceSet = run("", partial(collect_steps, keyspace, unread))
    return respell_urls(found, respell)


def collect_steps(keyspace: KeySpace, unread: UnreadArrays | None = None) -> Steps[ReferenceSet]:
    """Return all references of ``keyspace``, as `collect` does, but with their URLs unchanged."""
    keyspace = keyspace.whole_shards
    if keyspace.references is not None:
        return (yield from _inline_metadata(keyspace))
    refs, checks = yield from gather(keyspace, unread=unread)
    if checks:
        raise ManifestError(
            f"the chunk manifest of {next(iter(checks))!r} has checksums, versions or marks of missing chunks, which a "
            "set of references cannot hold: save it with format='chunk-manifest'"
        )
    return refs


def pin(
    keyspace: KeySpace,
    run: Run,
    respell: Respell,
    threshold: int,
    shard_options: tuple[tuple[str, Any], ...] | None,
    on_progress: Callable[[int], object],
) -> ReferenceSet:
    """Return all references of ``keyspace``, pinned to the current versions of their targets.

    ``on_progress(n)`` is called when the versions of n more objects are known. If ``shard_options`` is not None,
    sharded arrays become arrays of their inner chunks.
    """
    keyspace = unwrap_if_unedited(keyspace)
    found: ReferenceSet | None = run("", partial(keyspace.snapshot, threshold, on_progress))
    if found is None:
        found = run("", partial(pin_targets, collect(keyspace, run, respell), on_progress))
    else:
        found = respell_urls(found, respell)
    return found if shard_options is None else run("", partial(_flatten, found, shard_options))


def _flatten(refs: ReferenceSet, shard_options: tuple[tuple[str, Any], ...]) -> Steps[ReferenceSet]:
    """Replace references to shards by references to their inner chunks."""
    view = yield from open_references(refs, OpenOptions(shard_options=shard_options))
    if view.whole_shards.references is None:
        raise ManifestError("references to the chunks in shards of chunk manifests cannot be made: pass shards='whole'")
    if view is view.whole_shards:
        return refs
    flat, _ = yield from gather(view)
    return flat


def respell_urls(refs: ReferenceSet, respell: Respell) -> ReferenceSet:
    """Apply ``respell`` to the URLs of ``refs``; the result shares the columns."""
    urls = list(refs.urls)
    new = list(map(respell, urls))
    return refs if new == urls else msgspec.structs.replace(refs, urls=Texts.of(new))


def _inline_metadata(keyspace: KeySpace) -> Steps[ReferenceSet]:
    """Return the references of a set, with references to metadata documents replaced by the documents."""
    refs: ReferenceSet = keyspace.references
    edits = Edits()
    for key in [key for key, value in refs.side.items() if type(value) is Row and zarrmeta.is_metadata(key)]:
        data = yield from keyspace.read(key)
        if data is not None:
            edits.put(key, Inline(data))
    return apply_edits(refs, edits, refs.where) if len(edits) else refs

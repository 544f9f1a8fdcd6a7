"""One snapshot of an Icechunk repository as a source; manifests are read when they are needed. No I/O here.

All objects except ``repo`` (or a branch in version 1) are written once. So a source keeps its snapshot, whatever is
committed later. Virtual chunks are read like those of any reference set: admitted, merged over gaps, and compared with
the versions of their targets in the manifest.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunk_boxes import ChunkBoxes
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers, column_of
from refshard_fs.core.columns import NO_TARGET, Part, Texts, UInt64s
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.format import OpenOptions, Probe, Version, check_size
from refshard_fs.core.keys import ChunkGrid, is_key, is_within, iterate_splits, join, parent
from refshard_fs.core.keyspace import KeySpace, LookUp, find_chunk
from refshard_fs.core.model import Entry, Facts, Head, Inline, Load, Pin, Quota, Raw, Span, Stat, Steps, batches
from refshard_fs.core.parted_keyspace import PartedKeySpace
from refshard_fs.errors import ManifestError, RefShardError, SourceNotReachable
from refshard_fs.formats.icechunk import REPO
from refshard_fs.formats.icechunk.objects import ManifestIndex, Node, Refs, Repository, Snapshot, SnapshotIndex
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.origins import Origins
from refshard_fs.security.policy import LOCAL, locator, protocol_of

TOGETHER: Final = 8  # manifests in memory at a time, for operations on whole arrays
AHEAD: Final = 16  # most manifests of coordinates that are read on opening
_INFO: Final = 1 << 20  # bytes of ``repo`` in the first request
_MEMO: Final = 4096  # URLs in the cache
_PROTOCOLS: Final = {"gcs": "gs", "azure": "az"}  # Icechunk's names, and fsspec's
_QUOTING: Final = ("gs", "gcs", "az", "abfs", *LOCAL)  # protocols for which Icechunk quotes names of objects
_LOCAL_ETAG: Final = re.compile(r"[0-9a-f]{1,16}-([0-9a-f]{1,14})-([0-9a-f]{1,14})")  # inode, microseconds, size


class IcechunkKeySpace(PartedKeySpace):
    """The keys of a snapshot in the repository at ``root``.

    ``containers`` are the URLs of virtual chunk containers by name.
    """

    holds_all_metadata = True
    has_only_ranges = True

    def __init__(self, root: str, snapshot: Snapshot, containers: Mapping[str, str], options: OpenOptions) -> None:
        self.root_url = root
        self.snapshot_name, self.branch = snapshot.name, options.version.branch or "main"
        self.committed_as = "icechunk" if options.version in (Version(), Version(branch=self.branch)) else None
        if snapshot.origins is not None:
            self._origins = Origins.read(zarrmeta.loads(snapshot.origins), root)
        self._below = locator(root)
        self._containers = containers
        self._absolute = lru_cache(_MEMO)(self._resolve)
        self._members: dict[str, bytes] = {}
        self.arrays: dict[str, _Array] = {}
        self.reports = reports = dict[str, str]()  # reasons why arrays are left out
        for node in snapshot.nodes:
            if node.path and not is_key(node.path):
                raise ManifestError(f"{root}: {node.path!r} is not the path of a node")
            key = join(node.path, "zarr.json")
            try:
                meta = zarrmeta.array_meta(zarrmeta.object_in(node.document, key), key)
                if meta is not None and meta.grid is not None:
                    self.arrays[node.path] = self._make_array(node, meta, meta.grid, options)
                elif node.manifests:
                    raise ManifestError(f"{key} has a chunk grid that is not supported")
            except ManifestError as e:  # the other arrays can be read
                reports[node.path] = str(e)
            else:
                self._members[key] = node.document
        self._documents = FlatKeySpace(ReferenceSet(Texts.of(()), {}, dict(self._members)), self.resolve, root)
        self.grids = {path: array.grid for path, array in self.arrays.items()}

    def _make_array(self, node: Node, meta: zarrmeta.ArrayMeta, grid: ChunkGrid, options: OpenOptions) -> _Array:
        most, quota = options.max_manifest_bytes, Quota(self.root_url or "", options.cache_size)
        if any(len(ref.box) != 8 * len(grid.counts) for ref in node.manifests):
            raise ManifestError(f"its manifests have boxes of chunks that do not have {len(grid.counts)} dimensions")
        bounds = np.frombuffer(b"".join(ref.box for ref in node.manifests), "<u4")
        loads = []
        for ref in node.manifests:
            check_size(ref.size, most, f"the manifest {ref.name}")
            span = Span(self._below(f"manifests/{ref.name}"), 0, ref.size)
            loads.append(Load(span, ManifestIndex(ref, node.identifier, grid.counts, most, quota)))
        return _Array(meta, grid, loads, ChunkBoxes(grid.counts, bounds.reshape(len(loads), len(grid.counts), 2)))

    def _resolve(self, location: str) -> str:
        """Resolve a location in a manifest to a URL."""
        scheme, mark, rest = location.partition("://")
        if not mark:
            return self._below(location)
        if scheme == "vcc":
            name, _, path = rest.partition("/")
            if name not in self._containers:
                known = ", ".join(map(repr, self._containers)) or "none"
                where = f"{location}: {self.root_url} has no virtual chunk container {name!r}"
                raise ManifestError(f"{where}: expected one of those in its configuration ({known})")
            scheme, _, rest = (self._containers[name] + path).partition("://")
        scheme = _PROTOCOLS.get(scheme, scheme)
        if scheme not in ("http", "https"):
            rest = unquote(re.split("[?#]", rest, maxsplit=1)[0])
        if any(mark in rest for mark in ("::", "\0", "\ufffd")):
            raise ManifestError(f"{location}: an object name with '::' or NUL, or not in UTF-8, cannot be read")
        return f"{scheme}://{rest}"

    def lookup(self, key: str) -> Steps[Entry | None]:
        if key in self._members:
            return Inline(self._members[key])
        at = find_chunk(self.grids, key)
        if at is None:
            for path, _ in iterate_splits(key):
                if path in self.reports:
                    raise ManifestError(f"{path!r} is left out: {self.reports[path]}")
            return None
        numbers = np.array([at.number], np.uint64)
        manifest = int(self.arrays[at.array].boxes.find(numbers)[0])
        return (yield from self._find_entries(at.array, manifest, numbers))[0]

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        others, chunks = self.group_by_array(keys)
        found = [self.single_lookup(place, keys[place]) for place in others]
        for path, pairs in chunks.items():
            places, numbers = np.array(pairs, np.uint64).T
            manifests = self.arrays[path].boxes.find(numbers)
            for manifest in np.unique(manifests).tolist():
                some = manifests == manifest
                found.append(LookUp(places[some].tolist(), self._find_entries(path, manifest, numbers[some])))
        return found

    def _find_entries(self, path: str, manifest: int, numbers: UInt64s) -> Steps[list[Entry | None]]:
        """Return the entries of chunks in one manifest of an array; None for all if ``manifest`` is -1."""
        found: list[Entry | None] = [None] * len(numbers)
        if manifest < 0:
            return found
        array = self.arrays[path]
        refs: Refs = yield array.loads[manifest]
        chunks = refs.chunks
        places, rows = (column.tolist() for column in refs.find(numbers))
        for i, row in zip(places, rows, strict=True):
            target, start, length = (int(column[row]) for column in chunks.ranges)
            if target == NO_TARGET:
                found[i] = Inline(chunks.inline[row])
                continue
            if length > LONG:
                check_length(join(path, array.grid.tail(int(numbers[i]))), length, array.meta)
            url = self._absolute(chunks.urls[target] or "")
            pin = _convert_pin(url, chunks.pins[target]) if chunks.pins else None
            found[i] = Span(url, start, start + length, pin=pin, origin=self._origins.of(url))
        return found

    def parts(self, array: str, start: int, stop: int) -> Steps[list[Part]]:
        found = []
        for some in batches(self._loads_within(array, start, stop), TOGETHER):
            read: Sequence[Refs] = yield tuple(some)
            found += [Part(refs.numbers, refs.chunks.part(0).ranges) for refs in read]
        return found

    def has_chunk(self, array: str, start: int, stop: int) -> Steps[bool]:
        yield from ()
        return bool(self._loads_within(array, start, stop))

    def _loads_within(self, array: str, start: int, stop: int) -> list[Load]:
        """Return the needs for the manifests that may have chunks ``[start, stop)``."""
        shown = self.arrays[array]
        return [shown.loads[box] for box in shown.boxes.within(start, stop)]

    def some_urls(self) -> Steps[Sequence[str | None]]:
        """Return URLs of virtual chunks from the first manifest of an array, the first array that has any there."""
        for array in self.arrays.values():
            for load in array.loads[:1]:
                refs: Refs = yield load
                found = [self._absolute(url) for url in refs.chunks.urls if url is not None and "://" in url]
                if found:
                    return found
        return ()

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        within = {path: array for path, array in self.arrays.items() if is_within(path, prefix)}
        arrays = {path: ArrayChunks(each.grid, each.boxes.ranges(), pins_chunks=True) for path, each in within.items()}
        return Contents((yield from self._documents.contents(prefix)).members, arrays)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if not isinstance(numbers, range):
            return (yield from super().chunks(array, numbers, grid))
        builder, wanted = ChunksBuilder(len(numbers)), column_of(numbers)
        for some in batches(self._loads_within(array, numbers.start, numbers.stop), TOGETHER):
            read: Sequence[Refs] = yield tuple(some)
            for refs in read:
                places, rows = refs.find(wanted)
                known = refs.chunks
                builder.put(places, known.urls, known.ranges.take(rows), known.pins)
                is_inline = known.ranges.targets[rows] == NO_TARGET
                pairs = zip(places[is_inline].tolist(), rows[is_inline].tolist(), strict=True)
                builder.inline |= {place: known.inline[row] for place, row in pairs}
        found = builder.finish()
        urls = [self._absolute(url or "") for url in found.urls]
        pins = [_convert_pin(url, pin) for url, pin in zip(urls, found.pins, strict=True)] if found.pins else ()
        origins = [self._origins.of(url) for url in urls] if self._origins else ()
        return msgspec.structs.replace(found, urls=urls, pins=pins, origins=origins)


class _Array(NamedTuple):
    """An array: its metadata, its manifests, and the box of chunks in each."""

    meta: zarrmeta.ArrayMeta
    grid: ChunkGrid
    loads: Sequence[Load]
    boxes: ChunkBoxes


def _convert_pin(url: str, pin: Pin | None) -> Pin | None:
    """Convert a pin for its target: Icechunk's ETag of a local file consists of inode, time and size."""
    etag = pin.etag if pin is not None and protocol_of(url) in LOCAL else None
    local = _LOCAL_ETAG.fullmatch((etag or "").strip('"'))
    return Pin(last_modified=str(int(local[1], 16) / 1e6), size=int(local[2], 16), exact=True) if local else pin


# Choosing the snapshot.


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open the snapshot that the options choose; the default is the last one of the branch ``main``."""
    below, most, version = locator(probe.url), options.max_manifest_bytes, options.version
    found = yield from _read_whole(below(REPO), most)
    containers: Mapping[str, str] = {}
    if found is not None:
        try:
            repository = Repository.decode(found, most)
        except ValueError as e:
            raise ManifestError(f"{below(REPO)}: {e}") from e
        containers = repository.containers
        name = _choose_snapshot(repository, version, probe.url)
    else:
        name = version.snapshot or (yield from _read_reference(below, version, most))
        if not is_key(name) or "/" in name:
            raise ManifestError(f"{name!r} is not the name of a snapshot")
    snapshot: Snapshot = yield Load(Span(below(f"snapshots/{name}")), SnapshotIndex(name, most))
    while found is None and version.is_before(snapshot.time):
        if snapshot.parent is None:
            raise SourceNotReachable(f"{probe.url}: {version} is before its first snapshot")
        load = Load(Span(below(f"snapshots/{snapshot.parent}")), SnapshotIndex(snapshot.parent, most))
        child, snapshot = snapshot, (yield load)
        if snapshot.time >= child.time:  # otherwise a loop in a damaged repository would never end
            raise ManifestError(f"{probe.url}: the snapshot {child.parent} is not older than its child: it is damaged")
    keyspace = IcechunkKeySpace(probe.url, snapshot, containers, options)
    alone = {path: array for path, array in keyspace.arrays.items() if len(array.loads) == 1}
    ahead = [each.loads[0] for path, each in alone.items() if each.meta.raw.get("dimension_names") == [parent(path)[1]]]
    if 0 < len(ahead) <= AHEAD:  # xarray reads coordinates on opening
        with contextlib.suppress(OSError, RefShardError):  # a read of the coordinate raises the error again
            yield tuple(ahead)
    return keyspace


def _read_whole(url: str, most: int) -> Steps[bytes | None]:
    """Read an object in its current version; None if it does not exist."""
    answer: tuple[Facts, bytes] | None = yield Head(url, min(_INFO, most))
    if answer is None:
        return None
    facts, data = answer
    check_size(facts.size, most, url)
    if facts.size != len(data):
        data = yield Load(Span(url, pin=facts.pin), Raw())
    return data


def _choose_snapshot(repository: Repository, version: Version, url: str) -> str:
    """Return the name of the snapshot that ``version`` chooses."""
    if version.snapshot is not None:
        if version.snapshot not in repository.snapshots:
            raise SourceNotReachable(f"{url} has no snapshot {version.snapshot!r}")
        return version.snapshot
    kind, name = version.reference
    known = repository.tags if kind == "tag" else repository.branches
    if name not in known:
        others = ", ".join(map(repr, sorted(known))) or "none"
        raise SourceNotReachable(f"{url} has no {kind} {name!r}: expected one of {others}")
    for place in repository.ancestry(known[name]):
        if not version.is_before(repository.times[place]):
            return repository.snapshots[place]
    raise SourceNotReachable(f"{url}: {version} is before its first snapshot")


def _read_reference(below: Callable[[str], str], version: Version, most: int) -> Steps[str]:
    """Return the name of the snapshot of a branch or a tag in a repository of version 1."""
    kind, name = version.reference
    is_quoted = protocol_of(below("")) in (None, *_QUOTING)
    spelled = quote(name, safe=" !$&'()+,:;=@").replace("~", "%7E") if is_quoted else name
    where = f"refs/{kind}.{spelled}/ref.json"
    data = yield from _read_whole(below(where), most)
    deleted = (yield Stat(below(where + ".deleted"), fresh=True)) if kind == "tag" else None
    if data is None and version == Version():
        raise SourceNotReachable(f"there is no Icechunk repository at {below('')}: neither {REPO} nor {where} exists")
    if data is None or deleted is not None:
        raise SourceNotReachable(f"{below('')} has no {kind} {name!r}: {where} does not exist")
    match zarrmeta.object_in(data, below(where)):
        case {"snapshot": str(snapshot)}:
            return snapshot
    raise ManifestError(f"{below(where)}: expected an object with the name of a 'snapshot'")

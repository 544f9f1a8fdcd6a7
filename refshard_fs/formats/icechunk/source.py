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
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers
from refshard_fs.core.columns import NO_TARGET, ChunkTable, Texts
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.format import OpenOptions, Probe, Version, check_size
from refshard_fs.core.keys import ChunkGrid, is_key, is_within, join, splits
from refshard_fs.core.keyspace import KeySpace, LookUp, chunks_below, find_chunk, merge_listings
from refshard_fs.core.model import Entry, Facts, Head, Inline, Listed, Load, Pin, Quota, Raw, Span, Stat, Steps, batches
from refshard_fs.errors import ManifestError, RefShardError, SourceNotReachable
from refshard_fs.formats.icechunk import REPO
from refshard_fs.formats.icechunk.objects import ManifestIndex, Node, Refs, Repository, Snapshot, SnapshotIndex
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.origins import NOTHING, Origins
from refshard_fs.security.policy import LOCAL, locator, protocol_of

TOGETHER: Final = 8  # manifests in memory at a time, for operations on whole arrays
AHEAD: Final = 16  # most manifests of coordinates that are read on opening
_INFO: Final = 1 << 20  # bytes of ``repo`` in the first request
_MEMO: Final = 4096  # URLs in the cache
_COMPARED: Final = 1 << 20  # pairs of a chunk and a manifest that are compared at once
_PROTOCOLS: Final = {"gcs": "gs", "azure": "az"}  # Icechunk's names, and fsspec's
_QUOTING: Final = ("gs", "gcs", "az", "abfs", *LOCAL)  # where Icechunk quotes the names of objects
_LOCAL_ETAG: Final = re.compile(r"[0-9a-f]{1,16}-([0-9a-f]{1,14})-([0-9a-f]{1,14})")  # inode, microseconds, size


class IcechunkKeySpace(KeySpace):
    """The keys of a snapshot in the repository at ``root``.

    ``containers`` are the URLs of virtual chunk containers by name.
    """

    holds_all_metadata = True

    def __init__(self, root: str, snapshot: Snapshot, containers: Mapping[str, str], options: OpenOptions) -> None:
        self.root_url = root
        self.snapshot_name, self.branch = snapshot.name, options.version.branch or "main"
        is_at_branch = options.version in (Version(), Version(branch=options.version.branch))
        self.committed_as = "icechunk" if is_at_branch else None
        recorded = snapshot.origins
        self._origins = NOTHING if recorded is None else Origins.read(zarrmeta.loads(recorded), root)
        self._below = locator(root)
        self._parse_containers = containers
        self._absolute = lru_cache(_MEMO)(self._resolve)
        self._members: dict[str, bytes] = {}
        self._arrays: dict[str, _Array] = {}
        self.reports = reports = dict[str, str]()  # reasons why arrays are left out
        for node in snapshot.nodes:
            if node.path and not is_key(node.path):
                raise ManifestError(f"{root}: {node.path!r} is not the path of a node")
            key = join(node.path, "zarr.json")
            try:
                meta = zarrmeta.array_meta(zarrmeta.object_in(node.document, key), key)
                if meta is not None and meta.grid is not None:
                    self._arrays[node.path] = _Array(node, meta, meta.grid, self._make_loads(node, meta.grid, options))
                elif node.manifests:
                    raise ManifestError(f"{key} has a chunk grid that is not supported")
            except ManifestError as e:  # the other arrays can be read
                reports[node.path] = str(e)
            else:
                self._members[key] = node.document
        self._documents = FlatKeySpace(ReferenceSet(Texts.of(()), {}, dict(self._members)), self.resolve, root)
        self.grids = {path: array.grid for path, array in self._arrays.items()}

    def _make_loads(self, node: Node, grid: ChunkGrid, options: OpenOptions) -> list[Load]:
        """Return the needs for the manifests of an array."""
        most, quota = options.max_manifest_bytes, Quota(self.root_url or "", options.cache_size)
        loads = []
        for ref in node.manifests:
            check_size(ref.size, most, f"the manifest {ref.name}")
            span = Span(self._below(f"manifests/{ref.name}"), 0, ref.size)
            loads.append(Load(span, ManifestIndex(ref, node.identifier, grid.counts, most, quota)))
        return loads

    def coordinates(self) -> list[Load]:
        """Return the needs for the manifests of coordinates, which xarray reads on opening, if they are few."""
        found = [
            array.loads[0]
            for path, array in self._arrays.items()
            if len(array.loads) == 1 and array.meta.raw.get("dimension_names") == [path.rpartition("/")[2]]
        ]
        return found if len(found) <= AHEAD else []

    def _resolve(self, location: str) -> str:
        """Resolve a location in a manifest to a URL."""
        scheme, mark, rest = location.partition("://")
        if not mark:
            return self._below(location)
        if scheme == "vcc":
            name, _, path = rest.partition("/")
            if name not in self._parse_containers:
                known = ", ".join(map(repr, self._parse_containers)) or "none"
                raise ManifestError(
                    f"{location}: {self.root_url} has no virtual chunk container {name!r}: expected one of those in "
                    f"its configuration ({known})"
                )
            scheme, _, rest = (self._parse_containers[name] + path).partition("://")
        scheme = _PROTOCOLS.get(scheme, scheme)
        if scheme not in ("http", "https"):
            rest = unquote(re.split("[?#]", rest, maxsplit=1)[0])
        if any(mark in rest for mark in ("::", "\0", "\ufffd")):
            raise ManifestError(f"{location}: an object name with '::' or NUL, or not in UTF-8, cannot be read")
        return f"{scheme}://{rest}"

    def lookup(self, key: str) -> Steps[Entry | None]:
        document = self._members.get(key)
        if document is not None:
            return Inline(document)
        at = find_chunk(self.grids, key)
        if at is None:
            for path, _ in splits(key):
                if path in self.reports:
                    raise ManifestError(f"{path!r} is left out: {self.reports[path]}")
            return None
        array = self._arrays[at.array]
        manifest = array.find_manifest(at.number)
        if manifest < 0:
            return None
        refs: Refs = yield array.loads[manifest]
        row = int(refs.numbers.searchsorted(np.uint64(at.number)))
        if row == len(refs.numbers) or refs.numbers[row] != at.number:
            return None
        target, start, length = (int(column[row]) for column in refs.chunks.ranges)
        return self._entry(at.array, at.number, refs.chunks, row, target, start, length)

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        found: list[LookUp] = []
        chunks: dict[str, list[tuple[int, int]]] = {}
        for i, key in enumerate(keys):
            at = None if key in self._members else find_chunk(self.grids, key)
            if at is None:
                found.append(self.single_lookup(i, key))
            else:
                chunks.setdefault(at.array, []).append((i, at.number))
        for path, pairs in chunks.items():
            manifests = self._arrays[path].find_manifests(np.array([number for _, number in pairs]))
            for manifest in np.unique(manifests).tolist():
                some = [pairs[row] for row in np.flatnonzero(manifests == manifest).tolist()]
                steps = self._entries(path, manifest, [number for _, number in some])
                found.append(LookUp([i for i, _ in some], steps))
        return found

    def _entries(self, path: str, manifest: int, numbers: Sequence[int]) -> Steps[list[Entry | None]]:
        """Return the entries of chunks in one manifest of an array; None for all if ``manifest`` is -1."""
        if manifest < 0:
            return [None] * len(numbers)
        array = self._arrays[path]
        refs: Refs = yield array.loads[manifest]
        chunks = refs.chunks
        wanted = np.array(numbers, np.uint64)
        rows = refs.numbers.searchsorted(wanted)
        there = rows < len(refs.numbers)
        there[there] = refs.numbers[rows[there]] == wanted[there]
        found: list[Entry | None] = [None] * len(numbers)
        places = np.flatnonzero(there)
        rows = rows[places]
        columns = (column[rows].tolist() for column in chunks.ranges)
        for i, row, target, start, length in zip(places.tolist(), rows.tolist(), *columns, strict=True):
            found[i] = self._entry(path, numbers[i], chunks, row, target, start, length)
        return found

    def _entry(self, path: str, number: int, chunks: Chunks, row: int, target: int, start: int, length: int) -> Entry:
        """Return the entry of an existing chunk."""
        if target == NO_TARGET:
            return Inline(chunks.inline[row])
        if length > LONG:
            array = self._arrays[path]
            check_length(join(path, array.grid.tail(number)), length, array.meta)
        url = self._absolute(chunks.urls[target] or "")
        pin = _convert_pin(url, chunks.pins[target]) if chunks.pins else None
        return Span(url, start, start + length, pin=pin, origin=self._origins.of(url))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        stem = prefix + "/" if prefix else ""
        parts = [(yield from self._documents.children(prefix)) or ()]
        for path, rest in ((prefix, ""), *splits(prefix)):
            array = self._arrays.get(path)
            level = None if array is None else array.grid.directory(rest)
            if array is None or level is None or not level.numbers:
                continue
            start, stop = level.numbers.start, level.numbers.stop
            manifests = array.within(start, stop)
            if len(level.numbers) == 1 and not level.is_leaf:
                parts.append([Listed(level.child(start), None, True)] if manifests else [])
                continue
            rows = []
            for some in batches(manifests, TOGETHER):
                read: Sequence[Refs] = yield tuple(array.loads[manifest] for manifest in some)
                rows += [refs.sizes() for refs in read]
            parts.append(chunks_below(ChunkTable.from_parts(array.grid, rows), rest, stem))
        found = merge_listings(*parts)
        return found if found or not prefix else None

    @property
    def origins(self) -> Origins:
        return self._origins

    @property
    def strangers(self) -> frozenset[str]:
        return self._origins.servers

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        return self._documents.metadata_lacks(marks)

    def some_urls(self) -> Steps[Sequence[str | None]]:
        """Return URLs of virtual chunks from the first manifest of an array, the first array that has any there."""
        for array in self._arrays.values():
            for load in array.loads[:1]:
                refs: Refs = yield load
                found = [self._absolute(url) for url in refs.chunks.urls if url is not None and "://" in url]
                if found:
                    return found
        return ()

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        yield from ()
        members = {key: document for key, document in self._members.items() if is_within(key, prefix)}
        arrays = {
            path: ArrayChunks(array.grid, array.numbers(), pins_chunks=True)
            for path, array in self._arrays.items()
            if is_within(path, prefix)
        }
        return Contents(dict(members), arrays)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if not isinstance(numbers, range):
            return (yield from super().chunks(array, numbers, grid))
        builder = ChunksBuilder(len(numbers))
        loads = self._arrays[array].loads
        for some in batches(self._arrays[array].within(numbers.start, numbers.stop), TOGETHER):
            read: Sequence[Refs] = yield tuple(loads[manifest] for manifest in some)
            for refs in read:
                first, last = refs.numbers.searchsorted(np.array([numbers.start, numbers.stop], np.uint64)).tolist()
                rows = refs.numbers[first:last].astype(np.int64) - numbers.start
                known = refs.chunks
                builder.put(rows, known.urls, known.ranges.take(slice(first, last)), known.pins)
                builder.inline |= {int(rows[r - first]): data for r, data in known.inline.items() if first <= r < last}
        found = builder.finish()
        urls = [self._absolute(url or "") for url in found.urls]
        pins = [_convert_pin(url, pin) for url, pin in zip(urls, found.pins, strict=True)] if found.pins else ()
        origins = [self._origins.of(url) for url in urls] if self._origins else ()
        return msgspec.structs.replace(found, urls=urls, pins=pins, origins=origins)


class _Array:
    """An array: its metadata, and its manifests with their boxes of chunks."""

    def __init__(self, node: Node, meta: zarrmeta.ArrayMeta, grid: ChunkGrid, loads: Sequence[Load]) -> None:
        ndim = len(grid.counts)
        if any(len(side) != ndim for ref in node.manifests for side in (ref.first, ref.last)):
            raise ManifestError(f"its manifests have boxes of chunks that do not have {ndim} dimensions")
        self.meta = meta
        self.grid = grid
        self.loads = loads
        shape = (len(loads), ndim)
        self._firsts = np.array([ref.first for ref in node.manifests], np.int64).reshape(shape)
        self._lasts = np.minimum(np.array([ref.last for ref in node.manifests], np.int64).reshape(shape), grid.counts)
        lowest = highest = np.zeros(len(loads), np.int64)
        for i, count in enumerate(grid.counts):
            lowest = lowest * count + self._firsts[:, i]
            highest = highest * count + self._lasts[:, i] - 1
        # The numbers of a box's chunks lie in this range; it may also contain chunks of other boxes.
        is_empty = (self._firsts >= self._lasts).any(axis=1)
        self._is_full = bool((self._firsts == 0).all() and (self._lasts == grid.counts).all())
        self._starts, self._stops = np.where(is_empty, 0, lowest), np.where(is_empty, 0, highest + 1)

    def find_manifests(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the index of the manifest for each of the chunks ``numbers``; -1 if no box contains it."""
        found = np.full(len(numbers), -1)
        counts = self.grid.counts
        step = max(1, _COMPARED // max(1, len(self.loads)))
        for start in range(0, len(numbers), step) if self.loads else ():
            some = numbers[start : start + step]
            coords = np.stack(np.unravel_index(some, counts), 1) if counts else np.zeros((len(some), 0), np.int64)
            inside = np.asarray(((coords[:, None] >= self._firsts) & (coords[:, None] < self._lasts)).all(axis=2))
            found[start : start + step] = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
        return found

    def find_manifest(self, number: int) -> int:
        """Return the index of the manifest for one chunk."""
        if len(self.loads) == 1 and self._is_full:  # ten times faster
            return 0
        return int(self.find_manifests(np.array([number]))[0])

    def within(self, start: int, stop: int) -> list[int]:
        """Return the manifests that may have chunks ``[start, stop)``."""
        manifests: list[int] = np.flatnonzero((self._starts < stop) & (self._stops > start)).tolist()
        return manifests

    def numbers(self) -> list[range]:
        """Return ascending ranges of chunk numbers that contain all existing chunks."""
        found: list[range] = []
        for start, stop in sorted(zip(self._starts.tolist(), self._stops.tolist(), strict=True)):
            if found and start <= found[-1].stop:
                found[-1] = range(found[-1].start, max(found[-1].stop, stop))
            elif start < stop:
                found.append(range(start, stop))
        return found


def _convert_pin(url: str, pin: Pin | None) -> Pin | None:
    """Convert a pin for its target: Icechunk's ETag of a local file consists of inode, time and size."""
    if pin is not None and pin.etag is not None and protocol_of(url) in LOCAL:
        local = _LOCAL_ETAG.fullmatch(pin.etag.strip('"'))
        if local is not None:
            return Pin(last_modified=str(int(local[1], 16) / 1e6), size=int(local[2], 16), exact=True)
    return pin


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
    snapshot: Snapshot = yield _load_snapshot(below, name, most)
    while found is None and version.is_before(snapshot.time):
        if snapshot.parent is None:
            raise SourceNotReachable(f"{probe.url}: {version} is before its first snapshot")
        child, snapshot = snapshot, (yield _load_snapshot(below, snapshot.parent, most))
        if snapshot.time >= child.time:  # otherwise a loop in a damaged repository would never end
            raise ManifestError(f"{probe.url}: the snapshot {child.parent} is not older than its child: it is damaged")
    keyspace = IcechunkKeySpace(probe.url, snapshot, containers, options)
    if ahead := keyspace.coordinates():
        with contextlib.suppress(OSError, RefShardError):  # a read of the coordinate raises the error again
            yield tuple(ahead)
    return keyspace


def _load_snapshot(below: Callable[[str], str], name: str, most: int) -> Load:
    if not is_key(name) or "/" in name:
        raise ManifestError(f"{name!r} is not the name of a snapshot")
    return Load(Span(below(f"snapshots/{name}")), SnapshotIndex(name, most))


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
        if all(saved.name != version.snapshot for saved in repository.snapshots):
            raise SourceNotReachable(f"{url} has no snapshot {version.snapshot!r}")
        return version.snapshot
    kind, name = version.reference
    known = repository.tags if kind == "tag" else repository.branches
    if name not in known:
        others = ", ".join(map(repr, sorted(known))) or "none"
        raise SourceNotReachable(f"{url} has no {kind} {name!r}: expected one of {others}")
    for saved in repository.ancestry(known[name]):
        if not version.is_before(saved.time):
            return saved.name
    raise SourceNotReachable(f"{url}: {version} is before its first snapshot")


def _read_reference(below: Callable[[str], str], version: Version, most: int) -> Steps[str]:
    """Return the name of the snapshot of a branch or a tag in a repository of version 1."""
    kind, name = version.reference
    is_quoted = protocol_of(below("")) in (None, *_QUOTING)
    spelled = quote(name, safe=" !$&'()+,:;=@").replace("~", "%7E") if is_quoted else name
    where = f"refs/{kind}.{spelled}/ref.json"
    if "/" in name:
        raise SourceNotReachable(f"{below('')} has no {kind} {name!r}: a name cannot have a slash")
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

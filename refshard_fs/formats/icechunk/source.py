"""Open a snapshot of an Icechunk repository; manifests are read when they are needed. No I/O here.

Only ``repo`` (in version 1, the object of a branch) is ever replaced. So an opened source keeps its snapshot, whatever
is committed later. Virtual chunks are read like chunks of any reference set: the targets must be permitted, requests
are merged over gaps, and the versions of targets are compared with the versions in the manifest.
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
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers, make_column
from refshard_fs.core.columns import NO_TARGET, Part, Texts, UInt64s
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.format import OpenOptions, Probe, Version, check_size, read_documents
from refshard_fs.core.keys import ChunkGrid, check_key, is_key, is_within, iterate_splits, join, parent
from refshard_fs.core.keyspace import KeySpace, LookUp, find_chunk
from refshard_fs.core.model import Entry, Inline, Load, ParsedIndex, Pin, Quota, Span, Stat, Steps, iterate_batches
from refshard_fs.core.parted_keyspace import PartedKeySpace
from refshard_fs.errors import ManifestError, RefShardError, SourceNotReachable
from refshard_fs.formats.icechunk import REPO
from refshard_fs.formats.icechunk.objects import ManifestIndex, Node, Refs, Repository, Snapshot, decode_snapshot
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.origins import Origins
from refshard_fs.security.policy import LOCAL, make_locator, protocol_of

TOGETHER: Final = 8  # manifests in memory at a time, for operations on whole arrays
AHEAD: Final = 16  # if more arrays are coordinates, their manifests are not read on opening
_PROTOCOLS: Final = {"gcs": "gs", "azure": "az"}  # Icechunk's name → fsspec's name
_QUOTING: Final = ("gs", "gcs", "az", "abfs", *LOCAL)  # protocols for which Icechunk quotes names of objects
# Icechunk's ETag of a local file: inode, time of modification in microseconds, and size, in hexadecimal digits.
_LOCAL_ETAG: Final = re.compile(r"[0-9a-f]{1,16}-([0-9a-f]{1,14})-([0-9a-f]{1,14})")


class IcechunkKeySpace(PartedKeySpace):
    """The keys of a snapshot in the repository at the URL ``root``.

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
        self._locate = make_locator(root)
        self._containers = containers
        self._absolute = lru_cache(4096)(self._resolve_location)
        self._members: dict[str, bytes] = {}
        self.arrays: dict[str, _Array] = {}
        self.reports = reports = dict[str, str]()  # reasons why arrays are left out
        for node in snapshot.nodes:
            try:
                key = check_key(join(node.path, "zarr.json"))
                meta = zarrmeta.array_meta(zarrmeta.object_in(node.document, key), key)
                if meta is not None and meta.grid is not None:
                    self.arrays[node.path] = self._make_array(node, meta, meta.grid, options)
                elif node.manifests:
                    raise ManifestError(
                        f"{key} has a chunk grid or chunk keys that are not supported: expected a regular or inline "
                        "rectilinear grid, and chunk keys 'default' or 'v2'"
                    )
            except ValueError as e:  # other arrays can be read
                reports[node.path] = str(e)
            else:
                self._members[key] = node.document
        self._documents = FlatKeySpace(ReferenceSet(Texts.of(()), {}, dict(self._members)), self.resolve, root)
        self.grids = {path: array.grid for path, array in self.arrays.items()}

    def _make_array(self, node: Node, meta: zarrmeta.ArrayMeta, grid: ChunkGrid, options: OpenOptions) -> _Array:
        """Return an array with the needs for its manifests; ManifestError if they do not fit its grid."""
        most, quota = options.max_manifest_bytes, Quota(self.root_url or "", options.cache_size)
        if any(len(ref.box) != 8 * len(grid.counts) for ref in node.manifests):
            found = sorted({len(ref.box) // 8 for ref in node.manifests})
            raise ManifestError(f"its manifests have chunks of {found} dimensions: expected {len(grid.counts)}")
        bounds = np.frombuffer(b"".join(ref.box for ref in node.manifests), "<u4")
        loads = []
        for ref in node.manifests:
            check_size(ref.size, most, f"the manifest {ref.name}")
            span = Span(self._locate(f"manifests/{ref.name}"), 0, ref.size)
            loads.append(Load(span, ManifestIndex(ref, node.identifier, grid.counts, most, quota)))
        return _Array(meta, grid, loads, ChunkBoxes(grid.counts, bounds.reshape(len(loads), len(grid.counts), 2)))

    def _resolve_location(self, location: str) -> str:
        """Resolve a location in a manifest to a URL. Raise ManifestError if the URL could not be read."""
        scheme, mark, rest = location.partition("://")
        if not mark:
            return self._locate(location)
        if scheme == "vcc":
            name, _, path = rest.partition("/")
            if name not in self._containers:
                where, known = f"{location}: the configuration of {self.root_url}", list(self._containers)
                raise ManifestError(f"{where} has no virtual chunk container {name!r}: expected one of {known}")
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
                    raise ManifestError(f"{self.root_url}: {path!r} is left out: {self.reports[path]}")
            return None
        numbers = np.array([at.number], np.uint64)
        manifest = int(self.arrays[at.array].boxes.find(numbers)[0])
        return (yield from self._find_entries(at.array, manifest, numbers))[0]

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        others, chunks = self.group_by_array(keys)
        lookups = [self.make_single_lookup(place, keys[place]) for place in others]
        for path, pairs in chunks.items():
            places, numbers = np.array(pairs, np.uint64).T
            manifests = self.arrays[path].boxes.find(numbers)
            for manifest in np.unique(manifests).tolist():
                is_in = manifests == manifest
                lookups.append(LookUp(places[is_in].tolist(), self._find_entries(path, manifest, numbers[is_in])))
        return lookups

    def _find_entries(self, path: str, manifest: int, numbers: UInt64s) -> Steps[list[Entry | None]]:
        """Return the entries of chunks in the array's manifest with index ``manifest``; all are None if it is -1."""
        entries: list[Entry | None] = [None] * len(numbers)
        if manifest < 0:
            return entries
        array = self.arrays[path]
        refs: Refs = yield array.loads[manifest]
        chunks = refs.chunks
        for place, row in zip(*(column.tolist() for column in refs.find_rows(numbers)), strict=True):
            target, start, length = (int(column[row]) for column in chunks.ranges)
            if target == NO_TARGET:
                entries[place] = Inline(chunks.inline[row])
                continue
            if length > LONG:
                check_length(join(path, array.grid.tail(int(numbers[place]))), length, array.meta)
            url = self._absolute(chunks.urls[target] or "")
            pin = _convert_pin(url, chunks.pins[target]) if chunks.pins else None
            entries[place] = Span(url, start, start + length, pin=pin, origin=self._origins.of(url))
        return entries

    def parts(self, array: str, start: int, stop: int) -> Steps[list[Part]]:
        parts = []
        for loads in iterate_batches(self._find_loads(array, start, stop), TOGETHER):
            manifests: Sequence[Refs] = yield tuple(loads)
            parts += [Part(refs.numbers, refs.chunks.make_part(0).ranges) for refs in manifests]
        return parts

    def has_chunk(self, array: str, start: int, stop: int) -> Steps[bool]:
        yield from ()
        return bool(self._find_loads(array, start, stop))

    def _find_loads(self, array: str, start: int, stop: int) -> list[Load]:
        """Return the needs for the manifests that may have chunks from number ``start`` to ``stop``."""
        own = self.arrays[array]
        return [own.loads[box] for box in own.boxes.find_boxes(start, stop)]

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        """Return the URL of a virtual chunk in the first manifest of an array, for the first array with any there."""
        for load in (array.loads[0] for array in self.arrays.values() if array.loads):
            refs: Refs = yield load
            virtual = next((url for url in refs.chunks.urls if url is not None and "://" in url), None)
            if virtual is not None:
                return [self._absolute(virtual)]
        return ()

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        arrays = {
            path: ArrayChunks(array.grid, array.boxes.list_ranges(), pins_chunks=True)
            for path, array in self.arrays.items()
            if is_within(path, prefix)
        }
        return Contents((yield from self._documents.contents(prefix)).members, arrays)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if not isinstance(numbers, range):
            return (yield from super().chunks(array, numbers, grid))
        builder, column = ChunksBuilder(len(numbers)), make_column(numbers)
        for loads in iterate_batches(self._find_loads(array, numbers.start, numbers.stop), TOGETHER):
            manifests: Sequence[Refs] = yield tuple(loads)
            for refs in manifests:
                places, rows = refs.find_rows(column)
                chunks = refs.chunks
                builder.put(places, chunks.urls, chunks.ranges.take(rows), chunks.pins)
                pairs = zip(places.tolist(), rows.tolist(), strict=True) if chunks.inline else ()
                builder.inline |= {place: chunks.inline[row] for place, row in pairs if row in chunks.inline}
        found = builder.finish()
        urls = [self._absolute(url or "") for url in found.urls]
        pins = [_convert_pin(url, pin) for url, pin in zip(urls, found.pins, strict=True)] if found.pins else ()
        origins = [self._origins.of(url) for url in urls] if self._origins else ()
        return msgspec.structs.replace(found, urls=urls, pins=pins, origins=origins)


class _Array(NamedTuple):
    """An array: its metadata, the needs for its manifests, and the box of chunks that each manifest may have."""

    meta: zarrmeta.ArrayMeta
    grid: ChunkGrid
    loads: Sequence[Load]
    boxes: ChunkBoxes


def _convert_pin(url: str, pin: Pin | None) -> Pin | None:
    """Return the pin of the target at ``url``. Icechunk's ETag of a local file becomes time and size of the file."""
    etag = pin.etag if pin is not None and protocol_of(url) in LOCAL else None
    local = _LOCAL_ETAG.fullmatch((etag or "").strip('"'))
    return Pin(last_modified=str(int(local[1], 16) / 1e6), size=int(local[2], 16), exact=True) if local else pin


# Choosing the snapshot.


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open the snapshot that the options choose; the default is the last one of the branch ``main``."""
    locate, most, version = make_locator(probe.url), options.max_manifest_bytes, options.version
    [repo] = yield from read_documents([locate(REPO)], most)
    containers: Mapping[str, str] = {}
    if repo is not None:
        try:
            repository = Repository.decode(repo.data, most)
        except ValueError as e:
            raise ManifestError(f"{locate(REPO)}: {e}") from e
        containers = repository.containers
        name = _choose_snapshot(repository, version, probe.url)
    else:
        name = version.snapshot or (yield from _read_reference(locate, version, most))
        if not is_key(name) or "/" in name:
            raise ManifestError(f"{probe.url}: {name!r} cannot name a snapshot: expected the name of an object")

    def load(name: str) -> Load:
        return Load(Span(locate(f"snapshots/{name}")), ParsedIndex(decode_snapshot, (name, most)))

    snapshot: Snapshot = yield load(name)
    while repo is None and version.is_before(snapshot.time):
        if snapshot.parent is None:
            raise SourceNotReachable(f"{probe.url}: {version} is before its first snapshot: expected a later time")
        child, snapshot = snapshot, (yield load(snapshot.parent))
        if snapshot.time >= child.time:  # without this check, a loop in a damaged repository would never end
            raise ManifestError(
                f"{probe.url} is damaged: expected the snapshot {child.parent} to be older than its child {child.name}"
            )
    keyspace = IcechunkKeySpace(probe.url, snapshot, containers, options)
    coordinates = [  # arrays with their own name as dimension, which xarray reads on opening
        array.loads[0]
        for path, array in keyspace.arrays.items()
        if len(array.loads) == 1 and array.meta.raw.get("dimension_names") == [parent(path)[1]]
    ]
    if 0 < len(coordinates) <= AHEAD:
        with contextlib.suppress(OSError, RefShardError):  # a read of the coordinate raises the error again
            yield tuple(coordinates)
    return keyspace


def _choose_snapshot(repository: Repository, version: Version, url: str) -> str:
    """Return the name of the snapshot that ``version`` chooses."""
    if version.snapshot is not None:
        if version.snapshot not in repository.snapshots:
            raise SourceNotReachable(f"{url} has no snapshot {version.snapshot!r}: has it expired?")
        return version.snapshot
    kind, name = version.branch_or_tag
    references = repository.tags if kind == "tag" else repository.branches
    if name not in references:
        raise SourceNotReachable(f"{url} has no {kind} {name!r}: expected one of {sorted(references)}")
    for index in repository.list_ancestry(references[name]):
        if not version.is_before(repository.times[index]):
            return repository.snapshots[index]
    raise SourceNotReachable(f"{url}: {version} is before its first snapshot: expected a later time")


def _read_reference(locate: Callable[[str], str], version: Version, most: int) -> Steps[str]:
    """Return the name of the snapshot of a branch or a tag in a repository of version 1.

    ``locate`` returns the URL of an object of the repository.
    """
    kind, name = version.branch_or_tag
    is_quoted = protocol_of(locate("")) in (None, *_QUOTING)
    quoted = quote(name, safe=" !$&'()+,:;=@").replace("~", "%7E") if is_quoted else name
    where = f"refs/{kind}.{quoted}/ref.json"
    [document] = yield from read_documents([locate(where)], most)
    deleted = (yield Stat(locate(where + ".deleted"), fresh=True)) if kind == "tag" else None
    if document is None and version == Version():
        raise SourceNotReachable(f"there is no Icechunk repository at {locate('')}: neither {REPO} nor {where} exists")
    if document is None:
        raise SourceNotReachable(f"{locate('')} has no {kind} {name!r}: {where} does not exist")
    if deleted is not None:
        raise SourceNotReachable(f"{locate('')} has no {kind} {name!r}: it was deleted ({where}.deleted exists)")
    match zarrmeta.object_in(document.data, locate(where)):
        case {"snapshot": str(snapshot)}:
            return snapshot
    raise ManifestError(f"{locate(where)}: expected a JSON object with the member 'snapshot', a text")

"""Decode the objects of a repository: repository info, snapshots and manifests. No I/O here.

Each object is a header of 39 bytes and a FlatBuffer, compressed with zstd. Fields are numbered in the order of the
schemas in the specification (versions 1 to 2.1). Raises ValueError for a damaged object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, Part, Ranges, UInt64s
from refshard_fs.core.compression import Inflate, decompress, zstd
from refshard_fs.core.format import check_size
from refshard_fs.core.model import Pin, Quota
from refshard_fs.errors import ManifestError
from refshard_fs.formats.icechunk.flatbuffers import Buffer, Flex, Int64s, Table, Tables, gather
from refshard_fs.security.origins import MEMBER

MAGIC: Final = "ICE🧊CHUNK".encode()
SNAPSHOT, MANIFEST, REPOSITORY = 1, 2, 6  # types of objects
ORIGINS: Final = f"refshard:{MEMBER}"  # among the metadata of a snapshot
_HEADER: Final = 39
_VERSIONS: Final = (1, 2)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # first bytes of a zstd frame
_MEMO: Final = 4096  # locations of a manifest in the cache
_LEAST_WORDS: Final = 8  # smallest size of a dictionary in bytes
_NATIVE: Final = re.compile("chunks/[0-9A-Z]{20}")
_LOCATION: Final = 4096  # most bytes of a decompressed URL
_ALPHABET: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)  # Crockford's Base32
_END: Final = 1 << 63  # offset plus length is less


def extract_buffer(data: bytes, kind: int, most: int) -> Buffer:
    """Return the FlatBuffer in an object of type ``kind``; it may have ``most`` bytes after decompression."""
    if not data.startswith(MAGIC):
        raise ValueError(f"it begins with {data[:12]!r}: expected {MAGIC!r}, as every object of Icechunk does")
    if len(data) < _HEADER:
        raise ValueError("it is cut short: it ends within its header")
    version, found, compression = data[36:_HEADER]
    if version not in _VERSIONS:
        raise ValueError(f"it is of version {version} of the specification: expected one of {_VERSIONS}")
    if found != kind:
        raise ValueError(f"it is an object of type {found}: expected {kind}")
    body = memoryview(data)[_HEADER:]
    if compression == 0:
        return Buffer(bytes(body))
    parts: list[bytes | memoryview] = []
    size = 0
    for part in Inflate(bytes(body[:6])).feed(body, is_last=True):
        size += len(part)
        check_size(size, most, "it")
        parts.append(part)
    return Buffer(b"".join(parts))


def format_ids(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """Return how 12-byte ids, a row each, are spelled in names: 20 characters."""
    bits = np.pad(np.unpackbits(ids, axis=1), ((0, 0), (0, 4)))
    digits = bits.reshape(len(ids), 20, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    return _ALPHABET[digits].view("S20").ravel()


def format_id(identifier: bytes) -> str:
    """Return how one id is spelled."""
    if len(identifier) != 12:
        raise ValueError("it is damaged: it lacks an id")
    text: str = format_ids(np.frombuffer(identifier, np.uint8)[None])[0].decode()
    return text


# Snapshots, branches and tags.


class SavedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot: its name, its parent (a position in the list of snapshots; None for the first), and its time."""

    name: str
    parent: int | None
    time: int  # microseconds since 1970


class Repository(msgspec.Struct, frozen=True):
    """The object ``repo``. ``containers`` are the URLs of virtual chunk containers by name."""

    snapshots: Sequence[SavedSnapshot]
    branches: Mapping[str, int]  # positions in ``snapshots``
    tags: Mapping[str, int]
    containers: Mapping[str, str]

    @classmethod
    def decode(cls, data: bytes, most: int) -> Repository:
        """Decode the object ``repo``, which may have ``most`` bytes after decompression."""
        root = extract_buffer(data, REPOSITORY, most).root
        snapshots = []
        for table in root.tables(4):
            parent = table.number(1, 4, signed=True)
            snapshots.append(
                SavedSnapshot(format_id(table.struct(0, 12)), parent if parent >= 0 else None, table.number(2, 8))
            )
        branches, tags = ({ref.text(0): ref.number(1, 4) for ref in root.tables(field)} for field in (2, 1))
        places = [*branches.values(), *tags.values(), *(s.parent for s in snapshots if s.parent is not None)]
        if max(places, default=0) >= max(len(snapshots), 1):
            raise ValueError("it is damaged: it refers to a snapshot that it does not list")
        return cls(snapshots, branches, tags, _parse_containers(root.bytes(9)))

    def ancestry(self, place: int) -> Iterator[SavedSnapshot]:
        """Yield the snapshot at ``place``, its parent, and all further ancestors."""
        at: int | None = place
        for _ in self.snapshots:
            if at is None:
                return
            yield self.snapshots[at]
            at = self.snapshots[at].parent


def _parse_containers(config: bytes) -> dict[str, str]:
    """Return the URL of each virtual chunk container that has a name."""
    if not config:
        return {}
    found = {}
    containers = Flex.of(config).members().get("virtual_chunk_containers")
    for container in containers.members().values() if containers is not None else ():
        members = container.members()
        name, prefix = (members[key].text if key in members else None for key in ("name", "url_prefix"))
        if name and prefix:
            found[name] = prefix if prefix.endswith("/") else prefix + "/"
    return found


# The content of a snapshot.


class ManifestRef(msgspec.Struct, frozen=True):
    """A manifest, and the box of chunks of an array in it: from ``first`` (inclusive) to ``last`` (exclusive).

    ``size`` is the size of the manifest in bytes; None if the snapshot does not have it.
    """

    name: str
    size: int | None
    first: tuple[int, ...]
    last: tuple[int, ...]


class Node(msgspec.Struct, frozen=True):
    """An array or a group: path, id, ``zarr.json``, and the manifests of an array."""

    path: str
    identifier: bytes
    document: bytes
    manifests: tuple[ManifestRef, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """The content of a snapshot. ``parent`` is the name of the previous snapshot (only in version 1).


    ``origins`` is the JSON record of the servers whose sets named targets, which this package adds to its commits.
    """

    name: str
    nodes: Sequence[Node]
    time: int
    parent: str | None
    origins: str | None


class SnapshotIndex(msgspec.Struct, frozen=True):
    """Decodes the snapshot ``name``."""

    name: str
    most: int  # bytes after decompression

    def decode(self, data: bytes) -> Snapshot:
        root = extract_buffer(data, SNAPSHOT, self.most).root
        if (name := format_id(root.struct(0, 12))) != self.name:
            raise ValueError(f"it is the snapshot {name}: expected {self.name}")
        parent = root.struct(1, 12)
        sizes = {table.struct(0, 12): table.number(1, 8) for table in root.tables(7)}
        sizes |= {data[:12]: int.from_bytes(data[16:24], "little") for data in root.structs(6, 32)}  # version 1
        nodes = [_convert_node(table, sizes) for table in root.tables(2)]
        origins = next((Flex.of(item.bytes(1)).text or "" for item in root.tables(5) if item.text(0) == ORIGINS), None)
        return Snapshot(name, nodes, root.number(3, 8), format_id(parent) if parent else None, origins)


def _convert_node(table: Table, sizes: Mapping[bytes, int]) -> Node:
    array = table.table(4) if table.number(3, 1) == 1 else None
    manifests = () if array is None else tuple(_convert_manifest(ref, sizes) for ref in array.tables(2))
    return Node(table.text(1).strip("/"), table.struct(0, 8), table.bytes(2), manifests)


def _convert_manifest(table: Table, sizes: Mapping[bytes, int]) -> ManifestRef:
    identifier = table.struct(0, 12)
    bounds = np.array([np.frombuffer(pair, "<u4") for pair in table.structs(1, 8)], np.int64).reshape(-1, 2)
    first, last = (tuple(side.tolist()) for side in bounds.T)
    return ManifestRef(format_id(identifier), sizes.get(identifier) or None, first, last)


# The locations of chunks.


class Refs(msgspec.Struct, frozen=True, eq=False):
    """The chunks of an array in a manifest: their numbers, ascending, and their locations in the same order.

    URLs are as written in the manifest; ``chunks/NAME`` is an object of the repository.
    """

    numbers: UInt64s
    chunks: Chunks

    @property
    def nbytes(self) -> int:
        """Approximate size in memory, in bytes."""
        urls = self.chunks.urls
        known = urls.nbytes if isinstance(urls, Locations) else 0
        inline = sum(len(data) + 130 for data in self.chunks.inline.values())
        return self.numbers.nbytes + self.chunks.ranges.nbytes + known + inline

    def sizes(self) -> Part:
        """Return the numbers and the sizes of the chunks."""
        return Part(self.numbers, self.chunks.part(0).ranges)


class ManifestIndex(msgspec.Struct, frozen=True):
    """Decodes the references in the manifest ``ref`` to an array with an id and this grid of chunks (``counts``)."""

    ref: ManifestRef
    identifier: bytes
    counts: tuple[int, ...]
    most: int  # bytes after decompression
    quota: Quota

    def decode(self, data: bytes) -> Refs:
        buffer = extract_buffer(data, MANIFEST, self.most)
        root = buffer.root
        if (name := format_id(root.struct(0, 12))) != self.ref.name:
            raise ValueError(f"it is the manifest {name}: expected {self.ref.name}")
        places = next((a.elements(1, 4) for a in root.tables(1) if a.struct(0, 8) == self.identifier), None)
        if places is None:
            raise ValueError("it has no chunks of the array, although the snapshot says so")
        slots = np.arange(places.start, places.stop, 4, dtype=np.int64)
        tables = Tables(buffer.data, slots + gather(buffer.data, slots, "<u4"))
        numbers, there = self._number_chunks(tables)
        return _convert_refs(numbers[there].view(np.uint64), tables.take(there), root)

    def _number_chunks(self, tables: Tables) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the number of each chunk, and a mask of those that lie in the grid and in the manifest's box."""
        rows, starts, ndims = tables.vectors(0, 4)
        ndim = len(self.counts)
        if len(rows) != len(tables.at) or (ndims != ndim).any() or len(self.ref.first) != ndim:
            raise ValueError(f"it is damaged: a chunk does not have an index with {ndim} dimensions")
        coords = gather(tables.data, starts[:, None] + 4 * np.arange(ndim), "<u4")
        first = np.array(self.ref.first, np.int64)
        last = np.minimum(np.array(self.ref.last, np.int64), self.counts)
        there: npt.NDArray[np.bool_] = np.asarray(((coords >= first) & (coords < last)).all(axis=1))
        numbers = np.zeros(len(coords), np.int64)
        for column, count in zip(coords.T, self.counts, strict=True):
            numbers = numbers * count + column
        if (np.diff(numbers[there]) <= 0).any():
            raise ValueError("it is damaged: its chunks are not sorted by index")
        return numbers, there


def _convert_refs(numbers: UInt64s, tables: Tables, root: Table) -> Refs:
    """Convert the references in ``tables``: native, virtual and inline chunks."""
    count = len(numbers)
    offsets, lengths = tables.numbers(2, "<u8"), tables.numbers(3, "<u8")
    if count and (offsets.view(np.uint64) + lengths.view(np.uint64)).max() >= _END:
        raise ValueError("it is damaged: a range ends beyond the largest offset")
    urls: list[bytes | None] = [None] * count
    for field in (5, 8):  # a plain location, then a compressed one, which counts if both exist
        for row, text in zip(*tables.pieces(field), strict=True):
            urls[row] = text
    for row, path in _iter_native(tables):
        urls[row] = path
    inline = {row: data for row, data in zip(*tables.pieces(1), strict=True) if urls[row] is None}
    if urls.count(None) > len(inline):
        raise ValueError("it is damaged: a chunk is neither inline nor native nor virtual")
    codes: dict[tuple[bytes, Pin | None], int] = {}
    places = [
        NO_TARGET if url is None else codes.setdefault((url, pin), len(codes))
        for url, pin in zip(urls, _collect_pins(tables), strict=True)
    ]
    ranges = Ranges(np.array(places, np.uint32), offsets.view(np.uint64), lengths.view(np.uint64))
    pins = [pin for _, pin in codes]
    locations = Locations([url for url, _ in codes], root.bytes(2))
    return Refs(numbers, Chunks(locations, ranges, inline, pins=pins if any(pins) else ()))


class Locations(Sequence[str]):
    """Locations of chunks: URLs, or ``chunks/NAME`` in the repository.

    A manifest may compress locations with its dictionary ``words``. There is often one location for each chunk, so each
    is decompressed when it is used. Raises ManifestError for a damaged location.
    """

    def __init__(self, spelled: Sequence[bytes], words: bytes) -> None:
        sizes = np.fromiter(map(len, spelled), np.int64, len(spelled))
        self._data = b"".join(spelled)
        self._ends = sizes.cumsum()
        self._memo: dict[int, str] = {}
        self._words = zstd().ZstdDict(words) if len(words) > _LEAST_WORDS else None

    @property
    def nbytes(self) -> int:
        """Approximate size in memory, in bytes."""
        return len(self._data) + self._ends.nbytes

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        location = self._memo.get(index)
        if location is None:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            location = self._memo[index] = self._decode_location(index)
        return location

    def _decode_location(self, index: int) -> str:
        text = self._data[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]
        try:
            if text.startswith(_ZSTD):
                text = decompress(zstd().ZstdDecompressor(zstd_dict=self._words), text, _LOCATION)
            location = text.decode()
        except (ValueError, zstd().ZstdError) as e:
            raise ManifestError(f"the location {text[:100]!r} of a chunk is damaged: {e}") from e
        if "://" not in location and not _NATIVE.fullmatch(location):
            raise ManifestError(f"the location {location[:100]!r} of a chunk is not a URL")
        return location


def _iter_native(tables: Tables) -> Iterator[tuple[int, bytes]]:
    """Yield (row, path) of chunks in objects of the repository."""
    rows, places = tables.places(4)
    if len(rows):
        ids = gather(tables.data, places[:, None] + np.arange(12), "u1").astype(np.uint8)
        yield from zip(rows.tolist(), (b"chunks/" + name for name in format_ids(ids).tolist()), strict=True)


def _collect_pins(tables: Tables) -> Sequence[Pin | None]:
    """Return the pin of each reference: the version of its target."""
    pins: list[Pin | None] = [None] * len(tables.at)
    times = tables.numbers(7, "<u4")
    by_time = {time: Pin(last_modified=str(time)) for time in np.unique(times[times > 0]).tolist()}
    for row in np.flatnonzero(times).tolist():
        pins[row] = by_time[int(times[row])]
    rows, texts = tables.pieces(6)
    by_etag = {text: Pin(etag=text.decode()) for text in dict.fromkeys(texts)}
    for row, text in zip(rows, texts, strict=True):
        pins[row] = by_etag[text]
    return pins

"""The objects of a repository, decoded: repository info, snapshots and manifests. No I/O here.

Each is a header of 39 bytes and a FlatBuffer, compressed with zstd. Fields are numbered as the schemas of the
specification (versions 1 to 2.1) declare them. ValueError where an object is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import ABSENT, Part, Ranges, UInt64s
from refshard_fs.core.compression import Inflate, decompressed, zstd
from refshard_fs.core.format import check_size
from refshard_fs.core.model import Pin, Quota
from refshard_fs.errors import ManifestError
from refshard_fs.formats.icechunk.flatbuffers import Buffer, Flex, Int64s, Table, Tables, gather

MAGIC: Final = "ICE🧊CHUNK".encode()
SNAPSHOT, MANIFEST, REPOSITORY = 1, 2, 6  # types of objects
_HEADER: Final = 39
_VERSIONS: Final = (1, 2)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # begins what is compressed
_MEMO: Final = 4096  # locations of a manifest that are remembered
_LEAST_WORDS: Final = 8  # bytes of a dictionary
_NATIVE: Final = re.compile("chunks/[0-9A-Z]{20}")
_LOCATION: Final = 4096  # bytes of a URL, decompressed
_ALPHABET: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)  # Crockford's Base32
_END: Final = 1 << 63  # offsets and lengths, and their sums, are less


def payload(data: bytes, kind: int, most: int) -> Buffer:
    """Return the FlatBuffer in an object of type ``kind``, of at most ``most`` bytes."""
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


def id_text(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """Return how 12-byte ids, a row each, are spelled in names: 20 characters."""
    bits = np.pad(np.unpackbits(ids, axis=1), ((0, 0), (0, 4)))
    digits = bits.reshape(len(ids), 20, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    return _ALPHABET[digits].view("S20").ravel()


def name_of(identifier: bytes) -> str:
    """Return how one id is spelled."""
    if len(identifier) != 12:
        raise ValueError("it is damaged: it lacks an id")
    text: str = id_text(np.frombuffer(identifier, np.uint8)[None])[0].decode()
    return text


# ----------------------------------------------------------------------------------------------------
# Which snapshots there are.


class Saved(msgspec.Struct, frozen=True):
    """A snapshot: its name, its parent (a place among all snapshots, None for the first), and when it was written."""

    name: str
    parent: int | None
    time: int  # microseconds since 1970


class Repository(msgspec.Struct, frozen=True):
    """What the object ``repo`` says. ``containers`` are the URLs that the names in virtual references stand for."""

    snapshots: Sequence[Saved]
    branches: Mapping[str, int]  # places in ``snapshots``
    tags: Mapping[str, int]
    containers: Mapping[str, str]

    @classmethod
    def decode(cls, data: bytes, most: int) -> Repository:
        """Return what ``data``, the object ``repo``, say."""
        root = payload(data, REPOSITORY, most).root
        snapshots = []
        for table in root.tables(4):
            parent = table.number(1, 4, signed=True)
            snapshots.append(Saved(name_of(table.struct(0, 12)), parent if parent >= 0 else None, table.number(2, 8)))
        branches, tags = ({ref.text(0): ref.number(1, 4) for ref in root.tables(field)} for field in (2, 1))
        places = [*branches.values(), *tags.values(), *(s.parent for s in snapshots if s.parent is not None)]
        if max(places, default=0) >= max(len(snapshots), 1):
            raise ValueError("it is damaged: it names a snapshot that it does not list")
        return cls(snapshots, branches, tags, _containers(root.bytes(9)))

    def ancestry(self, place: int) -> Iterator[Saved]:
        """Yield the snapshot at ``place``, its parent, and so on."""
        at: int | None = place
        for _ in self.snapshots:
            if at is None:
                return
            yield self.snapshots[at]
            at = self.snapshots[at].parent


def _containers(config: bytes) -> dict[str, str]:
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


# ----------------------------------------------------------------------------------------------------
# What is in a snapshot.


class ManifestRef(msgspec.Struct, frozen=True):
    """A manifest, and the box of chunks of an array that it has: from ``first``, inclusive, to ``last``, exclusive.

    ``size`` is that of the object in bytes, if the snapshot says it.
    """

    name: str
    size: int | None
    first: tuple[int, ...]
    last: tuple[int, ...]


class Node(msgspec.Struct, frozen=True):
    """An array or a group: its path, its id, its ``zarr.json``, and the manifests of an array."""

    path: str
    identifier: bytes
    document: bytes
    manifests: tuple[ManifestRef, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """What a snapshot holds. ``parent`` is the name of the one before, as version 1 has it."""

    nodes: Sequence[Node]
    time: int
    parent: str | None


class SnapshotIndex(msgspec.Struct, frozen=True):
    """Decodes the snapshot of a name."""

    name: str
    most: int  # bytes

    def decode(self, data: bytes) -> Snapshot:
        root = payload(data, SNAPSHOT, self.most).root
        if (name := name_of(root.struct(0, 12))) != self.name:
            raise ValueError(f"it is the snapshot {name}: expected {self.name}")
        parent = root.struct(1, 12)
        sizes = {table.struct(0, 12): table.number(1, 8) for table in root.tables(7)}
        sizes |= {data[:12]: int.from_bytes(data[16:24], "little") for data in root.structs(6, 32)}  # version 1
        nodes = [_node(table, sizes) for table in root.tables(2)]
        return Snapshot(nodes, root.number(3, 8), name_of(parent) if parent else None)


def _node(table: Table, sizes: Mapping[bytes, int]) -> Node:
    array = table.table(4) if table.number(3, 1) == 1 else None
    manifests = () if array is None else tuple(_manifest_ref(ref, sizes) for ref in array.tables(2))
    return Node(table.text(1).strip("/"), table.struct(0, 8), table.bytes(2), manifests)


def _manifest_ref(table: Table, sizes: Mapping[bytes, int]) -> ManifestRef:
    identifier = table.struct(0, 12)
    bounds = np.array([np.frombuffer(pair, "<u4") for pair in table.structs(1, 8)], np.int64).reshape(-1, 2)
    first, last = (tuple(side.tolist()) for side in bounds.T)
    return ManifestRef(name_of(identifier), sizes.get(identifier) or None, first, last)


# ----------------------------------------------------------------------------------------------------
# Where the chunks of an array lie.


class Refs(msgspec.Struct, frozen=True, eq=False):
    """What a manifest says of an array: the numbers of its chunks, ascending, and where they lie, in the same order.

    URLs are as the manifest spells them; a chunk of the repository is ``chunks/NAME``.
    """

    numbers: UInt64s
    chunks: Chunks

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take, roughly."""
        urls = self.chunks.urls
        known = urls.nbytes if isinstance(urls, Locations) else 0
        inline = sum(len(data) + 130 for data in self.chunks.inline.values())
        return self.numbers.nbytes + self.chunks.ranges.nbytes + known + inline

    def sizes(self) -> Part:
        """Return the numbers of the chunks, and the size of each."""
        return Part(self.numbers, self.chunks.part(0).ranges)


class ManifestIndex(msgspec.Struct, frozen=True):
    """Decodes what the manifest ``ref`` says of an array: that with an id, and so many chunks along each dimension."""

    ref: ManifestRef
    identifier: bytes
    counts: tuple[int, ...]
    most: int  # bytes
    quota: Quota

    def decode(self, data: bytes) -> Refs:
        buffer = payload(data, MANIFEST, self.most)
        root = buffer.root
        if (name := name_of(root.struct(0, 12))) != self.ref.name:
            raise ValueError(f"it is the manifest {name}: expected {self.ref.name}")
        places = next((a.elements(1, 4) for a in root.tables(1) if a.struct(0, 8) == self.identifier), None)
        if places is None:
            raise ValueError("it has no chunks of the array that its snapshot says it has chunks of")
        slots = np.arange(places.start, places.stop, 4, dtype=np.int64)
        tables = Tables(buffer.data, slots + gather(buffer.data, slots, "<u4"))
        numbers, there = self._numbers(tables)
        return _refs(numbers[there].view(np.uint64), tables.take(there), root)

    def _numbers(self, tables: Tables) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the number of each chunk, and whether it lies in the grid, and where the snapshot says."""
        rows, starts, ndims = tables.vectors(0, 4)
        ndim = len(self.counts)
        if len(rows) != len(tables.at) or (ndims != ndim).any() or len(self.ref.first) != ndim:
            raise ValueError(f"it is damaged: a chunk has no index in {ndim} dimensions")
        coords = gather(tables.data, starts[:, None] + 4 * np.arange(ndim), "<u4")
        first = np.array(self.ref.first, np.int64)
        last = np.minimum(np.array(self.ref.last, np.int64), self.counts)
        there: npt.NDArray[np.bool_] = np.asarray(((coords >= first) & (coords < last)).all(axis=1))
        numbers = np.zeros(len(coords), np.int64)
        for column, count in zip(coords.T, self.counts, strict=True):
            numbers = numbers * count + column
        if (np.diff(numbers[there]) <= 0).any():
            raise ValueError("it is damaged: its chunks are not in the order of their indexes")
        return numbers, there


def _refs(numbers: UInt64s, tables: Tables, root: Table) -> Refs:
    """Return the references in ``tables``: native, virtual and inline ones."""
    count = len(numbers)
    offsets, lengths = tables.numbers(2, "<u8"), tables.numbers(3, "<u8")
    if count and (offsets.view(np.uint64) + lengths.view(np.uint64)).max() >= _END:
        raise ValueError("it is damaged: a range ends behind the largest offset")
    urls: list[bytes | None] = [None] * count
    for field in (5, 8):  # as it is, and compressed, which goes before
        for row, text in zip(*tables.pieces(field), strict=True):
            urls[row] = text
    for row, path in _native(tables):
        urls[row] = path
    inline = {row: data for row, data in zip(*tables.pieces(1), strict=True) if urls[row] is None}
    if urls.count(None) > len(inline):
        raise ValueError("it is damaged: a chunk is neither inline nor native nor virtual")
    codes: dict[tuple[bytes, Pin | None], int] = {}
    places = [
        ABSENT if url is None else codes.setdefault((url, pin), len(codes))
        for url, pin in zip(urls, _pins(tables), strict=True)
    ]
    ranges = Ranges(np.array(places, np.uint32), offsets.view(np.uint64), lengths.view(np.uint64))
    pins = [pin for _, pin in codes]
    locations = Locations([url for url, _ in codes], root.bytes(2))
    return Refs(numbers, Chunks(locations, ranges, inline, pins=pins if any(pins) else ()))


class Locations(Sequence[str]):
    """Where chunks lie: URLs, or ``chunks/NAME`` in the repository.

    Those that a manifest has compressed with its ``words``, which are often one for each chunk, stay so until they
    are asked for. ManifestError where one is damaged.
    """

    def __init__(self, spelled: Sequence[bytes], words: bytes) -> None:
        sizes = np.fromiter(map(len, spelled), np.int64, len(spelled))
        self._data = b"".join(spelled)
        self._ends = sizes.cumsum()
        self._memo: dict[int, str] = {}
        self._words = zstd().ZstdDict(words) if len(words) > _LEAST_WORDS else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take, roughly."""
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
            location = self._memo[index] = self._read(index)
        return location

    def _read(self, index: int) -> str:
        text = self._data[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]
        try:
            if text.startswith(_ZSTD):
                text = decompressed(zstd().ZstdDecompressor(zstd_dict=self._words), text, _LOCATION)
            location = text.decode()
        except (ValueError, zstd().ZstdError) as e:
            raise ManifestError(f"the location {text[:100]!r} of a chunk is damaged: {e}") from e
        if "://" not in location and not _NATIVE.fullmatch(location):
            raise ManifestError(f"the location {location[:100]!r} of a chunk is no URL")
        return location


def _native(tables: Tables) -> Iterator[tuple[int, bytes]]:
    """Yield the rows and the paths of chunks in objects of the repository."""
    rows, places = tables.places(4)
    if len(rows):
        ids = gather(tables.data, places[:, None] + np.arange(12), "u1").astype(np.uint8)
        yield from zip(rows.tolist(), (b"chunks/" + name for name in id_text(ids).tolist()), strict=True)


def _pins(tables: Tables) -> Sequence[Pin | None]:
    """Return the version of its target that each reference is to."""
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

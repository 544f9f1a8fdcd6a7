"""Decode the objects of a repository: repository info, snapshots and manifests. No I/O here.

Each object is a header of 39 bytes and a FlatBuffer, compressed with zstd. Fields are numbered in the order of the
schemas in the specification (versions 1 to 2.1). Raises ValueError for a damaged object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunk_boxes import strides_of
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, Ranges, UInt64s
from refshard_fs.core.compression import Inflate, decompress, zstd
from refshard_fs.core.format import check_size
from refshard_fs.core.model import Pin, Quota
from refshard_fs.errors import ManifestError
from refshard_fs.formats.icechunk.flatbuffers import Int64s, Tables, gather, parse_flex
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


def extract_buffer(data: bytes, kind: int, most: int) -> bytes:
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
    body = data[_HEADER:]
    if compression == 0:
        return body
    out = bytearray()
    for part in Inflate(body).feed(body, is_last=True):
        check_size(len(out) + len(part), most, "it")
        out += part
    return bytes(out)


def format_ids(ids: npt.NDArray[np.uint8]) -> list[str]:
    """Return how 12-byte ids, a row each, are spelled in names: 20 characters."""
    bits = np.pad(np.unpackbits(ids, axis=1), ((0, 0), (0, 4)))
    digits = bits.reshape(len(ids), 20, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    return _ALPHABET[digits].view("S20").ravel().astype(str).tolist()


# Snapshots, branches and tags.


class Repository(msgspec.Struct, frozen=True):
    """The object ``repo``.

    ``snapshots`` are names, ``times`` are those of their commits in microseconds since 1970. ``parents``, ``branches``
    and ``tags`` are positions in these lists; the first snapshot has a negative parent. ``containers`` are the URLs of
    virtual chunk containers by name.
    """

    snapshots: Sequence[str]
    parents: Sequence[int]
    times: Sequence[int]
    branches: Mapping[str, int]
    tags: Mapping[str, int]
    containers: Mapping[str, str]

    @classmethod
    def decode(cls, data: bytes, most: int) -> Repository:
        """Decode the object ``repo``, which may have ``most`` bytes after decompression."""
        root = Tables.root(extract_buffer(data, REPOSITORY, most))
        saved, _ = root.tables(4)
        parents = saved.numbers(1, "<i4").tolist()
        refs = [root.tables(field)[0] for field in (2, 1)]
        branches, tags = (dict(zip(ref.texts(0), ref.numbers(1, "<u4").tolist(), strict=True)) for ref in refs)
        if max([*parents, *branches.values(), *tags.values()], default=-1) >= len(parents):
            raise ValueError("it is damaged: it refers to a snapshot that it does not list")
        times = saved.numbers(2, "<u8").tolist()
        containers = _parse_containers(*root.bytes(9))
        return cls(format_ids(saved.structs(0, 12)), parents, times, branches, tags, containers)

    def ancestry(self, place: int) -> Iterator[int]:
        """Yield the positions of a snapshot (``place``), of its parent, and of all further ancestors."""
        for _ in self.snapshots:
            if place >= 0:
                yield place
                place = self.parents[place]


def _parse_containers(config: bytes) -> dict[str, str]:
    """Return the URL of each virtual chunk container that has a name."""
    found: dict[str, str] = {}
    match parse_flex(config) if config else None:
        case {"virtual_chunk_containers": dict(containers)}:
            for container in containers.values():
                match container:
                    case {"name": str(name), "url_prefix": str(prefix)} if name and prefix:
                        found[name] = prefix if prefix.endswith("/") else prefix + "/"
    return found


# The content of a snapshot.


class ManifestRef(msgspec.Struct, frozen=True):
    """A manifest, and the box of chunks of an array in it.

    ``size`` is the size of the manifest in bytes; None if the snapshot does not have it. ``box`` has two numbers of 32
    bits for each dimension: the first index, and the one behind the last.
    """

    name: str
    size: int | None
    box: bytes


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
        root = Tables.root(extract_buffer(data, SNAPSHOT, self.most))
        _check_name("snapshot", root, self.name)
        parents = format_ids(root.take(root.places(1)[0]).structs(1, 12))
        items, _ = root.tables(5)
        metadata = dict(zip(items.texts(0), items.bytes(1), strict=True))
        origins = str(parse_flex(metadata[ORIGINS])) if ORIGINS in metadata else None
        time = int(root.numbers(3, "<u8")[0])
        return Snapshot(self.name, _decode_nodes(root), time, parents[0] if parents else None, origins)


def _check_name(kind: str, root: Tables, expected: str) -> None:
    """Raise ValueError for an object that has another id than the name says."""
    [name] = format_ids(root.structs(0, 12))
    if name != expected:
        raise ValueError(f"it is the {kind} {name}: expected {expected}")


def _decode_nodes(root: Tables) -> list[Node]:
    files, _ = root.tables(7)
    sizes = dict(zip(format_ids(files.structs(0, 12)), files.numbers(1, "<u8").tolist(), strict=True))
    old, _ = root.elements(6, 32)  # version 1 has structs: id, size, number of chunks
    names = format_ids(gather(root.data, old[:, None] + np.arange(12), "u1").astype(np.uint8))
    sizes |= dict(zip(names, gather(root.data, old + 16, "<u8").tolist(), strict=True))
    nodes, _ = root.tables(2)
    is_array = np.flatnonzero(nodes.numbers(3, "u1") == 1)
    arrays, rows = nodes.take(is_array).table(4)
    refs, owners = arrays.tables(2)
    manifests: dict[int, list[ManifestRef]] = {}
    columns = is_array[rows[owners]].tolist(), format_ids(refs.structs(0, 12)), refs.bytes(1, 8)
    for node, name, box in zip(*columns, strict=True):
        manifests.setdefault(node, []).append(ManifestRef(name, sizes.get(name) or None, box))
    found = zip(nodes.texts(1), map(bytes, nodes.structs(0, 8)), nodes.bytes(2), strict=True)
    return [Node(path.strip("/"), id_, data, tuple(manifests.get(i, ()))) for i, (path, id_, data) in enumerate(found)]


# The locations of chunks.


class Refs(msgspec.Struct, frozen=True, eq=False):
    """The chunks of an array in a manifest: their numbers, ascending, and their locations in the same order.

    URLs are as written in the manifest; ``chunks/NAME`` is an object of the repository. ``nbytes`` is the approximate
    size in memory.
    """

    numbers: UInt64s
    chunks: Chunks
    nbytes: int

    def find(self, numbers: UInt64s) -> tuple[Int64s, Int64s]:
        """Return which of ``numbers`` exist, and their rows."""
        rows = self.numbers.searchsorted(numbers)
        there = rows < len(self.numbers)
        there[there] = self.numbers[rows[there]] == numbers[there]
        return np.flatnonzero(there), rows[there]


class ManifestIndex(msgspec.Struct, frozen=True):
    """Decodes the references in the manifest ``ref`` to an array with an id and this grid of chunks (``counts``)."""

    ref: ManifestRef
    identifier: bytes
    counts: tuple[int, ...]
    most: int  # bytes after decompression
    quota: Quota

    def decode(self, data: bytes) -> Refs:
        root = Tables.root(extract_buffer(data, MANIFEST, self.most))
        _check_name("manifest", root, self.ref.name)
        arrays, _ = root.tables(1)
        own = [row for row, id_ in enumerate(arrays.structs(0, 8)) if bytes(id_) == self.identifier]
        if not own:
            raise ValueError("it has no chunks of the array, although the snapshot says so")
        tables, _ = arrays.take(own[:1]).tables(1)
        rows, starts, ndims = tables.vectors(0, 4)
        ndim = len(self.counts)
        if len(rows) != len(tables.at) or (ndims != ndim).any():
            raise ValueError(f"it is damaged: a chunk does not have an index with {ndim} dimensions")
        coords = gather(tables.data, starts[:, None] + 4 * np.arange(ndim), "<u4")
        first, last = np.frombuffer(self.ref.box, "<u4").reshape(ndim, 2).astype(np.int64).T
        there = np.flatnonzero(((coords >= first) & (coords < np.minimum(last, self.counts))).all(axis=1))
        numbers = (coords @ strides_of(self.counts))[there]
        if (np.diff(numbers) <= 0).any():
            raise ValueError("it is damaged: its chunks are not sorted by index")
        return _convert_refs(numbers.view(np.uint64), tables.take(there), *root.bytes(2))


def _convert_refs(numbers: UInt64s, tables: Tables, words: bytes) -> Refs:
    """Convert the references in ``tables``: native, virtual and inline chunks; ``words`` is their dictionary."""
    offsets, lengths = (tables.numbers(field, "<u8") for field in (2, 3))
    if (offsets + lengths < 0).any():  # the sum has more than 63 bits
        raise ValueError("it is damaged: a range ends beyond the largest offset")
    urls = tables.bytes(5)
    for row, text in zip(*tables.pieces(8), strict=True):  # a compressed location, which counts if both exist
        urls[row] = text
    native, _ = tables.places(4)
    for row, name in zip(native.tolist(), format_ids(tables.take(native).structs(4, 12)), strict=True):
        urls[row] = f"chunks/{name}".encode()
    inline = {row: data for row, data in zip(*tables.pieces(1), strict=True) if not urls[row]}
    if urls.count(b"") > len(inline):
        raise ValueError("it is damaged: a chunk is neither inline nor native nor virtual")
    codes: dict[tuple[bytes, bytes, int], int] = {}
    places = [
        codes.setdefault(target, len(codes)) if target[0] else NO_TARGET
        for target in zip(urls, tables.bytes(6), tables.numbers(7, "<u4").tolist(), strict=True)
    ]
    pins = [_make_pin(etag, time) for _, etag, time in codes]
    locations = Locations([url for url, *_ in codes], words)
    ranges = Ranges(np.array(places, np.uint32), offsets.view(np.uint64), lengths.view(np.uint64))
    size = numbers.nbytes + ranges.nbytes + locations.nbytes + sum(len(data) + 130 for data in inline.values())
    return Refs(numbers, Chunks(locations, ranges, inline, pins=pins if any(pins) else ()), size)


def _make_pin(etag: bytes, time: int) -> Pin | None:
    """Return the version of a target: its ETag, or the time of its last change in seconds since 1970."""
    if etag:
        return Pin(etag=etag.decode())
    return Pin(last_modified=str(time)) if time else None


class Locations(Sequence[str]):
    """Locations of chunks: URLs, or ``chunks/NAME`` in the repository.

    A manifest may compress locations with its dictionary ``words``. There is often one location for each chunk, so each
    is decompressed when it is used. Raises ManifestError for a damaged location.
    """

    def __init__(self, spelled: Sequence[bytes], words: bytes) -> None:
        self._data = b"".join(spelled)
        self._ends = np.fromiter(map(len, spelled), np.int64, len(spelled)).cumsum()
        self._words = zstd().ZstdDict(words) if len(words) > _LEAST_WORDS else None
        self._get = lru_cache(_MEMO)(self._decode)
        self.nbytes = len(self._data) + self._ends.nbytes

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        return self._get(index)

    def _decode(self, index: int) -> str:
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

"""Decode the objects of a repository: the object ``repo``, snapshots and manifests. No I/O here.

Each object is a header of 39 bytes and a FlatBuffer, which may be compressed with zstd. Fields are numbered in the
order of the schemas in the specification (versions 1 to 2.1). A damaged object raises ValueError.
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
from refshard_fs.core.compression import Inflate, decompress, import_zstd
from refshard_fs.core.format import check_size
from refshard_fs.core.model import Pin, Quota
from refshard_fs.errors import ManifestError
from refshard_fs.formats.icechunk.flatbuffers import Int64s, Tables, gather_integers, parse_flex
from refshard_fs.security.origins import MEMBER

MAGIC: Final = "ICE🧊CHUNK".encode()
SNAPSHOT, MANIFEST, REPOSITORY = 1, 2, 6  # types of objects
ORIGINS: Final = f"refshard:{MEMBER}"  # the name of our record in the metadata of a snapshot
_HEADER: Final = 39  # bytes of the header of an object
_VERSIONS: Final = (1, 2)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # the first bytes of a zstd frame
_MEMO: Final = 4096  # the most decompressed locations of a manifest in the cache
_LEAST_WORDS: Final = 8  # bytes: a zstd dictionary of at most this size is empty
_NATIVE: Final = re.compile("chunks/[0-9A-Z]{20}")
_LOCATION: Final = 4096  # the most bytes of a decompressed location
_ALPHABET: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)  # Crockford's Base32


def extract_buffer(data: bytes, kind: int, most: int) -> bytes:
    """Return the FlatBuffer of an object of type ``kind``; ManifestError if it has more than ``most`` bytes."""
    if not data.startswith(MAGIC):
        raise ValueError(f"it begins with {data[:12]!r}: expected {MAGIC!r}, as every object of Icechunk does")
    if len(data) < _HEADER:
        raise ValueError(f"it is cut short: {len(data)} bytes, expected more than {_HEADER}")
    version, actual = data[36:38]
    if version not in _VERSIONS or actual != kind:
        raise ValueError(f"it is of type {actual} and version {version}: expected type {kind} and one of {_VERSIONS}")
    body, buffer = data[_HEADER:], bytearray()
    for part in Inflate(body).feed(body, is_last=True):  # returns a body that is not compressed unchanged
        check_size(len(buffer) + len(part), most, "it")
        buffer += part
    return bytes(buffer)


def format_ids(ids: npt.NDArray[np.uint8]) -> list[str]:
    """Convert ids of 12 bytes, a row each, to 20 characters, as in names of objects."""
    bits = np.pad(np.unpackbits(ids, axis=1), ((0, 0), (0, 4)))
    digits = bits.reshape(len(ids), 20, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    return _ALPHABET[digits].view("S20").ravel().astype(str).tolist()


# Snapshots, branches and tags.


class Repository(msgspec.Struct, frozen=True):
    """The object ``repo``: the names of snapshots, and the times of their commits in microseconds since 1970.

    ``parents``, ``branches`` and ``tags`` are indexes into ``snapshots``; the first snapshot has a negative parent.
    ``containers`` are the URLs of virtual chunk containers by name.
    """

    snapshots: Sequence[str]
    parents: Sequence[int]
    times: Sequence[int]
    branches: Mapping[str, int]
    tags: Mapping[str, int]
    containers: Mapping[str, str]

    @classmethod
    def decode(cls, data: bytes, most: int) -> Repository:
        """Decode the object ``repo``; ManifestError if it has more than ``most`` bytes after decompression."""
        root = Tables.read_root(extract_buffer(data, REPOSITORY, most))
        snapshots, _ = root.read_vectors_of_tables(4)
        parents = snapshots.read_numbers(1, "<i4").tolist()
        refs = [root.read_vectors_of_tables(field)[0] for field in (2, 1)]
        branches, tags = (
            dict(zip(ref.read_texts(0), ref.read_numbers(1, "<u4").tolist(), strict=True)) for ref in refs
        )
        if (last := max([*parents, *branches.values(), *tags.values()], default=-1)) >= len(parents):
            raise ValueError(f"it is damaged: it refers to snapshot {last}: expected less than {len(parents)}")
        times = snapshots.read_numbers(2, "<u8").tolist()
        containers = _parse_containers(*root.read_bytes(9))  # of the root, the only table
        return cls(format_ids(snapshots.read_structs(0, 12)), parents, times, branches, tags, containers)

    def list_ancestry(self, index: int) -> Iterator[int]:
        """Yield the index of a snapshot, of its parent, and of all further ancestors."""
        for _ in self.snapshots:  # a damaged repository may have a loop
            if index >= 0:
                yield index
                index = self.parents[index]


def _parse_containers(config: bytes) -> dict[str, str]:
    """Return the URLs of virtual chunk containers by name, from a configuration in FlexBuffers."""
    match parse_flex(config) if config else None:
        case {"virtual_chunk_containers": dict(containers)}:
            urls: dict[str, str] = {}
            for each in containers.values():
                match each:
                    case {"name": str(name), "url_prefix": str(prefix)} if name and prefix:
                        urls[name] = prefix.removesuffix("/") + "/"
            return urls
    return {}


# The content of a snapshot.


class ManifestRef(msgspec.Struct, frozen=True):
    """A manifest of an array: its ``name``, and the ``box`` of the array's chunks that the manifest may have.

    ``size`` is the size of the manifest in bytes; None if the snapshot does not state it. ``box`` has two numbers of 32
    bits for each dimension: the first index of chunks, and the index after the last one.
    """

    name: str
    size: int | None
    box: bytes


class Node(msgspec.Struct, frozen=True):
    """An array or a group: its path, its id, its ``zarr.json``, and for an array its manifests."""

    path: str
    identifier: bytes
    document: bytes
    manifests: tuple[ManifestRef, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """The content of a snapshot. ``time`` is the time of its commit in microseconds since 1970.

    ``parent`` is the name of the previous snapshot (only in version 1). ``origins`` is a JSON text that this package
    adds to its commits: the servers of the sets that targets come from.
    """

    name: str
    nodes: Sequence[Node]
    time: int
    parent: str | None
    origins: str | None


def decode_snapshot(data: bytes, name: str, most: int) -> Snapshot:
    """Decode the snapshot ``name``; ManifestError if it has more than ``most`` bytes after decompression."""
    root = Tables.read_root(extract_buffer(data, SNAPSHOT, most))
    _check_name("snapshot", root, name)
    parents = format_ids(root.take(root.locate_field(1)[0]).read_structs(1, 12))
    items, _ = root.read_vectors_of_tables(5)
    metadata = dict(zip(items.read_texts(0), items.read_bytes(1), strict=True))
    origins = str(parse_flex(metadata[ORIGINS])) if ORIGINS in metadata else None
    time = int(root.read_numbers(3, "<u8")[0])
    return Snapshot(name, _decode_nodes(root), time, parents[0] if parents else None, origins)


def _check_name(kind: str, root: Tables, expected: str) -> None:
    """Raise ValueError if an object has another id than the ``expected`` name."""
    [name] = format_ids(root.read_structs(0, 12))
    if name != expected:
        raise ValueError(f"it is the {kind} {name}: expected {expected}")


def _decode_nodes(root: Tables) -> list[Node]:
    """Return the nodes of a snapshot."""
    files, _ = root.read_vectors_of_tables(7)
    sizes = dict(zip(format_ids(files.read_structs(0, 12)), files.read_numbers(1, "<u8").tolist(), strict=True))
    structs, _ = root.locate_elements(6, 32)  # only in version 1; each has an id, a size, and a number of chunks
    names = format_ids(gather_integers(root.data, structs[:, None] + np.arange(12), "u1").astype(np.uint8))
    sizes |= dict(zip(names, gather_integers(root.data, structs + 16, "<u8").tolist(), strict=True))
    nodes, _ = root.read_vectors_of_tables(2)
    is_array = np.flatnonzero(nodes.read_numbers(3, "u1") == 1)
    arrays, rows = nodes.take(is_array).read_tables(4)
    refs, owners = arrays.read_vectors_of_tables(2)
    manifests: dict[int, list[ManifestRef]] = {}
    columns = is_array[rows[owners]].tolist(), format_ids(refs.read_structs(0, 12)), refs.read_bytes(1, 8)
    for node, name, box in zip(*columns, strict=True):
        manifests.setdefault(node, []).append(ManifestRef(name, sizes.get(name) or None, box))
    fields = zip(nodes.read_texts(1), map(bytes, nodes.read_structs(0, 8)), nodes.read_bytes(2), strict=True)
    return [
        Node(path.strip("/"), id_, document, tuple(manifests.get(row, ())))
        for row, (path, id_, document) in enumerate(fields)
    ]


# The locations of chunks.


class Refs(msgspec.Struct, frozen=True, eq=False):
    """The chunks of an array in a manifest: their numbers, ascending, and their places in the same order.

    URLs are as in the manifest; ``chunks/NAME`` is an object of the repository. ``nbytes`` is the approximate size
    in memory.
    """

    numbers: UInt64s
    chunks: Chunks
    nbytes: int

    def find_rows(self, numbers: UInt64s) -> tuple[Int64s, Int64s]:
        """Return the indexes of the ``numbers`` that the manifest has, and their rows in the manifest."""
        rows = self.numbers.searchsorted(numbers)
        exists = self.numbers.searchsorted(numbers, "right") > rows
        return np.flatnonzero(exists), rows[exists]


class ManifestIndex(msgspec.Struct, frozen=True):
    """Decode the chunks of an array in the manifest ``ref``.

    ``identifier`` is the id of the array, ``counts`` has the number of chunks along each dimension.
    """

    ref: ManifestRef
    identifier: bytes
    counts: tuple[int, ...]
    most: int  # the most bytes after decompression
    quota: Quota

    def decode(self, data: bytes) -> Refs:
        root = Tables.read_root(extract_buffer(data, MANIFEST, self.most))
        _check_name("manifest", root, self.ref.name)
        arrays, _ = root.read_vectors_of_tables(1)
        own = [row for row, id_ in enumerate(arrays.read_structs(0, 8)) if bytes(id_) == self.identifier]
        if not own:
            raise ValueError("it has no chunks of the array: expected some, because the snapshot refers to it")
        tables, _ = arrays.take(own[:1]).read_vectors_of_tables(1)
        rows, starts, ndims = tables.locate_vectors(0, 4)
        ndim = len(self.counts)
        if len(rows) != len(tables.at) or (ndims != ndim).any():
            raise ValueError(f"it is damaged: expected an index of {ndim} numbers for each chunk, found others")
        coords = gather_integers(tables.data, starts[:, None] + 4 * np.arange(ndim), "<u4")
        first, last = np.frombuffer(self.ref.box, "<u4").reshape(ndim, 2).astype(np.int64).T
        is_inside = np.flatnonzero(((coords >= first) & (coords < np.minimum(last, self.counts))).all(axis=1))
        numbers = (coords @ strides_of(self.counts))[is_inside]
        if (np.diff(numbers) <= 0).any():
            raise ValueError("it is damaged: expected chunks in ascending order of their index, found another order")
        return _convert_refs(numbers.view(np.uint64), tables.take(is_inside), *root.read_bytes(2))


def _convert_refs(numbers: UInt64s, tables: Tables, words: bytes) -> Refs:
    """Convert references to native, virtual and inline chunks from FlatBuffers to columns.

    ``words`` is the zstd dictionary of compressed locations; b"" without one.
    """
    offsets, lengths = (tables.read_numbers(field, "<u8") for field in (2, 3))
    if (offsets + lengths < 0).any():  # the sum has more than 63 bits
        raise ValueError("it is damaged: a range of bytes has an end of 2**63 or more: expected less")
    urls = [text or url for text, url in zip(tables.read_bytes(8), tables.read_bytes(5), strict=True)]
    native, _ = tables.locate_field(4)
    for row, name in zip(native.tolist(), format_ids(tables.take(native).read_structs(4, 12)), strict=True):
        urls[row] = f"chunks/{name}".encode()
    inline = {row: data for row, data in zip(*tables.read_vectors(1), strict=True) if not urls[row]}
    if urls.count(b"") > len(inline):
        raise ValueError("it is damaged: expected data, an id or a location for each chunk, found a chunk without them")
    codes: dict[tuple[bytes, bytes, int], int] = {}
    targets = [
        codes.setdefault(target, len(codes)) if target[0] else NO_TARGET
        for target in zip(urls, tables.read_bytes(6), tables.read_numbers(7, "<u4").tolist(), strict=True)
    ]
    pins = [_make_pin(etag, time) for _, etag, time in codes]
    locations = Locations([url for url, *_ in codes], words)
    ranges = Ranges(np.array(targets, np.uint32), offsets.view(np.uint64), lengths.view(np.uint64))
    size = numbers.nbytes + ranges.nbytes + locations.nbytes + sum(len(data) + 130 for data in inline.values())
    return Refs(numbers, Chunks(locations, ranges, inline, pins=pins if any(pins) else ()), size)


def _make_pin(etag: bytes, time: int) -> Pin | None:
    """Return the pin of a target: its ETag, or its time of modification (seconds since 1970); None without both."""
    if etag:
        return Pin(etag=etag.decode())
    return Pin(last_modified=str(time)) if time else None


class Locations(Sequence[str]):
    """Locations of chunks: URLs, or ``chunks/NAME`` in the repository.

    A manifest may compress ``texts`` with its dictionary ``words``. Often each chunk has its own location, so a
    location is decompressed when it is used. Raises ManifestError for a damaged location.
    """

    def __init__(self, texts: Sequence[bytes], words: bytes) -> None:
        self._data = b"".join(texts)
        self._ends = np.fromiter(map(len, texts), np.int64, len(texts)).cumsum()
        self._words = import_zstd().ZstdDict(words) if len(words) > _LEAST_WORDS else None
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
                text = decompress(import_zstd().ZstdDecompressor(zstd_dict=self._words), text, _LOCATION)
            location = text.decode()
        except (ValueError, import_zstd().ZstdError) as e:
            raise ManifestError(f"the location {text[:100]!r} of a chunk is damaged: {e}") from e
        if "://" not in location and not _NATIVE.fullmatch(location):
            raise ManifestError(f"a chunk has the location {location[:100]!r}: expected a URL, or chunks/NAME")
        return location

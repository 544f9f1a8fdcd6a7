"""N5 hierarchies as zarr groups. No I/O here.

A chunk is a file: a header, then the elements, compressed. It is decoded when it is read, and padded where it is
smaller than others. N5 names the fastest dimension first, zarr last: shapes are reversed, and bytes stay in order.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks
from refshard_fs.core.compression import decompressed, zstd
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Listed, Load, Names, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, integers, is_node_name, object_in, shown
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.formats.n5 import ATTRIBUTES
from refshard_fs.security.policy import protocol_of, relative_to

DATA: Final = "data"  # the array of a source that is one dataset
LARGEST: Final = 2**31 - 1  # bytes of a chunk
MOST: Final = 1 << 20  # bytes of a document
DEEPEST: Final = 32  # levels of groups
_RESERVED: Final = frozenset(["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"])
_TYPES: Final = frozenset(
    [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
_CODECS: Final = frozenset(["raw", "gzip", "zlib", "bzip2", "xz", "zstd", "blosc"])
_BLOSC_HEADER: Final = 16


class Block(msgspec.Struct, frozen=True):
    """A recipe: the elements of a chunk of shape ``chunks``, at least ``extents`` of which the file must have."""

    chunks: tuple[int, ...]
    extents: tuple[int, ...]
    itemsize: int
    codec: str

    def make(self, raw: bytes) -> bytes:
        ndim = len(self.chunks)
        start = 4 + 4 * ndim
        if len(raw) < start:
            raise ValueError(f"an N5 chunk has a header of {start} bytes, there are {len(raw)}")
        mode, found = int.from_bytes(raw[:2], "big"), int.from_bytes(raw[2:4], "big")
        if mode not in (0, 1):
            raise ValueError(f"the mode of an N5 chunk is 0 or 1, found {mode}")
        if found != ndim:
            raise ValueError(f"an N5 chunk of {ndim} dimensions was expected, its header says {found}")
        sizes = tuple(np.frombuffer(raw, ">u4", ndim, 4).tolist()[::-1])
        if not all(e <= s <= c for e, s, c in zip(self.extents, sizes, self.chunks, strict=True)):
            raise ValueError(f"its header says sizes {sizes}; from {self.extents} to {self.chunks} were expected")
        count = math.prod(sizes)
        if mode == 1:
            if int.from_bytes(raw[start : start + 4], "big") != count or len(raw) < start + 4:
                raise ValueError(f"the number of elements in its header is not the {count} of its sizes {sizes}")
            start += 4
        size = count * self.itemsize
        data = _decoded(self.codec, raw[start:], size)
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes were decoded, {size} were expected of sizes {sizes}")
        if sizes == self.chunks:
            return data
        full = np.zeros((*self.chunks, self.itemsize), np.uint8)
        full[tuple(map(slice, sizes))] = np.frombuffer(data, np.uint8).reshape(*sizes, self.itemsize)
        return full.tobytes()


def _decoded(codec: str, data: bytes, size: int) -> bytes:
    match codec:
        case "gzip":
            return decompressed(zlib.decompressobj(31), data, size)
        case "zlib":
            return decompressed(zlib.decompressobj(), data, size)
        case "bzip2":
            return decompressed(bz2.BZ2Decompressor(), data, size)
        case "xz":
            return decompressed(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30), data, size)
        case "zstd":
            return decompressed(zstd().ZstdDecompressor(), data, size)
        case "blosc":
            return _of_blosc(data, size)
    return data


def _of_blosc(data: bytes, size: int) -> bytes:
    from numcodecs import blosc  # slow to import, and few files need it

    made, stored = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
    if len(data) < _BLOSC_HEADER or made != size or stored != len(data):  # the decoder trusts them
        raise ValueError(f"its blosc header says {made} bytes of {stored}, not {size} of {len(data)}")
    try:
        return bytes(blosc.decompress(data))
    except RuntimeError as e:
        raise ValueError(f"its blosc frame cannot be decoded: {e}") from e


class BlockChunks(Chunks):
    """The chunks of the dataset at ``url``: files ``i/j/k``, the fastest dimension first."""

    def __init__(self, url: str, array: ArrayDescription, grid: ChunkGrid, codec: str) -> None:
        self._url = url
        self._array = array
        self._grid = grid
        self._codec = codec

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        array, coords = self._array, self._grid.coords(number)
        inside = zip(array.shape, array.chunks, coords, strict=True)
        extents = tuple(min(chunk, extent - i * chunk) for extent, chunk, i in inside)
        url = relative_to(self._url, "/".join(map(str, coords[::-1])))
        # The size of a file that may be absent is unknown until it is read.
        return Packed(Span(url, optional=True), Block(array.chunks, extents, array.dtype.itemsize, self._codec))

    def listed(self) -> Steps[list[Listed] | None]:
        found: list[tuple[int, ...]] = [()]
        for count in self._grid.counts[::-1]:
            urls = [relative_to(self._url, "/".join(map(str, at))) if at else self._url for at in found]
            answers = (yield tuple(map(Names, urls))) if urls else ()
            below = []
            for at, names in zip(found, answers, strict=True):
                if names is None:
                    raise NotListable(f"{self._url} cannot be listed; its chunks can still be read by their keys")
                numbers = (n.name for n in names if n.name.isascii() and n.name.isdigit() and len(n.name) < 20)
                below += [(*at, int(n)) for n in numbers if str(int(n)) == n and int(n) < count]
            found = below
        return [Listed(self._grid.encoding.encode(at[::-1]), None) for at in sorted(found, key=lambda at: at[::-1])]


def _dataset(doc: dict[str, Any], path: str, where: str) -> tuple[ArrayDescription, str]:
    """Return the array that the attributes of a dataset describe, and its codec."""
    shape = integers(doc.get("dimensions"), "dimensions", where)[::-1]
    chunks = integers(doc.get("blockSize"), "blockSize", where)[::-1]
    if not 0 < len(shape) <= 32 or len(chunks) != len(shape) or not all(chunks):
        raise ManifestError(f"{where}: its dimensions {shown(shape)} and blockSize {shown(chunks)} do not agree")
    kind = doc.get("dataType")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ManifestError(f"{where}: its dataType is {shown(kind)}, not one of {', '.join(sorted(_TYPES))}")
    dtype = np.dtype(kind).newbyteorder(">")
    if math.prod(chunks) * dtype.itemsize > LARGEST:
        raise ManifestError(f"{where}: its blockSize makes chunks of more than {LARGEST} bytes")
    if math.prod(shape) * dtype.itemsize >= COUNTABLE:
        raise ManifestError(f"{where}: its dimensions are more than 63 bits count in bytes")
    given = doc.get("compression", doc.get("compressionType"))
    codec = given.get("type") if isinstance(given, dict) else given
    if codec == "gzip" and isinstance(given, dict) and given.get("useZlib") is True:
        codec = "zlib"
    if not isinstance(codec, str) or codec not in _CODECS:
        raise ManifestError(f"{where}: its compression {shown(codec)} is not read; {', '.join(sorted(_CODECS))} are")
    prefix = path.replace("/", "_")
    dimensions = [f"{prefix}_dim_{axis}" for axis in range(len(shape))]
    array = ArrayDescription(where, shape, chunks, dtype, dimensions, _attributes(doc), fill_value=0)
    return array, codec


def _attributes(doc: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in doc.items() if name not in _RESERVED}


def _members(url: str, doc: dict[str, Any]) -> Steps[list[str]]:
    """Return the names of directories in a group; where nothing lists them, those of its scales."""
    names: tuple[Listed, ...] | None = yield Names(url)
    if names is not None:
        return sorted(n.name for n in names if n.is_directory and is_node_name(n.name))
    scales = doc.get("scales", doc.get("downsamplingFactors"))
    return [f"s{level}" for level in range(min(len(scales), 64))] if isinstance(scales, list) else []


def _document(data: bytes | None, where: str) -> dict[str, Any]:
    if data is None:
        return {}
    if len(data) == MOST:
        raise ManifestError(f"{where}: attributes of at most {MOST} bytes were expected, it has more")
    return object_in(data, where)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a hierarchy, or one dataset."""
    document = probe.documents.get(ATTRIBUTES)
    if document is None:
        raise ManifestError(f"{probe.url}: an N5 hierarchy was expected, it has no {ATTRIBUTES}")
    group = ArrayGroupBuilder(probe.url)

    def add(path: str, url: str, doc: dict[str, Any]) -> None:
        array, codec = _dataset(doc, path, relative_to(url, ATTRIBUTES))
        group.add(path, array, BlockChunks(url, array, array.grid(options.zarr_format), codec))

    root = object_in(document.data, relative_to(probe.url, ATTRIBUTES))
    if "dimensions" in root:
        add(DATA, probe.url, root)
        return group.keyspace(options.zarr_format, {})
    left = [("", probe.url, root)]
    for _ in range(DEEPEST):
        below = []
        for path, url, doc in left:
            names = yield from _members(url, doc)
            is_quoted = protocol_of(url) in ("http", "https")
            below += [
                (f"{path}/{name}" if path else name, relative_to(url, quote(name) if is_quoted else name))
                for name in names
            ]
        left = []
        wheres = [relative_to(url, ATTRIBUTES) for _, url in below]
        loads = tuple(Load(Span(where, 0, MOST, exact=False, optional=True), Raw()) for where in wheres)
        found = (yield loads) if loads else ()
        for (path, url), where, data in zip(below, wheres, found, strict=True):
            try:
                doc = _document(data, where)
                if "dimensions" in doc:
                    add(path, url, doc)
                else:
                    group.groups[path] = _attributes(doc)
                    left.append((path, url, doc))
            except ManifestError as e:
                group.reports[path] = str(e)
    return group.keyspace(options.zarr_format, _attributes(root))

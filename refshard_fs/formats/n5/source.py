"""N5 hierarchies as zarr groups. No I/O here.

A chunk is a file: a header, then the compressed elements. It is decoded when it is read, and padded if it is smaller
than other chunks. N5 names the fastest dimension first, zarr last. So shapes are reversed, and the order of bytes
stays.
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
from refshard_fs.core.compression import decompress, zstd
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Listed, Load, Names, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, check_integers, is_node_name, object_in, shorten
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.formats.n5 import ATTRIBUTES
from refshard_fs.formats.n5.multiscales import describe_pyramid
from refshard_fs.security.policy import protocol_of, relative_to

DATA: Final = "data"  # name of the array if the source is one dataset
LARGEST: Final = 2**31 - 1  # bytes of a decoded chunk
MOST: Final = 1 << 20  # bytes of a document, at most
DEEPEST: Final = 32  # levels of nested groups
_RESERVED: Final = frozenset(["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"])
_TYPES: Final = frozenset(
    [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
_CODECS: Final = frozenset(["raw", "gzip", "zlib", "bzip2", "xz", "zstd", "blosc"])
_BLOSC_HEADER: Final = 16


class BlockRecipe(msgspec.Struct, frozen=True):
    """Decodes a chunk to the shape ``chunks``; the file must have at least the elements within ``extents``."""

    chunks: tuple[int, ...]
    extents: tuple[int, ...]
    itemsize: int
    codec: str

    def make(self, raw: bytes) -> bytes:
        ndim = len(self.chunks)
        start = 4 + 4 * ndim
        if len(raw) < start:
            raise ValueError(f"an N5 chunk is cut short: its header has {len(raw)} of {start} bytes")
        mode, found = int.from_bytes(raw[:2], "big"), int.from_bytes(raw[2:4], "big")
        if mode not in (0, 1):
            raise ValueError(f"an N5 chunk has the mode {mode}: expected 0 or 1")
        if found != ndim:
            raise ValueError(f"the header of an N5 chunk has {found} dimensions: expected {ndim}")
        sizes = tuple(np.frombuffer(raw, ">u4", ndim, 4).tolist()[::-1])
        if not all(e <= s <= c for e, s, c in zip(self.extents, sizes, self.chunks, strict=True)):
            raise ValueError(f"its header has the sizes {sizes}: expected {self.extents} to {self.chunks}")
        count = math.prod(sizes)
        if mode == 1:
            if int.from_bytes(raw[start : start + 4], "big") != count or len(raw) < start + 4:
                raise ValueError(f"its header has a number of elements other than the {count} of its sizes {sizes}")
            start += 4
        size = count * self.itemsize
        data = _decompress(self.codec, raw[start:], size)
        if len(data) != size:
            raise ValueError(f"it decompresses to {len(data)} bytes: expected {size} for the sizes {sizes}")
        if sizes == self.chunks:
            return data
        full = np.zeros((*self.chunks, self.itemsize), np.uint8)
        full[tuple(map(slice, sizes))] = np.frombuffer(data, np.uint8).reshape(*sizes, self.itemsize)
        return full.tobytes()


def _decompress(codec: str, data: bytes, size: int) -> bytes:
    match codec:
        case "gzip":
            return decompress(zlib.decompressobj(31), data, size)
        case "zlib":
            return decompress(zlib.decompressobj(), data, size)
        case "bzip2":
            return decompress(bz2.BZ2Decompressor(), data, size)
        case "xz":
            return decompress(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30), data, size)
        case "zstd":
            return decompress(zstd().ZstdDecompressor(), data, size)
        case "blosc":
            return _decompress_blosc(data, size)
    return data


def _decompress_blosc(data: bytes, size: int) -> bytes:
    from numcodecs import blosc  # slow to import, and few files need it

    made, stored = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
    if len(data) < _BLOSC_HEADER or made != size or stored != len(data):  # the decoder trusts these sizes
        raise ValueError(f"its blosc header says {made} bytes in {stored}: expected {size} in {len(data)}")
    try:
        return bytes(blosc.decompress(data))
    except RuntimeError as e:
        raise ValueError(f"its blosc frame cannot be decoded: {e}") from e


class BlockChunks(Chunks):
    """The chunks of the dataset at ``url``, in files ``i/j/k`` with the fastest dimension first."""

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
        # The file may not exist, so its size is unknown before it is read.
        return Packed(Span(url, optional=True), BlockRecipe(array.chunks, extents, array.dtype.itemsize, self._codec))

    def list_existing(self) -> Steps[list[Listed] | None]:
        found: list[tuple[int, ...]] = [()]
        for count in self._grid.counts[::-1]:
            urls = [relative_to(self._url, "/".join(map(str, at))) if at else self._url for at in found]
            answers = (yield tuple(map(Names, urls))) if urls else ()
            below = []
            for at, names in zip(found, answers, strict=True):
                if names is None:
                    raise NotListable(f"{self._url} cannot be listed; its chunks can still be read by key")
                numbers = (n.name for n in names if n.name.isascii() and n.name.isdigit() and len(n.name) < 20)
                below += [(*at, int(n)) for n in numbers if str(int(n)) == n and int(n) < count]
            found = below
        return [Listed(self._grid.encoding.encode(at[::-1]), None) for at in sorted(found, key=lambda at: at[::-1])]


def _describe_dataset(doc: dict[str, Any], path: str, where: str) -> tuple[ArrayDescription, str]:
    """Describe a dataset by its attributes. Return the array, and the codec of its chunks."""
    shape = check_integers(doc.get("dimensions"), "dimensions", where)[::-1]
    chunks = check_integers(doc.get("blockSize"), "blockSize", where)[::-1]
    if not 0 < len(shape) <= 32 or len(chunks) != len(shape) or not all(chunks):
        raise ManifestError(f"{where}: its blockSize {shorten(chunks)} does not fit its dimensions {shorten(shape)}")
    kind = doc.get("dataType")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ManifestError(f"{where}: its dataType is {shorten(kind)}: expected {', '.join(sorted(_TYPES))}")
    dtype = np.dtype(kind).newbyteorder(">")
    if math.prod(chunks) * dtype.itemsize > LARGEST:
        raise ManifestError(f"{where}: its blockSize makes chunks of more than {LARGEST} bytes")
    if math.prod(shape) * dtype.itemsize >= COUNTABLE:
        raise ManifestError(f"{where}: its dimensions have too many bytes for 63 bits")
    given = doc.get("compression", doc.get("compressionType"))
    codec = given.get("type") if isinstance(given, dict) else given
    if codec == "gzip" and isinstance(given, dict) and given.get("useZlib") is True:
        codec = "zlib"
    if not isinstance(codec, str) or codec not in _CODECS:
        raise ManifestError(f"{where}: its compression is {shorten(codec)}: expected {', '.join(sorted(_CODECS))}")
    prefix = path.replace("/", "_")
    dimensions = [f"{prefix}_dim_{axis}" for axis in range(len(shape))]
    array = ArrayDescription(where, shape, chunks, dtype, dimensions, _filter_attributes(doc), fill_value=0)
    return array, codec


def _filter_attributes(doc: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in doc.items() if name not in _RESERVED}


def _list_members(url: str, doc: dict[str, Any]) -> Steps[list[str]]:
    """Return the names of directories in a group; if they cannot be listed, the names of its scales."""
    names: tuple[Listed, ...] | None = yield Names(url)
    if names is not None:
        return sorted(n.name for n in names if n.is_directory and is_node_name(n.name))
    scales = doc.get("scales", doc.get("downsamplingFactors"))
    return [f"s{level}" for level in range(min(len(scales), 64))] if isinstance(scales, list) else []


def _parse_document(data: bytes | None, where: str) -> dict[str, Any]:
    if data is None:
        return {}
    if len(data) == MOST:
        raise ManifestError(f"{where} has more than {MOST} bytes: expected attributes")
    return object_in(data, where)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an N5 hierarchy, or one dataset."""
    document = probe.documents.get(ATTRIBUTES)
    if document is None:
        raise ManifestError(f"{probe.url} is not an N5 hierarchy: it has no {ATTRIBUTES}")
    group = ArrayGroupBuilder(probe.url)
    datasets: dict[str, dict[str, dict[str, Any]]] = {}  # attributes by group and name

    def add(path: str, url: str, doc: dict[str, Any]) -> None:
        array, codec = _describe_dataset(doc, path, relative_to(url, ATTRIBUTES))
        group.add(path, array, BlockChunks(url, array, array.grid(options.zarr_format), codec))
        above, name = parent(path)
        datasets.setdefault(above, {})[name] = doc

    root = object_in(document.data, relative_to(probe.url, ATTRIBUTES))
    if "dimensions" in root:
        add(DATA, probe.url, root)
        return group.keyspace(options.zarr_format, {})
    left = [("", probe.url, root)]
    for _ in range(DEEPEST):
        below = []
        for path, url, doc in left:
            names = yield from _list_members(url, doc)
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
                doc = _parse_document(data, where)
                if "dimensions" in doc:
                    add(path, url, doc)
                else:
                    group.groups[path] = _filter_attributes(doc)
                    left.append((path, url, doc))
            except ManifestError as e:
                group.reports[path] = str(e)
    group.groups[""] = _filter_attributes(root)
    for path, found in datasets.items():
        attributes = group.groups[path]
        pyramid = describe_pyramid(parent(path)[1], attributes, found)
        group.groups[path] = attributes if pyramid is None else {**attributes, "multiscales": pyramid}
    return group.keyspace(options.zarr_format, group.groups.pop(""))

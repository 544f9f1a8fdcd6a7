"""N5 hierarchies as zarr groups. No I/O here.

A chunk is a file: a header, then the compressed elements. A chunk is decoded while it is read, and padded if it is
smaller than other chunks. N5 names the fastest dimension first, zarr names it last: so shapes are reversed, and bytes
keep their order.
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
import numpy.typing as npt

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks
from refshard_fs.core.compression import decompress, import_zstd
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.libdeflate import try_gzip
from refshard_fs.core.model import Entry, Listed, Load, Names, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, check_integers, is_node_name, object_in, shorten
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.formats.n5 import ATTRIBUTES
from refshard_fs.formats.n5.multiscales import describe_pyramid
from refshard_fs.security.policy import protocol_of, relative_to

DATA: Final = "data"  # the name of the array if the source is a single dataset
MOST_DECODED: Final = 2**31 - 1  # the most bytes of a decoded chunk
MOST_DOCUMENT: Final = 1 << 20  # bytes: a document must have fewer
MOST_LEVELS: Final = 32  # levels of nested groups that are read: groups nested more deeply are reported
_RESERVED: Final = frozenset(["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"])
_TYPES: Final = frozenset(
    [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
_CODECS: Final = frozenset(["raw", "gzip", "zlib", "bzip2", "xz", "zstd", "blosc"])
_BLOSC_HEADER: Final = 16


class BlockRecipe(msgspec.Struct, frozen=True):
    """Decode a chunk, and pad it with zeros to the shape ``chunks``.

    The header of the chunk states a shape of at least ``extents``, the part of the chunk within the array.
    """

    chunks: tuple[int, ...]
    extents: tuple[int, ...]
    dtype: str
    codec: str

    def make(self, raw: bytes) -> bytes:
        return self.decode(raw).tobytes()

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``values``, which the array shows unchanged."""
        return values

    def decode(self, raw: bytes) -> npt.NDArray[Any]:
        """Return the values of the chunk; ValueError if the bytes are damaged."""
        ndim = len(self.chunks)
        start = 4 + 4 * ndim
        if len(raw) < start:
            raise ValueError(f"an N5 chunk is cut short: expected a header of {start} bytes, found {len(raw)}")
        mode, header_ndim = int.from_bytes(raw[:2], "big"), int.from_bytes(raw[2:4], "big")
        if mode not in (0, 1):
            raise ValueError(f"an N5 chunk has the mode {mode}: expected 0 or 1")
        if header_ndim != ndim:
            raise ValueError(f"the header of an N5 chunk has {header_ndim} dimensions: expected {ndim}")
        sizes = tuple(np.frombuffer(raw, ">u4", ndim, 4).tolist()[::-1])
        if not all(
            extent <= size_along <= chunk
            for extent, size_along, chunk in zip(self.extents, sizes, self.chunks, strict=True)
        ):
            raise ValueError(
                f"the header of an N5 chunk has the sizes {sizes}: expected {self.extents} to {self.chunks}"
            )
        count = math.prod(sizes)
        if mode == 1:
            if (stated := int.from_bytes(raw[start : start + 4], "big")) != count or len(raw) < start + 4:
                raise ValueError(
                    f"an N5 chunk has {len(raw)} bytes, and its header states {stated} elements: expected at least "
                    f"{start + 4} bytes, and {count} elements for the sizes {sizes}"
                )
            start += 4
        size = count * np.dtype(self.dtype).itemsize
        data = _decompress_chunk(self.codec, memoryview(raw)[start:], size)
        if len(data) != size:
            raise ValueError(f"an N5 chunk decompresses to {len(data)} bytes: expected {size} for the sizes {sizes}")
        values = np.frombuffer(data, self.dtype).reshape(sizes)
        if sizes == self.chunks:
            return values
        full = np.zeros(self.chunks, self.dtype)
        full[tuple(map(slice, sizes))] = values
        return full


def _decompress_chunk(codec: str, data: memoryview, size: int) -> bytes | bytearray | memoryview:
    stream: Any = None
    match codec:
        case "raw":
            return data
        case "blosc":
            return _decompress_blosc(data, size)
        case "gzip":
            if (decoded := try_gzip(data, size)) is not None:
                return decoded
            stream = zlib.decompressobj(31)
        case "zlib":
            stream = zlib.decompressobj()
        case "bzip2":
            stream = bz2.BZ2Decompressor()
        case "xz":
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30)
        case _:
            stream = import_zstd().ZstdDecompressor()
    result = decompress(stream, data, size)
    if stream.unused_data:
        rest = len(stream.unused_data)
        raise ValueError(f"an N5 chunk has {rest} bytes after its {codec} stream: expected none. It is damaged")
    return result


def _decompress_blosc(data: memoryview, size: int) -> bytes:
    from numcodecs import blosc  # slow to import, and few files need it

    plain_size, packed_size = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
    # Check the sizes here, because the decoder does not.
    if len(data) < _BLOSC_HEADER or plain_size != size or packed_size != len(data):
        raise ValueError(
            f"its blosc header states {plain_size} bytes, compressed to {packed_size}: expected {size}, compressed to "
            f"{len(data)}"
        )
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

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        array, coords = self._array, self._grid.coords(number)
        axes = zip(array.shape, array.chunks, coords, strict=True)
        extents = tuple(min(chunk, extent - coord * chunk) for extent, chunk, coord in axes)
        url = relative_to(self._url, "/".join(map(str, coords[::-1])))
        # The file may not exist. Without a size in the entry, readers must request the file.
        return Packed(Span(url, optional=True), BlockRecipe(array.chunks, extents, array.dtype.str, self._codec))

    def list_existing(self) -> Steps[list[Listed] | None]:
        prefixes: list[tuple[int, ...]] = [()]
        for count in self._grid.counts[::-1]:
            urls = [relative_to(self._url, "/".join(map(str, prefix))) if prefix else self._url for prefix in prefixes]
            answers = (yield tuple(map(Names, urls))) if urls else ()
            longer = []
            for prefix, names in zip(prefixes, answers, strict=True):
                if names is None:
                    raise NotListable(f"{self._url} cannot be listed: read its chunks by key")
                digits = [name for name in (listed.name for listed in names) if name.isascii() and name.isdigit()]
                numbers = [int(name) for name in digits if len(name) < 20 and str(int(name)) == name]
                longer += [(*prefix, number) for number in numbers if number < count]
            prefixes = longer
        return [
            Listed(self._grid.encoding.encode(prefix[::-1]), None)
            for prefix in sorted(prefixes, key=lambda prefix: prefix[::-1])
        ]


def _describe_dataset(doc: dict[str, Any], path: str, label: str) -> tuple[ArrayDescription, str]:
    """Describe a dataset by its attributes. Return the array, and the codec of its chunks."""
    shape = check_integers(doc.get("dimensions"), "dimensions", label)[::-1]
    chunks = check_integers(doc.get("blockSize"), "blockSize", label)[::-1]
    if not 0 < len(shape) <= 32 or len(chunks) != len(shape) or not all(chunks):
        raise ManifestError(
            f"{label}: its blockSize {shorten(list(chunks[::-1]))} does not fit its dimensions "
            f"{shorten(list(shape[::-1]))}: expected a positive number for each of 1 to 32 dimensions"
        )
    kind = doc.get("dataType")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ManifestError(f"{label}: its dataType is {shorten(kind)}: expected {', '.join(sorted(_TYPES))}")
    dtype = np.dtype(kind).newbyteorder(">")
    if math.prod(chunks) * dtype.itemsize > MOST_DECODED:
        found = f"its blockSize makes chunks of {math.prod(chunks) * dtype.itemsize} bytes"
        raise ManifestError(f"{label}: {found}: expected at most {MOST_DECODED}")
    if math.prod(shape) * dtype.itemsize >= COUNTABLE:
        found = f"its dimensions {shorten(list(shape[::-1]))} mean {math.prod(shape) * dtype.itemsize} bytes"
        raise ManifestError(f"{label}: {found}: expected less than 2**63")
    compression = doc.get("compression", doc.get("compressionType"))
    codec = compression.get("type") if isinstance(compression, dict) else compression
    if codec == "gzip" and isinstance(compression, dict) and compression.get("useZlib") is True:
        codec = "zlib"
    if not isinstance(codec, str) or codec not in _CODECS:
        raise ManifestError(f"{label}: its compression is {shorten(codec)}: expected {', '.join(sorted(_CODECS))}")
    prefix = path.replace("/", "_")
    dimensions = [f"{prefix}_dim_{axis}" for axis in range(len(shape))]
    array = ArrayDescription(label, shape, chunks, dtype, dimensions, _filter_attributes(doc), fill_value=0)
    return array, codec


def _filter_attributes(doc: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in doc.items() if name not in _RESERVED}


def _list_members(url: str, doc: dict[str, Any]) -> Steps[list[str]]:
    """Return the names of directories in a group. If they cannot be listed, return the names of its scales."""
    names: tuple[Listed, ...] | None = yield Names(url)
    if names is not None:
        return sorted(listed.name for listed in names if listed.is_directory and is_node_name(listed.name))
    scales = doc.get("scales", doc.get("downsamplingFactors"))
    return [f"s{level}" for level in range(min(len(scales), 64))] if isinstance(scales, list) else []


def _parse_document(data: bytes | None, label: str) -> dict[str, Any]:
    if data is None:
        return {}
    if len(data) == MOST_DOCUMENT:
        raise ManifestError(f"{label} has {MOST_DOCUMENT} bytes or more: expected fewer")
    return object_in(data, label)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an N5 hierarchy, or one dataset."""
    document = probe.documents.get(ATTRIBUTES)
    if document is None:
        raise ManifestError(f"{probe.url}: expected an N5 hierarchy with a file {ATTRIBUTES!r}, found no such file")
    group = ArrayGroupBuilder(probe.url)
    datasets: dict[str, dict[str, dict[str, Any]]] = {}  # attributes by group and name

    def add_dataset(path: str, url: str, doc: dict[str, Any]) -> None:
        array, codec = _describe_dataset(doc, path, relative_to(url, ATTRIBUTES))
        group.add(path, array, BlockChunks(url, array, array.grid(options.zarr_format), codec))
        group_path, name = parent(path)
        datasets.setdefault(group_path, {})[name] = doc

    root = object_in(document.data, relative_to(probe.url, ATTRIBUTES))
    if "dimensions" in root:
        add_dataset(DATA, probe.url, root)
        return group.make_keyspace(options.zarr_format, {})
    pending = [("", probe.url, root)]
    for _ in range(MOST_LEVELS):
        members = []
        for path, url, doc in pending:
            names = yield from _list_members(url, doc)
            is_quoted = protocol_of(url) in ("http", "https")
            members += [
                (f"{path}/{name}" if path else name, relative_to(url, quote(name) if is_quoted else name))
                for name in names
            ]
        pending = []
        document_urls = [relative_to(url, ATTRIBUTES) for _, url in members]
        loads = tuple(
            Load(Span(document_url, 0, MOST_DOCUMENT, exact=False, optional=True), Raw())
            for document_url in document_urls
        )
        documents = (yield loads) if loads else ()
        for (path, url), document_url, data in zip(members, document_urls, documents, strict=True):
            try:
                doc = _parse_document(data, document_url)
                if "dimensions" in doc:
                    add_dataset(path, url, doc)
                else:
                    group.groups[path] = _filter_attributes(doc)
                    pending.append((path, url, doc))
            except ManifestError as e:
                group.reports[path] = str(e)
    for path, url, doc in pending:
        if (yield from _list_members(url, doc)):
            group.reports[path] = (
                f"the arrays and groups in it are not shown: expected at most {MOST_LEVELS} levels of groups"
            )
    group.groups[""] = _filter_attributes(root)
    for path, group_datasets in datasets.items():
        attributes = group.groups[path]
        pyramid = describe_pyramid(parent(path)[1], attributes, group_datasets)
        group.groups[path] = attributes if pyramid is None else {**attributes, "multiscales": pyramid}
    return group.make_keyspace(options.zarr_format, group.groups.pop(""))

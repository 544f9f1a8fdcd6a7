"""DMR++ documents as groups of arrays, whose chunks lie in the file that they describe. No I/O here.

That is the one at ``dmrpp:href`` where it is a URL; else the file beside the document, whose name lacks ``.dmrpp``.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import (
    ArrayDescription,
    ArrayGroup,
    Chunks,
    Contiguous,
    FilledChunks,
    Given,
    encoded,
    fill_of,
    made,
    pieces,
    spelled_fill,
)
from refshard_fs.core.columns import UInt64s
from refshard_fs.core.compression import decompressed
from refshard_fs.core.dtypes import Padding, unpadded
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Listed, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE
from refshard_fs.errors import ManifestError
from refshard_fs.formats.dmrpp.document import (
    NUMBERS,
    TEXTS,
    Document,
    Variable,
    integers,
    number,
    numbers,
    parse_document,
)
from refshard_fs.references.values import resolver
from refshard_fs.security.policy import directory_of, protocol_of

SUFFIX: Final = ".dmrpp"
LARGEST: Final = 1 << 31  # bytes of a chunk, decoded
INLINE: Final = 1 << 26  # bytes that values in any document may have together,
TIMES_INLINE: Final = 100  # and in times its size: compressed ones are made when it is opened
REFERENCE: Final = 16  # bytes by which HDF5 refers to a text of variable length
MOST_DIMENSIONS: Final = 32  # that numpy has everywhere

PADDINGS: Final[Mapping[str, Padding]] = {"null_term": "null-terminated", "space_pad": "space-padded"}

Codecs = list[dict[str, Any]]


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a DMR++ document."""
    data = yield Load(probe.document(options.max_manifest_bytes), Raw())
    document = parse_document(data, probe.url)
    targets = _Targets(probe, options, document.href, max(INLINE, TIMES_INLINE * len(data)))
    names = _Names(document)
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, Chunks] = {}
    reports = dict(document.reports)
    for path, variable in document.variables.items():
        try:
            found = _Array(variable, names, f"{probe.url}, variable {path!r}")
            places = found.chunks(targets)
            arrays[path], chunks[path] = found.description(options.zarr_format), places
        except _NoFile:
            raise
        except ValueError as e:
            reports[path] = str(e)
    groups = {path: attributes for path, attributes in document.groups.items() if path}
    keyspace = ArrayGroup(arrays, chunks, options.zarr_format, document.groups[""], reports, groups=groups)
    keyspace.attribute_dtypes = {
        path: v.attribute_dtypes for path, v in document.variables.items() if v.attribute_dtypes
    }
    keyspace.urls = tuple(targets.urls.values())
    return keyspace


class _NoFile(ManifestError):
    """Nothing says which file a document describes."""


class _Targets:
    """The URLs of the files that chunks lie in, and how much may lie in the document itself."""

    def __init__(self, probe: Probe, options: OpenOptions, href: str | None, inline: int) -> None:
        self.urls: dict[str | None, str] = {}
        self.inline = inline  # bytes that values in the document may still have
        self._resolve = resolver(options, None if probe.is_in_memory else directory_of(probe.url))
        self._probe = probe
        self._options = options
        self._href = href

    def url(self, href: str | None) -> str:
        """Return the URL of the file that a chunk names, or the document, or that lies beside it."""
        if href not in self.urls:
            self.urls[href] = self._url(href)
        return self.urls[href]

    def _url(self, href: str | None) -> str:
        if self._options.target is not None:
            return self._resolve(None)
        for given in (href, self._href):
            if given is not None and protocol_of(given) is not None:
                return self._resolve(given)
        url = self._probe.url
        if url.endswith(SUFFIX) and not self._probe.is_in_memory:
            return url.removesuffix(SUFFIX)
        raise _NoFile(
            f"{url}: its dmrpp:href is {self._href!r}, no URL, and it has no name that ends in {SUFFIX}: "
            "say by target= which file it describes"
        )


class _Names:
    """Shapes and names of dimensions."""

    def __init__(self, document: Document) -> None:
        self._sizes = document.dimensions
        self._own: dict[str, dict[int, list[str]]] = {}  # names of dimensions without one, by group and size
        self._counts: Counter[str] = Counter()  # of these, by group

    def shape(self, variable: Variable) -> tuple[int, ...]:
        shape = tuple(dim if isinstance(dim, int) else self._size(dim) for dim in variable.dims)
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"it has {len(shape)} dimensions, more than {MOST_DIMENSIONS}")
        if math.prod(shape) * 16 >= COUNTABLE:
            raise ValueError(f"its shape {shape} is more than 63 bits count")
        return shape

    def _size(self, path: str) -> int:
        if path not in self._sizes:
            raise ValueError(f"there is no Dimension {path!r}")
        return self._sizes[path]

    def dimensions(self, variable: Variable) -> list[str]:
        """Return the names of dimensions; those without one are numbered by their sizes, as netCDF does."""
        group = parent(variable.path)[0]
        own = self._own.setdefault(group, {})
        found: list[str] = []
        for dim in variable.dims:
            if isinstance(dim, str):
                found.append(parent(dim)[1])
                continue
            alike = own.setdefault(dim, [])
            name = next((name for name in alike if name not in found), None)
            if name is None:
                name = f"phony_dim_{self._counts[group]}"
                alike.append(name)
                self._counts[group] += 1
            found.append(name)
        return found


class _Array:
    """A variable as an array of zarr; ValueError, which says why, for one that cannot be shown."""

    def __init__(self, variable: Variable, names: _Names, where: str) -> None:
        self.variable = variable
        self.where = where
        if variable.problem is not None:
            raise ValueError(variable.problem)
        if variable.inline is None and not variable.offsets and not variable.has_chunks:
            raise ValueError("nothing says where its values lie")
        self.shape = names.shape(variable)
        self.dimensions = names.dimensions(variable)
        self.is_vlen = variable.inline is not None and variable.inline[0] == "vlsa"
        self.dtype = np.dtype(object) if self.is_vlen else self._dtype()
        self.codecs = _codecs(variable, self.dtype)
        self.is_contiguous = not variable.chunk_sizes and not self.codecs
        if variable.chunk_sizes:
            self.chunk = integers(variable.chunk_sizes)
            if len(self.chunk) != len(self.shape) or 0 in self.chunk:
                raise ValueError(f"its chunks have the sizes {self.chunk}, its shape is {self.shape}")
        elif self.is_contiguous and variable.inline is None:
            self.chunk = pieces(self.shape, self.dtype.itemsize)
        else:
            self.chunk = tuple(max(extent, 1) for extent in self.shape)
        self.stored_fill = self._stored_fill()
        self.recipe = self._unpadding()
        self.shown_codecs = self.codecs if self.recipe is None else []
        self.size = math.prod(self.chunk) * self.dtype.itemsize
        if self.size > LARGEST:
            raise ValueError(f"its chunks of {self.chunk} have {self.size} bytes, more than {LARGEST}")

    def _dtype(self) -> np.dtype[Any]:
        variable = self.variable
        if variable.type not in TEXTS:
            order = ">" if variable.byte_order == "BE" else "<"
            return np.dtype(order + NUMBERS[variable.type])
        length = variable.string_length
        stored = 0 if variable.compression else sum(map(int, numbers(variable.sizes, "nBytes")))
        if variable.inline is not None:
            stored = len(_inline(variable, 1 << 20))
        count = math.prod(self.shape)
        if length is None and not variable.chunk_sizes and count and stored % count == 0:
            length = stored // count
            if length == REFERENCE and variable.inline is None:
                raise ValueError(
                    f"its texts have {length} bytes, and nothing says that they are no references to texts"
                )
        if not length or length > 1 << 20:
            raise ValueError("it is text, and nothing says how long")
        return np.dtype(f"S{length}")

    def _unpadding(self) -> Unpadded | None:
        """Return what makes chunks of texts whose padding numpy does not know; None for others."""
        padding = PADDINGS.get(self.variable.padding, "null-padded")
        if self.dtype.kind != "S" or self.is_vlen or padding == "null-padded":
            return None
        steps = tuple([json.dumps(codec) for codec in self.codecs])
        return Unpadded(steps, padding, self.dtype.itemsize, math.prod(self.chunk))

    def description(self, zarr_format: int) -> ArrayDescription:
        """Return what zarr's metadata says of it."""
        attributes = {name: value for name, value in self.variable.attributes.items() if name != "_FillValue"}
        if attributes.get("CLASS") == "DIMENSION_SCALE":
            attributes = {name: value for name, value in attributes.items() if name not in ("CLASS", "NAME")}
        codecs: Sequence[Mapping[str, Any]] = [{"id": "vlen-utf8"}] if self.is_vlen else self.shown_codecs
        fill = self.shown_fill
        return ArrayDescription(
            self.where, self.shape, self.chunk, self.dtype, self.dimensions, attributes, codecs, fill, is_masked=True
        )

    @property
    def shown_fill(self) -> Any:
        """The ``_FillValue`` as zarr spells it; None without one that is a value of the data type."""
        value = self.variable.attributes.get("_FillValue")
        return fill_of(value, self.dtype) if self.dtype.kind in "iuf" else None

    def chunks(self, targets: _Targets) -> Chunks:
        """Return where its chunks lie."""
        variable = self.variable
        if self.is_vlen:
            return Given(self._vlen())
        if variable.inline is not None:
            return Given(self._plain_inline(targets))
        if self.is_contiguous and len(variable.offsets) == 1:
            offset = int(numbers(variable.offsets, "offset")[0])
            size = int(numbers(variable.sizes, "nBytes")[0])
            if size != math.prod(self.shape) * self.dtype.itemsize:
                due = f"{math.prod(self.shape)} elements of {self.dtype.itemsize} are due"
                raise ValueError(f"it has {size} bytes (nBytes), where {due}")
            source = Span(targets.url(variable.hrefs[0]), 0, offset + size)
            found = Contiguous(source, offset, self.shape, self.chunk, self.dtype.itemsize, self.where)
            return found if self.recipe is None else UnpaddedPieces(found, self.recipe, self.where)
        return StoredChunks(self, targets)

    def _plain_inline(self, targets: _Targets) -> bytes:
        due = math.prod(self.shape) * self.dtype.itemsize
        targets.inline -= due
        if targets.inline < 0:
            raise ValueError(f"its values, {due} bytes, stand in the document, which has too many such")
        data = _inline(self.variable, due, due if due == self.dtype.itemsize else None)
        if len(data) != due:
            raise ValueError(f"its values in the document are {len(data)} bytes, where {due} are due")
        if self.recipe is not None:
            return self.recipe.unpadded(data)
        return encoded(data, self.codecs)

    def _vlen(self) -> bytes:
        texts = self.variable.texts
        if len(texts) != math.prod(self.shape):
            raise ValueError(f"it has {len(texts)} texts, and the shape {self.shape}")
        return encoded(np.array(texts, object), [{"id": "vlen-utf8"}])

    def _stored_fill(self) -> bytes | None:
        """Return an element of chunks that were never written; None where that is not told."""
        text, size = self.variable.fill, self.dtype.itemsize
        if self.dtype.kind == "S" and text is not None:
            data = text.encode()
            # Hyrax writes "unsupported-string" where it does not know a fill value, which few files need.
            return data.ljust(size, b"\0") if len(data) <= size else None
        if text is None or self.dtype.kind not in "iuf":
            return bytes(size)
        try:
            return np.array(number(text, self.dtype), self.dtype).tobytes()
        except ValueError:
            raise ValueError(f"its fillValue is {text!r}, no number of its type") from None


class Unpadded(msgspec.Struct, frozen=True):
    """A recipe: ``count`` texts of ``length`` bytes that ``codecs`` (JSON) encoded, decoded and without padding."""

    codecs: tuple[str, ...]
    padding: Padding
    length: int
    count: int

    @property
    def size(self) -> int:
        return self.length * self.count

    def make(self, raw: bytes) -> bytes:
        most = self.size + 4 * len(self.codecs)  # checksums
        for codec in map(json.loads, reversed(self.codecs)):
            if codec["id"] == "zlib":
                raw = decompressed(zlib.decompressobj(), raw, most)
            else:
                from numcodecs import get_codec  # slow to import, and few files need it

                try:
                    raw = bytes(get_codec(codec).decode(raw))
                except (RuntimeError, TypeError) as e:
                    raise ValueError(f"{codec['id']} cannot be undone: {e}") from e
        if len(raw) > self.size or (self.codecs and len(raw) < self.size):
            raise ValueError(f"it has {len(raw)} bytes, decoded, where {self.size} are due")
        return self.unpadded(raw.ljust(self.size, b"\0"))  # the last piece of a contiguous array

    def unpadded(self, texts: bytes) -> bytes:
        """Return ``texts`` as numpy pads them."""
        return unpadded(np.frombuffer(texts, f"S{self.length}"), self.padding).tobytes()


class UnpaddedPieces(Chunks):
    """The pieces of a contiguous array of texts, without padding."""

    def __init__(self, pieces: Contiguous, recipe: Unpadded, where: str) -> None:
        self._pieces = pieces
        self._recipe = recipe
        self._where = where

    def entry(self, number: int) -> Steps[Entry | None]:
        found = yield from self._pieces.entry(number)
        assert found is not None
        source = found.source if isinstance(found, Packed) else found
        return made(source, self._recipe, self._recipe.size, self._where)


class StoredChunks(FilledChunks):
    """The chunks of one array, as the document lists them: columns, in the order of their numbers."""

    def __init__(self, found: _Array, targets: _Targets) -> None:
        variable, shown = found.variable, found.shown_fill
        stored = found.stored_fill
        fills_itself = shown is not None and stored is not None and shown == spelled_fill(stored, found.dtype)
        super().__init__(found.where, found.description(2).grid(2), found.size, fills_itself=fills_itself)
        self._array = found
        places = _places(variable.positions, found)
        order = np.argsort(places, kind="stable")
        self._numbers = places[order]
        if (self._numbers[1:] == self._numbers[:-1]).any():
            raise ValueError("it has two chunks at one place")
        self._offsets = numbers(variable.offsets, "offset")[order]
        self._sizes = numbers(variable.sizes, "nBytes")[order]
        most = 2 * found.size + 4096 if found.codecs else found.size
        least = 0 if found.codecs else found.size
        if ((self._sizes > most) | (self._sizes < least)).any():
            raise ValueError(f"a chunk of {found.size} bytes is stored in {self._sizes.max()}")
        if (self._offsets > COUNTABLE - 1 - self._sizes).any():
            raise ValueError("a chunk ends behind what 63 bits count")
        self._urls = [targets.url(href) for href in dict.fromkeys(variable.hrefs)]
        codes = {href: code for code, href in enumerate(dict.fromkeys(variable.hrefs))}
        self._targets = np.array([codes[href] for href in variable.hrefs], np.uint32)[order]

    def filled(self) -> bytes:
        array = self._array
        if array.stored_fill is None:
            what = f"its fillValue {array.variable.fill!r} is no text of {array.dtype.itemsize} bytes"
            raise ValueError(f"a chunk was never written, and {what}")
        return encoded(array.stored_fill * math.prod(array.chunk), array.shown_codecs)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        at = int(np.searchsorted(self._numbers, np.uint64(number)))
        if at < len(self._numbers) and self._numbers[at] == number:
            start = int(self._offsets[at])
            span = Span(self._urls[self._targets[at]], start, start + int(self._sizes[at]))
            recipe = self._array.recipe
            return span if recipe is None else made(span, recipe, recipe.size, self.where)
        try:
            return self.unwritten()
        except ValueError as e:
            raise ManifestError(f"{self.where}: {e}") from e

    def listed(self) -> Steps[list[Listed] | None]:
        yield from ()
        return self.listed_of(self._numbers, self._sizes.tolist())


def _places(positions: Sequence[str], found: _Array) -> UInt64s:
    """Return the numbers of the chunks that begin at ``positions``: ``[0,50]``, or nothing for the first chunk."""
    if not found.shape or not positions:
        return np.zeros(len(positions), np.uint64)
    dimensions = len(found.shape)
    first = "[" + ",".join("0" * dimensions) + "]"
    spelled = [position.strip() or first for position in positions]
    wrong = [p for p in spelled if p.count(",") != dimensions - 1 or p[0] != "[" or p[-1] != "]"]
    if wrong:
        raise ValueError(f"a chunk begins at {wrong[0]}, and its shape is {found.shape}")
    coords = numbers(",".join([p[1:-1] for p in spelled]).split(","), "chunkPositionInArray").reshape(-1, dimensions)
    bad = (coords % found.chunk != 0).any(axis=1) | (coords >= found.shape).any(axis=1)
    if bad.any():
        where = spelled[int(bad.argmax())]
        raise ValueError(f"a chunk begins at {where}, no place of chunks of {found.chunk} in {found.shape}")
    counts = tuple(-(-extent // chunk) for extent, chunk in zip(found.shape, found.chunk, strict=True))
    if math.prod(counts) >= COUNTABLE:
        raise ValueError("it has more chunks than 63 bits count")
    places: UInt64s = np.ravel_multi_index(tuple((coords // found.chunk).T), counts).astype(np.uint64)
    return places


def _codecs(variable: Variable, dtype: np.dtype[Any]) -> Codecs:
    """Return the filters that chunks went through, in that order, as zarr's metadata spells them."""
    found: Codecs = []
    added = 0  # bytes of checksums
    levels = list(integers(variable.levels)) if variable.levels else []
    for name in variable.compression.split():
        match name:
            case "deflate":
                found.append({"id": "zlib", "level": min(levels.pop(0), 9) if levels else 6})
            case "shuffle":
                if added % dtype.itemsize:  # HDF5 leaves bytes over, and zarr's codec takes whole elements alone
                    raise ValueError(
                        f"its elements of {dtype.itemsize} bytes are shuffled with a checksum of {added} behind them, "
                        "which zarr has no codec for: open the HDF5 file itself"
                    )
                found.append({"id": "shuffle", "elementsize": dtype.itemsize})
            case "fletcher32":
                found.append({"id": "fletcher32"})
                added += 4
            case _:
                raise ValueError(f"its chunks are compressed by {name!r}")
    return found


def _inline(variable: Variable, most: int, single: int | None = None) -> bytes:
    """Return the values that stand in the document; ValueError where they are damaged, or more than ``most`` bytes.

    ``single`` are the bytes of a value that is the only one.
    """
    assert variable.inline is not None
    how, text = variable.inline
    data = base64.b64decode("".join(text.split()), validate=True)
    if how == "missingdata" and len(data) != single:  # a single value is stored as it is, by Hyrax
        try:
            data = zlib.decompressobj().decompress(data, most + 1)
        except zlib.error as e:
            raise ValueError(f"its values in the document are no zlib stream: {e}") from None
    if len(data) > most:
        raise ValueError(f"its values in the document are more than the {most} bytes that are due")
    return data

"""DMR++ documents as groups of arrays whose chunks lie in the described file. No I/O here.

The file is at ``dmrpp:href`` if that is a URL. Otherwise it lies beside the document, and has its name without
``.dmrpp``.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import (
    ArrayDescription,
    ArrayGroup,
    Chunks,
    Contiguous,
    FilledChunks,
    RecipeChunks,
    SingleChunk,
    choose_chunks,
    encode_chunk,
    encode_fill_value,
    fill_of,
    make_entry,
)
from refshard_fs.core.columns import UInt64s
from refshard_fs.core.compression import decompress
from refshard_fs.core.dtypes import Padding, remove_padding
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Listed, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE
from refshard_fs.errors import ManifestError
from refshard_fs.formats.dmrpp.document import (
    NUMBERS,
    STRUCTURE,
    TEXTS,
    Document,
    Variable,
    parse_document,
    parse_integers,
    parse_number,
    parse_numbers,
)
from refshard_fs.formats.dmrpp.structures import (
    LONGEST,
    decode_values_with_texts,
    make_dtype,
    make_structure,
    pack_members,
    parse_structure_fill,
)
from refshard_fs.references.values import resolver
from refshard_fs.security.policy import directory_of, protocol_of

SUFFIX: Final = ".dmrpp"
LARGEST: Final = 1 << 31  # bytes of a decoded chunk
INLINE: Final = 1 << 26  # bytes of all values within a document, or
TIMES_INLINE: Final = 100  # this many times its size: compressed values are decompressed when it is opened
REFERENCE: Final = 16  # bytes of HDF5's reference to a variable-length text
MOST_DIMENSIONS: Final = 32  # the limit of older numpy versions

_UNKNOWN: Final = "unsupported-string"  # Hyrax writes this for some fill values of texts

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
        except _NoDescribedFile:
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


class _NoDescribedFile(ManifestError):
    """The document does not say which file it describes."""


class _Targets:
    """The URLs of the files with chunks, and the number of bytes that may still come from the document itself."""

    def __init__(self, probe: Probe, options: OpenOptions, href: str | None, inline: int) -> None:
        self.urls: dict[str | None, str] = {}
        self.inline = inline  # bytes of values that the document may still have
        self._resolve = resolver(options, None if probe.is_in_memory else directory_of(probe.url))
        self._probe = probe
        self._options = options
        self._href = href

    def spend(self, size: int) -> None:
        """Count bytes of values in the document; ValueError if they are too many."""
        self.inline -= size
        if self.inline < 0:
            raise ValueError(f"its values take {size} bytes of the document, which has too many bytes of values")

    def url(self, href: str | None) -> str:
        """Return the URL of the file with a chunk: named by the chunk or the document, or beside the document."""
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
        raise _NoDescribedFile(
            f"{url}: its dmrpp:href {self._href!r} is not a URL, and its own name does not end in {SUFFIX}: "
            "give target= with the file that it describes"
        )


class _Names:
    """Shapes and names of dimensions."""

    def __init__(self, document: Document) -> None:
        self._sizes = document.dimensions
        self._own: dict[str, dict[int, list[str]]] = {}  # names made for unnamed dimensions, by group and size
        self._counts: Counter[str] = Counter()  # number of these names, by group

    def shape(self, variable: Variable) -> tuple[int, ...]:
        shape = tuple(dim if isinstance(dim, int) else self._size(dim) for dim in variable.dims)
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"it has {len(shape)} dimensions: expected at most {MOST_DIMENSIONS}")
        if math.prod(shape) * 16 >= COUNTABLE:
            raise ValueError(f"its shape {shape} has too many elements for 63 bits")
        return shape

    def _size(self, path: str) -> int:
        if path not in self._sizes:
            raise ValueError(f"it refers to the Dimension {path!r}, which does not exist")
        return self._sizes[path]

    def dimensions(self, variable: Variable) -> list[str]:
        """Return the names of dimensions; unnamed ones are numbered by size, as in netCDF."""
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
    """A variable as a zarr array. Raises ValueError with the reason if it cannot be shown."""

    def __init__(self, variable: Variable, names: _Names, where: str) -> None:
        self.variable = variable
        self.where = where
        if variable.problem is not None:
            raise ValueError(variable.problem)
        if variable.inline is None and not variable.offsets and not variable.has_chunks:
            raise ValueError("the document has no location of its values")
        self.shape = names.shape(variable)
        self.dimensions = names.dimensions(variable)
        is_unwritten = not variable.offsets and variable.inline is None and variable.fill not in (None, _UNKNOWN)
        self.is_filled = variable.type in TEXTS and variable.string_length is None and is_unwritten
        self.is_vlen = self.is_filled or (variable.inline is not None and variable.inline[0] == "vlsa")
        self._values: np.ndarray[Any, Any] | None = None  # of a structure with texts, which are in the document
        self.stored = np.dtype(object) if self.is_vlen else self._choose_dtype(names)
        self.dtype = self.stored  # the shown type: members of structures have no gaps
        if self.stored.names is not None:
            self.dtype = pack_members(self.stored)
        self.is_linked = any(variable.blocks)
        self.masks = parse_numbers(variable.masks, "fm")
        self.codecs = _parse_codecs(variable, self.stored)
        self.is_contiguous = not variable.chunk_sizes and not self.codecs
        if variable.chunk_sizes:
            self.chunk = parse_integers(variable.chunk_sizes)
            if len(self.chunk) != len(self.shape) or 0 in self.chunk:
                raise ValueError(f"its chunks have the sizes {self.chunk}, which do not fit its shape {self.shape}")
        elif self.is_contiguous and variable.inline is None and not self.is_linked:
            self.chunk = choose_chunks(self.shape, self.stored.itemsize)
        else:
            self.chunk = tuple(max(extent, 1) for extent in self.shape)
        self.fill_element = self._parse_fill()
        self.recipe = self._make_recipe()
        self.shown_codecs = self.codecs if self.recipe is None else []
        self.size = math.prod(self.chunk) * self.dtype.itemsize
        if self.size > LARGEST:
            raise ValueError(f"its chunks of {self.chunk} have {self.size} bytes: at most {LARGEST} are supported")

    def _choose_dtype(self, names: _Names) -> np.dtype[Any]:
        variable = self.variable
        order = ">" if variable.byte_order == "BE" else "<"
        if variable.type == STRUCTURE:
            shapes = [names.shape(member) for member in variable.members]
            if variable.inline is None or not any(member.type in TEXTS for member in variable.members):
                return make_structure(variable, shapes, order)
            data = _decode_values(variable, INLINE)
            self._values = decode_values_with_texts(variable, self.shape, shapes, data, INLINE)
            dtype: np.dtype[Any] = self._values.dtype
            return dtype
        if variable.type not in TEXTS:
            return np.dtype(order + NUMBERS[variable.type])
        length = variable.string_length
        stored = 0 if variable.compression else sum(map(int, parse_numbers(variable.sizes, "nBytes")))
        if variable.inline is not None:
            stored = len(_decode_values(variable, LONGEST))
        count = math.prod(self.shape)
        if variable.chunk_sizes and variable.sizes:  # chunks are whole
            stored, count = stored // len(variable.sizes), math.prod(parse_integers(variable.chunk_sizes))
        if length is None and count and stored % count == 0:
            length = stored // count
            if length == REFERENCE and variable.inline is None:
                raise ValueError(
                    f"its values of {length} bytes may be texts or references to texts: the document does not say which"
                )
        if not length or length > LONGEST:
            raise ValueError("it is text of unknown length")
        return np.dtype(f"S{length}")

    def _make_recipe(self) -> ElementsRecipe | None:
        """Return the recipe for chunks that zarr's codecs cannot decode to ``dtype``; None for other chunks."""
        padding = PADDINGS.get(self.variable.padding, "null-padded") if self.dtype.kind == "S" else "null-padded"
        is_plain = (
            padding == "null-padded" and self.stored == self.dtype and not self.is_linked and not self.masks.any()
        )
        if self.is_vlen or is_plain:
            return None
        steps = tuple([json.dumps(codec) for codec in self.codecs])
        fields = tuple(
            (name, of.base.str, of.shape, at)
            for name, (of, at, *_) in (self.stored.fields.items() if self.stored.fields else ())
        )
        return ElementsRecipe(steps, math.prod(self.chunk), self.stored.itemsize, self.dtype.itemsize, padding, fields)

    def description(self, zarr_format: int) -> ArrayDescription:
        """Describe the array to zarr."""
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
        """The ``_FillValue`` in zarr's metadata; None if it is absent or not a value of the data type."""
        value = self.variable.attributes.get("_FillValue")
        return fill_of(value, self.dtype) if self.dtype.kind in "iuf" else None

    def chunks(self, targets: _Targets) -> Chunks:
        """Return the chunks of the array."""
        variable = self.variable
        if self.is_vlen:
            return SingleChunk(self._encode_texts(targets))
        if variable.inline is not None:
            return SingleChunk(self._decode_inline(targets))
        if self.is_linked:
            return self._link_blocks(targets)
        if self.is_contiguous and len(variable.offsets) == 1:
            offset = int(parse_numbers(variable.offsets, "offset")[0])
            size = int(parse_numbers(variable.sizes, "nBytes")[0])
            if size != math.prod(self.shape) * self.stored.itemsize:
                due = f"expected {math.prod(self.shape)} elements of {self.stored.itemsize} bytes"
                raise ValueError(f"it has {size} bytes (nBytes): {due}")
            source = Span(targets.url(variable.hrefs[0]), 0, offset + size)
            found = Contiguous(source, offset, self.shape, self.chunk, self.stored.itemsize, self.where)
            return found if self.recipe is None else ConvertedPieces(found, self.recipe, self.where)
        return ListedChunks(self, targets)

    def _link_blocks(self, targets: _Targets) -> Chunks:
        """Return chunks that consist of several blocks each, as in HDF4."""
        variable, recipe = self.variable, self.recipe
        assert recipe is not None
        offsets, sizes = (
            parse_numbers(*column).tolist() for column in ((variable.offsets, "offset"), (variable.sizes, "nBytes"))
        )
        first = [at for at, number in enumerate(variable.blocks) if number in ("", "0")]
        if first[:1] != [0] or len(set(variable.hrefs)) != 1:
            raise ValueError("the first of its linked blocks is missing, or they lie in several files")
        places = _number_chunks([variable.positions[at] for at in first], self).tolist()
        parts = [list(zip(offsets[a:b], sizes[a:b], strict=True)) for a, b in pairwise([*first, len(offsets)])]
        end = max(map(sum, zip(offsets, sizes, strict=True)))
        chunks = {
            place: (some, recipe.skip(int(self.masks[at])))
            for place, some, at in zip(places, parts, first, strict=True)
        }
        if end >= COUNTABLE or len(chunks) < len(places):
            raise ValueError("it has two chunks at one position, or one that ends beyond the largest offset, 2**63 - 1")
        source = Span(targets.url(variable.hrefs[0]), 0, end)
        return RecipeChunks(source, self.description(2).grid(2), chunks)

    def _decode_inline(self, targets: _Targets) -> bytes:
        due = math.prod(self.shape) * self.dtype.itemsize
        targets.spend(due)
        if self._values is not None:
            return self._values.astype(self.dtype).tobytes()
        data = _decode_values(self.variable, due, due if due == self.dtype.itemsize else None)
        if len(data) != due:
            raise ValueError(f"its values in the document have {len(data)} bytes: expected {due}")
        if self.recipe is not None:  # structures in the document need no conversion
            return data if self.dtype.names is not None else self.recipe.convert(data)
        return encode_chunk(data, self.codecs)

    def _encode_texts(self, targets: _Targets) -> bytes:
        """Encode the texts in the document; the fill value for each element if none was written."""
        texts, count = self.variable.texts, math.prod(self.shape)
        if self.is_filled:
            fill = self.variable.fill or ""
            targets.spend(count * (len(fill) + REFERENCE))
            texts = [fill] * count
        if len(texts) != count:
            raise ValueError(f"it has {len(texts)} texts, which do not fit its shape {self.shape}")
        return encode_chunk(np.array(texts, object), [{"id": "vlen-utf8"}])

    def _parse_fill(self) -> bytes | None:
        """Return the element that unwritten chunks consist of; None if it is unknown."""
        text, size = self.variable.fill, self.dtype.itemsize
        if self.dtype.kind == "S" and text is not None:
            data = text.encode()
            return data.ljust(size, b"\0") if len(data) <= size and text != _UNKNOWN else None
        if text is not None and self.dtype.names is not None:
            return parse_structure_fill(text.split(), self.dtype)
        if text is None or self.dtype.kind not in "iuf":
            return bytes(size)
        try:
            return np.array(parse_number(text, self.dtype), self.dtype).tobytes()
        except ValueError:
            raise ValueError(f"its fillValue is {text!r}: expected a number of type {self.dtype}") from None


class ElementsRecipe(msgspec.Struct, frozen=True):
    """Decodes ``count`` elements of ``stored`` bytes that ``codecs`` (JSON) encoded, and converts them for zarr.

    Texts lose their ``padding``. Members of structures (name, type, shape and offset of each of ``fields``) lose gaps.
    """

    codecs: tuple[str, ...]
    count: int
    stored: int
    shown: int
    padding: Padding = "null-padded"
    fields: tuple[tuple[str, str, tuple[int, ...], int], ...] = ()

    @property
    def size(self) -> int:
        return self.shown * self.count

    def skip(self, mask: int) -> ElementsRecipe:
        """Return the recipe of a chunk that skips the codecs in ``mask``."""
        codecs = tuple(codec for number, codec in enumerate(self.codecs) if not mask >> number & 1)
        return msgspec.structs.replace(self, codecs=codecs)

    def make(self, raw: bytes) -> bytes:
        due = self.stored * self.count
        most = due + 4 * len(self.codecs)  # with checksums of four bytes
        for codec in map(json.loads, reversed(self.codecs)):
            if codec["id"] == "zlib":
                raw = decompress(zlib.decompressobj(), raw, most)
            else:
                from numcodecs import get_codec  # slow to import, and few files need it

                try:
                    raw = bytes(get_codec(codec).decode(raw))
                except (RuntimeError, TypeError) as e:
                    raise ValueError(f"{codec['id']} cannot decode it: {e}") from e
        if len(raw) > due or (self.codecs and len(raw) < due):
            raise ValueError(f"it decodes to {len(raw)} bytes: expected {due}")
        return self.convert(raw.ljust(due, b"\0"))  # the last piece of a contiguous array may be shorter

    def convert(self, data: bytes) -> bytes:
        """Convert elements from their bytes in the file to the type in zarr's metadata."""
        if not self.fields:
            return (
                data
                if self.padding == "null-padded"
                else remove_padding(np.frombuffer(data, f"S{self.stored}"), self.padding).tobytes()
            )
        stored = make_dtype(self.fields, self.stored)
        return np.frombuffer(data, stored).astype(pack_members(stored)).tobytes()


class ConvertedPieces(Chunks):
    """The pieces of a contiguous array whose elements are converted."""

    def __init__(self, pieces: Contiguous, recipe: ElementsRecipe, where: str) -> None:
        self._pieces = pieces
        self._recipe = recipe
        self._where = where

    def entry(self, number: int) -> Steps[Entry | None]:
        found = yield from self._pieces.entry(number)
        assert found is not None
        source = found.source if isinstance(found, Packed) else found
        return make_entry(source, self._recipe, self._recipe.size, self._where)


class ListedChunks(FilledChunks):
    """The chunks of one array that the document lists, as columns in the order of their numbers."""

    def __init__(self, found: _Array, targets: _Targets) -> None:
        variable, shown = found.variable, found.shown_fill
        stored = found.fill_element
        fills_itself = shown is not None and stored is not None and shown == encode_fill_value(stored, found.dtype)
        super().__init__(found.where, found.description(2).grid(2), found.size, fills_itself=fills_itself)
        self._array = found
        places = _number_chunks(variable.positions, found)
        order = np.argsort(places, kind="stable")
        self._numbers = places[order]
        if (self._numbers[1:] == self._numbers[:-1]).any():
            raise ValueError("it has two chunks at one position")
        self._offsets = parse_numbers(variable.offsets, "offset")[order]
        self._sizes = parse_numbers(variable.sizes, "nBytes")[order]
        due = math.prod(found.chunk) * found.stored.itemsize
        most = 2 * due + 4096 if found.codecs else due
        least = 0 if found.codecs else due
        if ((self._sizes > most) | (self._sizes < least)).any():
            raise ValueError(f"a chunk of {due} bytes has the impossible stored size {self._sizes.max()}")
        if (self._offsets > COUNTABLE - 1 - self._sizes).any():
            raise ValueError("a chunk ends beyond the largest offset, 2**63 - 1")
        self._masks = found.masks[order]
        self._urls = [targets.url(href) for href in dict.fromkeys(variable.hrefs)]
        codes = {href: code for code, href in enumerate(dict.fromkeys(variable.hrefs))}
        self._targets = np.array([codes[href] for href in variable.hrefs], np.uint32)[order]

    def encode_fill(self) -> bytes:
        array = self._array
        if array.fill_element is None:
            what = f"its fillValue {array.variable.fill!r} is not a text of {array.dtype.itemsize} bytes"
            raise ValueError(f"a chunk was never written, and {what}")
        return encode_chunk(array.fill_element * math.prod(array.chunk), array.shown_codecs)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        at = int(np.searchsorted(self._numbers, np.uint64(number)))
        if at < len(self._numbers) and self._numbers[at] == number:
            start = int(self._offsets[at])
            span = Span(self._urls[self._targets[at]], start, start + int(self._sizes[at]))
            recipe = self._array.recipe
            return (
                span if recipe is None else make_entry(span, recipe.skip(int(self._masks[at])), recipe.size, self.where)
            )
        try:
            return self.unwritten_entry()
        except ValueError as e:
            raise ManifestError(f"{self.where}: {e}") from e

    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return self.list_written(self._numbers, self._sizes.tolist())


def _number_chunks(positions: Sequence[str], found: _Array) -> UInt64s:
    """Return the numbers of the chunks at ``positions``, such as ``[0,50]``; an empty text is the first chunk."""
    if not found.shape or not positions:
        return np.zeros(len(positions), np.uint64)
    dimensions = len(found.shape)
    first = "[" + ",".join("0" * dimensions) + "]"
    spelled = [position.strip() or first for position in positions]
    wrong = [p for p in spelled if p.count(",") != dimensions - 1 or p[0] != "[" or p[-1] != "]"]
    if wrong:
        raise ValueError(f"a chunk begins at {wrong[0]}, which does not fit its shape {found.shape}")
    coords = parse_numbers(",".join([p[1:-1] for p in spelled]).split(","), "chunkPositionInArray").reshape(
        -1, dimensions
    )
    bad = (coords % found.chunk != 0).any(axis=1) | (coords >= found.shape).any(axis=1)
    if bad.any():
        where = spelled[int(bad.argmax())]
        raise ValueError(f"a chunk begins at {where}: expected multiples of {found.chunk} within {found.shape}")
    counts = tuple(-(-extent // chunk) for extent, chunk in zip(found.shape, found.chunk, strict=True))
    if math.prod(counts) >= COUNTABLE:
        raise ValueError("it has too many chunks for 63 bits")
    places: UInt64s = np.ravel_multi_index(tuple((coords // found.chunk).T), counts).astype(np.uint64)
    return places


def _parse_codecs(variable: Variable, dtype: np.dtype[Any]) -> Codecs:
    """Return the filters of chunks, in the order of encoding, as codecs in zarr's metadata."""
    found: Codecs = []
    added = 0  # bytes of checksums
    levels = list(parse_integers(variable.levels)) if variable.levels else []
    for name in variable.compression.split():
        match name:
            case "deflate":
                found.append({"id": "zlib", "level": min(levels.pop(0), 9) if levels else 6})
            case "shuffle":
                if added % dtype.itemsize:  # HDF5 leaves the rest unshuffled; zarr's codec needs whole elements
                    raise ValueError(
                        f"its elements of {dtype.itemsize} bytes are shuffled with a checksum of {added} bytes, "
                        "which no zarr codec can decode: open the HDF5 file itself"
                    )
                found.append({"id": "shuffle", "elementsize": dtype.itemsize})
            case "fletcher32":
                found.append({"id": "fletcher32"})
                added += 4
            case _:
                raise ValueError(f"its chunks are compressed by {name!r}, which is not supported")
    return found


def _decode_values(variable: Variable, most: int, single: int | None = None) -> bytes:
    """Decode the values within the document. Raise ValueError if they are damaged or more than ``most`` bytes.

    ``single`` is the size of the value, if there is only one.
    """
    assert variable.inline is not None
    how, text = variable.inline
    data = base64.b64decode("".join(text.split()), validate=True)
    if how == "missingdata" and len(data) != single:  # Hyrax stores a single value uncompressed
        try:
            data = zlib.decompressobj().decompress(data, most + 1)
        except zlib.error as e:
            raise ValueError(f"its values in the document are not a zlib stream: {e}") from None
    if len(data) > most:
        raise ValueError(f"its values in the document have more than {most} bytes, the size of the array")
    return data

"""DMR++ documents as groups of arrays whose chunks lie in the described file. No I/O here.

The attribute ``dmrpp:href`` is the URL of the described file. A value that is not a URL is ignored: then the file lies
beside the document, and has the name of the document without ``.dmrpp``.
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
    convert_fill_value,
    encode_chunk,
    encode_fill_value,
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
    DmrppDocument,
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
from refshard_fs.references.values import make_resolver
from refshard_fs.security.policy import directory_of, protocol_of

SUFFIX: Final = ".dmrpp"
MOST_DECODED: Final = 1 << 31  # bytes of a decoded chunk
# Bytes of all values in a document, which are decompressed on opening: at most MOST_INLINE, or TIMES_INLINE times the
# size of a large document.
MOST_INLINE: Final = 1 << 26
TIMES_INLINE: Final = 100
REFERENCE: Final = 16  # bytes of HDF5's reference to a variable-length text
MOST_DIMENSIONS: Final = 32  # the limit of numpy before version 2

_UNKNOWN: Final = "unsupported-string"  # Hyrax writes this in place of some fill values of texts

PADDINGS: Final[Mapping[str, Padding]] = {"null_term": "null-terminated", "space_pad": "space-padded"}

Codecs = list[dict[str, Any]]


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a DMR++ document."""
    data = yield Load(probe.document(options.max_manifest_bytes), Raw())
    document = parse_document(data, probe.url)
    targets = _Targets(probe, options, document.href, max(MOST_INLINE, TIMES_INLINE * len(data)))
    names = _Dimensions(document)
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, Chunks] = {}
    reports = dict(document.reports)
    for path, variable in document.variables.items():
        try:
            array = _Array(variable, names, f"{probe.url}, variable {path!r}")
            array_chunks = array.make_chunks(targets)
            arrays[path], chunks[path] = array.describe(options.zarr_format), array_chunks
        except _NoDescribedFile:
            raise
        except ValueError as e:
            reports[path] = str(e)
    groups = {path: attributes for path, attributes in document.groups.items() if path}
    keyspace = ArrayGroup(arrays, chunks, options.zarr_format, document.groups[""], reports, groups=groups)
    keyspace.attribute_dtypes = {
        path: variable.attribute_dtypes for path, variable in document.variables.items() if variable.attribute_dtypes
    }
    keyspace.urls = tuple(targets.urls.values())
    return keyspace


class _NoDescribedFile(ManifestError):
    """The document does not name the file that it describes."""


class _Targets:
    """The URLs of the files with chunks, and the bytes of values that may still come from the document itself."""

    def __init__(self, probe: Probe, options: OpenOptions, href: str | None, inline: int) -> None:
        self.urls: dict[str | None, str] = {}
        self.inline = inline  # bytes of values in the document that are still allowed
        self._resolve = make_resolver(options, None if probe.is_in_memory else directory_of(probe.url))
        self._probe = probe
        self._options = options
        self._href = href

    def count_inline(self, size: int) -> None:
        """Count bytes of values in the document. Raise ValueError if there are too many."""
        limit, self.inline = max(self.inline, 0), self.inline - size
        if self.inline < 0:
            raise ValueError(
                f"its values in the document have {size} bytes: expected at most {limit}, the rest of the limit for "
                "the values of all variables"
            )

    def find_url(self, href: str | None) -> str:
        """Return the URL of the file with a chunk. ``href`` is the chunk's attribute; None if the chunk lacks it."""
        if href not in self.urls:
            self.urls[href] = self._resolve_url(href)
        return self.urls[href]

    def _resolve_url(self, href: str | None) -> str:
        if self._options.target is not None:
            return self._resolve(None)
        for candidate in (href, self._href):
            if candidate is not None and protocol_of(candidate) is not None:
                return self._resolve(candidate)
        url = self._probe.url
        if url.endswith(SUFFIX) and not self._probe.is_in_memory:
            return url.removesuffix(SUFFIX)
        raise _NoDescribedFile(
            f"{url}: expected a dmrpp:href that is a URL, or a document whose name ends in {SUFFIX}; found "
            f"{self._href!r}: give target= with the file that the document describes"
        )


class _Dimensions:
    """The dimensions of a document: shapes of variables, and names of their dimensions."""

    def __init__(self, document: DmrppDocument) -> None:
        self._sizes = document.dimensions
        self._phony: dict[str, dict[int, list[str]]] = {}  # names for unnamed dimensions, by group and size
        self._counts: Counter[str] = Counter()  # by group: the number of these names

    def find_shape(self, variable: Variable) -> tuple[int, ...]:
        shape = tuple(dim if isinstance(dim, int) else self._find_size(dim) for dim in variable.dims)
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"it has {len(shape)} dimensions: expected at most {MOST_DIMENSIONS}")
        if math.prod(shape) * 16 >= COUNTABLE:
            raise ValueError(f"its shape {shape} has too many elements: expected less than 2**59")
        return shape

    def _find_size(self, path: str) -> int:
        if path not in self._sizes:
            raise ValueError(f"expected the Dimension {path!r}, to which it refers, in the document; found none")
        return self._sizes[path]

    def name_dimensions(self, variable: Variable) -> list[str]:
        """Return the names of a variable's dimensions. Unnamed dimensions of one size share names, as in netCDF."""
        group = parent(variable.path)[0]
        group_names = self._phony.setdefault(group, {})
        names: list[str] = []
        for dim in variable.dims:
            if isinstance(dim, str):
                names.append(parent(dim)[1])
                continue
            same_size_names = group_names.setdefault(dim, [])
            name = next((name for name in same_size_names if name not in names), None)
            if name is None:
                name = f"phony_dim_{self._counts[group]}"
                same_size_names.append(name)
                self._counts[group] += 1
            names.append(name)
        return names


class _Array:
    """A variable that is shown as an array of zarr. The constructor raises ValueError if that is not possible.

    ``stored_dtype`` is the type in the file, ``dtype`` the type that is shown: members of structures have no gaps.
    """

    def __init__(self, variable: Variable, names: _Dimensions, label: str) -> None:
        self.variable = variable
        self.where = label
        if variable.problem is not None:
            raise ValueError(variable.problem)
        if variable.inline is None and not variable.offsets and not variable.has_chunks:
            raise ValueError("expected its chunks, its bytes or its values in the document, found none of these")
        self.shape = names.find_shape(variable)
        self.dimensions = names.name_dimensions(variable)
        is_unwritten = not variable.offsets and variable.inline is None and variable.fill not in (None, _UNKNOWN)
        self.is_filled = variable.type in TEXTS and variable.string_length is None and is_unwritten
        self.is_vlen = self.is_filled or (variable.inline is not None and variable.inline[0] == "vlsa")
        self._values: np.ndarray[Any, Any] | None = None  # only of a structure with texts
        self.stored_dtype = np.dtype(object) if self.is_vlen else self._choose_dtype(names)
        self.dtype = self.stored_dtype
        if self.stored_dtype.names is not None:
            self.dtype = pack_members(self.stored_dtype)
        self.is_linked = any(variable.blocks)
        self.masks = parse_numbers(variable.masks, "fm")
        self.codecs = _parse_codecs(variable, self.stored_dtype)
        self.is_contiguous = not variable.chunk_sizes and not self.codecs
        if variable.chunk_sizes:
            self.chunk = parse_integers(variable.chunk_sizes)
            if len(self.chunk) != len(self.shape) or 0 in self.chunk:
                raise ValueError(
                    f"its chunks have the sizes {self.chunk}: expected a size of at least 1 for each of "
                    f"{len(self.shape)} dimensions"
                )
        elif self.is_contiguous and variable.inline is None and not self.is_linked:
            self.chunk = choose_chunks(self.shape, self.stored_dtype.itemsize)
        else:
            self.chunk = tuple(max(extent, 1) for extent in self.shape)
        self.fill_element = self._parse_fill()
        self.recipe = self._make_recipe()
        self.shown_codecs = self.codecs if self.recipe is None else []
        self.size = math.prod(self.chunk) * self.dtype.itemsize
        if self.size > MOST_DECODED:
            raise ValueError(f"its chunks of {self.chunk} have {self.size} bytes: expected at most {MOST_DECODED}")

    def _choose_dtype(self, names: _Dimensions) -> np.dtype[Any]:
        variable = self.variable
        order = ">" if variable.byte_order == "BE" else "<"
        if variable.type == STRUCTURE:
            shapes = [names.find_shape(member) for member in variable.members]
            if variable.inline is None or not any(member.type in TEXTS for member in variable.members):
                return make_structure(variable, shapes, order)
            data = _decode_values(variable, MOST_INLINE)
            self._values = decode_values_with_texts(variable, self.shape, shapes, data, MOST_INLINE)
            dtype: np.dtype[Any] = self._values.dtype
            return dtype
        if variable.type not in TEXTS:
            return np.dtype(order + NUMBERS[variable.type])
        length = variable.string_length
        stored_size = 0 if variable.compression else sum(map(int, parse_numbers(variable.sizes, "nBytes")))
        if variable.inline is not None:
            stored_size = len(_decode_values(variable, LONGEST))
        count = math.prod(self.shape)
        if variable.chunk_sizes and variable.sizes:  # chunks at the edge are stored whole, so all have the same size
            stored_size, count = stored_size // len(variable.sizes), math.prod(parse_integers(variable.chunk_sizes))
        if length is None and count and stored_size % count == 0:
            length = stored_size // count
            if length == REFERENCE and variable.inline is None:
                raise ValueError(
                    f"its values of {length} bytes may be texts or references to texts, and the document has no length "
                    "of its texts: open the file itself"
                )
        if not length:
            raise ValueError("expected a length of its texts in the document, found none: open the file itself")
        if length > LONGEST:
            raise ValueError(f"its texts have {length} bytes: expected at most {LONGEST}")
        return np.dtype(f"S{length}")

    def _make_recipe(self) -> ElementsRecipe | None:
        """Return the recipe that decodes chunks to ``dtype``; None if zarr's codecs can do that."""
        padding = PADDINGS.get(self.variable.padding, "null-padded") if self.dtype.kind == "S" else "null-padded"
        is_plain = (
            padding == "null-padded" and self.stored_dtype == self.dtype and not self.is_linked and not self.masks.any()
        )
        if self.is_vlen or is_plain:
            return None
        steps = tuple([json.dumps(codec) for codec in self.codecs])
        fields = tuple(
            (name, dtype.base.str, dtype.shape, offset)
            for name, (dtype, offset, *_) in (self.stored_dtype.fields.items() if self.stored_dtype.fields else ())
        )
        return ElementsRecipe(
            steps, math.prod(self.chunk), self.stored_dtype.itemsize, self.dtype.itemsize, padding, fields
        )

    def describe(self, zarr_format: int) -> ArrayDescription:
        """Describe the array for zarr's metadata."""
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
        """The attribute ``_FillValue`` as zarr's fill value; None if missing, or not a number of the data type."""
        value = self.variable.attributes.get("_FillValue")
        return convert_fill_value(value, self.dtype) if self.dtype.kind in "iuf" else None

    def make_chunks(self, targets: _Targets) -> Chunks:
        """Return the chunks of the array. The document has their values or their locations."""
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
            if size != math.prod(self.shape) * self.stored_dtype.itemsize:
                expected = f"expected {math.prod(self.shape)} elements of {self.stored_dtype.itemsize} bytes"
                raise ValueError(f"it has {size} bytes (nBytes): {expected}")
            source = Span(targets.find_url(variable.hrefs[0]), 0, offset + size)
            contiguous = Contiguous(source, offset, self.shape, self.chunk, self.stored_dtype.itemsize, self.where)
            return contiguous if self.recipe is None else ConvertedChunks(contiguous, self.recipe, self.where)
        return ListedChunks(self, targets)

    def _link_blocks(self, targets: _Targets) -> Chunks:
        """Return chunks that are divided into linked blocks, as in HDF4."""
        variable, recipe = self.variable, self.recipe
        assert recipe is not None
        offsets, sizes = (
            parse_numbers(*column).tolist() for column in ((variable.offsets, "offset"), (variable.sizes, "nBytes"))
        )
        first_blocks = [index for index, number in enumerate(variable.blocks) if number in ("", "0")]
        if first_blocks[:1] != [0]:
            raise ValueError(f"its first linked block has the LinkedBlockIndex {variable.blocks[0]!r}: expected 0")
        if len(set(variable.hrefs)) != 1:
            raise ValueError("its linked blocks lie in several files: expected a single file")
        chunk_numbers = _number_chunks([variable.positions[index] for index in first_blocks], self).tolist()
        block_places = [
            list(zip(offsets[start:stop], sizes[start:stop], strict=True))
            for start, stop in pairwise([*first_blocks, len(offsets)])
        ]
        end = max(map(sum, zip(offsets, sizes, strict=True)))
        chunks = {
            chunk_number: (places, recipe.drop_codecs(int(self.masks[index])))
            for chunk_number, places, index in zip(chunk_numbers, block_places, first_blocks, strict=True)
        }
        if end >= COUNTABLE:
            raise ValueError(f"a chunk ends at byte {end}: expected less than 2**63")
        if len(chunks) < len(chunk_numbers):
            twice = next(number for number in chunk_numbers if chunk_numbers.count(number) > 1)
            raise ValueError(f"it has chunk {twice} twice: expected one chunk at each position")
        source = Span(targets.find_url(variable.hrefs[0]), 0, end)
        return RecipeChunks(source, self.describe(2).grid(2), chunks)

    def _decode_inline(self, targets: _Targets) -> bytes:
        expected = math.prod(self.shape) * self.dtype.itemsize
        targets.count_inline(expected)
        if self._values is not None:
            return self._values.astype(self.dtype).tobytes()
        data = _decode_values(self.variable, expected, expected if expected == self.dtype.itemsize else None)
        if len(data) != expected:
            raise ValueError(f"its values in the document have {len(data)} bytes: expected {expected}")
        if self.recipe is not None:  # structures in the document need no conversion
            return data if self.dtype.names is not None else self.recipe.convert(data)
        return encode_chunk(data, self.codecs)

    def _encode_texts(self, targets: _Targets) -> bytes:
        """Encode the texts in the document. If no text was written, each element is the fill value."""
        texts, count = self.variable.texts, math.prod(self.shape)
        if self.is_filled:
            fill = self.variable.fill or ""
            targets.count_inline(count * (len(fill) + REFERENCE))
            texts = [fill] * count
        if len(texts) != count:
            raise ValueError(f"it has {len(texts)} texts: expected {count} for its shape {self.shape}")
        return encode_chunk(np.array(texts, object), [{"id": "vlen-utf8"}])

    def _parse_fill(self) -> bytes | None:
        """Return the bytes of an element of an unwritten chunk; None if they are unknown."""
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
    """Recipe: decode a chunk of ``count`` elements with ``codecs`` (JSON), and convert its elements for zarr.

    An element has ``stored_size`` bytes before the conversion and ``shown_size`` after it. The ``padding`` of texts and
    the gaps between members of structures are removed; ``fields`` are (name, type, shape, offset) of each member.
    """

    codecs: tuple[str, ...]
    count: int
    stored_size: int
    shown_size: int
    padding: Padding = "null-padded"
    fields: tuple[tuple[str, str, tuple[int, ...], int], ...] = ()

    @property
    def size(self) -> int:
        return self.shown_size * self.count

    def drop_codecs(self, mask: int) -> ElementsRecipe:
        """Return the recipe for a chunk that skips the codecs in ``mask``: codec N if bit N is set."""
        codecs = tuple(codec for number, codec in enumerate(self.codecs) if not mask >> number & 1)
        return msgspec.structs.replace(self, codecs=codecs)

    def make(self, raw: bytes) -> bytes:
        expected = self.stored_size * self.count
        limit = expected + 4 * len(self.codecs)  # a codec may add a checksum of four bytes
        for codec in map(json.loads, reversed(self.codecs)):
            if codec["id"] == "zlib":
                raw = decompress(zlib.decompressobj(), raw, limit)
            else:
                from numcodecs import get_codec  # slow to import, and few files need it

                try:
                    raw = bytes(get_codec(codec).decode(raw))
                except (RuntimeError, TypeError) as e:
                    raise ValueError(f"the codec {codec['id']} cannot decode the chunk: {e}") from e
        if len(raw) > expected or (self.codecs and len(raw) < expected):
            raise ValueError(f"the chunk decodes to {len(raw)} bytes: expected {expected}")
        return self.convert(raw.ljust(expected, b"\0"))  # the last chunk of a contiguous array may be shorter

    def convert(self, data: bytes) -> bytes:
        """Convert elements from their bytes in the file to the type in zarr's metadata."""
        if not self.fields:
            return (
                data
                if self.padding == "null-padded"
                else remove_padding(np.frombuffer(data, f"S{self.stored_size}"), self.padding).tobytes()
            )
        stored_dtype = make_dtype(self.fields, self.stored_size)
        return np.frombuffer(data, stored_dtype).astype(pack_members(stored_dtype)).tobytes()


class ConvertedChunks(Chunks):
    """The chunks of a contiguous array whose elements a recipe converts."""

    def __init__(self, contiguous: Contiguous, recipe: ElementsRecipe, label: str) -> None:
        self._contiguous = contiguous
        self._recipe = recipe
        self._where = label

    def find_entry(self, number: int) -> Steps[Entry | None]:
        entry = yield from self._contiguous.find_entry(number)
        assert entry is not None
        source = entry.source if isinstance(entry, Packed) else entry
        return make_entry(source, self._recipe, self._recipe.size, self._where)


class ListedChunks(FilledChunks):
    """The chunks of one array that the document lists, as columns that are sorted by chunk number."""

    def __init__(self, array: _Array, targets: _Targets) -> None:
        variable, shown_fill = array.variable, array.shown_fill
        fill_element = array.fill_element
        fills_itself = (
            shown_fill is not None
            and fill_element is not None
            and shown_fill == encode_fill_value(fill_element, array.dtype)
        )
        super().__init__(array.where, array.describe(2).grid(2), array.size, fills_itself=fills_itself)
        self._array = array
        numbers = _number_chunks(variable.positions, array)
        order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[order]
        if (self._numbers[1:] == self._numbers[:-1]).any():
            twice = self._numbers[(self._numbers[1:] == self._numbers[:-1]).argmax()]
            raise ValueError(f"it has chunk {twice} twice: expected one chunk at each position")
        self._offsets = parse_numbers(variable.offsets, "offset")[order]
        self._sizes = parse_numbers(variable.sizes, "nBytes")[order]
        expected = math.prod(array.chunk) * array.stored_dtype.itemsize
        largest = 2 * expected + 4096 if array.codecs else expected
        smallest = 0 if array.codecs else expected
        if ((self._sizes > largest) | (self._sizes < smallest)).any():
            sizes = f"{self._sizes.min()} to {self._sizes.max()} bytes (nBytes)"
            raise ValueError(f"its chunks have {sizes}: expected {smallest} to {largest} for {expected} decoded bytes")
        if (self._offsets > COUNTABLE - 1 - self._sizes).any():
            raise ValueError(f"a chunk begins at byte {self._offsets.max()}: expected it to end before byte 2**63")
        self._masks = array.masks[order]
        self._urls = [targets.find_url(href) for href in dict.fromkeys(variable.hrefs)]
        codes = {href: code for code, href in enumerate(dict.fromkeys(variable.hrefs))}
        self._targets = np.array([codes[href] for href in variable.hrefs], np.uint32)[order]

    def encode_fill(self) -> bytes:
        array = self._array
        if array.fill_element is None:
            found = f"a chunk was never written, and its fillValue is {array.variable.fill!r}"
            raise ValueError(f"{found}: expected a text of at most {array.dtype.itemsize} bytes")
        return encode_chunk(array.fill_element * math.prod(array.chunk), array.shown_codecs)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        row = int(np.searchsorted(self._numbers, np.uint64(number)))
        if row < len(self._numbers) and self._numbers[row] == number:
            start = int(self._offsets[row])
            span = Span(self._urls[self._targets[row]], start, start + int(self._sizes[row]))
            recipe = self._array.recipe
            return (
                span
                if recipe is None
                else make_entry(span, recipe.drop_codecs(int(self._masks[row])), recipe.size, self.where)
            )
        try:
            return self.make_unwritten_entry()
        except ValueError as e:
            raise ManifestError(f"{self.where}: {e}") from e

    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return self.list_written(self._numbers, self._sizes.tolist())


def _number_chunks(positions: Sequence[str], array: _Array) -> UInt64s:
    """Return the numbers of the chunks at ``positions``, texts such as ``[0,50]``; an empty text is the first chunk."""
    if not array.shape or not positions:
        return np.zeros(len(positions), np.uint64)
    dimensions = len(array.shape)
    origin = "[" + ",".join("0" * dimensions) + "]"
    texts = [position.strip() or origin for position in positions]
    wrong = [text for text in texts if text.count(",") != dimensions - 1 or text[0] != "[" or text[-1] != "]"]
    if wrong:
        raise ValueError(f"a chunk begins at {wrong[0]}: expected {dimensions} numbers in brackets")
    coords = parse_numbers(",".join([text[1:-1] for text in texts]).split(","), "chunkPositionInArray").reshape(
        -1, dimensions
    )
    is_wrong = (coords % array.chunk != 0).any(axis=1) | (coords >= array.shape).any(axis=1)
    if is_wrong.any():
        where = texts[int(is_wrong.argmax())]
        raise ValueError(f"a chunk begins at {where}: expected multiples of {array.chunk} within {array.shape}")
    counts = tuple(-(-extent // chunk) for extent, chunk in zip(array.shape, array.chunk, strict=True))
    if math.prod(counts) >= COUNTABLE:
        raise ValueError(f"it has {math.prod(counts)} chunks: expected less than 2**63")
    numbers: UInt64s = np.ravel_multi_index(tuple((coords // array.chunk).T), counts).astype(np.uint64)
    return numbers


def _parse_codecs(variable: Variable, dtype: np.dtype[Any]) -> Codecs:
    """Return the codecs of zarr for the filters of chunks, in the order of encoding."""
    codecs: Codecs = []
    added = 0  # bytes of checksums
    levels = list(parse_integers(variable.levels)) if variable.levels else []
    for name in variable.compression.split():
        match name:
            case "deflate":
                codecs.append({"id": "zlib", "level": min(levels.pop(0), 9) if levels else 6})
            case "shuffle":
                if added % dtype.itemsize:  # HDF5 does not shuffle the rest; zarr's codec needs whole elements
                    raise ValueError(
                        f"its elements of {dtype.itemsize} bytes are shuffled with a checksum of {added} bytes, "
                        "which no zarr codec can decode: open the HDF5 file itself"
                    )
                codecs.append({"id": "shuffle", "elementsize": dtype.itemsize})
            case "fletcher32":
                codecs.append({"id": "fletcher32"})
                added += 4
            case _:
                expected = "expected deflate, shuffle or fletcher32; try to open the file itself"
                raise ValueError(f"its chunks are compressed with {name!r}: {expected}")
    return codecs


def _decode_values(variable: Variable, limit: int, single: int | None = None) -> bytes:
    """Decode the values in the document. Raise ValueError if they are damaged or more than ``limit`` bytes.

    ``single`` is the size of the value in bytes if there is only one; None for several values.
    """
    assert variable.inline is not None
    element, text = variable.inline
    data = base64.b64decode("".join(text.split()), validate=True)
    if element == "missingdata" and len(data) != single:  # Hyrax stores a single value uncompressed
        try:
            data = zlib.decompressobj().decompress(data, limit + 1)
        except zlib.error as e:
            raise ValueError(f"its values in the document: expected a zlib stream, found an error: {e}") from None
    if len(data) > limit:
        raise ValueError(f"its values in the document: expected at most {limit} bytes, found more")
    return data

"""Chunks that are joined from pieces of others: of parts whose chunks are cut otherwise. No I/O here.

Months have 28 to 31 days, and leap years one more: where the parts' chunks do not meet the cube's, a chunk of the cube
takes pieces of its neighbours. It is shown without a codec: who reads it decodes nothing twice. A piece of a chunk
without a codec that lies in one range is that range.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import MOST, promised
from refshard_fs.core.dtypes import dtype_of, fill_of, plain_document
from refshard_fs.core.model import Entry, Inline, Packed, Recipe, Span
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.recoding import Recoding, decode_chunk, encode_chunk

Box = tuple[tuple[int, int], ...]  # elements [start, stop) along each dimension

PIECES: Final = 4096  # of which a chunk is joined; each may be a request
READ: Final = 1 << 30  # bytes, decoded, of the chunks that one chunk takes pieces of


# ----------------------------------------------------------------------------------------------------
# How an array is cut.


def commonest(chunks: Sequence[tuple[Sequence[int], int]], axis: int) -> tuple[int, ...]:
    """Return the shape of chunks that cuts the least: along each dimension, the length that most elements are in.

    ``chunks`` are those of the parts, each with its length along ``axis``; a chunk is no longer than its part there,
    whatever room it has (files of one day whose chunks have room for 512).
    """
    counters = [Counter[int]() for _ in chunks[0][0]]
    for shape, length in chunks:
        for k, (counter, size) in enumerate(zip(counters, shape, strict=True)):
            counter[min(size, length) if k == axis else size] += length
    return tuple(max(1, max(counter, key=lambda size: (counter[size], size))) for counter in counters)


def check_recut(path: str, meta: ArrayMeta, name: str) -> None:
    """Raise ManifestError, which names the set, unless chunks of its array ``path`` can be taken in pieces."""
    dtype = dtype_of(meta)
    try:
        if dtype is None or meta.chunks is None or meta.grid is None:
            raise ValueError("they are no numbers in chunks of one size")
        promised(meta)  # before a chunk of that size is made
        if decode_chunk(meta, encode_chunk(meta, np.zeros(meta.chunks, dtype))) is None:
            raise ValueError("they cannot be decoded here")
    except ValueError as e:
        raise ManifestError(
            f"the chunks of {path!r} of {name} do not meet those of the other sets, and cannot be taken in pieces: {e}"
        ) from e


class Recut(NamedTuple):
    """An array as it is shown: its metadata, the shape of its chunks, and the type of their elements."""

    meta: ArrayMeta
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, first: ArrayMeta, shape: Sequence[int], chunks: tuple[int, ...], where: str) -> Recut:
        """Return how the array is shown that is ``first`` in the first part; ManifestError where it cannot be."""
        dtype = dtype_of(first)
        if dtype is None or len(chunks) != len(shape):
            raise ManifestError(f"{where} cannot be shown in chunks of {list(chunks)}")
        if math.prod(chunks) * dtype.itemsize > MOST:
            raise ManifestError(
                f"{where}: chunks of {list(chunks)} have more than the {MOST:,} bytes that are made here"
            )
        meta = zarrmeta.array_meta(plain_document(first, shape, chunks), where)
        assert meta is not None, "an array's metadata are an array's"
        return cls(meta, chunks, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))

    @property
    def nbytes(self) -> int:
        """Size of a chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def fill(self) -> npt.NDArray[Any]:
        """What stands for elements that are nowhere."""
        return np.asarray(fill_of(self.meta, self.dtype), self.dtype)


class Wanted(NamedTuple):
    """A piece that is wanted: the coordinates of its chunk, the elements of that, and where they go."""

    coords: tuple[int, ...]
    box: Box
    place: Box


def wanted(
    recut: Recut, coords: Sequence[int], start: int, axis: int, part: ArrayMeta, *, is_last: bool
) -> list[Wanted]:
    """Return the pieces of a part, which begins at ``start`` along ``axis``, that the chunk at ``coords`` takes.

    Where the array ends with the part, what is behind the end in the part's chunks is taken with them. ValueError
    where that are too many.
    """
    bounds: list[tuple[int, int, int, int]] = []  # along each dimension: where the chunk begins, low, high, theirs
    sizes = part.chunks or ()
    for k, (coord, size, theirs, extent) in enumerate(zip(coords, recut.chunks, sizes, part.shape, strict=True)):
        first = coord * size - (start if k == axis else 0)
        end = extent if k == axis and not is_last else -(-extent // theirs) * theirs
        bounds.append((first, max(first, 0), min(first + size, end), theirs))
    count = math.prod(-(-high // theirs) - low // theirs for _, low, high, theirs in bounds)
    if count > PIECES:
        raise ValueError(f"a chunk takes pieces of {count:,} others, and at most of {PIECES:,}: choose smaller chunks")
    along = []
    for first, low, high, theirs in bounds:
        found = []
        for number in range(low // theirs, -(-high // theirs)):
            begin, stop = max(low, number * theirs), min(high, (number + 1) * theirs)
            found.append((number, (begin - number * theirs, stop - number * theirs), (begin - first, stop - first)))
        along.append(found)
    return [Wanted(*map(tuple, zip(*piece, strict=True))) for piece in itertools.product(*along)]


# ----------------------------------------------------------------------------------------------------
# What pieces are made of, and what they are made into.


class Source(msgspec.Struct, frozen=True):
    """A part's array: its metadata as JSON, and how its values become those of the array that is shown."""

    document: bytes
    dtype: str  # of the array that is shown
    where: str
    recoding: Recoding | None = None

    @classmethod
    def of(cls, meta: ArrayMeta, recut: Recut, recoding: Recoding | None, where: str) -> Source:
        return cls(zarrmeta.dumps({**meta.raw, "attributes": {}}), recut.dtype.str, where, recoding)

    @property
    def meta(self) -> ArrayMeta:
        return _meta(self.document)

    def tail(self, coords: Sequence[int]) -> str:
        """Return the key of a chunk, relative to the array."""
        grid = self.meta.grid
        assert grid is not None, "`check_recut` has seen that its chunks are known"
        return grid.encoding.encode(coords)

    def absent(self) -> npt.NDArray[Any]:
        """Return the one value of elements that are in no chunk, as it is shown."""
        dtype = dtype_of(self.meta)
        assert dtype is not None, "only arrays of numbers are recut"
        fill = np.full(1, fill_of(self.meta, dtype), dtype)
        return (fill if self.recoding is None else self.recoding.converted(fill)).astype(self.dtype)

    def piece(self, found: Entry, box: Box) -> Entry:
        """Return the entry of the elements ``box`` of the chunk at ``found``."""
        cut = Cut(self, box)
        place = self._range(box)
        if place is not None:
            return found.part(*place)
        match found:
            case Inline(data):
                return Inline(cut.make(data))
            case Span():
                return Packed(found, cut, cut.size)
        return Packed(found.source, cut, cut.size, parts=(found,))

    def _range(self, box: Box) -> tuple[int, int] | None:
        """Return offset and length of elements that lie together in a chunk as it is stored."""
        if self.recoding is not None or not is_plain(self.meta):
            return None
        return contiguous(self.meta.chunks or (), box, np.dtype(self.dtype).itemsize)


@lru_cache(256)
def _meta(document: bytes) -> ArrayMeta:
    meta = zarrmeta.array_meta(zarrmeta.loads(document), "an array that is recut")
    assert meta is not None, "`Source.of` wrote it"
    return meta


def is_plain(meta: ArrayMeta) -> bool:
    """Whether chunks are the elements themselves, in C order (of version 3: little-endian)."""
    if meta.zarr_format == 2:
        return not meta.raw.get("compressor") and not meta.raw.get("filters") and meta.order == "C"
    match meta.raw.get("codecs"):
        case ["bytes"] | [{"name": "bytes", "configuration": {"endian": "little"}}]:
            return True
        case [{"name": "bytes"}]:
            dtype = dtype_of(meta)
            return dtype is not None and dtype.itemsize == 1
    return False


def contiguous(chunks: Sequence[int], box: Box, itemsize: int) -> tuple[int, int] | None:
    """Return offset and length, in bytes, of the elements ``box`` of a chunk in C order; None if apart."""
    offset, length, is_whole = 0, itemsize, True
    step = itemsize
    for size, (start, stop) in zip(reversed(chunks), reversed(box), strict=True):
        if not is_whole and stop - start != 1:
            return None
        is_whole &= stop - start == size
        offset += start * step
        length *= stop - start
        step *= size
    return offset, length


class Cut(msgspec.Struct, frozen=True):
    """Makes the elements ``box`` of a chunk."""

    source: Source
    box: Box

    @property
    def size(self) -> int:
        return math.prod(stop - start for start, stop in self.box) * np.dtype(self.source.dtype).itemsize

    def make(self, raw: bytes) -> bytes:
        values = decode_chunk(self.source.meta, raw)
        if values is None:
            raise ValueError(f"{self.source.where}: its chunks cannot be decoded here")
        values = values[tuple(slice(start, stop) for start, stop in self.box)]
        if self.source.recoding is not None:
            values = self.source.recoding.converted(values)
        return np.ascontiguousarray(values, self.source.dtype).tobytes()


class Placed(msgspec.Struct, frozen=True):
    """Makes a chunk of its pieces, each of which goes to one of ``places``; elsewhere it has ``fill``."""

    shape: tuple[int, ...]
    dtype: str
    fill: bytes
    places: tuple[Box, ...]

    def make(self, raw: bytes) -> bytes:
        out = np.full(self.shape, np.frombuffer(self.fill, self.dtype), self.dtype)
        at = 0
        for place in self.places:
            shape = [stop - start for start, stop in place]
            size = math.prod(shape) * out.itemsize
            piece = np.frombuffer(raw[at : at + size], self.dtype).reshape(shape)
            out[tuple(slice(start, stop) for start, stop in place)] = piece
            at += size
        return out.tobytes()


def joined(recut: Recut, pieces: Sequence[tuple[Source, Wanted, Entry | None]]) -> Entry:
    """Return the entry of a chunk, given those of the chunks that it takes pieces of; None: no such chunk."""
    fill = recut.fill
    whole = tuple((0, size) for size in recut.chunks)
    parts: list[Entry] = []
    places: list[Box] = []
    for source, piece, found in pieces:
        if found is None:
            absent = source.absent()
            if absent.tobytes() == fill.tobytes():
                continue
            part: Entry = Inline(np.full([b - a for a, b in piece.place], absent).tobytes())
        else:
            part = source.piece(found, piece.box)
        if piece.place == whole:
            return part
        parts.append(part)
        places.append(piece.place)
    recipe: Recipe = Placed(recut.chunks, recut.dtype.str, fill.tobytes(), tuple(places))
    spans = [span for part in parts if not isinstance(part, Inline) for span in part.spans]
    if not spans:
        return Inline(recipe.make(b"".join(part.data for part in parts if isinstance(part, Inline))))
    return Packed(spans[0], recipe, recut.nbytes, parts=tuple(parts))


def check_pieces(pieces: Sequence[ArrayMeta]) -> None:
    """Raise ValueError where a chunk takes pieces, each of a chunk of an array, of too many or of too large ones."""
    size = sum(math.prod(meta.chunks or ()) * _itemsize(meta) for meta in pieces)
    if len(pieces) > PIECES or size > READ:
        raise ValueError(
            f"a chunk takes pieces of {len(pieces):,} others, {size:,} bytes in all, and at most {PIECES:,} of "
            f"{READ:,} bytes are read for one: choose smaller chunks"
        )


def _itemsize(meta: ArrayMeta) -> int:
    dtype = dtype_of(meta)
    return 1 if dtype is None else dtype.itemsize

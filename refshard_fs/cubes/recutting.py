"""Chunks that are joined from sections of the pieces' chunks, where these have other lengths. No I/O here.

Months have 28 to 31 days, and leap years one more: where the pieces' chunks do not meet the cube's, a chunk of the cube
takes sections of several. It is shown without a codec, so that nothing is decoded twice. A section of a chunk without a
codec that lies in one range is read as that range.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import MOST, chunk_limits
from refshard_fs.core.dtypes import dtype_of, fill_of, plain_document
from refshard_fs.core.model import Entry, Inline, Packed, Recipe, Span
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.recoding import Recoding, decode_chunk, encode_chunk
from refshard_fs.errors import ManifestError

Box = tuple[tuple[int, int], ...]  # elements [start, stop) along each dimension

SECTIONS: Final = 4096  # the most sections that a chunk is joined from; each may be a request
READ: Final = 1 << 30  # bytes, decoded, of the chunks that one chunk takes sections of


# ----------------------------------------------------------------------------------------------------
# How an array is cut.


def commonest(chunks: Sequence[tuple[Sequence[int], int]], axis: int) -> tuple[int, ...]:
    """Return the shape of chunks that cuts the least: along each dimension, the chunk length that most elements have.

    ``chunks`` are those of the pieces, each with its length along ``axis``. A chunk counts as no longer than its piece
    there (a file of one day may have chunks for 512).
    """
    counters = [Counter[int]() for _ in chunks[0][0]]
    for shape, length in chunks:
        for k, (counter, size) in enumerate(zip(counters, shape, strict=True)):
            counter[min(size, length) if k == axis else size] += length
    return tuple(max(1, max(counter, key=lambda size: (counter[size], size))) for counter in counters)


def check_recut(path: str, meta: ArrayMeta, name: str) -> None:
    """Raise ManifestError, which names the set, unless chunks of its array ``path`` can be taken in sections."""
    dtype = dtype_of(meta)
    try:
        if dtype is None or meta.chunks is None or meta.grid is None:
            raise ValueError("expected numbers, in chunks of one size")
        chunk_limits(meta)  # before a chunk of that size is made
        if decode_chunk(meta, encode_chunk(meta, np.zeros(meta.chunks, dtype))) is None:
            raise ValueError("they cannot be decoded here")
    except ValueError as e:
        raise ManifestError(
            f"the chunks of {path!r} of {name} begin inside chunks of other sets, and cannot be cut: {e}"
        ) from e


class Recut(NamedTuple):
    """An array as it is shown: its metadata, the shape of its chunks, and the type of their elements."""

    meta: ArrayMeta
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, first: ArrayMeta, shape: Sequence[int], chunks: tuple[int, ...], where: str) -> Recut:
        """Return how the array is shown that is ``first`` in the first piece; ManifestError where it cannot be."""
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
        """The value of elements that no piece has."""
        return np.asarray(fill_of(self.meta, self.dtype), self.dtype)


class Placement(msgspec.Struct, frozen=True, dict=True):
    """The places of a piece's elements along a dimension, if the piece has only some: runs, in the piece's order.

    A run is the place of its first element, and its length. If ``shown`` is given, only elements at the first ``shown``
    places are shown.
    """

    runs: tuple[tuple[int, int], ...]
    shown: int | None = None

    @classmethod
    def of_slice(cls, start: int, length: int, total: int) -> Placement:
        """Return the places of a piece's elements ``[start, start + length)``; the piece has ``total`` elements."""
        return cls(((-start, total),), length)

    @classmethod
    def of(cls, places: npt.NDArray[np.int64]) -> Placement:
        """Return the runs of elements, given the place of each."""
        starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        return cls(tuple((int(places[a]), b - a) for a, b in itertools.pairwise(starts) if b > a))

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first element of each run, and of all elements."""
        return list(accumulate((length for _, length in self.runs), initial=0))

    @property
    def length(self) -> int:
        return self.starts[-1]

    @cached_property
    def _ascending(self) -> list[tuple[int, int, int]]:
        """All runs by their place: the place, the number of the first element, and the length."""
        return sorted((at, start, length) for (at, length), start in zip(self.runs, self.starts, strict=False))

    def within(self, begin: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs in the places ``[begin, stop)``, cut to these: place, first element and length."""
        if self.shown is not None:
            begin, stop = max(begin, 0), min(stop, self.shown)
        first = max(bisect_right(self._ascending, (begin, stop, 0)) - 1, 0)
        for number in range(first, len(self._ascending)):
            at, start, length = self._ascending[number]
            low, high = max(at, begin), min(at + length, stop)
            if at >= stop:
                return
            if low < high:
                yield low, start + low - at, high - low

    def element(self, place: int) -> int | None:
        """Return the number of the element at a place; None if the piece has none there."""
        return next((start for _, start, _ in self.within(place, place + 1)), None)

    def place(self, element: int) -> int | None:
        """Return the place of an element; None if the piece has not so many, or does not show it."""
        run = bisect_right(self.starts, element) - 1
        at = self.runs[run][0] + element - self.starts[run] if element < self.length else -1
        return at if at >= 0 and (self.shown is None or at < self.shown) else None

    def places(self, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of elements that the piece has; -1 for elements that it does not show."""
        run = np.searchsorted(self.starts, elements, side="right") - 1
        at = np.array([at for at, _ in self.runs], np.int64)[run] + elements - np.array(self.starts, np.int64)[run]
        return at if self.shown is None else np.where(at < self.shown, np.maximum(at, -1), -1)

    def elements(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the elements at ``places``; -1 where the piece has none."""
        if not self.runs:
            return np.full(len(places), -1)
        at, first, length = np.array(self._ascending, np.int64).T
        run = np.searchsorted(at, places, side="right") - 1
        return np.where((run >= 0) & (places < at[run] + length[run]), first[run] + places - at[run], -1)

    def in_chunks(self, size: int, total: int) -> Placement | None:
        """Return the places of chunks of ``size`` in an array of length ``total``; None where a chunk is divided."""
        if self.shown is not None:  # only the last piece may end within a chunk, which readers cut
            ((at, length),) = self.runs
            is_divided = size < 1 or at % size
            return None if is_divided else Placement(((at // size, -(-length // size)),), -(-self.shown // size))
        runs: list[tuple[int, int]] = []
        for (at, length), start in zip(self.runs, self.starts, strict=False):
            is_end = at + length == total and start + length == self.length
            if size < 1 or at % size or start % size or (length % size and not is_end):
                return None
            runs.append((at // size, -(-length // size)))
        return Placement(tuple(runs))

    def check(self, total: int) -> None:
        """Raise ValueError unless the runs lie apart from each other, in ``total`` places."""
        ends = [0, *(at + length for at, _, length in self._ascending)]
        begins = [*(at for at, _, _ in self._ascending), total]
        are_apart = all(end <= begin for end, begin in zip(ends, begins, strict=True))
        if not are_apart or min((length for _, length in self.runs), default=1) < 1:
            raise ValueError(f"expected places below {total:,} as runs, got {list(self.runs)!r:.100}")


class Section(NamedTuple):
    """A section of a piece's chunk: the chunk's coordinates, the elements that are taken, and where they go."""

    coords: tuple[int, ...]
    box: Box
    place: Box


def cut_sections(
    recut: Recut,
    coords: Sequence[int],
    start: int,
    axis: int,
    piece: ArrayMeta,
    placements: Mapping[int, Placement] = {},
    *,
    is_last: bool,
) -> list[Section]:
    """Return the sections of a piece, which begins at ``start`` along ``axis``, that the chunk at ``coords`` takes.

    ``placements`` are, by axis, the places of a piece's elements where it has only some. Where the array ends with the
    piece, elements beyond the end in the piece's chunks are taken as well. ValueError if there are too many sections.
    """
    # For each dimension the length of the piece's chunks, and the runs that are taken: place, first element, end.
    bounds: list[tuple[int, list[tuple[int, int, int]]]] = []
    sizes = piece.chunks or ()
    for k, (coord, size, theirs, extent) in enumerate(zip(coords, recut.chunks, sizes, piece.shape, strict=True)):
        first = coord * size - (start if k == axis else 0)
        if k in placements:
            runs = [(at - first, low, low + n) for at, low, n in placements[k].within(first, first + size)]
        else:
            end = extent if k == axis and not is_last else -(-extent // theirs) * theirs
            low, high = max(first, 0), min(first + size, end)
            runs = [(low - first, low, high)] if low < high else []
        bounds.append((theirs, runs))
    count = math.prod(sum(-(-high // theirs) - low // theirs for _, low, high in runs) for theirs, runs in bounds)
    if count > SECTIONS:
        raise ValueError(
            f"a chunk takes pieces of {count:,} others, and at most of {SECTIONS:,}: choose smaller chunks"
        )
    along = []
    for theirs, runs in bounds:
        found = []
        for place, low, high in runs:
            for number in range(low // theirs, -(-high // theirs)):
                begin, stop = max(low, number * theirs), min(high, (number + 1) * theirs)
                shift = place - low
                found.append((number, (begin - number * theirs, stop - number * theirs), (begin + shift, stop + shift)))
        along.append(found)
    return [Section(*map(tuple, zip(*section, strict=True))) for section in itertools.product(*along)]


# ----------------------------------------------------------------------------------------------------
# Sections, and the chunks that are joined from them.


class PieceArray(msgspec.Struct, frozen=True):
    """A piece's array: its metadata as JSON, and how its values become those of the array that is shown."""

    document: bytes
    dtype: str  # of the array that is shown
    where: str
    recoding: Recoding | None = None

    @classmethod
    def of(cls, meta: ArrayMeta, recut: Recut, recoding: Recoding | None, where: str) -> PieceArray:
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
        """Return the value of elements whose chunk does not exist, as it is shown."""
        dtype = dtype_of(self.meta)
        assert dtype is not None, "only arrays of numbers are recut"
        fill = np.full(1, fill_of(self.meta, dtype), dtype)
        return (fill if self.recoding is None else self.recoding.convert(fill)).astype(self.dtype)

    def section(self, found: Entry, box: Box) -> Entry:
        """Return the entry of the elements ``box`` of the chunk at ``found``."""
        cut = Cut(self, box)
        place = self._range(box)
        if place is not None:
            found = found.part(*place)
            if not any(span.optional for span in found.spans):
                return found
            cut = Taken(self, box)
        match found:
            case Inline(data):
                return Inline(cut.make(data))
            case Span():
                return Packed(found, cut, cut.size)
        return Packed(found.source, cut, cut.size, parts=(found,))

    def _range(self, box: Box) -> tuple[int, int] | None:
        """Return offset and length of elements that are one range of the stored chunk; None if they are not."""
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

    source: PieceArray
    box: Box

    @property
    def size(self) -> int:
        return math.prod(stop - start for start, stop in self.box) * np.dtype(self.source.dtype).itemsize

    def make(self, raw: bytes) -> bytes:
        try:
            values = decode_chunk(self.source.meta, raw)
        except ValueError as e:
            raise ValueError(f"{self.source.where}: {e}") from e
        if values is None:
            raise ValueError(f"{self.source.where}: its chunks cannot be decoded here")
        values = values[tuple(slice(start, stop) for start, stop in self.box)]
        if self.source.recoding is not None:
            values = self.source.recoding.convert(values)
        return np.ascontiguousarray(values, self.source.dtype).tobytes()

    def absent(self) -> bytes:
        """Return the elements of a chunk that does not exist."""
        return np.full([stop - start for start, stop in self.box], self.source.absent()).tobytes()


class Taken(Cut, frozen=True):
    """Takes the elements ``box`` of a chunk as they were read, alone."""

    def make(self, raw: bytes) -> bytes:
        return raw


class SectionJoiner(msgspec.Struct, frozen=True):
    """Makes a chunk from its sections, one for each of ``places``, and ``fill`` elsewhere."""

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
            section = np.frombuffer(raw[at : at + size], self.dtype).reshape(shape)
            out[tuple(slice(start, stop) for start, stop in place)] = section
            at += size
        return out.tobytes()


def join_sections(recut: Recut, sections: Sequence[tuple[PieceArray, Section, Entry | None]]) -> Entry:
    """Return the entry of a chunk, given its sections and the entries of their chunks (None: no such chunk)."""
    fill = recut.fill
    whole = tuple((0, size) for size in recut.chunks)
    parts: list[Entry] = []
    places: list[Box] = []
    for source, section, found in sections:
        if found is None:
            absent = source.absent()
            if absent.tobytes() == fill.tobytes():
                continue
            part: Entry = Inline(Cut(source, section.box).absent())
        else:
            part = source.section(found, section.box)
        if section.place == whole:
            return part
        parts.append(part)
        places.append(section.place)
    recipe: Recipe = SectionJoiner(recut.chunks, recut.dtype.str, fill.tobytes(), tuple(places))
    spans = [span for part in parts for span in part.spans]
    if not spans:
        return Inline(recipe.make(b"".join(part.data for part in parts if isinstance(part, Inline))))
    return Packed(spans[0], recipe, recut.nbytes, parts=tuple(parts))


def check_sections(sections: Sequence[ArrayMeta]) -> None:
    """Raise ValueError where a chunk takes too many sections, or of too large chunks; an array for each section."""
    size = sum(math.prod(meta.chunks or ()) * _itemsize(meta) for meta in sections)
    if len(sections) > SECTIONS or size > READ:
        raise ValueError(
            f"one chunk is joined from {len(sections):,} others of {size:,} bytes in all: expected at most "
            f"{SECTIONS:,} of {READ:,} bytes; choose smaller chunks"
        )


def _itemsize(meta: ArrayMeta) -> int:
    dtype = dtype_of(meta)
    return 1 if dtype is None else dtype.itemsize

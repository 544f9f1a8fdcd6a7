"""Join a chunk from sections of the pieces' chunks. No I/O here.

A section of a chunk without a codec that lies in one range is read as that range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import find_decoded_type, itemsize_of, parse_fill_value
from refshard_fs.core.model import Entry, Inline, Packed, Recipe, Span
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.chunk_codec import decode_chunk, describe_codecs
from refshard_fs.cubes.recoding import Recoding
from refshard_fs.cubes.recutting import SECTIONS, Box, Recut, Section
from refshard_fs.cubes.text_chunk import dump_texts, join_texts, split_texts

READ: Final = 1 << 30  # the most bytes, after decoding, of the chunks from whose sections one chunk is joined


class PieceArray(msgspec.Struct, frozen=True):
    """A piece's array: its metadata as JSON, and the conversion of its values to those of the shown array."""

    document: bytes
    dtype: str  # type of the shown array
    where: str
    recoding: Recoding | None = None

    @classmethod
    def of(cls, meta: ArrayMeta, recut: Recut, recoding: Recoding | None, where: str) -> PieceArray:
        return cls(zarrmeta.dumps({**meta.raw, "attributes": {}}), recut.dtype.str, where, recoding)

    @property
    def meta(self) -> ArrayMeta:
        return _parse_meta(self.document)

    def tail(self, coords: Sequence[int]) -> str:
        """Return the key of a chunk, relative to the array."""
        grid = self.meta.grid
        assert grid is not None, "`check_recut` checked that the chunks are known"
        return grid.encoding.encode(coords)

    def make_absent(self) -> npt.NDArray[Any]:
        """Return the shown value of elements whose chunk does not exist."""
        dtype = find_decoded_type(self.meta)
        assert dtype is not None, "only arrays of numbers or texts are recut"
        fill = np.full(1, parse_fill_value(self.meta, dtype), dtype)
        return (fill if self.recoding is None else self.recoding.convert(fill)).astype(self.dtype)

    def cut_section(self, found: Entry, box: Box) -> Entry:
        """Return the entry of the elements ``box`` of the chunk at ``found``."""
        cut = Cut(self, box)
        place = self._find_range(box)
        if place is not None:
            found = found.part(*place)
            if not any(span.optional for span in found.spans):
                return found
            cut = PlainCut(self, box)
        match found:
            case Inline(data):
                return Inline(cut.make(data))
            case Span():
                return Packed(found, cut, cut.size)
        return Packed(found.source, cut, cut.size, parts=(found,))

    def _find_range(self, box: Box) -> tuple[int, int] | None:
        """Return offset and length of elements that are one range of the stored chunk; None if they are not."""
        if self.recoding is not None or not is_plain(self.meta):
            return None
        return find_byte_range(self.meta.chunks or (), box, np.dtype(self.dtype).itemsize)


@lru_cache(256)
def _parse_meta(document: bytes) -> ArrayMeta:
    meta = zarrmeta.array_meta(zarrmeta.loads(document), "an array that is recut")
    assert meta is not None, "`PieceArray.of` wrote the document"
    return meta


def is_plain(meta: ArrayMeta) -> bool:
    """Return whether chunks are the elements in C order, without a codec (in version 3, little-endian)."""
    if meta.zarr_format == 2:
        return not meta.raw.get("compressor") and not meta.raw.get("filters") and meta.order == "C"
    match meta.raw.get("codecs"):
        case ["bytes"] | [{"name": "bytes", "configuration": {"endian": "little"}}]:
            return True
        case [{"name": "bytes"}]:
            return itemsize_of(meta) == 1
    return False


def find_byte_range(chunks: Sequence[int], box: Box, itemsize: int) -> tuple[int, int] | None:
    """Return offset and length of the bytes of the elements ``box`` of a chunk in C order; None if not contiguous."""
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
    """Decode a chunk, and make the bytes of its elements ``box``."""

    source: PieceArray
    box: Box

    @property
    def size(self) -> int | None:
        dtype = np.dtype(self.source.dtype)
        return None if dtype.kind == "O" else math.prod(stop - start for start, stop in self.box) * dtype.itemsize

    def make(self, raw: bytes) -> bytes:
        try:
            values = decode_chunk(self.source.meta, raw)
        except ValueError as e:
            raise ValueError(f"{self.source.where}: {e}") from e
        if values is None:
            raise ValueError(f"{self.source.where}: {describe_codecs(self.source.meta)}")
        values = values[tuple(slice(start, stop) for start, stop in self.box)]
        if self.source.recoding is not None:
            values = self.source.recoding.convert(values)
        return _dump(np.ascontiguousarray(values, self.source.dtype))

    def make_absent(self) -> bytes:
        """Return the elements of a chunk that does not exist."""
        return _dump(np.full([stop - start for start, stop in self.box], self.source.make_absent()))


class PlainCut(Cut, frozen=True):
    """Return the bytes of the elements ``box``, which were read without the rest of the chunk."""

    def make(self, raw: bytes) -> bytes:
        return raw


class SectionJoiner(msgspec.Struct, frozen=True):
    """Make a chunk from its sections, one for each of ``places``, with ``fill`` in all other places."""

    shape: tuple[int, ...]
    dtype: str
    fill: bytes
    places: tuple[Box, ...]

    def make(self, raw: bytes) -> bytes:
        if np.dtype(self.dtype).kind == "O":
            return self._join_texts(raw)
        out = np.full(self.shape, np.frombuffer(self.fill, self.dtype), self.dtype)
        at = 0
        for place in self.places:
            shape = [stop - start for start, stop in place]
            size = math.prod(shape) * out.itemsize
            section = np.frombuffer(raw[at : at + size], self.dtype).reshape(shape)
            out[tuple(slice(start, stop) for start, stop in place)] = section
            at += size
        return out.tobytes()

    def _join_texts(self, raw: bytes) -> bytes:
        (fill,), _ = split_texts(self.fill, 0, 1)
        out = np.full(self.shape, fill, object)
        at = 0
        for place in self.places:
            shape = [stop - start for start, stop in place]
            texts, at = split_texts(raw, at, math.prod(shape))
            section = np.empty(len(texts), object)
            section[:] = texts
            out[tuple(slice(start, stop) for start, stop in place)] = section.reshape(shape)
        return join_texts(out.reshape(-1).tolist())


def _dump(values: npt.NDArray[Any]) -> bytes:
    return dump_texts(values) if values.dtype.kind == "O" else values.tobytes()


def join_sections(recut: Recut, sections: Sequence[tuple[PieceArray, Section, Entry | None]]) -> Entry:
    """Return the entry of a chunk, from its sections and the entries of their chunks (None: no such chunk)."""
    fill = _dump(recut.fill)
    whole = tuple((0, size) for size in recut.chunks)
    parts: list[Entry] = []
    places: list[Box] = []
    for source, section, found in sections:
        if found is None:
            absent = source.make_absent()
            if _dump(absent) == fill:
                continue
            part: Entry = Inline(Cut(source, section.box).make_absent())
        else:
            part = source.cut_section(found, section.box)
        if section.place == whole:
            return part
        parts.append(part)
        places.append(section.place)
    recipe: Recipe = SectionJoiner(recut.chunks, recut.dtype.str, fill, tuple(places))
    spans = [span for part in parts for span in part.spans]
    if not spans:
        return Inline(recipe.make(b"".join(part.data for part in parts if isinstance(part, Inline))))
    return Packed(spans[0], recipe, recut.nbytes, parts=tuple(parts))


def check_sections(sections: Sequence[ArrayMeta]) -> None:
    """Raise ValueError if a chunk has too many sections, or too large chunks; ``sections`` has the array of each."""
    size = sum(math.prod(meta.chunks or ()) * (itemsize_of(meta) or 1) for meta in sections)
    if len(sections) > SECTIONS or size > READ:
        raise ValueError(
            f"one chunk is joined from {len(sections):,} other chunks of {size:,} bytes in all: expected at most "
            f"{SECTIONS:,} chunks, of {READ:,} bytes in all; choose smaller chunks"
        )

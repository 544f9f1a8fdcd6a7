"""Chunks that are joined from sections of the pieces' chunks, where these have other lengths. No I/O here.

Months have 28 to 31 days, and leap years one more: where the pieces' chunks do not meet the cube's, a chunk of the cube
takes sections of several. It is shown without a codec, so that nothing is decoded twice. A section of a chunk without a
codec that lies in one range is read as that range.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.compression import MOST, find_chunk_limits
from refshard_fs.core.dtypes import fill_of, find_decoded_type, make_plain_document
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.chunk_codec import blank_chunk, decode_chunk, encode_chunk
from refshard_fs.cubes.placement import Placement
from refshard_fs.errors import ManifestError

Box = tuple[tuple[int, int], ...]  # elements [start, stop) along each dimension
SECTIONS: Final = 4096  # the most sections that a chunk is joined from; each may be a request


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
    dtype = find_decoded_type(meta)
    try:
        if dtype is None or meta.chunks is None or meta.grid is None:
            raise ValueError("expected numbers or texts, in chunks of one size")
        find_chunk_limits(meta)  # before a chunk of that size is made
        if decode_chunk(meta, encode_chunk(meta, blank_chunk(meta, dtype))) is None:
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
        dtype = find_decoded_type(first)
        if dtype is None or len(chunks) != len(shape):
            raise ManifestError(f"{where} cannot be shown in chunks of {list(chunks)}")
        if math.prod(chunks) * dtype.itemsize > MOST:
            raise ManifestError(
                f"{where}: chunks of {list(chunks)} have more than the {MOST:,} bytes that are made here"
            )
        meta = zarrmeta.array_meta(make_plain_document(first, shape, chunks), where)
        assert meta is not None, "an array's metadata are an array's"
        return cls(meta, chunks, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))

    @property
    def nbytes(self) -> int | None:
        """Size of a chunk; None of texts of any length."""
        return None if self.dtype.kind == "O" else math.prod(self.chunks) * self.dtype.itemsize

    @property
    def fill(self) -> npt.NDArray[Any]:
        """The value of elements that no piece has."""
        return np.asarray(fill_of(self.meta, self.dtype), self.dtype)


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
            runs = [(at - first, low, low + n) for at, low, n in placements[k].find_runs(first, first + size)]
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

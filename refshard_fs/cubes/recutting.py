"""Recut arrays: divide a chunk of the cube into sections of the pieces' chunks, which have other lengths. No I/O here.

Months have 28 to 31 days, and leap years one day more. If a piece begins inside a chunk of the cube, this chunk is
joined from sections of the chunks of several pieces. It is shown without a codec, so that nothing is decoded twice.
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
from refshard_fs.core.dtypes import find_decoded_type, make_plain_document, parse_fill_value
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.chunk_codec import decode_chunk, describe_codecs, encode_chunk, make_blank_chunk
from refshard_fs.cubes.placement import Placement
from refshard_fs.errors import ManifestError

Box = tuple[tuple[int, int], ...]  # elements [start, stop) along each dimension
SECTIONS: Final = 4096  # the most sections from which a chunk is joined; each may be a request


def find_commonest_shape(chunks: Sequence[tuple[Sequence[int], int]], axis: int) -> tuple[int, ...]:
    """Return the chunk shape that needs fewest cuts: along each dimension, the chunk length that most elements have.

    ``chunks`` has, for each piece, its chunk shape and its length along ``axis``. A chunk that is longer than its piece
    (a file of one day may have chunks for 512) counts with the length of the piece.
    """
    counters = [Counter[int]() for _ in chunks[0][0]]
    for shape, length in chunks:
        for k, (counter, size) in enumerate(zip(counters, shape, strict=True)):
            counter[min(size, length) if k == axis else size] += length
    return tuple(max(1, max(counter, key=lambda size: (counter[size], size))) for counter in counters)


def check_recut(path: str, meta: ArrayMeta, name: str) -> None:
    """Raise ManifestError, which names the set, unless chunks of its array ``path`` can be cut into sections."""
    dtype = find_decoded_type(meta)
    try:
        if dtype is None or meta.chunks is None or meta.grid is None:
            grid = zarrmeta.shorten(meta.raw.get("chunk_grid", meta.chunks))
            raise ValueError(f"expected numbers or texts in chunks of one size, found {meta.dtype} in {grid}")
        find_chunk_limits(meta)  # raises ValueError if a chunk is too large to be made
        if decode_chunk(meta, encode_chunk(meta, make_blank_chunk(meta, dtype))) is None:
            raise ValueError(describe_codecs(meta))
    except ValueError as e:
        raise ManifestError(
            f"{path!r} of {name} would be shown in other chunks than its own, but its chunks cannot be cut: {e}"
        ) from e


class Recut(NamedTuple):
    """A recut array: its shown metadata, the shape of its chunks, and the type of their elements."""

    meta: ArrayMeta
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, first: ArrayMeta, shape: Sequence[int], chunks: tuple[int, ...], where: str) -> Recut:
        """Recut an array with the metadata ``first`` in the first piece; ManifestError if its chunks cannot be made."""
        dtype = find_decoded_type(first)
        if dtype is None or len(chunks) != len(shape):
            raise ManifestError(
                f"{where} cannot be shown in chunks of {list(chunks)}: expected numbers or texts of {len(shape)}"
                " dimensions"
            )
        if math.prod(chunks) * dtype.itemsize > MOST:
            raise ManifestError(f"{where}: expected chunks of at most {MOST:,} bytes, got the shape {list(chunks)}")
        meta = zarrmeta.array_meta(make_plain_document(first, shape, chunks), where)
        assert meta is not None, "`make_plain_document` describes an array"
        return cls(meta, chunks, dtype if meta.zarr_format == 2 else dtype.newbyteorder("<"))

    @property
    def nbytes(self) -> int | None:
        """The size of a chunk in bytes; None for texts of any length."""
        return None if self.dtype.kind == "O" else math.prod(self.chunks) * self.dtype.itemsize

    @property
    def fill(self) -> npt.NDArray[Any]:
        """The fill value, for elements that no piece has."""
        return np.asarray(parse_fill_value(self.meta, self.dtype), self.dtype)


class Section(NamedTuple):
    """A section of a piece's chunk: the chunk's coordinates, the elements to take, and their place in the new chunk."""

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
    """Return the sections that the chunk at ``coords`` takes of a piece, which begins at ``start`` along ``axis``.

    ``placements`` has, by axis, the places of the piece's elements, if it has only some. If the piece ``is_last``, the
    elements beyond its end in its last chunks are taken, too. ValueError if there are too many sections.
    """
    # For each dimension, the length of the piece's chunks, and the runs to take: place, first element, end.
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
            f"expected a chunk that is joined from sections of at most {SECTIONS:,} chunks, got {count:,}: choose "
            "smaller chunks"
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

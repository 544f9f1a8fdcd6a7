"""Compressed Morton codes: coordinates in a grid as one number, bits that no cell needs left out. No I/O here.

Neuroglancer's numbering of the chunks of a volume, and the order in which zarr-python lays out the chunks of a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["MortonCode", "ranks"]


class MortonCode:
    """The codes of the cells of a grid with ``counts`` cells along each dimension; ValueError beyond 64 bits."""

    __slots__ = ("_sources",)

    def __init__(self, counts: Sequence[int]) -> None:
        bits = max((max(count - 1, 0).bit_length() for count in counts), default=0)
        # The dimension and the bit of its coordinate that each bit of a code is, lowest first.
        self._sources = [(d, bit) for bit in range(bits) for d, count in enumerate(counts) if 1 << bit < count]
        if len(self._sources) > 64:
            raise ValueError(f"a grid of {'×'.join(map(str, counts))} cells has codes of more than 64 bits")

    def encode(self, coords: Sequence[int]) -> int:
        """Return the code of the cell at ``coords``."""
        code = 0
        for place, (dimension, bit) in enumerate(self._sources):
            code |= (coords[dimension] >> bit & 1) << place
        return code

    def decode(self, codes: npt.NDArray[np.uint64], dimensions: int) -> npt.NDArray[np.int64]:
        """Return the coordinates of each of ``codes``, a row for each; bits beyond those of the grid are left out."""
        coords = np.zeros((len(codes), dimensions), np.int64)
        for place, (dimension, bit) in enumerate(self._sources):
            coords[:, dimension] |= ((codes >> np.uint64(place)) & np.uint64(1)).astype(np.int64) << bit
        return coords


@lru_cache(maxsize=64)
def ranks(counts: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Return, for each cell of a grid counted in C order, its place in the order of their codes."""
    coords = np.indices(counts, dtype=np.uint64).reshape(len(counts), -1) if counts else np.zeros((0, 1), np.uint64)
    code = np.zeros(coords.shape[1], np.uint64)
    for place, (dimension, bit) in enumerate(MortonCode(counts)._sources):
        code |= (coords[dimension] >> np.uint64(bit) & np.uint64(1)) << np.uint64(place)
    out = np.empty(len(code), np.uint32)
    out[np.argsort(code, kind="stable")] = np.arange(len(code), dtype=np.uint32)
    return out

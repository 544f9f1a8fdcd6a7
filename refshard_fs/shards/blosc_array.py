"""An array of blosc frames as zarr's metadata describes it, version 2 or 3. No I/O here.

The fill value of version 2 is null: every chunk exists, and xarray would take the zeros of any other one for missing
data. Version 3 must have one: it is zero, and xarray masks nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np

from refshard_fs.keys import ChunkGrid
from refshard_fs.shards.dtypes import version_2, version_3
from refshard_fs.shards.group_documents import ENCODINGS, array_document, configured

__all__ = ["BloscArray", "Compressor"]

DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # where xarray looks for names in version 2

_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")


class Compressor(msgspec.Struct, frozen=True):
    """How the frames were compressed, as far as zarr's metadata tells; readers only need that it is blosc."""

    codec: str
    level: int
    shuffle: int
    typesize: int


class BloscArray(msgspec.Struct, frozen=True):
    """What is to be said of an array; ``order`` is that of the elements in a chunk. ``where`` begins errors."""

    where: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    compressor: Compressor
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]

    def grid(self, zarr_format: int) -> ChunkGrid:
        """Return the chunks and their keys."""
        return ChunkGrid.regular(self.shape, self.chunks, ENCODINGS[zarr_format])

    def metadata(self, zarr_format: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of the metadata documents."""
        dimensions, attributes = self._named()
        if zarr_format == 3:
            yield "zarr.json", self._version_3(dimensions, attributes)
        else:
            yield ".zarray", self._version_2()
            yield ".zattrs", {**attributes, DIMENSIONS: dimensions}

    def _named(self) -> tuple[list[str], dict[str, Any]]:
        """Return the dimensions' names, those that the attributes give first, and the other attributes."""
        attributes = dict(self.attributes)
        match attributes.get(DIMENSIONS):
            case [*names] if len(set(map(str, names))) == len(self.shape) and all(type(n) is str for n in names):
                del attributes[DIMENSIONS]
                return names, attributes
        return list(self.dimensions), attributes

    def _version_2(self) -> dict[str, Any]:
        made = self.compressor
        return {
            "zarr_format": 2,
            "shape": self.shape,
            "chunks": self.chunks,
            "dtype": version_2(self.dtype),
            "compressor": {
                "id": "blosc", "cname": made.codec, "clevel": made.level, "shuffle": made.shuffle, "blocksize": 0,
            },
            "fill_value": None,
            "order": self.order,
            "filters": None,
            "dimension_separator": ENCODINGS[2].separator,
        }  # fmt: skip

    def _version_3(self, dimensions: list[str], attributes: dict[str, Any]) -> dict[str, Any]:
        made = self.compressor
        data_type, fill_value, endian = version_3(self.dtype, self.where)
        codecs: list[dict[str, Any]] = [
            configured("bytes", endian=endian) if endian else {"name": "bytes"},
            configured("blosc", cname=made.codec, clevel=made.level, shuffle=_SHUFFLES[made.shuffle],
                        typesize=made.typesize, blocksize=0),
        ]  # fmt: skip
        if self.order == "F":
            codecs.insert(0, configured("transpose", order=list(range(len(self.shape)))[::-1]))
        shown = {"data_type": data_type, "fill_value": fill_value, "codecs": codecs}
        return {**array_document(self.shape, self.chunks, dimensions, attributes), **shown}

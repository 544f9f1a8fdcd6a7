"""An array of a cube, which has the length of all pieces together. No I/O here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.documents import NodeView
from refshard_fs.core.dtypes import make_plain_document
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.zarrmeta import ArrayMeta, grid_of
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.cubes.overlaid import stack_metadata
from refshard_fs.cubes.placement import Placement
from refshard_fs.cubes.recutting import Recut
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import METADATA


class ConcatArray(msgspec.Struct, frozen=True):
    """An array of a cube.

    ``meta`` is the metadata of the first piece. It is None if the array lacks the dimension that is joined: then the
    first piece holds the whole array. ``starts`` are the chunk coordinates along ``axis`` at which the pieces begin,
    followed by the end. ``recut`` is not None if the array's chunks are joined from sections of the pieces' chunks.
    With ``is_stacked``, the pieces lack the array's first dimension.
    """

    grid: ChunkGrid | None
    meta: ArrayMeta | None = None
    axis: int = 0
    starts: tuple[int, ...] = ()
    recut: Recut | None = None
    is_stacked: bool = False

    def find_stored_coords(self, coords: Sequence[int]) -> Sequence[int]:
        """Drop the dimension that the pieces lack from ``coords``."""
        return coords[1:] if self.is_stacked else coords

    @property
    def stored_grid(self) -> ChunkGrid:
        """The grid of a piece, except for the number of chunks."""
        assert self.grid is not None, "an array that is joined has a grid"
        return msgspec.structs.replace(self.grid, counts=tuple(self.find_stored_coords(self.grid.counts)))

    def find_grid_of_piece(self, number: int, places: Mapping[int, Placement]) -> ChunkGrid:
        """Return the grid of piece ``number``, which has only the chunks at ``places`` along these axes."""
        assert self.grid is not None, "an array that is joined has a grid"
        shown = self.find_shown_grid_of_piece(number, places)
        return msgspec.structs.replace(shown, counts=tuple(self.find_stored_coords(shown.counts)))

    def find_shown_grid_of_piece(self, number: int, places: Mapping[int, Placement]) -> ChunkGrid:
        """Return the grid of `find_grid_of_piece` with the dimension that pieces lack; chunk numbers stay the same."""
        assert self.grid is not None, "an array that is joined has a grid"
        counts = [places[k].length if k in places else count for k, count in enumerate(self.grid.counts)]
        if self.axis not in places:
            counts[self.axis] = self.starts[number + 1] - self.starts[number]
        return msgspec.structs.replace(self.grid, counts=tuple(counts))

    def locate(self, coords: Sequence[int]) -> tuple[int, list[int]]:
        """Return the number of the piece that holds the chunk at ``coords``, and the chunk's coordinates in it.

        ``coords`` may be the leading coordinates of several chunks.
        """
        number = bisect_right(self.starts, coords[self.axis]) - 1
        return number, self.move(coords, -self.starts[number])

    def move(self, coords: Sequence[int], by: int) -> list[int]:
        return [*coords[: self.axis], coords[self.axis] + by, *coords[self.axis + 1 :]]


class FullLength:
    """Rewrite metadata: give arrays in the document's ``axes`` the length of all pieces."""

    def __init__(self, document: ConcatDocument, where: str) -> None:
        self.document, self.where = document, where
        self.starts = document.starts
        self._by_size: dict[int, tuple[int, ...]] = {}  # arrays with chunks of one size have the same starts

    def make_rewriter(self, data: bytes) -> Callable[[Mapping[str, Any], str], NodeView[ConcatArray]]:
        return self._rewrite

    def _rewrite(self, doc: Mapping[str, Any], path: str) -> NodeView[ConcatArray]:
        if doc.get("node_type") == "group":
            return doc, None
        is_stacked = path in self.document.stacked
        if is_stacked and not any(join(path, name) in self.document.metadata for name in METADATA):
            doc = add_dimension(doc, self.document.dim, f"{path!r} of the first set of {self.where}")
        meta = zarrmeta.array_meta(doc, f"{path!r} of the first set of {self.where}")
        if meta is None or path not in self.document.axes:
            return doc, ConcatArray(None if meta is None else meta.grid)
        axis, total = self.document.axes[path], self.starts[-1]
        if axis >= len(meta.shape):
            raise ManifestError(
                f"{self.where}: {path!r} should be joined along axis {axis}, but has {len(meta.shape)} dimensions"
            )
        if path == self.document.coordinate:
            shown: Mapping[str, Any] = make_plain_document(meta, [total])
            return shown, ConcatArray(grid_of(shown), meta, is_stacked=is_stacked)
        if meta.chunks is None or meta.grid is None:
            raise ManifestError(f"{self.where}: expected chunks of one known size in {path!r}")
        if path in self.document.chunks:
            full = [*meta.shape[:axis], total, *meta.shape[axis + 1 :]]
            recut = Recut.of(meta, full, self.document.chunks[path], f"{path!r} of {self.where}")
            return recut.meta.raw, ConcatArray(recut.meta.grid, meta, axis, (), recut, is_stacked)
        shown = {**doc, "shape": [*meta.shape[:axis], total, *meta.shape[axis + 1 :]]}
        return shown, ConcatArray(
            grid_of(shown), meta, axis, self._find_chunk_starts(meta.chunks[axis], path), None, is_stacked
        )

    def _find_chunk_starts(self, size: int, path: str) -> tuple[int, ...]:
        """Return the coordinates of chunks of ``size`` elements at which the pieces begin, and the end of the last."""
        known = self._by_size.get(size)
        if known is None:
            for number, start in enumerate(self.starts[:-1]):
                if start % size:
                    name = self.document.pieces[number].name
                    raise ManifestError(
                        f"{self.where}: {path!r} has chunks of {size} along {self.document.dim!r}, but the set "
                        f"{name!r} begins at {start}, inside a chunk: only the last set may end inside a chunk. Make "
                        "the document anew by concat, which divides such chunks"
                    )
            known = self._by_size[size] = tuple(-(-start // size) for start in self.starts)
        return known


def add_dimension(doc: Mapping[str, Any], dim: str, where: str) -> dict[str, Any]:
    """Add the dimension that a piece lacks to the metadata of its array."""
    meta = zarrmeta.array_meta(doc, where)
    if meta is None:
        return dict(doc)
    if meta.grid is None or meta.chunks is None:
        raise ManifestError(f"{where} cannot get the dimension {dim!r}: expected chunks of one size")
    return stack_metadata(doc, meta.chunks, dim)

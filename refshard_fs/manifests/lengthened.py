"""Arrays of a first set shown with the length of all sets that lie in a row with it. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.documents import Shown
from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.concat_document import ConcatDocument
from refshard_fs.manifests.plain_values import plain_document
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["Axis", "Lengthened"]


class Axis(msgspec.Struct, frozen=True):
    """What is known of an array: its grid as it is shown and, of one that is joined, where its parts' chunks begin."""

    grid: ChunkGrid | None
    meta: ArrayMeta | None = None  # of the first part; None: this array is that part's
    axis: int = 0
    starts: tuple[int, ...] = ()  # in chunks; and where the last part ends
    is_held: bool = False  # whether the document has the values


class Lengthened:
    """Shows arrays in the document's ``axes`` with the length of all parts."""

    def __init__(self, document: ConcatDocument, where: str) -> None:
        self.document, self.where = document, where
        self.starts = document.starts

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[Axis]]:
        return self._shown

    def _shown(self, doc: Mapping[str, Any], path: str) -> Shown[Axis]:
        if doc.get("node_type") == "group":
            return doc, None
        meta = zarrmeta.array_meta(doc, f"{path!r} of the first set of {self.where}")
        if meta is None or path not in self.document.axes:
            return doc, Axis(None if meta is None else meta.grid)
        axis, total = self.document.axes[path], self.starts[-1]
        if axis >= len(meta.shape):
            raise ManifestError(f"{self.where}: {path!r} has {len(meta.shape)} dimensions, and no axis {axis}")
        if path == self.document.coordinate:
            shown: Mapping[str, Any] = plain_document(meta, total)
            return shown, Axis(_grid(shown, path), meta, is_held=True)
        if meta.chunks is None or meta.grid is None:
            raise ManifestError(f"{self.where}: the chunks of {path!r} are not of one size, or not known")
        size = meta.chunks[axis]
        for part, (start, _) in zip(self.document.parts, pairwise(self.starts), strict=True):
            if start % size:
                raise ManifestError(
                    f"{self.where}: {path!r} has chunks of {size} along {self.document.dim!r}, and the set "
                    f"{part.url!r} begins at {start}, within one: only the last set may end within a chunk"
                )
        shape = [*meta.shape[:axis], total, *meta.shape[axis + 1 :]]
        counts = accumulate((-(-part.length // size) for part in self.document.parts), initial=0)
        shown = {**doc, "shape": shape}
        return shown, Axis(_grid(shown, path), meta, axis, tuple(counts))


def _grid(doc: Mapping[str, Any], path: str) -> ChunkGrid | None:
    meta = zarrmeta.array_meta(doc, repr(path))
    return None if meta is None else meta.grid

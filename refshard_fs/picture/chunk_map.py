"""What a picture of an array says: its chunks, the files they lie in, and the requests that a selection causes. No I/O.

Files are in the order in which the array's chunks, in C order, come to them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from refshard_fs.errors import redacted
from refshard_fs.picture.chunk_grid import Integers, Plane, plane_of
from refshard_fs.picture.strips import Strip, strip_of
from refshard_fs.reading.plan import Planned
from refshard_fs.survey.extents import AT_HAND, Extents

__all__ = ["Asked", "ChunkMap", "chunk_map"]

SHOWN: Final = 10  # files that have a strip of their own
LINES: Final = 12  # of all strips together, where a few have many chunks
DETAIL: Final = 40  # chunks that a line of a strip is for, where there is room for several


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A selection: the numbers of its chunks, how many of these exist, and the requests that reading them makes."""

    text: str
    numbers: Integers
    present: int
    requests: tuple[Planned, ...]
    wanted: int  # bytes of chunks
    fetched: int  # bytes of requests, as far as known


class ChunkMap(msgspec.Struct, frozen=True, eq=False):
    """Everything that is drawn. Targets in ``plane`` are places in ``files``; ``strips`` are some of those.

    ``shard_of`` has the shard of each cell, where cells are chunks that lie in shards. URLs have nothing in them that
    gives access; ``base`` is the directory that all files lie below.
    """

    source: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None
    counts: tuple[int, ...]
    shards: tuple[int, ...]
    dimensions: tuple[str, ...]
    present: int
    possible: int
    bytes: int
    inline: int
    plane: Plane
    shard_of: Integers | None
    files: tuple[str, ...]
    base: str
    strips: tuple[Strip, ...]
    asked: Asked | None


def chunk_map(
    source: str, extents: Extents, urls: Sequence[str], dimensions: Sequence[str] = (), asked: Asked | None = None
) -> ChunkMap:
    """Return what a picture of the array of ``extents`` says; ValueError where its chunks form no grid."""
    meta = extents.meta
    if meta.grid is None:
        raise ValueError(f"the chunks of {extents.path!r} form no grid that is known here: there is nothing to draw")
    files, local = _files(extents)
    names = tuple(redacted(urls[i]) for i in files.tolist())
    plane = plane_of(meta.grid.counts, extents.numbers, local, None if asked is None else asked.numbers)
    return ChunkMap(
        source=redacted(source),
        path=extents.path,
        shape=meta.shape,
        dtype=meta.dtype,
        chunks=meta.chunks,
        counts=meta.grid.counts,
        shards=extents.shards,
        dimensions=tuple(dimensions),
        present=len(extents),
        possible=meta.grid.size,
        bytes=int(extents.sizes.sum()),
        inline=int((local == AT_HAND).sum()),
        plane=plane,
        shard_of=_shard_of(plane, meta.grid.counts, extents.shards),
        files=names,
        base=_base(names),
        strips=_strips(extents, local, files, urls, names, asked),
        asked=asked,
    )


def _files(extents: Extents) -> tuple[Integers, Integers]:
    """Return the targets in the order in which they are come to, and each chunk's place among them."""
    there = extents.targets != AT_HAND
    known, first = np.unique(extents.targets[there], return_index=True)
    files = known[np.argsort(first, kind="stable")]
    place = np.empty(int(known.max(initial=-1)) + 1, np.int64)
    place[files] = np.arange(len(files))
    local = np.full(len(extents), AT_HAND, np.int64)
    local[there] = place[extents.targets[there]]
    return files, local


def _strips(
    extents: Extents, local: Integers, files: Integers, urls: Sequence[str], names: Sequence[str], asked: Asked | None
) -> tuple[Strip, ...]:
    ranges: dict[str, list[tuple[int, int | None]]] = {}
    for request in () if asked is None else asked.requests:
        ranges.setdefault(request.url, []).append((request.start, request.stop))
    of_file = {urls[target]: place for place, target in enumerate(files.tolist())}
    first = sorted(of_file[url] for url in ranges if url in of_file)
    others = sorted(set(range(len(files))).difference(first))
    shown = _spaced(first, SHOWN)
    places = sorted([*shown, *_spaced(others, SHOWN - len(shown))])
    strips = []
    for place in places:
        rows = np.flatnonzero(local == place)
        lines = max(1, min(LINES // len(places), -(-len(rows) // DETAIL)))
        asked_of = ranges.get(urls[int(files[place])], ())
        strips.append(strip_of(place, names[place], extents, rows, asked_of, lines))
    return tuple(strips)


def _spaced(places: list[int], most: int) -> list[int]:
    """Return up to ``most`` of ``places``, evenly spaced, the first and the last among them."""
    if len(places) <= most:
        return places
    return [places[round(i * (len(places) - 1) / max(most - 1, 1))] for i in range(most)]


def _base(names: Sequence[str]) -> str:
    """Return the directory that all of ``names`` lie in; empty if there is none, or it is but a protocol."""
    if len(names) < 2:
        return ""
    common = posixpath.commonprefix([min(names), max(names)])
    base = common[: common.rfind("/") + 1]
    return "" if base.endswith("://") or len(base) < 8 else base


def _shard_of(plane: Plane, counts: tuple[int, ...], shards: tuple[int, ...]) -> Integers | None:
    if not shards or plane.step != (1, 1) or plane.fold.split is None:
        return None
    numbers = np.arange(plane.shape[0] * plane.shape[1])
    coords = np.unravel_index(numbers, counts)
    across = [-(-count // shard) for count, shard in zip(counts, shards, strict=True)]
    places = [coord // shard for coord, shard in zip(coords, shards, strict=True)]
    return np.ravel_multi_index(places, across).astype(np.int64).reshape(plane.shape)

"""Chunks of many small arrays found by the directories that their keys lie in, most of which many keys share.

One look-up a directory, and arithmetic for the names in it. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.columns import UInt32s, UInt64s
from refshard_fs.keys import ChunkGrid, parent
from refshard_fs.manifests.json_fast import Positions, Records, name_starts, runs, stands, tail_numbers

__all__ = ["Found", "at_home"]


class Found(NamedTuple):
    """Chunks: their places among the records, the numbers of their arrays, and their own in these; and what is left."""

    rows: Positions
    arrays: UInt32s
    chunks: UInt64s
    left: Positions


class _Spelling(NamedTuple):
    """How the names in a directory spell chunks."""

    head: bytes
    separator: str
    dimensions: int


class _Home(NamedTuple):
    """The array of the chunks in a directory: these are numbered from ``first`` on, as a grid of ``counts``."""

    array: int
    first: int
    spelling: _Spelling
    counts: tuple[int, ...]


_NOWHERE: Final = _Home(0, 0, _Spelling(b"", ".", 0), ())


def at_home(
    records: Records, among: Positions, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int
) -> Found:
    """Return which of some records are chunks of arrays that have up to ``largest``; arrays have ``numbers`` by path.

    ValueError if a key is not UTF-8.
    """
    if not len(among):
        return Found(among, among.astype(np.uint32), among.view(np.uint64), among)
    text, stops = records.text, records.key_stops[among]
    starts = records.key_starts[among]
    names = name_starts(text, starts, stops)
    ends = np.maximum(names - 1, starts)
    firsts = runs(text, starts, ends)
    known: dict[bytes, _Home] = {}
    homes = []
    for start, stop in zip(starts[firsts].tolist(), ends[firsts].tolist(), strict=True):
        directory = text[start:stop]
        home = known.get(directory)
        if home is None:
            home = known[directory] = _home(directory.decode(), grids, numbers, largest)
        homes.append(home)
    run = np.arange(len(homes)).repeat(np.diff(firsts, append=len(among)))
    valid = np.zeros(len(among), bool)
    chunks = np.zeros(len(among), np.uint64)
    spellings = {home.spelling: None for home in known.values() if home is not _NOWHERE}
    for spelling in spellings:
        head, separator, dimensions = spelling
        if len(known) == 1:
            rows = np.arange(len(among))
        else:
            rows = np.flatnonzero(np.array([home.spelling == spelling for home in homes])[run])
        table = np.array([home.counts if home.spelling == spelling else (0,) * dimensions for home in homes], np.uint64)
        counts: list[Any] = list(table[run[rows]].T)
        begins = names[rows]
        found, fits = tail_numbers(text, begins + len(head), stops[rows], separator, counts)
        if head:
            fits &= stands(text, begins, head)
        valid[rows], chunks[rows] = fits, found
    arrays = np.array([home.array for home in homes], np.uint32)[run]
    chunks += np.array([home.first for home in homes], np.uint64)[run]
    return Found(among[valid], arrays[valid], chunks[valid], among[~valid])


def _home(directory: str, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int) -> _Home:
    """Return the home of the chunks in ``directory``; nowhere, too, where it takes a closer look."""
    path, below = directory, list[str]()
    grid = grids.get(path)
    while grid is None and path:
        path, name = parent(path)
        below.insert(0, name)
        grid = grids.get(path)
    if grid is None or grid.size > largest:
        return _NOWHERE
    counts, encoding = grid.counts, grid.encoding
    is_default = encoding.name == "default"
    if not counts:
        return _NOWHERE if below or is_default else _Home(numbers[path], 0, _Spelling(b"", ".", 1), (1,))
    if encoding.separator == "/" and (is_default or len(counts) > 1):
        if is_default and (not below or below.pop(0) != "c"):
            return _NOWHERE
        if len(below) != len(counts) - 1 or not all(part.isascii() and part.isdigit() for part in below):
            return _NOWHERE
        first = grid.number(grid.encoding.encode([*map(int, below), 0]))
        if first is None or list(map(str, map(int, below))) != below:
            return _NOWHERE
        return _Home(numbers[path], first, _Spelling(b"", ".", 1), counts[-1:])
    if below:
        return _NOWHERE
    head = b"c" + encoding.separator.encode() if is_default else b""
    return _Home(numbers[path], 0, _Spelling(head, encoding.separator, len(counts)), counts)

"""Find the chunk keys among many keys, and for each the array and the chunk's number in its grid. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.columns import UInt64s
from refshard_fs.core.keys import ChunkGrid, find_nearest, join
from refshard_fs.references.pieces import (
    PAD,
    Booleans,
    Buffer,
    Positions,
    find_distinct,
    find_runs,
    join_pieces,
    match_beginnings,
    parse_numbers_before,
)

_ENDS_A_CHUNK: Final = np.array(
    [chr(byte) in "0123456789c" for byte in range(256)]
)  # by byte: whether chunk keys end with it


class Keys(NamedTuple):
    """Keys in UTF-8, as ranges of one text, in which a NUL follows each key; the text ends with `PAD`."""

    text: Buffer
    starts: Positions
    stops: Positions

    @classmethod
    def of(cls, joined: bytes, sizes: Positions) -> Keys:
        """Make keys of ``sizes`` bytes from ``joined``: all keys, each followed by a NUL."""
        stops = (sizes + 1).cumsum() - 1
        return cls(joined + PAD, stops - sizes, stops)

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Keys:
        """Make keys from texts."""
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls.of(b"".join([name + b"\0" for name in encoded]), sizes)

    def take(self, rows: Any) -> Keys:
        """Return the keys in ``rows``: positions, a mask or a slice."""
        return Keys(self.text, self.starts[rows], self.stops[rows])

    def pack(self) -> Keys:
        """Return the same keys in a new text without gaps."""
        return Keys.of(self.join(), self.stops - self.starts)

    def get_key(self, row: int) -> str:
        """Return the key in ``row`` as text."""
        return bytes(self.text[self.starts[row] : self.stops[row]]).decode("utf-8", "surrogatepass")

    def join(self, skipped: int = 0) -> bytes:
        """Join the keys, each followed by a NUL and without its first ``skipped`` bytes."""
        return join_pieces(self.text, self.starts + skipped, self.stops + 1)

    def list_names(self, skipped: int = 0) -> list[str]:
        """Return the keys as texts, without the first ``skipped`` bytes of each."""
        return self.join(skipped).decode("utf-8", "surrogatepass").split("\0")[:-1]

    def has(self, key: bytes) -> bool:
        """Return whether ``key`` is one of the keys."""
        rows = np.flatnonzero(self.stops - self.starts == len(key))
        return bool(match_beginnings(self.text, self.starts[rows], key).any())

    def may_be_chunks(self) -> Booleans:
        """Return a mask of the keys that end with a digit or "c", as all chunk keys do."""
        found: Booleans = _ENDS_A_CHUNK[np.frombuffer(self.text, np.uint8)[self.stops - 1]]
        return found

    def find_named(self, names: Sequence[str]) -> Positions:
        """Return the positions of keys whose last segment is one of ``names``."""
        characters = np.frombuffer(self.text, np.uint8)
        found = np.zeros(len(self.starts), np.bool_)
        last = characters[self.stops - 1]
        for name in map(str.encode, names):
            rows = np.flatnonzero(last == name[-1])
            begins, starts = self.stops[rows] - len(name), self.starts[rows]
            fits = (begins == starts) | ((begins > starts) & (characters[begins - 1] == ord("/")))
            rows, begins = rows[fits], begins[fits]
            found[rows] |= match_beginnings(self.text, begins, name)
        return np.flatnonzero(found)

    def group_by_directory(self, name_of: Callable[[str], str | None] = str) -> Groups:
        """Group the keys by ``name_of(directory)``, without the keys for which this is None."""
        slashes = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("/"))
        last = np.concatenate(([-1], slashes))[slashes.searchsorted(self.stops)]
        ends = np.maximum(last, self.starts)
        begun = find_runs(self.text, self.starts, ends)  # most keys lie in the same directory as the one before
        firsts, kinds = find_distinct(self.text, self.starts[begun], ends[begun])
        spans = zip(self.starts[begun[firsts]].tolist(), ends[begun[firsts]].tolist(), strict=True)
        directories = [bytes(self.text[start:stop]).decode("utf-8", "surrogatepass") for start, stop in spans]
        places: dict[str | None, int] = {}
        codes = np.array([places.setdefault(name_of(directory), len(places)) for directory in directories], np.int64)
        groups = codes[kinds].repeat(np.diff(begun, append=len(self.stops)))
        order = np.argsort(groups, kind="stable")
        return Groups(places, order, groups[order].searchsorted(np.arange(len(places) + 1)).tolist())


class Groups(Mapping[str, Positions]):
    """Rows by name: the rows of the name with ``places[name] == i`` are ``order[bounds[i] : bounds[i + 1]]``."""

    __slots__ = ("_bounds", "_order", "_places")

    def __init__(self, places: Mapping[str | None, int], order: Positions, bounds: Sequence[int]) -> None:
        self._places = {name: place for name, place in places.items() if name is not None}
        self._order, self._bounds = order, bounds

    def __getitem__(self, name: str) -> Positions:
        place = self._places[name]
        return self._order[self._bounds[place] : self._bounds[place + 1]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class ChunkKeys(NamedTuple):
    """Chunk keys of one array: their ascending positions among all keys, and the numbers of the chunks."""

    array: str
    rows: Positions
    numbers: UInt64s


def place_chunks(keys: Keys, grids: Mapping[str, ChunkGrid]) -> Iterator[ChunkKeys]:
    """Yield the chunk keys among ``keys`` of each array in ``grids``; arrays without any are left out.

    A key belongs to the nearest array above it.
    """
    count = len(keys.starts)
    if not grids or not count:
        return
    path = find_nearest(keys.get_key(count // 2), grids)
    if path is not None:  # the usual case: all keys of a block are chunks of one array
        prefix = _make_prefix(path)
        if match_beginnings(keys.text, keys.starts, prefix).all():
            numbers = parse_chunk_numbers(keys, len(prefix), grids[path])
            if numbers is not None:
                yield ChunkKeys(path, np.arange(count), numbers)
                return
    for path, rows in keys.group_by_directory(lambda directory: find_nearest(join(directory, "0"), grids)).items():
        below, skipped, grid = keys.take(rows), len(_make_prefix(path)), grids[path]
        numbers = parse_chunk_numbers(below, skipped, grid)
        if numbers is None:
            found = [grid.number(tail) for tail in below.list_names(skipped)]
            rows = rows[[number is not None for number in found]]
            numbers = np.array([number for number in found if number is not None], np.uint64)
        if len(rows):
            yield ChunkKeys(path, rows, numbers)


def _make_prefix(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass") + b"/" if path else b""


def parse_chunk_numbers(keys: Keys, skipped: int, grid: ChunkGrid) -> UInt64s | None:
    """Parse keys, without the first ``skipped`` bytes of each, to numbers of chunks in ``grid``.

    Return None if a key is not a chunk key of the grid, or if the grid has no dimensions.
    """
    separator = grid.encoding.separator.encode()
    head = b"c" + separator if grid.encoding.name == "default" else b""
    begins = keys.starts + skipped
    if not grid.counts or not match_beginnings(keys.text, begins, head).all():
        return None
    at = keys.stops
    numbers = np.zeros(len(at), np.uint64)
    stride = np.uint64(1)
    for dimension, count in reversed(list(enumerate(grid.counts))):
        found = parse_numbers_before(keys.text, at)
        if found is None or int(found.values.max(initial=0)) >= count:
            return None
        numbers += found.values * stride
        stride *= np.uint64(count)
        at = at - found.digits
        if dimension:
            at -= 1
            if not match_beginnings(keys.text, at, separator).all():
                return None
    return numbers if (at == begins + len(head)).all() else None

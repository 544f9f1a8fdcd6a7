"""Chunk keys among many keys, found and read as numbers in their grids all at once. No I/O here.

Keys that follow one another mostly lie in the same directory. One look-up for each such run tells the array that it
belongs to; the coordinates behind the array's path are read eight bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import UInt64s
from refshard_fs.core.keys import ChunkGrid, join, nearest
from refshard_fs.core.swar import (
    LEAST,
    ONES,
    PAD,
    Booleans,
    Positions,
    bytes_after_last,
    digits,
    marks,
    runs,
    stands,
    u64,
    words_at,
)

FEW: Final = 64  # pieces that are decoded one by one

_CHUNK_END: Final = np.array([chr(byte) in "0123456789c" for byte in range(256)])  # by the last byte of a key
_SLASHES: Final = u64(ord("/") * ONES)
_8, _64 = u64(8), u64(64)


class Keys(NamedTuple):
    """Keys in UTF-8, one after the other in a text that has `PAD` on either side."""

    text: bytes
    starts: Positions
    stops: Positions

    @classmethod
    def of(cls, spelled: bytes, sizes: Positions) -> Keys:
        """Return keys of so many bytes each, which ``spelled`` has with a quote behind each."""
        stops = len(PAD) + (sizes + 1).cumsum() - 1
        return cls(b"".join((PAD, spelled, PAD)), stops - sizes, stops)

    def take(self, rows: Any) -> Keys:
        """Return some of the keys."""
        return Keys(self.text, self.starts[rows], self.stops[rows])

    def key(self, row: int) -> str:
        """Return one key."""
        return self.text[self.starts[row] : self.stops[row]].decode("utf-8", "surrogatepass")

    def may_be_chunks(self) -> Booleans:
        """Return which keys end as those of chunks do."""
        found: Booleans = _CHUNK_END[np.frombuffer(self.text, np.uint8)[self.stops - 1]]
        return found

    def named(self, names: Sequence[str]) -> Positions:
        """Return the keys of which the last name is one of ``names``."""
        characters = np.frombuffer(self.text, np.uint8)
        last = characters[self.stops - 1]
        found = [np.zeros(0, np.int64)]
        for name in map(str.encode, names):
            rows = np.flatnonzero(last == name[-1])
            begins, starts = self.stops[rows] - len(name), self.starts[rows]
            fits = (begins == starts) | ((begins > starts) & (characters[begins - 1] == ord("/")))
            for i in range(0, len(name), 8):
                fits &= stands(self.text, begins + i, name[i : i + 8])
            found.append(rows[fits])
        return np.sort(np.concatenate(found))  # no key has two last names


def pieces(text: bytes, starts: Positions, stops: Positions) -> list[str]:
    """Return pieces of a text in UTF-8."""
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    if len(starts) > FEW and text.isascii():
        string = text.decode()
        return [string[start:stop] for start, stop in spans]
    return [text[start:stop].decode("utf-8", "surrogatepass") for start, stop in spans]


class ChunkKeys(NamedTuple):
    """Keys of one array's chunks: their places among the keys, ascending, and the numbers of the chunks."""

    array: str
    rows: Positions
    numbers: UInt64s


def place_chunks(keys: Keys, grids: Mapping[str, ChunkGrid]) -> Iterator[ChunkKeys]:
    """Yield the chunks of arrays, which have ``grids`` by path, that are among ``keys``: each array once.

    A key belongs to the array that lies nearest to it.
    """
    if not grids or not len(keys.starts):
        return
    rows = np.arange(len(keys.starts))
    # Many keys in a row are mostly of one array: that of the middle one is looked for by its path alone.
    path = nearest(keys.key(len(rows) // 2), grids)
    if path is not None:
        prefix = path.encode("utf-8", "surrogatepass") + b"/" if path else b""
        fits = keys.stops - keys.starts > len(prefix)
        for i in range(0, len(prefix), 8):
            fits &= stands(keys.text, keys.starts + i, prefix[i : i + 8])
        chosen = np.flatnonzero(fits)
        some = keys if len(chosen) == len(rows) else keys.take(chosen)
        numbers, valid = _numbers(some, len(prefix), grids[path])
        yield ChunkKeys(path, chosen[valid], numbers[valid])
        fits[chosen] = valid
        rows = np.flatnonzero(~fits)
    if len(rows):
        for found in _by_directory(keys.take(rows), grids):
            yield found._replace(rows=rows[found.rows])


def _by_directory(keys: Keys, grids: Mapping[str, ChunkGrid]) -> Iterator[ChunkKeys]:
    """Yield the chunks among keys, by one look-up for each run of keys in the same directory."""
    text, starts, stops = keys
    ends = np.maximum(name_starts(text, starts, stops) - 1, starts)
    firsts = runs(text, starts, ends)
    counts = np.diff(firsts, append=len(starts))
    known: dict[str, str | None] = {}
    runs_by_grid: dict[int, list[tuple[int, str]]] = {}
    for run, directory in enumerate(pieces(text, starts[firsts], ends[firsts])):
        if directory not in known:
            known[directory] = nearest(join(directory, "0"), grids)
        path = known[directory]
        if path is not None:
            runs_by_grid.setdefault(id(grids[path]), []).append((run, path))
    for chosen in runs_by_grid.values():
        numbers = [run for run, _ in chosen]
        yield from _of_one_grid(keys, firsts[numbers], counts[numbers], [path for _, path in chosen], grids)


def _of_one_grid(
    keys: Keys, firsts: Positions, counts: Positions, paths: list[str], grids: Mapping[str, ChunkGrid]
) -> Iterator[ChunkKeys]:
    """Yield the chunks in runs of ``counts`` keys from ``firsts`` on, each of an array; all arrays have one grid."""
    rows = (firsts - counts.cumsum() + counts).repeat(counts) + np.arange(int(counts.sum()))
    lengths = np.array([len(path.encode("utf-8", "surrogatepass")) + 1 if path else 0 for path in paths])
    numbers, valid = _numbers(keys.take(rows), lengths.repeat(counts), grids[paths[0]])
    rows, numbers = rows[valid], numbers[valid]
    places: dict[str, int] = {}
    arrays = np.array([places.setdefault(path, len(places)) for path in paths]).repeat(counts)[valid]
    order = np.argsort(arrays, kind="stable")
    rows, numbers = rows[order], numbers[order]
    bounds = arrays[order].searchsorted(np.arange(len(places) + 1)).tolist()
    for path, start, stop in zip(places, bounds, bounds[1:], strict=False):
        if start < stop:
            yield ChunkKeys(path, rows[start:stop], numbers[start:stop])


def _numbers(keys: Keys, prefix: int | Positions, grid: ChunkGrid) -> tuple[UInt64s, Booleans]:
    """Return the numbers of chunks by their keys, which begin with the path of an array, and which are valid."""
    text, begins, stops = keys.text, keys.starts + prefix, keys.stops
    head = b"c" + grid.encoding.separator.encode() if grid.encoding.name == "default" else b""
    numbers, valid = tail_numbers(text, begins + len(head), stops, grid.encoding.separator, grid.counts)
    if head:
        valid &= stands(text, begins, head)
    for i in np.flatnonzero(~valid).tolist():  # no chunks; or with coordinates that are too large for columns
        number = grid.number(text[begins[i] : stops[i]].decode("utf-8", "surrogatepass"))
        if number is not None:
            numbers[i], valid[i] = number, True
    return numbers, valid


def tail_numbers(
    text: bytes, starts: Positions, stops: Positions, separator: str, counts: Sequence[int]
) -> tuple[UInt64s, Booleans]:
    """Return the numbers of chunks in C order by coordinates with ``separator`` between them, and which are valid.

    ``counts`` are the chunks along each dimension. Tails of more than 32 bytes, or coordinates of more than 8 digits,
    count as invalid.
    """
    remaining = stops - starts
    valid = remaining > 0
    width = min(4, -(-int(remaining.max(initial=1)) // 8)) if counts else 1
    valid &= remaining <= 8 * width
    # The last bytes of the tail are the high end of the last word.
    words = list(words_at(text, stops - 8 * width, width).T)
    numbers = np.zeros(len(starts), np.uint64)
    left = remaining.astype(np.uint64)
    between = u64(ord(separator) * ONES)
    stride: npt.NDArray[np.uint64] | Any = np.uint64(1)
    for dimension in reversed(range(len(counts))):
        if dimension:
            size = bytes_after_last(marks(words[-1], between))
            fits = (size < left) & (size < _8)
        else:
            size = left
            fits = size <= _8
        fits &= size > np.uint64(0)
        if not fits.all():
            valid &= fits
            size = np.where(fits, size, np.uint64(1))
        coords, wrong = digits(words[-1], size)
        fits = coords >= LEAST[size.view(np.int64)]
        fits &= coords < np.uint64(counts[dimension])
        fits &= wrong == 0
        valid &= fits
        coords *= stride
        numbers += coords
        stride = stride * np.uint64(counts[dimension])
        if dimension:
            taken = size + np.uint64(1)
            left -= taken
            taken <<= np.uint64(3)
            back = _64 - taken
            for i in range(width - 1, 0, -1):
                words[i] = (words[i] << taken) | (words[i - 1] >> back)
            words[0] = words[0] << taken
    if not counts:
        valid[:] = False
    return numbers, valid


def name_starts(text: bytes, starts: Positions, stops: Positions) -> Positions:
    """Return where the last name of each key begins."""
    found = starts.copy()
    left = np.arange(len(starts))
    for i in range(1, 5):
        last = words_at(text, stops[left] - 8 * i, 1)[:, 0]
        after = bytes_after_last(marks(last, _SLASHES)).view(np.int64)
        begins = stops[left] - 8 * (i - 1) - after
        here = (after < 8) & (begins > starts[left])
        found[left[here]] = begins[here]
        left = left[~here]
        left = left[stops[left] - 8 * i > starts[left]]
        if not len(left):
            return found
    for i in left.tolist():  # longer names
        found[i] = max(text.rfind(b"/", starts[i], stops[i]) + 1, starts[i])
    return found

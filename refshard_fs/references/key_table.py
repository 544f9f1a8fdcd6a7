"""Members of a reference set that are no chunks of a known grid, as columns: many of them, and no object for any.

Keys lie in one run of bytes and data in another; a key is found by its hash. No I/O here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Row, UInt32s, UInt64s
from refshard_fs.core.swar import (
    PAD,
    SEED,
    Booleans,
    Buffer,
    Positions,
    alike,
    gathered,
    grouped,
    hash_of,
    hashes,
    runs,
    stands,
)

__all__ = ["Columns", "Directories", "ESCAPED", "Run", "SideTable", "Value", "text_at"]

# A value as the manifest spells it: text, an object, bytes, or a reference.
Value = str | bytes | dict[str, Any] | Row

# In the offset of a text that is kept as it stands in JSON: without \u and \/, so that there is one way to spell each.
ESCAPED: Final = 1 << 63

FEW: Final = 16  # keys that are spelled one by one
PART: Final = 5  # bytes that are looked for of several marks at once

_LOW: Final = 2**32 - 1
_PLACE: Final = np.uint64(ESCAPED - 1)
_TEXT: Final[Callable[[bytes], str]] = msgspec.json.Decoder(str).decode


class Columns(NamedTuple):
    """Members in order: where the target is ABSENT, the value is text at these bytes of the data (see ESCAPED)."""

    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s


def text_at(data: Buffer, offset: int, length: int) -> str:
    """Return the text that the columns say."""
    place = offset & ~ESCAPED
    piece = bytes(data[place : place + length])
    return _TEXT(b'"%b"' % piece) if place != offset else piece.decode("utf-8", "surrogatepass")


class Run(NamedTuple):
    """Some members: ``keys`` are in UTF-8, each with a quote behind it, and ``sizes`` bytes long without that."""

    keys: bytes
    sizes: Positions
    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s
    data: Buffer  # which several runs may share
    objects: Mapping[int, Value] = {}  # values that are neither references nor text, by place

    @classmethod
    def of(cls, members: Mapping[str, Value]) -> Run:
        """Return members as columns."""
        keys = [key.encode("utf-8", "surrogatepass") for key in members]
        count = len(keys)
        targets, offsets = np.full(count, ABSENT, np.uint32), np.zeros(count, np.uint64)
        lengths = np.zeros(count, np.uint64)
        data, end, objects = list[bytes](), 0, dict[int, Value]()
        for i, value in enumerate(members.values()):
            match value:
                case Row(target, offset, length):
                    targets[i], offsets[i], lengths[i] = target, offset, WHOLE if length is None else length
                case str():
                    encoded = value.encode("utf-8", "surrogatepass")
                    offsets[i], lengths[i] = end, len(encoded)
                    data.append(encoded)
                    end += len(encoded)
                case _:
                    objects[i] = value
        sizes = np.fromiter(map(len, keys), np.int64, count)
        return cls(b"".join([key + b'"' for key in keys]), sizes, targets, offsets, lengths, b"".join(data), objects)


class SideTable(Mapping[str, Value]):
    """An immutable mapping of keys to values.

    ``keys`` has `words.PAD` on either side and a quote behind each key, ``ends`` is where keys end in it; ``index`` has
    for each key 32 bits of its hash, for ``seed``, and 32 of its place, ascending.
    """

    __slots__ = ("columns", "data", "ends", "index", "objects", "seed", "spelled")

    def __init__(
        self,
        spelled: Buffer,
        ends: UInt64s,
        columns: Columns,
        data: Buffer,
        objects: Mapping[int, Value],
        index: UInt64s | None = None,
        seed: int = SEED,
    ) -> None:
        self.spelled = spelled
        self.ends = ends
        self.columns = columns
        self.data = data
        self.objects = objects
        self.seed = seed
        self.index = self._indexed() if index is None else index

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SideTable:
        """Return all members; the last one of a key counts."""
        count = sum(len(run.sizes) for run in runs)
        ends, index, offsets, lengths = (np.empty(count, np.uint64) for _ in range(4))
        targets = np.empty(count, np.uint32)
        objects, pieces = dict[int, Value](), list[Buffer]()
        shifts = dict[int, int]()  # of data, by its identity
        end = first = keys = 0
        for run in runs:  # one after the other: what is made on the way is small
            rows = slice(first, first + len(run.sizes))
            text = b"".join((PAD, run.keys, PAD))
            stops = run.sizes.cumsum()
            stops += np.arange(len(PAD), len(PAD) + len(stops))
            index[rows] = hashes(text, stops - run.sizes, stops, SEED)
            stops += keys
            ends[rows], targets[rows], lengths[rows] = stops, run.targets, run.lengths
            keys += len(run.keys)
            shift = shifts.setdefault(id(run.data), end)
            if shift == end and len(run.data):
                pieces.append(run.data)
                end += len(run.data)
            # Those of references do not move.
            offsets[rows] = run.offsets + (run.targets == ABSENT) * np.uint64(shift) if shift else run.offsets
            objects.update((first + place, value) for place, value in run.objects.items())
            first = rows.stop
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        spelled = b"".join((PAD, *(run.keys for run in runs), PAD))
        table = cls(spelled, ends, Columns(targets, offsets, lengths), data, objects, _index(index))
        repeated = table._repeated()
        return table._without(repeated) if repeated else table

    def rows_of(self, keys: Iterable[str]) -> set[int]:
        """Return the rows of those ``keys`` that there are."""
        return {row for row in map(self._row, keys) if row is not None}

    def without(self, keys: Sequence[str]) -> SideTable:
        """Return the table without some of its keys."""
        rows = self.rows_of(keys)
        return self._without(rows) if rows else self

    def _without(self, rows: set[int]) -> SideTable:
        chosen = np.ones(len(self), np.bool_)
        chosen[list(rows)] = False
        kept = np.flatnonzero(chosen)
        starts, stops = self._starts()[kept], self.ends[kept].view(np.int64)
        targets, offsets, lengths = self.columns
        objects = {place: self.objects[row] for place, row in enumerate(kept.tolist()) if row in self.objects}
        spelled = b"".join((PAD, gathered(bytes(self.spelled), starts, stops + 1), PAD))
        ends = (stops - starts + 1).cumsum().view(np.uint64) + np.uint64(len(PAD) - 1)
        return SideTable(
            spelled, ends, Columns(targets[kept], offsets[kept], lengths[kept]), self.data, objects, seed=self.seed
        )

    def run(self) -> Run:
        """Return all members as one run."""
        sizes = self.ends.view(np.int64) - self._starts()
        keys = bytes(self.spelled[len(PAD) : len(self.spelled) - len(PAD)])
        return Run(keys, sizes, *self.columns, self.data, self.objects)

    def check(self) -> None:
        """Raise ValueError unless the columns are of one length, and what they say lies in keys and data."""
        count, ends = len(self.ends), self.ends
        text = self.columns.targets == ABSENT
        sound = all(len(column) == count for column in (*self.columns, self.index))
        sound = sound and len(self.spelled) == (int(ends[-1]) + 1 if count else len(PAD)) + len(PAD)
        sound = sound and bool((ends[1:] > ends[:-1]).all())
        if not sound or ((self.columns.offsets & _PLACE) + self.columns.lengths)[text].max(initial=0) > len(self.data):
            raise ValueError("columns of what lies aside do not fit one another")
        if count and int((self.index & np.uint64(_LOW)).max()) >= count:
            raise ValueError("an index of what lies aside leads nowhere")

    # ------------------------------------------------------------------ look-ups

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, key: str) -> Value:
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        return self.value(row)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._row(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_of(np.arange(len(self))))

    def items(self) -> ItemsView[str, Value]:
        return _Items(self)

    def keys_of(self, rows: Positions) -> list[str]:
        """Return the keys of some rows."""
        if len(rows) <= FEW:
            return list(map(self.key, rows.tolist()))
        starts = np.where(rows > 0, self.ends[rows - 1].view(np.int64) + 1, len(PAD))
        spelled = gathered(bytes(self.spelled), starts, self.ends[rows].view(np.int64) + 1)
        names = spelled.decode("utf-8", "surrogatepass").split('"')[:-1]
        return names if len(names) == len(rows) else list(map(self.key, rows.tolist()))

    def key(self, row: int) -> str:
        """Return the key of a row."""
        start = int(self.ends[row - 1]) + 1 if row else len(PAD)
        return bytes(self.spelled[start : int(self.ends[row])]).decode("utf-8", "surrogatepass")

    def value(self, row: int) -> Value:
        """Return the value of a row."""
        target = int(self.columns.targets[row])
        offset, length = int(self.columns.offsets[row]), int(self.columns.lengths[row])
        if target != ABSENT:
            return Row(target, offset, None if length == WHOLE else length)
        if row in self.objects:
            return self.objects[row]
        return text_at(self.data, offset, length)

    def _row(self, key: str) -> int | None:
        piece = key.encode("utf-8", "surrogatepass")
        high = hash_of(piece, self.seed) >> 32 << 32
        index = self.index.data
        at = bisect_left(index, high)
        while at < len(index):
            packed = index[at]
            if packed - high > _LOW:
                return None
            row = packed & _LOW
            stop = int(self.ends[row])
            if self.spelled[stop - len(piece) : stop] == piece and stop - len(piece) == self._start(row):
                return row
            at += 1
        return None

    def _start(self, row: int) -> int:
        return int(self.ends[row - 1]) + 1 if row else len(PAD)

    def _starts(self) -> Positions:
        starts = np.full(len(self.ends), len(PAD), np.int64)
        starts[1:] = self.ends[:-1].view(np.int64) + 1
        return starts

    def _indexed(self) -> UInt64s:
        return _index(hashes(bytes(self.spelled), self._starts(), self.ends.view(np.int64), self.seed))

    def _repeated(self) -> set[int]:
        """Return the rows whose keys come again."""
        high = self.index >> np.uint64(32)
        same = np.flatnonzero(high[1:] == high[:-1])
        if not len(same):
            return set()
        doubtful = np.concatenate((self.index[same], self.index[same + 1])) & np.uint64(_LOW)
        last: dict[str, int] = {}
        out = set()
        for row in sorted(set(doubtful.tolist())):
            key = self.key(row)
            if key in last:
                out.add(last[key])
            last[key] = row
        return out

    # ------------------------------------------------------------------ what is asked of all rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        arrays = (self.ends, self.index, *self.columns)
        return len(self.spelled) + len(self.data) + sum(a.nbytes for a in arrays) + 200 * len(self.objects)

    def named(self, names: Sequence[str]) -> Positions:
        """Return the rows of keys of which the last name is one of ``names``."""
        text, stops = bytes(self.spelled), self.ends.view(np.int64)
        characters = np.frombuffer(text, np.uint8)
        last = characters[stops - 1]
        found = [self.ends[:0].view(np.int64)]
        for name in map(str.encode, names):
            rows = np.flatnonzero(last == name[-1])
            begins = stops[rows] - len(name)
            starts = np.where(rows > 0, stops[rows - 1] + 1, len(PAD))
            fits = (begins == starts) | ((begins > starts) & (characters[begins - 1] == ord("/")))
            for i in range(0, len(name), 8):
                fits &= stands(text, begins + i, name[i : i + 8])
            found.append(rows[fits])
        return np.sort(np.concatenate(found))  # no key has two last names

    def lacks(self, rows: Positions, marks: Sequence[bytes]) -> bool:
        """Whether all of ``rows`` are text that is not in base64, without any of ``marks``."""
        if not self.objects.keys().isdisjoint(rows.tolist()) or (self.columns.targets[rows] != ABSENT).any():
            return False
        offsets, sizes = self.columns.offsets[rows], self.columns.lengths[rows].view(np.int64)
        starts, data = (offsets & _PLACE).view(np.int64), self.data
        if self._in_base64(starts, sizes).any():
            return False
        is_escaped = offsets >= np.uint64(ESCAPED)
        sought = {*marks} if not is_escaped.all() else set[bytes]()
        if is_escaped.any():
            sought |= {msgspec.json.encode(mark.decode())[1:-1] for mark in marks}
        if 2 * int(sizes.sum()) > len(data):
            whole = bytes(data) if type(data) is memoryview else data  # which has no search
            if not any(part in whole for part in _parts(sought)):
                return True
        pieces = set(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        texts = b"\n".join([bytes(data[start:stop]) for start, stop in pieces])
        return not any(mark in texts for mark in sought)

    def _in_base64(self, starts: Positions, sizes: Positions) -> Booleans:
        """Return which texts are in base64."""
        data = self.data
        found = np.zeros(len(starts), np.bool_)
        long = np.flatnonzero((sizes >= 7) & (starts + 8 <= len(data)))
        found[long] = stands(data, starts[long], b"base64:") if len(long) else False
        last = np.flatnonzero((sizes >= 7) & (starts + 8 > len(data)))
        found[last] = [bytes(data[start : start + 7]) == b"base64:" for start in starts[last].tolist()]
        return found

    def sizes(self, rows: Positions) -> list[int | None]:
        """Return the bytes of the values in ``rows``: None for whole targets, -1 for what takes a closer look."""
        targets, offsets, lengths = (column[rows] for column in self.columns)
        is_text = targets == ABSENT
        closer = is_text & (offsets >= np.uint64(ESCAPED))
        if self.objects:
            closer |= np.isin(rows, np.fromiter(self.objects, np.int64, len(self.objects)))
        sizes = lengths.view(np.int64).copy()
        texts = np.flatnonzero(is_text & ~closer)
        starts = offsets[texts].view(np.int64)
        encoded = self._in_base64(starts, sizes[texts])
        if encoded.any():
            characters, begins = np.frombuffer(self.data, np.uint8), starts[encoded] + 7
            length = sizes[texts[encoded]] - 7
            ends = begins + length
            first, last = int(begins.min()), int(ends.max())
            some = characters[first:last]
            spaces = np.flatnonzero((some <= ord(" ")) | (some > ord("z"))) + first  # which are not counted
            regular = (length % 4 == 0) & (spaces.searchsorted(begins) == spaces.searchsorted(ends))
            padding = (characters[ends - 1] == ord("=")).astype(np.int64) + (characters[ends - 2] == ord("="))
            sizes[texts[encoded]] = np.where(regular, length // 4 * 3 - padding, -1)
        sizes[closer] = -1
        out: list[int | None] = sizes.tolist()
        for i in np.flatnonzero(~is_text & (lengths == np.uint64(WHOLE))).tolist():
            out[i] = None
        return out

    def directories(self) -> Directories:
        """Return the rows directly below each directory that keys lie in."""
        if not len(self):
            return Directories([], self.ends.view(np.int64), [])
        text, stops, starts = bytes(self.spelled), self.ends.view(np.int64), self._starts()
        slashes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("/"))
        places = slashes.searchsorted(stops) - 1
        last = slashes[np.maximum(places, 0)] if len(slashes) else starts
        below = (places >= 0) & (last >= starts)
        ends = np.where(below, last, starts)
        begun = runs(text, starts, ends)  # most keys lie where the one before does
        starts, ends = starts[begun], ends[begun]
        firsts, groups = grouped(hashes(text, starts, ends, self.seed))
        sizes, chosen = ends - starts, firsts[groups]
        if (sizes != sizes[chosen]).any() or not alike(text, starts, text, starts[chosen], sizes).all():
            known: dict[str, int] = {}
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            pieces = (text[start:stop].decode("utf-8", "surrogatepass") for start, stop in spans)
            found = [known.setdefault(piece, len(known)) for piece in pieces]
            names, groups = list(known), np.array(found, np.uint32)
        else:
            spans = zip(starts[firsts].tolist(), ends[firsts].tolist(), strict=True)
            string = text.decode() if text.isascii() else None
            names = (
                [string[start:stop] for start, stop in spans]
                if string is not None
                else [text[start:stop].decode("utf-8", "surrogatepass") for start, stop in spans]
            )
        groups = groups.repeat(np.diff(begun, append=len(stops)))
        order = np.argsort(groups, kind="stable")
        bounds = groups[order].searchsorted(np.arange(len(names) + 1)).tolist()
        return Directories(names, order, bounds)


def _index(hashes: UInt64s) -> UInt64s:
    """Make an index of the hashes of all keys."""
    hashes &= np.uint64(_LOW << 32)
    hashes |= np.arange(len(hashes), dtype=np.uint64)
    hashes.sort()
    return hashes


def _parts(marks: Iterable[bytes]) -> list[bytes]:
    """Return texts of which one is in each of ``marks``: fewer, which takes less time to search."""
    left, found = list(marks), list[bytes]()
    while left:
        pieces = {mark[i : i + PART] for mark in left for i in range(len(mark) - PART + 1)}
        part = max(sorted(pieces), key=lambda piece: sum(piece in mark for mark in left), default=left[0])
        those = [mark for mark in left if part in mark] or left[:1]
        found.append(part if len(those) > 1 else those[0])
        left = [mark for mark in left if mark not in those]
    return found


class Directories(Mapping[str, Positions]):
    """Rows by directory: by the i-th of ``names``, those from ``bounds[i]`` to ``bounds[i + 1]`` of ``order``."""

    __slots__ = ("_bounds", "_order", "_places")

    def __init__(self, names: Sequence[str], order: Positions, bounds: Sequence[int]) -> None:
        self._places = dict(zip(names, range(len(names)), strict=True))
        self._order, self._bounds = order, bounds

    def __getitem__(self, name: str) -> Positions:
        place = self._places[name]
        return self._order[self._bounds[place] : self._bounds[place + 1]]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Items(ItemsView[str, Value]):
    """The items of a table in its own order, without a look-up for each."""

    def __init__(self, table: SideTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._table, map(self._table.value, range(len(self._table))), strict=True)

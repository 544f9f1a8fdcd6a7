"""Members of a reference set by their keys, as columns: no object for any of them. No I/O here.

Keys lie in one run of bytes and texts in another; a key is found by its hash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Ranges, Row, UInt64s
from refshard_fs.core.swar import PAD, SEED, Buffer, Positions, groups_of, hash_of, hashes, join_pieces, runs
from refshard_fs.references.chunk_keys import Keys, pieces

# A value as the manifest spells it: text, an object, bytes, or a reference.
Value = str | bytes | dict[str, Any] | Row

# In the offset of a text that is kept as it stands in JSON: without \u and \/, so that there is one way to spell each.
ESCAPED: Final = 1 << 63

FEW: Final = 16  # keys that are spelled one by one

_LOW: Final = 2**32 - 1
_PLACE: Final = np.uint64(ESCAPED - 1)
_BASE64: Final = b"base64:"
_TEXT: Final[Callable[[bytes], str]] = msgspec.json.Decoder(str).decode


def text_at(data: Buffer, offset: int, length: int) -> str:
    """Return the text that a row without a reference stands for."""
    place = offset & ~ESCAPED
    piece = bytes(data[place : place + length])
    return _TEXT(b'"%b"' % piece) if place != offset else piece.decode("utf-8", "surrogatepass")


class KeyTable(Mapping[str, Value]):
    """An immutable mapping of keys to values.

    ``spelled`` has keys in UTF-8, `swar.PAD` on either side and a quote behind each; ``ends`` is where keys end in it.
    Where there is no reference in ``ranges``, the value is one of ``objects``, by row, or text at these bytes of
    ``data`` (see `ESCAPED`), which several tables may share. ``index`` has for each key 32 bits of its hash, for
    ``seed``, and 32 of its row, ascending.
    """

    __slots__ = ("_index", "data", "ends", "objects", "ranges", "seed", "spelled")

    def __init__(
        self,
        spelled: Buffer,
        ends: UInt64s,
        ranges: Ranges,
        data: Buffer,
        objects: Mapping[int, Value],
        index: UInt64s | None = None,
        seed: int = SEED,
    ) -> None:
        self.spelled = spelled
        self.ends = ends
        self.ranges = ranges
        self.data = data
        self.objects = objects
        self.seed = seed
        self._index = index

    @classmethod
    def of(cls, parts: Sequence[KeyTable]) -> KeyTable:
        """Return the members of all ``parts``; the last one of a key counts."""
        count = sum(map(len, parts))
        ends, index = np.empty(count, np.uint64), np.empty(count, np.uint64)
        ranges = Ranges(np.empty(count, np.uint32), np.empty(count, np.uint64), np.empty(count, np.uint64))
        objects, data = dict[int, Value](), list[Buffer]()
        shifts = dict[int, int]()  # of data, by its identity
        end = first = size = 0
        for part in parts:  # one after the other: what is made on the way is small
            rows = slice(first, first + len(part))
            index[rows] = hashes(*part.keys_in_rows, SEED)
            ends[rows] = part.ends + np.uint64(size)
            size += len(part.spelled) - 2 * len(PAD)
            shift = shifts.setdefault(id(part.data), end)
            if shift == end and len(part.data):
                data.append(part.data)
                end += len(part.data)
            ranges.put(rows, part.ranges)
            if shift:  # of texts, and not of references
                ranges.offsets[rows] += (part.ranges.targets == ABSENT) * np.uint64(shift)
            objects.update((first + place, value) for place, value in part.objects.items())
            first = rows.stop
        spelled = b"".join((PAD, *(memoryview(part.spelled)[len(PAD) : -len(PAD)] for part in parts), PAD))
        table = cls(spelled, ends, ranges, data[0] if len(data) == 1 else b"".join(data), objects, _index(index))
        repeated = table._repeated()
        return table.without_rows(repeated) if repeated else table

    @classmethod
    def of_rows(cls, spelled: bytes, sizes: Positions, ranges: Ranges, data: Buffer) -> KeyTable:
        """Return members whose keys, all different, have so many bytes each in ``spelled``, and a quote behind each."""
        keys = Keys.of(spelled, sizes)
        return cls(keys.text, keys.stops.view(np.uint64), ranges, data, {})

    @classmethod
    def of_mapping(cls, members: Mapping[str, Value]) -> KeyTable:
        """Return the members of a mapping."""
        keys = [key.encode("utf-8", "surrogatepass") for key in members]
        rows = list[Row]()
        data, end, objects = list[bytes](), 0, dict[int, Value]()
        for value in members.values():
            match value:
                case Row():
                    rows.append(value)
                case str():
                    encoded = value.encode("utf-8", "surrogatepass")
                    rows.append(Row(ABSENT, end, len(encoded)))
                    data.append(encoded)
                    end += len(encoded)
                case _:
                    objects[len(rows)] = value
                    rows.append(Row(ABSENT, 0, 0))
        sizes = np.fromiter(map(len, keys), np.int64, len(keys))
        table = cls.of_rows(b"".join([key + b'"' for key in keys]), sizes, Ranges.of(rows), b"".join(data))
        table.objects = objects
        return table

    def take(self, rows: Positions) -> KeyTable:
        """Return some of the members."""
        keys = self.keys_in_rows.take(rows)
        spelled = join_pieces(keys.text, keys.starts, keys.stops + 1)
        table = self.of_rows(spelled, keys.stops - keys.starts, self.ranges.take(rows), self.data)
        table.objects = {i: self.objects[row] for i, row in enumerate(rows.tolist()) if row in self.objects}
        return table

    def without_rows(self, rows: Iterable[int]) -> KeyTable:
        """Return the table without some of its rows."""
        chosen = np.ones(len(self), np.bool_)
        chosen[list(rows)] = False
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def rows_of(self, keys: Iterable[str]) -> set[int]:
        """Return the rows of those ``keys`` that there are."""
        return {row for row in map(self._row, keys) if row is not None}

    def check(self) -> None:
        """Raise ValueError unless the columns are of one length, and what they say lies in keys and data."""
        count, ends = len(self.ends), self.ends
        text = self.ranges.targets == ABSENT
        sound = all(len(column) == count for column in (*self.ranges, self.index))
        sound = sound and len(self.spelled) == (int(ends[-1]) + 1 if count else len(PAD)) + len(PAD)
        sound = sound and bool((ends[1:] > ends[:-1]).all())
        if not sound or ((self.ranges.offsets & _PLACE) + self.ranges.lengths)[text].max(initial=0) > len(self.data):
            raise ValueError("the columns of a key table do not fit one another")
        if count and int((self.index & np.uint64(_LOW)).max()) >= count:
            raise ValueError("the index of a key table leads nowhere")

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

    @property
    def keys_in_rows(self) -> Keys:
        """The keys in the order of the rows."""
        starts = np.full(len(self.ends), len(PAD), np.int64)
        starts[1:] = self.ends[:-1].view(np.int64) + 1
        return Keys(bytes(self.spelled), starts, self.ends.view(np.int64))

    def keys_of(self, rows: Positions) -> list[str]:
        """Return the keys of some rows."""
        if len(rows) <= FEW:
            return list(map(self.key, rows.tolist()))
        starts = np.where(rows > 0, self.ends[rows - 1].view(np.int64) + 1, len(PAD))
        spelled = join_pieces(bytes(self.spelled), starts, self.ends[rows].view(np.int64) + 1)
        names = spelled.decode("utf-8", "surrogatepass").split('"')[:-1]
        return names if len(names) == len(rows) else list(map(self.key, rows.tolist()))

    def key(self, row: int) -> str:
        """Return the key of a row."""
        return bytes(self.spelled[self._start(row) : int(self.ends[row])]).decode("utf-8", "surrogatepass")

    def value(self, row: int) -> Value:
        """Return the value of a row."""
        reference = self.ranges.row(row)
        if reference is not None:
            return reference
        if row in self.objects:
            return self.objects[row]
        return text_at(self.data, int(self.ranges.offsets[row]), int(self.ranges.lengths[row]))

    @property
    def index(self) -> UInt64s:
        """The rows by the hashes of their keys, made at the first look-up."""
        if self._index is None:
            keys = self.keys_in_rows
            self._index = _index(hashes(*keys, self.seed))
        return self._index

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

    def _repeated(self) -> set[int]:
        """Return the rows whose keys come again."""
        high = self.index >> np.uint64(32)
        same = np.flatnonzero(high[1:] == high[:-1])
        doubtful = np.concatenate((self.index[same], self.index[same + 1])) & np.uint64(_LOW)
        last: dict[str, int] = {}
        out = set()
        for row in sorted(set(doubtful.tolist())):
            key = self.key(row)
            if key in last:
                out.add(last[key])
            last[key] = row
        return out

    # ------------------------------------------------------------------ what is asked of many rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        arrays = 2 * self.ends.nbytes + self.ranges.nbytes
        return len(self.spelled) + len(self.data) + arrays + 200 * len(self.objects)

    def has_marks(self, rows: Positions, marks: Sequence[bytes]) -> bool:
        """Whether one of ``rows`` is not plain text, or has one of ``marks`` in it."""
        if not self.objects.keys().isdisjoint(rows.tolist()) or (self.ranges.targets[rows] != ABSENT).any():
            return True
        offsets, sizes = self.ranges.offsets[rows], self.ranges.lengths[rows].view(np.int64)
        starts, data = (offsets & _PLACE).view(np.int64), self.data
        if len(self._in_base64(starts, sizes)):
            return True
        if 2 * int(sizes.sum()) > len(data):  # then it is faster to search all of it first
            whole = bytes(data) if type(data) is memoryview else data  # which has no search
            if not any(mark.strip(b'"') in whole for mark in marks):
                return False
        sought = {*marks, *(msgspec.json.encode(mark.decode())[1:-1] for mark in marks)}  # also as escaped in JSON
        spans = set(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        texts = b"\n".join([bytes(data[start:stop]) for start, stop in spans])
        return any(mark in texts for mark in sought)

    def _in_base64(self, starts: Positions, sizes: Positions) -> Positions:
        """Return which texts are in base64."""
        characters = np.frombuffer(self.data, np.uint8)
        found = np.flatnonzero(sizes >= len(_BASE64))
        for i, byte in enumerate(_BASE64):
            found = found[characters[starts[found] + i] == byte]
        return found

    def sizes(self, rows: Positions) -> list[int | None]:
        """Return the bytes of the values in ``rows``: None for whole targets, -1 for what takes a closer look."""
        targets, offsets, lengths = self.ranges.take(rows)
        is_text = targets == ABSENT
        closer = is_text & (offsets >= np.uint64(ESCAPED))
        if self.objects:
            closer |= np.isin(rows, np.fromiter(self.objects, np.int64, len(self.objects)))
        sizes = lengths.view(np.int64).copy()
        texts = np.flatnonzero(is_text & ~closer)
        starts = offsets[texts].view(np.int64)
        encoded = self._in_base64(starts, sizes[texts])
        if len(encoded):
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

    def directories(self) -> DirectoryRows:
        """Return the rows directly below each directory that keys lie in."""
        if not len(self):
            return DirectoryRows([], np.zeros(0, np.int64), [])
        text, starts, stops = self.keys_in_rows
        slashes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("/"))
        places = slashes.searchsorted(stops) - 1
        last = slashes[np.maximum(places, 0)] if len(slashes) else starts
        ends = np.where((places >= 0) & (last >= starts), last, starts)
        begun = runs(text, starts, ends)  # most keys lie where the one before does
        starts, ends = starts[begun], ends[begun]
        firsts, groups = groups_of(text, starts, ends, hashes(text, starts, ends, self.seed))
        names = pieces(text, starts[firsts], ends[firsts])
        groups = groups.repeat(np.diff(begun, append=len(stops)))
        order = np.argsort(groups, kind="stable")
        bounds = groups[order].searchsorted(np.arange(len(names) + 1)).tolist()
        return DirectoryRows(names, order, bounds)


def _index(hashes: UInt64s) -> UInt64s:
    """Make an index of the hashes of all keys."""
    hashes &= np.uint64(_LOW << 32)
    hashes |= np.arange(len(hashes), dtype=np.uint64)
    hashes.sort()
    return hashes


class DirectoryRows(Mapping[str, Positions]):
    """Rows by directory: by the i-th of ``names``, those from ``bounds[i]`` to ``bounds[i + 1]`` of ``order``."""

    __slots__ = ("_bounds", "_order", "_places")

    def __init__(self, names: Sequence[str], order: Positions, bounds: Sequence[int]) -> None:
        self._places = dict(zip(names, range(len(names)), strict=True))
        self._order, self._bounds = order, bounds

    def __getitem__(self, name: str) -> Positions:
        place = self._places[name]
        return self._order[self._bounds[place] : self._bounds[place + 1]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Items(ItemsView[str, Value]):
    """The items of a table in its own order, without a look-up for each."""

    def __init__(self, table: KeyTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._table, map(self._table.value, range(len(self._table))), strict=True)

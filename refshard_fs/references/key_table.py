"""Keep members of a reference set in columns, without Python objects, and find them by key. No I/O here.

All keys are joined to one text, and all values that are texts to another one. The table finds a key by its hash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from refshard_fs.core.columns import NO_TARGET, Ranges, Row, UInt64s
from refshard_fs.references.chunk_keys import Keys
from refshard_fs.references.pieces import PAD, SEED, Buffer, Positions, compute_hash, compute_hashes

# A value as it is in the manifest: text, an object, bytes, or a reference.
Value = str | bytes | dict[str, Any] | Row

_LOW: Final = 2**32 - 1
_BASE64: Final = b"base64:"
# Keys that are hashed at a time: hashing 100,000 keys at once would fragment 2.5 MB of memory.
BATCH: Final = 8192


class KeyTable(Mapping[str, Value]):
    """An immutable mapping of keys to values.

    ``joined_keys`` is all keys in UTF-8, with a NUL after each key and `pieces.PAD` at the end; ``ends`` are the ends
    of the keys. If a row has no target in ``ranges``, its value is in ``objects``, or it is a text, whose range in
    ``data`` the row states; several tables may share ``data``. ``index`` ascends: the upper 32 bits of an element are
    the upper half of a key's hash for ``seed``, and the lower 32 bits are the key's row.
    """

    __slots__ = ("_index", "data", "ends", "joined_keys", "objects", "ranges", "seed")

    def __init__(
        self,
        joined_keys: Buffer,
        ends: UInt64s,
        ranges: Ranges,
        data: Buffer,
        objects: Mapping[int, Value],
        index: UInt64s | None = None,
        seed: int = SEED,
    ) -> None:
        self.joined_keys = joined_keys
        self.ends = ends
        self.ranges = ranges
        self.data = data
        self.objects = objects
        self.seed = seed
        self._index = index

    @classmethod
    def of(cls, parts: Sequence[KeyTable]) -> KeyTable:
        """Join the members of all ``parts``; of several members with the same key, the last one is kept."""
        joined_keys = b"".join([*(memoryview(part.joined_keys)[: -len(PAD)] for part in parts), PAD])
        ends, objects, shifts = [np.zeros(0, np.uint64)], dict[int, Value](), dict[int, int]()
        columns = []
        data = list[Buffer]()
        first = start = end = 0
        for part in parts:
            ends.append(part.ends + np.uint64(start))
            start += len(part.joined_keys) - len(PAD)
            if id(part.data) not in shifts:
                shifts[id(part.data)] = end
                data.append(part.data)
                end += len(part.data)
            # The offsets of texts change; the offsets of references do not.
            shift = (part.ranges.targets == NO_TARGET) * np.uint64(shifts[id(part.data)])
            columns.append(part.ranges._replace(offsets=part.ranges.offsets + shift))
            objects.update((first + place, value) for place, value in part.objects.items())
            first += len(part)
        joined = data[0] if len(data) == 1 else b"".join(data)
        table = cls(joined_keys, np.concatenate(ends), Ranges.concatenate(columns), joined, objects)
        return table.drop_rows(table._find_repeated())

    @classmethod
    def of_keys(
        cls, keys: Keys, ranges: Ranges, data: Buffer, objects: Mapping[int, Value] = MappingProxyType({})
    ) -> KeyTable:
        """Make a table of members; ``keys`` must be distinct, and packed by `Keys.pack`."""
        return cls(keys.text, keys.stops.view(np.uint64), ranges, data, objects)

    @classmethod
    def of_mapping(cls, members: Mapping[str, Value]) -> KeyTable:
        """Make a table of the members of a mapping."""
        rows = list[Row]()
        data, end, objects = list[bytes](), 0, dict[int, Value]()
        for value in members.values():
            match value:
                case Row():
                    rows.append(value)
                case str():
                    encoded = value.encode("utf-8", "surrogatepass")
                    rows.append(Row(NO_TARGET, end, len(encoded)))
                    data.append(encoded)
                    end += len(encoded)
                case _:
                    objects[len(rows)] = value
                    rows.append(Row(NO_TARGET, 0, 0))
        return cls.of_keys(Keys.of_names(members), Ranges.of(rows), b"".join(data), objects)

    def take(self, rows: Positions) -> KeyTable:
        """Return a table of the members in ``rows``."""
        objects = {i: self.objects[row] for i, row in enumerate(rows.tolist()) if row in self.objects}
        return self.of_keys(self.get_keys(rows).pack(), self.ranges.take(rows), self.data, objects)

    def drop_rows(self, rows: Iterable[int]) -> KeyTable:
        """Return the table without ``rows``."""
        remains = np.ones(len(self), np.bool_)
        remains[list(rows)] = False
        return self if remains.all() else self.take(np.flatnonzero(remains))

    def find_rows(self, keys: Iterable[str]) -> set[int]:
        """Return the rows of the ``keys`` that exist."""
        return {row for row in map(self._find_row, keys) if row is not None}

    def check(self) -> None:
        """Raise ValueError unless all columns have the same length, and all ends, texts and rows are within bounds."""
        count, ends = len(self.ends), self.ends
        text = self.ranges.take(self.ranges.targets == NO_TARGET)
        size = np.uint64(len(self.data))
        fits = all(len(column) == count for column in (*self.ranges, self.index))
        fits = fits and len(self.joined_keys) == (int(ends[-1]) + 1 if count else 0) + len(PAD)
        fits = fits and bool((ends[1:] > ends[:-1]).all())
        # NULs separate keys, so no key may contain a NUL.
        others = np.count_nonzero(np.frombuffer(self.joined_keys, np.uint8))
        fits = fits and len(self.joined_keys) - others == count + len(PAD)
        if not fits or ((text.offsets > size) | (text.lengths > size - text.offsets)).any():
            raise ValueError(
                "the columns of a key table contradict each other: expected equal lengths, ascending ends, keys "
                "without NUL, and texts within the data"
            )
        if count and (last := int((self.index & np.uint64(_LOW)).max())) >= count:
            raise ValueError(f"the index of a key table has row {last}: expected less than {count}")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, key: str) -> Value:
        row = self._find_row(key)
        if row is None:
            raise KeyError(key)
        return self.get_value(row)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find_row(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_in_rows.list_names())

    def items(self) -> ItemsView[str, Value]:
        return _Items(self)

    @property
    def keys_in_rows(self) -> Keys:
        """The keys in the order of the rows."""
        return self.get_keys(np.arange(len(self)))

    def get_keys(self, rows: Positions) -> Keys:
        """Return the keys in ``rows``."""
        starts = np.where(rows > 0, self.ends[rows - 1] + np.uint64(1), np.uint64(0)) if len(rows) else rows
        return Keys(self.joined_keys, starts.view(np.int64), self.ends[rows].view(np.int64))

    def get_key(self, row: int) -> str:
        """Return the key in ``row``."""
        return bytes(self.joined_keys[self._find_start(row) : int(self.ends[row])]).decode("utf-8", "surrogatepass")

    def get_value(self, row: int) -> Value:
        """Return the value in ``row``."""
        reference = self.ranges.get_row(row)
        if reference is not None:
            return reference
        if row in self.objects:
            return self.objects[row]
        start = int(self.ranges.offsets[row])
        return bytes(self.data[start : start + int(self.ranges.lengths[row])]).decode("utf-8", "surrogatepass")

    @property
    def index(self) -> UInt64s:
        """The ``index`` of the table (see `KeyTable`), computed at the first look-up."""
        if self._index is None:
            index = np.empty(len(self), np.uint64)
            for rows in np.split(np.arange(len(self)), range(BATCH, len(self), BATCH)):
                hashes = compute_hashes(*self.get_keys(rows), self.seed)
                index[rows] = hashes & np.uint64(_LOW << 32) | rows.view(np.uint64)
            index.sort()
            self._index = index
        return self._index

    def _find_row(self, key: str) -> int | None:
        piece = key.encode("utf-8", "surrogatepass")
        high = compute_hash(piece, self.seed) >> 32 << 32
        index = self.index.data
        at = bisect_left(index, high)
        while at < len(index):
            packed = index[at]
            if packed - high > _LOW:
                return None
            row = packed & _LOW
            stop = int(self.ends[row])
            if self.joined_keys[stop - len(piece) : stop] == piece and stop - len(piece) == self._find_start(row):
                return row
            at += 1
        return None

    def _find_start(self, row: int) -> int:
        return int(self.ends[row - 1]) + 1 if row else 0

    def _find_repeated(self) -> set[int]:
        """Return the rows whose keys occur again later."""
        high = self.index >> np.uint64(32)
        same = np.flatnonzero(high[1:] == high[:-1])
        doubtful = np.concatenate((self.index[same], self.index[same + 1])) & np.uint64(_LOW)
        last: dict[str, int] = {}
        out = set()
        for row in sorted(set(doubtful.tolist())):
            key = self.get_key(row)
            if key in last:
                out.add(last[key])
            last[key] = row
        return out

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes."""
        arrays = 2 * self.ends.nbytes + self.ranges.nbytes
        return len(self.joined_keys) + len(self.data) + arrays + 200 * len(self.objects)

    def has_marks(self, rows: Positions, marks: Sequence[bytes]) -> bool:
        """Return whether a value in ``rows`` may contain one of ``marks``, or is not a plain text.

        False is certain. If the values in ``rows`` are most of the data, all of the data is searched.
        """
        if not self.objects.keys().isdisjoint(rows.tolist()) or (self.ranges.targets[rows] != NO_TARGET).any():
            return True
        starts, sizes, data = (
            self.ranges.offsets[rows].view(np.int64),
            self.ranges.lengths[rows].view(np.int64),
            self.data,
        )
        if len(self._find_base64(starts, sizes)):
            return True
        if 2 * int(sizes.sum()) < len(data):
            spans = set(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
            data = b"\n".join([data[start:stop] for start, stop in spans])
        data = bytes(data)
        return any(mark in data for mark in marks)

    def _find_base64(self, starts: Positions, sizes: Positions) -> Positions:
        """Return the positions of the texts that are in base64."""
        characters = np.frombuffer(self.data, np.uint8)
        found = np.flatnonzero(sizes >= len(_BASE64))
        for i, byte in enumerate(_BASE64):
            found = found[characters[starts[found] + i] == byte]
        return found

    def get_sizes(self, rows: Positions) -> list[int]:
        """Return the sizes in bytes of the values in ``rows``; -1 if decoding is needed, or for a whole target."""
        targets, offsets, lengths = self.ranges.take(rows)
        sizes = lengths.view(np.int64)  # -1 for whole targets
        texts = np.flatnonzero(targets == NO_TARGET)
        encoded = texts[self._find_base64(offsets[texts].view(np.int64), sizes[texts])]
        if len(encoded):
            characters = np.frombuffer(self.data, np.uint8)
            begins = offsets[encoded].view(np.int64) + len(_BASE64)
            ends = offsets[encoded].view(np.int64) + sizes[encoded]
            # Texts with blanks, or with characters that are not base64, get the size -1: they must be decoded.
            first = int(begins.min())
            around = characters[first : int(ends.max())]  # all of ``data`` may be far longer
            odd = np.flatnonzero((around <= ord(" ")) | (around > ord("z"))) + first
            is_regular = ((ends - begins) % 4 == 0) & (odd.searchsorted(ends) == odd.searchsorted(begins))
            padding = (characters[ends - 1] == ord("=")).astype(np.int64) + (characters[ends - 2] == ord("="))
            sizes[encoded] = np.where(is_regular, (ends - begins) // 4 * 3 - padding, -1)
        if self.objects:
            sizes[np.isin(rows, np.fromiter(self.objects, np.int64, len(self.objects)))] = -1
        found: list[int] = sizes.tolist()
        return found


class _Items(ItemsView[str, Value]):
    """The items of a table in the order of its rows; iteration needs no look-ups."""

    def __init__(self, table: KeyTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._table, map(self._table.get_value, range(len(self._table))), strict=True)

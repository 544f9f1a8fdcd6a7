"""Builds a `ReferenceSet` of references as they come, whole blocks of JSON as columns where possible. No I/O here.

Order counts as in a JSON object: the last value of a key wins. Metadata may come after the chunks that it is about;
what was kept by key until then is looked through again in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, ChunkTable, Part, Ranges, Row, UInt32s
from refshard_fs.core.keys import MOST_STEPS, ChunkGrid, check_key, join, normalise
from refshard_fs.core.swar import Positions
from refshard_fs.errors import DivisionByZero, ManifestError
from refshard_fs.references.chunk_keys import Keys, place_chunks
from refshard_fs.references.json_scan import Irregular, NotExpanded, Records, Urls, block_texts, scan
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, GridReader

SMALL: Final = 256  # chunks; arrays of no more stay by key: columns of their own take as much room, and more time
BATCH: Final = 16384  # members that are taken at a time from something longer
FEW: Final = 64  # members that are looked at one by one
# Metadata is read where it is that of few arrays, or of arrays with so many members each. Of many arrays with few
# members none can be large, and to read all their metadata would take longer than all the rest.
MANY: Final = 512  # arrays
EACH: Final = 16  # members


class _Kept(msgspec.Struct, eq=False):
    """Members that are kept by key, looked through when the arrays had changed ``grids_seen`` times."""

    order: int
    members: KeyTable
    grids_seen: int
    is_read: bool  # whether the metadata among them is


class ReferenceBuilder:
    """The members of one JSON object of references, ``where`` naming it in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._urls = Urls()
        self._read_grid = GridReader(where).grid
        self._grids: dict[str, ChunkGrid] = {}  # of large arrays
        self._grids_seen = 0  # how often they changed
        self._parts: dict[str, list[tuple[int, Part]]] = {}  # their chunks, each part with its place in the order
        self._kept: list[_Kept] = []
        self._order = 0
        self._data = bytearray()  # the texts of all blocks
        self._members = self._documents = 0  # how many there were

    @property
    def is_empty(self) -> bool:
        return not self._order

    def add_block(self, block: bytes | memoryview, others: Iterable[bytes] = ()) -> bool:
        """Take compact members (see `json_scan`); False, and nothing taken, where they are not of that form.

        Nor is anything taken where there is one of ``others``, keys with a meaning of their own.
        """
        try:
            records = scan(block, self._urls)
            if records is None or any(map(records.has, others)):
                return False
            self._add_records(records)
        except (UnicodeDecodeError, Irregular):
            return False  # a reader of JSON will say what is wrong
        return True

    def add_batches(self, members: Mapping[Any, Any]) -> None:
        """Take the members of a mapping that may be long."""
        if len(members) <= 2 * BATCH:
            self.add_members(members)
            return
        items = iter(members.items())
        while batch := dict(islice(items, BATCH)):
            self.add_members(batch)

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Take members as Python values."""
        if len(members) <= FEW:
            self._add_one_by_one(members)
            return
        if _is_regular(members):
            self._add_regular(members)
            return
        regular: dict[str, Any] = {}
        others: dict[Any, Any] = {}
        for key, value in members.items():
            kind = type(value)
            is_list = (kind is list or kind is tuple) and len(value) in (1, 3) and type(value[0]) is str
            (regular if type(key) is str and (is_list or kind is str) else others)[key] = value
        self._add_one_by_one(others)
        self._add_regular(regular)

    def _add_regular(self, members: Mapping[str, Any]) -> None:
        """Take members that are texts, or lists that begin with one."""
        records = _compact(members, self._urls) if len(members) > FEW else None
        if records is None:
            self._add_one_by_one(members)
        else:
            self._add_records(records)

    def expand(self, expand: Callable[[str], str]) -> None:
        """Expand the URLs of all members so far that have ``{{`` in them, once each; ManifestError names the key."""
        try:
            self._renumber(self._urls.expand(expand))
        except NotExpanded as e:
            key = self._key_of(e.number)
            kind = DivisionByZero if isinstance(e.__cause__, DivisionByZero) else ManifestError
            raise kind(f"{key!r} of {self._where}: its URL {e.text!r}: {e.__cause__}") from e

    def finish(self) -> ReferenceSet:
        """Return the reference set; the builder is of no use after that."""
        urls, numbers = self._urls.finish()
        self._renumber(numbers)
        if self._documents <= MANY:
            self._read_metadata()
        self._kept.sort(key=attrgetter("order"))
        unplaced = [item for item in self._kept if item.grids_seen < self._grids_seen]
        # Inline data hides nothing where there are no references.
        ranges = [part.ranges for parts in self._parts.values() for _, part in parts]
        ranges += [item.members.ranges for item in unplaced]
        if any((rows.targets != ABSENT).any() for rows in ranges):
            for item in unplaced:
                item.members = self._without_chunks(item.order, item.members)
        chunks, replaced = {}, []
        for path, grid in self._grids.items():
            parts = [part for _, part in sorted(self._parts.pop(path, ()), key=itemgetter(0))]
            table = ChunkTable.from_parts(grid, parts)
            if table:
                chunks[path] = table
            for part in parts:  # inline data that a later reference replaced
                inline = part.numbers[part.ranges.targets == ABSENT]
                replaced += [join(path, grid.tail(number)) for number in table.existing(inline)] if len(inline) else []
        keys = KeyTable.of([item.members for item in self._kept])
        if replaced:
            keys = keys.without_rows(keys.rows_of(replaced))
        return ReferenceSet(urls, chunks, keys, where=self._where)

    # ------------------------------------------------------------------ columns

    def _add_records(self, records: Records) -> None:
        """Take records, and the texts among them; `Irregular` as `block_texts`."""
        texts = block_texts(records)
        order = self._next()
        ranges, keys = records.ranges, records.keys
        documents = np.zeros(0, np.int64) if texts is None else keys.take(texts.rows).named(METADATA)
        is_read = self._count(len(records), len(documents))
        if texts is not None:
            for place in documents.tolist() if is_read else ():
                self._learn(keys.key(int(texts.rows[place])), texts.text(place))
            ranges.offsets[texts.rows] = texts.offsets + np.uint64(len(self._data))
            ranges.lengths[texts.rows] = texts.lengths
            self._data += texts.data
        is_inline = texts is not None and len(texts.rows) == len(records)
        left = np.arange(len(records)) if is_inline else self._place(order, keys, ranges)
        if not len(left):
            return
        spelled, sizes = records.spelled_keys(left), (keys.stops - keys.starts)[left]
        is_odd = _has_odd(spelled)
        if is_odd:
            names = [self._checked_key(key).encode("utf-8", "surrogatepass") for key in records.names(left)]
            sizes = np.fromiter(map(len, names), np.int64, len(names))
            spelled = b"".join([name + b'"' for name in names])
        kept = ranges if len(left) == len(records) else ranges.take(left)
        members = KeyTable.of_rows(spelled, sizes, kept, self._data)
        self._keep(order, members, is_placed=not is_odd and not is_inline)

    def _place(self, order: int, keys: Keys, ranges: Ranges) -> Positions:
        """Take the references to chunks of large arrays; return what is to be kept by key, with all inline data.

        A chunk that is inline hides a reference to it that came before: it is a row without a target.
        """
        if not self._grids:
            return np.arange(len(keys.starts))
        is_inline = ranges.targets == ABSENT
        left = np.ones(len(keys.starts), np.bool_)
        among = np.flatnonzero(keys.may_be_chunks())
        for path, places, numbers in place_chunks(keys.take(among), self._grids):
            rows = among[places]
            left[rows] = False
            smaller = numbers.astype(np.uint32) if self._grids[path].size < 2**32 else numbers
            hides = is_inline[rows]
            if hides.any():
                taken = ranges.take(rows)
                taken.put(hides, Ranges.absent(1))
            else:
                taken = ranges if len(rows) == len(left) else ranges.take(rows)
            self._parts.setdefault(path, []).append((order, Part(smaller, taken)))
        return np.flatnonzero(left | is_inline)

    def _without_chunks(self, order: int, members: KeyTable) -> KeyTable:
        left = self._place(order, members.keys_in_rows, members.ranges)
        return members if len(left) == len(members) else members.take(left)

    def _keep(self, order: int, members: KeyTable, *, is_placed: bool = True) -> None:
        seen = self._grids_seen if is_placed else -1
        self._kept.append(_Kept(order, members, seen, self._reads_metadata))

    def _next(self) -> int:
        self._order += 1
        return self._order

    # ------------------------------------------------------------------ arrays

    @property
    def _reads_metadata(self) -> bool:
        return self._documents <= MANY or self._members > EACH * self._documents

    def _count(self, members: int, documents: int) -> bool:
        """Count some more members; return whether the metadata among them is to be read."""
        self._members += members
        self._documents += documents
        if self._documents > MANY and self._reads_metadata:
            self._read_metadata()
        return self._reads_metadata

    def _read_metadata(self) -> None:
        """Read the metadata that was passed over."""
        for item in [item for item in self._kept if not item.is_read]:
            item.is_read = True
            keys = item.members.keys_in_rows
            for row in keys.named(METADATA).tolist():
                self._learn(keys.key(row), item.members.value(row))

    def _learn(self, key: str, value: Value) -> None:
        """Take note of the array that the metadata ``key`` is about. If it had another grid, its chunks go by key."""
        grid = self._read_grid(key, value)
        if grid is None:
            return
        path = key.rpartition("/")[0]
        old = self._grids.get(path)
        if grid == old or (old is None and grid.size <= SMALL):
            return
        self._grids_seen += 1
        if old is not None:
            del self._grids[path]
            for order, part in self._parts.pop(path, ()):
                rows = {join(path, old.tail(int(part.numbers[i]))): i for i in range(len(part.numbers))}
                there = {key: row for key, i in rows.items() if (row := part.ranges.row(i)) is not None}
                self._keep(order, KeyTable.of_mapping(there), is_placed=False)
        if grid.size > SMALL:
            self._grids[path] = grid

    # ------------------------------------------------------------------ URLs

    def _columns(self) -> Iterator[UInt32s]:
        for parts in self._parts.values():
            yield from (part.ranges.targets for _, part in parts)
        yield from (item.members.ranges.targets for item in self._kept)

    def _renumber(self, numbers: UInt32s | None) -> None:
        """Replace the numbers of all URLs."""
        if numbers is not None:
            for targets in self._columns():
                there = targets != ABSENT
                targets[there] = numbers[targets[there]]

    def _key_of(self, target: int) -> str:
        """Return a key that refers to ``target``."""
        for path, parts in self._parts.items():
            for _, part in parts:
                for row in np.flatnonzero(part.ranges.targets == target)[:1]:
                    return join(path, self._grids[path].tail(int(part.numbers[row])))
        for item in self._kept:
            for row in np.flatnonzero(item.members.ranges.targets == target)[:1]:
                return item.members.key(int(row))
        return ""

    # ------------------------------------------------------------------ single members

    def _add_one_by_one(self, members: Mapping[Any, Any]) -> None:
        if not members:
            return
        found: dict[str, Value] = {}
        documents = []
        for key, value in members.items():
            if not isinstance(key, str):
                raise ManifestError(f"{self._where}: the key {key!r} is no string")
            name = self._checked_key(key)
            try:
                found[name] = read = self._value(value)
            except ManifestError as e:
                raise type(e)(f"{key!r} of {self._where}: {e}") from e
            if name.endswith(METADATA) and name.rpartition("/")[2] in METADATA and type(read) is not Row:
                documents.append(name)
        order = self._next()
        if self._count(len(members), len(documents)):
            for name in documents:
                self._learn(name, found[name])
        columns = KeyTable.of_mapping(found)
        self._keep(order, self._without_chunks(order, columns) if self._grids else columns)

    def _checked_key(self, key: str) -> str:
        try:
            return _key(key)
        except ValueError as e:
            raise ManifestError(f"{key[:200]!r} of {self._where}: {e}") from e

    def _value(self, value: Any) -> Value:
        match value:
            case str():
                return value
            case bytes():  # what kerchunk inlines begins so in bytes too; damage shows when it is read, as in text
                return value.decode("latin-1") if value.startswith(b"base64:") else value
            case [str() | None as url]:
                return Row(self._target_of(url), 0, None)
            case [str() | None as url, offset, length]:
                return Row(self._target_of(url), _count(offset, "offset"), _count(length, "length"))
            case [url] | [url, _, _]:
                raise ManifestError(f"its URL is {url!r}, neither text nor null")
            case list() | tuple():
                elements = f"one element or three, [url] or [url, offset, length], not {len(value)}"
                raise ManifestError(f"a reference has {elements}")
            case Mapping():
                return dict(value)
            case _:
                raise ManifestError(f"{value!r} is neither data nor a reference")

    def _target_of(self, url: str | None) -> int:
        return self._urls.number(None if url is None else url.encode("utf-8", "surrogatepass"))


def _is_regular(members: Mapping[Any, Any]) -> bool:
    """Whether ``members`` are texts, and lists that begin with one; bytes, for one, would become a text as JSON."""
    values = members.values()
    if not set(map(type, members)) <= {str} or not set(map(type, values)) <= {str, list, tuple}:
        return False
    try:
        return set(map(type, map(itemgetter(0), values))) <= {str}  # so is the first character of a text
    except IndexError:  # an empty one
        lists = [value for value in values if type(value) is not str]
        return all(lists) and set(map(type, map(itemgetter(0), lists))) <= {str}


def _compact(members: Mapping[str, Any], urls: Urls) -> Records | None:
    """Return members as records, by way of their compact JSON; None where they are not that regular."""
    try:
        block = msgspec.json.encode(members)[1:-1]
    except (TypeError, ValueError, OverflowError):  # the reading one by one says what is wrong
        return None
    return scan(block, urls)


def _key(key: str) -> str:
    if "\\" in key or "//" in key or key[:1] == "/" or key[-1:] == "/":
        key = normalise(key)
    return check_key(key)


def _has_odd(keys: bytes) -> bool:
    """Whether one of ``keys``, each of which has a quote behind it, may have another normal form, or none."""
    if b"\\" in keys or b"\0" in keys:
        return True
    characters = np.frombuffer(b'"' + keys, np.uint8)
    ends = (characters == ord("/")) | (characters == ord('"'))
    if (ends[1:] & ends[:-1]).any():
        return True
    if np.diff(np.flatnonzero(characters == ord('"'))).max(initial=0) >= 2 * MOST_STEPS:  # some may be too long
        return True
    first = ends[:-1] & (characters[1:] == ord("."))  # of a name
    if not first.any():
        return False
    dots = np.flatnonzero(first) + 1
    after = characters[dots + 1]
    return bool((ends[dots + 1] | ((after == ord(".")) & ends[np.minimum(dots + 2, len(ends) - 1)])).any())


def _count(value: Any, name: str) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ManifestError(f"its {name} is {value!r}, no whole number ≥ 0")
    return value

"""Build a `ReferenceSet` from references as they arrive, if possible from whole blocks of JSON. No I/O here.

If a key has several values, the last one is kept, as in JSON. If the metadata of an array come after its chunks, the
references to these chunks are kept by key at first, and are moved to the columns of the array at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.columns import NO_TARGET, WHOLE, ChunkTable, Part, PartsBuilder, Ranges, Row, Texts
from refshard_fs.core.keys import MOST_STEPS, ChunkGrid, check_key, join, normalise
from refshard_fs.errors import DivisionByZero, ManifestError
from refshard_fs.references.chunk_keys import Keys, place_chunks
from refshard_fs.references.json_scan import Members, scan
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.pieces import PAD, Positions, find_distinct
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, GridReader

SMALL: Final = 256  # the most chunks of an array that has no columns: these would take as much memory, and more time
BATCH: Final = 16384  # members that are taken at a time from a longer mapping
FEW: Final = 64  # the most members that are added one by one: scanning more as JSON is faster
# Metadata are read if there are at most MANY_DOCUMENTS, or more than MANY_MEMBERS for each document. Otherwise no array
# is large, and reading all of their metadata would take longer than everything else.
MANY_DOCUMENTS: Final = 512
MANY_MEMBERS: Final = 16
MERGED_URLS: Final = 1 << 16  # URLs are merged if there are twice as many as after the last merging, and this many more


class _KeptMembers(msgspec.Struct, eq=False):
    """Members by key. If grids have changed since the last search, chunks of large arrays may be among them."""

    order: int
    members: KeyTable
    grids_seen: int  # the number of changes of grids at the last search for chunks; -1: no search yet


class ReferenceBuilder:
    """Collect the members of one JSON object of references; ``where`` names the object in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._urls: list[Texts] = []  # one element for each block: a URL has another number in each block
        self._url_count = 0
        self._merged_count = 0  # the number of distinct URLs when equal URLs were last merged
        self._read_grid = GridReader(where).read_grid
        self._grids: dict[str, ChunkGrid] = {}  # grids of large arrays
        self._grid_changes = 0  # how often the grid of a large array was added or changed
        self._parts: dict[str, PartsBuilder] = {}  # chunks of large arrays
        self._kept: list[_KeptMembers] = []
        self._order = 0  # the number of blocks so far
        self._texts = bytearray()  # texts of all blocks
        self._members = self._documents = 0  # counts of members and metadata documents
        self._unread = False  # whether metadata documents were skipped

    @property
    def is_empty(self) -> bool:
        return not self._order

    def add_block(self, block: bytes | memoryview, others: Iterable[bytes] = ()) -> bool:
        """Add the members of a block of JSON, and return True.

        Add nothing, and return False, if `json_scan` cannot read the block, or if the block has one of the keys
        ``others``, which have a special meaning for the caller.
        """
        try:
            found = scan(block)
        except UnicodeDecodeError:
            return False  # the JSON reader reports the error
        if found is None or any(map(found.keys.has, others)):
            return False
        self._add(found)
        return True

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Add members from Python values."""
        items = iter(members.items())
        is_short = len(members) <= 2 * BATCH
        for batch in (members,) if is_short else iter(lambda: dict(islice(items, BATCH)), {}):
            regular = _select_regular(batch)
            found = _scan_members(regular) if len(regular) > FEW else None
            if found is None:
                self._add_one_by_one(batch)
                continue
            if len(regular) < len(batch):
                self._add_one_by_one({key: value for key, value in batch.items() if key not in regular})
            self._add(found)

    def expand(self, expand_url: Callable[[str], str]) -> None:
        """Expand templates in the URLs of all members so far, each distinct URL once.

        ManifestError, which names a key with the URL, if ``expand_url`` raises one.
        """
        if not any(b"{{" in urls.data.tobytes() for urls in self._urls):  # the usual case
            return
        urls = self._merge_urls()
        known: dict[str | None, int] = {}
        new_numbers = []
        for number, url in enumerate(urls):
            if url is not None and "{{" in url:
                try:
                    url = expand_url(url)
                except ManifestError as e:
                    kind = DivisionByZero if isinstance(e, DivisionByZero) else ManifestError
                    raise kind(f"{self._find_key_of(number)!r} of {self._where}: its URL {urls[number]!r}: {e}") from e
            new_numbers.append(known.setdefault(url, len(known)))
        self._renumber(Texts.of(known), np.array(new_numbers))

    def finish(self) -> ReferenceSet:
        """Return the reference set; the builder cannot be used after this."""
        urls = self._merge_urls()
        if self._unread and self._is_worth_reading():
            for item in sorted(self._kept, key=attrgetter("order")):
                documents = item.members.keys_in_rows.find_named(METADATA)
                for row in documents.tolist():
                    self._read_grid_of(item.members.get_key(row), item.members.get_value(row))
        self._kept.sort(key=attrgetter("order"))
        unplaced = [item for item in self._kept if item.grids_seen < self._grid_changes]
        # Without any reference, no chunk has to be moved or replaced.
        if any((rows.targets != NO_TARGET).any() for rows in self._iterate_ranges()):
            for item in unplaced:
                item.members = self._move_chunks(item.order, item.members)
        chunks, replaced = {}, []
        for path, grid in self._grids.items():
            parts = self._parts.pop(path).finish() if path in self._parts else []
            table = ChunkTable.from_parts(grid, parts)
            if table:
                chunks[path] = table
            for part in parts:  # inline data that a later reference replaced
                inline = part.numbers[part.ranges.targets == NO_TARGET]
                replaced += (
                    [join(path, grid.tail(number)) for number in table.select_present(inline)] if len(inline) else []
                )
        keys = KeyTable.of([item.members for item in self._kept])
        if replaced:
            keys = keys.drop_rows(keys.find_rows(replaced))
        return ReferenceSet(urls, chunks, keys, where=self._where)

    def _add(self, found: Members) -> None:
        """Add the members of a block."""
        keys, ranges, urls, texts = found
        order, count = self._count_block(), len(keys.starts)
        self._add_urls(urls, ranges)
        is_text = ranges.targets == NO_TARGET
        ranges.offsets[is_text] += np.uint64(len(self._texts))
        self._texts += texts
        documents = keys.find_named(METADATA)
        documents = documents[is_text[documents]]
        if self._count_members(count, len(documents)):
            for row in documents.tolist():
                start, stop = int(ranges.offsets[row]), int(ranges.offsets[row] + ranges.lengths[row])
                self._read_grid_of(keys.get_key(row), self._texts[start:stop].decode("utf-8", "surrogatepass"))
        left = np.arange(count) if is_text.all() else self._place(order, keys, ranges)
        if not len(left):
            return
        kept = (keys if len(left) == count else keys.take(left)).pack()
        is_irregular = _may_be_irregular(kept)
        if is_irregular:
            kept = Keys.of_names(map(self._normalise_key, kept.list_names()))
        members = KeyTable.of_keys(kept, ranges if len(left) == count else ranges.take(left), self._texts)
        self._keep(order, members, is_placed=not is_irregular and not is_text.all())

    def _place(self, order: int, keys: Keys, ranges: Ranges) -> Positions:
        """Move references to chunks of large arrays into columns; return the rows of members that stay by key.

        Inline data stay by key. An inline chunk of a large array also gets a row without a target in the columns, which
        replaces an earlier reference to the chunk.
        """
        if not self._grids:
            return np.arange(len(keys.starts))
        is_inline = ranges.targets == NO_TARGET
        left = np.ones(len(keys.starts), np.bool_)
        among = np.flatnonzero(keys.may_be_chunks())
        for path, places, numbers in place_chunks(keys.take(among), self._grids):
            rows = among[places]
            left[rows] = False
            hides = is_inline[rows]
            if hides.any():
                taken = ranges.take(rows)
                taken.put(hides, Ranges.make_absent(1))
            else:
                taken = ranges if len(rows) == len(left) else ranges.take(rows)
            if path not in self._parts:
                self._parts[path] = PartsBuilder(self._grids[path])
            self._parts[path].add(order, Part(numbers, taken))
        return np.flatnonzero(left | is_inline)

    def _move_chunks(self, order: int, members: KeyTable) -> KeyTable:
        """Move references to chunks of large arrays into columns; return the other members."""
        left = self._place(order, members.keys_in_rows, members.ranges)
        return members if len(left) == len(members) else members.take(left)

    def _keep(self, order: int, members: KeyTable, *, is_placed: bool = True) -> None:
        seen = self._grid_changes if is_placed else -1
        self._kept.append(_KeptMembers(order, members, seen))

    def _count_block(self) -> int:
        self._order += 1
        return self._order

    def _is_worth_reading(self) -> bool:
        return self._documents <= MANY_DOCUMENTS or self._members > MANY_MEMBERS * self._documents

    def _count_members(self, members: int, documents: int) -> bool:
        """Count more members, and metadata documents among them; return whether to read these documents."""
        self._members += members
        self._documents += documents
        is_read = self._is_worth_reading()
        self._unread |= bool(documents) and not is_read
        return is_read

    def _read_grid_of(self, key: str, value: Value) -> None:
        """Read an array's grid from its metadata ``key``. If the grid changed, keep the array's chunks by key."""
        grid = self._read_grid(key, value)
        if grid is None:
            return
        path = key.rpartition("/")[0]
        old = self._grids.get(path)
        if grid == old or (old is None and grid.size <= SMALL):
            return
        self._grid_changes += 1
        if old is not None:
            del self._grids[path]
            for order, part in self._parts.pop(path).list_parts() if path in self._parts else ():
                rows = {join(path, old.tail(int(part.numbers[i]))): i for i in range(len(part.numbers))}
                references = {key: row for key, i in rows.items() if (row := part.ranges.get_row(i)) is not None}
                self._keep(order, KeyTable.of_mapping(references), is_placed=False)
        if grid.size > SMALL:
            self._grids[path] = grid

    def _add_urls(self, urls: Texts, ranges: Ranges) -> None:
        """Add the URLs of a block, and adjust the targets of its ``ranges``, which begin at 0.

        Blocks repeat URLs. Keeping the URLs of all blocks until the end could take more memory than the references.
        """
        if self._url_count > 2 * self._merged_count + MERGED_URLS:
            self._merge_urls()
        ranges.targets[ranges.targets != NO_TARGET] += np.uint32(self._url_count)
        self._urls.append(urls)
        self._url_count += len(urls)

    def _merge_urls(self) -> Texts:
        """Merge equal URLs of all blocks, and renumber all targets; return the URLs."""
        if len(self._urls) != 1:
            urls = Texts.concatenate(self._urls)
            starts, stops = urls.find_spans()
            is_first, numbers = find_distinct(b"".join((urls.data.data, PAD)), starts, stops)
            self._renumber(urls.select(is_first), numbers)
        return self._urls[0]

    def _renumber(self, urls: Texts, numbers: Positions) -> None:
        """Replace target ``i`` by ``numbers[i]``, an index into ``urls``."""
        if len(urls) < len(numbers):
            new_numbers = np.append(numbers, NO_TARGET).astype(np.uint32)
            for ranges in self._iterate_ranges():
                # The mode "clip" maps NO_TARGET to the last element, which is NO_TARGET.
                new_numbers.take(ranges.targets, out=ranges.targets, mode="clip")
        self._urls, self._url_count = [urls], len(urls)
        self._merged_count = len(urls)

    def _iterate_ranges(self) -> Iterator[Ranges]:
        for parts in self._parts.values():
            yield from (part.ranges for _, part in parts.list_parts())
        yield from (item.members.ranges for item in self._kept)

    def _find_key_of(self, target: int) -> str:
        """Return a key that refers to ``target``; an empty one if there is none."""
        for path, parts in self._parts.items():
            for _, part in parts.list_parts():
                for row in np.flatnonzero(part.ranges.targets == target)[:1]:
                    return join(path, self._grids[path].tail(int(part.numbers[row])))
        for item in self._kept:
            for row in np.flatnonzero(item.members.ranges.targets == target)[:1]:
                return item.members.get_key(int(row))
        return ""

    def _add_one_by_one(self, members: Mapping[Any, Any]) -> None:
        if not members:
            return
        found: dict[str, Value] = {}
        urls: dict[str | None, int] = {}
        documents = []
        for key, value in members.items():
            if not isinstance(key, str):
                raise ManifestError(f"{self._where}: expected strings as keys, got {key!r}")
            name = self._normalise_key(key)
            try:
                found[name] = read = _parse_value(value, urls)
            except ManifestError as e:
                raise type(e)(f"{key!r} of {self._where}: {e}") from e
            if name.endswith(METADATA) and name.rpartition("/")[2] in METADATA and type(read) is not Row:
                documents.append(name)
        order = self._count_block()
        if self._count_members(len(members), len(documents)):
            for name in documents:
                self._read_grid_of(name, found[name])
        columns = KeyTable.of_mapping(found)
        self._add_urls(Texts.of(urls), columns.ranges)
        self._keep(order, self._move_chunks(order, columns) if self._grids else columns)

    def _normalise_key(self, key: str) -> str:
        try:
            return _normalise(key)
        except ValueError as e:
            raise ManifestError(f"{key[:200]!r} of {self._where}: {e}") from e


def _parse_value(value: Any, urls: dict[str | None, int]) -> Value:
    """Convert the value of a member in JSON; ``urls`` numbers the URLs, and gets the URL of the member."""
    match value:
        case str():
            return value
        case bytes():  # kerchunk also makes bytes that begin with "base64:"; readers of the key report damaged ones
            return value.decode("latin-1") if value.startswith(b"base64:") else value
        case [str() | None as url]:
            return Row(urls.setdefault(url, len(urls)), 0, None)
        case [str() | None as url, offset, length]:
            return Row(
                urls.setdefault(url, len(urls)), _check_integer(offset, "offset"), _check_integer(length, "length")
            )
        case [url] | [url, _, _]:
            raise ManifestError(f"its URL is {url!r}: expected text or null")
        case list() | tuple():
            raise ManifestError(f"expected a reference [url] or [url, offset, length], got a list of {len(value)}")
        case Mapping():
            return dict(value)
        case _:
            raise ManifestError(f"expected text, an object, [url] or [url, offset, length], got {value!r}")


def _select_regular(members: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the members that are texts, or lists that begin with a text: encoding others as JSON could change them."""
    return {
        key: value
        for key, value in members.items()
        if type(key) is str
        and (type(value) is str or (type(value) in (list, tuple) and value and type(value[0]) is str))
    }


def _scan_members(members: Mapping[str, Any]) -> Members | None:
    """Encode ``members`` as JSON, and scan the JSON to columns; None if this is not possible."""
    try:
        return scan(msgspec.json.encode(members)[1:-1])
    except (TypeError, ValueError, OverflowError):  # reading them one by one reports the error
        return None


def _normalise(key: str) -> str:
    if "\\" in key or "//" in key or key[:1] == "/" or key[-1:] == "/":
        key = normalise(key)
    return check_key(key)


def _may_be_irregular(keys: Keys) -> bool:
    """Return whether a key in ``keys`` may be invalid, or not in normal form; True in doubt.

    ``keys.text`` must have no gaps: see `Keys.pack`.
    """
    if int((keys.stops - keys.starts).max()) >= 2 * MOST_STEPS:  # the key may have more than MOST_STEPS segments
        return True
    characters = np.frombuffer((b"\0" + keys.text[: -len(PAD)]).replace(b"/", b"\0"), np.uint8)
    ends = np.flatnonzero(characters == 0)  # the NULs before, between and after the segments
    first = characters[ends[:-1][np.diff(ends) <= len("..") + 1] + 1]  # first characters of short segments
    return b"\\" in keys.text or bool(((first == 0) | (first == ord("."))).any())


def _check_integer(value: Any, name: str) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ManifestError(f"its {name} is {value!r}: expected an integer from 0 to 2**64-2")
    return value

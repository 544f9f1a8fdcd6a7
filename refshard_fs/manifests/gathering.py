"""References taken in as they come, whole blocks as columns where possible, and made a `ReferenceSet` in the end.

Order counts as in a JSON object: the last value of a key wins. Metadata may come after the chunks that it
is about. What is held on the way is columns, or the text of blocks whose arrays are not known yet. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from refshard_fs.columns import ABSENT, WHOLE, ChunkTable, Part, Row, UInt64s
from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, join, normalise, parent
from refshard_fs.keyspace import place
from refshard_fs.manifests.json_fast import Positions, Records, Urls, chunk_numbers, scan
from refshard_fs.manifests.placing import SMALL, Placer
from refshard_fs.manifests.reference_set import METADATA, ReferenceSet, Value, grid_of
from refshard_fs.manifests.templates import Templates, expand_gen
from refshard_fs.texts import Texts

__all__ = ["Gathering"]

# What is to be looked at more closely in keys, each of which stands between line ends.
_ODD: Final = (
    "\\",
    "\0",
    "//",
    "\n/",
    "/\n",
    "\n\n",
    "/./",
    "/../",
    "\n./",
    "\n../",
    "/.\n",
    "/..\n",
    "\n.\n",
    "\n..\n",
)

BATCH: Final = 16384  # members that are taken at a time from something longer
SAMPLES: Final = 16  # records that are looked at, to tell how to take a block
FEW: Final = 64  # records of a block that are looked at one by one, and arrays that are looked for in one


class _Deferred(NamedTuple):
    sequence: int
    records: Records


class _Aside(NamedTuple):
    sequence: int
    members: dict[str, Value]
    settled: bool  # whether the places of its keys among chunks are seen to


class _Loose(NamedTuple):
    """References that are not placed before the end."""

    sequence: int
    keys: list[str]
    part: Part  # without numbers


class Gathering:
    """The members of one JSON object of references, ``where`` naming it in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._urls: Urls = {}
        self._escaped: set[bytes] = set()  # URLs that only an escape can spell: with half a surrogate pair
        self._grids: dict[str, ChunkGrid] = {}
        self._spelled: dict[str, ChunkGrid | None] = {}  # what each text of metadata has been found to say
        self._parts: dict[str, list[tuple[int, Part]]] = {}
        self._side: list[_Aside] = []
        self._loose: list[_Loose] = []
        self._hiding: set[str] = set()  # arrays with rows that stand for data kept aside
        self._unsettled = False  # whether places that were known no longer count
        self._deferred: list[_Deferred] = []
        self._sequence = 0
        self._all_known = False  # whether no more metadata can come

    @property
    def is_empty(self) -> bool:
        return not self._sequence

    def add_block(self, block: bytes | memoryview) -> bool:
        """Take compact members (see `json_fast`); False, and nothing taken, where they are not of that form."""
        try:
            records = scan(block, self._urls)
            if records is None:
                return False
            self._add_records(records)
        except UnicodeDecodeError:
            return False  # a reader of JSON will say what is wrong
        return True

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Take members as Python values."""
        ranges: dict[str, Any] = {}
        of_default: dict[str, Any] = {}
        wholes: dict[str, Any] = {}
        texts: dict[str, Value] = {}
        others: dict[Any, Any] = {}
        for key, value in members.items():
            kind = type(value)
            if kind is str and type(key) is str and not key.endswith(METADATA):
                texts[key] = value
                continue
            if (kind is list or kind is tuple) and type(key) is str:
                url = value[0] if value else 0
                if len(value) == 3 and type(url) is str:
                    ranges[key] = value
                    continue
                if len(value) == 1 and type(url) is str:
                    wholes[key] = value
                    continue
                if len(value) == 3 and url is None:
                    of_default[key] = ("", value[1], value[2])
                    continue
            others[key] = value
        self._add_singly(others)
        self._add_texts(texts)
        for group in (ranges, wholes, of_default):
            if not group:
                continue
            records = _compact(group, {} if group is of_default else self._urls) if len(group) > FEW else None
            if records is None:
                self._add_singly({key: members[key] for key in group})
                continue
            if group is of_default:
                records.targets[:] = self._target(None)
            self._add_records(records, known=group)

    def _add_texts(self, texts: dict[str, Value]) -> None:
        """Take data; where it stands in the place of a chunk, it hides what came before it."""
        if not texts or _has_odd(texts):
            self._add_singly(texts)
            return
        records = _compact(dict.fromkeys(texts, ("", 0, 0)), {}) if len(texts) > FEW else None
        if records is not None:
            records.targets[:] = ABSENT
            self._add_records(records)
        self._side.append(_Aside(self._next(), texts, records is not None))

    def add_batches(self, members: Mapping[Any, Any]) -> None:
        """Take the members of a mapping that may be long."""
        if len(members) <= 2 * BATCH:
            self.add_members(members)
            return
        items = iter(members.items())
        while batch := dict(islice(items, BATCH)):
            self.add_members(batch)

    def finish(self, templates: Templates | None = None, gen: Sequence[object] = ()) -> ReferenceSet:
        """Return the reference set, URLs expanded by ``templates`` (if any) and ``gen``'s references added."""
        self._all_known = True
        deferred, self._deferred = self._deferred, []
        try:
            for sequence, records in deferred:
                self._add_records(records, sequence)
            b"\n".join(url for url in self._urls if url and url not in self._escaped).decode()
        except UnicodeDecodeError as e:
            raise ManifestError(f"{self._where} is not JSON: it is not UTF-8: {e.reason}") from e
        if templates is not None:
            self._expand(templates)
            self._generate(gen, templates)
        placer = Placer(self._grids)
        side, common = self._settle_side(placer)
        for path in filter(placer.is_small, list(self._parts)):
            common += [(sequence, placer.common(path, part)) for sequence, part in self._parts.pop(path)]
        tables, replaced = placer.tables(_in_order(common))
        for key in replaced:
            side.pop(key, None)  # data that a later reference replaced
        for path, grid in self._grids.items():
            if path in tables:
                continue
            parts = _in_order(self._parts.pop(path, ()))
            table = tables[path] = ChunkTable.from_parts(grid, parts)
            if path in self._hiding:
                hidden = np.concatenate([part.numbers[part.targets == ABSENT] for part in parts])
                for number in table.existing(hidden):
                    side.pop(join(path, grid.tail(number)), None)  # as above
        return ReferenceSet(Texts.of(self._urls), tables, side)

    # ------------------------------------------------------------------ columns

    def _add_records(self, records: Records, sequence: int | None = None, known: Iterable[str] | None = None) -> None:
        """Take records; ``known`` are their keys, where these are at hand."""
        placed: list[tuple[str, Part]] = []
        unplaced = np.arange(len(records))
        strays: list[int] = []
        for attempt in range(0 if self._mostly_small(records) else FEW):
            # Where arrays are many and small, it is better to take what is left one by one.
            if not len(unplaced) or attempt * len(records) > FEW * (len(records) - len(unplaced)) + 4 * len(records):
                break
            first = int(unplaced[0])
            at = place(self._grids, self._checked_key(records.key(first)))
            if at is None:
                strays.append(first)
                unplaced = unplaced[1:]
                continue
            grid = self._grids[at.array]
            chosen = None if len(unplaced) == len(records) else unplaced
            numbers, valid = chunk_numbers(records, chosen, _prefix(at.array, grid), grid)
            if valid.all():
                unplaced = unplaced[:0]
            else:
                chosen, unplaced, numbers = unplaced[valid], unplaced[~valid], numbers[valid]
            if len(numbers):
                placed.append((at.array, _part(grid, numbers, records, chosen)))
            if not valid[0]:  # a chunk, and spelled in a way that is not for columns
                strays.append(first)
                unplaced = unplaced[1:]
        left = np.concatenate((np.array(strays, np.int64), unplaced))
        loose: tuple[list[str], Part] | None = None
        if len(left):
            sample = [place(self._grids, records.key(i)) for i in left[:FEW].tolist()]
            if not self._all_known and len(left) > FEW and not any(sample):
                self._deferred.append(_Deferred(self._next(), records))
                return
            if known is not None and len(left) == len(unplaced) == len(records):
                keys = list(known)
            else:
                keys = records.keys(left)
            if _has_odd(keys):
                keys = list(map(self._checked_key, keys))
            if records.targets[0] == ABSENT:
                self._unsettled |= len(unplaced) > 0
            else:
                loose = (
                    keys,
                    Part(left.view(np.uint64), records.targets[left], records.offsets[left], records.lengths[left]),
                )
        if sequence is None:
            sequence = self._next()
        for path, part in placed:
            self._parts.setdefault(path, []).append((sequence, part))
            if part.targets[0] == ABSENT:
                self._hiding.add(path)
        if loose is not None:
            self._loose.append(_Loose(sequence, *loose))

    def _mostly_small(self, records: Records) -> bool:
        """Whether samples say that records are chunks of many small arrays."""
        sample = [
            self._grids.get(parent(records.key(i))[0]) for i in range(0, len(records), len(records) // SAMPLES + 1)
        ]
        return sum(1 for grid in sample if grid is not None and grid.size <= SMALL) * 4 > 3 * len(sample)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _target(self, url: bytes | None) -> int:
        return self._urls.setdefault(url, len(self._urls))

    def _target_of(self, url: str | None) -> int:
        try:
            return self._target(None if url is None else url.encode())
        except UnicodeEncodeError:
            encoded = _encoded(url)
            assert encoded is not None
            self._escaped.add(encoded)
            return self._target(encoded)

    # ------------------------------------------------------------------ single members

    def _add_singly(self, members: Mapping[Any, Any]) -> None:
        if not members:
            return
        taken: dict[str, Value] = {}
        for key, value in members.items():
            if not isinstance(key, str):
                raise ManifestError(f"{self._where}: the key {key!r} is no string")
            name = self._checked_key(key)
            try:
                taken[name] = found = self._value(value)
            except ManifestError as e:
                raise ManifestError(f"{key!r} of {self._where}: {e}") from e
            if name.endswith(METADATA) and type(found) is not Row:
                self._learn(name, found)
        self._side.append(_Aside(self._next(), taken, False))

    def _checked_key(self, key: str) -> str:
        try:
            return _key(key)
        except ManifestError as e:
            raise ManifestError(f"{key!r} of {self._where}: {e}") from e

    def _value(self, value: Any) -> Value:
        match value:
            case str() | bytes():
                return value
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

    def _learn(self, key: str, value: Value) -> None:
        """Take note of an array's grid. Where it had another one before, its chunks are placed anew."""
        path, name = parent(key)
        if name not in METADATA:
            return
        grid = self._grid_of(key, value)
        old = self._grids.get(path)
        if grid is None or grid == old:
            return
        self._grids[path] = grid
        if old is not None:
            self._unsettled = True
            for sequence, part in self._parts.pop(path, ()):
                keys = (join(path, old.tail(number)) for number in part.numbers.tolist())
                pairs = zip(keys, part.rows(), strict=True)
                rows: dict[str, Value] = {key: row for key, row in pairs if row.target != ABSENT}
                self._side.append(_Aside(sequence, rows, False))

    def _grid_of(self, key: str, value: Value) -> ChunkGrid | None:
        if type(value) is not str:
            return grid_of(key, value, self._where)
        if value not in self._spelled:
            self._spelled[value] = grid_of(key, value, self._where)
        return self._spelled[value]

    # ------------------------------------------------------------------ the end

    def _expand(self, templates: Templates) -> None:
        """Expand every URL, once each; where two become one, or change places, columns follow."""
        if not any(b"{{" in url for url in self._urls if url):
            return
        urls: Urls = {}
        numbers = np.empty(len(self._urls), np.uint32)
        for number, url in enumerate(self._urls):
            if url is not None and b"{{" in url:
                text = _decoded(url) or ""
                try:
                    url = _encoded(templates.expand(text))
                except ManifestError as e:
                    raise ManifestError(f"{self._key_of(number)!r} of {self._where}: its URL {text!r}: {e}") from e
            numbers[number] = urls.setdefault(url, len(urls))
        moved = len(urls) < len(self._urls)
        self._urls = urls
        if not moved:
            return
        loose = [(item.sequence, item.part) for item in self._loose]
        for parts in (*self._parts.values(), loose):
            for _, part in parts:
                there = part.targets != ABSENT
                part.targets[there] = numbers[part.targets[there]]
        for _, members, _ in self._side:
            for key, value in members.items():
                if type(value) is Row:
                    members[key] = value._replace(target=int(numbers[value.target]))

    def _key_of(self, target: int) -> str:
        """Return a key that refers to ``target``."""
        for path, parts in self._parts.items():
            for _, part in parts:
                for index in np.flatnonzero(part.targets == target)[:1]:
                    return join(path, self._grids[path].tail(int(part.numbers[index])))
        for _, keys, part in self._loose:
            for index in np.flatnonzero(part.targets == target)[:1]:
                return keys[int(index)]
        rows = (item for _, members, _ in self._side for item in members.items())
        return next((key for key, value in rows if type(value) is Row and value.target == target), "")

    def _generate(self, gen: Sequence[object], templates: Templates) -> None:
        try:
            generated = iter(expand_gen(gen, templates))
            while batch := list(islice(generated, BATCH)):
                self.add_members({k: [u] if size is None else [u, start or 0, size] for k, u, start, size in batch})
        except ManifestError as e:
            raise ManifestError(f"{self._where}: {e}") from e

    def _settle_side(self, placer: Placer) -> tuple[dict[str, Value], _Parts]:
        """Return the side table, and the references to chunks of small arrays; all others to chunks become columns."""
        side: dict[str, Value] = {}
        common: _Parts = []
        items: list[_Aside | _Loose] = [*self._side, *self._loose]
        for item in sorted(items, key=lambda item: item.sequence):
            match item:
                case _Loose(sequence, keys, part):
                    numbers = placer.numbers(keys) if self._grids else np.full(len(keys), -1)
                    chosen = np.flatnonzero(numbers >= 0)
                    if len(chosen):
                        common.append((sequence, _chosen(part, numbers[chosen].view(np.uint64), chosen)))
                    members = _members(keys, part, np.flatnonzero(numbers < 0))
                    if self._grids:
                        self._settle(sequence, dict(members), placer, side, common)
                    else:
                        side.update(members)
                case _Aside(sequence, members, settled):
                    if not self._grids or (settled and not self._unsettled):
                        side.update(members)
                    else:
                        self._settle(sequence, members, placer, side, common)
        return side, common

    def _settle(
        self, sequence: int, members: Mapping[str, Value], placer: Placer, side: dict[str, Value], common: _Parts
    ) -> None:
        rows: dict[str, list[tuple[int, Row]]] = {}
        for key, value in members.items():
            at = placer.place(key)
            if at is None:
                side[key] = value
            elif type(value) is Row:
                rows.setdefault(at.array, []).append((at.number, value))
            else:
                side[key] = value
                rows.setdefault(at.array, []).append((at.number, Row(ABSENT, 0, 0)))
                self._hiding.add(at.array)
        for path, numbered in rows.items():
            part = Part.from_rows(numbered)
            if placer.is_small(path):
                common.append((sequence, placer.common(path, part)))
            else:
                self._parts.setdefault(path, []).append((sequence, part))


_Parts: TypeAlias = list[tuple[int, Part]]  # with the place of each in the sequence


def _in_order(parts: Iterable[tuple[int, Part]]) -> list[Part]:
    return [part for _, part in sorted(parts, key=lambda part: part[0])]


def _chosen(part: Part, numbers: UInt64s, chosen: Positions) -> Part:
    return Part(numbers, part.targets[chosen], part.offsets[chosen], part.lengths[chosen])


def _members(keys: list[str], part: Part, chosen: Positions) -> Iterator[tuple[str, Row]]:
    """Return some of ``keys`` with their rows."""
    columns = [column[chosen].tolist() for column in (part.targets, part.offsets, part.lengths)]
    if len(chosen) < len(keys):
        keys = [keys[i] for i in chosen.tolist()]
    if len(chosen) and int(part.lengths[chosen].max()) == WHOLE:
        columns[2] = [None if length == WHOLE else length for length in columns[2]]
    return zip(keys, map(_as_row, zip(*columns, strict=True)), strict=True)


# As `Row._make`, without a Python function for each.
_as_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)


def _part(grid: ChunkGrid, numbers: UInt64s, records: Records, chosen: Positions | None) -> Part:
    smaller = numbers.astype(np.uint32) if grid.size < 2**32 else numbers
    if chosen is None:
        return Part(smaller, records.targets, records.offsets, records.lengths)
    return Part(smaller, records.targets[chosen], records.offsets[chosen], records.lengths[chosen])


def _has_odd(keys: Iterable[str]) -> bool:
    """Whether one of ``keys`` may have another normal form."""
    lines = "\n" + "\n".join(keys) + "\n"
    return any(sign in lines for sign in _ODD)


def _compact(group: dict[str, Any], urls: Urls) -> Records | None:
    """Return references as records, by way of their compact JSON; None where they are not that regular."""
    try:
        block = msgspec.json.encode(group)[1:-1]
    except (TypeError, ValueError, OverflowError):  # the reading one by one says what is wrong
        return None
    return scan(block, urls)


def _prefix(path: str, grid: ChunkGrid) -> bytes:
    head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
    return (path + "/" + head if path else head).encode()


def _key(key: str) -> str:
    if "\\" in key or "//" in key or key[:1] == "/" or key[-1:] == "/":
        key = normalise(key)
    if not key or "\0" in key or (".." in key and ".." in key.split("/")) or "/./" in f"/{key}/":
        raise ManifestError("a key is not empty, and has no NUL, and no segment '.' or '..'")
    return key


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ManifestError(f"its {name} is {value!r}, no whole number ≥ 0")
    return value


def _encoded(url: str | None) -> bytes | None:
    return None if url is None else url.encode("utf-8", "surrogatepass")


def _decoded(url: bytes | None) -> str | None:
    return None if url is None else url.decode("utf-8", "surrogatepass")

"""References taken in as they come, whole blocks as columns where possible, and made a `ReferenceSet` in the end.

Order counts as in a JSON object: the last value of a key wins. Metadata may come after the chunks that it
is about. What is held on the way is columns, or the text of blocks whose arrays are not known yet. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.columns import ABSENT, WHOLE, Part, Row, UInt32s, UInt64s
from refshard_fs.errors import ManifestError
from refshard_fs.keys import ChunkGrid, normalise, parent
from refshard_fs.keyspace import place
from refshard_fs.manifests import placing
from refshard_fs.manifests.chunk_keys import chunk_numbers
from refshard_fs.manifests.homes import at_home
from refshard_fs.manifests.json_fast import Records, scan
from refshard_fs.manifests.placing import may_be_chunk
from refshard_fs.manifests.reference_set import METADATA, ReferenceSet, Value, grid_of
from refshard_fs.manifests.settling import settle
from refshard_fs.manifests.taken import Aside, Common, Loose, Taken, has_odd
from refshard_fs.manifests.templates import Templates, expand_gen
from refshard_fs.manifests.url_column import Urls
from refshard_fs.manifests.words import Positions

__all__ = ["Gathering"]

BATCH: Final = 16384  # members that are taken at a time from something longer
SAMPLES: Final = 16  # records that are looked at, to tell how to take a block
FEW: Final = 64  # records of a block that are looked at one by one, and arrays that are looked for in one

_ENDS: Final = np.array([may_be_chunk(chr(byte)) for byte in range(256)])  # by the last byte of a key
_METADATA_ENDS: Final = {name[-1] for name in METADATA}


class _Deferred(NamedTuple):
    """Records of which no array is known yet."""

    sequence: int
    records: Records


class Gathering:
    """The members of one JSON object of references, ``where`` naming it in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._taken = Taken(where)
        self._spelled: dict[str, ChunkGrid | None] = {}  # what each text of metadata has been found to say
        self._deferred: list[_Deferred] = []
        self._sequence = 0
        self._all_known = False  # whether no more metadata can come

    @property
    def is_empty(self) -> bool:
        return not self._sequence

    def add_block(self, block: bytes | memoryview, others: Iterable[bytes] = ()) -> bool:
        """Take compact members (see `json_fast`); False, and nothing taken, where they are not of that form.

        Nor is anything taken where there is one of ``others``, keys with a meaning of their own.
        """
        try:
            records = scan(block, self._taken.urls)
            if records is None or any(map(records.has, others)):
                return False
            self._add_records(records, records.texts())
        except (UnicodeDecodeError, msgspec.DecodeError, _Repeated):
            return False  # a reader of JSON will say what is wrong, or which one counts
        return True

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Take members as Python values."""
        if len(members) <= FEW:
            self._add_singly(members)
            return
        if _is_regular(members):
            self._add_regular(members)
            return
        regular: dict[str, Any] = {}
        of_default: dict[str, Any] = {}
        others: dict[Any, Any] = {}
        for key, value in members.items():
            kind = type(value)
            if type(key) is not str:
                others[key] = value
            elif kind is str or ((kind is list or kind is tuple) and len(value) in (1, 3) and type(value[0]) is str):
                regular[key] = value
            elif (kind is list or kind is tuple) and len(value) == 3 and value[0] is None:
                of_default[key] = ("", value[1], value[2])
            else:
                others[key] = value
        self._add_singly(others)
        self._add_regular(regular)
        records = _compact(of_default, Urls()) if len(of_default) > FEW else None
        if records is None:
            self._add_singly({key: members[key] for key in of_default})
        else:
            records.targets[:] = self._target(None)
            self._add_records(records, {}, of_default)

    def _add_regular(self, members: Mapping[str, Any]) -> None:
        """Take members that are texts, or lists that begin with one."""
        records = _compact(members, self._taken.urls) if len(members) > FEW else None
        if records is None:
            self._add_singly(members)
        elif records.value_stops is None:
            self._add_records(records, {}, members)
        else:
            self._add_records(records, {key: value for key, value in members.items() if type(value) is str})

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
        taken = self._taken
        deferred, self._deferred = self._deferred, []
        try:
            for sequence, records in deferred:
                self._place(records, {}, sequence)
        except UnicodeDecodeError as e:
            raise ManifestError(f"{self._where} is not JSON: it is not UTF-8: {e.reason}") from e
        if templates is not None:
            taken.expand(templates)
            self._generate(gen, templates)
        return settle(taken)

    def _generate(self, gen: Sequence[object], templates: Templates) -> None:
        try:
            generated = iter(expand_gen(gen, templates))
            while batch := list(islice(generated, BATCH)):
                self.add_members({k: [u] if size is None else [u, start or 0, size] for k, u, start, size in batch})
        except ManifestError as e:
            raise ManifestError(f"{self._where}: {e}") from e

    # ------------------------------------------------------------------ columns

    def _add_records(self, records: Records, texts: dict[str, str], known: Iterable[str] | None = None) -> None:
        """Take records, and the ``texts`` among them; ``known`` are the keys of all, where these are at hand."""
        settled = True
        if texts:
            if has_odd(texts):
                texts = {self._checked_key(key): value for key, value in texts.items()}
                settled = False
            for key in texts:
                if key[-1] in _METADATA_ENDS and key.endswith(METADATA):
                    self._learn(key, texts[key])
        sequence = self._next()
        settled &= self._place(records, texts, sequence, known)
        if texts:
            members: dict[str, Value] = texts  # type: ignore[assignment]  # nobody else has it
            self._taken.side.append(Aside(sequence, members, settled))

    def _place(
        self, records: Records, texts: dict[str, str], sequence: int, known: Iterable[str] | None = None
    ) -> bool:
        """Put chunks where they belong, and all other references aside; whether no text is left that may be a chunk.

        Where texts stand in the place of a chunk, they hide what came before.
        """
        taken = self._taken
        may_be = _ENDS[records.last_bytes()]
        unplaced = np.flatnonzero(may_be)
        never = np.flatnonzero(~may_be)
        placed: list[tuple[str, Part]] = []
        common: list[Common] = []
        if self._mostly_small(records):
            found = at_home(records, unplaced, taken.grids, taken.numbers, placing.SMALL)
            unplaced = found.left
            if len(found.rows):
                common.append(Common(sequence, found.arrays, _chosen(records, found.chunks, found.rows)))
        else:
            placed, unplaced = self._by_array(records, unplaced)
        if len(unplaced) > FEW and not self._all_known:
            sample = [place(taken.grids, records.key(i)) for i in unplaced[:FEW].tolist()]
            if not any(sample):
                if texts and not texts.keys().isdisjoint(records.keys(np.flatnonzero(records.targets != ABSENT))):
                    raise _Repeated
                self._deferred.append(_Deferred(sequence, records))
                return False
        settled = True
        loose = []
        for left, is_settled in ((unplaced, False), (never, True)):
            chosen = left
            if records.value_stops is not None:
                chosen = left[records.targets[left] != ABSENT]
                settled &= is_settled or len(chosen) == len(left)
            if not len(chosen):
                continue
            keys = list(known) if known is not None and len(chosen) == len(records) else records.keys(chosen)
            if has_odd(keys):
                keys = list(map(self._checked_key, keys))
                is_settled = False
            loose.append(Loose(sequence, keys, _chosen(records, None, chosen), is_settled))
            if texts and not texts.keys().isdisjoint(keys):
                raise _Repeated
        for path, part in placed:
            taken.parts.setdefault(path, []).append((sequence, part))
            if records.value_stops is not None and (part.targets == ABSENT).any():
                taken.hiding.add(path)
        taken.common += common
        taken.loose += loose
        return settled

    def _by_array(self, records: Records, unplaced: Positions) -> tuple[list[tuple[str, Part]], Positions]:
        """Return the chunks that belong to few arrays, one array after the other, and what is left."""
        grids = self._taken.grids
        placed: list[tuple[str, Part]] = []
        strays: list[int] = []
        count = len(unplaced)
        for attempt in range(FEW):
            # Where arrays are many and small, it is better to take what is left one by one.
            if not len(unplaced) or attempt * count > FEW * (count - len(unplaced)) + 4 * count:
                break
            first = int(unplaced[0])
            at = place(grids, self._checked_key(records.key(first)))
            if at is None:
                strays.append(first)
                unplaced = unplaced[1:]
                continue
            grid = grids[at.array]
            chosen = None if len(unplaced) == len(records) else unplaced
            numbers, valid = chunk_numbers(records, chosen, _prefix(at.array, grid), grid)
            if valid.all():
                chosen, unplaced = unplaced, unplaced[:0]
            else:
                chosen, unplaced, numbers = unplaced[valid], unplaced[~valid], numbers[valid]
            if len(numbers):
                smaller = numbers.astype(np.uint32) if grid.size < 2**32 else numbers
                placed.append((at.array, _chosen(records, smaller, chosen)))
            if not valid[0]:  # a chunk, and spelled in a way that is not for columns
                strays.append(first)
                unplaced = unplaced[1:]
        return placed, np.sort(np.concatenate((np.array(strays, np.int64), unplaced)))

    def _mostly_small(self, records: Records) -> bool:
        """Whether samples say that records are chunks of many small arrays."""
        grids = self._taken.grids
        sample = [grids.get(parent(records.key(i))[0]) for i in range(0, len(records), len(records) // SAMPLES + 1)]
        return sum(1 for grid in sample if grid is not None and grid.size <= placing.SMALL) * 4 > 3 * len(sample)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

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
            if name[-1] in _METADATA_ENDS and name.endswith(METADATA) and type(found) is not Row:
                self._learn(name, found)
        self._taken.side.append(Aside(self._next(), taken, False))

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
        """Take note of an array's grid."""
        path, _, name = key.rpartition("/")
        if name not in METADATA:
            return
        if type(value) is not str:
            grid = grid_of(key, value, self._where)
        elif value in self._spelled:
            grid = self._spelled[value]
        else:
            grid = self._spelled[value] = grid_of(key, value, self._where)
        if grid is not None:
            self._taken.learn(path, grid)

    def _target(self, url: bytes | None) -> int:
        return self._taken.urls.number(url)

    def _target_of(self, url: str | None) -> int:
        try:
            return self._target(None if url is None else url.encode())
        except UnicodeEncodeError:
            return self._target(b"" if url is None else url.encode("utf-8", "surrogatepass"))


class _Repeated(Exception):
    """A key that comes twice in one block, as a reference and as data."""


def _is_regular(members: Mapping[Any, Any]) -> bool:
    """Whether ``members`` are texts, and lists that begin with one; bytes, for one, would become a text as JSON."""
    values = members.values()
    if not set(map(type, members)) <= {str} or not set(map(type, values)) <= {str, list, tuple}:
        return False
    lists = [value for value in values if type(value) is not str]
    return all(lists) and set(map(type, map(itemgetter(0), lists))) <= {str}


def _compact(members: Mapping[str, Any], urls: Urls) -> Records | None:
    """Return members as records, by way of their compact JSON; None where they are not that regular."""
    try:
        block = msgspec.json.encode(members)[1:-1]
    except (TypeError, ValueError, OverflowError):  # the reading one by one says what is wrong
        return None
    return scan(block, urls)


def _chosen(records: Records, numbers: UInt64s | UInt32s | None, chosen: Positions) -> Part:
    if len(chosen) == len(records):
        columns = records.targets, records.offsets, records.lengths
    else:
        columns = records.targets[chosen], records.offsets[chosen], records.lengths[chosen]
    return Part(chosen.view(np.uint64) if numbers is None else numbers, *columns)


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

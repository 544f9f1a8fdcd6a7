"""All that was taken in of a reference set, put where it belongs in the end: chunks into tables, the rest aside.

No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, ChunkTable, Part, Row, UInt32s, UInt64s
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.strings import Texts
from refshard_fs.core.swar import PAD, Booleans, Positions, runs, stands
from refshard_fs.references import place_small_arrays as placing
from refshard_fs.references.builder_state import Aside, Common, Loose, Taken
from refshard_fs.references.json_scan import Records
from refshard_fs.references.key_table import Run, SideTable, Value
from refshard_fs.references.metadata_scan import Learning, chunk_numbers, name_starts, tail_numbers
from refshard_fs.references.place_small_arrays import Placer
from refshard_fs.references.reference_set import ByKey, LateSide, LateTables, ReferenceSet

__all__ = ["ENDS", "Found", "Placed", "at_home", "kept_by_key", "placed", "set_by_key", "settle"]

# ----------------------------------------------------------------------------------------------------
# Chunks of many small arrays found by the directories that their keys lie in, most of which many keys share.
#
# One look-up a directory, and arithmetic for the names in it. No I/O here.


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


class _Shapes:
    """How chunks are spelled in the directories of arrays, and how many there are along each dimension: each once."""

    def __init__(self, largest: int) -> None:
        self._largest = largest  # chunks of a grid
        self.known: list[tuple[_Spelling | None, tuple[int, ...]]] = [(None, ())]
        self.of: dict[int, int] = {}  # of a grid, by its id: arrays that are spelled alike share one

    def number(self, grid: ChunkGrid) -> int:
        """Return the shape of the chunks that lie in an array's own directory; 0 if none can."""
        number = self.of.get(id(grid))
        if number is None:
            counts, encoding = grid.counts, grid.encoding
            is_default = encoding.name == "default"
            shape: tuple[_Spelling | None, tuple[int, ...]] = (None, ())
            if grid.size > self._largest:
                pass
            elif not counts:
                if not is_default:
                    shape = (_BARE, (1,))
            elif encoding.separator != "/" or not (is_default or len(counts) > 1):
                head = b"c" + encoding.separator.encode() if is_default else b""
                shape = (_Spelling(head, encoding.separator, len(counts)), counts)
            number = self.of[id(grid)] = self.add(*shape)
        return number

    def add(self, spelling: _Spelling | None, counts: tuple[int, ...]) -> int:
        if spelling is None:
            return 0
        self.known.append((spelling, counts))
        return len(self.known) - 1


_BARE: Final = _Spelling(b"", ".", 1)
_NOWHERE: Final = (0, 0, 0)


def at_home(
    records: Records, among: Positions, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int
) -> Found:
    """Return which records are chunks of arrays that have up to ``largest``; arrays have ``numbers`` by path."""
    if not len(among):
        return Found(among, among.astype(np.uint32), among.view(np.uint64), among)
    text, stops = records.text, records.key_stops[among]
    starts = records.key_starts[among]
    names = name_starts(text, starts, stops)
    ends = np.maximum(names - 1, starts)
    begun = runs(text, starts, ends)
    shapes = _Shapes(largest)
    directories = records.pieces(starts[begun], ends[begun])
    near = list(map(grids.get, directories))
    ids = list(map(id, near))
    by_id = dict(zip(ids, near, strict=True))
    shape_by_id = {key: 0 if grid is None else shapes.number(grid) for key, grid in by_id.items()}
    homes = np.zeros((3, len(near)), np.int64)  # the array, the number of the first chunk there, and their shape
    homes[0] = np.fromiter(map(numbers.get, directories, repeat(0)), np.int64, len(near))
    homes[2] = np.fromiter(map(shape_by_id.__getitem__, ids), np.int64, len(ids))
    known: dict[str, tuple[int, int, int]] = {}
    for number in [i for i, grid in enumerate(near) if grid is None] if None in by_id.values() else ():
        directory = directories[number]
        home = known.get(directory)
        if home is None:
            home = known[directory] = _below(directory, grids, numbers, largest, shapes)
        homes[:, number] = home
    arrays, firsts, shape = homes.repeat(np.diff(begun, append=len(among)), axis=1)
    valid = np.zeros(len(among), bool)
    chunks = np.zeros(len(among), np.uint64)
    spellings = [spelling for spelling, _ in shapes.known]
    for spelling in {spelling: None for spelling in spellings if spelling is not None}:
        rows = np.flatnonzero(np.array([known == spelling for known in spellings])[shape])
        none = (0,) * spelling.dimensions
        table = np.array([counts if own == spelling else none for own, counts in shapes.known], np.uint64)
        begins = names[rows]
        found, fits = tail_numbers(
            text, begins + len(spelling.head), stops[rows], spelling.separator, list(table[shape[rows]].T)
        )
        if spelling.head:
            fits &= stands(text, begins, spelling.head)
        valid[rows], chunks[rows] = fits, found
    chunks += firsts.view(np.uint64)
    return Found(among[valid], arrays[valid].astype(np.uint32), chunks[valid], among[~valid])


def _below(
    directory: str, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int, shapes: _Shapes
) -> tuple[int, int, int]:
    """Return the home of the chunks in a directory below an array; nowhere, too, where it takes a closer look."""
    path, parts = directory, list[str]()
    grid = None
    while grid is None and path:
        path, name = parent(path)
        parts.insert(0, name)
        grid = grids.get(path)
    if grid is None or grid.size > largest or grid.encoding.separator != "/":
        return _NOWHERE
    first = grid.number("/".join([*parts, "0"]))
    if first is None:
        return _NOWHERE
    return numbers[path], first, shapes.add(_BARE, grid.counts[-1:])


# ----------------------------------------------------------------------------------------------------
# Chunks among many records, put into the columns of their arrays: those of few large arrays, or of many small ones.
#
# No I/O here.


SAMPLES: Final = 16  # records that are looked at, to tell how to take a block
FEW: Final = 64  # arrays that are looked for in one block, one after the other

ENDS: Final = np.array([placing.may_be_chunk(chr(byte)) for byte in range(256)])  # by the last byte of a key


class Placed(NamedTuple):
    """Rows of large arrays, by path, and of small ones; and the records that are left."""

    parts: list[tuple[str, Part]]
    common: list[Common]
    left: Positions


def placed(records: Records, may_be: Booleans, sequence: int, taken: Taken) -> Placed:
    """Return where those that ``may_be`` chunks of known arrays belong; what is left may be one all the same."""
    among = np.flatnonzero(may_be)
    if not taken.grids:
        return Placed([], [], among)
    if _mostly_small(records, taken):
        found = at_home(records, among, taken.grids, taken.numbers, placing.SMALL)
        if not len(found.rows):
            return Placed([], [], found.left)
        return Placed([], [Common(sequence, found.arrays, _chosen(records, found.chunks, found.rows))], found.left)
    parts, left = _by_array(records, among, taken)
    return Placed(parts, [], left)


def _by_array(records: Records, unplaced: Positions, taken: Taken) -> tuple[list[tuple[str, Part]], Positions]:
    """Return the chunks that belong to few arrays, one array after the other, and what is left."""
    grids = taken.grids
    found: list[tuple[str, Part]] = []
    strays: list[int] = []
    count = len(unplaced)
    for attempt in range(FEW):
        # Where arrays are many and small, it is better to take what is left one by one.
        if not len(unplaced) or attempt * count > FEW * (count - len(unplaced)) + 4 * count:
            break
        first = int(unplaced[0])
        at = place(grids, records.key(first))
        if at is None:
            strays.append(first)
            unplaced = unplaced[1:]
            continue
        grid = grids[at.array]
        among = None if len(unplaced) == len(records) else unplaced
        numbers, valid = chunk_numbers(records, among, _prefix(at.array, grid), grid)
        if valid.all():
            chosen, unplaced = unplaced, unplaced[:0]
        else:
            chosen, unplaced, numbers = unplaced[valid], unplaced[~valid], numbers[valid]
        if len(numbers):
            smaller = numbers.astype(np.uint32) if grid.size < 2**32 else numbers
            found.append((at.array, _chosen(records, smaller, chosen)))
        if not valid[0]:  # a chunk, and spelled in a way that is not for columns
            strays.append(first)
            unplaced = unplaced[1:]
    return found, np.sort(np.concatenate((np.array(strays, np.int64), unplaced)))


def _mostly_small(records: Records, taken: Taken) -> bool:
    """Whether samples say that records are chunks of many small arrays."""
    grids = taken.grids
    sample = [grids.get(parent(records.key(i))[0]) for i in range(0, len(records), len(records) // SAMPLES + 1)]
    return sum(1 for grid in sample if grid is not None and grid.size <= placing.SMALL) * 4 > 3 * len(sample)


def _chosen(records: Records, numbers: UInt64s | UInt32s, chosen: Positions) -> Part:
    columns: Any = records.targets, records.offsets, records.lengths
    if len(chosen) < len(records):
        columns = (column[chosen] for column in columns)
    return Part(numbers, *columns)


def _prefix(path: str, grid: ChunkGrid) -> bytes:
    head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
    return (path + "/" + head if path else head).encode("utf-8", "surrogatepass")


MANY: Final = 1024  # members that take less room as columns

_Parts: TypeAlias = list[tuple[int, Part]]  # with the place of each in the sequence


def settle(taken: Taken) -> ReferenceSet:
    """Return the reference set; nothing is of use in ``taken`` after that."""
    urls = taken.settled_urls()
    return _Settling(taken).all(urls)


def kept_by_key(taken: Taken) -> ReferenceSet:
    """Return the reference set with nothing in columns; nothing is of use in ``taken`` after that."""
    urls = taken.settled_urls()
    runs = [item.run if isinstance(item, Loose) else Run.of(item.members) for item in taken.in_order()]
    return set_by_key(urls, SideTable.of(runs), taken.where)


def set_by_key(urls: Texts, table: SideTable, where: str) -> ReferenceSet:
    """Return the reference set of which ``table`` has all members."""
    kept = ByKey(table, where, _place)
    return ReferenceSet(urls, LateTables(kept), LateSide(kept))


def _place(table: SideTable, where: str) -> tuple[Mapping[str, ChunkTable], Mapping[str, Value]]:
    taken = Taken(where)
    Learning(where, taken).learn_table(table)
    taken.loose.append(Loose(0, table.run(), False))
    refs = _Settling(taken).all(Texts.of(()))
    return refs.tables, refs.side


class _Settling:
    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._placer = Placer(taken.grids)
        self._aside: list[dict[str, Value] | Run] = []  # in order
        self._starts = self._placer.starts(taken.numbers)
        self._common: _Parts = list(map(self._numbered, taken.common))
        self._has_rows = bool(taken.parts or taken.common) or any(
            _has_rows(item) for item in taken.in_order() if taken.unsettled or not item.settled
        )

    def all(self, urls: Texts) -> ReferenceSet:
        taken, placer = self._taken, self._placer
        for item in taken.in_order():
            match item:
                case Loose():
                    self._loose(item)
                case Aside(sequence, members, settled):
                    if not taken.grids or (settled and not taken.unsettled):
                        self._aside.append(members)
                    else:
                        self._members(sequence, members)
        for path in filter(placer.is_small, list(taken.parts)):
            self._common += [(sequence, placer.moved(path, part)) for sequence, part in taken.parts.pop(path)]
        tables, replaced = placer.tables(_in_order(self._common))
        for path in placer.large:
            grid = taken.grids[path]
            parts = _in_order(taken.parts.pop(path, ()))
            table = tables.own[path] = ChunkTable.from_parts(grid, parts)
            if path in taken.hiding:
                hidden = np.concatenate([part.numbers[part.targets == ABSENT] for part in parts])
                replaced += [join(path, grid.tail(number)) for number in table.existing(hidden)]
        return ReferenceSet(urls, tables, _side(self._aside, replaced))

    def _loose(self, item: Loose) -> None:
        """Put members where they belong, in columns; what is not chunks of arrays, or is text, lies aside."""
        sequence, run, settled = item
        taken = self._taken
        if not self._has_rows or not taken.grids or (settled and not taken.unsettled):
            self._aside.append(run)
            return
        stops = len(PAD) + (run.sizes + 1).cumsum() - 1
        text = b"".join((PAD, run.keys, PAD))
        records = Records(text, stops - run.sizes, stops, run.targets, run.offsets, run.lengths)
        may_be = ENDS[records.last_bytes()]
        parts, common, unplaced = placed(records, may_be, sequence, taken)
        for path, part in parts:
            if self._placer.is_small(path):
                self._common.append((sequence, self._placer.moved(path, part)))
            else:
                taken.parts.setdefault(path, []).append((sequence, part))
            if (part.targets == ABSENT).any():
                taken.hiding.add(path)
        self._common += [self._numbered(found) for found in common]
        # What was left is looked at one by one, where it lies within an array.
        near = {directory for directory, _ in map(parent, records.keys(unplaced)) if self._is_near(directory)}
        odd = unplaced[[parent(key)[0] in near for key in records.keys(unplaced)]] if near else unplaced[:0]
        rows: dict[str, list[tuple[int, Row]]] = {}
        strays = list[int]()
        for i, key in zip(odd.tolist(), records.keys(odd), strict=True):
            at = self._placer.place(key)
            if at is None:
                strays.append(i)
            else:
                target, offset, length = int(run.targets[i]), int(run.offsets[i]), int(run.lengths[i])
                row = Row(target, offset, None if length == WHOLE else length)
                rows.setdefault(at.array, []).append((at.number, row))
        self._add_rows(sequence, rows)
        aside = ~may_be
        aside[unplaced] = True
        aside[odd] = False
        aside[strays] = True
        aside |= run.targets == ABSENT
        chosen = np.flatnonzero(aside)
        if len(chosen) == len(run.sizes):
            self._aside.append(run)
        elif len(chosen):
            columns = run.targets[chosen], run.offsets[chosen], run.lengths[chosen]
            places = enumerate(chosen.tolist()) if run.objects else ()
            objects = {place: run.objects[row] for place, row in places if row in run.objects}
            self._aside.append(Run(records.spelled_keys(chosen), run.sizes[chosen], *columns, run.data, objects))

    def _is_near(self, directory: str) -> bool:
        """Whether it is an array, or lies in one."""
        grids = self._taken.grids
        while directory and directory not in grids:
            directory, _ = parent(directory)
        return directory in grids

    def _numbered(self, found: Common) -> tuple[int, Part]:
        return found.sequence, found.part._replace(numbers=found.part.numbers + self._starts[found.arrays])

    def _members(self, sequence: int, members: Mapping[str, Value]) -> None:
        """Put members where they belong, one by one."""
        rows: dict[str, list[tuple[int, Row]]] = {}
        aside: dict[str, Value] = {}
        for key, value in members.items():
            at = self._placer.place(key)
            if at is None:
                aside[key] = value
            elif type(value) is Row:
                rows.setdefault(at.array, []).append((at.number, value))
            else:
                aside[key] = value
                rows.setdefault(at.array, []).append((at.number, Row(ABSENT, 0, 0)))
        self._aside.append(aside)
        self._add_rows(sequence, rows)

    def _add_rows(self, sequence: int, rows: Mapping[str, list[tuple[int, Row]]]) -> None:
        for path, numbered in rows.items():
            if any(row.target == ABSENT for _, row in numbered):
                self._taken.hiding.add(path)
            part = Part.from_rows(numbered)
            if self._placer.is_small(path):
                self._common.append((sequence, self._placer.moved(path, part)))
            else:
                self._taken.parts.setdefault(path, []).append((sequence, part))


def _has_rows(item: Aside | Loose) -> bool:
    """Whether there are references among members that may be chunks."""
    match item:
        case Loose(_, run):
            return bool((run.targets != ABSENT).any())
        case Aside(_, members):
            return Row in set(map(type, members.values()))


def _in_order(parts: Iterable[tuple[int, Part]]) -> list[Part]:
    return [part for _, part in sorted(parts, key=lambda part: part[0])]


def _side(pieces: list[dict[str, Value] | Run], replaced: list[str]) -> Mapping[str, Value]:
    """Return all that lies aside, without data that a later reference ``replaced``: as columns, where it is many."""
    count = sum(len(piece.sizes) if isinstance(piece, Run) else len(piece) for piece in pieces)
    runs = [piece if isinstance(piece, Run) else Run.of(piece) for piece in pieces] if count > MANY else []
    if runs:
        return SideTable.of(runs).without(replaced)
    side: dict[str, Value] = {}
    for piece in pieces:
        side.update(SideTable.of([piece]) if isinstance(piece, Run) else piece)
    for key in replaced:
        side.pop(key, None)
    return side

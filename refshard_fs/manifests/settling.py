"""All that was taken in of a reference set, put where it belongs in the end: chunks into tables, the rest aside.

No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np

from refshard_fs.columns import ABSENT, WHOLE, ChunkTable, Part, Row
from refshard_fs.keys import join, parent
from refshard_fs.manifests.by_key import ByKey, LateSide, LateTables
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.learning import Learning
from refshard_fs.manifests.placed import ENDS, placed
from refshard_fs.manifests.placing import Placer
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.side_table import Run, SideTable, Value
from refshard_fs.manifests.taken import Aside, Common, Loose, Taken
from refshard_fs.manifests.words import PAD
from refshard_fs.texts import Texts

__all__ = ["kept_by_key", "set_by_key", "settle"]

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

"""All that was taken in of a reference set, put where it belongs in the end: chunks into tables, the rest aside.

No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from refshard_fs.columns import ABSENT, WHOLE, ChunkTable, Part, Row
from refshard_fs.keys import join
from refshard_fs.manifests.placing import Placer
from refshard_fs.manifests.reference_set import ReferenceSet, Value
from refshard_fs.manifests.taken import Aside, Loose, Taken
from refshard_fs.manifests.words import Positions
from refshard_fs.texts import Texts

__all__ = ["settle"]

_Parts: TypeAlias = list[tuple[int, Part]]  # with the place of each in the sequence


def settle(taken: Taken) -> ReferenceSet:
    """Return the reference set; nothing is of use in ``taken`` after that."""
    urls = taken.settled_urls()
    return _Settling(taken).all(urls)


class _Settling:
    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._placer = Placer(taken.grids)
        self._side: dict[str, Value] = {}
        starts = self._placer.starts(taken.numbers)
        self._common: _Parts = [
            (sequence, part._replace(numbers=part.numbers + starts[arrays])) for sequence, arrays, part in taken.common
        ]

    def all(self, urls: Texts) -> ReferenceSet:
        taken, placer, side = self._taken, self._placer, self._side
        items: list[Aside | Loose] = [*taken.side, *taken.loose]
        for item in sorted(items, key=lambda item: item.sequence):
            match item:
                case Loose():
                    self._loose(item)
                case Aside(sequence, members, settled):
                    if not taken.grids or (settled and not taken.unsettled):
                        side.update(members)
                    else:
                        self._members(sequence, members)
        for path in filter(placer.is_small, list(taken.parts)):
            self._common += [(sequence, placer.moved(path, part)) for sequence, part in taken.parts.pop(path)]
        tables, replaced = placer.tables(_in_order(self._common))
        for key in replaced:
            side.pop(key, None)  # data that a later reference replaced
        for path, grid in taken.grids.items():
            if path in tables:
                continue
            parts = _in_order(taken.parts.pop(path, ()))
            table = tables[path] = ChunkTable.from_parts(grid, parts)
            if path in taken.hiding:
                hidden = np.concatenate([part.numbers[part.targets == ABSENT] for part in parts])
                for number in table.existing(hidden):
                    side.pop(join(path, grid.tail(number)), None)  # as above
        return ReferenceSet(urls, tables, side)

    def _loose(self, item: Loose) -> None:
        sequence, keys, part, settled = item
        if settled or not self._taken.grids:
            self._side.update(_rows(keys, part, None))
            return
        numbers = self._placer.numbers(keys)
        chosen = np.flatnonzero(numbers >= 0)
        if len(chosen):
            columns = part.targets[chosen], part.offsets[chosen], part.lengths[chosen]
            self._common.append((sequence, Part(numbers[chosen].view(np.uint64), *columns)))
        self._members(sequence, dict(_rows(keys, part, np.flatnonzero(numbers < 0))))

    def _members(self, sequence: int, members: Mapping[str, Value]) -> None:
        """Put members where they belong, one by one."""
        rows: dict[str, list[tuple[int, Row]]] = {}
        for key, value in members.items():
            at = self._placer.place(key)
            if at is None:
                self._side[key] = value
            elif type(value) is Row:
                rows.setdefault(at.array, []).append((at.number, value))
            else:
                self._side[key] = value
                rows.setdefault(at.array, []).append((at.number, Row(ABSENT, 0, 0)))
                self._taken.hiding.add(at.array)
        for path, numbered in rows.items():
            part = Part.from_rows(numbered)
            if self._placer.is_small(path):
                self._common.append((sequence, self._placer.moved(path, part)))
            else:
                self._taken.parts.setdefault(path, []).append((sequence, part))


def _in_order(parts: Iterable[tuple[int, Part]]) -> list[Part]:
    return [part for _, part in sorted(parts, key=lambda part: part[0])]


def _rows(keys: list[str], part: Part, chosen: Positions | None) -> Iterator[tuple[str, Row]]:
    """Return ``keys`` (some of them) with their rows."""
    columns = part.targets, part.offsets, part.lengths
    if chosen is not None and len(chosen) < len(keys):
        columns = part.targets[chosen], part.offsets[chosen], part.lengths[chosen]
        keys = [keys[i] for i in chosen.tolist()]
    values: list[list[Any]] = [column.tolist() for column in columns]
    if len(keys) and int(columns[2].max()) == WHOLE:
        values[2] = [None if length == WHOLE else length for length in values[2]]
    return zip(keys, map(_as_row, zip(*values, strict=True)), strict=True)


# As `Row._make`, without a Python function for each.
_as_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)

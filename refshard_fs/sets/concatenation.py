"""Reference sets one after the other along a dimension, as columns: no chunk is read or copied. No I/O here.

What does not fit is a ManifestError that names the sets, the variable and the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_values import plain
from refshard_fs.core.columns import ChunkTable, Part, Row, UInt64s
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import Value, object_in
from refshard_fs.sets.compatibility import Fit
from refshard_fs.sets.variables import Named, Variable, inline_of, values_at_hand, variables

__all__ = ["concatenate", "concatenated", "converted"]

# ----------------------------------------------------------------------------------------------------
# CF times in the units of others, where that changes no instant: whole numbers, exact arithmetic. No I/O here.
#
# CF conventions, section 4.4. Only units of fixed length are known (no months, no years). Reference times that differ
# need a Gregorian calendar: in any other one, only the length of the unit may differ.


SECONDS: Final = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "hour": 3600, "hr": 3600, "h": 3600}
SECONDS_OF: Final = {**SECONDS, "day": 86400, "d": 86400}
GREGORIAN: Final = ("standard", "gregorian", "proleptic_gregorian")
FIRST: Final = datetime(1582, 10, 15)  # the standard calendar is Julian before
EXACT: Final = 2**53  # floating-point numbers up to it are whole numbers without a gap
# Attributes by which other values depend on these units, or which make the values something else than numbers of units.
TIED: Final = ("bounds", "climatology", "scale_factor", "add_offset")

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0+)?)?)?\s*(?:Z|UTC|GMT|\+00:?00)?"
)


def converted(
    values: npt.NDArray[Any], theirs: Mapping[str, Any], ours: Mapping[str, Any], fills: list[Any]
) -> npt.NDArray[Any]:
    """Return ``values``, whose attributes are ``theirs``, in the units of ``ours``; ValueError, saying why, if not.

    ``fills`` stand for missing values: none may be in it, or come of it.
    """
    tied = next((name for name in TIED if name in theirs or name in ours), None)
    if tied is not None:
        raise ValueError(f"it has the attribute {tied}, which ties its units to another variable")
    if values.dtype.kind not in "iuf":
        raise ValueError(f"its type is {values.dtype}, no number")
    unit, since = _parsed(theirs.get("units"))
    new_unit, new_since = _parsed(ours.get("units"))
    shift = 0 if since == new_since else _seconds_between(since, new_since, theirs, ours)
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
        raise ValueError("not all of its values are whole numbers")
    whole = [int(value) for value in values.tolist()]
    found = []
    for value in whole:
        new, rest = divmod(value * unit + shift, new_unit)
        if rest:
            raise ValueError(f"{value} is no whole number in the other units")
        found.append(new)
    info = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
    least, most = (-EXACT, EXACT) if info is None else (int(info.min), int(info.max))
    out = np.zeros(len(found), values.dtype)
    if all(least <= number <= most for number in (*whole, *found)):
        out[:] = found
    if out.tolist() != found:
        raise ValueError(f"its values in the other units are beyond the type {values.dtype}")
    for fill in fills:
        if isinstance(fill, int | float) and (fill in whole or fill in found):
            raise ValueError(f"the value {fill}, which stands for missing ones, is among its values")
    return out


def _parsed(units: object) -> tuple[int, str]:
    """Return the seconds of the unit, and the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    seconds = SECONDS_OF.get(match[1].lower()) if match is not None else None
    if match is None or seconds is None:
        raise ValueError(f"{units!r} are no seconds, minutes, hours or days since a time")
    return seconds, match[2]


def _seconds_between(since: str, new_since: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> int:
    calendar = theirs.get("calendar", "standard")
    if calendar not in GREGORIAN or ours.get("calendar", "standard") != calendar:
        raise ValueError(f"times since others are not known in the calendar {calendar!r}")
    begin, end = _instant(new_since), _instant(since)
    if calendar != "proleptic_gregorian" and min(begin, end) < FIRST:
        raise ValueError("the standard calendar changes before 1582-10-15")
    between = end - begin
    return between.days * 86400 + between.seconds


def _instant(text: str) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date and time in UTC")
    try:
        return datetime(*(int(number or 0) for number in match.groups()))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"{text!r} is no date and time: {e}") from e


def concatenate(sets: Sequence[Named], dim: str | None, same: Iterable[str] = ()) -> ReferenceSet:
    """Return ``sets`` as one: arrays with ``dim`` joined along it in order, all others merged.

    Variables without ``dim`` must be equal wherever they are, but for those in ``same``: they are the first set's.
    """
    return _Joining(sets, dim, frozenset(same)).refs()


def concatenated(sets: Sequence[Named], dim: str | None, same: Iterable[str] = ()) -> Named:
    """Return the same as a set that is to be joined with others, along another dimension."""
    joining = _Joining(sets, dim, frozenset(same))
    refs, name = joining.refs(), f"{sets[0].name} to {sets[-1].name}"
    return Named(name, refs, variables(refs, name), joining.digests)


class _Joining:
    def __init__(self, sets: Sequence[Named], dim: str | None, same: frozenset[str]) -> None:
        self.sets, self.dim, self.same = sets, dim, same
        self.starts = np.cumsum([0, *(len(part.refs.urls) for part in sets)]).tolist()
        self.digests: dict[str, dict[int, bytes]] = {}
        self.tables: dict[str, ChunkTable] = {}
        self.side: dict[str, Value] = {}
        self.inline = [inline_of(part.refs, part.name) for part in sets]
        self.fit = Fit(sets, dim, self.inline)

    def refs(self) -> ReferenceSet:
        """Return all sets as one."""
        if self.dim is not None and not any(self.dim in v.dims for part in self.sets for v in part.variables.values()):
            known = sorted({d for part in self.sets for v in part.variables.values() for d in v.dims if d is not None})
            raise ManifestError(
                f"no variable is along {self.dim!r} in {self.sets[0].name}, nor in the others: of dimensions there are "
                f"{', '.join(known) or 'none'}"
            )
        for path in dict.fromkeys(path for part in self.sets for path in part.variables):
            self.variable(path)
        self.rest()
        pins = Pins.joined([(part.refs.pins, len(part.refs.urls)) for part in self.sets])
        return ReferenceSet(Texts.joined([part.refs.urls for part in self.sets]), self.tables, self.side, pins=pins)

    def variable(self, path: str) -> None:
        """Take in the array ``path`` of all sets that have it."""
        holders = [i for i, part in enumerate(self.sets) if path in part.variables]
        first = self.sets[holders[0]].variables[path]
        if self.dim is None or self.dim not in first.dims:
            for i in holders[1:]:
                if path not in self.same and self.sets[i].refs is not self.sets[holders[0]].refs:
                    self.fit.equal(path, holders[0], i)
            self._adopt(path, holders[0])
            return
        if len(holders) < len(self.sets):
            lacking = next(part.name for i, part in enumerate(self.sets) if i not in holders)
            raise ManifestError(f"{lacking} has no variable {path!r}, which others have along {self.dim!r}")
        values = self._coordinate(path) if first.is_coordinate else None
        axis = first.dims.index(self.dim)
        for i in holders[1:]:
            self.fit.compatible(path, 0, i, axis, stored_anew=values is not None)
        if values is not None:
            doc, data = plain(first.meta, values)
            meta = zarrmeta.array_meta(doc, repr(path))
            if meta is not None and meta.grid is not None:
                self._metadata(first, doc)
                self.tables[path] = ChunkTable.from_parts(meta.grid, [])
                if len(values):
                    self.side[join(path, meta.grid.tail(0))] = data
            return
        self._joined(path, axis)

    def rest(self) -> None:
        """Take in what belongs to no array: the first set that has a key gives its value."""
        consolidated = False
        for i, part in enumerate(self.sets):
            arrays = part.variables
            for key, value in part.refs.side.items():
                directory, name = parent(key)
                if key == ".zmetadata":
                    consolidated = True
                elif key in self.side or (directory in arrays and zarrmeta.is_metadata(key)):
                    continue
                elif name == "zarr.json" and type(value) is not Row:
                    group = object_in(value, f"{key!r} of {part.name}")
                    # Consolidated metadata tell of one set only.
                    self.side[key] = {k: v for k, v in group.items() if k != "consolidated_metadata"}
                elif place(part.refs.grids, key) is None:
                    self.side[key] = self._moved(i, value)
        if consolidated:
            names = (".zarray", ".zattrs", ".zgroup")
            documents = {k: v for k, v in self.side.items() if parent(k)[1] in names and type(v) is not Row}
            metadata = {k: object_in(v, repr(k)) for k, v in documents.items()}
            self.side[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": metadata}

    # ------------------------------------------------------------------ one variable

    def _moved(self, i: int, value: Value) -> Value:
        return Row(value.target + self.starts[i], value.offset, value.length) if type(value) is Row else value

    def _metadata(self, variable: Variable, doc: Mapping[str, Any]) -> None:
        self.side[variable.key] = dict(doc)
        aside = self.sets[0].refs.side.get(join(variable.path, ".zattrs"))
        if aside is not None:
            self.side[join(variable.path, ".zattrs")] = aside

    def _adopt(self, path: str, i: int) -> None:
        refs = self.sets[i].refs
        for name in (".zarray", "zarr.json", ".zattrs"):
            key = join(path, name)
            if key in refs.side:
                self.side[key] = refs.side[key]
        for number, data in self.inline[i].get(path, {}).items():
            self.side[join(path, refs.tables[path].grid.tail(number))] = data
        if path in refs.tables:
            self._table(path, refs.tables[path].grid, [self._part(path, i)])
        if path in self.sets[i].digests:
            self.digests[path] = dict(self.sets[i].digests[path])

    def _table(self, path: str, grid: Any, parts: list[Part]) -> None:
        self.tables[path] = ChunkTable.from_parts(grid, parts)

    def _part(self, path: str, i: int) -> Part:
        table = self.sets[i].refs.tables[path]
        numbers = table.present()
        rows: Any = slice(None) if table.numbers is not None or len(numbers) == table.grid.size else numbers
        targets = table.targets[rows] + np.uint32(self.starts[i])
        return Part(numbers, targets, table.offsets[rows], table.lengths[rows])

    def _joined(self, path: str, axis: int) -> None:
        first = self.sets[0].variables[path].meta
        lengths = [part.variables[path].meta.shape[axis] for part in self.sets]
        if first.chunks is None or first.grid is None:
            raise ManifestError(f"{self.sets[0].name}: the chunks of {path!r} are not of one size, or not known")
        size = first.chunks[axis]
        for part, length in zip(self.sets[:-1], lengths, strict=False):
            if size and length % size:
                raise ManifestError(
                    f"{part.name} has {length} elements of {path!r} along {self.dim!r}, no multiple of its chunks of "
                    f"{size}: only the last set may"
                )
        shape = [*first.shape[:axis], sum(lengths), *first.shape[axis + 1 :]]
        variable = self.sets[0].variables[path]
        doc = {**first.raw, "shape": shape}
        meta = zarrmeta.array_meta(doc, repr(path))
        if meta is None or meta.grid is None:
            raise ManifestError(f"{path!r} has no chunk grid")
        self._metadata(variable, doc)
        grid, inner = meta.grid, math.prod(meta.grid.counts[axis + 1 :])
        begin, parts = 0, []
        digests: dict[int, bytes] = {}
        for i, length in enumerate(lengths):
            count = -(-length // size) if size else 0
            if path in self.sets[i].refs.tables and count:
                move = partial(_renumbered, count=count, total=grid.counts[axis], inner=inner, begin=begin)
                rows = self._part(path, i)
                parts.append(rows._replace(numbers=move(rows.numbers.astype(np.uint64))))
                for number, data in _by_number(self.inline[i].get(path, {}), move):
                    self.side[join(path, grid.tail(number))] = data
                digests |= dict(_by_number(self.sets[i].digests.get(path, {}), move))
            begin += count
        self._table(path, grid, parts)
        if all(path in part.digests for part in self.sets):
            self.digests[path] = digests

    def _coordinate(self, path: str) -> Any:
        """Return the values of a coordinate in all sets, if all are at hand."""
        found = []
        for i, part in enumerate(self.sets):
            variable = part.variables[path]
            values = values_at_hand(variable, part.refs, self.inline[i].get(path, {}), part.name)
            if values is None:
                return None
            found.append(self._in_first_units(path, i, values))
        return np.concatenate(found)

    def _in_first_units(self, path: str, i: int, values: Any) -> Any:
        """Return the values of a coordinate of times as numbers of the first set's units."""
        first, variable = self.sets[0].variables[path], self.sets[i].variables[path]
        if variable.attributes.get("units") == first.attributes.get("units"):
            return values
        fills = [v.meta.raw.get("fill_value") for v in (first, variable)]
        fills += [v.attributes.get(name) for v in (first, variable) for name in ("_FillValue", "missing_value")]
        try:
            return converted(values, variable.attributes, first.attributes, fills)
        except ValueError as e:
            mine, theirs = first.attributes.get("units"), variable.attributes.get("units")
            raise ManifestError(
                f"{path!r} has the attribute units {mine!r} in {self.sets[0].name}, and {theirs!r} in "
                f"{self.sets[i].name}, and cannot be carried over: {e}. Write {path!r} anew in {mine!r} there: its "
                f"values are the only ones that a set holds itself"
            ) from e


def _by_number(chunks: Mapping[int, bytes], move: Callable[[UInt64s], UInt64s]) -> Iterator[tuple[int, bytes]]:
    """Yield what is known of chunks by their numbers in another grid."""
    numbers = sorted(chunks)
    return zip(move(np.array(numbers, np.uint64)).tolist(), map(chunks.__getitem__, numbers), strict=True)


def _renumbered(numbers: Any, count: int, total: int, inner: int, begin: int) -> Any:
    """Return the numbers of chunks in a grid that has ``total`` along the axis where theirs has ``count``."""
    if total == count:
        return numbers
    if len(numbers) and numbers[-1] < count * inner:  # ascending: all in the first place of the axes before
        return numbers + np.uint64(begin * inner)
    outer, rest = np.divmod(numbers, np.uint64(count * inner))
    return outer * np.uint64(total * inner) + rest + np.uint64(begin * inner)

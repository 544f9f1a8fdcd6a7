"""The arrays of a reference set, with their attributes, dimensions, and the values that are inline. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Row
from refshard_fs.core.dtypes import dtype_of, fill_of
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.recoding import EXACT, decode_chunk
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, decode, object_in

MOST: Final = 1 << 24  # elements that are looked at together: shapes and chunks may be any numbers


class Variable(NamedTuple):
    """An array of a set: its metadata, attributes and the names of its dimensions, as far as it gives them."""

    key: str  # of the metadata
    meta: ArrayMeta
    attributes: Mapping[str, Any]
    dims: tuple[str | None, ...]

    @property
    def path(self) -> str:
        return parent(self.key)[0]

    @property
    def is_coordinate(self) -> bool:
        """Whether it holds the positions along the dimension of its own name."""
        return self.dims == (parent(self.path)[1],)

    @property
    def is_sharded(self) -> bool:
        """Whether the set refers to the array's shards, not to its chunks."""
        codecs = self.meta.raw.get("codecs") or ()
        return "shards" in self.meta.raw or any(
            isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
        )


class Named(msgspec.Struct, frozen=True, dict=True):
    """A set, its variables by path, and what it is called in errors."""

    name: str
    refs: ReferenceSet
    variables: Mapping[str, Variable]
    # What stands for the bytes of arrays that were read to be compared: digests, of joined arrays in the order of sets.
    digests: Mapping[str, Hashable] = {}

    @cached_property
    def inline(self) -> Mapping[str, Mapping[int, bytes]]:
        """The chunks that are data, by array and number."""
        found: dict[str, dict[int, bytes]] = {}
        for key, value in self.refs.side.items():
            if type(value) is Row or zarrmeta.is_metadata(key):
                continue
            at = place(self.refs.grids, key)
            if at is not None:
                try:
                    found.setdefault(at.array, {})[at.number] = decode(value)
                except ValueError as e:
                    raise ManifestError(f"{key!r} of {self.name}: {e}") from e
        return found

    def values(self, path: str) -> npt.NDArray[Any] | None:
        """Return the values of an array of at most one dimension.

        None where they are not all inline, not readable, or with what chunks hold beyond the array's end more than
        `MOST`.
        """
        variable = self.variables[path]
        meta = variable.meta
        table = self.refs.tables.get(path)
        if table is None or len(table) or meta.chunks is None or len(meta.shape) > 1:
            return None
        dtype = dtype_of(meta)
        size = meta.chunks[0] if meta.chunks else 1
        room = -(-math.prod(meta.shape) // max(size, 1)) * size
        if dtype is None or room > MOST:
            return None
        try:
            out = np.full(room, fill_of(meta, dtype), dtype)
            for number, data in self.inline.get(path, {}).items():
                values = decode_chunk(meta, data)
                if values is None:
                    return None
                out[number * size : (number + 1) * size] = values.reshape(-1)
        except ValueError as e:
            raise ManifestError(f"{path!r} of {self.name}: {e}") from e
        return out[: math.prod(meta.shape)]


class VariableReader:
    """Reads the arrays of sets; what the same texts say is parsed once, and is the same variable."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Value, Value | None], Variable | None] = {}

    def read(self, refs: ReferenceSet, where: str) -> dict[str, Variable]:
        """Return the arrays of a set by path."""
        found = {}
        for key, value in refs.side.items():
            if not key.endswith(METADATA) or type(value) is Row:
                continue
            path, name = parent(key)
            if name not in METADATA:
                continue
            spelled = key, value, refs.side.get(join(path, ".zattrs"))
            is_text = not isinstance(value, dict) and not isinstance(spelled[2], dict)
            if is_text and spelled in self._known:
                variable = self._known[spelled]
            else:
                variable = _variable(refs, path, key, value, where)
                if is_text:
                    self._known[spelled] = variable
            if variable is not None:
                found[path] = variable
        return found


def _variable(refs: ReferenceSet, path: str, key: str, value: Value, where: str) -> Variable | None:
    doc = object_in(value, f"{key!r} of {where}")
    meta = zarrmeta.array_meta(doc, f"{key!r} of {where}")
    if meta is None:
        return None
    attributes: Any = doc.get("attributes") or {}
    aside = refs.side.get(join(path, ".zattrs"))
    if meta.zarr_format == 2:
        attributes = {} if aside is None else object_in(aside, f"{join(path, '.zattrs')!r} of {where}")
    if not isinstance(attributes, dict):
        raise ManifestError(f"{key!r} of {where}: its attributes are no object, but {type(attributes).__name__}")
    names = doc.get("dimension_names") or attributes.get("_ARRAY_DIMENSIONS") or [None] * len(meta.shape)
    match names:
        case [*_] if len(names) == len(meta.shape) and all(name is None or isinstance(name, str) for name in names):
            return Variable(key, meta, attributes, tuple(names))
    raise ManifestError(f"{key!r} of {where}: {names!r:.100} are no names of its {len(meta.shape)} dimensions")


# ----------------------------------------------------------------------------------------------------
# CF times in the units of others, where that changes no instant: whole numbers, exact arithmetic. No I/O here.
#
# CF conventions, section 4.4. Only units of fixed length are known (no months, no years). Reference times that differ
# need a Gregorian calendar: in any other one, only the length of the unit may differ.


SECONDS: Final = {
    **dict.fromkeys(("second", "sec", "s"), 1),
    **dict.fromkeys(("minute", "min"), 60),
    **dict.fromkeys(("hour", "hr", "h"), 3600),
    **dict.fromkeys(("day", "d"), 86400),
}
GREGORIAN: Final = ("standard", "gregorian", "proleptic_gregorian")
FIRST: Final = datetime(1582, 10, 15)  # the standard calendar is Julian before
# Attributes by which other values depend on these units, or which make the values something else than numbers of units.
TIED: Final = ("bounds", "climatology", "scale_factor", "add_offset")

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0+)?)?)?\s*(?:Z|UTC|GMT|\+00:?00)?"
)


def in_units_of(
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
    unit, since = parsed_units(theirs.get("units"))
    new_unit, new_since = parsed_units(ours.get("units"))
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


def parsed_units(units: object) -> tuple[int, str]:
    """Return the seconds of the unit, and the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    seconds = SECONDS.get(match[1].lower()) if match is not None else None
    if match is None or seconds is None:
        raise ValueError(f"{units!r} are no seconds, minutes, hours or days since a time")
    return seconds, match[2]


def _seconds_between(since: str, new_since: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> int:
    calendar = theirs.get("calendar", "standard")
    if calendar not in GREGORIAN or ours.get("calendar", "standard") != calendar:
        raise ValueError(f"times since others are not known in the calendar {calendar!r}")
    begin, end = instant(new_since), instant(since)
    if calendar != "proleptic_gregorian" and min(begin, end) < FIRST:
        raise ValueError("the standard calendar changes before 1582-10-15")
    between = end - begin
    return between.days * 86400 + between.seconds


def instant(text: str) -> datetime:
    """Return the time that the units of CF times count from; ValueError if it is none in UTC."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date and time in UTC")
    try:
        return datetime(*(int(number or 0) for number in match.groups()))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"{text!r} is no date and time: {e}") from e

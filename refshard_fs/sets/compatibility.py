"""What sets have in common and refer to in different places, read so as to be compared: small arrays, and no others.

Each file of an archive has its own ``crs`` or ``lat_bnds``. They must be the same in all sets that are joined, and
where references differ only the bytes can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT
from refshard_fs.core.keys import join
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.sets.sources import is_sharded
from refshard_fs.sets.variables import Named, digest, values_at_hand

__all__ = ["Fit", "has_same_references", "with_compared"]

# ----------------------------------------------------------------------------------------------------
# What has to be the same in sets that are joined; what differs is told by set, variable and field. No I/O here.


# Attributes that change what the values mean: equal in all sets.
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# Fields of metadata that differ between parts of one array; and those that may in a coordinate, which is stored anew.
OWN: Final = {"shape", "attributes", "consolidated_metadata"}
STORED: Final = {"chunks", "compressor", "filters", "codecs", "chunk_grid", "order"}


class Fit:
    """Sets that are to be joined along ``dim``; ``inline``: the chunks of each that are data, by array and number."""

    def __init__(
        self, sets: Sequence[Named], dim: str | None, inline: Sequence[Mapping[str, Mapping[int, bytes]]]
    ) -> None:
        self._sets, self._dim, self._inline = sets, dim, inline

    def compatible(self, path: str, one: int, other: int, axis: int, *, stored_anew: bool) -> None:
        """Raise ManifestError if two sets' arrays ``path`` cannot be joined along ``axis``.

        ``stored_anew`` is whether the values are, so that how they are encoded does not matter.
        """
        a, b = self._sets[one].variables[path], self._sets[other].variables[path]
        if a is b:
            return
        if a.dims != b.dims:
            raise self._differ(path, one, other, "dimensions", list(a.dims), list(b.dims))
        without = OWN | (STORED | {"units"} if stored_anew else set())
        self._documents(path, one, other, without)
        for k, (length, theirs) in enumerate(zip(a.meta.shape, b.meta.shape, strict=True)):
            if k != axis and length != theirs:
                raise self._differ(path, one, other, f"length along {a.dims[k]!r}", length, theirs)

    def _documents(self, path: str, one: int, other: int, without: set[str]) -> None:
        a, b = self._sets[one].variables[path], self._sets[other].variables[path]
        if a is b:
            return
        mine, theirs = _fields(a.meta), _fields(b.meta)
        for field in dict.fromkeys([*mine, *theirs]):
            if field not in without and _text(mine.get(field)) != _text(theirs.get(field)):
                raise self._differ(path, one, other, field, mine.get(field), theirs.get(field))
        for name in MEANING:
            if name in without:
                continue
            if _text(a.attributes.get(name)) != _text(b.attributes.get(name)):
                raise self._differ(
                    path, one, other, f"attribute {name}", a.attributes.get(name), b.attributes.get(name)
                )

    def equal(self, path: str, one: int, other: int) -> None:
        """Raise ManifestError if two sets' arrays ``path`` are not the same, or nothing tells that they are."""
        a, b = self._sets[one], self._sets[other]
        if a.variables[path] is b.variables[path] and self._same_data(path, one, other):
            return
        mine = values_at_hand(a.variables[path], a.refs, self._inline[one].get(path, {}), a.name)
        theirs = values_at_hand(b.variables[path], b.refs, self._inline[other].get(path, {}), b.name)
        what, without = "references", {"attributes"}
        if mine is not None and theirs is not None:
            what, without = "values", without | STORED
        self._documents(path, one, other, without)
        if mine is not None and theirs is not None:
            if np.array_equal(mine, theirs, equal_nan=mine.dtype.kind in "fc"):
                return
        elif _content(a.refs, path, self._inline[one]) == _content(b.refs, path, self._inline[other]):
            return
        elif path in a.digests and path in b.digests:
            what = "bytes"
            if self._digests(path, one) == self._digests(path, other):
                return
        raise ManifestError(
            f"{a.name} and {b.name} have different {what} of {path!r}, which is not along {self._dim!r}: they must be "
            f"equal, or name it in same= to take the first set's"
        )

    def _same_data(self, path: str, one: int, other: int) -> bool:
        """Whether all chunks are inline, and the same bytes."""
        tables = [self._sets[i].refs.tables.get(path) for i in (one, other)]
        return not any(t is None or len(t) for t in tables) and self._inline[one].get(path) == self._inline[other].get(
            path
        )

    def _digests(self, path: str, i: int) -> dict[int, bytes]:
        inline = {number: digest(data) for number, data in self._inline[i].get(path, {}).items()}
        return {**self._sets[i].digests[path], **inline}

    def _differ(self, path: str, one: int, other: int, field: str, mine: Any, theirs: Any) -> ManifestError:
        return ManifestError(
            f"{path!r} has the {field} {mine!r} in {self._sets[one].name}, and {theirs!r} in {self._sets[other].name}"
        )


def _fields(meta: ArrayMeta) -> dict[str, Any]:
    fields = dict(meta.raw)
    if meta.zarr_format == 2:
        fields["dimension_separator"] = fields.get("dimension_separator") or "."
        fields["filters"] = fields.get("filters") or None
    return {**fields, "dtype" if meta.zarr_format == 2 else "data_type": meta.dtype}


def _text(value: Any) -> str:
    return zarrmeta.dumps(value).decode()


def has_same_references(one: Named, other: Named, path: str) -> bool:
    """Whether two sets refer to the same bytes for the chunks of the array ``path``, but for those that are inline."""
    tables = one.refs.tables.get(path), other.refs.tables.get(path)
    if one.refs is other.refs or not any(table is not None and len(table) for table in tables):
        return True
    return _content(one.refs, path, {}) == _content(other.refs, path, {})


def _content(refs: ReferenceSet, path: str, inline: Mapping[str, Any]) -> object:
    """Return what an array's chunks are, to be compared."""
    table = refs.tables.get(path)
    if table is None:
        below = {key: value for key, value in References(refs).items() if key.startswith(path + "/")}
        return {key: value for key, value in below.items() if not zarrmeta.is_metadata(key)}
    there = table.targets[table.targets != ABSENT]
    rows = [(number, refs.urls[row.target], row.offset, row.length) for number, row in table.rows()]
    return len(there), rows, inline.get(path, {})


SMALL: Final = 1 << 20  # bytes of an array in one set
TOGETHER: Final = 16  # sets that are read at a time


def with_compared(
    parts: Sequence[Named],
    opened: Callable[[int], RefShardFileSystem],
    dims: Sequence[str | None],
    same: frozenset[str],
    places: Sequence[Sequence[int]] | None = None,
) -> list[Named]:
    """Return ``parts`` with digests of what several have, refer to differently, and must have in common.

    These are the arrays, but for those in ``same``, that are not along all of ``dims``: parts at different ``places``
    along the others (by default all are in a row) have copies. ``opened`` gives the filesystem of a part, by number.
    What cannot be read is left out: then it cannot be compared.
    """
    places = [(number,) for number in range(len(parts))] if places is None else places
    wanted: dict[int, list[str]] = {}
    for path in dict.fromkeys(path for part in parts for path in part.variables):
        if path in same:
            continue
        holders = [number for number, part in enumerate(parts) if path in part.variables]
        along = parts[holders[0]].variables[path].dims
        own = [axis for axis, dim in enumerate(dims) if dim is not None and dim in along]
        first: dict[tuple[int, ...], Named] = {}
        if all(
            has_same_references(first.setdefault(tuple(places[number][axis] for axis in own), part), part, path)
            for number, part in ((number, parts[number]) for number in holders)
        ):
            continue
        if all(_is_small(parts[number], path) for number in holders):
            for number in holders:
                wanted.setdefault(number, []).append(path)

    def read(number: int) -> Named:
        part, paths = parts[number], wanted.get(number, [])
        return part._replace(digests=_digests(part, opened(number), paths)) if paths else part

    with ThreadPoolExecutor(TOGETHER if wanted else 1) as pool:
        return list(pool.map(read, range(len(parts))))


def _is_small(part: Named, path: str) -> bool:
    table = part.refs.tables.get(path)
    if table is None or is_sharded(part.variables[path]):
        return False
    lengths = [row.length for _, row in table.rows()] if len(table) <= SMALL else [None]
    return all(length is not None for length in lengths) and sum(filter(None, lengths)) <= SMALL


def _digests(part: Named, fs: RefShardFileSystem, paths: Sequence[str]) -> Mapping[str, Mapping[int, bytes]]:
    keys: dict[str, tuple[str, int]] = {}
    for path in paths:
        table = part.refs.tables[path]
        keys |= {join(path, table.grid.tail(number)): (path, number) for number in table.present().tolist()}
    try:
        data = fs.cat(list(keys), on_error="return")
    except RefShardError:
        return {}
    found: dict[str, dict[int, bytes]] = {path: {} for path in paths}
    for key, (path, number) in keys.items():
        match data[key]:
            case bytes(chunk):
                found.get(path, {})[number] = digest(chunk)
            case _:
                found.pop(path, None)
    return found

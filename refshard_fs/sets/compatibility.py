"""Whether sets can be joined: their arrays along the dimension fit, and all others are equal.

Each file of an archive has its own ``crs`` or ``lat_bnds``. They must be the same in all sets; where the references
differ only the bytes can tell, so small arrays are read, and no others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING
from refshard_fs.core.dtypes import dtype_of, element_type, itemsize_of, plain_document, text_document
from refshard_fs.core.keys import join, parent
from refshard_fs.core.model import batches
from refshard_fs.core.version_3 import convert_fill_attribute
from refshard_fs.cubes.cf_times import TimeUnits, is_time
from refshard_fs.cubes.fit import (
    KEYS,
    STORAGE,
    ArrayFacts,
    check_metadata,
    difference,
    fit,
    recoding_of,
)
from refshard_fs.cubes.recoding import STORED, meant_dtype, missing_values
from refshard_fs.cubes.recutting import Recut
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.reference_set import References
from refshard_fs.sets.changed_set import with_metadata
from refshard_fs.sets.rebase import open_read
from refshard_fs.sets.scanning import can_scan, reading_options
from refshard_fs.sets.variables import NamedSet, Variable, with_attributes

# What becomes of chunks that are joined.
Joining = Literal["as they are", "of other lengths", "stored anew", "made when they are read"]

SMALL: Final = 1 << 20  # bytes of an array in one set that are read to be compared
TEXT: Final = 1 << 10  # bytes that an element of unknown length, such as a text, is taken to have
TOGETHER: Final = 16  # sets that are read at a time, each by itself,
AT_ONCE: Final = 32  # and those that are by one filesystem: their small arrays take 32 MiB and more of memory


def check_shapes(path: str, one: NamedSet, other: NamedSet, axis: int) -> None:
    """Raise ManifestError if two sets' arrays ``path`` have other dimensions, or lengths along any but ``axis``."""
    a, b = one.variables[path], other.variables[path]
    if a.dims != b.dims:
        raise difference(path, "dimensions", one.name, list(a.dims), other.name, list(b.dims))
    for k, (length, theirs) in enumerate(zip(a.meta.shape, b.meta.shape, strict=True)):
        if k != axis and length != theirs:
            raise difference(path, f"length along {a.dims[k]!r}", one.name, length, other.name, theirs)


def check_joinable(
    path: str, one: NamedSet, other: NamedSet, axis: int, how: Joining, recut: Recut | None = None
) -> None:
    """Raise ManifestError if two sets' arrays ``path`` cannot be joined along ``axis``.

    ``how`` is what becomes of their chunks: where values are stored anew, how they are encoded does not matter; where
    chunks are made when they are read, they are recoded, or ``recut``, as `fit` says.
    """
    a, b = one.variables[path], other.variables[path]
    if a is b and recut is None:
        return
    if how == "made when they are read":
        fit(path, array_facts(path, one), array_facts(path, other), recut)
        return
    ignored = {"shape", *KEYS} | ({"chunk_grid"} if how == "of other lengths" else set())
    if how == "stored anew":
        ignored |= STORAGE | _ignored_of_values(path, one, other)
        if is_time(a.attributes) or is_time(b.attributes):  # bounds may inherit the units, in which all values are
            ignored |= {"attribute units"}
    try:
        check_metadata(path, array_facts(path, one), array_facts(path, other), ignored)
    except ManifestError as e:
        raise _add_advice(path, one, other, e) from None


def _add_advice(path: str, one: NamedSet, other: NamedSet, error: ManifestError) -> ManifestError:
    """Return ``error`` with what would help: chunks that differ can be recoded, if not by references."""
    shown = with_metadata(one, encoding_with_room(one.variables[path], [other.variables[path]]))
    try:
        recoding_of(path, array_facts(path, shown), array_facts(path, other), is_recut=True)
    except ManifestError:
        return error
    return ManifestError(f"{error}: references alone cannot say it; lazy=True recodes chunks when they are read")


def check_equal(path: str, one: NamedSet, other: NamedSet, dim: str | None) -> None:
    """Raise ManifestError if two sets' arrays ``path`` differ, or cannot be compared."""
    is_same_array = one.variables[path] is other.variables[path]
    if is_same_array and not _has_references(path, one, other) and one.inline_chunks(path) == other.inline_chunks(path):
        return
    mine, theirs = one.values(path), other.values(path)
    if mine is not None and theirs is not None:
        if not is_same_array:
            ignored = KEYS | STORAGE | _ignored_of_values(path, one, other)
            units = [array_facts(path, part).attributes for part in (one, other)]
            if all(map(is_time, units)):
                ignored |= {"attribute units"}
                mine, theirs = _instants(mine, units[0], units[0]), _instants(theirs, units[1], units[0])
            check_metadata(path, array_facts(path, one), array_facts(path, other), ignored)
        what, is_equal = "values", same_values(mine, theirs)
    elif isinstance(first := one.digests.get(path), _Values) and isinstance(second := other.digests.get(path), _Values):
        # What means "missing" makes no difference unless it is among the values.
        ignored = KEYS | STORAGE | (frozenset() if first.is_mistaken(second) else TYPES)
        check_metadata(path, array_facts(path, one), array_facts(path, other), ignored)
        what, is_equal = "values", first == second
    else:
        check_metadata(path, array_facts(path, one), array_facts(path, other), KEYS)
        what, is_equal = "references", _references(path, one) == _references(path, other)
        is_equal &= one.inline_chunks(path) == other.inline_chunks(path)
        if not is_equal and path in one.digests and path in other.digests:
            what, is_equal = "bytes", one.digests[path] == other.digests[path]
    if not is_equal:
        raise ManifestError(
            f"{one.name} and {other.name} have different {what} of {path!r}, which is not along {dim!r}: they must be "
            f"equal, or name it in same= to take the first set's"
        )


def _instants(values: npt.NDArray[Any], attributes: Mapping[str, Any], to: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return times as they are compared, in the units of others; as they are where the units are not known."""
    try:
        own, wanted = TimeUnits.of(attributes), TimeUnits.of(to)
        return wanted.snap(values if own == wanted else own.convert(values, wanted, rounded=True))
    except ValueError:
        return values


def check_merged(path: str, one: NamedSet, other: NamedSet) -> None:
    """Raise ManifestError if two sets' arrays ``path`` are not the same, where sets are merged: mostly by mistake."""
    try:
        check_equal(path, one, other, None)
    except ManifestError as e:
        dim = _differing_coordinate(one, other) or next(filter(None, one.variables[path].dims), None)
        raise ManifestError(
            f"{one.name} and {other.name} differ in {path!r}, and arrays are the same in all sets where none are "
            f"joined: to join them, name a dimension (dim={'' if dim is None else repr(dim)})"
        ) from e


def _differing_coordinate(one: NamedSet, other: NamedSet) -> str | None:
    """Return the name of the first coordinate, or scalar, whose values two sets have, and not the same ones."""
    for path, variable in one.variables.items():
        if path in other.variables and (variable.is_coordinate or not variable.dims):
            mine, theirs = one.values(path), other.values(path)
            if mine is not None and theirs is not None and not same_values(mine, theirs):
                return parent(path)[1]
    return None


# What may differ where the values are known: these are stored anew.
TYPES: Final = frozenset({"dtype", "data_type", "fill_value", "attribute _FillValue", "attribute missing_value"})


def _ignored_of_values(path: str, one: NamedSet, other: NamedSet) -> frozenset[str]:
    """Return the fields that make no difference to numbers that are known, of any type and byte order.

    None where a number would be a missing value in the other set.
    """
    for part, of in ((one, other), (other, one)):
        values, variable = part.values(path), of.variables[path]
        if values is None or values.dtype.kind not in "iuf":
            return frozenset()
        if np.isin(values, missing_values(variable.meta, variable.attributes, values.dtype)).any():
            return frozenset()
    return TYPES


def same_values(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether numbers are equal; those of types of other widths are, where the narrower one rounds them alike."""
    if one.dtype.kind == other.dtype.kind == "f":
        narrow = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        one, other = one.astype(narrow), other.astype(narrow)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def array_facts(path: str, part: NamedSet) -> ArrayFacts:
    """Return the facts by which an array is compared with the same array of other sets."""
    variable = part.variables[path]
    return ArrayFacts(part.name, variable.meta, {**part.units.get(path, {}), **variable.attributes})


def _has_references(path: str, *parts: NamedSet) -> bool:
    tables = [part.refs.tables.get(path) for part in parts]
    return any(table is None or len(table) for table in tables)


def _references(path: str, part: NamedSet) -> object:
    """Return what the chunks of an array are that are not inline, to be compared."""
    refs = part.refs
    table = refs.tables.get(path)
    if table is None:
        below = {key: value for key, value in References(refs).items() if key.startswith(path + "/")}
        return {key: value for key, value in below.items() if not zarrmeta.is_metadata(key)}
    return [(number, refs.urls[row.target], row.offset, row.length) for number, row in table.rows()]


def with_digests(
    parts: Sequence[NamedSet],
    dims: Sequence[str | None],
    same: frozenset[str],
    places: Sequence[Sequence[int]] | None = None,
    only: Container[str] | None = None,
) -> list[NamedSet]:
    """Return ``parts`` with digests of the arrays that must be equal in several, but are other references there.

    These are the arrays that are not along all of ``dims``, but for those in ``same``: parts at different ``places``
    along the other dimensions (by default all are in a row) have copies. Arrays that cannot be read get no digest, and
    are taken to differ. If ``only`` some arrays are given, no others are looked at.
    """
    places = [(number,) for number in range(len(parts))] if places is None else places
    wanted: dict[int, list[str]] = {}
    by_value: set[str] = set()  # arrays that parts store differently
    for path in dict.fromkeys(path for part in parts for path in part.variables if path not in same):
        owners = [number for number, part in enumerate(parts) if path in part.variables]
        if (only is not None and path not in only) or all(path in parts[number].digests for number in owners):
            continue
        along = parts[owners[0]].variables[path].dims
        axes = [axis for axis, dim in enumerate(dims) if dim is not None and dim in along]
        first: dict[tuple[int, ...], NamedSet] = {}
        for number in owners:
            copied = first.setdefault(tuple(places[number][axis] for axis in axes), parts[number])
            if not _refer_to_the_same(path, copied, parts[number]):
                if all(_is_small(path, parts[each]) for each in owners):
                    for each in owners:
                        wanted.setdefault(each, []).append(path)
                    stored = {id(v): v.meta.raw for v in (parts[each].variables[path] for each in owners)}
                    if any(raw != next(iter(stored.values())) for raw in stored.values()):
                        by_value.add(path)
                break

    out = list(parts)
    for number, arrays in chunks_read(parts, wanted):
        digests: dict[str, Hashable] = {}
        for path, chunks in arrays.items():
            values = _Values.of(parts[number], path, chunks) if path in by_value else None
            digests[path] = _digest(chunks) if values is None else values
        out[number] = msgspec.structs.replace(parts[number], digests={**parts[number].digests, **digests})
    return out


def chunks_read(
    parts: Sequence[NamedSet], wanted: Mapping[int, Sequence[str]]
) -> Iterator[tuple[int, dict[str, dict[int, bytes]]]]:
    """Yield the chunks of the small arrays that are ``wanted`` of each part, by its number: by path, and by number.

    Parts at URLs are read together, by one filesystem. An array that is not small, or cannot be read, is left out.
    """
    small = {number: [path for path in paths if _is_small(path, parts[number])] for number, paths in wanted.items()}
    keys = {number: _chunk_keys(parts[number], paths) for number, paths in small.items()}
    at_urls = [n for n in keys if isinstance(parts[n].fo, str) and parts[n].refs.pins is None]
    at_urls = [n for n in at_urls if can_scan(parts[n].options)]
    for some in batches(at_urls, AT_ONCE):
        refs = {f"{n}/{key}": _reference(parts[n], *chunk) for n in some for key, chunk in keys[n].items()}
        fs = RefShardFileSystem(refs, **reading_options([ref[0] for ref in refs.values()], parts[some[0]].options))
        data = _read(fs, list(refs))
        for n in some:
            own = {key: data.get(f"{n}/{key}") for key in keys[n]}
            yield n, _with_inline(parts[n], small[n], keys[n], own)

    def read(number: int) -> dict[str, dict[int, bytes]]:
        data = _read(open_read(parts[number].fo, parts[number].options), list(keys[number]))
        return _with_inline(parts[number], small[number], keys[number], data)

    alone = sorted(keys.keys() - set(at_urls))
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from zip(alone, pool.map(read, alone), strict=True)


def _refer_to_the_same(path: str, one: NamedSet, other: NamedSet) -> bool:
    if one.refs is other.refs or not _has_references(path, one, other):
        return True
    return _references(path, one) == _references(path, other)


def _is_small(path: str, part: NamedSet) -> bool:
    table = part.refs.tables.get(path)
    if table is None or len(table) > SMALL or part.variables[path].is_sharded:
        return False
    sizes = table.sizes(table.present())
    if None not in sizes:
        return sum(filter(None, sizes)) <= SMALL
    if any(row.offset and row.length is None for _, row in table.rows()):
        return False  # no reference says "from here to the end"
    meta = part.variables[path].meta  # chunks are whole objects, and only what they hold is known
    return meta.chunks is not None and len(table) * math.prod(meta.chunks) * (itemsize_of(meta) or TEXT) <= SMALL


def _chunk_keys(part: NamedSet, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return array and number of all chunks of arrays that are references, by key."""
    keys: dict[str, tuple[str, int]] = {}
    for path in paths:
        table = part.refs.tables[path]
        keys |= {join(path, table.grid.tail(number)): (path, number) for number in table.present().tolist()}
    return keys


def _reference(part: NamedSet, path: str, number: int) -> list[Any]:
    """Return the reference to a chunk as JSON has it."""
    row = part.refs.tables[path].row(number)
    assert row is not None, "only chunks that are present are asked for"
    return row.to_json(part.refs.urls[row.target])


def _read(fs: RefShardFileSystem, keys: list[str]) -> Mapping[str, Any]:
    """Return the bytes of each of ``keys``, or its error; empty if the set cannot be read."""
    try:
        found: Mapping[str, Any] = fs.cat(keys, on_error="return", end=SMALL + 1)
    except RefShardError:
        return {}
    return found


def _with_inline(
    part: NamedSet, paths: Sequence[str], keys: Mapping[str, tuple[str, int]], data: Mapping[str, Any]
) -> dict[str, dict[int, bytes]]:
    """Return all chunks of each array, those that are inline with those read, but for arrays that could not be read."""
    chunks = {path: dict(part.inline_chunks(path)) for path in paths}
    for key, (path, number) in keys.items():
        found = data.get(key)
        if isinstance(found, bytes) and len(found) <= SMALL:
            chunks.get(path, {})[number] = found
        else:
            chunks.pop(path, None)
    return chunks


class _Values(msgspec.Struct, frozen=True, eq=False):
    """The numbers of an array, however they are stored; ``marks`` mean "missing", and ``missing`` are among them."""

    content: tuple[str, tuple[int, ...], bytes]  # type, shape, digest
    marks: frozenset[float]
    missing: frozenset[float]

    @classmethod
    def of(cls, part: NamedSet, path: str, chunks: Mapping[int, bytes]) -> _Values | None:
        """Return it; None for other values than numbers."""
        values = part.decode(path, chunks)
        if values is None or values.dtype.kind not in "iuf":
            return None
        variable = part.variables[path]
        marks = set(missing_values(variable.meta, variable.attributes, values.dtype))
        fill = variable.meta.raw.get("fill_value")
        if variable.meta.zarr_format == 2 and isinstance(fill, int | float):
            marks.add(fill)
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        content = plain.dtype.str, plain.shape, hashlib.sha256(plain.tobytes()).digest()
        return cls(content, frozenset(marks), frozenset(mark for mark in marks if np.isin(values, mark).any()))

    def is_mistaken(self, other: _Values) -> bool:
        """Whether a value of one array means "missing" in the other only."""
        return not (self.missing | other.missing).isdisjoint(self.marks ^ other.marks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Values) and self.content == other.content and not self.is_mistaken(other)

    def __hash__(self) -> int:
        return hash(self.content)


def _digest(chunks: Mapping[int, bytes]) -> bytes:
    state = hashlib.sha256()
    for number, data in sorted(chunks.items()):
        state.update(b"%d:%d:" % (number, len(data)) + data)
    return state.digest()


# ----------------------------------------------------------------------------------------------------
# The encoding that a lazy cube shows of an array which its sets store differently. No I/O here.
#
# Mostly it is the first set's, and chunks of others are recoded. Where values of others have no exact place in that,
# the array is shown in an encoding that has room for all: packed numbers as the 64-bit floating-point numbers that they
# mean (scale_factor differs from file to file), and numbers as a type that holds every type.


_UNPACKED: Final = np.dtype("<f8")


def roomier_encodings(parts: Sequence[NamedSet], dim: str) -> dict[str, dict[str, Any]]:
    """Return the metadata documents, by key, of arrays along ``dim`` for which the first set's encoding has no room."""
    found: dict[str, dict[str, Any]] = {}
    for path, first in parts[0].variables.items():
        if dim in first.dims and not first.is_coordinate:
            others = {id(v): v for part in parts[1:] if (v := part.variables.get(path)) is not None and v is not first}
            found |= encoding_with_room(first, list(others.values()))
    return found


def encoding_with_room(first: Variable, others: Sequence[Variable]) -> dict[str, dict[str, Any]]:
    """Return the metadata documents, by key, of an array that holds the values of all; none if the ``first`` does."""
    texts = [dtype for v in (first, *others) if (dtype := element_type(v.meta)) is not None and dtype.kind in "SU"]
    if len(texts) > len(others) and len({dtype.kind for dtype in texts}) == 1 and first.meta.chunks is not None:
        longest = max(texts, key=lambda dtype: dtype.itemsize)
        is_longer = longest.itemsize > texts[0].itemsize
        return _stored_as(first, longest, first.meta.raw.get("fill_value"), first.attributes) if is_longer else {}
    every = [(variable, dtype_of(variable.meta)) for variable in (first, *others)]
    known = [meant_dtype(dtype, v.attributes) for v, dtype in every if dtype is not None and dtype.kind in "iuf"]
    packed_by = [value for variable in (first, *others) for value in _packing(variable) if value is not None]
    are_numbers = all(isinstance(value, int | float) for value in packed_by)
    if len(known) < len(every) or first.meta.chunks is None or not are_numbers:
        return {}  # which joining them says, where they differ
    dtype = _UNPACKED
    if all(_packing(other) == _packing(first) for other in others):
        dtype = np.result_type(*known).newbyteorder("<")
        if dtype.kind in "iu" and not _marks_missing(first) and any(map(_marks_missing, others)):
            # No whole number can stand for missing ones: the first set may have it. Types are those xarray decodes to.
            is_short = dtype.itemsize < 4 and not any(value is not None for value in _packing(first))
            attributes = {name: value for name, value in first.attributes.items() if name not in STORED}
            return _stored_as(first, np.dtype("<f4") if is_short else _UNPACKED, "NaN", attributes)
        if np.can_cast(dtype, known[0], "safe") or not all(np.can_cast(each, dtype, "safe") for each in known):
            return {}
        attributes = {name: value for name, value in first.attributes.items() if name != "_Unsigned"}
        return _stored_as(first, dtype, first.meta.raw.get("fill_value"), attributes)
    if not any(_packing(first)) and known[0] == _UNPACKED:
        return {}
    attributes = {name: value for name, value in first.attributes.items() if name not in STORED}
    return _stored_as(first, dtype, "NaN", attributes)


def _marks_missing(variable: Variable) -> bool:
    """Whether a value of the array stands for missing ones."""
    fill = variable.meta.raw.get("fill_value") if variable.meta.zarr_format == 2 else None
    dtype = dtype_of(variable.meta)
    return fill is not None or (dtype is not None and bool(missing_values(variable.meta, variable.attributes, dtype)))


def _packing(variable: Variable) -> list[Any]:
    return [variable.attributes.get(name) for name in PACKING]


def _stored_as(
    variable: Variable, dtype: np.dtype[Any], fill: Any, attributes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the documents of an array of another type, its chunks without codecs."""
    meta, old = variable.meta, dtype_of(variable.meta)
    doc = plain_document(meta, meta.shape, meta.chunks or ()) | {"fill_value": fill}
    if meta.zarr_format == 3:
        doc |= {"data_type": text_document(dtype) if dtype.kind in "SU" else dtype.name}
    else:
        doc |= {"dtype": dtype.str}
    if meta.zarr_format == 3 and old is not None:
        attributes = convert_fill_attribute(attributes, old, dtype)
    return {variable.key: doc, **with_attributes(variable.key, doc, attributes)}

"""Compare the copies of small arrays in several sets, by their bytes or values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import itemsize_of
from refshard_fs.core.keys import join
from refshard_fs.core.model import iterate_batches
from refshard_fs.cubes.recoding import get_missing_values
from refshard_fs.errors import RefShardError
from refshard_fs.reading.plan import Request
from refshard_fs.references.reference_set import References
from refshard_fs.sets.opened_set import open_set
from refshard_fs.sets.scanning import can_scan, choose_reading_options
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.normalizing import parse_options
from refshard_fs.source.source import Source

SMALL: Final = 1 << 20  # the most bytes of an array in one set that is read to be compared
TEXT: Final = 1 << 10  # assumed bytes of an element of unknown length, such as a text
SHOWN_BY: Final = ("format", "zarr_format")  # options that make no difference to the bytes of a reference
THREADS: Final = 16  # sets that are read at the same time, each by its own filesystem
BATCH: Final = (
    32  # sets that one filesystem reads together: each of their small arrays takes up to 32 MiB of memory in all
)


def have_references(path: str, *parts: NamedSet) -> bool:
    """Return whether the array has chunks that are references in any of ``parts``."""
    tables = [part.refs.tables.get(path) for part in parts]
    return any(table is None or len(table) for table in tables)


def list_references(path: str, part: NamedSet) -> object:
    """Return the references of an array, in a form in which they can be compared."""
    refs = part.refs
    table = refs.tables.get(path)
    if table is None:
        below = {key: value for key, value in References(refs).items() if key.startswith(path + "/")}
        return {key: value for key, value in below.items() if not zarrmeta.is_metadata(key)}
    return [(number, refs.urls[row.target], row.offset, row.length) for number, row in table.iterate_rows()]


def add_digests(
    parts: Sequence[NamedSet],
    dims: Sequence[str | None],
    same: frozenset[str],
    places: Sequence[Sequence[int]] | None = None,
    only: Container[str] | None = None,
) -> list[NamedSet]:
    """Return ``parts`` with digests of small arrays that must be equal in several parts, but whose references differ.

    ``places`` are the positions of the parts along ``dims``; by default, the parts are in a row. Parts that differ
    only in their places along dimensions that an array lacks must have equal copies of the array, unless it is in
    ``same``. An array that cannot be read gets no digest, and counts as different. With ``only``, only these arrays
    get digests.
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
            first_copy = first.setdefault(tuple(places[number][axis] for axis in axes), parts[number])
            if not _have_same_references(path, first_copy, parts[number]):
                if all(_is_small(path, parts[owner]) for owner in owners):
                    for owner in owners:
                        wanted.setdefault(owner, []).append(path)
                    stored = {id(v): v.meta.raw for v in (parts[owner].variables[path] for owner in owners)}
                    if any(raw != next(iter(stored.values())) for raw in stored.values()):
                        by_value.add(path)
                break

    out = list(parts)
    for number, arrays in read_small_arrays(parts, wanted):
        digests: dict[str, Hashable] = {}
        for path, chunks in arrays.items():
            values = ValueDigest.of(parts[number], path, chunks) if path in by_value else None
            digests[path] = _digest(chunks) if values is None else values
        out[number] = msgspec.structs.replace(parts[number], digests={**parts[number].digests, **digests})
    return out


def read_small_arrays(
    parts: Sequence[NamedSet], wanted: Mapping[int, Sequence[str]]
) -> Iterator[tuple[int, dict[str, dict[int, bytes]]]]:
    """Yield the number of each part in ``wanted``, and the chunks of its wanted arrays, by path and by chunk number.

    Parts at URLs are read together, by one filesystem. An array that is not small, or cannot be read, is left out.
    """
    small = {number: [path for path in paths if _is_small(path, parts[number])] for number, paths in wanted.items()}
    keys = {number: _list_chunk_keys(parts[number], paths) for number, paths in small.items()}
    at_urls = [n for n in keys if isinstance(parts[n].fo, str) and parts[n].refs.pins is None]
    at_urls = [n for n in at_urls if can_scan({k: v for k, v in parts[n].options.items() if k not in SHOWN_BY})]
    for batch in iterate_batches(at_urls, BATCH):
        refs = {f"{n}/{key}": _make_reference(parts[n], *chunk) for n in batch for key, chunk in keys[n].items()}
        reading = choose_reading_options([ref[0] for ref in refs.values()], parts[batch[0]].options)
        data = _read(Source.of(parse_options(refs, reading)), list(refs))
        for n in batch:
            own = {key: data.get(f"{n}/{key}") for key in keys[n]}
            yield n, _add_inline(parts[n], small[n], keys[n], own)

    def read(number: int) -> dict[str, dict[int, bytes]]:
        data = _read(open_set(parts[number].fo, parts[number].options).source, list(keys[number]))
        return _add_inline(parts[number], small[number], keys[number], data)

    alone = sorted(keys.keys() - set(at_urls))
    with ThreadPoolExecutor(THREADS) as pool:
        yield from zip(alone, pool.map(read, alone), strict=True)


def _have_same_references(path: str, one: NamedSet, other: NamedSet) -> bool:
    if one.refs is other.refs or not have_references(path, one, other):
        return True
    return list_references(path, one) == list_references(path, other)


def _is_small(path: str, part: NamedSet) -> bool:
    table = part.refs.tables.get(path)
    if table is None or len(table) > SMALL or part.variables[path].is_sharded:
        return False
    sizes = table.get_sizes(table.list_present())
    if None not in sizes:
        return sum(filter(None, sizes)) <= SMALL
    if any(row.offset and row.length is None for _, row in table.iterate_rows()):
        return False  # a reference in JSON cannot express "from here to the end"
    meta = part.variables[path].meta  # chunks are whole objects of unknown size: estimate it by the shape
    return meta.chunks is not None and len(table) * math.prod(meta.chunks) * (itemsize_of(meta) or TEXT) <= SMALL


def _list_chunk_keys(part: NamedSet, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return, by key, the array and the number of each chunk that is a reference."""
    keys: dict[str, tuple[str, int]] = {}
    for path in paths:
        table = part.refs.tables[path]
        keys |= {join(path, table.grid.tail(number)): (path, number) for number in table.list_present().tolist()}
    return keys


def _make_reference(part: NamedSet, path: str, number: int) -> list[Any]:
    """Return the reference to a chunk as in JSON: ``[url]``, or ``[url, offset, length]``."""
    row = part.refs.tables[path].get_row(number)
    assert row is not None, "the chunk is a reference"
    return row.to_json(part.refs.urls[row.target])


def _read(source: Source, keys: list[str]) -> Mapping[str, Any]:
    """Return the bytes of each of ``keys``, or its error; empty if the set cannot be read."""
    try:
        found = source.wait(source.read_all, [Request(key, None, SMALL + 1) for key in keys])
    except RefShardError:
        return {}
    return dict(zip(keys, found, strict=True))


def _add_inline(
    part: NamedSet, paths: Sequence[str], keys: Mapping[str, tuple[str, int]], data: Mapping[str, Any]
) -> dict[str, dict[int, bytes]]:
    """Return all chunks of each array, inline or in ``data``; leave out arrays of which a chunk could not be read."""
    chunks = {path: dict(part.find_inline_chunks(path)) for path in paths}
    for key, (path, number) in keys.items():
        found = data.get(key)
        if isinstance(found, bytes) and len(found) <= SMALL:
            chunks.get(path, {})[number] = found
        else:
            chunks.pop(path, None)
    return chunks


class ValueDigest(msgspec.Struct, frozen=True, eq=False):
    """A digest of the numbers of an array that does not depend on their encoding.

    ``marks`` are the numbers that mean "missing" in the array, and ``missing`` the marks that occur in it.
    """

    content: tuple[str, tuple[int, ...], bytes]  # type, shape, digest
    marks: frozenset[float]
    missing: frozenset[float]

    @classmethod
    def of(cls, part: NamedSet, path: str, chunks: Mapping[int, bytes]) -> ValueDigest | None:
        """Return the digest; None if the values are neither numbers nor truth values.

        No truth value means "missing".
        """
        values = part.decode(path, chunks)
        if values is None or values.dtype.kind not in "biuf":
            return None
        variable = part.variables[path]
        is_number = values.dtype.kind != "b"
        marks = set(get_missing_values(variable.meta, variable.attributes, values.dtype) if is_number else ())
        fill = variable.meta.raw.get("fill_value")
        if is_number and variable.meta.zarr_format == 2 and isinstance(fill, int | float):
            marks.add(fill)
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        content = plain.dtype.str, plain.shape, hashlib.sha256(plain.tobytes()).digest()
        return cls(content, frozenset(marks), frozenset(mark for mark in marks if np.isin(values, mark).any()))

    def has_other_missing(self, other: ValueDigest) -> bool:
        """Return whether a number in one of the arrays means "missing" in only one of them."""
        return not (self.missing | other.missing).isdisjoint(self.marks ^ other.marks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueDigest) and self.content == other.content and not self.has_other_missing(other)

    def __hash__(self) -> int:
        return hash(self.content)


def _digest(chunks: Mapping[int, bytes]) -> bytes:
    state = hashlib.sha256()
    for number, data in sorted(chunks.items()):
        state.update(b"%d:%d:" % (number, len(data)) + data)
    return state.digest()

"""Compare small arrays that several sets have copies of, by their bytes or values."""

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
from refshard_fs.core.model import batches
from refshard_fs.cubes.recoding import get_missing_values
from refshard_fs.errors import RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.reference_set import References
from refshard_fs.sets.rebase import open_read
from refshard_fs.sets.scanning import can_scan, choose_reading_options
from refshard_fs.sets.variables import NamedSet

SMALL: Final = 1 << 20  # bytes of an array in one set that are read to be compared
TEXT: Final = 1 << 10  # bytes that an element of unknown length, such as a text, is taken to have
SHOWN_BY: Final = ("format", "zarr_format")  # options that make no difference to the bytes of a reference
TOGETHER: Final = 16  # sets that are read at a time, each by itself,
AT_ONCE: Final = 32  # sets that one filesystem reads together: their small arrays take 32 MiB or more of memory


def have_references(path: str, *parts: NamedSet) -> bool:
    """Whether the array of any of ``parts`` has chunks that are references."""
    tables = [part.refs.tables.get(path) for part in parts]
    return any(table is None or len(table) for table in tables)


def list_references(path: str, part: NamedSet) -> object:
    """Return the references of an array, in a form in which they can be compared."""
    refs = part.refs
    table = refs.tables.get(path)
    if table is None:
        below = {key: value for key, value in References(refs).items() if key.startswith(path + "/")}
        return {key: value for key, value in below.items() if not zarrmeta.is_metadata(key)}
    return [(number, refs.urls[row.target], row.offset, row.length) for number, row in table.rows()]


def add_digests(
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
    """Yield the chunks of the small arrays that are ``wanted`` of each part, by its number: by path, and by number.

    Parts at URLs are read together, by one filesystem. An array that is not small, or cannot be read, is left out.
    """
    small = {number: [path for path in paths if _is_small(path, parts[number])] for number, paths in wanted.items()}
    keys = {number: _list_chunk_keys(parts[number], paths) for number, paths in small.items()}
    at_urls = [n for n in keys if isinstance(parts[n].fo, str) and parts[n].refs.pins is None]
    at_urls = [n for n in at_urls if can_scan({k: v for k, v in parts[n].options.items() if k not in SHOWN_BY})]
    for some in batches(at_urls, AT_ONCE):
        refs = {f"{n}/{key}": _make_reference(parts[n], *chunk) for n in some for key, chunk in keys[n].items()}
        fs = RefShardFileSystem(
            refs, **choose_reading_options([ref[0] for ref in refs.values()], parts[some[0]].options)
        )
        data = _read(fs, list(refs))
        for n in some:
            own = {key: data.get(f"{n}/{key}") for key in keys[n]}
            yield n, _add_inline(parts[n], small[n], keys[n], own)

    def read(number: int) -> dict[str, dict[int, bytes]]:
        data = _read(open_read(parts[number].fo, parts[number].options), list(keys[number]))
        return _add_inline(parts[number], small[number], keys[number], data)

    alone = sorted(keys.keys() - set(at_urls))
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from zip(alone, pool.map(read, alone), strict=True)


def _refer_to_the_same(path: str, one: NamedSet, other: NamedSet) -> bool:
    if one.refs is other.refs or not have_references(path, one, other):
        return True
    return list_references(path, one) == list_references(path, other)


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


def _list_chunk_keys(part: NamedSet, paths: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return array and number of all chunks of arrays that are references, by key."""
    keys: dict[str, tuple[str, int]] = {}
    for path in paths:
        table = part.refs.tables[path]
        keys |= {join(path, table.grid.tail(number)): (path, number) for number in table.present().tolist()}
    return keys


def _make_reference(part: NamedSet, path: str, number: int) -> list[Any]:
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


def _add_inline(
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


class ValueDigest(msgspec.Struct, frozen=True, eq=False):
    """The numbers of an array, however they are stored; ``marks`` mean "missing", and ``missing`` are among them."""

    content: tuple[str, tuple[int, ...], bytes]  # type, shape, digest
    marks: frozenset[float]
    missing: frozenset[float]

    @classmethod
    def of(cls, part: NamedSet, path: str, chunks: Mapping[int, bytes]) -> ValueDigest | None:
        """Return it; None for other values than numbers."""
        values = part.decode(path, chunks)
        if values is None or values.dtype.kind not in "iuf":
            return None
        variable = part.variables[path]
        marks = set(get_missing_values(variable.meta, variable.attributes, values.dtype))
        fill = variable.meta.raw.get("fill_value")
        if variable.meta.zarr_format == 2 and isinstance(fill, int | float):
            marks.add(fill)
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        content = plain.dtype.str, plain.shape, hashlib.sha256(plain.tobytes()).digest()
        return cls(content, frozenset(marks), frozenset(mark for mark in marks if np.isin(values, mark).any()))

    def is_mistaken(self, other: ValueDigest) -> bool:
        """Whether a value of one array means "missing" in the other only."""
        return not (self.missing | other.missing).isdisjoint(self.marks ^ other.marks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueDigest) and self.content == other.content and not self.is_mistaken(other)

    def __hash__(self) -> int:
        return hash(self.content)


def _digest(chunks: Mapping[int, bytes]) -> bytes:
    state = hashlib.sha256()
    for number, data in sorted(chunks.items()):
        state.update(b"%d:%d:" % (number, len(data)) + data)
    return state.digest()

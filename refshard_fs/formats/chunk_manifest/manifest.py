"""The chunk manifest of one array, read into columns: 20 to 28 bytes for each entry. No I/O here.

Targets (a path, and what is said of its version) are kept once; so is inline data, in one row. Keys are coordinates
with dots between them, whatever the array's own key encoding; those outside of its grid are of no array element, and
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, ChunkTable, Part, Row, UInt64s
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Pin
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.entries import (
    JsonEntry,
    JsonPrefix,
    check_members,
    data_of,
    entries_in,
    span_of,
)

__all__ = ["ChunkManifest", "ManifestIndex", "Prefix", "Source", "parse"]

_SEPARATORS = (".", "/")


class Prefix(NamedTuple):
    """All chunks whose coordinates begin with ``fixed``: the others follow ``path``, ``separator`` between them."""

    fixed: tuple[int, ...]
    path: str
    separator: str

    def fits(self, coords: Sequence[int]) -> bool:
        return self.fixed == tuple(coords[: len(self.fixed)])

    def url(self, coords: Sequence[int]) -> str:
        """Return the URL, as the manifest spells it, of the chunk at ``coords``."""
        return self.path + self.separator.join(map(str, coords[len(self.fixed) :]))


class Source(NamedTuple):
    """Where a chunk comes from: a range of ``path`` (None: the manifest's own bytes), and what must be true of it."""

    path: str | None
    offset: int
    length: int | None
    pin: Pin | None = None
    checksum: str | None = None


class ChunkManifest:
    """What a manifest says of an array's chunks; immutable. ``prefixes`` come longest first."""

    __slots__ = ("_checksums", "_data", "_etags", "_modified", "_numbers", "_paths", "empty", "prefixes", "table")

    def __init__(
        self,
        table: ChunkTable,
        paths: Texts,
        versions: tuple[Texts | None, Texts | None],
        data: bytes,
        empty: UInt64s,
        checksums: tuple[UInt64s, Texts],
        prefixes: tuple[Prefix, ...],
    ) -> None:
        self.table = table
        self.empty = empty
        self.prefixes = prefixes
        self._paths = paths
        self._etags, self._modified = versions
        self._data = data
        self._numbers, self._checksums = checksums

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns take."""
        texts = (self._paths, self._etags, self._modified, self._checksums)
        columns = self.table.nbytes + self.empty.nbytes + self._numbers.nbytes + len(self._data)
        return columns + sum(text.nbytes for text in texts if text is not None) + 200 * len(self.prefixes)

    def __len__(self) -> int:
        """Number of chunks that have an entry of their own, and are not empty."""
        return len(self.table)

    def source(self, number: int) -> Source | None:
        """Return where chunk ``number`` of the grid comes from by an entry of its own; None if it has none."""
        row = self.table.row(number)
        if row is None:
            return None
        pin = None
        etag = None if self._etags is None else self._etags[row.target]
        modified = None if self._modified is None else self._modified[row.target]
        if etag is not None or modified is not None:
            pin = Pin(etag, modified)
        checksum = None
        if len(self._numbers):
            at = int(self._numbers.searchsorted(np.uint64(number)))
            if at < len(self._numbers) and self._numbers[at] == number:
                checksum = self._checksums[at]
        return Source(self._paths[row.target], row.offset, row.length, pin, checksum)

    def inline(self, source: Source) -> bytes:
        """Return the bytes of a source that is in the manifest itself."""
        return self._data[source.offset : source.offset + (source.length or 0)]

    def is_empty(self, number: int) -> bool:
        """Whether the manifest says of chunk ``number`` that it is empty."""
        at = int(self.empty.searchsorted(np.uint64(number)))
        return at < len(self.empty) and bool(self.empty[at] == number)

    def prefix(self, coords: Sequence[int]) -> Prefix | None:
        """Return the longest prefix of the chunk at ``coords``, or None."""
        return next((prefix for prefix in self.prefixes if prefix.fits(coords)), None)


class ManifestIndex(msgspec.Struct, frozen=True, cache_hash=True):
    """Decodes the manifest called ``where`` of the array with this ``grid``."""

    where: str
    grid: ChunkGrid

    def decode(self, data: bytes) -> ChunkManifest:
        return parse(data, self.grid, self.where)


def parse(data: bytes, grid: ChunkGrid, where: str) -> ChunkManifest:
    """Return the manifest in ``data``; ManifestError, which names ``where`` and the chunk key, if it is none."""
    spelled = entries_in(data, where)
    numbers, inside = _numbers(list(spelled.keys), grid, where)
    gathering = _Gathering(where)
    targets = np.full(len(numbers), ABSENT, np.uint32)
    offsets, lengths = np.zeros(len(numbers), np.uint64), np.zeros(len(numbers), np.uint64)
    add = gathering.add
    for i, (key, entry) in enumerate(spelled.keys.items()):
        row = add(key, entry)
        if row is not None:
            targets[i], offsets[i] = row.target, row.offset
            lengths[i] = WHOLE if row.length is None else row.length
    there = inside & (targets != ABSENT)
    part = Part(numbers[there], targets[there], offsets[there], lengths[there])
    keys = list(spelled.keys)
    sums = sorted((int(numbers[i]), sum_) for i, sum_ in gathering.sums(keys) if inside[i])
    return ChunkManifest(
        ChunkTable.from_parts(grid, [part]),
        Texts.of(None if p is None else p.encode("utf-8", "surrogatepass") for p, _, _ in gathering.targets),
        gathering.versions(),
        b"".join(gathering.data),
        np.sort(numbers[inside & (targets == ABSENT)]),
        (np.array([n for n, _ in sums], np.uint64), Texts.of(sum_.encode() for _, sum_ in sums)),
        prefixes_of(spelled.prefixes, len(grid.counts), where),
    )


class _Gathering:
    """Collects targets and data of entries."""

    def __init__(self, where: str) -> None:
        self.targets: dict[tuple[str | None, str | None, str | None], int] = {}
        self.data: list[bytes] = []
        self._size = 0
        self._sums: dict[str, str] = {}
        self._where = where

    def add(self, key: str, entry: JsonEntry) -> Row | None:
        """Return the reference of an entry; None if it is empty."""
        if entry.checksum is not None:
            self._sums[key] = entry.checksum
        check_members(entry, key, self._where)
        if entry.path is not None:
            offset, length = span_of(entry, key, self._where)
            return Row(self._target(entry.path, entry.etag, entry.last_modified), offset, length)
        if entry.data is None:
            return None
        data = data_of(entry, key, self._where)
        self.data.append(data)
        self._size += len(data)
        return Row(self._target(None, None, None), self._size - len(data), len(data))

    def _target(self, *target: str | None) -> int:
        path, etag, modified = target
        return self.targets.setdefault((path, etag, modified), len(self.targets))

    def sums(self, keys: Sequence[str]) -> list[tuple[int, str]]:
        """Return place among ``keys`` and checksum, of those that have one."""
        return [(i, self._sums[key]) for i, key in enumerate(keys) if key in self._sums] if self._sums else []

    def versions(self) -> tuple[Texts | None, Texts | None]:
        """Return ETags and times of the last change, a text for each target; None where there are none at all."""
        return self._column(1), self._column(2)

    def _column(self, i: int) -> Texts | None:
        texts = [target[i] for target in self.targets]
        if not any(text is not None for text in texts):
            return None
        return Texts.of(None if text is None else text.encode("utf-8", "surrogatepass") for text in texts)


def _numbers(keys: list[str], grid: ChunkGrid, where: str) -> tuple[UInt64s, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the chunk number of each key, and which of them lie inside of the grid."""
    ndim = len(grid.counts)
    if not ndim:
        for key in keys:
            if key not in ("0", ""):
                raise ManifestError(f"{where}: {key!r} is no chunk key of an array without dimensions: '0' is")
        return np.zeros(len(keys), np.uint64), np.ones(len(keys), np.bool_)
    text = "\n".join(keys)
    number = r"(?:0|[1-9][0-9]{0,17})"
    key_form = rf"{number}(?:\.{number}){{{ndim - 1}}}"
    if not keys:
        return np.zeros(0, np.uint64), np.zeros(0, np.bool_)
    if text.count("\n") != len(keys) - 1 or not re.fullmatch(rf"{key_form}(?:\n{key_form})*+", text):
        wrong = next(key for key in keys if not re.fullmatch(key_form, key))
        raise ManifestError(f"{where}: {wrong!r} is no chunk key: {ndim} numbers with dots between them are")
    coords = np.fromstring(text.replace("\n", "."), np.uint64, sep=".").reshape(len(keys), ndim)
    del text
    inside: np.ndarray[Any, np.dtype[np.bool_]] = np.all(coords < np.array(grid.counts, np.uint64), axis=1)
    numbers = np.zeros(len(keys), np.uint64)
    for dimension, count in enumerate(grid.counts):
        numbers = numbers * np.uint64(count) + coords[:, dimension]
    numbers[~inside] = 0
    return numbers, inside


def prefixes_of(spelled: Mapping[str, JsonPrefix], ndim: int, where: str) -> tuple[Prefix, ...]:
    """Return the prefixes of an array's manifest, the longest first."""
    found = []
    for key, prefix in spelled.items():
        form = r"(?:(?:0|[1-9][0-9]{0,17})\.)*"
        if not re.fullmatch(form, key) or key.count(".") > ndim:
            raise ManifestError(f"{where}: the prefix {key!r} is not made of leading coordinates, a dot after each")
        if prefix.separator not in _SEPARATORS:
            raise ManifestError(f"{where}: the prefix {key!r} has the separator {prefix.separator!r}, not '.' or '/'")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path")
        fixed = tuple(map(int, key.split(".")[:-1]))
        found.append(Prefix(fixed, prefix.path, prefix.separator))
    return tuple(sorted(found, key=lambda prefix: -len(prefix.fixed)))

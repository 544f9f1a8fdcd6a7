"""Parse and encode the chunk manifest of an array; in memory, an entry takes 20 to 28 bytes of columns. No I/O here.

Targets (a path and a pin) are stored once each, and all inline data as one run of bytes. Keys of a manifest are
coordinates with dots between them, whatever the key encoding of the array. Keys outside the array's grid are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, WHOLE, ChunkTable, Part, Ranges, Texts, UInt64s
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join
from refshard_fs.core.model import Pin
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.formats.chunk_manifest.entries import JsonEntry, JsonPrefix, ValueLocation, decode_data, parse_entries
from refshard_fs.references.chunk_keys import Keys, parse_chunk_numbers
from refshard_fs.references.pieces import Positions
from refshard_fs.references.pins import Pins
from refshard_fs.references.values import encode, is_utf8
from refshard_fs.security.origins import MEMBER, Origins

_SEPARATORS = (".", "/")
_encode = msgspec.json.Encoder().encode


class Prefix(NamedTuple):
    """The URLs of chunks whose coordinates begin with ``leading``: ``path``, and then the other coordinates.

    ``separator`` stands between coordinates in URLs.
    """

    leading: tuple[int, ...]
    path: str
    separator: str

    def contains(self, coords: Sequence[int]) -> bool:
        """Return whether the chunk at ``coords`` has this prefix."""
        return self.leading == tuple(coords[: len(self.leading)])

    def make_url(self, coords: Sequence[int]) -> str:
        """Return the URL or relative path of the chunk at ``coords``."""
        return self.path + self.separator.join(map(str, coords[len(self.leading) :]))


class ChunkManifest(msgspec.Struct, frozen=True, eq=False):
    """The chunk manifest of an array."""

    table: ChunkTable  # a target is an index into ``paths`` and ``pins``; without a path, it is a range of ``data``
    paths: Texts
    pins: Pins | None
    data: bytes
    empty: UInt64s  # numbers of the empty chunks, ascending
    summed: UInt64s  # numbers of the chunks with ``checksums``, ascending
    checksums: Texts
    prefixes: tuple[Prefix, ...]  # the longest first

    @property
    def nbytes(self) -> int:
        """The approximate size in memory in bytes."""
        pins = 0 if self.pins is None else self.pins.nbytes
        columns = (self.table, self.paths, self.empty, self.summed, self.checksums)
        return sum(column.nbytes for column in columns) + pins + len(self.data) + 200 * len(self.prefixes)

    def __len__(self) -> int:
        """Return the number of chunks that have an entry and are not empty."""
        return len(self.table)

    def locate(self, number: int) -> ValueLocation | None:
        """Return the place of chunk ``number``; None if it has no entry, or its entry is empty."""
        row = self.table.get_row(number)
        if row is None:
            return None
        at = _find_index(self.summed, number)
        checksum = None if at is None else self.checksums[at]
        path = self.paths[row.target]
        if path is None:
            return ValueLocation(None, checksum=checksum, data=self.data[row.offset : row.offset + (row.length or 0)])
        pin = None if self.pins is None else self.pins.get_pin(row.target)
        pin = None if pin is None else Pin(pin.etag, pin.last_modified)
        return ValueLocation(path, row.offset, row.length, pin, checksum)

    def is_empty(self, number: int) -> bool:
        """Return whether the manifest states that chunk ``number`` does not exist."""
        return _find_index(self.empty, number) is not None

    def find_prefix(self, coords: Sequence[int]) -> Prefix | None:
        """Return the longest prefix that the chunk at ``coords`` has; None if it has no prefix."""
        return next((prefix for prefix in self.prefixes if prefix.contains(coords)), None)


def _find_index(numbers: UInt64s, number: int) -> int | None:
    """Return the index of ``number`` in ``numbers``, which are ascending; None if it is missing."""
    at = int(numbers.searchsorted(np.uint64(number)))
    return at if at < len(numbers) and numbers[at] == number else None


def parse(data: bytes, grid: ChunkGrid, where: str) -> ChunkManifest:
    """Parse the manifest of an array. Raise ManifestError, which names ``where`` and the key, if it is damaged."""
    content = parse_entries(data, where)
    keys, entries = list(content.keys), list(content.keys.values())
    numbers, inside = _number_keys(keys, grid, where)
    if len(inside) < len(keys):
        keys, entries = ([column[i] for i in inside.tolist()] for column in (keys, entries))
    count = len(entries)
    targets: dict[tuple[str | None, str | None, str | None], int] = {}
    all_targets = ((entry.path, entry.etag, entry.last_modified) for entry in entries)
    codes = np.fromiter((targets.setdefault(target, len(targets)) for target in all_targets), np.uint32, count)
    offsets = np.fromiter((entry.offset or 0 for entry in entries), np.uint64, count)
    lengths = np.fromiter((WHOLE if entry.length is None else entry.length for entry in entries), np.uint64, count)
    inline = bytearray()
    for row, entry in enumerate(entries):
        if entry.data is not None:
            decoded = decode_data(entry.data, keys[row], where)
            offsets[row], lengths[row] = len(inline), len(decoded)
            inline += decoded
    is_empty = np.fromiter((entry.is_empty for entry in entries), np.bool_, count)
    pairs = zip(numbers.tolist(), entries, strict=True)
    sums = {number: entry.checksum for number, entry in pairs if entry.checksum is not None}
    ordered = sorted(sums)
    pins = [Pin(etag, modified) if etag is not None or modified is not None else None for _, etag, modified in targets]
    exists = ~is_empty
    return ChunkManifest(
        ChunkTable.from_parts(grid, [Part(numbers[exists], Ranges(codes, offsets, lengths).take(exists))]),
        Texts.of(path for path, _, _ in targets),
        Pins.of(pins) if any(pins) else None,
        bytes(inline),
        np.sort(numbers[is_empty]),
        np.array(ordered, np.uint64),
        Texts.of(map(sums.__getitem__, ordered)),
        parse_prefixes(content.prefixes, len(grid.counts), where),
    )


def _number_keys(keys: Sequence[str], grid: ChunkGrid, where: str) -> tuple[UInt64s, Positions]:
    """Return the chunk numbers of the keys that lie in the grid, and the indexes of these keys.

    Raises ManifestError if a key does not have the form of a chunk key.
    """
    dotted = ChunkGrid(grid.counts, ChunkKeyEncoding("v2", "."))
    if not grid.counts:
        keys = [key or "0" for key in keys]
    numbers = parse_chunk_numbers(Keys.of_names(keys), 0, dotted)
    if numbers is not None:
        return numbers, np.arange(len(keys))
    number_of_each = [dotted.number(key) for key in keys]
    for key, number in zip(keys, number_of_each, strict=True):
        if number is None and dotted.decode(key) is None:
            kind = f"{len(grid.counts)} numbers with dots between them" if grid.counts else "'0'"
            raise ManifestError(f"{where}: {key!r} is not a chunk key: expected {kind}")
    inside = np.flatnonzero([number is not None for number in number_of_each])
    return np.array([number for number in number_of_each if number is not None], np.uint64), inside


def parse_prefixes(members: Mapping[str, JsonPrefix], ndim: int, where: str) -> tuple[Prefix, ...]:
    """Return the prefixes of an array with ``ndim`` dimensions, the longest first.

    Raises ManifestError, which names ``where`` and the key, if a prefix is invalid.
    """
    prefixes = []
    for key, prefix in members.items():
        form = r"(?:(?:0|[1-9][0-9]{0,17})\.)*"
        if not re.fullmatch(form, key) or key.count(".") > ndim:
            raise ManifestError(
                f"{where}: the prefix {key!r} is invalid: expected at most {ndim} coordinates, with a dot after each"
            )
        if prefix.separator not in _SEPARATORS:
            raise ManifestError(f"{where}: the prefix {key!r} has the separator {prefix.separator!r}: use '.' or '/'")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path: expected a URL or a relative path")
        leading = tuple(map(int, key.split(".")[:-1]))
        prefixes.append(Prefix(leading, prefix.path, prefix.separator))
    return tuple(sorted(prefixes, key=lambda prefix: -len(prefix.leading)))


# Encode references as chunk manifests of a zarr version 3 hierarchy, in parts.


MANIFEST = "manifest.json"  # in the directory of the array


def declare_manifest(doc: Mapping[str, Any], origins: Origins, name: str = MANIFEST) -> dict[str, Any]:
    """Return an array's metadata, with a declaration of the manifest ``name`` and of the ``origins`` of its URLs.

    The manifest lies in the directory of the array. Other storage transformers are replaced.
    """
    configuration: dict[str, Any] = {"manifest": f"./{name}"}
    if origins:
        configuration[MEMBER] = origins.to_json()
    transformer = {"name": NAME, "configuration": configuration}
    return {**doc, "storage_transformers": [transformer]}


def encode_members(grid: ChunkGrid, numbers: range, partition: Chunks, array: str) -> list[str]:
    """Encode the existing and the empty chunks among ``numbers`` as members of the manifest of ``array``."""
    members = []
    targets, offsets, lengths = partition.ranges
    empty = {row for row, extras in partition.checks.items() if not extras}
    versions = partition.versions
    for row in sorted(empty.union(partition.list_present())):
        number, target = numbers.start + row, int(targets[row])
        extras: Mapping[str, Any] = {**versions.get(target, {}), **partition.checks.get(row, {})}
        if target != NO_TARGET:
            url = partition.urls[target]
            if url is None or not is_utf8(url):
                problem = "no URL: open the source with target=" if url is None else f"the URL {url!r}: it is not UTF-8"
                raise ManifestError(f"{join(array, grid.tail(number))!r} has {problem}")
            offset, length = int(offsets[row]), None if lengths[row] == WHOLE else int(lengths[row])
            entry = JsonEntry(url, None if length is None and not offset else offset, length, **extras)
        elif row in partition.inline:
            entry = JsonEntry(data=encode(partition.inline[row]), **extras)
        else:
            entry = JsonEntry()
        key = ".".join(map(str, grid.coords(number))) or "0"
        members.append(f'"{key}":{_encode(entry).decode()}')
    return members

"""The chunk manifest of one array, read into columns: 20 to 28 bytes for each entry. No I/O here.

Targets (a path, and what is said of its version) are kept once; so is inline data, in one row. Keys are coordinates
with dots between them, whatever the array's own key encoding; those outside of its grid are of no array element, and
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE, ChunkTable, Part, Ranges, Texts, UInt64s
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.model import Pin
from refshard_fs.core.version_3 import array_3, group_3
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.formats.chunk_manifest.entries import JsonPrefix, Source, entries_in, source_of
from refshard_fs.references.stream import Partition
from refshard_fs.references.values import check_name, is_utf8, object_in, spelled

_SEPARATORS = (".", "/")


class Prefix(NamedTuple):
    """All chunks whose coordinates begin with ``leading``: the others follow ``path``, ``separator`` between them."""

    leading: tuple[int, ...]
    path: str
    separator: str

    def fits(self, coords: Sequence[int]) -> bool:
        return self.leading == tuple(coords[: len(self.leading)])

    def url(self, coords: Sequence[int]) -> str:
        """Return the URL, as the manifest spells it, of the chunk at ``coords``."""
        return self.path + self.separator.join(map(str, coords[len(self.leading) :]))


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
        path = self._paths[row.target]
        if path is None:
            return Source(None, checksum=checksum, data=self._data[row.offset : row.offset + (row.length or 0)])
        return Source(path, row.offset, row.length, pin, checksum)

    def is_empty(self, number: int) -> bool:
        """Whether the manifest says of chunk ``number`` that it is empty."""
        at = int(self.empty.searchsorted(np.uint64(number)))
        return at < len(self.empty) and bool(self.empty[at] == number)

    def prefix(self, coords: Sequence[int]) -> Prefix | None:
        """Return the longest prefix of the chunk at ``coords``, or None."""
        return next((prefix for prefix in self.prefixes if prefix.fits(coords)), None)


def parse(data: bytes, grid: ChunkGrid, where: str) -> ChunkManifest:
    """Return the manifest in ``data``; ManifestError, which names ``where`` and the chunk key, if it is none."""
    entries = entries_in(data, where)
    numbers, inside = _numbers(list(entries.keys), grid, where)
    codes = np.full(len(numbers), ABSENT, np.uint32)
    offsets, lengths = np.zeros(len(numbers), np.uint64), np.zeros(len(numbers), np.uint64)
    targets: dict[tuple[str | None, str | None, str | None], int] = {}
    inline: list[bytes] = []
    used = 0  # bytes of inline data so far
    sums: list[tuple[int, str]] = []
    for i, (key, entry) in enumerate(entries.keys.items()):
        source = source_of(entry, key, where)
        if entry.checksum is not None and inside[i]:
            sums.append((int(numbers[i]), entry.checksum))
        if source is None:
            continue
        target = source.path, entry.etag, entry.last_modified
        codes[i] = targets.setdefault(target, len(targets))
        offsets[i] = source.offset
        lengths[i] = WHOLE if source.length is None else source.length
        if source.path is None:
            offsets[i], lengths[i] = used, len(source.data)
            inline.append(source.data)
            used += len(source.data)
    there = inside & (codes != ABSENT)
    sums.sort()
    paths, etags, modified = (_texts([target[field] for target in targets]) for field in range(3))
    return ChunkManifest(
        ChunkTable.from_parts(grid, [Part(numbers[there], Ranges(codes, offsets, lengths).take(there))]),
        paths or Texts.of(None for _ in targets),
        (etags, modified),
        b"".join(inline),
        np.sort(numbers[inside & (codes == ABSENT)]),
        (np.array([number for number, _ in sums], np.uint64), Texts.of(found for _, found in sums)),
        prefixes_of(entries.prefixes, len(grid.counts), where),
    )


def _texts(texts: Sequence[str | None]) -> Texts | None:
    """Return a text for each target; None where there are none at all."""
    if all(text is None for text in texts):
        return None
    return Texts.of(texts)


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


def prefixes_of(given: Mapping[str, JsonPrefix], ndim: int, where: str) -> tuple[Prefix, ...]:
    """Return the prefixes of an array's manifest, the longest first."""
    found = []
    for key, prefix in given.items():
        form = r"(?:(?:0|[1-9][0-9]{0,17})\.)*"
        if not re.fullmatch(form, key) or key.count(".") > ndim:
            raise ManifestError(f"{where}: the prefix {key!r} is not made of leading coordinates, a dot after each")
        if prefix.separator not in _SEPARATORS:
            raise ManifestError(f"{where}: the prefix {key!r} has the separator {prefix.separator!r}, not '.' or '/'")
        if not prefix.path:
            raise ManifestError(f"{where}: the prefix {key!r} has an empty path")
        leading = tuple(map(int, key.split(".")[:-1]))
        found.append(Prefix(leading, prefix.path, prefix.separator))
    return tuple(sorted(found, key=lambda prefix: -len(prefix.leading)))


# ----------------------------------------------------------------------------------------------------
# References as a zarr version 3 hierarchy with chunk manifests, piece by piece.


MANIFEST = "manifest.json"


def hierarchy(documents: Iterable[tuple[str, Any]], grids: Mapping[str, ChunkGrid]) -> dict[str, dict[str, Any]]:
    """Return the version 3 metadata of every group and array, by path, of documents of either version.

    Raises ManifestError, which names the key, for what is no metadata, and where version 3 cannot say it.
    """
    found: dict[str, dict[str, Any]] = {}
    old: dict[str, dict[str, Any]] = {}
    for key, value in documents:
        path, name = parent(key)
        if name == ".zmetadata":
            continue
        if not zarrmeta.is_metadata(key):
            raise ManifestError(f"{key!r} is neither metadata nor a chunk of an array: a chunk manifest cannot hold it")
        if isinstance(value, list):
            raise ManifestError(f"{key!r} is a reference: metadata must be inline to become that of version 3")
        check_name(key)
        doc = object_in(value, repr(key))
        if name == "zarr.json":
            found[path] = {k: v for k, v in doc.items() if k != "consolidated_metadata"}
            if doc.get("node_type") not in ("array", "group"):
                raise ManifestError(f"{key!r} describes neither an array nor a group")
            if doc.get("storage_transformers"):
                raise ManifestError(f"{key!r} has storage_transformers, which cannot be carried over")
        else:
            old.setdefault(path, {})[name] = doc
    for path, docs in old.items():
        if path not in found:
            attributes = docs.get(".zattrs", {})
            array = docs.get(".zarray")
            key = join(path, ".zarray")
            found[path] = group_3(attributes) if array is None else array_3(array, attributes, key)
    for path, doc in found.items():
        if doc.get("node_type") == "array" and path not in grids:
            raise ManifestError(f"{join(path, 'zarr.json')!r}: its chunk grid or chunk keys are not known")
    for inner, doc in list(found.items()):
        path = inner
        while path:
            path = parent(path)[0]
            outer = found.setdefault(path, group_3({}))
            if outer.get("node_type") == doc.get("node_type") == "array":
                raise ManifestError(f"{join(inner, 'zarr.json')!r} is an array within the array {path!r}")
    return found or {"": group_3({})}


def with_manifest(doc: Mapping[str, Any], name: str = MANIFEST) -> dict[str, Any]:
    """Return an array's metadata that declares the manifest beside it."""
    transformer = {"name": NAME, "configuration": {"manifest": f"./{name}"}}
    return {**doc, "storage_transformers": [transformer]}


def manifest_members(grid: ChunkGrid, numbers: range, partition: Partition, array: str) -> list[str]:
    """Return the members of a manifest for chunks ``numbers``."""
    urls = [None if url is None else zarrmeta.dumps(url).decode() for url in partition.urls]
    odd = {target for target, url in enumerate(partition.urls) if url is not None and not is_utf8(url)}
    out = []
    rows = partition.present()
    targets, offsets, lengths = partition.ranges
    empty = [row for row, extras in partition.extras.items() if not extras]
    for row in sorted({*rows, *empty}) if empty else rows:
        key = ".".join(map(str, grid.coords(numbers.start + row))) or "0"
        target = int(targets[row])
        extras = partition.extras.get(row, {})
        more = "".join(f",{zarrmeta.dumps(k).decode()}:{zarrmeta.dumps(v).decode()}" for k, v in extras.items())
        if target != ABSENT:
            url = urls[target]
            if url is None:
                raise ManifestError(f"{join(array, grid.tail(numbers.start + row))!r} has no URL: open it with target=")
            if target in odd:
                key = join(array, grid.tail(numbers.start + row))
                raise ManifestError(f"{key!r} has the URL {partition.urls[target]!r}, which is no UTF-8")
            offset, length = int(offsets[row]), int(lengths[row])
            span = "" if length == WHOLE and not offset else f',"offset":{offset}'
            if length != WHOLE:
                span += f',"length":{length}'
            out.append(f'"{key}":{{"path":{url}{span}{more}}}')
        elif row in partition.inline:
            out.append(f'"{key}":{{"data":{zarrmeta.dumps(spelled(partition.inline[row])).decode()}{more}}}')
        else:
            out.append(f'"{key}":{{}}')
    return out

"""Stream the references of a key space to sinks: its documents, and its chunks in partitions. No I/O here.

If a format cannot hold a value, a ManifestError names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, Contents
from refshard_fs.core.columns import NO_TARGET, WHOLE
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import KeySpace, Run
from refshard_fs.core.model import Entry, Steps, iterate_batches
from refshard_fs.core.version_3 import convert_array, convert_group
from refshard_fs.core.zarrmeta import shorten
from refshard_fs.errors import ManifestError
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import check_name, object_in
from refshard_fs.references.versions import STAT_BATCH, request_facts
from refshard_fs.security.origins import Origins
from refshard_fs.security.policy import find_common_server

# A function that converts a URL to the form in which it is written to a set.
Respell = Callable[[str | None], str | None]


# A function that reads entries, by key, and returns their bytes in the same order.
Read = Callable[[Mapping[str, Entry]], Sequence[bytes]]


def keep_url(url: str | None) -> str | None:
    """Return ``url`` unchanged."""
    return url


class ReferenceStream:
    """The references of a key space, for sinks; ``respell`` converts their URLs, and ``run`` runs look-ups.

    ``grids`` has the `ChunkGrid` of each array, by path.
    ``checks`` are checksums and versions of single chunks, by array and number. ``packed`` has entries by array and
    number, which replace those of the key space. ``read`` reads the entries for `ReferenceStream.read`. With
    ``needs_lengths``, chunks that reach to the end of a target get their length from the target's size.
    ``keeps_absolute`` states that ``respell`` does not change URLs with a protocol.
    ``on_progress(n)`` is called after n more chunks.
    """

    on_progress: Callable[[int], object] | None = None

    def __init__(
        self,
        keyspace: KeySpace,
        run: Run,
        respell: Respell,
        checks: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None,
        *,
        packed: Mapping[str, Mapping[int, Entry]] | None = None,
        read: Read | None = None,
        needs_lengths: bool = False,
        keeps_absolute: bool = False,
    ) -> None:
        self._keyspace = keyspace
        self._run = run
        self._respell = respell
        self._keeps_absolute = keeps_absolute
        self._checks = checks or {}
        self._packed = packed or {}
        self._read = read
        self._needs_lengths = needs_lengths
        contents: Contents = run("", keyspace.contents)
        self._members, self._arrays = contents.members, contents.arrays
        self.grids: Mapping[str, ChunkGrid] = {path: array.grid for path, array in contents.arrays.items()}
        self.in_memory = keyspace.in_memory
        self.origins: Origins = keyspace.origins

    @classmethod
    def of_set(
        cls,
        refs: ReferenceSet,
        respell: Respell,
        checks: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None,
        run: Run | None = None,
        **others: Any,
    ) -> ReferenceStream:
        """Make a stream of ``refs``; ``run`` is needed only to request the sizes of targets."""
        keyspace = FlatKeySpace(refs, lambda url: url or "", refs.where)
        return cls(keyspace, run or _run_without_reads, respell, checks, **others)

    def pins(self) -> dict[str, Any] | None:
        """Return the JSON value of the set's pins; None if it has none."""
        refs = self._keyspace.references
        found: dict[str, Any] | None = None
        if refs is not None and refs.pins is not None:
            found = refs.pins.to_json(list(map(self._respell, refs.urls)))
        return found

    def documents(self) -> Iterator[tuple[str, Any]]:
        """Yield (key, value) of each member that is not a chunk: values as in JSON of version 0, but data as bytes."""
        for key, value in self._members.items():
            yield key, [self._respell(value[0]), *value[1:]] if isinstance(value, list) else value

    def partitions(self, array: str, size: int, few: int = 0) -> Iterator[tuple[range, Chunks]]:
        """Yield (numbers, chunks) of each partition of ``size`` numbers that may have chunks.

        If the array has at most ``few`` partitions, yield all of them.
        """
        for numbers in self._list_partition_numbers(array, size, few):
            chunks = self.chunks(array, numbers)
            if self.on_progress is not None:
                self.on_progress(len(numbers))
            yield numbers, chunks

    def _list_partition_numbers(self, array: str, size: int, few: int = 0) -> Iterator[range]:
        stop = self.grids[array].size
        count = -(-stop // size)
        blocks: Iterable[int] = range(count)
        if count > few:
            others = (*self._checks.get(array, ()), *self._packed.get(array, ()))
            blocks = sorted({*self._arrays[array].list_blocks(size), *(number // size for number in others)})
        return (range(i * size, min((i + 1) * size, stop)) for i in blocks)

    def chunks(self, array: str, numbers: range) -> Chunks:
        """Return the chunks ``numbers`` of an array."""
        found = self._locate(array, numbers)
        if self._needs_lengths:
            self._add_lengths(array, found)
        checks = dict(found.checks)
        more_checks = self._checks.get(array, {})
        checks |= {number - numbers.start: more_checks[number] for number in more_checks.keys() & numbers}
        packed = dict(found.packed)
        more_packed = self._packed.get(array, {})
        packed |= {number - numbers.start: more_packed[number] for number in more_packed.keys() & numbers}
        is_kept = self._keeps_absolute and find_common_server(found.urls) is not None
        urls = found.urls if is_kept else list(map(self._respell, found.urls))
        return msgspec.structs.replace(found, urls=urls, checks=checks, packed=packed)

    def _locate(self, array: str, numbers: range) -> Chunks:
        found: Chunks = self._run(array, partial(self._keyspace.chunks, array, numbers, self.grids[array]))
        return found

    def _add_lengths(self, array: str, chunks: Chunks) -> None:
        """Request the sizes of targets for chunks that reach to the end of their targets."""
        targets, offsets, lengths = chunks.ranges
        rows = np.flatnonzero((targets != NO_TARGET) & (lengths == WHOLE))
        if not len(rows):
            return
        known = {target: pin.size for target, pin in enumerate(chunks.pins) if pin is not None}
        unknown = [target for target in np.unique(targets[rows]).tolist() if known.get(target) is None]
        urls = [self._keyspace.resolve(chunks.urls[target]) for target in unknown]
        for batch in iterate_batches(list(zip(unknown, urls, strict=True)), STAT_BATCH):
            answers = self._run(array, partial(request_facts, [url for _, url in batch], self.origins))
            for (target, _), facts in zip(batch, answers, strict=True):
                known[target] = None if facts is None else facts.size
        for row in rows.tolist():
            size = known[int(targets[row])]
            if size is not None and size >= int(offsets[row]):
                lengths[row] = size - int(offsets[row])

    def read(self, entries: Mapping[str, Entry | bytes]) -> list[bytes]:
        """Read the ``entries``, by key; entries that are bytes are returned unchanged."""
        unread = {key: entry for key, entry in entries.items() if not isinstance(entry, bytes)}
        if unread and self._read is None:
            raise TypeError("a stream without read= cannot read entries")
        data = dict(zip(unread, self._read(unread), strict=True)) if unread and self._read is not None else {}
        return [entry if isinstance(entry, bytes) else data[key] for key, entry in entries.items()]


def _run_without_reads(key: str, steps: Callable[[], Steps[Any]]) -> Any:
    try:
        need = next(steps())
    except StopIteration as stop:
        return stop.value
    raise TypeError(f"{key!r} of a set in memory needs {need}, which a stream without run= cannot answer")


def check_representable(array: str, grid: ChunkGrid, numbers: range, partition: Chunks) -> None:
    """Raise ManifestError if chunks have something that JSON and parquet sets cannot hold.

    This is a checksum, a version, a mark that says that the chunk is missing, or an open end.
    """
    for row, checks in partition.checks.items():
        key = join(array, grid.tail(numbers.start + row))
        what = " and ".join(checks)
        raise ManifestError(
            f"{key!r} has {what}, which a reference set cannot hold: use format='chunk-manifest'"
            if what
            else f"{key!r} is marked as missing, which a reference set cannot express: use format='chunk-manifest'"
        )
    targets, offsets, lengths = partition.ranges
    for row in np.flatnonzero((lengths == WHOLE) & (offsets > 0) & (targets != NO_TARGET)).tolist():
        raise make_open_end_error(join(array, grid.tail(numbers.start + row)), int(offsets[row]))


def make_open_end_error(key: str, offset: int) -> ManifestError:
    """Return the error for a ``key`` that reaches from ``offset`` in a target to its end."""
    return ManifestError(
        f"{key!r} reaches from byte {offset} of its target to the end, which a reference set cannot express: give its "
        "length, or use format='chunk-manifest'"
    )


def convert_documents(
    documents: Iterable[tuple[str, Any]], grids: Mapping[str, ChunkGrid]
) -> dict[str, dict[str, Any]]:
    """Convert metadata documents of zarr version 2 or 3 to version 3; return the metadata of groups and arrays by path.

    Raises ManifestError, which names the key, for a key that is not metadata, and for metadata that version 3 cannot
    express.
    """
    found: dict[str, dict[str, Any]] = {}
    old: dict[str, dict[str, Any]] = {}
    for key, value in documents:
        path, name = parent(key)
        if name == ".zmetadata":
            continue
        if not zarrmeta.is_metadata(key):
            raise ManifestError(
                f"{key!r} is neither metadata nor a chunk of an array, and zarr version 3 has no other keys. Save the "
                "set as JSON, or remove the key with fs.rm() before save(); mode='a' permits that"
            )
        if isinstance(value, list):
            raise ManifestError(
                f"the metadata {key!r} are a reference: expected inline metadata, which conversion to zarr version 3 "
                "needs. Save the set as JSON, or save fs.select(), which reads the metadata"
            )
        check_name(key)
        doc = object_in(value, repr(key))
        if name == "zarr.json":
            found[path] = {k: v for k, v in doc.items() if k != "consolidated_metadata"}
            if doc.get("node_type") not in ("array", "group"):
                kind = str(doc.get("node_type"))[:80]
                raise ManifestError(f"{key!r} has no valid node_type: expected 'array' or 'group', found {kind!r}")
            if doc.get("storage_transformers"):
                raise ManifestError(f"{key!r} has storage_transformers: expected none, since none are supported")
        else:
            old.setdefault(path, {})[name] = doc
    for path, docs in old.items():
        if path not in found:
            attributes = docs.get(".zattrs", {})
            array = docs.get(".zarray")
            key = join(path, ".zarray")
            found[path] = convert_group(attributes) if array is None else convert_array(array, attributes, key)
    for path, doc in found.items():
        if doc.get("node_type") == "array" and path not in grids:
            grid, encoding = shorten(doc.get("chunk_grid")), shorten(doc.get("chunk_key_encoding"))
            raise ManifestError(
                f"{join(path, 'zarr.json')!r}: expected a known kind of chunk_grid and chunk_key_encoding, found "
                f"{grid} and {encoding}"
            )
    for inner, doc in list(found.items()):
        path = inner
        while path:
            path = parent(path)[0]
            outer = found.setdefault(path, convert_group({}))
            if outer.get("node_type") == doc.get("node_type") == "array":
                reason = f"{join(inner, 'zarr.json')!r} lies within the array {path or '/'!r}"
                raise ManifestError(f"{reason}: expected only groups above an array")
    return found or {"": convert_group({})}

"""A reference set as writers take it: its documents, then its chunks a partition at a time. No I/O here.

What a format cannot hold is a ManifestError that names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from refshard_fs.core.chunks import Chunks, Contents
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, Run
from refshard_fs.core.model import Entry, Steps, batches
from refshard_fs.errors import ManifestError
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.versions import TOGETHER, ask_versions
from refshard_fs.security.origins import Origins

# Returns a URL as it is to be spelled in the set that is written.
Respell = Callable[[str | None], str | None]


# Returns the bytes of entries, by key.
Read = Callable[[Mapping[str, Entry]], Sequence[bytes]]


def as_written(url: str | None) -> str | None:
    """Spell a URL as it is."""
    return url


class ReferenceStream:
    """A set of references as sinks take it, whose URLs ``respell`` spells; ``run`` runs the look-ups.

    ``checks`` are checksums and versions of single chunks, by array and number. With ``pins_as_checks``, chunks have
    the versions of their targets as well. ``on_progress`` is called with how many rows more were gone through.
    """

    on_progress: Callable[[int], object] | None = None

    def __init__(
        self,
        keyspace: KeySpace,
        run: Run,
        respell: Respell,
        checks: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None,
        *,
        pins_as_checks: bool = False,
        packed: Mapping[str, Mapping[int, Entry]] | None = None,
        read: Read | None = None,
        needs_lengths: bool = False,
    ) -> None:
        self._keyspace = keyspace
        self._run = run
        self._respell = cache(respell)
        self._checks = checks or {}
        self._pins_as_checks = pins_as_checks
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
        """Return the stream of a set in memory; ``run`` asks for the lengths of targets, if these are needed."""
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
        """Yield key and value of members that are not chunks, as in version 0 JSON; data that is not text, as bytes."""
        for key, value in self._members.items():
            yield key, [self._respell(value[0]), *value[1:]] if isinstance(value, list) else value

    def partitions(self, array: str, size: int, few: int = 0) -> Iterator[tuple[range, Chunks]]:
        """Yield the numbers and the chunks of those partitions of ``size`` numbers that may hold chunks.

        Of an array with up to ``few`` partitions, there are all.
        """
        stop = self.grids[array].size
        count = -(-stop // size)
        blocks: Iterable[int] = range(count)
        if count > few:
            others = (*self._checks.get(array, ()), *self._packed.get(array, ()))
            blocks = sorted({*self._arrays[array].blocks(size), *(number // size for number in others)})
        for i in blocks:
            numbers = range(i * size, min((i + 1) * size, stop))
            chunks = self.chunks(array, numbers)
            if self.on_progress is not None:
                self.on_progress(len(numbers))
            yield numbers, chunks

    def chunks(self, array: str, numbers: range) -> Chunks:
        """Return the chunks ``numbers`` of an array."""
        found: Chunks = self._run(array, partial(self._keyspace.chunks, array, numbers, self.grids[array]))
        if self._needs_lengths:
            self._add_lengths(array, found)
        checks = dict(found.checks)
        if self._pins_as_checks and found.pins:
            versions = {target: pin.version for target, pin in enumerate(found.pins) if pin is not None and pin.version}
            targets = found.ranges.targets
            some = np.flatnonzero(np.isin(targets, list(versions)))
            checks |= {row: versions[target] for row, target in zip(some.tolist(), targets[some].tolist(), strict=True)}
        own = self._checks.get(array, {})
        checks |= {number - numbers.start: dict(own[number]) for number in own.keys() & numbers}
        packed = dict(found.packed)
        theirs = self._packed.get(array, {})
        packed |= {number - numbers.start: theirs[number] for number in theirs.keys() & numbers}
        urls = list(map(self._respell, found.urls))
        return msgspec.structs.replace(found, urls=urls, checks=checks, packed=packed)

    def _add_lengths(self, array: str, chunks: Chunks) -> None:
        """Ask for the sizes of targets that chunks are all of."""
        targets, offsets, lengths = chunks.ranges
        rows = np.flatnonzero((targets != ABSENT) & (lengths == WHOLE))
        known = {target: pin.size for target, pin in enumerate(chunks.pins) if pin is not None}
        asked = [target for target in np.unique(targets[rows]).tolist() if known.get(target) is None]
        urls = [self._keyspace.resolve(chunks.urls[target]) for target in asked]
        for some in batches(list(zip(asked, urls, strict=True)), TOGETHER):
            facts = self._run(array, partial(ask_versions, [url for _, url in some], self.origins))
            known.update(
                (target, None if one is None else one.size) for (target, _), one in zip(some, facts, strict=True)
            )
        for row in rows.tolist():
            size = known[int(targets[row])]
            if size is not None and size >= int(offsets[row]):
                lengths[row] = size - int(offsets[row])

    def targets(self, size: int) -> Iterator[str | None]:
        """Yield the URL of each target once, as sinks have it; ``size`` chunks are gone through at a time."""
        refs = self._keyspace.references
        if refs is not None:
            yield from dict.fromkeys(map(self._respell, refs.urls))
            return
        known: dict[str | None, None] = {}
        for array in self.grids:
            for _, chunks in self.partitions(array, size):
                yield from (url for url in chunks.urls if url not in known)
                known.update(dict.fromkeys(chunks.urls))

    def read(self, entries: Mapping[str, Entry | bytes]) -> list[bytes]:
        """Return the bytes of ``entries``, by key; those that are bytes already as they are."""
        left = {key: entry for key, entry in entries.items() if not isinstance(entry, bytes)}
        if left and self._read is None:
            raise TypeError("this stream has no source to read from")
        read = dict(zip(left, self._read(left), strict=True)) if left and self._read is not None else {}
        return [entry if isinstance(entry, bytes) else read[key] for key, entry in entries.items()]


def _run_without_reads(key: str, steps: Callable[[], Steps[Any]]) -> Any:
    try:
        need = next(steps())
    except StopIteration as stop:
        return stop.value
    raise TypeError(f"{key!r} of a set in memory needs {need}")


def check_representable(array: str, grid: ChunkGrid, numbers: range, partition: Chunks) -> None:
    """Raise ManifestError for what a chunk manifest says and a JSON or parquet set cannot."""
    for row, checks in partition.checks.items():
        key = join(array, grid.tail(numbers.start + row))
        what = " and ".join(checks)
        raise ManifestError(
            f"{key!r} has {what}, which a reference set cannot hold: only format='chunk-manifest' can"
            if what
            else f"{key!r} is empty on purpose, which a reference set cannot say: only format='chunk-manifest' can"
        )
    targets, offsets, lengths = partition.ranges
    for row in np.flatnonzero((lengths == WHOLE) & (offsets > 0) & (targets != ABSENT)).tolist():
        raise open_end(join(array, grid.tail(numbers.start + row)), int(offsets[row]))


def open_end(key: str, offset: int) -> ManifestError:
    """Return the error that says that ``key`` reaches from within a target to its end."""
    return ManifestError(
        f"{key!r} begins at byte {offset} of its target and ends with it, which a reference set cannot say: give its "
        "length, or write it with format='chunk-manifest'"
    )

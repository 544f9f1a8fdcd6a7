"""Read kerchunk's parquet reference sets, one partition at a time. No I/O here.

A set is a directory. ``.zmetadata`` is ``{"metadata": {key: object}, "record_size": N}``, and row ``r`` of
``<array>/refs.<i>.parq`` is the chunk with the number ``i * N + r`` in the array's grid. If a file is missing, its
chunks do not exist. kerchunk and VirtualiZarr write zarr v2 with ``.`` between coordinates. Here the same layout holds
``zarr.json`` and all encodings of chunk keys, too: keys follow the array's own metadata.

A commit adds a member ``refshard`` to ``.zmetadata`` (FORMATS.md). It has the number of the commit, the file names of
partitions that do not have their usual names yet, and the partitions that no longer exist. Each partition has the
number of the commit that wrote it. A reader that opened the set before a commit recognises newer partitions by that
number, and reads the replaced files instead, which are kept for a while.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers
from refshard_fs.core.columns import Part, Row, Texts
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, is_key, is_within, join, parent
from refshard_fs.core.keyspace import KeySpace, find_chunk
from refshard_fs.core.model import Entry, Facts, Inline, Load, Names, Quota, Span, Stat, Steps, iterate_batches
from refshard_fs.core.parted_keyspace import PartedKeySpace
from refshard_fs.errors import ManifestError, NotListable, RefShardError, TargetChanged
from refshard_fs.formats.kerchunk_parquet import PARQUET, get_extension
from refshard_fs.formats.kerchunk_parquet.partition import (
    PartitionHistory,
    PartitionIndex,
    StoredPartition,
    require_pyarrow,
)
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import make_resolver
from refshard_fs.security.origins import read_member
from refshard_fs.security.policy import directory_of, make_locator, relative_to

KEPT = 900  # seconds that replaced files are kept for readers that opened the set before
BATCH = 8  # partitions that a listing loads at a time
MEMO = 4096  # the most needs, URLs and missing partitions that are kept in memory
ASKED = 1 << 16  # the most partitions that are looked up one by one if the directory cannot be listed
Value = dict[str, Any] | bytes | tuple[str | None, Row]
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_FILE = re.compile(r"refs\.([0-9]{1,19})\.parq", re.ASCII)  # the usual name of a partition
_KEPT = re.compile(r"refs\.[0-9]+(\.[0-9]+)?\.parq", re.ASCII)  # a partition that a commit replaced, or its copy
_NAME = re.compile(r"refs\.[0-9]+\.[0-9a-f]+\.parq", re.ASCII)  # a partition until a commit gives it its usual name


def make_partition_name(array: str, number: int, generation: int | None = None) -> str:
    """Return the usual path of a partition, relative to the set.

    With ``generation``, return the path of the copy of an old partition; this is the number of the commit that wrote
    the old partition.
    """
    return join(array, f"refs.{number}.parq" if generation is None else f"refs.{number}.{generation}.parq")


def is_partition(path: str) -> bool:
    """Return whether ``path``, relative to a set, is a partition, by its usual name or the name before a commit."""
    name = path.rpartition("/")[2]
    return _FILE.fullmatch(name) is not None or _NAME.fullmatch(name) is not None


def find_partitions(paths: Iterable[str]) -> dict[str, list[int]]:
    """Return by array the numbers of the partitions with usual names among ``paths``, which are relative to a set."""
    numbers: dict[str, list[int]] = {}
    for path in paths:
        array, name = parent(path)
        file = _FILE.fullmatch(name)
        if file is not None:
            numbers.setdefault(array, []).append(int(file[1]))
    return numbers


class Layout:
    """The content of ``.zmetadata``: ``metadata`` by key, the ``grids`` of arrays, and the members that commits add."""

    def __init__(self, document: bytes, where: str) -> None:
        """Parse the bytes of the document, which errors name ``where``. Raises ManifestError if it is damaged."""
        try:
            content = zarrmeta.loads(document)
        except ValueError as e:
            raise ManifestError(f"{where} is not JSON: {e}") from e
        extension = get_extension(content) if isinstance(content, dict) else {}
        # Until a save that replaces another set is complete, other readers get an error: they would mix the two sets.
        self.is_for_us_alone = "record_size" in extension
        match {**content, "record_size": extension["record_size"]} if self.is_for_us_alone else content:
            case {"metadata": dict(metadata), "record_size": int(size)} if not isinstance(size, bool):
                self.metadata: dict[str, dict[str, Any]] = metadata
                self.record_size = size  # rows of a partition
            case _:
                raise ManifestError(
                    f"{where}: expected a reference set, with 'metadata' (an object) and 'record_size' (an integer)"
                )
        self.renamed = _read_renamed(content, where)
        self.generation = _read_number(extension, "generation")  # the number of the last commit
        # The time, in seconds since 1970, at which a commit began to give partitions their usual names.
        self.renaming_since = _read_number(extension, "at")
        self.kept = _read_kept(extension)
        self.origins = read_member(extension, where)
        if self.record_size < 1:
            raise ManifestError(f"{where}: its record_size is {self.record_size}: expected at least 1")
        self.grids: dict[str, ChunkGrid] = {}
        for key, value in metadata.items():
            if not isinstance(value, dict):
                raise ManifestError(f"{key!r} of {where} is a {type(value).__name__}: expected a JSON object")
            if not is_key(key):
                raise ManifestError(f"{where}: {key!r} is not a key: expected names with a slash between them")
            path, name = parent(key)
            if name in zarrmeta.ARRAY_DOCUMENTS:
                meta = zarrmeta.array_meta(value, f"{key!r} of {where}")
                if meta is not None and meta.grid is not None:
                    self.grids[path] = meta.grid

    def count_partitions(self, array: str) -> int:
        """Return the number of partitions of ``array`` if all its chunks exist."""
        return -(-self.grids[array].size // self.record_size)

    def count_chunks(self, array: str, partition: int) -> int:
        """Return the number of chunks that belong to a partition: the last one of an array may have fewer."""
        return min(self.record_size, self.grids[array].size - partition * self.record_size)


def _read_number(extension: Mapping[str, Any], name: str) -> int:
    """Return the number in a member; 0 if it is absent or damaged."""
    number = extension.get(name, 0)
    return number if type(number) is int and 0 <= number < 1 << 63 else 0


def _read_kept(extension: Mapping[str, Any]) -> dict[str, int]:
    """Return the paths of replaced files, with the times of their replacement in seconds since 1970."""
    match extension:
        case {"kept": dict(kept)}:
            files = ((path, when) for path, when in kept.items() if is_key(path) and _KEPT.fullmatch(parent(path)[1]))
            return {path: when for path, when in files if type(when) is int}
    return {}


def _read_renamed(content: Mapping[str, Any], where: str) -> dict[str, dict[int, str | None]]:
    """Return by array and number the file names of partitions without usual names; None for a removed partition."""
    match content.get("refshard"):
        case None:
            return {}
        case {"partitions": dict(arrays)}:
            pass
        case {"commit": str()} | {"from": _}:
            return {}
        case _:
            expected = "expected a member 'partitions' (an object), 'commit' (a text) or 'from'"
            raise ManifestError(f"{where}: its 'refshard' is {zarrmeta.shorten(content['refshard'])}: {expected}")
    renamed: dict[str, dict[int, str | None]] = {}
    for array, names in arrays.items():
        by_number = renamed[array] = {}
        for number, name in (names if isinstance(names, dict) else {"": ""}).items():
            if not _NUMBER.fullmatch(number) or not (name is None or (isinstance(name, str) and _NAME.fullmatch(name))):
                raise ManifestError(
                    f"{where}: expected partition numbers of {array!r} with names of files, got {number!r}: {name!r}"
                )
            by_number[int(number)] = name
    return renamed


class ParquetKeySpace(PartedKeySpace):
    """The keys of a parquet set at the URL ``root``.

    A look-up loads one partition; listing the directory of an array loads all its partitions. ``document`` are the
    bytes of ``.zmetadata``, ``version`` names their version. At most ``cache_size`` partitions stay in memory.
    """

    holds_all_metadata = True
    consolidated_anew = PARQUET
    is_reference_set = True
    committed_as = "kerchunk-parquet"

    def __init__(
        self,
        root: str,
        document: bytes,
        resolve: Callable[[str | None], str],
        version: str = "",
        cache_size: int = 128,
    ) -> None:
        self.root = self.root_url = root
        self.document_url = make_locator(root)(PARQUET)
        self.layout = Layout(document, relative_to(root, PARQUET))
        self.document = document
        self.grids: Mapping[str, ChunkGrid] = self.layout.grids
        self._version = version
        self._quota = Quota(root, cache_size)
        self._absent: set[tuple[str, int]] = set()  # partitions, by array and number, that do not exist
        self._generations: dict[tuple[str, int], int] = {}  # partitions that were read → commits that wrote them
        self._checks_absence = True
        self._absolute = lru_cache(MEMO)(resolve)
        self._origin = lru_cache(MEMO)(lambda url: self._origins.of(self._absolute(url)))
        self._origins = self.layout.origins
        self._has_origins = bool(self._origins)
        # Without the cache, `_make_load` takes a fifth of the time of a read from a partition in memory.
        self.load = lru_cache(MEMO)(self._make_load)
        members: dict[str, dict[str, Any] | bytes] = dict(self.layout.metadata)
        if not all(key.endswith("zarr.json") for key in members):
            members.setdefault(PARQUET, document)  # zarr version 3 has no such document
        self._documents = FlatKeySpace(ReferenceSet(Texts.of(()), {}, members), resolve, root)

    def lookup(self, key: str) -> Steps[Entry | None]:
        value = yield from self.find_value(key)
        match value:
            case None:
                return Inline(self.document) if key == PARQUET else None
            case (url, row):
                if row.length is not None and row.length > LONG:
                    check_length(key, row.length, self._get_array_meta(key))
                stop = None if row.length is None else row.offset + row.length
                return Span(
                    self._absolute(url), row.offset, stop, origin=self._origin(url) if self._has_origins else ()
                )
            case bytes():
                return Inline(value)
            case dict():
                return Inline(zarrmeta.dumps(value))

    @property
    def metadata(self) -> Mapping[str, dict[str, Any]]:
        return self.layout.metadata

    def resolve(self, url: str | None) -> str:
        return self._absolute(url)

    def _get_array_meta(self, key: str) -> zarrmeta.ArrayMeta | None:
        """Return the metadata of the array with the chunk ``key``."""
        at = find_chunk(self.grids, key)
        if at is None:
            return None
        for name in zarrmeta.ARRAY_DOCUMENTS:
            document = join(at.array, name)
            value = self.layout.metadata.get(document)
            if value is not None:
                return zarrmeta.array_meta(value, document)
        return None

    def find_value(self, key: str) -> Steps[Value | None]:
        """Return a metadata document, inline data, or a reference with its URL as in the set; None without a value."""
        metadata = self.layout.metadata.get(key)
        if metadata is not None:
            return metadata
        at = find_chunk(self.grids, key)
        if at is None:
            return None
        number, row = divmod(at.number, self.layout.record_size)
        partition = yield from self._find_partition(at.array, number)
        if partition is None:
            return None
        match partition.get_value(row):
            case Row() as reference:
                return partition.urls[reference.target], reference
            case data:
                return data

    def _find_partition(self, array: str, number: int) -> Steps[StoredPartition | None]:
        """Return the result of `load_partition`. Request a partition that does not exist only once."""
        at = array, number
        if at in self._absent:
            return None
        found = yield from self.load_partition(array, number)
        if found is None:
            if len(self._absent) > MEMO:
                self._absent.clear()
            self._absent.add(at)
        return found

    def copy_for_commit(self) -> ParquetKeySpace:
        """Return a copy for a commit: if a partition is missing, the copy does not check that the set is unchanged.

        A commit checks this when it puts the document. An earlier attempt of the same commit may have put the document
        already, if its answer was lost.
        """
        other = copy(self)
        other._checks_absence = False
        return other

    def load_partition(self, array: str, number: int) -> Steps[StoredPartition | None]:
        """Load a partition in its version when this set was opened; None if the partition did not exist then."""
        partition: StoredPartition | None
        name = self.layout.renamed.get(array, {}).get(number, "")
        if name is None:
            return None
        if name:
            partition = yield self.load(array, number, name)
            if partition is not None:
                return partition
        # The partition always had its usual name, or a commit has given it that name since this set was opened.
        return (yield from self._load_usual_file(array, number, must_exist=bool(name)))

    def _load_usual_file(self, array: str, number: int, *, must_exist: bool) -> Steps[StoredPartition | None]:
        """Load a partition from the file with its usual name, or from the copy of an earlier version.

        The result is the version when this set was opened. Raises TargetChanged if that version can no longer be read.
        """
        partition = array, number
        generation: int | None = self._generations.get(partition)
        try:
            file: StoredPartition | PartitionHistory | None = yield self.load(array, number)
        except TargetChanged:
            if generation is None:
                raise
        else:
            match file:
                case StoredPartition(history=history):
                    self._generations[partition] = history.generation
                    return file
                case PartitionHistory():  # a later commit has written the file
                    with contextlib.suppress(LookupError):
                        generation = file.find_version(self.layout.generation)
                        if generation is None:
                            return None
                case _:
                    if not must_exist:
                        yield from self._check_unchanged()
                        return None
        copied = None
        if generation is not None:
            copied = yield self.load(array, number, make_partition_name("", number, generation))
        if isinstance(copied, StoredPartition):
            return copied
        raise self._make_changed_error(make_partition_name(array, number))

    def _check_unchanged(self) -> Steps[None]:
        """Raise TargetChanged if the set has changed since it was opened: a missing partition may have existed then."""
        if self._checks_absence and self.document_url is not None:
            facts: Facts | None = yield Stat(self.document_url, fresh=True)
            if facts is None:
                raise self._make_changed_error(PARQUET)

    def _make_changed_error(self, name: str) -> TargetChanged:
        where = relative_to(self.root, name)
        remedy = "call invalidate_cache() to read the new version"
        return TargetChanged("", where, f"a commit has changed the set since it was opened; {remedy}")

    def load_partitions(self, array: str, numbers: Sequence[int]) -> Steps[list[Chunks | None]]:
        """Load several of the partitions that `list_partitions` returns, together."""
        renamed = self.layout.renamed.get(array, {})
        loaded: Sequence[Any] = [None] * len(numbers)
        with contextlib.suppress(TargetChanged):  # then `load_partition` loads earlier versions one by one
            loaded = yield tuple(self.load(array, number, renamed.get(number) or "") for number in numbers)
        partitions: list[Chunks | None] = []
        for number, partition in zip(numbers, loaded, strict=True):
            if isinstance(partition, StoredPartition):
                self._generations[array, number] = partition.history.generation
                partitions.append(partition)
            else:
                partitions.append((yield from self.load_partition(array, number)))
        return partitions

    def _make_load(self, array: str, number: int, name: str = "") -> Load:
        """Return the need for a partition in its usual file, or in the file ``name``; the answer may be None."""
        file = join(array, name) if name else make_partition_name(array, number)
        layout = self.layout
        chunks = layout.count_chunks(array, number)
        index = PartitionIndex(chunks, layout.record_size, self._version, self._quota, layout.generation)
        return Load(Span(relative_to(self.root, file), optional=True), index)

    def list_partitions(self, array: str, start: int, stop: int) -> Steps[list[int]]:
        """List the numbers of the existing partitions with chunks from ``start`` to ``stop``.

        If the directory cannot be listed, the result may have partitions that do not exist. Raises NotListable if it
        would have too many.
        """
        if stop <= start:
            return []
        size = self.layout.record_size
        possible = range(start // size, -(-stop // size))
        renamed = self.layout.renamed.get(array, {})
        if len(possible) > 1:
            names = yield Names(relative_to(self.root, array) if array else self.root)
            if names is not None:
                files = map(_FILE.fullmatch, (listed.name for listed in names))
                existing = {int(file[1]) for file in files if file} - renamed.keys()
                existing |= {number for number, name in renamed.items() if name is not None}
                return sorted(number for number in existing if number in possible)
            if len(possible) > ASKED:
                raise NotListable(
                    f"{self.root} cannot be listed, and {len(possible)} partitions are too many to look up one by one. "
                    "Chunks can be read. To list them, open the set by a URL that can be listed, or copy it"
                )
        return [number for number in possible if renamed.get(number, "") is not None]

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        metadata = self.layout.metadata
        members: dict[str, Any] = {key: value for key, value in metadata.items() if is_within(key, prefix)}
        old = {key: value for key, value in metadata.items() if not key.endswith("zarr.json")}
        if old and not prefix and PARQUET not in metadata:
            members[PARQUET] = {"metadata": old, "zarr_consolidated_format": 1}
        arrays: dict[str, ArrayChunks] = {}
        for path, grid in self.grids.items():
            if is_within(path, prefix):
                try:
                    partitions = yield from self.list_partitions(path, 0, grid.size)
                except (OSError, RefShardError) as e:
                    if errors is None:
                        raise
                    errors[path] = e
                    partitions = []
                size = self.layout.record_size
                ranges = [range(number * size, min((number + 1) * size, grid.size)) for number in partitions]
                arrays[path] = ArrayChunks(grid, ranges)
        return Contents(members, arrays)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if not isinstance(numbers, range):
            return (yield from super().chunks(array, numbers, grid))
        size = self.layout.record_size
        builder = ChunksBuilder(len(numbers))
        for number in range(numbers.start // size, -(-numbers.stop // size)):
            partition = yield from self._find_partition(array, number)
            if partition is None:
                continue
            start = number * size  # the chunk of the partition's first row
            rows = slice(max(numbers.start - start, 0), min(numbers.stop - start, len(partition)))
            shift = start - numbers.start  # from a row of the partition to a row of the result
            origins = [self._origin(url) for url in partition.urls] if self._has_origins else ()
            place = slice(rows.start + shift, rows.stop + shift)
            builder.put(place, partition.urls, partition.ranges.take(rows), (), origins)
            inline = partition.inline.items()
            builder.inline.update((row + shift, data) for row, data in inline if rows.start <= row < rows.stop)
        return builder.finish()

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        """Return the URLs, as in the set, of the first partition that has URLs."""
        for array, grid in self.grids.items():
            for number in (yield from self.list_partitions(array, 0, grid.size)):
                partition = yield from self.load_partition(array, number)
                if partition is not None and partition.urls:
                    return partition.urls
        return ()

    def is_directory(self, prefix: str) -> Steps[bool]:
        if (yield from self._documents.is_directory(prefix)):
            return True
        for array, rest in self.split_path(prefix):
            level = self.grids[array].find_directory(rest)
            if level is not None and (yield from self.has_chunk(array, level.numbers.start, level.numbers.stop)):
                return True
        return False

    def parts(self, array: str, start: int, stop: int) -> Steps[list[Part]]:
        parts: list[Part] = []
        numbers = yield from self.list_partitions(array, start, stop)
        for batch in iterate_batches(numbers, BATCH):
            partitions = yield from self.load_partitions(array, batch)
            for number, partition in zip(batch, partitions, strict=True):
                if partition is not None:
                    parts.append(partition.make_part(number * self.layout.record_size))
        return parts

    def has_chunk(self, array: str, start: int, stop: int) -> Steps[bool]:
        for number in (yield from self.list_partitions(array, start, stop)):
            partition = yield from self.load_partition(array, number)
            base = number * self.layout.record_size
            if partition is not None and partition.list_present(max(start - base, 0), min(stop - base, len(partition))):
                return True
        return False


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a parquet reference set; its document was read when the format was recognised."""
    yield from ()
    document = probe.documents.get(PARQUET)
    if document is None:
        raise ManifestError(f"{probe.url} is not a parquet reference set: expected a document {PARQUET} in it")
    require_pyarrow()
    facts = document.facts
    version = f"{facts.etag} {facts.last_modified} {facts.size}"
    resolve = make_resolver(options, directory_of(probe.url.rstrip("/")))
    return ParquetKeySpace(probe.url, document.data, resolve, version, options.cache_size)

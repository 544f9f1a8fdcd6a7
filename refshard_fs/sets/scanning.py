"""Many sources scanned together: the references to each one's chunks, with the values of its coordinates.

All are opened in one session, and their look-ups are driven in the same rounds: a source that is small, or has its
index at the beginning, takes one request. Only the references stay in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Texts
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, Likeness
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, Load, Raw, Span, Stat, Steps, batches, read_once
from refshard_fs.cubes.merging import selected
from refshard_fs.cubes.piece_view import with_origin_of_piece
from refshard_fs.errors import ManifestError, RefShardError, sanitize_cause
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.failures import blame, source_failed
from refshard_fs.reading.loading import Heads
from refshard_fs.references.binary import shrink, swell
from refshard_fs.references.reference_set import ReferenceSet, adopt
from refshard_fs.references.shared_members import SharedMembers
from refshard_fs.security.admission import WEB, is_trusted
from refshard_fs.security.policy import LOCAL, place_of, protocol_of, server_of
from refshard_fs.sets.alike import DocumentParser, FileTemplates, FirstBytes, is_document
from refshard_fs.sets.variables import NamedSet, Variable, VariableReader, auxiliary
from refshard_fs.source.collect import Unread, collect_steps, respell_urls
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.recognition import may_be_root, open_source
from refshard_fs.source.settings import Settings
from refshard_fs.source.source import Engines
from refshard_fs.stores.links import path_to_write
from refshard_fs.writing.save import respelling

ROUND: Final = 16  # sources whose look-ups are driven together: each waits for all of them
ROUNDS: Final = 16  # such rounds that are under way at once, so that some are decoded while others wait
PIECE: Final = 64  # sources that a worker scans in one call: some 100 ms, so that it is worth being sent
LIKENESSES: Final = 16  # kinds of files by one writer whose references are remembered in a scan
REMEMBERED: Final = 32 << 20  # bytes of indexes of sources that are being scanned
_OTHER_DOCUMENT: Final = re.compile(rb'\s*\{\s*"refshard"\s*:\s*"')  # JSON that is opened, and no set of references
LONGEST: Final = 1 << 20  # elements of a coordinate that is read and kept in the set
SAYS: Final = frozenset(["axis", "standard_name", "units"])  # attributes of scalars that may be coordinates
# Options that say how sources are read, and not what they mean.
READING: Final = frozenset(["concurrency", "fast_s3", "max_memory", "retries", "timeout"])
_UNDERSTOOD: Final = READING | {
    *("index_cache", "max_manifest_bytes", "options", "ref_storage_args", "select", "target_options")
}


class Scanned(NamedTuple):
    """The references of a source, URLs absolute, coordinates inline; ``facts`` tell its version if it is one object."""

    refs: ReferenceSet
    facts: Facts | None = None


class Unchanged:
    """The answer for a source that was not read, since it still has the known version."""


# Called with number and result of each source; None is a source that has to be opened by itself.
Found = Callable[[int, Scanned | Exception | Unchanged | None], object]
Known = Mapping[str, Facts]  # by URL, the versions of sources that were scanned before


def can_scan(options: Mapping[str, Any]) -> bool:
    """Whether sources can be scanned together with these options; others say of each source what it means."""
    return options.keys() <= _UNDERSTOOD


def reading_options(urls: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a filesystem that reads the objects at ``urls`` as the user's ``options`` say."""
    passed = {name: value for name, value in options.items() if name in (*READING, "options", "max_manifest_bytes")}
    credentials = options.get("ref_storage_args", options.get("target_options"))
    if credentials is not None:
        places = dict.fromkeys(place_of(url) or url for url in urls)
        passed["options"] = {**{place: dict(credentials) for place in places}, **(options.get("options") or {})}
    return passed


def opening_options(sources: Collection[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a set made of ``sources``, opened with the user's ``options``, opens its targets.

    What the filesystem of a source was given goes to its bucket, and nowhere else; over HTTP to the source alone,
    because the prefix of a server would open it to the set of a stranger, whatever network it is in.
    """
    found = {name: options[name] for name in ("fs", "remote_options", "remote_protocol") if options.get(name)}
    credentials = options.get("ref_storage_args") or options.get("target_options")
    urls = [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)] if credentials else []
    by_prefix: dict[str, Any] = {}
    for url in urls:
        is_alone = "::" in url or protocol_of(url) in WEB
        by_prefix[url if is_alone else place_of(url) or url] = dict(credentials or {})
    for one in sources:
        if isinstance(one, InMemorySource):
            by_prefix |= one.arguments().get("options") or {}
    by_prefix |= options.get("options") or {}
    return found | ({"options": by_prefix} if by_prefix else {})


def scan(
    urls: Sequence[str],
    options: Mapping[str, Any],
    found: Found,
    known: Known,
    unread: Unread | None = None,
    heads: Heads | None = None,
) -> None:
    """Call ``found`` with number and content of each source at ``urls``, in any order, or with its error.

    A parquet set, which is read a partition at a time, gives None. What ``found`` raises ends the scan.
    The first bytes of the sources are put into ``heads``.
    """
    session = RefShardFileSystem({}, **reading_options(urls, options), select=options.get("select")).source
    whole = msgspec.structs.replace(session.options.open, shards="whole")
    scanner = _Scanner(msgspec.structs.replace(session.options, open=whole), known, unread, heads)
    try:
        scanner.wait(scanner.all, urls, found)
    finally:
        scanner.wait(scanner.close)


class _Scanner(Engines):
    """Opens many sources. What each may point to is judged by its own origin."""

    def __init__(self, options: Settings, known: Known, unread: Unread | None, heads: Heads | None) -> None:
        super().__init__(options, LRU(REMEMBERED), heads)
        self._unread = unread
        self._known = known
        self._variables = VariableReader()
        self._common: LRU[Likeness, ReferenceSet] = LRU(LIKENESSES)
        self._parser = DocumentParser()
        self._alike = FileTemplates(
            self._collect, lambda url, refs: coordinate_chunks(NamedSet(url, refs, self._variables.read(refs, url)))
        )

    async def all(self, urls: Sequence[str], found: Found) -> None:
        """Scan the sources at ``urls``."""
        pieces = batches(range(len(urls)), ROUND)
        tasks = [asyncio.create_task(self._some(pieces, urls, found)) for _ in range(ROUNDS)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _some(self, pieces: Iterator[Sequence[int]], urls: Sequence[str], found: Found) -> None:
        for piece in pieces:
            results = await self.engine().run_all([self._scan_source(urls[number]) for number in piece])
            for number, result in zip(piece, results, strict=True):
                found(number, result)

    async def close(self) -> None:
        """Close connections."""
        await self.engine().close()
        self._drop_engines()

    def _scan_source(self, url: str) -> Steps[Scanned | Unchanged | None]:
        origin = None if is_trusted(url) else server_of(url)
        steps = read_once(self._read(url))
        found = yield from steps if origin is None else with_origin_of_piece(steps, (origin,))
        if not isinstance(found, Scanned) or origin is None or self.options.open.rule_of is None:
            return found
        return found._replace(refs=adopt(found.refs, self.options.open.rule_of(origin)))

    def _read(self, url: str) -> Steps[Scanned | Unchanged | None]:
        most = self.options.open.max_manifest_bytes
        first = FirstBytes(url, min(self.options.open.head, most))
        likeness: Likeness | None = None
        try:
            if url in self._known and (yield Stat(url, fresh=True)) == self._known[url]:
                return Unchanged()
            if not may_be_root(url):
                yield from first.read()
            is_set = is_document(url) and not self.options.select
            alike = None if is_set else self._alike.find(first)
            if alike is not None and alike[1]:
                return Scanned(alike[0], first.facts)
            refs = (yield from self._document(first)) if is_set else alike and alike[0]
            if refs is None:
                space = yield from self._open(first)
                likeness = space.likeness
                common = None if likeness is None else self._common.get(likeness)
                if common is not None:
                    return Scanned(msgspec.structs.replace(common, urls=Texts.of([url])), first.facts)
                refs = yield from self._references(first, space)
                if refs is None:
                    return None
                self._alike.add(first, refs)
        except RefShardError:
            raise
        except Exception as e:  # noqa: BLE001  # a FileNotFoundError would make every key look missing
            raise source_failed(url, e) from sanitize_cause(e)
        try:
            part = NamedSet(url, refs, self._variables.read(refs, url))
            if likeness is not None and self._decides(likeness, part):
                self._common.put(likeness, refs)
            refs = (yield from first.run(with_coordinates(part))).refs
        except RefShardError:
            raise
        except Exception as e:  # noqa: BLE001  # `blame` tells which
            raise blame("", e) from sanitize_cause(e)
        return Scanned(refs, first.facts)

    def _document(self, first: FirstBytes) -> Steps[ReferenceSet | None]:
        """Return the references of a JSON document; None if only opening it tells its meaning."""
        facts, data = first.facts, first.data
        if facts is None or _OTHER_DOCUMENT.match(data):
            return None
        if facts.size != len(data):
            data = yield Load(Probe(first.url, facts, data).document(self.options.open.max_manifest_bytes), Raw())
        return self._parser.parse(data, first.url)

    def _decides(self, likeness: Likeness, part: NamedSet) -> bool:
        """Return whether all sources with this ``likeness`` have the references of ``part``, as far as they are read.

        The chunks that vary are not read: only that an array has some.
        """
        refs = part.refs
        if self._unread is None or refs.pins is not None or list(refs.urls) != [part.name]:
            return False
        left = self._unread.choose(refs.side, refs.tables)
        return likeness.varying <= left and coordinate_chunks(part) is None

    def _collect(self, first: FirstBytes) -> Steps[ReferenceSet | None]:
        """Return the references of a source."""
        return (yield from self._references(first, (yield from self._open(first))))

    def _open(self, first: FirstBytes) -> Steps[KeySpace]:
        opened = yield from first.run(open_source(first.url, self.options.open))
        return (yield from first.run(selected(opened, self.options.select)))

    def _references(self, first: FirstBytes, space: KeySpace) -> Steps[ReferenceSet | None]:
        try:
            refs = yield from first.run(collect_steps(space, self._unread))
        except Exception as e:  # noqa: BLE001  # `blame` tells which
            raise blame("", e) from sanitize_cause(e)
        return respell_urls(refs, respelling(OpenOptions(), first.url))


# ----------------------------------------------------------------------------------------------------
# Scans by the workers of an executor.


def spread(
    executor: Executor,
    urls: Sequence[str],
    options: Mapping[str, Any],
    found: Found,
    known: Known,
    unread: Unread | None = None,
) -> None:
    """Scan with the workers of ``executor``; an error of theirs, or what ``found`` raises, ends it all."""
    futures: dict[Future[list[Any]], Sequence[int]] = {}
    try:
        for piece in batches(range(len(urls)), PIECE):
            some = [urls[number] for number in piece]
            theirs = {url: known[url] for url in some if url in known}
            futures[executor.submit(scan_piece, some, dict(options), theirs, unread)] = piece
        for future in as_completed(futures):
            for number, result in zip(futures[future], future.result(), strict=True):
                found(number, result)
    finally:
        for future in futures:
            future.cancel()


def scan_piece(
    urls: Sequence[str], options: Mapping[str, Any], known: Known, unread: Unread | None = None
) -> list[Any]:
    """Return the result for each of ``urls``."""
    results: list[Any] = [None] * len(urls)
    scan(urls, options, results.__setitem__, known, unread)
    return results


# ----------------------------------------------------------------------------------------------------
# A file of scans, so that a run that failed goes on where it ended.
#
# A line that names the format; then records, each the length and the CRC-32 of what follows (little-endian, four bytes
# each), and that as msgpack: URL, size, ETag and time of the source, the packed references. Of sources that are alike
# only the first has these: the others say where its record lies, which object they refer to, and which inline data are
# their own. Records are only added; the last one of a URL counts. The last record of a run that was killed may be
# cut short.


_MAGIC: Final = b"refshard scans 1\n"
_HEAD: Final = struct.Struct("<II")


class _Record(msgspec.Struct, frozen=True, array_like=True):
    url: str
    facts: Facts
    refs: bytes = b""
    like: tuple[int, int] = (0, 0)  # offset and length of the record of a source like this one
    target: str = ""
    data: dict[str, bytes] = {}


class ScansFile:
    """The scans in the file at ``path``, which is made where there is none. For one writer at a time.

    ``select`` is the option of a filesystem: it says which part of each source is scanned.
    """

    def __init__(self, path: str, select: Sequence[Mapping[str, Any]] | None = None) -> None:
        if protocol_of(path) not in (None, *LOCAL):
            raise ValueError(f"resume={path!r}: expected a path on this machine")
        self._path = path = os.path.expanduser(path)
        self._selection = f" select={zarrmeta.dumps(list(select)).decode()}" if select else ""
        self._places: dict[str, tuple[Facts, int, int]] = {}  # by URL: version, offset and length of the record
        self._whole: tuple[tuple[int, int], ReferenceSet] | None = (
            None  # the last record with references: place, references
        )
        descriptor = os.open(
            path_to_write(path), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600
        )  # URLs may have tokens
        self._file = os.fdopen(descriptor, "r+b")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        start = self._file.read(len(_MAGIC))
        if not _MAGIC.startswith(start):
            raise ManifestError(f"{self._path} is not a file of scans: resume= expects a new path, or a file it wrote")
        if start != _MAGIC:
            self._file.seek(0)
            self._file.write(_MAGIC)
        end = len(_MAGIC)
        size = os.fstat(self._file.fileno()).st_size
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            data = self._file.read(length) if length <= size - end - _HEAD.size else b""
            if len(data) < length or zlib.crc32(data) != checksum:
                break
            with contextlib.suppress(msgspec.MsgspecError):
                record = msgspec.msgpack.decode(data, type=_Record)
                self._places[record.url] = record.facts, end + _HEAD.size, length
            end += _HEAD.size + length
        self._file.seek(end)
        self._file.truncate()

    def facts(self, urls: Iterable[str], kind: str = "") -> dict[str, Facts]:
        """Return the versions of those of ``urls`` that were scanned, in part (of that ``kind``) or as a whole."""
        known = {url: self._place(url, kind) for url in urls}
        return {url: place[0] for url, place in known.items() if place is not None}

    def _place(self, url: str, kind: str) -> tuple[Facts, int, int] | None:
        return self._places.get(url + kind + self._selection) or self._places.get(url + self._selection)

    def find(self, url: str, kind: str = "") -> Scanned | Exception:
        """Return the kept scan of ``url``."""
        place = self._place(url, kind)
        if place is None:
            raise KeyError(url)
        facts, start, length = place
        try:
            record = self._record(start, length)
            if record.refs:
                return Scanned(swell(record.refs), facts)
            base = self._references_at(*record.like)
        except (ValueError, msgspec.MsgspecError) as e:
            return ManifestError(f"{self._path} is damaged at {url}: {e}. Delete it, or give another path")
        members = SharedMembers(base.members, record.data)
        return Scanned(msgspec.structs.replace(base, urls=Texts.of([record.target]), members=members), facts)

    def _record(self, start: int, length: int) -> _Record:
        self._file.seek(start)
        data = self._file.read(length)
        self._file.seek(0, os.SEEK_END)
        return msgspec.msgpack.decode(data, type=_Record)

    def _references_at(self, start: int, length: int) -> ReferenceSet:
        """Return the references of a record; sources that are like it share its columns."""
        if self._whole is None or self._whole[0] != (start, length):
            refs = swell(self._record(start, length).refs)
            refs = msgspec.structs.replace(refs, chunks=refs.tables, members=dict(refs.side.items()))
            self._whole = (start, length), refs
        return self._whole[1]

    def keep(self, url: str, scanned: Scanned) -> None:
        """Add the scan of ``url``, if anything tells its version."""
        facts, refs, url = scanned.facts, scanned.refs, url + self._selection
        if facts is None or (facts.etag is None and facts.last_modified is None):
            return
        own = None if self._whole is None else _own_data(self._whole[1], refs)
        if self._whole is not None and own is not None:
            self._write(_Record(url, facts, like=self._whole[0], target=str(refs.urls[0]), data=own))
        else:
            self._whole = self._write(_Record(url, facts, shrink(refs))), refs

    def _write(self, record: _Record) -> tuple[int, int]:
        """Add a record; return where it lies."""
        packed = msgspec.msgpack.encode(record)
        start = self._file.tell() + _HEAD.size
        self._file.write(_HEAD.pack(len(packed), zlib.crc32(packed)) + packed)
        self._file.flush()
        return start, len(packed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _own_data(base: ReferenceSet, refs: ReferenceSet) -> dict[str, bytes] | None:
    """Return the inline data of ``refs`` that ``base`` lacks; None if they differ in more than these and one URL."""
    if refs.chunks != base.chunks or list(refs.members) != list(base.members) or len(refs.urls) != 1:
        return None
    if len(base.urls) != 1 or None in (refs.urls[0], base.urls[0]) or refs.pins is not None or base.pins is not None:
        return None
    if (refs.version, refs.origins) != (base.version, base.origins):
        return None
    own = {key: value for key, value in refs.members.items() if value is not base.members[key]}
    return own if all(isinstance(value, bytes) for value in own.values()) else None  # type: ignore[return-value]


# ----------------------------------------------------------------------------------------------------
# Coordinates: their values tell the order of sets, and are kept in the set. No I/O here.


def with_coordinates(part: NamedSet) -> Steps[NamedSet]:
    """Return ``part`` with the values of its coordinates inline."""
    found = coordinate_chunks(part)
    if found is None:
        return part
    tables, spans = found
    side = dict(part.refs.side.items())
    loads = tuple(Load(span, Raw()) for span in spans.values())
    side.update(zip(spans, (yield loads), strict=True))
    return msgspec.structs.replace(part, refs=msgspec.structs.replace(part.refs, chunks=tables, members=side))


def coordinate_chunks(part: NamedSet) -> tuple[dict[str, ChunkTable], dict[str, Span]] | None:
    """Return the tables of ``part`` without its coordinates' chunks, and where these lie; None if it has none."""
    refs = part.refs
    wanted = [variable.path for variable in coordinates_to_read(part)]
    if not wanted:
        return None
    tables = dict(refs.tables)
    spans: dict[str, Span] = {}
    for path in wanted:
        grid = tables[path].grid
        for number, row in tables[path].rows():
            url = refs.urls[row.target]
            if url is None:
                raise ManifestError(f"{part.name} has references of {path!r} without a URL: give target=")
            stop = None if row.length is None else row.offset + row.length
            pin = None if refs.pins is None else refs.pins.pin(row.target)
            origin = refs.origins.of(url)
            spans[join(path, grid.tail(number))] = Span(url, row.offset, stop, pin=pin, origin=origin)
        tables[path] = _without_chunks(grid)
    return tables, spans


# A table for each of ten thousand files makes 0.49 ms of processor time a file, not 0.29: garbage collection.
@lru_cache(64)
def _without_chunks(grid: ChunkGrid) -> ChunkTable:
    return ChunkTable.from_parts(grid, [])


def coordinates_to_read(part: NamedSet) -> Iterator[Variable]:
    """Yield the coordinates whose values are references, scalar ones among them."""
    named = auxiliary(part.variables)
    scalars = {p for p, v in part.variables.items() if not v.dims and (p in named or not SAYS.isdisjoint(v.attributes))}
    for path, variable in part.variables.items():
        table = part.refs.tables.get(path)
        if table is not None and (variable.is_coordinate or path in scalars) and len(table):
            meta = variable.meta
            if math.prod(meta.shape) <= LONGEST and dtype_of(meta) is not None and not variable.is_sharded:
                yield variable

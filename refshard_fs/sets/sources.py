"""The sets that are to be joined, as columns, with the values of their coordinates: many at once where they are alike.

Sets at hand and JSON documents need no filesystem each: documents are read together, one of those that are alike is
parsed, the rest compared with it. All others, and those whose coordinates are to be read, are opened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_values import dtype_of
from refshard_fs.core.columns import ChunkTable, Part, UInt32s, UInt64s
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import place
from refshard_fs.core.strings import Texts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.chunk_manifest.declaration import MARK
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, Value
from refshard_fs.security.admission import is_trusted
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.session.collect import respelled
from refshard_fs.session.options import route
from refshard_fs.sets.made_set import MadeSet
from refshard_fs.sets.rebase import opened
from refshard_fs.sets.variables import Known, Named, Variable, variables
from refshard_fs.writing.save import respelling

__all__ = ["Members", "Pattern", "decoded", "is_sharded", "members_of", "take", "with_coordinates"]

# ----------------------------------------------------------------------------------------------------
# Reference sets that are spelled alike: the first is parsed, the others are read by comparing them with it.
#
# A set is like another if it has the same keys in the same order, the same array metadata, and a byte range wherever
# the other has one. Then its chunks have the numbers that the other's have, and only URLs, offsets and lengths are to
# be put into columns. What differs is not read here, and left to who parses. No I/O here.


_HEADER = frozenset(["version", "refs", "templates", "gen", "refshard"])
_NUMBERS = frozenset([int])
_TEXT = frozenset([str])
_LISTS = (frozenset([list]), frozenset([tuple]))


class Members(NamedTuple):
    """The members of a set without templates; ``checked``: each is text, or a `_Range`; ``pins`` as JSON has them."""

    values: Mapping[str, Any]
    checked: bool = False
    pins: Any = None


class _Range(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A reference as JSON has it; of so many the collector of garbage need not know."""

    url: str
    offset: int
    length: int


class _Ours(msgspec.Struct, forbid_unknown_fields=True):
    pins: dict[str, Any]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    refs: dict[str, str | _Range]
    refshard: _Ours | None = None


_RANGES = frozenset([_Range])
_regular = msgspec.json.Decoder(_Document)


def decoded(data: bytes) -> Members | None:
    """Return the members of a reference set in JSON; None where it takes more than a plain reader."""
    try:
        document = _regular.decode(data)
        return Members(document.refs, True, None if document.refshard is None else document.refshard.pins)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return members_of(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def members_of(document: Any) -> Members | None:
    """Return the members of a set that has no templates; None where it has, or is of no known version."""
    match document:
        case {"version": int(version), "refs": dict(members)} if version == 1 and document.keys() <= _HEADER:
            if document.get("templates") or document.get("gen"):
                return None
            match document.get("refshard"):
                case None:
                    return Members(members)
                case {"pins": dict(pins), **others} if not others:
                    return Members(members, pins=pins)
            return None
        case dict() if "version" not in document and "refs" not in document:
            return Members(document)
    return None


class _Table(msgspec.Struct, frozen=True):
    """The chunks of one array: their numbers, ascending, and the places of their references in the set."""

    path: str
    table: ChunkTable
    numbers: UInt64s
    rows: Any  # a slice, or an array of places
    is_full: bool  # whether there are all chunks of the grid


class Pattern(msgspec.Struct, frozen=True):
    """What sets have in common that are like one another."""

    keys: list[str]
    ranges: Callable[[list[Any]], tuple[Any, ...]]
    count: int
    tables: list[_Table]
    aside: list[tuple[int, str, Value | None]]  # place, key, and the value that it must have, if any

    @classmethod
    def of(cls, given: Members, refs: ReferenceSet) -> Pattern | None:
        """Return the pattern of members, of which ``refs`` was parsed; None where they are not that regular."""
        members = given.values
        keys = list(members)
        if len(refs) != len(keys) or any(type(key) is not str for key in keys):
            return None
        places: dict[str, tuple[list[int], list[int]]] = {path: ([], []) for path in refs.tables}
        chosen: list[int] = []
        aside: list[tuple[int, str, Value | None]] = []
        grids = refs.grids
        for number, (key, value) in enumerate(members.items()):
            is_range = isinstance(value, _Range) or (isinstance(value, list | tuple) and len(value) == 3)
            at = place(grids, key) if is_range else None
            if at is not None:
                numbers, rows = places[at.array]
                numbers.append(at.number)
                rows.append(len(chosen))
                chosen.append(number)
            elif key not in refs.side or not isinstance(value, str | bytes | dict):
                return None
            else:
                aside.append((number, key, value if key.endswith(METADATA) else None))
        tables = []
        for path, (numbers, rows) in places.items():
            order = np.argsort(np.array(numbers, np.uint64), kind="stable")
            at_rows = np.array(rows, np.int64)[order]
            if len(numbers) != len(refs.tables[path]):
                return None
            in_order = len(rows) > 0 and bool((np.diff(at_rows) == 1).all())
            where = slice(int(at_rows[0]), int(at_rows[-1]) + 1) if in_order else at_rows
            table = refs.tables[path]
            tables.append(
                _Table(path, table, np.array(numbers, np.uint64)[order], where, len(table) == table.grid.size)
            )
        if len(chosen) < 2:
            return None
        return cls(keys, itemgetter(*chosen), len(chosen), tables, aside)

    def read(self, given: Members) -> ReferenceSet | None:
        """Return the set that members are, as parsing them would; None if they are not like the others."""
        members = given.values
        if len(members) != len(self.keys) or list(members) != self.keys:
            return None
        values = list(members.values())
        side: dict[str, Value] = {}
        for number, key, expected in self.aside:
            value = values[number]
            if expected is not None and value != expected:
                return None
            match value:
                case str() | bytes():
                    side[key] = value
                case dict():
                    side[key] = dict(value)
                case _:
                    return None
        columns = self._columns(self.ranges(values), checked=given.checked)
        if columns is None:
            return None
        urls, targets, offsets, lengths = columns
        tables = {}
        for path, like, numbers, rows, is_full in map(msgspec.structs.astuple, self.tables):
            if is_full:
                tables[path] = ChunkTable(like.grid, targets[rows], offsets[rows], lengths[rows])
            elif len(numbers):
                part = Part(numbers, targets[rows], offsets[rows], lengths[rows])
                tables[path] = ChunkTable.from_parts(like.grid, [part])
            else:
                tables[path] = like
        return ReferenceSet(urls, tables, side)

    def _columns(self, rows: tuple[Any, ...], *, checked: bool) -> tuple[Texts, UInt32s, UInt64s, UInt64s] | None:
        kinds = frozenset(map(type, rows))
        urls: Sequence[Any]
        offsets: Sequence[Any]
        lengths: Sequence[Any]
        if checked:
            if kinds != _RANGES:
                return None
            urls = [row.url for row in rows]
            offsets, lengths = [row.offset for row in rows], [row.length for row in rows]
        elif kinds in _LISTS:
            try:
                urls, offsets, lengths = zip(*rows, strict=True)
            except ValueError:  # a whole file, or no reference at all
                return None
            if [frozenset(map(type, column)) for column in (urls, offsets, lengths)] != [_TEXT, _NUMBERS, _NUMBERS]:
                return None
        else:
            return None
        one = urls.count(urls[0]) == self.count  # as of most sets, and sooner seen than hashed
        known = {url: number for number, url in enumerate(urls[:1] if one else dict.fromkeys(urls))}
        if any("{{" in url for url in known):
            return None  # version 1 expands it, even without templates
        try:
            texts = Texts.of(url.encode() for url in known)
            begins = np.fromiter(offsets, np.int64, self.count)
            sizes = np.fromiter(lengths, np.int64, self.count)
        except (OverflowError, UnicodeEncodeError):
            return None
        if min(begins.min(), sizes.min()) < 0:
            return None
        if len(known) == 1:
            targets = np.zeros(self.count, np.uint32)
        else:
            targets = np.fromiter(map(known.__getitem__, urls), np.uint32, self.count)
        return texts, targets, begins.view(np.uint64), sizes.view(np.uint64)


TOGETHER: Final = 16  # sets that are opened at a time
DOCUMENTS: Final = 32  # that are read at a time
SMALL: Final = 1 << 18  # bytes of a document: in larger ones columns are found sooner than objects are made
LONGEST: Final = 1 << 20  # elements of a coordinate that is read and kept in the set
# Options that decide what a set means: with one of these each is opened by itself.
MEANING: Final = frozenset(
    (
        *("base_url", "format", "fs", "remote_protocol"),
        *("simple_templates", "target", "target_protocol", "template_overrides"),
    )
)
# And those that concern how a document is read.
READING: Final = frozenset(["concurrency", "fast_s3", "max_memory", "options", "retries", "timeout"])


def take(sets: Sequence[Any], options: Mapping[str, Any], tell: Callable[[int], object]) -> list[Named]:
    """Return ``sets``, each of which `RefShardFileSystem` takes with ``options``; ``tell(1)`` is called for each.

    TargetNotAllowed where one that is somebody else's points to where it may not.
    """
    known: Known = {}
    found: list[Named | None] = [None] * len(sets)
    if options.keys().isdisjoint(MEANING):
        alike = _Alike()
        for number, document in _documents(sets, options):
            refs = alike.read(document, sets[number])
            if refs is not None:
                _judge(sets[number], refs.urls, options)
                name = _name(number, sets[number])
                part = Named(name, refs, variables(refs, name, known))
                if not any(True for _ in _to_read(part)):
                    found[number] = part
                    tell(1)

    def read(number: int) -> Named:
        fs = opened(sets[number], options)
        name = _name(number, sets[number])
        refs = fs._collect()
        fs._session.admit(refs.urls)
        part = with_coordinates(Named(name, refs, variables(refs, name, known)), fs)
        tell(1)
        return part

    # Threads help to wait for the network; what is at hand takes the interpreter, which has one at a time.
    left = [number for number, part in enumerate(found) if part is None]
    far = any(isinstance(sets[number], str) and protocol_of(sets[number]) not in (None, *LOCAL) for number in left)
    with ThreadPoolExecutor(TOGETHER if far else 1) as pool:
        for number, part in zip(left, pool.map(read, left), strict=True):
            found[number] = part
    return [part for part in found if part is not None]


def _judge(fo: Any, urls: Iterable[str | None], options: Mapping[str, Any]) -> None:
    """Raise TargetNotAllowed if the set ``fo`` is somebody else's, and names URLs that it may not.

    What becomes of it is the user's own, which may point anywhere.
    """
    if not isinstance(fo, str) or is_trusted(fo):
        return
    named = {name: options.get(name) for name in ("fs", "remote_protocol", "remote_options", "options", "allow")}
    routes = route(fo, source_options=options.get("ref_storage_args", options.get("target_options")), **named)
    rule, first = routes.admission, True
    for url in urls:
        if url is None:
            continue
        if first and routes.fallback:
            rule = rule.naming(protocol_of(url) or "file")
        first = False
        rule.admit(url)


def _name(number: int, fo: Any) -> str:
    return f"set {number} ({fo})" if isinstance(fo, str) else f"set {number}"


def _documents(sets: Sequence[Any], options: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield number and document, as a mapping or as bytes, of those that can be had without opening them."""
    named: list[int] = []
    for number, fo in enumerate(sets):
        match fo:
            case str() if fo.endswith(".json") and "::" not in fo:
                named.append(number)
            case dict() | MadeSet():
                yield number, fo
    if not named:
        return
    credentials = options.get("ref_storage_args", options.get("target_options"))
    passed = {name: value for name, value in options.items() if name in READING}
    if credentials is not None:
        passed["fs"] = {protocol_of(sets[number]) or "file": dict(credentials) for number in named}
        passed.pop("options", None)
    reader = opened({str(number): [sets[number]] for number in named}, passed)
    near = [number for number in named if protocol_of(sets[number]) in (None, *LOCAL)]
    for number in near:  # at once, without an event loop
        with suppress(OSError, RefShardError):  # which is told by who opens it alone
            yield number, reader.cat_file(str(number))
    far = list(map(str, sorted(set(named).difference(near))))
    for first in range(0, len(far), DOCUMENTS):
        keys = far[first : first + DOCUMENTS]
        found: Mapping[str, Any] = reader.cat(keys, on_error="return")
        for key in keys:
            if isinstance(found[key], bytes):  # else an error: as above
                yield int(key), found[key]


class _Alike:
    """Reads documents one after the other; those that are like the last one that was parsed, fast."""

    def __init__(self) -> None:
        self._pattern: Pattern | None = None

    def read(self, document: Any, fo: Any) -> ReferenceSet | None:
        """Return the references, URLs absolute; None where the set has to be opened to know what it means."""
        data: bytes | None = None
        members: Members | None
        match document:
            case MadeSet(content=ReferenceSet() as at_hand):
                return at_hand if _is_plain(at_hand) else None
            case bytes():
                data = document
                members = decoded(data) if len(data) <= SMALL else None
            case _:
                members = members_of(document)
        refs = None if self._pattern is None or members is None else self._pattern.read(members)
        if refs is None:
            where = fo if isinstance(fo, str) else "the given references"
            try:
                refs = parse_document(document, where, {}) if data is None else parse(data, where, {})
            except RefShardError:
                return None  # as above
            if not _is_plain(refs):
                return None
            if members is not None:
                self._pattern = Pattern.of(members, refs)
        elif members is not None and members.pins is not None:
            try:
                refs = msgspec.structs.replace(refs, pins=Pins.read(members.pins, refs.urls, str(fo)))
            except RefShardError:
                return None  # as above
        return respelled(refs, respelling(OpenOptions(), fo if isinstance(fo, str) else None, None))


def _is_plain(refs: ReferenceSet) -> bool:
    """Whether what the set holds is what it shows: all metadata at hand, and no chunk manifests in it."""
    mark = MARK.decode()
    for key, value in refs.side.items():
        if not zarrmeta.is_metadata(key):
            continue
        match value:
            case str() if not value.startswith("base64:"):
                if mark in value:
                    return False
            case dict():
                if MARK in zarrmeta.dumps(value):
                    return False
            case _:
                return False
    return True


def _to_read(part: Named) -> Iterator[Variable]:
    """Yield the coordinates whose values are to be read."""
    for path, variable in part.variables.items():
        table = part.refs.tables.get(path)
        if table is not None and variable.is_coordinate and len(table) and _is_small(variable):
            yield variable


def with_coordinates(part: Named, fs: RefShardFileSystem) -> Named:
    """Return ``part``, which ``fs`` shows, with the values of its coordinates inline."""
    refs = part.refs
    tables, side = dict(refs.tables), dict(refs.side.items())
    for variable in _to_read(part):
        grid = tables[variable.path].grid
        keys = [join(variable.path, grid.tail(number)) for number in tables[variable.path].present().tolist()]
        side.update(fs.cat(keys))
        tables[variable.path] = ChunkTable.from_parts(grid, [])
    return part._replace(refs=msgspec.structs.replace(refs, tables=tables, side=side))


def _is_small(variable: Variable) -> bool:
    meta = variable.meta
    return meta.shape[0] <= LONGEST and dtype_of(meta) is not None and not is_sharded(variable)


def is_sharded(variable: Variable) -> bool:
    """Whether what the set has of an array are its shards."""
    codecs = variable.meta.raw.get("codecs") or ()
    return "shards" in variable.meta.raw or any(
        isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
    )

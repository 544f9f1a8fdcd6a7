"""The sets that are to be joined, as columns, with the values of their coordinates.

Sets that were made here, and JSON documents, need no filesystem each: documents are read together, and of those that
are spelled alike one is parsed. All others, and those whose coordinates have to be read, are opened one by one.
"""

from __future__ import annotations

import fnmatch
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, UInt64s
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Names, Steps
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError, RefShardError, TargetNotAllowed
from refshard_fs.formats.chunk_manifest.entries import MARK
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA
from refshard_fs.security.admission import is_trusted
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.session.collect import respelled
from refshard_fs.session.in_memory_source import source_of
from refshard_fs.session.options import route
from refshard_fs.sets.rebase import MadeSet, opened, warn_adopted
from refshard_fs.sets.variables import Named, Variable, VariableReader
from refshard_fs.writing.save import respelling

# ----------------------------------------------------------------------------------------------------
# JSON reference sets that are spelled as another one: the first is parsed, others are compared with it. No I/O here.
#
# An archive is thousands of sets that differ in URLs, offsets and lengths alone. Where a set has the same keys in the
# same order, the same array metadata, and a byte range wherever the first one has, its chunks have the same numbers,
# and only these columns are made: a fifth of the time that parsing takes. All other sets are left to the parser.


class _Range(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A reference as JSON has it."""

    url: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=0)]


_Values = dict[str, str | _Range | dict[str, Any]]


class _Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pins: dict[str, Any] | None = None


class _Version1(msgspec.Struct, forbid_unknown_fields=True):
    """A document of version 1 without templates."""

    version: Literal[1]
    refs: _Values
    templates: Annotated[dict[str, str], msgspec.Meta(max_length=0)] = {}
    gen: Annotated[list[Any], msgspec.Meta(max_length=0)] = []
    refshard: _Extension = _Extension()


_SHAPES: Final = (_Version1, _Values)
_decoders: Final[list[Any]] = [msgspec.json.Decoder(shape) for shape in _SHAPES]


class Members(NamedTuple):
    """The members of a set, and its pins as JSON has them."""

    values: _Values
    pins: dict[str, Any] | None = None


def members_of(document: bytes | Mapping[str, Any]) -> Members | None:
    """Return the members of a set, in JSON or decoded; None where it has templates, or values of other kinds."""
    for shape, decoder in zip(_SHAPES, _decoders, strict=True):
        try:
            match decoder.decode(document) if isinstance(document, bytes) else msgspec.convert(document, shape):
                case _Version1(refs=values, refshard=extension):
                    return Members(values, extension.pins)
                case values:
                    return None if "version" in values or "refs" in values else Members(values)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return None


class _Array(NamedTuple):
    """The chunks of one array: their numbers, ascending, and the places of their references among all of the set."""

    table: ChunkTable
    numbers: UInt64s
    places: Any  # a slice, or an array


class DocumentTemplate(msgspec.Struct, frozen=True):
    """What sets that are spelled alike have in common."""

    keys: list[str]
    ranges: Callable[[list[Any]], tuple[Any, ...]]
    arrays: Mapping[str, _Array]
    others: list[tuple[int, str, Value | None]]  # place, key, and the value that is the same in all, if it has to be

    @classmethod
    def of(cls, members: Members, refs: ReferenceSet) -> DocumentTemplate | None:
        """Return the template of a set, of which ``refs`` was parsed; None where it is not that regular."""
        if len(refs) != len(members.values):
            return None
        found: dict[str, list[tuple[int, int]]] = {path: [] for path in refs.tables}  # by array: number and place
        chosen: list[int] = []
        others: list[tuple[int, str, Value | None]] = []
        grids = refs.grids
        for number, (key, value) in enumerate(members.values.items()):
            if isinstance(value, _Range):
                at = place(grids, key)
                if at is None:
                    return None
                found[at.array].append((at.number, len(chosen)))
                chosen.append(number)
            elif key in refs.side:
                others.append((number, key, value if key.endswith(METADATA) else None))
            else:
                return None
        if len(chosen) < 2:
            return None
        arrays = {path: _array(refs.tables[path], sorted(chunks)) for path, chunks in found.items()}
        return cls(list(members.values), itemgetter(*chosen), arrays, others)

    def read(self, members: Members) -> ReferenceSet | None:
        """Return the set that members are, as parsing them would; None if they are spelled otherwise."""
        if list(members.values) != self.keys:
            return None
        values = list(members.values.values())
        side: dict[str, Value] = {}
        for number, key, expected in self.others:
            value = values[number]
            if isinstance(value, _Range) or (expected is not None and value != expected):
                return None
            side[key] = value
        rows = self.ranges(values)
        try:
            urls = [row.url for row in rows]
        except AttributeError:  # data
            return None
        codes = {url: code for code, url in enumerate(dict.fromkeys(urls))}
        if any("{{" in url for url in codes):
            return None  # version 1 expands it, even without templates
        try:
            texts = Texts.of(url.encode() for url in codes)
            starts = np.array([row.offset for row in rows], np.int64)
            sizes = np.array([row.length for row in rows], np.int64)
        except (OverflowError, UnicodeEncodeError):
            return None
        targets = np.zeros(len(urls), np.uint32)
        if len(codes) > 1:
            targets[:] = list(map(codes.__getitem__, urls))
        ranges = Ranges(targets, starts.view(np.uint64), sizes.view(np.uint64))
        tables = {path: table for path, (table, _, _) in self.arrays.items()}
        for path, (table, numbers, places) in self.arrays.items():
            own = ranges.take(places)
            if len(numbers) == table.grid.size:
                tables[path] = ChunkTable(table.grid, own)
            elif len(numbers):
                tables[path] = ChunkTable.from_parts(table.grid, [Part(numbers, own)])
        return ReferenceSet(texts, tables, side)


def _array(table: ChunkTable, chunks: list[tuple[int, int]]) -> _Array:
    numbers = np.array([number for number, _ in chunks], np.uint64)
    places = np.array([place for _, place in chunks], np.int64)
    in_order = len(places) > 0 and bool((np.diff(places) == 1).all())
    return _Array(table, numbers, slice(int(places[0]), int(places[-1]) + 1) if in_order else places)


OnError = Literal["raise", "skip"]  # what is done where a set cannot be opened or read
TOGETHER: Final = 16  # sets that are opened at a time
DOCUMENTS: Final = 32  # documents that are read at a time
SMALL: Final = 1 << 18  # bytes of a document: larger ones are parsed as fast as they are compared
LONGEST: Final = 1 << 20  # elements of a coordinate that is read and kept in the set
# Options that decide what a document means: with one of these each set is opened by itself.
MEANING: Final = frozenset(
    (
        *("base_url", "format", "fs", "remote_protocol"),
        *("simple_templates", "target", "target_protocol", "template_overrides"),
    )
)
# Options that decide how a document is read.
READING: Final = frozenset(["concurrency", "fast_s3", "max_memory", "options", "retries", "timeout"])


def read_sets(
    sets: Sequence[Any],
    options: Mapping[str, Any],
    count: Callable[[int], object],
    failed: dict[int, Exception] | None = None,
) -> list[Named]:
    """Return ``sets``, each of which `RefShardFileSystem` takes with ``options``; ``count(1)`` is called for each.

    Where ``failed`` is given, sets that cannot be opened or read are left out, and it takes their errors by number.
    TargetNotAllowed where one that is somebody else's points to where it may not.
    """
    variables = VariableReader()
    found: dict[int, Named] = {}
    adopted: list[str] = []

    def named(number: int, refs: ReferenceSet) -> Named:
        fo = sets[number]
        name = f"set {number} ({fo})" if isinstance(fo, str) else f"set {number}"
        return Named(name, refs, variables.read(refs, name))

    if options.keys().isdisjoint(MEANING):
        parser = _DocumentParser()
        for number, document in _documents(sets, options):
            refs = parser.parse(document, sets[number])
            if refs is None:
                continue
            adopted.append(_adopted(sets[number], refs.urls, options))
            part = named(number, refs)
            if not any(_coordinates_to_read(part)):
                found[number] = part
                count(1)

    def read(number: int) -> Named | None:
        try:
            fs = opened(sets[number], options)
            refs = fs._collect()
            adopted.append(fs._session.adopt(refs.urls))
            part = with_coordinates(named(number, refs), fs)
        except TargetNotAllowed:
            raise
        except (RefShardError, FileNotFoundError) as e:
            if failed is None:
                raise
            failed[number] = e
            return None
        finally:
            count(1)
        return part

    # Threads wait for the network; local sets take the interpreter, which runs one thread at a time.
    left = [number for number in range(len(sets)) if number not in found]
    remote = any(isinstance(sets[number], str) and not _is_local(sets[number]) for number in left)
    with ThreadPoolExecutor(TOGETHER if remote else 1) as pool:
        found.update((number, part) for number, part in zip(left, pool.map(read, left), strict=True) if part)
    warn_adopted(*adopted)
    return [found[number] for number in sorted(found)]


def skipped(failed: Mapping[int, Exception], *, any_left: bool) -> None:
    """Warn of each set that was left out; raise the first error where no other set is left."""
    for number, error in sorted(failed.items()):
        if not any_left:
            raise error
        warnings.warn(f"set {number} is left out: {error}", UserWarning, stacklevel=3)


# ----------------------------------------------------------------------------------------------------
# Patterns: the sources that they match, in natural order.


WEB: Final = ("http", "https")  # whose URLs have a query after a question mark
_DIGITS: Final = re.compile(r"(\d+)")


def expanded(sets: Any, options: Mapping[str, Any]) -> list[Any]:
    """Return ``sets``, a source or a list of them, with all that patterns (``*`` and ``?``) match.

    ManifestError where one matches nothing, or lies where nothing can be listed.
    """
    if isinstance(sets, str | os.PathLike):
        sets = [os.fspath(sets)]
    if isinstance(sets, bytes | Mapping) or not isinstance(sets, Sequence):
        return cast("list[Any]", sets)  # who takes them says what is wrong
    found: list[Any] = []
    for fo in sets:
        if isinstance(fo, str) and "::" not in fo and ("*" in fo or ("?" in fo and protocol_of(fo) not in WEB)):
            found += _matches(fo, options)
        else:
            found.append(fo)
    return found


def natural(text: str) -> list[Any]:
    """Return the key by which texts with numbers in them sort: ``day2`` before ``day10``."""
    return [int(part) if number % 2 else part for number, part in enumerate(_DIGITS.split(text))]


def _matches(pattern: str, options: Mapping[str, Any]) -> list[str]:
    url = source_of(pattern, options.get("target_protocol"), None, True)
    fs = _reader({"0": str(url)}, options)
    found = sorted(fs._session.run("", lambda: _walk(str(url))), key=natural)
    if not found:
        raise ManifestError(f"{pattern!r} matches nothing")
    return found


def _walk(url: str) -> Steps[list[str]]:
    """Return all URLs that a pattern matches, level by level: the directories of one are listed together."""
    scheme, colons, path = url.rpartition("://")
    first, *steps = path.split("/")
    known = [f"{scheme}{colons}{first}"]
    for depth, step in enumerate(steps):
        if "*" not in step and "?" not in step:
            known = [f"{place}/{step}" for place in known]
            continue
        matches = re.compile(fnmatch.translate(step)).match
        listings = yield tuple(Names(folder or "/") for folder in known)
        is_last = depth == len(steps) - 1
        below: list[str] = []
        for folder, names in zip(known, listings, strict=True):
            if names is None:
                raise ManifestError(
                    f"{folder} cannot be listed, so no pattern can be matched there: give a list of URLs"
                )
            below += [f"{folder}/{n.name}" for n in names if matches(n.name) and (is_last or n.is_directory)]
        known = below
    return known


def _reader(urls: Mapping[str, str], options: Mapping[str, Any]) -> RefShardFileSystem:
    """Return a filesystem of the objects ``urls`` by key, read with the options that the user gave for them."""
    passed = {name: value for name, value in options.items() if name in READING}
    credentials = options.get("ref_storage_args", options.get("target_options"))
    if credentials is not None:
        passed["fs"] = {protocol_of(url) or "file": dict(credentials) for url in urls.values()}
        passed.pop("options", None)
    return opened({key: [url] for key, url in urls.items()}, passed)


def _is_local(url: str) -> bool:
    return protocol_of(url) in (None, *LOCAL)


def _adopted(fo: Any, urls: Iterable[str | None], options: Mapping[str, Any]) -> str:
    """Return what is to be known of the set ``fo`` if it is somebody else's; TargetNotAllowed where a URL is refused.

    The set that is made is the user's own, which may point anywhere.
    """
    if not isinstance(fo, str) or is_trusted(fo):
        return ""
    given = {name: options.get(name) for name in ("fs", "remote_protocol", "remote_options", "options", "allow")}
    routes = route(fo, source_options=options.get("ref_storage_args", options.get("target_options")), **given)
    return routes.admission.adopt(urls)


def _documents(sets: Sequence[Any], options: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield number and document (a mapping, bytes or a `MadeSet`) of the sets that need not be opened for it."""
    named: list[int] = []
    for number, fo in enumerate(sets):
        match fo:
            case str() if fo.endswith(".json") and "::" not in fo:
                named.append(number)
            case dict() | MadeSet():
                yield number, fo
    if not named:
        return
    reader = _reader({str(number): sets[number] for number in named}, options)
    for first in range(0, len(named), DOCUMENTS):
        keys = list(map(str, named[first : first + DOCUMENTS]))
        for key, data in reader.cat(keys, on_error="return").items():
            if isinstance(data, bytes):  # what cannot be read is opened by itself, which tells why
                yield int(key), data


class _DocumentParser:
    """Parses documents one after the other; those that are spelled as the last one that was parsed, fast."""

    def __init__(self) -> None:
        self._template: DocumentTemplate | None = None

    def parse(self, document: Any, fo: Any) -> ReferenceSet | None:
        """Return the references, URLs absolute; None where the set has to be opened to know what it means."""
        if isinstance(document, MadeSet):
            return document.columns if _is_plain(document.columns) else None
        try:
            refs = self._parsed(document, fo if isinstance(fo, str) else "the given references")
        except RefShardError:
            return None  # who opens it tells why
        if refs is None:
            return None
        return respelled(refs, respelling(OpenOptions(), fo if isinstance(fo, str) else None, None))

    def _parsed(self, document: Any, where: str) -> ReferenceSet | None:
        is_large = isinstance(document, bytes) and len(document) > SMALL
        members = None if is_large else members_of(document)
        if members is not None and self._template is not None:
            refs = self._template.read(members)
            if refs is not None:
                pins = None if members.pins is None else Pins.read(members.pins, refs.urls, where)
                return msgspec.structs.replace(refs, pins=pins)
        refs = parse(document, where, {}) if isinstance(document, bytes) else parse_document(document, where, {})
        if not _is_plain(refs):
            return None
        if members is not None:
            self._template = DocumentTemplate.of(members, refs)
        return refs


def _is_plain(refs: ReferenceSet) -> bool:
    """Whether what the set holds is what it shows: all metadata inline, and no chunk manifests in it."""
    for key, value in refs.side.items():
        if not zarrmeta.is_metadata(key):
            continue
        match value:
            case str() if not value.startswith("base64:"):
                if MARK.decode() in value:
                    return False
            case dict():
                if MARK in zarrmeta.dumps(value):
                    return False
            case _:
                return False
    return True


def with_coordinates(part: Named, fs: RefShardFileSystem) -> Named:
    """Return ``part``, which ``fs`` shows, with the values of its coordinates inline."""
    refs = part.refs
    tables, side = dict(refs.tables), dict(refs.side.items())
    for variable in _coordinates_to_read(part):
        grid = tables[variable.path].grid
        keys = [join(variable.path, grid.tail(number)) for number in tables[variable.path].present().tolist()]
        side.update(fs.cat(keys))
        tables[variable.path] = ChunkTable.from_parts(grid, [])
    return msgspec.structs.replace(part, refs=msgspec.structs.replace(refs, chunks=tables, members=side))


def _coordinates_to_read(part: Named) -> Iterator[Variable]:
    """Yield the coordinates whose values are references."""
    for path, variable in part.variables.items():
        table = part.refs.tables.get(path)
        if table is not None and variable.is_coordinate and len(table):
            meta = variable.meta
            if meta.shape[0] <= LONGEST and dtype_of(meta) is not None and not variable.is_sharded:
                yield variable

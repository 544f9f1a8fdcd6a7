"""JSON reference sets, parsed one after the other: of those that are spelled alike one is parsed. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, UInt64s
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import place
from refshard_fs.core.strings import Texts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.chunk_manifest.entries import MARK
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA
from refshard_fs.session.collect import respelled
from refshard_fs.sets.rebase import MadeSet
from refshard_fs.writing.save import respelling

SMALL: Final = 1 << 18  # bytes of a document: larger ones are parsed as fast as they are compared

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
        arrays = {path: _array(refs.tables[path], sorted(chunks)) for path, chunks in found.items()}
        return cls(list(members.values), _taking(chosen), arrays, others)

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


def _taking(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return what takes the values at ``places`` of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _array(table: ChunkTable, chunks: list[tuple[int, int]]) -> _Array:
    numbers = np.array([number for number, _ in chunks], np.uint64)
    places = np.array([place for _, place in chunks], np.int64)
    in_order = len(places) > 0 and bool((np.diff(places) == 1).all())
    return _Array(table, numbers, slice(int(places[0]), int(places[-1]) + 1) if in_order else places)


def is_document(url: str) -> bool:
    """Whether what lies at ``url`` is, by its name, a JSON reference set."""
    return url.endswith(".json") and "::" not in url


class DocumentParser:
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

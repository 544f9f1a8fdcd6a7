"""Sources that are alike: one is parsed, and the others are compared with it. No I/O here.

An archive is thousands of files by one writer, or of reference sets made from such files. Of 10,000 HDF5 files each
takes 0.5 ms of processor time so, and 3.8 ms where each is parsed; of JSON sets of 10 references 0.5 and 4.8 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Texts, UInt64s
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.core.model import Facts, Head, Inline, Load, Need, Span, Steps, drive, meet_unknown
from refshard_fs.errors import RefShardError
from refshard_fs.formats.chunk_manifest.entries import MARK
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.references.binary import shrink
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.shared_members import SharedMembers
from refshard_fs.references.values import METADATA
from refshard_fs.security.origins import MEMBER, Origins
from refshard_fs.sets.rebase import MadeSet
from refshard_fs.source.collect import respell_urls
from refshard_fs.writing.save import respelling

SIZES: Final = 16  # templates that are remembered, each of another file size: some 64 KiB each
FLIPPED: Final = (0xFF, 0x55)  # bits that are flipped in chunks, to see whether the references depend on them
DIFFERING: Final = 1024  # differing bytes of two files among which inline values are looked for
SMALL: Final = 1 << 18  # bytes of a document: larger ones are parsed as fast as they are compared

# ----------------------------------------------------------------------------------------------------
# JSON reference sets that differ in URLs, offsets, lengths and inline data alone.
#
# Where a set has the same keys in the same order, the same array metadata, and a byte range wherever the first set has
# one, its chunks have the same numbers: only the columns are made. All other sets are left to the parser.


class _Range(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A reference as JSON has it."""

    url: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=0)]


_Values = dict[str, str | _Range | dict[str, Any]]


class _Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pins: dict[str, Any] | None = None
    origins: dict[str, tuple[str, ...]] = msgspec.field(name=MEMBER, default_factory=dict)


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
    """The members of a set, with the pins and origins of its targets."""

    values: _Values
    said: _Extension = _Extension()


def members_of(document: bytes | Mapping[str, Any]) -> Members | None:
    """Return the members of a set, in JSON or decoded; None where it has templates, or values of other kinds."""
    for shape, decoder in zip(_SHAPES, _decoders, strict=True):
        try:
            match decoder.decode(document) if isinstance(document, bytes) else msgspec.convert(document, shape):
                case _Version1(refs=values, refshard=extension):
                    return Members(values, extension)
                case values:
                    return None if "version" in values or "refs" in values else Members(values)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return None


class _Array(NamedTuple):
    """The chunks of one array: their numbers, ascending, and the positions of their references among all of the set."""

    table: ChunkTable
    numbers: UInt64s
    positions: Any  # a slice, which takes no copy, where they follow one another; else an array


class DocumentTemplate(msgspec.Struct, frozen=True):
    """What sets that are alike have in common."""

    keys: list[str]
    are_ranges: list[bool]  # which members are references
    arrays: Mapping[str, _Array]
    others: list[tuple[int, str, Value | None]]  # position, key, and the value if all sets must have the same

    @classmethod
    def of(cls, members: Members, refs: ReferenceSet) -> DocumentTemplate | None:
        """Return the template of a set with the parsed ``refs``; None if it is not regular enough."""
        if len(refs) != len(members.values):
            return None
        chunks: dict[str, list[tuple[int, int]]] = {path: [] for path in refs.tables}  # by array: number and position
        are_ranges = [isinstance(value, _Range) for value in members.values.values()]
        others: list[tuple[int, str, Value | None]] = []
        grids, count = refs.grids, 0
        for position, (key, value) in enumerate(members.values.items()):
            if isinstance(value, _Range):
                at = find_chunk(grids, key)
                if at is None:
                    return None
                chunks[at.array].append((at.number, count))
                count += 1
            elif key in refs.side:
                others.append((position, key, value if key.endswith(METADATA) else None))
            else:
                return None
        arrays = {}
        for path, rows in chunks.items():
            columns = np.array(sorted(rows), np.int64).reshape(-1, 2)
            numbers, positions = columns[:, 0].astype(np.uint64), columns[:, 1]
            are_consecutive = len(positions) > 0 and bool((np.diff(positions) == 1).all())
            chosen = slice(int(positions[0]), int(positions[-1]) + 1) if are_consecutive else positions
            arrays[path] = _Array(refs.tables[path], numbers, chosen)
        return cls(list(members.values), are_ranges, arrays, others)

    def read(self, members: Members) -> ReferenceSet | None:
        """Return the set that parsing the members would give; None if they are not like the template's."""
        if list(members.values) != self.keys:
            return None
        values: list[Any] = list(members.values.values())
        side: dict[str, Value] = {}
        for position, key, expected in self.others:
            value = values[position]
            if isinstance(value, _Range) or (expected is not None and value != expected):
                return None
            side[key] = value
        rows = list(compress(values, self.are_ranges))
        try:
            urls = [row.url for row in rows]
            codes = {url: code for code, url in enumerate(dict.fromkeys(urls))}
            texts = Texts.of(url.encode() for url in codes)
            offsets = np.array([row.offset for row in rows], np.int64)
            lengths = np.array([row.length for row in rows], np.int64)
        except (AttributeError, OverflowError, UnicodeEncodeError):  # data, or what the parser has to judge
            return None
        if any("{{" in url for url in codes):
            return None  # version 1 expands it, even without templates
        targets = np.zeros(len(urls), np.uint32)
        if len(codes) > 1:
            targets[:] = list(map(codes.__getitem__, urls))
        ranges = Ranges(targets, offsets.view(np.uint64), lengths.view(np.uint64))
        tables = {path: table for path, (table, _, _) in self.arrays.items()}
        for path, (table, numbers, positions) in self.arrays.items():
            own = ranges.take(positions)
            if len(numbers) == table.grid.size:
                tables[path] = ChunkTable(table.grid, own)
            elif len(numbers):  # an array without references stays as it is
                tables[path] = ChunkTable.from_parts(table.grid, [Part(numbers, own)])
        return ReferenceSet(texts, tables, side)


def is_document(url: str) -> bool:
    """Whether what lies at ``url`` is, by its name, a JSON reference set."""
    return url.endswith(".json") and "::" not in url


class DocumentParser:
    """Parses documents one after the other; those that are like the last one that was parsed, fast."""

    def __init__(self) -> None:
        self._template: DocumentTemplate | None = None

    def parse(self, document: Any, fo: Any) -> ReferenceSet | None:
        """Return the references, URLs absolute; None if only opening the set tells its meaning."""
        if isinstance(document, MadeSet):
            return document.columns if _is_plain(document.columns) else None
        try:
            refs = self._parse_document(document, fo if isinstance(fo, str) else "the references in memory")
        except RefShardError:
            return None  # who opens it tells why
        if refs is None:
            return None
        return respell_urls(refs, respelling(OpenOptions(), fo))

    def _parse_document(self, document: Any, where: str) -> ReferenceSet | None:
        is_large = isinstance(document, bytes) and len(document) > SMALL
        members = None if is_large else members_of(document)
        if members is not None and self._template is not None:
            refs = self._template.read(members)
            if refs is not None:
                pins = None if members.said.pins is None else Pins.read(members.said.pins, refs.urls, where)
                return msgspec.structs.replace(refs, pins=pins, origins=Origins(members.said.origins))
        refs = parse(document, where, {}) if isinstance(document, bytes) else parse_document(document, where, {})
        if not _is_plain(refs):
            return None
        if members is not None:
            self._template = DocumentTemplate.of(members, refs)
        return refs


def _is_plain(refs: ReferenceSet) -> bool:
    """Whether all metadata are inline and none refer to chunk manifests: then the references are what readers see."""
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


# ----------------------------------------------------------------------------------------------------
# Files that differ from another one only in the bytes of their chunks: their references are the same.
#
# Files by one writer whose chunks have the same lengths often have the same headers and indexes, byte by byte. So a
# file is compared with the last one of its size, without the ranges of its chunks. Before a template is used, a file
# with other bytes in these ranges is parsed: the references must be the same, or the parser reads something there that
# is no chunk.


T = TypeVar("T")
# Returns the steps that find what a source refers to.
Look = Callable[["FirstBytes"], Steps[ReferenceSet | None]]
# Tables without the chunks that are to be inline, and where these lie, by key.
Inlined = tuple[Mapping[str, ChunkTable], Mapping[str, Span]]


class FirstBytes:
    """The first bytes of the object at ``url``: they are read once, and nothing that lies in them is read again."""

    def __init__(self, url: str, length: int) -> None:
        self.url = url
        self.facts: Facts | None = None
        self.data = b""
        self.are_all = True  # whether all reads were answered
        self._head = Head(url, length)
        self._answers: dict[Head, Any] = {}  # None: there is no such object; or the error

    def read(self) -> Steps[None]:
        """Read them; an error is kept, and raised when they are asked for."""
        try:
            found = yield self._head
        except Exception as e:  # noqa: BLE001
            found = e
        self._answers[self._head] = found
        if isinstance(found, tuple):
            self.facts, self.data = found

    def with_data(self, data: bytes) -> FirstBytes:
        """Return the same object with other bytes."""
        other = FirstBytes(self.url, self._head.length)
        other.facts, other.data = self.facts, data
        other._answers[self._head] = other.facts, other.data
        return other

    def run(self, steps: Steps[T]) -> Steps[T]:
        """Return what ``steps`` return."""
        return (yield from drive(steps, partial(meet_unknown, find=self._find)))

    def _find(self, need: Need) -> tuple[Any] | None:
        """Answer from the first bytes; None if bytes lie elsewhere, or are damaged: the engine composes the error."""
        match need:
            case Head() if need in self._answers:
                found = self._answers[need]
                if isinstance(found, Exception):
                    raise found
                return (found,)
            case Load(Inline(data), index):
                pass
            case Load(Span(url, start, int(stop)), index) if url == self.url and 0 <= start <= stop <= len(self.data):
                data = self.data[start:stop]
            case _:
                self.are_all = False
                return None
        with suppress(ValueError):
            return (index.decode(data),)
        self.are_all = False
        return None


class FileTemplate(NamedTuple):
    """A file that was parsed: its first bytes, which of them are outside of chunks, and its references.

    ``values`` are where the bytes of inline coordinates lie, by key: offset and end; ``has_all`` once these are all.
    ``is_safe`` tells whether references do not depend on chunks; None until that was tried.
    """

    data: npt.NDArray[np.uint8]
    is_outside: npt.NDArray[np.bool_]
    refs: ReferenceSet
    values: Mapping[str, tuple[int, int]] = {}
    has_all: bool = False
    is_safe: bool | None = None

    @classmethod
    def of(cls, first: FirstBytes, refs: ReferenceSet) -> FileTemplate | None:
        """Return the template; None where more than the first bytes were read, or references are to other files."""
        if not first.are_all or refs.pins is not None or len(refs.urls) != 1 or refs.urls[0] != first.url:
            return None
        is_outside = np.ones(len(first.data), bool)
        for table in refs.tables.values():
            _, ranges = table.part()
            near = ranges.take(ranges.offsets < len(is_outside))
            for start, length in zip(near.offsets.tolist(), near.lengths.tolist(), strict=True):
                is_outside[start : start + length] = False
        return cls(np.frombuffer(first.data, np.uint8), is_outside, refs)

    def compare(self, other: FileTemplate) -> FileTemplate:
        """Return the template that knows where inline values lie which differ from those of another file."""
        if len(self.data) != len(other.data):
            return self
        differing = np.flatnonzero((self.data != other.data) & self.is_outside).tolist()[:DIFFERING]
        is_outside, values = self.is_outside.copy(), dict(self.values)
        for key, value in self.refs.side.items():
            theirs = other.refs.side.get(key)
            if zarrmeta.is_metadata(key) or not isinstance(value, bytes) or not isinstance(theirs, bytes):
                continue
            inner = next((i for i, (a, b) in enumerate(zip(value, theirs, strict=False)) if a != b), len(value))
            for start in (at - inner for at in differing if inner <= at and inner < len(value)):
                stop = start + len(value)
                if self.data[start:stop].tobytes() == value and other.data[start:stop].tobytes() == theirs:
                    values[key] = start, stop
                    is_outside[start:stop] = False
                    break
        return self._replace(is_outside=is_outside, values=values)

    def with_inline(self, first: FirstBytes, wanted: Inlined | None) -> FileTemplate:
        """Return the template with the ``wanted`` chunks inline, if they lie in the first bytes of a file."""
        if wanted is None:
            return self._replace(has_all=True)
        tables, spans = wanted
        values = dict(self.values)
        for key, span in spans.items():
            if span.url != first.url or span.stop is None or not 0 <= span.start <= span.stop <= len(first.data):
                return self
            values[key] = span.start, span.stop
        refs = ReferenceSet(self.refs.urls, tables, self.refs.side)
        return self._replace(refs=refs, values=values, has_all=True)

    def fits(self, first: FirstBytes) -> bool:
        """Whether a file has the same bytes outside of chunks."""
        data = np.frombuffer(first.data, np.uint8)
        return len(data) == len(self.data) and not ((data ^ self.data) * self.is_outside).any()

    def flip(self, first: FirstBytes, bits: int) -> FirstBytes:
        """Return the first bytes of a file, with ``bits`` flipped in those of chunks."""
        data = np.frombuffer(first.data, np.uint8) ^ (~self.is_outside * np.uint8(bits))
        return first.with_data(data.tobytes())

    def at(self, first: FirstBytes) -> ReferenceSet:
        """Return the references of a file that `fits`."""
        members = {key: first.data[start:stop] for key, (start, stop) in self.values.items()}
        side = SharedMembers(self.refs.side, members) if members else self.refs.side
        return ReferenceSet(Texts.of([first.url]), self.refs.tables, side)


class FileTemplates:
    """The last files that were parsed, by size. ``inlined`` says which of their chunks are to be inline."""

    def __init__(self, look: Look, inlined: Callable[[str, ReferenceSet], Inlined | None] | None = None) -> None:
        self._look = look
        self._inlined = inlined
        self._by_size: dict[int, FileTemplate] = {}

    def find(self, first: FirstBytes) -> tuple[ReferenceSet, bool] | None:
        """Return the references of a file that is like one that was parsed; None if it has to be parsed, too.

        With them goes whether all chunks that are to be inline are.
        """
        size = None if first.facts is None else first.facts.size
        template = None if size is None else self._by_size.get(size)
        if size is None or template is None or not template.fits(first):
            return None
        if template.is_safe is None:
            template = template._replace(
                is_safe=all(self._finds(template, template.flip(first, bits)) for bits in FLIPPED)
            )
            if template.is_safe and self._inlined is not None:
                template = template.with_inline(first, self._inlined(first.url, template.at(first)))
            self._by_size[size] = template
        return (template.at(first), template.has_all) if template.is_safe else None

    def add(self, first: FirstBytes, refs: ReferenceSet) -> None:
        """Remember a file that was parsed."""
        template = FileTemplate.of(first, refs)
        if template is None or first.facts is None or first.facts.size is None:
            return
        last = self._by_size.pop(first.facts.size, None)
        if last is not None:  # of a size that was not safe once none will ever do
            template = last if last.is_safe is False else template.compare(last)
        self._by_size[first.facts.size] = template
        while len(self._by_size) > SIZES:
            del self._by_size[next(iter(self._by_size))]

    def _finds(self, template: FileTemplate, first: FirstBytes) -> bool:
        """Whether parsing a file gives the references that its template has for it."""
        try:
            next(self._look(first))
        except StopIteration as stop:
            return isinstance(stop.value, ReferenceSet) and shrink(stop.value) == shrink(template.at(first))
        except Exception:  # noqa: BLE001  # the references do depend on chunks
            return False
        return False  # it asks for more

"""Parse a JSON reference set by the template of another set that differs only in URLs, ranges and inline data.

If a set has the same keys in the same order, the same array metadata, and a byte range wherever the other set has
one, its chunks have the same numbers: only the columns are made. All other sets are left to the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Texts, UInt64s
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.errors import RefShardError
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA
from refshard_fs.security.origins import MEMBER, Origins
from refshard_fs.sets.made_set import MadeSet
from refshard_fs.source.collect import respell_urls
from refshard_fs.source.in_memory_source import parse_references
from refshard_fs.source.recognition import names_manifests
from refshard_fs.writing.save import make_speller

SMALL: Final = 1 << 18  # bytes of a document: parsing a larger document takes no longer than comparing it


class _Range(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A reference in JSON: ``[url, offset, length]``."""

    url: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=0)]


_Values = dict[str, str | _Range | dict[str, Any]]


class _Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The member ``refshard`` of a document: pins and origins of targets."""

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
    extension: _Extension = _Extension()


def decode_members(document: bytes | Mapping[str, Any]) -> Members | None:
    """Return the members of a set, given as JSON or decoded; None if it has templates, or values of other kinds."""
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
    """The chunks of one array: their numbers, ascending, and the positions of their references among all references."""

    table: ChunkTable
    numbers: UInt64s
    positions: Any  # a slice, which takes no copy, if they are consecutive; else an array


class DocumentTemplate(msgspec.Struct, frozen=True):
    """The keys, the metadata and the places of references that similar sets have in common."""

    keys: list[str]
    are_ranges: list[bool]  # whether each member is a reference
    arrays: Mapping[str, _Array]
    others: list[tuple[int, str, Value | None]]  # position, key, and the value if all sets must have the same

    @classmethod
    def of(cls, members: Members, refs: ReferenceSet) -> DocumentTemplate | None:
        """Return the template of a set with the parsed ``refs``.

        None if a reference is not a chunk of an array, or if another member is not a key of ``refs``.
        """
        if len(refs) != len(members.values):
            return None
        # For each chunk its number, and its position among the references.
        chunks: dict[str, list[tuple[int, int]]] = {path: [] for path in refs.tables}
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
        """Return the set that parsing the members would give; None if they do not fit the template."""
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
        except (AttributeError, OverflowError, UnicodeEncodeError):  # only the parser can tell what the value means
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
    """Return whether ``url`` ends like the URL of a JSON reference set, and is not a chain of URLs."""
    return url.endswith(".json") and "::" not in url


class DocumentParser:
    """Parse documents one after the other; a document that fits the template of the last one is parsed faster."""

    def __init__(self) -> None:
        self._template: DocumentTemplate | None = None

    def parse(self, document: Any, fo: Any) -> ReferenceSet | None:
        """Return the references, with absolute URLs; None if the set has to be opened as a source."""
        if isinstance(document, MadeSet):
            return document.columns if _is_plain(document.columns) else None
        try:
            refs = self._parse_document(document, fo if isinstance(fo, str) else "the references in memory")
        except RefShardError:
            return None  # opening it as a source raises the error with its reason
        if refs is None:
            return None
        return respell_urls(refs, make_speller(OpenOptions(), fo))

    def _parse_document(self, document: Any, where: str) -> ReferenceSet | None:
        is_large = isinstance(document, bytes) and len(document) > SMALL
        members = None if is_large else decode_members(document)
        if members is not None and self._template is not None:
            refs = self._template.read(members)
            if refs is not None:
                extension = members.extension
                pins = None if extension.pins is None else Pins.read(extension.pins, refs.urls, where)
                return msgspec.structs.replace(refs, pins=pins, origins=Origins(extension.origins))
        refs = parse_references(document, where)
        if not _is_plain(refs):
            return None
        if members is not None:
            self._template = DocumentTemplate.of(members, refs)
        return refs


def _is_plain(refs: ReferenceSet) -> bool:
    """Return whether all metadata are inline, and none refer to chunk manifests: then readers see the references."""
    for key, value in refs.side.items():
        if not zarrmeta.is_metadata(key):
            continue
        match value:
            case str() if not value.startswith("base64:"):
                data = value.encode("utf-8", "surrogatepass")
            case dict():
                data = zarrmeta.dumps(value)
            case _:
                return False
        if names_manifests(data):
            return False
    return True

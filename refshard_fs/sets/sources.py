"""The sets that are to be joined, as columns, with the values of their coordinates.

Sets that were made here, and JSON documents, need no filesystem each: documents are read together, and of those that
are spelled alike one is parsed. All others, and those whose coordinates have to be read, are opened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable
from refshard_fs.core.dtypes import dtype_of
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import join
from refshard_fs.errors import RefShardError
from refshard_fs.formats.chunk_manifest.declaration import MARK
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.admission import is_trusted
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.session.collect import respelled
from refshard_fs.session.options import route
from refshard_fs.sets.document_template import DocumentTemplate, members_of
from refshard_fs.sets.made_set import MadeSet, opened
from refshard_fs.sets.variables import Named, Variable, VariableReader
from refshard_fs.writing.save import respelling

__all__ = ["read_sets", "with_coordinates"]

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


def read_sets(sets: Sequence[Any], options: Mapping[str, Any], count: Callable[[int], object]) -> list[Named]:
    """Return ``sets``, each of which `RefShardFileSystem` takes with ``options``; ``count(1)`` is called for each.

    TargetNotAllowed where one that is somebody else's points to where it may not.
    """
    variables = VariableReader()
    found: dict[int, Named] = {}

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
            _check_targets(sets[number], refs.urls, options)
            part = named(number, refs)
            if not any(_coordinates_to_read(part)):
                found[number] = part
                count(1)

    def read(number: int) -> Named:
        fs = opened(sets[number], options)
        refs = fs._collect()
        fs._session.admit(refs.urls)
        part = with_coordinates(named(number, refs), fs)
        count(1)
        return part

    # Threads wait for the network; local sets take the interpreter, which runs one thread at a time.
    left = [number for number in range(len(sets)) if number not in found]
    remote = any(isinstance(sets[number], str) and not _is_local(sets[number]) for number in left)
    with ThreadPoolExecutor(TOGETHER if remote else 1) as pool:
        found.update(zip(left, pool.map(read, left), strict=True))
    return [found[number] for number in range(len(sets))]


def _is_local(url: str) -> bool:
    return protocol_of(url) in (None, *LOCAL)


def _check_targets(fo: Any, urls: Iterable[str | None], options: Mapping[str, Any]) -> None:
    """Raise TargetNotAllowed if the set ``fo`` is somebody else's, and names URLs that it may not.

    The set that is made is the user's own, which may point anywhere.
    """
    if not isinstance(fo, str) or is_trusted(fo):
        return
    given = {name: options.get(name) for name in ("fs", "remote_protocol", "remote_options", "options", "allow")}
    routes = route(fo, source_options=options.get("ref_storage_args", options.get("target_options")), **given)
    known = [url for url in urls if url is not None]
    rule = routes.admission
    if routes.fallback and known:
        rule = rule.naming(protocol_of(known[0]) or "file")
    for url in known:
        rule.admit(url)


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
    passed = {name: value for name, value in options.items() if name in READING}
    credentials = options.get("ref_storage_args", options.get("target_options"))
    if credentials is not None:
        passed["fs"] = {protocol_of(sets[number]) or "file": dict(credentials) for number in named}
        passed.pop("options", None)
    reader = opened({str(number): [sets[number]] for number in named}, passed)
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

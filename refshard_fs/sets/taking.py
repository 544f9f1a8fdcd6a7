"""The sets that are to be joined, as columns, with the values of their coordinates: many at once where they are alike.

Sets at hand and JSON documents need no filesystem each: documents are read together, one of those that are alike is
parsed, the rest compared with it. All others, and those whose coordinates are to be read, are opened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import msgspec

from refshard_fs import zarrmeta
from refshard_fs.admission import is_trusted
from refshard_fs.collecting import respelled
from refshard_fs.columns import ChunkTable
from refshard_fs.errors import RefShardError
from refshard_fs.formats import OpenOptions
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.keys import join
from refshard_fs.manifests.alike import Members, Pattern, decoded, members_of
from refshard_fs.manifests.declared import MARK
from refshard_fs.manifests.kerchunk_json import parse, parse_document
from refshard_fs.manifests.plain_values import dtype_of
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.variables import Known, Named, Variable, variables
from refshard_fs.pins import Pins
from refshard_fs.policy import LOCAL, protocol_of
from refshard_fs.routing import route
from refshard_fs.save import respelling
from refshard_fs.sets.made import MadeSet
from refshard_fs.sets.rebasing import opened

__all__ = ["is_sharded", "take", "with_coordinates"]

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
        refs = fs.collect()
        fs.admit(refs.urls)
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

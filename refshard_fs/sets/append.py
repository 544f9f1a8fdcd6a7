"""A set that grows by another one, in place: what is new is written as edits of the set, and committed whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.edits import REMOVED, Edit
from refshard_fs.core.keys import join
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ManifestError, NoSuchSource
from refshard_fs.formats.virtual_concat.keyspace import ConcatKeySpace
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.key_table import Value
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.session.in_memory_source import source_of
from refshard_fs.session.overlay import Base
from refshard_fs.session.recognition import beneath
from refshard_fs.sets.compatibility import with_digests
from refshard_fs.sets.concat import concat_document, relative_urls, url_of_set
from refshard_fs.sets.concatenation import concatenate
from refshard_fs.sets.rebase import opened
from refshard_fs.sets.sources import read_sets, with_coordinates
from refshard_fs.sets.variables import Named, VariableReader
from refshard_fs.targets.document import Document


def append(
    target: str | os.PathLike[str],
    fo: Any,
    dim: str,
    *,
    same: Iterable[str] = (),
    callback: Callback = DEFAULT_CALLBACK,
    **options: Any,
) -> None:
    """Let the set at ``target`` go on along ``dim`` with the set ``fo``, as if both had been given to `concat`.

    ``target`` is the URL of a JSON or parquet set, of a hierarchy with chunk manifests, or of a document that `concat`
    made with ``lazy=True``: that gets one line more, and ``fo`` is a URL then. ``options`` are further arguments of
    `RefShardFileSystem` for both. The set does not change until it has all of the new one, whatever happens.

    Raises SourceNotReachable if there is no set yet, ManifestError where the two do not fit, ConflictError if somebody
    else wrote the target meanwhile, and ReadOnlyError where it cannot be written: then nothing is changed.
    ``callback`` counts what is written.

    >>> import fsspec, json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> def day(url):
    ...     return {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}', "a/0": [url, 0, 2]}
    >>> refshard_fs.RefShardFileSystem(day("memory://one")).save("memory://grows.json")
    >>> refshard_fs.append("memory://grows.json", day("memory://two"), "time")
    >>> refshard_fs.RefShardFileSystem("memory://grows.json").references["a/1"]
    ['memory://two', 0, 2]
    """
    url = source_of(os.fspath(target), options.get("target_protocol"), None, True)
    fs = RefShardFileSystem(
        str(url), **{**options, "mode": "a", "shards": "whole", "index_cache": False, "skip_instance_cache": True}
    )
    base = fs._writing("append").base()
    match beneath(base.keyspace):
        case ConcatKeySpace() as joined:
            _append_line(fs, base, joined, fo, dim, frozenset(same), options)
            callback.set_size(1)
            callback.relative_update(1)
            return
        case keyspace:
            holds_pins = isinstance(keyspace, FlatKeySpace)
    try:
        edits = dict(_edits(fs, str(url), fo, dim, frozenset(same), options, holds_pins=holds_pins))
        callback.set_size(len(edits))
        for key, edit in edits.items():
            fs._writing("append").edit(key, edit)
            callback.relative_update(1)
        fs.commit()
    except BaseException:
        fs.discard()
        raise


def _edits(
    fs: RefShardFileSystem,
    url: str,
    fo: Any,
    dim: str,
    same: frozenset[str],
    options: Mapping[str, Any],
    *,
    holds_pins: bool,
) -> Iterator[tuple[str, Edit]]:
    """Yield what the set of ``fs``, at ``url``, is to have or to lose, by key."""
    before = fs._collect()
    if not len(before):
        raise NoSuchSource(
            f"there is no set at {url} that could go on: fs.save(url) or concat(...).save(url) writes one"
        )
    name = f"the set at {url}"
    old = with_coordinates(Named(name, before, VariableReader().read(before, name)), fs)
    (new,) = read_sets([fo], options, _ignore)
    new = msgspec.structs.replace(new, name=new.name.replace("set 0", "the set to append", 1))
    if new.refs.pins is not None and not holds_pins:
        raise ManifestError(f"{new.name} is pinned, which {url} cannot hold: give the pins up with unpinned()")
    opens = (lambda: fs), (lambda: opened(fo, options))
    parts = with_digests([old, new], lambda number: opens[number](), [dim], same)
    whole = concatenate(parts, dim, same).refs
    for path, table in whole.tables.items():
        known = before.tables.get(path)
        if known is not None and path in old.variables and dim in old.variables[path].dims:
            yield from _removed(path, known, whole, before)
        part = table.part()
        chosen = part.ranges.targets >= (0 if known is None else len(before.urls))  # targets of the new set come last
        for number in part.numbers[chosen].tolist():
            row = table.row(number)
            if row is not None:
                yield join(path, table.grid.tail(number)), _span(whole, row)
    for key, value in whole.side.items():
        if key == ".zmetadata" and not holds_pins:
            continue  # a parquet set has its own
        if type(value) is Row:
            if value.target >= len(before.urls):
                yield key, _span(whole, value)
        elif not _is_same(before.side.get(key), value):
            yield key, Inline(decode(value))


def _removed(path: str, known: ChunkTable, whole: ReferenceSet, before: ReferenceSet) -> Iterator[tuple[str, Edit]]:
    """Yield the chunks of an array that are no longer there: those of a coordinate that is now in one."""
    if len(whole.tables[path]):
        return  # references go on where they are
    keys = {join(path, known.grid.tail(number)) for number in known.present().tolist()}
    keys |= {key for key in before.side if key.startswith(path + "/") and not zarrmeta.is_metadata(key)}
    yield from ((key, REMOVED) for key in sorted(keys) if key not in whole.side)


def _span(refs: ReferenceSet, row: Row) -> Span:
    url = refs.urls[row.target]
    if url is None:
        raise ManifestError("a reference without a URL cannot be appended: give target=")
    pin = None if refs.pins is None else refs.pins.pin(row.target)
    return Span(url, row.offset, None if row.length is None else row.offset + row.length, pin=pin)


def _is_same(before: Value | None, now: Value) -> bool:
    if before is None or type(before) is Row or type(now) is Row:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        return before == now
    return decode(before) == decode(now)


def _append_line(
    fs: RefShardFileSystem,
    base: Base,
    joined: ConcatKeySpace,
    fo: Any,
    dim: str,
    same: frozenset[str],
    options: Mapping[str, Any],
) -> None:
    document = joined.document
    if document.dim != dim:
        raise ManifestError(f"{base.url} joins its sets along {document.dim!r}, not {dim!r}")
    new = url_of_set(fo, options, base.url)
    ends = [document.parts[0], *document.parts[1:][-1:]]
    urls = [*(joined.resolve(part.url) for part in ends), new]
    found = concat_document(urls, dim, same, options, _ignore)
    for part, now in zip(ends, found.parts, strict=False):
        if part.length != now.length:
            raise ManifestError(
                f"{part.url!r} of {base.url} has the length {now.length} now, not {part.length}: make the document anew"
            )
    if found.axes != document.axes or found.coordinate != document.coordinate:
        raise ManifestError(
            f"{base.url} joins {sorted(document.axes)} (coordinate {document.coordinate!r}), and its sets now have "
            f"{sorted(found.axes)} (coordinate {found.coordinate!r}) along {dim!r}: make the document anew"
        )
    line = msgspec.structs.replace(found.parts[-1], url=relative_urls(base.url)(new))
    Document(base.url, fs._session.given(base.url), base.facts).put(document.with_parts([line]).dumps())


def _ignore(count: int) -> None:
    """Take no notice of how many sets were opened."""

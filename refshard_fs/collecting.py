"""Whatever a source is, as one reference set in columns: URLs absolute, metadata at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from refshard_fs import zarrmeta
from refshard_fs.catalog import beneath
from refshard_fs.columns import ABSENT, ChunkTable, Part, Row
from refshard_fs.edited import EditedKeySpace
from refshard_fs.errors import ManifestError
from refshard_fs.formats import OpenOptions, Raw
from refshard_fs.keys import join
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.editing import with_edits
from refshard_fs.manifests.flat import FlatKeySpace
from refshard_fs.manifests.gathered import gather
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.manifests.kerchunk_json import parse_document
from refshard_fs.manifests.kerchunk_parquet import ParquetKeySpace
from refshard_fs.manifests.manifest_view import ManifestView
from refshard_fs.manifests.reference_set import References, ReferenceSet
from refshard_fs.manifests.reference_stream import ParquetStream, Respell
from refshard_fs.manifests.snapshots import pinned, taken
from refshard_fs.model import Load, Steps
from refshard_fs.pins import Pins
from refshard_fs.shards.view import ShardView
from refshard_fs.texts import Texts

__all__ = ["Run", "collect", "pin", "respelled", "texts_of"]

# Returns what a look-up (made anew for each try) returns, on behalf of a key.
Run = Callable[[str, Callable[[], Steps[Any]]], Any]

ROWS = 1 << 17  # references of a parquet set that are taken at a time


def collect(keyspace: KeySpace, run: Run, respell: Respell) -> ReferenceSet:
    """Return all references of ``keyspace``, their URLs respelled; ``run`` meets what it takes to load them.

    Raises ManifestError where a reference set cannot hold what there is.
    """
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    match keyspace:
        case EditedKeySpace(base=base, edits=edits):
            assert not isinstance(base, ShardView), "edits are of keys that are stored: `shard_edits` makes them"
            return with_edits(collect(base, run, respell), edits.at_hand(), "what was written")
        case ManifestView(maps_anything=True):
            pass
        case _:
            match beneath(keyspace):
                case FlatKeySpace() as flat:
                    refs: ReferenceSet = run("", partial(_with_metadata, flat))
                    return respelled(refs, respell)
                case ParquetKeySpace() as lazy:
                    return columns_of(lazy, run, respell)
    refs, extras = run("", partial(gather, keyspace))
    if extras:
        raise ManifestError(
            f"the chunk manifest of {next(iter(extras))!r} says more of chunks than where they are: "
            "a set of references cannot hold that"
        )
    return respelled(refs, respell)


def pin(
    keyspace: KeySpace,
    run: Run,
    respell: Respell,
    threshold: int,
    shard_options: tuple[tuple[str, Any], ...] | None,
    tell: Callable[[int], object],
) -> ReferenceSet:
    """Return all references of ``keyspace`` pinned to what their targets are now, as `snapshots` does.

    ``tell`` hears of how many more objects are known. With ``shard_options`` sharded arrays become arrays of their
    inner chunks.
    """
    found: ReferenceSet
    if isinstance(keyspace, EditedKeySpace) and not len(keyspace.edits):
        keyspace = keyspace.base
    match keyspace if isinstance(keyspace, EditedKeySpace) else beneath(keyspace):
        case Hierarchy() as hierarchy:
            found = respelled(run("", partial(taken, hierarchy, threshold, tell)), respell)
        case _:
            refs = collect(keyspace, run, respell)
            found = run("", partial(pinned, refs, tell))
    return found if shard_options is None else run("", partial(_flattened, found, shard_options))


def _flattened(refs: ReferenceSet, shard_options: tuple[tuple[str, Any], ...]) -> Steps[ReferenceSet]:
    """Return ``refs`` with references to inner chunks in place of those to shards."""
    base = FlatKeySpace(refs, str, "the snapshot")
    mapped = ManifestView(base, OpenOptions())
    yield from mapped.learn(has_root=True)
    if mapped.maps_anything:
        raise ManifestError("chunk manifests are among the keys: their shards cannot be flattened; use shards='whole'")
    view = ShardView(base, shard_options)
    yield from view.learn()
    if not view.shards_anything:
        return refs
    flat, _ = yield from gather(view)
    return flat


def respelled(refs: ReferenceSet, respell: Respell) -> ReferenceSet:
    """Return ``refs`` with other URLs; the columns are shared."""
    urls = list(refs.urls)
    new = list(map(respell, urls))
    return refs if new == urls else msgspec.structs.replace(refs, urls=texts_of(new))


def texts_of(urls: list[str | None]) -> Texts:
    """Return URLs as they lie in a set."""
    return Texts.of(None if url is None else url.encode("utf-8", "surrogatepass") for url in urls)


def _with_metadata(keyspace: FlatKeySpace) -> Steps[ReferenceSet]:
    """Return the references; documents that are references themselves are read, and made inline."""
    refs = keyspace.refs
    missing = [key for key, value in refs.side.items() if type(value) is Row and zarrmeta.is_metadata(key)]
    if not missing:
        return refs
    found: dict[str, Any] = {}
    for key in missing:
        entry = yield from keyspace.lookup(key)
        if entry is not None:
            found[key] = yield Load(entry, Raw())
    inline = parse_document(dict(References(refs)) | found, keyspace.where, {})
    if refs.pins is None:
        return inline
    return msgspec.structs.replace(inline, pins=Pins.matched(refs.pins.by_url(refs.urls), inline.urls))


def columns_of(keyspace: ParquetKeySpace, run: Run, respell: Respell, array: str | None = None) -> ReferenceSet:
    """Return the references of a parquet set in columns; or those of one array."""
    stream = ParquetStream(keyspace, respell)
    side: dict[str, Any] = dict(stream.documents())
    urls: dict[str | None, int] = {}
    tables = {}
    for path, grid in stream.grids.items():
        if array is not None and path != array:
            continue
        parts = []
        for numbers in run(path, partial(stream.ranges, path, ROWS)):
            partition = run(path, partial(stream.partition, path, numbers))
            codes = np.array([urls.setdefault(url, len(urls)) for url in partition.urls], np.uint32)
            rows = np.flatnonzero(partition.targets != ABSENT)
            targets = codes[partition.targets[rows]]
            parts.append(
                Part(
                    (rows + numbers.start).astype(np.uint64), targets, partition.offsets[rows], partition.lengths[rows]
                )
            )
            side.update((join(path, grid.tail(numbers.start + row)), data) for row, data in partition.inline.items())
        tables[path] = ChunkTable.from_parts(grid, parts)
    return ReferenceSet(texts_of(list(urls)), tables, side)

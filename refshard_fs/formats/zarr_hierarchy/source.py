"""Open a zarr hierarchy, and pin it: make references to all its keys in their current versions. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Row, Texts
from refshard_fs.core.consolidated import DOCUMENTS
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import KeySpace, find_chunk
from refshard_fs.core.model import Listed, Load, Names, Pin, Raw, Span, Steps, iterate_batches
from refshard_fs.errors import NotListable
from refshard_fs.references.key_table import Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, find_grid
from refshard_fs.references.versions import STAT_BATCH, make_pin, request_facts
from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import make_locator, protocol_of


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a zarr hierarchy: read the metadata documents of its root, unless they were read to recognise it."""
    if probe.absent:  # the source was recognised by requests for the documents of the root, without a listing
        documents = {name: document.data for name, document in probe.documents.items()} | dict.fromkeys(probe.absent)
        listable = None if protocol_of(probe.url) in WEB else True
        return ZarrHierarchy(probe.url, listable=listable, documents=documents)
    names: Sequence[Listed] | None = yield Names(probe.url)
    existing = [listed.name for listed in names or () if listed.name in DOCUMENTS]
    locate = make_locator(probe.url)
    answers: Sequence[Any] = yield tuple(Load(Span(locate(name), optional=True), Raw()) for name in existing)
    return ZarrHierarchy(probe.url, listable=names is not None, documents=dict(zip(existing, answers, strict=True)))


class ZarrHierarchy(Hierarchy):
    """A zarr hierarchy, of which a snapshot can be made."""

    def snapshot(self, threshold: int, on_progress: OnProgress) -> Steps[ReferenceSet]:
        return (yield from _pin_hierarchy(self, threshold, on_progress))


# A pinned hierarchy has references to all keys, each with the current version of its object. If the target can list,
# listings have sizes, ETags and times. Otherwise consolidated metadata have the keys that may exist, and each is
# requested.


OnProgress = Callable[[int], object]


def _pin_hierarchy(hierarchy: Hierarchy, threshold: int, on_progress: OnProgress) -> Steps[ReferenceSet]:
    """Return references to all keys of ``hierarchy``; metadata of up to ``threshold`` bytes are inline.

    ``on_progress(n)`` is called when n more keys are resolved. Raises NotListable if the target cannot list, and there
    are no consolidated metadata.
    """
    if (yield from hierarchy.can_list()):
        pins = yield from _list_pins(hierarchy, on_progress)
        documents, grids = yield from _read_documents(hierarchy, pins)
    else:
        pins = yield from _request_pins(hierarchy, sorted((yield from hierarchy.find_nodes()).keys), on_progress)
        documents, grids = yield from _read_documents(hierarchy, pins)
        if not pins:
            raise NotListable(
                f"{hierarchy.url} cannot be listed (plain HTTP cannot list) and has no consolidated metadata: call "
                "zarr.consolidate_metadata on the store, or open it by its address on an object store, such as "
                "s3://bucket/store"
            )
        for path, grid in grids.items():
            pins |= yield from _request_pins(hierarchy, (join(path, tail) for tail in grid.tails()), on_progress)
    side: dict[str, Value] = {}
    rows: dict[str, list[tuple[int, Row]]] = {path: [] for path in grids}
    urls: list[str] = []
    url_pins: list[Pin] = []
    for key, pin in pins.items():
        data = documents.get(key)
        if data is not None and len(data) <= threshold:
            side[key] = data
            continue
        at = None if data is not None else find_chunk(grids, key)
        urls.append(hierarchy.url_of(key))
        url_pins.append(pin)
        if at is None:
            side[key] = Row(len(urls) - 1, 0, None)
        else:
            rows[at.array].append((at.number, Row(len(urls) - 1, 0, pin.size)))
    tables = {path: ChunkTable.from_parts(grid, [Part.from_rows(rows[path])]) for path, grid in grids.items()}
    return ReferenceSet(Texts.of(urls), tables, side, pins=Pins.of(url_pins))


def _list_pins(hierarchy: Hierarchy, on_progress: OnProgress) -> Steps[dict[str, Pin]]:
    """List all keys, with the versions of their objects, in order of key."""
    pins: dict[str, Pin] = {}
    listed_before = yield from hierarchy.list_directories("")
    directories = [""]
    while directories:
        batch, directories = directories[:STAT_BATCH], directories[STAT_BATCH:]
        urls = [hierarchy.url_of(directory) for directory in batch]
        if listed_before is None:
            listings = yield tuple(map(Names, urls))
        else:
            listings = [listed_before.get(url) for url in urls]
        for directory, names in zip(batch, listings, strict=True):
            for listed in names or ():
                key = join(directory, listed.name)
                if listed.is_directory:
                    directories.append(key)
                else:
                    pins[key] = Pin(listed.etag, listed.last_modified, listed.size, exact=True)
                    on_progress(1)
    return dict(sorted(pins.items()))


def _request_pins(hierarchy: Hierarchy, keys: Iterable[str], on_progress: OnProgress) -> Steps[dict[str, Pin]]:
    """Request the versions of ``keys``; return them by key for the keys that exist."""
    pins: dict[str, Pin] = {}
    remaining = iter(keys)
    while batch := list(islice(remaining, STAT_BATCH)):
        answers = yield from request_facts([hierarchy.url_of(key) for key in batch])
        pins |= {key: pin for key, facts in zip(batch, answers, strict=True) if (pin := make_pin(facts)) is not None}
        on_progress(len(batch))
    return pins


def _read_documents(
    hierarchy: Hierarchy, pins: Mapping[str, Pin]
) -> Steps[tuple[dict[str, bytes], dict[str, ChunkGrid]]]:
    """Read all metadata in the versions of ``pins``. Return the documents by key, and the grids of arrays by path."""
    keys = [key for key in pins if zarrmeta.is_metadata(key)]
    documents: dict[str, bytes] = {}
    for batch in iterate_batches(keys, STAT_BATCH):
        answers: Sequence[Any] = yield tuple(Load(Span(hierarchy.url_of(key), pin=pins[key]), Raw()) for key in batch)
        documents.update(zip(batch, answers, strict=True))
    grids: dict[str, ChunkGrid] = {}
    for key, data in documents.items():
        path, _, name = key.rpartition("/")
        grid = find_grid(key, data, hierarchy.url) if name in METADATA else None
        if grid is not None:
            grids[path] = grid
    return documents, grids

"""Compare two sources: their arrays, their metadata, and the places of their chunks.

Chunks are compared in columns, a block of the grid at a time: a million takes a fraction of a second. Some of the keys
that differ are named. No chunk is read, except chunks that one source holds inline, or makes from other bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from fsspec.callbacks import Callback

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import UInt64s, renumber
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.model import iterate_batches
from refshard_fs.core.version_3 import convert_array, convert_group
from refshard_fs.core.zarrmeta import CONSOLIDATED
from refshard_fs.errors import ManifestError
from refshard_fs.source.collect import add_packing_type
from refshard_fs.tools.progress import show_progress
from refshard_fs.tools.survey import BATCH, INLINE, Extents, PlacedChunks, Survey, SurveyedFileSystem, read_keys, survey
from refshard_fs.tools.views import EscapedStruct

NAMED: Final = 10  # the most keys of each kind that are named
BLOCK: Final = 1 << 16  # chunks of the grid that are compared at a time: about 8 MB for both sources
Keys = tuple[str, ...]


class DocumentChange(EscapedStruct, frozen=True):
    """A metadata document of both sources, and its fields that differ."""

    key: str
    fields: tuple[str, ...]


class Changes(EscapedStruct, frozen=True):
    """The number of keys that differ below the array ``path`` (None: keys that are not chunks), and the first ones."""

    path: str | None
    added: int
    removed: int
    changed: int
    some_added: Keys = ()
    some_removed: Keys = ()
    some_changed: Keys = ()


class Difference(EscapedStruct, frozen=True):
    """The difference of two sources: ``added`` members are only in the second one, ``removed`` only in the first.

    ``not_compared`` are arrays of both sources whose chunks one of them cannot list.
    """

    groups_added: Keys
    groups_removed: Keys
    arrays_added: Keys
    arrays_removed: Keys
    metadata_added: Keys
    metadata_removed: Keys
    metadata_changed: tuple[DocumentChange, ...]
    keys: tuple[Changes, ...]
    not_compared: Keys = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference, and everything was compared."""
        return not any(getattr(self, name) for name in self.__struct_fields__)


def compare(first: SurveyedFileSystem, second: SurveyedFileSystem) -> Difference:
    """Return the difference of two sources.

    URLs are compared as absolute URLs. Metadata are compared by their meaning, also between versions of zarr.
    Consolidated metadata make no difference if they repeat the documents of their source.
    """
    a, b = survey(first, in_blocks=True), survey(second, in_blocks=True)
    unlisted = {path for found in (a, b) for path, extents in found.arrays.items() if not extents.listed}
    with show_progress("diff") as shown:
        comparison = _Comparison(first, second, shown)
        changes = [comparison.compare_keys(None, _Side(a, a.rest), _Side(b, b.rest))]
        paths = sorted((a.arrays.keys() | b.arrays.keys()) - unlisted)
        changes += [comparison.compare_keys(path, _make_side(a, path, b), _make_side(b, path, a)) for path in paths]
    ours, theirs, implied = _make_comparable(_simplify(a.documents, first), _simplify(b.documents, second))
    documents = ((key, _list_different_fields(ours[key], theirs[key])) for key in sorted(ours.keys() & theirs.keys()))
    return Difference(
        groups_added=_subtract(b.groups, {*a.groups, *implied}),
        groups_removed=_subtract(a.groups, {*b.groups, *implied}),
        arrays_added=_subtract(b.arrays, a.arrays),
        arrays_removed=_subtract(a.arrays, b.arrays),
        metadata_added=_subtract(theirs, ours),
        metadata_removed=_subtract(ours, theirs),
        metadata_changed=tuple(DocumentChange(key, fields) for key, fields in documents if fields),
        keys=tuple(change for change in changes if change.added or change.removed or change.changed),
        not_compared=tuple(sorted(unlisted & a.arrays.keys() & b.arrays.keys())),
    )


def _subtract(names: Iterable[str], others: Iterable[str]) -> Keys:
    """Return the ``names`` that are not in ``others``, sorted."""
    return tuple(sorted(set(names).difference(others)))


MetadataDocument = Mapping[str, Any] | bytes  # bytes if the document is not a JSON object


def _list_different_fields(a: MetadataDocument, b: MetadataDocument) -> tuple[str, ...]:
    """Return the fields in which two documents differ; "(text)" if one of them is not a JSON object."""
    if isinstance(a, bytes) or isinstance(b, bytes):
        return () if a == b else ("(text)",)
    # Compared as JSON: in Python, NaN differs from itself, and 1 equals True.
    texts = [{name: zarrmeta.dumps(value) for name, value in document.items()} for document in (a, b)]
    return tuple(name for name in dict.fromkeys([*a, *b]) if texts[0].get(name) != texts[1].get(name))


def _make_comparable(
    a: dict[str, MetadataDocument], b: dict[str, MetadataDocument]
) -> tuple[dict[str, MetadataDocument], dict[str, MetadataDocument], set[str]]:
    """Return the simplified documents of both sources in one form, and the groups that one source has by paths alone.

    If one source has metadata of version 2 for a node, and the other of version 3, they are compared in version 3.
    """
    both = a, b
    nodes = [{parent(key)[0]: key.endswith("zarr.json") for key in documents} for documents in both]
    implied: set[str] = set()
    for documents, own, other in zip(both, nodes, reversed(nodes), strict=True):
        for path, is_version_3 in own.items():
            if not is_version_3 and other.get(path):
                _convert(documents, path)
            elif is_version_3 and path not in other and _is_implied(path, other):
                key = join(path, "zarr.json")
                if documents.get(key) == convert_group({}) | {"attributes": {}}:
                    del documents[key]
                    implied.add(path)
    return *both, implied


def _simplify(texts: Mapping[str, bytes], source: SurveyedFileSystem) -> dict[str, MetadataDocument]:
    """Return documents without members that have their default values, and without repeated metadata.

    Types of packing attributes, which sets of references record in attributes, are added to all documents.
    """
    documents = {key: _parse(text) for key, text in texts.items()}
    short = {key: _shorten(key, document) for key, document in documents.items()}
    dtypes = source.attribute_dtypes
    for key in documents.keys() if dtypes else ():
        documents[key] = _parse(add_packing_type(texts[key], key, dtypes))
    out: dict[str, MetadataDocument] = {}
    for key, document in documents.items():
        path, name = parent(key)
        if isinstance(document, bytes):
            out[key] = document
        elif name == CONSOLIDATED:
            if _parse_consolidated(document, path) != {k: short[k] for k in short if _is_version_2(k, path)}:
                out[key] = document
        elif name != ".zattrs" or document:
            shown = _shorten(key, document)
            inline = document.get("consolidated_metadata")
            if inline is not None and name == "zarr.json" and isinstance(shown, dict):
                below = {k: short[k] for k in short if k != key and k.endswith("zarr.json") and is_within(k, path)}
                if _parse_consolidated(document, path) != below:
                    shown = {**shown, "consolidated_metadata": inline}
            out[key] = shown
    return out


def _parse(text: bytes) -> MetadataDocument:
    try:
        found = zarrmeta.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else text


def _shorten(key: str, document: MetadataDocument) -> MetadataDocument:
    """Return a document of zarr version 3 in its shortest form; other documents unchanged."""
    if isinstance(document, bytes) or parent(key)[1] != "zarr.json":
        return document
    shown = {name: value for name, value in document.items() if name != "consolidated_metadata"}
    if not shown.get("storage_transformers"):
        shown.pop("storage_transformers", None)
    if not any(shown.get("dimension_names") or ()):
        shown.pop("dimension_names", None)
    return {**shown, "attributes": shown.get("attributes") or {}}


def _is_version_2(key: str, path: str) -> bool:
    return parent(key)[1] in (".zarray", ".zgroup", ".zattrs") and is_within(key, path)


def _parse_consolidated(document: Mapping[str, Any], path: str) -> dict[str, MetadataDocument] | None:
    """Return the documents in the consolidated metadata of the group ``path``; None if the metadata are damaged."""
    found: dict[str, MetadataDocument] = {}
    try:
        for inner, name, content, _ in zarrmeta.iterate_consolidated_nodes(document):
            if not isinstance(content, dict):
                return None
            key = join(join(path, inner), name)
            found[key] = _shorten(key, content)
    except ManifestError:
        return None
    return found


def _convert(documents: dict[str, MetadataDocument], path: str) -> None:
    """Replace the documents of the node ``path`` by one document of version 3, if they can be converted."""
    old = {name: documents.get(join(path, name)) for name in (".zarray", ".zgroup", ".zattrs")}
    array, attributes = old[".zarray"], old[".zattrs"] or {}
    if isinstance(array, bytes) or isinstance(attributes, bytes):
        return
    try:
        found = convert_group(attributes) if array is None else convert_array(array, attributes, join(path, ".zarray"))
    except ManifestError:
        return
    for name in old:
        documents.pop(join(path, name), None)
    key = join(path, "zarr.json")
    documents[key] = _shorten(key, found)


def _is_implied(path: str, nodes: Mapping[str, bool]) -> bool:
    """Return whether the ``nodes`` below ``path`` all have version 2, in which a group may lack metadata."""
    below = [is_version_3 for node, is_version_3 in nodes.items() if node != path and is_within(node, path)]
    return bool(below) and not any(below)


class _Side(NamedTuple):
    """One of two sources, with its chunks of an array, or its keys that are not chunks."""

    survey: Survey
    extents: Extents
    is_there: bool = True  # False: the source lacks the array

    def find_blocks(self, size: int) -> set[int]:
        """Return the numbers of the blocks of ``size`` chunks that may have chunks."""
        if not self.is_there:
            return set()
        found = set(np.unique(self.extents.chunks.numbers // np.uint64(size)).tolist())
        blocks = self.survey.blocks.get(self.extents.path) if self.extents.meta.grid is not None else None
        return found if blocks is None else found.union(blocks.find_blocks(size))

    def chunks(self, numbers: range, urls: dict[str, int]) -> PlacedChunks:
        """Return the chunks with ``numbers``. Targets are positions in ``urls``; new URLs are added to ``urls``."""
        own = self.extents.chunks if self.is_there else PlacedChunks.of_places(())
        first, last = own.numbers.searchsorted(np.array([numbers.start, numbers.stop], np.uint64)).tolist()
        own = own.take(np.arange(first, last))
        known = np.unique(own.targets)
        codes = [t if t == INLINE else urls.setdefault(self.survey.urls[t], len(urls)) for t in known.tolist()]
        own = own._replace(targets=np.array(codes, np.int64)[np.searchsorted(known, own.targets)])
        blocks = self.survey.blocks.get(self.extents.path) if self.is_there else None
        if blocks is None or self.extents.meta.grid is None:
            return own
        return PlacedChunks.join([blocks.chunks(numbers, urls), own])


def _make_side(source: Survey, path: str, other: Survey) -> _Side:
    extents = source.arrays.get(path)
    return _Side(source, other.arrays[path], is_there=False) if extents is None else _Side(source, extents)


class _ChangedKeys:
    """Count the keys that were added, removed or changed, and keep the names of the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, side: _Side, numbers: UInt64s) -> None:
        self.count += len(numbers)
        for number in numbers[: NAMED - len(self.first)].tolist():
            grid, path = side.extents.meta.grid, side.extents.path
            self.first.append(join(path, side.extents.names[number] if grid is None else grid.tail(number)))


class _Comparison:
    """A comparison of the chunks of two sources."""

    def __init__(self, first: SurveyedFileSystem, second: SurveyedFileSystem, shown: Callback) -> None:
        self._first, self._second, self._shown = first, second, shown

    def compare_keys(self, path: str | None, a: _Side, b: _Side) -> Changes:
        """Return how the chunks of an array differ, or, without a ``path``, the keys that are not chunks."""
        added, removed, changed = _ChangedKeys(), _ChangedKeys(), _ChangedKeys()
        one, other = a.extents.meta.grid, b.extents.meta.grid
        size = _choose_block_size(one, other)
        for block in sorted(a.find_blocks(size) | b.find_blocks(size)):
            urls: dict[str, int] = {}
            numbers = range(block * size, (block + 1) * size)
            ours, theirs = a.chunks(numbers, urls), b.chunks(numbers, urls)
            common = _make_common_numbers(a.extents, b.extents, ours.numbers, theirs.numbers)
            if common is None:
                added.add(b, theirs.numbers)
                removed.add(a, ours.numbers)
                continue
            _, at_a, at_b = np.intersect1d(*common, assume_unique=True, return_indices=True)
            changed.add(a, np.sort(self._find_changed(a, ours.take(at_a), theirs.take(at_b))))
            added.add(b, np.delete(theirs.numbers, at_b))
            removed.add(a, np.delete(ours.numbers, at_a))
        names = tuple(added.first), tuple(removed.first), tuple(changed.first)
        return Changes(path, added.count, removed.count, changed.count, *names)

    def _find_changed(self, side: _Side, ours: PlacedChunks, theirs: PlacedChunks) -> UInt64s:
        """Return the numbers of the chunks that differ; both have the same chunks, in the same order."""
        is_same_end = (ours.stops == theirs.stops) | (ours.is_open & theirs.is_open)
        moved = (ours.targets != theirs.targets) | (ours.starts != theirs.starts) | ~is_same_end
        moved |= ours.derived != theirs.derived
        # If a chunk of one source is not a range of an object, both have to be read to be compared.
        read: npt.NDArray[np.bool_] = (ours.targets == INLINE) | (moved & (theirs.targets == INLINE))
        read |= moved & (ours.derived | theirs.derived)
        grid, path = side.extents.meta.grid, side.extents.path
        names = {
            join(path, side.extents.names[number] if grid is None else grid.tail(number)): number
            for number in ours.numbers[read].tolist()
        }
        differing = [names[key] for key in self._find_differing(list(names))]
        return np.concatenate([ours.numbers[moved & ~read], np.array(differing, np.uint64)])

    def _find_differing(self, keys: Sequence[str]) -> list[str]:
        """Return the ``keys`` whose bytes differ; raise the error if one cannot be read."""
        differing = []
        self._shown.set_size((self._shown.size or 0) + len(keys))
        for batch in iterate_batches(keys, BATCH):
            ours = read_keys(self._first, batch)
            theirs = read_keys(self._second, batch, self._shown.relative_update)
            for key, one, other in zip(batch, ours, theirs, strict=True):
                failed = [data for data in (one, other) if isinstance(data, Exception)]
                if failed:
                    raise failed[0]
                if one != other:
                    differing.append(key)
        return differing


def _choose_block_size(one: ChunkGrid | None, other: ChunkGrid | None) -> int:
    """Return the number of chunks to compare at a time: all, if a chunk has another number in the other grid."""
    if one is None or other is None:
        return zarrmeta.COUNTABLE
    return BLOCK if one.counts[1:] == other.counts[1:] else max(one.size, other.size, 1)


def _make_common_numbers(a: Extents, b: Extents, ours: UInt64s, theirs: UInt64s) -> tuple[UInt64s, UInt64s] | None:
    """Return the chunk numbers of both arrays in a grid that contains both grids; None if their keys differ in form."""
    one, other = a.meta.grid, b.meta.grid
    if one is None and other is None:
        known = {name: number for number, name in enumerate(dict.fromkeys([*a.names, *b.names]))}
        renamed = [[known[names[i]] for i in column.tolist()] for names, column in ((a.names, ours), (b.names, theirs))]
        return np.array(renamed[0], np.uint64), np.array(renamed[1], np.uint64)
    if one is None or other is None or one.encoding != other.encoding or len(one.counts) != len(other.counts):
        return None
    both = ChunkGrid(tuple(map(max, one.counts, other.counts)), one.encoding)
    return renumber(ours, one, both)[0], renumber(theirs, other, both)[0]

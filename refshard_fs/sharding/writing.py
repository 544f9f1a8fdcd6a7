"""Convert metadata that users write through the view to metadata with shards, to store in the source. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.documents import DocumentIndex, NodeView
from refshard_fs.core.keys import parent
from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.sharding.known_shard_formats import unshard_metadata
from refshard_fs.sharding.layout import ShardLayout
from refshard_fs.sharding.view import ArrayInfo, ShardView, Unshard

# A program that writes metadata through the view sees no shards. If it changes the shape or the attributes, the array
# stays sharded. If it changes chunks, codecs or the dtype, it replaces the array by another one, without shards.

_WHERE = "its metadata"
_SIMILAR = ("compressor", "filters", "codecs")  # fields in which a program may write defaults explicitly
_SAME = ("zarr_format", "node_type", "dtype", "data_type")


def update_stored_metadata(
    stored: Mapping[str, Any], written: Mapping[str, Any], options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the metadata to store for an array with metadata ``stored``, if a program writes ``written`` to the view.

    Return None if ``written`` describes another array: then ``written`` itself is to be stored. ``options`` are the
    user's ``shard_options``. Raises ManifestError if the new shape does not fit into the shards.
    """
    shown = _find_inner_metadata(stored, options)
    if shown is None or _find_inner_metadata(written, options) is not None or not _is_same(shown, written):
        return None
    shard_fields = ("chunk_grid", "codecs", "storage_transformers", "shards", "shard_format")
    merged = {**written, **{name: stored[name] for name in shard_fields if name in stored}}
    try:
        found = unshard_metadata(merged, options)
    except ValueError as e:
        raise ManifestError(f"the written shape {written['shape']} does not fit into its shards: {e}") from e
    grid = zarrmeta.grid_of(written)
    if found is None or found.layout is None or grid is None or found.layout.grid.counts != grid.counts:
        raise ManifestError(
            f"expected the stored shape {stored.get('shape')}, got {written['shape']}: an array whose shards have "
            "different sizes cannot change its shape"
        )
    return merged


def _find_inner_metadata(doc: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the metadata that the view shows for an array; None if it shows the stored metadata."""
    found = unshard_metadata(doc, options)
    return None if found is None or found.layout is None else found.document


def _is_same(shown: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Return whether both documents describe the same chunks: shape and fields unrelated to chunks may differ."""
    try:
        ours, theirs = zarrmeta.array_meta(shown, _WHERE), zarrmeta.array_meta(written, _WHERE)
    except ManifestError:
        return False
    if ours is None or theirs is None or ours.grid is None or theirs.grid is None:
        return False
    return (
        all(shown.get(name) == written.get(name) for name in _SAME)
        and (ours.chunks, ours.order, ours.grid.encoding) == (theirs.chunks, theirs.order, theirs.grid.encoding)
        and all(_is_alike(shown.get(name) or None, written.get(name) or None) for name in _SIMILAR)
        and not written.get("storage_transformers")
    )


def _is_alike(ours: object, theirs: object) -> bool:
    """Return whether ``theirs`` describes the same codecs as ``ours``, though it may have more members."""
    match ours, theirs:
        case [*some], [*others]:
            return len(some) == len(others) and all(map(_is_alike, some, others))
        case str(name), {"name": str(other)}:
            return name == other
        case {"name": "transpose", "configuration": {"order": "C" | "F" as order}}, {
            "configuration": {"order": [*axes]}
        }:
            return axes == sorted(axes, reverse=order == "F")
        case {**members}, {**more}:
            return all(_is_alike(value, more.get(name)) for name, value in members.items())
    return ours == theirs


class StoredDocument(NamedTuple):
    """A metadata document to store, and the layout of each array in it; None for an array without shards."""

    data: bytes
    layouts: Mapping[str, ShardLayout | None]


def restore_document(view: ShardView, key: str, data: bytes) -> Steps[StoredDocument]:
    """Return the document to store when ``data`` is written to ``key`` of ``view``.

    Raises ManifestError if a written array does not fit into its shards.
    """
    paths = list(_parse_arrays(key, data))
    found = yield from run_together([view.find_array_info(array) for array in paths])
    stored = {p: seen.stored for p, seen in zip(paths, found, strict=True) if seen is not None and seen.stored}
    document = DocumentIndex(*parent(key), -1, _Resharding(stored, view.options)).decode(data)
    return StoredDocument(document.data, {array: seen.layout for array, seen in document.arrays.items()})


def find_sharded(documents: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    """Return the paths of the arrays with shards in ``documents`` (key and bytes)."""
    described = (_parse_arrays(key, data) for key, data in documents if zarrmeta.is_array_document(key))
    return frozenset(path for arrays in described for path, seen in arrays.items() if seen.layout is not None)


def _parse_arrays(key: str, data: bytes) -> Mapping[str, ArrayInfo]:
    """Return the arrays that the document ``key`` describes."""
    return DocumentIndex(*parent(key), -1, Unshard()).decode(data).arrays


class _Resharding(msgspec.Struct, frozen=True):
    """Add shards to the metadata of arrays: the shards that ``stored`` has for the same array."""

    stored: Mapping[str, Mapping[str, Any]]
    options: tuple[tuple[str, Any], ...]

    def make_rewriter(self, data: bytes) -> Any:
        options = dict(self.options)

        def rewrite(doc: Mapping[str, Any], path: str) -> NodeView[ArrayInfo]:
            if doc.get("node_type") == "group":
                return doc, None
            stored = self.stored.get(path)
            try:
                merged = None if stored is None else update_stored_metadata(stored, doc, options)
            except ManifestError as e:
                raise ManifestError(f"array {path or '/'!r}: {e}") from e
            if merged is None:
                return doc, ArrayInfo(None)
            found = unshard_metadata(merged, options)
            return merged, ArrayInfo(None, None if found is None else found.layout)

        return rewrite

"""`Parser`: a parser for VirtualiZarr that opens any source of `RefShardFileSystem`.

Chunks that are ranges of objects become virtual chunks. The bytes of all other chunks (those that are decoded, joined
from several ranges, or inline in the source) are copied into the manifests, which VirtualiZarr permits since 2.6.1.

Source: VirtualiZarr's `parsers/typing.py`, and its `ChunkManifest`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import NO_TARGET, WHOLE
from refshard_fs.core.keys import join, parent
from refshard_fs.core.model import Entry, Span
from refshard_fs.core.stats import format_bytes
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.stream import ReferenceStream, convert_documents
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sinks.sink import Sink
from refshard_fs.source.collect import MAX_INLINE
from refshard_fs.writing.save import make_speller, make_stream

if TYPE_CHECKING:
    from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup, ManifestStore

ROWS: Final = 100_000  # references in each step of making a manifest


class Parser:
    """Parse any source of `RefShardFileSystem` for VirtualiZarr: TIFF, GRIB, DMR++, sets, cubes, archives and more.

    ``group`` becomes the root, because `open_virtual_dataset` shows only the root. ``skip_variables`` are left out, in
    all groups. ``options`` are arguments of `RefShardFileSystem`. The registry's stores read objects below their
    prefixes. Clients of this package read local files, and objects for which no store is registered.

    Sharded arrays become arrays of their inner chunks, since VirtualiZarr writes sets of zarr format 2, which has no
    shards; ``shards="whole"`` leaves sharded arrays as they are. Versions and checksums of chunks are lost, since
    VirtualiZarr cannot hold them.

    Raises ManifestError, which names the key, if VirtualiZarr cannot hold a chunk, or if the chunks that have to be
    copied have more than 64 MiB together. Raises TargetNotAllowed if the source may not point to a target.

    >>> import refshard_fs.virtualizarr, virtualizarr
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> parser = refshard_fs.virtualizarr.Parser(skip_variables=["lat_bnds"])
    >>> vds = virtualizarr.open_virtual_dataset(  # doctest: +SKIP
    ...     "s3://bucket/scene.tif", registry=ObjectStoreRegistry({"s3://bucket": store}), parser=parser)
    """

    def __init__(self, *, group: str | None = None, skip_variables: Iterable[str] = (), **options: Any) -> None:
        self.group = (group or "").strip("/")
        self.skip_variables = list(skip_variables)
        self.options = options

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Make the manifests of all arrays of the source at ``url``."""
        from virtualizarr.manifests import ManifestStore

        fs = RefShardFileSystem(url, **{"fs": registry, **self.options})
        if self.skip_variables:
            fs = fs.select(drop=self.skip_variables)
        spell, rule = make_speller(fs.source.options.open, fs.fo), fs.source.admission

        def respell(written: str | None) -> str | None:
            url = spell(written)
            if url is not None and not rule.admits_all:
                rule.admit(url)  # VirtualiZarr itself reads any URL for which a store is registered
            return url

        try:
            manifests = _Manifests(make_stream(fs.source.open(), fs.source, respell, None, _ManifestSink))
            return ManifestStore(manifests.make_group(self.group), registry=registry)
        except ManifestError as e:
            e.add_note("To leave out variables that VirtualiZarr cannot hold, pass Parser(skip_variables=[...])")
            raise


class _ManifestSink(Sink):
    """State which kinds of references VirtualiZarr's manifests can hold."""

    name: ClassVar[str] = "virtualizarr"
    holds_packed = True
    needs_lengths = True


class _Manifests:
    """Make VirtualiZarr's groups, arrays and manifests of one source."""

    def __init__(self, references: ReferenceStream) -> None:
        self._references = references
        documents = ((key, value) for key, value in references.documents() if zarrmeta.is_metadata(key))
        self._nodes = convert_documents(documents, references.grids)
        self._copied = 0  # bytes of chunks in the manifests so far

    def make_group(self, path: str) -> ManifestGroup:
        """Make the group at ``path``, with all groups and arrays below it."""
        from virtualizarr.manifests import ManifestGroup

        document = self._nodes.get(path)
        if document is None or document["node_type"] != "group":
            kind = "an array" if document is not None else "nothing"
            raise ManifestError(
                f"expected a group at {path!r}, found {kind}: the root of a store of VirtualiZarr must be a group"
            )
        names = [name for name in self._nodes if name and name != path and parent(name)[0] == path]
        kinds = {name: self._nodes[name]["node_type"] for name in names}
        arrays = {parent(name)[1]: self.make_array(name) for name in names if kinds[name] == "array"}
        groups = {parent(name)[1]: self.make_group(name) for name in names if kinds[name] == "group"}
        return ManifestGroup(arrays=arrays, groups=groups, attributes=document.get("attributes") or {})

    def make_array(self, path: str) -> ManifestArray:
        """Make the array at ``path`` with its manifest."""
        from virtualizarr.manifests import ManifestArray
        from zarr.core.metadata.v3 import ArrayV3Metadata

        # VirtualiZarr finds chunks by this encoding of keys only.
        encoding: dict[str, Any] = {"name": "default", "configuration": {"separator": "/"}}
        try:
            metadata = ArrayV3Metadata.from_dict({**self._nodes[path], "chunk_key_encoding": encoding})
        except (TypeError, ValueError, LookupError) as e:
            raise ManifestError(f"{path!r}: zarr-python cannot read its metadata of zarr format 3: {e}") from e
        return ManifestArray(metadata, self._make_manifest(path))

    def _make_manifest(self, array: str) -> ChunkManifest:
        from virtualizarr.manifests import ChunkManifest

        grid = self._references.grids[array]
        paths = np.full(grid.size, "", dtype=np.dtypes.StringDType())
        offsets, lengths = np.zeros(grid.size, np.uint64), np.zeros(grid.size, np.uint64)
        inlined: dict[int, bytes] = {}
        for numbers, chunks in self._references.partitions(array, ROWS):
            targets, starts, sizes = chunks.ranges
            has_target = targets != NO_TARGET
            uris = np.array([_make_uri(url) or "" for url in (*chunks.urls, None)], dtype=np.dtypes.StringDType())
            uris_by_row = uris[np.where(has_target, targets, len(chunks.urls))]
            is_virtual = (uris_by_row != "") & (sizes != WHOLE)
            rows = np.flatnonzero(is_virtual)
            virtual = rows + numbers.start
            paths[virtual], offsets[virtual], lengths[virtual] = uris_by_row[rows], starts[rows], sizes[rows]

            copies: dict[int, Entry | bytes] = {**chunks.inline, **chunks.packed}
            for row in np.flatnonzero(has_target & ~is_virtual).tolist():
                stop = None if sizes[row] == WHOLE else int(starts[row] + sizes[row])
                copies[row] = Span(chunks.urls[targets[row]] or "", int(starts[row]), stop)
            entries = {join(array, grid.tail(numbers.start + row)): entry for row, entry in copies.items()}
            self._count_copies(entries)
            for row, data in zip(copies, self._references.read(entries), strict=True):
                inlined[numbers.start + row] = data
                lengths[numbers.start + row] = len(data)
            existing = np.concatenate([virtual, np.array([*copies], np.int64) + numbers.start])
            for number in existing[lengths[existing] == 0].tolist():
                key = join(array, grid.tail(number))
                raise ManifestError(f"{key!r} is empty: VirtualiZarr cannot hold a chunk of 0 bytes")
        inlined_chunks: dict[str, Any] = {}
        if inlined:
            if "inlined" not in inspect.signature(ChunkManifest.from_arrays).parameters:
                key = join(array, grid.tail(min(inlined)))
                raise ManifestError(
                    f"{key!r} is not a range of an object: to hold such a chunk, install virtualizarr>=2.6.1"
                )
            module = importlib.import_module("virtualizarr.manifests.manifest")
            paths[list(inlined)] = vars(module)["INLINED_CHUNK_PATH"]  # older versions do not have it
            inlined_chunks["inlined"] = {tuple(grid.coords(number)): data for number, data in inlined.items()}
        shape = tuple(grid.counts)
        return ChunkManifest.from_arrays(
            paths=paths.reshape(shape),
            offsets=offsets.reshape(shape),
            lengths=lengths.reshape(shape),
            validate_paths=False,
            **inlined_chunks,
        )

    def _count_copies(self, entries: Mapping[str, Entry | bytes]) -> None:
        """Count the bytes of ``entries`` that have to be copied; raise ManifestError above `MAX_INLINE` bytes."""
        for key, entry in entries.items():
            if not isinstance(entry, bytes):
                size = entry.size
                self._copied += sum(span.size or 0 for span in entry.spans) if size is None else size
            if self._copied > MAX_INLINE:
                raise ManifestError(
                    f"{key!r} is not a range of an object that VirtualiZarr can read, so it has to be copied into the "
                    f"manifest, but manifests hold at most {format_bytes(MAX_INLINE)} of copies: save the source as an "
                    "Icechunk repository instead, with RefShardFileSystem(url).save('NAME.icechunk')"
                )


def _make_uri(url: str | None) -> str | None:
    """Return ``url`` in the spelling of VirtualiZarr; None if its stores cannot read it."""
    if url is None or "::" in url or url.startswith("data:"):
        return None
    if protocol_of(url) in (None, *LOCAL):
        path = url.partition("://")[2] or url
        return "file://" + path.replace("%", "%25") if os.path.isabs(path) else None
    return url

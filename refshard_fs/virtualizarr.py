"""VirtualiZarr's parser for every source that is opened here: `Parser`.

Chunks that are ranges of objects become virtual chunks. All others (chunks that are decoded, or put together of several
ranges, and those that the source itself holds) go into the manifests as bytes, which VirtualiZarr holds since 2.6.1.

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
from refshard_fs.core.stats import bytes_text
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.stream import ReferenceStream, convert_documents
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sinks.sink import Sink
from refshard_fs.source.collect import INLINED
from refshard_fs.writing.save import respelling, stream_of

if TYPE_CHECKING:
    from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup, ManifestStore

ROWS: Final = 100_000  # references that are handed over at a time


class Parser:
    """VirtualiZarr's parser for whatever `RefShardFileSystem` opens: TIFF, GRIB, DMR++, sets, cubes, archives and more.

    ``group`` is the group that becomes the root: `open_virtual_dataset` shows no other. ``skip_variables`` are left
    out, in all groups. ``options`` are those of `RefShardFileSystem`. The registry's stores read what lies below their
    prefixes; files of this machine, and objects for which no store is registered, are read by our own clients.

    Sharded arrays become arrays of their inner chunks, since VirtualiZarr writes sets of zarr format 2, which has no
    shards; ``shards="whole"`` leaves them as they are. Versions and checksums of chunks are not carried over:
    VirtualiZarr has no place for them.

    Raises ManifestError, which names the key, where VirtualiZarr cannot hold a chunk, and where chunks that are no
    ranges have more than 64 MiB together. TargetNotAllowed where the source may not point to what it does.

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
        """Return the manifests of all arrays of the source at ``url``."""
        from virtualizarr.manifests import ManifestStore

        fs = RefShardFileSystem(url, **{"fs": registry, **self.options})
        if self.skip_variables:
            fs = fs.select(drop=self.skip_variables)
        spell, rule = respelling(fs.source.options.open, fs.fo), fs.source.admission

        def respell(written: str | None) -> str | None:
            url = spell(written)
            if url is not None and not rule.admits_all:
                rule.admit(url)  # VirtualiZarr reads whatever a store is registered for
            return url

        try:
            made = _Manifests(stream_of(fs.source.open(), fs.source, respell, None, _Held))
            return ManifestStore(made.group(self.group), registry=registry)
        except ManifestError as e:
            e.add_note("Parser(skip_variables=[...]) leaves variables out that VirtualiZarr cannot hold")
            raise


class _Held(Sink):
    """What VirtualiZarr's manifests hold of a set."""

    name: ClassVar[str] = "virtualizarr"
    holds_packed = True
    needs_lengths = True


class _Manifests:
    """VirtualiZarr's groups, arrays and manifests of one source."""

    def __init__(self, references: ReferenceStream) -> None:
        self._references = references
        documents = ((key, value) for key, value in references.documents() if zarrmeta.is_metadata(key))
        self._nodes = convert_documents(documents, references.grids)
        self._copied = 0  # bytes of chunks that are no ranges

    def group(self, path: str) -> ManifestGroup:
        """Return the group at ``path``, and all below it."""
        from virtualizarr.manifests import ManifestGroup

        document = self._nodes.get(path)
        if document is None or document["node_type"] != "group":
            what = "an array" if document is not None else "absent"
            raise ManifestError(
                f"expected a group at {path!r}, which is {what}: VirtualiZarr's stores begin at a group"
            )
        below = [name for name in self._nodes if name and name != path and parent(name)[0] == path]
        arrays = {parent(name)[1]: self.array(name) for name in below if self._nodes[name]["node_type"] == "array"}
        groups = {parent(name)[1]: self.group(name) for name in below if self._nodes[name]["node_type"] == "group"}
        return ManifestGroup(arrays=arrays, groups=groups, attributes=document.get("attributes") or {})

    def array(self, path: str) -> ManifestArray:
        """Return the array at ``path``."""
        from virtualizarr.manifests import ManifestArray
        from zarr.core.metadata.v3 import ArrayV3Metadata

        encoding: dict[str, Any] = {
            "name": "default",
            "configuration": {"separator": "/"},
        }  # by which VirtualiZarr finds chunks
        try:
            metadata = ArrayV3Metadata.from_dict({**self._nodes[path], "chunk_key_encoding": encoding})
        except (TypeError, ValueError, LookupError) as e:
            raise ManifestError(f"{path!r}: zarr does not take its metadata as those of version 3: {e}") from e
        return ManifestArray(metadata, self._manifest(path))

    def _manifest(self, array: str) -> ChunkManifest:
        from virtualizarr.manifests import ChunkManifest

        grid = self._references.grids[array]
        paths = np.full(grid.size, "", dtype=np.dtypes.StringDType())
        offsets, lengths = np.zeros(grid.size, np.uint64), np.zeros(grid.size, np.uint64)
        inlined: dict[int, bytes] = {}
        for numbers, chunks in self._references.partitions(array, ROWS):
            targets, starts, sizes = chunks.ranges
            there = targets != NO_TARGET
            uris = np.array([_uri(url) or "" for url in (*chunks.urls, None)], dtype=np.dtypes.StringDType())
            found = uris[np.where(there, targets, len(chunks.urls))]
            is_virtual = (found != "") & (sizes != WHOLE)
            rows = np.flatnonzero(is_virtual)
            at = rows + numbers.start
            paths[at], offsets[at], lengths[at] = found[rows], starts[rows], sizes[rows]

            others: dict[int, Entry | bytes] = {**chunks.inline, **chunks.packed}
            for row in np.flatnonzero(there & ~is_virtual).tolist():
                stop = None if sizes[row] == WHOLE else int(starts[row] + sizes[row])
                others[row] = Span(chunks.urls[targets[row]] or "", int(starts[row]), stop)
            named = {join(array, grid.tail(numbers.start + row)): entry for row, entry in others.items()}
            self._count(named)
            for row, data in zip(others, self._references.read(named), strict=True):
                inlined[numbers.start + row] = data
                lengths[numbers.start + row] = len(data)
            known = np.concatenate([at, np.array([*others], np.int64) + numbers.start])
            for number in known[lengths[known] == 0].tolist():
                key = join(array, grid.tail(number))
                raise ManifestError(f"{key!r} has no bytes: VirtualiZarr cannot hold a chunk of length 0")
        held: dict[str, Any] = {}
        if inlined:
            if "inlined" not in inspect.signature(ChunkManifest.from_arrays).parameters:
                key = join(array, grid.tail(min(inlined)))
                raise ManifestError(
                    f"{key!r} is not a range of an object, and this version of VirtualiZarr holds nothing else: "
                    "install virtualizarr>=2.6.1"
                )
            module = importlib.import_module("virtualizarr.manifests.manifest")
            paths[list(inlined)] = vars(module)["INLINED_CHUNK_PATH"]  # which older versions lack
            held["inlined"] = {tuple(grid.coords(number)): data for number, data in inlined.items()}
        shape = tuple(grid.counts)
        return ChunkManifest.from_arrays(
            paths=paths.reshape(shape),
            offsets=offsets.reshape(shape),
            lengths=lengths.reshape(shape),
            validate_paths=False,
            **held,
        )

    def _count(self, entries: Mapping[str, Entry | bytes]) -> None:
        """Raise ManifestError where the chunks that have to be read are more than manifests should hold."""
        for key, entry in entries.items():
            if not isinstance(entry, bytes):
                size = entry.size
                self._copied += sum(span.size or 0 for span in entry.spans) if size is None else size
            if self._copied > INLINED:
                raise ManifestError(
                    f"{key!r} is not a range of an object that VirtualiZarr can read, and more than "
                    f"{bytes_text(INLINED)} of such chunks are not held in memory: save the source as an Icechunk "
                    "repository (RefShardFileSystem(url).save('made.icechunk'))"
                )


def _uri(url: str | None) -> str | None:
    """Return ``url`` as VirtualiZarr spells it; None where its stores cannot read from there."""
    if url is None or "::" in url or url.startswith("data:"):
        return None
    if protocol_of(url) in (None, *LOCAL):
        path = url.partition("://")[2] or url
        return "file://" + path.replace("%", "%25") if os.path.isabs(path) else None
    return url

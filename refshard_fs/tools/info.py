"""Summarise a source: its format, groups, arrays and targets, and how many chunks exist.

Metadata and indexes are read, chunks are not. `Summary` is what ``refshard info --json`` prints, field by field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, normalise, parent
from refshard_fs.core.stats import format_count
from refshard_fs.core.zarrmeta import NODE_DOCUMENTS, codecs_of, find_decoding_problem
from refshard_fs.errors import redact
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.survey import INLINE, Extents, Survey, SurveyedFileSystem, survey
from refshard_fs.tools.views import EscapedStruct

TOP: Final = 10  # the most targets that are named


class ArraySummary(EscapedStruct, frozen=True):
    """One array: ``chunks`` is the shape of a chunk, and ``shards`` the shape of a shard (None without shards).

    ``present`` chunks exist (None if the source cannot list them) of ``possible`` chunks (None if the grid is not
    known). They have ``bytes`` as stored, not counting ``unsized`` chunks, whose size is not known. ``stray`` keys lie
    below the array, but outside of its grid: readers never request them. ``dimensions`` are names; empty if the
    metadata have none.
    """

    name: str
    zarr_format: int
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    dtype: str
    codecs: tuple[str, ...]
    present: int | None
    possible: int | None
    stray: int
    bytes: int
    unsized: int
    dimensions: tuple[str, ...] = ()


class Target(EscapedStruct, frozen=True):
    """An object with chunks: its URL without credentials, the ``references`` to it, and the ``bytes`` of the chunks."""

    url: str
    references: int
    bytes: int


class Targets(EscapedStruct, frozen=True):
    """The number of objects with chunks, and the references to them; ``top`` are the objects with the most bytes."""

    count: int
    references: int
    bytes: int
    protocols: dict[str, int]
    top: tuple[Target, ...]


class Summary(EscapedStruct, frozen=True):
    """A whole source; ``bytes`` does not count ``unsized`` keys, whose size is not known.

    ``version`` is the version of a reference set's document. The source itself holds ``inline_bytes`` of
    ``inline_keys``. ``left_whole`` has, by path, why an array is not shown, or why its shards are left whole.
    """

    format: str
    version: int | None
    zarr_formats: tuple[int, ...]
    keys: int
    bytes: int
    unsized: int
    groups: tuple[str, ...]
    arrays: tuple[ArraySummary, ...]
    targets: Targets
    inline_keys: int
    inline_bytes: int
    left_whole: dict[str, str]
    warnings: tuple[str, ...]


def summarise(fs: SurveyedFileSystem) -> Summary:
    """Return the summary of ``fs``; ManifestError if a metadata document is not a JSON object."""
    found = survey(fs)
    left_whole = fs.left_whole
    keyspace = fs.source.open().source
    decoded = keyspace.file_codecs
    arrays = tuple(_summarise_array(extents, decoded.get(path, ())) for path, extents in found.arrays.items())
    keys = (found.rest, *found.arrays.values())
    unsized = sum(extents.unsized_count for extents in keys)
    return Summary(
        format=fs.source.open().format,
        version=keyspace.version,
        zarr_formats=tuple(sorted({array.zarr_format for array in arrays})),
        keys=found.keys,
        bytes=sum(map(len, found.documents.values())) + sum(int(extents.sizes.sum()) for extents in keys),
        unsized=unsized,
        groups=found.groups,
        arrays=arrays,
        targets=_summarise_targets(found),
        inline_keys=found.inline_keys,
        inline_bytes=found.inline_bytes,
        left_whole=left_whole,
        warnings=tuple(_find_oddities(found, left_whole)),
    )


def _summarise_array(extents: Extents, file_codecs: Sequence[str]) -> ArraySummary:
    meta, chunks = extents.meta, extents.meta.chunks
    match meta.raw.get("codecs"):
        case [{"name": "sharding_indexed", "configuration": {"chunk_shape": [*inner]}}] if all(
            isinstance(length, int) for length in inner
        ):  # the array is shown with whole shards
            shards, chunks = chunks, tuple(inner)
        case _:
            shards = extents.shard_shape
    return ArraySummary(
        name=extents.path,
        zarr_format=meta.zarr_format,
        shape=meta.shape,
        chunks=chunks,
        shards=shards,
        dtype=meta.dtype,
        codecs=(*codecs_of(meta), *file_codecs),
        present=len(extents) if extents.listed else None,
        possible=extents.possible,
        stray=extents.stray,
        bytes=int(extents.sizes.sum()),
        unsized=extents.unsized_count,
        dimensions=extents.dimensions,
    )


def _summarise_targets(found: Survey) -> Targets:
    count = len(found.urls)
    references, sizes = np.zeros(count, np.int64), np.zeros(count, np.uint64)
    for extents in found.arrays.values():
        has_target = extents.chunks.targets != INLINE
        targets = extents.chunks.targets[has_target]
        references += np.bincount(targets, minlength=count)
        np.add.at(sizes, targets, extents.sizes[has_target])
    used = np.flatnonzero(references)  # other targets have only metadata or manifests
    top = used[np.lexsort((-references[used], -sizes[used].astype(float)))[:TOP]]
    return Targets(
        count=len(used),
        references=int(references.sum()),
        bytes=int(sizes.sum()),
        protocols=dict(Counter(protocol_of(found.urls[i]) or "file" for i in used).most_common()),
        top=tuple(Target(redact(found.urls[i]), int(references[i]), int(sizes[i])) for i in top.tolist()),
    )


def _find_oddities(found: Survey, left_whole: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each oddity of the source, which need not be an error."""
    for path, reason in sorted(left_whole.items()):
        what = "its shards are left whole" if path in found.arrays else "it is not shown"
        yield redact(f"{path or '/'}: {what}: {reason}")
    for path, extents in found.arrays.items():
        problem = find_decoding_problem(extents.meta, path)
        if problem is not None:
            yield f"{path or '/'}: {problem}"
        if extents.stray:
            stray = format_count(extents.stray, "key below it is", "keys below it are")
            yield f"{path or '/'}: {stray} outside of its chunk grid, and never read"
        if extents.possible is None:
            yield f"{path or '/'}: its chunk grid or key encoding is not known here, so missing chunks are not counted"
        elif extents.possible and extents.listed and not len(extents):
            yield f"{path or '/'}: none of its {extents.possible:,} chunks exists: readers see the fill value"
    unlisted = [path or "/" for path, extents in found.arrays.items() if not extents.listed]
    if unlisted:
        yield (
            f"chunks of {format_count(len(unlisted), 'array')} cannot be listed, as over plain HTTP, or are too many "
            "to list. They can be read, but it is not known how many exist; 'refshard snapshot SOURCE refs.json' "
            "requests each of them"
        )
    if "" in found.urls:
        yield "some references have no URL: pass target=, the URL for such references"


# The groups and arrays of a source as a tree. Metadata are read, but no chunk is listed or looked up.


class Node(EscapedStruct, frozen=True, omit_defaults=True):
    """A group, an array, or a directory without metadata; ``cut`` means that it has members, which are not shown."""

    path: str
    kind: Literal["group", "array", "directory"]
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    dimensions: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()
    cut: bool = False


def make_tree(fs: SurveyedFileSystem, path: str = "", depth: int | None = None) -> Node:
    """Return the node at ``path`` of ``fs``, with ``depth`` levels of nodes below it (None: all levels).

    FileNotFoundError if nothing exists at ``path``; ManifestError if a metadata document is not a JSON object.
    """
    path = normalise(path)
    texts = _read_documents(fs, [path])
    if path and not texts[path] and not fs.isdir(path):
        raise FileNotFoundError(path)
    return _make_node(fs, path, texts[path], depth)


def _make_node(fs: SurveyedFileSystem, path: str, text: dict[str, bytes], depth: int | None) -> Node:
    kind: Literal["group", "directory"] = "directory"
    for name in NODE_DOCUMENTS:
        if name in text:
            key = repr(join(path, name))
            meta = zarrmeta.array_meta(zarrmeta.object_in(text[name], key), key)
            if meta is not None:
                names = zarrmeta.dimension_names(meta, text.get(".zattrs"))
                return Node(path, "array", meta.shape, meta.dtype, names)
            kind = "group"
    below = [str(entry["name"]) for entry in fs.ls(path, detail=True) if entry["type"] == "directory"]
    if depth == 0:
        return Node(path, kind, cut=bool(below))
    texts = _read_documents(fs, below)
    deeper = None if depth is None else depth - 1
    in_order = fs.source.open().sort_paths(sorted(below))
    return Node(path, kind, children=tuple(_make_node(fs, child, texts[child], deeper) for child in in_order))


def _read_documents(fs: SurveyedFileSystem, paths: list[str]) -> dict[str, dict[str, bytes]]:
    """Return the metadata documents of the nodes ``paths``, by path and by name."""
    found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
    keys = [join(path, name) for path in paths for name in (*NODE_DOCUMENTS, ".zattrs")]
    for key, text in (fs.cat(keys, on_error="omit") if keys else {}).items():
        path, name = parent(key)
        found[path][name] = text
    return found

"""What a source holds, in figures: its format, groups, arrays and targets, and how many chunks exist.

Metadata and indexes are read, chunks are not. `Summary` is what ``refshard info --json`` prints, field by field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join, normalise, parent
from refshard_fs.core.stats import count_text
from refshard_fs.core.zarrmeta import NODE_DOCUMENTS, codecs_of, find_decoding_problem
from refshard_fs.errors import redact
from refshard_fs.security.policy import protocol_of
from refshard_fs.tools.survey import INLINE, Extents, Survey, Surveyed, survey
from refshard_fs.tools.views import Shown

TOP: Final = 10  # targets that are named


class ArraySummary(Shown, frozen=True):
    """One array: ``chunks`` is the shape of a chunk, ``shards`` the shape of a shard, where chunks lie in shards.

    ``present`` chunks exist (None where the source cannot list them), of ``possible`` ones (None where the grid is not
    known), and have ``bytes`` as stored, less the ``unsized`` ones, whose size only their target knows. Keys below the
    array outside its grid are ``stray``: readers never ask for them. ``dimensions`` has their names, empty
    where the metadata has none.
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


class Target(Shown, frozen=True):
    """One object that chunks lie in; its URL without what gives access."""

    url: str
    references: int
    bytes: int


class Targets(Shown, frozen=True):
    """The objects that chunks lie in; ``top`` are those with the most bytes of them."""

    count: int
    references: int
    bytes: int
    protocols: dict[str, int]
    top: tuple[Target, ...]


class Summary(Shown, frozen=True):
    """All of a source; ``bytes`` leaves out the ``unsized`` keys, whose size only their target knows.

    ``version`` is the version of a reference set's document. ``inline_keys`` hold their ``inline_bytes`` in the source
    itself. ``left_whole`` are arrays whose shards could not be opened, and why; ``warnings`` say what looks odd.
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


def summarise(fs: Surveyed) -> Summary:
    """Return what ``fs`` holds.

    Raises ManifestError if a metadata document is not a JSON object.
    """
    found = survey(fs)
    left_whole = fs.left_whole
    keyspace = fs.source.open().source
    decoded = keyspace.file_codecs
    arrays = tuple(_array(extents, decoded.get(path, ())) for path, extents in found.arrays.items())
    keys = (found.rest, *found.arrays.values())
    unsized = sum(extents.unsized for extents in keys)
    return Summary(
        format=fs.source.open().format,
        version=keyspace.version,
        zarr_formats=tuple(sorted({array.zarr_format for array in arrays})),
        keys=found.keys,
        bytes=sum(map(len, found.documents.values())) + sum(int(extents.sizes.sum()) for extents in keys),
        unsized=unsized,
        groups=found.groups,
        arrays=arrays,
        targets=_targets(found),
        inline_keys=found.inline_keys,
        inline_bytes=found.inline_bytes,
        left_whole=left_whole,
        warnings=tuple(_warnings(found, left_whole)),
    )


def _array(extents: Extents, file_codecs: Sequence[str]) -> ArraySummary:
    meta, chunks = extents.meta, extents.meta.chunks
    match meta.raw.get("codecs"):
        case [{"name": "sharding_indexed", "configuration": {"chunk_shape": [*inner]}}] if all(
            isinstance(length, int) for length in inner
        ):  # shown whole
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
        unsized=extents.unsized,
        dimensions=extents.dimensions,
    )


def _targets(found: Survey) -> Targets:
    count = len(found.urls)
    references, sizes = np.zeros(count, np.int64), np.zeros(count, np.uint64)
    for extents in found.arrays.values():
        there = extents.chunks.targets != INLINE
        targets = extents.chunks.targets[there]
        references += np.bincount(targets, minlength=count)
        np.add.at(sizes, targets, extents.sizes[there])
    used = np.flatnonzero(references)  # metadata, and manifests, may lie in others
    top = used[np.lexsort((-references[used], -sizes[used].astype(float)))[:TOP]]
    return Targets(
        count=len(used),
        references=int(references.sum()),
        bytes=int(sizes.sum()),
        protocols=dict(Counter(protocol_of(found.urls[i]) or "file" for i in used).most_common()),
        top=tuple(Target(redact(found.urls[i]), int(references[i]), int(sizes[i])) for i in top.tolist()),
    )


def _warnings(found: Survey, left_whole: Mapping[str, str]) -> Iterator[str]:
    for path, reason in sorted(left_whole.items()):
        what = "its shards are left whole" if path in found.arrays else "it is not shown"
        yield redact(f"{path or '/'}: {what}: {reason}")
    for path, extents in found.arrays.items():
        problem = find_decoding_problem(extents.meta, path)
        if problem is not None:
            yield f"{path or '/'}: {problem}"
        if extents.stray:
            stray = count_text(extents.stray, "key below it is", "keys below it are")
            yield f"{path or '/'}: {stray} no chunk of its grid, and never read"
        if extents.possible is None:
            yield f"{path or '/'}: its chunk grid or key encoding is not known here, so missing chunks are not counted"
        elif extents.possible and extents.listed and not len(extents):
            yield f"{path or '/'}: none of its {extents.possible:,} chunks exists: readers see the fill value"
    unlisted = [path or "/" for path, extents in found.arrays.items() if not extents.listed]
    if unlisted:
        yield (
            f"chunks of {count_text(len(unlisted), 'array')} cannot be listed: nothing can where they are, as over "
            "plain HTTP, or they are too many. They can be read, and how many exist is not known; "
            "'refshard snapshot SOURCE refs.json' asks for each of them"
        )
    if "" in found.urls:
        yield "references without a URL: name what they stand for with target="


# The groups and arrays of a source as a tree. Metadata is read, and no chunk is listed or looked up.


class Node(Shown, frozen=True, omit_defaults=True):
    """A group, an array, or a directory without metadata; ``cut``: its members are not shown."""

    path: str
    kind: Literal["group", "array", "directory"]
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    dimensions: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()
    cut: bool = False


def tree(fs: Surveyed, path: str = "", depth: int | None = None) -> Node:
    """Return what lies at ``path`` of ``fs`` and, to ``depth`` levels, below.

    Raises FileNotFoundError if there is nothing, ManifestError if metadata is not a JSON object.
    """
    path = normalise(path)
    texts = _texts(fs, [path])
    if path and not texts[path] and not fs.isdir(path):
        raise FileNotFoundError(path)
    return _node(fs, path, texts[path], depth)


def _node(fs: Surveyed, path: str, text: dict[str, bytes], depth: int | None) -> Node:
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
    texts = _texts(fs, below)
    deeper = None if depth is None else depth - 1
    in_order = fs.source.open().in_order(sorted(below))
    return Node(path, kind, children=tuple(_node(fs, child, texts[child], deeper) for child in in_order))


def _texts(fs: Surveyed, paths: list[str]) -> dict[str, dict[str, bytes]]:
    """Return the metadata documents, by name, that lie in each of ``paths``."""
    found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
    keys = [join(path, name) for path in paths for name in (*NODE_DOCUMENTS, ".zattrs")]
    for key, text in (fs.cat(keys, on_error="omit") if keys else {}).items():
        path, name = parent(key)
        found[path][name] = text
    return found

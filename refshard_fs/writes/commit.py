"""Edits made durable where the source can take them: one committer for each format of source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from refshard_fs.catalog import beneath
from refshard_fs.collecting import collect
from refshard_fs.edited import edited
from refshard_fs.errors import ReadOnlyError
from refshard_fs.keys import parent
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.manifests.kerchunk_parquet import ParquetKeySpace
from refshard_fs.manifests.manifest_view import ManifestView
from refshard_fs.manifests.reference_set import FlatKeySpace
from refshard_fs.manifests.reference_stream import FlatStream
from refshard_fs.save import save_json
from refshard_fs.shards.view import ShardView
from refshard_fs.targets.document import Document
from refshard_fs.writes.chunk_manifests import commit_manifests
from refshard_fs.writes.committing import Committing
from refshard_fs.writes.parquet import commit_parquet

__all__ = ["COMMITTERS", "Committing", "commit"]


def commit(committing: Committing) -> None:
    """Make the edits part of the source, whole or not at all.

    Raises ConflictError if somebody else committed since it was opened, ReadOnlyError if the source cannot take them:
    then nothing is changed.
    """
    if not isinstance(committing.source, str):
        raise ReadOnlyError(
            "these references are held in memory, where nothing can be committed to: fs.save(url) writes them"
        )
    COMMITTERS[format_of(committing)](committing)


def format_of(committing: Committing) -> str:
    """Return the name of the source's format, or of that in which it is to be made."""
    found = beneath(committing.base.keyspace)
    if committing.base.facts is None and not isinstance(found, Hierarchy):
        return _new_format(str(committing.source), committing.options.format)
    match found:
        case FlatKeySpace():
            return "kerchunk-json"
        case ParquetKeySpace():
            return "kerchunk-parquet"
        case Hierarchy():
            return "chunk-manifest" if _has_manifests(committing) else "zarr-hierarchy"
    raise ReadOnlyError(
        f"{committing.source} is read as {type(found).__name__}, which takes no writes: fs.save(url) writes it, "
        "and what you have written, as a set of references"
    )


def _has_manifests(committing: Committing) -> bool:
    """Whether any array that was edited has a chunk manifest, or any other that is known so far."""
    keyspace = committing.base.keyspace
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    if not isinstance(keyspace, ManifestView):
        return False
    for key in {parent(key)[0]: key for key in committing.edits.changes()}.values():
        committing.run(key, partial(keyspace.array_of, key))
    return keyspace.maps_anything


_NAMES: Final = {
    "json": "kerchunk-json",
    "kerchunk-json": "kerchunk-json",
    "parquet": "kerchunk-parquet",
    "kerchunk-parquet": "kerchunk-parquet",
    "chunk-manifest": "chunk-manifest",
    "zarr-hierarchy": "zarr-hierarchy",
}


def _new_format(url: str, given: str | None) -> str:
    if given is not None:
        if given not in _NAMES:
            raise ReadOnlyError(f"format={given!r} cannot be made: there are {', '.join(_NAMES)}")
        return _NAMES[given]
    name = url.rstrip("/").rpartition("/")[2]
    if ".json" in name:
        return "kerchunk-json"
    return "zarr-hierarchy" if name.endswith(".zarr") else "kerchunk-parquet"


def _commit_json(committing: Committing) -> None:
    base = committing.base
    refs = collect(edited(base.keyspace, committing.edits), committing.run, _as_written)
    document = Document(base.url, committing.given(base.url), base.facts)
    save_json(FlatStream(refs, _as_written), committing.run, document)


def _as_written(url: str | None) -> str | None:
    return url


def _refused(committing: Committing) -> None:
    raise ReadOnlyError(f"{committing.source} takes no writes: fs.save(url) writes it, and what you have written")


# By the name of the source's format; others may add theirs.
COMMITTERS: Final[dict[str, Callable[[Committing], None]]] = {
    "kerchunk-json": _commit_json,
    "kerchunk-parquet": commit_parquet,
    "chunk-manifest": commit_manifests,
    "zarr-hierarchy": _refused,
}

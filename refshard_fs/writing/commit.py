"""Edits made durable where the source can take them: one committer for each format of source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from refshard_fs.core.edited_keyspace import EditedKeySpace
from refshard_fs.core.edits import Edits
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ReadOnlyError, TargetChanged, redacted
from refshard_fs.formats.chunk_manifest.view import ManifestView
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.stream import FlatStream
from refshard_fs.session.collect import collect
from refshard_fs.session.in_memory_source import Held
from refshard_fs.session.overlay import Base
from refshard_fs.session.recognition import beneath
from refshard_fs.sharding.view import ShardView
from refshard_fs.sharding.writing import sharded_by
from refshard_fs.targets.document import Document
from refshard_fs.writing.chunk_manifests import commit_manifests
from refshard_fs.writing.committer import Committing
from refshard_fs.writing.hierarchy import commit_hierarchy
from refshard_fs.writing.options import READ_AS, WriteOptions, format_named
from refshard_fs.writing.parquet import commit_parquet
from refshard_fs.writing.save import Compressed, save_json
from refshard_fs.writing.shards import shard_edits

__all__ = ["COMMITTERS", "Committing", "HIERARCHY", "commit", "format_of", "manifests_of", "waits"]

# ----------------------------------------------------------------------------------------------------
# Which format a commit writes: that of the source, or the one in which a source is to be made.


HIERARCHY: Final = "zarr-hierarchy"


def format_of(source: str | Held, base: Base, options: WriteOptions) -> str:
    """Return the name of the source's format, or of that in which it is to be made."""
    found = beneath(base.keyspace)
    if _is_new(source, base):
        return _new_format(str(source), options.format)
    match found:
        case FlatKeySpace():
            return "kerchunk-json"
        case ParquetKeySpace():
            return "kerchunk-parquet"
        case Hierarchy():
            return HIERARCHY
    raise ReadOnlyError(
        f"{source} takes no writes, being neither a reference set nor a zarr hierarchy: fs.save(url) writes it, and "
        "what you have written, as a set of references"
    )


def _is_new(source: str | Held, base: Base) -> bool:
    """Whether there was nothing at the source's URL."""
    return base.facts is None and base.url == source and not isinstance(beneath(base.keyspace), Hierarchy)


def waits(source: str | Held, base: Base, options: WriteOptions) -> bool:
    """Whether values are kept until the commit, which has a place for them: that of a hierarchy without manifests."""
    view = manifests_of(base.keyspace)
    is_hierarchy = isinstance(beneath(base.keyspace), Hierarchy)
    if _is_new(source, base):
        is_hierarchy = _new_format(str(source), options.format) == HIERARCHY
    return is_hierarchy and not (view is not None and view.maps_anything)


def manifests_of(keyspace: KeySpace) -> ManifestView | None:
    """Return what heeds the chunk manifests of an opened source; None if nothing does."""
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    return keyspace if isinstance(keyspace, ManifestView) else None


_NAMES: Final = READ_AS | {name: name for name in READ_AS.values()} | {"chunk-manifest": "chunk-manifest"}


def _new_format(url: str, given: str | None) -> str:
    if given is None:
        return READ_AS[format_named(url)]
    if given not in _NAMES:
        raise ReadOnlyError(f"format={given!r} cannot be made: there are {', '.join(_NAMES)}")
    return _NAMES[given]


def commit(committing: Committing) -> Edits:
    """Make the edits part of the source, whole or not at all; return them as the source has them.

    Raises ConflictError if somebody else committed since it was opened, ReadOnlyError if the source cannot take them:
    then nothing is changed.
    """
    if not isinstance(committing.source, str):
        raise ReadOnlyError(
            "these references are held in memory, where nothing can be committed to: fs.save(url) writes them"
        )
    format = format_of(committing.source, committing.base, committing.options)
    if format == HIERARCHY and _has_manifests(committing):
        format = "chunk-manifest"
    stored = committing if format == HIERARCHY else _with_shards(committing)
    try:
        COMMITTERS[format](stored)
    except TargetChanged as e:
        if not e.target.startswith(redacted(committing.source).rstrip("/")):
            raise
        raise ConflictError(
            f"{e.target} was opened and then changed: somebody else wrote it. Nothing was committed, and your writes "
            "are kept: discard() goes on with what is there now, save() writes what you have to another place"
        ) from e
    _leave_whole(committing)
    return stored.edits


def _with_shards(committing: Committing) -> Committing:
    """Return the same commit of the keys that are stored, with all bytes at hand: shards in place of inner chunks."""
    edits, base, view = committing.edits, committing.base, committing.base.keyspace
    if isinstance(view, ShardView):
        edits = shard_edits(view, edits, committing.run, committing.overlay, committing.values)
        base = base._replace(keyspace=view.base)
    return msgspec.structs.replace(committing, base=base, edits=edits.loaded())


def _leave_whole(committing: Committing) -> None:
    """Take note of the arrays that were written with shards of their own: who wrote them goes on with whole shards."""
    changes = committing.edits.changes().items()
    written = ((key, edit.data) for key, (edit, _) in changes if is_metadata(key) and isinstance(edit, Inline))
    committing.overlay.whole |= sharded_by(written)


def _has_manifests(committing: Committing) -> bool:
    """Whether any array that was edited has a chunk manifest, or any other that is known so far."""
    view = manifests_of(committing.base.keyspace)
    if view is None:
        return False
    for key in {parent(key)[0]: key for key in committing.edits.changes()}.values():
        committing.run(key, partial(view.array_of, key))
    return view.maps_anything


def _commit_json(committing: Committing) -> None:
    base = committing.base
    refs = collect(EditedKeySpace(base.keyspace, committing.edits), committing.run, _as_written)
    document = Document(base.url, committing.given(base.url), base.facts, committing.overlay.sent)
    save_json(FlatStream(refs, _as_written), committing.run, Compressed(base.url, document))


def _as_written(url: str | None) -> str | None:
    return url


# By the name of the source's format; others may add theirs.
COMMITTERS: Final[dict[str, Callable[[Committing], None]]] = {
    "kerchunk-json": _commit_json,
    "kerchunk-parquet": commit_parquet,
    "chunk-manifest": commit_manifests,
    HIERARCHY: commit_hierarchy,
}

"""Edits made durable where the source can take them: one committer for each format of source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from refshard_fs.collecting import collect
from refshard_fs.compressed import Compressed
from refshard_fs.edited import edited
from refshard_fs.edits import Edits
from refshard_fs.errors import ConflictError, ReadOnlyError, TargetChanged, redacted
from refshard_fs.keys import parent
from refshard_fs.manifests.reference_stream import FlatStream
from refshard_fs.model import Inline
from refshard_fs.save import save_json
from refshard_fs.shards.view import ShardView
from refshard_fs.shards.writing import sharded_by
from refshard_fs.targets.document import Document
from refshard_fs.writes.chunk_manifests import commit_manifests
from refshard_fs.writes.committing import Committing
from refshard_fs.writes.destination import HIERARCHY, format_of, manifests_of
from refshard_fs.writes.hierarchy import commit_hierarchy
from refshard_fs.writes.parquet import commit_parquet
from refshard_fs.writes.shard_edits import shard_edits
from refshard_fs.zarrmeta import is_metadata

__all__ = ["COMMITTERS", "Committing", "commit"]


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
    return msgspec.structs.replace(committing, base=base, edits=edits.at_hand())


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
    refs = collect(edited(base.keyspace, committing.edits), committing.run, _as_written)
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

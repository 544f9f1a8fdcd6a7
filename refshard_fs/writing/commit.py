"""Commits the edits of a source: chooses the committer of its format."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from refshard_fs.core.edits import EditedKeySpace, Edits
from refshard_fs.core.keys import parent
from refshard_fs.core.model import Inline
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ReadOnlyError, RefShardError, TargetChanged, sanitize
from refshard_fs.references.stream import ReferenceStream, as_written
from refshard_fs.sharding.writing import find_sharded
from refshard_fs.sinks.icechunk_commit import IcechunkCommit
from refshard_fs.sinks.kerchunk_json import JsonSink
from refshard_fs.sinks.parquet_commit import Finish, ParquetCommit
from refshard_fs.sinks.sink import Destination
from refshard_fs.source.collect import collect
from refshard_fs.source.settings import takes_objects
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import Document
from refshard_fs.writing.hierarchy import HierarchyCommit
from refshard_fs.writing.shards import shard_edits
from refshard_fs.writing.staging import IMPLICIT, merge
from refshard_fs.writing.writer import HIERARCHY, HOLD_VALUES, ICECHUNK, Writer


def commit(writer: Writer, message: str | None = None) -> None:
    """Make all that was written durable in the source, with a ``message`` where the source keeps messages."""
    writer.refuse_elsewhere()
    _commit_all(writer, message)
    writer.overlay.costs.warn()


def _commit_all(writer: Writer, message: str | None) -> None:
    overlay, store = writer.overlay, writer.store
    with overlay.lock:
        merge_forks(writer)
        if not overlay.edits:
            return
        base = writer.base()
        edits = overlay.savepoint()
        if store is not None:
            store.make_durable(overlay.objects())
        try:
            stored, finish = commit_edits(writer, base, edits, message)
        except BaseException as e:
            is_refused = e.is_certain if isinstance(e, ConflictError) else isinstance(e, RefShardError)
            if not is_refused:  # the store may have done it all the same: `discard` removes no object that it names
                overlay.keep_objects()
            raise
        try:
            if finish is not None:
                finish()
        finally:  # the commit is made, also where Ctrl-C ends this
            left = overlay.settle(edits, stored)
    writer.remove_objects(left)


def merge_forks(writer: Writer, forks: Collection[str] = (IMPLICIT,)) -> None:
    """Add what ``forks`` wrote to the overlay; by default what copies in other processes did, which no user names."""
    writer.refuse_elsewhere()
    overlay, store = writer.overlay, writer.store
    with overlay.lock:
        if overlay.is_shared and store is not None:
            reads_all = writer.format_of(writer.base()) in HOLD_VALUES
            merge(overlay, store, writer.options.inline_threshold, reads_all=reads_all, forks=forks)


def commit_edits(writer: Writer, base: Base, edits: Edits, message: str | None) -> tuple[Edits, Finish | None]:
    """Make the edits part of the source; return them as the source has them, and what is left to do, if anything is.

    Sets change whole or not at all. Raises ConflictError if somebody else committed since the source was opened, and
    ReadOnlyError if it cannot take edits.
    """
    url = writer.fo
    if not isinstance(url, str):
        raise ReadOnlyError("these references are in memory, and cannot be committed: fs.save(url) writes them")
    if not takes_objects(url):
        raise ReadOnlyError(
            f"{url} cannot be written, because it is over HTTP or in an archive: fs.save(url) writes it, with your "
            "writes, as a set of references at another place"
        )
    _learn_manifests(writer, base, edits)
    format = writer.format_of(base)
    if format is None:
        raise ReadOnlyError(
            f"{url} takes no commits: expected a JSON or parquet set of references, a branch of an Icechunk "
            "repository, or a zarr hierarchy without chunk manifests. fs.save(url) writes it, and what you have "
            "written, as a set to another place"
        )
    if message is not None and format != ICECHUNK:
        raise ValueError(f"message=: {url} keeps no messages of commits, as Icechunk repositories do")
    stored, made = base, edits
    if format != HIERARCHY:
        if (whole := base.keyspace.whole_shards) is not base.keyspace:
            made = shard_edits(writer, base.keyspace, edits)
            stored = base._replace(keyspace=whole)
        if format != ICECHUNK:
            made = made.load_all()
    try:
        if format == ICECHUNK:
            finish = None
            IcechunkCommit(url, writer.source, stored, made, message).run()
        else:
            finish = _COMMITTERS[format](writer, stored, made)
    except TargetChanged as e:
        if not e.target.startswith(sanitize(url).rstrip("/")):
            raise
        raise ConflictError(
            f"{e.target} was opened and then changed: somebody else wrote it. Nothing was committed, and your writes "
            "are kept: discard() goes on with what is there now, save() writes what you have to another place"
        ) from e
    # Arrays that were written with shards of their own go on showing whole shards.
    written = edits.changes().items()
    documents = ((key, edit.data) for key, edit in written if is_metadata(key) and isinstance(edit, Inline))
    writer.overlay.whole |= find_sharded(documents)
    return made, finish


def _learn_manifests(writer: Writer, base: Base, edits: Edits) -> None:
    """Find out whether arrays that were edited have chunk manifests."""
    if base.keyspace.committed_as == HIERARCHY:
        for key in {parent(key)[0]: key for key in edits.changes()}.values():
            writer.source.run(key, partial(base.keyspace.is_empty, key))


def _commit_json(writer: Writer, base: Base, edits: Edits) -> None:
    source = writer.source
    refs = collect(EditedKeySpace(base.keyspace, edits), source.run, as_written)
    document = Document(base.url, source.stores, base.facts, writer.overlay.sent)
    JsonSink().write(
        ReferenceStream.of_set(refs, as_written), Destination(base.url, document, 0, True, lambda: refs.origins)
    )


def _commit_parquet(writer: Writer, base: Base, edits: Edits) -> Finish:
    url, sent = str(writer.fo), writer.overlay.sent
    return ParquetCommit(url, writer.source, base, edits, writer.options.record_size, sent).run()


_COMMITTERS: Final[dict[str, Callable[[Writer, Base, Edits], Finish | None]]] = {
    "kerchunk-json": _commit_json,
    "kerchunk-parquet": _commit_parquet,
    HIERARCHY: lambda *given: HierarchyCommit(*given).run(),
}

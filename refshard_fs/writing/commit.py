"""Commit the edits of a source by the committer of its format."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from refshard_fs.core.edits import EditedKeySpace, Edits
from refshard_fs.core.keys import parent
from refshard_fs.core.model import Inline
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ReadOnlyError, RefShardError, TargetChanged, sanitize
from refshard_fs.references.stream import ReferenceStream, keep_url
from refshard_fs.sharding.writing import find_sharded
from refshard_fs.sinks.icechunk_commit import IcechunkCommit
from refshard_fs.sinks.kerchunk_json import JsonSink
from refshard_fs.sinks.parquet_commit import Finish, ParquetCommit
from refshard_fs.sinks.sink import Destination
from refshard_fs.source.collect import collect
from refshard_fs.source.settings import is_writable_url
from refshard_fs.source.transaction import Base
from refshard_fs.stores.document import DocumentObject
from refshard_fs.writing.hierarchy import HierarchyCommit
from refshard_fs.writing.shards import shard_edits
from refshard_fs.writing.staging import IMPLICIT, merge
from refshard_fs.writing.writer import HIERARCHY, HOLD_VALUES, ICECHUNK, Writer


def commit(writer: Writer, message: str | None = None) -> None:
    """Save all edits in the source; ``message`` is the message of the commit, if the source keeps messages."""
    writer.refuse_in_worker()
    _commit_all(writer, message)
    writer.overlay.costs.warn()


def _commit_all(writer: Writer, message: str | None) -> None:
    overlay, store = writer.overlay, writer.store
    with overlay.lock:
        merge_forks(writer)
        if not overlay.edits:
            return
        base = writer.get_base()
        edits = overlay.make_savepoint()
        if store is not None:
            store.make_durable(overlay.list_objects())
        try:
            stored, finish = commit_edits(writer, base, edits, message)
        except BaseException as e:
            is_refused = e.is_certain if isinstance(e, ConflictError) else isinstance(e, RefShardError)
            if not is_refused:  # the commit may have succeeded without an answer: then `discard` must keep its objects
                overlay.keep_objects()
            raise
        try:
            if finish is not None:
                finish()
        finally:  # even if Ctrl-C interrupts `finish`, the commit is complete
            left = overlay.settle(edits, stored)
    writer.remove_objects(left)


def merge_forks(writer: Writer, forks: Collection[str] = (IMPLICIT,)) -> None:
    """Add the edits of ``forks`` to the overlay; by default, the edits of copies in other processes."""
    writer.refuse_in_worker()
    overlay, store = writer.overlay, writer.store
    with overlay.lock:
        if overlay.is_shared and store is not None:
            reads_all = writer.format_of(writer.get_base()) in HOLD_VALUES
            merge(overlay, store, writer.options.inline_threshold, reads_all=reads_all, forks=forks)


def commit_edits(writer: Writer, base: Base, edits: Edits, message: str | None) -> tuple[Edits, Finish | None]:
    """Save the edits in the source; return them as they are stored, and a function to call afterwards, or None.

    A set changes as a whole or not at all. Raise ConflictError if another writer has committed since the source was
    opened, and ReadOnlyError if the source does not support commits.
    """
    url = writer.fo
    if not isinstance(url, str):
        raise ReadOnlyError("cannot commit: these references are in memory, not at a URL: write them with fs.save(url)")
    if not is_writable_url(url):
        raise ReadOnlyError(
            f"cannot commit to {url}, which is on a web server, in an archive or a chain of URLs: fs.save(url) writes "
            "it, with your writes, to another URL, as a set of references"
        )
    _find_manifests(writer, base, edits)
    format = writer.format_of(base)
    if format is None:
        raise ReadOnlyError(
            f"{url} takes no commits: expected a JSON or parquet set of references, a branch of an Icechunk "
            "repository, or a zarr hierarchy without chunk manifests. fs.save(url) writes it, with your writes, to "
            "another URL, as a set of references"
        )
    if message is not None and format != ICECHUNK:
        raise ValueError(f"message=: only Icechunk repositories keep messages of commits: leave message= out for {url}")
    stored, converted = base, edits
    if format != HIERARCHY:
        if (whole := base.keyspace.whole_shards) is not base.keyspace:
            converted = shard_edits(writer, base.keyspace, edits)
            stored = base._replace(keyspace=whole)
        if format != ICECHUNK:
            converted = converted.load_all()
    try:
        if format == ICECHUNK:
            finish = None
            IcechunkCommit(url, writer.source, stored, converted, message).run()
        else:
            finish = _COMMITTERS[format](writer, stored, converted)
    except TargetChanged as e:
        if not e.target.startswith(sanitize(url).rstrip("/")):
            raise
        raise ConflictError(
            f"{e.target} has changed since it was opened: another writer wrote it. Nothing was committed, and your "
            "writes are kept: discard() continues with its present content, save() writes your version to another URL"
        ) from e
    # Arrays that were written here with shards continue to show whole shards.
    written = edits.list_changes().items()
    documents = ((key, edit.data) for key, edit in written if is_metadata(key) and isinstance(edit, Inline))
    writer.overlay.whole |= find_sharded(documents)
    return converted, finish


def _find_manifests(writer: Writer, base: Base, edits: Edits) -> None:
    """Look up the edited arrays, so that the key space knows which have chunk manifests: these cannot be committed."""
    if base.keyspace.committed_as == HIERARCHY:
        for key in {parent(key)[0]: key for key in edits.list_changes()}.values():
            writer.source.run(key, partial(base.keyspace.is_empty, key))


def _commit_json(writer: Writer, base: Base, edits: Edits) -> None:
    source = writer.source
    refs = collect(EditedKeySpace(base.keyspace, edits), source.run, keep_url)
    document = DocumentObject(base.url, source.stores, base.facts, writer.overlay.sent)
    JsonSink().write(
        ReferenceStream.of_set(refs, keep_url), Destination(base.url, document, 0, True, lambda: refs.origins)
    )


def _commit_parquet(writer: Writer, base: Base, edits: Edits) -> Finish:
    url, sent = str(writer.fo), writer.overlay.sent
    return ParquetCommit(url, writer.source, base, edits, writer.options.record_size, sent).run()


_COMMITTERS: Final[dict[str, Callable[[Writer, Base, Edits], Finish | None]]] = {
    "kerchunk-json": _commit_json,
    "kerchunk-parquet": _commit_parquet,
    HIERARCHY: lambda *arguments: HierarchyCommit(*arguments).run(),
}

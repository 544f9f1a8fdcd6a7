"""What was written and not committed: an overlay, made durable or forgotten, by any instance that shares it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from glob import has_magic
from operator import index
from typing import TYPE_CHECKING, Any

from fsspec.asyn import get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core.edited_keyspace import EditedKeySpace
from refshard_fs.core.edits import Edit, Edits
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Span, Steps
from refshard_fs.core.overlay import Base, Overlay
from refshard_fs.errors import ReadOnlyError, RefShardError, redacted
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.session.mixins import Sourced
from refshard_fs.session.recognition import beneath, references_of
from refshard_fs.sharding.view import ShardView
from refshard_fs.targets import Given
from refshard_fs.targets.store import Store
from refshard_fs.writing.commit import waits
from refshard_fs.writing.options import RECORD_SIZE, SetFormat, WriteOptions, format_named
from refshard_fs.writing.references import WritableReferences
from refshard_fs.writing.staging import StagedValues, Values, clear, merge
from refshard_fs.writing.transaction import OverlayTransaction
from refshard_fs.writing.written_file import WrittenFile

if TYPE_CHECKING:
    from refshard_fs.formats.kerchunk_parquet.stream import Respell
    from refshard_fs.writing.assembly import Assembly
    from refshard_fs.writing.interrupts import Stop

__all__ = ["Committable", "Savable", "Writable"]

_ELSEWHERE = (
    "this filesystem came from another process, and writes for that: what was written here is safe, and is committed, "
    "or discarded, there"
)


class Committable(Sourced):
    """What writes go to is an overlay: reads see it at once, and the source is not touched before a commit."""

    transaction_type = OverlayTransaction

    _write_options: WriteOptions

    def _writes_with(self, overlay: Overlay | None, options: WriteOptions) -> None:
        """Take what is written to; None refuses all writes."""
        self._overlay = overlay
        self._write_options = options
        self._values: Values | None = None

    @property
    def overlay(self) -> str | None:
        """The name of what is written and not committed: ``overlay=`` of another instance in this process shares it."""
        return None if self._overlay is None else self._overlay.id

    def known_by(self, arguments: object) -> None:
        """Let filesystems that are made from a URL with ``arguments`` write where this one does; None for none."""
        if arguments is not None and self._overlay is not None:
            self._overlay.arguments = arguments

    def commit(self) -> None:
        """Make all that was written durable in the source, whole or not at all; nothing happens if there is nothing.

        Raises ConflictError if somebody else wrote the source since it was opened, and ReadOnlyError if it cannot be
        written: then it is as it was, and what was written is kept for `save` or another try.
        """
        from refshard_fs.writing.costs import costs_of  # what writes: who reads need not wait for it
        from refshard_fs.writing.interrupts import Stop, to_its_end

        overlay = self._writing("commit")
        if overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)
        stop = Stop()
        to_its_end(partial(self._make, overlay, stop), stop)
        costs_of(overlay).tell()

    def _make(self, overlay: Overlay, stop: Stop) -> None:
        from refshard_fs.writing.commit import Committing, commit  # as above
        from refshard_fs.writing.recovery import recover_opened

        with overlay.lock:
            if overlay.is_shared and self._write_options.data_url is not None:
                self._merge(overlay)
            if overlay.is_empty:
                return
            base = self._base(overlay)
            undone = recover_opened(base.keyspace, self._session.given)
            if undone is not None:
                overlay.reopen(undone)  # what was seen of these, where they lie, is of that commit
                base = self._base(overlay)
            edits = overlay.savepoint()
            source = self._session.options.source
            if self._write_options.data_url is not None:
                self._store().settle(overlay.objects())
            given, values = self._session.given, self._writer_over(overlay, base)
            options = self._write_options

            def run(key: str, steps: Callable[[], Steps[Any]]) -> Any:
                stop.check()
                return self._look(key, steps)

            committing = Committing(source, base, edits, overlay, run, given, options, values, stop)
            try:
                stored = commit(committing)
            except RefShardError:  # nothing was committed
                raise
            except BaseException:  # the store may have done it all the same: `discard` removes no object that it names
                overlay.entrust()
                raise
            left = overlay.settle(edits, stored)
        self._remove_objects(left)

    def _base(self, overlay: Overlay) -> Base:
        self._opened()
        base = overlay.base
        assert base is not None, "whoever opens the source shares it"
        return base

    def _merge(self, overlay: Overlay) -> None:
        base = self._base(overlay)
        does_wait = waits(self._session.options.source, base, self._write_options)
        merge(overlay, self._store(), self._write_options, waits=does_wait)

    async def _commit(self) -> None:
        await asyncio.to_thread(self.commit)

    def flush(self) -> None:
        """Commit: what fsspec's ``LazyReferenceMapper`` calls it."""
        self.commit()

    def discard(self) -> None:
        """Forget all that was written and not committed, and remove its objects; reads see the source as it is now."""
        overlay = self._writing("discard")
        if overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)
        with overlay.lock:
            if overlay.is_shared and self._write_options.data_url is not None:
                clear(overlay, self._store())
            left = overlay.drop()
        self._remove_objects(left)

    def recover(self) -> bool:
        """Undo a commit to the zarr hierarchy that was cut short, and return True; False if there is none.

        The next commit does so, too, but waits where nothing but time tells that a writer is dead: on object stores.
        This does not: it is for who knows that nobody is at a commit.
        """
        from refshard_fs.writing.interrupts import Stop, to_its_end
        from refshard_fs.writing.recovery import recover_at

        self._writing("recover")
        source = self._session.options.source
        if not isinstance(source, str):
            return False
        undone = to_its_end(partial(recover_at, source, self._session.given(source)), Stop())
        if undone:
            self.invalidate_cache()
        return undone

    def savepoint(self) -> Edits:
        """Return what was written and not committed so far, for `go_back`."""
        return self._writing("begin a transaction").savepoint()

    def go_back(self, savepoint: Edits) -> None:
        """Forget what was written since `savepoint`."""
        overlay = self._writing("go back")
        with overlay.lock:
            left = overlay.go_back(savepoint)
        self._remove_objects(left)

    def end_of_transaction(self) -> None:
        """Commit; in a process that writes for another one, whose commit it will be, do nothing."""
        if self._writing("commit").worker is None:
            self.commit()

    def _remove_objects(self, urls: list[str]) -> None:
        if urls and self._write_options.data_url is not None:
            store = self._store()
            store.remove(urls)
            store.tidy()

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        if self._overlay is not None and self._overlay.worker is None:
            options = {**options, "overlay": self._overlay.travelling()}
        return make, (cls, args, options)

    def _writing(self, what: str) -> Overlay:
        """Return what is written to; ReadOnlyError, which names ``what`` was to be done, if that is nothing."""
        if self._overlay is None:
            raise ReadOnlyError(
                f"cannot {what}: {self._session.options.source} was opened for reading; mode='a' lets one write. "
                "fsspec keeps it from the options of a URL: those are {'refshard': {'fo': ..., 'mode': 'a'}}, or the "
                "arguments of a filesystem that you hold, fsspec.filesystem('refshard', ..., mode='a')"
            )
        return self._overlay

    def _store(self) -> Store:
        url = self._write_options.data_url
        assert url is not None
        return Store(url, self._session.given(url))


# ----------------------------------------------------------------------------------------------------
# The references of a source: as a mapping, as columns, as a set that is written elsewhere.


class Savable(Committable):
    """The references, with what was written and not committed."""

    _references: tuple[KeySpace, Mapping[str, Any]] | None

    @property
    def references(self) -> Mapping[str, Any]:
        """The references as the mapping that their expanded JSON would be: text, object, bytes or ``[url, ...]``.

        Opened to be written, a mutable one, with `flush`: what fsspec's ``LazyReferenceMapper`` is to kerchunk.
        """
        if self._overlay is not None:
            return self._writable_references(self._overlay)
        keyspace = self._opened()
        if self._references is None or self._references[0] is not keyspace:
            self._references = keyspace, references_of(keyspace, self._look)
        return self._references[1]

    def _writable_references(self, overlay: Overlay) -> MutableMapping[str, Any]:
        """Return the references, with what was written and not committed, as a mapping to write to."""
        known: tuple[KeySpace, Mapping[str, Any]] | None = None

        def base() -> Mapping[str, Any]:
            nonlocal known
            keyspace = beneath(self._opened())
            if known is None or known[0] is not keyspace:
                known = keyspace, references_of(keyspace, self._look)
            return known[1]

        return WritableReferences(self, base, lambda: overlay.edits)

    def save(
        self,
        url: str,
        format: SetFormat | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> None:
        """Write the references to ``url`` as a ``"parquet"`` or ``"json"`` set, or as ``"chunk-manifest"``.

        Without ``format`` the name says it: one in ``.json`` (or ``.json.gz``, ``.bz2``, ``.xz``,
        ``.zst``) makes it JSON, one in ``.zarr`` chunk manifests. Of a parquet set,
        ``record_size`` is the number of references per file. It goes to a new or empty
        directory, or with ``overwrite`` in the place of another parquet set; JSON replaces
        what was there. Each file appears whole or not at all. Chunk manifests make a zarr
        version 3 hierarchy, and the metadata of version 2 become that of version 3. URLs keep
        their meaning. Of sources other than reference sets, chunks that are ranges of objects
        (of sharded arrays, the shards) become references. What was written and not committed
        is part of it.

        Raises ManifestError, which names the key, where the format cannot hold a reference,
        and TargetNotAllowed where the source may not point to what it does: then nothing is
        written. fsspec's own reader takes parquet sets of zarr version 2
        with ``.`` between coordinates. ``callback`` counts the chunks that arrays may have.
        """
        from refshard_fs.writing.save import save  # as in `commit`

        kind = format or format_named(url)
        whole, spelled = self._respelling(), self._respelling(None if kind == "chunk-manifest" else url)

        def respell(written: str | None) -> str | None:
            self.admit([whole(written)])  # what is written here is the user's own, and trusted
            return spelled(written)

        save(self._stored(), self._look, url, kind, record_size, overwrite, respell, storage_options, callback)
        self._entrust()

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the references as a JSON set to ``url``."""
        self.save(url, "json", **storage_options)

    def collect(self) -> ReferenceSet:
        """Return the references in columns, URLs absolute and shards whole; `refshard_fs.concat` and others use it."""
        from refshard_fs.session.collect import collect  # as in `commit`

        found = collect(self._stored(), self._look, self._respelling())
        self._entrust()
        return found

    def pinned(self, inline_threshold: int, *, flatten: bool, callback: Callback = DEFAULT_CALLBACK) -> ReferenceSet:
        """Return the references pinned to what their targets are now; `refshard_fs.snapshot` uses it."""
        from refshard_fs.session.collect import pin  # as in `commit`

        shard_options = self._session.options.open.shard_options if flatten else None
        tell = callback.relative_update
        found = pin(self._stored(), self._look, self._respelling(), inline_threshold, shard_options, tell)
        self._entrust()
        return found

    def admit(self, urls: Iterable[str | None]) -> None:
        """Raise TargetNotAllowed if the source may not point to all of ``urls``: what is made of it is the user's."""
        self._session.admit(url for url in urls if url is not None)

    def base(self) -> Base:
        """Return the source as it was opened, below the edits; `refshard_fs.append` uses it."""
        overlay = self._writing("append")
        self._opened()
        assert overlay.base is not None, "whoever opens the source shares it"
        return overlay.base

    def given(self, url: str) -> Given:
        """Return the filesystem instance, or the options for one, that ``url`` is opened with."""
        return self._session.given(url)

    def edit(self, path: str, edit: Edit) -> None:
        """Let ``path`` refer to a range of an object, hold data, or be gone; nothing is copied, or looked at."""
        key = self._key(path)
        self._writing(f"write {key!r}").put(key, edit)
        self._session.wrote(key)

    def _stored(self) -> KeySpace:
        """Return the keys that are stored, and would be after a commit: those of shards, not of inner chunks."""
        keyspace = self._opened()
        match keyspace:
            case EditedKeySpace(base=ShardView() as view, edits=edits) if len(edits) and self._overlay is not None:
                from refshard_fs.writing.shard_edits import shard_edits  # as in `commit`

                values = self._writer_over(self._overlay, self.base())
                return EditedKeySpace(view.base, shard_edits(view, edits, self._look, self._overlay, values))
        return keyspace

    def _entrust(self) -> None:
        if self._overlay is not None:
            self._overlay.entrust()

    def _respelling(self, url: str | None = None) -> Respell:
        """Return how URLs of the source are spelled in a set at ``url``; absolute, without one."""
        from refshard_fs.writing.save import respelling  # as in `commit`

        options = self._session.options
        return respelling(options.open, options.source if isinstance(options.source, str) else None, url)


# ----------------------------------------------------------------------------------------------------
# The half of the fsspec interface that changes something: writes, copies, removals.


class Writable(Savable):
    """Keys take bytes, and references, and go."""

    _values: Values | None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Let ``path`` hold ``value``."""
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        data = bytes(value)
        writer = self._writer(overlay)
        if mode == "overwrite" and key and writer is not None and writer.write_now(key, data):
            base = overlay.base
            if writer.keeps(key) and overlay.worker is None and base is not None:
                _assembly_of(overlay).written(key, base.keyspace, self._look)
            return
        sync(self.loop or get_loop(), self._pipe_file, path, data, mode=mode)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        if not key:
            raise IsADirectoryError("the root is a directory")
        if mode == "create" and await self._exists(key):
            raise FileExistsError(key)
        writer = await self._opened_writer(overlay)
        await writer.write(key, bytes(value))
        await self._filled(overlay, writer, key)

    async def _filled(self, overlay: Overlay, writer: Values, key: str) -> None:
        """Have the shard put together that ``key`` was the last chunk of, if it was."""
        base = overlay.base
        if writer.keeps(key) and overlay.worker is None and base is not None:
            await _assembly_of(overlay).written_later(key, base.keyspace, self._session.look)

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        self._writing(f"write {rpath!r}")
        data = await asyncio.to_thread(_read, lpath)
        if data is None:
            return
        callback.set_size(len(data))
        await self._pipe_file(rpath, data, mode=mode)
        callback.relative_update(len(data))

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Let ``path2`` refer to the bytes of ``path1``: those of objects are not copied."""
        source, key = self._key(path1), self._key(path2)
        overlay = self._writing(f"write {key!r}")
        if await self._isdir(source):
            return
        found = await self._session.find(source)
        writer = self._writer(overlay)
        if writer is not None and writer.keeps(key):
            await self._pipe_file(key, await self._cat_file(source))
            return
        match found:
            case Span(optional=False, pin=None) as span if (
                span.stop is None and not span.start
            ) or span.size is not None:
                await (await self._opened_writer(overlay)).refer(key, span)
            case Inline(data):
                await self._pipe_file(key, data)
            case _:
                await self._pipe_file(key, await self._cat_file(source))

    async def _rm(
        self,
        path: str | Iterable[str],
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        overlay = self._writing(f"remove {path!r}")
        for name in [path] if isinstance(path, str) else list(path):
            if maxdepth is not None or has_magic(name):
                keys = await self._expand_path(name, recursive=recursive, maxdepth=maxdepth)
                for key in [key for key in keys if await self._isfile(key)]:
                    await self._remove(overlay, key)
                continue
            key = self._key(name)
            kind = (await self._info(key))["type"]
            if kind != "directory":
                await self._remove(overlay, key)
            elif recursive:
                await (await self._opened_writer(overlay)).remove_below(key)
            else:
                raise IsADirectoryError(f"{key!r} is a directory: recursive=True removes it")

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._rm(path)

    async def _remove(self, overlay: Overlay, key: str) -> None:
        writer = await self._opened_writer(overlay)
        await writer.remove(key)
        await self._filled(overlay, writer, key)

    async def _touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate or not await self._exists(path):
            await self._pipe_file(path, b"")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Let ``path`` be empty; without ``truncate``, only if there is none."""
        sync(self.loop or get_loop(), self._touch, path, truncate=truncate)

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Do nothing: a directory is there when there is something in it."""
        self._writing(f"make {path!r}")

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._writing(f"make {path!r}")

    async def _rmdir(self, path: str) -> None:
        """Do nothing but check: a directory with nothing in it is none."""
        self._writing(f"remove {path!r}")
        if await self._ls(path, detail=False):
            raise OSError(f"{path!r} is not empty")

    def refer(self, path: str, url: str, offset: int = 0, length: int | None = None) -> None:
        """Let ``path`` hold ``length`` bytes at ``offset`` of the object at ``url``; without them, all of it.

        Nothing is read. TargetNotAllowed where ``url`` may not be pointed to, ReadOnlyError without a ``mode``.

        >>> import fsspec, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem("memory://made.json", mode="w")
        >>> with fs.transaction:
        ...     fs.refer("a/0", "s3://bucket/x.nc", 100, 50)
        >>> refshard_fs.RefShardFileSystem("memory://made.json", remote_protocol="s3").resolve("a/0")
        ('s3://bucket/x.nc', 100, 150)
        """
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        start, size = index(offset), None if length is None else index(length)
        if min(start, size or 0) < 0 or start + (size or 0) >= 2**63:
            raise ValueError(f"{key!r} cannot be {length} bytes at {offset} of {redacted(url)}")
        span = Span(self._respelling()(url) or url, start, None if size is None else start + size)
        if overlay.worker is None and overlay.base is not None:
            overlay.put(key, span)
        else:
            sync(self.loop or get_loop(), self._refer, key, span)

    async def _refer(self, key: str, span: Span) -> None:
        await (await self._opened_writer(self._writing(f"write {key!r}"))).refer(key, span)

    def _open_to_write(self, path: str, mode: str) -> WrittenFile:
        key = self._key(path)
        self._writing(f"write {key!r}")
        before = b""
        match mode.replace("b", "").replace("+", ""):
            case "w":
                pass
            case "x":
                if self.exists(key):
                    raise FileExistsError(key)
            case "a" | "r":
                with contextlib.suppress(FileNotFoundError):
                    before = self.cat_file(key)
            case other:
                raise ValueError(f"mode {other!r} is none that a file can be opened with")
        return WrittenFile(self, key, before, at_end="a" in mode)

    def _writer(self, overlay: Overlay) -> Values | None:
        """Return what writes values; None before the source has been opened, for its format decides where they go."""
        return None if overlay.base is None else self._writer_over(overlay, overlay.base)

    def _writer_over(self, overlay: Overlay, base: Base) -> Values:
        options = self._write_options
        staged = overlay.worker is not None
        if self._values is None or isinstance(self._values, StagedValues) != staged:
            store = None if options.data_url is None else self._store()
            self._values = (StagedValues if staged else Values)(overlay, options, store)
        self._values.waits = waits(self._session.options.source, base, options)
        self._values.is_inner = base.keyspace.is_inner
        return self._values

    async def _opened_writer(self, overlay: Overlay) -> Values:
        while True:
            await self._session.keyspace()
            writer = self._writer(overlay)
            if writer is not None:  # it is open, and no other thread has begun anew meanwhile
                return writer


def _assembly_of(overlay: Overlay) -> Assembly:
    from refshard_fs.writing.assembly import assembly_of  # as in `commit`

    return assembly_of(overlay)


def _read(path: str) -> bytes | None:
    """Return what a local file holds; None of a directory."""
    if os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        return file.read()

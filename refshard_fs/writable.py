"""The half of the fsspec interface that changes something: writes, removals, commits; and sets written elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fsspec.asyn import AsyncFileSystem, get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.catalog import beneath, references_of
from refshard_fs.edited import EditedKeySpace, edited
from refshard_fs.edits import Edit, Edits
from refshard_fs.errors import ReadOnlyError
from refshard_fs.formats import RECORD_SIZE, SetFormat
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.model import Inline, Span, Steps
from refshard_fs.overlay import Base, Overlay
from refshard_fs.session import Session
from refshard_fs.shards.view import ShardView
from refshard_fs.targets import Given
from refshard_fs.targets.store import Store
from refshard_fs.writes.destination import waits
from refshard_fs.writes.options import WriteOptions
from refshard_fs.writes.references import WritableReferences
from refshard_fs.writes.staging import StagedValues, clear, merge
from refshard_fs.writes.transaction import OverlayTransaction
from refshard_fs.writes.values import Values

if TYPE_CHECKING:
    from refshard_fs.writes.assembly import Assembly

__all__ = ["Writable", "WrittenFile"]

_ELSEWHERE = (
    "this filesystem came from another process, and writes for that: what was written here is safe, and is committed, "
    "or discarded, there"
)
_GLOB = frozenset("*?[")


class Writable(AsyncFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """What writes go to is an overlay: reads see it at once, and the source is not touched before a commit."""

    transaction_type = OverlayTransaction

    _session: Session
    _opened: Callable[[], KeySpace]
    _look: Callable[[str, Callable[[], Steps[Any]]], Any]

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

    # ------------------------------------------------------------------ commits

    def commit(self) -> None:
        """Make all that was written durable in the source, whole or not at all; nothing happens if there is nothing.

        Raises ConflictError if somebody else wrote the source since it was opened, and ReadOnlyError if it cannot be
        written: then it is as it was, and what was written is kept for `save` or another try.
        """
        from refshard_fs.writes.commit import Committing, commit  # what writes: who reads need not wait for it

        overlay = self._writing("commit")
        if overlay.worker is not None:
            raise ReadOnlyError(_ELSEWHERE)
        with overlay.lock:
            if overlay.is_shared and self._write_options.data_url is not None:
                self._merge(overlay)
            if overlay.is_empty:
                return
            self._opened()
            base = overlay.base
            assert base is not None, "whoever opens the source shares it"
            edits = overlay.savepoint()
            source = self._session.options.source
            if self._write_options.data_url is not None:
                self._store().settle(overlay.objects())
            given, values = self._session.given, self._writer_over(overlay, base)
            stored = commit(Committing(source, base, edits, overlay, self._look, given, self._write_options, values))
            left = overlay.settle(edits, stored)
        self._remove_objects(left)

    def _merge(self, overlay: Overlay) -> None:
        self._opened()
        base = overlay.base
        assert base is not None, "whoever opens the source shares it"
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

    # ------------------------------------------------------------------ other processes

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        if self._overlay is not None and self._overlay.worker is None:
            options = {**options, "overlay": self._overlay.travelling()}
        return make, (cls, args, options)

    # ------------------------------------------------------------------ sets written elsewhere

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

        Without ``format``, a name that ends in ``.json`` makes it JSON. Of a parquet set,
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
        from refshard_fs.save import respelling, save  # as in `commit`

        kind: SetFormat = format or ("json" if url.rstrip("/").endswith(".json") else "parquet")
        options = self._session.options
        source = options.source if isinstance(options.source, str) else None
        whole = respelling(options.open, source, None)
        spelled = respelling(options.open, source, None if kind == "chunk-manifest" else url)

        def respell(written: str | None) -> str | None:
            self.admit([whole(written)])  # what is written here is the user's own, and trusted
            return spelled(written)

        save(self._stored(), self._look, url, kind, record_size, overwrite, respell, storage_options, callback)
        self._entrust()

    def collect(self) -> ReferenceSet:
        """Return the references in columns, URLs absolute and shards whole; `refshard_fs.concat` and others use it."""
        from refshard_fs.collecting import collect  # as in `commit`
        from refshard_fs.save import respelling

        options = self._session.options
        source = options.source if isinstance(options.source, str) else None
        found = collect(self._stored(), self._look, respelling(options.open, source, None))
        self._entrust()
        return found

    def pinned(self, inline_threshold: int, *, flatten: bool, callback: Callback = DEFAULT_CALLBACK) -> ReferenceSet:
        """Return the references pinned to what their targets are now; `refshard_fs.snapshot` uses it."""
        from refshard_fs.collecting import pin  # as in `commit`
        from refshard_fs.save import respelling

        options = self._session.options
        source = options.source if isinstance(options.source, str) else None
        respell = respelling(options.open, source, None)
        shard_options = options.open.shard_options if flatten else None
        found = pin(self._stored(), self._look, respell, inline_threshold, shard_options, callback.relative_update)
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

    def _stored(self) -> KeySpace:
        """Return the keys that are stored, and would be after a commit: those of shards, not of inner chunks."""
        keyspace = self._opened()
        match keyspace:
            case EditedKeySpace(base=ShardView() as view, edits=edits) if len(edits) and self._overlay is not None:
                from refshard_fs.writes.shard_edits import shard_edits  # as in `commit`

                values = self._writer_over(self._overlay, self.base())
                return edited(view.base, shard_edits(view, edits, self._look, self._overlay, values))
        return keyspace

    def _entrust(self) -> None:
        if self._overlay is not None:
            self._overlay.entrust()

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the references as a JSON set to ``url``."""
        self.save(url, "json", **storage_options)

    # ------------------------------------------------------------------ writing

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
            if maxdepth is not None or _GLOB.intersection(name):
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
        """Let ``path`` hold ``length`` bytes at ``offset`` of the object at ``url``; without them, all of it."""
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        span = Span(self._absolute(url), offset, None if length is None else offset + length)
        if overlay.worker is None and overlay.base is not None:
            overlay.put(key, span)
        else:
            sync(self.loop or get_loop(), self._refer, key, span)

    async def _refer(self, key: str, span: Span) -> None:
        await (await self._opened_writer(self._writing(f"write {key!r}"))).refer(key, span)

    def _absolute(self, url: str) -> str:
        from refshard_fs.save import respelling  # as in `commit`

        options = self._session.options
        source = options.source if isinstance(options.source, str) else None
        return respelling(options.open, source, None)(url) or url

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

    # ------------------------------------------------------------------ what all of it needs

    @classmethod
    def _key(cls, path: Any) -> str:
        key: str = cls._strip_protocol(path)
        return key

    def _writing(self, what: str) -> Overlay:
        """Return what is written to; ReadOnlyError, which names ``what`` was to be done, if that is nothing."""
        if self._overlay is None:
            raise ReadOnlyError(
                f"cannot {what}: {self._session.options.source} was opened for reading; mode='a' lets one write. "
                "fsspec keeps it from the options of a URL: those are {'refshard': {'fo': ..., 'mode': 'a'}}, or the "
                "arguments of a filesystem that you hold, fsspec.filesystem('refshard', ..., mode='a')"
            )
        return self._overlay

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
        match base.keyspace:
            case ShardView() as view:
                self._values.is_inner = view.is_inner
        return self._values

    async def _opened_writer(self, overlay: Overlay) -> Values:
        while True:
            await self._session.keyspace()
            writer = self._writer(overlay)
            if writer is not None:  # it is open, and no other thread has begun anew meanwhile
                return writer

    def _store(self) -> Store:
        url = self._write_options.data_url
        assert url is not None
        return Store(url, self._session.given(url))


class WrittenFile(io.BytesIO):
    """A file that becomes a key when it is closed, and not if its ``with`` block ends in an exception."""

    def __init__(self, fs: Writable, key: str, before: bytes, *, at_end: bool) -> None:
        super().__init__(before)
        self._fs: Writable | None = fs
        self.path = key
        if at_end:
            self.seek(0, io.SEEK_END)

    def close(self) -> None:
        fs, self._fs = self._fs, None
        if fs is not None:
            fs.pipe_file(self.path, self.getvalue())
        super().close()

    def commit(self) -> None:
        """Be written by the transaction, which does that for all at once."""

    def discard(self) -> None:
        """Leave the key as it was."""
        self._fs = None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._fs = None
        super().__exit__(kind, *rest)

    def __del__(self) -> None:
        self._fs = None  # never closed: not known to be whole


def _assembly_of(overlay: Overlay) -> Assembly:
    from refshard_fs.writes.assembly import assembly_of  # as in `commit`

    return assembly_of(overlay)


def _read(path: str) -> bytes | None:
    """Return what a local file holds; None of a directory."""
    if os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        return file.read()

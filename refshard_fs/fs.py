"""The filesystem that fsspec, zarr and xarray see: thin methods over a `Source`, which reads, and a `Writer`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from glob import has_magic
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import fsspec
import msgspec
from fsspec.asyn import get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import split_protocol
from fsspec.implementations.local import make_path_posix
from fsspec.spec import AbstractFileSystem
from fsspec.utils import other_paths

from refshard_fs.core.keys import check_key, is_within, normalise, parent
from refshard_fs.core.model import Inline, Span
from refshard_fs.core.selection import Mode
from refshard_fs.core.stats import format_count
from refshard_fs.errors import (
    LONGEST,
    ReadOnlyError,
    escape_controls,
    is_secret,
    redact,
    sanitize,
)
from refshard_fs.normalizing_meta import NormalizingMeta
from refshard_fs.reading.plan import Request
from refshard_fs.references.values import decode
from refshard_fs.source import files
from refshard_fs.source.async_filesystem import AsyncFileSystem
from refshard_fs.source.files import RefShardFile, RefShardMap, StreamedFile, WrittenFile
from refshard_fs.source.in_memory_source import InMemorySource, argument_to_json
from refshard_fs.source.normalizing import MAPPER, SESSION, takes_keywords_of
from refshard_fs.source.options import RECORD_SIZE, Options, check_spelling
from refshard_fs.source.settings import WriteSettings
from refshard_fs.source.source import Source
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS
from refshard_fs.stores.links import resolve_path_to_write
from refshard_fs.tools.counters import Counters
from refshard_fs.tools.filesystem_view import render_filesystem
from refshard_fs.tools.plan_view import Plan
from refshard_fs.tools.progress import show_progress
from refshard_fs.tuning import find_pipeline_problem, hook_zarr
from refshard_fs.writing.references import ReferenceDict, WritableReferences
from refshard_fs.writing.transaction import OverlayTransaction
from refshard_fs.writing.writer import Writer

if TYPE_CHECKING:
    from refshard_fs.tools.picture import Picture


class RefShardFileSystem(AsyncFileSystem, metaclass=NormalizingMeta):
    """Show a reference set, a file of arrays, an archive or a zarr hierarchy as the keys of a zarr store.

    Parameters
    ----------
    fo:
        The source: a URL (any fsspec protocol or chain), a path (also a ``UPath``, or the ``OpenFile`` that
        `fsspec.open` returns), a mapping, bytes or a binary file; a virtual dataset of VirtualiZarr; or
        ``(store, path)``, an object in a store of obstore, or in any other store with obspec's methods. The format is
        recognised by the content; ``format=`` overrides this.
        A pattern, a list of URLs, or a table of URLs and their positions opens all of these as one cube: see
        `refshard_fs.open`. The table may be a Parquet file; at a remote URL that ends in .parquet, this needs
        ``concat``, which may be {}, because a parquet set may have such a URL, too.
    target:
        URL of references without a URL (``[null, offset, length]``).
    ref_storage_args:
        Older name of ``target_options`` in fsspec.
    target_protocol:
        Protocol of ``fo``, if ``fo`` has none.
    target_options:
        Options for opening ``fo`` itself.
    remote_protocol:
        Protocol of references whose URL has no protocol.
    remote_options:
        Options for ``remote_protocol``; by default, for the protocol of the first reference that has a protocol.
    fs:
        A filesystem instance for the targets, or a mapping of protocol to instance or options. Instances may be
        synchronous or asynchronous, and use any event loop. Stores of obstore (or others with obspec's methods) may
        take the place of filesystems, here and in ``options``; so may an ``ObjectStoreRegistry``, for the URLs below
        its prefixes.
    options:
        Options (and so credentials) per URL prefix: ``{"s3://bucket/a/": {...}}``. The longest prefix of a URL
        applies, and takes precedence over ``remote_options``. The option ``"versions": "ignore"`` compares only sizes,
        for mirrors whose ETags differ although their bytes are the same.
    template_overrides:
        Templates to use instead of the manifest's.
    simple_templates:
        False evaluates templates with jinja2, in its sandbox: only for sources that you trust. A source that is not
        on this machine needs ``allow=`` as well.
    base_url:
        URL of the directory from which a manifest's relative URLs start; by default, the manifest's directory.
    format:
        Name of the source's format; by default it is recognised by the content.
    index_cache:
        Directory that keeps decoded manifests, and indexes of GRIB2 and JPEG 2000 files, so that other processes
        open them at once; True for this platform's directory of caches, False for none. By default, only large
        manifests and indexes are kept, in this platform's directory.
    max_manifest_bytes:
        The most bytes of a manifest or a metadata document, after decompression; by default 8 GiB. If a server does
        not report the length, the download stops there. A document that grows more than 500 times when it is
        decompressed is refused above 64 MiB.
    head:
        Bytes that the first request for a source reads, by default 64 KiB. A larger number saves requests if all
        metadata of a file lie at its start, as in HDF5 files that were repacked or written with the paged strategy.
    max_gap:
        Ranges of one target are merged over gaps of at most this many bytes (negative: never).
    max_block:
        The most bytes of a request that merges ranges; it may have a quarter more, if the last range would otherwise
        need another request. A longer range is read in several requests of about this size, but of at least 1 MiB.
        None: no limit.
    retries:
        How often a request is repeated if it fails for a temporary reason.
    timeout:
        Seconds that a request may take, with all its repetitions.
    fast_s3:
        Whether this package sends requests to S3 itself, if the options permit it, instead of using s3fs.
    readahead:
        Bytes that may be fetched ahead of reads that follow a pattern; 0 turns this off.
    max_memory:
        Bytes that reading may take: answers under way, data fetched ahead, chunks of selections from the request
        until they are decoded, and decoded chunks in a cache. All copies of this filesystem in a process (pickles,
        zarr's asynchronous copy) share it, on any event loop. ``block_cache``, decoded manifests and indexes, and the
        arrays that you get are not included. Each event loop may always have one request, and each selection one
        chunk, so that no reader waits forever. Asking for the size of an object would cost a request. So a whole
        object of unknown size counts as many bytes as recent objects of its host had, and is read even if it is
        larger; over HTTP and from S3, up to 8 GiB.
    concurrency:
        The most requests to one host at a time, of all copies of this filesystem.
    block_cache:
        Bytes of chunks to keep in memory after they are read, for reading them again; by default none.
    cache_dir:
        Directory that keeps ranges of remote objects as they arrived, so that any process of yours reads them from
        this machine's disk the next time; True for this platform's directory of caches. By default, none. Before
        kept bytes of an object are used, the server is asked for the object's version.
    cache_bytes:
        The most bytes that ``cache_dir`` holds, for all processes together; the least recently read are removed first.
    cache_size:
        Number of partitions of a lazily read manifest, or of pieces of a lazy cube, that are kept open (None: all).
    allow:
        The only URL prefixes that references may point to; ``"any"`` for all. Without ``allow``, a source on this
        machine, or in memory, may point anywhere. A source from elsewhere may point to its own server and, without
        your credentials, to other web servers and object stores, but not to local files, chains or private networks.
        Anything that you name in another option (a protocol, a URL prefix, an instance) is allowed.
    shards:
        ``"inner"`` shows sharded arrays as ordinary arrays of their inner chunks; ``"whole"``
        leaves them as they are.
    shard_options:
        Layout of the shards that prototypes for zarr v2 wrote, whose metadata do not state it: ``{"endian": "big"}``,
        ``{"slots": "morton"}``.
    zarr_format:
        Zarr format, 2 or 3, in which sources without zarr metadata (such as NetCDF or TIFF) are shown.
    group:
        The path of the only group that is used. Other groups of an HDF5 file are not read if this group can be shown
        without them, and do not exist then. ``xarray.open_dataset(..., engine="refshard", group=...)`` sets it.
    branch, tag, snapshot:
        The version of an Icechunk repository: the last snapshot of a branch (by default ``main``), the snapshot of a
        tag, or the snapshot with this id.
    as_of:
        Show the last snapshot of the branch or tag that was written by this time, a `datetime` or its ISO text (UTC).
    select:
        Show a part of the source: a list of selections, applied in turn, each the arguments of `select` as JSON values.
    concat:
        Arguments of `refshard_fs.open`, if ``fo`` is many sources: a pattern (``"2024/*.nc"``), a list of URLs, or a
        table. They are joined when the filesystem is made: ``{"dim": "time", "keep": ["sst"]}``.
    verify:
        Whether to verify each chunk's checksum, if the source (bloscpack) has checksums. Each chunk is then read
        together with its checksum.
    mode:
        ``"r"`` refuses writes. ``"a"`` keeps them in an overlay: reads see them at once, and `commit` (or the
        end of ``with fs.transaction:``) saves them in the source, which is created if it does not exist.
        ``"w"`` begins with an empty source: its commit replaces a source at ``fo``, but never other files.
    overlay:
        The property `overlay` of another filesystem in this process: writes go to its overlay, and are
        committed together. Implies ``mode="a"``, which fsspec drops from the options of a URL.
    data_url, inline_threshold, content_addressed:
        Values of more than ``inline_threshold`` bytes become objects in the directory
        ``data_url``, when they are written; by default ``<fo>.data``. ``content_addressed``
        names them by their SHA-256, so that equal values are stored once.
    write_memory:
        Bytes of chunks that wait in memory for a commit to a zarr hierarchy, an Icechunk repository or shards; further
        chunks wait in temporary files.
    record_size:
        References per file of a parquet set that a commit creates.

    Raises
    ------
    FileNotFoundError
        The key does not exist; never for another reason.
    SourceNotReachable
        ``fo`` itself is missing or cannot be read.
    ReferenceNotReachable
        The key exists, but its bytes cannot be read.
    TargetNotAllowed
        The key exists, but ``allow`` does not permit the URL that it points to.
    ManifestError
        The source breaks the rules of its format.

    """

    protocol = "refshard"
    async_impl = True
    cachable = False
    transaction_type = OverlayTransaction
    _strip_tokenize_options = (SESSION, MAPPER)  # keywords that fsspec ignores when it compares filesystems

    @takes_keywords_of(Options.parse)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._session_name, mapper = kwargs.pop(SESSION), kwargs.pop(MAPPER, None)
        super().__init__(**{name: value for name, value in kwargs.items() if name in FSSPEC_ARGUMENTS})
        self._options = options = Options.parse(*args, **kwargs)
        self.fo: str | InMemorySource = options.source.fo
        writes = WriteSettings.of(options)
        self.mode = options.writing.mode or ("r" if writes is None else "a")
        self.source: Source = Source.share(options, self._session_name, (type(self), self._shared_options))
        if mapper is not None:
            self.source.mapper = mapper
        self._writer = None if writes is None else Writer(self.source, writes)  # None: all writes are refused

    @property
    def _shared_options(self) -> Options:
        """The options that all copies of this filesystem have: all but ``overlay``."""
        writing = msgspec.structs.replace(self._options.writing, overlay=None)
        return msgspec.structs.replace(self._options, writing=writing)

    def is_alike(self, other: RefShardFileSystem) -> bool:
        """Return whether ``other`` shows the same source, with the same options and the same uncommitted writes."""
        if self is other:
            return True
        return (type(self), self._shared_options, self.overlay) == (type(other), other._shared_options, other.overlay)

    @property
    def storage_options(self) -> dict[str, Any]:
        """The keywords with which fsspec and zarr make a copy, which shares the open source and its writes."""
        return {**self._storage_options, SESSION: self._session_name}

    @storage_options.setter
    def storage_options(self, options: dict[str, Any]) -> None:
        self._storage_options = options

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of synchronous calls, also for an asynchronous instance; a forked process has its own."""
        if self._loop is None or self._pid != os.getpid():
            self._loop = get_loop()
            self._pid = os.getpid()  # set last: other threads must not take the parent's loop, which does not run here
        return self._loop

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if type(path) is str and ":" not in path:  # the usual case, made fast
            return normalise(path)
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        protocol, rest = split_protocol(os.fspath(path))
        if protocol not in (None, cls.protocol, "reference"):
            rest = path
        return normalise(rest)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Open the source anew at the next use; forget the versions and the indexes of its objects.

        In a zarr hierarchy, where each key is an object, ``path`` limits this to the keys at and below it. Other
        filesystems keep their caches. Nothing in ``cache_dir`` is deleted: it is used again for objects that have not
        changed.
        """
        self.source.invalidate("" if path is None else self._strip_protocol(path))
        super().invalidate_cache(path)

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return the arguments as JSON, in fsspec's form.

        Without ``include_password``, all credentials are left out: headers, cookies, and all options and parameters of
        URLs with names such as "key" or "token".

        A source in memory is included if it has at most 1 MiB. Otherwise, the JSON has only its digest, to save time.
        Only this process can use the digest, as long as it holds the source; another process raises ManifestError.
        Pickle the filesystem to send it to another process.
        """
        stand_in = object.__new__(type(self))
        stand_in._session_name = self._session_name
        stand_in.storage_args = tuple(argument_to_json(value) for value in self.storage_args)
        overlay = {} if self.overlay is None else {"overlay": self.overlay}
        options = {name: value for name, value in (self.storage_options | overlay).items() if value is not None}
        # Options without a value are left out: fsspec has no form for None.
        stand_in.storage_options = {name: argument_to_json(value) for name, value in options.items()}
        out: dict[str, Any] = AsyncFileSystem.to_dict(stand_in, include_password=include_password)
        return out if include_password else _drop_credentials(out)

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        # dask names arrays by a hash of their pickles, so equal filesystems must have equal pickles
        if self._options.source.url is None:
            options = {**options, SESSION: hashlib.sha256(repr((cls, self._shared_options)).encode()).hexdigest()}
        overlay_copy = None if self._writer is None else self._writer.copy_overlay()
        if overlay_copy is not None:
            options = {**options, "overlay": overlay_copy}
        return make, (cls, args, options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return bytes ``[start:end]`` of ``path``, with the bounds of a Python slice.

        Raises FileNotFoundError if the key does not exist, ReferenceNotReachable if its bytes cannot be read.
        """
        request = Request(self._strip_protocol(path), start, end)
        data = self.source.read_now(request)
        if data is None:
            data = sync(self.loop, self.source.read, request)
        return data

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        hook_zarr(wait=False)  # here, since zarr reads the metadata of an array before it makes the array's pipeline
        data = await self.source.read(Request(self._strip_protocol(path), start, end))
        hook_zarr()
        return data

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Iterable[int | None] | None,
        ends: int | Iterable[int | None] | None,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if not isinstance(paths, list):
            raise TypeError(f"expected a list of paths, got {type(paths).__name__}")
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        lasts = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if len(firsts) != len(paths) or len(lasts) != len(paths):
            raise ValueError(
                f"expected as many starts and ends as paths, got {len(paths)} paths, {len(firsts)} starts and "
                f"{len(lasts)} ends"
            )
        requests = map(Request, map(self._strip_protocol, paths), firsts, lasts)
        out = await self.source.read_all(list(requests))
        if on_error != "return":
            for value in out:
                if isinstance(value, BaseException):
                    raise value
        return out

    async def _cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """Read as fsspec's `cat` does, but ``on_error="omit"`` leaves out only missing keys: a failed read is raised.

        A string that is not an existing key may be a pattern. The members of a list are keys, never patterns.
        """
        is_one = isinstance(path, (str, os.PathLike))
        keys = await self._match(path) if is_one else [self._strip_protocol(name) for name in path]
        if recursive:
            keys = [inner for key in keys for inner in await self._find_keys(key)]
        callback = kwargs.get("callback", DEFAULT_CALLBACK)
        callback.set_size(len(keys))
        requests = [Request(key, kwargs.get("start"), kwargs.get("end")) for key in keys]
        on_progress = None if callback is DEFAULT_CALLBACK else callback.relative_update  # the default does nothing
        out = await self.source.read_all(requests, on_progress)
        for value in out:
            if isinstance(value, BaseException) and (
                on_error == "raise" or (on_error == "omit" and not isinstance(value, FileNotFoundError))
            ):
                raise value
        pairs = zip(keys, out, strict=True)
        values = {key: value for key, value in pairs if on_error != "omit" or not isinstance(value, BaseException)}
        return out[0] if values and is_one and keys == [self._strip_protocol(path)] else values

    async def _match(self, path: Any) -> list[str]:
        """Return ``path`` as a key; if it does not exist and is a pattern, the keys that match it."""
        key = self._strip_protocol(path)
        if not has_magic(key) or await self._exists(key):
            return [key]
        return await self._expand_path(key)

    async def _expand_path(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> list[str]:
        """Return the sorted keys and directories that ``path`` names, and with ``recursive`` all below them.

        Unlike fsspec's method, this never takes the name of an existing key or directory for a pattern.
        """
        found: set[str] = set()
        for name in [path] if isinstance(path, (str, os.PathLike)) else path:
            key = self._strip_protocol(name)
            if has_magic(key) and not await self._exists(key):
                with contextlib.suppress(FileNotFoundError):
                    found.update(await super()._expand_path([key], recursive=recursive, maxdepth=maxdepth))
                continue
            if recursive:
                found.update(await self._find(key, maxdepth=maxdepth, withdirs=True))
            if not recursive or await self._exists(key):
                found.add(key)
        if not found:
            raise FileNotFoundError(path)
        return sorted(found)

    async def _list_pairs(
        self, source: Any, target: Any, is_directory: bool, recursive: bool, maxdepth: int | None
    ) -> tuple[list[str], list[str]]:
        """Return the keys that ``source`` names, and the path to which fsspec copies each.

        Unlike fsspec's code, this never takes an existing key for a pattern, and gives keys of the root a path in the
        directory ``target``: fsspec shortens only paths that begin with a slash.
        """
        is_one = isinstance(source, (str, os.PathLike))
        keys = await self._expand_path(source, recursive=recursive, maxdepth=maxdepth)
        if is_one and (not recursive or maxdepth is not None):
            keys = [key for key in keys if not await self._isdir(key)]
        if is_one and has_magic(self._strip_protocol(source)) and not await self._exists(source):
            goes_into = len(keys) == 1
        else:
            goes_into = is_one and is_directory and not os.fspath(source).endswith("/")
        if not keys:
            return [], []
        return keys, other_paths([f"/{key}" for key in keys], target, exists=goes_into, flatten=not is_one)

    async def _find_keys(self, key: str) -> list[str]:
        """Return ``key`` itself, or all keys below it; raise FileNotFoundError if nothing exists there."""
        keys: list[str] = await self._find(key)
        if not keys:
            raise FileNotFoundError(key)
        return keys

    async def _get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not (isinstance(rpath, list) and isinstance(lpath, list)):
            target = make_path_posix(lpath)
            is_directory = isinstance(target, str) and (
                target.endswith("/") or await asyncio.to_thread(os.path.isdir, target)
            )
            rpath, lpath = await self._list_pairs(rpath, target, is_directory, recursive, maxdepth)
        await super()._get(rpath, lpath, recursive=recursive, callback=callback, maxdepth=maxdepth, **kwargs)

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        key = self._strip_protocol(rpath)
        is_open = hasattr(lpath, "write")
        if not is_open and await self._isdir(key):
            os.makedirs(lpath, exist_ok=True)
            return
        file, is_whole = lpath if is_open else None, False
        try:
            async for piece in self.source.stream(key, callback.set_size):
                if file is None:  # create it only when the first bytes have arrived
                    file = _create_file(
                        os.fspath(lpath)
                    )  # not in a thread: after a cancellation, nothing would close it
                await asyncio.to_thread(file.write, piece)
                callback.relative_update(len(piece))
            is_whole = True
        finally:
            if not is_open and file is not None:
                file.close()
                if not is_whole:  # a part of the file would look like the whole file
                    os.remove(lpath)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> RefShardFile | WrittenFile:
        if mode == "rb":
            file = RefShardFile(self, path, mode, block_size or "default", cache_options=cache_options, **kwargs)
            if "size" not in kwargs and file.details["type"] == "directory":
                raise IsADirectoryError(f"{path!r} is a directory: list it with ls()")
            return file
        key, _ = self._prepare_write(path)
        content, kind = b"", mode.replace("b", "").replace("+", "")
        if kind not in ("w", "x", "a", "r"):
            raise ValueError(f"invalid mode {mode!r}: expected 'r', 'w', 'x' or 'a', with or without 'b' and '+'")
        if kind == "x" and self.exists(key):
            raise FileExistsError(f"{key!r} exists: mode 'x' writes only new keys, mode 'w' replaces existing keys")
        if kind == "r" or (kind == "a" and self.exists(key)):
            content = self.cat_file(key)
        return WrittenFile(self, key, content, at_end="a" in mode)

    def _dircache_from_items(self) -> None:
        """Do nothing: kerchunk calls this after it changes `references`, and listings here show changes at once."""

    def get_mapper(
        self, root: str = "", check: bool = False, create: bool = False, missing_exceptions: Any = None
    ) -> RefShardMap:
        """Return the keys below ``root`` as a mapping, which raises KeyError only for a key that does not exist."""
        return RefShardMap(root, self, check=check, create=create, missing_exceptions=(FileNotFoundError,))

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size (in bytes, as read) and type of ``path``; FileNotFoundError if it does not exist."""
        return await files.info(self.source, self._strip_protocol(path))

    def ukey(self, path: str) -> str:
        """Return a hash of the location of the bytes of ``path`` and of their targets' current versions.

        The hash changes when a target changes, even if reading it would raise TargetChanged. This sends requests for
        the versions.
        """
        key = self._strip_protocol(path)
        return self.source.wait(files.ukey, self.source, key)

    def checksum(self, path: str) -> int:
        """Return `ukey` as a number."""
        return int(self.ukey(path), 16)

    def modified(self, path: str) -> datetime:
        """Return the time at which the bytes of ``path`` were last changed.

        If the bytes lie in several targets, return the latest time; if they lie in the manifest, the time of the
        manifest's last change. Raise NotImplementedError if no target has a time of modification.
        """
        key = self._strip_protocol(path)
        return self.source.wait(files.read_modification_time, self.source, key)

    def created(self, path: str) -> datetime:
        """Raise NotImplementedError: servers report only the time of the last change, which `modified` returns."""
        raise NotImplementedError(f"{path!r} has no time of creation: modified() returns the time of its last change")

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> StreamedFile:
        """Open ``path`` for reading as a file whose ``read`` and ``close`` are coroutines."""
        if mode != "rb" or kwargs.get("compression"):
            raise ValueError(
                f"open_async: expected mode='rb' without compression, got mode={mode!r}, "
                f"compression={kwargs.get('compression')!r}: to write, use `await fs._pipe_file(key, data)`"
            )
        key = self._strip_protocol(path)
        info = await self._info(key)
        if info["type"] != "file":
            raise IsADirectoryError(f"{key!r} is a directory: list it with ls()")
        return StreamedFile(self, key, mode, size=info["size"])

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        rows = await files.ls(self.source, self._strip_protocol(path), detail=detail)
        name = path.lstrip("/")
        slashes = path[: len(path) - len(name)]
        if not (self.asynchronous and slashes and name):
            return rows
        # zarr 3.1 lists "/group", and removes this prefix, with the slash, from the names in the listing.
        return [{**row, "name": slashes + row["name"]} if detail else slashes + row for row in rows]

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any) -> Any:
        key = self._strip_protocol(path)
        rows = await files.find(self.source, key, maxdepth=maxdepth, withdirs=withdirs)
        return rows if kwargs.get("detail", False) else list(rows)

    async def _du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        rows = await self._find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in rows.items()}
        sizes |= {name: (await self._info(name))["size"] for name, size in sizes.items() if size is None}
        return sum(sizes.values()) if total else sizes

    async def _find_type(self, path: str) -> str | None:
        """Return the type of ``path``, as in `info`; None if it does not exist. Other errors are raised."""
        try:
            return str((await self._info(path))["type"])
        except FileNotFoundError:
            return None

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        return await self._find_type(path) in ("file", "directory")

    async def _isdir(self, path: str) -> bool:
        return await self._find_type(path) == "directory"

    async def _isfile(self, path: str) -> bool:
        return await self._find_type(path) == "file"

    @property
    def fss(self) -> dict[str | None, AbstractFileSystem]:
        """The filesystems of targets by protocol; None is the key for URLs without a protocol.

        Reading does not use these filesystems: it has its own connections. They are made when you read this property.
        """
        return self.source.list_filesystems()

    @property
    def left_whole(self) -> dict[str, str]:
        """The reasons, by path, why arrays or groups are not shown, or shards of arrays read so far are left whole."""
        return dict(self.source.open().reports)

    @property
    def attribute_dtypes(self) -> Mapping[str, Mapping[str, str]]:
        """The dtypes of attributes, by path of the array or group and by name, for dtypes that JSON cannot hold."""
        return self.source.open().attribute_dtypes

    @property
    def unlimited_dimensions(self) -> Mapping[str, Sequence[str]]:
        """The names of the unlimited dimensions of the file or cube, by the path of their group."""
        return self.source.open().unlimited_dimensions

    def prefetch(
        self,
        what: str | Sequence[str] | Mapping[str, Any],
        selection: Any = None,
        *,
        mode: Mode = "numpy",
        wait: bool = True,
        callback: Callback = DEFAULT_CALLBACK,
    ) -> None:
        """Fetch chunks ahead of reads, in few parallel requests, and hold them until they are read.

        ``what`` is a sequence of keys; or the path of an array, with a ``selection`` as in numpy (with
        ``mode="orthogonal"`` or ``mode="block"``, as in zarr's ``oindex`` or ``blocks``; by default, the whole array);
        or a mapping of such paths to selections (None: the whole array).
        At most ``max_memory`` bytes are held; the other chunks are fetched when reads have made room. With ``wait``,
        this method returns when ``max_memory`` is full or all chunks have arrived. It does not raise errors of
        fetching: the reads do. Chunks are fetched on the event loop of the last read, such as zarr's, and are held for
        reads on that loop. ``callback`` counts the requests that have been answered.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> fs = refshard_fs.RefShardFileSystem({"a/.zarray": json.dumps(meta), "a/0": "ab", "a/1": "cd"})
        >>> fs.prefetch("a", slice(2, 4))
        >>> fs.cat_file("a/1")
        b'cd'
        """
        loop = self.source.find_last_loop() or self.loop
        with show_progress("prefetch", callback) as shown:
            sync(loop, self._prefetch, what, selection, mode, wait, shown)

    async def _prefetch(
        self,
        what: Any,
        selection: Any = None,
        mode: Mode = "numpy",
        wait: bool = True,
        callback: Callback = DEFAULT_CALLBACK,
    ) -> None:
        if isinstance(what, str):
            what = {what: selection}
        elif selection is not None:
            raise TypeError(
                f"a selection needs the path of one array, got {type(what).__name__}: pass "
                "{path: selection, ...} for several arrays"
            )
        if isinstance(what, Mapping):
            chosen = {self._strip_protocol(path): Ellipsis if part is None else part for path, part in what.items()}
            lists = await asyncio.gather(*(self.source.find_keys(path, part, mode) for path, part in chosen.items()))
            keys = [key for keys_of_array in lists for key in keys_of_array]
        else:
            keys = [self._strip_protocol(key) for key in what]
        await self.source.prefetch(keys, wait=wait, on_progress=callback.relative_update)

    def resolve(self, path: str) -> tuple[str, int, int | None] | bytes:
        """Return the place of a key's bytes, (url, start, stop); or the bytes, if they are not a range of a target.

        ``stop=None`` means the end of the target. Only indexes are read, unless the bytes have to be returned.
        Raise FileNotFoundError if the key does not exist, ReferenceNotReachable if an index cannot be read.

        >>> import refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://bucket/x.nc", 100, 50], "a/1": "inline"})
        >>> fs.resolve("a/0"), fs.resolve("a/1")
        (('s3://bucket/x.nc', 100, 150), b'inline')
        """
        key = self._strip_protocol(path)
        keyspace = self.source.open()
        match self.source.run(key, lambda: keyspace.lookup(key)):
            case None:
                raise FileNotFoundError(key)
            case Span(url, start, stop):
                return url, start, stop
            case Inline(data):
                return data
        return self.cat_file(path)

    def plan(self, paths: str | Sequence[str]) -> Plan:
        """Return the requests, (url, start, stop, keys), that reading ``paths`` together would send; do not send them.

        The result is a list that prints as a table. ``start`` and ``stop`` are positions in the object at ``url``;
        ``stop=None`` means its end. Indexes of shards, and partitions, are read if they are not in memory yet.
        Raise FileNotFoundError if a key does not exist, ReferenceNotReachable if an index cannot be read.

        >>> import refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://b/x.nc", 0, 400], "a/1": ["s3://b/x.nc", 500, 400]})
        >>> [tuple(request) for request in fs.plan(["a/1", "a/0"])]
        [('s3://b/x.nc', 0, 900, ('a/0', 'a/1'))]
        """
        keys = [self._strip_protocol(path) for path in ([paths] if isinstance(paths, str) else paths)]
        return Plan(self.source.wait(self.source.plan, keys))

    def select(
        self,
        *,
        drop: Iterable[str] | str = (),
        keep: Iterable[str] | str | None = None,
        rename: Mapping[str, str] | None = None,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        isel: Mapping[str, int | slice] | None = None,
        sel: Mapping[str, Any] | None = None,
        squeeze: Iterable[str] | str | bool = (),
        assign: Mapping[str, Any] | None = None,
    ) -> RefShardFileSystem:
        """Return a read-only filesystem that shows a part of this one, without copying chunks.

        All arguments take the names of this filesystem. A name without a slash means the variables, or groups, of that
        name in every group; a name with a slash is one path (``"/air"`` in the root).

        ``drop`` leaves out variables and groups. ``keep`` keeps the named variables and groups, and the coordinates of
        these. It also keeps variables without other dimensions that attributes of the kept variables name:
        ``grid_mapping``, ``bounds``, ``climatology``, ``cell_measures``, ``formula_terms``, and CF's attributes of
        geometries. ``ds[["air"]]`` of xarray keeps the same after ``decode_coords="all"``.

        ``rename`` gives variables, groups and dimensions other names, also in the attributes that name them
        (``coordinates``, ``bounds``, ``grid_mapping``, ``ancillary_variables``, ``cell_measures`` ...). ``attrs`` sets
        attributes of a variable or group (``""``: of the root); the value None removes an attribute. ``isel`` takes a
        range of elements along dimensions: slices of step 1, whose negative bounds count from the end, or an integer,
        which drops the dimension. ``sel`` takes labels of coordinates as xarray does (``{"time": slice("2024-01",
        "2024-03")}``); it needs xarray, and reads the coordinates. If a slice begins where a chunk begins, its chunks
        stay references, wherever it ends. Otherwise chunks are decoded, cut and joined, uncompressed, when they are
        read. ``squeeze`` drops dimensions of length 1: those that it names, or all if it is True. ``assign`` adds or
        replaces small arrays, under the names of the result: values along a dimension with the array's name, or
        ``(dims, values, attrs)``, as in ``ds.assign_coords``.

        Raise ManifestError, with the names that exist, for a name that does not exist, and for a slice that begins
        within a chunk that cannot be decoded; an asynchronous filesystem raises it at its first read. Raise ValueError
        if there are uncommitted writes. Keys outside of arrays and groups are not shown.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> refs = {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
        ...         "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2], "b/.zarray": json.dumps(meta)}
        >>> part = refshard_fs.RefShardFileSystem(refs).select(keep="a", rename={"a": "air"}, isel={"x": slice(2, 4)})
        >>> part.find(""), part.resolve("air/0")
        (['air/.zarray', 'air/.zattrs', 'air/0'], ('s3://b/k', 9, 11))
        """
        overlay = self.source.transaction
        if overlay is not None and len(overlay.edits):
            raise ValueError(
                f"{format_count(len(overlay.edits), 'write')} not committed: call commit() or discard() before select()"
            )
        from refshard_fs.sets.make_choice import make_choice  # imported only for a selection

        choice = make_choice(
            self.source,
            self,
            drop=drop,
            keep=keep,
            rename=rename,
            attrs=attrs,
            isel=isel,
            sel=sel,
            squeeze=squeeze,
            assign=assign,
        )
        others = (SESSION, MAPPER, "mode", "overlay")
        options = {name: value for name, value in self._storage_options.items() if name not in others}
        options["select"] = [*(options.get("select") or ()), choice.to_json()]
        selection = type(self)(*self.storage_args, **options)
        if not self.asynchronous:
            selection.source.open()
        return selection

    def stats(self) -> Counters:
        """Return a dict of counters of the reads of this filesystem and its copies in this process.

        The dict prints as a table; `refshard_fs.core.stats` explains the names. If zarr reads chunk by chunk, instead
        of passing whole selections (see `tune_zarr`), a line below the table says so.
        """
        counters = Counters(self.source.stats.snapshot())
        problem = find_pipeline_problem()
        if problem is not None:
            counters.note = f"zarr reads chunk by chunk: {problem}"
        return counters

    def tree(self, *args: Any, **kwargs: Any) -> str:
        """Draw the keys as a tree, as fsspec does, with control characters escaped."""
        return "\n".join(map(escape_controls, super().tree(*args, **kwargs).split("\n")))

    def visualize(self, array: str | None = None, select: Any = None) -> Picture:
        """Draw where the bytes of ``array`` lie; without ``array``, the files of all arrays.

        Each chunk has the same colour in the grid and in its file. ``select`` is an index as in numpy, or a text
        (``"air[0:10, :, :]"``): the picture then shows the requests that reading this slice would send. Notebooks show
        the picture; ``.save("map.svg")`` writes it (also as .html and, with matplotlib, as .png). Only metadata and
        indexes are read.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> refs = {"a/.zarray": json.dumps(meta), "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2]}
        >>> refshard_fs.RefShardFileSystem(refs).visualize("a", slice(0, 2))
        <Picture: Where the bytes of a lie: 2 of 2 chunks in 1 file; reads 1 chunk in 1 request: 2 B>
        """
        from refshard_fs.tools.map import make_picture

        return make_picture(self, array, select)

    def __repr__(self) -> str:
        # The address keeps filesystems apart: fsspec compares arguments that are filesystems by their repr.
        source = self.fo if isinstance(self.fo, str) else "a source in memory"
        overlay = self.source.transaction
        pending = 0 if overlay is None else len(overlay.edits)
        writes = f", {format_count(pending, 'write')} not committed" if pending else ""
        part = "a selection of " if self._options.source.select else ""
        return f"<{type(self).__name__} of {part}{sanitize(source)} at {id(self):#x}{writes}>"

    def _repr_html_(self) -> str:
        return render_filesystem(self.source)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write ``value`` to ``path``: bytes, or any value that `references` takes, such as text."""
        key, writer = self._prepare_write(path)
        if isinstance(value, (str, list, tuple, dict)):
            self.references[key] = value
            return
        data = _convert_to_bytes(value)
        if not (mode == "overwrite" and writer.write_now(key, data)):
            self.source.wait(self._pipe_file, path, data, mode)

    async def _pipe_file(self, path: str, value: bytes | str, mode: str = "overwrite", **kwargs: Any) -> None:
        key, writer = self._prepare_write(path)
        if mode == "create" and await self._exists(key):
            raise FileExistsError(f"{key!r} exists: mode='create' writes only new keys, mode='overwrite' replaces keys")
        await writer.write(key, decode(value) if isinstance(value, str) else _convert_to_bytes(value))

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        self.require_writer(f"write {rpath!r}")
        if await asyncio.to_thread(os.path.isdir, lpath):
            return
        data = await asyncio.to_thread(Path(lpath).read_bytes)
        callback.set_size(len(data))
        await self._pipe_file(rpath, data, mode=mode)
        callback.relative_update(len(data))

    async def _copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        on_error: str | None = None,
        maxdepth: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not (isinstance(path1, list) and isinstance(path2, list)):
            is_directory = isinstance(path2, str) and (path2.endswith("/") or await self._isdir(path2))
            path1, path2 = await self._list_pairs(path1, path2, is_directory, recursive, maxdepth)
            if recursive:  # manifests of arrays are not copied: a commit makes new ones for the copies
                manifests = await self.require_writer("copy").find_manifests(path1)
                pairs = [pair for pair in zip(path1, path2, strict=True) if pair[0] not in manifests]
                path1, path2 = [source for source, _ in pairs], [target for _, target in pairs]
        await super()._copy(path1, path2, recursive=recursive, on_error=on_error, batch_size=batch_size, **kwargs)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Make ``path2`` refer to the bytes of ``path1``; copy bytes with a pin, and bytes that are not a range."""
        source = self._strip_protocol(path1)
        self.require_writer(f"write {path2!r}")
        if await self._isdir(source):
            return
        key, writer = self._prepare_write(path2)
        if not await writer.link(key, await self.source.find(source)):
            await self._pipe_file(key, await self._cat_file(source))

    def mv(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Move ``path1`` to ``path2``, as fsspec does; do nothing if both are the same key."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return
        if isinstance(path1, str) and not path1.endswith("/") and parent(source)[0] == target:
            for key in self.source.wait(self._match, path1):
                self.info(key)  # raises FileNotFoundError if the key does not exist
            return
        if isinstance(path1, str) and isinstance(path2, str) and recursive and is_within(target, source):
            raise ValueError(f"{source!r} cannot be moved into itself, as {target!r}")
        self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
        self.rm(path1, recursive=recursive, maxdepth=maxdepth)

    async def _rm(
        self,
        path: str | Iterable[str],
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Remove keys, and with ``recursive`` all keys below them. Unlike fsspec's method, this takes no patterns.

        zarr calls it to remove chunks, also those of arrays whose names look like patterns.
        """
        writer = self.require_writer(f"remove {path!r}")
        for name in [path] if isinstance(path, (str, os.PathLike)) else list(path):
            key = self._strip_protocol(name)
            kind = (await self._info(key))["type"]
            if kind != "directory":
                await writer.remove(key)
            elif not recursive:
                raise IsADirectoryError(f"{key!r} is a directory: remove it with recursive=True")
            elif maxdepth is None:
                await writer.remove_below(key)
            else:
                for inner in await self._find(key, maxdepth=maxdepth):
                    await writer.remove(inner)

    def rm(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Remove keys, and with ``recursive`` all keys below them; a string that is not a key may be a pattern."""
        self.source.wait(self._rm_matching, path, recursive, maxdepth)

    async def _rm_matching(self, path: str | Iterable[str], recursive: bool, maxdepth: int | None) -> None:
        self.require_writer(f"remove {path!r}")
        if isinstance(path, (str, os.PathLike)):
            keys = await self._match(path)
            if keys != [self._strip_protocol(path)] and not recursive:
                keys = [key for key in keys if await self._isfile(key)]
            path = keys
        await self._rm(path, recursive=recursive, maxdepth=maxdepth)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._rm(path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Write an empty value to ``path``; without ``truncate``, only if the key does not exist."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Only check that writes are taken: a directory exists as soon as a key is in it."""
        self.require_writer(f"make {path!r}")

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.require_writer(f"make {path!r}")

    async def _rmdir(self, path: str) -> None:
        """Raise OSError if keys are in the directory. An empty directory does not exist: there is nothing to remove."""
        self.require_writer(f"remove {path!r}")
        if await self._ls(path, detail=False):
            raise OSError(f"{path!r} is not empty: remove the keys in it with rm(path, recursive=True)")

    def refer(self, path: str, url: str | None, offset: int = 0, length: int | None = None) -> None:
        """Make ``path`` refer to ``length`` bytes at ``offset`` of the object at ``url``; by default to all bytes.

        ``url=None`` stands for the URL of the option ``target``.

        The object is not read. Raise TargetNotAllowed if references may not point to ``url``, ReadOnlyError if the
        filesystem takes no writes.

        >>> import fsspec, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem("memory://made.json", mode="w")
        >>> with fs.transaction:
        ...     fs.refer("a/0", "s3://bucket/x.nc", 100, 50)
        >>> refshard_fs.RefShardFileSystem("memory://made.json", remote_protocol="s3").resolve("a/0")
        ('s3://bucket/x.nc', 100, 150)
        """
        key, writer = self._prepare_write(path)
        start, size = index(offset), None if length is None else index(length)
        if min(start, size or 0) < 0 or start + (size or 0) >= 2**63:
            raise ValueError(
                f"{key!r}: expected offset and length of at least 0, and an end below 2**63, got offset {offset} and "
                f"length {length} of {sanitize(url or 'target=')}"
            )
        from refshard_fs.writing.save import make_speller  # imported only for writing

        respell = make_speller(self.source.options.open, self.fo)
        span = Span(respell(url) or url or "", start, None if size is None else start + size)
        if not writer.refer_now(key, span):
            self.source.wait(writer.refer, key, span)

    def _prepare_write(self, path: str) -> tuple[str, Writer]:
        """Return ``path`` as a key, and the writer; raise ValueError if a source cannot have such a key."""
        key = self._strip_protocol(path)
        writer = self.require_writer(f"write {key!r}")
        if not key:
            raise IsADirectoryError("cannot write to '': the root is a directory")
        try:
            check_key(key)
        except ValueError as e:  # after a commit, the key would make the source unreadable, or lie outside of it
            raise ValueError(f"cannot write {key!r}: {e}") from e
        return key, writer

    @property
    def writer(self) -> Writer | None:
        """The writer of this filesystem; None if it is opened for reading."""
        return self._writer

    def require_writer(self, action: str) -> Writer:
        """Return the writer; raise ReadOnlyError, which names the ``action``, if the filesystem takes no writes."""
        if self._writer is None:
            raise ReadOnlyError(
                f"cannot {action}: {self.source.options.source} is opened for reading: open it with mode='a'. "
                "fsspec drops mode='a' from storage_options of a URL: pass {'refshard': {'fo': ..., 'mode': 'a'}} "
                "there, or {'fo': ..., 'overlay': fs.overlay}, where fs is a filesystem that takes writes"
            )
        return self._writer

    @property
    def overlay(self) -> str | None:
        """The id of the uncommitted writes: another filesystem in this process shares them with ``overlay=``."""
        overlay = self.source.transaction
        return None if overlay is None else overlay.id

    def commit(self, message: str | None = None) -> None:
        """Save all uncommitted writes in the source; do nothing if there are none.

        A commit to a set of references, or to a branch of an Icechunk repository, changes all or nothing; ``message``
        is the message of the repository's new snapshot. In a zarr hierarchy, each object is written whole: first
        chunks, then metadata, then removals. If this fails, a note on the error lists the objects written so far.

        Raise ConflictError if the source has been changed since it was opened, and ReadOnlyError if it cannot be
        written. The uncommitted writes are then kept, for another `commit` or for `save`.
        """
        from refshard_fs.writing.commit import commit  # imported only for writing

        commit(self.require_writer("commit"), message)

    def fork(self) -> RefShardFileSystem:
        """Return a filesystem with which other processes can write; `merge` adds its writes to this filesystem.

        The fork begins with the uncommitted writes of this filesystem, and can be pickled. Each write to it becomes an
        object in ``data_url`` at once. So workers need not send the fork back: merge the fork that you sent to them. A
        fork cannot commit.

        >>> import refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem("memory://forked.json", mode="a")
        >>> fork = fs.fork()
        >>> fork.pipe_file("a/0", b"1")
        >>> fs.exists("a/0")
        False
        >>> fs.merge(fork)
        >>> fs.cat_file("a/0")
        b'1'
        >>> fs.commit()
        """
        writer = self.require_writer("fork")
        writer.refuse_in_worker()
        if writer.store is None:
            raise ReadOnlyError("cannot fork: other processes need a directory for their writes: pass data_url=")
        options = {**self.storage_options, SESSION: uuid.uuid4().hex, "overlay": writer.overlay.make_fork()}
        return type(self)(*self.storage_args, **options)

    def merge(self, *forks: RefShardFileSystem) -> None:
        """Add the writes of ``forks`` to this filesystem, for its next commit; reads see them at once.

        Without ``forks``, add the writes of copies of this filesystem in other processes (pickles, forked children);
        a commit does so by itself. Raise ConflictError, which names the key, if two forks have different values for a
        key, or if this filesystem wrote another value after it made the fork: then nothing is merged.
        """
        from refshard_fs.writing.commit import merge_forks  # imported only for writing

        writer = self.require_writer("merge")
        overlays = [fork.source.ensure_transaction() for fork in forks]
        if any(not overlay.fork or overlay.origin != writer.overlay.id for overlay in overlays):
            raise ValueError("merge() expects forks of this filesystem: pass filesystems that fs.fork() returned")
        merge_forks(writer, *([{overlay.fork for overlay in overlays}] if forks else []))

    def flush(self) -> None:
        """Commit, under the name of fsspec's ``LazyReferenceMapper``; do nothing if the source is in memory."""
        if isinstance(self.fo, str):
            self.commit()

    def discard(self) -> None:
        """Drop all uncommitted writes, and remove their objects; reads see the source as it is now."""
        self.require_writer("discard").discard()

    @property
    def references(self) -> MutableMapping[str, Any]:
        """The references as a dict, by key: text, bytes or ``[url, offset, length]``, with templates expanded.

        Each value is made when you read it, and `copy` returns a plain dict. Setting a value writes the key, if this
        filesystem takes writes. If a commit can write to the source's URL, the result is not a dict, but a mapping like
        fsspec's ``LazyReferenceMapper``, as kerchunk expects: `flush` commits.

        >>> import json, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://bucket/x.nc", 100, 50]})
        >>> fs.references["a/1"] = ["s3://bucket/x.nc", 150, 50]
        >>> json.dumps(fs.references)
        '{"a/0": ["s3://bucket/x.nc", 100, 50], "a/1": ["s3://bucket/x.nc", 150, 50]}'
        """
        if self.source.mapper is not None:
            return self.source.mapper
        self.source.references()  # raises NotImplementedError if the source has no references
        return (WritableReferences if self._writer and isinstance(self.fo, str) else ReferenceDict)(self)

    def save(
        self,
        url: str,
        format: str | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> str | None:
        """Write the references to ``url`` as ``"parquet"``, ``"json"``, ``"chunk-manifest"`` or ``"icechunk"``.

        Other packages may add formats: see `refshard_fs.sinks`.

        By default, the suffix of ``url`` decides the format: ``.json`` (or ``.json.gz``, ``.bz2``, ``.xz``, ``.zst``)
        is JSON, ``.zarr`` chunk manifests, ``.icechunk`` an Icechunk repository, and any other suffix a parquet set.

        - A **parquet set** has ``record_size`` references per file. It is written to a new or empty
          directory. With ``overwrite`` it replaces another parquet set when the new one is complete.
        - **JSON** replaces an existing file.
        - **Chunk manifests** are a zarr version 3 hierarchy; metadata of version 2 are converted.
        - An **Icechunk repository** (extra ``icechunk``; ``branch=``, ``message=``, ``virtual_stores=``) gets one
          commit: ranges of objects are virtual chunks, and all other chunks are copied.

        Readers never see a part of a file. URLs still name the same targets. Uncommitted writes are included.
        If the source is not a reference set, chunks that are ranges of objects (for sharded arrays, the shards)
        become references. Chunks that have to be decoded from other bytes, such as those of GRIB2, are copied into the
        set or, if they have more than 64 MiB together, into an object in ``<url>.data``. The result is one line about
        the copies, or None.

        Raise ManifestError, which names the key, if the format cannot hold a reference, and TargetNotAllowed if the
        source may not point to a target: then nothing is written. fsspec's ``reference`` filesystem can read parquet
        sets of zarr version 2 with ``.`` between coordinates. ``callback`` counts the chunks that arrays may have.
        Keywords such as ``key=`` and ``secret=`` are options of the filesystem of ``url``, to which the options of the
        source do not apply.
        """
        from refshard_fs.sets.save_set import save_set  # imported only for writing

        check_spelling(storage_options, RefShardFileSystem.save)
        return save_set(self.source, self._writer, url, format, record_size, overwrite, callback, storage_options)

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the references as a JSON set to ``url``."""
        self.save(url, "json", **storage_options)


def _drop_credentials(value: Any) -> Any:
    """Return the JSON ``value`` without any credentials in it."""
    if isinstance(value, str):
        return value if len(value) > LONGEST else redact(value)
    if isinstance(value, dict):
        public = {name: inner for name, inner in value.items() if not _gives_access(str(name))}
        return {_drop_credentials(name): _drop_credentials(inner) for name, inner in public.items()}
    if isinstance(value, list):
        pairs = [isinstance(inner, list) and len(inner) == 2 and _gives_access(str(inner[0])) for inner in value]
        return [
            _drop_credentials(inner) for inner, is_secret_pair in zip(value, pairs, strict=True) if not is_secret_pair
        ]
    return value


def _gives_access(name: str) -> bool:
    return is_secret(name) or name.lower().endswith(("headers", "cookies"))


def _convert_to_bytes(value: Any) -> bytes:
    if isinstance(value, int):  # bytes(5) would be five zeros
        raise TypeError(f"expected bytes to write, got the integer {value!r}")
    return bytes(value)


def _create_file(path: str) -> BinaryIO:
    path = resolve_path_to_write(path)
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    return open(path, "wb")


def replace_reference_filesystem() -> None:
    """Register this filesystem also for the protocol ``reference``, so that ``engine="kerchunk"`` and recipes use it.

    This holds for this process from now on; existing filesystems do not change.

    >>> import fsspec, refshard_fs
    >>> refshard_fs.replace_reference_filesystem()
    >>> fsspec.get_filesystem_class("reference").__name__
    'RefShardFileSystem'
    """
    fsspec.register_implementation("reference", RefShardFileSystem, clobber=True)

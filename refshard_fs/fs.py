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
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Span
from refshard_fs.core.selection import Mode
from refshard_fs.core.stats import count_text
from refshard_fs.cubes.choice import Choice
from refshard_fs.errors import LONGEST, ReadOnlyError, is_secret, redacted, told
from refshard_fs.reading.plan import Request
from refshard_fs.reading.selection import Take
from refshard_fs.references.values import decode
from refshard_fs.source import files
from refshard_fs.source.async_filesystem import AsyncFileSystem
from refshard_fs.source.files import RefShardFile, RefShardMap, StreamedFile, WrittenFile
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.normalizing import MAPPER, SESSION, NormalizingMeta, takes_keywords_of
from refshard_fs.source.options import RECORD_SIZE, Options
from refshard_fs.source.settings import Settings, WriteSettings, format_named, transaction_for
from refshard_fs.source.source import Source
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS
from refshard_fs.stores.links import path_to_write
from refshard_fs.tools.views import Counters, Plan, html_of, progress
from refshard_fs.tuning import hook_zarr, pipeline_problem
from refshard_fs.writing.references import ReferenceDict, WritableReferences
from refshard_fs.writing.transaction import OverlayTransaction
from refshard_fs.writing.writer import Writer

if TYPE_CHECKING:
    from refshard_fs.references.reference_set import ReferenceSet
    from refshard_fs.references.stream import Respell
    from refshard_fs.source.collect import Unread
    from refshard_fs.tools.picture import Picture


class RefShardFileSystem(AsyncFileSystem, metaclass=NormalizingMeta):
    """A reference set, a file of arrays, an archive or a zarr hierarchy as zarr keys.

    Parameters
    ----------
    fo:
        The source: a URL (any fsspec protocol or chain), a path (also a ``UPath``, or what `fsspec.open`
        returns), a mapping, bytes or a binary file; a virtual dataset of VirtualiZarr; or ``(store, path)``, an
        object of a store of obstore, or of any other that has obspec's methods. Recognised by its content;
        ``format=`` overrides.
        A pattern, a list of URLs, or a table of URLs and their places stands for all of them, joined as by
        `refshard_fs.cube`.
    target:
        The URL that references without one (``[null, offset, length]``) stand for.
    ref_storage_args:
        As ``target_options``: the name that fsspec had for it.
    target_protocol:
        Protocol of ``fo``, where it names none.
    target_options:
        Options for opening ``fo`` itself.
    remote_protocol:
        Protocol of references that name none.
    remote_options:
        Options for ``remote_protocol``; without that, for the protocol of the first reference that names one.
    fs:
        A filesystem instance for the targets, or a mapping of protocol to instance or
        options. Synchronous or asynchronous, of any event loop. Stores of obstore (of obspec's protocols) may stand
        for filesystems, here and in ``options``; so may an ``ObjectStoreRegistry``, for the URLs below its prefixes.
    options:
        Options (and so credentials) per URL prefix: ``{"s3://bucket/a/": {...}}``. The
        longest prefix wins, and wins over ``remote_options``. ``"versions": "ignore"`` among them
        compares sizes alone, for mirrors whose ETags differ though their bytes are the same.
    template_overrides:
        Templates to use instead of the manifest's.
    simple_templates:
        False evaluates templates with jinja2, in its sandbox. For sources that you trust: one that is not on
        this machine needs ``allow=`` as well.
    base_url:
        The directory that relative URLs in a manifest start from; default: where it lies.
    format:
        Name of the source's format, where recognising it is not wanted.
    index_cache:
        Where decoded manifests, and what was found in GRIB2 files, are kept, so that other processes open them at
        once: a directory, True for this platform's directory of caches, False for nowhere. By default, large ones
        are kept as with True.
    max_manifest_bytes:
        Bytes that a manifest, or a metadata document, may have, decompressed; by default 8 GiB. No more are
        fetched where a server does not tell the length. A compressed document that grows more than 500 times
        is refused once it has 64 MiB.
    head:
        Bytes of a source that its first request reads, by default 64 KiB: more where a file's metadata lie together
        at its start, as those of HDF5 files that were written with pages or repacked.
    max_gap:
        Ranges of one target are merged over gaps of up to that many bytes (negative: never).
    max_block:
        Ranges are merged into requests of up to that many bytes. A longer range is read in several requests of about
        that size, but of a mebibyte at least.
    retries:
        Further tries of a request that fails for a passing reason.
    timeout:
        Seconds that a request and its tries may take together.
    fast_s3:
        Whether S3 is read by requests of our own, where that can work, instead of s3fs's.
    readahead:
        Bytes that may be fetched ahead of reads that follow a pattern; 0 turns that off.
    max_memory:
        Bytes that reading takes in all: answers under way, what is fetched ahead, chunks of selections from being asked
        for until they are decoded, and decoded chunks that are remembered. All copies of this filesystem in a process
        (pickles, zarr's asynchronous one) have them together, whatever event loops they read on. ``block_cache``,
        decoded manifests and indexes, and the arrays that you get come on top. One request of a loop and one chunk of a
        selection may always be, so that no reader waits for ever. A whole object of unknown size counts as many bytes
        as the last ones of its host had, since asking for its size would cost a request. It is read whatever its size
        is; over HTTP and from S3, up to 8 GiB.
    concurrency:
        Requests that these may have under way to one host at a time.
    block_cache:
        Bytes of chunks to keep after they were read, for reading them again; by default none.
    cache_dir:
        Where ranges of remote objects are kept as they came, so that they are read from this machine's disk the next
        time, by any process of yours: a directory, or True for this platform's directory of caches. By default,
        nowhere. An object is asked for its version before anything kept of it is used.
    cache_bytes:
        Bytes that ``cache_dir`` may hold, of all processes together; those that were not read for longest go first.
    cache_size:
        Partitions of a lazily read manifest, or parts of a lazy cube, that are kept at a time.
    allow:
        URL prefixes that references may point to, and no others; ``"any"`` for all. Without
        it, a source on this machine, or in memory, may point anywhere. One from elsewhere may
        point to where it came from and, without your credentials, to other web servers and
        object stores, but not to local files, chains or private networks. What you name in
        another option (a protocol, a URL prefix, an instance) is allowed.
    shards:
        ``"inner"`` shows sharded arrays as ordinary arrays of their inner chunks; ``"whole"``
        leaves them as they are.
    shard_options:
        How zarr v2 prototype shards are laid out, which their files do not tell: ``{"endian": "big"}``,
        ``{"slots": "morton"}``.
    zarr_format:
        Version, 2 or 3, of the metadata that is shown for a source without zarr metadata of
        its own (bcolz, bloscpack).
    branch, tag, snapshot:
        Which version of an Icechunk repository is shown: the last one of a branch (by default ``main``), or that of
        a tag or of a snapshot's id.
    as_of:
        The last snapshot of the branch that was written by this time, a `datetime` or its ISO text (UTC).
    select:
        What of the source is shown: the arguments of `select` as JSON values, for each selection in turn.
    concat:
        Arguments of `refshard_fs.cube`, where ``fo`` is many sources: a pattern (``"2024/*.nc"``), a list of URLs, or a
        table. They are joined when the filesystem is made: ``{"dim": "time", "keep": ["sst"]}``.
    verify:
        Whether each chunk's checksum is verified, where the source (bloscpack) has them; a
        chunk is then read with the bytes of its checksum.
    mode:
        ``"r"`` refuses writes. ``"a"`` keeps them in an overlay: reads see them at once, and `commit` (or the
        end of ``with fs.transaction:``) makes them part of the source, which is made if it does not exist.
        ``"w"`` begins with an empty source; what is no source is not written over.
    overlay:
        `overlay` of another filesystem of this process: what is written goes there, and is
        committed with the rest. Implies ``mode="a"``, which fsspec drops from the options of a URL.
    data_url, inline_threshold, content_addressed:
        Values of more than ``inline_threshold`` bytes become objects in the directory
        ``data_url``, as they are written; by default ``<fo>.data``. ``content_addressed``
        names them by their SHA-256, so that equal ones are stored once.
    write_memory:
        Bytes of chunks that wait in memory for the commit of a zarr hierarchy; more of them wait in a temporary
        file.
    record_size:
        References per file of a parquet set that a commit makes.

    Raises
    ------
    FileNotFoundError
        Only if there is no such key.
    SourceNotReachable
        If ``fo`` itself is missing or cannot be read.
    ReferenceNotReachable
        If a key exists and its bytes cannot be had.
    TargetNotAllowed
        If a key exists and points where ``allow`` does not let it.
    ManifestError
        If the source breaks its format.

    """

    protocol = "refshard"
    async_impl = True
    cachable = False
    transaction_type = OverlayTransaction
    _strip_tokenize_options = (SESSION, MAPPER)  # keywords by which filesystems are not told apart

    @takes_keywords_of(Options.parse)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._session_name, mapper = kwargs.pop(SESSION), kwargs.pop(MAPPER, None)
        super().__init__(**{name: value for name, value in kwargs.items() if name in FSSPEC_ARGUMENTS})
        self._options = options = Options.parse(*args, **kwargs)
        self.fo: str | InMemorySource = options.source.fo
        writes = WriteSettings.of(options)
        self.mode = options.writing.mode or ("r" if writes is None else "a")
        made = Source(Settings.of(options), transaction_for(options))
        self.source: Source = made.shared_as(self._session_name, (type(self), self._alike))
        if mapper is not None:
            self.source.mapper = mapper
        self._writer = None if writes is None else Writer(self.source, writes)  # without one, all writes are refused

    @property
    def _alike(self) -> Options:
        """The options that copies have in common: they may differ in what was written."""
        writing = msgspec.structs.replace(self._options.writing, overlay=None)
        return msgspec.structs.replace(self._options, writing=writing)

    def is_alike(self, other: RefShardFileSystem) -> bool:
        """Whether ``other`` shows the same source, opened with the same options, and the same uncommitted writes."""
        one, two = (type(self), self._alike, self.overlay), (type(other), other._alike, other.overlay)
        return self is other or one == two

    @property
    def storage_options(self) -> dict[str, Any]:
        """The keywords that fsspec, and zarr, make a copy with: it shares the opened source, and the writes."""
        return {**self._storage_options, SESSION: self._session_name}

    @storage_options.setter
    def storage_options(self, given: dict[str, Any]) -> None:
        self._storage_options = given

    # ------------------------------------------------------------------ what fsspec asks of every filesystem

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of synchronous use, also by an asynchronous instance; after a fork a new one."""
        if self._loop is None or self._pid != os.getpid():
            self._loop = get_loop()
            self._pid = os.getpid()  # set last: other threads must not take the parent's loop, which nobody runs here
        return self._loop

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if type(path) is str and ":" not in path:  # as nearly all are
            return normalise(path)
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        protocol, rest = split_protocol(os.fspath(path))
        if protocol not in (None, cls.protocol, "reference"):
            rest = path
        return normalise(rest)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Open the source anew at the next use; forget which versions of its objects were read, and their indexes.

        With ``path``, where keys are objects of their own (in a zarr hierarchy), those at and below it alone are
        forgotten. Other filesystems go on with what they know. Nothing in ``cache_dir`` is deleted: it is used again
        for objects that turn out to be the same.
        """
        self.source.invalidate("" if path is None else self._strip_protocol(path))
        super().invalidate_cache(path)

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return a JSON form of the arguments, as fsspec's; without what gives access, unless ``include_password``.

        That are headers, cookies, and all options and parameters of URLs that are named as keys, tokens and the like.

        A source held in memory is spelled out up to 1 MiB. A larger one is only named, so that this takes no time,
        and the form is of use while this process holds it; elsewhere it is a ManifestError, and a pickle is not.
        """
        stand_in = object.__new__(type(self))
        stand_in._session_name = self._session_name
        stand_in.storage_args = tuple(_spelled(value) for value in self.storage_args)
        named = {} if self.overlay is None else {"overlay": self.overlay}
        given = {name: value for name, value in (self.storage_options | named).items() if value is not None}
        stand_in.storage_options = {name: _spelled(value) for name, value in given.items()}  # fsspec spells no None
        out: dict[str, Any] = AsyncFileSystem.to_dict(stand_in, include_password=include_password)
        return out if include_password else _unlocked(out)

    def __reduce__(self) -> Any:
        make, (cls, args, options) = super().__reduce__()
        # dask names arrays by pickles: those of equal filesystems have to be equal
        if isinstance(self.fo, InMemorySource):
            options = {**options, SESSION: hashlib.sha256(repr((cls, self._alike)).encode()).hexdigest()}
        overlay_copy = None if self._writer is None else self._writer.overlay_copy()
        if overlay_copy is not None:
            options = {**options, "overlay": overlay_copy}
        return make, (cls, args, options)

    # ------------------------------------------------------------------ reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return bytes ``[start:end]`` of ``path``, as slicing the whole would.

        Raises FileNotFoundError if there is no such key, ReferenceNotReachable if its
        bytes cannot be had.
        """
        request = Request(self._strip_protocol(path), start, end)
        data = self.source.read_now(request)
        if data is None:
            data = sync(self.loop, self.source.read, request)
        return data

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        hook_zarr(wait=False)  # zarr reads the metadata of an array before it makes the array's pipeline
        data = await self.source.read(Request(self._strip_protocol(path), start, end))
        hook_zarr()
        return data

    async def _read_selection(self, keys: Sequence[str], take: Take, **how: Any) -> None:
        await self.source.read_selection(keys, take, **how)

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
            raise TypeError("paths must be a list")
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        lasts = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if len(firsts) != len(paths) or len(lasts) != len(paths):
            raise ValueError("paths, starts and ends must be of one length")
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
        """Like fsspec's, but ``on_error="omit"`` leaves out only missing keys: a failed read is never passed over.

        A text that is no key may be a pattern; what is in a list is a key, whatever characters it has.
        """
        is_one = isinstance(path, (str, os.PathLike))
        keys = await self._matching(path) if is_one else [self._strip_protocol(name) for name in path]
        if recursive:
            keys = [below for key in keys for below in await self._files_at(key)]
        callback = kwargs.get("callback", DEFAULT_CALLBACK)
        callback.set_size(len(keys))
        requests = [Request(key, kwargs.get("start"), kwargs.get("end")) for key in keys]
        tell = None if callback is DEFAULT_CALLBACK else callback.relative_update  # the default shows nothing
        out = await self.source.read_all(requests, tell)
        for value in out:
            if isinstance(value, BaseException) and (
                on_error == "raise" or (on_error == "omit" and not isinstance(value, FileNotFoundError))
            ):
                raise value
        pairs = zip(keys, out, strict=True)
        found = {key: value for key, value in pairs if on_error != "omit" or not isinstance(value, BaseException)}
        return out[0] if found and is_one and keys == [self._strip_protocol(path)] else found

    async def _matching(self, path: Any) -> list[str]:
        """Return the key that ``path`` is; if there is none, and it is a pattern, the keys that match it."""
        key = self._strip_protocol(path)
        if not has_magic(key) or await self._exists(key):
            return [key]
        return await self._expand_path(key)

    async def _expand_path(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> list[str]:
        """Return the keys that ``path`` means, sorted, and with ``recursive`` what is below them; directories too.

        Like fsspec's, but what is a key, or a directory, is no pattern.
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

    async def _pairs(
        self, source: Any, target: Any, is_directory: bool, recursive: bool, maxdepth: int | None
    ) -> tuple[list[str], list[str]]:
        """Return the keys that ``source`` means, and where fsspec puts a copy of each.

        Like its own, but what is a key is no pattern, and keys in the root may be copied into a directory, too:
        fsspec's only cuts paths that begin with a slash.
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

    async def _files_at(self, key: str) -> list[str]:
        """Return ``key``, or all keys below it."""
        found: list[str] = await self._find(key)
        if not found:
            raise FileNotFoundError(key)
        return found

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
            rpath, lpath = await self._pairs(rpath, target, is_directory, recursive, maxdepth)
        await super()._get(rpath, lpath, recursive=recursive, callback=callback, maxdepth=maxdepth, **kwargs)

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        key = self._strip_protocol(rpath)
        is_open = hasattr(lpath, "write")
        if not is_open and await self._isdir(key):
            os.makedirs(lpath, exist_ok=True)
            return
        file, is_whole = lpath if is_open else None, False
        try:
            async for piece in self.source.pieces(key, callback.set_size):
                if file is None:  # not before the first bytes are there
                    file = _create(os.fspath(lpath))  # not in a thread: after a cancellation, nothing would close it
                await asyncio.to_thread(file.write, piece)
                callback.relative_update(len(piece))
            is_whole = True
        finally:
            if not is_open and file is not None:
                file.close()
                if not is_whole:  # it would look like a whole file
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
                raise IsADirectoryError(f"{path!r} is a directory: ls() tells what is in it")
            return file
        key, _ = self._to_write(path)
        before, kind = b"", mode.replace("b", "").replace("+", "")
        if kind not in ("w", "x", "a", "r"):
            raise ValueError(f"mode {kind!r} is none that a file can be opened with")
        if kind == "x" and self.exists(key):
            raise FileExistsError(key)
        if kind == "r" or (kind == "a" and self.exists(key)):
            before = self.cat_file(key)
        return WrittenFile(self, key, before, at_end="a" in mode)

    def _dircache_from_items(self) -> None:
        """Do nothing: kerchunk calls it after it changed `references`, and listings here show that at once."""

    def get_mapper(
        self, root: str = "", check: bool = False, create: bool = False, missing_exceptions: Any = None
    ) -> RefShardMap:
        """Return the keys below ``root`` as a mapping; only a missing key is a KeyError."""
        return RefShardMap(root, self, check=check, create=create, missing_exceptions=(FileNotFoundError,))

    # ------------------------------------------------------------------ listing

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size (of the bytes a read returns) and type of ``path``; FileNotFoundError if there is none."""
        return await files.info(self.source, self._strip_protocol(path))

    def ukey(self, path: str) -> str:
        """Return a hash of where the bytes of ``path`` lie and of the version that their targets have now.

        It is another one when they have changed, also where reading them would be a TargetChanged. Targets are asked.
        """
        key = self._strip_protocol(path)
        return self.source.wait(files.ukey, self.source, key)

    def checksum(self, path: str) -> int:
        """Return `ukey` as a number."""
        return int(self.ukey(path), 16)

    def modified(self, path: str) -> datetime:
        """Return when the bytes of ``path`` were last changed; NotImplementedError where their target does not tell.

        Of several targets, that is the last change of any. For bytes in the manifest, it is that of the manifest.
        """
        key = self._strip_protocol(path)
        return self.source.wait(files.modified, self.source, key)

    def created(self, path: str) -> datetime:
        """Raise NotImplementedError: servers tell when an object was last changed, which `modified` returns."""
        raise NotImplementedError(f"nobody tells when {path!r} was made; modified() says when it was last changed")

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> StreamedFile:
        """Return ``path`` as a file whose ``read`` and ``close`` are coroutines; it is read only."""
        if mode != "rb" or kwargs.get("compression"):
            raise ValueError(f"mode={mode!r}: such files are read; `await fs._pipe_file(key, data)` writes")
        key = self._strip_protocol(path)
        info = await self._info(key)
        if info["type"] != "file":
            raise IsADirectoryError(key)
        return StreamedFile(self, key, mode, size=info["size"])

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = await files.ls(self.source, self._strip_protocol(path), detail=detail)
        name = path.lstrip("/")
        slashes = path[: len(path) - len(name)]
        if not (self.asynchronous and slashes and name):
            return found
        # zarr 3.1 asks for "/group", and cuts what it asked for, slash and all, off the names that it gets.
        return [{**item, "name": slashes + item["name"]} if detail else slashes + item for item in found]

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any) -> Any:
        key = self._strip_protocol(path)
        found = await files.find(self.source, key, maxdepth=maxdepth, withdirs=withdirs)
        return found if kwargs.get("detail", False) else list(found)

    async def _du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        found = await self._find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        sizes |= {name: (await self._info(name))["size"] for name, size in sizes.items() if size is None}
        return sum(sizes.values()) if total else sizes

    async def _type_of(self, path: str) -> str | None:
        """Return the type that `info` tells; None if there is no ``path``. Other errors are raised."""
        try:
            return str((await self._info(path))["type"])
        except FileNotFoundError:
            return None

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        return await self._type_of(path) in ("file", "directory")

    async def _isdir(self, path: str) -> bool:
        return await self._type_of(path) == "directory"

    async def _isfile(self, path: str) -> bool:
        return await self._type_of(path) == "file"

    # ------------------------------------------------------------------ where bytes are, and what will be read

    @property
    def fss(self) -> dict[str | None, AbstractFileSystem]:
        """Protocol → the filesystem that its targets are opened with; None stands for URLs that name no protocol.

        Those that are given as options are made when this asks for them: reading has connections of its own.
        """
        return self.source.filesystems()

    @property
    def left_whole(self) -> dict[str, str]:
        """Arrays, of those seen so far, that are not shown, or whose shards are left whole, and why, by path."""
        return dict(self.source.open().reports)

    @property
    def attribute_dtypes(self) -> Mapping[str, Mapping[str, str]]:
        """The dtypes that attributes have in the source, where JSON's are others, by array or group and by name."""
        return self.source.open().attribute_dtypes

    @property
    def unlimited_dimensions(self) -> Mapping[str, Sequence[str]]:
        """The names of the dimensions that may grow in a NetCDF file, by the path of their group."""
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
        """Fetch what will be read in as few and as parallel requests as can be, and hold it until it is read.

        ``what`` is a sequence of keys; or the path of an array, of which ``selection`` (all, by
        default) will be read, as numpy understands it (``mode="orthogonal"``, ``mode="block"``:
        as zarr's ``oindex`` and ``blocks``); or a mapping of such paths to selections (None: all).
        No more than ``max_memory`` is held: the rest follows as reads make room. With ``wait``,
        returns when that much has arrived. Errors are left to the reads. It is fetched on the event loop that
        read last, such as zarr's, and held for reads on that one. ``callback`` counts the requests that are waited for.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> fs = refshard_fs.RefShardFileSystem({"a/.zarray": json.dumps(meta), "a/0": "ab", "a/1": "cd"})
        >>> fs.prefetch("a", slice(2, 4))
        >>> fs.cat_file("a/1")
        b'cd'
        """
        loop = self.source.home() or self.loop
        with progress("prefetch", callback) as shown:
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
            raise TypeError("a selection needs the path of one array, not keys")
        if isinstance(what, Mapping):
            chosen = {self._strip_protocol(path): Ellipsis if part is None else part for path, part in what.items()}
            several = [self.source.keys_of(path, part, mode) for path, part in chosen.items()]
            keys = [key for some in await asyncio.gather(*several) for key in some]
        else:
            keys = [self._strip_protocol(key) for key in what]
        await self.source.prefetch(keys, wait=wait, tell=callback.relative_update)

    def resolve(self, path: str) -> tuple[str, int, int | None] | bytes:
        """Return where a key's bytes are: (url, start, stop), or the bytes themselves if no target has them as such.

        ``stop=None`` is the end of the target. Reads only what it takes to know. FileNotFoundError if there is no such
        key, ReferenceNotReachable if that cannot be found out.

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
        """Return the requests, (url, start, stop, keys), that reading ``paths`` together would make; none is made.

        It is a list that prints as a table.

        ``start`` and ``stop`` are bytes of the object at ``url``; ``stop=None`` is its end. What tells where chunks
        lie (shard indexes, partitions) is read if it is not known. FileNotFoundError if a key does not exist,
        ReferenceNotReachable if that cannot be found out.

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
        isel: Mapping[str, slice] | None = None,
    ) -> RefShardFileSystem:
        """Return a filesystem that shows a part of this one: read only, of the same source, and no chunk is copied.

        All names are those of this filesystem. A name without a slash means the variables, or groups, of that name in
        every group; one with a slash is the path of one (``"/air"`` in the root).

        ``drop`` leaves out variables and groups. ``keep`` leaves out all others, but for their coordinates, as
        ``ds[["air"]]`` does in xarray. ``rename`` gives variables, groups and dimensions other names, also in the
        attributes that name them (``coordinates``, ``bounds``, ``grid_mapping``, ``ancillary_variables``,
        ``cell_measures`` ...). ``attrs`` sets attributes of a variable or group (``""``: of the root); None removes
        one. ``isel`` takes a range of elements along dimensions: slices of step 1, of which negative bounds count from
        the end. A slice that begins where a chunk does stays references, wherever it ends; else chunks are decoded and
        put together anew, uncompressed, as they are read.

        Raises ManifestError, with the names that exist, for a name that there is not, and for a slice that begins
        within a chunk that cannot be decoded; an asynchronous filesystem does so at its first read. ValueError where
        something was written and is not committed. Keys that belong to no array or group are not shown.

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
            raise ValueError("what was written is not committed: commit() or discard() it before a part is selected")
        choice = Choice.of(drop, keep, rename, attrs, isel).to_json()
        apart = (SESSION, MAPPER, "mode", "overlay")
        given = {name: value for name, value in self._storage_options.items() if name not in apart}
        given["select"] = [*(given.get("select") or ()), choice]
        selected = type(self)(*self.storage_args, **given)
        if not self.asynchronous:
            selected.source.open()
        return selected

    # ------------------------------------------------------------------ what notebooks show

    def stats(self) -> Counters:
        """Return counters of what this filesystem and its copies in this process have read, as a dict.

        It prints as a table; `refshard_fs.core.stats` explains the names. A line below it tells where zarr reads chunk
        by chunk, and does not hand us whole selections (see `tune_zarr`).
        """
        counters = Counters(self.source.stats.snapshot())
        problem = pipeline_problem()
        if problem is not None:
            counters.note = f"zarr reads chunk by chunk: {problem}"
        return counters

    def visualize(self, array: str | None = None, select: Any = None) -> Picture:
        """Return a picture of where the bytes of ``array`` lie; without one, of all arrays and their files.

        Each chunk has one colour, in the grid and in its file. With ``select``, as numpy takes it between brackets or
        as text (``"air[0:10, :, :]"``), the picture shows the requests that reading that slice would make. Notebooks
        show it; ``.save("map.svg")`` writes it (also as .html and, with matplotlib, as .png). Metadata and indexes are
        read, and no chunk.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> refs = {"a/.zarray": json.dumps(meta), "a/0": ["s3://b/k", 0, 2], "a/1": ["s3://b/k", 9, 2]}
        >>> refshard_fs.RefShardFileSystem(refs).visualize("a", slice(0, 2))
        <Picture: Where the bytes of a lie: 2 of 2 chunks in 1 file; reads 1 chunk in 1 request: 2 B>
        """
        from refshard_fs.tools.map import picture_of  # imported for drawing only

        return picture_of(self, array, select)

    def __repr__(self) -> str:
        # With the address: fsspec tells filesystems that it is given as arguments apart by what this says.
        source = self.fo if isinstance(self.fo, str) else "references in memory"
        overlay = self.source.transaction
        pending = 0 if overlay is None else len(overlay.edits)
        writes = f", {count_text(pending, 'write')} not committed" if pending else ""
        part = "a selection of " if self._options.source.select else ""
        return f"<{type(self).__name__} of {part}{told(source)} at {id(self):#x}{writes}>"

    def _repr_html_(self) -> str:
        return html_of(self.source)

    # ------------------------------------------------------------------ writing keys

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Let ``path`` hold ``value``: bytes, or whatever can be set in `references`, text for one."""
        key, writer = self._to_write(path)
        if isinstance(value, (str, list, tuple, dict)):
            self.references[key] = value
            return
        data = _as_bytes(value)
        if not (mode == "overwrite" and writer.write_now(key, data)):
            self.source.wait(self._pipe_file, path, data, mode)

    async def _pipe_file(self, path: str, value: bytes | str, mode: str = "overwrite", **kwargs: Any) -> None:
        key, writer = self._to_write(path)
        if mode == "create" and await self._exists(key):
            raise FileExistsError(key)
        await writer.write(key, decode(value) if isinstance(value, str) else _as_bytes(value))

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        self._writing(f"write {rpath!r}")
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
            path1, path2 = await self._pairs(path1, path2, is_directory, recursive, maxdepth)
            if recursive:  # an array's manifest is no key of it: where the array goes, a commit makes another one
                manifests = await self._writing("copy").manifests_among(path1)
                pairs = [pair for pair in zip(path1, path2, strict=True) if pair[0] not in manifests]
                path1, path2 = [source for source, _ in pairs], [target for _, target in pairs]
        await super()._copy(path1, path2, recursive=recursive, on_error=on_error, batch_size=batch_size, **kwargs)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Let ``path2`` refer to the bytes of ``path1``: those of objects are not copied."""
        source = self._strip_protocol(path1)
        self._writing(f"write {path2!r}")
        if await self._isdir(source):
            return
        key, writer = self._to_write(path2)
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
        """Move ``path1`` to ``path2``, as fsspec does; nothing happens where it is there already, however spelled."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return
        if isinstance(path1, str) and not path1.endswith("/") and parent(source)[0] == target:
            for key in self.source.wait(self._matching, path1):
                self.info(key)  # FileNotFoundError if there is none
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
        """Remove keys, and with ``recursive`` what is below them. They are no patterns, as they are to fsspec's own.

        zarr removes chunks so, also those of an array whose name is like a pattern.
        """
        writer = self._writing(f"remove {path!r}")
        for name in [path] if isinstance(path, (str, os.PathLike)) else list(path):
            key = self._strip_protocol(name)
            kind = (await self._info(key))["type"]
            if kind != "directory":
                await writer.remove(key)
            elif not recursive:
                raise IsADirectoryError(f"{key!r} is a directory: recursive=True removes it")
            elif maxdepth is None:
                await writer.remove_below(key)
            else:
                for below in await self._find(key, maxdepth=maxdepth):
                    await writer.remove(below)

    def rm(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Remove keys, and with ``recursive`` what is below them; a text that is no key may be a pattern."""
        self.source.wait(self._rm_matching, path, recursive, maxdepth)

    async def _rm_matching(self, path: str | Iterable[str], recursive: bool, maxdepth: int | None) -> None:
        self._writing(f"remove {path!r}")
        if isinstance(path, (str, os.PathLike)):
            keys = await self._matching(path)
            if keys != [self._strip_protocol(path)] and not recursive:
                keys = [key for key in keys if await self._isfile(key)]
            path = keys
        await self._rm(path, recursive=recursive, maxdepth=maxdepth)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._rm(path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Let ``path`` be empty; without ``truncate``, only if there is none."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

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

    def refer(self, path: str, url: str | None, offset: int = 0, length: int | None = None) -> None:
        """Let ``path`` hold ``length`` bytes at ``offset`` of the object at ``url``; without them, all of it.

        ``url`` None stands for that of ``target=``.

        Nothing is read. TargetNotAllowed where ``url`` may not be pointed to, ReadOnlyError without a ``mode``.

        >>> import fsspec, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem("memory://made.json", mode="w")
        >>> with fs.transaction:
        ...     fs.refer("a/0", "s3://bucket/x.nc", 100, 50)
        >>> refshard_fs.RefShardFileSystem("memory://made.json", remote_protocol="s3").resolve("a/0")
        ('s3://bucket/x.nc', 100, 150)
        """
        key, writer = self._to_write(path)
        start, size = index(offset), None if length is None else index(length)
        if min(start, size or 0) < 0 or start + (size or 0) >= 2**63:
            raise ValueError(f"{key!r} cannot be {length} bytes at {offset} of {told(url or 'target=')}")
        span = Span(self._respelling()(url) or url or "", start, None if size is None else start + size)
        if not writer.refer_now(key, span):
            self.source.wait(writer.refer, key, span)

    def _to_write(self, path: str) -> tuple[str, Writer]:
        """Return the key that ``path`` is, and what writes it; ValueError where no source can have such a key."""
        key = self._strip_protocol(path)
        writer = self._writing(f"write {key!r}")
        if not key:
            raise IsADirectoryError("the root is a directory")
        try:
            check_key(key)
        except ValueError as e:  # committed, it would make the source unreadable, or lie outside of it
            raise ValueError(f"cannot write {key!r}: {e}") from e
        return key, writer

    def _writing(self, what: str) -> Writer:
        """Return what writes; ReadOnlyError, which names ``what`` was to be done, if nothing does."""
        if self._writer is None:
            raise ReadOnlyError(
                f"cannot {what}: {self.source.options.source} was opened for reading; mode='a' lets one write. "
                "fsspec drops it from the options of a URL: name there the writes of a filesystem that you hold, "
                "{'fo': ..., 'overlay': fs.overlay}, or give {'refshard': {'fo': ..., 'mode': 'a'}}"
            )
        return self._writer

    # ------------------------------------------------------------------ commits

    @property
    def overlay(self) -> str | None:
        """The name of what is written and not committed: ``overlay=`` of another instance in this process shares it."""
        overlay = self.source.transaction
        return None if overlay is None else overlay.id

    def commit(self) -> None:
        """Make all that was written durable in the source; nothing happens if there is nothing.

        A set of references is committed whole or not at all. Of a zarr hierarchy each object is put whole: chunks
        first, metadata after them, removals at the end. If that fails, a note on the error says what was put.

        Raises ConflictError if somebody else wrote the source since it was opened, and ReadOnlyError if it cannot be
        written. What was written is then kept, for another try or for `save`.
        """
        from refshard_fs.writing.commit import commit  # not imported for reading

        commit(self._writing("commit"))

    def fork(self) -> RefShardFileSystem:
        """Return a filesystem for other processes to write with, whose writes count once `merge` is given it.

        It begins with what was written here and not committed, and may be pickled. Each write to it is at once an
        object in ``data_url``, so that it need not come back from a worker to be merged. It cannot commit.

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
        writer = self._writing("fork")
        writer.refuse_elsewhere()
        if writer.store is None:
            raise ReadOnlyError("this source has no place where several processes could write: pass data_url=")
        options = {**self.storage_options, SESSION: uuid.uuid4().hex, "overlay": writer.overlay.forked()}
        return type(self)(*self.storage_args, **options)

    def merge(self, *forks: RefShardFileSystem) -> None:
        """Take what ``forks`` wrote into this filesystem, for its next commit; reads see it at once.

        Without ``forks``, what copies of this filesystem in other processes (pickles, forked children) have written,
        which a commit merges by itself. Raises ConflictError, which names the key, if two of them differ on one, or
        one of them and what was written here since it began: then nothing is merged.
        """
        from refshard_fs.writing.commit import merge_forks  # not imported for reading

        writer = self._writing("merge")
        overlays = [fork.source.edited() for fork in forks]
        if any(not each.fork or each.origin != writer.overlay.id for each in overlays):
            raise ValueError("merge() was given a filesystem that is no fork of this one: pass what fs.fork() returned")
        merge_forks(writer, *([{each.fork for each in overlays}] if forks else []))

    def flush(self) -> None:
        """Commit, as fsspec's ``LazyReferenceMapper`` calls it; of a source in memory there is nothing to commit."""
        if isinstance(self.fo, str):
            self.commit()

    def discard(self) -> None:
        """Forget all that was written and not committed, and remove its objects; reads see the source as it is now."""
        self._writing("discard").discard()

    # ------------------------------------------------------------------ references

    @property
    def references(self) -> MutableMapping[str, Any]:
        """The references as the dict that their expanded JSON would be: text, bytes or ``[url, offset, length]``.

        Nothing is made of it before it is asked for, and `copy` returns a plain dict. What is set is written, where
        this filesystem takes writes. Where there is something to commit to, it is no dict but what fsspec's
        ``LazyReferenceMapper`` is to kerchunk: `flush` commits.

        >>> import json, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://bucket/x.nc", 100, 50]})
        >>> fs.references["a/1"] = ["s3://bucket/x.nc", 150, 50]
        >>> json.dumps(fs.references)
        '{"a/0": ["s3://bucket/x.nc", 100, 50], "a/1": ["s3://bucket/x.nc", 150, 50]}'
        """
        if self.source.mapper is not None:
            return self.source.mapper
        self.source.references()  # NotImplementedError if it has none
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

        Without ``format`` the name says it: one in ``.json`` (or ``.json.gz``, ``.bz2``, ``.xz``,
        ``.zst``) makes it JSON, one in ``.zarr`` chunk manifests, one in ``.icechunk`` an Icechunk
        repository. Of a parquet set,
        ``record_size`` is the number of references per file. It goes to a new or empty
        directory, or with ``overwrite`` in the place of another parquet set, which stays until
        the new one is whole on this machine, and is removed first elsewhere; JSON replaces
        what was there. Each file appears whole or not at all. Chunk manifests make a zarr
        version 3 hierarchy, and the metadata of version 2 become that of version 3. An Icechunk
        repository (extra ``icechunk``; ``branch=``, ``message=``, ``virtual_stores=``) gets one commit:
        ranges of objects are virtual chunks, all else is copied. URLs keep
        their meaning. Of sources other than reference sets, chunks that are ranges of objects
        (of sharded arrays, the shards) become references. Chunks that are made from other bytes, as
        GRIB2's are, become part of the set or, where they have more than 64 MiB, of an object in
        ``<url>.data``: returns in one line what was copied, if anything. What was written and not
        committed is part of it.

        Raises ManifestError, which names the key, where the format cannot hold a reference,
        and TargetNotAllowed where the source may not point to what it does: then nothing is
        written. fsspec's own reader takes parquet sets of zarr version 2
        with ``.`` between coordinates. ``callback`` counts the chunks that arrays may have.
        """
        from refshard_fs.writing.save import save  # not imported for reading

        with progress("save", callback) as shown:
            given = url, format or format_named(url), record_size, overwrite, storage_options, shown
            return save(self._stored(), self.source, *given)

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the references as a JSON set to ``url``."""
        self.save(url, "json", **storage_options)

    def _collect(self, unread: Unread | None = None) -> ReferenceSet:
        """Return the references in columns, URLs absolute and shards whole, for `refshard_fs.concat` and others.

        Chunks of arrays that are ``unread`` and would have to be made are not read: see `gather`.
        """
        from refshard_fs.source.collect import collect  # as in `save`

        return collect(self._stored(), self.source.run, self._respelling(), unread)

    def _pinned(self, inline_threshold: int, *, flatten: bool, callback: Callback = DEFAULT_CALLBACK) -> ReferenceSet:
        """Return the references pinned to what their targets are now, for `refshard_fs.snapshot`."""
        from refshard_fs.source.collect import pin  # as in `save`

        shard_options = self.source.options.open.shard_options if flatten else None
        given = self._stored(), self.source.run, self._respelling(), inline_threshold, shard_options
        with progress("snapshot", callback) as shown:
            return pin(*given, shown.relative_update)

    def _stored(self) -> KeySpace:
        """Return the keys as they are stored, or would be after a commit: those of shards, not of inner chunks."""
        if self._writer is None:
            return self.source.open()
        from refshard_fs.writing.shards import stored_keys  # as in `save`

        return stored_keys(self._writer)

    def _respelling(self) -> Respell:
        """Return what makes URLs of the source absolute."""
        from refshard_fs.writing.save import respelling  # as in `save`

        return respelling(self.source.options.open, self.fo)


def _unlocked(value: Any) -> Any:
    """Return ``value``, of JSON, without what gives access anywhere in it."""
    if isinstance(value, str):
        return value if len(value) > LONGEST else redacted(value)
    if isinstance(value, dict):
        return {name: _unlocked(inner) for name, inner in value.items() if not _gives_access(str(name))}
    return [_unlocked(inner) for inner in value] if isinstance(value, list) else value


def _gives_access(name: str) -> bool:
    return is_secret(name) or name.lower().endswith(("headers", "cookies"))


def _spelled(argument: Any) -> Any:
    return argument.spelled() if isinstance(argument, InMemorySource) else argument


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, int):  # of which Python makes as many zeros
        raise TypeError(f"{value!r} is a number, and no bytes")
    return bytes(value)


def _create(path: str) -> BinaryIO:
    path = path_to_write(path)
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    return open(path, "wb")


def replace_reference_filesystem() -> None:
    """Register this filesystem for the ``reference`` protocol too, so that ``engine="kerchunk"`` and recipes use it.

    It holds for this process, from now on: filesystems that exist stay what they are.

    >>> import fsspec, refshard_fs
    >>> refshard_fs.replace_reference_filesystem()
    >>> fsspec.get_filesystem_class("reference").__name__
    'RefShardFileSystem'
    """
    fsspec.register_implementation("reference", RefShardFileSystem, clobber=True)

"""Read any fsspec filesystem through its public API, synchronous or asynchronous, on any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ftplib
import math
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.forks import call_in_child
from refshard_fs.core.model import Facts, Listed
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import OBJECT_STORES
from refshard_fs.targets.answer import UNKNOWN, Answer, Target, check_size
from refshard_fs.targets.failures import ConnectionLost, Unfit, Unreadable

if TYPE_CHECKING:
    from refshard_fs.targets.connections import Guard

K = TypeVar("K")
T = TypeVar("T")

THREADS = 16  # the most blocking calls of filesystems at a time, and the locks of a filesystem with a lock per file
RECENT = 1.0  # seconds that the size of an object is remembered: the end and the start of a shard are read together

# Filesystems with one connection, file position or cache for all callers: callers must take turns.
_ONE_AT_A_TIME = frozenset(
    ["ftp", "sftp", "ssh", "smb", "git", "cached", "blockcache", "filecache"]
)  # and archives: handles of one ZipFile mix up their positions in Python 3.12.0-3.12.8 and 3.13.0-3.13.1 (gh-127847)
_ONE_PER_FILE = "simplecache"  # it takes a file for complete while another reader downloads it


def get_lock(fs: AbstractFileSystem, path: str) -> contextlib.AbstractContextManager[object]:
    """Return the lock that a caller holds while it uses ``fs`` for ``path``; a null context if no lock is needed."""
    fs = _find_innermost(fs)
    per_file = _ONE_PER_FILE in list_protocols(fs)
    if per_file and isinstance(below := getattr(fs, "fs", None), AbstractFileSystem) and _needs_turns(below):
        fs, per_file = below, False
    if not per_file and not _needs_turns(fs):
        return contextlib.nullcontext()
    # Kept in the instance, because instances with equal arguments are equal but have connections of their own, and by
    # process, because a forked child would wait for threads that it does not have.
    attributes = object.__getattribute__(fs, "__dict__")  # fs.__dict__ of fsspec's caches is the inner filesystem's
    new = [threading.Lock() for _ in range(THREADS if per_file else 1)]
    locks: list[threading.Lock] = attributes.setdefault(f"_refshard_locks_{os.getpid()}", new)
    return locks[hash(path) % len(locks)]


def _find_innermost(fs: AbstractFileSystem) -> AbstractFileSystem:
    while isinstance(fs, DirFileSystem):
        fs = fs.fs
    return fs


def list_protocols(fs: AbstractFileSystem) -> tuple[str, ...]:
    """Return the protocols that ``fs`` serves."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _needs_turns(fs: AbstractFileSystem) -> bool:
    """Return whether only one caller at a time may use ``fs``."""
    return isinstance(fs, AbstractArchiveFileSystem) or not _ONE_AT_A_TIME.isdisjoint(list_protocols(fs))


_executor: concurrent.futures.ThreadPoolExecutor


def _start_executor() -> None:
    global _executor
    _executor = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="refshard-target")


_start_executor()
call_in_child(_start_executor)  # a forked child has none of its parent's threads


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run ``call``, which may block, in a thread, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_executor, call)


def share_task(
    tasks: MutableMapping[K, asyncio.Task[T]], key: K, start: Callable[[], Coroutine[Any, Any, T]]
) -> Awaitable[T]:
    """Return the result of the task ``key``, which all callers share; start the task if there is none or it failed."""
    task = tasks.get(key)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = tasks[key] = asyncio.get_running_loop().create_task(start())
    return asyncio.shield(task)


class GuardedFtp(FTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """FTP for a set from elsewhere: ``guard`` checks the address of each connection before the login is sent."""

    def __init__(self, host: str, port: int = 21, *, guard: Guard, **options: Any) -> None:
        self.name = host
        self.guard = guard
        super().__init__(guard.resolve(host, port), port, **options)  # fsspec then connects to this address

    def __del__(self) -> None:
        if "ftp" in vars(self):  # if the connection failed, fsspec's method would raise AttributeError
            super().__del__()


class FsspecTarget(Target):
    """The objects of one filesystem instance; an ``owned`` instance is closed with the target.

    ``fs`` may be a function that opens the instance, and may block; the first read calls it. If ``fs`` is a function,
    paths are URLs of that filesystem.
    """

    most_retries = 2
    tells_versions = False

    def __init__(self, fs: AbstractFileSystem | Callable[[], AbstractFileSystem], *, owned: bool = False) -> None:
        self._open = None if isinstance(fs, AbstractFileSystem) else fs
        self._opening: dict[str, asyncio.Task[AbstractFileSystem]] = {}
        self.fs: Any = fs
        self._owned = owned
        self._asked: dict[str, tuple[float, asyncio.Task[Facts]]] = {}
        if owned:
            from refshard_fs.targets.connections import close_with  # it imports aiohttp, which is slow

            close_with(self, fs)

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        path = await self._open_for(path)
        facts = None
        options: dict[str, Any] = {}
        if start or stop is not None:
            if start < 0 or stop is None:  # some filesystems take no suffix, or no range without an end
                facts = await self._get_recent_facts(path)
                if facts.size is None:
                    raise Unfit(
                        f"expected the size of {path} from its filesystem, to read its end, got none: read it from "
                        "another server, or through 'simplecache::'"
                    )
                start, stop = max(facts.size + start, 0) if start < 0 else start, facts.size
            if stop <= start:
                return Answer(b"", facts or UNKNOWN)
            options = {"start": start, "end": stop}  # keywords, because s3fs has another parameter between them
            if isinstance(self.fs, ArrowFSWrapper):
                options["seekable"] = True  # the default opens a stream, which cannot seek to a range
        elif most is not None:
            facts = await self.get_facts(path)
            check_size(facts.size, most)
            if facts.size is None:
                options = {"start": 0, "end": most + 1}  # one byte more shows that the object is too large
        try:
            data = bytes(await self._call("cat_file", path, **options))
        except Exception as e:  # any filesystem's error; raised again unless the range lies past the end
            beyond = await self._find_facts_beyond(path, start, e)
            if beyond is None:
                raise
            return Answer(b"", beyond)
        if stop is not None and len(data) != stop - start:
            facts = facts or await self._get_recent_facts(path)
            if len(data) == facts.size and len(data) > stop - start:  # the filesystem ignored the range
                data = data[start:stop]
        if stop is None:
            check_size(len(data), most)
            if facts is not None and facts.size != len(data):  # the facts may come from an older listing
                facts = await self.get_current_facts(path)
        return Answer(data, facts or UNKNOWN)

    async def _open_for(self, path: str) -> str:
        """Open the filesystem if it is not open yet; return ``path`` as a path in it."""
        open_ = self._open
        if open_ is None:
            return path
        self.fs = await share_task(self._opening, "", lambda: run_in_thread(open_))
        return str(self.fs._strip_protocol(path))

    async def get_facts(self, path: str) -> Facts:
        path = await self._open_for(path)
        info = await self._call("info", path)
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        size, copied = info.get("size"), await self._find_copied_size(path)
        if copied is not None and copied != size:
            return Facts(copied)  # the version of the copy is unknown
        return Facts(size, *find_version(info))

    async def _find_copied_size(self, path: str) -> int | None:
        """Return the size of the copy that fsspec's ``simplecache`` reads instead of the object; None without one."""
        find_copy = getattr(self.fs, "_check_file", None) if isinstance(self.fs, SimpleCacheFileSystem) else None
        if find_copy is None:  # if a later fsspec has no such method, a stale copy fails the check of its length
            return None

        def size() -> int | None:
            copy = find_copy(path)
            return None if copy is None else os.path.getsize(copy)

        return await run_in_thread(size)

    async def get_current_facts(self, path: str) -> Facts:
        path = await self._open_for(path)
        for listed in (path, self.fs._parent(path)):  # filesystems keep a listing under one of these
            self.fs.invalidate_cache(listed)
        return await self.get_facts(path)

    async def _get_recent_facts(self, path: str) -> Facts:
        """Return the facts of an object; all its readers within `RECENT` seconds share one request."""
        now = asyncio.get_running_loop().time()
        asked, task = self._asked.get(path, (-math.inf, None))
        if task is None or (task.done() and (asked + RECENT < now or task.cancelled() or task.exception())):
            for other in [other for other, (when, _) in self._asked.items() if when + RECENT < now]:
                del self._asked[other]
            task = asyncio.get_running_loop().create_task(self.get_facts(path))
            self._asked[path] = now, task
        return await asyncio.shield(task)

    async def _find_facts_beyond(self, path: str, start: int, error: Exception) -> Facts | None:
        """Return the facts of the object if it ends before ``start``, and ``error`` may mean that; otherwise None."""
        if getattr(error, "status", None) != 416 and "not satisfiable" not in str(error):
            return None
        facts = await self.get_facts(path)
        return facts if facts.size is not None and facts.size <= start else None

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        path = await self._open_for(path)
        try:
            rows = await self._call("ls", path, detail=True)
        except NotImplementedError:
            return None
        out = []
        for row in rows:
            name = row["name"].rstrip("/").rsplit("/", 1)[-1]
            if row["name"].rstrip("/") == path.rstrip("/"):
                if row["type"] != "directory" and len(rows) == 1:
                    raise NotADirectoryError(path)
                continue
            is_directory = row["type"] == "directory"
            if is_directory:
                out.append(Listed(name, None, True))
            else:
                out.append(Listed(name, row.get("size"), False, *find_version(row)))
        return tuple(sorted(out, key=lambda listed: listed.name))

    async def list_tree(self, path: str) -> tuple[Listed, ...] | None:
        if not _lists_flat(self.fs):
            return None
        path = (await self._open_for(path)).rstrip("/")
        rows = await self._call("find", path, detail=True)
        files = [(name[len(path) + 1 :], row) for name, row in rows.items() if name.startswith(path + "/")]
        return tuple(Listed(name, row.get("size"), False, *find_version(row)) for name, row in files if name)

    async def find_writing_filesystem(self, path: str) -> tuple[AbstractFileSystem, str] | None:
        path = await self._open_for(path)
        return self.fs, path

    async def close(self) -> None:
        if self._owned:
            from refshard_fs.targets.connections import close_connections

            close_connections(self.fs)

    async def _call(self, name: str, path: str, **options: Any) -> Any:
        fs = self.fs
        if not has_coroutines(fs):
            method = getattr(fs, name)

            def call() -> Any:
                with take_turn(fs, path):
                    return method(path, **options)

            return await run_in_thread(call)
        method = getattr(fs, "_" + name)
        if fs.asynchronous:
            return await method(path, **options)
        home = fs.loop
        if home is asyncio.get_running_loop():
            return await method(path, **options)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(path, **options), home))


@contextlib.contextmanager
def take_turn(fs: AbstractFileSystem, path: str) -> Iterator[None]:
    """Wait until this thread may use a synchronous ``fs`` for ``path``; restore a lost connection to an FTP server."""
    with get_lock(fs, path), _keep_ftp_connected(fs):
        yield


@contextlib.contextmanager
def _keep_ftp_connected(fs: AbstractFileSystem) -> Iterator[None]:
    """Connect ``fs`` again if it is an FTP filesystem without a connection; drop the connection if the block breaks it.

    fsspec keeps one control connection, even after a timeout or after the server closed it. It reports every refusal,
    such as "450 busy", as a missing file, but only 550 means that.
    """
    fs = _find_innermost(fs)
    if not isinstance(fs, FTPFileSystem):
        yield
        return
    try:
        if fs.ftp.sock is None:
            _reconnect(fs)
        yield
    except TargetNotAllowed:
        raise
    except Exception as e:
        match next((cause for cause in _iterate_causes(e) if not isinstance(cause, _MISSING)), None):
            case ftplib.error_perm(args=(str(reply), *_)) as refusal:
                if reply.startswith("550"):  # the reply of most servers for a missing file
                    raise
                raise (PermissionError if reply.startswith("53") else Unreadable)(reply) from refusal
            case ftplib.Error() | EOFError() | OSError() as lost:
                fs.ftp.close()
                raise ConnectionLost(f"FTP: {str(lost) or 'the server closed the connection'}") from lost
            case _:
                raise


def _reconnect(fs: FTPFileSystem) -> None:
    if isinstance(fs, GuardedFtp):
        fs.host = fs.guard.resolve(fs.name, fs.port)
    try:
        fs.ftp.connect(fs.host, fs.port)
        fs.ftp.login(*fs.cred)
        if fs.tls is True:
            fs.ftp.prot_p()
    except BaseException:
        fs.ftp.close()
        raise


# The errors that fsspec raises for any refusal, and for a listing that lacks a name.
_MISSING = (FileNotFoundError, IndexError, StopIteration)


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # causes may form a cycle
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def has_coroutines(fs: AbstractFileSystem) -> bool:
    """Return whether ``fs`` has coroutines that work: those of a `DirFileSystem` may call a synchronous filesystem."""
    fs = _find_innermost(fs)
    return isinstance(fs, AsyncFileSystem) and bool(fs.async_impl)


def _lists_flat(fs: AbstractFileSystem) -> bool:
    """Return whether ``fs`` is an object store whose ``find`` lists all objects below a prefix at once."""
    has_own_find = getattr(type(fs), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find
    return has_own_find and not OBJECT_STORES.isdisjoint(list_protocols(fs))


_ETAGS = ("ETag", "etag", "e_tag", "md5")
_TIMES = ("LastModified", "last_modified", "mtime", "modified", "modify", "updated", "created")


def find_version(info: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the ETag and the modification time in ``info``, under any of the names that filesystems use."""
    etag = next((info[name] for name in _ETAGS if info.get(name)), None)
    modified = next((info[name] for name in _TIMES if info.get(name)), None)
    if modified is not None and "unique" in info:  # FTP has only seconds, but also an identifier of the file
        modified = f"{modified} of {info['unique']}"
    return None if etag is None else str(etag), None if modified is None else str(modified)


# Chained URLs (``tar://member::http://...``, ``simplecache::s3://...``).


# Links with the same file names as the next link.
_TRANSPARENT = frozenset(["blockcache", "filecache", "simplecache"])


def make_chain_opener(url: str, options: Mapping[str, Any]) -> Callable[[], AbstractFileSystem]:
    """Return a function that opens the filesystem of a chain. It blocks, and may use fsspec's event loop."""
    return lambda: fsspec.core.url_to_fs(url, **options)[0]


def split_chain(url: str) -> tuple[str, str]:
    """Split a chain into the URL of its filesystem, and the object's URL in that filesystem."""
    first, _, rest = url.partition("::")
    protocol, has_path, _ = first.partition("://")
    if has_path:  # a member of an archive
        return f"{protocol}::{rest}", first
    second, _, tail = rest.partition("::")
    if first in _TRANSPARENT and "?" not in second:
        return f"{first}::{second.partition('://')[0]}::{tail}", second
    return url, second


def is_s3fs(fs: AbstractFileSystem) -> bool:
    """Return whether ``fs`` is s3fs's filesystem or our `S3Client`; by name, because importing s3fs takes long."""
    return is_class_of_s3fs(type(fs)) or type(fs).__module__ == "refshard_fs.targets.s3_client"


def is_class_of_s3fs(cls: type) -> bool:
    """Return whether ``cls`` is s3fs's own filesystem."""
    return (cls.__module__, cls.__name__) == ("s3fs.core", "S3FileSystem")

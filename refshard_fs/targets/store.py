"""Where objects are put: below one URL, each whole or not at all, by as many writers at a time as there are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, Final, NamedTuple

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.errors import SourceNotReachable
from refshard_fs.security.policy import locator, protocol_of
from refshard_fs.targets.generic import in_thread
from refshard_fs.targets.local import facts_of, is_draft, replacing, sync_file
from refshard_fs.targets.pool import Given
from refshard_fs.targets.s3 import speaking

__all__ = [
    "Buffer",
    "Buffer_transfers",
    "Fetched",
    "LARGE",
    "Sink",
    "Store",
    "fetch_any",
    "fetch_local",
    "fetch_s3",
    "opened",
    "put_s3",
    "sum_of",
]

Buffer = bytes | memoryview

_BOUND = ("asynchronous", "loop", "skip_instance_cache")  # what ties an instance to an event loop


def opened(url: str, given: Given) -> tuple[AbstractFileSystem, str]:
    """Return a filesystem that any thread may call, and the path of ``url`` there, by an instance or options."""
    if not isinstance(given, AbstractFileSystem):
        fs, path = fsspec.core.url_to_fs(url, **given)
        return fs, str(path)
    fs = given
    while type(fs) is AsyncFileSystemWrapper:
        fs = fs.sync_fs
    path = str(fs._strip_protocol(url))
    if isinstance(fs, AsyncFileSystem) and fs.asynchronous:
        options = {name: value for name, value in fs.storage_options.items() if name not in _BOUND}
        fs = type(fs)(*fs.storage_args, **options)
    return fs, path


MANY = 64  # files that take longer one by one than the whole system does at once


class Store:
    """The objects below ``url``; ``given`` is an instance, or the options of one. Opened at the first use."""

    def __init__(self, url: str, given: Given) -> None:
        self.url = url.rstrip("/")
        self._given = given
        self._url_of = locator(self.url)
        self._opened: tuple[int, AbstractFileSystem, str] | None = None

    def url_of(self, name: str) -> str:
        """Return the URL of the object ``name``."""
        return self._url_of(name)

    @property
    def is_at_hand(self) -> bool:
        """Whether writing takes no event loop, and no other thread."""
        return type(self._fs()[0]) in (LocalFileSystem, MemoryFileSystem)

    @speaking()
    def put_now(self, name: str, data: Buffer, *, durable: bool = False) -> None:
        """Write the object ``name``; for callers that may block. ``durable``: on the disk when this returns."""
        fs, path = self._at(name)
        if type(fs) is LocalFileSystem:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path, durable=durable) as file:
                file.write(data)
            return
        if type(fs) is MemoryFileSystem:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(path, bytes(data))

    async def put(self, name: str, data: bytes) -> None:
        """Write the object ``name``."""
        fs, path = self._at(name)
        if not (isinstance(fs, AsyncFileSystem) and fs.async_impl):
            if type(fs) is MemoryFileSystem:
                self.put_now(name, data)
            else:
                await in_thread(lambda: self.put_now(name, data))
            return
        if fs.loop is asyncio.get_running_loop():
            await fs._pipe_file(path, data)
        else:
            writing = asyncio.run_coroutine_threadsafe(fs._pipe_file(path, data), fs.loop)
            await asyncio.wrap_future(writing)

    def settle(self, urls: Iterable[str]) -> None:
        """Return when the objects at ``urls``, which were put before, are on the disk, if they are local."""
        fs, root = self._fs()
        if type(fs) is LocalFileSystem:
            paths = [f"{root}/{url[len(self.url) + 1 :]}" for url in urls]
            if len(paths) > MANY and hasattr(os, "sync"):
                os.sync()
                return
            for path in paths:
                sync_file(path)
            for folder in {os.path.dirname(path) for path in paths}:
                sync_file(folder)

    @speaking()
    def copy(self, names: Mapping[str, str]) -> None:
        """Copy objects, each whole or not at all: name → new name."""
        fs, _ = self._fs()
        for name, new in names.items():
            if type(fs) is LocalFileSystem:
                self.put_now(new, fs.cat_file(self._at(name)[1]), durable=True)
            else:
                fs.cp_file(self._at(name)[1], self._at(new)[1])

    @speaking()
    def has(self, name: str) -> bool:
        """Whether there is an object ``name``."""
        fs, path = self._at(name)
        fs.invalidate_cache()
        return bool(fs.exists(path))

    @speaking()
    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects ``names``."""
        fs, root = self._fs()
        paths = {f"{root}/{name}": name for name in names}
        if not paths:
            return {}
        found: Mapping[str, bytes] = fs.cat(list(paths))
        return {paths[path]: data for path, data in found.items()}

    def name_of(self, url: str) -> str | None:
        """Return the name of the object at ``url``; None if it is not below this one."""
        return url[len(self.url) + 1 :] if url.startswith(self.url + "/") else None

    @speaking()
    def sizes(self, below: str) -> dict[str, int]:
        """Return the names and sizes of all objects in the directory ``below``, at any depth, without drafts."""
        fs, root = self._fs()
        fs.invalidate_cache()
        try:
            found = fs.find(f"{root}/{below}", detail=True)
        except FileNotFoundError:
            return {}
        return {str(path)[len(root) + 1 :]: info["size"] for path, info in found.items() if not is_draft(str(path))}

    def remove(self, urls: Iterable[str]) -> None:
        """Remove the objects at ``urls``, which are below this one, as far as that can be done."""
        fs, root = self._fs()
        stem = len(self.url) + 1
        paths = [f"{root}/{url[stem:]}" for url in urls]
        if not paths:
            return
        with contextlib.suppress(OSError), speaking():
            fs.rm(paths)
            return
        for path in paths:  # one that is gone does not keep the others
            with contextlib.suppress(OSError), speaking():
                fs.rm_file(path)

    def remove_below(self, name: str) -> None:
        """Remove the directory ``name`` and all that is in it, as far as that can be done."""
        fs, path = self._at(name)
        with contextlib.suppress(OSError), speaking():
            fs.rm(path, recursive=True)

    def tidy(self, below: str = "") -> None:
        """Remove what directories are left empty, in ``below`` and itself, where there are directories."""
        fs, root = self._fs()
        if type(fs) is LocalFileSystem:
            for folder, _, _ in sorted(os.walk(f"{root}/{below}".rstrip("/")), reverse=True):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _at(self, name: str) -> tuple[AbstractFileSystem, str]:
        fs, root = self._fs()
        return fs, f"{root}/{name}"

    def _fs(self) -> tuple[AbstractFileSystem, str]:
        known = self._opened
        if known is None or known[0] != os.getpid():
            fs, path = opened(self.url, self._given)
            known = self._opened = os.getpid(), fs, path.rstrip("/")
        return known[1], known[2]


# ----------------------------------------------------------------------------------------------------
# Where new objects are written: each appears whole or not at all.


class Sink:
    """One object or directory that is to be written, at a URL and with the options of its filesystem."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._fs, path = fsspec.core.url_to_fs(url, **options)
        self.path = path.rstrip("/")
        self.is_local = type(self._fs) is LocalFileSystem

    def is_at(self, url: str) -> bool:
        """Whether ``url`` is the same place."""
        protocols = (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        same = (protocol_of(url) or "file") in protocols
        return same and str(self._fs._strip_protocol(url)).rstrip("/") == self.path

    def names(self) -> list[str]:
        """Return the names directly below the directory; none where it does not exist."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise FileExistsError(f"{self.path} is a file") from e
        names = [str(name).rstrip("/") for name in found]
        if names == [self.path] and not self._fs.isdir(self.path):
            raise FileExistsError(f"{self.path} is a file")
        return [name.rpartition("/")[2] for name in names if name != self.path]

    def read(self, name: str) -> bytes:
        """Return the object ``name`` of the directory."""
        data: bytes = self._fs.cat_file(f"{self.path}/{name}")
        return data

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write the objects ``files`` (name → bytes) of the directory."""
        if not self.is_local:
            self._fs.pipe({f"{self.path}/{name}": data for name, data in files.items()})
            return
        for name, data in files.items():
            path = f"{self.path}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path) as file:
                file.write(data)

    def remove(self) -> None:
        """Remove the directory and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self.path, recursive=True)

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the object to; it takes its place when the block ends without an error."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with replacing(self.path) as file:
                yield file
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object")
            with open(path, "wb") as file:
                yield file
            self._fs.put_file(path, self.path)


# ----------------------------------------------------------------------------------------------------
# The bytes of objects on their way: fetched whole or not at all, sent without being in memory twice.


LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
PIECE: Final = 1 << 20

Buffer_transfers = bytes | memoryview


class Fetched(NamedTuple):
    """The bytes of an object, and which version of it they are."""

    data: Buffer_transfers
    facts: Facts


def fetch_local(path: str) -> Fetched:
    """Return a local file, of which nobody may have written a part meanwhile."""
    with open(path, "rb") as file:
        facts = facts_of(os.fstat(file.fileno()))
        size = facts.size or 0
        if size <= LARGE:
            data: Buffer_transfers = file.read()
        else:
            with tempfile.TemporaryFile() as copy:
                while piece := file.read(PIECE):
                    copy.write(piece)
                data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"{path} had {size} bytes, and {len(data)} were read: somebody writes it in place")
        return Fetched(data, facts)


def fetch_any(fs: AbstractFileSystem, path: str, facts: Facts) -> Fetched:
    """Return an object of any filesystem, which was just asked for its ``facts``."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "object")
        fs.get_file(path, copy)
        with open(copy, "rb") as file:
            data = _mapped(file) if os.path.getsize(copy) > LARGE else file.read()
    if facts.size is not None and len(data) != facts.size:
        raise SourceNotReachable(f"{path} has {facts.size} bytes, and {len(data)} were read")
    return Fetched(data, facts)


def fetch_s3(fs: Any, path: str) -> Fetched:
    """Return an object of S3, with one request."""
    bucket, key, _ = fs.split_path(path)

    async def fetch() -> Fetched:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        size: int = answer["ContentLength"]
        async with answer["Body"] as body:
            if size <= LARGE:
                data: Buffer_transfers = await body.read()
            else:
                with tempfile.TemporaryFile() as copy:
                    while piece := await body.read(PIECE):
                        copy.write(piece)
                    data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"s3://{path} has {size} bytes, and {len(data)} came")
        return Fetched(data, Facts(size, answer.get("ETag")))

    fetched: Fetched = sync(fs.loop, fetch)
    return fetched


def sum_of(parts: Iterable[Buffer_transfers]) -> bytes:
    """Return what tells ``parts``, one after the other, from all other bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


async def put_s3(fs: Any, path: str, parts: Sequence[Buffer_transfers], when: dict[str, str]) -> dict[str, Any]:
    """Put an object of S3 on the conditions ``when``, with one request, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    given = {**extra, **when, "Bucket": bucket, "Key": key}
    if sum(map(len, parts)) <= LARGE:
        answer: dict[str, Any] = await client.put_object(**given, Body=b"".join(parts))
        return answer
    with tempfile.TemporaryFile() as file:  # botocore sends it from the start again where it tries again
        await asyncio.to_thread(_write, file, parts)
        answer = await client.put_object(**given, Body=file)
        return answer


def _write(file: IO[bytes], parts: Sequence[Buffer_transfers]) -> None:
    file.writelines(parts)
    file.seek(0)


def _mapped(file: IO[bytes]) -> Buffer_transfers:
    """Return the content of ``file``, a copy of our own that nobody cuts short, without taking memory for it."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        return b""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

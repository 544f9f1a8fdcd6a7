"""Open stores for writing, with the options, credentials and rules that apply to reads of the same URL."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, Final

from fsspec.asyn import get_loop, sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from refshard_fs.core.forks import call_in_child, fork_safe
from refshard_fs.errors import ReadOnlyError, sanitize
from refshard_fs.security.policy import protocol_of
from refshard_fs.stores.local import LocalStore
from refshard_fs.stores.memory import MemoryStore
from refshard_fs.stores.s3 import S3Store
from refshard_fs.stores.store import Store
from refshard_fs.targets.answer import ImmediateTarget
from refshard_fs.targets.credentials import InstanceOrOptions, PoolOptions
from refshard_fs.targets.generic import is_s3fs
from refshard_fs.targets.pool import Pool

_KNOWN: Final = 8  # the most stores that are kept by their options, because making a client of S3 takes 0.1 s


class Stores:
    """The stores that are opened with the same options, usable from any thread; a forked process opens them again."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options
        self._pool: Pool | None = None  # the pool of fsspec's event loop
        _all.add(self)

    @classmethod
    def of(cls, url: str, given: InstanceOrOptions) -> Stores:
        """Return the stores for a ``url`` of the user, with a filesystem instance or options."""
        protocol = protocol_of(url)
        key = protocol, id(given) if isinstance(given, AbstractFileSystem) else tokenize(dict(given))
        with _knowing:
            known = _known.pop(key) if key in _known else cls(PoolOptions({protocol: given}))
            _known[key] = known  # now the most recently used
            if len(_known) > _KNOWN:
                del _known[next(iter(_known))]
        return known

    def open_now(self, url: str) -> tuple[Store, str] | None:
        """Return the store for objects at ``url``, and the path in it; None if opening needs the network.

        Raise TargetNotAllowed or ReadOnlyError if objects cannot be written.
        """
        found = Pool(self.options, None).find_target_for_writing(url)
        if found is None:
            return None
        target, path = found
        return self._store(url, (target.fs, path) if isinstance(target, ImmediateTarget) and target.fs else None, None)

    def open(self, url: str) -> tuple[Store, str]:
        """Return the store for objects at ``url``, and the path in it. This blocks: do not call it on fsspec's loop."""
        return self.open_now(url) or self._store(url, sync(get_loop(), self._open_store, url), get_loop())

    async def _open_store(self, url: str) -> tuple[AbstractFileSystem, str] | None:
        loop = get_loop()
        if self._pool is None or self._pool.loop is not loop:
            self._pool = Pool(self.options, loop)
        found = self._pool.find_target_for_writing(url)
        assert found is not None, "there is an event loop"
        target, path = found
        return await target.find_writing_filesystem(path)

    def _store(
        self, url: str, opened: tuple[AbstractFileSystem, str] | None, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[Store, str]:
        if opened is None:
            raise ReadOnlyError(
                f"{sanitize(url)} cannot be written to: expected a local path, or a URL of an object store or of "
                "another writable filesystem"
            )
        fs, path = opened
        kind = {LocalFileSystem: LocalStore, MemoryFileSystem: MemoryStore}.get(type(fs), Store)
        return (S3Store if is_s3fs(fs) else kind)(fs, loop, self.options.retry), path.rstrip("/")


_known: Final[dict[Any, Stores]] = {}
_knowing: Final = fork_safe(threading.Lock())
_all: Final[weakref.WeakSet[Stores]] = weakref.WeakSet()
_orphans: Final[list[object]] = []  # the parent's stores, in a forked child: collecting them would close its sockets


def _after_fork() -> None:
    _orphans.extend([(stores, stores._pool) for stores in _all])
    _known.clear()


call_in_child(_after_fork)

"""A filesystem over one session: it opens the source, looks things up in it, and knows how keys are spelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from fsspec.asyn import AsyncFileSystem, get_loop, sync
from fsspec.core import split_protocol

from refshard_fs.keys import normalise
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Steps
from refshard_fs.overlay import Overlay
from refshard_fs.session import Session
from refshard_fs.twins import BY_URL

__all__ = ["Sourced"]


class Sourced(AsyncFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """What all parts of a filesystem need of its source."""

    protocol = "refshard"
    async_impl = True
    cachable = False

    _session: Session
    _overlay: Overlay | None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of synchronous use; after a fork a new one."""
        if self._pid != os.getpid():
            self._pid: int = os.getpid()
            if not self.asynchronous:
                self._loop = get_loop()
        loop: asyncio.AbstractEventLoop | None = self._loop
        return loop

    def _opened(self) -> KeySpace:
        keyspace = self._session.opened_now()
        if keyspace is None:
            keyspace = sync(self.loop or get_loop(), self._session.keyspace)
        return keyspace

    def _look(self, key: str, steps: Callable[[], Steps[Any]]) -> Any:
        """Return what ``steps()`` return, at once if possible; an error names ``key``."""
        found = self._session.look_now(key, steps())
        return sync(self.loop or get_loop(), self._session.look, key, steps()) if found is None else found.value

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget every cached index, and open the source anew at the next use."""
        self._session.invalidate()
        super().invalidate_cache(path)

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

    @classmethod
    def _key(cls, path: Any) -> str:
        key: str = cls._strip_protocol(path)
        return key

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {BY_URL: True}

"""Which filesystem serves a URL, with which options: one pool of targets per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import fsspec
import msgspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs import policy
from refshard_fs.targets.answer import Target
from refshard_fs.targets.generic import FsspecTarget
from refshard_fs.targets.http import HttpTarget
from refshard_fs.targets.local import LocalTarget

__all__ = ["Pool", "PoolOptions"]

LOCAL = LocalTarget()  # descriptors belong to no event loop: the process shares them


class PoolOptions(msgspec.Struct, frozen=True, eq=False):
    """How targets are opened.

    ``by_protocol`` maps a protocol to an instance or to options; ``by_prefix`` maps a URL
    prefix to options, and the longest prefix wins over the protocol.
    """

    by_protocol: Mapping[str | None, AbstractFileSystem | Mapping[str, Any]] = {}
    by_prefix: Mapping[str, Mapping[str, Any]] = {}


class Pool:
    """The open targets of one event loop (``loop=None``: those that need none)."""

    def __init__(self, options: PoolOptions, loop: asyncio.AbstractEventLoop | None) -> None:
        self._options = options
        self.loop = loop
        self._targets: dict[object, Target | None] = {}
        self._places: dict[str, tuple[Target, str]] = {}

    def place(self, url: str) -> tuple[Target, str] | None:
        """Return the target that holds ``url`` and the path there; None where that takes an event loop."""
        found = self._places.get(url)
        if found is None:
            found = self._find(url)
            if found is not None:
                if len(self._places) > 4096:
                    self._places.clear()
                self._places[url] = found
        return found

    async def close(self) -> None:
        """Let go of all connections."""
        targets = [t for t in self._targets.values() if t is not None and t is not LOCAL]
        self._targets.clear()
        self._places.clear()
        for target in targets:
            await target.close()

    def _find(self, url: str) -> tuple[Target, str] | None:
        protocol = policy.protocol_of(url) or "file"
        given = self._options.by_protocol.get(policy.protocol_of(url))
        if given is None:
            given = self._options.by_protocol.get(protocol)
        prefix = policy.longest_prefix(self._options.by_prefix, url)
        chained = "::" in url
        if prefix is not None:
            return self._opened(("prefix", prefix[0], protocol), url, protocol, prefix[1], chained)
        if isinstance(given, AbstractFileSystem):
            return self._instance(protocol, given, url)
        return self._opened(protocol, url, protocol, given or {}, chained)

    def _instance(self, protocol: str, fs: AbstractFileSystem, url: str) -> tuple[Target, str] | None:
        if _is_plain_local(fs):
            return LOCAL, fs._strip_protocol(url)
        if self.loop is None:
            return None
        target = self._targets.get(("instance", protocol))
        if target is None:
            target = _target(_for_loop(fs, self.loop))
            self._targets["instance", protocol] = target
        return target, fs._strip_protocol(url)

    def _opened(
        self, token: object, url: str, protocol: str, options: Mapping[str, Any], chained: bool
    ) -> tuple[Target, str] | None:
        options = {k: v for k, v in options.items() if k not in ("asynchronous", "loop", "protocol")}
        if chained:
            # Each link of a chain is part of the filesystem's identity; fsspec caches the instances.
            if self.loop is None:
                return None
            fs, path = fsspec.core.url_to_fs(url, **options)
            token = (token, url.partition("::")[2])
            target = self._targets.setdefault(token, FsspecTarget(fs))
            assert target is not None
            return target, path
        if protocol in policy.LOCAL and not options:
            return LOCAL, LocalFileSystem._strip_protocol(url)
        if self.loop is None:
            return None
        target = self._targets.get(token)
        if target is None:
            cls = fsspec.get_filesystem_class(protocol)
            target = self._targets[token] = _target(_open(cls, protocol, url, options, self.loop))
        return target, fsspec.get_filesystem_class(protocol)._strip_protocol(url)


def _open(
    cls: type[AbstractFileSystem],
    protocol: str,
    url: str,
    options: dict[str, Any],
    loop: asyncio.AbstractEventLoop,
) -> AbstractFileSystem:
    options = {**cls._get_kwargs_from_urls(url), **options}
    if issubclass(cls, AsyncFileSystem) and cls.async_impl:
        return cls(**options, asynchronous=True, loop=loop, skip_instance_cache=True)
    return fsspec.filesystem(protocol, **options)


def _for_loop(fs: AbstractFileSystem, loop: asyncio.AbstractEventLoop) -> AbstractFileSystem:
    """Return ``fs``, or for an asynchronous instance of a known other loop its like on this one."""
    if not (isinstance(fs, AsyncFileSystem) and fs.async_impl):
        return fs
    if not fs.asynchronous:
        return fs  # its own loop runs in a thread: calls are handed over
    home = getattr(fs, "_refshard_home", None)
    if home is None or home is loop:
        fs._refshard_home = loop
        return fs
    options = {k: v for k, v in fs.storage_options.items() if k not in ("asynchronous", "loop")}
    return type(fs)(*fs.storage_args, **options, asynchronous=True, loop=loop, skip_instance_cache=True)


def _target(fs: AbstractFileSystem) -> Target:
    if type(fs) is HTTPFileSystem and fs.asynchronous:
        return HttpTarget(fs)
    return FsspecTarget(fs)


def _is_plain_local(fs: AbstractFileSystem) -> bool:
    return type(fs) is LocalFileSystem

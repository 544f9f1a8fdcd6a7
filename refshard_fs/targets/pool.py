"""Choose the filesystem and the options for each URL: one pool of targets per event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.data import DataFileSystem
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Origin
from refshard_fs.core.stats import Stats
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security import policy
from refshard_fs.security.admission import (
    INSIDE,
    WEB,
    Access,
    describe_remedy,
    is_private,
    origin_of,
)
from refshard_fs.targets.answer import Target
from refshard_fs.targets.credentials import (
    Grant,
    InstanceOrOptions,
    PoolOptions,
    Rules,
    admit_url,
    find_archive_grant,
    find_grant,
)
from refshard_fs.targets.failures import WITHOUT
from refshard_fs.targets.generic import (
    FsspecTarget,
    GuardedFtp,
    has_coroutines,
    is_class_of_s3fs,
    is_s3fs,
    make_chain_opener,
    split_chain,
)
from refshard_fs.targets.local import DataTarget, LocalTarget, MemoryTarget
from refshard_fs.targets.obspec import ObspecTarget, StoreFileSystem
from refshard_fs.targets.versioned import VersionedObject, Versions

if TYPE_CHECKING:
    from refshard_fs.targets.connections import Judge
    from refshard_fs.targets.zip import InflatedMembers

# Targets that need no event loop; all pools of the process share them.
LOCAL = LocalTarget()
WITHOUT_LINKS = LocalTarget(follows=False)  # for paths that `_resolve_links` has resolved and permitted
IMMEDIATE: dict[type[AbstractFileSystem], Target] = {
    LocalFileSystem: LOCAL,
    MemoryFileSystem: MemoryTarget(),
    DataFileSystem: DataTarget(),
}
_NEED_NO_LOOP = frozenset([*policy.LOCAL, "memory", "data"])

# Environment variables that a filesystem uses even if its options ask for anonymous access.
_AZURE = tuple(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_KEY", "CLIENT_ID", "CONNECTION_STRING", "SAS_TOKEN"))
_AMBIENT = {"az": _AZURE, "abfs": _AZURE, "abfss": _AZURE}

PLACES = 4096  # the most objects that are remembered by URL
Grants: TypeAlias = dict[tuple[str, Origin], Grant]
_HINT_ANONYMOUS = f"it was requested {WITHOUT}, as its options say: it is not public, or there is no such object"
_HINT_NO_ACCESS = (
    f"it was requested {WITHOUT}, because a manifest from elsewhere named it: "
    "to send your credentials, name its protocol (remote_protocol=) or its prefix (options=)"
)


def make_instance(protocol: str, given: InstanceOrOptions) -> AbstractFileSystem:
    """Return ``given`` if it is a filesystem; if it has options, make a filesystem for ``protocol`` with them."""
    return given if isinstance(given, AbstractFileSystem) else fsspec.filesystem(protocol, **given)


class Pool:
    """The open targets of one event loop (``loop=None``: the targets that need no loop).

    All pools of a source share ``versions``, so that an object has one version on all event loops, and ``grants``,
    so that the rules are applied to each URL once.
    """

    def __init__(
        self,
        options: PoolOptions,
        loop: asyncio.AbstractEventLoop | None,
        versions: Versions | None = None,
        stats: Stats | None = None,
        *,
        is_writable: bool = False,
        grants: Grants | None = None,
    ) -> None:
        self._options = options
        self._is_writable = is_writable
        self._grants: Grants = {} if grants is None else grants
        self.loop = loop
        self.versions = Versions() if versions is None else versions
        self._stats = Stats() if stats is None else stats
        self._targets: dict[object, Target] = {}
        self._inflated: InflatedMembers | None = None  # shared by all archives
        self._of_origin: dict[Origin, Rules] = {}
        self._places: dict[tuple[str, Origin], tuple[VersionedObject, str] | None] = {}

    def place(self, url: str, origin: Origin = ()) -> tuple[VersionedObject, str] | None:
        """Return the object at ``url`` and its path in its target; None if opening it takes an event loop.

        Raises TargetNotAllowed if the source, or a set at ``origin``, must not read it.
        """
        key = url, origin
        if key in self._places:
            return self._places[key]
        place = self._find_place(url, origin)
        if len(self._places) >= PLACES:
            self._places.clear()
        self._places[key] = place
        return place

    def _find_place(self, url: str, origin: Origin) -> tuple[VersionedObject, str] | None:
        if url.startswith(policy.DECOMPRESS):  # the rules are applied to the URL of the file itself
            return self._open_decompressed(url, origin)
        rules, key = self._list_rules(origin), (url, origin)
        grant = self._grants.get(key)
        if grant is None:
            grant = find_grant(url, self._options, rules, resolve=_resolve_links)
            if len(self._grants) >= PLACES:
                self._grants.clear()
            self._grants[key] = grant
        return self._open_object(url, grant, rules)

    def _open_object(self, url: str, grant: Grant, rules: Rules) -> tuple[VersionedObject, str] | None:
        """Return the object at ``url``, opened as ``grant`` says, and its path in its target."""
        found = self._find_target(grant, rules)
        if found is None:
            return None
        target, path = found
        retry = self._options.retry.limit_to(target.most_retries)
        hint = _HINT_ANONYMOUS if _is_anonymous(make_portable_options(grant.given)) else ""
        advice = ""
        if grant.access is Access.NONE:
            hint, advice = _HINT_NO_ACCESS, self._advise_on_endpoint(grant.url)
        only_size = policy.find_longest_prefix(dict.fromkeys(self._options.only_sizes), url) is not None
        version = self.versions.of(url, only_size=only_size)
        return VersionedObject(target, version, retry, self._stats, hint, advice, is_writable=self._is_writable), path

    def _open_decompressed(self, url: str, origin: Origin) -> tuple[VersionedObject, str] | None:
        """Return the object that has the decompressed bytes of a file; None without an event loop."""
        from refshard_fs.targets.decompressed import DecompressedTarget  # few sources need it

        file = url.removeprefix(policy.DECOMPRESS)
        if file.startswith(policy.DECOMPRESS):
            raise TargetNotAllowed(url, "a file is decompressed only once", "Leave out one 'decompress::'")
        place = None if self.loop is None else self.place(file, origin)
        if place is None:
            return None
        target = self._targets.setdefault((url, origin), DecompressedTarget(*place, file))
        retry = self._options.retry.limit_to(target.most_retries)
        return VersionedObject(target, self.versions.of(url), retry, self._stats), url

    def _advise_on_endpoint(self, url: str) -> str:
        """Return advice about the endpoint of ``url``, if another prefix of its protocol has an endpoint."""
        protocol = policy.protocol_of(url)
        for prefix, given in self._options.by_prefix.items():
            if policy.protocol_of(prefix) == protocol and _names_endpoint(make_portable_options(given)):
                other = f"options={{{policy.server_of(url) + '/'!r}: {{...}}}}"
                return f"endpoint_url= is given for {prefix} alone: give it in {other} too"
        return ""

    def find_target_for_writing(self, url: str) -> tuple[Target, str] | None:
        """Return the target for writing at ``url``, and the path there; None if opening it takes an event loop.

        Objects are written only with the user's own credentials: raises TargetNotAllowed if the server must not get
        these. Links in a local path are not resolved here, because writes have their own rule for links.
        """
        rules = self._list_rules(())
        grant = find_grant(url, self._options, rules)
        if grant.access is not Access.OWN:
            rule = "objects are written only with your own credentials, and you gave none for this URL"
            raise TargetNotAllowed(url, rule, describe_remedy(url))
        return self._find_target(grant, rules)

    async def close(self) -> None:
        """Close all connections."""
        targets = list(self._targets.values())
        self._targets.clear()
        self._places.clear()
        for target in targets:
            await target.close()

    def _list_rules(self, origin: Origin) -> Rules:
        """Return the rules for the URLs of the source, or of the sets at ``origin``; none if all are admitted."""
        known = self._of_origin.get(origin)
        if known is None:
            rules = [self._options.admission]
            if self._options.rule_of is not None:
                rules += map(self._options.rule_of, origin)
            known = self._of_origin[origin] = tuple(rule for rule in rules if not rule.admits_all)
        return known

    def _find_target(self, grant: Grant, rules: Rules) -> tuple[Target, str] | None:
        url, access, token, given = grant
        protocol = token[-1]
        judge = partial(_admit, rules) if rules else None
        if access is Access.NONE:
            _check_ambient(protocol, url)
        if protocol in WEB and rules:
            token = (*token, repr(rules))  # the rules are applied to redirects
        if isinstance(given, AbstractFileSystem):
            return self._find_target_of_instance(token, given, url, judge, access)
        options = make_portable_options(given)
        if others := policy.split_chain(url)[1:]:
            given_of = {_find_protocol(link): self._options.find_options(link) for link in others}
            joined = options | {
                name: make_portable_options(own) for name, own in given_of.items() if own and name not in options
            }
            if protocol == "zip":
                return self._open_member(grant, (*token, repr(given_of)), options, joined, rules)
            if judge is not None:
                joined = _guard_links(joined, map(_find_protocol, others), judge, access)
                token = (*token, repr(rules))
            return self._open_chain((*token, repr(given_of)), joined, url)
        if protocol in _NEED_NO_LOOP and not options:
            cls = fsspec.get_filesystem_class(protocol)
            immediate = IMMEDIATE.get(cls)
            if immediate is not None:
                return WITHOUT_LINKS if immediate is LOCAL and rules else immediate, cls._strip_protocol(url)
        return self._find_target_by_options(token, protocol, options, url, judge, access)

    def _open_chain(self, token: tuple[str, ...], options: dict[str, Any], url: str) -> tuple[Target, str] | None:
        link, path = split_chain(url)
        return self._get_or_make((*token, "::", link), lambda _: FsspecTarget(make_chain_opener(url, options)), path)

    def _open_member(
        self, grant: Grant, token: tuple[str, ...], options: dict[str, Any], joined: dict[str, Any], rules: Rules
    ) -> tuple[Target, str] | None:
        """Return the target of a ZIP's members, and the path of the member that ``grant`` opens.

        ``options`` are the options of the chain's links, by protocol. ``joined`` also has the pool's options for these
        links, since fsspec's filesystem for archives needs all of them.
        """
        from refshard_fs.targets import zip as archives  # imported only for an archive

        url = grant.url
        _, *others = policy.split_chain(url)
        outer = "::".join(others)
        if archives.needs_fsspec(options, list(map(_find_protocol, others))):
            return self._open_chain(token, joined, url)

        def open_archive(_: asyncio.AbstractEventLoop) -> Target:
            own = options if len(others) > 1 else options.get(policy.protocol_of(outer) or "file") or {}
            archive = find_archive_grant(_resolve_links(outer, rules), self._options, grant, own)
            place = self._open_object(outer, archive, rules)
            assert place is not None, "there is an event loop"
            if self._inflated is None:
                self._inflated = archives.InflatedMembers()
            return archives.ZipTarget(
                *place, outer, self._inflated, None if rules else FsspecTarget(make_chain_opener(url, joined))
            )

        return self._get_or_make((*token, "::", outer, repr(options), repr(rules)), open_archive, url)

    def _find_target_of_instance(
        self, token: tuple[str, ...], fs: AbstractFileSystem, url: str, judge: Judge | None, access: Access
    ) -> tuple[Target, str] | None:
        while type(fs) is AsyncFileSystemWrapper:
            fs = fs.sync_fs
        if isinstance(fs, StoreFileSystem):
            return self._get_or_make((*token, "store"), lambda _: ObspecTarget(fs.store), fs.path_of(url))
        immediate = IMMEDIATE.get(type(fs))
        if immediate is not None:
            return immediate, fs._strip_protocol(url)
        return self._get_or_make(
            (*token, "instance"), lambda loop: self._copy_for_loop(fs, loop, judge, access), fs._strip_protocol(url)
        )

    def _find_target_by_options(
        self,
        token: tuple[str, ...],
        protocol: str,
        options: dict[str, Any],
        url: str,
        judge: Judge | None,
        access: Access,
    ) -> tuple[Target, str] | None:
        cls = fsspec.get_filesystem_class(protocol)
        named = cls._get_kwargs_from_urls(url)  # for example, the host and the user in the URL
        identity = (*token, repr(named)) if named else token
        options = {**named, **options}

        def open_target(loop: asyncio.AbstractEventLoop) -> Target:
            guarded = cls if judge is None else _guard_class(cls, options, access)
            fs = _make_new_instance(guarded, options, loop, by_configuration=access is not Access.NONE)
            place = getattr(fs, "base", None) if protocol in ("gs", "gcs") else None  # STORAGE_EMULATOR_HOST sets it
            if judge is not None and access is not Access.OWN and place and is_private(origin_of(str(place))[1]):
                raise TargetNotAllowed(url, f"{INSIDE}, where its endpoint {place} is", describe_remedy(url))
            is_named = _names_endpoint(options)
            return self._make_target(fs, judge, access, owned=bool(fs.async_impl), names_endpoint=is_named)

        return self._get_or_make(identity, open_target, cls._strip_protocol(url))

    def _get_or_make(
        self, token: tuple[str, ...], make: Callable[[asyncio.AbstractEventLoop], Target], path: str
    ) -> tuple[Target, str] | None:
        if self.loop is None:
            return None
        target = self._targets.get(token)
        if target is None:
            target = self._targets[token] = make(self.loop)
        return target, path

    def _copy_for_loop(
        self, fs: AbstractFileSystem, loop: asyncio.AbstractEventLoop, judge: Judge | None, access: Access
    ) -> Target:
        """Return a target of ``fs``, or of a copy of it on ``loop``, if ``fs`` belongs to another loop or is slow.

        Plain HTTP filesystems and s3fs without hooks are slow: this package reads faster with their options.
        """
        if not has_coroutines(fs):
            return FsspecTarget(fs)
        from fsspec.implementations.http import HTTPFileSystem  # slow to import, as all modules that import aiohttp

        from refshard_fs.targets.s3 import has_own_hooks

        client = getattr(fs, "_s3", fs)  # if a later s3fs keeps its client elsewhere, its hooks are unknown
        fast = self._options.fast_s3 and is_s3fs(fs) and (client is None or not has_own_hooks(client))
        if type(fs) is not HTTPFileSystem and not fast:
            if not fs.asynchronous:
                return FsspecTarget(fs)  # its own loop runs in a thread: calls are handed over
            home = getattr(fs, "_refshard_home", None)
            if home is None or home is loop:
                fs._refshard_home = loop
                return FsspecTarget(fs)
        again = _make_new_instance(type(fs), make_portable_options(fs), loop, *fs.storage_args)
        return self._make_target(again, judge, access, owned=True, names_endpoint=True)

    def _make_target(
        self, fs: AbstractFileSystem, judge: Judge | None, access: Access, *, owned: bool, names_endpoint: bool
    ) -> Target:
        """Return the target of ``fs``, an asynchronous instance on this loop.

        ``names_endpoint``: its options name its endpoint, which is then permitted to be in a private network.
        """
        from fsspec.implementations.http import HTTPFileSystem

        from refshard_fs.targets.connections import Guard
        from refshard_fs.targets.http import AsyncHttp, HttpTarget
        from refshard_fs.targets.s3 import S3Target

        if type(fs) in (AsyncHttp, HTTPFileSystem):
            return HttpTarget(fs, judge, access)
        if owned and is_s3fs(fs):
            is_free = judge is None or access is Access.OWN or names_endpoint
            fs.set_retries(self._options.retry.retries)
            return S3Target(fs, fast=self._options.fast_s3, guard=None if is_free else Guard(own=False))
        return FsspecTarget(fs, owned=owned)


# Arguments that fsspec's filesystem for HTTP passes on to aiohttp.
_OF_AIOHTTP = frozenset(["auth", "cookies", "headers", "proxy", "ssl"])


def list_argument_names(protocol: str) -> frozenset[str]:
    """Return the argument names of the filesystem of ``protocol``; none if there is no such filesystem."""
    try:
        found = inspect.signature(fsspec.get_filesystem_class(protocol).__init__).parameters
    except (ImportError, ValueError):  # opening the filesystem raises the error that names the remedy
        return frozenset()
    return frozenset(found) - {"self", "args", "kwargs"} | (_OF_AIOHTTP if protocol in WEB else frozenset())


def _admit(rules: Rules, url: str, redirected_by: str | None = None) -> tuple[str, Access]:
    """Return the URL to open for ``url``, with symbolic links resolved, and whose credentials to use."""
    url, access = admit_url(url, rules, redirected_by)
    return _resolve_links(url, rules), access


def _guard_class(cls: type[AbstractFileSystem], options: dict[str, Any], access: Access) -> type[AbstractFileSystem]:
    """Return the class to open instead of ``cls`` for a set from elsewhere; TargetNotAllowed if its host is refused."""
    host = options.get("host")
    if not isinstance(host, str):
        return cls
    from refshard_fs.targets.connections import Guard

    guard = Guard(access is Access.OWN)
    if cls is FTPFileSystem:
        options["guard"] = guard
        return GuardedFtp
    with contextlib.suppress(socket.gaierror):  # the filesystem reports this error
        guard.resolve(host, options.get("port") or 0)
    return cls


def _guard_links(options: dict[str, Any], protocols: Iterable[str], judge: Judge, access: Access) -> dict[str, Any]:
    """Return the options of a chain's links; a client for the HTTP links calls ``judge`` for each URL."""
    from refshard_fs.targets.connections import Guard, open_guarded

    client = partial(open_guarded, Guard(access is Access.OWN), judge)
    return options | {name: {"get_client": client, **options.get(name, {})} for name in WEB.intersection(protocols)}


def _resolve_links(url: str, rules: Rules) -> str:
    """Return ``url``; if rules judge a local path, return it with its symbolic links resolved."""
    if rules and policy.protocol_of(url) in (None, *policy.LOCAL):
        url = os.path.realpath(LocalFileSystem._strip_protocol(url))
        for rule in rules:
            rule.admit_real(url, os.path.realpath)
    return url


def _find_protocol(link: str) -> str:
    """Return the protocol of a link behind the first link of a chain; such a link may be a protocol alone."""
    return policy.protocol_of(link) or ("file" if "/" in link else link)


def _check_ambient(protocol: str, url: str) -> None:
    """Raise TargetNotAllowed if the filesystem would use credentials of the environment in spite of its options."""
    found = [name for name in _AMBIENT.get(protocol, ()) if name in os.environ]
    if found:
        rule = f"it must be read without credentials, but its filesystem always uses those in {found[0]}"
        raise TargetNotAllowed(url, rule, describe_remedy(url, "To read it with these credentials"))


def _make_new_instance(
    cls: type[AbstractFileSystem],
    options: dict[str, Any],
    loop: asyncio.AbstractEventLoop,
    *arguments: Any,
    by_configuration: bool = True,
) -> AbstractFileSystem:
    """Return a new instance of ``cls``, on ``loop`` if it has coroutines.

    Without ``by_configuration``, ignore fsspec's configuration for its protocol, which may hold credentials.
    """
    from fsspec.implementations.http import HTTPFileSystem

    from refshard_fs.targets.http import AsyncHttp

    cls = AsyncHttp if cls is HTTPFileSystem else cls
    if is_class_of_s3fs(cls):
        from refshard_fs.targets.s3_client import S3Client

        cls = S3Client
    shared: dict[str, Any] = {}
    if issubclass(cls, AsyncFileSystem) and cls.async_impl:
        options = {**options, "asynchronous": True, "loop": loop}
        shared = {"skip_instance_cache": True}
    if by_configuration:
        return cls(*arguments, **options, **shared)
    fs: AbstractFileSystem = type.__call__(cls, **options)  # fsspec's metaclass would add its configuration
    fs.storage_args, fs.storage_options = (), options
    fs._fs_token_ = f"{id(fs):x}"
    return fs


def _names_endpoint(options: Mapping[str, Any]) -> bool:
    """Return whether the ``options`` of an object store name its server."""
    return "endpoint_url" in {**options, **(options.get("client_kwargs") or {})}


def _is_anonymous(options: Mapping[str, Any]) -> bool:
    """Return whether ``options``, or the options of a link in a chain, ask for anonymous access."""
    links = [options, *(given for given in options.values() if isinstance(given, Mapping))]
    return any(given.get("anon") or given.get("token") == "anon" for given in links)


def make_portable_options(given: InstanceOrOptions) -> dict[str, Any]:
    """Return ``given``, or the options of an instance, without the options that bind an instance to a loop."""
    options = given.storage_options if isinstance(given, AbstractFileSystem) else given
    bound = ("asynchronous", "loop", "protocol", "skip_instance_cache")
    return {name: value for name, value in options.items() if name not in bound}

"""Everything that decides what a source shows and how its targets are read, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.format import OpenOptions
from refshard_fs.reading.dispatch import Budget
from refshard_fs.reading.plan import Limits
from refshard_fs.security.admission import Admission
from refshard_fs.security.policy import LOCAL, longest_prefix, protocol_of
from refshard_fs.session.in_memory_source import InMemorySource
from refshard_fs.session.overlay import Overlay
from refshard_fs.targets import PoolOptions


class SessionOptions(msgspec.Struct, frozen=True, eq=False):
    """Everything that decides what a source shows and how its targets are read."""

    source: str | InMemorySource
    open: OpenOptions
    format: str | None
    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options given without a protocol
    limits: Limits
    budget: Budget
    readahead: int
    block_cache: int
    token: str
    index_cache: bool | str | None = None
    overlay: Overlay | None = None  # of what is written; without one, nothing is


# ----------------------------------------------------------------------------------------------------
# Which options open which URLs, as the constructor's arguments say: by protocol, by prefix, for the source itself.


_SYNONYMS = (("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"))  # protocols that fsspec has one filesystem for
_OF_THE_SOURCE = ("compression", "protocol")  # options that its filesystem does not take


class Routes(NamedTuple):
    """How targets are opened, and what URLs without a protocol mean."""

    by_protocol: dict[str | None, Any]
    by_prefix: dict[str, Any]
    admission: Admission
    fallback: dict[str, Any]  # remote_options given without a protocol
    bare_protocol: str | None
    bare_as_is: bool  # URLs without a protocol are paths of an instance's own, not to be resolved
    rule_of: Callable[[str], Admission]  # for a set at a URL that is part of the source

    @property
    def token(self) -> str:
        """Tell these routes from others; what was read by some is not for all."""
        return repr((self.by_protocol, self.by_prefix, self.admission))


def route(
    source: str | None,
    fs: AbstractFileSystem | Mapping[str | None, Any] | None,
    remote_protocol: str | None,
    remote_options: Mapping[str, Any] | None,
    source_options: Mapping[str, Any] | None,
    options: Mapping[str, Mapping[str, Any]] | None,
    allow: Iterable[str] | str | None,
    data_url: str | None = None,
) -> Routes:
    """Return the routes of a source at URL ``source`` (None: it is held in memory), whose new objects are at another.

    What the user writes may be read again, with the options that it was written with.
    """
    by_protocol = _by_protocol(fs, remote_protocol, remote_options)
    by_prefix = dict(options or {})
    if data_url is not None:
        protocol = protocol_of(data_url)
        known = protocol in by_protocol or longest_prefix(by_prefix, data_url) is not None
        if not known and protocol not in ("memory", *LOCAL):
            near = source is not None and (protocol_of(source) or "file") == protocol
            given = (source_options if near else None) or remote_options or {}
            by_prefix[data_url] = {name: value for name, value in given.items() if name not in _OF_THE_SOURCE}
        options = {**(options or {}), data_url: {}}
        if allow is not None and not isinstance(allow, str):
            allow = [*allow, data_url + "/"]
    if source is not None:
        if source_options is not None:
            by_prefix[source] = {k: v for k, v in source_options.items() if k not in _OF_THE_SOURCE}
        elif fs is not None and longest_prefix(by_prefix, source) is None:
            by_prefix[source] = {}  # fs= serves the references, not the manifest
    bare = by_protocol.get(None)
    return Routes(
        by_protocol,
        by_prefix,
        Admission.of(source, allow, filter(None, by_protocol), options or ()),
        dict(remote_options or {}) if fs is None and remote_protocol is None else {},
        remote_protocol if fs is None or isinstance(fs, Mapping) else None,
        isinstance(bare, AbstractFileSystem) and not isinstance(bare, LocalFileSystem),
        partial(Admission.of, allow=allow, protocols=tuple(filter(None, by_protocol)), prefixes=tuple(options or ())),
    )


def _by_protocol(
    fs: Any, remote_protocol: str | None, remote_options: Mapping[str, Any] | None
) -> dict[str | None, Any]:
    """Return protocol → instance or options; None stands for URLs that name no protocol."""
    if isinstance(fs, Mapping):
        given = dict(fs)
        if None in given:
            given.setdefault("file", given[None])
        return given
    if fs is not None:
        protocols = [fs.protocol] if isinstance(fs.protocol, str) else [*fs.protocol]
        cached = getattr(fs, "target_protocol", None)  # fsspec's caches take the URLs of what they cache
        if isinstance(cached, str):
            protocols.append(cached)
        return {**dict.fromkeys(protocols, fs), None: fs}
    if remote_protocol is None:
        return {}
    names = next((names for names in _SYNONYMS if remote_protocol in names), (remote_protocol,))
    return {name: dict(remote_options or {}) for name in names}

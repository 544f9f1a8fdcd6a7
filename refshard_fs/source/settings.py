"""Settings for opening, reading and writing one source, derived from the options of a filesystem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.format import OpenOptions
from refshard_fs.cubes.choice import Choice
from refshard_fs.reading.memory import Budget
from refshard_fs.reading.plan import Limits
from refshard_fs.security.admission import WEB, Admission, try_canonicalize
from refshard_fs.security.policy import LOCAL, find_longest_prefix, place_of, protocol_of
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.options import CachingOptions, Options
from refshard_fs.source.transaction import Transaction, find_transaction
from refshard_fs.targets import PoolOptions, Retry, StoreFileSystem, find_root_url, find_stores, is_store


class Settings(msgspec.Struct, frozen=True, eq=False):
    """All settings for opening a source and reading its targets."""

    source: str | InMemorySource
    open: OpenOptions
    format: str | None
    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options without a protocol
    limits: Limits
    budget: Budget
    readahead: int
    caching: CachingOptions
    token: str
    select: tuple[Choice, ...] = ()  # selections of the source, applied in order

    @classmethod
    def of(cls, options: Options) -> Settings:
        """Derive the settings from ``options``. Raises ValueError or TypeError for an invalid value."""
        source, reading, caching = options.source, options.reading, options.caching
        if source.select and options.writing.is_allowed:
            writing = f"mode={options.writing.mode!r}" if options.writing.mode else "overlay="
            raise ValueError(f"select= cannot be used with {writing}: a selection can only be read")
        writes_to = choose_data_url(source.fo, options.writing.data_url) if options.writing.is_allowed else None
        routes = route(options, writes_to)
        return cls(
            source=source.fo,
            open=OpenOptions(
                template_overrides=tuple(sorted((source.template_overrides or {}).items())),
                simple_templates=options.trust.simple_templates,
                base_url=source.base_url,
                target=source.target,
                protocol=routes.bare_protocol,
                bare_as_is=routes.bare_as_is,
                shards=source.shards,
                shard_options=tuple(sorted((source.shard_options or {}).items())),
                cache_size=caching.cache_size,
                zarr_format=source.zarr_format,
                group="" if source.select else (source.group or "").strip("/"),
                version=source.version,
                verify=reading.verify,
                max_manifest_bytes=source.max_manifest_bytes,
                head=source.head,
                rule_of=routes.pool.rule_of,
            ),
            format=None if source.format is None else READ_AS.get(source.format, source.format),
            pool=routes.pool,
            fallback=routes.fallback,
            limits=Limits(reading.max_gap, reading.max_block),
            budget=Budget(reading.concurrency, reading.max_memory),
            readahead=reading.readahead,
            caching=caching,
            token=routes.token,
            select=tuple(map(Choice.read, source.select or ())),
        )


class WriteSettings(msgspec.Struct, frozen=True):
    """Settings for new values; with ``data_url`` None, all values stay in memory.

    ``format``, and ``record_size`` for a parquet set, apply to a new source.
    """

    data_url: str | None
    inline_threshold: int
    content_addressed: bool
    format: str | None
    record_size: int

    @classmethod
    def of(cls, options: Options) -> WriteSettings | None:
        """Derive the settings from ``options``; None if all writes are refused."""
        source, writing = options.source, options.writing
        is_in_memory = source.url is None and not source.select  # writable also without a mode
        if not writing.is_allowed and not (is_in_memory and writing.mode is None):
            return None
        return cls(
            data_url=choose_data_url(source.fo, writing.data_url),
            inline_threshold=writing.inline_threshold,
            content_addressed=writing.content_addressed,
            format=source.format,
            record_size=writing.record_size,
        )


_SYNONYMS = (("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"))  # protocols with one filesystem in fsspec
_NOT_FORWARDED = ("compression", "protocol")  # options of the source that its filesystem does not take


class Routes(NamedTuple):
    """The options for opening targets, and the meaning of URLs without a protocol."""

    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options without a protocol
    bare_protocol: str | None
    bare_as_is: bool  # URLs without a protocol are paths in the user's filesystem, and are not resolved

    @property
    def token(self) -> str:
        """A text that identifies these routes. Only equal routes share the data in caches."""
        return repr((self.pool.by_protocol, self.pool.by_prefix, self.pool.admission, self.pool.only_sizes))


def route(opening: Options, data_url: str | None) -> Routes:
    """Return the routes of a source whose new objects are at ``data_url``.

    New objects are read with the options that wrote them.
    """
    source, source_options = opening.source.url, opening.trust.of_source
    allow = opening.trust.allow
    fs, options = _replace_stores(opening.trust.fs, opening.trust.options or {})
    remote_protocol, remote_options = opening.source.remote_protocol, opening.trust.remote_options
    by_protocol = _route_by_protocol(fs, remote_protocol, remote_options)
    by_prefix, only_sizes = _split_versions(options)
    if data_url is not None:
        protocol = protocol_of(data_url)
        known = protocol in by_protocol or find_longest_prefix(by_prefix, data_url) is not None
        if not known and protocol not in ("memory", *LOCAL):
            is_like_source = source is not None and (protocol_of(source) or "file") == protocol
            inherited = (source_options if is_like_source else None) or remote_options or {}
            by_prefix[data_url] = {name: value for name, value in inherited.items() if name not in _NOT_FORWARDED}
        options = {**options, data_url: {}}
        if allow is not None and not isinstance(allow, str):
            allow = [*allow, data_url + "/"]
    if source is not None:
        own = {k: v for k, v in (source_options or {}).items() if k not in _NOT_FORWARDED}
        # Without any options, looking up the options of each object would only take time.
        if own or (source_options is not None and (by_prefix or by_protocol or remote_options)):
            by_prefix[source] = own
            place = place_of(source)
            if place is not None and not remote_options and protocol_of(place) not in by_protocol:
                by_prefix.setdefault(place, own if "::" not in source else own.get(protocol_of(place) or "", {}))
        elif fs is not None and find_longest_prefix(by_prefix, source) is None and protocol_of(source) not in WEB:
            # fs= is for the references, not for the manifest, which may need credentials of the environment. Web
            # servers do not use such credentials, so there fs= opens the source, too: earthaccess needs one session
            # for both.
            by_prefix[source] = {}
    by_prefix = {try_canonicalize(prefix): own for prefix, own in by_prefix.items()}
    bare = by_protocol.get(None)
    rule_of = partial(Admission.of, allow=allow, protocols=[*filter(None, by_protocol)], prefixes=[*options])
    retry = Retry(opening.reading.retries, opening.reading.timeout)
    return Routes(
        PoolOptions(by_protocol, by_prefix, rule_of(source), retry, opening.reading.fast_s3, rule_of, only_sizes),
        dict(remote_options or {}) if fs is None and remote_protocol is None else {},
        remote_protocol if fs is None or isinstance(fs, Mapping) else None,
        isinstance(bare, AbstractFileSystem) and not isinstance(bare, LocalFileSystem),
    )


def _replace_stores(fs: Any, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Replace obspec's stores in ``fs`` and ``options`` by filesystems; stores of a registry go to ``options``."""
    registered = find_stores(fs)
    if registered is not None:
        # Local files are read without the store, and only if the source may point to them.
        own = {prefix: store for prefix, store in registered.items() if type(store).__name__ != "LocalStore"}
        fs, options = None, {**own, **options}
    elif is_store(fs):
        options = {find_root_url(fs): fs, **options}
        fs = {None: fs}
    if fs is not None and isinstance(fs, Mapping):  # the first isinstance(None, Mapping) takes milliseconds
        fs = {protocol: StoreFileSystem.of(item) if is_store(item) else item for protocol, item in fs.items()}
    return fs, {prefix: StoreFileSystem.of(item) if is_store(item) else item for prefix, item in options.items()}


def _split_versions(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Remove ``versions`` from the options by prefix; return these, and the prefixes with ``versions="ignore"``."""
    by_prefix: dict[str, Any] = {}
    only_sizes: list[str] = []
    for prefix, own in options.items():
        versions = own.get("versions") if isinstance(own, Mapping) else None
        if versions not in (None, "ignore", "compare"):
            raise ValueError(
                f"invalid versions={versions!r} in options={{{prefix!r}: ...}}: expected 'ignore' or 'compare'"
            )
        if versions is None and own != {}:
            by_prefix[prefix] = own
        elif versions is not None and len(own) > 1:  # without other options, the options of the protocol apply
            by_prefix[prefix] = {name: value for name, value in own.items() if name != "versions"}
        if versions == "ignore":
            only_sizes.append(prefix)
    return by_prefix, tuple(only_sizes)


def _route_by_protocol(
    fs: Any, remote_protocol: str | None, remote_options: Mapping[str, Any] | None
) -> dict[str | None, Any]:
    """Return a filesystem or options by protocol; None is for URLs without a protocol."""
    if fs is not None and isinstance(fs, Mapping):
        by_protocol = dict(fs)
        if None in by_protocol:
            by_protocol.setdefault("file", by_protocol[None])
        return by_protocol
    if fs is not None:
        protocols = [fs.protocol] if isinstance(fs.protocol, str) else [*fs.protocol]
        cached = getattr(fs, "target_protocol", None)  # fsspec's caches take URLs of the cached filesystem
        if isinstance(cached, str):
            protocols.append(cached)
        return {**dict.fromkeys(protocols, fs), None: fs}
    if remote_protocol is None:
        return {}
    names = next((names for names in _SYNONYMS if remote_protocol in names), (remote_protocol,))
    return {name: dict(remote_options or {}) for name in names}


_READ_ONLY_PROTOCOLS = ("http", "https", "data", "github", "zip", "tar")


# Suffixes of files that hold values, and that no set can be mistaken for.
_OF_VALUES: Final = frozenset(
    (
        *("nc", "nc3", "nc4", "cdf", "h5", "hdf5", "hdf", "he5", "h5ad", "tif", "tiff"),
        *("grib", "grib1", "grib2", "grb", "grb2", "fits", "jp2", "dmrpp", "csv", "png"),
    )
)


SetFormat = Literal["parquet", "json", "chunk-manifest", "icechunk"]  # formats for writing references
# The name of the format that reads a new set, by the name of the format that writes it, if the two differ.
READ_AS: Final = {"json": "kerchunk-json", "parquet": "kerchunk-parquet", "chunk-manifest": "zarr-hierarchy"}


_JSON: Final = re.compile(r"\.json(?:\.(?:gz|bz2|xz|zst|zstd))?\Z")


def check_set_name(url: str) -> None:
    """Raise ValueError if ``url`` has the suffix of a file of values: a set would replace such a file.

    >>> check_set_name("days/refs.parquet")
    """
    suffix = url.rstrip("/").rpartition("/")[2].rpartition(".")[2].lower()
    if suffix in _OF_VALUES:
        raise ValueError(
            f"expected the name of a set (.json, .parquet, .zarr, .icechunk; .refshard for a cube), got {url!r}: save "
            f"writes references, and no .{suffix} file. xarray writes values: ds.to_netcdf(...)"
        )


def format_by_suffix(url: str) -> SetFormat:
    """Return the format of a new set by the suffix of its URL.

    >>> format_by_suffix("s3://b/refs.json.gz"), format_by_suffix("refs.zarr"), format_by_suffix("refs.parq")
    ('json', 'chunk-manifest', 'parquet')
    """
    name = url.rstrip("/").rpartition("/")[2].lower()
    if _JSON.search(name):
        return "json"
    if name.endswith(".icechunk"):
        return "icechunk"
    return "chunk-manifest" if name.endswith(".zarr") else "parquet"


def choose_data_url(source: str | InMemorySource, data_url: str | None) -> str | None:
    """Return the directory of new objects: the option ``data_url``, or else a directory beside the source.

    For ``s3://bucket/refs.json`` this is ``s3://bucket/refs.json.data``. Return None for a source in memory, and for
    protocols without writes.
    """
    if data_url is not None:
        return data_url.rstrip("/")
    if not isinstance(source, str) or "::" in source or protocol_of(source) in _READ_ONLY_PROTOCOLS:
        return None
    beside = source.rstrip("/") + ".data"
    return f"file://{beside}" if protocol_of(source) is None else beside


def begin_transaction(options: Options) -> Transaction | None:
    """Return the transaction of a filesystem; None if it is read only. With mode "w", it first removes all keys."""
    writing = options.writing
    if not writing.is_allowed:
        return None
    transaction = find_transaction(writing.overlay, str(options.source.fo), is_durable=options.source.url is not None)
    if writing.mode == "w" and not transaction.begun and transaction.worker is None:
        transaction.begun = True
        transaction.edits.remove_below("")
    transaction.spool.memory = writing.write_memory
    return transaction


def is_writable_url(url: str) -> bool:
    """Return whether the protocol of ``url`` supports writes."""
    return "::" not in url and protocol_of(url) not in _READ_ONLY_PROTOCOLS

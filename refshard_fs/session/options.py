"""What a filesystem's arguments say: what a source shows, how its targets are read, and where writes go."""

from __future__ import annotations

import inspect
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import fsspec
import msgspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.reference import LazyReferenceMapper
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.format import LEAST_HEAD, OpenOptions
from refshard_fs.reading.chunk_cache import CAPACITY
from refshard_fs.reading.dispatch import Budget
from refshard_fs.reading.plan import Limits
from refshard_fs.security.admission import Admission, normalize
from refshard_fs.security.policy import LOCAL, longest_prefix, place_of, protocol_of
from refshard_fs.session.in_memory_source import InMemorySource, source_of
from refshard_fs.session.overlay import BY_URL, FSSPEC_ARGUMENTS, Overlay, OverlayCopy, overlay_of, shared
from refshard_fs.sharding.layout import check_options
from refshard_fs.targets import PoolOptions, Retry, arguments_of

T = TypeVar("T")

RECORD_SIZE: Final = 10_000  # references in a partition of a parquet set that is written
INLINE: Final = 512  # bytes; larger values become objects


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
    cache_dir: bool | str | None = None
    cache_bytes: int = CAPACITY
    overlay: Overlay | None = None  # of what is written; without one, nothing is


class WriteOptions(msgspec.Struct, frozen=True):
    """Where values go: ``data_url`` None keeps them all in memory.

    ``format``, and the ``record_size`` of a parquet set, are those of a new source.
    """

    data_url: str | None
    inline_threshold: int = INLINE
    content_addressed: bool = False
    format: str | None = None
    record_size: int = RECORD_SIZE


def settings_of(
    given: Mapping[str, Any], others: Mapping[str, Any], constructor: Callable[..., Any]
) -> tuple[SessionOptions, WriteOptions | None]:
    """Return what the arguments ``given`` to ``constructor`` say; no WriteOptions where all writes are refused.

    ``others`` are arguments that it does not name. ValueError or TypeError for a value that an argument does not take.
    """
    source, mode, head = given["fo"], given["mode"], given["head"]
    if given["shards"] not in ("inner", "whole"):
        raise ValueError(f"shards={given['shards']!r}: it is 'inner' or 'whole'")
    check_options(given["shard_options"] or {})
    if given["zarr_format"] not in (2, 3):
        raise ValueError(f"zarr_format={given['zarr_format']!r}: there are versions 2 and 3")
    if head < LEAST_HEAD:
        raise ValueError(f"head={head!r}: a source is recognised by its first {LEAST_HEAD} bytes")
    in_memory = isinstance(source, InMemorySource)
    is_new = mode is None and given["overlay"] is None and in_memory  # written to before it has an overlay
    overlay = overlay_for(mode or ("r" if given["overlay"] is None else "a"), given["overlay"], source)
    if overlay is not None:
        overlay.spool.memory = given["write_memory"]
    writes = _taken(WriteOptions, given, data_url=data_url_of(source, given["data_url"]))
    url = None if in_memory else source
    plain = of_the_source(others, url)
    check_names(others.keys() - plain.keys(), constructor)
    routes = route(url, given, plain, None if overlay is None else writes.data_url)
    format = given["format"]
    options = _taken(
        SessionOptions,
        given,
        source=source,
        open=_taken(
            OpenOptions,
            given,
            template_overrides=tuple(sorted((given["template_overrides"] or {}).items())),
            protocol=routes.bare_protocol,
            bare_as_is=routes.bare_as_is,
            shard_options=tuple(sorted((given["shard_options"] or {}).items())),
            rule_of=routes.pool.rule_of,
        ),
        format=READ_AS.get(format, format),
        pool=routes.pool,
        fallback=routes.fallback,
        limits=Limits(given["max_gap"], given["max_block"]),
        budget=Budget(given["concurrency"], given["max_memory"]),
        token=routes.token,
        overlay=overlay,
        index_cache=_path(given["index_cache"]),
        cache_dir=_path(given["cache_dir"]),
    )
    return options, writes if is_new or overlay is not None else None


def _path(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def _taken(kind: Callable[..., T], given: Mapping[str, Any], **others: Any) -> T:
    """Return a struct of ``kind``: fields that have the name of an argument have its value; the rest are given."""
    fields: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]  # of a type, which mypy does not know
    return kind(**{**{name: given[name] for name in fields if name in given}, **others})


# ----------------------------------------------------------------------------------------------------
# Which options open which URLs, as the constructor's arguments say: by protocol, by prefix, for the source itself.


_SYNONYMS = (("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"))  # protocols that fsspec has one filesystem for
_OF_THE_SOURCE = ("compression", "protocol")  # options that its filesystem does not take


class Routes(NamedTuple):
    """How targets are opened, and what URLs without a protocol mean."""

    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options given without a protocol
    bare_protocol: str | None
    bare_as_is: bool  # URLs without a protocol are paths of an instance's own, not to be resolved

    @property
    def token(self) -> str:
        """Tell these routes from others; what was read by some is not for all."""
        return repr((self.pool.by_protocol, self.pool.by_prefix, self.pool.admission, self.pool.only_sizes))


def route(source: str | None, given: Mapping[str, Any], of_source: Mapping[str, Any], data_url: str | None) -> Routes:
    """Return the routes of a source at URL ``source`` (None: it is held in memory), whose new objects are at another.

    ``given`` are all arguments, ``of_source`` options for the filesystem of ``source`` that were among them. What the
    user writes may be read again, with the options that it was written with.
    """
    fs, allow, options = given["fs"], given["allow"], given["options"]
    remote_protocol, remote_options = given["remote_protocol"], given["remote_options"]
    if remote_options is not None and not isinstance(remote_options, Mapping):
        raise TypeError(f"remote_options={remote_options!r}: expected a mapping of options; remote_protocol= is a text")
    own = given["target_options"] if given["ref_storage_args"] is None else given["ref_storage_args"]
    source_options = {**of_source, **(own or {})} if of_source else own
    by_protocol = _by_protocol(fs, remote_protocol, remote_options)
    by_prefix, only_sizes = _versions_apart(options or {})
    if data_url is not None:
        protocol = protocol_of(data_url)
        known = protocol in by_protocol or longest_prefix(by_prefix, data_url) is not None
        if not known and protocol not in ("memory", *LOCAL):
            near = source is not None and (protocol_of(source) or "file") == protocol
            chosen = (source_options if near else None) or remote_options or {}
            by_prefix[data_url] = {name: value for name, value in chosen.items() if name not in _OF_THE_SOURCE}
        options = {**(options or {}), data_url: {}}
        if allow is not None and not isinstance(allow, str):
            allow = [*allow, data_url + "/"]
    if source is not None:
        if source_options is not None:
            own = {k: v for k, v in source_options.items() if k not in _OF_THE_SOURCE}
            by_prefix[source] = own
            place = place_of(source)
            if place is not None and not remote_options and protocol_of(place) not in by_protocol:
                by_prefix.setdefault(place, own if "::" not in source else own.get(protocol_of(place) or "", {}))
        elif fs is not None and longest_prefix(by_prefix, source) is None:
            by_prefix[source] = {}  # fs= serves the references, not the manifest
    by_prefix = {normalize(prefix): chosen for prefix, chosen in by_prefix.items()}
    bare = by_protocol.get(None)
    rule_of = partial(Admission.of, allow=allow, protocols=[*filter(None, by_protocol)], prefixes=[*(options or ())])
    retry = Retry(given["retries"], given["timeout"])
    return Routes(
        PoolOptions(by_protocol, by_prefix, rule_of(source), retry, given["fast_s3"], rule_of, only_sizes),
        dict(remote_options or {}) if fs is None and remote_protocol is None else {},
        remote_protocol if fs is None or isinstance(fs, Mapping) else None,
        isinstance(bare, AbstractFileSystem) and not isinstance(bare, LocalFileSystem),
    )


def _versions_apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return options by prefix as filesystems take them, and the prefixes that have ``versions="ignore"``."""
    by_prefix: dict[str, Any] = {}
    only_sizes: list[str] = []
    for prefix, given in options.items():
        versions = given.get("versions") if isinstance(given, Mapping) else None
        if versions not in (None, "ignore", "compare"):
            raise ValueError(f"versions={versions!r} in options={{{prefix!r}: ...}}: it is 'ignore' or 'compare'")
        if versions is None and given != {}:
            by_prefix[prefix] = given
        elif versions is not None and len(given) > 1:  # else the options of its protocol serve it
            by_prefix[prefix] = {name: value for name, value in given.items() if name != "versions"}
        if versions == "ignore":
            only_sizes.append(prefix)
    return by_prefix, tuple(only_sizes)


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


# ----------------------------------------------------------------------------------------------------
# What a filesystem is given, before fsspec stores and compares it: the same in every process, typed and checked.


SESSION: Final = "session"  # the argument that names the session which copies of a filesystem share
# Arguments that have no effect: kerchunk's guides give ``lazy`` to fsspec's class, and zarr 2 ``auto_mkdir`` to all.
_WITHOUT_EFFECT: Final = frozenset(["lazy", "auto_mkdir"])
_PLAIN: Final = {"int": int, "float": float, "bool": bool}  # annotations of arguments that text can spell


class NormalizingMeta(type(AsyncFileSystem)):  # type: ignore[misc]  # fsspec is untyped: its metaclass is Any
    """Turns ``fo`` into what means the same everywhere, before fsspec stores and compares the arguments."""

    @property
    def constructor(cls) -> Callable[..., Any]:
        """The ``__init__`` whose arguments these are; subclasses may have others."""
        found: Callable[..., Any] = next(
            vars(base)["__init__"] for base in reversed(cls.__mro__) if isinstance(base, NormalizingMeta)
        )
        return found

    def __call__(cls, fo: Any = None, *args: Any, **kwargs: Any) -> Any:
        by_url = bool(kwargs.pop(BY_URL, False))
        session = kwargs.pop(SESSION, None)
        kwargs = with_spread(kwargs)
        named = dict(zip(_parameters(cls.constructor)[1:], args, strict=False)) | kwargs if args else kwargs
        conf = fsspec.config.conf.get("refshard")
        if conf:  # fsspec applies it, too, but as text, and not to what is given by position
            args, named = (), configured(conf, cls.constructor) | named
            kwargs = dict(named)
        given = kwargs.pop("fo", None)
        fo = given if fo is None else fo
        if fo is None:
            raise TypeError(
                "refshard needs fo=: the URL or path of a source, a mapping, bytes or a binary file. With a URL: "
                "'refshard::SOURCE', or 'refshard://' and storage_options={'fo': SOURCE}"
            )
        if not hasattr(fo, "read") and hasattr(fo, "fs") and hasattr(fo, "path"):  # fsspec's OpenFile, or a UPath
            options = {name: value for name, value in fo.fs.storage_options.items() if name not in FSSPEC_ARGUMENTS}
            if options and not {"target_options", "ref_storage_args"} & named.keys():
                kwargs["target_options"] = options
            fo = fo.fs.unstrip_protocol(fo.path)
        overrides, simple = named.get("template_overrides"), named.get("simple_templates", True)
        source = source_of(fo, named.get("target_protocol"), overrides, simple)
        if isinstance(fo, InMemorySource):
            kwargs = with_arguments_of(fo, named, kwargs)
            named = {**named, **kwargs}
        # Among the arguments, so that copies which are made from these share it.
        overlay, known_by = shared(cls.constructor, {**named, "fo": source}, by_url=by_url)
        if overlay is not None:
            kwargs["overlay"] = overlay
        if conf and "fo" in conf:
            fs = super().__call__(fo=source, **kwargs)
        else:
            fs = super().__call__(source, *args, **kwargs)
        if known_by is not None:
            fs._writer.overlay.arguments = known_by
        fs._share(session or uuid.uuid4().hex)
        if isinstance(fo, LazyReferenceMapper):  # kerchunk writes to it through the filesystem
            fs._session.mapper = fo
        return fs


_ACCESS: Final = frozenset(["fs", "remote_options", "remote_protocol"])


def with_arguments_of(source: InMemorySource, named: Mapping[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return ``kwargs`` with those by which ``source`` opens its targets; all that are ``named`` go before these."""
    known = source.arguments()
    if not known or not _ACCESS.isdisjoint(named) or ("options" in named and "options" not in kwargs):
        return kwargs
    merged = {**(known.get("options") or {}), **(kwargs.get("options") or {})}
    return {**known, **kwargs, **({"options": merged} if merged else {})}


def of_the_source(given: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    """Return those of ``given``, which mean nothing here, that the filesystem of ``source`` takes: they are for it."""
    protocol = None if source is None or "::" in source else protocol_of(source)
    names = given.keys() - FSSPEC_ARGUMENTS
    if not names or protocol is None or protocol in (*LOCAL, "memory", "data"):
        return {}
    return {name: given[name] for name in sorted(names & arguments_of(protocol))}


def with_spread(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the members of ``storage_options`` in its place; what is given beside it wins."""
    more = given.get("storage_options")
    if more is not None and not isinstance(more, Mapping):
        raise TypeError(f"storage_options={more!r}: expected a mapping of options for the source")
    return {**(more or {}), **{name: value for name, value in given.items() if name != "storage_options"}}


def for_sources(
    given: Mapping[str, Any], sources: Iterable[str], constructor: Callable[..., Any], caller: Callable[..., Any]
) -> dict[str, Any]:
    """Return arguments for ``constructor`` that open all ``sources``: what their filesystems take is for these.

    TypeError, with the name that was meant, for one that neither takes, nor the function ``caller``.
    """
    options = with_spread(given)
    unknown = options.keys() - FSSPEC_ARGUMENTS - {*_parameters(constructor)}
    own: dict[str, Any] = {}
    for source in sources if unknown else ():
        own |= of_the_source({name: options[name] for name in unknown}, source)
    check_names(unknown - own.keys(), constructor, caller)
    if own:
        given_name = "target_options" if options.get("ref_storage_args") is None else "ref_storage_args"
        options[given_name] = {**own, **(options.get(given_name) or {})}
    return {name: value for name, value in options.items() if name not in own}


def check_names(
    given: Iterable[str], constructor: Callable[..., Any], caller: Callable[..., Any] | None = None
) -> None:
    """Raise TypeError for an argument that neither ``constructor`` nor ``caller`` has, with the one that was meant."""
    for name in sorted(set(given) - FSSPEC_ARGUMENTS - _WITHOUT_EFFECT):
        import difflib  # for a mistake alone

        own = () if caller is None else inspect.signature(caller).parameters
        near = difflib.get_close_matches(name, [*own, *_parameters(constructor), *FSSPEC_ARGUMENTS], 1)
        hint = (
            f": did you mean {near[0]}=?"
            if near
            else (
                f": what targets need goes into remote_options={{{name!r}: ...}}, what the source needs into "
                f"target_options={{{name!r}: ...}}"
            )
        )
        raise TypeError(f"{'refshard' if caller is None else caller.__name__} has no argument {name}={hint}")


def _parameters(constructor: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a filesystem may be given."""
    return [*inspect.signature(constructor).parameters][1:]  # after self


def configured(conf: Mapping[str, Any], constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments for ``constructor`` that fsspec's configuration has: files, or ``FSSPEC_REFSHARD_...``.

    fsspec hands text on as text; here it becomes what the argument is: a number, a truth value, or, where it is spelled
    as JSON, an object or a list. ValueError if it cannot be that.
    """
    parameters = inspect.signature(constructor).parameters
    texts = {name: value for name, value in conf.items() if name in parameters and isinstance(value, str)}
    return {**conf, **{name: _typed(name, text, parameters[name].annotation) for name, text in texts.items()}}


def _typed(name: str, text: str, annotation: str) -> Any:
    kind = _PLAIN.get(annotation)
    try:
        if kind is not None:
            return msgspec.convert(text, kind, strict=False)
        return json.loads(text) if name != "fo" and text.startswith(("{", "[")) else text
    except ValueError as e:  # msgspec's ValidationError is one
        raise ValueError(f"fsspec's configuration says {name}={text!r} for refshard: {e}") from e


# ----------------------------------------------------------------------------------------------------
# What the arguments say of writing.


MODES = ("r", "a", "w")
_TAKE_NONE = ("http", "https", "data", "github", "zip", "tar")  # protocols that nothing is written to


SetFormat = Literal["parquet", "json", "chunk-manifest"]  # what references are written as
# How the formats that a commit can make are called, and as what each is read.
READ_AS: Final = {"json": "kerchunk-json", "parquet": "kerchunk-parquet", "chunk-manifest": "zarr-hierarchy"}


_JSON: Final = re.compile(r"\.json(?:\.(?:gz|bz2|xz|zst|zstd))?\Z")


def format_named(url: str) -> SetFormat:
    """Return the format of a set at ``url`` that its name implies.

    >>> format_named("s3://b/refs.json.gz"), format_named("refs.zarr"), format_named("refs.parq")
    ('json', 'chunk-manifest', 'parquet')
    """
    name = url.rstrip("/").rpartition("/")[2].lower()
    if _JSON.search(name):
        return "json"
    return "chunk-manifest" if name.endswith(".zarr") else "parquet"


def data_url_of(source: str | InMemorySource, given: str | None) -> str | None:
    """Return the directory of new objects: ``given``, or one beside the source, named after it; None if there is none.

    ``s3://bucket/refs.json`` has its data in ``s3://bucket/refs.json.data``.
    """
    if given is not None:
        return given.rstrip("/")
    if not isinstance(source, str) or "::" in source or protocol_of(source) in _TAKE_NONE:
        return None
    beside = source.rstrip("/") + ".data"
    return f"file://{beside}" if protocol_of(source) is None else beside


def overlay_for(mode: str, identity: str | OverlayCopy | None, source: str | InMemorySource) -> Overlay | None:
    """Return what a filesystem of this ``mode`` writes to; "w" begins with nothing, whatever the source holds."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: it is 'r', 'a' (reads and writes) or 'w' (begins with an empty source)")
    if mode == "r":
        return None
    overlay = overlay_of(identity, str(source), is_durable=isinstance(source, str))
    if mode == "w" and not overlay.begun and overlay.worker is None:
        overlay.begun = True
        overlay.edits.remove_below("")
    return overlay


def takes_objects(url: str) -> bool:
    """Whether objects can be put below ``url``, as far as its protocol tells."""
    return "::" not in url and protocol_of(url) not in _TAKE_NONE

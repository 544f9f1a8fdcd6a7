"""The options of a filesystem: every keyword of its constructor, with its type, default, unit and effect.

To add an option, add a field to a group, and a parameter to `Options.parse`. The page of options is generated from it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from math import inf
from numbers import Real
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_type_hints

import msgspec
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.edits import MEMORY
from refshard_fs.core.format import EPOCH, HEAD, LEAST_HEAD, MANIFEST_BYTES, Version
from refshard_fs.reading.chunk_cache import CAPACITY
from refshard_fs.reading.plan import KIB, MIB
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sharding.known_shard_formats import check_options
from refshard_fs.source.in_memory_source import InMemorySource
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS, OverlayCopy
from refshard_fs.targets import ObjectStore, Registry, list_argument_names

RECORD_SIZE: Final = 10_000  # references in a partition of a parquet set that is written
INLINE: Final = 512  # bytes: larger values become objects
MODES: Final = ("r", "a", "w")
UNLIMITED: Final = sys.maxsize  # None of `max_block` and `cache_size`, as in fsspec


def _describe(effect: str, unit: str = "") -> msgspec.Meta:
    """Return the description of an option, for its field."""
    return msgspec.Meta(description=effect, extra={"unit": unit})


PrefixOptions: TypeAlias = Mapping[str, Mapping[str, Any] | ObjectStore]  # options by URL prefix
Filesystems: TypeAlias = (
    AbstractFileSystem
    | ObjectStore
    | Registry
    | Mapping[str | None, AbstractFileSystem | ObjectStore | Mapping[str, Any]]
)
Directory: TypeAlias = bool | str | os.PathLike[str]


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The source, and the part of it that is shown."""

    fo: Annotated[
        str | InMemorySource,
        _describe("The source: a URL, path, mapping, binary file, bytes, virtual dataset, or `(store, path)`."),
    ]
    target: Annotated[str | None, _describe("URL of references without a URL.")] = None
    target_protocol: Annotated[str | None, _describe("Protocol of `fo` if its URL has none.")] = None
    remote_protocol: Annotated[str | None, _describe("Protocol of references whose URL has none.")] = None
    template_overrides: Annotated[
        Mapping[str, str] | None, _describe("Templates by name, which replace templates of the manifest.")
    ] = None
    base_url: Annotated[str | None, _describe("URL of the directory from which a manifest's relative URLs start.")] = (
        None
    )
    format: Annotated[
        str | None, _describe("Name of the source's format; by default it is recognised by the content.")
    ] = None
    max_manifest_bytes: Annotated[
        int, _describe("The most bytes of a manifest or a metadata document, decompressed.", "bytes")
    ] = MANIFEST_BYTES
    head: Annotated[int, _describe("Length of the first request for a source.", "bytes")] = HEAD
    shards: Annotated[str, _describe("`inner` shows the inner chunks of shards, `whole` the shards.")] = "inner"
    shard_options: Annotated[Mapping[str, Any] | None, _describe("Layout of zarr v2 prototype shards.")] = None
    zarr_format: Annotated[int, _describe("Zarr format (2 or 3) in which sources without zarr metadata are shown.")] = 2
    group: Annotated[
        str | None, _describe("The group that xarray opens; other groups of an HDF5 file need not be read.")
    ] = None
    branch: Annotated[str | None, _describe("Branch of an Icechunk repository; by default `main`.")] = None
    tag: Annotated[str | None, _describe("Tag of an Icechunk repository, in place of a branch.")] = None
    snapshot: Annotated[str | None, _describe("Snapshot of an Icechunk repository, in place of a branch.")] = None
    as_of: Annotated[
        str | datetime | None,
        _describe("Time (ISO 8601): shows the last snapshot of the branch or tag that was written by then."),
    ] = None
    select: Annotated[
        Sequence[Mapping[str, Any]] | None,
        _describe("Selections of the source, as made by `fs.select`, applied one after the other."),
    ] = None
    concat: Annotated[
        Mapping[str, Any] | None, _describe("Arguments of `refshard_fs.open`, if `fo` is a pattern, a list or a table.")
    ] = None

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        _check_numbers(self, max_manifest_bytes=1, head=LEAST_HEAD)
        _check_mappings(self, "template_overrides", "shard_options", "concat")
        if self.group is not None and not isinstance(self.group, str):
            raise TypeError(f"invalid group={self.group!r}: expected a path as text, got {type(self.group).__name__}")
        if self.shards not in ("inner", "whole"):
            raise ValueError(f"invalid shards={self.shards!r}: expected 'inner' or 'whole'")
        check_options(self.shard_options or {})
        if self.zarr_format not in (2, 3):
            raise ValueError(f"invalid zarr_format={self.zarr_format!r}: expected 2 or 3")
        given = [name for name in ("branch", "tag", "snapshot") if getattr(self, name) is not None]
        if len(given) > 1 or (self.as_of is not None and given == ["snapshot"]):
            raise ValueError(
                f"got {self.version} together: expected one of branch=, tag= and snapshot=; as_of= goes with a branch "
                "or a tag only"
            )

    @property
    def version(self) -> Version:
        """The version of the source to open."""
        when = self.as_of if self.as_of is None or isinstance(self.as_of, datetime) else _parse_time(self.as_of)
        if when is not None and when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        time = None if when is None else (when - EPOCH) // timedelta(microseconds=1)
        return Version(self.branch, self.tag, self.snapshot, time)

    @property
    def url(self) -> str | None:
        """The URL of the source; None for a source in memory."""
        return None if isinstance(self.fo, InMemorySource) else self.fo


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"invalid as_of={text!r}: expected a time such as '2026-01-31T12:00:00Z'") from None


def _check_numbers(options: msgspec.Struct, **least: float) -> None:
    """Raise TypeError or ValueError unless each option in ``least`` is a number of at least this value."""
    for name, bound in least.items():
        value = getattr(options, name)
        if type(value) is not int and not isinstance(value, Real):  # the first check takes a tenth of the second
            raise TypeError(f"invalid {name}={value!r}: expected a number")
        if not float(value) >= bound:
            raise ValueError(f"invalid {name}={value!r}: expected at least {bound}")


def _check_mappings(options: msgspec.Struct, *names: str) -> None:
    """Raise TypeError unless each of the options ``names`` is a mapping or None."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"invalid {name}={value!r}: expected a mapping")


class TrustOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs that a source may refer to, and the options, with credentials, for each URL."""

    allow: Annotated[
        Iterable[str] | str | None, _describe("URL prefixes that references may point to; `any` allows all.")
    ] = None
    target_options: Annotated[Mapping[str, Any] | None, _describe("Options for opening `fo` itself.")] = None
    ref_storage_args: Annotated[Mapping[str, Any] | None, _describe("fsspec's old name of `target_options`.")] = None
    remote_options: Annotated[
        Mapping[str, Any] | None,
        _describe("Options for `remote_protocol`, or for the first protocol in the references."),
    ] = None
    fs: Annotated[
        Filesystems | None,
        _describe(
            "Filesystem or obspec store for targets and for sources on web servers; or a mapping of protocols to "
            "these, or a registry."
        ),
    ] = None
    options: Annotated[
        PrefixOptions | None,
        _describe("Options by URL prefix; the longest prefix applies, before options of a protocol."),
    ] = None
    simple_templates: Annotated[bool, _describe("False evaluates templates with jinja2, in its sandbox.")] = True
    forwarded: Mapping[str, Any] = {}  # keywords for the filesystem of ``fo``

    def __post_init__(self) -> None:
        """Raise TypeError for an invalid value."""
        if self.remote_options is not None and not isinstance(self.remote_options, Mapping):
            raise TypeError(
                f"invalid remote_options={self.remote_options!r}: expected a mapping of options (a protocol belongs in "
                "remote_protocol=)"
            )
        _check_mappings(self, "target_options", "ref_storage_args", "options")
        by_prefix: Mapping[str, Any] = self.options or {}
        for prefix, own in by_prefix.items():
            if own is None or isinstance(own, str | int | float | list | tuple):
                raise TypeError(
                    f"invalid options={{{prefix!r}: {own!r}}}: expected a mapping of options for each URL prefix, such "
                    "as {'s3://bucket/': {'anon': True}}"
                )

    @property
    def of_source(self) -> Mapping[str, Any] | None:
        """The options for opening the source itself; None if there are none."""
        own = self.target_options if self.ref_storage_args is None else self.ref_storage_args
        return {**self.forwarded, **(own or {})} if self.forwarded else own


class ReadingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for reading targets."""

    max_gap: Annotated[int, _describe("The largest gap over which ranges of one target are merged.", "bytes")] = (
        16 * KIB
    )
    max_block: Annotated[
        int, _describe("Ranges are merged into requests of at most this size, or a quarter more.", "bytes")
    ] = 1 * MIB
    retries: Annotated[
        int, _describe("How often a request is repeated if it fails for a temporary reason.", "times")
    ] = 5
    timeout: Annotated[float, _describe("The longest time of a request with all its repetitions.", "seconds")] = 300.0
    fast_s3: Annotated[
        bool, _describe("Reads S3 with this package's own client, if the options permit it, instead of s3fs.")
    ] = True
    readahead: Annotated[int, _describe("The most bytes fetched ahead of reads that follow a pattern.", "bytes")] = (
        64 * MIB
    )
    max_memory: Annotated[
        int, _describe("The most memory of reading: answers under way, data fetched ahead, decoded chunks.", "bytes")
    ] = 256 * MIB
    concurrency: Annotated[int, _describe("The most requests to one host at a time.", "requests")] = 128
    verify: Annotated[
        bool,
        _describe(
            "Verifies the checksum of each chunk, if the source has checksums; in FITS files, those of all HDUs."
        ),
    ] = False

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        _check_numbers(self, max_gap=-inf, max_block=-inf)  # negative: ranges are not merged
        _check_numbers(self, retries=0, timeout=0, readahead=0, max_memory=0, concurrency=1)


class CachingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for caching data that was read."""

    index_cache: Annotated[
        Directory | None, _describe("Directory that keeps decoded manifests and indexes of files; False keeps none.")
    ] = None
    cache_dir: Annotated[Directory | None, _describe("Directory that keeps ranges of remote objects.")] = None
    cache_bytes: Annotated[int, _describe("The most bytes in `cache_dir`.", "bytes")] = CAPACITY
    block_cache: Annotated[
        int, _describe("The most bytes of chunks that stay in memory after they were read.", "bytes")
    ] = 0
    cache_size: Annotated[
        int, _describe("Parts of a lazily read manifest, or of a lazy cube, that stay open.", "partitions")
    ] = 128

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        _check_numbers(self, cache_bytes=0, block_cache=0, cache_size=-inf)
        for name in ("index_cache", "cache_dir"):
            place = getattr(self, name)
            if not isinstance(place, bool | str | os.PathLike | None):
                raise TypeError(f"invalid {name}={place!r}: expected a directory, or True for the user's own")


class WritingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for writing."""

    mode: Annotated[
        str | None, _describe("`r` refuses writes, `a` keeps them for a commit, `w` begins with an empty source.")
    ] = None
    overlay: Annotated[
        str | OverlayCopy | None, _describe("`fs.overlay` of another filesystem, to share its uncommitted writes.")
    ] = None
    data_url: Annotated[str | None, _describe("Directory of new objects; by default `<fo>.data`.")] = None
    inline_threshold: Annotated[int, _describe("Values of more bytes become objects in `data_url`.", "bytes")] = INLINE
    content_addressed: Annotated[bool, _describe("Names objects by their SHA-256.")] = False
    write_memory: Annotated[
        int, _describe("The most bytes of chunks that wait in memory for a commit; others wait in a file.", "bytes")
    ] = MEMORY
    record_size: Annotated[int, _describe("References in each file of a new parquet set.", "references")] = RECORD_SIZE

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        _check_numbers(self, inline_threshold=-1, write_memory=0, record_size=1)
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(
                f"invalid mode={self.mode!r}: expected 'r', 'a' (reads and writes) or 'w' (begins with an empty source)"
            )

    @property
    def is_allowed(self) -> bool:
        """Whether the filesystem accepts writes, and keeps them for a commit."""
        return self.mode != "r" and (self.mode is not None or self.overlay is not None)


class Options(msgspec.Struct, frozen=True):
    """All options of a filesystem. Equal options open the same source in the same way."""

    source: SourceOptions
    trust: TrustOptions
    reading: ReadingOptions
    caching: CachingOptions
    writing: WritingOptions

    @classmethod
    def parse(
        cls,
        fo: Any,
        target: str | None = None,
        ref_storage_args: Mapping[str, Any] | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        remote_protocol: str | None = None,
        remote_options: Mapping[str, Any] | None = None,
        fs: Filesystems | None = None,
        template_overrides: Mapping[str, str] | None = None,
        simple_templates: bool = True,
        max_gap: int = 16 * KIB,
        max_block: int | None = 1 * MIB,
        cache_size: int | None = 128,
        *,
        retries: int = 5,
        timeout: float = 300.0,
        fast_s3: bool = True,
        options: PrefixOptions | None = None,
        base_url: str | None = None,
        format: str | None = None,
        allow: Iterable[str] | str | None = None,
        shards: str = "inner",
        shard_options: Mapping[str, Any] | None = None,
        zarr_format: int = 2,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | None = None,
        as_of: str | datetime | None = None,
        select: Sequence[Mapping[str, Any]] | None = None,
        concat: Mapping[str, Any] | None = None,
        verify: bool = False,
        readahead: int = 64 * MIB,
        max_memory: int = 256 * MIB,
        concurrency: int = 128,
        block_cache: int = 0,
        cache_dir: Directory | None = None,
        cache_bytes: int = CAPACITY,
        max_manifest_bytes: int = MANIFEST_BYTES,
        head: int = HEAD,
        index_cache: Directory | None = None,
        mode: str | None = None,
        data_url: str | None = None,
        inline_threshold: int = INLINE,
        content_addressed: bool = False,
        write_memory: int = MEMORY,
        record_size: int = RECORD_SIZE,
        overlay: str | OverlayCopy | None = None,
        **others: Any,
    ) -> Options:
        """Convert the keywords of the constructor to options.

        ``others`` may be keywords of fsspec's base class, or of the filesystem of the source, which gets them.
        Raises TypeError or ValueError for an unknown keyword or an invalid value.
        """
        forwarded = select_filesystem_options(fo if isinstance(fo, str) else None, others)
        check_names(others.keys() - forwarded.keys())
        return cls(
            SourceOptions(
                fo=fo,
                target=target,
                target_protocol=target_protocol,
                remote_protocol=remote_protocol,
                template_overrides=template_overrides,
                base_url=base_url,
                format=format,
                max_manifest_bytes=max_manifest_bytes,
                head=head,
                shards=shards,
                shard_options=shard_options,
                zarr_format=zarr_format,
                group=group,
                branch=branch,
                tag=tag,
                snapshot=snapshot,
                as_of=as_of,
                select=select,
                concat=concat,
            ),
            TrustOptions(
                allow=allow,
                target_options=target_options,
                ref_storage_args=ref_storage_args,
                remote_options=remote_options,
                fs=fs,
                options=options,
                simple_templates=simple_templates,
                forwarded=forwarded,
            ),
            ReadingOptions(
                max_gap=max_gap,
                max_block=UNLIMITED if max_block is None else max_block,
                retries=retries,
                timeout=timeout,
                fast_s3=fast_s3,
                readahead=readahead,
                max_memory=max_memory,
                concurrency=concurrency,
                verify=verify,
            ),
            CachingOptions(
                index_cache=index_cache,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
                block_cache=block_cache,
                cache_size=UNLIMITED if cache_size is None else cache_size,
            ),
            WritingOptions(
                mode=mode,
                overlay=overlay,
                data_url=data_url,
                inline_threshold=inline_threshold,
                content_addressed=content_addressed,
                write_memory=write_memory,
                record_size=record_size,
            ),
        )

    @classmethod
    def table(cls) -> dict[str, list[Option]]:
        """Return the options of each group, for the page that lists them."""
        return {
            group: [
                _make_option(field, hint)
                for field, hint in zip(msgspec.structs.fields(kind), _list_hints(kind), strict=True)
                if hasattr(hint, "__metadata__")
            ]
            for group, kind in get_type_hints(cls).items()
        }


class Option(NamedTuple):
    """One option, as the page of options shows it."""

    name: str
    kind: str
    default: str
    unit: str
    effect: str


def _list_hints(kind: type) -> list[Any]:
    return list(get_type_hints(kind, include_extras=True).values())


def _make_option(field: msgspec.structs.FieldInfo, hint: Any) -> Option:
    kind, meta = get_args(hint)
    text = kind.__name__ if isinstance(kind, type) else re.sub(r"[\w.]+\.(\w+)", r"\1", str(kind))
    return Option(field.name, text, "" if field.required else repr(field.default), meta.extra["unit"], meta.description)


# Check the names of keywords, and convert fsspec's configuration, whose values are text.


# Ignored arguments: kerchunk's guides pass ``lazy``, and zarr 2 passes ``auto_mkdir``.
_WITHOUT_EFFECT: Final = frozenset(["lazy", "auto_mkdir"])
# Types that are converted from text, by annotation.
_PLAIN: Final[Mapping[str, Any]] = {"int": int, "int | None": int | None, "float": float, "bool": bool}


@cache
def list_keywords() -> Mapping[str, inspect.Parameter]:
    """Return the keywords that a filesystem takes, in the order of its positional arguments."""
    parameters = inspect.signature(Options.parse).parameters
    return {name: known for name, known in parameters.items() if known.kind is not known.VAR_KEYWORD}


def select_filesystem_options(source: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords in ``given`` that the filesystem of ``source`` takes; ``given`` has no option of refshard."""
    protocol = None if source is None or "::" in source else protocol_of(source)
    names = given.keys() - FSSPEC_ARGUMENTS
    if not names or protocol is None or protocol in (*LOCAL, "memory", "data"):
        return {}
    return {name: given[name] for name in sorted(names & list_argument_names(protocol))}


def spread_storage_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the keyword ``storage_options`` by the options in it; keywords passed directly take precedence."""
    more = given.get("storage_options")
    if more is not None and not isinstance(more, Mapping):
        raise TypeError(f"invalid storage_options={more!r}: expected a mapping of options for the source")
    return {**(more or {}), **{name: value for name, value in given.items() if name != "storage_options"}}


def prepare_keywords(given: Mapping[str, Any], sources: Iterable[str], caller: Callable[..., Any]) -> dict[str, Any]:
    """Return the keywords for a filesystem that opens ``sources``; keywords of their filesystems become options.

    Raises TypeError, which suggests a similar name, for a keyword that neither a filesystem nor ``caller`` takes.
    """
    options = spread_storage_options(given)
    unknown = options.keys() - FSSPEC_ARGUMENTS - list_keywords().keys()
    own: dict[str, Any] = {}
    for source in sources if unknown else ():
        own |= select_filesystem_options(source, {name: options[name] for name in unknown})
    check_names(unknown - own.keys(), caller)
    if own:
        given_name = "target_options" if options.get("ref_storage_args") is None else "ref_storage_args"
        options[given_name] = {**own, **(options.get(given_name) or {})}
    return {name: value for name, value in options.items() if name not in own}


def check_names(given: Iterable[str], caller: Callable[..., Any] | None = None) -> None:
    """Raise TypeError, which suggests a similar name, for a keyword that neither a filesystem nor ``caller`` takes."""
    for name in sorted(set(given) - FSSPEC_ARGUMENTS - _WITHOUT_EFFECT):
        import difflib  # needed only here

        own = {*(() if caller is None else inspect.signature(caller).parameters), *list_keywords(), *FSSPEC_ARGUMENTS}
        of_web, of_targets = list_argument_names("https"), list_argument_names("s3") | list_argument_names("https")
        near = difflib.get_close_matches(name, sorted(own | of_targets), 1)
        spelled, place = near[0] if near else name, "https://host/" if near and near[0] in of_web else "s3://bucket/"
        hint = (
            f": did you mean {spelled}=?"
            if spelled in own
            else (
                f": put options of targets into options={{{place!r}: {{{spelled!r}: ...}}}}, options of the source "
                f"into target_options={{{spelled!r}: ...}}"
            )
        )
        raise TypeError(f"{'refshard' if caller is None else caller.__name__} has no argument {name}={hint}")


def check_spelling(given: Iterable[str], caller: Callable[..., Any]) -> None:
    """Raise TypeError for a keyword in ``given`` that is spelled nearly like a parameter of ``caller``.

    ``caller`` passes unknown keywords on, so it would not notice the mistake.
    """
    import difflib  # needed only here

    parameters = inspect.signature(caller).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    for name in sorted(given):
        if name == "storage_options":
            raise TypeError(f"{caller.__name__} has no argument {name}=: pass each option as a keyword (**{name})")
        near = difflib.get_close_matches(name, known, 1, 0.8)
        if near:
            raise TypeError(f"{caller.__name__} has no argument {name}=: did you mean {near[0]}=?")


def parse_configuration(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the keywords in fsspec's configuration (files, or ``FSSPEC_REFSHARD_...``) from text to their types.

    The types are numbers, truth values, and objects and lists in JSON. Raises ValueError for other text.
    """
    known = list_keywords()
    texts = {name: value for name, value in conf.items() if name in known and isinstance(value, str)}
    return {**conf, **{name: _parse_text(name, text, known[name].annotation) for name, text in texts.items()}}


def _parse_text(name: str, text: str, annotation: str) -> Any:
    kind = _PLAIN.get(annotation)
    try:
        if kind is not None:
            return msgspec.convert(text, kind, strict=False)
        return json.loads(text) if name != "fo" and text.startswith(("{", "[")) else text
    except ValueError as e:  # msgspec's ValidationError is one
        raise ValueError(f"invalid {name}={text!r} in fsspec's configuration for refshard: {e}") from e

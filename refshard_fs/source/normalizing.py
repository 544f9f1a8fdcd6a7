"""Normalize the keywords of a filesystem, so that they mean the same in every process when fsspec compares them."""

from __future__ import annotations

import inspect
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Concatenate, Final, ParamSpec
from urllib.parse import quote

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations.reference import LazyReferenceMapper

from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import ARCHIVES, LOCAL, protocol_of
from refshard_fs.source.in_memory_source import ICECHUNK, InMemorySource, find_target_arguments, make_portable_source
from refshard_fs.source.options import Options, parse_configuration, spread_storage_options
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS
from refshard_fs.targets import find_root_url, is_store

P = ParamSpec("P")
SESSION: Final = "session"  # the keyword that names the opened source: copies of a filesystem have the same value
MAPPER: Final = "mapper"  # the keyword for a source that is a `LazyReferenceMapper` of fsspec
_WRITE_MODES: Final = ("a", "w")


def parse_options(fo: Any, given: Mapping[str, Any] = {}) -> Options:
    """Return the options of a filesystem that opens one source, ``fo``, with the keywords ``given``.

    >>> parse_options("refs.json", {"max_gap": 0}).reading.max_gap
    0
    """
    fo, given = resolve_source(fo, collect_keywords((), given))
    fo, given = make_portable(fo, given)
    return Options.parse(fo, **{name: value for name, value in given.items() if name not in (SESSION, MAPPER)})


def collect_keywords(args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a filesystem as keywords, with those of fsspec's configuration.

    ``args`` are the positional arguments after ``fo``.
    """
    named = spread_storage_options(given)
    if args:
        named = {**inspect.signature(Options.parse).bind_partial(None, *args).arguments, **named}
        del named["fo"]  # the None in `bind_partial`
    conf = fsspec.config.conf.get("refshard")
    # fsspec applies the configuration, too, but leaves values as text.
    return {**parse_configuration(conf), **named} if conf else named


def resolve_source(fo: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Resolve the forms of ``fo`` that stand for another one, such as an open file, a URL pipeline, or a store.

    Return the source, or the list of sources, and the keywords with which it is opened. ``fo`` may be among those
    ``given``. Raise TypeError if ``fo`` is missing.
    """
    given = dict(given)
    keyword = given.pop("fo", None)
    fo = keyword if fo is None else fo
    if fo is None:
        raise TypeError(
            "refshard needs fo=: the URL or path of a source, a mapping, bytes or a binary file. In a URL: "
            "'refshard::SOURCE', or 'refshard://' and storage_options={'fo': SOURCE}"
        )
    if not hasattr(fo, "read") and hasattr(fo, "fs") and hasattr(fo, "path"):  # fsspec's OpenFile, or a UPath
        options = {name: value for name, value in fo.fs.storage_options.items() if name not in FSSPEC_ARGUMENTS}
        if options and not {"target_options", "ref_storage_args"} & given.keys():
            given["target_options"] = options
        fo = fo.fs.unstrip_protocol(fo.path)
    if isinstance(fo, str) and "|" in fo:
        fo = resolve_pipeline(fo)
    if isinstance(fo, str) and fo.startswith(ICECHUNK):
        fo, given["format"] = fo.removeprefix(ICECHUNK), ICECHUNK.removesuffix("::")
    store, path = fo if isinstance(fo, tuple) and len(fo) == 2 else (fo, "")
    if is_store(store):
        root = find_root_url(store)
        fo = root + (quote(path) if protocol_of(root) in WEB else path)
        if type(store).__name__ != "LocalStore":
            given["options"] = {root: store, **(given.get("options") or {})}
    fo = list_sources(fo)
    if given.get("concat") is not None and not stands_for_many(fo, given):
        raise ValueError(
            f"concat={given['concat']!r} needs several sources: expected a pattern, a list or a table for fo=, got "
            f"{fo!r:.200}"
        )
    return fo, given


def make_portable(fo: Any, given: Mapping[str, Any]) -> tuple[str | InMemorySource, dict[str, Any]]:
    """Return one source as a value that means the same in every process, and its keywords with their defaults."""
    overrides, simple = given.get("template_overrides"), given.get("simple_templates", True)
    source = make_portable_source(fo, given.get("target_protocol"), overrides, simple)
    named = add_default_arguments(find_target_arguments(fo), given)
    if named.get("mode") in _WRITE_MODES and named.get("overlay") is None:
        # fsspec and dask treat filesystems with equal keywords as equal, but these differ in uncommitted writes.
        named["overlay"] = uuid.uuid4().hex
    if isinstance(fo, LazyReferenceMapper):  # kerchunk writes to this mapping through the filesystem
        named[MAPPER] = fo
    if named.get(SESSION) is None:
        named[SESSION] = uuid.uuid4().hex
    return source, named


def resolve_pipeline(url: str) -> str:
    """Convert a URL pipeline that ends in ``|refshard:`` to a URL chain of fsspec; return other URLs unchanged.

    >>> resolve_pipeline("s3://bucket/a.zip|zip:b.nc|refshard:")
    'zip://b.nc::s3://bucket/a.zip'
    """
    *steps, last = url.split("|")
    if not steps or not last.lower().startswith("refshard:"):
        return url
    if last.partition(":")[2].strip("/"):
        raise ValueError(
            f"{url!r} names a group or an array in the source: expected a URL that ends in '|refshard:'. Pass the path "
            "of a group as group="
        )
    source = steps[0]
    if source.startswith("file:") and not source.startswith("file://"):
        source = source.removeprefix("file:")
    for step in steps[1:]:
        scheme, _, path = step.partition(":")
        if path or scheme not in ARCHIVES:  # without a path, the archive itself is the source
            source = f"{scheme}://{path.strip('/')}::{source}" if path else f"{scheme}::{source}"
    return source


_FIELD: Final = re.compile(r"\{\w+(:[^{}]*)?\}")
_WITH_QUERY: Final = WEB | {"data"}
_ANY: Final = re.compile(r"\?(?!\w+=)")
_RANGE: Final = re.compile(r"\[\w-\w\]")  # `[0-9]`; other brackets may be in the name of one file


def list_sources(fo: Any) -> Any:
    """Return an iterator, such as ``Path("days").glob("*.nc")``, or an array or a Series of URLs as a list.

    Return one item of STAC as a list of it, and other sources unchanged. Sets have no order, and are refused when they
    are opened.
    """
    if isinstance(fo, str):  # the first isinstance(fo, Mapping) of a type takes a millisecond
        return fo
    is_item = isinstance(fo, Mapping) and fo.get("type") == "Feature" and "assets" in fo
    if is_item or (hasattr(fo, "assets") and hasattr(fo, "properties")):
        return [fo]
    if isinstance(fo, Iterator) and not hasattr(fo, "read"):
        return list(fo)
    is_row = getattr(fo, "ndim", None) == 1 and hasattr(fo, "tolist")
    return fo.tolist() if is_row and not isinstance(fo, memoryview) else fo


def is_pattern(text: str) -> bool:
    """Return whether ``text`` has a ``*`` or ``?`` that stands for characters of names.

    A ``?`` in the URL of a web server, or in "s3://bucket/key?versionId=1", begins a query.
    """
    has_mark = "*" in text or ("?" in text and _ANY.search(text) is not None and protocol_of(text) not in _WITH_QUERY)
    return has_mark and "::" not in text


def is_many_sources(fo: Any) -> bool:
    """Return whether ``fo`` stands for several sources: a pattern, a list, a table, or items of STAC."""
    match fo:
        case str() | PurePath():
            text = str(fo)
            return is_pattern(text) or ("::" not in text and bool(_FIELD.search(text) or _RANGE.search(text)))
        case bytes() | bytearray() | memoryview():
            return False
        case Mapping():
            return fo.get("type") == "FeatureCollection" and isinstance(fo.get("features"), list)
        case _:
            # A DataFrame has columns, and a collection of pystac a list of items.
            is_table = hasattr(fo, "columns") and hasattr(fo, "to_dict")
            return isinstance(fo, Sequence) or is_table or isinstance(getattr(fo, "items", None), list)


def stands_for_many(fo: Any, given: Mapping[str, Any]) -> bool:
    """Return whether ``fo`` stands for several sources: `is_many_sources`, or `is_table_file`."""
    return is_many_sources(fo) or is_table_file(fo, given)


TABLES: Final = (".parquet", ".geoparquet")  # suffixes of Parquet files with a table of sources


def is_table_file(fo: Any, given: Mapping[str, Any]) -> bool:
    """Return whether ``fo`` is the URL or path of a Parquet file with a table of sources.

    The directory of a parquet set may have the same suffix, and only a request shows what a remote URL is. So a remote
    URL is a table only if ``given`` has ``concat``, which is an argument for several sources.
    """
    if not isinstance(fo, str | PurePath) or "::" in (url := str(fo)) or not url.endswith(TABLES):
        return False
    if url.endswith(TABLES[1]) or given.get("concat") is not None:
        return True
    is_local = {protocol_of(url), given.get("target_protocol")} <= {None, *LOCAL} and given.get("fs") is None
    return is_local and os.path.isfile(split_protocol(url)[1])


_ACCESS: Final = frozenset(["fs", "remote_options", "remote_protocol"])  # keywords that say how targets are opened


def add_default_arguments(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the ``defaults`` of a source in memory to the keywords ``given``.

    Adds only ``allow`` if these say how targets are opened.
    """
    if not defaults or not _ACCESS.isdisjoint(given):
        return {**{name: defaults[name] for name in ("allow",) if name in defaults}, **given}
    merged = {**(defaults.get("options") or {}), **(given.get("options") or {})}
    return {**defaults, **given, **({"options": merged} if merged else {})}


def takes_keywords_of(
    parse: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the signature of ``parse``, for type checkers, ``help()`` and `inspect`."""

    def decorate(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [first, *inspect.signature(parse).parameters.values()]
        constructor.__signature__ = inspect.Signature(parameters, return_annotation="None")  # type: ignore[attr-defined]  # `inspect` reads it
        return constructor

    return decorate

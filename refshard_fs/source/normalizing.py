"""Normalize the keywords of a filesystem, so that they mean the same in every process when fsspec compares them."""

from __future__ import annotations

import importlib
import inspect
import re
import reprlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Concatenate, Final, ParamSpec
from urllib.parse import quote

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.reference import LazyReferenceMapper

from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import ARCHIVES, protocol_of
from refshard_fs.source.in_memory_source import ICECHUNK, find_target_arguments, make_portable_source
from refshard_fs.source.options import keywords, parse_configuration, spread_storage_options
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS
from refshard_fs.targets import find_root_url, is_store

P = ParamSpec("P")
SESSION: Final = "session"  # the keyword that names the opened source: copies of a filesystem have the same value
MAPPER: Final = "mapper"  # the keyword for a source that is a `LazyReferenceMapper` of fsspec
_WRITE_MODES: Final = ("a", "w")


class NormalizingMeta(type(AsyncFileSystem)):  # type: ignore[misc]  # fsspec is untyped: its metaclass is Any
    """Convert ``fo`` to a value that means the same in every process, before fsspec stores and compares keywords."""

    def __call__(cls, fo: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs = spread_storage_options(kwargs)
        named = dict(zip([*keywords()][1:], args, strict=False)) | kwargs if args else kwargs
        conf = fsspec.config.conf.get("refshard")
        if conf:  # fsspec applies the configuration, too, but leaves values as text, and ignores positional arguments
            args, named = (), parse_configuration(conf) | named
            kwargs = dict(named)
        keyword = kwargs.pop("fo", None)
        fo = keyword if fo is None else fo
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
        if isinstance(fo, str) and "|" in fo:
            fo = resolve_pipeline(fo)
        if isinstance(fo, str) and fo.startswith(ICECHUNK):
            fo, kwargs["format"] = fo.removeprefix(ICECHUNK), ICECHUNK.removesuffix("::")
        store, path = fo if isinstance(fo, tuple) and len(fo) == 2 else (fo, "")
        if is_store(store):
            root = find_root_url(store)
            fo = root + (quote(path) if protocol_of(root) in WEB else path)
            if type(store).__name__ != "LocalStore":
                kwargs["options"] = {root: store, **(kwargs.get("options") or {})}
                named = {**named, "options": kwargs["options"]}
        fo = list_sources(fo)
        if is_many_sources(fo):
            fo, kwargs = join_sources(fo, named, kwargs)
            named = kwargs
        elif named.get("concat") is not None:
            raise ValueError(
                f"concat={named['concat']!r} needs several sources: expected a pattern or a list for fo=, "
                f"got {fo!r:.200}"
            )
        overrides, simple = named.get("template_overrides"), named.get("simple_templates", True)
        source = make_portable_source(fo, named.get("target_protocol"), overrides, simple)
        kwargs = add_default_arguments(find_target_arguments(fo), named, kwargs)
        if named.get("mode") in _WRITE_MODES and named.get("overlay") is None:
            # fsspec and dask treat filesystems with equal keywords as equal, but these differ in uncommitted writes.
            kwargs["overlay"] = uuid.uuid4().hex
        if isinstance(fo, LazyReferenceMapper):  # kerchunk writes to this mapping through the filesystem
            kwargs[MAPPER] = fo
        kwargs.setdefault(SESSION, uuid.uuid4().hex)
        if conf and "fo" in conf:
            return super().__call__(fo=source, **kwargs)
        return super().__call__(source, *args, **kwargs)


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


# The keywords for finding and opening the sources of a cube; all others are for the filesystem of the cube.
_KEYWORDS_OF_SOURCES: Final = frozenset(
    (
        *("allow", "concurrency", "fast_s3", "fs", "max_manifest_bytes", "max_memory", "options", "ref_storage_args"),
        *("remote_options", "remote_protocol", "retries", "target_options", "target_protocol", "timeout"),
    )
)
_FIELD: Final = re.compile(r"\{\w+(:[^{}]*)?\}")
_RANGE: Final = re.compile(r"\[\w-\w\]")  # `[0-9]`; other brackets may be in the name of one file


def list_sources(fo: Any) -> Any:
    """Return an iterator, such as ``Path("days").glob("*.nc")``, or an array or a Series of URLs as a list.

    Return one item of STAC as a list of it, and other sources unchanged. Sets have no order, and are refused when they
    are opened.
    """
    is_item = isinstance(fo, Mapping) and fo.get("type") == "Feature" and "assets" in fo
    if is_item or (hasattr(fo, "assets") and hasattr(fo, "properties")):
        return [fo]
    if isinstance(fo, Iterator) and not hasattr(fo, "read"):
        return list(fo)
    is_row = getattr(fo, "ndim", None) == 1 and hasattr(fo, "tolist")
    return fo.tolist() if is_row and not isinstance(fo, memoryview) else fo


def is_many_sources(fo: Any) -> bool:
    """Return whether ``fo`` stands for several sources: a pattern, a list, a table, or items of STAC."""
    match fo:
        case str() | PurePath():
            text = str(fo)
            return "::" not in text and ("*" in text or bool(_FIELD.search(text) or _RANGE.search(text)))
        case bytes() | bytearray() | memoryview():
            return False
        case Mapping():
            return fo.get("type") == "FeatureCollection" and isinstance(fo.get("features"), list)
        case _:
            # A DataFrame has columns, and a collection of pystac a list of items.
            is_table = hasattr(fo, "columns") and hasattr(fo, "to_dict")
            return isinstance(fo, Sequence) or is_table or isinstance(getattr(fo, "items", None), list)


def join_sources(fo: Any, named: Mapping[str, Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Join several sources; return the joined source, and the remaining keywords for its filesystem."""
    for name, default in (("mode", "r"), ("overlay", None)):
        if named.get(name, default) != default:
            raise ValueError(
                f"{name}={named[name]!r} needs a single source, got several: {reprlib.repr(fo)}. Several sources can "
                "only be read: to add to them, save the result of refshard_fs.open, and append to the saved set"
            )
    if not isinstance(named.get("concat") or {}, Mapping):
        raise TypeError(
            f"concat={named['concat']!r:.200}: expected a mapping with arguments of refshard_fs.open, such as "
            "{'dim': 'time'}"
        )
    # Imported here, because sets import filesystems, and filesystems import this module.
    cube = importlib.import_module("refshard_fs.sets.cube").cube
    others = {name for name in named if name not in keywords()} - FSSPEC_ARGUMENTS - {SESSION}
    for_cube = {name: named[name] for name in named if name in _KEYWORDS_OF_SOURCES or name in others}
    joined = cube(fo, **for_cube, **(named.get("concat") or {}))
    remaining = {name: value for name, value in kwargs.items() if name not in others}
    for name in ("concat", "target_options", "ref_storage_args"):
        remaining.pop(name, None)
    return joined, remaining


_ACCESS: Final = frozenset(["fs", "remote_options", "remote_protocol"])  # keywords that say how targets are opened


def add_default_arguments(
    defaults: Mapping[str, Any], named: Mapping[str, Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Add the ``defaults`` of a source in memory to ``kwargs``.

    Adds nothing if the user's arguments, ``named``, say how targets are opened.
    """
    if not defaults or not _ACCESS.isdisjoint(named) or ("options" in named and "options" not in kwargs):
        return kwargs
    merged = {**(defaults.get("options") or {}), **(kwargs.get("options") or {})}
    return {**defaults, **kwargs, **({"options": merged} if merged else {})}


def takes_keywords_of(
    parse: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the signature of ``parse``, for type checkers, ``help()`` and `inspect`."""

    def decorate(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [first, *inspect.signature(parse).parameters.values()]
        constructor.__signature__ = inspect.Signature(parameters, return_annotation="None")  # type: ignore[attr-defined]
        return constructor

    return decorate

"""The keywords of a filesystem as they are before fsspec stores and compares them: the same in every process."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec
from urllib.parse import quote

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.reference import LazyReferenceMapper

from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import protocol_of
from refshard_fs.source.in_memory_source import InMemorySource, source_of
from refshard_fs.source.options import configured, keywords, with_spread
from refshard_fs.source.transaction import FSSPEC_ARGUMENTS
from refshard_fs.targets import is_store, urls_of

P = ParamSpec("P")
SESSION: Final = "session"  # the keyword that names the session which copies of a filesystem share
MAPPER: Final = "mapper"  # the keyword for fsspec's mapping that the source was made of
_WRITES: Final = ("a", "w")  # modes


class NormalizingMeta(type(AsyncFileSystem)):  # type: ignore[misc]  # fsspec is untyped: its metaclass is Any
    """Turns ``fo`` into what means the same everywhere, before fsspec stores and compares the keywords."""

    def __call__(cls, fo: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs = with_spread(kwargs)
        named = dict(zip([*keywords()][1:], args, strict=False)) | kwargs if args else kwargs
        conf = fsspec.config.conf.get("refshard")
        if conf:  # fsspec applies it, too, but as text, and not to what is given by position
            args, named = (), configured(conf) | named
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
        store, path = fo if isinstance(fo, tuple) and len(fo) == 2 else (fo, "")
        if is_store(store):
            place = urls_of(store)
            fo = place + (quote(path) if protocol_of(place) in WEB else path)
            if type(store).__name__ != "LocalStore":
                kwargs["options"] = {place: store, **(kwargs.get("options") or {})}
        overrides, simple = named.get("template_overrides"), named.get("simple_templates", True)
        source = source_of(fo, named.get("target_protocol"), overrides, simple)
        if isinstance(fo, InMemorySource):
            kwargs = with_arguments_of(fo, named, kwargs)
        if named.get("mode") in _WRITES and named.get("overlay") is None:
            # To fsspec and dask, filesystems with equal keywords are equal: these have different uncommitted writes.
            kwargs["overlay"] = uuid.uuid4().hex
        if isinstance(fo, LazyReferenceMapper):  # kerchunk writes to it through the filesystem
            kwargs[MAPPER] = fo
        kwargs.setdefault(SESSION, uuid.uuid4().hex)
        if conf and "fo" in conf:
            return super().__call__(fo=source, **kwargs)
        return super().__call__(source, *args, **kwargs)


_ACCESS: Final = frozenset(["fs", "remote_options", "remote_protocol"])


def with_arguments_of(source: InMemorySource, named: Mapping[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return ``kwargs`` with those by which ``source`` opens its targets; all that are ``named`` go before these."""
    known = source.arguments()
    if not known or not _ACCESS.isdisjoint(named) or ("options" in named and "options" not in kwargs):
        return kwargs
    merged = {**(known.get("options") or {}), **(kwargs.get("options") or {})}
    return {**known, **kwargs, **({"options": merged} if merged else {})}


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

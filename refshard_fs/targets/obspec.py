"""Read the objects of any store with obspec's methods: obstore's stores, and others that VirtualiZarr takes.

A store needs `get_async`, or `get` and `get_range`; `head` and `list_with_delimiter` are used if the store has them.
The path of a URL in a store is the same as in obspec_utils' `ObjectStoreRegistry`: without the store's own prefix.

Source: obspec's protocols (https://developmentseed.org/obspec).
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Facts, Listed
from refshard_fs.security.admission import WEB
from refshard_fs.security.policy import protocol_of
from refshard_fs.targets.answer import UNKNOWN, Answer, Target, check_size
from refshard_fs.targets.generic import run_in_thread


class ObjectStore(Protocol):
    """The methods that every store has, for type checkers: obspec's `Get`."""

    def get(self, path: str, *, options: Any = None) -> Any:
        """Return an object, or the range of it that ``options`` name."""


class Registry(Protocol):
    """The methods of `ObjectStoreRegistry`, for type checkers."""

    def resolve(self, url: str) -> tuple[Any, str]:
        """Return the store of a URL, and the object's path there."""


def is_store(value: Any) -> bool:
    """Return whether ``value`` has the methods of an obspec store."""
    has_methods = callable(getattr(value, "get_async", None)) or callable(getattr(value, "get_range", None))
    # The first check of a type takes milliseconds.
    return has_methods and not isinstance(value, Mapping | AbstractFileSystem | type)


def find_stores(registry: Any) -> dict[str, Any] | None:
    """Return the stores of an `ObjectStoreRegistry` by URL prefix; None if ``registry`` is not a registry."""
    if not hasattr(registry, "resolve") or not isinstance(getattr(registry, "map", None), Mapping):
        return None
    found: dict[str, Any] = {}

    def add(prefix: str, entry: Any) -> None:
        if entry.store is not None:
            found[prefix] = entry.store
        for name, child in entry.children.items():
            add(f"{prefix}/{name}", child)

    for (scheme, netloc), entry in registry.map.items():
        add(f"{scheme}://{netloc}", entry)
    return found


def find_root_url(store: Any) -> str:
    """Return the URL of a store's root directory; make one up if the store has none."""
    url, config, kind = getattr(store, "url", None), getattr(store, "config", None), type(store).__name__
    if isinstance(url, str):
        return url.rstrip("/") + "/"
    named = config if isinstance(config, Mapping) else {}
    place = named.get("bucket") or named.get("container_name")
    if kind in _SCHEMES and (place or kind == "LocalStore"):
        return f"{_SCHEMES[kind]}://{place or ''}/{_find_prefix(store)}".rstrip("/") + "/"
    return f"obspec://{kind}-{StoreFileSystem.of(store).name[:12]}/"


_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az", "LocalStore": "file"}


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """A filesystem that stands for a store: `Pool` opens the objects of ``store`` by `ObspecTarget`."""

    protocol = "obspec"
    cachable = False

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store
        self.name = uuid.uuid4().hex

    @classmethod
    def of(cls, store: Any) -> StoreFileSystem:
        """Return the filesystem of ``store``: the same one while it is in use."""
        found = _known.get(id(store))
        if found is None:
            found = _known[id(store)] = cls(store)
        return found

    def __repr__(self) -> str:  # sources are compared by this text
        return f"<{type(self.store).__name__} {self.name}>"

    def path_of(self, url: str) -> str:
        """Return the path of the object at ``url`` in the store."""
        is_web = protocol_of(url) in WEB  # elsewhere "%", "?" and "#" are characters of names
        path = unquote(urlsplit(url).path) if is_web else url
        if not is_web and "://" in url:
            path = url.partition("://")[2].partition("/")[2]
        path, own = path.strip("/"), _find_prefix(self.store)
        return path[len(own) :].lstrip("/") if f"{path}/".startswith(f"{own}/") else path


_known: weakref.WeakValueDictionary[int, StoreFileSystem] = weakref.WeakValueDictionary()


def _find_prefix(store: Any) -> str:
    """Return the path that a store puts before its own paths."""
    prefix, url = getattr(store, "prefix", None), getattr(store, "url", None)
    if not prefix and isinstance(url, str):
        prefix = urlsplit(url).path
    return str(prefix or "").strip("/")


class ObspecTarget(Target):
    """The objects of one store."""

    most_retries = 2  # stores also try again

    def __init__(self, store: Any) -> None:
        self._store = store
        is_web = isinstance(getattr(store, "url", None), str)  # obstore would list by WebDAV
        self._lists = hasattr(store, "list_with_delimiter") and not is_web

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        if stop is not None and stop <= start:
            return Answer(b"")
        wanted: Any = {"suffix": -start} if start < 0 else (start, stop) if stop is not None else {"offset": start}
        options = {} if start == 0 and stop is None else {"options": {"range": wanted}}
        try:
            result = await self._call(self._store, "get", path, **options)
            facts = self._make_facts(result.meta)
            if not options:
                check_size(facts.size, most)
            data = bytes(await self._call(result, "buffer"))
        except OSError:
            raise
        except Exception:  # any store's error; raised again unless the store cannot serve this range
            facts = await self.get_facts(path) if options else UNKNOWN
            if facts.size is not None and start < 0:  # the store does not support ranges from the end
                return await self.read(path, max(facts.size + start, 0), facts.size, etag, most)
            if facts.size is None or start < facts.size:
                raise
            return Answer(b"", facts)
        check_size(len(data), most)
        return Answer(data, facts)

    async def get_facts(self, path: str) -> Facts:
        if hasattr(self._store, "head") or hasattr(self._store, "head_async"):
            return self._make_facts(await self._call(self._store, "head", path))
        return self._make_facts((await self._call(self._store, "get", path)).meta)

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        if not self._lists:
            return None
        found = await self._call(self._store, "list_with_delimiter", path)
        listed = [Listed(_get_last_name(prefix), None, True) for prefix in found["common_prefixes"]]
        for meta in found["objects"]:
            facts = self._make_facts(meta)
            listed.append(Listed(_get_last_name(meta["path"]), facts.size, False, facts.etag, facts.last_modified))
        return tuple(sorted(listed, key=lambda child: child.name))

    def _make_facts(self, meta: Mapping[str, Any]) -> Facts:
        modified = meta.get("last_modified")
        # The ETags of a MemoryStore count its writes: another store may have the same.
        etag = None if type(self._store).__name__ == "MemoryStore" else meta.get("e_tag")
        return Facts(meta.get("size"), etag, modified.isoformat() if isinstance(modified, datetime) else None)

    async def _call(self, owner: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of ``owner``, or its coroutine; raise obspec's errors as Python's."""
        method = getattr(owner, f"{name}_async", None)
        try:
            if method is not None:
                return await method(*arguments, **options)
            return await run_in_thread(lambda: getattr(owner, name)(*arguments, **options))
        except Exception as e:  # obspec's exceptions have common names, but no common class
            match type(e).__name__:
                case "FileNotFoundError" | "NotFoundError":
                    raise FileNotFoundError(*arguments) from e
                case "PermissionDeniedError" | "UnauthenticatedError":
                    raise PermissionError(str(e).partition("\n")[0]) from e
            raise


def _get_last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

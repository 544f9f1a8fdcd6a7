"""What the paths of a chunk manifest mean: absolute URLs as they are, relative ones from where the manifest lies.

A manifest that is an object of its own lies at a URL. One that is not (a member of an archive, a key of a reference
set, data) lies at a key of its source, and so does what it points to. No I/O here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from refshard_fs import policy
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from refshard_fs.formats import OpenOptions
from refshard_fs.keys import parent
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.resolving import resolver
from refshard_fs.model import Entry, Pin, Span, Steps

__all__ = ["Key", "Origin", "Url", "key_beside"]


class Url(NamedTuple):
    """A place in some filesystem."""

    url: str


class Key(NamedTuple):
    """A place in the manifest's own source."""

    key: str


class Origin:
    """Where the manifest ``key`` lies; ``entry`` is that key's. Without ``has_keys`` there is no source around it."""

    def __init__(self, key: str, entry: Entry | None, options: OpenOptions, *, has_keys: bool = True) -> None:
        directory = None
        match entry:
            case Span(url, 0, None):
                directory = policy.directory_of(url)
        self._directory = parent(key)[0]
        self._resolve: Callable[[str], str] = resolver(options, directory)
        local = options.protocol is None or options.protocol in policy.LOCAL
        self._by_key = has_keys and directory is None and options.base_url is None and local and not options.bare_as_is

    def place(self, path: str, where: str, key: str | None = None) -> Url | Key:
        """Return where ``path`` lies; ManifestError, which names manifest and ``key``, where it climbs out."""
        try:
            return self._place(path)
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}" if key is None else f"{where}: {key!r}: {e}") from e

    def entry(
        self, path: str, offset: int, length: int | None, pin: Pin | None, base: KeySpace | None, where: str, key: str
    ) -> Steps[Entry]:
        """Return the range of ``path`` that the manifest ``where`` names for ``key``; ``base`` is the source around it.

        Raises ReferenceNotReachable where there is none of ``path``, or less of it, among the keys of ``base``.
        """
        match self.place(path, where, key):
            case Url(url):
                return Span(url, offset, None if length is None else offset + length, pin=pin)
            case Key(name):
                found = None if base is None else (yield from base.lookup(name))
        if found is None:
            raise ReferenceNotReachable(key, repr(name), "the manifest names it, and the source has no such key")
        if isinstance(found, Span):
            found = msgspec.structs.replace(found, optional=False, pin=pin or found.pin)
        try:
            if length is not None:
                return found.part(offset, length)
            return found.window(offset) if offset else found
        except ValueError as e:
            raise ReferenceNotReachable(key, repr(name), str(e)) from e

    def _place(self, path: str) -> Url | Key:
        if not self._by_key or policy.protocol_of(path) is not None or policy.is_absolute(path):
            return Url(self._resolve(path))
        return Key(key_beside(self._directory, path))


def key_beside(directory: str, path: str) -> str:
    """Return the key that ``path`` means in ``directory``; ManifestError where it climbs above the root."""
    joined = posixpath.normpath(posixpath.join(directory, path))
    if joined == ".." or joined.startswith(("../", "/")):
        raise ManifestError(f"the relative path {path!r} climbs out of its source: base_url= says where it starts from")
    tail = "/" if path.endswith("/") and joined != "." else ""
    return ("" if joined == "." else joined) + tail

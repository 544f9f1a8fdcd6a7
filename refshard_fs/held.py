"""Sources that the caller holds in memory: parsed once, compared by content, cheap to hash and to pickle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from refshard_fs.manifests import kerchunk_json
from refshard_fs.manifests.reference_set import ReferenceSet

__all__ = ["Held", "settle"]


class Held(msgspec.Struct, frozen=True, eq=False):
    """A reference set or the bytes of a document, and a digest of its content."""

    content: ReferenceSet | bytes
    digest: str

    def __repr__(self) -> str:  # fsspec tells instances apart by this
        return f"<held in memory: {self.digest}>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def settle(fo: Any, target_protocol: str | None, overrides: Mapping[str, str] | None, simple: bool) -> str | Held:
    """Return ``fo`` as an absolute URL or as `Held`: a value that means the same in every process, whatever happens."""
    match fo:
        case Held():
            return fo
        case str() | PurePath():
            return _absolute(str(fo), target_protocol)
        case bytes() | bytearray() | memoryview():
            data = bytes(fo)
            return Held(data, hashlib.sha256(data).hexdigest())
        case Mapping():
            refs = kerchunk_json.parse_document(fo, "the given references", overrides or {}, simple=simple)
            return Held(refs, _digest(refs))
        case _ if hasattr(fo, "read"):
            data = fo.read()
            if not isinstance(data, bytes):
                raise TypeError(f"fo= is a file opened as text ({fo!r}): open it in binary mode")
            return Held(data, hashlib.sha256(data).hexdigest())
        case _:
            raise TypeError(f"fo= is a {type(fo).__name__}; it may be a URL, a path, a mapping, bytes or a binary file")


def _absolute(url: str, protocol: str | None) -> str:
    if "://" in url or "::" in url:
        return url
    if protocol is not None and protocol not in ("file", "local"):
        return f"{protocol}://{url}"
    ends = "/" if url.endswith("/") else ""
    return os.path.abspath(os.path.expanduser(url)) + ends


def _digest(refs: ReferenceSet) -> str:
    state = hashlib.sha256(msgspec.msgpack.encode([refs.urls, list(refs.side.items())]))
    for path, table in refs.tables.items():
        state.update(repr((path, table.grid)).encode())
        for column in (table.targets, table.offsets, table.lengths, table.numbers):
            state.update(b"" if column is None else column.data)
    return state.hexdigest()

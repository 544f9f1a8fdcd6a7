"""The JSON of chunk manifests: entries and prefixes, typed and checked; errors name document and key. No I/O here.

``FORMATS.md`` is the specification; it fixes what zarr-specs issue 287 leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.model import Pin
from refshard_fs.errors import ManifestError
from refshard_fs.references.values import from_base64

PREFIX: Final = "prefix"  # the one member of a manifest that is no key
MOST: Final = 2**63  # offsets and lengths, and their sums, are less


class JsonEntry(msgspec.Struct, gc=False):
    """What a manifest says of one key; all None: it is empty. Other members are ignored."""

    path: str | None = None
    offset: int | None = None
    length: int | None = None
    data: str | dict[str, Any] | None = None
    etag: str | None = None
    last_modified: str | None = None
    checksum: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the manifest says of the key that there is nothing, on purpose."""
        return self.path is None and self.data is None


class JsonPrefix(msgspec.Struct, forbid_unknown_fields=True):
    """What a manifest says of all keys with a prefix: what their URLs begin with, and their separator."""

    path: str
    separator: str = "."


class Entries(msgspec.Struct):
    """A manifest as it is spelled."""

    keys: dict[str, JsonEntry]
    prefixes: dict[str, JsonPrefix]


class _Prefixes(msgspec.Struct):
    prefix: dict[str, JsonPrefix] = {}


_entries = msgspec.json.Decoder(dict[str, JsonEntry])
_prefixes = msgspec.json.Decoder(_Prefixes)
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])


def entries_in(data: bytes, where: str) -> Entries:
    """Return the manifest in ``data``; ManifestError, which begins with ``where``, where it breaks the format."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        keys = _entries.decode(data)
        prefixes = _prefixes.decode(data).prefix if keys.pop(PREFIX, None) is not None else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise _explained(data, where, e) from e
    unsaid = [key for key, entry in keys.items() if entry.is_empty]
    if unsaid:
        spelled = _raw.decode(data)
        for key in unsaid:
            if bytes(spelled[key])[1:-1].strip():
                raise ManifestError(f"{where}: {key!r} has neither path nor data; an empty chunk is {{}}")
    return Entries(keys, prefixes)


def _explained(data: bytes, where: str, error: Exception) -> ManifestError:
    """Return an error that names the key of the member that is wrong."""
    try:
        document = zarrmeta.loads(data)
    except ValueError as e:
        return ManifestError(f"{where} is not JSON: {e}")
    if not isinstance(document, Mapping):
        return ManifestError(f"{where} is a {type(document).__name__}, no object with chunk keys")
    for key, value in document.items():
        kind: Any = dict[str, JsonPrefix] if key == PREFIX else JsonEntry
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # the latter of half a surrogate pair
            return ManifestError(f"{where}: {key!r}: {e}")
    return ManifestError(f"{where}: {error}")


class Source(NamedTuple):
    """Where a value comes from: a range of ``path``, or ``data`` of the manifest; and what must be true of it."""

    path: str | None
    offset: int = 0
    length: int | None = None
    pin: Pin | None = None
    checksum: str | None = None
    data: bytes = b""


def source_of(entry: JsonEntry, key: str, where: str) -> Source | None:
    """Return where the value of ``key`` comes from; None if it is empty, ManifestError where the entry cannot be."""
    check(entry, key, where)
    if entry.path is None:
        return None if entry.data is None else Source(None, checksum=entry.checksum, data=_data(entry.data, key, where))
    is_pinned = entry.etag is not None or entry.last_modified is not None
    pin = Pin(entry.etag, entry.last_modified) if is_pinned else None
    return Source(entry.path, entry.offset or 0, entry.length, pin, entry.checksum)


def check(entry: JsonEntry, key: str, where: str) -> None:
    """Raise ManifestError where an entry says two things at once, or names no range."""
    offset, length = entry.offset, entry.length
    if entry.path is not None and entry.data is not None:
        raise ManifestError(f"{where}: {key!r} has both path and data")
    is_ranged = offset is not None or length is not None
    if entry.data is not None and (is_ranged or entry.etag is not None or entry.last_modified is not None):
        raise ManifestError(f"{where}: {key!r} has data, and so no offset, length, etag or last_modified")
    if entry.path == "":
        raise ManifestError(f"{where}: {key!r} has an empty path")
    if is_ranged and (min(offset or 0, length or 0) < 0 or (offset or 0) + (length or 0) >= MOST):
        raise ManifestError(f"{where}: {key!r} has the offset {offset} and the length {length}")


def _data(data: str | dict[str, Any], key: str, where: str) -> bytes:
    """Return inline data: text, base64 text, or the JSON of an object."""
    if isinstance(data, dict):
        return zarrmeta.dumps(data)
    if not data.startswith("base64:"):
        return data.encode("utf-8", "surrogatepass")
    try:
        return from_base64(data)
    except ValueError as e:
        raise ManifestError(f"{where}: {key!r}: {e}") from e

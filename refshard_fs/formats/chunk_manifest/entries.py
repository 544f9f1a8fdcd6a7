"""The JSON of chunk manifests: entries and prefixes, typed and checked; errors name document and key. No I/O here.

``FORMATS.md`` is the specification; it fixes what zarr-specs issue 287 leaves open.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.checksums import checked
from refshard_fs.core.documents import Shown
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Pin, Span, Steps
from refshard_fs.core.zarrmeta import grid_of, lost, names_codecs
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.references.values import from_base64, resolver
from refshard_fs.security import policy
from refshard_fs.security.origins import NOTHING, Origins, read_member

PREFIX: Final = "prefix"  # the one member of a manifest that is no key
MOST: Final = 2**63  # offsets and lengths, and their sums, are less


class JsonEntry(msgspec.Struct, gc=False, omit_defaults=True):
    """What a manifest says of one key; all None: it is empty. Other members are ignored."""

    path: str | None = None
    offset: int | None = None
    length: int | None = None
    data: str | dict[str, Any] | None = None
    etag: str | None = None
    last_modified: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where it says two things at once, or names no range."""
        offset, length = self.offset or 0, self.length or 0
        others = (self.path, self.offset, self.length, self.etag, self.last_modified)
        if self.data is not None and any(other is not None for other in others):
            raise ValueError("it has data, and so no path, offset, length, etag or last_modified")
        if self.path == "":
            raise ValueError("it has an empty path")
        if min(offset, length) < 0 or offset + length >= MOST:
            raise ValueError(f"it has the offset {offset} and the length {length}")

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
    """Return where the value of ``key`` comes from; None if it is empty, ManifestError where its data is damaged."""
    if entry.path is None:
        return (
            None if entry.data is None else Source(None, checksum=entry.checksum, data=data_of(entry.data, key, where))
        )
    is_pinned = entry.etag is not None or entry.last_modified is not None
    pin = Pin(entry.etag, entry.last_modified) if is_pinned else None
    return Source(entry.path, entry.offset or 0, entry.length, pin, entry.checksum)


def data_of(data: str | dict[str, Any], key: str, where: str) -> bytes:
    """Return inline data: text, base64 text, or the JSON of an object."""
    if isinstance(data, dict):
        return zarrmeta.dumps(data)
    if not data.startswith("base64:"):
        return data.encode("utf-8", "surrogatepass")
    try:
        return from_base64(data)
    except ValueError as e:
        raise ManifestError(f"{where}: {key!r}: {e}") from e


# ----------------------------------------------------------------------------------------------------
# Metadata in which nodes declare ``chunk-manifest-json``: shown without it, and what it says. No I/O here.


MARK = NAME.encode()
_ZEROS = {"bool": False, "complex64": [0, 0], "complex128": [0, 0]}


class Declared(NamedTuple):
    """What is known of a node: the grid of an array, its manifest (a path, or JSON) if it has one, or what is wrong.

    ``origins`` say which URLs of the manifest sets of others named.
    """

    grid: ChunkGrid | None
    manifest: str | bytes | None = None
    problem: str | None = None
    origins: Origins = NOTHING


class Unmapped(msgspec.Struct, frozen=True):
    """Shows nodes with a chunk manifest as if they had none."""

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[Declared]]:
        return _rewrite


def _rewrite(doc: Mapping[str, Any], path: str) -> Shown[Declared]:
    is_group = doc.get("node_type") == "group"
    grid = None if is_group else grid_of(doc)
    match doc.get("storage_transformers"):
        case [{"name": name} as transformer] if name == NAME:
            pass
        case [*several] if any(isinstance(one, dict) and one.get("name") == NAME for one in several):
            return doc, Declared(grid, None, zarrmeta.transformed(doc))
        case _:
            return doc, None if is_group else Declared(grid)
    if grid is None and not is_group:
        return doc, Declared(None, None, "its chunk grid or chunk keys are not known, so its manifest cannot be used")
    manifest = declaration(transformer)
    if manifest is None:
        return doc, Declared(grid, None, f"its {NAME} lacks a configuration with a manifest: a path, or an object")
    shown = {k: v for k, v in doc.items() if k != "storage_transformers"}
    if grid is not None and not names_codecs(doc.get("codecs")):
        shown["codecs"] = [lost(path)]
        if doc.get("fill_value") is None:  # readers do not come to the codecs without one
            shown["fill_value"] = _ZEROS.get(str(doc.get("data_type")), 0)
    origins = read_member(transformer["configuration"], f"the metadata of {path!r}")
    return shown, Declared(grid, manifest, origins=origins)


def declaration(transformer: Mapping[str, Any]) -> str | bytes | None:
    """Return the manifest that a storage transformer names, or holds as JSON; None if it does not say."""
    match transformer:
        case {"configuration": {"manifest": str(path)}} if path:
            return path
        case {"configuration": {"manifest": dict(inline)}}:
            return zarrmeta.dumps(inline)
    return None


# ----------------------------------------------------------------------------------------------------
# What the paths of a chunk manifest mean: absolute URLs as they are, relative ones from where the manifest lies.
#
# A manifest that is an object of its own lies at a URL. One that is not (a member of an archive, a key of a reference
# set, data) lies at a key of its source, and so does what it points to. No I/O here.


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
            if not self._by_key or policy.protocol_of(path) is not None or policy.is_absolute(path):
                return Url(self._resolve(path))
            return Key(key_beside(self._directory, path))
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}" if key is None else f"{where}: {key!r}: {e}") from e

    def entry(self, source: Source, base: KeySpace | None, where: str, key: str) -> Steps[Entry]:
        """Return the entry of ``source``, which the manifest ``where`` names for ``key``; ``base`` is what it lies in.

        Raises ReferenceNotReachable where its path is none of the keys of ``base``, or there is less of it.
        """
        found = (
            Inline(source.data)
            if source.path is None
            else (yield from self._range(source.path, source, base, where, key))
        )
        return checked(found, source.checksum, where, key)

    def _range(self, path: str, source: Source, base: KeySpace | None, where: str, key: str) -> Steps[Entry]:
        offset, length, pin = source.offset, source.length, source.pin
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


def key_beside(directory: str, path: str) -> str:
    """Return the key that ``path`` means in ``directory``; ManifestError where it climbs above the root."""
    joined = posixpath.normpath(posixpath.join(directory, path))
    if joined == ".." or joined.startswith(("../", "/")):
        raise ManifestError(f"the relative path {path!r} climbs out of its source: base_url= says where it starts from")
    tail = "/" if path.endswith("/") and joined != "." else ""
    return ("" if joined == "." else joined) + tail

"""Parse and check the JSON of chunk manifests: entries and prefixes. Errors name document and key. No I/O here.

``FORMATS.md`` is the specification. It settles the questions that zarr-specs issue 287 leaves open.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.checksums import add_checksum
from refshard_fs.core.documents import NodeView
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import ChunkGrid, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Pin, Span, Steps
from refshard_fs.core.zarrmeta import grid_of, is_codec_list, make_lost_codec
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from refshard_fs.formats.chunk_manifest import NAME
from refshard_fs.references.values import decode_base64, make_resolver
from refshard_fs.security import policy
from refshard_fs.security.origins import NOTHING, Origins, read_member

PREFIX: Final = "prefix"  # the only member of a manifest that is not a key
MOST: Final = 2**63  # a range ends before this offset


class JsonEntry(msgspec.Struct, gc=False, omit_defaults=True):
    """The entry of a key. If ``path`` and ``data`` are None, the key is empty. Members with other names are ignored."""

    path: str | None = None
    offset: int | None = None
    length: int | None = None
    data: str | dict[str, Any] | None = None
    etag: str | None = None
    last_modified: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for fields that contradict each other, or an impossible range."""
        offset, length = self.offset or 0, self.length or 0
        of_path = (self.path, self.offset, self.length, self.etag, self.last_modified)
        if self.data is not None and any(field is not None for field in of_path):
            raise ValueError(
                "it has both data and a range (path, offset, length, etag or last_modified): expected one of them"
            )
        if self.path == "":
            raise ValueError("its path is empty: expected a URL or a relative path")
        if min(offset, length) < 0 or offset + length >= MOST:
            raise ValueError(
                f"its offset {offset} and length {length} are not a range: expected numbers of at least 0, and an end "
                f"below {MOST}"
            )

    @property
    def is_empty(self) -> bool:
        """Whether the manifest states that the key does not exist."""
        return self.path is None and self.data is None


class JsonPrefix(msgspec.Struct, forbid_unknown_fields=True):
    """The beginning of the URLs of all keys with a prefix, and the separator of coordinates in these URLs."""

    path: str
    separator: str = "."


class Entries(msgspec.Struct):
    """The content of a manifest: entries by key, and URLs by prefix of keys."""

    keys: dict[str, JsonEntry]
    prefixes: dict[str, JsonPrefix]


class _Prefixes(msgspec.Struct):
    prefix: dict[str, JsonPrefix] = {}


_ENTRY_DECODER: Final = msgspec.json.Decoder(dict[str, JsonEntry])
_PREFIX_DECODER: Final = msgspec.json.Decoder(_Prefixes)
_RAW_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_entries(data: bytes, where: str) -> Entries:
    """Parse the manifest in ``data``. Raise ManifestError, which names ``where`` and the key, if it is invalid."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        keys = _ENTRY_DECODER.decode(data)
        prefixes = _PREFIX_DECODER.decode(data).prefix if keys.pop(PREFIX, None) is not None else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise _make_error(data, where, e) from e
    empty = [key for key, entry in keys.items() if entry.is_empty]
    if empty:
        texts = _RAW_DECODER.decode(data)
        for key in empty:
            if bytes(texts[key])[1:-1].strip():
                raise ManifestError(f"{where}: {key!r} has neither path nor data: write {{}} for an empty key")
    return Entries(keys, prefixes)


def _make_error(data: bytes, where: str, error: Exception) -> ManifestError:
    """Make an error that names the key of the invalid member; the decoder's ``error`` does not name it."""
    try:
        document = zarrmeta.loads(data)
    except ValueError as e:
        return ManifestError(f"{where} is not JSON: {e}")
    if not isinstance(document, Mapping):
        return ManifestError(f"{where} is a {type(document).__name__}: expected an object with keys")
    for key, value in document.items():
        kind: Any = dict[str, JsonPrefix] if key == PREFIX else JsonEntry
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half of a surrogate pair
            return ManifestError(f"{where}: {key!r}: {e}")
    return ManifestError(f"{where}: {error}")


class ValueLocation(NamedTuple):
    """The place of a value: a range of the object at ``path``, or ``data`` if ``path`` is None.

    A read checks the version of the object against ``pin``, and the value against ``checksum``.
    """

    path: str | None
    offset: int = 0
    length: int | None = None
    pin: Pin | None = None
    checksum: str | None = None
    data: bytes = b""


def locate_value(entry: JsonEntry, key: str, where: str) -> ValueLocation | None:
    """Return the place of the value of ``key``; None for an empty key. Raise ManifestError for damaged inline data."""
    if entry.path is None:
        if entry.data is None:
            return None
        return ValueLocation(None, checksum=entry.checksum, data=decode_data(entry.data, key, where))
    is_pinned = entry.etag is not None or entry.last_modified is not None
    pin = Pin(entry.etag, entry.last_modified) if is_pinned else None
    return ValueLocation(entry.path, entry.offset or 0, entry.length, pin, entry.checksum)


def decode_data(data: str | dict[str, Any], key: str, where: str) -> bytes:
    """Decode inline data: a text, a text of base64, or an object, which becomes a text of JSON."""
    if isinstance(data, dict):
        return zarrmeta.dumps(data)
    if not data.startswith("base64:"):
        return data.encode("utf-8", "surrogatepass")
    try:
        return decode_base64(data)
    except ValueError as e:
        raise ManifestError(f"{where}: {key!r}: {e}") from e


# The declarations of manifests in metadata. Readers see the metadata without them.


MARK = NAME.encode()  # bytes by which metadata with a declaration are recognised
_ZEROS = {"bool": False, "complex64": [0, 0], "complex128": [0, 0]}  # fill values; other data types have 0


class Declaration(NamedTuple):
    """The grid of an array, and its ``manifest`` (a path, or JSON), or the ``problem`` of an invalid declaration.

    A group has no grid. ``origins`` are the servers of the sets that URLs in the manifest come from.
    """

    grid: ChunkGrid | None
    manifest: str | bytes | None = None
    problem: str | None = None
    origins: Origins = NOTHING


class StripManifests(msgspec.Struct, frozen=True):
    """Rewrite metadata so that readers see nodes with a chunk manifest as ordinary nodes."""

    def make_rewriter(self, data: bytes) -> Callable[[Mapping[str, Any], str], NodeView[Declaration]]:
        return _strip_declaration


def _strip_declaration(doc: Mapping[str, Any], path: str) -> NodeView[Declaration]:
    """Return the metadata of the node ``path`` without its declaration, and the declaration."""
    is_group = doc.get("node_type") == "group"
    grid = None if is_group else grid_of(doc)
    match doc.get("storage_transformers"):
        case [{"name": name} as transformer] if name == NAME:
            pass
        case [*transformers] if any(isinstance(other, dict) and other.get("name") == NAME for other in transformers):
            return doc, Declaration(grid, None, zarrmeta.find_transformer_problem(doc))
        case _:
            return doc, None if is_group else Declaration(grid)
    if grid is None and not is_group:
        found = " and ".join(zarrmeta.shorten(doc.get(name)) for name in ("chunk_grid", "chunk_key_encoding"))
        return doc, Declaration(None, None, f"expected a known chunk_grid and chunk_key_encoding, found {found}")
    manifest = read_declaration(transformer)
    if manifest is None:
        expected = "expected a configuration with a 'manifest': a path or an object"
        return doc, Declaration(grid, None, f"its {NAME} is {zarrmeta.shorten(transformer)}: {expected}")
    ordinary = {name: value for name, value in doc.items() if name != "storage_transformers"}
    if grid is not None and not is_codec_list(doc.get("codecs")):
        ordinary["codecs"] = [make_lost_codec(path)]
        if doc.get("fill_value") is None:  # without a fill value, readers fail before they see the codec's error
            ordinary["fill_value"] = _ZEROS.get(str(doc.get("data_type")), 0)
    origins = read_member(transformer["configuration"], f"the metadata of {path!r}")
    return ordinary, Declaration(grid, manifest, origins=origins)


def read_declaration(transformer: Mapping[str, Any]) -> str | bytes | None:
    """Return the manifest in a storage transformer: a path, or JSON; None if there is none."""
    match transformer:
        case {"configuration": {"manifest": str(path)}} if path:
            return path
        case {"configuration": {"manifest": dict(inline)}}:
            return zarrmeta.dumps(inline)
    return None


# Paths in a chunk manifest. An absolute URL is used as it is. A relative path is resolved from the place of the
# manifest. If the manifest is a whole object, its place is a URL, and paths become URLs. Otherwise (a member of an
# archive, a key of a reference set, inline data), its place is a key of the source, and relative paths become keys.


class Url(NamedTuple):
    """The URL to which a path is resolved."""

    url: str


class Key(NamedTuple):
    """The key, in the source of the manifest, to which a path is resolved."""

    key: str


class PathResolver:
    """Resolve the paths in a manifest."""

    def __init__(self, key: str, entry: Entry | None, options: OpenOptions, *, has_keys: bool = True) -> None:
        """Resolve paths of the manifest at ``key`` of a source; ``entry`` is the entry of this key.

        Without ``has_keys``, the manifest itself is the source, and paths never become keys.
        """
        directory = None
        match entry:
            case Span(url, 0, None):
                directory = policy.directory_of(url)
        self._directory = parent(key)[0]
        self._resolve: Callable[[str], str] = make_resolver(options, directory)
        local = options.protocol is None or options.protocol in policy.LOCAL
        self._by_key = has_keys and directory is None and options.base_url is None and local and not options.bare_as_is

    def resolve(self, path: str, where: str, key: str | None = None) -> Url | Key:
        """Resolve ``path``. If it leads out of the source, raise ManifestError, which names manifest and ``key``."""
        try:
            if not self._by_key or policy.protocol_of(path) is not None or policy.is_absolute(path):
                return Url(self._resolve(path))
            return Key(resolve_key(self._directory, path))
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}" if key is None else f"{where}: {key!r}: {e}") from e

    def make_entry(self, value: ValueLocation, base: KeySpace | None, where: str, key: str) -> Steps[Entry]:
        """Return the entry of ``key`` for a ``value`` that the manifest ``where`` locates.

        A path that is a key is looked up in ``base``. Raises ReferenceNotReachable if ``base`` does not have the key,
        or if the value of the key has too few bytes.
        """
        entry: Entry = Inline(value.data)
        if value.path is not None:
            entry = yield from self._make_range(value.path, value, base, where, key)
        return add_checksum(entry, value.checksum, where, key)

    def _make_range(self, path: str, value: ValueLocation, base: KeySpace | None, where: str, key: str) -> Steps[Entry]:
        offset, length, pin = value.offset, value.length, value.pin
        match self.resolve(path, where, key):
            case Url(url):
                return Span(url, offset, None if length is None else offset + length, pin=pin)
            case Key(name):
                entry = None if base is None else (yield from base.lookup(name))
        if entry is None:
            reason = "the manifest refers to this key: expected it in the source, found none"
            raise ReferenceNotReachable(key, repr(name), reason)
        if isinstance(entry, Span):
            entry = msgspec.structs.replace(entry, optional=False, pin=pin or entry.pin)
        try:
            if length is not None:
                return entry.part(offset, length)
            return entry.take_window(offset) if offset else entry
        except ValueError as e:
            raise ReferenceNotReachable(key, repr(name), str(e)) from e


def resolve_key(directory: str, path: str) -> str:
    """Return the key of the relative ``path`` in ``directory``. Raise ManifestError if it leads out of the source."""
    joined = posixpath.normpath(posixpath.join(directory, path))
    if joined == ".." or joined.startswith(("../", "/")):
        raise ManifestError(
            f"the relative path {path!r} leads out of its source: pass the URL from which it starts as base_url="
        )
    tail = "/" if path.endswith("/") and joined != "." else ""
    return ("" if joined == "." else joined) + tail

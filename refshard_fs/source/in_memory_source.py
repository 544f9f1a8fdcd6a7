"""Sources in memory: parsed once, compared by content, cheap to hash and to pickle."""

from __future__ import annotations

import base64
import hashlib
import os
import weakref
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec
from fsspec.implementations.reference import LazyReferenceMapper

from refshard_fs.core.stats import format_bytes, format_count
from refshard_fs.cubes.document import dump_with_marker
from refshard_fs.errors import ManifestError
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.references import binary as pickled
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.source.virtual_dataset import convert_to_references, is_virtual_dataset

ICECHUNK: Final = "icechunk::"  # other libraries put this before the URL of a repository
_MARK = "refshard-held"  # the key of the digest in the JSON value of a source in memory
_MAX_JSON = 1 << 20  # bytes: the JSON value of a larger source has only its digest, not its content


class InMemorySource(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A reference set or the bytes of a document, and a digest of its content."""

    content: ReferenceSet | bytes
    digest: str

    def get_arguments(self) -> Mapping[str, Any]:
        """Return default arguments for opening the targets; the arguments of the filesystem take precedence."""
        return {}

    def read_ranges(self) -> ReadRanges | None:
        """Return ranges of the sources that this source joins; None if this process has read none."""
        return None

    def to_json_value(self) -> dict[str, str]:
        """Return a JSON value for `make_portable_source`: the digest, and the content if it is small.

        In this process, the digest alone is enough to find the source.
        """
        _known[self.digest] = self
        out = {_MARK: self.digest}
        size = len(self.content) if isinstance(self.content, bytes) else self.content.nbytes
        if size <= _MAX_JSON:
            data = self.content if isinstance(self.content, bytes) else References(self.content).to_json()
            out["base64"] = base64.b64encode(data).decode()
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        packed = _packed.get(self)
        if packed is None:
            content = self.content
            packed = pickled.compress_bytes(content) if isinstance(content, bytes) else pickled.pack_compressed(content)
            _packed[self] = packed
        return _unpickled, (self.digest, packed)

    def __repr__(self) -> str:  # fsspec compares instances by this text: it has to contain the digest
        if isinstance(self.content, bytes):
            kind = f"a document of {format_bytes(len(self.content))}"
        else:
            kind = f"references to {format_count(len(self.content.urls), 'target')}"
        return f"<{kind}, in memory: {self.digest[:32]}>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InMemorySource) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


_known: weakref.WeakValueDictionary[str, InMemorySource] = weakref.WeakValueDictionary()

# Pickled contents are cached: dask pickles a source twice to name an array, and once for each graph.
_packed: weakref.WeakKeyDictionary[InMemorySource, bytes | list[bytes]] = weakref.WeakKeyDictionary()


def _unpickled(digest: str, content: bytes | list[bytes]) -> InMemorySource:
    """Return the source with ``digest``; unpack ``content`` only if this process does not have the source."""
    found = _known.get(digest)
    if found is None:
        unpacked = (
            pickled.unpack_compressed(content) if isinstance(content, bytes) else pickled.decompress_bytes(content)
        )
        found = _known[digest] = InMemorySource(unpacked, digest)
    return found


def _register(content: ReferenceSet | bytes) -> InMemorySource:
    digest = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else compute_digest(content)
    return _known.setdefault(digest, InMemorySource(content, digest))


def _from_json_value(value: Mapping[str, Any]) -> InMemorySource:
    """Return the source from a value of `InMemorySource.to_json_value`."""
    known = _known.get(value[_MARK])
    if known is not None:
        return known
    if "base64" not in value:
        raise ManifestError(
            "this JSON has only the digest of its source, because the source is larger than 1 MiB, and this process "
            "does not have it. Send pickle.dumps(fs) instead, which contains the source; or, if it is a set of "
            "references, save it with fs.save('refs.parquet'), and open that path"
        )
    return _register(base64.b64decode(value["base64"]))


def parse_references(document: bytes | Mapping[str, Any], where: str) -> ReferenceSet:
    """Parse a reference set from the bytes of its JSON, or from the decoded JSON; errors begin with ``where``."""
    from refshard_fs.formats.kerchunk_json import source as kerchunk_json

    if isinstance(document, bytes):
        return kerchunk_json.parse(document, where, {})
    return kerchunk_json.parse_document(document, where, {})


def find_target_arguments(fo: Any) -> Mapping[str, Any]:
    """Return the default arguments for opening the targets of ``fo``; only sources in memory have any."""
    return fo.get_arguments() if isinstance(fo, InMemorySource) else {}


def get_content(source: str | InMemorySource) -> ReferenceSet | bytes | None:
    """Return the content of a source in memory; None for a URL."""
    return source.content if isinstance(source, InMemorySource) else None


def argument_to_json(argument: Any) -> Any:
    """Return an argument of a filesystem as a JSON value."""
    return argument.to_json_value() if isinstance(argument, InMemorySource) else argument


def make_portable_source(
    fo: Any, target_protocol: str | None, overrides: Mapping[str, str] | None, simple: bool
) -> str | InMemorySource:
    """Convert ``fo`` to an absolute URL, or to a source in memory: a value that means the same in every process."""
    match fo:
        case InMemorySource():
            return fo
        case _ if is_virtual_dataset(fo):
            return _register(convert_to_references(fo))
        case str() | PurePath():
            return _make_absolute(str(fo).removeprefix(ICECHUNK), target_protocol)
        case bytes() | bytearray() | memoryview():
            return _register(bytes(fo))
        case Mapping() if _MARK in fo and fo.keys() <= {_MARK, "base64"}:
            return _from_json_value(fo)
        case {"refshard": str()}:
            return make_portable_source(dump_with_marker(fo), target_protocol, overrides, simple)
        case Mapping():
            from refshard_fs.formats.kerchunk_json import source as kerchunk_json

            if isinstance(fo, LazyReferenceMapper):
                fo = _read_lazy_references(fo)
            refs = kerchunk_json.parse_document(fo, "the references in memory", overrides or {}, simple=simple)
            return _register(refs)
        case _ if hasattr(fo, "read"):
            data = _read_content(fo)
            if not isinstance(data, bytes):
                raise TypeError(
                    f"expected a file in binary mode for fo=, got one in text mode ({fo!r}): open it as 'rb'"
                )
            return _register(data)
        case _:
            raise TypeError(
                "expected a URL, a path, a list of these, a mapping, bytes, a binary file, a virtual dataset, or a "
                f"store and a path for fo=, got {type(fo).__name__}"
            )


def _read_content(file: Any) -> Any:
    """Read the whole content of a file object, and restore its position; of a pipe, read the rest."""
    if not (hasattr(file, "seekable") and file.seekable()):
        return file.read()
    position = file.tell()
    try:
        file.seek(0)
        return file.read()
    finally:
        file.seek(position)


def _read_lazy_references(mapper: LazyReferenceMapper) -> dict[str, Any]:
    """Return all references of fsspec's ``mapper``, by one look-up for each key: its ``items()`` has other keys."""
    refs = {key: mapper[key] for key in mapper}
    # A row without a reference has NaN in place of the URL.
    return {key: value for key, value in refs.items() if isinstance(value, bytes | str) or value[0] == value[0]}


def _make_absolute(url: str, protocol: str | None) -> str:
    if "://" in url or "::" in url:
        return url
    if protocol not in (None, "", "file", "local"):
        return f"{protocol}://{url}"
    ends = "/" if url.endswith("/") else ""
    return os.path.abspath(os.path.expanduser(url)) + ends


def compute_digest(refs: ReferenceSet) -> str:
    """Return a digest of the content of a set."""
    keys, pins, tables = refs.keys, refs.pins, refs.chunks
    texts = [refs.urls] if pins is None else [refs.urls, pins.etags, pins.times]
    columns: list[Any] = [keys.joined_keys, *keys.ranges, keys.data]
    columns += [column for text in texts for column in (text.data, text.ends)]
    columns += [] if pins is None else [pins.sizes]
    columns += [column for table in tables.values() for column in (*table.ranges, table.numbers) if column is not None]
    grids, lengths = [(path, table.grid) for path, table in tables.items()], list(map(len, columns))
    state = hashlib.sha256(repr((grids, lengths, refs.origins.by_prefix or None)).encode("utf-8", "surrogatepass"))
    try:
        state.update(msgspec.msgpack.encode(keys.objects))
    except (TypeError, ValueError, OverflowError, RecursionError):  # msgpack cannot encode a value
        try:
            state.update(repr(list(keys.objects.items())).encode("utf-8", "surrogatepass"))
        except RecursionError:
            raise ManifestError(f"{refs.where}: a value is nested too deeply for Python's recursion limit") from None
    for column in columns:
        state.update(memoryview(column))
    return state.hexdigest()

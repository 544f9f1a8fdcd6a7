"""Decode values of a manifest to bytes or grids, and make its URLs absolute. No I/O here."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any, Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Row
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.security import policy

METADATA: Final = zarrmeta.ARRAY_DOCUMENTS


def find_grid(key: str, value: Value, where: str) -> ChunkGrid | None:
    """Return the grid of the array with the metadata ``key``; None if ``value`` is a reference or has no grid.

    Errors name the set ``where``.
    """
    if type(value) is Row:
        return None
    try:
        doc = value if isinstance(value, dict) else zarrmeta.loads(decode(value))
    except ValueError:
        return None  # a reader of the key gets the damaged bytes, and raises its own error
    meta = zarrmeta.array_meta(doc, f"{key!r} of {where}") if isinstance(doc, dict) else None
    return None if meta is None else meta.grid


class GridReader:
    """Parse the grids of arrays in the set ``where``; parse equal texts once, because most are equal."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._by_text: dict[str, ChunkGrid | None] = {}
        self._grids: dict[ChunkGrid, ChunkGrid] = {}  # one object for all equal grids

    def read_grid(self, key: str, value: Value) -> ChunkGrid | None:
        """Return the grid of the array with the metadata ``key``; None if ``value`` is a reference or has no grid."""
        if type(value) is not str:
            return find_grid(key, value, self._where)
        if value not in self._by_text:
            grid = zarrmeta.parse_plain_grid(value) if key.endswith(".zarray") else None
            grid = grid or find_grid(key, value, self._where)
            self._by_text[value] = None if grid is None else self._grids.setdefault(grid, grid)
        return self._by_text[value]


def decode(value: Value) -> bytes:
    """Decode an inline value to bytes; ValueError if it is not valid base64 or text."""
    match value:
        case str():
            return decode_base64(value) if value.startswith("base64:") else value.encode()
        case bytes():
            return value
        case dict():
            return _encode_object(value)
        case _:
            raise TypeError(f"expected inline data, got the reference {value!r}")


def decode_base64(text: str) -> bytes:
    """Decode base64, which may begin with "base64:"; ValueError if it is damaged."""
    try:
        return base64.b64decode("".join(text.removeprefix("base64:").split()), validate=True)
    except ValueError as e:
        raise ValueError(f"its base64 text is damaged: {e}") from e


def _encode_object(value: dict[str, Any]) -> bytes:
    """Encode an object to the bytes that fsspec returns for it if ujson is installed."""
    import ujson  # imported here, because few sets have objects

    try:
        return bytes(ujson.dumps(value), "ascii")
    except (TypeError, OverflowError, RecursionError):  # TypeError if the object has bytes
        return zarrmeta.dumps(value)


def object_in(value: Value, where: str) -> dict[str, Any]:
    """Parse a metadata document; ManifestError, which begins with ``where``, if it is not a JSON object."""
    if isinstance(value, dict):
        return value
    try:
        data = decode(value)
    except ValueError as e:
        raise ManifestError(f"{where}: {e}") from e
    return zarrmeta.object_in(data, where)


def encode(data: bytes) -> str:
    """Encode data for a JSON set: as text if they are UTF-8 and do not look like base64, otherwise in base64."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if not text.startswith("base64:"):
            return text
    return "base64:" + base64.b64encode(data).decode()


def check_name(key: str) -> None:
    """Raise ManifestError if ``key`` cannot be the name of a file, because it has lone surrogates."""
    if not is_utf8(key):
        raise ManifestError(f"{key!r} has a lone surrogate, which names of files cannot have: save the set as JSON")


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be encoded in UTF-8: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_resolver(options: OpenOptions, directory: str | None) -> Callable[[str | None], str]:
    """Return a function that makes the URLs of a manifest in ``directory`` absolute."""
    base = options.base_url if options.base_url is not None else directory

    def resolve(url: str | None) -> str:
        if url is None:
            if options.target is None:
                raise ManifestError("the reference has no URL: pass target=, the URL of its target")
            url = options.target
        if options.bare_as_is and options.base_url is None:
            return url
        if options.base_url is not None and policy.protocol_of(url) is None and not policy.is_absolute(url):
            return policy.relative_to(base or "", url)
        return policy.resolve(url, base, options.protocol)

    return resolve

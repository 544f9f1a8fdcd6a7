"""Decompress zlib and gzip streams with libdeflate, twice as fast as zlib, if the package ``deflate`` is installed.

libdeflate needs the decompressed size in advance; the metadata of an array state it. If libdeflate fails, zlib
decompresses the stream, so that results and errors are always zlib's.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

_LARGEST: Final = 1 << 28  # bytes: the largest result, because its memory is allocated before the stream is checked


@cache
def _import_library() -> Any:
    try:
        return importlib.import_module("deflate")
    except ImportError:
        return None


def try_zlib(data: Any, expected: int) -> bytearray | None:
    """Decompress the zlib stream in ``data`` if the result has at most ``expected`` bytes; else return None."""
    library = _import_library()
    if library is None or not 0 < expected <= _LARGEST:
        return None
    try:
        decoded: bytearray = library.zlib_decompress(data, expected)
    except (
        library.DeflateError
    ):  # the stream is damaged, or its result is longer than expected: zlib decodes the latter
        return None
    return decoded


def try_gzip(data: Any, expected: int) -> bytearray | None:
    """Decompress ``data`` if it is a single gzip member of ``expected`` decompressed bytes; else return None."""
    library = _import_library()
    if library is None or not 0 < expected <= _LARGEST:
        return None
    try:
        decoded: bytearray = library.gzip_decompress(data, expected)
    except library.DeflateError:
        return None
    # libdeflate stops after the first member. If there are several, the last four bytes (ISIZE in RFC 1952) are the
    # size of another member.
    is_all = len(decoded) == expected and bytes(memoryview(data)[-4:]) == (expected & 0xFFFFFFFF).to_bytes(4, "little")
    return decoded if is_all else None


@cache
def _define_codecs() -> dict[str, Any]:
    """Return subclasses of numcodecs' codecs, by identifier, that decode with libdeflate."""
    from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy  # slow to import, so imported only here
    from numcodecs.gzip import GZip
    from numcodecs.zlib import Zlib

    def define(own: Any, fast: Any) -> Any:
        class FastCodec(own):  # type: ignore[misc]  # numcodecs has no types
            def __init__(self, level: int, expected: int) -> None:
                super().__init__(level)
                self._expected = expected

            def __reduce__(self) -> Any:
                return own, (self.level,)

            def decode(self, buf: Any, out: Any = None) -> Any:
                data = ensure_contiguous_ndarray(buf)
                decoded = fast(data, self._expected)
                if decoded is None:
                    decoded = super().decode(data)
                    self._expected = len(decoded)  # filters may change the size of all chunks: expect this size next
                return decoded if out is None else ndarray_copy(decoded, ensure_contiguous_ndarray(out))

        FastCodec.__name__ = FastCodec.__qualname__ = own.__name__
        return FastCodec

    return {"zlib": define(Zlib, try_zlib), "gzip": define(GZip, try_gzip)}


def accelerate_codec(codec: Any, expected: int) -> Any:
    """Return a codec that decodes like numcodecs' ``codec``, but with libdeflate if possible; else ``codec`` itself.

    ``expected`` is the size in bytes of most chunks after decoding.
    """
    kind = getattr(codec, "codec_id", None)
    if kind not in ("zlib", "gzip") or _import_library() is None:
        return codec
    fast = _define_codecs()[kind]
    return fast(codec.level, expected) if type(codec) in fast.__mro__ else codec

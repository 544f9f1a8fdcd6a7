"""zlib and gzip streams decompressed by libdeflate, twice as fast as by zlib, where the package ``deflate`` is there.

libdeflate needs the size of the result beforehand, which the metadata of an array tell. A stream that it does not
decompress goes to zlib, so that results and errors are zlib's in every case.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

_LARGEST: Final = 1 << 28  # bytes of a result for which memory is taken before anything is known of the stream


@cache
def _library() -> Any:
    try:
        return importlib.import_module("deflate")
    except ImportError:
        return None


def fast_zlib(data: Any, expected: int) -> bytearray | None:
    """Return the bytes of the zlib stream in ``data``, if it has ``expected`` bytes or fewer; None otherwise."""
    library = _library()
    if library is None or not 0 < expected <= _LARGEST:
        return None
    try:
        made: bytearray = library.zlib_decompress(data, expected)
    except library.DeflateError:  # zlib tells whether the stream is damaged or only longer
        return None
    return made


def fast_gzip(data: Any, expected: int) -> bytearray | None:
    """Return the bytes of the gzip member in ``data``, if there is one member of ``expected`` bytes; None otherwise."""
    library = _library()
    if library is None or not 0 < expected <= _LARGEST:
        return None
    try:
        made: bytearray = library.gzip_decompress(data, expected)
    except library.DeflateError:
        return None
    # libdeflate stops after the first of several members. ISIZE, the last four bytes, is then another's (RFC 1952).
    is_all = len(made) == expected and bytes(memoryview(data)[-4:]) == (expected & 0xFFFFFFFF).to_bytes(4, "little")
    return made if is_all else None


@cache
def _codecs() -> dict[str, Any]:
    """Return the classes of codecs by identifier: numcodecs' own, with another way to decode."""
    from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy  # heavy, and needed to decode chunks alone
    from numcodecs.gzip import GZip
    from numcodecs.zlib import Zlib

    def decoding(own: Any, fast: Any) -> Any:
        class Fast(own):  # type: ignore[misc]  # numcodecs has no types
            def __init__(self, level: int, expected: int) -> None:
                super().__init__(level)
                self._expected = expected

            def __reduce__(self) -> Any:
                return own, (self.level,)

            def decode(self, buf: Any, out: Any = None) -> Any:
                data = ensure_contiguous_ndarray(buf)
                made = fast(data, self._expected)
                if made is None:
                    made = super().decode(data)
                    self._expected = len(made)  # of chunks that a filter has made longer or shorter
                return made if out is None else ndarray_copy(made, ensure_contiguous_ndarray(out))

        Fast.__name__ = Fast.__qualname__ = own.__name__
        return Fast

    return {"zlib": decoding(Zlib, fast_zlib), "gzip": decoding(GZip, fast_gzip)}


def fast_codec(codec: Any, expected: int) -> Any:
    """Return the numcodecs codec ``codec`` as one that decodes by libdeflate; ``codec`` itself where there is none.

    ``expected`` is the number of bytes that most chunks have.
    """
    kind = getattr(codec, "codec_id", None)
    if kind not in ("zlib", "gzip") or _library() is None:
        return codec
    made = _codecs()[kind]
    return made(codec.level, expected) if type(codec) in made.__mro__ else codec

"""Decode the values of a CDF file: types, byte orders, compression, and times. No I/O here."""

from __future__ import annotations

import math
import re
import zlib
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import decompress
from refshard_fs.errors import ManifestError
from refshard_fs.formats.cdf.records import ADAPTIVE_HUFFMAN, GZIP, HUFFMAN, RLE

_BIG: Final = (1, 2, 5, 7, 9, 11, 12, 18)  # numbers of the encodings of a file, by byte order
_LITTLE: Final = (4, 6, 13, 16, 17, 19)
_VAX: Final = (3, 14, 15, 20, 21)  # little-endian, with VAX floats
# Numpy's data types by the number of CDF's type, without the byte order; "S" stands for texts.
_TYPES: Final = {
    1: "i1", 2: "i2", 4: "i4", 8: "i8", 11: "u1", 12: "u2", 14: "u4", 21: "f4", 22: "f8", 41: "i1", 44: "f4", 45: "f8",
    31: "f8", 32: "c16", 33: "i8", 51: "S", 52: "S",
}  # fmt: skip
EPOCH, EPOCH16, TT2000 = 31, 32, 33
UNITS: Final = {EPOCH: "microseconds", EPOCH16: "nanoseconds", TT2000: "nanoseconds"}  # units of the shown times
NOT_A_TIME: Final = np.iinfo(np.int64).min

_YEAR_0: Final = -62_167_219_200  # seconds from 1970 to the origin of EPOCH and EPOCH16
_YEAR_9999: Final = 315_569_519_999  # seconds from year 0 to the end of 9999, a time that means "no time"
# TAI is ahead of UTC by 11, 12 ... 37 seconds from the first day of these months on. The last leap second was in 2016.
_LEAPS: Final = (
    "1972-07 1973-01 1974-01 1975-01 1976-01 1977-01 1978-01 1979-01 1980-01 1981-07 1982-07 1983-07 1985-07 1988-01 "
    "1990-01 1991-01 1992-07 1993-07 1994-07 1996-01 1997-07 1999-01 2006-01 2009-01 2012-07 2015-07 2017-01"
)
# Before 1972, TAI - UTC grew every day. For each period: its first day, TAI - UTC in seconds on a reference day, this
# reference day (MJD), and the growth in seconds a day.
_DRIFTS: Final = (
    "1960-01-01 1.4178180 37300 0.001296 1961-01-01 1.4228180 37300 0.001296 1961-08-01 1.3728180 37300 0.001296 "
    "1962-01-01 1.8458580 37665 0.0011232 1963-11-01 1.9458580 37665 0.0011232 1964-01-01 3.2401300 38761 0.001296 "
    "1964-04-01 3.3401300 38761 0.001296 1964-09-01 3.4401300 38761 0.001296 1965-01-01 3.5401300 38761 0.001296 "
    "1965-03-01 3.6401300 38761 0.001296 1965-07-01 3.7401300 38761 0.001296 1965-09-01 3.8401300 38761 0.001296 "
    "1966-01-01 4.3131700 39126 0.002592 1968-02-01 4.2131700 39126 0.002592 1972-01-01 10 0 0"
)
_SECOND: Final = 1_000_000_000
_NOON_OF_1970: Final = 40_587.5  # MJD of noon on 1970-01-01: TAI - UTC at noon is used for the whole day
_J2000: Final = 946_727_967_816_000_000  # nanoseconds of TAI from 1970 to the origin of TT2000
_TAI_OF_LEAPS: Final = np.array(_LEAPS.split(), "M8[ns]").astype(np.int64) + _SECOND * np.arange(11, 38)
_TAI_OF_1972: Final = 63_072_010 * _SECOND


class Kind(msgspec.Struct, frozen=True):
    """The type of values: its number in the CDF format, and the name of its data type in numpy."""

    number: int
    name: str

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.name)

    @property
    def is_text(self) -> bool:
        return self.name[0] == "S"

    @property
    def is_plain(self) -> bool:
        """Whether readers get the bytes of values unchanged."""
        return self.number not in UNITS and self.name != "S1"

    @property
    def shown_dtype(self) -> np.dtype[Any]:
        """The data type that readers see. Times are integers. S1 becomes S2, because xarray joins texts of 1 byte."""
        return np.dtype("<i8" if self.number in UNITS else "S2" if self.name == "S1" else self.name)

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert values of the file to `shown_dtype`."""
        if self.number == TT2000:
            return convert_tt2000(values.astype("<i8"))
        return convert_epoch(values) if self.number in UNITS else values.astype(self.shown_dtype, copy=False)


def find_kind(number: int, elements: int, encoding: int) -> Kind:
    """Return the type with this ``number`` in a file of this ``encoding``. A text has ``elements`` characters.

    Raises ManifestError if the type or the encoding is not supported.
    """
    name = _TYPES.get(number)
    if name is None:
        raise ManifestError(f"its data type has the number {number}: expected {', '.join(map(str, sorted(_TYPES)))}")
    if encoding not in _BIG + _LITTLE + _VAX:
        known = ", ".join(map(str, sorted(_BIG + _LITTLE + _VAX)))
        raise ManifestError(f"its encoding has the number {encoding}: expected {known}")
    if name == "S":
        return Kind(number, f"S{max(elements, 1)}")
    if encoding in _VAX and name[0] in "fc":
        raise ManifestError("its values are VAX floats: convert the file by cdfconvert -encoding ibmpc")
    return Kind(number, np.dtype((">" if encoding in _BIG else "<") + name).str)


def make_default_pad(kind: Kind) -> bytes:
    """Return the bytes of a missing value of a variable that has no pad value."""
    dtype = kind.stored_dtype
    if kind.is_text:
        return b" " * dtype.itemsize
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array(limits.max - 1 if dtype.kind == "u" else limits.min + 1).astype(dtype).tobytes()
    return np.array(0 if kind.number in UNITS else -1e30).astype(dtype).tobytes()


def convert_tt2000(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Convert nanoseconds of TT since J2000 to nanoseconds of UTC since 1970.

    A leap second has the same values as the second after it.
    """
    latest = np.iinfo(np.int64).max - _J2000  # 64-bit nanoseconds end in the year 2262
    are_times = (times > NOT_A_TIME + 1) & (times < latest)
    tai = np.where(are_times, times, 0) + _J2000
    ahead = _SECOND * (10 + np.searchsorted(_TAI_OF_LEAPS, tai, side="right"))
    if tai.size and tai.min() < _TAI_OF_1972:
        ahead = np.where(tai < _TAI_OF_1972, _find_lead_before_1972(tai), ahead)
    return np.where(are_times, tai - ahead, NOT_A_TIME)


def _find_lead_before_1972(tai: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the nanoseconds by which TAI is ahead of UTC: a constant for each day, 0 before 1960."""
    fields = _DRIFTS.split()
    starts = np.array(fields[::4], "M8[D]").astype(np.int64)
    at_day, days, growths = (np.array([0, *map(float, fields[column::4])]) for column in (1, 2, 3))
    ahead = np.zeros(tai.shape, np.int64)
    for _ in range(3):  # iterate, because the day in UTC depends on the result
        day = (tai - ahead) // (86_400 * _SECOND)
        row = np.searchsorted(starts, day, side="right")
        ahead = ((at_day[row] + (day + _NOON_OF_1970 - days[row]) * growths[row]) * _SECOND).astype(np.int64)
    return ahead


def convert_epoch(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Convert times of the types EPOCH and EPOCH16 (complex) to microseconds and nanoseconds since 1970."""
    is_long = times.dtype.kind == "c"
    seconds = times.real if is_long else times / 1000
    limit = (1 << 63) / _SECOND if is_long else _YEAR_9999
    are_times = (seconds > 0) & (seconds + _YEAR_0 < limit) & (seconds < _YEAR_9999) & (seconds + _YEAR_0 > -limit)
    if is_long:
        whole_seconds = np.where(are_times, times.real, 0).astype("<i8") + _YEAR_0
        converted = whole_seconds * _SECOND + np.floor(np.where(are_times, times.imag, 0) / 1000).astype("<i8")
    else:
        converted = np.rint((np.where(are_times, times, 0) + 1000 * _YEAR_0) * 1000).astype("<i8")
    return np.where(are_times, converted, NOT_A_TIME)


def check_compression(kind: int) -> None:
    """Raise ManifestError if the compression ``kind`` is not supported."""
    if kind in (HUFFMAN, ADAPTIVE_HUFFMAN):
        name = "Huffman" if kind == HUFFMAN else "adaptive Huffman"
        raise ManifestError(f"it is compressed by {name}: convert the file by cdfconvert -compression vars:gzip.6")
    if kind not in (RLE, GZIP):
        raise ManifestError(f"its compression has the number {kind}: expected {RLE} (RLE) or {GZIP} (gzip)")


class DecompressionRecipe(msgspec.Struct, frozen=True):
    """Decompress a block of values to ``size`` bytes."""

    compression: int
    size: int

    def make(self, raw: bytes) -> bytes:
        if self.compression == GZIP:
            decompressed = decompress(zlib.decompressobj(wbits=31), raw, self.size)
        else:  # RLE: a zero byte and a count stand for count + 1 zeros
            expanded_size = len(raw) + sum(run[1][0] - 1 for run in _RUN.finditer(raw))
            decompressed = _RUN.sub(lambda run: bytes(run[1][0] + 1), raw) if expanded_size <= self.size else b""
        if len(decompressed) != self.size:
            raise ValueError(f"it decompresses to {len(decompressed)} bytes: expected {self.size}")
        return decompressed


_RUN: Final = re.compile(rb"\0(.)", re.DOTALL)


class ConversionRecipe(msgspec.Struct, frozen=True):
    """Convert the values of a chunk by `Kind.convert`, and reorder its axes to ``axes``.

    A shorter chunk is padded to ``stored_shape``, the shape in the file. ``is_compressed``: the result is compressed
    with gzip, as the array's metadata say.
    """

    kind: Kind
    stored_shape: tuple[int, ...]
    axes: tuple[int, ...]
    is_compressed: bool

    def make(self, raw: bytes) -> bytes:
        size = math.prod(self.stored_shape) * self.kind.stored_dtype.itemsize
        if len(raw) > size:
            raise ValueError(f"a chunk has {len(raw)} bytes: expected at most {size}")
        values = np.frombuffer(raw.ljust(size, b"\0"), self.kind.stored_dtype).reshape(self.stored_shape)
        return self.encode(self.kind.convert(values).transpose(self.axes).tobytes())

    def make_fill(self, pad: bytes) -> bytes:
        """Return the bytes of a chunk whose values all are ``pad``, the bytes of a missing value."""
        return self.encode(
            self.kind.convert(np.frombuffer(pad, self.kind.stored_dtype)).tobytes() * math.prod(self.stored_shape)
        )

    def encode(self, raw: bytes) -> bytes:
        return zlib.compress(raw, 1, wbits=31) if self.is_compressed else raw

"""Decode the values of GRIB fields, by numpy and imagecodecs. No I/O here."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import add_up, decode_by_imagecodecs, unpack_bits
from refshard_fs.formats.grib2.messages import BY_COLUMNS, SPECTRAL, TO_AND_FRO, Octets, parse_integer, parse_signed

_Array = npt.NDArray[Any]
_AT_ONCE: Final = 1 << 14  # values that are unpacked and scaled at a time: they fit into a processor's cache
_Piece = tuple[_Array, _Array | None]  # some numbers, and which of them are missing: None if no number is


class _FieldValues(msgspec.Struct, frozen=True):
    """A recipe that decodes sections of ``sizes`` bytes to 32-bit floats for ``count`` points, NaN where missing.

    If the grid is scanned by columns, or in alternating directions (``flags``), the values are rearranged to rows of
    ``across`` values in one direction.
    """

    count: int
    sizes: tuple[int, ...]
    across: int = 0
    flags: int = 0

    @property
    def size(self) -> int:
        """The decoded size in bytes."""
        return self.count * 4

    def make(self, raw: bytes) -> bytes:
        with np.errstate(all="ignore"):  # some numbers are larger than 32-bit floats, and become infinite
            return _arrange_rows(self._decode(memoryview(raw)), self.across, self.flags).tobytes()

    def _decode(self, raw: memoryview) -> _Array:
        """Return the values in stored order."""
        raise NotImplementedError

    def _place(self, values: _Array, bitmap: _Array | None) -> _Array:
        """Return the values of all points, given the values of the points in the ``bitmap``."""
        if bitmap is None:
            return values.astype("<f4", copy=False)
        if np.count_nonzero(bitmap) != len(values):
            raise ValueError(f"its bitmap has {np.count_nonzero(bitmap)} points: expected {len(values)}, as values")
        out = np.full(self.count, np.nan, "<f4")
        out[bitmap] = values
        return out

    def _read_bitmap(self, section: Octets) -> _Array:
        """Return a mask of the points with a value: the bits of a section from octet 7 on."""
        if 8 * (len(section) - 6) < self.count:
            raise ValueError(f"its bitmap has {len(section) - 6} bytes: expected a bit for each of {self.count} points")
        return np.unpackbits(np.frombuffer(section[6:], "u1"), count=self.count).view(bool)


def _check_size(size: int, found: int) -> None:
    if found != size:  # the file may have been replaced since it was opened
        raise ValueError(f"expected a section of {size} bytes, found one of {found}: was the file replaced?")


class Values(_FieldValues, frozen=True):
    """Decodes a field of edition 2 from its sections 5 (packing), 6 (bitmap) and 7 (data)."""

    def _decode(self, raw: memoryview) -> _Array:
        parts = []
        for size in self.sizes:
            _check_size(size, parse_integer(raw, 1, 4))
            parts.append(raw[:size])
            raw = raw[size:]
        packing, bitmap, data = parts
        template, stored, where = parse_integer(packing, 10, 2), parse_integer(packing, 6, 4), parse_integer(bitmap, 6)
        if where not in (0, 255) or stored > self.count or (where == 255 and stored != self.count):
            raise ValueError(
                f"it stores {stored} values, with bitmap number {where}: expected {self.count}, or a bitmap"
            )
        if not stored:
            values = np.empty(0)
        elif template in _UNSCALED:
            values = _UNSCALED[template](data[5:], packing, stored)
        elif template in _SCALABLE:
            values = self._scale(template, packing, data[5:], stored)
        else:
            raise ValueError(f"values packed by template {template} are not decoded")
        return self._place(values, self._read_bitmap(bitmap) if where == 0 else None)

    @staticmethod
    def _scale(template: int, packing: memoryview, data: memoryview, stored: int) -> _Array:
        scale, bits = _Scale.of(packing), parse_integer(packing, 20)
        if not (parse_integer(packing, 32, 4) if template in (2, 3) else bits):
            values = np.broadcast_to(scale.reference, stored)  # without groups or bits, the reference is not scaled
        else:
            numbers = _SCALABLE[template](data, packing, bits, stored)
            values = scale.apply(numbers, stored, "f8" if template == _LOGARITHM else "f4")
        if template == _LOGARITHM:
            values = np.exp(values) - _parse_float(packing, 21)
        return values


class _Scale(NamedTuple):
    """The value of a packed number is ``(number * factor + reference) * decimal``."""

    reference: float
    factor: float
    decimal: float

    @classmethod
    def of(cls, packing: Octets) -> _Scale:
        """Parse section 5 of edition 2."""
        return cls(
            _parse_float(packing, 12),
            _raise_to_power(2, parse_signed(packing, 16, 2)),
            _raise_to_power(10, -parse_signed(packing, 18, 2)),
        )

    def apply(self, pieces: Iterator[_Piece], count: int, dtype: str = "f4") -> _Array:
        """Return the values of packed numbers, NaN for missing ones."""
        values, done, room = np.empty(count, dtype), 0, np.empty(0)
        for numbers, missing in pieces:
            room = room if numbers.size <= room.size else np.empty(numbers.size)  # is used again
            scaled, some = room[: numbers.size], values[done : done + numbers.size]
            scaled[:] = numbers
            if self.factor != 1:
                scaled *= self.factor
            scaled += self.reference
            if self.decimal != 1:
                scaled *= self.decimal
            some[:] = scaled
            if missing is not None:
                np.copyto(some, np.nan, where=missing)
            done += numbers.size
        return values


def _parse_float(packing: Octets, octet: int) -> float:
    return float(struct.unpack(">f", parse_integer(packing, octet, 4).to_bytes(4))[0])


def _raise_to_power(base: int, exponent: int) -> float:
    """Return a power, rounded as eccodes rounds it: by repeated multiplication or division."""
    found = 1.0
    for _ in range(min(abs(exponent), 1100)):  # more powers of 2 are infinite, or 0
        found = found * base if exponent > 0 else found / base
    return found


def _arrange_rows(values: _Array, across: int, flags: int) -> _Array:
    """Return scanned values in rows of one direction."""
    if not flags & (BY_COLUMNS | TO_AND_FRO):
        return values
    lines = values.reshape((across, -1) if flags & BY_COLUMNS else (-1, across))
    if flags & TO_AND_FRO:
        lines[1::2] = lines[1::2, ::-1].copy()
    return lines.T if flags & BY_COLUMNS else lines


# Packings. Each function takes section 7 without its header, section 5, and the number of stored values.


def _decode_ieee(data: Octets, packing: Octets, stored: int) -> _Array:
    size = {1: 4, 2: 8}.get(parse_integer(packing, 12), 0)
    if not size or len(data) != stored * size:
        raise ValueError(f"expected {stored} IEEE numbers of 4 or 8 bytes, found {len(data)} bytes")
    return np.frombuffer(data, f">f{size}")


def _decode_run_length(data: Octets, packing: Octets, stored: int) -> _Array:
    """Decode numbers of levels; digits after a number state how often its level is repeated."""
    bits, highest, levels = parse_integer(packing, 12), parse_integer(packing, 13, 2), parse_integer(packing, 15, 2)
    base = (1 << bits) - 1 - highest  # base of the digits, least significant first
    if not 0 < bits <= 16 or base <= 0 or not 0 < highest <= levels or len(packing) < 17 + 2 * levels:
        raise ValueError(f"its runs have {bits} bits, and {highest} of {levels} levels: they contradict each other")
    numbers = unpack_bits(data, bits, len(data) * 8 // bits).astype("i8")
    begins = np.flatnonzero(numbers <= highest)
    if not begins.size or begins[0]:
        raise ValueError("its first run has no level")
    rank = np.arange(numbers.size) - np.repeat(begins, np.diff(begins, append=numbers.size)) - 1
    digits = np.where(rank < 0, 1.0, (numbers - highest - 1) * float(base) ** np.clip(rank, 0, 16))
    lengths = np.add.reduceat(digits, begins)
    if lengths.sum() != stored:
        raise ValueError(f"expected {stored} values, found runs of {lengths.sum():.0f}")
    table = np.frombuffer(packing[17 : 17 + 2 * levels], ">u2") * _raise_to_power(10, -parse_signed(packing, 17, 1))
    return np.repeat(np.concatenate([[np.nan], table])[numbers[begins]], lengths.astype("i8"))


def _decode_simple(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Piece]:
    for first in range(0, stored, _AT_ONCE):
        yield _unpack(data[first * bits // 8 :], bits, min(_AT_ONCE, stored - first)), None


def _unpack(data: Octets, bits: int, count: int) -> _Array:
    """Unpack numbers of at most 64 bits; without bits, all are 0."""
    return unpack_bits(data, bits, count) if bits else np.zeros(count, "u1")


def _cut(numbers: _Array, stored: int) -> Iterator[_Piece]:
    if numbers.size != stored:
        raise ValueError(f"expected {stored} packed values, found {numbers.size}")
    return ((numbers[first : first + _AT_ONCE], None) for first in range(0, stored, _AT_ONCE))


def _decode_jpeg_2000(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Piece]:
    right, bottom, left, top = (parse_integer(data, octet, 4) for octet in (9, 13, 17, 21))
    shape, components = (bottom - top, right - left), parse_integer(data, 41, 2)
    depth = (parse_integer(data, 43) & 127) + 1
    if math.prod(shape) != stored or components != 1:
        raise ValueError(f"expected {stored} values, found a JPEG 2000 image of {shape} with {components} components")
    # The image may have fewer bits than the packed numbers.
    out = np.zeros(shape, f"u{1 if depth <= 8 else 2 if depth <= 16 else 4}")
    decode_by_imagecodecs("jpeg2k_decode", data, "grib", out=out)
    return _cut(out.ravel(), stored)


def _decode_png(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Piece]:
    """Decode an image whose channels are the bytes of the numbers."""
    points, depth = parse_integer(data, 17, 4) * parse_integer(data, 21, 4), parse_integer(data, 25)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(parse_integer(data, 26), 0)
    if points != stored or depth * channels not in (8, 16, 24, 32):
        raise ValueError(f"expected {stored} values, found a PNG image of {points} points of {channels} x {depth} bits")
    parts = np.asarray(decode_by_imagecodecs("png_decode", data, "grib")).reshape(stored, channels).astype("u4")
    numbers = np.zeros(stored, "u4")
    for channel in range(channels):
        numbers = numbers << depth | parts[:, channel]
    return _cut(numbers, stored)


def _decode_ccsds(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Piece]:
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    flags = parse_integer(packing, 22) & ~6  # numbers of whole words, least significant byte first
    block, interval = parse_integer(packing, 23), parse_integer(packing, 24, 2)
    # With other blocks, libaec writes anywhere. With restricted codes of many bits, it frees its state twice.
    is_restricted = flags & 16 and 4 < bits <= 8
    if block not in (8, 16, 32, 64) or not 0 < interval <= 4096 or bits > 32 or is_restricted:
        raise ValueError(f"invalid CCSDS blocks of {block} values of {bits} bits, {interval} in an interval")
    options = {"bitspersample": bits, "flags": flags, "blocksize": block, "rsi": interval}
    room = size * (stored + block * interval)  # padding may follow the last value of a block
    decoded = decode_by_imagecodecs("aec_decode", data, "grib", out=room, **options)
    return _cut(np.frombuffer(decoded, f"<u{size}")[:stored], stored)


def _read_columns(data: Octets, at: int, sizes: Sequence[int], groups: int) -> tuple[list[_Array], int]:
    """Return numbers of each of the ``groups``, in columns from the byte ``at`` on, and the end of the last column."""
    if max(sizes) > 32:
        raise ValueError(f"its groups have numbers of {max(sizes)} bits: expected at most 32")
    columns = []
    for bits in sizes:
        columns.append(_unpack(data[at:], bits, groups).astype("i8"))
        at += -(-bits * groups // 8)
    return columns, at


def _unpack_groups(data: Octets, groups: Sequence[_Array], limits: _Array | None, stored: int) -> Iterator[_Piece]:
    """Yield the numbers of groups; each group has a reference, a width and a length.

    With ``limits``, a number that reaches its group's limit, before the reference is added, is missing.
    """
    references, widths, lengths = groups
    is_whole = lengths.sum() == stored and lengths.min() >= 0 and lengths.max() <= stored  # the sum may wrap
    if not is_whole or widths.max() > 32 or (widths * lengths).sum() > 8 * len(data):
        reason = f"found {lengths.sum()} in {len(lengths)} groups, or too few bytes"
        raise ValueError(f"expected {stored} values, {reason}")
    # A word holds a number from any bit of its first byte. The values below fit into as many bits.
    is_small = widths.max() <= 25 and np.abs(references).max() < 1 << 30 and lengths.max() <= 1 << 26
    bits, signed_type, word = (32, "i4", "u4") if is_small else (64, "i8", "u8")
    words = np.ndarray((len(data) + 1,), f">{word}", bytes(data) + bytes(8), strides=(1,))  # from each byte on
    references, widths = references.astype(signed_type), widths.astype(signed_type)
    limits = None if limits is None else limits.astype(word)
    ends = np.cumsum(lengths)
    first = done = begin = 0
    while first < len(lengths):
        last = max(int(np.searchsorted(ends, done + _AT_ONCE, "right")), first + 1)
        some, done = slice(first, last), int(ends[last - 1])
        length = lengths[some]
        width = np.repeat(widths[some], length)
        at = width.copy()
        add_up(at)
        at += begin & 7
        stop = int(at[-1]) if at.size else begin & 7
        near = words[begin >> 3 :][: (stop >> 3) + 1].astype(word)
        at -= width  # where each number begins
        found = near.take(at >> 3, mode="clip")  # all are within the words; "clip" is faster than a check
        at &= 7
        found <<= at.view(word)
        np.subtract(bits, width, out=width)
        found >>= width.view(word)  # a shift by all bits leaves 0
        missing = None if limits is None else found >= np.repeat(limits[some], length)
        numbers = np.repeat(references[some], length)
        numbers += found.view(signed_type)
        yield numbers, missing
        first, begin = last, (begin & ~7) + stop


def _add_differences(pieces: Iterator[_Piece], firsts: Sequence[int]) -> Iterator[_Piece]:
    """Yield numbers, given their ``firsts`` and then differences; the order of the differences is the count of the
    firsts.

    The ``pieces`` have no values in the places of the firsts.
    """
    order = len(firsts)
    begins = np.diff(np.array([0] * order + list(firsts), "i8"), order)  # differences of the firsts, preceded by zeros
    sums = [0] * order
    for found, missing in pieces:
        numbers = found.astype("i8") if order else found
        if begins.size:
            some = (np.arange(numbers.size) if missing is None else np.flatnonzero(~missing))[: begins.size]
            numbers[some], begins = begins[: some.size], begins[some.size :]
        for each in range(order if numbers.size else 0):
            if missing is not None:
                np.copyto(numbers, 0, where=missing)  # missing numbers have no differences
            numbers[0] += sums[each]
            add_up(numbers)
            sums[each] = numbers[-1]
        yield numbers, missing


def _decode_complex(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Piece]:
    """Decode numbers in groups, maybe differences of numbers."""
    groups, missing = parse_integer(packing, 32, 4), parse_integer(packing, 23)
    has_order = parse_integer(packing, 10, 2) == 3
    order, size = (parse_integer(packing, octet) if has_order else 0 for octet in (48, 49))
    if not 0 < groups <= stored or missing > 2 or order > 2 or size > 8:
        raise ValueError(f"invalid packing of {stored} values in {groups} groups, as differences of order {order}")
    at = size * (order + 1) if order else 0
    firsts = [parse_integer(data, 1 + size * number, size) for number in range(order)]
    least = parse_signed(data, 1 + size * order, size) if order else 0
    sizes = bits, parse_integer(packing, 37), parse_integer(packing, 47)
    (references, widths, lengths), at = _read_columns(data, at, sizes, groups)
    widths += parse_integer(packing, 36)
    lengths = lengths * parse_integer(packing, 42) + parse_integer(packing, 38, 4)
    lengths[-1] = parse_integer(packing, 43, 4)
    limits = None
    if missing:  # the highest numbers stand for missing values; in groups without bits, the highest references
        limits = np.where(widths > 0, (1 << np.minimum(widths, 32)) - missing, references < (1 << bits) - missing)
    return _add_differences(_unpack_groups(data[at:], (references + least, widths, lengths), limits, stored), firsts)


def _decode_spectral_complex(data: Octets, packing: Octets, stored: int) -> _Array:
    if parse_integer(packing, 35) != 1 or len({parse_integer(packing, octet, 2) for octet in (25, 27, 29)}) > 1:
        raise ValueError("its unpacked spectral coefficients are not a triangle of 32-bit numbers")
    subset, power = parse_integer(packing, 25, 2), parse_signed(packing, 21, 4) / 1e6
    return _decode_spectrum(data, subset, power, parse_integer(packing, 20), stored, _Scale.of(packing))


def _decode_spectrum(
    data: Octets, subset: int, power: float, bits: int, count: int, scale: _Scale, is_edition_1: bool = False
) -> _Array:
    """Decode ``count`` real and imaginary parts, ordered by zonal wave number m, then by n = m and on.

    Coefficients up to n = ``subset`` are not packed. The others were multiplied by a ``power`` of n (n + 1).
    """
    truncation = find_truncation(count)
    m, n = np.triu_indices(truncation + 1)
    is_plain = n <= subset
    plain = 2 * int(np.count_nonzero(is_plain))
    if subset > truncation or len(data) < 4 * plain or bits > 32:
        raise ValueError(f"its subset {subset} of {truncation} orders takes more bytes than it has")
    if subset == truncation:  # eccodes writes and reads these as IEEE numbers in edition 1, too
        return np.frombuffer(data, ">f4", plain) * scale.decimal
    orders = np.arange(1, truncation + 1)
    try:
        scales = np.array([0, *(1 / order**power for order in (orders * (orders + 1)).tolist())])
    except ArithmeticError as e:
        raise ValueError(f"its spectral coefficients cannot be scaled by the power {power}: {e}") from None
    values = np.zeros((len(m), 2))
    values[is_plain] = (decode_ibm_floats(data, plain) if is_edition_1 else np.frombuffer(data, ">f4", plain)).reshape(
        -1, 2
    )
    if is_edition_1:  # GRIBEX also scaled the last order of the subset
        values[n == subset] *= scales[subset]
    pieces = _decode_simple(data[4 * plain :], b"", bits, count - plain)
    unscaled = scale._replace(decimal=1.0).apply(pieces, count - plain, "f8").reshape(-1, 2)
    values[~is_plain] = scale.decimal * unscaled * scales[n[~is_plain], None]
    values[(m == 0) & ~is_plain, 1] = 0  # they are integers, except for rounding
    return values.ravel()


def find_truncation(count: int) -> int:
    """Return the triangular truncation with ``count`` real and imaginary parts; ValueError if there is none."""
    truncation = (math.isqrt(4 * count + 1) - 3) // 2
    if truncation < 0 or (truncation + 1) * (truncation + 2) != count:
        raise ValueError(f"no triangular truncation has {count} coefficients")
    return truncation


_LOGARITHM: Final = 61
_SCALABLE: Final[dict[int, Callable[..., Iterator[_Piece]]]] = {  # by template: decoders
    0: _decode_simple,
    2: _decode_complex,
    3: _decode_complex,
    40: _decode_jpeg_2000,
    41: _decode_png,
    42: _decode_ccsds,
    _LOGARITHM: _decode_simple,
}
_UNSCALED: Final = {
    4: _decode_ieee,
    51: _decode_spectral_complex,
    200: _decode_run_length,
}  # decoders by template; they give values


# Edition 1.


def decode_ibm_floats(data: Octets, count: int) -> npt.NDArray[np.float64]:
    """Decode IBM's floating-point numbers: a sign, a power of 16 plus 64, and 24 bits of fraction."""
    bits = np.frombuffer(data, ">u4", count).astype("i8")
    values: npt.NDArray[np.float64] = np.ldexp((bits & 0xFFFFFF).astype("f8"), 4 * ((bits >> 24 & 127) - 64) - 24)
    values[bits >> 31 == 1] *= -1
    return values


_COMPLEX, _OTHER_TYPES = 0x40, 0x10  # flags of section 4: groups, or spectra with a subset; more flags at octet 14
_EXTENDED, _ROWS_TURN = 0x18, 0x04  # more flags: groups have widths and lengths; rows run to and fro


class Values1(_FieldValues, frozen=True):
    """Decodes a field of edition 1 from its sections 3 (a bitmap, if there is one) and 4 (data).

    ``decimal`` is the decimal scale factor, which section 1 states.
    """

    decimal: int = 0

    def _decode(self, raw: memoryview) -> _Array:
        *bitmaps, size = self.sizes
        section, data = raw[:-size], raw[-size:]
        if bitmaps:
            _check_size(len(section), parse_integer(section, 1, 3))
        if parse_integer(data, 1, 3) >= 120:  # longer ones are in messages of over 8 MB, and state other lengths
            _check_size(size, parse_integer(data, 1, 3))
        bitmap = self._read_bitmap(section) if bitmaps else None
        stored = self.count if bitmap is None else int(np.count_nonzero(bitmap))
        flags, reference = parse_integer(data, 4), float(decode_ibm_floats(data[6:], 1)[0])
        scale = _Scale(reference, _raise_to_power(2, parse_signed(data, 5, 2)), _raise_to_power(10, -self.decimal))
        if flags & SPECTRAL:
            return self._place(self._decode_spectral(data, scale), None)
        if flags & _COMPLEX:
            out = self._place(scale.apply(self._decode_second_order(data, stored), stored), bitmap)
            return _arrange_rows(out, self.across, TO_AND_FRO).ravel() if parse_integer(data, 14) & _ROWS_TURN else out
        bits, unused = parse_integer(data, 11), flags & 0xF
        if flags & _OTHER_TYPES:
            raise ValueError(f"values packed with flags {flags:#x} are not decoded")
        spare = 8 * (len(data) - 11) - unused - stored * bits  # sections are padded to an even length
        if bits > 64 or spare < 0 or (bits and stored and spare >= max(bits, 16)):
            raise ValueError(f"expected {stored} values of {bits} bits, found {len(data) - 11} bytes")
        if not bits or not stored:
            return self._place(np.broadcast_to(reference, stored), bitmap)  # the reference is not scaled
        return self._place(scale.apply(_decode_simple(data[11:], b"", bits, stored), stored), bitmap)

    def _decode_spectral(self, data: memoryview, scale: _Scale) -> _Array:
        """Decode spectral coefficients: all are packed, except the first one or a subset."""
        bits = parse_integer(data, 11)
        if not parse_integer(data, 4) & _COMPLEX:
            pieces = _decode_simple(data[15:], b"", bits, self.count - 1)
            return np.concatenate([decode_ibm_floats(data[11:], 1), scale.apply(pieces, self.count - 1, "f8")])
        if len({parse_integer(data, octet) for octet in (16, 17, 18)}) > 1:
            raise ValueError("its unpacked spectral coefficients are not a triangle")
        return _decode_spectrum(
            data[18:], parse_integer(data, 16), parse_signed(data, 14, 2) / 1000, bits, self.count, scale, True
        )

    def _decode_second_order(self, data: memoryview, stored: int) -> Iterator[_Piece]:
        """Decode numbers in groups, maybe differences of numbers."""
        flags, groups = parse_integer(data, 14), parse_integer(data, 17, 2) | parse_integer(data, 21) << 16
        order = flags & 3
        if flags & 0x78 != _EXTENDED:
            raise ValueError(f"its second-order packing has flags {flags:#x}: only the general extended one is decoded")
        if flags & _ROWS_TURN and (self.count % self.across or self.across == self.count):
            raise ValueError(
                "expected rows of equal length in its grid, since its second-order packing reverses every second row"
            )
        width = parse_integer(data, 26) if order else 1
        if not 0 < groups <= stored - order or not 0 < width <= 32:
            raise ValueError(
                f"it has {groups} groups and differences of {width} bits: expected 1 to {stored - order} and 1 to 32"
            )
        at, firsts, bias = 25, [], 0
        if order:
            *firsts, bias = unpack_bits(data[26:], width, order + 1).tolist()
            sign = 1 << width - 1
            bias, at = (sign - bias if bias & sign else bias), 26 + -(-width * (order + 1) // 8)
        sizes = tuple(parse_integer(data, octet) for octet in (22, 23, 11))
        (widths, lengths, references), at = _read_columns(data, at, sizes, groups)
        references += bias
        if order:  # a group without bits keeps the place of the first values
            begin = (0, references), (0, widths), (order, lengths)
            references, widths, lengths = (np.concatenate([[one], others]) for one, others in begin)
        return _add_differences(_unpack_groups(data[at:], (references, widths, lengths), None, stored), firsts)

"""Decode the values of GRIB fields with numpy and imagecodecs. No I/O here."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import add_up, decode_by_imagecodecs, unpack_bits
from refshard_fs.formats.grib2.messages import (
    BY_COLUMNS,
    PACKINGS,
    SPECTRAL,
    TO_AND_FRO,
    Octets,
    count_coefficients,
    parse_integer,
    parse_signed,
    parse_truncation,
)

_Array = npt.NDArray[Any]
_AT_ONCE: Final = 1 << 14  # values that are unpacked and scaled at a time, so that they stay in a processor's cache
_Block = tuple[_Array, _Array | None]  # numbers, and a mask of missing numbers: None if no number is missing


class _FieldValues(msgspec.Struct, frozen=True):
    """Recipe: decode sections of ``sizes`` bytes to 32-bit floats for ``count`` points; missing values become NaN.

    If the scanning ``flags`` of the grid state columns, or alternating directions, the values are rearranged to rows of
    ``across`` values that all run in one direction.
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
        return self.decode(raw).tobytes()

    def decode(self, raw: bytes) -> _Array:
        """Return the values, row by row."""
        with np.errstate(all="ignore"):  # some numbers are larger than 32-bit floats, and become infinite
            return _arrange_rows(self._decode(memoryview(raw)), self.across, self.flags)

    def convert(self, values: _Array) -> _Array:
        """Return decoded ``values`` unchanged."""
        return values

    def _decode(self, raw: memoryview) -> _Array:
        """Return the values in the order of the file."""
        raise NotImplementedError

    def _insert_missing(self, values: _Array, bitmap: _Array | None) -> _Array:
        """Return the values of all points: ``values`` where the ``bitmap`` is true, NaN elsewhere."""
        if bitmap is None:
            return values.astype("<f4", copy=False)
        if np.count_nonzero(bitmap) != len(values):
            raise ValueError(
                f"its bitmap has {np.count_nonzero(bitmap)} points: expected {len(values)}, one for each value"
            )
        points = np.full(self.count, np.nan, "<f4")
        points[bitmap] = values
        return points

    def _read_bitmap(self, section: Octets) -> _Array:
        """Return a mask of the points that have a value: the bits of a section from octet 7 on."""
        if 8 * (len(section) - 6) < self.count:
            raise ValueError(f"its bitmap has {len(section) - 6} bytes: expected a bit for each of {self.count} points")
        return np.unpackbits(np.frombuffer(section[6:], "u1"), count=self.count).view(bool)


def _check_size(size: int, stated: int) -> None:
    """Raise ValueError if a section states another size than when the file was opened."""
    if stated != size:
        raise ValueError(f"expected a section of {size} bytes, found one of {stated}: was the file replaced?")


class Values(_FieldValues, frozen=True):
    """Recipe: decode a field of edition 2 from its sections 5 (packing), 6 (bitmap) and 7 (data)."""

    def _decode(self, raw: memoryview) -> _Array:
        parts = []
        for size in self.sizes:
            _check_size(size, parse_integer(raw, 1, 4))
            parts.append(raw[:size])
            raw = raw[size:]
        packing, bitmap, data = parts
        template, stored, kind = parse_integer(packing, 10, 2), parse_integer(packing, 6, 4), parse_integer(bitmap, 6)
        if kind not in (0, 255) or stored > self.count or (kind == 255 and stored != self.count):
            raise ValueError(
                f"it has {stored} values, with a bitmap of kind {kind}: expected {self.count} values without a bitmap "
                "(255), or at most as many with a bitmap in the message (0)"
            )
        if not stored:
            values = np.empty(0)
        elif template in _UNSCALED:
            values = _UNSCALED[template](data[5:], packing, stored)
        elif template in _SCALABLE:
            values = self._scale(template, packing, data[5:], stored)
        else:
            raise ValueError(f"its values are packed by template {template}: expected one of {PACKINGS}")
        return self._insert_missing(values, self._read_bitmap(bitmap) if kind == 0 else None)

    @staticmethod
    def _scale(template: int, packing: memoryview, data: memoryview, stored: int) -> _Array:
        """Return the ``stored`` values of a packing whose numbers are scaled."""
        scale, bits = _Scale.parse(packing), parse_integer(packing, 20)
        if not (parse_integer(packing, 32, 4) if template in (2, 3) else bits):
            values = np.broadcast_to(scale.reference, stored)  # then eccodes does not scale the reference
        else:
            numbers = _SCALABLE[template](data, packing, bits, stored)
            values = scale.apply(numbers, stored, "f8" if template == _LOGARITHM else "f4")
        if template == _LOGARITHM:
            values = np.exp(values) - _parse_float(packing, 21)
        return values


class _Scale(NamedTuple):
    """The scale of packed numbers: a value is ``(number * factor + reference) * decimal``."""

    reference: float
    factor: float
    decimal: float

    @classmethod
    def parse(cls, packing: Octets) -> _Scale:
        """Parse the scale in section 5 of edition 2."""
        return cls(
            _parse_float(packing, 12),
            _raise_to_power(2, parse_signed(packing, 16, 2)),
            _raise_to_power(10, -parse_signed(packing, 18, 2)),
        )

    def apply(self, blocks: Iterator[_Block], count: int, dtype: str = "f4") -> _Array:
        """Return the values of ``count`` packed numbers; missing numbers become NaN."""
        values, done, buffer = np.empty(count, dtype), 0, np.empty(0)
        for numbers, missing in blocks:
            buffer = buffer if numbers.size <= buffer.size else np.empty(numbers.size)  # all blocks share a buffer
            scaled, block = buffer[: numbers.size], values[done : done + numbers.size]
            scaled[:] = numbers
            if self.factor != 1:
                scaled *= self.factor
            scaled += self.reference
            if self.decimal != 1:
                scaled *= self.decimal
            block[:] = scaled
            if missing is not None:
                np.copyto(block, np.nan, where=missing)
            done += numbers.size
        return values


def _parse_float(packing: Octets, octet: int) -> float:
    return float(struct.unpack(">f", parse_integer(packing, octet, 4).to_bytes(4))[0])


def _raise_to_power(base: int, exponent: int) -> float:
    """Return a power with the rounding of eccodes, which multiplies or divides again and again."""
    power = 1.0
    for _ in range(min(abs(exponent), 1100)):  # higher powers of 2 are infinite, or 0
        power = power * base if exponent > 0 else power / base
    return power


def _arrange_rows(values: _Array, across: int, flags: int) -> _Array:
    """Return values, which are in the order of scanning ``flags``, in rows of ``across`` that run in one direction."""
    if not flags & (BY_COLUMNS | TO_AND_FRO):
        return values
    lines = values.reshape((across, -1) if flags & BY_COLUMNS else (-1, across))
    if flags & TO_AND_FRO:
        lines[1::2] = lines[1::2, ::-1].copy()
    return lines.T if flags & BY_COLUMNS else lines


# Packings. Each function takes section 7 without its header, section 5, and the number of values in the message.
# Functions with a parameter ``bits`` return packed numbers of this many bits, in blocks; other functions return values.


def _decode_ieee(data: Octets, packing: Octets, stored: int) -> _Array:
    size = {1: 4, 2: 8}.get(parse_integer(packing, 12), 0)
    if not size:
        raise ValueError(
            f"its IEEE numbers have precision {parse_integer(packing, 12)}: expected 1 or 2 (4 or 8 bytes)"
        )
    if len(data) != stored * size:
        raise ValueError(f"expected {stored} IEEE numbers of {size} bytes, found {len(data)} bytes")
    return np.frombuffer(data, f">f{size}")


def _decode_run_length(data: Octets, packing: Octets, stored: int) -> _Array:
    """Decode runs: a number of a level, and the digits of the length of the run."""
    bits, highest, levels = parse_integer(packing, 12), parse_integer(packing, 13, 2), parse_integer(packing, 15, 2)
    base = (1 << bits) - 1 - highest  # base of the digits; the least significant digit comes first
    if not 0 < bits <= 16 or base <= 0 or not 0 < highest <= levels or len(packing) < 17 + 2 * levels:
        raise ValueError(
            f"its runs are numbers of {bits} bits, the numbers 1 to {highest} stand for levels, and its section 5 "
            f"has {levels} levels in {len(packing)} bytes: expected 1 to 16 bits, numbers for 1 to {levels} levels and "
            f"further numbers for the lengths of runs, and a section of {17 + 2 * levels} bytes or more"
        )
    numbers = unpack_bits(data, bits, len(data) * 8 // bits).astype("i8")
    begins = np.flatnonzero(numbers <= highest)
    if not begins.size or begins[0]:
        raise ValueError("its first run begins with the digit of a length: expected the number of a level first")
    rank = np.arange(numbers.size) - np.repeat(begins, np.diff(begins, append=numbers.size)) - 1
    digits = np.where(rank < 0, 1.0, (numbers - highest - 1) * float(base) ** np.clip(rank, 0, 16))
    lengths = np.add.reduceat(digits, begins)
    if lengths.sum() != stored:
        raise ValueError(f"expected {stored} values, found runs of {lengths.sum():.0f}")
    table = np.frombuffer(packing[17 : 17 + 2 * levels], ">u2") * _raise_to_power(10, -parse_signed(packing, 17, 1))
    return np.repeat(np.concatenate([[np.nan], table])[numbers[begins]], lengths.astype("i8"))


def _decode_simple(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Block]:
    for first in range(0, stored, _AT_ONCE):
        yield _unpack(data[first * bits // 8 :], bits, min(_AT_ONCE, stored - first)), None


def _unpack(data: Octets, bits: int, count: int) -> _Array:
    """Unpack ``count`` numbers of at most 64 bits; numbers of 0 bits are 0."""
    return unpack_bits(data, bits, count) if bits else np.zeros(count, "u1")


def _split_blocks(numbers: _Array, stored: int) -> Iterator[_Block]:
    """Return numbers in blocks; ValueError if there are not as many as ``stored``."""
    if numbers.size != stored:
        raise ValueError(f"expected {stored} packed values, found {numbers.size}")
    return ((numbers[first : first + _AT_ONCE], None) for first in range(0, stored, _AT_ONCE))


def _decode_jpeg_2000(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Block]:
    right, bottom, left, top = (parse_integer(data, octet, 4) for octet in (9, 13, 17, 21))
    shape, components = (bottom - top, right - left), parse_integer(data, 41, 2)
    depth = (parse_integer(data, 43) & 127) + 1
    if math.prod(shape) != stored or components != 1:
        found = f"a JPEG 2000 image of {shape} with {components} components"
        raise ValueError(f"expected {stored} values in 1 component, found {found}")
    # The image may state fewer bits than the section, so its own depth decides the type.
    out = np.zeros(shape, f"u{1 if depth <= 8 else 2 if depth <= 16 else 4}")
    decode_by_imagecodecs("jpeg2k_decode", data, "grib", out=out)
    return _split_blocks(out.ravel(), stored)


def _decode_png(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Block]:
    """Decode an image; the channels of a point are the bytes of a number, the most significant first."""
    points, depth = parse_integer(data, 17, 4) * parse_integer(data, 21, 4), parse_integer(data, 25)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(parse_integer(data, 26), 0)
    if points != stored or depth * channels not in (8, 16, 24, 32):
        raise ValueError(f"expected {stored} values, found a PNG image of {points} points of {channels} x {depth} bits")
    parts = np.asarray(decode_by_imagecodecs("png_decode", data, "grib")).reshape(stored, channels).astype("u4")
    numbers = np.zeros(stored, "u4")
    for channel in range(channels):
        numbers = numbers << depth | parts[:, channel]
    return _split_blocks(numbers, stored)


def _decode_ccsds(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Block]:
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    flags = parse_integer(packing, 22) & ~6  # decode to words of 1, 2 or 4 bytes, least significant byte first
    block, interval = parse_integer(packing, 23), parse_integer(packing, 24, 2)
    # libaec writes beyond its buffers for other sizes of blocks, and frees memory twice for restricted codes of 5 to 8
    # bits.
    is_restricted = flags & 16 and 4 < bits <= 8
    if block not in (8, 16, 32, 64) or not 0 < interval <= 4096 or bits > 32 or is_restricted:
        raise ValueError(
            f"invalid CCSDS blocks of {block} values of {bits} bits, {interval} in an interval, with flags {flags:#x}: "
            "expected 8, 16, 32 or 64 values of at most 32 bits, 1 to 4096 blocks in an interval, and no restricted "
            "codes (flag 0x10) of 5 to 8 bits"
        )
    options = {"bitspersample": bits, "flags": flags, "blocksize": block, "rsi": interval}
    most = size * (stored + block * interval)  # bytes: padding may follow the last value
    out = np.empty(most, "u1").data  # a number in place of it would take a copy of the result
    decoded = decode_by_imagecodecs("aec_decode", data, "grib", out=out, **options)
    return _split_blocks(np.frombuffer(decoded, f"<u{size}")[:stored], stored)


def _read_columns(data: Octets, at: int, sizes: Sequence[int], groups: int) -> tuple[list[_Array], int]:
    """Return columns of numbers, one for each of the ``groups``, and the byte at which the last column ends.

    The columns begin at byte ``at``; ``sizes`` are the bits of their numbers.
    """
    if max(sizes) > 32:
        raise ValueError(f"its groups have numbers of {max(sizes)} bits: expected at most 32")
    columns = []
    for bits in sizes:
        columns.append(_unpack(data[at:], bits, groups).astype("i8"))
        at += -(-bits * groups // 8)
    return columns, at


def _unpack_groups(data: Octets, groups: Sequence[_Array], limits: _Array | None, stored: int) -> Iterator[_Block]:
    """Yield the numbers of ``groups``: columns with the reference, the width in bits and the length of each group.

    With ``limits``, a number is missing if it reaches the limit of its group before the reference is added.
    """
    references, widths, lengths = groups
    is_whole = lengths.sum() == stored and lengths.min() >= 0 and lengths.max() <= stored  # the sum may overflow
    if not is_whole or widths.max() > 32 or (widths * lengths).sum() > 8 * len(data):
        raise ValueError(
            f"expected {stored} values of at most 32 bits, found {lengths.sum()} in {len(lengths)} groups, of up to "
            f"{widths.max()} bits, in {len(data)} bytes"
        )
    # A word contains a whole number, whichever bit of its last byte the number ends at.
    is_small = widths.max() <= 25 and np.abs(references).max() < 1 << 30 and lengths.max() <= 1 << 26
    size, signed_type, word = (4, "i4", "u4") if is_small else (8, "i8", "u8")
    words = np.ndarray((len(data) + 1,), f">{word}", b"".join([bytes(size), data]), strides=(1,))  # ends at each byte
    references, steps = references.astype(signed_type), (-widths).astype(signed_type)
    masks = ((1 << widths) - 1).astype(word)
    limits = None if limits is None else limits.astype(word)
    ends, bit_ends = np.cumsum(lengths), np.cumsum(widths * lengths)
    first = done = begin = 0
    while first < len(lengths):
        last = max(int(np.searchsorted(ends, done + _AT_ONCE, "right")), first + 1)
        batch, done, stop = slice(first, last), int(ends[last - 1]), int(bit_ends[last - 1])
        length = lengths[batch]
        numbers = np.repeat(references[batch], length)
        packed = np.zeros(numbers.size if stop == begin and limits is not None else 0, word)
        if stop > begin:
            end = -(-stop // 8)
            near = words[begin >> 3 : end + 1][::-1].astype(word)  # from the last word to the first
            at = np.repeat(steps[batch], length)
            at[0] += 8 * end - begin
            add_up(at)  # the bits from the end of each number to byte ``end``
            packed = near.take(at >> 3, mode="clip")  # no index is too large; "clip" is faster than a check
            at &= 7
            packed >>= at.view(word)
            packed &= np.repeat(masks[batch], length)
            numbers += packed.view(signed_type)
        yield numbers, None if limits is None else packed >= np.repeat(limits[batch], length)
        first, begin = last, stop


def _add_differences(blocks: Iterator[_Block], firsts: Sequence[int]) -> Iterator[_Block]:
    """Yield numbers: the first numbers are ``firsts``, and ``blocks`` has the differences of all later numbers.

    The order of the differences is the number of ``firsts``. At the places of ``firsts``, ``blocks`` has any numbers.
    """
    order = len(firsts)
    begins = np.diff(np.array([0] * order + list(firsts), "i8"), order)  # differences of the firsts, preceded by zeros
    sums = [0] * order
    for differences, missing in blocks:
        numbers = differences.astype("i8") if order else differences
        if begins.size:
            places = (np.arange(numbers.size) if missing is None else np.flatnonzero(~missing))[: begins.size]
            numbers[places], begins = begins[: places.size], begins[places.size :]
        for level in range(order if numbers.size else 0):
            if missing is not None:
                np.copyto(numbers, 0, where=missing)  # missing numbers have no differences
            numbers[0] += sums[level]
            add_up(numbers)
            sums[level] = numbers[-1]
        yield numbers, missing


def _decode_complex(data: Octets, packing: Octets, bits: int, stored: int) -> Iterator[_Block]:
    """Decode complex packing: groups of numbers, or groups of differences between numbers."""
    groups, missing = parse_integer(packing, 32, 4), parse_integer(packing, 23)
    has_order = parse_integer(packing, 10, 2) == 3
    order, size = (parse_integer(packing, octet) if has_order else 0 for octet in (48, 49))
    if not 0 < groups <= stored or missing > 2 or order > 2 or size > 8:
        raise ValueError(
            f"invalid packing of {stored} values in {groups} groups, as differences of order {order} in {size} bytes, "
            f"with {missing} kinds of missing values: expected 1 to {stored} groups, an order and kinds of at most 2, "
            "and at most 8 bytes"
        )
    at = size * (order + 1) if order else 0
    firsts = [parse_integer(data, 1 + size * number, size) for number in range(order)]
    least = parse_signed(data, 1 + size * order, size) if order else 0
    sizes = bits, parse_integer(packing, 37), parse_integer(packing, 47)
    (references, widths, lengths), at = _read_columns(data, at, sizes, groups)
    widths += parse_integer(packing, 36)
    lengths = lengths * parse_integer(packing, 42) + parse_integer(packing, 38, 4)
    lengths[-1] = parse_integer(packing, 43, 4)
    limits = None
    if missing:  # the highest numbers mean missing values; in groups of 0 bits, the highest references do
        limits = np.where(widths > 0, (1 << np.minimum(widths, 32)) - missing, references < (1 << bits) - missing)
    return _add_differences(_unpack_groups(data[at:], (references + least, widths, lengths), limits, stored), firsts)


def _decode_spectral_complex(data: Octets, packing: Octets, stored: int) -> _Array:
    if (kind := parse_integer(packing, 35)) != 1:
        raise ValueError(f"its unpacked spectral coefficients have the type {kind}: expected 1 (32 bits)")
    subset, power = parse_truncation(packing, (25, 27, 29), 2), parse_signed(packing, 21, 4) / 1e6
    return _decode_spectrum(data, subset, power, parse_integer(packing, 20), stored, _Scale.parse(packing))


def _decode_spectrum(
    data: Octets, subset: int, power: float, bits: int, count: int, scale: _Scale, is_edition_1: bool = False
) -> _Array:
    """Decode ``count`` real and imaginary parts, in order of the zonal wave number m, then of n from m on.

    Coefficients up to n = ``subset`` are not packed. The writer multiplied the other coefficients by a ``power`` of
    n (n + 1).
    """
    truncation = find_truncation(count)
    m, n = np.triu_indices(truncation + 1)
    is_plain = n <= subset
    plain = 2 * int(np.count_nonzero(is_plain))
    if subset > truncation or len(data) < 4 * plain or bits > 32:
        raise ValueError(
            f"its unpacked coefficients up to {subset} take {4 * plain} of {len(data)} bytes, and its packed "
            f"coefficients have {bits} bits: expected at most the truncation {truncation}, within the data, and 32 bits"
        )
    if subset == truncation:  # eccodes then uses IEEE numbers, in edition 1, too
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
    if is_edition_1:  # the last of the unpacked orders is scaled, too
        values[n == subset] *= scales[subset]
    blocks = _decode_simple(data[4 * plain :], b"", bits, count - plain)
    unscaled = scale._replace(decimal=1.0).apply(blocks, count - plain, "f8").reshape(-1, 2)
    values[~is_plain] = scale.decimal * unscaled * scales[n[~is_plain], None]
    values[(m == 0) & ~is_plain, 1] = 0  # imaginary parts are 0 for m = 0, except for rounding
    return values.ravel()


def find_truncation(count: int) -> int:
    """Return the triangular truncation with ``count`` real and imaginary parts; ValueError if there is none."""
    truncation = (math.isqrt(4 * count + 1) - 3) // 2
    if truncation < 0 or count_coefficients(truncation) != count:
        raise ValueError(f"it has {count} coefficients: expected (n + 1) (n + 2), as a triangular truncation has")
    return truncation


_LOGARITHM: Final = 61
_SCALABLE: Final[dict[int, Callable[..., Iterator[_Block]]]] = {  # template → decoder of packed numbers
    0: _decode_simple,
    2: _decode_complex,
    3: _decode_complex,
    40: _decode_jpeg_2000,
    41: _decode_png,
    42: _decode_ccsds,
    _LOGARITHM: _decode_simple,
}
# Template → decoder of values.
_UNSCALED: Final = {4: _decode_ieee, 51: _decode_spectral_complex, 200: _decode_run_length}


# Edition 1.


def decode_ibm_floats(data: Octets, count: int) -> npt.NDArray[np.float64]:
    """Decode floating-point numbers of IBM: a sign, an exponent of 16 plus 64 (7 bits), and a fraction (24 bits)."""
    bits = np.frombuffer(data, ">u4", count).astype("i8")
    values: npt.NDArray[np.float64] = np.ldexp((bits & 0xFFFFFF).astype("f8"), 4 * ((bits >> 24 & 127) - 64) - 24)
    values[bits >> 31 == 1] *= -1
    return values


# Flags of section 4: values are in groups, or spectra with an unpacked subset; octet 14 has more flags.
_COMPLEX, _MORE_FLAGS = 0x40, 0x10
# Flags at octet 14: groups have widths and lengths; every second row runs backwards.
_EXTENDED, _ROWS_TURN = 0x18, 0x04


class Values1(_FieldValues, frozen=True):
    """Recipe: decode a field of edition 1 from its sections 3 (a bitmap, if there is one) and 4 (data).

    ``decimal`` is the decimal scale factor in section 1.
    """

    decimal: int = 0

    def _decode(self, raw: memoryview) -> _Array:
        *bitmaps, size = self.sizes
        section, data = raw[:-size], raw[-size:]
        if bitmaps:
            _check_size(len(section), parse_integer(section, 1, 3))
        if parse_integer(data, 1, 3) >= 120:  # shorter lengths have another meaning: see `parse_length`
            _check_size(size, parse_integer(data, 1, 3))
        bitmap = self._read_bitmap(section) if bitmaps else None
        stored = self.count if bitmap is None else int(np.count_nonzero(bitmap))
        flags, reference = parse_integer(data, 4), float(decode_ibm_floats(data[6:], 1)[0])
        scale = _Scale(reference, _raise_to_power(2, parse_signed(data, 5, 2)), _raise_to_power(10, -self.decimal))
        if flags & SPECTRAL:
            return self._insert_missing(self._decode_spectral(data, scale), None)
        if flags & _COMPLEX:
            values = self._insert_missing(scale.apply(self._decode_second_order(data, stored), stored), bitmap)
            has_turns = parse_integer(data, 14) & _ROWS_TURN
            return _arrange_rows(values, self.across, TO_AND_FRO).ravel() if has_turns else values
        bits, unused = parse_integer(data, 11), flags & 0xF
        if flags & _MORE_FLAGS:
            raise ValueError(f"its values have the flags {flags:#x}: expected no flag 0x10, which marks matrices")
        spare = 8 * (len(data) - 11) - unused - stored * bits  # sections are padded to an even length
        if bits > 64 or spare < 0 or (bits and stored and spare >= max(bits, 16)):
            found = f"{stored} values of {bits} bits in {len(data) - 11} bytes"
            raise ValueError(f"its section 4 has {found}: expected at most 64 bits, and bytes for exactly these values")
        if not bits or not stored:
            return self._insert_missing(np.broadcast_to(reference, stored), bitmap)  # the reference is not scaled
        return self._insert_missing(scale.apply(_decode_simple(data[11:], b"", bits, stored), stored), bitmap)

    def _decode_spectral(self, data: memoryview, scale: _Scale) -> _Array:
        """Decode spectral coefficients: all are packed, except for the first coefficient, or for a subset."""
        bits = parse_integer(data, 11)
        if not parse_integer(data, 4) & _COMPLEX:
            blocks = _decode_simple(data[15:], b"", bits, self.count - 1)
            return np.concatenate([decode_ibm_floats(data[11:], 1), scale.apply(blocks, self.count - 1, "f8")])
        subset, power = parse_truncation(data, (16, 17, 18)), parse_signed(data, 14, 2) / 1000
        return _decode_spectrum(data[18:], subset, power, bits, self.count, scale, True)

    def _decode_second_order(self, data: memoryview, stored: int) -> Iterator[_Block]:
        """Decode second-order packing: groups of numbers, or groups of differences between numbers."""
        flags, groups = parse_integer(data, 14), parse_integer(data, 17, 2) | parse_integer(data, 21) << 16
        order = flags & 3
        if flags & 0x78 != _EXTENDED:
            raise ValueError(
                f"its second-order packing has flags {flags:#x}: expected the general extended packing (0x18)"
            )
        if flags & _ROWS_TURN and (self.count % self.across or self.across == self.count):
            raise ValueError(
                "its second-order packing reverses every second row: expected rows of equal length in its grid"
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
        if order:  # a group of 0 bits takes the places of the first values
            columns = (0, references), (0, widths), (order, lengths)
            references, widths, lengths = (np.concatenate([[first], others]) for first, others in columns)
        return _add_differences(_unpack_groups(data[at:], (references, widths, lengths), None, stored), firsts)

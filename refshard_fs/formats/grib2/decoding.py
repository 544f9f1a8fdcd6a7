"""Fields of GRIB decoded, by numpy, imagecodecs and eccodes; and parameters named by eccodes. No I/O here."""

from __future__ import annotations

import importlib
import math
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import decode_by_imagecodecs, unpack_bits
from refshard_fs.formats.grib2.edition_1 import ECMWF, ibm
from refshard_fs.formats.grib2.messages import (
    BY_COLUMNS,
    MISSING,
    PACKINGS,
    SPECTRAL,
    TEMPLATES,
    TO_AND_FRO,
    Octets,
    Parameter,
    integer,
    signed,
)

PIECE: Final = 1 << 16  # values that are scaled at a time, as 64-bit floats
_GROUPS: Final = 1 << 12  # groups whose numbers are unpacked at a time: their arrays fit into a processor's cache
_ABSENT: Final = -1 << 63  # a number that stands for a missing value
_LOCK: Final = threading.Lock()  # eccodes keeps state that threads share


def eccodes() -> Any:
    """Return the library."""
    try:
        return importlib.import_module("eccodes")
    except Exception as e:  # it raises errors of its own where its library is not found
        raise ValueError(f'GRIB2 is read by eccodes: pip install "refshard_fs[grib]" ({e})') from e


class Values(msgspec.Struct, frozen=True):
    """The values of a field's ``count`` points as 32-bit floats, NaN where there are none.

    Sections 5, 6 and 7, of ``sizes`` bytes, say how values are packed, at which points there are values, and hold
    them. No library sees any other section. If the grid is scanned by columns, or to and fro (``flags`` of section 3),
    values are put into ``across`` columns of rows that all run one way.
    """

    count: int
    sizes: tuple[int, ...]
    across: int = 0
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes of what is made."""
        return self.count * 4

    def make(self, raw: bytes) -> bytes:
        parts, rest = [], memoryview(raw)
        for size in self.sizes:  # they may have been written anew since the file was opened
            if integer(rest, 1, 4) != size:
                raise ValueError(f"a section of {size} bytes has another length now: was the file replaced?")
            parts.append(rest[:size])
            rest = rest[size:]
        packing, bitmap, data = parts
        template, stored, where = integer(packing, 10, 2), integer(packing, 6, 4), integer(bitmap, 6)
        if where not in (0, 255) or stored > self.count or (where == 255 and stored != self.count):
            raise ValueError(f"{stored} of its {self.count} values are stored, with bitmap number {where}")
        if template not in PACKINGS:
            raise ValueError(f"its values are packed by template {template}, for which there is no decoder here")
        bits = 0 if template in _UNSCALED else integer(packing, 20)
        values: npt.NDArray[Any]
        if stored and template in _UNSCALED:
            values = _UNSCALED[template](data[5:], packing, stored)
        elif not stored or not (integer(packing, 32, 4) if template in (2, 3) else bits):
            # without groups or bits, the reference is the value, which nothing scales
            values = np.broadcast_to(_reference(packing) if stored else np.nan, stored)
            values = _without_logarithm(values, packing) if template == _LOGARITHM and stored else values
        else:
            numbers = _PACKINGS[template](data[5:], packing, bits, stored)
            if numbers.size != stored:
                raise ValueError(f"it has {numbers.size} packed values, where {stored} are due")
            factor, decimal = 2.0 ** signed(packing, 16, 2), 10.0 ** -signed(packing, 18, 2)
            logarithm = packing if template == _LOGARITHM else b""
            values = _scaled(numbers.ravel(), _reference(packing), factor, decimal, logarithm)
        out = _placed(values, _places(bitmap, self.count) if where == 0 else None, self.count)
        return _in_rows(out, self.across, self.flags).tobytes()


_SECOND_ORDER: Final = 0x40  # a flag of section 4: packed in groups, with further flags at octet 14
_EXTENDED, _ROWS_TURN = 0x18, 0x04  # further flags: groups have widths and lengths; rows run to and fro


class Values1(msgspec.Struct, frozen=True):
    """The values of a field of edition 1, made from sections 3 (a bitmap, if there is one) and 4.

    ``decimal`` is the decimal scale factor, which section 1 states. All else is as in `Values`.
    """

    count: int
    sizes: tuple[int, ...]
    decimal: int
    across: int = 0
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes of what is made."""
        return self.count * 4

    def make(self, raw: bytes) -> bytes:
        whole = memoryview(raw)
        bitmap, data = whole[: -self.sizes[-1]], whole[-self.sizes[-1] :]
        for section, size in ((bitmap, len(bitmap)), (data, len(data))):
            if size and integer(section, 1, 3) != size and (section is bitmap or integer(section, 1, 3) >= 120):
                raise ValueError(f"a section of {size} bytes has another length now: was the file replaced?")
        places = _places(bitmap, self.count) if bitmap else None
        stored = self.count if places is None else int(np.count_nonzero(places))
        if integer(data, 4) & 0xC0 == _SECOND_ORDER:
            return self._second_order(data, places, stored)
        if integer(data, 4) & SPECTRAL:
            return self._spectral(data).astype("<f4").tobytes()
        bits, unused, reference = integer(data, 11), integer(data, 4) & 0xF, ibm(data, 7)
        if integer(data, 4) & 0xD0:
            raise ValueError(f"its values are packed in another way than simply: flags {integer(data, 4):#x}")
        spare = 8 * (len(data) - 11) - unused - stored * bits  # sections are filled up to an even length
        if bits > 32 or spare < 0 or (bits and stored and spare >= max(bits, 16)):
            raise ValueError(f"{stored} values of {bits} bits are due, and it has {len(data) - 11} bytes of them")
        values: npt.NDArray[Any] = np.broadcast_to(reference, stored)  # the value, which nothing scales
        with np.errstate(over="ignore"):  # numbers of IBM's may be larger than 32-bit floats
            if bits and stored:
                numbers = unpack_bits(data[11:], bits, stored)
                values = _scaled(numbers, reference, 2.0 ** signed(data, 5, 2), _power_of_ten(-self.decimal))
            out = _placed(values, places, self.count)
        return _in_rows(out, self.across, self.flags).tobytes()

    def _spectral(self, data: Octets) -> npt.NDArray[np.float64]:
        """Return spectral coefficients: packed simply but for the first, or with a subset that is not packed."""
        bits, reference, factor = integer(data, 11), ibm(data, 7), 2.0 ** signed(data, 5, 2)
        decimal = _power_of_ten(-self.decimal)
        if integer(data, 4) & _SECOND_ORDER:  # in spectral fields this flag means complex packing
            if len({integer(data, octet) for octet in (16, 17, 18)}) > 1:
                raise ValueError("its spectral coefficients have a subset of another form than a triangle")
            spectrum = _Spectrum(integer(data, 16), signed(data, 14, 2) / 1000, ">u4", True)
            return spectrum.decode(data[18:], bits, self.count, reference, factor, decimal)
        numbers = _simple(data[15:], b"", bits, self.count - 1).astype("f8").ravel()
        return np.concatenate([[ibm(data, 12)], (numbers * factor + reference) * decimal])

    def _second_order(self, data: Octets, places: npt.NDArray[np.bool_] | None, stored: int) -> bytes:
        """Return values that are packed in groups, maybe as differences, with rows to and fro."""
        flags, groups, order = integer(data, 14), integer(data, 17, 2) | integer(data, 21) << 16, integer(data, 14) & 3
        if flags & 0x78 != _EXTENDED:
            raise ValueError(f"its second-order packing has flags {flags:#x}: only the general extended one is decoded")
        if (flags & _ROWS_TURN and self.count % self.across) or (flags & _ROWS_TURN and self.across == self.count):
            raise ValueError("its second-order packing turns rows, which its grid does not have")
        width = integer(data, 26) if order else 1
        if not 0 < groups <= stored - order or not 0 < width <= 32:
            raise ValueError(f"{stored} values are packed in {groups} groups, with differences of {width} bits")
        at, firsts, bias = 25, np.zeros(0, "i8"), 0
        if order:
            size = -(-width * (order + 1) // 8)
            last = unpack_bits(data[26 : 26 + size], width, order + 1).astype("i8")
            firsts, bias = last[:-1], int(last[-1])
            sign = 1 << width - 1
            bias, at = (sign - bias if bias & sign else bias), 26 + size
        parts = []
        for bits in (integer(data, 22), integer(data, 23), integer(data, 11)):
            parts.append(_simple(data[at:], b"", bits, groups).astype("i8"))
            at += -(-bits * groups // 8)
        widths, lengths, references = parts
        references += bias
        if order:  # a group of no bits keeps the place of the first values
            references, widths, lengths = (
                np.concatenate([[first], each]) for first, each in ((0, references), (0, widths), (order, lengths))
            )
        numbers = _grouped(data[at:], (references, widths, lengths), None, stored)
        _add_up(numbers, firsts)
        values = _scaled(numbers, ibm(data, 7), 2.0 ** signed(data, 5, 2), _power_of_ten(-self.decimal))
        out = _placed(values, places, self.count)
        if flags & _ROWS_TURN:
            out = _in_rows(out, self.across, TO_AND_FRO).ravel()
        return _in_rows(out, self.across, self.flags).tobytes()


class _Spectrum(NamedTuple):
    """How coefficients are packed: as they are up to order ``subset``; others are scaled by a power of n (n + 1)."""

    subset: int
    power: float
    kind: str  # of the numbers that are not packed
    scales_last: bool  # GRIBEX scaled those of the last order of the subset, too

    def decode(
        self, data: Octets, bits: int, count: int, reference: float, factor: float, decimal: float
    ) -> npt.NDArray[np.float64]:
        """Return ``count`` numbers: real and imaginary parts by zonal wave number m, and from n = m on for each."""
        truncation = truncation_of(count)
        m, n = np.triu_indices(truncation + 1)
        is_plain = n <= self.subset
        plain = 2 * int(np.count_nonzero(is_plain))
        if self.subset > truncation or len(data) < 4 * plain or bits > 32:
            raise ValueError(f"its subset {self.subset} of {truncation} orders takes more bytes than it has")
        if self.subset == truncation:  # eccodes writes and reads these in IEEE's form in edition 1, too
            return np.frombuffer(data, ">f4", plain) * decimal
        scales = np.zeros(truncation + 1)
        orders = np.arange(1, truncation + 1)
        scales[1:] = [1 / order**self.power for order in (orders * (orders + 1)).tolist()]
        values = np.zeros((len(m), 2))
        given = np.frombuffer(data, self.kind, plain)
        values[is_plain] = (_from_ibm(given) if self.kind == ">u4" else given).reshape(-1, 2)
        if self.scales_last:
            is_last = n == self.subset
            values[is_last] *= scales[n[is_last], None]
        numbers = _simple(data[4 * plain :], b"", bits, count - plain).astype("f8").reshape(-1, 2)
        values[~is_plain] = decimal * (numbers * factor + reference) * scales[n[~is_plain], None]
        values[m == 0, 1] = np.where(is_plain[m == 0], values[m == 0, 1], 0)  # they are, but for rounding
        return values.ravel()


def truncation_of(count: int) -> int:
    """Return the triangular truncation that ``count`` real and imaginary parts are of; ValueError if it is none."""
    truncation = (math.isqrt(4 * count + 1) - 3) // 2
    if truncation < 0 or (truncation + 1) * (truncation + 2) != count:
        raise ValueError(f"its {count} coefficients are of no triangular truncation")
    return truncation


def _from_ibm(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return floating-point numbers of IBM's, given their bits."""
    bits = numbers.astype("i8")
    values: npt.NDArray[np.float64] = np.ldexp((bits & 0xFFFFFF).astype("f8"), 4 * ((bits >> 24 & 127) - 64) - 24)
    values[bits >> 31 == 1] *= -1
    return values


def _spectral_complex(data: Octets, packing: Octets, stored: int) -> npt.NDArray[Any]:
    if integer(packing, 35) != 1 or len({integer(packing, octet, 2) for octet in (25, 27, 29)}) > 1:
        raise ValueError("its spectral coefficients have a subset of another form than a triangle of 32-bit numbers")
    spectrum = _Spectrum(integer(packing, 25, 2), signed(packing, 21, 4) / 1e6, ">f4", False)
    factor, decimal = 2.0 ** signed(packing, 16, 2), 10.0 ** -signed(packing, 18, 2)
    return spectrum.decode(data, integer(packing, 20), stored, _reference(packing), factor, decimal)


def _places(bitmap: Octets, count: int) -> npt.NDArray[np.bool_]:
    """Return which points have a value: the bits of a section behind its octet 6."""
    if 8 * (len(bitmap) - 6) < count:
        raise ValueError(f"its bitmap has {len(bitmap) - 6} bytes, for {count} points")
    return np.unpackbits(np.frombuffer(bitmap[6:], "u1"), count=count).view(bool)


def _power_of_ten(exponent: int) -> float:
    """Return a power of ten with the roundings that it has in eccodes."""
    found = 1.0
    for _ in range(min(abs(exponent), 400)):
        found = found * 10 if exponent > 0 else found / 10
    return found


def _placed(values: npt.NDArray[Any], places: npt.NDArray[np.bool_] | None, count: int) -> npt.NDArray[Any]:
    """Return the values of ``count`` points: those at ``places``, or all; NaN elsewhere."""
    if places is None:
        return values.astype("<f4", copy=False)
    if np.count_nonzero(places) != len(values):
        raise ValueError(f"its bitmap has {np.count_nonzero(places)} values, where {len(values)} are stored")
    out = np.full(count, np.nan, "<f4")
    out[places] = values
    return out


def _in_rows(values: npt.NDArray[Any], across: int, flags: int) -> npt.NDArray[Any]:
    """Return scanned values in rows that all run one way."""
    if not flags & (BY_COLUMNS | TO_AND_FRO):
        return values
    lines = values.reshape((across, -1) if flags & BY_COLUMNS else (-1, across))
    if flags & TO_AND_FRO:
        lines[1::2] = lines[1::2, ::-1].copy()
    return lines.T if flags & BY_COLUMNS else lines


def _reference(packing: Octets) -> float:
    return float(struct.unpack(">f", packing[11:15])[0])


def _scaled(
    numbers: npt.NDArray[Any], reference: float, factor: float, decimal: float, logarithm: Octets = b""
) -> npt.NDArray[np.float32]:
    """Return the values that packed numbers stand for; ``logarithm``: section 5 of fields packed so."""
    values = np.empty(numbers.size, "f4")
    for first in range(0, numbers.size, PIECE):
        piece = slice(first, first + PIECE)
        scaled = numbers[piece].astype("f8")
        scaled *= factor
        scaled += reference
        if decimal != 1:
            scaled *= decimal
        values[piece] = _without_logarithm(scaled, logarithm) if logarithm else scaled
    return values


def _without_logarithm(values: npt.NDArray[Any], packing: Octets) -> npt.NDArray[Any]:
    """Return what was packed after an addition (octet 21) and a logarithm."""
    added: float = struct.unpack(">f", integer(packing, 21, 4).to_bytes(4))[0]
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(values) - added)


def _ieee(data: Octets, packing: Octets, stored: int) -> npt.NDArray[Any]:
    size = {1: 4, 2: 8}.get(integer(packing, 12), 0)
    if not size or len(data) != stored * size:
        raise ValueError(f"expected {stored} IEEE numbers of 4 or 8 bytes, found {len(data)} bytes")
    return np.frombuffer(data, f">f{size}")


def _run_length(data: Octets, packing: Octets, stored: int) -> npt.NDArray[Any]:
    """Return values of levels, each of which is followed by digits that say how often it comes again."""
    bits, highest, levels = integer(packing, 12), integer(packing, 13, 2), integer(packing, 15, 2)
    base = (1 << bits) - 1 - highest  # of the digits, the least significant of which is first
    if not 0 < bits <= 16 or base <= 0 or not 0 < highest <= levels or len(packing) < 17 + 2 * levels:
        raise ValueError(f"its runs have {bits} bits, and {highest} of {levels} levels: expected others")
    numbers = unpack_bits(data, bits, len(data) * 8 // bits).astype("i8")
    begins = np.flatnonzero(numbers <= highest)
    if not begins.size or begins[0]:
        raise ValueError("its first run has no level")
    rank = np.arange(numbers.size) - np.repeat(begins, np.diff(begins, append=numbers.size)) - 1
    digits = np.where(rank < 0, 1.0, (numbers - highest - 1) * float(base) ** np.clip(rank, 0, 16))
    lengths = np.add.reduceat(digits, begins)
    if lengths.sum() != stored:
        raise ValueError(f"its runs have {lengths.sum():.0f} values, where {stored} are due")
    scale = 10.0 ** -signed(packing, 17, 1)
    table = np.frombuffer(packing[17 : 17 + 2 * levels], ">u2") * scale
    return np.repeat(np.concatenate([[np.nan], table])[numbers[begins]], lengths.astype("i8"))


def _simple(data: Octets, packing: Octets, bits: int, stored: int) -> npt.NDArray[Any]:
    """Return numbers of ``bits`` bits each, the most significant first."""
    return unpack_bits(data, bits, stored) if bits else np.broadcast_to(np.uint32(0), stored)


def _jpeg_2000(data: Octets, packing: Octets, bits: int, stored: int) -> npt.NDArray[Any]:
    right, bottom, left, top = (integer(data, octet, 4) for octet in (9, 13, 17, 21))
    shape, components = (bottom - top, right - left), integer(data, 41, 2)
    if math.prod(shape) != stored or components != 1:
        raise ValueError(f"its JPEG 2000 image has {shape} points of {components} components, where {stored} are due")
    out = np.zeros(shape, f"u{1 if bits <= 8 else 2 if bits <= 16 else 4}")
    decode_by_imagecodecs("jpeg2k_decode", data, "grib", out=out)
    return out


def _png(data: Octets, packing: Octets, bits: int, stored: int) -> npt.NDArray[Any]:
    """Return numbers whose bytes are the channels of an image."""
    points, depth = integer(data, 17, 4) * integer(data, 21, 4), integer(data, 25)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(integer(data, 26), 0)
    if points != stored or depth * channels not in (8, 16, 24, 32):
        raise ValueError(f"its PNG image has {points} points of {channels} x {depth} bits, where {stored} are due")
    image = decode_by_imagecodecs("png_decode", data, "grib")
    parts = np.asarray(image).reshape(stored, channels).astype("u4")
    numbers = np.zeros(stored, "u4")
    for channel in range(channels):
        numbers = numbers << depth | parts[:, channel]
    return numbers


def _ccsds(data: Octets, packing: Octets, bits: int, stored: int) -> npt.NDArray[Any]:
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    flags = (integer(packing, 22) & ~2) | 4  # numbers of whole words, the most significant byte first
    block, interval = integer(packing, 23), integer(packing, 24, 2)
    if block not in (8, 16, 32, 64) or not 0 < interval <= 4096 or bits > 32:  # libaec writes anywhere with others
        raise ValueError(f"its CCSDS blocks have {block} values of {bits} bits, {interval} to an interval: none has")
    options = {"bitspersample": bits, "flags": flags, "blocksize": block, "rsi": interval}
    room = size * (stored + block * interval)  # the last values may be followed by others that fill a block
    return np.frombuffer(decode_by_imagecodecs("aec_decode", data, "grib", out=room, **options), f">u{size}")[:stored]


def _grouped(
    data: Octets, groups: Sequence[npt.NDArray[np.int64]], limits: npt.NDArray[np.int64] | None, stored: int
) -> npt.NDArray[np.int64]:
    """Unpack the numbers of groups, each with a reference, a width and a length of its own.

    With ``limits``, numbers that reach the limit of their group, before its reference is added, become `_ABSENT`.
    """
    references, widths, lengths = groups
    is_whole = lengths.sum() == stored and lengths.min() >= 0 and lengths.max() <= stored  # the sum may wrap
    if not is_whole or widths.max() > 32 or (widths * lengths).sum() > 8 * len(data):
        reason = f"have {lengths.sum()} values, where {stored} are due, or too few bits"
        raise ValueError(f"its {len(lengths)} groups {reason}")
    # Groups are cut into parts of as many numbers as a word of 64 bits holds, so that numpy computes the n-th numbers
    # of all parts together. The last part of a group is filled up; `inside` tells its numbers from the filling.
    at_once = min(8, 64 // max(int(widths.max()), 1))
    row = f"V{at_once}"
    filled = np.tri(at_once, dtype=bool).view(row).ravel()
    words = np.frombuffer(bytes(data) + bytes(16 - len(data) % 8), ">u8").astype("u8")
    begins = np.cumsum(widths * lengths) - widths * lengths
    out, done = np.empty(stored, "i8"), 0
    used = np.flatnonzero(lengths)
    for first in range(0, len(used), _GROUPS):
        some = used[first : first + _GROUPS]
        parts = -(-lengths[some] // at_once)
        ends = np.cumsum(parts)
        skipped = begins[some] - (ends - parts) * at_once * widths[some]
        width, reference, bit = (
            np.repeat(each, parts).view("u8") for each in (widths[some], references[some], skipped)
        )
        bit += np.arange(len(bit), dtype="u8") * width * at_once
        place, shift = (bit >> 6).view("i8"), bit & 63
        word = words[place] << shift | words[place + 1] >> 64 - shift  # a shift by 64 bits leaves 0
        numbers, inside = np.empty((len(word), at_once), "i8"), np.ones((len(word), at_once), bool)
        inside.view(row)[ends - 1, 0] = filled[lengths[some] - at_once * (parts - 1) - 1]
        limit = None if limits is None else np.repeat(limits[some], parts).view("u8")
        down = 64 - width
        for column in range(at_once):
            numbers[:, column] = found = (word >> down) + reference
            if limit is not None:
                numbers[found - reference >= limit, column] = _ABSENT
            word <<= width
        stop = done + int(lengths[some].sum())
        out[done:stop] = numbers[inside]
        done = stop
    return out


def _add_up(numbers: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64]) -> None:
    """Turn differences, of the order of the number of ``firsts``, into the numbers that begin with these."""
    order = min(len(firsts), len(numbers))
    for done in range(order):  # the first difference of each order begins the sums of that order
        numbers[done] = np.diff(firsts, done)[0]
    for done in reversed(range(order)):
        np.cumsum(numbers[done:], out=numbers[done:])


def _complex(data: Octets, packing: Octets, bits: int, stored: int) -> npt.NDArray[Any]:
    """Return numbers that are packed in groups, each of a width and a length of its own; NaN where one is missing."""
    groups, missing = integer(packing, 32, 4), integer(packing, 23)
    order, size = (integer(packing, 48), integer(packing, 49)) if integer(packing, 10, 2) == 3 else (0, 0)
    if not 0 < groups <= stored or missing > 2 or order > 2 or size > 8:
        raise ValueError(f"{stored} values are packed in {groups} groups, with differences of order {order}: not known")
    at = size * (order + 1) if order else 0
    firsts = np.array([integer(data, 1 + size * number, size) for number in range(order)]).astype("i8")
    least = signed(data, 1 + size * order, size) if order else 0
    parts = []
    for each in (bits, integer(packing, 37), integer(packing, 47)):  # references, widths and lengths of the groups
        parts.append(_simple(data[at:], packing, each, groups).astype("i8"))
        at += -(-each * groups // 8)
    references, widths, lengths = parts
    widths += integer(packing, 36)
    lengths = lengths * integer(packing, 42) + integer(packing, 38, 4)
    lengths[-1] = integer(packing, 43, 4)
    limits = None
    if missing:  # the highest numbers stand for missing values; in groups without bits, the highest references
        limits = np.where(widths > 0, (1 << np.minimum(widths, 32)) - missing, references < (1 << bits) - missing)
    numbers = _grouped(data[at:], (references + least, widths, lengths), limits, stored)
    if not missing:
        _add_up(numbers, firsts)
        return numbers
    there = numbers != _ABSENT
    numbers = numbers[there]
    _add_up(numbers, firsts)
    filled = np.full(stored, np.nan)
    filled[there] = numbers
    return filled


# What turns a section 7 into numbers, by the template of section 5.
_LOGARITHM: Final = 61
_PACKINGS: Final = {
    0: _simple, 2: _complex, 3: _complex, 40: _jpeg_2000, 41: _png, 42: _ccsds, _LOGARITHM: _simple,
}  # fmt: skip
_UNSCALED: Final = {4: _ieee, 51: _spectral_complex, 200: _run_length}  # or into values


class Points(msgspec.Struct, frozen=True):
    """The latitudes or longitudes of a grid's first ``count`` points, or of each ``every``-th one.

    They are those of eccodes, made from section 3; in rows that run one way, whatever the flags at ``scanned`` say.
    """

    key: str
    count: int
    every: int = 1
    scanned: int = 0
    edition: int = 2

    @property
    def size(self) -> int:
        """Bytes of what is made."""
        return self.count * 8

    def make(self, raw: bytes) -> bytes:
        library = eccodes()
        if self.scanned:
            flags = integer(raw, self.scanned) & ~(BY_COLUMNS | TO_AND_FRO)
            raw = raw[: self.scanned - 1] + bytes([flags]) + raw[self.scanned :]
        with _LOCK:
            handle = library.codes_grib_new_from_samples(f"GRIB{self.edition}")
            whole = library.codes_get_message(handle)
            library.codes_release(handle)
            begin, octets = (8, 3) if self.edition == 1 else (16, 4)  # of section 1, and of the length of a section
            first = begin + integer(whole, begin + 1, octets)
            rest = whole[first + integer(whole, first + 1, octets) :]
            size = len(whole) + len(raw) - integer(whole, first + 1, octets)
            start = whole[:4] + size.to_bytes(3) + b"\1" if self.edition == 1 else whole[:8] + size.to_bytes(8)
            handle = library.codes_new_from_message(start + whole[begin:first] + raw + rest)
            try:
                values = library.codes_get_array(handle, self.key)[:: self.every][: self.count]
            except library.CodesInternalError as e:
                raise ValueError(f"eccodes knows no {self.key} of its grid: {e}") from e
            finally:
                library.codes_release(handle)
        if len(values) != self.count:
            raise ValueError(f"it has {len(values)} {self.key} where {self.count} are due")
        return bytes(np.asarray(values, "<f8").tobytes())


class Named(NamedTuple):
    """What a parameter and its kind of level are called; ``name`` is that of the variable."""

    name: str
    level: str
    attributes: dict[str, Any]


# What eccodes is asked about. It keeps some 30 MB of tables for each centre, and 5 MB for each version of WMO's tables,
# which only grow; it ends the process over too many of them, and takes minutes over disciplines that there are not.
_DISCIPLINES: Final = frozenset([0, 1, 2, 3, 4, 10, 20, 192])  # 192: ECMWF's own
_CENTRES: Final = frozenset([7, 34, 54, 74, 78, 85, 98])  # whose local parameters it knows; others have WMO's alone
_TABLES: Final = 28
_NO_CENTRE: Final = 255


_KEYS: Final = ("paramId", "shortName", "name", "units", "cfName", "cfVarName", "typeOfLevel")
_CF: Final = {"long_name": "name", "units": "units", "standard_name": "cfName"}


def _limits(first: str, second: str) -> tuple[str, ...]:
    """Return eccodes' keys of two limits."""
    return tuple(f"{part}Of{limit}" for limit in (first, second) for part in ("scaleFactor", "scaledValue"))


_AXES: Final = {  # eccodes' keys of the axes that decide what a parameter is called
    "constituent": ("constituentType",),
    "size": _limits("FirstSize", "SecondSize"),
    "wavelength": _limits("FirstWavelength", "SecondWavelength"),
    "wave_period": _limits("LowerWavePeriodLimit", "UpperWavePeriodLimit"),
}


@lru_cache(1 << 12)
def named(parameter: Parameter) -> Named:
    """Return what eccodes calls a parameter; its numbers, where eccodes is not there or does not know it.

    The numbers are put into a message of eccodes' own: it never sees a header that may be damaged.
    """
    kind = (parameter.discipline,) if parameter.edition == 2 else ()
    numbers = "_".join(map(str, (*kind, parameter.category, parameter.number)))
    fallback = Named(f"parameter_{numbers}", f"level_{parameter.surfaces[0].kind}", {})
    if parameter.discipline not in _DISCIPLINES:
        return fallback
    try:
        library = eccodes()
    except ValueError:
        return fallback
    with _LOCK:
        handle = library.codes_grib_new_from_samples(f"GRIB{parameter.edition}")
        try:
            if parameter.edition == 1:
                clone = library.codes_new_from_message(_message_1(library.codes_get_message(handle), parameter))
            else:
                _set_parameter(library, handle, parameter)
                clone = library.codes_clone(handle)  # some kinds of level are told by their values in a new message
            library.codes_release(handle)
            handle = clone
            by_key = {key: library.codes_get(handle, key) for key in _KEYS}
        except library.CodesInternalError:
            return fallback
        finally:
            library.codes_release(handle)
    by_key = {key: value for key, value in by_key.items() if value not in ("unknown", "undef")}
    level = by_key.setdefault("typeOfLevel", fallback.level)
    if "shortName" not in by_key:
        return Named(fallback.name, level, {})
    attributes = {name: by_key[key] for name, key in _CF.items() if key in by_key}
    attributes |= {f"GRIB_{key}": value for key, value in by_key.items()}
    return Named(by_key.get("cfVarName", by_key["shortName"]), level, attributes)


def _message_1(sample: bytes, parameter: Parameter) -> bytes:
    """Return a ``sample`` of edition 1 with a parameter's octets of section 1, of which any are allowed."""
    first, second = parameter.surfaces
    is_layer = second.kind != 255
    centre = parameter.centre if parameter.centre in _CENTRES else _NO_CENTRE
    indicator = 0 if parameter.statistic == 255 else parameter.statistic
    octets = {
        4: parameter.category, 5: centre, 9: parameter.number, 10: first.kind,
        11: first.scaled if is_layer else first.scaled >> 8, 12: second.scaled if is_layer else first.scaled & 0xFF,
        21: indicator,
    }  # fmt: skip
    message = bytearray(sample)
    for octet, value in octets.items():
        message[7 + octet] = value
    if centre != ECMWF:  # its local definition means nothing to others
        end = 8 + integer(sample, 9, 3)
        del message[36:end]
        message[4:7], message[8:11] = len(message).to_bytes(3), (28).to_bytes(3)
    return bytes(message)


def _set_parameter(library: Any, handle: Any, parameter: Parameter) -> None:
    """Put the numbers of a parameter of edition 2 into a message."""
    first, second = parameter.surfaces
    keys = {
        "discipline": parameter.discipline,
        "tablesVersion": _TABLES,
        "productionStatusOfProcessedData": parameter.status,
        "productDefinitionTemplateNumber": parameter.template,
        "parameterCategory": parameter.category,
        "parameterNumber": parameter.number,
        "typeOfFirstFixedSurface": first.kind,
        "typeOfSecondFixedSurface": second.kind,
    }
    for which, surface in (("First", first), ("Second", second)):
        if surface.scaled != MISSING:
            keys[f"scaleFactorOf{which}FixedSurface"] = surface.factor
            keys[f"scaledValueOf{which}FixedSurface"] = surface.scaled
    product = TEMPLATES[parameter.template]
    if product.kind[0] != "NB" and product.kind[0]:
        keys[product.kind[0]] = parameter.kind
    for (axis, *_), numbers in zip(product.axes, parameter.axes, strict=True):
        named_by = zip(_AXES.get(axis, ()), numbers, strict=False)
        keys |= {key: value for key, value in named_by if value != MISSING}
    if parameter.centre in _CENTRES:
        keys |= {"centre": parameter.centre, "localTablesVersion": int(parameter.tables[1] > 0)}
    if parameter.statistic != 255:
        keys |= {"typeOfStatisticalProcessing": parameter.statistic, "lengthOfTimeRange": parameter.length}
    for key, value in keys.items():
        if value >= 0 or key.startswith("scaleFactor"):  # others print an error, of numbers that cannot be
            library.codes_set(handle, key, value)

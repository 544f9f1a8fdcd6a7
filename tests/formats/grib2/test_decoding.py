"""Values of GRIB2 fields equal those of eccodes in many packings."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from refshard_fs.formats.grib2 import decoding
from refshard_fs.formats.grib2.decoding import Values
from tests.support.grib_messages import RNG, make_message, split_sections
from tests.support.memory import check_peak
from tests.support.shard_writers import open_array

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")


@pytest.mark.parametrize(
    "packing",
    [
        "grid_simple",
        "grid_complex",
        "grid_complex_spatial_differencing",
        "grid_ccsds",
        "grid_jpeg",
        "grid_png",
        "grid_simple_log_preprocessing",
    ],
)
@pytest.mark.parametrize("bits", [8, 11, 16, 24])
def test_values_of_several_bit_widths_equal_eccodes(packing: str, bits: int) -> None:
    try:
        data = make_message(packingType=packing, bitsPerValue=bits)
    except eccodes.CodesInternalError as e:
        pytest.skip(f"this eccodes does not write it: {e}")
    handle = eccodes.codes_new_from_message(data)
    want = eccodes.codes_get_values(handle).astype("f4")
    eccodes.codes_release(handle)
    np.testing.assert_allclose(open_array(data, "t")[...].ravel(), want, rtol=1e-6)


@pytest.mark.parametrize("packing", ["grid_complex", "grid_complex_spatial_differencing"])
@pytest.mark.parametrize("missing", [0, 0.1, 0.9], ids="{:.0%} missing".format)
def test_blocks_of_constants_equal_eccodes(packing: str, missing: float) -> None:
    """Whole blocks of values are in groups of 0 bits, whose bits are not unpacked."""
    values = np.maximum(np.cumsum(RNG.normal(size=300 * 300)), 50)
    values[20_000:70_000] = 50
    values[-30_000:-1] = np.nan if missing else 50
    values[RNG.random(values.size) < missing] = np.nan
    data = make_message(values, packingType=packing, Ni=300, Nj=300, bitsPerValue=14)
    handle = eccodes.codes_new_from_message(data)
    want = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    want[np.isnan(values)] = np.nan
    np.testing.assert_array_equal(open_array(data, "t")[...].ravel(), want.astype("f4"))


@pytest.mark.parametrize("bits", [33, 48, 56])
def test_numbers_of_more_than_32_bits_equal_eccodes(bits: int) -> None:
    data = make_message(packingType="grid_simple", bitsPerValue=bits)
    handle = eccodes.codes_new_from_message(data)
    want = eccodes.codes_get_values(handle).astype("f4")
    eccodes.codes_release(handle)
    np.testing.assert_array_equal(open_array(data, "t")[...].ravel(), want)


@pytest.mark.parametrize("truncation", [20, 63])
@pytest.mark.parametrize(
    ("sample", "packing"),
    [("sh_ml_grib1", "spectral_complex"), ("sh_ml_grib1", "spectral_simple"), ("sh_ml_grib2", "spectral_complex")],
)
def test_spectral_coefficients_equal_eccodes(sample: str, packing: str, truncation: int) -> None:
    m, n = np.triu_indices(truncation + 1)
    values = RNG.normal(size=(len(m), 2)) / (1 + n[:, None]) ** 1.5
    values[m == 0, 1] = 0
    keys = dict.fromkeys("JKM", truncation)
    data = make_message(values.ravel(), sample=sample, **keys, packingType=packing)
    handle = eccodes.codes_new_from_message(data)
    want = eccodes.codes_get_values(handle).astype("f4")
    name = eccodes.codes_get(handle, "cfVarName")
    eccodes.codes_release(handle)
    found = open_array(data, name)
    np.testing.assert_array_equal(found[...].ravel(), want)
    assert {key: found.attrs[key] for key in ("GRIB_gridType", "GRIB_J")} == {
        "GRIB_gridType": "sh",
        "GRIB_J": truncation,
    }


@pytest.mark.parametrize("power", [2_000_000_000, 0x80000000 + 2_000_000_000], ids=["large", "small"])
def test_extreme_spectral_power_is_an_error(power: int) -> None:
    data = make_message(np.linspace(-1, 1, 506), sample="sh_ml_grib2", J=21, K=21, M=21, packingType="spectral_complex")
    at = data.index(b"\x05", data.index((35).to_bytes(4) + b"\x05")) - 4  # section 5 has 35 bytes
    changed = data[: at + 20] + power.to_bytes(4) + data[at + 24 :]
    with pytest.raises(Exception, match="cannot be scaled by the power"):
        open_array(changed, "t")[...]


@pytest.mark.parametrize("precision", [1, 2])
def test_ieee_numbers_equal_eccodes(precision: int) -> None:
    data = make_message(packingType="grid_ieee", precision=precision)
    handle = eccodes.codes_new_from_message(data)
    want = eccodes.codes_get_values(handle).astype("f4")
    eccodes.codes_release(handle)
    np.testing.assert_array_equal(open_array(data, "t")[...].ravel(), want)


def test_run_lengths_are_decoded_to_levels_and_missing_values() -> None:
    levels = [0, 15, 25]  # in tenths; number 0 stands for a missing value
    runs = [(1, 1), (2, 300), (0, 5), (2, 1), (1, 189)]
    highest, digits = 2, []
    for level, length in runs:
        digits.append(level)
        more, base = length - 1, (1 << 4) - 1 - highest
        while more:
            digits.append(more % base + highest + 1)
            more //= base
    packed = "".join(f"{digit:04b}" for digit in digits)
    section_7 = int(packed.ljust(-(-len(packed) // 8) * 8, "1"), 2).to_bytes(-(-len(packed) // 8))
    section_5 = struct.pack(">IBIHBHHB", 17 + 2 * 2, 5, 496, 200, 4, highest, 2, 1) + struct.pack(">HH", *levels[1:])
    sections = section_5, b"\0\0\0\6\6\xff", struct.pack(">IB", 5 + len(section_7), 7) + section_7
    found = np.frombuffer(Values(496, tuple(map(len, sections))).make(b"".join(sections)), "f4")
    want = np.repeat([1.5, 2.5, np.nan, 2.5, 1.5], [length for _, length in runs]).astype("f4")
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("packing", ["grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_ccsds"])
def test_points_without_a_value_are_nan(packing: str) -> None:
    values = np.where(RNG.random(496) > 0.7, np.nan, RNG.normal(size=496))
    data = make_message(values, packingType=packing, bitsPerValue=16)
    found = open_array(data, "t")[...].ravel()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_allclose(found, values, atol=1e-3)


def write_groups(order: int, missing: int, widest: int) -> bytes:
    """Return a message of 496 numbers in groups of random lengths; some groups are empty, or have numbers of 0 bits.

    ``order`` is the order of the spatial differences, ``missing`` the number of values that mean "missing", and
    ``widest`` the most bits of a number.
    """

    def pack(numbers: np.ndarray, widths: int | np.ndarray) -> str:
        pairs = zip(numbers, np.broadcast_to(widths, len(numbers)), strict=True)
        return "".join(f"{number:0{width}b}" for number, width in pairs if width)

    lengths = np.diff([0, *np.sort(RNG.integers(0, 497, 29)), 496])
    widths = np.repeat(RNG.integers(0, widest + 1, 6), 5)
    number_widths = np.repeat(widths, lengths)
    numbers = np.where(
        RNG.random(496) < 0.3, (1 << number_widths) - 1 - RNG.integers(0, 2, 496), RNG.integers(0, 1 << number_widths)
    )
    begin = [*RNG.integers(0, 1000, order).tolist(), 0x80000007] if order else []
    data = struct.pack(f">{len(begin)}I", *begin)
    for text in (pack(RNG.integers(0, 1 << 11, 30), 11), pack(widths, 5), pack(lengths, 9)):
        data += int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8))
    text = pack(np.maximum(numbers, 0), number_widths) + "0" * 8
    data += int(text[: len(text) // 8 * 8], 2).to_bytes(len(text) // 8)
    head = struct.pack(">IHfHHBBBBff", 496, 3 if order else 2, 1.25, 1, 1, 11, 0, 1, missing, 9999.0, 8888.0)
    head += struct.pack(">IBBIBIB", 30, 0, 5, 0, 1, lengths[-1], 9) + (bytes([order, 4]) if order else b"")
    plain = make_message()
    parts = [
        *split_sections(plain)[:-3],
        *(struct.pack(">IB", len(body) + 5, n) + body for n, body in ((5, head), (6, b"\xff"), (7, data))),
    ]
    return plain[:8] + (20 + sum(map(len, parts))).to_bytes(8) + b"".join(parts) + b"7777"


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("at_once", [1, 50, 1 << 15])
def test_groups_of_random_widths_and_lengths_are_decoded(
    order: int, missing: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of values that are unpacked at a time does not change the values."""
    monkeypatch.setattr(decoding, "_AT_ONCE", at_once)
    for widest in (3, 8, 20, 30):
        data = write_groups(order, missing, widest)
        handle = eccodes.codes_new_from_message(data)
        eccodes.codes_set(handle, "missingValue", 1e300)
        want = eccodes.codes_get_values(handle)
        eccodes.codes_release(handle)
        found = np.frombuffer(
            Values(496, tuple(map(len, split_sections(data)[-3:]))).make(b"".join(split_sections(data)[-3:])), "f4"
        )
        np.testing.assert_array_equal(found, np.where(want == 1e300, np.nan, want).astype("f4"))


@pytest.mark.parametrize("packing", ["grid_simple", "grid_complex", "grid_ccsds", "grid_jpeg"])
@pytest.mark.parametrize("points", [496, 400, 0])
def test_constant_and_empty_fields_have_their_values(packing: str, points: int) -> None:
    values = np.where(np.arange(496) < points, 4.0, np.nan)
    for keys in ({}, {"decimalScaleFactor": 2}, {"bitsPerValue": 0, "decimalPrecision": 1}):
        data = make_message(values, packingType=packing, **keys)
        np.testing.assert_array_equal(open_array(data, "t")[...].ravel(), values)


@pytest.mark.parametrize(("bits", "points"), [(0, 1 << 22), (12, 1 << 20)])
def test_decoding_a_field_takes_at_most_40_mib(bits: int, points: int) -> None:
    packing = struct.pack(">IBIHfHHBB", 21, 5, points, 0, 1.5, 0, 0, bits, 0)
    data = bytes([0, 0x10, 0x02] * (points * bits // 24))  # 1, 2, 1, 2, ... in 12 bits each
    raw = packing + struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 5 + len(data), 7) + data
    with check_peak(40 << 20):
        values = np.frombuffer(Values(points, (21, 6, 5 + len(data))).make(raw), "<f4")
    assert values[-2:].tolist() == ([2.5, 3.5] if bits else [1.5, 1.5])


def test_complex_packing_without_groups_gives_a_constant_field() -> None:
    section_5 = struct.pack(">IBIHfHHBB", 49, 5, 6, 3, 1.5, 1, 1, 12, 0) + bytes(26) + b"\1\2"
    raw = section_5 + struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 5, 7)
    assert np.frombuffer(Values(6, (49, 6, 5)).make(raw), "<f4").tolist() == [1.5] * 6


def test_jpeg_2000_image_of_fewer_bits_than_stated_is_decoded() -> None:
    """Section 5 states numbers of 24 bits, and the image has 8 bits: its values are decoded."""
    imagecodecs = pytest.importorskip("imagecodecs")
    image = np.arange(496, dtype="u1").reshape(31, 16)
    data = bytes(imagecodecs.jpeg2k_encode(image, codecformat="j2k", reversible=True, level=0))
    packing = struct.pack(">IBIHfHHBBBB", 23, 5, 496, 40, 1.5, 0, 0, 24, 0, 0, 255)
    raw = packing + struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 5 + len(data), 7) + data
    values = np.frombuffer(Values(496, (23, 6, 5 + len(data))).make(raw), "<f4")
    np.testing.assert_array_equal(values, image.ravel() + 1.5)


@pytest.mark.parametrize("bits", [5, 8])
def test_restricted_ccsds_codes_of_many_bits_are_refused(bits: int) -> None:
    """For restricted codes of more than 4 bits, libaec frees memory twice, which ends the process."""
    packing = struct.pack(">IBIHfHHBBBBH", 25, 5, 496, 42, 1.5, 0, 0, bits, 0, 0x3F, 32, 128)
    raw = packing + struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 105, 7) + bytes(100)
    with pytest.raises(ValueError, match=f"invalid CCSDS blocks of 32 values of {bits} bits"):
        Values(496, (25, 6, 105)).make(raw)


@pytest.mark.parametrize("scans", [{}, {"jPointsAreConsecutive": 1}, {"alternativeRowScanning": 1}], ids=str)
@pytest.mark.parametrize("values", [None, np.full(496, 3.25)], ids=["noise", "constant"])
def test_xarray_reads_a_field_without_a_copy_of_bytes(
    scans: dict[str, int], values: np.ndarray | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(make_message(values, **scans))
    expected = open_array(path.read_bytes(), "t")[...]
    monkeypatch.setattr(Values, "make", None)
    with xr.open_dataset(path, engine="refshard") as ds:
        found = ds["t"].values
        part = ds["t"][3:9, 2].values
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(part, expected[3:9, 2])
    assert found.flags.writeable

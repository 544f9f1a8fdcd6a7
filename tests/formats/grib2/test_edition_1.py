"""GRIB edition 1: values and coordinates equal those of cfgrib; a damaged field is an error, or is not shown."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError
from refshard_fs.formats.grib2.decoding import decode_ibm_floats
from tests.support.grib_messages import RNG, check_same_as_cfgrib, make_message
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")

SAMPLE = "regular_ll_pl_grib1"
GRIDS = [
    "regular_ll_sfc_grib1",
    "rotated_ll_sfc_grib1",
    "reduced_ll_sfc_grib1",
    "regular_gg_ml_grib1",
    "regular_gg_pl_grib1",
    "reduced_gg_pl_32_grib1",
    "rotated_gg_pl_grib1",
    "polar_stereographic_pl_grib1",
]


def write_message(values: Any = None, sample: str = SAMPLE, **keys: Any) -> bytes:
    """Return a message of edition 1."""
    return make_message(values, sample, **({"shortName": "t"} if sample == SAMPLE else {}) | keys)


def patch_section_1(data: bytes, octets: dict[int, int]) -> bytes:
    """Return a message with other values of ``octets`` in section 1."""
    changed = bytearray(data)
    for octet, value in octets.items():
        changed[7 + octet] = value
    return bytes(changed)


def test_length_that_includes_the_next_message_is_reported() -> None:
    """The first message states the length of two messages, so the second message may be lost."""
    first, second, third = (write_message(level=level) for level in (1000, 850, 500))
    damaged = first[:4] + (len(first) + len(second)).to_bytes(3) + first[7:]
    keyspace = Files({ROOT: damaged + second + third}).open()
    assert list(keyspace.reports) == [f"the message at byte {len(first) - 4}"]
    assert open_array(damaged + second + third, "t").shape[0] == 2


@pytest.mark.parametrize("sample", GRIDS)
def test_datasets_of_sample_grids_equal_cfgrib(tmp_path: Path, sample: str) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(write_message(sample=sample))
    check_same_as_cfgrib(path)


def write_grid(kind: int, *numbers: tuple[int, int]) -> bytes:
    """Return a message of 31 rows and 16 columns, whose section 2 has ``numbers``: pairs of an octet and a number."""
    grid = bytearray((42).to_bytes(3) + b"\0\xff" + bytes([kind]) + struct.pack(">HH", 16, 31) + bytes(32))
    for octet, number in numbers:
        sign = 0x800000 if number < 0 else 0
        grid[octet - 1 : octet + 2] = (abs(number) | sign).to_bytes(3)
    grid[16], grid[27] = 8, 0x40
    data = write_message()
    begin = 8 + int.from_bytes(data[8:11])
    rest = data[begin + int.from_bytes(data[begin : begin + 3]) :]
    size = begin + len(grid) + len(rest)
    return data[:4] + size.to_bytes(3) + data[7:begin] + grid + rest


LAMBERT = write_grid(
    3, (11, 21138), (14, 237280), (18, 265000), (21, 12191), (24, 12191), (29, 25000), (32, 26000), (35, -90000)
)
POLAR = write_grid(5, (11, 40000), (14, -120000), (18, -105000), (21, 60000), (24, 60000))
ROTATED = write_grid(10, (11, -10000), (14, -20000), (18, 20000), (21, 10000), (33, -40000), (36, 10000))
MERCATOR = write_grid(1, (11, 0), (14, -20000), (18, 30000), (21, 10000), (24, 20000), (29, 200000), (32, 100000))


@pytest.mark.parametrize("data", [LAMBERT, POLAR, ROTATED], ids=["Lambert", "polar", "rotated"])
def test_datasets_of_projections_equal_cfgrib(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(data)
    assert check_same_as_cfgrib(path)["t"].dims == ("y", "x")


def test_coordinates_of_mercator_equal_eccodes() -> None:
    """The dataset of cfgrib cannot be compared: it has one dimension, `values`."""
    handle = eccodes.codes_new_from_message(MERCATOR)
    for key in ("latitude", "longitude"):
        want = eccodes.codes_get_array(handle, f"{key}s")
        found = open_array(MERCATOR, key)[...]
        assert found.shape == (31, 16)
        np.testing.assert_array_equal(found.ravel(), want)
    eccodes.codes_release(handle)


def test_message_with_an_unknown_grid_is_refused() -> None:
    with pytest.raises(ManifestError, match="the message at byte 0: its grid is of kind 192: expected one of 0, 1, 3"):
        Files({ROOT: write_grid(192)}).open("grib2")


def test_more_values_than_points_are_an_error() -> None:
    data = bytearray(write_grid(1))
    data[8 + int.from_bytes(data[8:11]) + 9] = 30  # rows
    with pytest.raises(RefShardError, match="has 480 values of 24 bits in 1489 bytes"):
        open_array(bytes(data), "t")[...]


@pytest.mark.parametrize(
    "keys",
    [
        {"bitsPerValue": 11},
        {"bitsPerValue": 48},
        {"bitsPerValue": 24},
        {"bitsPerValue": 0},
        {"bitsPerValue": 16, "decimalScaleFactor": 7},
        {"jScansPositively": 1, "latitudeOfFirstGridPointInDegrees": 0, "latitudeOfLastGridPointInDegrees": 60},
        {"longitudeOfFirstGridPointInDegrees": -10, "longitudeOfLastGridPointInDegrees": 20},
        {"longitudeOfFirstGridPointInDegrees": 350, "longitudeOfLastGridPointInDegrees": 20},
    ],
)
def test_values_and_coordinates_equal_cfgrib(tmp_path: Path, keys: dict[str, Any]) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(write_message(**keys))
    check_same_as_cfgrib(path)


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e12, 0.0])
@pytest.mark.parametrize("holes", [0.0, 0.4, 1.0])
def test_values_equal_eccodes_bit_for_bit(scale: float, holes: float) -> None:
    values = np.where(RNG.random(496) < holes, np.nan, RNG.normal(-3, 9, 496) * scale)
    data = write_message(values, bitsPerValue=16)
    handle = eccodes.codes_new_from_message(data)
    eccodes.codes_set(handle, "missingValue", 1e300)
    want = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    with np.errstate(over="ignore"):
        want = np.where(want == 1e300, np.nan, want).astype("f4")
    np.testing.assert_array_equal(open_array(data, "t")[...].ravel(), want)


def change_packing(data: bytes, packing: str) -> bytes:
    handle = eccodes.codes_new_from_message(data)
    eccodes.codes_set(handle, "packingType", packing)
    changed = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    return changed


@pytest.mark.parametrize("order", ["no_SPD", "SPD1", "SPD2", "SPD3"])
@pytest.mark.parametrize("holes", [0.0, 0.4])
@pytest.mark.parametrize("alternates", [False, True])
def test_second_order_packing_equals_eccodes_bit_for_bit(order: str, holes: float, alternates: bool) -> None:
    values = np.where(RNG.random(496) < holes, np.nan, np.cumsum(RNG.normal(size=496)))
    data = bytearray(change_packing(write_message(values, bitsPerValue=16), f"grid_second_order_{order}"))
    sections = [int.from_bytes(data[8:11])]
    for _ in range(1 + (holes > 0)):
        at = 8 + sum(sections)
        sections.append(int.from_bytes(data[at : at + 3]))
    if alternates:
        data[8 + sum(sections) + 13] |= 4  # successive rows have opposite directions
    handle = eccodes.codes_new_from_message(bytes(data))
    eccodes.codes_set(handle, "missingValue", 1e300)
    want = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    want = np.where(want == 1e300, np.nan, want).astype("f4")
    np.testing.assert_array_equal(open_array(bytes(data), "t")[...].ravel(), want)


def test_ibm_numbers_are_decoded() -> None:
    for raw, value in (("42640000", 100.0), ("c276a000", -118.625), ("00000000", 0.0), ("ffffffff", -7.2370051e75)):
        assert decode_ibm_floats(bytes.fromhex(raw), 1)[0] == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("indicator", [0, 1, 2, 3, 4, 5, 10, 113, 118, 119, 120, 123, 124, 128])
def test_times_equal_cfgrib(tmp_path: Path, indicator: int) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(patch_section_1(write_message(), {19: 3, 20: 9, 21: indicator}))
    check_same_as_cfgrib(path)


@pytest.mark.parametrize("unit", [0, 1, 2, 10, 11, 12, 13, 14])
def test_time_units_equal_cfgrib(tmp_path: Path, unit: int) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(patch_section_1(write_message(), {18: unit, 19: 60}))
    check_same_as_cfgrib(path)


@pytest.mark.parametrize("kind", [1, 100, 103, 105, 106, 107, 109, 111, 112, 113, 116, 117, 160, 200, 210])
def test_levels_equal_cfgrib(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(patch_section_1(write_message(), {10: kind, 11: 3, 12: 7}))
    check_same_as_cfgrib(path)


def test_members_levels_and_steps_are_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "a.grib"
    axes = itertools.product((0, 1), (0, 6, 12), (1000, 850))
    path.write_bytes(b"".join(write_message(number=number, step=step, level=level) for number, step, level in axes))
    found = check_same_as_cfgrib(path)
    assert dict(found["t"].sizes) == {"number": 2, "step": 3, "isobaricInhPa": 2, "latitude": 31, "longitude": 16}


def test_members_in_local_definitions_equal_cfgrib(tmp_path: Path) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(patch_section_1(write_message(number=7), {5: 34, 26: 98}))
    assert check_same_as_cfgrib(path)["number"].item() == 7, "ECMWF is the subcentre"
    for definition in (1, 2, 15, 26, 32, 36):
        path.write_bytes(write_message(localDefinitionNumber=definition, number=5))
        assert check_same_as_cfgrib(path)["number"].item() == 5


def test_wave_spectra_have_directions_and_frequencies(tmp_path: Path) -> None:
    path = tmp_path / "a.grib"
    spectrum = write_message(localDefinitionNumber=13)
    places = itertools.product((1, 2), (1, 2, 3))
    parts = [patch_section_1(spectrum, {52: direction, 53: frequency}) for direction, frequency in places]
    path.write_bytes(b"".join(parts))
    sizes = check_same_as_cfgrib(path)["t"].sizes
    assert (sizes["directionNumber"], sizes["frequencyNumber"]) == (2, 3)


def test_final_and_preliminary_fields_are_one_variable(tmp_path: Path) -> None:
    """In ERA5, final fields have `expver` 1, preliminary fields 5. If a time has both fields, the first is shown."""
    path = tmp_path / "a.grib"
    fields = [
        write_message(sample="regular_ll_sfc_grib1", dataDate=20260100 + day, experimentVersionNumber=version)
        for day, version in ((1, "0001"), (2, "0001"), (2, "0005"), (3, "0005"))
    ]
    path.write_bytes(b"".join(fields))
    assert dict(check_same_as_cfgrib(path)["t2m"].sizes)["time"] == 3
    assert len(Files({ROOT: path.read_bytes()}).open().reports) == 1


def test_parameters_of_several_centres_have_names_of_eccodes() -> None:
    data = bytearray(write_message())
    begin = int.from_bytes(data[8:11]) + 8
    del data[36:begin]  # the local definition, which is ECMWF's
    data[4:7], data[8:11] = len(data).to_bytes(3), (28).to_bytes(3)
    for centre, table, number in ((7, 2, 11), (34, 200, 11), (78, 2, 11), (80, 2, 33), (7, 129, 200), (200, 2, 11)):
        patched = patch_section_1(data, {4: table, 5: centre, 9: number})
        handle = eccodes.codes_new_from_message(patched)
        name = eccodes.codes_get(handle, "cfVarName")
        eccodes.codes_release(handle)
        grids = Files({ROOT: patched}).open().grids
        assert (name if name != "unknown" else f"parameter_{table}_{number}") in grids, (centre, table, number)


@pytest.mark.parametrize(("side", "has_holes"), [(1_700, True), (2_400, False)])
def test_large_messages_are_read(side: int, has_holes: bool) -> None:
    """A length of more than 8 MB is in units of 120 bytes."""
    values = np.resize(RNG.normal(280, 9, 1000), side * side)
    if has_holes:
        values[0] = np.nan
    large = write_message(values, Ni=side, Nj=side, bitsPerValue=24, shortName="u")
    assert large[4] & 0x80
    data = large + write_message()
    assert {"u", "t"} <= Files({ROOT: data}).open().grids.keys()
    np.testing.assert_allclose(open_array(data, "u")[...].ravel(), values, rtol=1e-5)


def test_unsupported_fields_are_reported_or_are_errors() -> None:
    rotated = bytearray(write_message(np.zeros(4160), sample="sh_pl_grib1"))
    rotated[8 + int.from_bytes(rotated[8:11]) + 5] = 60
    second = bytearray(change_packing(write_message(bitsPerValue=16), "grid_second_order"))
    section_4 = 8 + sum(int.from_bytes(second[at : at + 3]) for at in (8, 8 + int.from_bytes(second[8:11])))
    second[section_4 + 13] = 0  # flags of packing row by row
    shown = write_message(level=850)
    reports = Files({ROOT: bytes(rotated) + shown}).open().reports
    assert reports == {
        "the message at byte 0": "its harmonics are rotated (grid 60): expected plain harmonics (grid 50)",
    }
    with pytest.raises(
        RefShardError, match="second-order packing has flags 0x0: expected the general extended packing"
    ):
        open_array(bytes(second), "t")[...]


def test_truncated_file_is_an_error() -> None:
    whole = write_message(np.where(RNG.random(496) < 0.5, np.nan, 3.5), sample="regular_ll_sfc_grib1")
    for cut in {*range(len(whole) + 2, len(whole) + 17), *range(len(whole) + 20, 2 * len(whole), 29)}:
        with pytest.raises(ManifestError, match=f"files://x.*byte {len(whole)}"):
            Files({ROOT: (whole + whole)[:cut]}).open("grib2")


def test_damaged_messages_are_shown_or_are_errors() -> None:
    whole = write_message(np.where(RNG.random(496) < 0.5, np.nan, RNG.normal(size=496)))
    for at, bit in itertools.product(range(4, 120), range(0, 8, 3)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        try:
            keyspace = Files({ROOT: bytes(flipped)}).open("grib2")
        except RefShardError as e:
            assert str(e)
        else:
            assert keyspace.grids


def test_message_with_a_section_beyond_its_end_is_refused() -> None:
    data = bytearray(write_message())
    begin = 8 + int.from_bytes(data[8:11])
    data[begin : begin + 3] = (1 << 20).to_bytes(3)
    with pytest.raises(ManifestError, match=f"message at byte 0 has a section 2 of 1048576 bytes at byte {begin}"):
        Files({ROOT: bytes(data)}).open("grib2")

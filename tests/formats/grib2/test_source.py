"""GRIB2 files: datasets equal those of cfgrib, few requests are made, and damaged files are errors or reports."""

from __future__ import annotations

import itertools
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.core.format import HEAD
from refshard_fs.formats.grib2 import messages, source
from refshard_fs.formats.grib2.source import FileScan
from refshard_fs.source.source import INDEXES
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands
from tests.support.grib_messages import (
    POINTS,
    RNG,
    check_same_as_cfgrib,
    find_offsets,
    make_many_messages,
    make_message,
    make_message_on_level,
    make_sidecar,
    open_cfgrib,
    split_sections,
)
from tests.support.shard_writers import IS_ZARR_2, open_array
from tests.support.shards_in_memory import ROOT, Files
from tests.support.threads import wait_for_writes

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")

ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def write_file() -> bytes:
    """Return a file with temperatures, a geopotential, winds, sums of rain, and a field with missing values."""
    fields = [make_message_on_level(level, shortName="t", step=step) for step in (0, 6) for level in (1000, 850, 500)]
    fields += [make_message_on_level(500, shortName="z", step=6)]
    fields += [make_message(shortName="10u", typeOfLevel="heightAboveGround", level=10, step=step) for step in (0, 6)]
    rain = {"productDefinitionTemplateNumber": 8, "shortName": "tp", "stepType": "accum"}
    fields += [make_message(**rain, stepRange=range_) for range_ in ("0-6", "0-12")]
    with_holes = np.where(RNG.random(496) > 0.5, np.nan, 3.5)
    return b"".join([*fields, make_message(with_holes, shortName="sst")])


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_dataset_equals_cfgrib(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(write_file())
    got = xr.open_dataset(path, engine="refshard", storage_options={"zarr_format": zarr_format})
    assert set(got.data_vars) == {"t", "z", "u10", "tp", "sst"}
    for name, keys in {
        "t": {"typeOfLevel": "isobaricInhPa", "shortName": "t"},
        "z": {"shortName": "z"},
        "u10": {"shortName": "10u"},
        "tp": {"shortName": "tp"},
        "sst": {"shortName": "sst"},
    }.items():
        want = open_cfgrib(path, **keys)[name]
        found = got[name]
        assert [d.partition("_")[0] for d in found.dims] == list(want.dims), name
        np.testing.assert_array_equal(found.values, want.values)
        for expected, dimension in zip(want.dims, found.dims, strict=True):
            np.testing.assert_allclose(
                got[dimension].values.astype(want[expected].dtype).astype("f8"), want[expected].values.astype("f8")
            )
        assert found.attrs["long_name"] == want.attrs["long_name"]
        assert found.attrs["units"] == want.attrs["units"]
        assert got["time"].values == want["time"].values
    assert got["z"].isobaricInhPa_1.item() == 500
    assert set(xr.open_datatree(path, engine="refshard")["/"].data_vars) == set(got.data_vars)


def test_missing_fields_of_members_are_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    keys = {"productDefinitionTemplateNumber": 1, "shortName": "t"}
    fields = {
        (number, step): make_message_on_level(500, **keys, number=number, step=step)
        for number, step in itertools.product((1, 2, 3), (0, 3))
        if (number, step) != (2, 3)
    }
    path.write_bytes(b"".join(fields.values()))
    got = xr.open_dataset(path, engine="refshard")["t"]
    assert dict(got.sizes) == {"number": 3, "step": 2, "latitude": 31, "longitude": 16}
    np.testing.assert_array_equal(got.values, open_cfgrib(path)["t"].values)
    assert np.isnan(got.values[1, 1]).all()


@pytest.mark.parametrize(
    "sample",
    [
        "regular_ll_sfc_grib2",
        "rotated_ll_sfc_grib2",
        "reduced_ll_sfc_grib2",
        "regular_gg_ml_grib2",
        "reduced_gg_pl_32_grib2",
        "rotated_gg_pl_grib2",
        "polar_stereographic_pl_grib2",
    ],
)
def test_datasets_of_sample_grids_equal_cfgrib(tmp_path: Path, sample: str) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(make_message(sample=sample))
    check_same_as_cfgrib(path)


def test_valid_time_has_the_dimensions_of_time_and_step(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    fields = {
        (day, step): make_message_on_level(500, dataDate=20240100 + day, step=step)
        for day in (1, 2)
        for step in (0, 6, 12)
    }
    path.write_bytes(b"".join(fields.values()))
    assert check_same_as_cfgrib(path)["valid_time"].dims == ("time", "step")
    path.write_bytes(fields[1, 0] + fields[1, 6])
    assert check_same_as_cfgrib(path)["valid_time"].dims == ("step",)
    path.write_bytes(fields[1, 0] + fields[2, 0])
    assert check_same_as_cfgrib(path)["valid_time"].dims == ("time",)
    diagonal = [make_message_on_level(500, dataDate=20240101 + day, step=day) for day in range(20)]
    path.write_bytes(b"".join(diagonal))
    assert "valid_time" not in xr.open_dataset(path, engine="refshard"), "400 sums for 20 fields"


def test_single_member_and_levels_in_pascal_equal_cfgrib(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(make_message_on_level(500, productDefinitionTemplateNumber=1, number=0))
    assert check_same_as_cfgrib(path)["number"].item() == 0
    path.write_bytes(
        b"".join(make_message(shortName="t", typeOfLevel="isobaricInPa", level=level) for level in (10, 50))
    )
    assert check_same_as_cfgrib(path)["isobaricInPa"].values.tolist() == [50, 10]


@pytest.mark.parametrize(
    ("sample", "north", "south", "east"),
    [("regular_ll_pl_grib2", 60, 0, 30), ("regular_gg_pl_grib2", 87.863799, -87.863799, 357.1875)],
)
def test_coordinates_follow_the_scan_directions(sample: str, north: float, south: float, east: float) -> None:
    upwards = {"latitudeOfFirstGridPointInDegrees": south, "latitudeOfLastGridPointInDegrees": north}
    westwards = {"longitudeOfFirstGridPointInDegrees": east, "longitudeOfLastGridPointInDegrees": 0}
    for keys in ({"jScansPositively": 1, **upwards}, {"iScansNegatively": 1, **westwards}):
        data = make_message(sample=sample, **keys)
        handle = eccodes.codes_new_from_message(data)
        want = [eccodes.codes_get_array(handle, key) for key in ("latitudes", "longitudes")]
        eccodes.codes_release(handle)
        found = np.meshgrid(open_array(data, "latitude")[...], open_array(data, "longitude")[...], indexing="ij")
        for coordinates, expected in zip(found, want, strict=True):
            np.testing.assert_allclose(coordinates.ravel(), expected, atol=1e-6)


@pytest.mark.parametrize(("west", "east"), [(185, 530), (270, 450), (350, 365), (345, 360)])
def test_longitudes_beyond_360_equal_cfgrib(tmp_path: Path, west: int, east: int) -> None:
    path = tmp_path / "a.grib2"
    corners = {"longitudeOfFirstGridPointInDegrees": west, "longitudeOfLastGridPointInDegrees": east}
    path.write_bytes(
        make_message(sample="regular_ll_sfc_grib2", iDirectionIncrementInDegrees=(east - west) / 15, **corners)
    )
    got = check_same_as_cfgrib(path)["longitude"].values
    np.testing.assert_allclose(got, np.linspace(west, east, 16) - (360 if east > 361 else 0))


@pytest.mark.parametrize("sample", ["regular_ll_sfc_grib2", "regular_gg_ml_grib2", "polar_stereographic_pl_grib2"])
@pytest.mark.parametrize("flags", [0x10, 0x20, 0x30])
def test_column_and_alternating_scans_become_rows(sample: str, flags: int) -> None:
    plain = make_message(sample=sample)
    keys = [f"{key}itude" for key in ("lat", "long")]
    rows, *want = (open_array(plain, key)[...] for key in ("t", *keys))
    scanned = rows.T.copy() if flags & 0x20 else rows.copy()
    if flags & 0x10:
        scanned[1::2] = scanned[1::2, ::-1].copy()
    directions = {"jPointsAreConsecutive": flags >> 5, "alternativeRowScanning": flags >> 4 & 1}
    data = make_message(scanned.ravel(), sample=sample, **directions, bitsPerValue=24)
    np.testing.assert_allclose(open_array(data, "t")[...], rows, rtol=1e-5)
    for key, coordinates in zip(keys, want, strict=True):
        np.testing.assert_array_equal(open_array(data, key)[...], coordinates)


def test_potential_vorticity_levels_equal_cfgrib(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(make_message(typeOfLevel="potentialVorticity", level=2000))
    assert check_same_as_cfgrib(path)["potentialVorticity"].item() == 2000


def test_grids_of_a_file_have_separate_coordinates(tmp_path: Path) -> None:
    """Two grids that differ only in their longitudes have separate coordinates, too."""
    path = tmp_path / "a.grib2"
    moved = make_message(shortName="u", longitudeOfFirstGridPointInDegrees=10, longitudeOfLastGridPointInDegrees=40)
    polar = make_message(shortName="v", sample="polar_stereographic_sfc_grib2")
    path.write_bytes(make_message(shortName="t") + polar + moved)
    got = xr.open_dataset(path, engine="refshard")
    for name in ("t", "u", "v"):
        want = open_cfgrib(path, shortName=name)
        np.testing.assert_array_equal(got[name].values, want[name].values)
        longitude = next(str(coord) for coord in got[name].coords if str(coord).startswith("longitude"))
        np.testing.assert_array_equal(got[longitude].values, want["longitude"].values)


def test_too_fine_gaussian_grid_is_an_error() -> None:
    data = make_message(sample="regular_gg_pl_grib2")
    at = data.index(b"\0\0\0\x48\3") + 67
    assert data[at : at + 4] == (32).to_bytes(4)
    with pytest.raises(ManifestError, match="its Gaussian grid has N=1000000: expected at most 8192"):
        Files({ROOT: data[:at] + (10**6).to_bytes(4) + data[at + 4 :]}).open()


def test_both_fields_of_a_message_are_shown() -> None:
    first, second = (
        split_sections(make_message_on_level(500, shortName="u")),
        split_sections(make_message_on_level(500, shortName="v")),
    )
    body = b"".join([*first, *second[2:]])
    data = b"GRIB\0\0\0\2" + (len(body) + 20).to_bytes(8) + body + b"7777"
    for name, field in (("u", first), ("v", second)):
        alone = b"GRIB\0\0\0\2" + (len(b"".join(field)) + 20).to_bytes(8) + b"".join(field) + b"7777"
        np.testing.assert_array_equal(open_array(data, name)[...], open_array(alone, name)[...])


def test_unsupported_fields_are_reported() -> None:
    clustered = make_message_on_level(500, productDefinitionTemplateNumber=3)
    keyspace = Files({ROOT: clustered + make_message_on_level(500, shortName="t")}).open()
    assert keyspace.reports.keys() == {"the message at byte 0"}
    assert keyspace.reports["the message at byte 0"].startswith("its product has template 3: expected one of 0, 1, 2")
    with pytest.raises(
        ManifestError, match="that can be shown, found none: the message at byte 0: its product has template 3"
    ):
        Files({ROOT: clustered}).open()


def test_unstructured_grid_has_one_dimension_and_a_uuid() -> None:
    data = make_message_on_level(500, shortName="t")
    grid = (
        struct.pack(">IBBIBBH", 35, 3, 0, 496, 0, 0, 101) + struct.pack(">B3sB", 6, b"\0\0\x1a", 1) + bytes(range(16))
    )
    identification, _, *others = split_sections(data)
    body = b"".join([identification, grid, *others])
    icon = b"GRIB\0\0\0\2" + (len(body) + 20).to_bytes(8) + body + b"7777"
    found = open_array(icon, "t")
    np.testing.assert_array_equal(found[...], open_array(data, "t")[...].ravel())
    assert found.attrs["GRIB_uuidOfHGrid"] == bytes(range(16)).hex()
    assert found.attrs["GRIB_numberOfGridUsed"] == 26


def test_grid_of_an_unsupported_field_gives_no_name_a_suffix() -> None:
    refused = make_message(np.zeros(200_000), shortName="u", Ni=200_000, Nj=1)
    grids = Files({ROOT: refused + make_message_on_level(500, shortName="t")}).open().grids
    assert {"latitude", "longitude"} <= grids.keys()
    assert not {name for name in grids if name.endswith("_1")}


def test_small_file_is_opened_in_two_rounds() -> None:
    files = Files({ROOT: make_many_messages()})
    assert files.open().grids
    assert files.rounds == 2, "the head of the file, and the rest"
    assert sum(stop - start for _, start, stop in files.wanted) == len(files.files[ROOT]) - HEAD


def test_concat_takes_two_requests_for_each_file() -> None:
    """Fields that differ along the new dimension are not compared, so they are not read."""
    keys = {"shortName": "t", "Ni": 150, "Nj": 150, "bitsPerValue": 16, "values": np.resize(POINTS, 22_500)}
    with RangeServer() as server:
        urls = [
            server.put(
                f"{step}.grib2",
                b"".join(make_message_on_level(level, step=step, **keys) for level in (1000, 850, 500, 300)),
            )
            for step in range(3)
        ]
        server.clear()
        joined = refshard_fs.concat(urls, "step", lazy=True, allow=[server.url])
        assert len(server.requests()) == 2 * len(urls)
        server.clear()
        with xr.open_dataset(joined, engine="refshard") as ds:
            found = ds["t"].sel(isobaricInhPa=500).values
        assert not server.requests(), "the blocks that were read to join the files are kept"
    assert found.shape == (3, 150, 150)
    assert np.ptp(found, axis=0).max() == 0


@pytest.mark.usefixtures("large_files")
def test_fields_of_short_messages_are_fetched_once(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of short messages is read in blocks when it is opened, and its fields lie in these blocks."""
    monkeypatch.setattr(source, "WHOLE", 0)
    keys = {"Ni": 120, "Nj": 120, "bitsPerValue": 16, "values": np.resize(POINTS, 14_400)}
    data = b"".join(
        make_message_on_level(500, shortName=name, step=step, **keys) for step in range(30) for name in ("t", "z")
    )
    with xr.open_dataset(http_server.put("/a.grib2", data), engine="refshard") as ds:
        assert ds["t"].shape == (30, 120, 120)
        assert np.ptp(ds["t"].values, axis=0).max() == 0
    assert http_server.bytes_sent < 1.1 * len(data)
    assert len(http_server.requests()) <= 12


@pytest.mark.parametrize("size", ["small", "large", "sidecar"])
def test_scan_is_cached_on_disk_for_this_version_of_the_file(
    tmp_path: Path, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached scan is not used for another version of the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if size != "small":
        monkeypatch.setattr(source, "WHOLE", 0)
    data = make_many_messages() * 2
    assert len(data) > 1 << 18, "the scan of such a file is cached by default"
    replacement = b"".join(
        make_message_on_level(level, shortName="t", Ni=60, Nj=60, values=POINTS + 1) for level in (850, 500)
    )
    with RangeServer() as server:
        urls = [server.put(f"{step}.grib2", data) for step in range(2)]
        if size == "sidecar":
            for url in urls:
                server.put(url.rpartition("/")[2] + ".idx", make_sidecar(data, ".idx"))
        first = read_all(urls[0])
        assert read_all(urls[1]) == first
        server.clear()
        with monkeypatch.context() as without_names:
            without_names.delattr(source, "name_parameter")
            assert read_all(urls[0], with_values=False).keys() == first.keys()
        (head,) = server.requests()
        assert (head.stop or 0) - (head.start or 0) == HEAD
        assert read_all(urls[0]) == first
        server.put("0.grib2", replacement + bytes(1 << 18))
        if size == "sidecar":
            server.delete("0.grib2.idx")
        changed = read_all(urls[0])
        assert changed == read_all(urls[0], index_cache=False)
        assert changed.keys() != first.keys()


def read_all(url: str, *, with_values: bool = True, **options: Any) -> dict[str, bytes]:
    """Return the values by key, without anything in memory from earlier; b"" for each key unless ``with_values``."""
    INDEXES.clear()
    fs = RefShardFileSystem(url, skip_instance_cache=True, **options)
    values = {key: fs.cat_file(key) if with_values else b"" for key in fs.find("")}
    wait_for_writes()
    return values


def test_scans_of_cube_parts_are_cached(tmp_path: Path) -> None:
    keys = {"shortName": "t", "Ni": 150, "Nj": 150, "bitsPerValue": 16, "values": np.resize(POINTS, 22_500)}
    with RangeServer() as server:
        urls = [
            server.put(
                f"{step}.grib2", b"".join(make_message_on_level(level, step=step, **keys) for level in (1000, 850, 500))
            )
            for step in range(3)
        ]
        options = {"allow": [server.url], "index_cache": str(tmp_path / "cache")}
        refshard_fs.concat(urls, "step", lazy=True, **options).save(str(tmp_path / "cube.refshard"))
        wait_for_writes()
        INDEXES.clear()
        server.clear()
        with xr.open_dataset(tmp_path / "cube.refshard", engine="refshard", storage_options=options) as ds:
            found = ds["t"].sel(isobaricInhPa=500).values
        assert len(server.requests()) == 2 * len(urls), "for each file, its head and a field"
    assert np.ptp(found, axis=0).max() == 0


def test_packing_a_scan_without_eccodes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eccodes", None)
    data = write_file()
    with pytest.raises(ValueError, match="reading GRIB needs eccodes"):
        FileScan(data[:100], len(data)).pack(source._scan_in_memory(data, b"", "x"))


def test_unpacked_scan_equals_the_packed_scan() -> None:
    data = write_file()
    index = FileScan(data[:100], len(data))
    scan = source.Scan.make(
        (messages.UnshownPart(7, "of another kind"), *source._scan_in_memory(data, b"", "x").fields)
    )
    packed = b"".join(index.pack(scan))
    assert index.unpack(memoryview(packed)) == scan
    for damaged in (b"", packed[:-1], b"\x92\x90" + packed[2:]):
        with pytest.raises(ValueError, match="expected the scan"):
            index.unpack(memoryview(damaged))


def test_commands_accept_grib2_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(write_file())
    refs = check_commands(path, tmp_path, capsys, "t")
    np.testing.assert_array_equal(open_array(refs, "t")[...], open_array(path, "t")[...])


def test_error_for_a_truncated_file_names_the_file() -> None:
    data = write_file()
    ends = {*find_offsets(data)[1:], len(data)}
    for cut in {*RNG.integers(1, len(data), 60).tolist(), *(end - 1 for end in ends)} - ends:
        with pytest.raises(RefShardError, match="files://x"):
            Files({ROOT: data[:cut]}).open("grib2")


def test_damaged_headers_are_errors_or_reported() -> None:
    data, rng = write_file(), np.random.default_rng(6)
    for at, bit in zip(rng.integers(0, 220, 100).tolist(), rng.integers(0, 8, 100).tolist(), strict=True):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        try:
            keyspace = Files({ROOT: bytes(flipped)}).open("grib2")
        except RefShardError as e:
            assert str(e)
        else:
            assert "sst" in keyspace.grids or keyspace.reports, (at, bit)


@pytest.mark.parametrize("edition", [1, 2])
def test_cube_joins_files_along_time_step_and_member(edition: int, tmp_path: Path) -> None:
    sample, member = ("regular_ll_pl_grib1", {}) if edition == 1 else ("regular_ll_sfc_grib2", {"number": 1})
    for day, step, number in itertools.product((1, 2), (0, 6), (0, 1) if member else (0,)):
        keys = {"dataDate": 20240100 + day, "step": step} | dict.fromkeys(member, number)
        product = {"productDefinitionTemplateNumber": 1} if member else {}
        fields = [
            make_message(np.full(496, 100 * day + step + number / 8 + level / 1e4), sample, **product, shortName="t",
                    typeOfLevel="isobaricInhPa", level=level, **keys)
            for level in (850, 500)
        ]  # fmt: skip
        (tmp_path / f"{day}_{step}_{number}.grib").write_bytes(b"".join(fields))
    cube = refshard_fs.cube(str(tmp_path / "*.grib"))
    found = xr.open_dataset(cube, engine="refshard")["t"]
    assert found.dims[:-2] == ("time", *(["number"] if member else []), "step", "isobaricInhPa")
    at = {"number": 1} if member else {}
    want = 206 + len(member) / 8 + 0.05
    assert found.isel(time=1, step=1, **at).sel(isobaricInhPa=500).values == pytest.approx(want, rel=1e-6)

"""NetCDF-3 files have the values that netCDF4, scipy and xarray read; chunks of truncated files are right or errors."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.core.lru import LRU
from refshard_fs.formats.netcdf3 import source
from refshard_fs.formats.netcdf3.source import parse_header
from tests.servers.http import RangeServer
from tests.support.damage import check_beside
from tests.support.files_of_arrays import check_commands, check_damage, check_same, count_rounds_to_open
from tests.support.shard_writers import IS_ZARR_2, open_array
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.case(id="P33")

xr = pytest.importorskip("xarray")
netcdf4 = pytest.importorskip("netCDF4")

VERSIONS = {"NETCDF3_CLASSIC": 1, "NETCDF3_64BIT_OFFSET": 2, "NETCDF3_64BIT_DATA": 5}
ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def make_letters(texts: list[str], width: int) -> Any:
    return netcdf4.stringtochar(np.array(texts, f"S{width}"))


def write_file(path: Path, version: str = "NETCDF3_CLASSIC", records: int = 5) -> Path:
    """Write a file with records, variables without records, text, scalars and all kinds of attributes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = netcdf4.Dataset(path, "w", format=version)
    for name, length in (("time", None), ("y", 3), ("x", 5), ("letters", 7)):
        ds.createDimension(name, length)
    ds.setncatts({"title": "Grüße", "empty": "", "whole": np.int16(-4), "numbers": np.array([1.5, -2], "f4")})
    time = ds.createVariable("time", "f8", ("time",))
    time.units = "hours since 2001-02-03"
    time[:] = np.arange(records) * 6
    packed = ds.createVariable("packed", "i2", ("time", "y", "x"), fill_value=-999)
    packed.setncatts(
        {"scale_factor": np.float32(0.1), "add_offset": np.float32(10.5), "valid_range": np.array([-900, 900], "i2")}
    )
    packed.set_auto_maskandscale(False)
    packed[:] = np.arange(records * 15).reshape(records, 3, 5)
    packed[-1:, 1] = -999
    x = ds.createVariable("x", "f4", ("x",))
    x[:] = np.linspace(0, 1, 5)
    y = ds.createVariable("y", "i1", ("y",))
    y[:] = [3, 2, 1]
    hole = ds.createVariable("hole", "f4", ("y", "x"), fill_value=np.float32("nan"))
    hole[:] = np.arange(15).reshape(3, 5)
    missing = ds.createVariable("missing", "f4", ("x",))
    missing.missing_value = np.float32(1e20)
    missing[:] = [1, 1e20, 2, 3, 1e20]
    ds.createVariable("scalar", "i4", ())[...] = -7
    ds.createVariable("names", "S1", ("y", "letters"))[:] = make_letters(["abc", "", "seven77"], 7)
    label = ds.createVariable("label", "S1", ("time", "letters"), fill_value="-")
    label[:] = make_letters([f"n{i}" for i in range(records)], 7)
    flags = ds.createVariable("flags", "i1", ("time", "x"))
    flags.setncattr("_Unsigned", "true")
    flags[:] = np.arange(records * 5).reshape(records, 5) - 7
    counts = ds.createVariable("counts", "i2", ("time", "x"), fill_value=np.int16(-2))
    counts.setncattr("_Unsigned", "true")
    counts.set_auto_maskandscale(False)
    counts[:] = np.arange(records * 5).reshape(records, 5) - 7
    if version == "NETCDF3_64BIT_DATA":
        for kind in ("u1", "u2", "u4", "i8", "u8"):
            ds.createVariable(kind, kind, ("time",))[:] = np.arange(records)
        ds.setncattr("large", np.uint64(2**63 + 1))
    ds.close()
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*")
def test_xarray_dataset_equals_other_engines(tmp_path: Path, version: str, zarr_format: int) -> None:
    path = write_file(tmp_path / "a.nc", version)
    assert path.read_bytes()[:4] == b"CDF" + bytes([VERSIONS[version]])
    options: dict[str, Any] = {"engine": "refshard", "storage_options": {"zarr_format": zarr_format}}
    for decode in (True, False):
        actual, expected = xr.open_dataset(path, decode_cf=decode, **options), xr.open_dataset(path, decode_cf=decode)
        if zarr_format == 3:  # xarray reads no fill value of text from version 3
            expected["label"].encoding.pop("_FillValue", None)
            expected["label"].attrs.pop("_FillValue", None)
            expected["label"], actual["label"] = expected["label"].astype(str), actual["label"].astype(str)
        check_same(actual, expected)
        assert actual.encoding["unlimited_dims"] == expected.encoding["unlimited_dims"] == {"time"}
    tree = xr.open_datatree(path, **options)
    assert set(tree["/"].data_vars) == set(expected.data_vars)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*")
def test_datatree_has_the_values_that_netcdf4_reads(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.nc")
    tree = xr.open_datatree(path, engine="refshard")
    assert [node.path for node in tree.subtree] == ["/"]
    with xr.open_dataset(path, engine="netcdf4") as expected:
        assert set(tree["/"].variables) == set(expected.variables)
        for name, variable in expected.variables.items():
            assert tree[name].dims == variable.dims, name
            np.testing.assert_array_equal(tree[name].values, variable.values, err_msg=name)


@pytest.mark.parametrize("writer", ["scipy", *VERSIONS])
@pytest.mark.parametrize("records", [0, 1, 4])
def test_single_small_record_variable_has_no_padding(tmp_path: Path, writer: str, records: int) -> None:
    if writer == "scipy" and not records:
        return  # no library can open the file that scipy writes
    create = pytest.importorskip("scipy.io").netcdf_file if writer == "scipy" else netcdf4.Dataset
    for count in (1, 2):
        path = tmp_path / f"{count}.nc"
        with create(path, "w", **({} if writer == "scipy" else {"format": writer})) as ds:
            ds.createDimension("t", None)
            ds.createDimension("x", 3)
            for number in range(count):
                ds.createVariable(f"v{number}", "i2", ("t", "x"))[:] = (
                    np.arange(records * 3).reshape(records, 3) + number
                )
            ds.createVariable("fixed", "i1", ("x",))[:] = [1, 2, 3]
        actual, expected = (xr.open_dataset(path, engine=engine) for engine in ("refshard", "netcdf4"))
        check_same(actual, expected)
        assert actual.v0.encoding["chunks"] == (max(records, 1), 3)


def test_record_count_of_a_stream_follows_from_the_file_size(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.nc", records=4)
    data = path.read_bytes()
    assert data[4:8] == b"\0\0\0\4"
    expected = open_array(str(path), "packed")[...]
    path.write_bytes(data[:4] + b"\xff" * 4 + data[8:])
    assert np.array_equal(open_array(str(path), "packed")[...], expected)
    assert expected.shape == (4, 3, 5)
    path.write_bytes(data[:4] + b"\xff" * 4 + data[8:-10])  # the last record is incomplete
    assert open_array(str(path), "packed").shape == (3, 3, 5)


def test_large_variables_and_records_are_cut_into_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    fixed = np.random.default_rng(0).integers(0, 99, (1009, 1300), "i4")  # a prime number of rows
    with netcdf4.Dataset(path, "w", format="NETCDF3_CLASSIC") as ds:
        for name, length in (("t", None), ("y", 1009), ("x", 1300)):
            ds.createDimension(name, length)
        ds.createVariable("fixed", "i4", ("y", "x"))[:] = fixed
        ds.createVariable("level", "i4", ("t", "y", "x"))[:] = np.stack([fixed, fixed + 1])
        ds.createVariable("other", "i1", ("t",))[:] = [1, 2]
    array_ = open_array(str(path), "fixed")
    assert array_.chunks == (806, 1300)
    assert np.array_equal(array_[...], fixed)
    level = open_array(str(path), "level")
    assert level.chunks == (1, 806, 1300)
    assert np.array_equal(level[...], np.stack([fixed, fixed + 1]))
    in_memory = RefShardFileSystem(fo=path.read_bytes())
    assert in_memory.cat_file("level/1.1.0")[: 203 * 5200] == (fixed + 1)[806:].astype(">i4").tobytes()


def test_commands_read_a_file_and_convert_it_to_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_file(tmp_path / "a.nc")
    refs = check_commands(path, tmp_path, capsys, "packed")
    check_same(xr.open_dataset(refs, engine="refshard", decode_cf=False), xr.open_dataset(path, decode_cf=False))


def write_records(path: Path, shape: tuple[int, ...], records: int) -> Path:
    """Write a file with three record variables of ``shape`` in each record, and their coordinate."""
    with netcdf4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as ds:
        ds.createDimension("time", None)
        names = ("time", *(f"d{axis}" for axis in range(len(shape))))
        for name, extent in zip(names[1:], shape, strict=True):
            ds.createDimension(name, extent)
        ds.createVariable("time", "f8", ("time",))[:] = np.arange(records)
        for number in range(3):
            values = np.arange(records * np.prod(shape, dtype=int)).reshape(records, *shape) + number
            ds.createVariable(f"v{number}", "i4", names)[:] = values
    return path


@pytest.mark.usefixtures("large_files")
def test_opening_takes_few_rounds_and_records_one_request(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.nc", (40, 50), 30)
    url = http_server.put("/a.nc", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert "v1" in fs.ls("", detail=False)
    assert count_rounds_to_open(path) <= 3
    http_server.clear()
    assert len(fs.cat_file("v1/7.0.0")) == 8000
    (request,) = http_server.requests()
    assert (request.stop or 0) - (request.start or 0) == 8000
    http_server.clear()
    values = fs.cat([f"v{number}/{record}.0.0" for number in range(3) for record in range(20)])
    assert len(values) == 60
    assert len(http_server.requests()) == 1, "records of several variables lie side by side, and are read together"
    check_same(xr.open_dataset(url, engine="refshard"), xr.open_dataset(path))


@pytest.mark.usefixtures("large_files")
def test_small_records_share_a_chunk(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.nc", (2,), 20_000)
    url = http_server.put("/a.nc", path.read_bytes())
    check_same(xr.open_dataset(url, engine="refshard"), xr.open_dataset(path))
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert len(fs.ls("v1")) == 2 + 3
    http_server.clear()
    assert len(fs.cat_file("v1/2.0")) == 8192 * 8
    (request,) = http_server.requests()
    assert (request.stop or 0) - (request.start or 0) < 1 << 18
    http_server.clear()
    fs.cat([f"v{number}/1.0" for number in range(3)])
    assert len(http_server.requests()) == 1


@pytest.mark.usefixtures("large_files")
@pytest.mark.parametrize("records", [20_000, 40_001])
def test_loading_all_small_records_reads_the_file_once(http_server: RangeServer, tmp_path: Path, records: int) -> None:
    """The file interleaves the variables: without a cache, each variable would read all of them."""
    path = write_records(tmp_path / "a.nc", (20,), records)
    url = http_server.put("/a.nc", path.read_bytes())
    with xr.open_dataset(url, engine="refshard", storage_options={"skip_instance_cache": True}) as ds:
        check_same(ds.load(), xr.open_dataset(path))
    assert sum(request.sent for request in http_server.requests()) < 1.1 * path.stat().st_size
    assert len(http_server.requests()) <= 5 + (path.stat().st_size >> 20)


@pytest.mark.usefixtures("large_files")
@pytest.mark.parametrize("names", [["v1"], ["v1", "v2", "v0"]])
def test_large_records_are_fetched_once_in_few_requests(
    http_server: RangeServer, tmp_path: Path, names: list[str]
) -> None:
    """The records of a variable have 20 KB and lie 40 KB apart, which cost less than a request for each record."""
    path = write_records(tmp_path / "a.nc", (50, 50), 500)
    url = http_server.put("/a.nc", path.read_bytes())
    with xr.open_dataset(url, engine="refshard", storage_options={"skip_instance_cache": True}) as ds:
        for name in names:
            check_same(ds[[name]].load(), xr.open_dataset(path)[[name]])
    assert sum(request.sent for request in http_server.requests()) < 1.1 * path.stat().st_size
    assert len(http_server.requests()) <= 5 + (path.stat().st_size >> 20)


def test_loading_a_local_file_reads_each_range_once(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.nc", (20,), 20_000)
    fs = RefShardFileSystem(str(path), asynchronous=True, skip_instance_cache=True)
    with xr.open_dataset(fs, engine="refshard") as ds:
        check_same(ds.load(), xr.open_dataset(path))
    assert fs.stats()["bytes_fetched"] < 1.1 * path.stat().st_size
    assert fs.stats()["cache_hits"] > 2 * 18


@pytest.mark.parametrize("records", [1, 1057, 1058, 20_000])
def test_small_records_up_to_the_file_end_have_their_values(tmp_path: Path, records: int) -> None:
    """1057 records of 248 bytes are a range that all variables share."""
    path = write_records(tmp_path / "a.nc", (20,), records)
    check_same(xr.open_dataset(path, engine="refshard"), xr.open_dataset(path))
    with xr.open_dataset(path.read_bytes(), engine="refshard") as ds:
        check_same(ds, xr.open_dataset(path))


def test_times_of_large_records_are_read_without_the_records(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.nc", (100, 1000), 5)
    fs = RefShardFileSystem(http_server.put("/a.nc", path.read_bytes()), skip_instance_cache=True)
    assert np.frombuffer(fs.cat_file("time/0"), ">f8").tolist() == [0, 1, 2, 3, 4]
    assert sum(request.sent for request in http_server.requests()) < 1 << 17
    in_memory = RefShardFileSystem(fo=path.read_bytes())
    assert in_memory.cat_file("time/0") == fs.cat_file("time/0")


@pytest.mark.usefixtures("large_files")
@pytest.mark.parametrize(("records", "requests"), [(28, 4), (600, 600)])
def test_all_bytes_are_read_for_times_if_the_file_is_small(
    http_server: RangeServer, tmp_path: Path, records: int, requests: int
) -> None:
    """The records have 60 KB: reading all bytes of a small file costs less than a request for each record."""
    path = write_records(tmp_path / "a.nc", (50, 50), records)
    url = http_server.put("/a.nc", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    fs.source.reads_small_files_whole = False  # as for the inputs of `concat`
    assert np.frombuffer(fs.cat_file("time/0"), ">f8")[:records].tolist() == list(range(records))
    assert requests // 2 <= len(http_server.requests()) <= requests + 4


def test_long_headers_are_read_in_few_rounds(http_server: RangeServer, tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netcdf4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as ds:
        ds.createDimension("x", 2)
        for number in range(300):
            ds.createVariable(f"variable_{number:04}", "f4", ("x",)).long_name = "a name of many letters" * 50
    url = http_server.put("/a.nc", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert len(fs.ls("variable_0299")) == 3
    assert count_rounds_to_open(path) <= 4
    assert len(http_server.requests()) <= 4


def test_damaged_files_raise_only_refshard_errors(tmp_path: Path) -> None:
    for version in VERSIONS:
        check_damage(write_file(tmp_path / f"{version}.nc", version).read_bytes(), seed=VERSIONS[version], header=1800)


def make_file(position: int, *words: int) -> bytes:
    """Make a classic file with a dimension x and a variable v. ``words`` replace 32-bit words from ``position`` on."""
    fields = [0, 10, 1, 1, 0x78000000, 2, 0, 0, 11, 1, 1, 0x76000000, 1, 0, 0, 0, 4, 8, 80]
    fields[position : position + len(words)] = words
    return b"CDF\1" + struct.pack(f">{len(fields)}I", *fields) + struct.pack(">2i", 5, 6)


def test_minimal_file_is_read() -> None:
    files = Files({ROOT: make_file(0)})
    assert files.read(files.open(), "v/0") == b"\0\0\0\5\0\0\0\6"


@pytest.mark.parametrize(
    ("position", "words", "reason"),
    [
        (1, (12,), "list of dimensions has the tag 12"),
        (2, (0x7FFFFFFF,), "dimensions: expected at most 9"),
        (3, (0x7FFFFFFF,), "cut short"),
        (5, (0x7FFFFFFF,), "cut short: expected variable 'v' up to"),
        (9, (7000,), "variables: expected at most 5"),
        (12, (9,), "9 dimensions"),
        (16, (7,), "type 7: expected 1 to 6 in version 1 of the format"),
        (18, (84,), "up to byte 92, found 88 bytes"),
        (5, (0, 0, 0, 11, 1, 1, 0x76000000, 1, 0, 0, 0, 4, 4, 80), None),
        (0, (3, 10, 1, 1, 0x78000000, 0), "up to byte 92"),
        (11, (0xFF000000,), "a name in UTF-8"),
    ],
)
def test_error_of_an_impossible_header_names_the_field(
    position: int, words: tuple[int, ...], reason: str | None
) -> None:
    files = Files({ROOT: make_file(position, *words)})
    if reason is None:
        assert files.open().grids["v"].size == 0
        return
    with pytest.raises(ManifestError, match=reason) as caught:
        files.open()
    assert ROOT in str(caught.value)


def test_variable_name_ends_at_its_first_nul() -> None:
    files = Files({ROOT: make_file(10, 4, 0x76770000)})  # "vw" and two zeros
    assert list(files.open().grids) == ["vw"]


def test_contradictory_variables_are_reported() -> None:
    def make_variable(name: bytes, dimensions: list[int], begin: int) -> list[int]:
        name_word = int.from_bytes(name.ljust(4, b"\0"), "big")
        return [len(name), name_word, len(dimensions), *dimensions, 0, 0, 4, 8, begin]

    x, time = [1, 0x78000000, 2], [1, 0x74000000, 0]
    for wrong_ids, reason in (
        ([7], "expected less than 2, the number of dimensions"),
        ([0, 1], "only in the first place"),
        ([0], "after the header"),
    ):
        begin = 8 if reason == "after the header" else 300
        parts = [make_variable(b"v", [0], 300), make_variable(b"bad", wrong_ids, begin), make_variable(b"r", [1], 308)]
        fields = [1, 10, 2, *x, *time, 0, 0, 11, len(parts), *(word for part in parts for word in part)]
        data = (b"CDF\1" + struct.pack(f">{len(fields)}I", *fields)).ljust(300, b"\0") + struct.pack(">3i", 5, 6, 7)
        files = Files({ROOT: data})
        keyspace = files.open()
        assert files.read(keyspace, "v/0") == b"\0\0\0\5\0\0\0\6"
        assert reason in keyspace.reports["bad"]
        assert ("r" in keyspace.grids) == (begin == 8)  # otherwise the place of its second record is unknown
        with pytest.raises(ManifestError, match="is not shown"):
            files.read(keyspace, "bad/0")


@pytest.mark.parametrize("count", range(5))
def test_uncounted_variables_are_reported(tmp_path: Path, count: int) -> None:
    """A damaged count of variables could hide the other variables without a report."""
    path = tmp_path / "a.nc"
    with netcdf4.Dataset(path, "w", format="NETCDF3_CLASSIC") as ds:
        ds.createDimension("x", 3)
        for number in range(4):
            ds.createVariable(f"v{number}", "f4", ("x",))[:] = number
    data = path.read_bytes()
    position = data.index(struct.pack(">3I", 11, 4, 2)) + 4
    damaged = data[:position] + struct.pack(">I", count) + data[position + 4 :]
    keyspace = Files({ROOT: damaged}).open()
    assert list(keyspace.grids) == ["v0", "v1", "v2", "v3"][:count]
    assert list(keyspace.reports) == [f"v{count}"] * (count < 4)


def test_equal_header_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    headers: list[bytes] = []

    def parse_and_record(data: bytes, size: int, where: str) -> Any:
        headers.append(data)
        return parse_header(data, size, where)

    monkeypatch.setattr(source, "parse_header", parse_and_record)
    monkeypatch.setattr(source, "_layouts", LRU(4))
    first, same_header, other_header = (
        make_file(0),
        make_file(0)[:-8] + struct.pack(">2i", 7, 8),
        make_file(11, 0x77000000),
    )
    files = [Files({ROOT: data}) for data in (first, same_header, other_header, first + b"more")]
    keyspaces = [file.open() for file in files]
    assert headers == [first, other_header, first + b"more"]
    assert [list(keyspace.grids) for keyspace in keyspaces] == [["v"], ["v"], ["w"], ["v"]]
    values = [file.read(keyspace, f"{name}/0") for file, keyspace, name in zip(files, keyspaces, "vvwv", strict=True)]
    assert [struct.unpack(">2i", data or b"") for data in values] == [(5, 6), (7, 8), (5, 6), (5, 6)]


def test_names_that_cannot_be_keys_are_reported(tmp_path: Path) -> None:
    data = write_file(tmp_path / "a.nc").read_bytes().replace(b"\0\0\0\6packed", b"\0\0\0\6../../")
    keyspace = Files({ROOT: data}).open()
    assert list(keyspace.reports) == ["../../"]
    assert "scalar" in keyspace.grids


def test_bytes_of_a_changed_file_are_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.nc")
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    fs.ls("")
    path.write_bytes(path.read_bytes()[:-8] + bytes(9))
    with pytest.raises(RefShardError, match="a.nc"):
        fs.cat_file("packed/0.0.0")


def read_by_netcdf4(path: Path) -> dict[str, Any]:
    with netcdf4.Dataset(path) as dataset:
        dataset.set_auto_maskandscale(False)
        dataset.set_auto_chartostring(False)
        return {name: np.asarray(variable[...]) for name, variable in dataset.variables.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_header_gives_no_values_of_its_own(tmp_path: Path, version: str) -> None:
    path = write_file(tmp_path / "a.nc", version)
    check_beside(path, read_by_netcdf4, seed=VERSIONS[version], times=25, part=(4, 1800))


@pytest.mark.parametrize(("name", "records"), [("x", 5), ("flags", 5), ("counts", 1)])
def test_variables_at_the_same_bytes_are_an_error(tmp_path: Path, name: str, records: int) -> None:
    """A damaged ``begin`` once showed the values of another variable."""
    path = write_file(tmp_path / "a.nc", records=records)
    data = bytearray(path.read_bytes())
    header = parse_header(bytes(data), len(data), "a.nc")
    [begin] = [variable.begin for variable in header.variables if variable.name == name]
    position = data.index(struct.pack(">I", begin), data.index(name.encode()))
    for distance in (4, 12):
        data[position : position + 4] = struct.pack(">I", begin + distance)
        with pytest.raises(ManifestError, match=r"has values at byte \d+: expected byte|cut short"):
            Files({ROOT: bytes(data)}).open()

"""CDF files have the values that cdflib and the CDF library read; damaged files are errors."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import DamagedIndex, ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.cdf_writer import (
    EPOCH,
    GZIP,
    HUFFMAN,
    RLE,
    TT2000,
    Variable,
    Writer,
    compress_file,
    read_real_file,
)
from tests.support.files_of_arrays import check_commands, check_damage
from tests.support.shard_writers import IS_ZARR_2
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")

ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]
TIMES = 63429523200000.0 + np.arange(10) * 60_000  # milliseconds since year 0: a value each minute, from 2010-01-01
RNG = np.random.default_rng(0)
FIELD = RNG.normal(size=(10, 3)).astype("f4")
FLUX = RNG.normal(size=(10, 2, 4))


def make_file(version: int = 3, encoding: int = 6, *, is_row_major: bool = True, gap: int = 0) -> bytes:
    """Make a file with the attributes of ISTP, and variables of each kind."""
    writer = Writer(version, encoding, is_row_major=is_row_major)
    pad = np.array(5.5).astype(writer.order + "f8").tobytes()
    time_attributes = {"DEPEND_0": "Epoch"}
    variables = {
        "Epoch": Variable(TIMES, {"VALIDMIN": TIMES[0]}, EPOCH, compression=GZIP, runs=[(0, 3), (4, 9)]),
        "energy": Variable(np.arange(4, dtype="f4"), {"UNITS": "eV", "LABLAXIS": "E"}, varies=False),
        "labels": Variable(np.array([b"Bx ", b"By", b"Bz"]), varies=False),
        "B": Variable(
            FIELD, {**time_attributes, "LABL_PTR_1": "labels", "DEPEND_1": "axes", "FILLVAL": FIELD[3, 1]}, tree=2
        ),
        "axes": Variable(np.arange(3, dtype="i2"), varies=False),
        "flux": Variable(FLUX, {**time_attributes, "DEPEND_2": "energy"}, runs=[(2, 4), (6, 7)], sparse=1, pad=pad),
        "bins": Variable(FLUX[:, 0], time_attributes, compression=GZIP),
        "rate": Variable(FLUX, {**time_attributes, "DEPEND_2": "bins"}, compression=RLE),
        "time": Variable(np.arange(10) * 10**9 + 5 * 10**17, time_attributes, TT2000),
        "flag": Variable(np.array(list("abcdefghij"), "S1"), time_attributes),
        "old": Variable(np.arange(20, dtype="u2").reshape(10, 2), is_z=False),
        "a/b": Variable(np.arange(30, dtype="u1").reshape(10, 3), novary=1),
        "empty": Variable(np.zeros((0, 3), "f4"), time_attributes, runs=[]),
    }
    attributes = {"Project": ["ISTP"], "TEXT": ["one", "two"], "numbers": [np.array([1.5, 2.5])], "texts": [["x", "y"]]}
    return writer.write(variables, attributes, rank=(2,), gap=gap)


def open_file(tmp_path: Path, data: bytes, **options: Any) -> Any:
    (tmp_path / "x.cdf").write_bytes(data)
    return xr.open_dataset(tmp_path / "x.cdf", engine="refshard", **options)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("is_row_major", [True, False])
@pytest.mark.parametrize(("version", "encoding"), [(3, 6), (2, 1)])
@pytest.mark.filterwarnings("ignore:.*not in the Zarr version 3.*:UserWarning", "ignore:.*data type.*Zarr V3.*")
def test_variables_have_values_and_dimensions(
    tmp_path: Path, version: int, encoding: int, is_row_major: bool, zarr_format: int
) -> None:
    data = make_file(version, encoding, is_row_major=is_row_major)
    with open_file(tmp_path, data, storage_options={"zarr_format": zarr_format}) as ds:
        assert ds.sizes["Epoch"] == 10
        expected = np.datetime64("2010-01-01T00:00") + np.arange(10).astype("m8[m]")
        np.testing.assert_array_equal(ds.Epoch.values, expected.astype(ds.Epoch.dtype))
        utc = np.datetime64("2015-11-06T12:52:16.816", "ns") + np.arange(10) * np.timedelta64(1, "s")
        assert ds.time.values.astype("M8[ns]")[0] - utc[0] < np.timedelta64(1, "D")
        np.testing.assert_array_equal(np.diff(ds.time.values), np.timedelta64(1, "s"))
        masked = FIELD.copy()
        masked[3, 1] = np.nan
        np.testing.assert_array_equal(ds.B.values, masked)
        assert ds.B.dims == ("Epoch", "axes")
        padded = np.full_like(FLUX, 5.5)
        padded[2:5], padded[6:8] = FLUX[2:5], FLUX[6:8]
        np.testing.assert_array_equal(ds.flux.values, padded)
        assert ds.flux.dims == ("Epoch", "dim0", "energy")
        np.testing.assert_array_equal(ds.rate.values, FLUX)
        assert ds.rate.dims == ("Epoch", "dim0", "bins_dim")
        assert ds.labels.values.tolist() == ["Bx ", "By", "Bz"]
        assert ds.labels.dims == ("axes",)
        assert ds.flag.values.tolist() == list("abcdefghij")
        np.testing.assert_array_equal(ds["old"].values, np.arange(20).reshape(10, 2))
        np.testing.assert_array_equal(ds["a_b"].values, np.arange(30).reshape(10, 3))
        assert ds.empty.shape == (0, 3)
        assert {"Epoch", "energy", "axes", "bins", "labels"} == set(ds.coords)
        assert ds.attrs == {"Project": "ISTP", "TEXT": ["one", "two"], "numbers": [1.5, 2.5], "texts": ["x", "y"]}
        assert ds.energy.attrs["units"] == ds.energy.attrs["UNITS"] == "eV"
        assert ds.energy.attrs["long_name"] == "E"
        assert ds.Epoch.attrs["VALIDMIN"] == "2010-01-01T00:00:00.000000"


@pytest.mark.parametrize("version", [2, 3])
def test_files_written_by_nasas_library_are_read(tmp_path: Path, version: int) -> None:
    with open_file(tmp_path, read_real_file(version)) as ds:
        seconds = np.datetime64("2016-12-31T23:59:57") + np.arange(6).astype("m8[s]")
        np.testing.assert_array_equal(ds.Epoch.values, seconds.astype(ds.Epoch.dtype))
        np.testing.assert_array_equal(ds.flux.values, np.arange(72).reshape(6, 3, 4))
        assert ds.flux.dims == ("Epoch", "dim0", "energy")
        assert ds.sparse.values.tolist() == [7, 11, 7, 7, 44]
        assert ds.names.values.tolist() == ["x ", "yy"]
        assert ds.attrs == {"Project": "ISTP", "TEXT": ["one", "two"]}


@pytest.mark.parametrize("release", [4, 5])
def test_files_before_version_2_6_are_read(tmp_path: Path, release: int) -> None:
    data = Writer(2, release=release).write({"v": Variable(FLUX)})
    with open_file(tmp_path, data) as ds:
        np.testing.assert_array_equal(ds.v.values, FLUX)


@pytest.mark.parametrize("compression", [GZIP, RLE])
def test_small_file_compressed_as_a_whole_is_opened(tmp_path: Path, compression: int) -> None:
    with open_file(tmp_path, compress_file(make_file(), compression)) as ds:
        np.testing.assert_array_equal(ds.rate.values, FLUX)


def test_unsupported_files_are_refused_and_variables_reported() -> None:
    compressed = bytearray(compress_file(make_file()))
    compressed[28:36] = (1 << 40).to_bytes(8, "big")
    with pytest.raises(ManifestError, match=r"compressed as a whole.*cdfconvert"):
        Files({ROOT: bytes(compressed)}).open()
    values = np.arange(5, dtype="f4")
    data = Writer().write({"h": Variable(values, compression=HUFFMAN), "v": Variable(values)})
    assert "compressed by Huffman" in Files({ROOT: data}).open().reports["h"]  # type: ignore[attr-defined]
    data = Writer(encoding=3).write({"f": Variable(values), "i": Variable(values.astype("i4"))})
    keyspace: Any = Files({ROOT: data}).open()
    assert "VAX floats" in keyspace.reports["f"]
    assert list(keyspace.grids) == ["i"]


def test_commands_accept_cdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.cdf"
    path.write_bytes(make_file())
    refs = check_commands(path, tmp_path, capsys, "flux")
    with xr.open_dataset(refs, engine="refshard") as by_references, xr.open_dataset(path, engine="refshard") as direct:
        xr.testing.assert_identical(by_references, direct)


def test_large_file_is_opened_in_few_rounds_and_requests() -> None:
    values = RNG.integers(0, 1 << 60, size=(4, 10_000))
    variables = {
        f"v{number}": Variable(values + number, compression=GZIP, runs=[(0, 1), (2, 3)]) for number in range(9)
    }
    data = Writer().write(variables, gap=150_000)  # each descriptor lies after the values of its variable
    files = Files({ROOT: data})
    files.open()
    assert files.rounds <= 2 + len(variables)
    with RangeServer({"/x.cdf": data}) as server:
        fs = RefShardFileSystem(fo=f"{server.url}/x.cdf", skip_instance_cache=True)
        fs.cat_file("v8/.zarray")
        opening = len(server.requests())
        fs.cat_file("v8/1.0")
        assert opening <= 1 + 2 * len(variables)
        assert len(server.requests()) - opening == 2


def test_damaged_files_raise_only_refshard_errors() -> None:
    check_damage(make_file(), 0, times=60)
    check_damage(read_real_file(3), 1, times=60)


@pytest.mark.parametrize("list_name", ["zVariables", "attributes"])
def test_truncated_list_is_reported(list_name: str) -> None:
    """A damaged link to the next item of a list could hide the rest of the list without a report."""
    data = bytearray(Writer().write({f"v{number}": Variable(np.arange(3.0), {f"a{number}": 1}) for number in range(3)}))
    gdr = int.from_bytes(data[20:28])  # the GDR, which has the offsets of the lists
    first_item = int.from_bytes(data[gdr + (20 if list_name == "zVariables" else 28) :][:8])
    data[first_item + 12 : first_item + 20] = bytes(8)
    keyspace = Files({ROOT: bytes(data)}).open()
    assert keyspace.reports == {f"list of {list_name}": f"its list has 1 {list_name}: expected 3"}


def test_small_cdf_file_is_opened_and_read_in_two_rounds() -> None:
    variable = Variable(np.arange(60_000, dtype="i4"), runs=[(0, 29_999), (30_000, 59_999)])
    files = Files({ROOT: Writer().write({"v": variable, "a_b": variable, "a/b": variable})})
    keyspace = files.open()
    opening = files.rounds
    assert np.frombuffer(files.read(keyspace, "a_b_2/0") or b"", "<i4")[-1] == 59_999
    assert files.rounds == opening == 2


def test_checksum_of_a_small_file_is_verified() -> None:
    """A flipped bit in uncompressed values once gave a wrong value, although the file has a checksum."""
    data = bytearray(make_file())
    data[40:44] = struct.pack(">i", int.from_bytes(data[40:44], "big") | 12)  # flags of the file
    data += hashlib.md5(data).digest()
    keyspace = Files({ROOT: bytes(data)}).open()
    assert keyspace.grids
    assert not keyspace.reports
    for position in (len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DamagedIndex, match="its MD5 checksum is [0-9a-f]{32}: expected"):
            Files({ROOT: bytes(damaged)}).open()

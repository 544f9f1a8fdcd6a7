"""CDF files show what cdflib and the format's library read; damage never gives values that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.cdf_writer import (
    EPOCH,
    GZIP,
    HUFFMAN,
    RLE,
    TT2000,
    Variable,
    Writer,
    compressed_whole,
    real_file,
)
from tests.support.files_of_arrays import check_commands, check_damage
from tests.support.shard_writers import IS_ZARR_2
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")

ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]
TIMES = 63429523200000.0 + np.arange(10) * 60_000  # from the first minute of 2010 on
RNG = np.random.default_rng(0)
FIELD = RNG.normal(size=(10, 3)).astype("f4")
FLUX = RNG.normal(size=(10, 2, 4))


def write(version: int = 3, encoding: int = 6, *, is_row_major: bool = True, gap: int = 0) -> bytes:
    """Return a file with the attributes of ISTP, and variables of each kind."""
    writer = Writer(version, encoding, is_row_major=is_row_major)
    pad = np.array(5.5).astype(writer.order + "f8").tobytes()
    of_time = {"DEPEND_0": "Epoch"}
    variables = {
        "Epoch": Variable(TIMES, {"VALIDMIN": TIMES[0]}, EPOCH, compression=GZIP, runs=[(0, 3), (4, 9)]),
        "energy": Variable(np.arange(4, dtype="f4"), {"UNITS": "eV", "LABLAXIS": "E"}, varies=False),
        "labels": Variable(np.array([b"Bx ", b"By", b"Bz"]), varies=False),
        "B": Variable(FIELD, {**of_time, "LABL_PTR_1": "labels", "DEPEND_1": "axes", "FILLVAL": FIELD[3, 1]}, tree=2),
        "axes": Variable(np.arange(3, dtype="i2"), varies=False),
        "flux": Variable(FLUX, {**of_time, "DEPEND_2": "energy"}, runs=[(2, 4), (6, 7)], sparse=1, pad=pad),
        "bins": Variable(FLUX[:, 0], of_time, compression=GZIP),
        "rate": Variable(FLUX, {**of_time, "DEPEND_2": "bins"}, compression=RLE),
        "time": Variable(np.arange(10) * 10**9 + 5 * 10**17, of_time, TT2000),
        "flag": Variable(np.array(list("abcdefghij"), "S1"), of_time),
        "old": Variable(np.arange(20, dtype="u2").reshape(10, 2), is_z=False),
        "a/b": Variable(np.arange(30, dtype="u1").reshape(10, 3), novary=1),
        "empty": Variable(np.zeros((0, 3), "f4"), of_time, runs=[]),
    }
    attributes = {"Project": ["ISTP"], "TEXT": ["one", "two"], "numbers": [np.array([1.5, 2.5])], "texts": [["x", "y"]]}
    return writer.write(variables, attributes, rank=(2,), gap=gap)


def opened(tmp_path: Path, data: bytes, **options: Any) -> Any:
    (tmp_path / "x.cdf").write_bytes(data)
    return xr.open_dataset(tmp_path / "x.cdf", engine="refshard", **options)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("is_row_major", [True, False])
@pytest.mark.parametrize(("version", "encoding"), [(3, 6), (2, 1)])
@pytest.mark.filterwarnings("ignore:.*not in the Zarr version 3.*:UserWarning", "ignore:.*data type.*Zarr V3.*")
def test_variables_have_values_and_dimensions(
    tmp_path: Path, version: int, encoding: int, is_row_major: bool, zarr_format: int
) -> None:
    data = write(version, encoding, is_row_major=is_row_major)
    with opened(tmp_path, data, storage_options={"zarr_format": zarr_format}) as found:
        assert found.sizes["Epoch"] == 10
        expected = np.datetime64("2010-01-01T00:00") + np.arange(10).astype("m8[m]")
        np.testing.assert_array_equal(found.Epoch.values, expected.astype(found.Epoch.dtype))
        utc = np.datetime64("2015-11-06T12:52:16.816", "ns") + np.arange(10) * np.timedelta64(1, "s")
        assert found.time.values.astype("M8[ns]")[0] - utc[0] < np.timedelta64(1, "D")
        np.testing.assert_array_equal(np.diff(found.time.values), np.timedelta64(1, "s"))
        masked = FIELD.copy()
        masked[3, 1] = np.nan
        np.testing.assert_array_equal(found.B.values, masked)
        assert found.B.dims == ("Epoch", "axes")
        padded = np.full_like(FLUX, 5.5)
        padded[2:5], padded[6:8] = FLUX[2:5], FLUX[6:8]
        np.testing.assert_array_equal(found.flux.values, padded)
        assert found.flux.dims == ("Epoch", "dim0", "energy")
        np.testing.assert_array_equal(found.rate.values, FLUX)
        assert found.rate.dims == ("Epoch", "dim0", "bins_dim")
        assert found.labels.values.tolist() == ["Bx ", "By", "Bz"]
        assert found.labels.dims == ("axes",)
        assert found.flag.values.tolist() == list("abcdefghij")
        np.testing.assert_array_equal(found["old"].values, np.arange(20).reshape(10, 2))
        np.testing.assert_array_equal(found["a_b"].values, np.arange(30).reshape(10, 3))
        assert found.empty.shape == (0, 3)
        assert {"Epoch", "energy", "axes", "bins", "labels"} == set(found.coords)
        assert found.attrs == {"Project": "ISTP", "TEXT": ["one", "two"], "numbers": [1.5, 2.5], "texts": ["x", "y"]}
        assert found.energy.attrs["units"] == found.energy.attrs["UNITS"] == "eV"
        assert found.energy.attrs["long_name"] == "E"
        assert found.Epoch.attrs["VALIDMIN"] == "2010-01-01T00:00:00.000000"


@pytest.mark.parametrize("version", [2, 3])
def test_files_written_by_nasas_library_are_read(tmp_path: Path, version: int) -> None:
    with opened(tmp_path, real_file(version)) as found:
        seconds = np.datetime64("2016-12-31T23:59:57") + np.arange(6).astype("m8[s]")
        np.testing.assert_array_equal(found.Epoch.values, seconds.astype(found.Epoch.dtype))
        np.testing.assert_array_equal(found.flux.values, np.arange(72).reshape(6, 3, 4))
        assert found.flux.dims == ("Epoch", "dim0", "energy")
        assert found.sparse.values.tolist() == [7, 11, 7, 7, 44]
        assert found.names.values.tolist() == ["x ", "yy"]
        assert found.attrs == {"Project": "ISTP", "TEXT": ["one", "two"]}


@pytest.mark.parametrize("release", [4, 5])
def test_files_before_version_2_6_are_read(tmp_path: Path, release: int) -> None:
    data = Writer(2, release=release).write({"v": Variable(FLUX)})
    with opened(tmp_path, data) as found:
        np.testing.assert_array_equal(found.v.values, FLUX)


@pytest.mark.parametrize("compression", [GZIP, RLE])
def test_small_file_compressed_as_a_whole_is_opened(tmp_path: Path, compression: int) -> None:
    with opened(tmp_path, compressed_whole(write(), compression)) as found:
        np.testing.assert_array_equal(found.rate.values, FLUX)


def test_unsupported_parts_are_named() -> None:
    whole = bytearray(compressed_whole(write()))
    whole[28:36] = (1 << 40).to_bytes(8, "big")
    with pytest.raises(ManifestError, match=r"compressed as a whole.*cdfconvert"):
        Files({ROOT: bytes(whole)}).open()
    values = np.arange(5, dtype="f4")
    data = Writer().write({"h": Variable(values, compression=HUFFMAN), "v": Variable(values)})
    assert "compressed by Huffman" in Files({ROOT: data}).open().reports["h"]  # type: ignore[attr-defined]
    data = Writer(encoding=3).write({"f": Variable(values), "i": Variable(values.astype("i4"))})
    keyspace: Any = Files({ROOT: data}).open()
    assert "VAX floats" in keyspace.reports["f"]
    assert list(keyspace.grids) == ["i"]


def test_commands_accept_cdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.cdf"
    path.write_bytes(write())
    refs = check_commands(path, tmp_path, capsys, "flux")
    with xr.open_dataset(refs, engine="refshard") as found, xr.open_dataset(path, engine="refshard") as direct:
        xr.testing.assert_identical(found, direct)


def test_requests_of_a_large_file_are_few() -> None:
    values = RNG.integers(0, 1 << 60, size=(4, 10_000))
    variables = {f"v{n}": Variable(values + n, compression=GZIP, runs=[(0, 1), (2, 3)]) for n in range(9)}
    data = Writer().write(variables, gap=150_000)  # each variable's descriptor lies behind its values
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


def test_damage_gives_errors_but_never_wrong_values() -> None:
    check_damage(write(), 0, times=60)
    check_damage(real_file(3), 1, times=60)


@pytest.mark.parametrize("what", ["zVariables", "attributes"])
def test_list_that_ends_too_early_is_reported(what: str) -> None:
    """Before it was mended: If the link to the next variable was damaged, the rest was left out silently."""
    data = bytearray(Writer().write({f"v{n}": Variable(np.arange(3.0), {f"a{n}": 1}) for n in range(3)}))
    descriptor = int.from_bytes(data[20:28])  # of the file, with the offsets of the lists
    first = int.from_bytes(data[descriptor + (20 if what == "zVariables" else 28) :][:8])
    data[first + 12 : first + 20] = bytes(8)
    keyspace = Files({ROOT: bytes(data)}).open()
    assert keyspace.reports == {f"list of {what}": f"its list has 1 {what}: expected 3"}


def test_small_files_are_read_whole_and_freed() -> None:
    variable = Variable(np.arange(60_000, dtype="i4"), runs=[(0, 29_999), (30_000, 59_999)])
    files = Files({ROOT: Writer().write({"v": variable, "a_b": variable, "a/b": variable})})
    keyspace = files.open()
    opening = files.rounds
    assert np.frombuffer(files.read(keyspace, "a_b_2/0") or b"", "<i4")[-1] == 59_999
    assert files.rounds == opening == 2

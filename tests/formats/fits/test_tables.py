"""Columns of tables have the values that astropy reads; damaged tables are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands, check_damage
from tests.support.fits_files import RNG, write
from tests.support.shard_writers import IS_ZARR_2
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
fits = pytest.importorskip("astropy.io.fits")

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

ROWS = 2500
NUMBERS = RNG.integers(0, 100, (ROWS, 6))


def make_columns() -> list[Any]:
    """Return a column of each kind of fixed width."""
    texts = np.array(["a b ", "", "abc"] * ROWS)[:ROWS]
    return [
        fits.Column("L", "L", array=NUMBERS[:, 0] > 50),
        fits.Column("bits", "11X", array=RNG.integers(0, 2, (ROWS, 11)).astype(bool)),
        fits.Column("B", "B", array=NUMBERS[:, 0].astype("u1")),
        fits.Column("I", "6I", array=NUMBERS.astype("i2"), dim="(3,2)", unit="Jy/beam"),
        fits.Column("K", "K", array=NUMBERS[:, 0].astype("i8") << 40, null=7 << 40),
        fits.Column("E", "E", array=RNG.normal(size=ROWS).astype("f4")),
        fits.Column("D", "2D", array=RNG.normal(size=(ROWS, 2))),
        fits.Column("C", "C", array=RNG.normal(size=ROWS).astype("c8")),
        fits.Column("M", "M", array=RNG.normal(size=ROWS).astype("c16")),
        fits.Column("text", "5A", array=texts),
        fits.Column("texts", "12A", array=np.array([["ab", "cde", ""]] * ROWS), dim="(4,3)"),
        fits.Column("i1", "B", array=(NUMBERS[:, 1] - 50).astype("i1"), bzero=-128),
        fits.Column("u2", "I", array=NUMBERS[:, 1].astype("u2"), bzero=1 << 15),
        fits.Column("u4", "J", array=NUMBERS[:, 2].astype("u4"), bzero=1 << 31),
        fits.Column("u8", "K", array=NUMBERS[:, 3].astype("u8"), bzero=1 << 63),
        fits.Column("scaled", "I", array=NUMBERS[:, 4].astype("i2")),
    ]


def make_text_columns() -> list[Any]:
    return [
        fits.Column("A", "A7", array=np.array(["a b", "", " c"] * 20), ascii=True),
        fits.Column("I4", "I4", array=np.arange(60) - 30, ascii=True),
        fits.Column("I9", "I9", array=np.arange(60) * 10_000, ascii=True, null="-1", unit="m"),
        fits.Column("I12", "I12", array=np.arange(60) * 10**9, ascii=True),
        fits.Column("E", "E15.7", array=RNG.normal(size=60).astype("f4"), ascii=True),
        fits.Column("D", "D25.17", array=RNG.normal(size=60), ascii=True),
    ]


@pytest.mark.parametrize("zarr_format", [2] if IS_ZARR_2 else [2, 3])
def test_columns_have_the_values_that_astropy_reads(tmp_path: Path, zarr_format: int) -> None:
    table = fits.BinTableHDU.from_columns(make_columns(), name="EVENTS")
    table.header["TSCAL16"], table.header["TZERO16"] = 0.5, 3
    path = write(tmp_path / "a.fits", table, fits.TableHDU.from_columns(make_text_columns(), name="TEXT"))
    options = {"storage_options": {"zarr_format": zarr_format}}
    with fits.open(path) as hdus:
        for name in ("EVENTS", "TEXT"):
            raw = xr.open_dataset(path, engine="refshard", group=name, mask_and_scale=False, **options)
            ds = xr.open_dataset(path, engine="refshard", group=name, **options)
            assert list(raw.data_vars) == hdus[name].columns.names
            for column in hdus[name].columns.names:
                want = np.asarray(hdus[name].data[column])
                if want.dtype.kind == "U":
                    want = np.char.rstrip(np.char.encode(want))
                found = (ds if column == "scaled" else raw)[column].values
                np.testing.assert_array_equal(found, want, err_msg=column)
                if want.dtype.kind != "S" and column != "i1":  # astropy reads signed bytes as floats
                    assert found.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), column
    events = xr.open_dataset(path, engine="refshard", group="EVENTS", **options)
    assert events["I"].dims == ("row", "I_y", "I_x")
    assert events["I"].attrs["units"] == "Jy/beam"
    assert np.isnan(events["K"].values).sum() == (NUMBERS[:, 0] == 7).sum() > 0
    assert events.attrs["EXTNAME"] == "EVENTS"


def test_unnamed_and_equal_columns_get_unique_names(tmp_path: Path) -> None:
    table = fits.BinTableHDU.from_columns([fits.Column(name, "J", array=[1]) for name in ("a b", "a(b", "c")])
    data = write(tmp_path / "a.fits", table).read_bytes().replace(b"TTYPE3  = 'c ", b"TTYPE9  = 'c ")
    assert set(Files({ROOT: data}).open().grids) == {"1/a_b", "1/a_b_2", "1/col3"}


@pytest.mark.parametrize(
    ("form", "dimensions", "dtype", "shape"),
    [
        ("4J", "(2,1)", ">i4", (3, 1, 2)),
        ("4J", "(3,9)", ">i4", (3, 4)),
        ("4J", f"({'9' * 30})", ">i4", (3, 4)),
        ("16A", "(5,3)", "S5", (3, 3)),
        ("16X", "(3,3)", "?", (3, 3, 3)),
    ],
)
def test_tdim_is_used_if_elements_are_long_enough(
    tmp_path: Path, form: str, dimensions: str, dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.frombuffer(bytes(range(65, 65 + 48)), "S16") if dtype[0] == "S" else np.arange(12).reshape(3, 4)
    values = np.arange(48).reshape(3, 16) % 3 > 0 if dtype == "?" else values
    table = fits.BinTableHDU.from_columns([fits.Column(n, form, array=values) for n in ("a", "b")])
    table.header["TDIM2"] = dimensions
    group = zarr.open_group(f"refshard::{write(tmp_path / 'a.fits', table)}", mode="r")
    found = group["1/b"]
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
    flat = values.view("S1").reshape(3, -1) if dtype[0] == "S" else values
    size = int(np.prod(shape[1:])) * (5 if dtype[0] == "S" else 1)
    want = flat[:, :size].copy().view(dtype).reshape(shape) if dtype[0] == "S" else flat[:, :size].reshape(shape)
    np.testing.assert_array_equal(found[...], want)


@pytest.mark.usefixtures("large_files")
@pytest.mark.parametrize("card", ["TSCAL1", "TZERO1"])
def test_scaled_complex_numbers_are_reported(tmp_path: Path, card: str) -> None:
    columns = [fits.Column("z", "C", array=np.ones(3, "c8")), fits.Column("x", "E", array=np.ones(3, "f4"))]
    table = fits.BinTableHDU.from_columns(columns, name="T")
    table.header[card] = 0.5
    left = RefShardFileSystem(str(write(tmp_path / "a.fits", table))).left_whole
    assert list(left) == ["T/z"]
    assert "complex numbers have TSCAL" in left["T/z"]


def test_wide_column_is_read_without_the_rest_of_its_rows(http_server: RangeServer, tmp_path: Path) -> None:
    rows = 40
    spectra = RNG.normal(size=(rows, 5000)).astype("f4")
    narrow = [fits.Column(name, "J", array=np.arange(rows)) for name in "ab"]
    table = fits.BinTableHDU.from_columns([*narrow, fits.Column("flux", "5000E", array=spectra)], name="T")
    path = write(tmp_path / "a.fits", table)
    fs = RefShardFileSystem(http_server.put("/a.fits", path.read_bytes()), skip_instance_cache=True)
    fs.ls("")
    http_server.clear()
    assert fs.cat_file("T/flux/7.0") == spectra[7].astype(">f4").tobytes()
    (request,) = http_server.requests()
    assert request.sent == 20_000
    http_server.clear()
    assert fs.cat_file("T/b/0") == np.arange(rows, dtype=">i4").tobytes()
    assert len(http_server.requests()) == 1


def test_commands_accept_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.fits", fits.BinTableHDU.from_columns(make_columns()[:6], name="EVENTS"))
    refs = check_commands(path, tmp_path, capsys, "EVENTS/K")
    found = (xr.open_dataset(fo, engine="refshard", group="EVENTS").load() for fo in (path, refs))
    xr.testing.assert_identical(*found)


def test_damaged_tables_raise_only_refshard_errors(tmp_path: Path) -> None:
    for seed, table in enumerate((fits.BinTableHDU.from_columns, fits.TableHDU.from_columns)):
        columns = make_columns()[:10] if not seed else make_text_columns()
        data = write(tmp_path / f"{seed}.fits", table(columns, nrows=30)).read_bytes()
        check_damage(data, seed, times=60)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"TFORM2  = 'E ", b"TFORM2  = '2E", "its columns take 12 bytes: expected 8"),
        (b"TFORM2  = 'E ", b"TFORM2  = 'Z ", "its TFORM2 is 'Z': expected"),
        (b"NAXIS   =                    2", b"NAXIS   =                    1", "has the axes .* expected 2 axes"),
        (b"TTYPE1  = 'a       '", b"ZTABLE  =          T", "compressed table"),
    ],
)
def test_table_that_contradicts_itself_is_refused(tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    table = fits.BinTableHDU.from_columns([fits.Column(name, "E", array=[1, 2]) for name in "ab"])
    data = write(tmp_path / "a.fits", table).read_bytes()
    start = data.index(b"XTENSION")
    assert old in data[start:]
    with pytest.raises(RefShardError, match=reason):
        Files({ROOT: data[:start] + data[start:].replace(old, new.ljust(len(old)), 1)}).open()


def test_ascii_column_with_an_invalid_number_is_an_error(tmp_path: Path) -> None:
    table = fits.TableHDU.from_columns([fits.Column("a", "I6", array=[12345, 2], ascii=True)])
    data = write(tmp_path / "a.fits", table).read_bytes().replace(b" 12345", b" 12x45")
    files = Files({ROOT: data})
    with pytest.raises(ValueError, match="12x45"):
        files.read(files.open(), "1/a/0")

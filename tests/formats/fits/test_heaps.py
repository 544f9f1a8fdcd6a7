"""Columns of variable length have the values that astropy reads; an error of a damaged descriptor names the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.core.zarrmeta import zarr_major
from tests.support.files_of_arrays import check_commands, check_damage
from tests.support.fits_files import RNG, write

xr = pytest.importorskip("xarray")
fits = pytest.importorskip("astropy.io.fits")

ROWS = 50
LENGTHS = RNG.integers(0, 9, ROWS)


def make_sequences(dtype: str) -> Any:
    rows = np.empty(ROWS, object)
    rows[:] = [RNG.integers(0, 100, length).astype(dtype) for length in LENGTHS]
    return rows


def make_table(form: str = "P") -> Any:
    text = np.empty(ROWS, object)
    text[:] = ["x" * length for length in LENGTHS]
    columns = [
        fits.Column("E", f"{form}E()", array=make_sequences("f4"), unit="keV"),
        fits.Column("x", "I", array=np.arange(ROWS, dtype="i2")),
        fits.Column("J", f"{form}J()", array=make_sequences("i4")),
        fits.Column("L", f"{form}L()", array=make_sequences("?")),
        fits.Column("D", f"{form}D()", array=make_sequences("f8")),
        fits.Column("A", f"{form}A()", array=text),
        fits.Column("u2", f"{form}I()", array=make_sequences("i2")),
    ]
    return fits.BinTableHDU.from_columns(columns, name="M")


def to_plain(name: str, value: Any, attributes: dict[str, Any]) -> Any:
    """Convert the value of a row to a list; return a text as it is."""
    if name == "A":
        return value
    return np.frombuffer(value, attributes["element_dtype"]).tolist() if isinstance(value, bytes) else value.tolist()


@pytest.mark.parametrize("form", ["P", "Q"])
def test_rows_of_different_lengths_have_the_values_of_astropy(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "a.fits", make_table(form))
    with fits.open(path) as hdus, xr.open_dataset(path, engine="refshard", group="M") as found:
        assert list(found.variables) == hdus["M"].columns.names
        assert found.E.attrs["units"] == "keV"
        np.testing.assert_array_equal(found.x.values, hdus["M"].data["x"])
        for name in ("E", "J", "L", "D", "A"):
            want = [row if name == "A" else np.asarray(row).tolist() for row in hdus["M"].data[name]]
            want = ["".join(row) if name == "A" else row for row in want]
            assert [to_plain(name, value, found[name].attrs) for value in found[name].values] == want, name


def test_unsigned_integers_are_recognised_by_tzero(tmp_path: Path) -> None:
    table = make_table()
    want = [[int(number) + (1 << 15) for number in row] for row in table.data["u2"]]
    table.header["TZERO7"] = 1 << 15
    with xr.open_dataset(write(tmp_path / "a.fits", table), engine="refshard", group="M") as found:
        assert [to_plain("u2", value, found.u2.attrs) for value in found.u2.values] == want
        if zarr_major() != 2:
            assert found.u2.attrs["element_dtype"] == ">u2"


def test_bits_of_variable_length_are_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", make_table())
    data = path.read_bytes()
    with fits.open(path) as hdus:  # the bits of a row are in its first byte, which is T or F
        first = [b"FT"[int(row[0])] if len(row) else 0 for row in hdus["M"].data["L"]]
    bits = np.unpackbits(np.array(first, "u1")[:, None], axis=1)
    assert b"TFORM4  = 'PL" in data
    path.write_bytes(data.replace(b"TFORM4  = 'PL", b"TFORM4  = 'PX"))  # astropy would write 'PL' again
    with xr.open_dataset(path, engine="refshard", group="M") as found:
        rows = [to_plain("L", value, found.L.attrs) for value in found.L.values]
    assert rows == [row[:length].tolist() for row, length in zip(bits, LENGTHS, strict=True)]


def test_scaled_sequences_are_reported(tmp_path: Path) -> None:
    table = make_table()
    table.header["TSCAL3"] = 0.5
    left = RefShardFileSystem(str(write(tmp_path / "a.fits", table))).left_whole
    assert list(left) == ["M/J"]
    assert "variable length have TSCAL" in left["M/J"]


@pytest.mark.parametrize("descriptor", [(-1, 0), (4, 1 << 20), (1 << 30, 0), (4, -8)])
def test_descriptors_outside_of_the_heap_are_refused(tmp_path: Path, descriptor: tuple[int, int]) -> None:
    path = write(tmp_path / "a.fits", make_table())
    with fits.open(path) as hdus:
        start, size = hdus["M"].fileinfo()["datLoc"], hdus["M"].header["NAXIS1"]
    data = bytearray(path.read_bytes())
    data[start + 3 * size : start + 3 * size + 8] = np.array(descriptor, ">i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(RefShardError, match="row 3 has"):
        RefShardFileSystem(str(path)).cat_file("M/E/0")


def test_sequences_that_overlap_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", make_table())
    with fits.open(path) as hdus:
        start, header = hdus["M"].fileinfo()["datLoc"], hdus["M"].header
        size, heap = header["NAXIS1"], header["PCOUNT"]
    data = bytearray(path.read_bytes())
    for row in range(ROWS):
        data[start + row * size : start + row * size + 8] = np.array((heap // 8, 0), ">i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(RefShardError, match="overlap"):
        RefShardFileSystem(str(path)).cat_file("M/E/0")


def test_commands_accept_columns_of_variable_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.fits", make_table())
    refs = check_commands(path, tmp_path, capsys, "J")
    one, other = (xr.open_dataset(fo, engine="refshard", group="M").load() for fo in (path, refs))
    for name in ("E", "J", "A"):
        assert [to_plain(name, value, one.J.attrs) for value in one[name].values] == [
            to_plain(name, value, one.J.attrs) for value in other[name].values
        ]
    check_damage(path.read_bytes(), seed=7, times=40)

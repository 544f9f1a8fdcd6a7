"""Columns of variable length have astropy's values; damaged descriptors are errors that name the row."""

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


def sequences(dtype: str) -> Any:
    held = np.empty(ROWS, object)
    held[:] = [RNG.integers(0, 100, length).astype(dtype) for length in LENGTHS]
    return held


def table(form: str = "P") -> Any:
    text = np.empty(ROWS, object)
    text[:] = ["x" * length for length in LENGTHS]
    made = [
        fits.Column("E", f"{form}E()", array=sequences("f4"), unit="keV"),
        fits.Column("x", "I", array=np.arange(ROWS, dtype="i2")),
        fits.Column("J", f"{form}J()", array=sequences("i4")),
        fits.Column("L", f"{form}L()", array=sequences("?")),
        fits.Column("D", f"{form}D()", array=sequences("f8")),
        fits.Column("A", f"{form}A()", array=text),
        fits.Column("u2", f"{form}I()", array=sequences("i2")),
    ]
    return fits.BinTableHDU.from_columns(made, name="M")


def plain(name: str, value: Any, attributes: dict[str, Any]) -> Any:
    """Return a shown value as a list, or a text."""
    if name == "A":
        return value
    return np.frombuffer(value, attributes["element_dtype"]).tolist() if isinstance(value, bytes) else value.tolist()


@pytest.mark.parametrize("form", ["P", "Q"])
def test_rows_of_different_lengths_have_astropys_values(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "a.fits", table(form))
    with fits.open(path) as hdus, xr.open_dataset(path, engine="refshard", group="M") as found:
        assert list(found.variables) == hdus["M"].columns.names
        assert found.E.attrs["units"] == "keV"
        np.testing.assert_array_equal(found.x.values, hdus["M"].data["x"])
        for name in ("E", "J", "L", "D", "A"):
            want = [row if name == "A" else np.asarray(row).tolist() for row in hdus["M"].data[name]]
            want = ["".join(row) if name == "A" else row for row in want]
            assert [plain(name, value, found[name].attrs) for value in found[name].values] == want, name


def test_unsigned_integers_are_known_by_tzero(tmp_path: Path) -> None:
    made = table()
    want = [[int(number) + (1 << 15) for number in row] for row in made.data["u2"]]
    made.header["TZERO7"] = 1 << 15
    with xr.open_dataset(write(tmp_path / "a.fits", made), engine="refshard", group="M") as found:
        assert [plain("u2", value, found.u2.attrs) for value in found.u2.values] == want
        if zarr_major() != 2:
            assert found.u2.attrs["element_dtype"] == ">u2"


def test_bits_of_variable_length_are_unpacked(tmp_path: Path) -> None:
    made = table()
    made.header["TFORM4"] = "1PX(9)"
    path = write(tmp_path / "a.fits", made)
    with xr.open_dataset(path, engine="refshard", group="M") as found:
        rows = [plain("L", value, found.L.attrs) for value in found.L.values]
    assert [len(row) for row in rows] == LENGTHS.tolist()


def test_scaled_sequences_are_left_out_by_name(tmp_path: Path) -> None:
    made = table()
    made.header["TSCAL3"] = 0.5
    left = RefShardFileSystem(str(write(tmp_path / "a.fits", made))).left_whole
    assert list(left) == ["M/J"]
    assert "variable length are scaled" in left["M/J"]


@pytest.mark.parametrize("descriptor", [(-1, 0), (4, 1 << 20), (1 << 30, 0), (4, -8)])
def test_descriptors_that_lead_out_of_the_heap_are_errors(tmp_path: Path, descriptor: tuple[int, int]) -> None:
    path = write(tmp_path / "a.fits", table())
    with fits.open(path) as hdus:
        start, size = hdus["M"].fileinfo()["datLoc"], hdus["M"].header["NAXIS1"]
    data = bytearray(path.read_bytes())
    data[start + 3 * size : start + 3 * size + 8] = np.array(descriptor, ">i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(RefShardError, match="row 3 has"):
        RefShardFileSystem(str(path)).cat_file("M/E/0")


def test_sequences_that_overlap_take_no_more_than_the_heap(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", table())
    with fits.open(path) as hdus:
        start, header = hdus["M"].fileinfo()["datLoc"], hdus["M"].header
        size, heap = header["NAXIS1"], header["PCOUNT"]
    data = bytearray(path.read_bytes())
    for row in range(ROWS):
        data[start + row * size : start + row * size + 8] = np.array((heap // 8, 0), ">i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(RefShardError, match="overlap"):
        RefShardFileSystem(str(path)).cat_file("M/E/0")


def test_commands_take_columns_of_variable_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.fits", table())
    refs = check_commands(path, tmp_path, capsys, "J")
    one, other = (xr.open_dataset(fo, engine="refshard", group="M").load() for fo in (path, refs))
    for name in ("E", "J", "A"):
        assert [plain(name, value, one.J.attrs) for value in one[name].values] == [
            plain(name, value, one.J.attrs) for value in other[name].values
        ]
    check_damage(path.read_bytes(), seed=7, times=40)

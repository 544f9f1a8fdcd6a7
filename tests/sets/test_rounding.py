"""Coordinates that differ by rounding become the first set's, within the user's tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError
from tests.support.cube_files import DAYS, X, make_values, open_cube, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for day in range(3):
        x = X + (1e-7 if day == 1 else 0)
        write(
            xr.Dataset({"t": (("time", "x"), make_values(1, seed=day))}, {"time": DAYS[day : day + 1], "x": x}),
            tmp_path / f"{day}.nc",
        )
    return tmp_path


@pytest.mark.parametrize("join", ["exact", "outer"])
def test_coordinates_within_the_tolerance_are_equal(folder: Path, join: str) -> None:
    parts = [xr.open_dataset(folder / f"{day}.nc").assign_coords(x=X) for day in range(3)]
    xr.testing.assert_equal(open_cube(f"{folder}/*.nc", tolerance=1e-6, join=join), xr.concat(parts, "time"))
    cube = refshard_fs.open(f"{folder}/*.nc", tolerance=1e-6)
    assert "'x' of 1 set differs by up to 1e-07" in cube.save(f"{folder}/cube.refshard")


def test_coordinates_beyond_the_tolerance_are_an_error(folder: Path) -> None:
    for tolerance in (0.0, 1e-9):
        with pytest.raises(ManifestError, match="'x'"):
            refshard_fs.open(f"{folder}/*.nc", "time", tolerance=tolerance)
    with pytest.raises(ValueError, match="at least 0"):
        refshard_fs.open(f"{folder}/*.nc", tolerance=-1)
    assert np.isfinite(open_cube(f"{folder}/*.nc", tolerance=1)["t"]).all()

"""The arguments of ``select`` become one selection; labels become positions."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from refshard_fs import RefShardFileSystem
from refshard_fs.cubes.choice import Choice
from refshard_fs.sets.make_choice import make_choice
from tests.support.cube_files import DAYS, make_values


def test_labels_are_added_to_positions(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("time", "y"), make_values(6))}, {"time": DAYS, "y": [9.0, 6.0, 3.0, 0.0]})
    ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    fs = RefShardFileSystem(str(tmp_path / "a.nc"))
    made = make_choice(fs.source, fs, keep="t", isel={"time": slice(2, 4)}, sel={"y": slice(7, 2)})
    assert made == Choice.of((), "t", None, None, {"time": slice(2, 4), "y": slice(1, 3)}, (), None)


def test_selection_without_labels_does_not_read_the_source() -> None:
    fs = RefShardFileSystem("/nowhere.nc")
    assert make_choice(fs.source, fs, drop="t").to_json() == {"drop": ["t"]}

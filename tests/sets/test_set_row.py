"""Sets in a row: gaps between them, and recut arrays."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.gapped_files import load_all, write_days  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


def test_files_that_are_recut_have_gaps_too(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 2], [4], [8, 9]))]
    cube = refshard_fs.concat(files, "time", lazy=True, freq="1D", chunks={"time": 4})
    xr.testing.assert_equal(load_dataset(cube), xr.concat(load_all(files), "time").resample(time="1D").asfreq())


@pytest.mark.parametrize("lazy", [False, True])
def test_gap_within_a_file_is_filled_in(tmp_path: Path, lazy: bool) -> None:
    files = [write_days(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 4], [5]))]
    made = refshard_fs.concat(files, "time", freq="D", lazy=lazy)  # type: ignore[call-overload]
    xr.testing.assert_equal(load_dataset(made), xr.concat(load_all(files), "time").resample(time="1D").asfreq())

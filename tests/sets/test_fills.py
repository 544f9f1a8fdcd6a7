"""Fill values of arrays with missing chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.gapped_files import lazy_or_not, load_all, write_days  # noqa: E402  # xarray may be absent
from tests.support.outer_cubes import (  # noqa: E402  # xarray may be absent
    DIMS,
    check_values,
    make_member_day,
    open_combined,
    versions,
    write_member_day,
)
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


@versions
def test_floats_get_a_fill_value_and_integers_are_refused(tmp_path: Path, version: int) -> None:
    def write_cube(dtype: str, **attributes: Any) -> Any:
        files = []
        for day, names in enumerate((("v",), ("v", "w"))):
            ds = make_member_day(day, 0, names=names)
            ds = ds.assign({name: ds[name].astype(dtype) for name in names})
            if dtype == "f4":
                ds["v"][..., 0] = np.nan
            for name in names:
                ds[name].attrs |= attributes
            files.append([write_member_day(tmp_path / f"{dtype}{day}.nc", ds, fill=None, dtype=dtype)])
        return files, lambda: refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer", zarr_format=version)

    files, make = write_cube("f4")
    check_values(make(), open_combined(files), tmp_path)
    files, make = write_cube("i4")
    with pytest.raises(ManifestError, match=r"'w' of .*i41\.nc.*\((<i4|int32)\) has no fill value for its gaps"):
        make()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("dtype", "fill"), [("i4", -1), ("f4", -9.0), ("f4", np.nan)])
def test_gaps_in_xarray_stores_use_their_missing_value(tmp_path: Path, dtype: str, fill: float, lazy: bool) -> None:
    """xarray writes the attribute ``_FillValue`` to version 3, and leaves the array's own fill value at 0."""
    if 3 not in VERSIONS:
        pytest.skip("zarr 2 writes version 2 alone")
    parts = []
    for number in range(2):
        fields = {name: ("time", np.arange(2).astype(dtype)) for name in ("v", "w")[: 1 + number]}
        ds = xr.Dataset(fields, coords={"time": np.arange(2) + 2 * number})
        encoding = {name: {"_FillValue": fill, "chunks": (1,)} for name in fields}
        parts.append(str(tmp_path / f"{number}.zarr"))
        with zarr.config.set({"array.write_empty_chunks": True}):
            ds.to_zarr(parts[-1], encoding=encoding, zarr_format=3, consolidated=False)
    found = load_dataset(refshard_fs.concat(parts, "time", lazy=lazy, join="outer"))
    np.testing.assert_array_equal(found["w"].values, [np.nan, np.nan, 0, 1])
    np.testing.assert_array_equal(found["v"].values, [0, 1, 0, 1])


@lazy_or_not
def test_gaps_in_integers_without_a_fill_value_are_refused(tmp_path: Path, lazy: bool) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some, fill=None, dtype="i4") for i, some in enumerate(([0], [3]))]
    with pytest.raises(ManifestError, match=r"'v' of .*0\.nc\) \(<i4\) has no fill value for its gaps"):
        refshard_fs.concat(files, "time", freq="1D", lazy=lazy)


def test_floating_point_gets_a_fill_value_if_chunks_are_complete(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some, fill=None) for i, some in enumerate(([0], [2]))]
    found = load_dataset(refshard_fs.concat(files, "time", freq="1D"))
    xr.testing.assert_equal(found, xr.concat(load_all(files), "time").resample(time="1D").asfreq())

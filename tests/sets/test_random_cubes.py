"""Random archives: a cube of their files equals xarray's, or is refused; a lazy cube is not refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("cftime")
pytest.importorskip("zarr", minversion="3")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent
from tests.support.random_cubes import Case  # noqa: E402  # xarray may be absent


@pytest.mark.parametrize("seed", [4, 5, 18, 39, 1001, 1122])
def test_cube_of_random_files_equals_that_of_xarray(tmp_path: Path, seed: int) -> None:
    check_cube(tmp_path, seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(2000, 2600))
def test_cubes_of_many_random_files_equal_those_of_xarray(tmp_path: Path, seed: int) -> None:
    check_cube(tmp_path, seed)


def check_cube(folder: Path, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray warns about some of the files
        case = Case(folder, seed, VERSIONS)
        expected = case.expected()
        how: dict[str, Any] = {"join": "outer" if case.lacking else "exact", "sort": case.is_shuffled}
        options = {"zarr_format": case.version}
        for lazy in (True, False):
            try:
                cube = refshard_fs.concat(case.sources, "time", lazy=lazy, **how, **options)
            except ManifestError:
                assert not lazy
                continue
            found = xr.open_dataset(cube, engine=RefShardBackend, group=case.group, storage_options=options)
            compare(found.load(), expected, is_packed=case.is_packed)


def compare(found: Any, expected: Any, *, is_packed: bool) -> None:
    """Compare datasets; values packed with 32-bit numbers may be computed with 32-bit or with 64-bit numbers."""
    assert dict(found.sizes) == dict(expected.sizes)
    assert set(found.variables) == set(expected.variables)
    assert found.attrs == expected.attrs
    for name, theirs in expected.variables.items():
        mine = found[name]
        assert mine.dims == theirs.dims
        assert {k: str(v) for k, v in mine.attrs.items()} == {k: str(v) for k, v in theirs.attrs.items()}
        if theirs.dtype.kind in "MO":
            apart = np.abs(mine.values - theirs.values).astype("m8[us]").astype(float)
            assert apart.max() <= 1
        elif is_packed and name == "v":
            np.testing.assert_allclose(mine.values, theirs.values, rtol=2e-7, atol=1e-6)
        else:
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine.values, theirs.values)

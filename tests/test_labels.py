"""Labels become positions, also of coordinates in a group; labels that no coordinate has are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.labels import find_positions
from tests.support.cube_files import DAYS, make_values


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RefShardFileSystem:
    path = tmp_path_factory.mktemp("labels") / "a.nc"
    ds = xr.Dataset({"t": (("time", "y"), make_values(6))}, {"time": DAYS, "y": [9.0, 6.0, 3.0, 0.0]})
    ds.to_netcdf(path, group="model", engine="h5netcdf")
    return RefShardFileSystem(str(path))


@pytest.mark.parametrize(
    ("sel", "expected"),
    [
        ({"time": "2024-01-03"}, {"time": 2}),
        ({"time": "2024-01"}, {"time": slice(0, 6)}),
        ({"time": slice("2024-01-03", None)}, {"time": slice(2, 6)}),
        ({"time": np.datetime64("2024-01-02"), "y": 3.0}, {"time": 1, "y": 2}),
        ({"y": slice(7, 2)}, {"y": slice(1, 3)}),
        ({"y": slice(20, 10)}, {"y": slice(0, 0)}),
        ({"model/y": [6.0, 3.0]}, {"y": slice(1, 3)}),
    ],
)
def test_sel_labels_become_positions(source: RefShardFileSystem, sel: dict[str, Any], expected: dict[str, Any]) -> None:
    assert find_positions(source.source, source, sel) == expected


@pytest.mark.parametrize(
    ("sel", "message"),
    [
        ({"z": 1}, "sel= names 'z'.*model/time"),
        ({"y": 5.0}, r"sel={'y': 5.0}.*goes from 9.0 to 0.0"),
        ({"y": [9.0, 3.0]}, "slice of step 1"),
    ],
)
def test_labels_that_select_no_slice_are_errors(source: RefShardFileSystem, sel: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        find_positions(source.source, source, sel)


def test_unknown_label_is_refused_with_the_ends(source: RefShardFileSystem) -> None:
    with pytest.raises(
        ManifestError, match="does not have this label; it goes from 2024-01-01 to 2024-01-06"
    ) as caught:
        find_positions(source.source, source, {"time": "2025-03"})
    assert "method" not in str(caught.value)  # of xarray's sel, which has this argument

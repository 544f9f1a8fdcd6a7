"""Rename variables and dimensions, in attributes too."""

from __future__ import annotations

import json

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")


def test_rename_changes_names_in_attributes() -> None:
    attributes = {
        "coordinates": "x lat", "bounds": "x_bnds", "grid_mapping": "crs: x lat", "ancillary_variables": "x q",
        "cell_measures": "x: x volume: v", "formula_terms": "lat: x", "comment": "x",
    }  # fmt: skip
    documents = make_array([3], ["x"])
    documents[".zattrs"] |= attributes
    selected = RefShardFileSystem(make_references(a=documents, x=make_array([3], ["x"]))).select(rename={"x": "y"})
    assert json.loads(selected.cat_file("a/.zattrs")) == {
        "_ARRAY_DIMENSIONS": ["y"], "coordinates": "y lat", "bounds": "x_bnds", "grid_mapping": "crs: y lat",
        "ancillary_variables": "y q", "cell_measures": "x: y volume: v", "formula_terms": "lat: y", "comment": "x",
    }  # fmt: skip

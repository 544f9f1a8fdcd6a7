"""GRIB messages that eccodes writes, and a comparison with what cfgrib shows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

eccodes = pytest.importorskip("eccodes", exc_type=Exception)


xr = pytest.importorskip("xarray")


RNG = np.random.default_rng(5)


def message(values: Any = None, sample: str = "regular_ll_sfc_grib2", **keys: Any) -> bytes:
    """Return a message by eccodes: a grid of 31 rows and 16 columns, if not said otherwise."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    try:
        for key, value in keys.items():
            eccodes.codes_set(handle, key, value)
        if values is None:
            values = RNG.normal(280, 9, eccodes.codes_get(handle, "numberOfDataPoints"))
        if np.isnan(values).any():
            eccodes.codes_set(handle, "bitmapPresent", 1)
            eccodes.codes_set(handle, "missingValue", 9999.0)
        eccodes.codes_set_values(handle, np.where(np.isnan(values), 9999.0, values))
        return bytes(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)


def open_cfgrib(path: Path, **keys: Any) -> Any:
    pytest.importorskip("cfgrib", exc_type=Exception)
    return xr.open_dataset(
        path, engine="cfgrib", backend_kwargs={"filter_by_keys": keys, "indexpath": ""}, decode_timedelta=True
    )


def check_same_as_cfgrib(path: Path, **keys: Any) -> Any:
    """Compare all that cfgrib shows; what it says of how a field is stored (``GRIB_gridType``) is not shown here."""
    want, got = open_cfgrib(path, **keys), xr.open_dataset(path, engine="refshard")
    assert list(got.data_vars) == list(want.data_vars)
    assert set(got.coords) == set(want.coords)
    for name, one in want.variables.items():
        found = got[name].variable
        assert found.dims == one.dims, name
        np.testing.assert_array_equal(found.values.astype(one.dtype), one.values, name)
        known = {key: value for key, value in one.attrs.items() if key in found.attrs or not key.startswith("GRIB_")}
        known.pop("stored_direction", None)
        if known.get("standard_name") != "unknown":
            assert {key: found.attrs.get(key) for key in known} == known, name
    return got

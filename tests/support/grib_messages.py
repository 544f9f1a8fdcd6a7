"""Write GRIB messages by eccodes, and compare datasets with those of cfgrib."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

eccodes = pytest.importorskip("eccodes", exc_type=Exception)


xr = pytest.importorskip("xarray")


RNG = np.random.default_rng(5)


def make_message(values: Any = None, sample: str = "regular_ll_sfc_grib2", **keys: Any) -> bytes:
    """Return a message that eccodes encodes, by default with a grid of 31 rows and 16 columns."""
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


def check_same_as_cfgrib(path: Path, more: frozenset[str] = frozenset(), **keys: Any) -> Any:
    """Assert that a file's dataset equals that of cfgrib, except for attributes about storage (``GRIB_gridType``).

    ``more`` are coordinates that cfgrib does not show. Return the dataset.
    """
    want, got = open_cfgrib(path, **keys), xr.open_dataset(path, engine="refshard")
    assert list(got.data_vars) == list(want.data_vars)
    assert set(got.coords) == set(want.coords) | more
    for name, one in want.variables.items():
        found = got[name].variable
        assert found.dims == one.dims, name
        np.testing.assert_array_equal(found.values.astype(one.dtype), one.values, name)
        known = {key: value for key, value in one.attrs.items() if key in found.attrs or not key.startswith("GRIB_")}
        known.pop("stored_direction", None)
        if known.get("standard_name") != "unknown":
            assert {key: found.attrs.get(key) for key in known} == known, name
    return got


def make_message_on_level(level: int, **keys: Any) -> bytes:
    return make_message(**{"typeOfLevel": "isobaricInhPa", "level": level, **keys})


def find_offsets(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at + 8 : at + 16])
    return found


def make_sidecar(data: bytes, kind: str) -> bytes:
    offsets = [*find_offsets(data), len(data)]
    if kind == ".idx":
        return "".join(f"{n}:{at}:d=2024010100:TMP:500 mb:anl:\n" for n, at in enumerate(offsets[:-1], 1)).encode()
    lines = [json.dumps({"param": "t", "_offset": a, "_length": b - a}) for a, b in itertools.pairwise(offsets)]
    return "\n".join(lines).encode()


POINTS = RNG.normal(280, 9, 3600)


def make_many_messages() -> bytes:
    """Return 40 messages of various lengths, which together are longer than the first read of a file."""
    return b"".join(
        make_message_on_level(
            level, shortName="t", step=step, bitsPerValue=8 + (level // 100 + step) % 5, Ni=60, Nj=60, values=POINTS
        )
        for step, level in itertools.product(range(4), range(100, 1100, 100))
    )


def split_sections(data: bytes) -> list[bytes]:
    found, at = [], 16
    while data[at : at + 4] != b"7777":
        size = int.from_bytes(data[at : at + 4])
        found.append(data[at : at + size])
        at += size
    return found

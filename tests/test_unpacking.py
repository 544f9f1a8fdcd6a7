"""Packed variables have xarray's values, and take only the memory of the stored values and of the result."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from refshard_fs import unpacking
from refshard_fs.unpacking import BLOCK, BlockwiseArray
from refshard_fs.xarray_backend import RefShardBackend

h5netcdf = pytest.importorskip("h5netcdf")

PACKINGS: list[tuple[str, dict[str, Any]]] = [
    ("i2", {"_FillValue": np.int16(7), "scale_factor": 0.002, "add_offset": 273.15}),
    ("i2", {"_FillValue": np.int16(7), "scale_factor": np.float32(0.002)}),
    ("i2", {"_FillValue": np.int16(7), "missing_value": np.int16(9)}),
    ("u1", {"_Unsigned": "false", "scale_factor": 2.0, "add_offset": -1.0}),
    ("i4", {"add_offset": 1.5}),
    ("f4", {"_FillValue": np.float32(3.0)}),
    ("f4", {"scale_factor": 1e-3}),
]


@pytest.fixture
def stored() -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).integers(0, 100, (5, BLOCK // 2 + 3))


def write_packed(path: Path, stored: np.ndarray[Any, Any], dtype: str, packing: dict[str, Any]) -> str:
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"t": stored.shape[0], "x": stored.shape[1]}
        fill = packing.get("_FillValue")
        variable = file.create_variable("v", ("t", "x"), dtype, chunks=(1, stored.shape[1]), fillvalue=fill)
        variable[:] = stored.astype(dtype)
        for name, value in packing.items():
            if name != "_FillValue":
                variable.attrs[name] = value
    return str(path)


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")  # of several fill values
@pytest.mark.parametrize(("dtype", "packing"), PACKINGS)
def test_unpacked_values_equal_those_of_xarray(
    dtype: str, packing: dict[str, Any], stored: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write_packed(tmp_path / "v.nc", stored, dtype, packing)
    with xr.open_dataset(path, engine="h5netcdf") as expected:
        for chunks in (None, {}, {"t": 2}):
            with xr.open_dataset(path, engine=RefShardBackend, chunks=chunks) as ds:
                for key in (slice(None), np.s_[1], np.s_[:, ::2], np.s_[::-1]):
                    values, theirs = ds["v"][key].values, expected["v"][key].values
                    assert values.dtype == theirs.dtype
                    assert values.tobytes() == theirs.tobytes()


def test_opening_unpacks_variables_blockwise_in_this_xarray(stored: np.ndarray[Any, Any], tmp_path: Path) -> None:
    path = write_packed(tmp_path / "v.nc", stored, *PACKINGS[0])
    ds = RefShardBackend().open_dataset(path)
    holders = [ds["v"].variable._data]
    while hasattr(holders[-1], "array"):
        holders.append(holders[-1].array)
    assert BlockwiseArray in map(type, holders)


def test_unpacking_makes_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "WORKERS", 2)
    values = np.arange(64 * BLOCK, dtype="i2")
    tracemalloc.start()
    try:
        made = unpacking._apply([lambda some: some.astype("f8"), lambda some: some * 2.0], values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < made.nbytes + 8 * 8 * BLOCK
    assert (made == values * 2.0).all()

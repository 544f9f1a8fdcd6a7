"""Write files of months whose lengths are not multiples of their chunks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.xarray_backend import RefShardBackend  # xarray may be absent

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")


MONTHS = (31, 29, 31, 30)
CUTS: dict[str, list[Sequence[int] | None]] = {
    "a chunk a month": [(days, 3, 4) for days in MONTHS],
    "chunks that leave a rest": [(10, 2, 4)] * 4,
    "contiguous": [None] * 4,
    "cut otherwise everywhere": [(31, 1, 4), (7, 3, 2), None, (1, 2, 2)],
}


def write_month(path: Path, first: int, days: int, chunks: Sequence[int] | None, **storage: Any) -> str:
    """Write a file of daily fields; all values differ."""
    values = (np.arange(days * 12, dtype="<f4") + 12 * first).reshape(days, 3, 4)
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", data=np.arange(first, first + days))
        time.make_scale("time")
        time.attrs["units"] = "days since 2024-01-01"
        for name, size in (("y", 3), ("x", 4)):
            file.create_dataset(name, data=np.arange(size)).make_scale(name)
        v = file.create_dataset("v", data=values, chunks=None if chunks is None else tuple(chunks), **storage)
        for axis, name in enumerate(("time", "y", "x")):
            v.dims[axis].attach_scale(file[name])
    return str(path)


def write_year(folder: Path, chunks: Sequence[Sequence[int] | None], **storage: Any) -> list[str]:
    firsts = np.cumsum([0, *MONTHS]).tolist()
    pieces = zip(firsts, MONTHS, chunks, strict=False)
    return [write_month(folder / f"{i}.nc", first, days, c, **storage) for i, (first, days, c) in enumerate(pieces)]


def open_by_xarray(fo: Any) -> Any:
    return xr.open_dataset(fo, engine=RefShardBackend).load()


def open_expected(files: Sequence[str]) -> Any:
    return xr.combine_nested([xr.load_dataset(file, engine="h5netcdf") for file in files], concat_dim="time")

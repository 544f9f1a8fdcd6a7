"""Write files of texts along a dimension, by several writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

# By the name of a way of storing texts: the writer, and the type of the texts in memory.
WAYS: Final = {
    "characters of NetCDF-4": ("h5netcdf", "S"),
    "characters of NetCDF-3": ("scipy", "S"),
    "texts of NetCDF-4": ("h5netcdf", "O"),
    "texts of zarr 2": (2, "O"),
    "texts of zarr 3": (3, "O"),
    "characters of zarr 2": (2, "U"),
    "bytes of zarr 3": (3, "S"),
}


def write(folder: Path, way: str, texts: list[list[str]]) -> tuple[list[str], Any]:
    """Write a source along ``time`` for each list of texts; return their URLs, and the dataset that xarray joins."""
    import xarray as xr

    writer, kind = WAYS[way]
    urls, each, start = [], [], 0
    for number, own in enumerate(texts):
        values: Any = np.array(own, object) if kind == "O" else np.array(own, f"{kind}{max(map(len, own))}")
        times = np.arange(start, start + len(own))
        ds = xr.Dataset({"name": ("time", values), "v": ("time", times * 0.5)}, {"time": times})
        start += len(own)
        url = str(folder / f"{number}")
        if isinstance(writer, int):
            ds.to_zarr(url, zarr_format=writer, consolidated=False)
            each.append(xr.open_zarr(url, consolidated=False, chunks=None).load())
        else:
            url += ".nc"
            ds.to_netcdf(url, engine=writer)
            each.append(xr.load_dataset(url, engine=writer))
        urls.append(url)
    return urls, xr.concat(each, "time")


def open_dataset(fo: Any, version: int) -> Any:
    """Open a source by xarray, with metadata of this zarr version."""
    import xarray as xr

    from refshard_fs.xarray_backend import RefShardBackend

    options = {"zarr_format": version, "skip_instance_cache": True}
    return xr.open_dataset(fo, engine=RefShardBackend, storage_options=options).load()


def check_texts(found: Any, expected: Any) -> None:
    """Assert that two datasets have equal texts and dimensions."""
    assert found["name"].dims == expected["name"].dims
    assert [*map(str, found["name"].values)] == [*map(str, expected["name"].values)]
    assert np.array_equal(found["v"], expected["v"])


def find_version(way: str) -> int:
    """Return the zarr version of a source's metadata."""
    writer, _ = WAYS[way]
    return writer if isinstance(writer, int) else 2

"""Files of texts along a dimension, as writers store them."""

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
    """Write a source for each list of texts, along ``time``; return their URLs, and all as xarray joins them."""
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


def opened(fo: Any, version: int) -> Any:
    """Open a source by xarray, its metadata in that version of zarr."""
    import xarray as xr

    from refshard_fs.xarray_backend import RefShardBackend

    options = {"zarr_format": version, "skip_instance_cache": True}
    return xr.open_dataset(fo, engine=RefShardBackend, storage_options=options).load()


def check_texts(found: Any, expected: Any) -> None:
    """Compare the texts, and their dimensions, of two datasets."""
    assert found["name"].dims == expected["name"].dims
    assert [*map(str, found["name"].values)] == [*map(str, expected["name"].values)]
    assert np.array_equal(found["v"], expected["v"])


def version_of(way: str) -> int:
    """Return the version of zarr in which a source is shown."""
    writer, _ = WAYS[way]
    return writer if isinstance(writer, int) else 2

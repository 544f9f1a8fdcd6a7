"""Load any source by the xarray engine of this package."""

from __future__ import annotations

from typing import Any

import xarray as xr

from refshard_fs.xarray_backend import RefShardBackend


def load_dataset(fo: Any) -> Any:
    """Return the dataset of a source, with all values."""
    return xr.open_dataset(fo, engine=RefShardBackend).load()

"""Write Neuroglancer volumes by tensorstore, with values that depend on their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["KEY", "make_pattern", "write_volume"]

KEY = "8_8_8"


def make_pattern(shape: Sequence[int], dtype: str = "uint16") -> np.ndarray[Any, Any]:
    """Return the values of a volume of ``shape`` (x, y, z, channel): no two neighbours are equal, and none is zero."""
    x, y, z, c = np.indices(shape)
    return ((x + 3 * y + 7 * z + 11 * c) % 241 + 1).astype(dtype)


def write_volume(
    folder: Path,
    values: np.ndarray[Any, Any],
    chunk: Sequence[int],
    sharding: Mapping[str, Any] | None = None,
    offset: Sequence[int] = (0, 0, 0),
    encoding: str = "raw",
    key: str = KEY,
    resolution: int = 8,
) -> None:
    """Write one scale. If the values of the first chunks along x are all zero, these chunks are not written."""
    tensorstore = pytest.importorskip("tensorstore")
    scale: dict[str, Any] = {
        "key": key,
        "size": values.shape[:3],
        "chunk_size": list(chunk),
        "voxel_offset": list(offset),
        "resolution": [resolution, resolution, resolution],
        "encoding": encoding,
    }
    if sharding is not None:
        scale["sharding"] = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
    volume = {"type": "image", "data_type": values.dtype.name, "num_channels": values.shape[3]}
    store = tensorstore.open(
        {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{folder}/"},
            "multiscale_metadata": volume,
            "scale_metadata": scale,
        },
        create=True,
        open=True,
    ).result()
    first = 0 if values[: chunk[0]].any() else chunk[0]
    store[offset[0] + first :].write(values[first:]).result()

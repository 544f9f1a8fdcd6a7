"""Make sets of days for tests of joins, in both versions of zarr, and read their values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import strategies as st

from refshard_fs import RefShardFileSystem

zarr = pytest.importorskip("zarr")


def make_array(path: str, values: np.ndarray[Any, Any], chunks: tuple[int, ...], dims: list[str], *, version: int = 2,
            inline: bool = False, **extra: Any) -> dict[str, Any]:  # fmt: skip
    """Return references to an array whose chunks are objects in memory, or inline."""
    out: dict[str, Any] = {}
    if version == 2:
        meta = {"zarr_format": 2, "shape": values.shape, "chunks": chunks, "dtype": values.dtype.str, "order": "C"}
        out[f"{path}/.zarray"] = json.dumps(meta | {"fill_value": 0, "filters": None, "compressor": None} | extra)
        out[f"{path}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
    else:
        meta = {"zarr_format": 3, "node_type": "array", "shape": values.shape, "data_type": values.dtype.name}
        meta |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}, "attributes": {}}
        meta |= {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": dims}
        meta |= {"chunk_key_encoding": {"name": "default"}, "fill_value": 0}
        out[f"{path}/zarr.json"] = json.dumps(meta | extra)
    counts = [-(-s // c) for s, c in zip(values.shape, chunks, strict=True)]
    for place in np.ndindex(*counts):
        full = np.zeros(chunks, values.dtype)
        part = values[tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunks, strict=True))]
        full[tuple(map(slice, part.shape))] = part
        key = f"{path}/" + (".".join(map(str, place)) or "0" if version == 2 else "/".join(["c", *map(str, place)]))
        if inline:
            out[key] = full.tobytes()
        else:
            name = f"/made/{abs(hash(full.tobytes()))}"
            MemoryFileSystem().pipe_file(name, full.tobytes())
            out[key] = ["memory:/" + name, 0, full.nbytes]
    return out


def make_day_set(
    start: int, length: int, version: int = 2, width: int = 5, first: int = 0, **extra: Any
) -> dict[str, Any]:
    rng = np.random.default_rng(1000 * start + first)
    out: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'} if version == 2 else {}
    if version == 3:
        out["zarr.json"] = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
    x = np.arange(first, first + width, dtype="<f8")
    out |= make_array("x", x, (width,), ["x"], version=version)
    out |= make_array("time", np.arange(start, start + length, dtype="<i4"), (length,), ["time"], version=version,
                   inline=start % 2 == 0)  # fmt: skip
    air = rng.integers(0, 100, (length, width)).astype("<f4")
    return out | make_array("air", air, (2, 3 if width > 3 else 1), ["time", "x"], version=version, **extra)


def read(fo: Any) -> Any:
    if zarr.__version__.startswith("2"):
        group = zarr.open_group(RefShardFileSystem(fo).get_mapper(), mode="r")
    else:
        store = zarr.storage.FsspecStore(RefShardFileSystem(fo, asynchronous=True), read_only=True, path="")
        group = zarr.open_group(store, mode="r")
    return {name: np.asarray(group[name][...]) for name in ("air", "time", "x")}


VERSIONS = [2] if zarr.__version__.startswith("2") else [2, 3]


@st.composite
def draw_archives(draw: st.DrawFn) -> tuple[list[dict[str, Any]], int]:
    """Draw sets of one array each, with random lengths along a random axis and missing chunks; return also the axis."""
    axis = draw(st.integers(0, 2))
    chunks = tuple(draw(st.integers(1, 3)) for _ in range(3))
    shape = [draw(st.integers(1, 4)) for _ in range(3)]
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    version = draw(st.sampled_from([2, 3]))
    parts = []
    for number, count in enumerate(counts):
        length = count * chunks[axis]
        if number == len(counts) - 1:
            length -= draw(st.integers(0, chunks[axis] - 1))
        shape[axis] = length
        data = np.full(shape, number + 1, "<i2")
        part = make_array("a", data, chunks, ["t", "y", "x"], version=version, inline=True)
        keys = [key for key in part if not key.endswith(("zarr.json", ".zarray", ".zattrs"))]
        for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=2)):
            del part[key]
        parts.append(part)
    return parts, axis

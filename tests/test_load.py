"""Several arrays at once: the coordinates of a dataset when it is opened, and all of its variables by `load`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr", minversion="3.1")

import refshard_fs  # noqa: E402  # zarr may be absent
from refshard_fs import ReferenceNotReachable  # noqa: E402
from tests.servers.http import RangeServer  # noqa: E402

COUNT = 40


def references(server: RangeServer) -> dict[str, Any]:
    """Return a set of ``COUNT`` index coordinates and a variable along each, every one in a file of its own."""
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    for i in range(COUNT):
        for name, values in ((f"x{i}", np.arange(4.0) + i), (f"v{i}", np.arange(4.0) * i)):
            meta = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f8", "order": "C", "fill_value": None}
            refs[f"{name}/.zarray"] = json.dumps({**meta, "filters": None, "compressor": None})
            refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": [f"x{i}"]})
            refs[f"{name}/0"] = [server.put(f"/{name}", values.tobytes()), 0, 32]
    return refs


def test_index_coordinates_are_fetched_together_when_a_dataset_is_opened(http_server: RangeServer) -> None:
    refs = references(http_server)
    http_server.together = COUNT
    ds = xr.open_dataset(refs, engine="refshard")
    assert [float(ds[f"x{i}"][0]) for i in range(COUNT)] == list(range(COUNT))
    assert len(http_server.requests()) == COUNT


def test_all_variables_are_loaded_together(http_server: RangeServer) -> None:
    ds = xr.open_dataset(references(http_server), engine="refshard")
    http_server.clear()
    http_server.together = COUNT
    assert refshard_fs.load(ds) is ds
    assert len(http_server.requests()) == COUNT
    for i in range(COUNT):
        assert ds[f"v{i}"].values.tolist() == [0, i, 2 * i, 3 * i]
    assert len(http_server.requests()) == COUNT


def test_an_array_and_dask_are_loaded_too(http_server: RangeServer) -> None:
    refs = references(http_server)
    array = xr.open_dataset(refs, engine="refshard")["v3"]
    assert refshard_fs.load(array).variable._in_memory
    chunked = xr.open_dataset(refs, engine="refshard", chunks={})
    assert refshard_fs.load(chunked)["v3"].values.tolist() == [0, 3, 6, 9]


def test_an_error_names_its_key(http_server: RangeServer) -> None:
    ds = xr.open_dataset(references(http_server), engine="refshard", storage_options={"retries": 0})
    http_server.fault(403, "/v7")
    with pytest.raises(ReferenceNotReachable, match="v7/0"):
        refshard_fs.load(ds)


def test_several_selections_are_announced_at_once(http_server: RangeServer) -> None:
    fs = refshard_fs.RefShardFileSystem(references(http_server), skip_instance_cache=True)
    http_server.together = 3
    fs.prefetch({"v1": None, "v2": slice(0, 2), "v3": None})
    assert fs.cat_file("v2/0") == (np.arange(4.0) * 2).tobytes()
    assert len(http_server.requests()) == 3

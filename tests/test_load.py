"""Several arrays at once: the coordinates of a dataset at opening, and all of its variables by `load`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr", minversion="3.1")

import refshard_fs  # noqa: E402  # zarr may be absent
from refshard_fs import ReferenceNotReachable  # noqa: E402  # after importorskip
from refshard_fs.source.source import Source  # noqa: E402  # after importorskip
from tests.servers.http import RangeServer  # noqa: E402  # after importorskip
from tests.support.shard_writers import make_indexed_shard  # noqa: E402  # after importorskip

COUNT = 40


def put_references(server: RangeServer) -> dict[str, Any]:
    """Return a set of ``COUNT`` index coordinates and a variable along each, every array in a separate file."""
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    for i in range(COUNT):
        for name, values in ((f"x{i}", np.arange(4.0) + i), (f"v{i}", np.arange(4.0) * i)):
            meta = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f8", "order": "C", "fill_value": None}
            refs[f"{name}/.zarray"] = json.dumps({**meta, "filters": None, "compressor": None})
            refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": [f"x{i}"]})
            refs[f"{name}/0"] = [server.put(f"/{name}", values.tobytes()), 0, 32]
    return refs


def test_index_coordinates_are_fetched_together_at_opening(http_server: RangeServer) -> None:
    refs = put_references(http_server)
    http_server.together = COUNT
    ds = xr.open_dataset(refs, engine="refshard")
    assert [float(ds[f"x{i}"][0]) for i in range(COUNT)] == list(range(COUNT))
    assert len(http_server.requests()) == COUNT


@pytest.mark.parametrize("is_sharded", [False, True])
def test_dataset_of_forty_coordinates_opens_in_four_rounds(is_sharded: bool, http_server: RangeServer) -> None:
    """The number of rounds does not depend on the number of coordinates."""
    refs = put_references(http_server)
    if is_sharded:
        for i in range(COUNT):
            refs[f"x{i}/.zarray"] = json.dumps({**json.loads(refs[f"x{i}/.zarray"]), "chunks": [2], "shards": [2]})
            values = (np.arange(4.0) + i).tobytes()
            shard = make_indexed_shard({0: values[:16], 1: values[16:]}, 2)
            refs[f"x{i}/0"] = [http_server.put(f"/x{i}", shard), 0, len(shard)]
    url = http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    http_server.latency = 0.5
    options = {"index_cache": False, "skip_instance_cache": True}
    ds = xr.open_dataset(url, engine="refshard", storage_options=options)
    assert [ds[f"x{i}"].values.tolist() for i in range(COUNT)] == [[i, i + 1, i + 2, i + 3] for i in range(COUNT)]
    assert http_server.log.rounds <= 4


def test_all_variables_are_loaded_together(http_server: RangeServer) -> None:
    ds = xr.open_dataset(put_references(http_server), engine="refshard")
    http_server.clear()
    http_server.together = COUNT
    assert refshard_fs.load(ds) is ds
    assert len(http_server.requests()) == COUNT
    for i in range(COUNT):
        assert ds[f"v{i}"].values.tolist() == [0, i, 2 * i, 3 * i]
    assert len(http_server.requests()) == COUNT


def put_variables(server: RangeServer, count: int, chunks: int, size: int) -> dict[str, Any]:
    """Return a set of ``count`` variables, each with chunks of ``size`` bytes in a separate file."""
    meta = {"zarr_format": 2, "shape": [chunks * size], "chunks": [size], "dtype": "|u1", "order": "C", "filters": None}
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    for i in range(count):
        refs[f"v{i}/.zarray"] = json.dumps({**meta, "compressor": None, "fill_value": None})
        refs[f"v{i}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["x"]})
        url = server.put(f"/v{i}", bytes([i]) * (chunks * size))
        refs |= {f"v{i}/{j}": [url, j * size, size] for j in range(chunks)}
    return refs


def test_loading_together_takes_fewer_rounds_than_one_by_one(http_server: RangeServer) -> None:
    refs = put_variables(http_server, 30, 4, 1000)
    rounds = {}
    for name, load in {"one by one": xr.Dataset.load, "together": refshard_fs.load}.items():
        ds = xr.open_dataset(refs, engine="refshard", storage_options={"max_gap": -1, "skip_instance_cache": True})
        http_server.clear()
        http_server.latency = 0.1 if name == "one by one" else 0.5
        load(ds)
        rounds[name] = http_server.log.rounds
        assert [int(ds[f"v{i}"].values.sum()) for i in range(30)] == [4000 * i for i in range(30)]
    assert rounds["one by one"] >= 30
    assert rounds["together"] <= 3


@pytest.mark.parametrize("chunks", [4, 1])
def test_loading_together_stays_within_the_memory(
    chunks: int, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variable may always have one chunk in memory, so that they do not wait for each other forever."""
    size, memory = 1000, 8000
    ds = xr.open_dataset(
        put_variables(http_server, 30, chunks, size),
        engine="refshard",
        storage_options={"max_memory": memory, "max_gap": -1, "skip_instance_cache": True},
    )
    reading: list[int] = []
    most: list[int] = []
    read = Source.read_selection

    async def count_read(self: Any, keys: list[str], *arguments: Any, chunk_size: int, **options: Any) -> Any:
        reading.append(chunk_size * len(keys))
        most.append(sum(reading))
        try:
            return await read(self, keys, *arguments, chunk_size=chunk_size, **options)
        finally:
            reading.remove(chunk_size * len(keys))

    monkeypatch.setattr(Source, "read_selection", count_read)
    refshard_fs.load(ds)
    assert [int(ds[f"v{i}"].values.sum()) for i in range(30)] == [chunks * size * i for i in range(30)]
    assert max(most) == memory  # several variables at a time fill it


def test_arrays_and_dask_arrays_are_loaded(http_server: RangeServer) -> None:
    refs = put_references(http_server)
    array = xr.open_dataset(refs, engine="refshard")["v3"]
    assert refshard_fs.load(array).variable._in_memory
    chunked = xr.open_dataset(refs, engine="refshard", chunks={})
    assert refshard_fs.load(chunked)["v3"].values.tolist() == [0, 3, 6, 9]


def test_error_of_load_names_the_failing_key(http_server: RangeServer) -> None:
    ds = xr.open_dataset(put_references(http_server), engine="refshard", storage_options={"retries": 0})
    http_server.fault(403, "/v7")
    with pytest.raises(ReferenceNotReachable, match="v7/0"):
        refshard_fs.load(ds)


def test_several_selections_are_announced_together(http_server: RangeServer) -> None:
    fs = refshard_fs.RefShardFileSystem(put_references(http_server), skip_instance_cache=True)
    http_server.together = 3
    fs.prefetch({"v1": None, "v2": slice(0, 2), "v3": None})
    assert fs.cat_file("v2/0") == (np.arange(4.0) * 2).tobytes()
    assert len(http_server.requests()) == 3

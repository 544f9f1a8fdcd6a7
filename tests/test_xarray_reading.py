"""``engine="refshard"``: a selection takes the requests of a client that knows all ranges."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import RangeServer
from tests.support.chunked import CHUNK, Chunked

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")

import refshard_fs  # noqa: E402  # after importorskip
from refshard_fs import RefShardFileSystem  # noqa: E402  # after importorskip
from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

GRID = (16, 16)


@pytest.fixture
def chunked(http_server: RangeServer) -> Chunked:
    return Chunked(http_server)


def open_grid(chunked: Chunked, **options: Any) -> Any:
    """Return the array whose elements (i, j, ·) are the number of their chunk."""
    refs = chunked.refs(GRID)
    refs["a/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["y", "x", "byte"]})
    storage = {"max_gap": 0, "skip_instance_cache": True}
    return xr.open_dataset(refs, engine=RefShardBackend, storage_options=storage, mask_and_scale=False, **options)["a"]


VALUES = (np.arange(256) % 251).astype("u1").reshape(GRID)

SELECTIONS = {
    "whole": np.s_[:, :],
    "rows": np.s_[3:7, :],
    "column": np.s_[:, 5],
    "strided": np.s_[::4, ::2],
    "backwards": np.s_[::-1, 2],
    "one": np.s_[4, 4],
    "fancy": ([1, 5, 9, 14], slice(None)),
    "orthogonal": ([1, 9, 5], [2, 3, 11]),
    "boolean": (np.arange(16) % 3 == 0, slice(4, 6)),
    "nothing": np.s_[4:4, :],
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selection_fetches_only_its_chunks_once(chunked: Chunked, name: str) -> None:
    selection = dict(zip(("y", "x"), SELECTIONS[name], strict=True))
    array = open_grid(chunked).isel(selection)
    places = xr.DataArray(np.arange(256).reshape(GRID), dims=("y", "x")).isel(selection).values
    np.testing.assert_array_equal(array.isel(byte=0).values, np.asarray(places % 251))
    needed = sorted(set(np.asarray(places).ravel().tolist()))
    runs = 1 + sum(b != a + 1 for a, b in pairwise(needed)) if needed else 0
    assert [i for start, stop in chunked.ranges for i in range(start, stop)] == needed
    assert len(chunked.ranges) <= runs + len(needed) // 100


def test_points_fetch_their_chunks_once(chunked: Chunked) -> None:
    rows, columns = [1, 7, 7, 15], [3, 3, 9, 0]
    points = open_grid(chunked).isel(y=("point", rows), x=("point", columns), byte=0)
    np.testing.assert_array_equal(points.values, VALUES[rows, columns])
    assert chunked.ranges == [(r * 16 + c, r * 16 + c + 1) for r, c in zip(rows, columns, strict=True)]


def test_dask_tasks_fetch_their_parts_in_few_requests(chunked: Chunked) -> None:
    pytest.importorskip("dask.array")
    array = open_grid(chunked, chunks={"y": 4, "x": 16})
    values = array.isel(byte=0).compute(scheduler="threads", num_workers=4).values
    np.testing.assert_array_equal(values, VALUES)
    assert chunked.fetched == 256
    assert len(chunked.ranges) <= 8


def test_arrays_read_the_same_after_pickling(chunked: Chunked) -> None:
    array = pickle.loads(pickle.dumps(open_grid(chunked)))
    np.testing.assert_array_equal(array.isel(y=2, byte=0).values, VALUES[2])
    assert len(chunked.ranges) == 1


@pytest.mark.parametrize("decoding", [{}, {"chunks": {}}, {"open_dataset_options": {"decode_cf": False}}])
def test_datasets_of_a_url_read_the_same_after_pickling(chunked: Chunked, decoding: dict[str, Any]) -> None:
    refs = {**chunked.refs(GRID), "a/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x", "byte"]})}
    url = chunked.server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    ds = xr.open_dataset(url, engine=RefShardBackend, mask_and_scale=False, **decoding)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds))["a"].isel(y=2, byte=0).values, VALUES[2])


def test_missing_chunks_are_filled_and_failed_ones_are_errors(chunked: Chunked) -> None:
    refs = chunked.refs(GRID)
    refs["a/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["y", "x", "byte"]})
    del refs["a/0.1.0"]
    refs["a/1.1.0"] = [chunked.url + ".gone", 0, CHUNK]
    array = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)["a"].isel(byte=0)
    assert array[0].values.tolist() == [0, 0, *range(2, 16)]
    with pytest.raises(Exception, match="cannot be read"):
        array[1].values  # noqa: B018  # it reads


def test_array_of_a_subgroup_is_read_by_one_request(chunked: Chunked) -> None:
    refs = {f"sub/{k}" if k != ".zgroup" else k: v for k, v in chunked.refs(GRID).items()}
    refs["sub/.zgroup"] = refs[".zgroup"]
    refs["sub/a/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["y", "x", "byte"]})
    tree = xr.open_datatree(refs, engine=RefShardBackend, mask_and_scale=False)
    np.testing.assert_array_equal(tree["sub/a"].isel(y=3, byte=0).values, VALUES[3])
    assert chunked.ranges == [(48, 64)]


def test_loop_over_slabs_takes_at_most_one_request_for_each(chunked: Chunked) -> None:
    array = open_grid(chunked)
    for row in range(0, 16, 2):
        np.testing.assert_array_equal(array.isel(y=slice(row, row + 2), byte=0).values, VALUES[row : row + 2])
    assert chunked.fetched == 256
    assert len(chunked.ranges) <= 8


@pytest.mark.skipif(not hasattr(xr.Dataset, "load_async"), reason="this xarray loads in its own thread only")
def test_asynchronous_loading_fetches_together(chunked: Chunked) -> None:
    array = open_grid(chunked)

    async def load() -> Any:
        return (await array.isel(y=slice(2, 6)).load_async()).isel(byte=0).values

    np.testing.assert_array_equal(asyncio.run(load()), VALUES[2:6])
    assert chunked.fetched == 64
    assert len(chunked.ranges) <= 2


def test_notebook_with_a_running_loop_fetches_together(chunked: Chunked) -> None:
    def cell() -> None:
        array = open_grid(chunked).isel(byte=0)
        np.testing.assert_array_equal(array[3:7].values, VALUES[3:7])
        assert chunked.ranges == [(48, 112)]
        np.testing.assert_array_equal(array[9:].values, VALUES[9:])

    in_a_running_loop(cell)


def test_announced_keys_are_read_on_another_loop(chunked: Chunked) -> None:
    refs = chunked.refs(GRID)
    fs = RefShardFileSystem(refs, skip_instance_cache=True, asynchronous=True)
    array = zarr.open_array(zarr.storage.FsspecStore(fs, read_only=True, path=""), path="a", mode="r")

    async def cell() -> None:
        await fs._prefetch("a", np.s_[3:5], wait=False)
        np.testing.assert_array_equal(array[3:5, :, 0], VALUES[3:5])  # this call blocks the loop
        await asyncio.sleep(0)
        np.testing.assert_array_equal(await array.async_array.getitem(np.s_[6, :, 0]), VALUES[6])

    in_a_running_loop(cell)


def test_keys_announced_on_a_stopped_loop_are_read_on_another(chunked: Chunked, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(chunked.refs(GRID), skip_instance_cache=True, asynchronous=True)
    told = asyncio.new_event_loop()
    thread = threading.Thread(target=told.run_forever)

    async def read() -> bytes:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fs._prefetch(["a/0.0.0"], wait=False), told))
        reading = asyncio.create_task(fs._cat_file("a/0.0.0"))
        await asyncio.sleep(0.05)
        told.call_soon_threadsafe(told.stop)
        await asyncio.to_thread(thread.join)
        http_server.latency = 0
        return await asyncio.wait_for(reading, 20)

    http_server.latency = 0.5
    thread.start()
    try:
        assert asyncio.run(read()) == chunked.chunk(0)
    finally:
        told.run_until_complete(told.shutdown_asyncgens())
        told.close()


def in_a_running_loop(cell: Any) -> None:
    """Run ``cell``, which may block, in the event loop of another thread."""

    async def call() -> None:
        answer = cell()
        if answer is not None:
            await answer

    def run() -> None:
        try:
            asyncio.run(call())
        except BaseException as e:  # raised again below
            done.set_exception(e)
        else:
            done.set_result(None)

    done: Future[None] = Future()
    threading.Thread(target=run, daemon=True).start()
    done.result(20)  # raises an error if the cell waits forever


def test_joining_and_reading_share_connections(http_server: RangeServer, tmp_path: Path, large_files: None) -> None:
    """A further connection takes two or three round trips to a server with TLS."""
    tifffile = pytest.importorskip("tifffile")
    field = np.arange(90_000, dtype="u4").reshape(300, 300)  # more than the first bytes
    for day in range(3):
        tifffile.imwrite(tmp_path / f"{day}.tif", field + day, tile=(64, 64), metadata=None)
    urls = [http_server.put(f"2024010{day + 1}.tif", (tmp_path / f"{day}.tif").read_bytes()) for day in range(3)]
    table = [(url, {"time": np.datetime64(f"2024-01-0{day + 1}")}) for day, url in enumerate(urls)]
    cube: Any = refshard_fs.concat(table, lazy=True)
    with xr.open_dataset(cube, engine=RefShardBackend) as ds:
        assert ds["0"][:, 299, 299].values.tolist() == [89_999, 90_000, 90_001]
    connections = [request.connection for request in http_server.requests()]
    assert len(connections) == 6
    assert connections[3] in connections[:3]

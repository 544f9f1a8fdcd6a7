"""Selections that are read and decoded in the calling thread: zarr's values, and few requests."""

from __future__ import annotations

import gc
import json
import os
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Blosc, Shuffle, Zlib
from xarray.backends.zarr import ZarrArrayWrapper

import refshard_fs
from refshard_fs import ReferenceNotReachable, RefShardError, RefShardFileSystem, TargetChanged, direct_array, tuning
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline
from refshard_fs.direct_array import DirectArray
from refshard_fs.reading.immediate import Immediate
from refshard_fs.xarray_backend import RefShardBackend, load
from tests.servers.http import RangeServer
from tests.support.chunked import CHUNK, Chunked

pytestmark = pytest.mark.skipif(zarr.__version__.startswith("2"), reason="zarr 3 alone")

GROUP = '{"zarr_format": 2}'
NAMED = {"a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x", "y"]}'}
LAYOUTS: list[dict[str, Any]] = [
    {"zarr_format": 2, "dtype": ">i4", "order": "F", "filters": None, "compressors": Zlib(1)},
    {"zarr_format": 2, "dtype": "<f8", "filters": [Shuffle(8)], "compressors": Blosc()},
    {"zarr_format": 2, "dtype": "?", "compressors": None},
    {"zarr_format": 3, "dtype": "<f4"},
    {"zarr_format": 3, "dtype": ">i2", "compressors": None},
    {"zarr_format": 3, "dtype": "<u8", "shards": (4, 6)},
]


def write_array(folder: Path, layout: dict[str, Any]) -> xr.Variable:
    """Write an array of 7 by 7 without its last row of chunks; return the variable that xarray reads through zarr."""
    group = zarr.open_group(folder, mode="w", zarr_format=layout["zarr_format"])
    options = {name: value for name, value in layout.items() if name != "zarr_format"}
    is_new = layout["zarr_format"] == 3
    named = {"dimension_names": ["x", "y"]} if is_new else {"attributes": {"_ARRAY_DIMENSIONS": ["x", "y"]}}
    array = group.create_array("a", shape=(7, 7), chunks=(2, 3), fill_value=1, **options, **named)
    array[:6] = np.arange(42).reshape(6, 7).astype(layout["dtype"])
    with xr.open_dataset(folder, engine="zarr", consolidated=False, mask_and_scale=False) as ds:
        return ds["a"].variable.load()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "http"])
def test_selections_equal_those_of_zarr(
    tmp_path: Path, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any], is_remote: bool
) -> None:
    expected = write_array(tmp_path, layout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are not in the specification of version 3
        zarr.consolidate_metadata(tmp_path)
    for path in tmp_path.rglob("*") if is_remote else ():
        if path.is_file():
            http_server.put(f"/store.zarr/{path.relative_to(tmp_path)}", path.read_bytes())
    by_zarr: list[Any] = []
    read = ZarrArrayWrapper.__getitem__
    monkeypatch.setattr(ZarrArrayWrapper, "__getitem__", lambda self, key: by_zarr.append(key) or read(self, key))
    source = f"{http_server.url}/store.zarr" if is_remote else tmp_path
    with xr.open_dataset(source, engine=RefShardBackend, consolidated=False, mask_and_scale=False) as ds:
        seen = ds["a"].variable
        for key in [
            (1,),
            (1, 2),
            (slice(0, 2), slice(3, 6)),
            (5, slice(6, 7)),
            (slice(4, 6), -1),
            (slice(None, None, 3),),
        ]:
            one, other = seen[key].values, expected[key].values
            assert (one.dtype, one.shape, one.flags.writeable) == (other.dtype, other.shape, True)
            np.testing.assert_array_equal(one, other)
        others = [slice(None), slice(None, None, -1), slice(1, 6, 2), [4, 0], np.array([True] * 3 + [False] * 4), 6]
        for first in others:
            for second in [*others, slice(2, 2)]:
                np.testing.assert_array_equal(seen[first, second].values, expected[first, second].values)
        assert not by_zarr
        by_points = {"x": xr.Variable("p", [6, 0, 3]), "y": xr.Variable("p", [1, 1, 6])}
        np.testing.assert_array_equal(seen.isel(by_points).values, expected.isel(by_points).values)


def test_changed_results_do_not_change_later_reads(tmp_path: Path) -> None:
    """A chunk that was read in part stays in memory, so results must be copies of it."""
    values = np.arange(12.0).reshape(3, 4)
    xr.Dataset({"a": (("x", "y"), values)}).to_netcdf(
        tmp_path / "a.nc", engine="h5netcdf", encoding={"a": {"chunksizes": (3, 4), "zlib": True}}
    )
    with xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend) as ds:
        for key in [(0,), (slice(None), 1), (slice(None),), (slice(None),)]:
            read = ds["a"].variable[key].values
            np.testing.assert_array_equal(read, values[key])
            read += 1


@pytest.fixture(scope="module")
def cube(tmp_path_factory: pytest.TempPathFactory) -> tuple[xr.Variable, np.ndarray[Any, Any]]:
    folder = tmp_path_factory.mktemp("cube")
    values = np.random.default_rng(1).integers(0, 1000, (7, 5, 11))
    dims = {"attributes": {"_ARRAY_DIMENSIONS": ["t", "y", "x"]}}
    array = zarr.open_group(folder, mode="w", zarr_format=2).create_array(
        "a", shape=(7, 5, 11), chunks=(2, 3, 4), dtype="<i8", **dims
    )
    array[...] = values
    return xr.open_dataset(folder, engine=RefShardBackend, mask_and_scale=False)["a"].variable, values


@pytest.mark.parametrize("layout", [{"chunks": (4, 5, 3)}, {"chunks": (4, 5, 3), "compression": "gzip"}, {}])
def test_part_of_a_chunk_has_the_right_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]
) -> None:
    monkeypatch.setattr(direct_array, "SPARED_HERE", 1)
    values = np.random.default_rng(1).integers(0, 1000, (7, 5, 11)).astype(">i4")
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"t": 7, "y": 5, "x": 11}
        file.create_variable("a", ("t", "y", "x"), ">i4", **layout)[...] = values
    keys: list[Any] = [
        {"t": 2, "y": 3},
        {"t": slice(1, 7, 2), "x": slice(2, 5)},
        {"t": [6, 0], "y": slice(None, None, -2), "x": -1},
        {"t": [0, 2, 3, 6], "y": 1, "x": [1, 2]},
        {"y": 2, "x": slice(1, 10, 3)},
        {name: xr.DataArray([3, 0, 3, 2], dims="p") for name in "tyx"},
        {"t": xr.DataArray([5, 5], dims="p"), "x": xr.DataArray([1, 10], dims="p")},
    ]
    for key in keys:
        ds = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend, mask_and_scale=False)
        expected = xr.DataArray(values, dims=("t", "y", "x")).isel(key)
        for read in (ds["a"].isel(key), load(ds["a"].copy().isel(key)), ds["a"].isel(key)):  # a part, then all
            np.testing.assert_array_equal(read.values, expected.values)


def test_part_of_a_padded_last_chunk_is_read_alone(tmp_path: Path) -> None:
    """The last piece of a contiguous array is padded to the size of a chunk."""
    values = np.arange(2100 * 1031, dtype=">f4").reshape(2100, 1031)
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"y": 2100, "x": 1031}
        file.create_variable("a", ("y", "x"), ">f4")[...] = values
    array = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend)["a"]
    fs = get_filesystem(array.to_dataset())
    assert array.encoding["chunks"][0] < 1100
    for rows in (slice(500, 510), slice(2050, 2060)):
        before = fs.stats()["bytes_fetched"]
        assert (array[rows].values == values[rows]).all()
        assert fs.stats()["bytes_fetched"] - before == 10 * 1031 * 4


def test_reading_one_chunk_looks_up_only_its_key(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    array, values = open_uncompressed(http_server)
    looked_up: list[str] = []
    find_all = Immediate.find_all

    def count(self: Immediate, keyspace: KeySpace, keys: list[str], **options: bool) -> Any:
        looked_up.extend(keys)
        return find_all(self, keyspace, keys, **options)

    monkeypatch.setattr(Immediate, "find_all", count)
    assert (array[:1024].values == values[:1024]).all()
    assert looked_up == ["a/0.0"]


def open_uncompressed(server: RangeServer) -> tuple[xr.DataArray, np.ndarray[Any, Any]]:
    """Open an array of three uncompressed chunks of 4 MiB, 1,024 rows each."""
    values = np.arange(3 * 1024 * 1024, dtype="<i4").reshape(-1, 1024)
    url = server.put("/rows.bin", values.tobytes())
    meta = {"zarr_format": 2, "shape": values.shape, "chunks": [1024, 1024], "dtype": "<i4", "order": "C"}
    chunks = {f"a/{number}.0": [url, number << 22, 1 << 22] for number in range(3)}
    document = json.dumps({**meta, "fill_value": 0, "filters": None, "compressor": None})
    refs = {".zgroup": GROUP, "a/.zarray": document, **NAMED, **chunks}
    return xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)["a"], values


def test_window_of_an_uncompressed_chunk_fetches_its_rows(http_server: RangeServer) -> None:
    array, values = open_uncompressed(http_server)
    assert (array[1000:1040, 100:200].values == values[1000:1040, 100:200]).all()
    assert http_server.bytes_sent == (39 * 1024 + 100) * 4
    assert (array[2000:2010].values == values[2000:2010]).all()  # a second read of this chunk reads all of it
    assert (array[1500:1510].values == values[1500:1510]).all()
    assert http_server.bytes_sent < (5 << 20)


def test_point_at_distant_steps_reads_each_step_by_itself(http_server: RangeServer) -> None:
    values = np.arange(4 * 2 * 600 * 1000, dtype="<i4").reshape(8, 600, 1000)
    url = http_server.put("/steps.bin", values.tobytes())
    meta = {"zarr_format": 2, "shape": values.shape, "chunks": [2, 600, 1000], "dtype": "<i4", "order": "C"}
    size = values[:2].nbytes
    chunks = {f"a/{number}.0.0": [url, number * size, size] for number in range(4)}
    named = {"a/.zattrs": '{"_ARRAY_DIMENSIONS": ["t", "y", "x"]}'}
    document = json.dumps({**meta, "fill_value": 0, "filters": None, "compressor": None})
    refs = {".zgroup": GROUP, "a/.zarray": document, **named, **chunks}
    array = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)["a"]
    assert array[:, 5, 7].values.tolist() == values[:, 5, 7].tolist()
    assert http_server.bytes_sent == 8 * 4


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf"])
def test_local_point_reads_few_bytes_of_a_contiguous_file(engine: Any, tmp_path: Path) -> None:
    values = np.arange(20 * 300 * 400, dtype="f4").reshape(20, 300, 400)
    xr.Dataset({"a": (("t", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine=engine)
    array = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend)["a"]
    fs = get_filesystem(array.to_dataset())
    before = fs.stats()["bytes_fetched"]
    assert array[:, 5, 7:9].values.tolist() == values[:, 5, 7:9].tolist()
    assert fs.stats()["bytes_fetched"] - before == 20 * 2 * 4


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", ">i4"])
def test_uncompressed_local_values_are_read_into_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any, dtype: str
) -> None:
    values = np.arange(30 * 200 * 300).astype(dtype).reshape(30, 200, 300)
    xr.Dataset({"a": (("t", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine=engine)
    array = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend, cache=False)["a"]
    monkeypatch.setattr(Immediate, "take_unmade", lambda *_: pytest.fail("the values are copied"))
    for key in ((), (slice(3, 28),), (slice(1, 9), slice(None)), (slice(4, 5), slice(7, 190)), (12, slice(5, 180))):
        assert (array[key].values == values[key]).all()


@pytest.mark.parametrize("shape", [[], [1]])
def test_long_text_of_one_element_is_read(tmp_path: Path, shape: list[int]) -> None:
    text = bytes(range(97, 122)) * 8000
    (tmp_path / "texts").write_bytes(text)
    meta = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "|S200000", "order": "C"}
    document = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
    named = {"a/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"] * len(shape)})}
    refs = {".zgroup": GROUP, "a/.zarray": document, **named, "a/0": [str(tmp_path / "texts"), 0, len(text)]}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    array = xr.open_dataset(tmp_path / "refs.json", engine=RefShardBackend, decode_cf=False)["a"]
    assert array[(0,) * len(shape)].values.tolist() == text


def test_values_beyond_the_end_of_a_cut_file_are_an_error(tmp_path: Path) -> None:
    values = np.arange(200_000, dtype="f8")
    xr.Dataset({"a": ("x", values)}).to_netcdf(tmp_path / "a.nc", engine="scipy")
    array = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend, cache=False)["a"]
    os.truncate(tmp_path / "a.nc", 800_000)
    with pytest.raises(RefShardError, match="its size was 1600116 bytes and is 800000"):
        array.load()


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf"])
def test_large_local_selection_needs_no_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    values = np.arange(18 << 18, dtype=">f4").reshape(18, 512, 512)
    encoding = {"a": {"zlib": True, "chunksizes": (1, 512, 512)}} if engine == "h5netcdf" else {}
    xr.Dataset({"a": (("t", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc", engine=engine, encoding=encoding)
    array = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend)["a"]
    monkeypatch.setattr(DirectArray, "_read", None)
    read = array.values
    assert read.dtype == np.dtype("f4")  # in the machine's byte order
    assert (read == values).all()


LARGE = np.arange(5 << 20, dtype="<i4").reshape(5, 1 << 20)


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write `LARGE` in chunks of 4 MiB."""
    path = tmp_path_factory.mktemp("large") / "a.nc"
    encoding = {"a": {"zlib": True, "complevel": 1, "chunksizes": (1, 1 << 20)}}
    xr.Dataset({"a": (("x", "y"), LARGE)}).to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return path


def test_large_local_chunks_are_decoded_by_several_threads(large_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_array, "WORKERS", 2)
    threads: set[int] = set()
    decode = DirectArray._decode

    def note_thread(self: DirectArray, *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return decode(self, *arguments)

    monkeypatch.setattr(DirectArray, "_decode", note_thread)
    with xr.open_dataset(large_file, engine=RefShardBackend) as ds:
        np.testing.assert_array_equal(ds["a"].values, LARGE)
    assert len(threads - {threading.get_ident()}) > 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_large_local_chunk_is_read_whole(tmp_path: Path, shuffle: bool) -> None:
    values = np.arange(1 << 16, dtype="<i4")
    encoding = {"a": {"zlib": True, "shuffle": shuffle, "chunksizes": values.shape}}
    xr.Dataset({"a": ("x", values)}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=encoding)
    options = {"max_memory": values.nbytes}
    for chunks in (None, {}):
        ds = xr.open_dataset(tmp_path / "a.nc", engine=RefShardBackend, storage_options=options, chunks=chunks)
        np.testing.assert_array_equal(ds["a"].values, values)


@pytest.mark.parametrize(("is_main", "most"), [(True, 2), (False, 1)])
def test_max_memory_bounds_local_chunks_decoded_together(
    large_file: Path, monkeypatch: pytest.MonkeyPatch, is_main: bool, most: int
) -> None:
    monkeypatch.setattr(direct_array, "WORKERS", 64)
    counts: list[int] = []
    take_chunks = Immediate.take_chunks

    def note_count(self: Immediate, jobs: Any) -> Any:
        counts.append(len(jobs))
        return take_chunks(self, jobs)

    monkeypatch.setattr(Immediate, "take_chunks", note_count)
    options = {"max_memory": 8 << 20, "skip_instance_cache": True}
    array = xr.open_dataset(large_file, engine=RefShardBackend, storage_options=options)["a"]
    if not is_main:
        thread = threading.Thread(target=array.load)
        thread.start()
        thread.join()
    np.testing.assert_array_equal(array.values, LARGE)
    assert max(counts) == most  # dask's threads decode one chunk after the other


def test_loop_over_uncompressed_chunks_reads_them_whole(http_server: RangeServer) -> None:
    array, values = open_uncompressed(http_server)
    for row in range(0, 3072, 64):
        assert (array[row].values == values[row]).all()
    assert http_server.bytes_sent <= values.nbytes + 4096
    assert len(http_server.requests("/rows.bin")) <= 3 * 4 + 1  # a chunk of 4 MiB takes four requests


@given(st.data())
def test_random_selections_equal_those_of_numpy(
    cube: tuple[xr.Variable, np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    variable, values = cube
    ascending = [st.slices(size).filter(lambda part: (part.step or 1) > 0) for size in values.shape]
    key = tuple(
        data.draw(st.integers(-size, size - 1) | part) for size, part in zip(values.shape, ascending, strict=True)
    )
    np.testing.assert_array_equal(variable[key].values, values[key])


@pytest.mark.parametrize("task", [1, 4])
def test_dask_tasks_are_read_ahead(http_server: RangeServer, task: int) -> None:
    """dask's threads take tasks in the order of their numbers as texts: 99, 98, ..., 90, 9, 89."""
    chunked = Chunked(http_server)
    ds = xr.open_dataset(
        chunked.refs() | NAMED,
        engine=RefShardBackend,
        mask_and_scale=False,
        chunks={"x": task, "y": CHUNK},
    )
    values = ds["a"].compute().values
    np.testing.assert_array_equal(values[:, 0], np.arange(256) % 251)
    assert len(chunked.ranges) < 0.45 * 256 / task
    assert chunked.fetched <= 1.05 * 256


def test_random_tasks_fetch_only_their_chunks(http_server: RangeServer) -> None:
    chunked = Chunked(http_server, 8192)  # of more windows than twice the requests
    ds = xr.open_dataset(
        chunked.refs() | NAMED,
        engine=RefShardBackend,
        mask_and_scale=False,
    )
    starts = np.random.default_rng(2).choice(1024, 8, replace=False) * 4
    for start in starts.tolist():
        np.testing.assert_array_equal(ds["a"][start : start + 4, 0].values, np.arange(start, start + 4) % 251)
    assert chunked.fetched == 32


def test_error_names_failing_chunk_and_others_are_not_logged(
    http_server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    chunked = Chunked(http_server)
    refs = chunked.refs() | {f"a/{number}.0": [http_server.url + "/gone", 0, CHUNK] for number in (1, 2)}
    ds = xr.open_dataset(refs | NAMED, engine=RefShardBackend, mask_and_scale=False, storage_options={"retries": 0})
    with pytest.raises(ReferenceNotReachable, match="'a/1.0'.*gone"):
        ds["a"][:4].load()
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_announced_chunks_are_read_without_a_request(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    fs = RefShardFileSystem(chunked.refs(), skip_instance_cache=True)
    keys = chunked.keys(range(8))
    fs.source.wait(fs._prefetch, keys)  # on the loop that reads
    before = len(chunked.ranges)
    read = fs.source.read_chunks(keys, {})
    assert list(read) == [chunked.chunk(number) for number in range(8)]
    assert len(chunked.ranges) == before
    fs.cat_file("a/0.0")  # each announcement is used up
    assert len(chunked.ranges) == before + 1


def steps(server: RangeServer) -> tuple[dict[str, Any], bytes]:
    """Return references of an array of 20 steps, four of which are in a chunk, and its bytes."""
    values = bytes(range(200)) * 10
    url = server.put("/steps.bin", values)
    meta = {"zarr_format": 2, "shape": [20, 100], "chunks": [4, 100], "dtype": "|u1", "order": "C", "fill_value": 0}
    chunks = {f"a/{number}.0": [url, number * 400, 400] for number in range(5)}
    return {
        ".zgroup": GROUP,
        "a/.zarray": json.dumps({**meta, "filters": None, "compressor": None}),
        **NAMED,
        **chunks,
    }, values


def get_filesystem(ds: xr.Dataset) -> RefShardFileSystem:
    array: Any = ds["a"].variable._data
    while not isinstance(array, DirectArray):
        array = array.array
    return array._fs


def test_loop_over_steps_fetches_each_chunk_once(http_server: RangeServer) -> None:
    refs, values = steps(http_server)
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    for step in range(20):
        assert ds["a"][step].values.tobytes() == values[step * 100 : step * 100 + 100]
    assert http_server.bytes_sent == len(values)


def test_loop_over_steps_fetches_a_large_chunk_once(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection of large chunks is read on an event loop, which decodes chunks as they arrive."""
    monkeypatch.setattr(direct_array, "LARGE", 0)
    values = np.arange(60_000, dtype="<i4").reshape(2, 10, 3000)
    data = [zlib.compress(chunk.tobytes()) for chunk in values]
    url = http_server.put("data", b"".join(data))
    array = {"shape": [20, 3000], "chunks": [10, 3000], "dtype": "<i4", "compressor": {"id": "zlib"}}
    rest = {"zarr_format": 2, "fill_value": 0, "filters": None, "order": "C"}
    refs: Any = {".zgroup": GROUP, **NAMED, "a/.zarray": json.dumps(array | rest)}
    refs |= {"a/0.0": [url, 0, len(data[0])], "a/1.0": [url, len(data[0]), len(data[1])]}
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    for step in range(20):
        np.testing.assert_array_equal(ds["a"][step], values[step // 10, step % 10])
    np.testing.assert_array_equal(ds["a"][8:12], values.reshape(20, 3000)[8:12])
    assert http_server.bytes_sent == sum(map(len, data))


@pytest.mark.parametrize("large", [0, 1 << 24])
def test_chunk_that_was_read_takes_no_request_again(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(direct_array, "LARGE", large)
    refs, values = steps(http_server)
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    for _ in range(2):
        read = ds["a"][4:8].values
        assert read.tobytes() == values[400:800]
        read[:] = 0  # changes no later result
    assert http_server.bytes_sent == 400


@pytest.mark.parametrize("kinds", [["zarr", "zarr"], ["nc", "zarr"], ["zarr", "nc"]])
def test_cube_notices_a_replaced_chunk_of_a_store(
    http_server: RangeServer, tmp_path: Path, kinds: Sequence[str]
) -> None:
    http_server.directory = tmp_path
    urls = []
    for number, kind in enumerate(kinds):
        encoding = {"chunks" if kind == "zarr" else "chunksizes": (2,)}
        values = np.full(4, number + 1, "i4")
        ds = xr.Dataset({"a": ("x", values, {}, encoding)}, {"x": range(4 * number, 4 * number + 4)})
        name = f"{number}.{kind}"
        if kind == "zarr":
            ds.to_zarr(tmp_path / name, zarr_format=2, consolidated=True)
        else:
            ds.to_netcdf(tmp_path / name, engine="h5netcdf")
        urls.append(f"{http_server.url}/{name}")
    cube = refshard_fs.concat(urls, "x", lazy=True)
    store = kinds.index("zarr")
    with xr.open_dataset(cube, engine=RefShardBackend, storage_options={"allow": [http_server.url]}) as ds:
        for part in (slice(4 * store, 4 * store + 2), 4 * store):  # a whole chunk, and a part of it
            assert np.all(ds["a"][part].values == store + 1)
        zarr.open_group(tmp_path / f"{store}.zarr", mode="a")["a"][:2] = 99
        for part in (slice(4 * store, 4 * store + 2), 4 * store):
            with pytest.raises(TargetChanged):
                ds["a"][part].load()


def test_chunk_of_a_writable_store_is_not_remembered(tmp_path: Path) -> None:
    array = zarr.open_group(tmp_path, mode="w", zarr_format=2).create_array(
        "a", shape=(6,), chunks=(4,), dtype="i4", attributes={"_ARRAY_DIMENSIONS": ["x"]}
    )
    array[:] = np.arange(6)
    ds = xr.open_dataset(tmp_path, engine=RefShardBackend, mask_and_scale=False, consolidated=False)
    assert ds["a"][4:5].values.tolist() == [4]
    array.resize((8,))
    array[4:] = [14, 15, 16, 17]
    with pytest.raises(TargetChanged):
        ds["a"][4:5].load()
    get_filesystem(ds).invalidate_cache()
    again = xr.open_dataset(tmp_path, engine=RefShardBackend, mask_and_scale=False, consolidated=False)
    assert again["a"][4:8].values.tolist() == [14, 15, 16, 17]


def test_write_replaces_a_remembered_chunk(http_server: RangeServer) -> None:
    refs, values = steps(http_server)
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    assert ds["a"][1].values.tobytes() == values[100:200]
    fs = get_filesystem(ds)
    fs.source.ensure_transaction().put("a/0.0", Inline(bytes(400)))
    assert ds["a"][1].values.tobytes() == bytes(100)


def test_invalidation_forgets_remembered_chunks(http_server: RangeServer) -> None:
    refs, values = steps(http_server)
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    ds["a"][1].load()
    http_server.put("/steps.bin", bytes(len(values)))
    get_filesystem(ds).invalidate_cache()
    ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
    assert ds["a"][1].values.tobytes() == bytes(100)


def test_pipeline_is_set_before_zarr_reads_an_array(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """zarr reads chunks that numcodecs cannot decode; its error names the file."""
    pipeline: Any = tuning._import_pipeline()
    monkeypatch.setattr(tuning, "_hooked", False)
    url = http_server.put("/damaged.bin", b"no zlib stream")
    meta = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "order": "C", "fill_value": 0}
    document = json.dumps({**meta, "filters": None, "compressor": {"id": "zlib", "level": 1}})
    refs = {".zgroup": GROUP, "a/.zarray": document, "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}', "a/0": [url, 0, 14]}
    with zarr.config.set({pipeline.SETTING: pipeline._get_default_path()}):
        ds = xr.open_dataset(refs, engine=RefShardBackend, mask_and_scale=False)
        with pytest.raises(zlib.error) as caught:
            ds["a"].load()
        assert pipeline.is_set()
    assert any(url in note for note in caught.value.__notes__)


@pytest.mark.parametrize(("size", "in_pool"), [(1000, False), (40_000, True)])
def test_single_small_chunk_is_decoded_without_a_thread(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, size: int, in_pool: bool
) -> None:
    meta = {"zarr_format": 2, "shape": [size], "chunks": [size], "dtype": "|u1", "order": "C", "fill_value": None,
            "filters": None, "compressor": {"id": "zlib", "level": 1}}  # fmt: skip
    packed = zlib.compress(bytes(size))
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
            "a/0": [http_server.put("/x", packed), 0, len(packed)]}  # fmt: skip
    ds = xr.open_dataset(refs, engine=RefShardBackend, storage_options={"skip_instance_cache": True})
    found: list[bool] = []
    decode = direct_array.ChunkDecoder.decode

    def note(decoder: Any, data: Any) -> Any:
        found.append(threading.current_thread().name.startswith("asyncio_"))  # of the pool
        return decode(decoder, data)

    monkeypatch.setattr(direct_array.ChunkDecoder, "decode", note)
    assert not load(ds)["a"].values.any()
    assert found == [in_pool]


def test_loading_an_array_of_2_62_elements_is_an_error(tmp_path: Path) -> None:
    """All chunks used to be listed first, which took hours."""
    meta = {"zarr_format": 2, "shape": [1 << 62], "chunks": [2], "dtype": "<f8", "order": "C", "fill_value": 0}
    refs = {".zgroup": {"zarr_format": 2}, "a/.zarray": {**meta, "compressor": None, "filters": None}}
    refs["a/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"]}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    with xr.open_dataset(tmp_path / "refs.json", engine="refshard") as ds:
        with pytest.raises((ValueError, MemoryError)):
            _ = ds["a"].values
        assert ds["a"][-1].isnull()


@pytest.mark.parametrize(
    "select",
    [
        lambda a: a.transpose("c", "a", "b")[1:4, ::2, 3:8],
        lambda a: a.transpose("b", "c", "a")[::-1, 2, [4, 0, 4]],
        lambda a: a.transpose("c", "b", "a")[:, 1:][1:, 2:5],
        lambda a: a.transpose("b", "a", "c")[3:4],
    ],
)
def test_part_of_a_transposed_array_is_read_without_zarr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: Callable[[Any], Any]
) -> None:
    """xarray selects a million points for 500 x 500 x 4 elements, which zarr places one by one."""
    values = np.arange(7.0 * 9 * 5).reshape(7, 9, 5)
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"a": 7, "b": 9, "c": 5}
        file.create_variable("v", ("a", "b", "c"), "f8", chunks=(3, 4, 2), compression="gzip")[:] = values
    monkeypatch.setattr(DirectArray, "_open_by_zarr", lambda self: pytest.fail("zarr is used"))
    with xr.open_dataset(tmp_path / "a.nc", engine="refshard") as ds:
        xr.testing.assert_equal(select(ds["v"]).variable, select(xr.DataArray(values, dims=("a", "b", "c"))).variable)


@pytest.fixture
def no_zarr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each selection that zarr would read an error."""

    def refuse(self: ZarrArrayWrapper, key: Any) -> Any:
        raise AssertionError(f"zarr reads {key}")

    monkeypatch.setattr(ZarrArrayWrapper, "__getitem__", refuse)


def open_cube(folder: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Write an array of three dimensions; return it as it is in the file, and in memory."""
    values = np.arange(9 * 10 * 11).reshape(9, 10, 11)
    dims = {"attributes": {"_ARRAY_DIMENSIONS": ["t", "y", "x"]}}
    group = zarr.open_group(folder, mode="w", zarr_format=2)
    group.create_array("a", shape=values.shape, chunks=(2, 3, 4), dtype=values.dtype, **dims)[...] = values
    lazy = xr.open_dataset(folder, engine=RefShardBackend, consolidated=False, mask_and_scale=False)["a"]
    return lazy, xr.DataArray(values, dims=["t", "y", "x"])


@pytest.mark.usefixtures("no_zarr")
def test_points_are_read_without_zarr(tmp_path: Path) -> None:
    lazy, loaded = open_cube(tmp_path)
    rng = np.random.default_rng(0)
    for shape in [(1,), (40,), (5, 6), (0,)]:
        names = [f"p{axis}" for axis in range(len(shape))]
        t, y, x = (xr.DataArray(rng.integers(-size, size, shape), dims=names) for size in (9, 10, 11))
        for key in [
            {"t": t, "y": y, "x": x},
            {"y": y, "x": x},
            {"t": t, "x": x, "y": slice(1, 8, 2)},
            {"x": x, "y": 3},
        ]:
            xr.testing.assert_equal(lazy.isel(key).load(), loaded.isel(key))
            xr.testing.assert_equal(
                lazy.transpose("x", "t", "y").isel(key).load(), loaded.transpose("x", "t", "y").isel(key)
            )
    with pytest.raises(IndexError):
        lazy.isel(t=xr.DataArray([0, 9], dims="p"), x=xr.DataArray([0, 1], dims="p")).load()


def test_points_of_a_cube_are_read_asynchronously(tmp_path: Path) -> None:
    lazy, loaded = open_cube(tmp_path)
    points = {name: xr.DataArray([7, 0, 3], dims="p") for name in "tx"}
    assert (load(lazy.isel(points)).values == loaded.isel(points).values).all()
    part = {"t": slice(1, 4)}
    assert (load(lazy.transpose("x", "y", "t").isel(part)).values == loaded.transpose("x", "y", "t").isel(part)).all()


@pytest.mark.parametrize("dim", ["time", "y"])
def test_integer_index_of_a_converted_array_drops_the_axis(tmp_path: Path, dim: str) -> None:
    for day, scale in enumerate((0.5, 0.25)):
        air = xr.DataArray(np.arange(6.0).reshape(1, 2, 3) + day, dims=("time", "y", "x"))
        encoding = {"air": {"dtype": "i2", "scale_factor": scale, "_FillValue": -1, "chunksizes": (1, 1, 3)}}
        ds = xr.Dataset({"air": air}, {"time": [day]})
        ds.to_netcdf(tmp_path / f"{day}.nc", engine="h5netcdf", encoding=encoding)
    cube = refshard_fs.open(f"{tmp_path}/*.nc")
    expected = xr.open_dataset(cube, engine="refshard").load().isel({dim: 1})
    shown = xr.open_dataset(cube.select(isel={dim: 1}), engine="refshard")
    xr.testing.assert_equal(shown["air"].isel(x=slice(1, 3)).load(), expected["air"].isel(x=slice(1, 3)))
    xr.testing.assert_equal(shown["air"].load(), expected["air"])

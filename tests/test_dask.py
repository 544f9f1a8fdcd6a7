"""Reads by dask: threads, processes, and a cluster whose workers open the set themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ReferenceNotReachable
from refshard_fs.references import binary as pickled
from refshard_fs.source import recognition as catalog
from tests.support.reference_sets import VALUES, make_reference_set
from tests.support.set_files import read_days, write_day_files
from tests.support.threads import wait_for_writes

xr = pytest.importorskip("xarray")
dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")
ZARR_2 = pytest.importorskip("zarr").__version__.startswith("2.")

pytestmark = pytest.mark.skipif(ZARR_2, reason="xarray opens URLs of a filesystem with zarr 3")


@pytest.fixture
def source(http_server: Any, tmp_path: Path) -> dict[str, Any]:
    refs, data = make_reference_set(http_server.put("/x.bin", b""))
    http_server.put("/x.bin", data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return {"path": str(tmp_path / "refs.json"), "dict": refs}


@pytest.fixture(scope="module")
def cluster(dask_cluster: Any) -> Iterator[Any]:
    with distributed.Client(dask_cluster) as client:
        yield client


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    """Two fresh processes for all tests; dask would start two for each test."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


def open_fs(fo: Any, how: str) -> Any:
    if how == "zarr":
        return xr.open_zarr("refshard://", storage_options={"fo": fo}, consolidated=False, chunks={})
    from refshard_fs.xarray_backend import RefShardBackend

    return xr.open_dataset(fo, engine=RefShardBackend, chunks={}, task_size=0)


@pytest.mark.parametrize("held", ["path", "dict"])
@pytest.mark.parametrize("how", ["zarr", "engine"])
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_local_schedulers_read_the_values(
    source: Any, held: str, how: str, scheduler: str, request: pytest.FixtureRequest
) -> None:
    ds = open_fs(source[held], how)
    assert ds.a.chunks == ((2, 2, 2, 2), (3, 3))
    workers = {"pool": request.getfixturevalue("processes")} if scheduler == "processes" else {"num_workers": 2}
    with dask.config.set(workers):
        np.testing.assert_array_equal(ds.a.data.compute(scheduler=scheduler), VALUES)


@pytest.mark.parametrize("held", ["path", "dict"])
@pytest.mark.parametrize("how", ["zarr", "engine"])
def test_cluster_reads_the_values(source: Any, held: str, how: str, cluster: Any) -> None:
    ds = open_fs(source[held], how)
    np.testing.assert_array_equal(ds.a.values, VALUES)
    assert int((ds.a * 2).sum()) == 2 * VALUES.sum()


def test_workers_use_the_disk_cache(source: Any, tmp_path: Path, cluster: Any, http_server: Any) -> None:
    options = {"fo": source["dict"], "cache_dir": str(tmp_path / "kept")}
    ds = xr.open_zarr("refshard://", storage_options=options, consolidated=False, chunks={})
    np.testing.assert_array_equal(ds.a.values, VALUES)
    cluster.run(wait_for_writes)
    options["max_gap"] = 1  # other options, so that the filesystem does not share the first one's memory
    again = xr.open_zarr("refshard://", storage_options=options, consolidated=False, chunks={})
    http_server.clear()
    np.testing.assert_array_equal(again.a.values, VALUES)
    assert {request.method for request in http_server.requests()} == {"HEAD"}
    assert len(http_server.requests()) <= 2  # one from each worker


def test_error_of_a_worker_reaches_the_user(source: Any, cluster: Any, http_server: Any) -> None:
    ds = open_fs(source["dict"], "zarr")
    http_server.fault(403, "/x.bin")
    with pytest.raises(ReferenceNotReachable, match="a/"):
        ds.a.values  # noqa: B018  # this access is the test


def test_threads_fetch_each_chunk_once(http_server: Any) -> None:
    count, size = 96, 20_000  # bytes of a chunk: more than the gaps over which ranges are merged
    values = np.arange(1, count * size // 8 + 1)
    url = http_server.put("/x.bin", values.astype("<i8").tobytes())
    meta = {"zarr_format": 2, "shape": [values.size], "chunks": [size // 8], "dtype": "<i8", "order": "C"}
    refs: dict[str, Any] = {f"x/{i}": [url, i * size, size] for i in range(count)}
    refs[".zgroup"] = '{"zarr_format": 2}'
    refs["x/.zarray"] = json.dumps({**meta, "fill_value": 0, "filters": None, "compressor": None})
    refs["x/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["i"]})
    for threads in (1, 2, 8):
        http_server.clear()
        data = open_fs(refs, "engine").x.data
        np.testing.assert_array_equal(data.compute(scheduler="threads", num_workers=threads), values)
        assert http_server.bytes_sent == count * size


def _start_counting(dask_worker: Any) -> None:
    """Make the worker count how often it unpacks references, and opens a source."""
    import zarr  # noqa: F401  # with zarr imported, the first filesystem tries zarr's pipeline on another source

    from refshard_fs import RefShardFileSystem

    RefShardFileSystem({}, skip_instance_cache=True)
    dask_worker.counts = {"unpacked": 0, "opened": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            dask_worker.counts[name] += 1
            return function(*args, **kwargs)

        return call

    dask_worker.originals = [(pickled, "unpack_compressed"), (catalog, "open_source"), (catalog, "open_references")]
    dask_worker.originals = [(module, name, getattr(module, name)) for module, name in dask_worker.originals]
    for module, name, function in dask_worker.originals:
        setattr(module, name, counted("unpacked" if module is pickled else "opened", function))


def _stop_counting(dask_worker: Any) -> dict[str, int]:
    """Return the counts of the worker, which stops counting."""
    for module, name, function in dask_worker.originals:
        setattr(module, name, function)
    counts: dict[str, int] = dask_worker.counts
    return counts


@pytest.mark.parametrize("held", ["path", "dict"])
def test_set_is_packed_once_and_opened_once_a_worker(
    held: str, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 120, 64
    values = np.arange(1, count * size // 8 + 1)  # 0 is the fill value
    (tmp_path / "x.bin").write_bytes(values.astype("<i8").tobytes())
    meta = {"zarr_format": 2, "shape": [values.size], "chunks": [size // 8], "dtype": "<i8", "order": "C"}
    refs: dict[str, Any] = {f"x/{i}": [f"file://{tmp_path}/x.bin", i * size, size] for i in range(count)}
    refs[".zgroup"] = '{"zarr_format": 2}'
    refs["x/.zarray"] = json.dumps({**meta, "fill_value": 0, "filters": None, "compressor": None})
    refs["x/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["i"]})
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    packed: list[bytes] = []

    def pack_compressed(refs: Any, original: Any = pickled.pack_compressed) -> bytes:
        packed.append(original(refs))
        return packed[-1]

    monkeypatch.setattr(pickled, "pack_compressed", pack_compressed)
    data = open_fs(refs if held == "dict" else str(tmp_path / "refs.json"), "engine").x.data
    assert data.npartitions == count
    graph = cloudpickle.dumps(data.__dask_graph__())
    cluster.run(_start_counting)
    try:
        assert int(data.sum().compute()) == values.sum()
    finally:
        counts = cluster.run(_stop_counting).values()
    assert len(packed) == (held == "dict")
    assert all(graph.count(one) == 1 for one in packed)
    assert 1 in {one["opened"] for one in counts} <= {0, 1}
    assert {one["unpacked"] for one in counts} <= ({0, 1} if held == "dict" else {0})


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_workers_scan_the_files_of_a_cube(cluster: Any, processes: Executor, kind: str, tmp_path: Path) -> None:
    files = write_day_files(tmp_path, "references", 70)
    expected = refshard_fs.concat(files, "time", lazy=True).content
    executor = processes if kind == "processes" else cluster.get_executor()
    assert refshard_fs.concat(files, "time", lazy=True, executor=executor).content == expected
    Path(files[3]).write_bytes(b"no file")
    with pytest.warns(UserWarning, match=r"set 3 is left out: .*day3\.json"):
        made = refshard_fs.concat(files, "time", executor=executor, on_error="skip")
    assert len(read_days(made)) == 69


def prefetch_and_read(fs: Any, rows: int) -> tuple[int, bytes]:
    """Prefetch two rows of chunks in a worker, and read them; return the id of its process and the bytes."""
    fs.prefetch("t", slice(rows, rows + 2))
    keys = [f"t/{row}.{column}" for row in range(rows, rows + 2) for column in range(2)]
    return os.getpid(), b"".join(fs.cat_file(key) for key in keys)


def test_prefetch_works_in_workers_and_in_the_client(http_server: Any, cluster: Any) -> None:
    """The client keeps its prefetched chunks. Each worker fetches its part in few requests."""
    data = np.arange(8 * 2 * 1000, dtype="<i4").tobytes()
    url = http_server.put("/prefetched.bin", data)
    meta = {"zarr_format": 2, "shape": [8, 2000], "chunks": [1, 1000], "dtype": "<i4", "order": "C", "fill_value": None}
    refs: dict[str, Any] = {".zgroup": {"zarr_format": 2}, "t/.zarray": {**meta, "filters": None, "compressor": None}}
    refs |= {f"t/{n // 2}.{n % 2}": [url, n * 4000, 4000] for n in range(16)}
    fs = refshard_fs.RefShardFileSystem(refs, skip_instance_cache=True)
    fs.prefetch("t")
    http_server.clear()
    tasks = [cluster.submit(prefetch_and_read, fs, rows, pure=False) for rows in range(0, 8, 2)]
    found = cluster.gather(tasks)
    assert b"".join(part for _, part in found) == data
    assert os.getpid() not in {process for process, _ in found}
    assert 0 < len(http_server.requests()) <= 8, "a request or two for each task"
    http_server.clear()
    assert fs.cat_file("t/7.1") == data[-4000:]
    assert not http_server.requests(), "the client still holds its own"

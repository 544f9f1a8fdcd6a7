"""The fault matrix, fault × filesystem × operation: the right bytes, or an error that is not a missing chunk.

Each cell of the matrix is one test. pytest's report ends with the counts of results, with ``-v`` with each result.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.errors import ReferenceNotReachable, TargetChanged
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.fault_matrix import MATRIX, Matrix

pytestmark = pytest.mark.case(id="P31")

zarr = pytest.importorskip("zarr")

CHUNKS, EACH = 6, 250
VALUES = np.arange(CHUNKS * EACH, dtype="<f8")
DATA = VALUES.tobytes()
SIZE = EACH * 8
KEYS = [f"a/{i}" for i in range(CHUNKS)]

# Options by which all chunks are merged into one request, or each chunk has a request of its own.
LIMITS: dict[str, dict[str, Any]] = {"merged": {}, "single": {"max_gap": -1, "max_block": 1}}


def make_references(url: str) -> dict[str, Any]:
    array = {
        "zarr_format": 2,
        "shape": [CHUNKS * EACH],
        "chunks": [EACH],
        "dtype": "<f8",
        "compressor": None,
        "filters": None,
        "order": "C",
        "fill_value": "NaN",
    }
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2}), "a/.zarray": json.dumps(array)}
    return refs | {key: [url, i * SIZE, SIZE] for i, key in enumerate(KEYS)}


def open_fs(url: str, limits: str = "merged", **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(make_references(url), **{"retries": 0, "timeout": 20, **LIMITS[limits], **options})


def _cat_file(fs: RefShardFileSystem) -> None:
    for i, key in enumerate(KEYS):
        assert fs.cat_file(key) == DATA[i * SIZE : (i + 1) * SIZE]
        assert fs.cat_file(key, 8, 80) == DATA[i * SIZE :][8:80]


def _cat_ranges(fs: RefShardFileSystem) -> None:
    out = fs.cat_ranges(KEYS, [0] * CHUNKS, [800] * CHUNKS, on_error="return")
    for i, found in enumerate(out):
        if isinstance(found, BaseException):
            raise found
        assert found == DATA[i * SIZE :][:800]


def _cat(fs: RefShardFileSystem) -> None:
    assert fs.cat(KEYS) == {key: DATA[i * SIZE : (i + 1) * SIZE] for i, key in enumerate(KEYS)}


def _cat_omitting(fs: RefShardFileSystem) -> None:
    """Assert that no key is omitted, since none is missing."""
    assert fs.cat(KEYS, on_error="omit") == {key: DATA[i * SIZE : (i + 1) * SIZE] for i, key in enumerate(KEYS)}


def _open(fs: RefShardFileSystem) -> None:
    for i, key in enumerate(KEYS):
        with fs.open(key) as file:
            file.seek(100)
            assert file.read(300) == DATA[i * SIZE :][100:400]


def _mapper(fs: RefShardFileSystem) -> None:
    found = fs.get_mapper("").getitems(KEYS, on_error="omit")
    assert found == {key: DATA[i * SIZE : (i + 1) * SIZE] for i, key in enumerate(KEYS)}


def _zarr(fs: RefShardFileSystem) -> None:
    """Assert that no chunk is NaN, with which zarr fills missing chunks."""
    if zarr.__version__.startswith("2."):
        array = zarr.open(fs.get_mapper(""), mode="r")["a"]
    else:
        array = zarr.open_group(zarr.storage.FsspecStore(_asynchronous(fs), read_only=True), mode="r", zarr_format=2)[
            "a"
        ]
    np.testing.assert_array_equal(array[:], VALUES)


def _asynchronous(fs: RefShardFileSystem) -> RefShardFileSystem:
    return RefShardFileSystem(*fs.storage_args, **{**fs.storage_options, "asynchronous": True})


def _get(fs: RefShardFileSystem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fs.get(KEYS, [f"{folder}/{i}" for i in range(CHUNKS)])
        for i in range(CHUNKS):
            assert Path(folder, str(i)).read_bytes() == DATA[i * SIZE : (i + 1) * SIZE]


OPERATIONS = [_cat_file, _cat_ranges, _cat, _cat_omitting, _open, _get, _mapper, _zarr]
MAIN = [_cat_ranges, _zarr]  # many chunks at once


class Outcomes:
    """Stores the results of one filesystem in the matrix of the whole run."""

    def __init__(self, filesystem: str, cells: Matrix) -> None:
        self._filesystem = filesystem
        self._cells = cells

    def __setitem__(self, cell: tuple[str, str], outcome: str) -> None:
        fault, operation = cell
        self._cells[self._filesystem, fault, operation] = outcome


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    return Outcomes("HTTP", request.config.stash[MATRIX])


@pytest.fixture
def url(http_server: RangeServer) -> str:
    return http_server.put("/x.bin", DATA)


def judge(operation: Callable[[Any], None], fs: RefShardFileSystem) -> str:
    """Return "right" if ``operation`` returns, which has assertions of its own; else check its error, and name it."""
    try:
        operation(fs)
    except ReferenceNotReachable as e:
        error = e
    else:
        return "right"
    assert not isinstance(error, (OSError, KeyError))
    assert error.key in KEYS
    assert error.__cause__ is not None or isinstance(error, TargetChanged)
    assert "not satisfiable" not in str(error)
    return type(error).__name__.replace("ReferenceNotReachable", "error")


# Faults of a server in every answer, and the results without retries.
ALWAYS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "body cut short": ("short_body", {}, "error"),
    "body cut short, no length": ("unframed_body", {}, "error"),
    "hung up in mid-body": ("hang_up", {}, "error"),
    "reset in mid-body": ("reset", {}, "error"),
    "no answer at all": ("dropped", {}, "error"),
    "longer than asked": ("long_body", {}, "error"),
    "another range": ("wrong_content_range", {}, "error"),
    "a range of unknown place": ("missing_content_range", {}, "error"),
    "200 for a range": ("ignored_range", {}, "right"),
    "chunked": ("chunked", {}, "right"),
    "unknown total": ("unknown_total", {}, "right"),
    "compressed": ("gzip", {}, "error"),
    "compressed store": ("gzip_stored", {}, "error"),
    "slow drip": ("drip", {"pause": 0.0005, "piece": 512}, "right"),
    "a circle of redirects": ("redirect", {"to": "/x.bin"}, "error"),
    "401": (401, {}, "error"),
    "403 expired credentials": (403, {}, "error"),
    "404": (404, {}, "error"),
    "410": (410, {}, "error"),
    "416": (416, {}, "error"),
    "429": (429, {}, "error"),
    "500": (500, {}, "error"),
    "503": (503, {}, "error"),
}


@pytest.mark.parametrize(
    ("operation", "limits"), [*((op, "merged") for op in OPERATIONS), *((op, "single") for op in MAIN)]
)
@pytest.mark.parametrize("fault", ALWAYS)
def test_http_fault_is_an_error_or_harmless(
    http_server: RangeServer, url: str, outcomes: Outcomes, fault: str, operation: Callable[[Any], None], limits: str
) -> None:
    kind, options, expected = ALWAYS[fault]
    http_server.fault(kind, **options)
    outcome = judge(operation, open_fs(url, limits))
    outcomes[fault, operation.__name__.strip("_")] = outcome
    assert outcome == expected


ONCE: dict[str, tuple[Any, dict[str, Any]]] = {
    "500 then right": (500, {}),
    "503 then right": (503, {}),
    "429 with Retry-After": (429, {"retry_after": 0}),
    "reset, then right": ("reset", {}),
    "hung up, then right": ("hang_up", {}),
    "dropped, then right": ("dropped", {}),
    "short, then right": ("short_body", {}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", ONCE)
def test_temporary_http_fault_is_retried(
    http_server: RangeServer, url: str, outcomes: Outcomes, fault: str, operation: Callable[[Any], None]
) -> None:
    kind, options = ONCE[fault]
    http_server.fault(kind, times=2, **options)
    outcome = judge(operation, open_fs(url, retries=4))
    outcomes[fault, operation.__name__.strip("_")] = outcome
    assert outcome == "right"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_replaced_remote_file_is_target_changed(
    http_server: RangeServer, url: str, outcomes: Outcomes, operation: Callable[[Any], None]
) -> None:
    http_server.fault("replaced", after=1, times=1)
    outcome = judge(operation, open_fs(url, "single"))
    outcomes["replaced between reads", operation.__name__.strip("_")] = outcome
    assert outcome == "TargetChanged"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ["silent", "drip"])
def test_endless_answer_times_out(
    http_server: RangeServer, url: str, outcomes: Outcomes, kind: Any, operation: Callable[[Any], None]
) -> None:
    http_server.fault(kind, pause=0.5)
    outcome = judge(operation, open_fs(url, timeout=0.3, retries=3))
    outcomes[f"{kind} for ever", operation.__name__.strip("_")] = outcome
    assert outcome == "error"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unreachable_server_is_an_error(outcomes: Outcomes, operation: Callable[[Any], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = judge(operation, open_fs(f"http://127.0.0.1:{port}/x.bin"))
    outcomes["connection refused", operation.__name__.strip("_")] = outcome
    assert outcome == "error"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unresolved_host_name_is_an_error(
    outcomes: Outcomes, operation: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(self: Any, host: str, *args: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    outcome = judge(operation, open_fs("http://nowhere.invalid/x.bin"))
    outcomes["name not resolved", operation.__name__.strip("_")] = outcome
    assert outcome == "error"


# The faults that a proxy can make.
THROUGH = {fault: case for fault, case in ALWAYS.items() if case[0] not in CountingProxy.cannot | {"redirect"}}


@pytest.fixture(scope="module")
def stored(s3_server: SeaweedServer) -> str:
    s3_server.create_bucket("faults")
    s3_server.put("faults/x.bin", DATA)
    return "s3://faults/x.bin"


@pytest.fixture
def s3(stored: str, s3_proxy: CountingProxy) -> Callable[..., Any]:
    """A function that opens a filesystem with options; its target is in an object store behind the proxy."""
    options = {"key": "ak", "secret": SeaweedServer.secret, "endpoint_url": s3_proxy.url}
    patient = {"timeout": 20}
    return lambda **more: open_fs(stored, remote_protocol="s3", remote_options=options, **patient, **more)


@pytest.fixture
def of_s3(request: pytest.FixtureRequest) -> Outcomes:
    return Outcomes("S3", request.config.stash[MATRIX])


@pytest.mark.parametrize("operation", MAIN)
@pytest.mark.parametrize("fault", THROUGH)
def test_object_store_fault_is_an_error_or_harmless(
    s3: Any, s3_proxy: CountingProxy, of_s3: Outcomes, fault: str, operation: Callable[[Any], None]
) -> None:
    kind, options, expected = THROUGH[fault]
    s3_proxy.fault(kind, **options)
    outcome = judge(operation, s3())
    of_s3[fault, operation.__name__.strip("_")] = outcome
    assert outcome == expected


@pytest.mark.parametrize("operation", [_cat_ranges, _zarr])
@pytest.mark.parametrize("fault", ONCE)
def test_temporary_object_store_fault_is_retried(
    s3: Any, s3_proxy: CountingProxy, of_s3: Outcomes, fault: str, operation: Callable[[Any], None]
) -> None:
    kind, options = ONCE[fault]
    s3_proxy.fault(kind, times=2, **options)
    outcome = judge(operation, s3(retries=4))
    of_s3[fault, operation.__name__.strip("_")] = outcome
    assert outcome == "right"


FILES = ("local", "memory")


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """URL, filesystem and path of a file with the data."""
    fs = fsspec.filesystem(request.param)
    path = f"{tmp_path}/x.bin" if request.param == "local" else f"/faults-{tmp_path.name}/x.bin"
    fs.pipe_file(path, DATA)
    yield ("file://" if request.param == "local" else "memory:/") + path, fs, path
    if fs.exists(path):
        fs.rm(path, recursive=True)


def _gone(fs: Any, path: str) -> None:
    fs.rm(path)


def _cut_short(fs: Any, path: str) -> None:
    fs.pipe_file(path, DATA[: len(DATA) // 2 + 7])


def _emptied(fs: Any, path: str) -> None:
    fs.pipe_file(path, b"")


def _a_directory_now(fs: Any, path: str) -> None:
    fs.rm(path)
    fs.mkdirs(path)
    fs.pipe_file(f"{path}/y", DATA)


def _longer(fs: Any, path: str) -> None:
    fs.pipe_file(path, DATA + b"more")


def _not_readable(fs: Any, path: str) -> None:
    if fs.protocol == "memory" or os.getuid() == 0:
        pytest.skip("nothing is forbidden here")
    os.chmod(path, 0)


HARM = {
    _gone: "error", _cut_short: "error", _emptied: "error", _a_directory_now: "error", _longer: "right",
    _not_readable: "error",
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("harm", HARM)
def test_local_file_fault_is_an_error_or_harmless(
    file: Any, harm: Callable[[Any, str], None], operation: Callable[[Any], None], request: pytest.FixtureRequest
) -> None:
    url, fs, path = file
    harm(fs, path)
    outcome = judge(operation, open_fs(url))
    name = harm.__name__.strip("_").replace("_", " ")
    outcomes = Outcomes("memory" if url.startswith("memory") else "local", request.config.stash[MATRIX])
    outcomes[name, operation.__name__.strip("_")] = outcome
    assert outcome == HARM[harm]


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o is not _zarr])  # it opens a new filesystem
def test_replaced_local_file_is_target_changed(
    file: Any, operation: Callable[[Any], None], request: pytest.FixtureRequest
) -> None:
    url, fs, path = file
    reader = open_fs(url)
    reader.cat_file(KEYS[0])
    fs.rm(path)
    fs.pipe_file(path, DATA[::-1])
    if not url.startswith("memory"):
        os.utime(path, (1, 1))
    outcome = judge(operation, reader)
    outcomes = Outcomes("memory" if url.startswith("memory") else "local", request.config.stash[MATRIX])
    outcomes["replaced between reads", operation.__name__.strip("_")] = outcome
    assert outcome == "TargetChanged"


@pytest.mark.parametrize("kind", ["missing_content_range", "wrong_content_range", "short_body", "long_body", "hang_up"])
def test_open_range_of_an_object_of_unknown_size_is_an_error(http_server: RangeServer, url: str, kind: Any) -> None:
    http_server.fault(kind)

    async def read() -> bytes:
        fs = RefShardFileSystem({"k": [url]}, asynchronous=True, retries=0, skip_instance_cache=True)
        async with asyncio.timeout(20):
            return bytes(await fs._cat_file("k", 8))

    with pytest.raises(ReferenceNotReachable):
        asyncio.run(read())


@pytest.mark.parametrize("window", [(8, -8), (-80, -8)])
def test_window_of_a_chunk_of_unknown_size_is_right(http_server: RangeServer, window: Any) -> None:
    """The server sends no sizes; keys of a hierarchy can be read all the same."""
    for name, text in make_references("").items():
        if isinstance(text, str):
            http_server.put(f"/set/{name}", text.encode())
    http_server.put("/set/a/0", DATA[:SIZE])
    fs = RefShardFileSystem(f"{http_server.url}/set", retries=0, skip_instance_cache=True)
    http_server.fault(405, method="HEAD")
    http_server.fault("unknown_total")
    assert fs.cat_file("a/0", *window) == DATA[:SIZE][slice(*window)]


def test_replaced_file_is_read_after_invalidate_cache(http_server: RangeServer, url: str) -> None:
    fs = open_fs(url)
    _cat(fs)
    http_server.put("/x.bin", DATA[::-1])
    with pytest.raises(TargetChanged, match="invalidate_cache"):
        fs.cat_file(KEYS[0])
    fs.invalidate_cache()
    assert fs.cat_file(KEYS[0]) == DATA[::-1][:SIZE]


def test_retries_are_counted(http_server: RangeServer, url: str) -> None:
    http_server.fault(503, times=2)
    fs = open_fs(url, retries=3)
    fs.cat_file(KEYS[0])
    assert fs.stats()["retries"] == 2


def test_cat_ranges_returns_good_keys_beside_a_failed_key(http_server: RangeServer, url: str) -> None:
    refs = make_references(url) | {"b": [http_server.put("/other", DATA), 0, 8]}
    fs = RefShardFileSystem(refs, retries=0)
    http_server.fault(500, "/other")
    found = fs.cat_ranges(["a/0", "b", "a/1"], [0] * 3, [8] * 3)
    assert (found[0], found[2]) == (DATA[:8], DATA[SIZE:][:8])
    assert isinstance(found[1], ReferenceNotReachable)


def test_error_of_a_failed_source_is_not_a_missing_key(http_server: RangeServer, url: str) -> None:
    source = http_server.put("/refs.json", json.dumps({"version": 1, "refs": make_references(url)}).encode())
    for fault in (403, 416, 500, "short_body", "hang_up"):
        http_server.heal()
        http_server.fault(fault, "/refs.json")  # type: ignore[arg-type]  # a list of both kinds
        http_server.fault(405, "/refs.json", method="HEAD")
        fs = RefShardFileSystem(source, retries=0, skip_instance_cache=True)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # of any kind but those below
            fs.cat_file(KEYS[0])
        assert not isinstance(caught.value, (FileNotFoundError, KeyError))
        assert "not satisfiable" not in str(caught.value)


@pytest.mark.parametrize("reads", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_reads_under_random_faults_are_right_or_an_error(http_server: RangeServer, reads: int) -> None:
    """Also, no read hangs, and no task is left in the loop."""
    data = random.Random(0).randbytes(1 << 20)
    url = http_server.put("/x.bin", data)
    for i, kind in enumerate(
        ["short_body", "long_body", "wrong_content_range", "missing_content_range", "hang_up", "reset", "dropped"]
    ):
        http_server.fault(kind, probability=0.01, seed=i)  # type: ignore[arg-type]  # all of them are kinds
    http_server.fault(503, probability=0.02, seed=8, retry_after=0)
    http_server.fault(403, probability=0.01, seed=9)
    http_server.fault("ignored_range", probability=0.005, seed=10)
    pick = random.Random(1)
    spans = [(pick.randrange(len(data) - 4096), pick.randrange(1, 4096)) for _ in range(reads)]
    refs = {f"k/{i}": [url, start, size] for i, (start, size) in enumerate(spans)}
    results = {"right": 0, "error": 0}

    async def read() -> None:
        fs = RefShardFileSystem(refs, asynchronous=True, retries=3, max_gap=-1, max_block=1)
        order = iter(pick.sample(range(len(spans)), len(spans)))

        async def work() -> None:
            for i in order:
                start, size = spans[i]
                try:
                    found = await fs._cat_file(f"k/{i}")
                except ReferenceNotReachable:
                    results["error"] += 1
                else:
                    assert found == data[start : start + size]
                    results["right"] += 1

        await asyncio.gather(*(work() for _ in range(64)))
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(read())
    assert sum(results.values()) == reads
    assert 0 < results["error"] < reads / 5

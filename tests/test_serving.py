"""A source as plain zarr over HTTP: the rules of HTTP, and other readers of zarr."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from tests.servers.ports import free_ports

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")
pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

HTTP = httpx.Client(timeout=60, verify=False)  # one client for all tests: each reads all certificates of the machine


@pytest.fixture(scope="session", autouse=True)  # "module" ends more than once if a worker gets tests in turns
def _closed() -> Iterator[None]:
    with HTTP:
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files that differ in their packing, so that chunks of their cube are made on demand."""
    folder = tmp_path_factory.mktemp("served")
    for number in range(3):
        time_of = ("time", np.arange(2) + 2 * number, {"units": "days since 2024-01-01"})
        t = (("time", "x"), np.arange(2000.0).reshape(2, 1000) + number)
        ds = xr.Dataset({"t": t}, {"time": time_of, "x": np.arange(1000.0)})
        packing = {"dtype": "i4", "scale_factor": 0.5 + number, "_FillValue": -1, "chunksizes": (1, 500)}
        ds.to_netcdf(folder / f"{number}.nc", engine="h5netcdf", encoding={"t": packing})
    return folder


class Server:
    """An application on a port of loopback."""

    def __init__(self, app: Any) -> None:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]}, daemon=True)
        self._socket = sock

    def __enter__(self) -> Server:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *caught: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


@pytest.fixture(scope="module", params=[2, 3])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    fs = RefShardFileSystem(f"{folder}/*.nc" if request.param == 2 else str(folder / "0.nc"), zarr_format=request.param)
    with Server(refshard_fs.asgi(fs)) as server:
        yield server


def make_source(server: Server, folder: Path) -> RefShardFileSystem:
    is_cube = HTTP.get(f"{server.url}/.zgroup").status_code == 200
    return RefShardFileSystem(f"{folder}/*.nc") if is_cube else RefShardFileSystem(str(folder / "0.nc"), zarr_format=3)


@pytest.mark.parametrize("others", [{}, {"Origin": "http://page"}, {"Range": "bytes=1-2"}, {"If-None-Match": "*"}])
def test_chunk_has_the_same_answer_before_and_after_caching(folder: Path, others: dict[str, str]) -> None:
    fs = RefShardFileSystem(str(folder / "0.nc"))
    for source, key in ((fs, "t/0.1"), ({"a": fs}, "a/t/0.1")):
        with Server(refshard_fs.asgi(source)) as server:
            answers = [HTTP.get(f"{server.url}/{key}", headers=others) for _ in range(3)]
            assert HTTP.head(f"{server.url}/{key}").content == b""
        kept = [
            (a.status_code, a.content, {n: v for n, v in a.headers.items() if n not in ("date", "vary")})
            for a in answers
        ]
        assert kept[0] == kept[1] == kept[2]


def test_keys_beside_consolidated_metadata_are_served_unchanged(server: Server, folder: Path) -> None:
    fs = make_source(server, folder)
    consolidated = {".zmetadata", "zarr.json"}
    with httpx.Client(timeout=60, verify=False) as client:
        for key in fs.find(""):
            answer = client.get(f"{server.url}/{key}")
            assert answer.status_code == 200
            if key not in consolidated:
                assert answer.content == fs.cat_file(key)
            head = client.head(f"{server.url}/{key}", headers={"Accept-Encoding": "identity"})
            assert (head.status_code, head.content, int(head.headers["content-length"])) == (
                200,
                b"",
                len(answer.content),
            )
        for key in ("t/9.9", "t/c/9/9", "nothing", "t", "../0.nc", "t/"):
            assert client.get(f"{server.url}/{key}").status_code == 404


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_served_metadata_are_strict_json(zarr_format: int, tmp_path: Path) -> None:
    """tensorstore and JavaScript refuse a document with NaN, which NetCDF attributes may be."""
    values = ("x", np.array([1, np.nan], "f4"), {"missing_value": np.nan, "valid_min": -np.inf})
    xr.Dataset({"t": values}, attrs={"a": np.nan}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    fs = RefShardFileSystem(str(tmp_path / "a.nc"), zarr_format=zarr_format)

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not JSON")

    with Server(refshard_fs.asgi(fs)) as server:
        for key in [key for key in fs.find("") if key.rpartition("/")[2].startswith((".z", "zarr."))]:
            json.loads(HTTP.get(f"{server.url}/{key}").text, parse_constant=refuse)
        served = xr.open_dataset(server.url, engine="zarr").load()
    np.testing.assert_array_equal(served["t"], values[1])
    assert (served.attrs, served["t"].attrs) == ({"a": "NaN"}, {"valid_min": "-Infinity"})


@pytest.mark.evidence(id="R8")
def test_zarr_reads_a_served_source_by_consolidated_metadata(server: Server, folder: Path) -> None:
    served = xr.open_dataset(server.url, engine="zarr", consolidated=True)
    xr.testing.assert_identical(served.load(), xr.open_dataset(make_source(server, folder), engine="refshard").load())


@pytest.mark.evidence(id="R9")
def test_tensorstore_reads_a_served_source(server: Server, folder: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    driver = "zarr" if HTTP.get(f"{server.url}/.zgroup").status_code == 200 else "zarr3"
    array = tensorstore.open({"driver": driver, "kvstore": f"{server.url}/t/"}).result().read().result()
    expected = xr.open_dataset(make_source(server, folder), engine="refshard", mask_and_scale=False)["t"]
    np.testing.assert_array_equal(array, expected)


GDAL = """
import json, sys, warnings, rasterio
warnings.simplefilter("ignore")  # that it has no geotransform
for form in sys.argv[1:]:
    print(json.dumps(rasterio.open(form).read(1).tolist()))
"""


@pytest.mark.evidence(id="R13")
def test_gdal_reads_a_served_source(server: Server, folder: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    fs = make_source(server, folder)
    if fs.exists("zarr.json") and tuple(map(int, rasterio.__gdal_version__.split("."))) < (3, 11):
        pytest.skip("GDAL before 3.11 does not have the codec bytes of zarr version 3")
    forms = [f'ZARR:"/vsicurl/{server.url}/":/t', f'ZARR:"/vsicurl/{server.url}/t"']
    # Another process, because GDAL holds the GIL while it waits for the server.
    done = subprocess.run([sys.executable, "-c", GDAL, *forms], capture_output=True, text=True, timeout=120)
    expected = xr.open_dataset(fs, engine="refshard", mask_and_scale=False)["t"]
    for line in done.stdout.splitlines():
        np.testing.assert_array_equal(json.loads(line), expected)
    assert done.stdout.count("\n") == len(forms), done.stderr


@pytest.mark.evidence(id="R10")
def test_neuroglancer_urls_are_read(folder: Path) -> None:
    """tensorstore reads the same form: ``|zarr2:`` after the URL of an array."""
    tensorstore = pytest.importorskip("tensorstore")
    with Server(refshard_fs.asgi(f"{folder}/*.nc")) as server:
        (url,) = re.findall(r"<code>(http[^<]*zarr2:)</code>", HTTP.get(server.url).text)
        assert tensorstore.open(url).result().shape == (6, 1000)


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-3", 206, slice(0, 4)),
        ("bytes=5-", 206, slice(5, None)),
        ("bytes=-3", 206, slice(-3, None)),
        ("bytes=2-999999", 206, slice(2, None)),
        ("bytes=999999-", 416, slice(0, 0)),
        ("bytes=3-2", 416, slice(0, 0)),
        ("bytes=0-1,4-5", 200, slice(None)),
        ("bytes=" + "9" * 5000 + "-", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
    ],
)
def test_ranges_are_answered(server: Server, asked: str, status: int, part: slice) -> None:
    key = "t/0.0" if HTTP.get(f"{server.url}/.zgroup").status_code == 200 else "t/c.0.0"
    whole = HTTP.get(f"{server.url}/{key}").content
    answer = HTTP.get(f"{server.url}/{key}", headers={"Range": asked})
    assert answer.status_code == status
    if status == 416:
        assert answer.headers["content-range"] == f"bytes */{len(whole)}"
        return
    assert answer.content == whole[part]
    if status == 206:
        start, stop, _ = part.indices(len(whole))
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"


@pytest.mark.parametrize("asked", ["bytes=0-3", "bytes=999999-"])
def test_range_of_a_head_request_is_ignored(server: Server, asked: str) -> None:
    key = "t/0.0" if HTTP.get(f"{server.url}/.zgroup").status_code == 200 else "t/c.0.0"
    whole = HTTP.get(f"{server.url}/{key}")
    answer = HTTP.head(f"{server.url}/{key}", headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(len(whole.content)))
    assert "content-range" not in answer.headers


def test_unchanged_key_is_answered_with_304(server: Server) -> None:
    key = "t/.zarray" if HTTP.get(f"{server.url}/.zgroup").status_code == 200 else "t/zarr.json"
    first = HTTP.get(f"{server.url}/{key}")
    again = HTTP.get(f"{server.url}/{key}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for tags in ("*", f'"another", {first.headers["etag"]}'):
        assert HTTP.get(f"{server.url}/{key}", headers={"If-None-Match": tags}).status_code == 304
    assert HTTP.get(f"{server.url}/{key}", headers={"If-None-Match": first.headers["etag"][1:-1]}).status_code == 200
    stale = HTTP.get(f"{server.url}/{key}", headers={"Range": "bytes=0-3", "If-Range": '"another"'})
    assert (stale.status_code, stale.content) == (200, first.content)


def test_metadata_are_compressed_for_clients_that_accept_gzip(server: Server) -> None:
    key = ".zmetadata" if HTTP.get(f"{server.url}/.zgroup").status_code == 200 else "zarr.json"
    with HTTP.stream("GET", f"{server.url}/{key}", headers={"Accept-Encoding": "gzip"}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    for refused in ("identity", "gzip;q=0", "gzip; q=0.0, br"):
        plain = HTTP.get(f"{server.url}/{key}", headers={"Accept-Encoding": refused})
        assert "content-encoding" not in plain.headers
        assert "Accept-Encoding" in plain.headers["vary"], "caches keep both apart"
    assert gzip.decompress(raw) == plain.content
    assert json.loads(plain.content)


def test_pages_may_read_from_another_origin(server: Server) -> None:
    answer = HTTP.options(
        f"{server.url}/t/0.0", headers={"Origin": "https://viewer", "Access-Control-Request-Method": "GET"}
    )
    assert answer.headers["access-control-allow-origin"] == "*"
    missing = HTTP.get(f"{server.url}/t/9.9", headers={"Origin": "https://viewer"})
    assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, "*"), "also without the chunk"


def test_page_shows_arrays_pictures_and_lines_to_paste(server: Server) -> None:
    answer = HTTP.get(f"{server.url}/")
    for text in ("open_dataset", "FetchStore", "gdalinfo", "terra::rast", "|zarr", '<a href="?map=t">'):
        assert text in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert HTTP.get(f"{server.url}/?map=t").text.startswith("<svg")
    picture = HTTP.get(f"{server.url}/?slice=t")
    assert (picture.headers["content-type"], picture.content[:4]) == ("image/png", b"\x89PNG")
    for query in ("map=nothing", "slice=nothing", "slice=../t"):
        assert HTTP.get(f"{server.url}/?{query}").status_code == 404


def test_answers_do_not_name_the_targets_of_the_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private = tmp_path / "private"
    private.mkdir()
    meta = {"zarr_format": 2, "shape": [2, 4], "chunks": [1, 4], "dtype": "|u1", "order": "C", "fill_value": 0}
    refs: dict[str, Any] = {"a/.zarray": json.dumps({**meta, "filters": None, "compressor": None})}
    refs |= {".zgroup": '{"zarr_format": 2}', "a/0.0": [str(private / "data"), 0, 4], "a/1.0": [str(private / "gone")]}
    (private / "data").write_bytes(bytes(4))
    (private / "refs.json").write_text(json.dumps(refs))
    with Server(refshard_fs.asgi(str(private / "refs.json"))) as server:
        for path in ("/", "/?map=a", "/?slice=a", "/a/1.0", "/.zmetadata"):
            assert "private" not in HTTP.get(server.url + path).text
        assert HTTP.get(f"{server.url}/a/1.0").status_code == 502
    assert str(private / "gone") in caplog.text, "the log names the target"


@pytest.mark.parametrize("shape", [(3,), (), (0, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", ["<f4", "|b1", "<M8[s]", "|S3"])
def test_slice_of_an_array_is_a_picture_or_an_error(shape: tuple[int, ...], dtype: str) -> None:
    meta = {"zarr_format": 2, "shape": shape, "chunks": [max(n, 1) for n in shape], "dtype": dtype, "order": "C"}
    refs = {".zgroup": '{"zarr_format": 2}'}
    refs["a/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
    with Server(refshard_fs.asgi(refs)) as server:
        is_drawn = dtype in ("<f4", "|b1") and 0 not in shape and shape
        assert HTTP.get(f"{server.url}/?slice=a").status_code == (200 if is_drawn else 502)


@pytest.mark.parametrize("wrong", [{"token": ""}, {"token": 5}, {"max_age": -1}, {"bytes_per_second": 0}])
def test_invalid_argument_of_a_server_is_refused(wrong: dict[str, Any]) -> None:
    """An empty token, perhaps of an unset variable, would let anybody in."""
    with pytest.raises(ValueError, match=f"invalid {next(iter(wrong))}="):
        refshard_fs.asgi({".zgroup": '{"zarr_format": 2}'}, **wrong)


def test_token_is_required_if_set(folder: Path) -> None:
    with Server(refshard_fs.asgi(str(folder / "0.nc"), token="secret")) as server:
        for path in ("/", "/.zgroup"):
            assert HTTP.get(server.url + path).status_code == 401
            assert HTTP.get(server.url + path, headers={"Authorization": "Bearer other"}).status_code == 401
            assert HTTP.get(server.url + path, headers={"Authorization": "Bearer secret"}).status_code == 200
            assert HTTP.get(f"{server.url}{path}?token=secret").status_code == 401  # logs have queries
            assert HTTP.get(server.url + path, headers={"Authorization": "secret"}).status_code == 401
        answer = HTTP.get(f"{server.url}/t/0.0", headers={"Authorization": "bearer secret"})
        assert answer.headers["cache-control"].startswith("private"), "shared caches do not ask for the token"


def test_several_sources_are_served_by_name(folder: Path) -> None:
    sources = {name: RefShardFileSystem(str(folder / f"{name}.nc")) for name in "01"}
    with Server(refshard_fs.asgi(sources)) as server:
        assert '<a href="1/">1</a>' in HTTP.get(f"{server.url}/").text
        for name, fs in sources.items():
            assert HTTP.get(f"{server.url}/{name}/t/0.0").content == fs.cat_file("t/0.0")


@pytest.mark.parametrize("name", ["a/b", "{key:path}", "a?b"])
def test_asgi_refuses_invalid_names_and_sources(name: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="invalid name of a source"):
        refshard_fs.asgi({name: RefShardFileSystem(str(folder / "0.nc"))})
    with pytest.raises(TypeError, match="expected a RefShardFileSystem for each name"):
        refshard_fs.asgi({"a": RefShardFileSystem(str(folder / "0.nc")), "b": str(folder / "1.nc")})


def test_unreadable_chunk_is_answered_with_502(tmp_path: Path) -> None:
    """Several clients show fill values after status 403, because S3 may answer so for missing objects."""
    (tmp_path / "short.bin").write_bytes(b"12")
    refs = {".zgroup": '{"zarr_format": 2}', "a/0": [str(tmp_path / "gone.bin"), 0, 4]}
    refs |= {"a/2": [str(tmp_path / "short.bin"), 0, 4], "a/3": ["nosuch://a/b", 0, 4]}
    for redirect in (False, True):
        with Server(refshard_fs.asgi(refs, redirect=redirect, allow=[str(tmp_path)])) as server:
            for key in ("a/0", "a/2", "a/3"):
                assert HTTP.get(f"{server.url}/{key}").status_code == 502
            assert HTTP.get(f"{server.url}/a/1").status_code == 404
    with Server(refshard_fs.asgi(refs, allow=[])) as server:
        assert HTTP.get(f"{server.url}/a/2").status_code == 502, "a key with a forbidden target is not missing"


def test_whole_public_objects_are_answered_by_redirects() -> None:
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "public": ["https://example.com/chunk"],
        "private": ["http://10.0.0.1/chunk"],
        "query": ["https://example.com/chunk?key=secret"],
        "part": ["https://example.com/chunk", 0, 4],
    }
    with Server(refshard_fs.asgi(refs, redirect=True, retries=0, timeout=1)) as server:
        answer = HTTP.get(f"{server.url}/public")
        assert (answer.status_code, answer.headers["location"]) == (307, "https://example.com/chunk")
        for key in ("private", "query", "part"):
            assert HTTP.get(f"{server.url}/{key}", timeout=30).status_code == 502


def test_many_clients_get_the_same_bytes(server: Server, folder: Path) -> None:
    fs = make_source(server, folder)
    keys = [key for key in fs.find("t") if not key.endswith((".zarray", ".zattrs", "zarr.json"))]
    expected = {key: fs.cat_file(key) for key in keys}

    def read(seed: int) -> bool:
        with httpx.Client(timeout=60, verify=False) as client:
            order = np.random.default_rng(seed).permutation(keys)
            return all(client.get(f"{server.url}/{key}").content == expected[key] for key in order)

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(read, range(40)))


@pytest.mark.parametrize("key", [".zgroup", "zarr.json"])
def test_key_that_no_file_can_have_is_answered_with_404(key: str, tmp_path: Path) -> None:
    (tmp_path / key).write_text(
        '{"zarr_format": 2}' if key == ".zgroup" else '{"zarr_format": 3, "node_type": "group"}'
    )
    with Server(refshard_fs.asgi(str(tmp_path))) as server:
        assert HTTP.get(f"{server.url}/{key}").status_code == 200
        for name in ("x" * 300, f"{'x' * 300}/zarr.json", f"{'0.' * 200}0", f"{'b/' * 3000}0", "%C3%A9" * 200):
            assert HTTP.get(f"{server.url}/{name}").status_code == 404


def test_writes_are_served_under_a_new_etag() -> None:
    fs = RefShardFileSystem({".zgroup": '{"zarr_format": 2}', "a/0": "abc"})
    with Server(refshard_fs.asgi(fs)) as server:
        first = HTTP.get(f"{server.url}/a/0")
        fs.pipe_file("a/0", b"other")
        again = HTTP.get(f"{server.url}/a/0", headers={"If-None-Match": first.headers["etag"]})
    assert (first.content, again.status_code, again.content) == (b"abc", 200, b"other")


def test_repeated_requests_make_a_chunk_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    read = RefShardFileSystem._cat_file

    async def count_read(fs: RefShardFileSystem, path: str, *bounds: Any, **options: Any) -> Any:
        made.append(path)
        return await read(fs, path, *bounds, **options)

    monkeypatch.setattr(RefShardFileSystem, "_cat_file", count_read)
    with Server(refshard_fs.asgi(f"{folder}/*.nc")) as own:
        for _ in range(3):
            HTTP.get(f"{own.url}/t/1.0")
            HTTP.head(f"{own.url}/t/1.0")
    assert made == ["t/1.0"]


def test_rate_limit_bounds_sent_bytes(folder: Path) -> None:
    fs = RefShardFileSystem(str(folder / "0.nc"))
    size = len(fs.cat_file("x/0"))
    app = refshard_fs.asgi(fs, bytes_per_second=20 * size)
    with Server(app) as server:
        began = time.monotonic()
        for _ in range(4):
            assert len(HTTP.get(f"{server.url}/x/0").content) == size
        assert time.monotonic() - began >= 3 / 20  # a bound from below: no machine is too slow for it


ZARRITA = """
import * as zarr from "zarrita";

const root = await zarr.open(new zarr.FetchStore(process.argv[2]), { kind: "group" });
const t = await zarr.open(root.resolve("t"), { kind: "array" });
const { shape, data } = await zarr.get(t);
console.log(JSON.stringify({ shape, data: Array.from(data), attrs: t.attrs }));
"""


@pytest.mark.evidence(id="R11")
def test_zarrita_reads_a_served_source(server: Server, folder: Path, tmp_path: Path) -> None:
    """REFSHARD_ZARRITA names a folder in which ``npm install zarrita`` was run."""
    answer = _run_node(server.url, tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    expected = xr.open_dataset(make_source(server, folder), engine="refshard", mask_and_scale=False)["t"]
    np.testing.assert_array_equal(np.reshape(found["data"], found["shape"]), expected)
    assert found["attrs"].get("scale_factor") == expected.attrs.get("scale_factor")


def test_zarrita_reports_an_unreadable_chunk(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 7}
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps({**meta, "filters": None, "compressor": None})}
    refs["t/0"] = [str(tmp_path / "forbidden"), 0, 2]
    with Server(refshard_fs.asgi(refs, allow=[])) as server:
        answer = _run_node(server.url, tmp_path)
    assert answer.returncode != 0
    assert "502" in answer.stderr


def _run_node(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    node, modules = shutil.which("node"), Path(os.environ.get("REFSHARD_ZARRITA", "."), "node_modules").absolute()
    if node is None or not (modules / "zarrita").exists():
        pytest.skip("needs node, and REFSHARD_ZARRITA: a folder with zarrita of npm")
    (folder / "read.mjs").write_text(ZARRITA)
    (folder / "node_modules").symlink_to(modules)
    return subprocess.run([node, "read.mjs", url], cwd=folder, capture_output=True, text=True, timeout=60)


PAGE = """<!doctype html><meta charset="utf-8"><p>reading</p><script type="importmap">{"imports": {
"zarrita": "/node_modules/zarrita/dist/src/index.js",
"@zarrita/storage": "/node_modules/@zarrita/storage/dist/src/index.js",
"@zarrita/storage/fetch": "/node_modules/@zarrita/storage/dist/src/fetch.js",
"numcodecs/": "/node_modules/numcodecs/dist/", "fflate": "/node_modules/fflate/esm/browser.js"}}</script>
<script type="module">
import * as zarr from "zarrita";
try {
  const root = await zarr.open(new zarr.FetchStore(SERVED), { kind: "group" });
  const { data } = await zarr.get(await zarr.open(root.resolve("t"), { kind: "array" }));
  document.querySelector("p").textContent = "sum " + data.reduce((sum, value) => sum + Number(value), 0);
} catch (error) { document.querySelector("p").textContent = "error " + error; }
</script>"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.evidence(id="R12")
def test_browser_reads_from_a_page_of_another_origin(server: Server, folder: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    modules = Path(os.environ.get("REFSHARD_ZARRITA", "."), "node_modules").absolute()
    if chromium is None or not (modules / "zarrita").exists():
        pytest.skip("needs chromium, and REFSHARD_ZARRITA: a folder with zarrita of npm")
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    (tmp_path / "index.html").write_text(PAGE.replace("SERVED", json.dumps(server.url)))
    pages = [
        Mount("/node_modules", StaticFiles(directory=modules)),
        Mount("/", StaticFiles(directory=tmp_path, html=True)),
    ]
    options = "--headless --no-sandbox --disable-gpu --no-first-run --virtual-time-budget=20000 --dump-dom"
    with Server(Starlette(routes=pages)) as site:
        command = [chromium, *options.split(), f"--user-data-dir={tmp_path / 'profile'}", f"{site.url}/index.html"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    expected = xr.open_dataset(make_source(server, folder), engine="refshard", mask_and_scale=False)["t"]
    assert f"<p>sum {int(expected.sum())}</p>" in shown, shown


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_fifty_clients_read_right_bytes_for_minutes(folder: Path) -> None:
    """The server is killed in the middle and started again; its memory stays flat. REFSHARD_SERVE_SECONDS: 600."""
    seconds = float(os.environ.get("REFSHARD_SERVE_SECONDS", "600"))
    fs = RefShardFileSystem(f"{folder}/*.nc")
    expected = {key: fs.cat_file(key) for key in fs.find("") if key != ".zmetadata"}
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "refshard_fs", "serve", f"{folder}/*.nc", "--port", str(port)]
    end = time.monotonic() + seconds
    counts = {"right": 0, "refused": 0}

    def read(seed: int) -> None:
        choose = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            key = choose.choice(list(expected))
            start, size = choose.randrange(len(expected[key])), choose.randrange(1, 5000)
            headers = choose.choice([{}, {"Range": f"bytes={start}-{start + size - 1}"}])
            try:
                connection.request("GET", "/" + key, headers=headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                counts["refused"] += 1
                time.sleep(0.2)
                continue
            wanted = expected[key][start : start + size] if headers else expected[key]
            assert (answer.status, data) == (206 if headers else 200, wanted)
            counts["right"] += 1
        connection.close()

    memory: list[list[int]] = []
    with ThreadPoolExecutor(50) as pool:
        clients = [pool.submit(read, seed) for seed in range(50)]
        for half in (0.5, 0):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                memory.append([])
                while time.monotonic() < end - half * seconds:
                    time.sleep(min(5, seconds / 40))
                    memory[-1].append(_read_resident_memory(process.pid))
                process.kill()
        for client in clients:
            client.result()
    print(f"{counts['right']:,} right answers, {counts['refused']:,} connections refused; MiB: {memory}")
    assert counts["right"] > 10 * seconds
    for sizes in memory:
        after, last = sizes[len(sizes) // 4 :], sizes[-len(sizes) // 4 :]
        assert max(last) <= 1.1 * min(after), "memory grows"


def _read_resident_memory(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10

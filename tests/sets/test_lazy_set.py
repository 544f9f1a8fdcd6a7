"""Sets joined by a document: values equal the eager concatenation, and only read parts are opened."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import time
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import h5netcdf
import numpy as np
import pytest
from hypothesis import example, given

import refshard_fs
from refshard_fs import ManifestError, NotListable, RefShardError, RefShardFileSystem, TargetChanged, TargetNotAllowed
from refshard_fs.cubes import keyspace as concat_keyspace
from refshard_fs.formats.kerchunk_json import source as kerchunk_json_source
from refshard_fs.security import admission
from tests.servers.http import RangeServer
from tests.servers.s3 import SeaweedServer
from tests.support.joined_sets import VERSIONS, draw_archives, make_array, make_day_set, read
from tests.support.set_files import write_day_files
from tests.support.threads import wait_for_writes

zarr = pytest.importorskip("zarr")


def open_fs(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def write_sets(folder: Path, parts: list[dict[str, Any]]) -> list[str]:
    paths = []
    for i, part in enumerate(parts):
        paths.append(str(folder / f"part{i}.json"))
        open_fs(part).save(paths[-1], "json")
    return paths


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("saved", [True, False])
def test_values_equal_the_eager_concatenation(tmp_path: Path, version: int, saved: bool) -> None:
    parts = [make_day_set(0, 4, version), make_day_set(4, 2, version), make_day_set(6, 3, version)]
    lazy = refshard_fs.concat(write_sets(tmp_path, parts), "time", lazy=True)
    assert len(lazy) == 3
    fo: Any = lazy
    if saved:
        lazy.save(str(tmp_path / "all.json"))
        fo = str(tmp_path / "all.json")
    expected = read(refshard_fs.concat(parts, "time"))
    for name, values in read(fo).items():
        np.testing.assert_array_equal(values, expected[name])


def test_name_of_too_many_digits_is_not_a_chunk(tmp_path: Path) -> None:
    digits = "9" * 4000  # more than any number of chunks has
    meta = {"zarr_format": 2, "shape": [2, 2], "chunks": [1, 2], "dtype": "|u1", "order": "C", "fill_value": 0}
    meta |= {"filters": None, "compressor": None, "dimension_separator": "/"}
    part = {".zgroup": {"zarr_format": 2}, "a/.zarray": meta, "a/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]}}
    part |= {"a/0/0": "ab", "a/1/0": "cd", f"a/{digits}/0": "x"}
    fs = open_fs(refshard_fs.concat(write_sets(tmp_path, [part, part]), "time", lazy=True))
    names = [name for name in fs.ls("a", detail=False) if name[2:3].isdigit()]
    assert names == ["a/0", "a/1", "a/2", "a/3", f"a/{digits}"]  # the last one as it lies in the first set
    with pytest.raises(FileNotFoundError):
        fs.ls(f"a/{digits}9")


@pytest.mark.parametrize("version", VERSIONS)
def test_listings_equal_the_eager_concatenation(tmp_path: Path, version: int) -> None:
    parts = [make_day_set(0, 4, version), make_day_set(4, 2, version), make_day_set(6, 3, version)]
    lazy = open_fs(refshard_fs.concat(write_sets(tmp_path, parts), "time", lazy=True))
    eager = open_fs(refshard_fs.concat(parts, "time"))
    assert {n: i["size"] for n, i in lazy.find("", detail=True).items() if "/c" in n or "." not in n} == {
        n: i["size"] for n, i in eager.find("", detail=True).items() if "/c" in n or "." not in n
    }
    for key in eager.find("air"):
        if not key.endswith(("zarr.json", ".zarray", ".zattrs")):
            assert lazy.cat_file(key) == eager.cat_file(key)
    for key in ("air/9.9", "air/c/9/9", "air/c/99", "nothing"):
        with pytest.raises(FileNotFoundError):
            lazy.cat_file(key)
    assert (
        json.loads(lazy.cat_file(next(k for k in ("air/.zarray", "air/zarr.json") if lazy.exists(k))))["shape"][0] == 9
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("separator", [".", "/"])
def test_sets_of_both_separators_are_joined_along_either_axis(tmp_path: Path, axis: int, separator: str) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 99, (8, 8)).astype("<i2")
    dims = ["t", "x"]
    parts = []
    for i, piece in enumerate(np.split(data, 4, axis)):
        part = make_array("deep/a", piece, (2, 1), dims)
        if separator == "/":
            renamed = {}
            for key, value in part.items():
                head, _, name = key.rpartition("/")
                renamed[key if name.startswith(".z") else f"{head}/{name.replace('.', '/')}"] = value
            meta = json.loads(renamed["deep/a/.zarray"]) | {"dimension_separator": "/"}
            part = renamed | {"deep/a/.zarray": json.dumps(meta)}
        if i == 2:
            part.pop(next(key for key in part if key.endswith("0")))
        parts.append({".zgroup": '{"zarr_format": 2}', "deep/.zgroup": '{"zarr_format": 2}', **part})
    lazy = open_fs(refshard_fs.concat(write_sets(tmp_path, parts), dims[axis], lazy=True))
    eager = open_fs(refshard_fs.concat(parts, dims[axis]))
    assert sorted(lazy.find("")) == sorted(eager.find(""))
    for directory in ("", "deep", "deep/a", "deep/a/1", "deep/a/3"):
        if eager.isdir(directory):
            assert sorted(lazy.ls(directory, detail=False)) == sorted(eager.ls(directory, detail=False))
            assert lazy.isdir(directory)
        else:
            assert not lazy.isdir(directory)
    for key in eager.find("deep/a"):
        if ".z" not in key:
            assert lazy.cat_file(key) == eager.cat_file(key)


def put_parts(http_server: RangeServer) -> list[str]:
    """Return the URLs of twenty sets of two days, of two chunks with their names."""
    urls = []
    for i in range(20):
        part = make_day_set(2 * i, 2)
        inline = {key: value for key, value in part.items() if key not in ("time/0", "x/0")}
        inline["time/0"] = (np.arange(2 * i, 2 * i + 2, dtype="<i4")).tobytes().decode()
        inline["x/0"] = "base64:" + __import__("base64").b64encode(np.arange(5, dtype="<f8").tobytes()).decode()
        inline |= {f"air/0.{j}": f"{i:02d}{j}".ljust(24, "-") for j in range(2)}
        urls.append(http_server.put(f"parts/{i}.json", json.dumps(inline).encode()))
    return urls


def test_reading_a_cube_opens_only_the_sets_that_it_needs(http_server: RangeServer) -> None:
    urls = put_parts(http_server)
    lazy = refshard_fs.concat(urls, "time", lazy=True)
    document = lazy.document.dumps(lambda url: url.rpartition("/")[2])
    url = http_server.put("parts/all.json", document)
    http_server.log.clear()
    fs = open_fs(url)
    assert fs.cat_file("time/0") == np.arange(40, dtype="<i4").tobytes()
    assert fs.cat_file("x/0") == np.arange(5, dtype="<f8").tobytes()
    assert {r.path for r in http_server.log.requests()} == {"/parts/all.json", "/parts/0.json"}
    http_server.log.clear()
    assert fs.cat_file("air/13.1") == b"131".ljust(24, b"-")
    assert {r.path for r in http_server.log.requests()} == {"/parts/13.json"}
    http_server.log.clear()
    assert fs.cat(["air/13.0", "air/7.0", "air/7.1"])["air/7.1"] == b"071".ljust(24, b"-")
    assert {r.path for r in http_server.log.requests()} == {"/parts/7.json"}


@pytest.mark.parametrize("is_kept", [False, True], ids=["fetched", "on disk"])
def test_parts_are_opened_ahead_of_reads_at_random(http_server: RangeServer, tmp_path: Path, is_kept: bool) -> None:
    """The first read opens only the part that it needs; later reads that have to wait open further parts.

    If the chunks are on disk, the first read requests the versions of all parts.
    """
    data = http_server.put("data.bin", b"x" * 24)
    urls = []
    for i in range(20):
        part = make_day_set(2 * i, 2) | {f"air/0.{j}": [data, 0, 24] for j in range(2)}
        part = {key: value for key, value in part.items() if key not in ("time/0", "x/0")}
        part["time/0"] = np.arange(2 * i, 2 * i + 2, dtype="<i4").tobytes().decode()
        urls.append(http_server.put(f"parts/{i}.json", json.dumps(part).encode()))
    cube = http_server.put("parts/all.json", refshard_fs.concat(urls, "time", lazy=True).document.dumps(str))
    options: dict[str, Any] = {"cache_dir": tmp_path / "kept"} if is_kept else {}
    if is_kept:
        open_fs(cube, **options).cat([f"air/{number}.0" for number in range(20)])
        wait_for_writes()
    fs = open_fs(cube, **options)
    http_server.log.clear()

    def parts() -> int:
        return len({r.path for r in http_server.log.requests() if r.path.startswith("/parts/") and "all" not in r.path})

    fs.cat_file("air/13.0")
    if is_kept:
        time.sleep(0.1)
    assert parts() == (20 if is_kept else 2)  # with the first
    for number in (3, 16, 8, 18):
        fs.cat_file(f"air/{number}.0")
    time.sleep(0.1)
    assert parts() >= 12


def test_parts_are_opened_beside_the_next_look_up(http_server: RangeServer) -> None:
    """After one look-up has waited for a server, the next one opens further parts in its first round."""
    data = http_server.put("data.bin", b"x" * 300_000)  # larger than the small objects that are kept whole
    urls = []
    for i in range(8):
        part = make_day_set(2 * i, 2) | {f"air/0.{j}": [data, 0, 24] for j in range(2)}
        part = {key: value for key, value in part.items() if key not in ("time/0", "x/0")}
        part["time/0"] = np.arange(2 * i, 2 * i + 2, dtype="<i4").tobytes().decode()
        urls.append(http_server.put(f"parts/{i}.json", json.dumps(part).encode()))
    cube = http_server.put("parts/all.json", refshard_fs.concat(urls, "time", lazy=True).document.dumps(str))
    fs = open_fs(cube)
    fs.cat_file("air/6.0")
    http_server.log.clear()
    http_server.latency = 0.2
    fs.cat_file("air/3.0")
    parts = [r.path for r in http_server.log.requests() if r.path.startswith("/parts/")]
    assert parts[0] == "/parts/3.json"
    assert sorted(parts[1:]) == ["/parts/2.json", "/parts/4.json"]
    assert http_server.log.peak == 3


def record_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the URL of each reference set that is opened from now on is added."""
    opened: list[str] = []
    read = kerchunk_json_source.open_

    def counted(probe: Any, options: Any) -> Any:
        opened.append(probe.url)
        return (yield from read(probe, options))

    monkeypatch.setattr(kerchunk_json_source, "open_", counted)
    return opened


@pytest.mark.parametrize("ask", ["together", "by themselves", "by threads"])
def test_set_of_a_cube_is_opened_once(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    urls = put_parts(http_server)
    fs = open_fs(refshard_fs.concat(urls, "time", lazy=True))
    keys = [f"air/{i}.{j}" for i in range(20) for j in range(2)]
    once = record_openings(monkeypatch)
    if ask == "together":
        found = list(fs.cat(keys).values())
    elif ask == "by themselves":

        async def gathered() -> list[bytes]:
            return await asyncio.gather(*map(fs._cat_file, keys))

        found = fsspec.asyn.sync(fsspec.asyn.get_loop(), gathered)
    else:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(fs.cat_file, keys))
    assert sorted(once) == sorted(urls)
    assert found == [f"{i:02d}{j}".ljust(24, "-").encode() for i in range(20) for j in range(2)]


def put_fields(server: RangeServer, side: int, count: int = 4) -> tuple[list[str], list[Any]]:
    """Put NetCDF-4 files, each with a field of ``side`` × ``side`` numbers at a time; return URLs and fields."""
    urls, fields = [], []
    for i in range(count):
        fields.append(np.random.default_rng(i).random((1, side, side)).astype("f4"))
        urls.append(server.put(f"{i}.nc", make_netcdf(i, fields[-1])))
    return urls, fields


def make_netcdf(time: int, field: Any) -> bytes:
    file = io.BytesIO()
    with h5netcdf.File(file, "w") as nc:
        nc.dimensions = {"time": 1, "y": field.shape[1], "x": field.shape[2]}
        nc.create_variable("v", ("time", "y", "x"), data=field, chunks=field.shape, compression="gzip")
        nc.create_variable("time", ("time",), data=np.array([time]))
        for dim in "yx":
            nc.create_variable(dim, (dim,), data=np.arange(field.shape[1]))
    return file.getvalue()


@pytest.mark.parametrize(("side", "made", "loaded"), [(40, 1, 0), (200, 2, 1)])
def test_bytes_read_to_join_are_not_read_again(http_server: RangeServer, side: int, made: int, loaded: int) -> None:
    """A file of 17 kB takes one request. A file of 160 kB takes three: head, metadata at its end, chunk."""
    urls, fields = put_fields(http_server, side)
    cube = refshard_fs.open(urls, "time")
    assert len(http_server.requests()) <= made * len(urls)
    http_server.log.clear()
    found = open_fs(cube).cat([f"v/{i}.0.0" for i in range(len(urls))])
    assert [zlib.decompress(chunk) for chunk in found.values()] == [field.tobytes() for field in fields]
    assert len(http_server.requests()) == loaded * len(urls)


def test_file_replaced_after_join_is_an_error(http_server: RangeServer) -> None:
    urls, fields = put_fields(http_server, 200)
    cube = refshard_fs.open(urls, "time")
    http_server.put("2.nc", make_netcdf(2, fields[0]))
    with pytest.raises(TargetChanged, match=r"2\.nc"):
        open_fs(cube).cat_file("v/2.0.0")


def test_joined_small_file_is_read_from_memory(http_server: RangeServer) -> None:
    """A file of up to 64 KiB stays in memory: metadata and chunks are those that were joined."""
    urls, fields = put_fields(http_server, 40)
    cube = refshard_fs.open(urls, "time")
    http_server.put("1.nc", make_netcdf(1, np.ones((1, 40, 40), "f8")))
    http_server.delete("2.nc")
    fs = open_fs(cube)
    assert [zlib.decompress(fs.cat_file(f"v/{n}.0.0")) for n in (1, 2)] == [fields[n].tobytes() for n in (1, 2)]
    with pytest.raises(RefShardError):
        open_fs(pickle.loads(pickle.dumps(cube))).cat_file("v/2.0.0")


def test_invalidated_cube_reads_first_bytes_again(http_server: RangeServer) -> None:
    urls, _ = put_fields(http_server, 40)
    fs = open_fs(refshard_fs.open(urls, "time"))
    fs.cat_file("v/2.0.0")
    http_server.put("2.nc", make_netcdf(2, np.ones((1, 40, 40), "f4")))
    fs.invalidate_cache()
    assert np.all(np.frombuffer(zlib.decompress(fs.cat_file("v/2.0.0")), "<f4") == 1)


def test_refused_file_gives_no_first_bytes_from_memory(http_server: RangeServer) -> None:
    """A filesystem that may not reach the files does not get the first bytes that joining has read."""
    urls, _ = put_fields(http_server, 40)
    cube = refshard_fs.open(urls, "time")
    fs = open_fs(cube, allow=["https://elsewhere.example/"])
    with pytest.raises(TargetNotAllowed):
        fs.cat_file("v/2.0.0")


def test_at_most_cache_size_sets_are_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = write_sets(tmp_path, [make_day_set(2 * i, 2) for i in range(5)])
    fs = open_fs(refshard_fs.concat(urls, "time", lazy=True), cache_size=2)
    fs.cat_file("air/0.0")
    once = record_openings(monkeypatch)
    for number in (1, 2, 1, 2, 3, 4, 1):
        fs.cat_file(f"air/{number}.0")
    assert [urls.index(url) for url in once] == [1, 2, 3, 4, 1]


def test_document_has_a_line_for_each_set(tmp_path: Path) -> None:
    parts = write_sets(tmp_path, [make_day_set(0, 2), make_day_set(2, 2)])
    one, two = (refshard_fs.concat(parts, "time", lazy=True) for _ in range(2))
    assert one == two == pickle.loads(pickle.dumps(one))
    one.save(str(tmp_path / "all.json"))
    lines = (tmp_path / "all.json").read_text().splitlines()
    assert lines[1].startswith('["part0.json",2,"base64:')
    assert lines[2].startswith('["part1.json",2,"base64:')
    assert json.loads("\n".join(lines))["axes"] == {"air": 0, "time": 0}
    assert open_fs(json.loads("\n".join(lines)) | {"sets": make_sets(one)}).cat_file("time/0")


def make_sets(lazy: Any) -> Any:
    return json.loads(lazy.document.dumps())["sets"]


def test_documents_of_cubes_can_be_joined(tmp_path: Path) -> None:
    parts = [make_day_set(0, 2), make_day_set(2, 2), make_day_set(4, 2), make_day_set(6, 2)]
    paths = write_sets(tmp_path, parts)
    (tmp_path / "years").mkdir()
    halves = []
    for i in range(2):
        halves.append(str(tmp_path / f"years/{i}.json"))
        refshard_fs.concat(paths[2 * i : 2 * i + 2], "time", lazy=True).save(halves[-1])
    expected = read(refshard_fs.concat(parts, "time"))
    for name, values in read(refshard_fs.concat(halves, "time", lazy=True)).items():
        np.testing.assert_array_equal(values, expected[name])
    eager = read(refshard_fs.concat([refshard_fs.concat(halves, "time", lazy=True)]))
    np.testing.assert_array_equal(eager["air"], expected["air"])


def test_document_inside_a_document_is_joined(tmp_path: Path) -> None:
    write_sets(tmp_path, [make_day_set(0, 2), make_day_set(2, 2)])
    document = {"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2}
    within = document | {"sets": ["part1.json"]}
    (tmp_path / "all.json").write_text(json.dumps(document | {"sets": ["part0.json", [within]]}))
    expected = read(refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 2)], "time"))
    np.testing.assert_array_equal(read(str(tmp_path / "all.json"))["air"], expected["air"])


@pytest.mark.case(id="P26")
def test_circular_document_is_refused(tmp_path: Path) -> None:
    document = {"refshard": "concat", "dim": "time", "axes": {"a": 0}, "length": 2, "sets": ["self.json"]}
    (tmp_path / "self.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="levels"):
        open_fs(str(tmp_path / "self.json")).ls("")


@pytest.mark.case(id="P26")
def test_nested_documents_with_too_many_keys_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small nested documents can describe any number of chunks: each is read, but to list all is an error."""
    array = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
    leaf = {"a/.zarray": json.dumps({**array, "order": "C", "filters": None}), "a/0": "x", "a/1": "y"}
    (tmp_path / "0.json").write_text(json.dumps({".zgroup": '{"zarr_format": 2}', **leaf}))
    for level in range(1, 5):
        sets = [[f"{level - 1}.json", 2 * 10 ** (level - 1)]] * 10
        document = {"refshard": "concat", "dim": "x", "axes": {"a": 0}, "length": 2 * 10**level, "sets": sets}
        (tmp_path / f"{level}.json").write_text(json.dumps(document))
    monkeypatch.setattr(concat_keyspace, "LISTED", 500)
    assert len(open_fs(str(tmp_path / "2.json")).ls("a")) == 201
    fs = open_fs(str(tmp_path / "4.json"))
    assert fs.cat_file("a/19999") == b"y"
    for list_all in (fs.ls, fs.find):
        with pytest.raises(NotListable, match="expected at most 500 to be listed"):
            list_all("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sets": []}, "one set or more"),
        ({"sets": [["part0.json", 2], ["part1.json"]]}, "'part1.json' has the length None"),
        ({"sets": [["part0.json", 2, "base64:!"]], "coordinate": "time"}, "damaged"),
        ({"sets": [["part0.json", 2, "base64:AA=="]], "coordinate": "time", "axes": {"time": 0}}, "1 bytes of 'time'"),
        ({"sets": [["part0.json", 2]], "coordinate": "time"}, "expected values of the coordinate"),
        ({"sets": [["part0.json", 2, "base64:AA=="]], "coordinate": "x"}, "expected the coordinate 'x' in axes"),
        ({"axes": {"nothing": 0}}, "expected the array 'nothing'"),
        ({"axes": {"air": 2}}, "along axis 2, but has 2"),
        ({"colour": 1}, "colour"),
        ({"sets": [7]}, "Expected `str | array`, got `int`"),
        ({"sets": [["part0.json", 1], ["part1.json", 2]]}, "chunks of 2 along 'time'.*begins at 1"),
    ],
)
def test_invalid_document_is_refused_when_opened(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write_sets(tmp_path, [make_day_set(0, 2), make_day_set(2, 2)])
    document = {"refshard": "concat", "dim": "time", "axes": {"air": 0}, "sets": [["part0.json", 2], ["part1.json", 2]]}
    (tmp_path / "all.json").write_text(json.dumps(document | change))
    with pytest.raises(ManifestError, match=words):
        open_fs(str(tmp_path / "all.json")).ls("")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (make_day_set(2, 4), "shape"),
        (make_day_set(2, 2, dtype="<i4"), r"is <i4, and the first set, '.*part0\.json' has <f4: no data type"),
        ({".zgroup": '{"zarr_format": 2}'}, "no array 'air'"),
    ],
)
def test_changed_part_is_refused_when_read(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    lazy = refshard_fs.concat(write_sets(tmp_path, [make_day_set(0, 2), make_day_set(2, 2)]), "time", lazy=True)
    open_fs(other).save(str(tmp_path / "part1.json"), "json")
    fs = open_fs(lazy)
    assert fs.cat_file("air/0.0")
    with pytest.raises(ManifestError, match=words) as caught:
        fs.cat_file("air/1.0")
    assert "part1.json" in str(caught.value)


def test_unfit_sets_are_refused_by_lazy_concat(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="only integers, floating-point numbers"):
        refshard_fs.concat(
            write_sets(tmp_path, [make_day_set(0, 2), make_day_set(2, 2, dtype="<M8[s]")]), "time", lazy=True
        )
    with pytest.raises(TypeError, match="save a source in memory first"):
        refshard_fs.concat([make_day_set(0, 2)], "time", lazy=True)
    with pytest.raises(TypeError, match="dimensions that have names"):
        refshard_fs.concat([make_day_set(0, 2)], dims=[None], lazy=True)


@pytest.mark.skipif(len(VERSIONS) == 1, reason="zarr 2 has no shards")
def test_sharded_parts_are_shown_as_their_inner_chunks(tmp_path: Path) -> None:
    values, paths = [], []
    for i in range(3):
        paths.append(str(tmp_path / f"part{i}.zarr"))
        group = zarr.open_group(paths[-1], mode="w", zarr_format=3)
        data = np.random.default_rng(i).integers(0, 99, (4, 4)).astype("<i2")
        array = group.create_array("air", shape=(4, 4), shards=(4, 4), chunks=(2, 2), dtype="<i2",
                                   dimension_names=["time", "x"])  # fmt: skip
        array[...] = data
        values.append(data)
    lazy = refshard_fs.concat(paths, "time", lazy=True)
    fs = open_fs(lazy)
    assert fs.exists("air/c/5/1")
    assert not fs.exists("air/c/6/0")
    store = zarr.storage.FsspecStore(open_fs(lazy, asynchronous=True), read_only=True, path="")
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["air"][...], np.concatenate(values))


def test_coordinate_without_values_is_joined_like_an_array(tmp_path: Path) -> None:
    parts = [make_day_set(0, 2), make_day_set(2, 2)]
    paths = write_sets(tmp_path, parts)
    document = {"refshard": "concat", "dim": "time", "axes": {"air": 0, "time": 0}, "length": 2, "sets": paths}
    assert read(document)["time"].tolist() == [0, 1, 2, 3]


@pytest.mark.case(id="P11")
def test_remote_part_of_local_document_may_not_read_local_files(http_server: RangeServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdefghijklmn")
    part = {key: value for key, value in make_day_set(0, 2).items() if key.startswith(("air/.z", ".z"))}
    part |= {"air/0.0": [str(secret), 0, 24], "air/0.1": [f"{http_server.url}/data/x", 0, 3]}
    url = http_server.put("data/part.json", json.dumps(part).encode())
    http_server.put("data/x", b"yes")
    document = {"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2, "sets": [url]}
    (tmp_path / "all.json").write_text(json.dumps(document))
    for fo in (document, str(tmp_path / "all.json")):
        fs = open_fs(fo)
        assert fs.cat_file("air/0.1") == b"yes"
        with pytest.raises(TargetNotAllowed, match="this machine's files"):
            fs.cat_file("air/0.0")
    assert open_fs(document, allow="any").cat_file("air/0.0") == secret.read_bytes()
    assert open_fs(document, allow=[str(tmp_path) + "/", http_server.url + "/"]).cat_file("air/0.0")


def test_remote_document_may_not_have_local_parts(http_server: RangeServer, tmp_path: Path) -> None:
    (path,) = write_sets(tmp_path, [make_day_set(0, 2)])
    document = {"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2, "sets": [path]}
    url = http_server.put("all.json", json.dumps(document).encode())
    with pytest.raises(TargetNotAllowed, match="this machine's files"):
        open_fs(url).ls("")


@pytest.mark.case(id="P11")
def test_remote_part_gets_no_credentials_for_other_servers(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets on other servers get no credentials, and neither do servers to which the set's server redirects."""
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"Authorization": "HUSHHUSH"}})
    monkeypatch.setattr(admission, "_is_public", lambda address: True)
    with RangeServer() as other:
        part = {key: value for key, value in make_day_set(0, 2).items() if key.startswith(("air/.z", ".z"))}
        part |= {"air/0.0": [other.put("/x", bytes(24)), 0, 24], "air/0.1": [f"{http_server.url}/moved", 0, 3]}
        url = http_server.put("data/part.json", json.dumps(part).encode())
        http_server.put("/moved", b"abc")
        http_server.fault("redirect", "/moved", to=other.url + "/x")
        document = {"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2, "sets": [url]}
        fs = open_fs(document)
        assert fs.cat_file("air/0.0") == bytes(24)
        assert fs.cat_file("air/0.1") == bytes(3)
        assert "HUSHHUSH" not in repr([request.headers for request in other.requests()])
        assert "HUSHHUSH" in repr([request.headers for request in http_server.requests()])


@pytest.mark.case(id="P11")
def test_remote_part_cannot_reach_a_private_network(http_server: RangeServer) -> None:
    with RangeServer() as inside:
        target = inside.put("/secret", bytes(24))
        part = {key: value for key, value in make_day_set(0, 2).items() if key.startswith(("air/.z", ".z"))}
        part |= {"air/0.0": [f"{http_server.url}/r", 0, 24], "air/0.1": [target, 0, 24]}
        http_server.put("/r", bytes(24))
        http_server.fault("redirect", "/r", to=target)
        url = http_server.put("data/part.json", json.dumps(part).encode())
        fs = open_fs({"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2, "sets": [url]})
        for key in ("air/0.0", "air/0.1"):
            with pytest.raises(TargetNotAllowed, match="private networks"):
                fs.cat_file(key)
            fs.prefetch([key])
        assert inside.requests() == []
        moved = http_server.put("data/moved.json", b"{}")
        http_server.fault("redirect", "/data/moved.json", to=target)
        with pytest.raises(RefShardError, match="private networks"):
            open_fs({"refshard": "concat", "dim": "time", "axes": {"air": 0}, "length": 2, "sets": [moved]}).ls("")
        assert inside.requests() == []


@pytest.mark.parametrize(("lazy", "how"), [(True, "as they are"), (False, "remote_options")])
def test_joined_set_opens_with_the_options_of_concat(s3_server: SeaweedServer, lazy: bool, how: str) -> None:
    s3_server.create_bucket("joined")
    place = f"s3://joined/{uuid.uuid4().hex}"
    options: dict[str, Any] = s3_server.storage_options
    writer = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    urls, parts = [], [make_day_set(0, 2), make_day_set(2, 2)]
    for number, part in enumerate(parts):
        files = open_fs(part).cat("", recursive=True)
        places = {key: f"{place}/{number}/{key}" for key in files if key[-1].isdigit()}
        writer.pipe({url: files[key] for key, url in places.items()})
        refs = {key: [places[key]] if key in places else data.decode() for key, data in files.items()}
        urls.append(f"{place}/{number}.json")
        writer.pipe_file(urls[-1], json.dumps(refs).encode())
    given = {"remote_protocol": "s3", "remote_options": options} if how == "remote_options" else options
    made = refshard_fs.concat(urls, "time", lazy=lazy, **given)
    expected = open_fs(refshard_fs.concat(parts, "time"))
    for one in (
        made,
        pickle.loads(pickle.dumps(made)),
        refshard_fs.rebase(made, {"s3://no/": "s3://one/"}, missing="ignore"),
    ):
        fs = open_fs(one)
        again = fsspec.AbstractFileSystem.from_json(fs.to_json())
        for key in ("air/0.0", "air/1.0"):
            assert fs.cat_file(key) == again.cat_file(key) == expected.cat_file(key)
    assert options["secret"] not in repr(made) + repr(open_fs(made))
    with pytest.raises(RefShardError):
        open_fs(made, options={f"{place}/": {"endpoint_url": "http://127.0.0.1:9", "anon": True}}, retries=0).cat_file(
            "air/1.0"
        )


@pytest.mark.parametrize("is_saved", [True, False])
def test_options_without_a_protocol_are_for_the_sets(s3_server: SeaweedServer, tmp_path: Path, is_saved: bool) -> None:
    s3_server.create_bucket("members")
    place = f"s3://members/{uuid.uuid4().hex}"
    options: dict[str, Any] = s3_server.storage_options
    writer = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    parts = [make_day_set(2 * n, 2) for n in range(2)]
    for number, part in enumerate(parts):
        files = open_fs(part).cat("", recursive=True)
        writer.pipe({f"{place}/{number}.zarr/{key}": data for key, data in files.items()})
    made: Any = refshard_fs.concat([f"{place}/{n}.zarr" for n in range(2)], "time", lazy=True, **options)
    made.save(str(tmp_path / "cube.refshard"))
    saved = tmp_path / "cube.refshard"
    source = str(saved) if is_saved else json.loads(saved.read_bytes())
    expected = open_fs(refshard_fs.concat(parts, "time")).cat_file("air/1.0")
    assert open_fs(source, remote_options=options).cat_file("air/1.0") == expected


def test_xarray_opens_only_the_first_set_of_a_cube(http_server: RangeServer, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    parts = [make_day_set(0, 2), make_day_set(2, 2), make_day_set(4, 2)]
    paths = write_sets(tmp_path, parts)
    urls = [http_server.put(f"x/{i}.json", Path(path).read_bytes()) for i, path in enumerate(paths)]
    lazy = refshard_fs.concat(urls, "time", lazy=True, allow="any")
    url = http_server.put("x/all.json", lazy.document.dumps())
    http_server.log.clear()
    options = {"fo": url, "allow": "any", "skip_instance_cache": True}
    given = {"storage_options": options, "consolidated": False, "chunks": None, "mask_and_scale": False}
    with xr.open_zarr("refshard://", **given) as ds:
        assert ds["time"].values.tolist() == [0, 1, 2, 3, 4, 5]
        assert {request.path for request in http_server.log.requests()} == {"/x/all.json", "/x/0.json"}
        expected = read(refshard_fs.concat(parts, "time"))["air"]
        np.testing.assert_array_equal(ds["air"].isel(time=slice(4, 6)).values, expected[4:6])
    assert "/x/1.json" not in {request.path for request in http_server.log.requests()}


def _make_sets_without_first_chunk() -> tuple[list[dict[str, Any]], int]:
    one, two = (
        make_array("a", np.ones((1, 1, 1), "<i2"), (1, 1, 1), ["t", "y", "x"], version=3, inline=True) for _ in "ab"
    )
    return [{key: value for key, value in one.items() if key.endswith("zarr.json")}, two], 0


@example(_make_sets_without_first_chunk())
@given(draw_archives())
def test_random_sets_equal_the_eager_concatenation(
    archive: tuple[list[dict[str, Any]], int],
) -> None:
    parts, axis = archive
    urls = []
    for number, part in enumerate(parts):
        urls.append(f"memory://lazily/{number}.json")
        open_fs(part).save(urls[-1], "json")
    dim = ["t", "y", "x"][axis]
    lazy = open_fs(refshard_fs.concat(urls, dim, lazy=True))
    eager = open_fs(refshard_fs.concat(urls, dim))
    keys = eager.find("")
    assert lazy.find("") == keys
    documents = (".zarray", "zarr.json", ".zattrs")
    assert {k: v for k, v in lazy.cat(keys).items() if not k.endswith(documents)} == {
        k: v for k, v in eager.cat(keys).items() if not k.endswith(documents)
    }
    for key in ("a/.zarray", "a/zarr.json"):
        if key in keys:
            assert json.loads(lazy.cat_file(key)) == json.loads(eager.cat_file(key))


@pytest.mark.parametrize("has_coordinate", [True, False])
def test_sets_without_elements_are_left_out_of_the_document(tmp_path: Path, has_coordinate: bool) -> None:
    """`append` of a file without elements once wrote a line of length 0, and the document could not be opened again."""

    def part(number: int, length: int) -> str:
        """Write references of some times."""
        refs = {".zgroup": '{"zarr_format": 2}'}
        for name, dtype in [("v", "|u1"), *([("time", "<i4")] if has_coordinate else [])]:
            meta = {"zarr_format": 2, "shape": [length], "chunks": [1], "dtype": dtype, "order": "C"}
            refs[f"{name}/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
            refs[f"{name}/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["time"]}'
            for at in range(length):
                refs[f"{name}/{at}"] = chr(2 * number + at) + "\0" * (3 if name == "time" else 0)
        path = tmp_path / f"{number}_{length}.json"
        path.write_text(json.dumps(refs))
        return str(path)

    first, empty, last = part(0, 2), part(1, 0), part(2, 2)

    def length(fo: Any) -> int:
        fs = RefShardFileSystem(fo, skip_instance_cache=True)
        return int(json.loads(fs.cat_file("v/.zarray"))["shape"][0])

    for order in ([first, empty, last], [empty, first, last]):
        assert length(refshard_fs.concat(order, "time", lazy=True)) == 4
    with pytest.raises(ManifestError, match="has length 0 along 'time'"):
        refshard_fs.concat([empty], "time", lazy=True)
    for how in ("error", "skip", "replace"):
        url = str(tmp_path / f"{how}.json")
        refshard_fs.concat([first], "time", lazy=True).save(url)
        assert refshard_fs.append(url, empty, "time", on_duplicate=how) == 0
        assert refshard_fs.append(url, last, "time", on_duplicate=how) == 2
        assert length(url) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_times_in_another_byte_order_are_the_same(tmp_path: Path, version: int) -> None:
    """NetCDF-3 is big-endian, which the data type says in metadata of version 2, and a codec in version 3."""
    paths = write_day_files(tmp_path, "scipy", 4)
    url, grown = str(tmp_path / "cube.json"), str(tmp_path / "grown.json")
    made = refshard_fs.concat(paths, "time", lazy=True, zarr_format=version)
    made.save(url)
    refshard_fs.concat(paths[:3], "time", lazy=True, zarr_format=version).save(grown)
    refshard_fs.append(grown, paths[3], "time", zarr_format=version)
    for fo in (made, url, grown):
        for options in ({}, *({"zarr_format": number} for number in VERSIONS)):
            assert read_times(fo, **options).tolist() == [0, 1, 2, 3], options


def read_times(fo: Any, **options: Any) -> Any:
    fs = RefShardFileSystem(fo, skip_instance_cache=True, **options)
    if zarr.__version__.startswith("2"):
        return zarr.open_array(fs.get_mapper("time"), mode="r")[:]
    shown = RefShardFileSystem(fo, skip_instance_cache=True, asynchronous=True, **options)
    return zarr.open_array(zarr.storage.FsspecStore(shown, path="time"), mode="r")[:]


@pytest.mark.parametrize("join", ["exact", "outer"])
@pytest.mark.parametrize("is_store_first", [False, True])
def test_files_shown_as_version_3_are_joined_with_stores(tmp_path: Path, is_store_first: bool, join: Any) -> None:
    """The files of a cube are read as version 3, like its stores."""
    if 3 not in VERSIONS:
        pytest.skip("zarr 2 writes version 2 alone")
    paths = write_day_files(tmp_path, "h5py", 2)
    store = str(tmp_path / "1.zarr")
    group = zarr.open_group(store, mode="w", zarr_format=3)
    for name, dims in (("time", ["time"]), ("x", ["x"]), ("x_bounds", ["x"]), ("t", ["time", "x"])):
        shown = zarr.storage.FsspecStore(RefShardFileSystem(paths[1], zarr_format=3, asynchronous=True), path=name)
        array = zarr.open_array(shown, mode="r")
        options: Any = {"chunks": array.shape, "dimension_names": dims, "attributes": dict(array.attrs)}
        options |= {"chunk_key_encoding": {"name": "default", "separator": "."}, "fill_value": array.fill_value}
        group.create_array(name, shape=array.shape, dtype=array.dtype, **options)[...] = array[...]
    parts = [store, paths[0]] if is_store_first else [paths[0], store]
    cube = refshard_fs.concat(parts, "time", lazy=True, join=join, zarr_format=3)
    cube.save(str(tmp_path / "cube.json"))
    for fo in (cube, str(tmp_path / "cube.json")):
        shown = RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)
        found = zarr.open_array(zarr.storage.FsspecStore(shown, path="t"), mode="r")[:, 0]
        assert found.tolist() == ([1, 0] if is_store_first else [0, 1])
    bare = json.loads(cube.content)
    del bare["metadata"]  # a document without the zarr version of its sets
    shown_bare = RefShardFileSystem(bare, skip_instance_cache=True)
    if is_store_first:
        assert shown_bare.exists("t/c.1.0")
    else:
        with pytest.raises(
            ManifestError, match=r"expected metadata of zarr format 2, as in the first set, found 'zarr\.json'"
        ):
            shown_bare.cat_file("t/1.0")


def make_key(name: str, separator: str, at: tuple[int, int]) -> str:
    return "a/" + separator.join([*(["c"] if name == "default" else []), *map(str, at)])


def make_spelled_set(version: int, name: str, separator: str, number: int) -> dict[str, Any]:
    """Return a set of two steps at two places, a chunk each, with this spelling of keys; one chunk does not exist."""
    shape: dict[str, Any] = {"shape": [2, 2], "fill_value": 9, "zarr_format": version}
    if version == 2:
        meta = shape | {"chunks": [1, 1], "dtype": "|u1", "order": "C", "filters": None, "compressor": None}
        refs: dict[str, Any] = {".zgroup": {"zarr_format": 2}, "a/.zarray": meta | {"dimension_separator": separator}}
        refs["a/.zattrs"] = {"_ARRAY_DIMENSIONS": ["time", "x"]}
    else:
        meta = shape | {"node_type": "array", "data_type": "uint8", "attributes": {}, "codecs": [{"name": "bytes"}]}
        meta["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}
        meta["chunk_key_encoding"] = {"name": name, "configuration": {"separator": separator}}
        refs = {"a/zarr.json": meta | {"dimension_names": ["time", "x"]}}
        refs["zarr.json"] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    return refs | {make_key(name, separator, at): f"{number}{at}" for at in ((0, 0), (0, 1), (1, 0))}


SPELLINGS = [(2, "v2", "."), (2, "v2", "/"), *((3, name, sep) for name in ("default", "v2") for sep in "./")]


@pytest.mark.parametrize(("mine", "theirs"), [(a, b) for a in SPELLINGS for b in SPELLINGS if a[0] == b[0] and a != b])
def test_key_spelling_of_sets_does_not_matter(tmp_path: Path, mine: Any, theirs: Any) -> None:
    lazy = mine < theirs  # so that of two spellings, each way is tested once
    parts = [make_spelled_set(*how, number) for number, how in enumerate((mine, theirs, theirs))]
    fs = open_fs(refshard_fs.concat(write_sets(tmp_path, parts), "time", lazy=lazy))
    expected = {
        make_key(*mine[1:], (2 * number + at[0], at[1])): f"{number}{at}".encode()
        for number in range(3)
        for at in ((0, 0), (0, 1), (1, 0))
    }
    found = [key for key in fs.find("a") if ".z" not in key and "zarr.json" not in key]
    assert sorted(found) == sorted(expected)
    assert fs.cat(found) == expected
    assert not fs.exists(make_key(*mine[1:], (1, 1)))


def test_cube_is_saved_in_the_requested_format(tmp_path: Path) -> None:
    urls = [str(tmp_path / f"{number}.json") for number in range(2)]
    for number, url in enumerate(urls):
        RefShardFileSystem(make_day_set(4 * number, 4, 2)).save(url)
    made: Any = refshard_fs.concat(urls, "time", lazy=True)
    made.save(str(tmp_path / "cube"), format="json")
    saved = RefShardFileSystem(str(tmp_path / "cube"))
    assert saved.find("") == RefShardFileSystem(made).find("")
    with pytest.raises(ValueError, match="unknown format='nonsense'"):
        made.save(str(tmp_path / "other"), format="nonsense")


@pytest.mark.parametrize(("name", "words"), [("a.nc", "no .nc file"), ("a.zarr", "format='chunk-manifest' writes")])
def test_cube_is_not_saved_under_the_name_of_another_format(tmp_path: Path, name: str, words: str) -> None:
    for day in range(2):
        RefShardFileSystem(make_day_set(day, 1)).save(str(tmp_path / f"{day}.json"))
    (tmp_path / name).write_bytes(b"values")
    with pytest.raises(ValueError, match=words):
        refshard_fs.open(f"{tmp_path}/*.json", "time").save(str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == b"values"

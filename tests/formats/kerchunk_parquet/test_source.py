"""Parquet reference sets, read through the filesystem: sets of other writers, damaged sets, and few requests."""

from __future__ import annotations

import asyncio
import importlib
import io
import itertools
import json
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import (
    DamagedIndex,
    ManifestError,
    ReferenceNotReachable,
    RefShardError,
    RefShardFileSystem,
    TargetChanged,
    UnknownSource,
)
from refshard_fs.formats.kerchunk_parquet import source as kerchunk_parquet
from refshard_fs.formats.kerchunk_parquet.source import Layout
from tests.servers.http import RangeServer
from tests.support.parquet_sets import (
    DATA,
    ENCODINGS,
    list_fetched,
    make_files,
    make_partition,
    make_v2_array,
    make_v3_array,
    serve_set,
    store,
)

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


def test_set_on_this_machine_is_read_without_an_event_loop(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {"v/.zarray": make_v2_array([4], [2])}
    (tmp_path / "v").mkdir()
    (tmp_path / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    (tmp_path / "v/refs.0.parq").write_bytes(make_partition([[target, 3, 2], [target, 5, 2]]))
    fs = RefShardFileSystem(str(tmp_path), skip_instance_cache=True)
    assert fs.exists("v"), "opens the set"
    for name, module in list(sys.modules.items()):
        if name.startswith("refshard_fs.") and hasattr(module, "sync"):
            monkeypatch.setattr(module, "sync", None)
    assert fs.cat_file("v/1") == DATA[5:7]
    assert fs.references["v/0"] == [target, 3, 2]


def test_inline_data_are_read_with_or_without_statistics(tmp_path: Path) -> None:
    for statistics in (True, False):
        for raw in ([None, None], [None, b"ab"]):
            columns = {"path": pa.array([None, None], pa.string()), "raw": pa.array(raw, pa.binary())}
            out = io.BytesIO()
            parquet.write_table(pa.table(columns), out, write_statistics=statistics)
            (tmp_path / "v").mkdir(exist_ok=True)
            metadata = {"v/.zarray": make_v2_array([4], [2])}
            (tmp_path / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
            (tmp_path / "v/refs.0.parq").write_bytes(out.getvalue())
            fs = RefShardFileSystem(str(tmp_path), skip_instance_cache=True)
            fs.invalidate_cache()
            assert fs.exists("v/1") is (raw[1] is not None)
            assert raw[1] is None or fs.cat_file("v/1") == raw[1]


@pytest.mark.parametrize("name", ["air", "cesm2_native", "hdf5_mini_shuffle_zstd"])
def test_parquet_sets_equal_their_json_form(name: str, shared_data: Path) -> None:
    lazy = RefShardFileSystem(str(shared_data / "values" / f"{name}.parq"))
    flat = RefShardFileSystem(str(shared_data / "values" / f"{name}.kerchunk.json"))
    keys = set(flat.find(""))
    assert set(lazy.find("")) == keys | {".zmetadata"} == set(lazy.references)
    for key in keys:
        if key.rpartition("/")[2].startswith(".z"):
            assert json.loads(lazy.cat_file(key)) == json.loads(flat.cat_file(key))
        else:
            assert lazy.cat_file(key) == flat.cat_file(key)


def test_directory_name_of_many_digits_is_not_a_chunk(tmp_path: Path) -> None:
    meta = {"a/.zarray": {**make_v2_array([2, 2], [1, 1]), "dimension_separator": "/"}}
    fs = RefShardFileSystem(store(tmp_path, make_files(meta, 4, {"a/refs.0.parq": [["u", 0, 1]] * 4})))
    assert fs.ls("a/1", detail=False) == ["a/1/0", "a/1/1"]
    with pytest.raises(FileNotFoundError):
        fs.ls("a/" + "9" * 5000)


def test_published_set_has_references_in_its_parquet_files(shared_data: Path) -> None:
    root = shared_data / "refs" / "arg-wrf-parquet" / "combined.parq"
    fs = RefShardFileSystem(str(root))
    assert fs.cat_file(".zmetadata") == (root / ".zmetadata").read_bytes()
    table = parquet.ParquetFile(root / "HR2" / "refs.0.parq").read().slice(0, 2).to_pylist()
    assert [fs.references[f"HR2/{i}.0.0"] for i in range(2)] == [[r["path"], r["offset"], r["size"]] for r in table]
    assert [i["size"] for i in fs.ls("HR2") if i["name"][-1] == "0"] == [r["size"] for r in table]
    assert "HR2/2.0.0" not in fs.references  # the file is padded to 1000 rows


@pytest.mark.parametrize("engine", ["pyarrow", "fastparquet"])
@pytest.mark.parametrize("threshold", [1, 10**6])
def test_sets_written_by_fsspec_are_read(engine: str, threshold: int, tmp_path: Path, target: str) -> None:
    for needed in ("pandas", "kerchunk.df", engine):
        pytest.importorskip(needed)
    warnings.simplefilter("ignore")  # pandas announces the end of its fastparquet engine
    reference = importlib.import_module("fsspec.implementations.reference")
    out = reference.LazyReferenceMapper.create(
        str(tmp_path / "set"), record_size=4, engine=engine, categorical_threshold=threshold
    )
    refs: dict[str, Any] = {
        ".zgroup": {"zarr_format": 2},
        "g/.zgroup": {"zarr_format": 2},
        "g/a/.zarray": make_v2_array([3, 3], [1, 1]),
        "g/a/.zattrs": {"x": 1},
        "s/.zarray": make_v2_array([], []),
    }
    for key, value in refs.items():
        out[key] = json.dumps(value)
    chunks: dict[str, Any] = {f"g/a/{n // 3}.{n % 3}": [target, n, n + 1] for n in (0, 1, 2, 5, 8)}
    chunks |= {"g/a/1.0": b"\0inline", "g/a/2.1": [target], "s/0": b"scalar"}
    for key, value in chunks.items():
        out[key] = value
    out.flush()
    fs = RefShardFileSystem(str(tmp_path / "set"))
    found = {key: json.loads(v) if isinstance(v, str) and v[:1] == "{" else v for key, v in fs.references.items()}
    assert found == {**refs, **chunks, ".zmetadata": (tmp_path / "set" / ".zmetadata").read_bytes()}
    assert fs.cat_file("g/a/1.2") == DATA[5:11]
    assert fs.cat_file("g/a/2.1") == DATA
    assert fs.info("g/a/2.1")["size"] == len(DATA)
    for key in ("g/a/1.1", "g/a/2.0", "g/a/3.0", "g/a/0", "g/b/0.0"):
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)


@pytest.mark.parametrize(("record_size", "array"), [(1, "a"), (2, "g/deep/a"), (4, ""), (100, "a")])
@pytest.mark.parametrize(("meta", "name", "tail"), ENCODINGS.values(), ids=ENCODINGS)
def test_keys_follow_the_arrays_own_metadata(
    record_size: int, meta: dict[str, Any], name: str, tail: str, array: str, tmp_path: Path, target: str
) -> None:
    rows = [[target, 0, 1], None, [target, 2, 3], b"in", [target], None]
    stem = f"{array}/" if array else ""
    partitions = {
        f"{stem}refs.{i}.parq": rows[i * record_size : (i + 1) * record_size] for i in range(-(-6 // record_size))
    }
    if record_size == 1:
        del partitions[f"{stem}refs.1.parq"]  # a missing partition is like a row without a reference
    fs = RefShardFileSystem(store(tmp_path / "set", make_files({stem + name: meta}, record_size, partitions)))
    places = itertools.product(range(2), range(3))
    expected = {stem + tail.format(*at): row for at, row in zip(places, rows, strict=True) if row is not None}
    assert {k: v for k, v in fs.references.items() if not k.endswith((".zmetadata", name))} == expected
    assert len(fs.references) == len(expected) + 2
    content = {
        k: v if isinstance(v, bytes) else DATA[v[1] : v[1] + v[2]] if v[1:] else DATA for k, v in expected.items()
    }
    assert fs.cat(list(expected)) == content
    found = fs.find("", detail=True)
    assert set(found) == expected.keys() | {stem + name} | (set() if name == "zarr.json" else {".zmetadata"})
    sizes = {k: v if v is None else len(v) for k, v in {**content, stem + tail.format(1, 1): None}.items()}
    assert {k: found[k]["size"] for k in expected} == sizes
    directories = {k.rpartition("/")[0] for k in expected if "/" in k}
    assert all(fs.isdir(d) for d in directories)
    assert not fs.isdir(stem + "c/2")
    assert not fs.exists(stem + tail.format(0, 1))
    for directory in directories:
        assert set(fs.ls(directory, detail=False)) >= {k for k in expected if k.rpartition("/")[0] == directory}


@pytest.mark.parametrize(
    ("meta", "name", "tail"),
    [
        (make_v2_array([], []), ".zarray", "0"),
        (make_v3_array([], [], {"name": "default"}), "zarr.json", "c"),
        (make_v3_array([], [], {"name": "v2"}), "zarr.json", "0"),
    ],
)
def test_array_without_dimensions_has_one_row(meta: dict[str, Any], name: str, tail: str, tmp_path: Path) -> None:
    fs = RefShardFileSystem(store(tmp_path / "set", make_files({f"s/{name}": meta}, 3, {"s/refs.0.parq": [b"x"]})))
    assert fs.cat_file(f"s/{tail}") == b"x"
    assert fs.ls("s", detail=False) == sorted([f"s/{name}", f"s/{tail}"])


def test_empty_arrays_have_no_chunks(tmp_path: Path) -> None:
    metadata = {
        "e/.zarray": make_v2_array([0, 3], [2, 2]),
        "z/.zarray": make_v2_array([0], [0], dimension_separator="/"),
    }
    fs = RefShardFileSystem(store(tmp_path / "set", make_files(metadata, 3, {})))
    assert fs.find("") == [".zmetadata", "e/.zarray", "z/.zarray"]
    assert not fs.exists("e/0.0")


def test_missing_partition_file_means_no_chunks(tmp_path: Path, target: str) -> None:
    content = make_files(
        {"a/.zarray": make_v2_array([9], [1])}, 3, {"a/refs.1.parq": [[target, i, 1] for i in range(3)]}
    )
    fs = RefShardFileSystem(store(tmp_path / "set", content))
    assert fs.ls("a", detail=False) == ["a/.zarray", "a/3", "a/4", "a/5"]
    for key in ("a/2", "a/6", "a/8", "a/9"):
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)
    assert fs.cat(["a/0", "a/3", "a/8"], on_error="omit") == {"a/3": DATA[:1]}


def test_relative_urls_are_relative_to_the_set(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(DATA)
    root = store(
        tmp_path / "set",
        make_files({"a/.zarray": make_v2_array([2], [1])}, 2, {"a/refs.0.parq": [["x.bin"], ["x.bin", 1, 2]]}),
    )
    assert RefShardFileSystem(root + "/").cat_file("a/1") == DATA[1:3]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.bin").write_bytes(b"other")
    assert RefShardFileSystem(root, base_url=str(tmp_path / "elsewhere")).cat_file("a/0") == b"other"
    assert RefShardFileSystem(root).references["a/0"] == ["x.bin"]


def test_remote_options_apply_to_the_protocol_of_the_first_url(tmp_path: Path, http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    root = store(
        tmp_path / "set", make_files({"a/.zarray": make_v2_array([4], [1])}, 2, {"a/refs.1.parq": [None, [url, 1, 2]]})
    )
    fs = RefShardFileSystem(root, remote_options={"headers": {"x-who": "me"}})
    assert fs.cat_file("a/3") == DATA[1:3]
    assert {r.headers.get("x-who") for r in http_server.requests("/x")} == {"me"}


def test_lookup_loads_one_partition(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(serve_set(http_server))
    assert list_fetched(http_server) == []
    assert fs.cat_file("a/120") == DATA[120:124]
    assert list_fetched(http_server) == ["/set/a/refs.2.parq"]
    assert fs.cat_file("a/149") == DATA[149:153]
    assert "a/101" in fs.references
    assert list_fetched(http_server) == ["/set/a/refs.2.parq"]


def test_many_lookups_load_each_partition_once(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(serve_set(http_server))
    rng = random.Random(3)
    numbers = [rng.randrange(1000) for _ in range(1000)]
    got = fs.cat_ranges([f"a/{n}" for n in numbers], None, None)
    assert got == [DATA[n % 900 : n % 900 + 4] for n in numbers]
    for n in numbers:
        assert fs.references[f"a/{n}"][1] == n % 900
    paths = list_fetched(http_server)
    assert len(paths) == len(set(paths)) == 20


def test_concurrent_readers_load_a_partition_once(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(serve_set(http_server), asynchronous=True)

    async def read() -> list[bytes]:
        return await asyncio.gather(*(fs._cat_file(f"a/{n}") for n in range(50)))

    assert asyncio.run(read()) == [DATA[n : n + 4] for n in range(50)]
    assert list_fetched(http_server).count("/set/a/refs.0.parq") == 1


def test_missing_partition_is_requested_once(http_server: RangeServer) -> None:
    url = serve_set(http_server)
    http_server.delete("/set/a/refs.3.parq")
    fs = RefShardFileSystem(url)
    for n in range(150, 200):
        assert not fs.exists(f"a/{n}")
    assert len(http_server.requests("/set/a/refs.3.parq")) == 1


def test_cache_size_limits_the_partitions_in_memory(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(serve_set(http_server), cache_size=2)
    for n in (0, 50, 100, 51, 0):
        assert fs.cat_file(f"a/{n}") == DATA[n : n + 4]
    names = [path[-6] for path in list_fetched(http_server)]
    assert names == ["0", "0", "1", "2"]  # partition 0 was evicted before its second read, partition 1 was not


def test_rewritten_set_is_read_again(tmp_path: Path) -> None:
    metadata = {"a/.zarray": make_v2_array([2], [1])}
    for text in (b"old", b"newer"):
        root = store(tmp_path / "set", make_files(metadata, 2, {"a/refs.0.parq": [text, text]}))
        assert RefShardFileSystem(root).cat_file("a/1") == text


def test_threads_read_the_right_bytes_at_the_same_time(tmp_path: Path, target: str) -> None:
    content = make_files(
        {"a/.zarray": make_v2_array([400], [1])}, 100, {f"a/refs.{i}.parq": [[target, 1, 2]] * 100 for i in range(4)}
    )
    root = store(tmp_path / "set", content)
    wrong = []

    def read(seed: int) -> None:
        fs = RefShardFileSystem(root)
        rng = random.Random(seed)
        wrong.extend(n for n in range(100) if fs.cat_file(f"a/{rng.randrange(400)}") != DATA[1:3])

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def write_table(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def make_set(tmp_path: Path, data: bytes) -> RefShardFileSystem:
    root = store(tmp_path / "set", make_files({"a/.zarray": make_v2_array([8], [1])}, 4, {"a/refs.1.parq": [b"x"] * 4}))
    (tmp_path / "set" / "a" / "refs.0.parq").write_bytes(data)
    return RefShardFileSystem(root)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a valid parquet file"),
        (make_partition([b"y"] * 4)[:-9], "is not a valid parquet file"),
        (b"PAR1" + bytes(100) + b"PAR1", "is not a valid parquet file"),
        (make_partition([b"y"] * 3), "3 rows: expected at least 4"),
        (make_partition([b"y"] * 5), "5 rows: expected at most 4"),
        (write_table(path=[1, 2, 3, 4]), "'path' has the type int64"),
        (write_table(path=["u"] * 4, offset=["0"] * 4), "'offset' has the type .*string"),
        (write_table(path=["u"] * 4, size=[0.5] * 4), "'size' has the type double"),
        (write_table(path=["u"] * 4, size=[[1]] * 4), "'size' is nested"),
        (write_table(raw=[1, 2, 3, 4]), "'raw' has the type int64"),
        (write_table(other=[1, 2, 3, 4]), "none of the columns"),
    ],
)
def test_damaged_partition_is_an_error_that_names_the_file(data: bytes, reason: str, tmp_path: Path) -> None:
    fs = make_set(tmp_path, data)
    for read in (fs.cat_file, fs.info, fs.references.__getitem__):
        with pytest.raises(DamagedIndex, match=reason) as caught:
            read("a/2")
        assert "refs.0.parq" in caught.value.target
        assert caught.value.key == "a/2"
    with pytest.raises(DamagedIndex, match=r"refs\.0\.parq"):
        fs.ls("a")
    with pytest.raises(DamagedIndex):
        list(fs.references)
    assert fs.cat_file("a/4") == b"x"  # other partitions can be read


def test_partition_that_cannot_be_read_is_an_error(http_server: RangeServer) -> None:
    url = serve_set(http_server)
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert fs.exists("a/.zarray")
    http_server.fault("status", "/set/a/refs.0.parq", status=403)
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file("a/1")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"metadata": {}, "record_size": 10', "not JSON"),
        (b'{"metadata": {}, "record_size": 0}', "record_size is 0"),
        (b'{"metadata": {}, "record_size": -5}', "record_size is -5"),
        (b'{"metadata": {}, "record_size": "10"}', "with 'metadata'"),
        (b'{"metadata": {}, "record_size": true}', "with 'metadata'"),
        (b'{"metadata": [], "record_size": 10}', "with 'metadata'"),
        (b'{"record_size": 10}', "with 'metadata'"),
        (b'{"metadata": {"a/.zarray": "{}"}, "record_size": 10}', "'a/.zarray' .* expected a JSON object"),
        (b'{"metadata": {"../a/.zarray": {}}, "record_size": 10}', "'../a/.zarray' is not a key"),
        (b'{"metadata": {"/a/.zarray": {}}, "record_size": 10}', "'/a/.zarray' is not a key"),
        (b'{"metadata": {"a/.zarray": {"zarr_format": 2, "shape": 3}}, "record_size": 10}', "a/.zarray"),
    ],
)
def test_wrong_metadata_document_is_refused(document: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=reason) as caught:
        RefShardFileSystem(store(tmp_path / "set", {".zmetadata": document})).find("")
    assert ".zmetadata" in str(caught.value)


@pytest.mark.parametrize(
    "partitions",
    [
        {"a": {"0": "../refs.0.ab.parq"}},
        {"a": {"0": "sub/refs.0.ab.parq"}},
        {"a": {"0": "other.parq"}},
        {"a": {"0": 5}},
        {"a": {"-1": "refs.0.ab.parq"}},
        {"a": {"x": None}},
        {"a": []},
        [],
    ],
)
def test_invalid_names_of_partition_files_are_refused(partitions: Any) -> None:
    document = {"metadata": {}, "record_size": 1, "refshard": {"partitions": partitions}}
    with pytest.raises(ManifestError, match=r"\.zmetadata"):
        Layout(json.dumps(document).encode(), ".zmetadata")


def test_zmetadata_without_a_record_size_is_not_a_parquet_set(tmp_path: Path) -> None:
    plain = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}}}
    plain["metadata"][".zattrs"] = {"record_size": 7}  # type: ignore[index]  # a dict
    root = store(tmp_path / "plain", {".zmetadata": json.dumps(plain).encode(), ".zgroup": b'{"zarr_format": 2}'})
    try:
        fs = RefShardFileSystem(root)
        keyspace = fs.source.open()
    except UnknownSource:
        return
    assert not isinstance(keyspace, kerchunk_parquet.ParquetKeySpace)


def test_error_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store(tmp_path / "set", make_files({"a/.zarray": make_v2_array([2], [1])}, 2, {}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises((ImportError, RefShardError), match=r"refshard_fs\[parquet\]"):
        RefShardFileSystem(root).ls("")


@pytest.mark.case(id="P31")
def test_new_filesystem_checks_the_version_of_partitions(http_server: RangeServer) -> None:
    """Only the partition changes: it is written again with other offsets."""
    http_server.put("/x", b"A" * 10 + b"B" * 10)
    array = {"zarr_format": 2, "shape": [4], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
    metadata = {".zgroup": {"zarr_format": 2}, "a/.zarray": {**array, "order": "C", "filters": None}}
    http_server.put("/s/.zmetadata", json.dumps({"metadata": metadata, "record_size": 4}).encode())
    for offset, expected in ((0, b"A" * 10), (10, b"B" * 10)):
        rows = {"path": [http_server.url + "/x"] * 4, "offset": [offset] * 4, "size": [10] * 4, "raw": [None] * 4}
        out = io.BytesIO()
        types = {"path": pa.string(), "offset": pa.int64(), "size": pa.int64(), "raw": pa.binary()}
        parquet.write_table(pa.table(rows, schema=pa.schema(list(types.items()))), out)
        http_server.put("/s/a/refs.0.parq", out.getvalue())
        for _ in range(2):
            http_server.clear()
            fs = RefShardFileSystem(http_server.url + "/s", skip_instance_cache=True)
            assert fs.cat_file("a/0") == expected
            assert fs.cat_file("a/1") == expected
        assert [request.method for request in http_server.requests("/s/a/refs.0.parq")] == ["HEAD"]


def test_reader_of_a_set_that_was_replaced_gets_an_error(tmp_path: Path) -> None:
    """Without the error, a missing partition would be missing chunks, which zarr fills."""

    def references(count: int) -> dict[str, Any]:
        meta = {"zarr_format": 2, "shape": [count], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
        refs = {f"a/{number}": [str(tmp_path / "x.bin"), number, 1] for number in range(count)}
        return {"a/.zarray": json.dumps({**meta, "filters": None, "compressor": None}), **refs}

    (tmp_path / "x.bin").write_bytes(bytes(range(30)))
    url = str(tmp_path / "set.parq")
    RefShardFileSystem(references(30)).save(url, record_size=10)
    reader = RefShardFileSystem(url, index_cache=False, skip_instance_cache=True)
    assert reader.cat_file("a/3") == b"\x03"
    RefShardFileSystem(references(5)).save(url, record_size=10, overwrite=True)
    with pytest.raises(TargetChanged):
        reader.cat_file("a/25")

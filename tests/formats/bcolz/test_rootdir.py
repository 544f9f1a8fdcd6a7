"""bcolz rootdirs are groups of arrays, with the values that were written; a damaged file is an error."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem
from refshard_fs.core.array_group import OBJECTS
from refshard_fs.errors import DamagedIndex, NotListable
from tests.servers.http import RangeServer
from tests.support.blosc_samples import Sample, find_samples, read_sample
from tests.support.blosc_sources import make_carray, make_table
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.case(id="P33")

ROOTDIRS = [s for s in find_samples() if not s.is_file]
SOUND = [s for s in ROOTDIRS if not s.is_refused]
SAMPLE_IDS = {"ids": lambda s: s.name}


def read_chunk(files: Files, key: str) -> np.ndarray[Any, Any]:
    data = files.read(files.open(), key)
    assert data is not None
    return np.frombuffer(blosc.decompress(data), "<i8")


@pytest.mark.parametrize("sample_", SOUND, **SAMPLE_IDS)
def test_zarr_reads_the_written_values(sample_: Sample) -> None:
    reading = pytest.importorskip("tests.support.zarr_reading")
    for zarr_format in reading.FORMATS:
        group = reading.open_group(RefShardFileSystem(fo=str(sample_.path), zarr_format=zarr_format))
        if sample_.expected["kind"] == "ctable":
            assert dict(group.attrs) == sample_.expected["attrs"]
        assert set(group.array_keys()) == set(sample_.arrays)
        for name, expected in sample_.arrays.items():
            array = group[name]
            actual = reading.read_values(array)
            assert list(array.shape) == expected["shape"]
            reading.check(actual, expected, zarr_format)
            attributes = dict(array.attrs)
            attributes.pop("_ARRAY_DIMENSIONS", None)
            attributes.pop(OBJECTS, None)
            assert attributes == expected.get("attrs", {})


@pytest.mark.parametrize("sample_", SOUND, **SAMPLE_IDS)
def test_full_chunk_is_the_range_of_its_frame(sample_: Sample) -> None:
    files = Files.of(sample_.path)
    keyspace = files.open()
    for array, expected in sample_.arrays.items():
        inner = ".0" * (len(expected["shape"]) - 1)
        chunk_files = sample_.chunks(array)
        full = min(expected["chunklen"], max(expected["shape"][0], 1))
        count = -(-expected["shape"][0] // expected["chunklen"])
        for number, (name, frame) in enumerate(chunk_files[:count]):
            files.wanted.clear()
            data = files.read(keyspace, f"{array}/{number}{inner}")
            begin, end = frame["offset"], frame["offset"] + frame["ctbytes"]
            url = f"{ROOT}/{name}"
            ranges = [(wanted_url, start, stop) for wanted_url, start, stop in files.wanted if wanted_url == url]
            assert ranges == [(url, 0, 32), (url, begin, end)]
            size = full * frame["nbytes"] // min(full, expected["shape"][0] - number * full) if number else None
            if size is None or frame["nbytes"] == size:
                assert data == files.files[url][begin:end]
                assert files.wanted == ranges
        assert files.run(keyspace.lookup(f"{array}/{count}{inner}")) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("obj", "pickles"), ("c_snappy", "snappy"), ("c16", "meta/storage: .*found an empty file")],
)
def test_unsupported_carrays_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        RefShardFileSystem(fo=str(read_sample(name).path)).ls("")


def test_three_samples_of_rootdirs_are_marked_as_refused() -> None:
    assert {s.name.rpartition("/")[2] for s in ROOTDIRS if s.is_refused} == {"obj", "c_snappy", "c16"}


def test_server_without_listings_is_read_by_names(http_server: Any) -> None:
    sample_ = read_sample("i8_leftover")
    for path in sample_.path.rglob("*"):
        if path.is_file():
            http_server.put(f"/t/{path.relative_to(sample_.path).as_posix()}", path.read_bytes())
    fs = RefShardFileSystem(fo=f"{http_server.url}/t")
    assert fs.ls("data", detail=False) == [f"data/{key}" for key in (".zarray", ".zattrs", "0", "1", "2")]
    for number, (name, frame) in enumerate(sample_.chunks("data")[:2]):
        http_server.clear()
        data = fs.cat_file(f"data/{number}")
        stop = 16 + frame["ctbytes"]
        ranges = [(request.path, request.start, request.stop) for request in http_server.requests()]
        assert ranges == [(f"/t/{name}", 0, 32), (f"/t/{name}", 16, stop)]
        assert data == (sample_.path / name).read_bytes()[16:stop]
    assert len(fs.cat_file("data/2")) == 80 + 16
    assert fs.info("data/2")["size"] == 80 + 16
    assert fs.cat_file("data/2", start=4, end=8) == struct.pack("<I", 80)


@pytest.mark.parametrize("sample_", SOUND[::3], **SAMPLE_IDS)
def test_zarr_requests_header_and_frame_of_each_chunk_once(sample_: Sample) -> None:
    reading = pytest.importorskip("tests.support.zarr_reading")
    with RangeServer(directory=sample_.path.parent) as server:
        group = reading.open_group(RefShardFileSystem(fo=f"{server.url}/{sample_.path.name}"))
        for name, expected in sample_.arrays.items():
            reading.check(reading.read_values(group[name]), expected, 2)
        requested: dict[str, list[Any]] = {}
        for request in server.requests():
            if "/data/" in request.path:
                requested.setdefault(request.path, []).append((request.start, request.stop))
    expected_ranges = {}
    for name, expected in sample_.arrays.items():
        count = -(-expected["shape"][0] // expected["chunklen"])
        for path, frame in sample_.chunks(name)[:count]:
            expected_ranges[f"/{sample_.path.name}/{path}"] = [(0, 32), (16, 16 + frame["ctbytes"])]
    assert requested == expected_ranges


def test_table_in_an_object_store_is_read(s3_server: Any) -> None:
    options = s3_server.storage_options
    bucket = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    sample_ = read_sample("ct")
    bucket.makedirs("bcolz", exist_ok=True)
    bucket.put(str(sample_.path), "bcolz/ct", recursive=True)
    fs = RefShardFileSystem(fo="s3://bcolz/ct", target_options=options, remote_protocol="s3", remote_options=options)
    assert {"id", "x", "tag", "vec", "flag"} <= set(fs.ls("", detail=False))
    actual = b"".join(blosc.decompress(fs.cat_file(f"id/{number}")) for number in range(3))
    assert hashlib.sha256(actual[: 23 * 4]).hexdigest() == sample_.arrays["id"]["sha256"]


def test_column_names_are_quoted_for_http(http_server: Any) -> None:
    values = np.arange(5)
    for url, data in make_table(**{"50% #1?": make_carray(values, 5)}).items():
        http_server.put(url.replace(ROOT, "/t"), data)
    fs = RefShardFileSystem(fo=f"{http_server.url}/t")
    assert np.frombuffer(blosc.decompress(fs.cat_file("50% #1?/0")), "<i8").tolist() == [0, 1, 2, 3, 4]


def test_columns_share_a_dimension_in_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    fs = RefShardFileSystem(fo=str(next(s for s in find_samples() if s.name == "bcolz-zipline-1.13.0/ct").path))
    with xarray.open_dataset(fs.get_mapper(""), engine="zarr", chunks=None) as ds:
        assert dict(ds.sizes) == {"row": 23, "vec_dim_1": 2}
        assert ds["x"].attrs == {"units": "s"}
        assert ds.attrs == {"title": "demo"}
        assert ds["id"].dtype == np.int32
        assert (ds["id"].values == 0).any()  # zeros are values: nothing is masked


def test_written_dimension_names_are_kept() -> None:
    files = make_carray(np.arange(10), 4)
    files[f"{ROOT}/__attrs__"] = b'{"_ARRAY_DIMENSIONS": ["time"], "units": "m"}'
    for zarr_format, key, field in ((2, "data/.zattrs", None), (3, "data/zarr.json", "attributes")):
        memory = Files(files)
        document = json.loads(memory.read(memory.open(zarr_format=zarr_format), key) or b"")
        if field is None:
            assert document == {"_ARRAY_DIMENSIONS": ["time"], "units": "m"}
        else:
            assert document["attributes"] == {"units": "m"}
            assert document["dimension_names"] == ["time"]


def test_fill_value_is_null_in_version_2_and_0_in_version_3() -> None:
    files = Files(make_carray(np.arange(10), 4))
    assert json.loads(files.read(files.open(), "data/.zarray") or b"")["fill_value"] is None
    assert json.loads(files.read(files.open(zarr_format=3), "data/zarr.json") or b"")["fill_value"] == 0


def test_zarr_format_4_is_refused() -> None:
    with pytest.raises(ValueError, match="zarr_format=4"):
        RefShardFileSystem(fo="x", zarr_format=4)


def test_missing_file_is_an_error_and_not_filled(tmp_path: Path) -> None:
    for url, data in make_carray(np.arange(25), 10).items():
        path = tmp_path / url.removeprefix(ROOT + "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "data" / "__1.blp").unlink()
    fs = RefShardFileSystem(fo=str(tmp_path))
    with pytest.raises(ReferenceNotReachable, match=r"data/1.*__1\.blp.*missing"):
        fs.cat_file("data/1")
    with pytest.raises(ReferenceNotReachable, match="missing"):
        fs.cat(["data/0", "data/1", "data/2"], on_error="omit")
    with pytest.raises(KeyError):
        fs.get_mapper("")["data/3"]
    reading = pytest.importorskip("tests.support.zarr_reading")
    array = reading.open_group(fs)["data"]
    assert array[:10].tolist() == list(range(10))
    with pytest.raises(ReferenceNotReachable, match="missing"):
        array[:]


def test_files_after_the_last_chunk_are_ignored() -> None:
    # The array was shortened, and its old files are still there.
    files = make_carray(np.arange(25), 10, shape=[13], nbytes=104)
    assert read_chunk(Files(files), "data/1").tolist()[:3] == [10, 11, 12]
    assert list_files(files, "data") == ["0", "1"]
    del files[f"{ROOT}/data/__2.blp"]
    assert read_chunk(Files(files), "data/0").tolist() == list(range(10))


def list_files(files: dict[str, bytes], directory: str) -> list[str]:
    memory = Files(files)
    children = memory.run(memory.open().children(directory))
    return [item.name for item in children or [] if not item.name.startswith(".z")]


@pytest.mark.parametrize("length", range(32))
def test_chunk_file_truncated_in_its_header_is_an_error(length: int) -> None:
    files = make_carray(np.arange(25), 10)
    files[f"{ROOT}/data/__1.blp"] = files[f"{ROOT}/data/__1.blp"][:length]
    with pytest.raises(DamagedIndex, match=r"cut short.* Write or copy this object again; `refshard check`"):
        read_chunk(Files(files), "data/1")


def test_truncated_frame_is_an_error(tmp_path: Path) -> None:
    # Random numbers do not compress, so frames are plain.
    files = make_carray(np.random.default_rng(0).integers(0, 2**62, 25), 10)
    for number in (1, 2):
        name = f"{ROOT}/data/__{number}.blp"
        assert files[name][18] & 2
        content = files[name]
        for length in range(32, len(content)):
            files[name] = content[:length]
            with pytest.raises(EOFError):
                read_chunk(Files(files), f"data/{number}")
        files[name] = content + b"more"
        assert len(read_chunk(Files(files), f"data/{number}")) == 10
    (tmp_path / "meta").mkdir()
    (tmp_path / "data").mkdir()
    for url, data in files.items():
        (tmp_path / url.removeprefix(ROOT + "/")).write_bytes(data)
    (tmp_path / "data/__1.blp").write_bytes(files[f"{ROOT}/data/__1.blp"][:50])
    with pytest.raises(ReferenceNotReachable, match=r"__1\.blp.*has 50 bytes"):
        RefShardFileSystem(fo=str(tmp_path)).cat_file("data/1")


@pytest.mark.parametrize(
    ("position", "new", "field"),
    [
        (0, b"blpX", "begins with"), (4, b"\2", "version is 2"), (6, b"\1", "reserved"),
        (8, struct.pack("<q", 2), "nchunks is 2"),
        (8, struct.pack("<q", -1), "nchunks is -1"), (16, b"\3", "blosc version 3"), (17, b"\2", "versionlz"),
        (18, b"\x09", "reserved"), (18, b"\x41", "snappy"), (18, b"\xe1", "codec 7"), (19, b"\0", "typesize is 0"),
        (19, b"\3", "typesize 3"), (20, struct.pack("<I", 2**32 - 1), "nbytes"), (20, struct.pack("<I", 72), "nbytes"),
        (20, struct.pack("<I", 88), "nbytes"), (20, struct.pack("<I", 0), "nbytes"),
        (24, struct.pack("<I", 0), "blocksize"), (24, struct.pack("<I", 4096), "blocksize"),
        (28, struct.pack("<I", 15), "ctbytes"), (28, struct.pack("<I", 2**32 - 1), "ctbytes"),
    ],
)  # fmt: skip
def test_forged_header_error_names_the_field(position: int, new: bytes, field: str) -> None:
    files = make_carray(np.zeros(25, "<i8"), 10)
    name = f"{ROOT}/data/__0.blp"
    data = files[name]
    if position == 24:
        data = data[:18] + b"\x21" + data[19:]
        data = data[:28] + struct.pack("<I", len(data) - 16) + data[32:]
    files[name] = data[:position] + new + data[position + len(new) :]
    with pytest.raises(DamagedIndex, match=field):
        read_chunk(Files(files), "data/0")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"chunklen": 0}, "chunklen"), ({"chunklen": -5}, "chunklen"), ({"chunklen": 2.5}, "chunklen"),
        ({"chunklen": True}, "chunklen"), ({"chunklen": 2**70}, "chunklen"), ({"shape": []}, "shape"),
        ({"shape": [-1]}, "shape"), ({"shape": "25"}, "shape"), ({"shape": [2**62, 2**62]}, "shape"),
        ({"shape": [26]}, "nbytes"), ({"nbytes": -1}, "nbytes"), ({"dtype": "object"}, "pickles"),
        ({"dtype": "|O"}, "pickles"), ({"dtype": "[('a', '<i4'), ('b', 'O')]"}, "pickles"), ({"dtype": None}, "dtype"),
        ({"dtype": "int65"}, "dtype"), ({"dtype": "<U0", "nbytes": 0}, "dtype"), ({"dtype": "(2,)<i4"}, "dtype"),
        ({"dtype": "[('a', '<i4')"}, "dtype"), ({"dtype": "__import__('os')"}, "dtype"),
        ({"dtype": "[" * 9000}, "dtype"), ({"dtype": "m8[s/0]"}, "divisor"),
        ({"dtype": "[('a', 'm8' '[s\\x2f0]')]"}, "divisor"), ({"dtype": "i4,M8[D/0]"}, "divisor"),
        ({"cparams": {"cname": "snappy"}}, "snappy"), ({"cparams": {"cname": "rot13"}}, "cname"),
        ({"cparams": {"clevel": 10}}, "cparams"), ({"cparams": None}, "cparams"),
        ({"cparams": {"shuffle": 3}}, "cparams"),
    ],
)  # fmt: skip
def test_impossible_document_error_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ManifestError, match=field):
        Files(make_carray(np.arange(25), 10, **changes)).open()


@pytest.mark.parametrize("name", ["meta/storage", "meta/sizes", "__attrs__"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"shape": 1' + b"0" * 5000 + b"}"])
def test_error_of_damaged_document_names_it(name: str, content: bytes) -> None:
    files = make_carray(np.arange(25), 10)
    files[f"{ROOT}/{name}"] = content
    with pytest.raises(ManifestError, match=name):
        Files(files).open("bcolz")


def test_shape_that_contradicts_the_last_chunk_is_an_error() -> None:
    files = Files(make_carray(np.arange(25), 10, shape=[26], nbytes=208))
    assert read_chunk(files, "data/1").tolist() == list(range(10, 20))
    with pytest.raises(DamagedIndex, match=r"nbytes 40: expected 48 \(for 6 rows\) to 80"):
        read_chunk(files, "data/2")


def test_missing_shape_is_an_error() -> None:
    files = make_carray(np.arange(25), 10)
    del files[f"{ROOT}/meta/sizes"]
    with pytest.raises(ManifestError, match="shape of the carray in .*meta/sizes, found no"):
        Files(files).open()


@pytest.mark.case(id="P26")
def test_large_numbers_in_headers_are_refused() -> None:
    rows = 2**27  # a padded chunk would take a gigabyte
    files = make_carray(np.arange(25), 10, chunklen=rows, shape=[rows + 25], nbytes=(rows + 25) * 8)
    frame = bytearray(files[f"{ROOT}/data/__0.blp"])
    files[f"{ROOT}/data/__1.blp"] = make_carray(np.arange(25), 25)[f"{ROOT}/data/__0.blp"]
    with pytest.raises(DamagedIndex, match=r"__0\.blp.*nbytes 80"):
        read_chunk(Files(files), "data/1")
    frame[18:32] = struct.pack("<BBIII", 3, 8, rows * 8, rows * 8, rows * 8 + 16)
    files[f"{ROOT}/data/__0.blp"] = bytes(frame)
    with pytest.raises(DamagedIndex, match=r"__0\.blp.*cut short"):
        read_chunk(Files(files), "data/1")
    endless = make_carray(np.arange(25), 10, chunklen=1, shape=[2**59], nbytes=2**62)
    with pytest.raises(NotListable, match="too many to list"):
        list_files(endless, "data")


def test_two_columns_of_different_lengths_are_refused() -> None:
    files = make_table(a=make_carray(np.arange(25), 10), b=make_carray(np.arange(24), 10))
    with pytest.raises(ManifestError, match="'a': 25, 'b': 24"):
        Files(files).open()


@pytest.mark.parametrize(
    "names", [["../a"], ["a/b"], [".."], ["."], [""], ["a", "a"], ["\\a"], [7], [".zarray"], ["zarr.json"], "a", None]
)
def test_invalid_column_names_are_refused(names: Any) -> None:
    files = make_table(a=make_carray(np.arange(25), 10))
    files[f"{ROOT}/__rootdirs__"] = json.dumps({"names": names}).encode()
    with pytest.raises(ManifestError, match="names"):
        Files(files).open()


def test_missing_column_is_reported() -> None:
    files = make_table(a=make_carray(np.arange(25), 10), b=make_carray(np.arange(25), 10))
    del files[f"{ROOT}/b/meta/storage"]
    keyspace = Files(files).open()
    assert set(keyspace.grids) == {"a"}
    with pytest.raises(ManifestError, match="b/meta/storage, found no"):
        Files(files).read(keyspace, "b/0")
    del files[f"{ROOT}/a/meta/storage"]
    with pytest.raises(ManifestError, match="that can be shown, found none.*a/meta/storage, found no"):
        Files(files).open()


def test_column_of_another_length_is_reported() -> None:
    columns = {name: make_carray(np.arange(25 - (name == "b")), 10) for name in "abc"}
    keyspace = Files(make_table(**columns)).open()
    assert set(keyspace.grids) == {"a", "c"}
    assert keyspace.reports == {"b": "it has 24 rows: expected 25, as in 2 of the 3 columns"}


COMPRESSED = make_carray(np.arange(25), 10)
# Bits of the flags and the typesize: only the codec can notice wrong bits in them.
MEANING = {byte * 8 + bit for byte in (18, 19) for bit in range(8)}


@given(st.integers(0, 2), st.integers(0, 32 * 8 - 1).filter(lambda bit: bit not in MEANING))
def test_header_bit_flip_outside_flags_gives_error_or_values(number: int, bit: int) -> None:
    name = f"{ROOT}/data/__{number}.blp"
    damaged = bytearray(COMPRESSED[name])
    damaged[bit // 8] ^= 1 << bit % 8
    files = Files({**COMPRESSED, name: bytes(damaged)})
    try:
        actual = read_chunk(files, f"data/{number}")
    except (RefShardError, EOFError, ValueError, RuntimeError):
        return
    expected = list(range(number * 10, min(number * 10 + 10, 25)))
    assert actual.tolist()[: len(expected)] == expected

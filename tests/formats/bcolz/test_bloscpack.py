"""bloscpack files are groups of one array, with the values that were written; a damaged file is an error."""

from __future__ import annotations

import ast
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numcodecs import blosc

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.bcolz.blosc import CHECKSUMS
from refshard_fs.formats.bcolz.bloscpack import OFFSETS_AT_ONCE
from tests.servers.http import RangeServer
from tests.support.blosc_samples import Sample, find_samples, read_sample
from tests.support.blosc_sources import PLAIN, TABLE, VALUES, decode_chunks, make_numpy_metadata, pack_values, put
from tests.support.shards_in_memory import ROOT, Files

pytestmark = [pytest.mark.usefixtures("large_files"), pytest.mark.case(id="P33")]

EVERY = [s for s in find_samples() if s.is_file]
SOUND = [s for s in EVERY if not s.is_refused]
SAMPLE_IDS = {"ids": lambda s: s.name}


@pytest.mark.parametrize("sample_", SOUND, **SAMPLE_IDS)
def test_zarr_reads_the_written_values(sample_: Sample) -> None:
    reading = pytest.importorskip("tests.support.zarr_reading")
    expected = sample_.expected
    for zarr_format in reading.FORMATS:
        group = reading.open_group(RefShardFileSystem(fo=str(sample_.path), zarr_format=zarr_format))
        actual = reading.read_values(group["data"])
        reading.check(actual, expected, zarr_format)
        attributes = dict(group["data"].attrs)
        attributes.pop("_ARRAY_DIMENSIONS", None)
        if expected["kind"] == "bytes":
            assert (actual.dtype, actual.shape) == (np.dtype("u1"), (expected["nbytes"],))
            assert attributes == (expected["metadata"] or {})
        else:
            assert list(actual.shape) == expected["shape"]
            assert attributes == {}


@pytest.mark.parametrize("sample_", SOUND, **SAMPLE_IDS)
def test_full_chunk_is_the_range_of_its_frame(sample_: Sample) -> None:
    files = Files.of(sample_.path)
    data = files.files[ROOT]
    keyspace = files.open()
    header, grid = sample_.expected["header"], keyspace.grids["data"]
    if sample_.name.endswith("unaligned.blp") or not grid.size:
        return
    full = header["chunk_size"]
    assert grid.size == len(header["chunks"])
    for number, frame in enumerate(header["chunks"]):
        begin, end = frame["offset"], frame["offset"] + frame["ctbytes"]
        files.wanted.clear()
        chunk = files.read(keyspace, f"data/{grid.tail(number)}")
        assert files.wanted[-1] == (ROOT, begin, end)
        if "offsets_at" in header:
            table = header["offsets_at"], header["offsets_at"] + 8 * header["nchunks"]
            assert files.wanted == [(ROOT, *table), (ROOT, begin, begin + 16), (ROOT, begin, end)]
        if frame["nbytes"] == full:
            assert chunk == data[begin:end]
        else:
            assert len(chunk or b"") == full + 16


@pytest.mark.parametrize("sample_", SOUND[::3], **SAMPLE_IDS)
@pytest.mark.parametrize("options", [{}, {"max_gap": -1}, {"max_gap": 1 << 20}], ids=str)
def test_zarr_requests_only_offsets_headers_and_frames(sample_: Sample, options: dict[str, Any]) -> None:
    reading = pytest.importorskip("tests.support.zarr_reading")
    with RangeServer(directory=sample_.path.parent) as server:
        group = reading.open_group(RefShardFileSystem(fo=f"{server.url}/{sample_.path.name}", **options))
        server.clear()  # opening reads the first 4 KiB, to recognise the format
        reading.check(reading.read_values(group["data"]), sample_.expected, 2)
        read = {position for request in server.requests() for position in range(request.start, request.stop)}
    header = sample_.expected["header"]
    table = range(header.get("offsets_at", 0), header.get("offsets_at", 0) + 8 * header["nchunks"])
    frames = {
        position
        for frame in header["chunks"]
        for position in range(frame["offset"], frame["offset"] + frame["ctbytes"])
    }
    assert read - set(table) == (frames if header["chunk_size"] else set())  # a header is the start of its frame


def get_itemsize(sample_: Sample) -> int:
    text = sample_.expected.get("dtype", "|u1")
    return np.dtype(ast.literal_eval(text) if text.startswith("[") else text).itemsize


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("sample_", SOUND, **SAMPLE_IDS)
def test_plan_of_a_chunk_is_its_frames_and_their_checksums(sample_: Sample, verify: bool) -> None:
    header = sample_.expected["header"]
    tail = CHECKSUMS[header["checksum"]].size if verify else 0
    with RangeServer(directory=sample_.path.parent) as server:
        fs = RefShardFileSystem(fo=f"{server.url}/{sample_.path.name}", verify=verify)
        total = sum(frame["nbytes"] for frame in header["chunks"])
        keys = [key for key in fs.find("data") if not key.endswith((".zarray", ".zattrs"))]
        size = int(np.prod(json.loads(fs.cat_file("data/.zarray"))["chunks"])) * get_itemsize(sample_)
        for number, key in enumerate(keys):
            start, stop = number * size, min((number + 1) * size, total)
            frames = header["chunks"][start // header["chunk_size"] : -(-stop // header["chunk_size"])]
            planned = {position for _, begin, end, _ in fs.plan(key) for position in range(begin, end)}
            assert planned == {
                position
                for frame in frames
                for position in range(frame["offset"], frame["offset"] + frame["ctbytes"] + tail)
            }
            if len(frames) == 1 and frames[0]["nbytes"] == size and not tail:
                assert fs.resolve(key)[1:] == (frames[0]["offset"], frames[0]["offset"] + frames[0]["ctbytes"])


@pytest.mark.parametrize(
    "sample_", [sample_ for sample_ in SOUND if sample_.name.endswith("unaligned.blp")], **SAMPLE_IDS
)
def test_unaligned_chunk_is_joined_from_its_frames(sample_: Sample) -> None:
    files = Files.of(sample_.path)
    keyspace = files.open()
    header, (rows, width) = sample_.expected["header"], sample_.expected["shape"]
    per_chunk = json.loads(files.read(keyspace, "data/.zarray") or b"")["chunks"][0]
    row = width * np.dtype(sample_.expected["dtype"]).itemsize
    for chunk_number, start in enumerate(range(0, rows, per_chunk)):
        files.wanted.clear()
        chunk = blosc.decompress(files.read(keyspace, f"data/{chunk_number}.0"))
        stop = min(start + per_chunk, rows)
        first_frame, last_frame = start * row // header["chunk_size"], (stop * row - 1) // header["chunk_size"]
        frames = [
            (frame["offset"], frame["offset"] + frame["ctbytes"])
            for frame in header["chunks"][first_frame : last_frame + 1]
        ]
        assert files.wanted[-len(frames) :] == [(ROOT, *frame) for frame in frames]
        assert np.frombuffer(chunk, sample_.expected["dtype"])[: (stop - start) * width].tolist() == [
            float(number) for number in range(start * width, stop * width)
        ]


@pytest.mark.parametrize(
    ("zarr", "zarr_format", "whole"), [(2, 2, True), (None, 2, True), (3, 2, False), (2, 3, False), (3, 3, False)]
)
def test_array_fields_are_split_for_zarr_3_and_format_3(
    zarr: int | None, zarr_format: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refshard_fs.core.dtypes.zarr_major", lambda: zarr)
    inner = [("x", "<u2", (2,)), ("y", "|S3")]
    values = np.zeros(5, [("a", "<i4"), ("b", "<f8", (2, 2)), ("c", inner)])
    values["b"] = np.arange(20).reshape(5, 2, 2)
    metadata = {"dtype": repr(values.dtype.descr), "shape": [5], "order": "C", "container": "numpy"}
    files = Files({ROOT: pack_values(values, 10 * values.dtype.itemsize, metadata=metadata)})
    keyspace = files.open(zarr_format=zarr_format)
    if zarr_format == 3:
        fields = json.loads(files.read(keyspace, "data/zarr.json") or b"")["data_type"]["configuration"]["fields"]
        assert [name for name, _ in fields] == ["a", "b.0.0", "b.0.1", "b.1.0", "b.1.1", "c"]
        return
    fields = json.loads(files.read(keyspace, "data/.zarray") or b"")["dtype"]
    if whole:
        assert fields == [["a", "<i4"], ["b", "<f8", [2, 2]], ["c", [["x", "<u2", [2]], ["y", "|S3"]]]]
        return
    flat = [*([f"b.{row}.{column}", "<f8"] for row in range(2) for column in range(2))]
    assert fields == [["a", "<i4"], *flat, ["c", [["x.0", "<u2"], ["x.1", "<u2"], ["y", "|S3"]]]]


def test_shape_that_contradicts_the_frames_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"\[900\].*expected 20000"):
        RefShardFileSystem(fo=str(read_sample("app_nd.blp").path)).ls("")
    assert [s.name for s in EVERY if s.is_refused] == ["bloscpack-0.16.0/app_nd.blp"]


def test_bloscpack_versions_0_1_2_and_4_are_refused() -> None:
    data = bytearray(read_sample("raw_meta.blp").path.read_bytes())
    for version, reason in ((2, "only proposed"), (1, "bcolz carray"), (0, "version is 0"), (4, "version is 4")):
        data[4] = version
        with pytest.raises(ManifestError, match=reason):
            Files({ROOT: bytes(data)}).open()


def test_bytes_in_memory_are_a_source() -> None:
    values = np.arange(1000)
    data = pack_values(values, 1600, checksum=2, metadata=make_numpy_metadata(values))
    for verify in (False, True):
        fs = RefShardFileSystem(fo=data, verify=verify)
        actual = b"".join(blosc.decompress(fs.cat_file(f"data/{number}")) for number in range(5))
        assert actual == values.tobytes()


def test_frame_is_requested_after_its_header(http_server: Any) -> None:
    values = np.random.default_rng(0).integers(0, 2**62, 4000)
    data = pack_values(values, 8000, checksum=1, spare=3, metadata=make_numpy_metadata(values))
    fs = RefShardFileSystem(fo=http_server.put("/x.blp", data))
    assert fs.find("data")[-1] == "data/3"
    http_server.clear()
    chunk = fs.cat_file("data/2")
    frame = data.index(chunk[:40])
    ranges = [(request.start, request.stop) for request in http_server.requests()]
    assert ranges[-2:] == [(frame, frame + 16), (frame, frame + len(chunk))]
    assert all(stop <= frame + len(chunk) for _, stop in ranges)
    assert np.frombuffer(blosc.decompress(chunk), "<i8").tolist() == values[2000:3000].tolist()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("frame_size", [8, 40, 80, 200, 333, 400, 1000, 2**12])
def test_values_are_right_for_frames_of_many_sizes(order: str, frame_size: int) -> None:
    reading = pytest.importorskip("tests.support.zarr_reading")
    values = np.arange(13 * 10).reshape(13, 10)
    flat = values.T if order == "F" else values
    for offsets in (True, False):
        data = pack_values(np.ascontiguousarray(flat).ravel(), frame_size, checksum=1, offsets=offsets, gap=5 * offsets,
                          metadata=make_numpy_metadata(values, order))  # fmt: skip
        for zarr_format in reading.FORMATS:
            for verify in (False, True):
                fs = RefShardFileSystem(fo=data, zarr_format=zarr_format, verify=verify)
                np.testing.assert_array_equal(reading.read_values(reading.open_group(fs)["data"]), values)


def test_table_of_offsets_is_read_in_parts() -> None:
    values = np.arange(OFFSETS_AT_ONCE + 100, dtype="<i2")
    data = pack_values(values, 2, spare=7)
    files = Files({ROOT: data})
    keyspace = files.open()
    for number in (0, OFFSETS_AT_ONCE - 1, OFFSETS_AT_ONCE, OFFSETS_AT_ONCE + 99):
        files.wanted.clear()
        assert blosc.decompress(files.read(keyspace, f"data/{number}")) == values[number].tobytes()
        start = 32 + number // OFFSETS_AT_ONCE * OFFSETS_AT_ONCE * 8
        assert files.wanted[0] == (
            ROOT,
            start,
            start + 8 * min(OFFSETS_AT_ONCE, OFFSETS_AT_ONCE + 100 - number // OFFSETS_AT_ONCE * OFFSETS_AT_ONCE),
        )


@pytest.mark.parametrize("offset", [-1, 0, TABLE + 48, len(PLAIN) - 15, len(PLAIN), 2**62, -(2**63)])
def test_forged_offset_is_refused(offset: int) -> None:
    files = Files({ROOT: put(TABLE + 8, struct.pack("<q", offset))})
    with pytest.raises(DamagedIndex, match=f"chunk 1 has offset {offset}"):
        files.read(files.open(), "data/1")


def test_frames_between_gaps_are_read_without_the_gaps(http_server: Any) -> None:
    values = np.arange(700.0).reshape(100, 7)
    data = pack_values(values.ravel(), 1000, metadata=make_numpy_metadata(values), gap=5000)
    fs = RefShardFileSystem(fo=http_server.put("/x.blp", data))
    reads = fs.plan(["data/0.0", "data/1.0"])
    assert len(reads) == 3  # the second frame belongs to both chunks
    assert [keys for _, _, _, keys in reads] == [("data/0.0",), ("data/0.0", "data/1.0"), ("data/1.0",)]
    http_server.clear()
    actual = b"".join(blosc.decompress(frame) for frame in fs.cat(["data/0.0", "data/1.0"]).values())
    assert actual == values.tobytes()[: len(actual)]
    assert sorted((request.start, request.stop) for request in http_server.requests()) == sorted(
        (start, stop) for _, start, stop, _ in reads
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {"shape": [2500, 2]}, {"shape": [-2500]}, {"shape": [2**40, 2**40]}, {"shape": None}, {"order": "K"},
        {"dtype": "'O'"}, {"dtype": "[('a', 'O')]"}, {"dtype": "f()"}, {"dtype": 7}, {"shape": [1] * 33 + [2500]},
    ],
)  # fmt: skip
def test_impossible_metadata_error_names_the_field(metadata: dict[str, Any]) -> None:
    data = pack_values(VALUES, 8000, metadata={**make_numpy_metadata(VALUES), **metadata})
    with pytest.raises(ManifestError, match=next(iter(metadata))):
        Files({ROOT: data}).open()


def test_metadata_larger_than_their_meta_size_are_refused() -> None:
    bomb = zlib.compress(bytes(2**24), 9)
    header = struct.pack("<8sBBBBIII8s", b"JSON", 0, 0, 1, 9, 100, len(bomb), len(bomb), b"")
    with pytest.raises(ManifestError, match="meta_size"):
        Files({ROOT: put(5, b"\3")[:32] + header + bomb + bytes(1000)}).open()


def test_truncated_file_is_an_error() -> None:
    for length in (*range(4, 300), *range(300, len(PLAIN) - 40, 41), *range(len(PLAIN) - 40, len(PLAIN))):
        files = Files({ROOT: PLAIN[:length]})
        with pytest.raises((ManifestError, DamagedIndex)):
            decode_chunks(files, files.open())


def test_additional_metadata_become_attributes() -> None:
    files = Files({ROOT: pack_values(VALUES, 8000, metadata={**make_numpy_metadata(VALUES), "units": "m"})})
    attributes = json.loads(files.read(files.open(), "data/.zattrs") or b"")
    assert attributes == {"units": "m", "_ARRAY_DIMENSIONS": ["dim_0"]}


def test_huge_chunk_size_in_a_header_is_refused() -> None:
    header = struct.pack("<4sBBBBiiqq", b"blpk", 3, 0, 0, 8, 2**31 - 17, 8, 2, 0)
    with pytest.raises(ManifestError, match="its 2 chunks decode to"):
        Files({ROOT: header + bytes(100)}).open()

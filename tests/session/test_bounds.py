"""Documents that claim or expand to too much are refused before memory is taken."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numcodecs.zstd import Zstd

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem
from refshard_fs.core import compression as inflate
from refshard_fs.formats.kerchunk_parquet import partition
from refshard_fs.formats.kerchunk_parquet.partition import PartitionIndex
from refshard_fs.targets import answer
from tests.servers.http import RangeServer
from tests.support.memory import check_peak

pytestmark = pytest.mark.case(id="P26")

MIB = 1 << 20
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(Zstd(3).encode(data)),
}
DEEP = 200_000


def open_fs(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, index_cache=False, **options)


@pytest.mark.parametrize("name", COMPRESS)
def test_manifest_bomb_is_refused(name: str, http_server: RangeServer) -> None:
    """A quarter of a gigabyte of spaces, in less than half a megabyte."""
    compress = COMPRESS[name]
    bomb = compress(b"{") + compress(b" " * 4 * MIB) * 64
    assert len(bomb) < MIB // 2
    url = http_server.put("/refs.json", bomb)
    for fo in (url, bomb):
        with check_peak(40 * MIB), pytest.raises(ManifestError, match="expected at most .* times as many"):
            open_fs(fo).cat_file("k")


def test_manifest_that_is_well_compressed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "GRACE", 1000)
    array = {"zarr_format": 2, "shape": [30_000], "chunks": [1], "dtype": "|u1", "compressor": None, "filters": None}
    refs = {"a/.zarray": {**array, "fill_value": 0, "order": "C"}}
    refs |= {f"a/{i}": ["s3://bucket/file", i * 100, 100] for i in range(30_000)}
    text = json.dumps(refs).encode()
    for compress in COMPRESS.values():
        assert len(open_fs(compress(text)).references) == 30_001


@pytest.mark.parametrize("compress", [bytes, *COMPRESS.values()])
def test_max_manifest_bytes_bounds_the_decompressed_size(
    compress: Callable[[bytes], bytes], http_server: RangeServer
) -> None:
    text = json.dumps({"version": 1, "refs": {"k": "v", "pad": "x" * 50_000}}).encode()
    url = http_server.put("/refs.json", compress(text))
    for fo in (url, compress(text)):
        assert open_fs(fo, max_manifest_bytes=len(text)).cat_file("k") == b"v"
        with pytest.raises(ManifestError, match="max_manifest_bytes=50000"):
            open_fs(fo, max_manifest_bytes=50_000).cat_file("k")


def test_oversized_manifest_is_not_fetched_whole(http_server: RangeServer) -> None:
    array = {"zarr_format": 2, "shape": [4], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
    array |= {"order": "C", "filters": None}
    documents = {
        "/refs.json": {"version": 1, "refs": {"k": "v", "pad": "x" * 50_000}},
        "/map.json": {"name": "chunk-manifest-json", "configuration": {"manifest": {"k": {"data": "x" * 50_000}}}},
        "/join.json": {"refshard": "concat", "dim": "t", "axes": {}, "sets": [["x" * 50_000, 1]]},
        "/set/.zmetadata": {"metadata": {"a/.zarray": array, ".zattrs": {"x": "x" * 50_000}}, "record_size": 4},
    }
    for path, document in documents.items():
        http_server.put(path, json.dumps(document).encode())
        url = http_server.url + path.removesuffix("/.zmetadata")
        if path != "/join.json":  # its set does not exist
            open_fs(url).cat_file("a/.zarray") if path == "/set/.zmetadata" else open_fs(url).ls("")
        http_server.clear()
        with pytest.raises(ManifestError, match="max_manifest_bytes=9000"):
            open_fs(url, max_manifest_bytes=9000).cat_file("k")
        assert sum(request.sent for request in http_server.requests() if request.status != 404) <= 9000


def test_oversized_chunk_manifest_is_refused(tmp_path: Path) -> None:
    doc: dict[str, Any] = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0}
    doc |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "codecs": [{"name": "bytes"}]}
    doc |= {"chunk_key_encoding": {"name": "default"}, "attributes": {}}
    doc["storage_transformers"] = [{"name": "chunk-manifest-json", "configuration": {"manifest": "./manifest.json"}}]
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    (tmp_path / "manifest.json").write_text(json.dumps({"0": {"data": "x" * 50_000}}))
    assert len(open_fs(str(tmp_path)).cat_file("c/0")) == 50_000
    with pytest.raises(ManifestError, match="max_manifest_bytes=9000"):
        open_fs(str(tmp_path), max_manifest_bytes=9000).cat_file("c/0")


def make_nested(text: str) -> bytes:
    """Return the document ``text`` with a deeply nested list in place of "HERE"."""
    return text.replace('"HERE"', "[" * DEEP + "]" * DEEP).encode()


@pytest.fixture
def no_garbage() -> None:
    """Collect the garbage of other tests now: where the stack is nearly full, its finalizers would fail."""
    gc.collect()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    "text",
    [
        '{"k": "HERE"}',
        '{"version": 1, "refs": {"k": "HERE"}}',
        '{"version": 1, "templates": {"k": "HERE"}, "refs": {}}',
        '{"version": 1, "gen": "HERE", "refs": {}}',
        '{"name": "chunk-manifest-json", "configuration": {"manifest": {"k": {"data": {"x": "HERE"}}}}}',
    ],
)
def test_document_nested_too_deeply_is_an_error(text: str) -> None:
    with pytest.raises(ManifestError):
        open_fs(make_nested(text)).cat_file("k")


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".zmetadata", '{"metadata": {".zattrs": {"x": "HERE"}}, "record_size": 4}'),
        ("info", '{"scales": "HERE", "data_type": "uint8"}'),
        ("meta/storage", '{"chunklen": "HERE"}'),
    ],
)
def test_directory_with_metadata_nested_too_deeply_is_an_error(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(make_nested(text))
    with pytest.raises(RefShardError):
        open_fs(str(tmp_path)).cat_file("k")


@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zmetadata"])
def test_metadata_nested_too_deeply_are_an_error(name: str, tmp_path: Path) -> None:
    """Otherwise zarr's parsers end in a RecursionError."""
    data = make_nested('{"zarr_format": 2, "node_type": "array", "attributes": "HERE"}')
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ManifestError, match="nested too deeply"):
        open_fs(str(tmp_path)).cat_file(name)


def make_archive(members: dict[str, bytes]) -> bytearray:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for name, data in members.items():
            written.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return bytearray(out.getvalue())


def set_size(data: bytearray, size: int) -> bytes:
    """Return an archive of one member, with ``size`` as its size in both headers."""
    for signature, at in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        place = data.index(signature) + at
        data[place : place + 4] = size.to_bytes(4, "little")
    return bytes(data)


def test_member_that_inflates_beyond_its_size_is_refused() -> None:
    bomb = make_archive({"k": b" " * (100 * MIB)})
    for size in (0, 100, 10 * MIB):
        with check_peak(30 * MIB), pytest.raises(RefShardError):
            open_fs(set_size(bomb, size)).cat_file("k")


def test_member_cannot_declare_an_impossible_size() -> None:
    with pytest.raises(ManifestError, match="has 4000000000 bytes, stored in 7 bytes: expected less"):
        open_fs(set_size(make_archive({"k": b"small"}), 4_000_000_000)).ls("")


def test_members_cannot_share_their_bytes() -> None:
    """If all members of a small archive had the same bytes, their contents could be huge."""
    data = make_archive({"a": b" " * MIB, "b": b" " * MIB})
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    data[second + 42 : second + 46] = bytes(4)
    with pytest.raises(ManifestError, match="expected an end up to byte"):
        open_fs(bytes(data)).ls("")


def test_compressed_bomb_in_an_archive_is_refused(tmp_path: Path) -> None:
    bomb = COMPRESS["xz"](b"{") + COMPRESS["xz"](b" " * 4 * MIB) * 64
    (tmp_path / "a.zip").write_bytes(make_archive({"refs.json": bomb}))
    with pytest.raises(RefShardError, match="expected at most .* times as many"):
        open_fs(f"zip://refs.json::{tmp_path}/a.zip").cat_file("k")


def make_partition(rows: int) -> bytes:
    """Return a partition of many rows without a reference, in a few thousand bytes."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    columns = {"path": pa.nulls(rows, pa.string()), "offset": pa.array([0]).take(pa.array([0] * 8).slice(0, 1))}
    columns["offset"] = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int8()), pa.array([0])).cast(pa.int64())
    pq.write_table(pa.table({**columns, "size": columns["offset"]}), out)
    return out.getvalue()


def test_partition_of_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_partition(100_000)
    assert len(data) < 10_000
    monkeypatch.setattr(partition, "ROWS", 99_999)

    def read(*args: object, **options: object) -> None:
        raise AssertionError("its columns are made")

    monkeypatch.setattr(partition, "read_columns", read)
    with pytest.raises(ValueError, match="it has 100000 rows: expected at most 99999"):
        PartitionIndex(100_000, 2**62).decode(data)
    with pytest.raises(ValueError, match="it has 100000 rows: expected at most 10"):
        PartitionIndex(10, 10).decode(data)


def test_partitions_of_a_huge_array_are_not_requested(http_server: RangeServer) -> None:
    array = {"zarr_format": 2, "shape": [2**62], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
    array |= {"order": "C", "filters": None}
    document = {"metadata": {"a/.zarray": array}, "record_size": 1}
    http_server.put("/set/.zmetadata", json.dumps(document).encode())
    fs = open_fs(f"{http_server.url}/set")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("a/5")
    http_server.clear()
    with pytest.raises(RefShardError, match="4611686018427387904 partitions are too many"):
        fs.ls("a")
    assert http_server.requests() == []


def test_gen_output_is_bounded() -> None:
    entry = {"key": "{{i}}/{{j}}", "url": "u", "dimensions": {"i": {"stop": 10**9}, "j": {"stop": 10**9}}}
    with check_peak(MIB), pytest.raises(ManifestError, match="it expands to 1000000000000000000 keys"):
        open_fs({"version": 1, "gen": [entry], "refs": {}})


@pytest.mark.parametrize(
    "template", ["{{ 'x' ~ u }}" * 2000, "{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "{{ 9**9**9**9 }}"]
)
def test_costly_template_is_refused(template: str) -> None:
    with pytest.raises(ManifestError):
        open_fs({"version": 1, "templates": {"u": "y" * 60_000}, "refs": {"k": [template]}})


@pytest.mark.parametrize("shape", [[2**62], [2**40, 2**20], [2**31, 2**31]])
def test_huge_grid_takes_little_memory(shape: list[int]) -> None:
    chunks = [1] * len(shape)
    array = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": None, "fill_value": 0}
    last = ".".join(str(n - 1) for n in shape)
    with check_peak(MIB):
        fs = open_fs({"a/.zarray": {**array, "order": "C", "filters": None}, f"a/{last}": "there"})
        assert fs.cat_file(f"a/{last}") == b"there"
        assert sorted(fs.find("a")) == sorted(["a/.zarray", f"a/{last}"])
        with pytest.raises(FileNotFoundError):
            fs.cat_file("a/" + ".".join(["7"] * len(shape)))


def test_range_beyond_its_target_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"small")
    with check_peak(MIB), pytest.raises(ReferenceNotReachable):
        open_fs({"k": [str(tmp_path / "x"), 0, 2**40]}).cat_file("k")


def test_declared_range_beyond_memory_is_not_requested(http_server: RangeServer) -> None:
    url = http_server.put("/x", b"small")
    with (
        check_peak(20 * MIB),
        pytest.raises(ReferenceNotReachable, match=f"not enough memory for a range of {2**60} bytes"),
    ):
        open_fs({"k": [url, 0, 2**60]}).cat_file("k")
    assert http_server.requests() == []


def test_body_too_long_to_allocate_at_once_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_LARGE", 100)
    monkeypatch.setattr(answer, "_MOST_ROOM", 1000)
    with RangeServer({"/x": bytes(5000)}) as server:
        fs = open_fs({"a": [f"{server.url}/x", 0, 900], "b": [f"{server.url}/x", 0, 5000]})
        assert (fs.cat_file("a"), fs.cat_file("b")) == (bytes(900), bytes(5000))

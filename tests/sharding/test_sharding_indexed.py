"""Arrays sharded by zarr v3's codec have the values that zarr-python, tensorstore, zarrs and others wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.cli import main
from tests.support.shard_writers import IS_ZARR_2, make_sparse, open_array, open_source
from tests.support.shards_in_memory import Files

if IS_ZARR_2:
    pytest.skip("zarr 2 writes no shards of version 3", allow_module_level=True)

import zarr
from packaging.version import Version
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

# zarr-python warns programs that write such arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Combining a .sharding_indexed. codec")

ZARR = Version(zarr.__version__)
LITTLE, BIG = BytesCodec(endian="little"), BytesCodec(endian="big")
FILL = 7


def write(
    folder: Path, data: Any, shards: Any, codecs: list[Any], encoding: tuple[str, str] = ("default", "/")
) -> None:
    written = zarr.create(
        shape=data.shape,
        chunks=shards,
        dtype=data.dtype,
        store=str(folder),
        zarr_format=3,
        codecs=codecs,
        chunk_key_encoding=encoding,
        fill_value=FILL,
    )
    written[...] = data


def sharding(chunks: Any, codecs: list[Any] | None = None, **options: Any) -> ShardingCodec:
    return ShardingCodec(chunk_shape=chunks, codecs=codecs or [LITTLE, GzipCodec()], **options)


def assert_shown(folder: Path, data: np.ndarray[Any, Any], chunks: tuple[int, ...]) -> None:
    """Check that the array looks ordinary, has all values, and that its listing has exactly the readable keys."""
    seen = open_array(folder)
    assert seen.chunks == chunks
    assert seen.shards is None
    assert np.array_equal(seen[...], data)
    fs = open_source(folder)
    listed = fs.find("", detail=True)
    for key, info in listed.items():
        assert info["size"] == len(fs.cat_file(key)), key
    for tail in fs.source.open().grids[""].tails():
        assert fs.exists(tail) == (tail in listed), tail
    assert fs.source.open().reports == {}
    files = Files.of(folder)
    view = files.open()
    keys = [*listed, *view.grids[""].tails()]
    together = [(keys[at], entry) for places, steps in view.make_lookups(keys)
                for at, entry in zip(places, files.run(steps), strict=True)]  # fmt: skip
    assert sorted(key for key, _ in together) == sorted(keys)
    assert all(entry == files.run(view.lookup(key)) for key, entry in together)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    "index",
    [[LITTLE], [BIG], [LITTLE, Crc32cCodec()], [BIG, Crc32cCodec()]],
    ids=["little", "big", "little+crc32c", "big+crc32c"],
)
def test_index_at_each_end_and_in_each_byte_order_is_read(tmp_path: Path, location: Any, index: list[Any]) -> None:
    data = make_sparse((13, 17), FILL)
    write(tmp_path, data, (6, 8), [sharding((3, 2), index_codecs=index, index_location=location)])
    assert_shown(tmp_path, data, (3, 2))


@pytest.mark.parametrize("encoding", [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")], ids="".join)
@pytest.mark.parametrize(
    ("shape", "shards", "chunks"), [((13, 17), (6, 8), (3, 2)), ((17,), (8,), (2,))], ids=["2d", "1d"]
)
def test_every_chunk_key_encoding_is_read(
    tmp_path: Path, encoding: tuple[str, str], shape: Any, shards: Any, chunks: Any
) -> None:
    data = make_sparse(shape, FILL)
    write(tmp_path, data, shards, [sharding(chunks)], encoding)
    assert_shown(tmp_path, data, chunks)


def test_three_levels_of_shards_are_read(tmp_path: Path) -> None:
    data = make_sparse((30, 40), FILL)
    innermost = sharding((2, 3), [LITTLE, ZstdCodec()])
    middle = sharding((4, 6), [innermost], index_location="start")
    write(tmp_path, data, (16, 24), [sharding((8, 12), [middle])])
    assert_shown(tmp_path, data, (2, 3))


def test_transposed_shards_are_read(tmp_path: Path) -> None:
    data = make_sparse((13, 17, 5), FILL)
    write(tmp_path, data, (12, 12, 12), [TransposeCodec(order=(2, 0, 1)), sharding((4, 3, 2))])
    assert_shown(tmp_path, data, (3, 2, 4))


def test_nested_transposed_shards_are_read(tmp_path: Path) -> None:
    data = make_sparse((13, 17, 10), FILL)
    inner = [TransposeCodec(order=(1, 2, 0)), sharding((3, 2, 4))]
    write(tmp_path, data, (24, 24, 24), [TransposeCodec(order=(2, 0, 1)), sharding((12, 12, 24), inner)])
    assert_shown(tmp_path, data, (3, 2, 4))


def test_checksum_after_the_shard_is_skipped(tmp_path: Path) -> None:
    data = make_sparse((13, 17), FILL)
    write(tmp_path, data, (6, 8), [sharding((3, 2)), Crc32cCodec()])
    assert_shown(tmp_path, data, (3, 2))


def test_compressed_shards_stay_whole_and_are_reported(tmp_path: Path) -> None:
    data = make_sparse((13, 17), FILL)
    write(tmp_path, data, (6, 8), [sharding((3, 2)), GzipCodec()])
    fs = open_source(tmp_path)
    assert fs.cat_file("zarr.json") == (tmp_path / "zarr.json").read_bytes()
    assert fs.cat_file("c/1/1") == (tmp_path / "c/1/1").read_bytes()
    assert "'gzip'" in fs.left_whole[""]
    assert np.array_equal(open_array(tmp_path)[...], data)


@pytest.mark.parametrize(
    "transformers",
    [[{"name": "other"}], [{"name": "other"}, {"type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}]],
)
def test_shards_behind_transformers_stay_whole(tmp_path: Path, transformers: Any) -> None:
    write(tmp_path, make_sparse((13, 17), FILL), (6, 8), [sharding((3, 2))])
    text = json.dumps({**json.loads((tmp_path / "zarr.json").read_text()), "storage_transformers": transformers})
    (tmp_path / "zarr.json").write_text(text)
    fs = open_source(tmp_path)
    assert fs.cat_file("zarr.json").decode() == text
    assert fs.cat_file("c/1/1") == (tmp_path / "c/1/1").read_bytes()
    assert "storage_transformers" in fs.left_whole[""]


def test_info_lists_arrays_left_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", make_sparse((13, 17), FILL), (6, 8), [sharding((3, 2)), GzipCodec()])
    write(tmp_path / "b", make_sparse((13, 17), FILL), (6, 8), [sharding((3, 2))])
    zarr.open_group(str(tmp_path), mode="a")
    assert main(["info", str(tmp_path)]) in (None, 0)
    told = [line for line in capsys.readouterr().out.splitlines() if "left whole" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: a: ")
    assert "gzip" in told[0]


def test_compressed_inner_shards_are_shown_as_chunks(tmp_path: Path) -> None:
    data = make_sparse((30, 40), FILL)
    write(tmp_path, data, (16, 24), [sharding((8, 12), [sharding((4, 6)), GzipCodec()])])
    seen = open_array(tmp_path)
    assert seen.metadata.chunk_grid.chunk_shape == (8, 12)
    assert np.array_equal(seen[...], data)
    fs = open_source(tmp_path)
    fs.ls("")
    assert "shards themselves" in fs.source.open().reports[""]


@pytest.mark.skipif(Version("3.4") > ZARR, reason="this zarr has no rectilinear grids")
def test_rectilinear_grid_of_shards_gives_regular_grid_of_chunks(tmp_path: Path) -> None:
    data = make_sparse((20, 23), FILL)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        written = zarr.create_array(
            str(tmp_path), shape=(20, 24), chunks=(2, 4), shards=[[4, 6, 10], [8, 16]], dtype="<i4", fill_value=FILL
        )
        written[:, :23] = data
    spelled = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(json.dumps({**spelled, "shape": [20, 23]}))
    assert_shown(tmp_path, data, (2, 4))


def tensorstore_writes(folder: Path, data: np.ndarray[Any, Any], shards: Any, codecs: list[Any]) -> None:
    ts = pytest.importorskip("tensorstore")
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        "create": True,
        "metadata": {
            "shape": list(data.shape),
            "data_type": data.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shards)}},
            "fill_value": FILL,
            "codecs": codecs,
        },
    }
    ts.open(spec).result()[...] = data


def spelled(chunks: Any, codecs: list[Any], **options: Any) -> dict[str, Any]:
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunks),
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            **options,
        },
    }


RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]


def test_shards_of_tensorstore_are_read(tmp_path: Path) -> None:
    data = make_sparse((13, 17, 10), FILL)
    inner = [{"name": "transpose", "configuration": {"order": [1, 2, 0]}}, spelled((3, 1, 5), RAW)]
    codecs = [
        {"name": "transpose", "configuration": {"order": [2, 0, 1]}},
        spelled((5, 6, 4), inner, index_location="start"),
    ]
    tensorstore_writes(tmp_path, data, (12, 8, 10), codecs)
    # The shards have the array's dimensions in the order 2, 0, 1; the chunks inside of them have 0, 1, 2.
    assert_shown(tmp_path, data, (3, 1, 5))


def test_scalar_of_tensorstore_is_read(tmp_path: Path) -> None:
    data = np.array(5, "<i4")
    tensorstore_writes(tmp_path, data, (), [spelled((), [*RAW, {"name": "gzip", "configuration": {"level": 1}}])])
    assert_shown(tmp_path, data, ())


def test_shards_of_zarrs_are_read(tmp_path: Path) -> None:
    pytest.importorskip("zarrs")
    data = make_sparse((13, 17), FILL)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        write(tmp_path, data, (6, 8), [sharding((3, 2))])
    assert_shown(tmp_path, data, (3, 2))


def test_codecs_as_bare_names_are_read(tmp_path: Path) -> None:
    data = make_sparse((13, 17), FILL)
    write(tmp_path, data, (6, 8), [sharding((3, 2))])
    doc = json.loads((tmp_path / "zarr.json").read_text())
    doc["codecs"][0]["configuration"]["index_codecs"] = ["bytes", "crc32c"]
    del doc["codecs"][0]["configuration"]["index_location"]
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    assert_shown(tmp_path, data, (3, 2))


def test_shown_metadata_differ_only_in_grid_and_codecs(tmp_path: Path) -> None:
    data = make_sparse((13, 17), FILL)
    write(tmp_path, data, (6, 8), [sharding((3, 2))])
    doc = json.loads((tmp_path / "zarr.json").read_text())
    doc = {**doc, "attributes": {"é": [1, 2.5, None]}, "dimension_names": ["y", None]}
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    shown = json.loads(open_source(tmp_path).cat_file("zarr.json"))
    assert shown["chunk_grid"] == {"name": "regular", "configuration": {"chunk_shape": [3, 2]}}
    assert shown["codecs"] == doc["codecs"][0]["configuration"]["codecs"]
    assert list(shown) == list(doc)
    changed = {"chunk_grid", "codecs"}
    assert {k: v for k, v in shown.items() if k not in changed} == {k: v for k, v in doc.items() if k not in changed}


@pytest.mark.parametrize(
    "name",
    ["zarrs-rust-8x8", "zarr-java-index-start", "zarr-java-index-end", "zarrita-py-2d-ragged", "zarrita-py-1d-filled"],
)
def test_arrays_of_other_writers_are_read(shared_data: Path, name: str) -> None:
    expected = json.loads((shared_data / "expected" / "shards.json").read_text())[name]
    seen = open_array(shared_data / "shards" / name)
    assert seen.chunks == tuple(expected["inner_chunk_shape"])
    values = np.ascontiguousarray(seen[...])
    assert hashlib.sha256(values.tobytes()).hexdigest() == expected["values"]["sha256"]
    fs = open_source(shared_data / "shards" / name)
    for coords, digest in expected["inner_sha256"].items():
        key = "c/" + coords.replace(".", "/")
        assert hashlib.sha256(fs.cat_file(key)).hexdigest() == digest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chunk_shape": [4, 2]}, "shards of whole chunks"),
        ({"chunk_shape": [3]}, "chunk_shape of 2 dimensions, as its shape, found 1"),
        ({"chunk_shape": [3, True]}, "chunk_shape"),
        ({"chunk_shape": [3, -2]}, "chunk_shape"),
        ({"codecs": None}, "codecs"),
        ({"index_location": "middle"}, "'middle'"),
        ({"index_codecs": [{"name": "bytes", "configuration": {"endian": "pdp"}}]}, "'pdp'"),
        ({"index_codecs": [{"name": "bytes"}, {"name": "gzip"}]}, "'bytes', 'gzip'"),
        ({"index_codecs": [5]}, "is invalid"),
        ({"codecs": [spelled((2, 2), RAW)]}, "shards of whole chunks"),
        (
            {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0, 1]}}, spelled((3, 2, 3), RAW)]},
            "expected a permutation",
        ),
    ],
)
def test_array_with_contradictory_metadata_shows_whole_shards(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    write(tmp_path, make_sparse((13, 17), FILL), (6, 8), [sharding((3, 2))])
    doc = json.loads((tmp_path / "zarr.json").read_text())
    doc["codecs"][0]["configuration"].update(change)
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    fs = open_source(tmp_path)
    assert fs.cat_file("zarr.json") == (tmp_path / "zarr.json").read_bytes()
    assert reason in fs.source.open().reports[""]
    assert fs.cat_file("c/1/1") == (tmp_path / "c/1/1").read_bytes()


def test_too_many_shards_or_a_too_large_index_is_reported(tmp_path: Path) -> None:
    write(tmp_path, make_sparse((13, 17), FILL), (6, 8), [sharding((3, 2))])
    doc = json.loads((tmp_path / "zarr.json").read_text())
    doc["chunk_grid"] = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[3, 2**40]], 8]}}
    doc["shape"] = [3 * 2**40, 17]
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    fs = open_source(tmp_path)
    fs.cat_file("zarr.json")
    assert "at most 1048576 shards" in fs.source.open().reports[""]
    doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [3 * 2**30, 2 * 2**30]}}
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    fs = open_source(tmp_path)
    fs.invalidate_cache()
    fs.cat_file("zarr.json")
    assert "expected an index of at most" in fs.source.open().reports[""]

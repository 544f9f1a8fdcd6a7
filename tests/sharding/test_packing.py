"""Written shards: our reader, zarr-python, tensorstore and zarrs read the written values."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.checksums import crc32c
from tests.support.shard_codecs import CRC, LITTLE, make_sharding, make_version_2, make_version_3
from tests.support.shard_packing import find_layout, pack_shards, read_chunks, store
from tests.support.shard_writers import IS_ZARR_2, make_sparse, open_array, open_source, split_chunks

BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ONES = (2**64 - 1).to_bytes(8, "little")


def payloads(data: np.ndarray[Any, Any], chunk_shape: Any, fill: int = 0) -> dict[tuple[int, ...], bytes]:
    return {at: np.ascontiguousarray(chunk).tobytes() for at, chunk in split_chunks(data, chunk_shape, fill).items()}


def test_shard_has_morton_order_index_and_checksum() -> None:
    layout = find_layout(make_version_3((4, 4), (4, 4), [make_sharding([2, 2])]))
    parts = layout.rewrite((2, 2), None, {(0, 0): b"aaaa", (0, 1): b"bb", (1, 0): b"c"})
    index = np.array([(0, 4), (5, 2), (4, 1)], "<u8").tobytes() + ONES * 2
    assert parts is not None
    assert b"".join(parts) == b"aaaacbb" + index + crc32c(index).to_bytes(4, "little")


def test_offsets_count_from_the_first_byte_of_the_shard() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2], index=[BIG], at="start")]))
    parts = layout.rewrite((2,), None, {(1,): b"xyz"})
    assert parts is not None
    assert b"".join(parts) == ONES * 2 + (32).to_bytes(8, "big") + (3).to_bytes(8, "big") + b"xyz"


def test_shard_without_chunks_is_removed() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2])]))
    assert layout.rewrite((2,), None, {(0,): None}) is None
    parts = layout.rewrite((2,), None, {(0,): b"ab"})
    assert parts is not None
    assert layout.rewrite((2,), b"".join(parts), {(0,): None}) is None


def test_each_outer_checksum_covers_all_bytes_before_it() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2]), CRC, CRC]))
    data = b"".join(layout.rewrite((2,), None, {(0,): b"ab" * 3}) or ())
    assert int.from_bytes(data[-4:], "little") == crc32c(data[:-4])
    assert int.from_bytes(data[-8:-4], "little") == crc32c(data[:-8])
    with pytest.raises(ValueError, match="expected the checksum [0-9a-f]+ of its first"):
        layout.rewrite((2,), data[:1] + b"?" + data[2:], {(1,): b"cd"})


def test_error_of_short_shard_counts_index_and_checksums() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2]), CRC, CRC]))
    with pytest.raises(ValueError, match="an index of 44 bytes, found a shard of only 40 bytes"):
        layout.rewrite((2,), bytes(40), {(1,): b"cd"})  # an index of 36 bytes, and two checksums of 4 bytes


def test_prototype_has_full_size_indexes_and_no_checksum() -> None:
    layout = find_layout(make_version_2((4, 6), (2, 2), (2, 2)))
    data = b"".join(layout.rewrite((2, 2), None, {(0, 1): b"xy"}) or ())
    assert data == b"xy" + ONES * 2 + np.array([0, 2], "<u8").tobytes() + ONES * 4


def test_big_endian_prototype_marks_missing_chunks_by_length_0() -> None:
    layout = find_layout(make_version_2((4,), (2,), (2,)), endian="big")
    assert b"".join(layout.rewrite((2,), None, {(1,): b"xy"}) or ()) == b"xy" + bytes(16 + 8) + b"\0" * 7 + b"\2"
    with pytest.raises(ValueError, match="expected a chunk of at least 1 byte"):
        layout.rewrite((2,), None, {(1,): b""})


def test_fixed_slots_refuse_other_sizes() -> None:
    layout = find_layout(make_version_2((6,), (2,), (3,), shard_format="morton_order"))
    assert b"".join(layout.rewrite((3,), None, {(1,): b"12345678"}) or ()) == bytes(8) + b"12345678" + bytes(8) + b"\2"
    with pytest.raises(ValueError, match="expected a chunk of 8 bytes, the size of a slot, got 7"):
        layout.rewrite((3,), None, {(1,): b"1234567"})


def test_damaged_shard_is_not_rewritten() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2])]))
    data = b"".join(layout.rewrite((2,), None, {(0,): b"ab", (1,): b"cd"}) or ())
    for damaged in (data[:-1], data[:-1] + b"?", data[1:], b""):
        with pytest.raises(ValueError, match="index"):
            layout.rewrite((2,), damaged, {(0,): b"ef"})


def test_unchanged_chunks_are_copied_without_gaps() -> None:
    layout = find_layout(make_version_3((4,), (4,), [make_sharding([2], index=[LITTLE])]))
    old = b"--ab---cd" + np.array([(2, 2), (7, 2)], "<u8").tobytes()
    data = b"".join(layout.rewrite((2,), old, {(1,): b"xyz"}) or ())
    assert data == b"abxyz" + np.array([(0, 2), (2, 3)], "<u8").tobytes()


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], int | None]:
    """Draw an array's metadata, shard options, and the size that payloads must have (None: any size)."""
    ndim = draw(st.integers(0, 3))
    sizes = st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim)
    inner = draw(sizes)
    shape = [draw(st.integers(1, 14)) for _ in range(ndim)]
    if draw(st.booleans()):
        slots = draw(sizes)
        kind = draw(st.sampled_from(["indexed", "morton_order"]))
        doc = make_version_2(shape, inner, slots, shard_format=kind, dimension_separator=draw(st.sampled_from("./")))
        if kind == "morton_order":
            return doc, {"slots": draw(st.sampled_from(["fortran", "morton"]))}, 4 * int(np.prod(inner))
        return doc, {"endian": draw(st.sampled_from(["little", "big"]))}, None
    # From the innermost level outwards: each level permutes the dimensions, and multiplies the shape by its slots.
    codecs: list[dict[str, Any]] = [LITTLE]
    chunk = inner
    for _ in range(draw(st.integers(1, 3))):
        index = [draw(st.sampled_from([LITTLE, BIG])), *draw(st.sampled_from([[], [CRC]]))]
        codecs = [make_sharding(chunk, codecs, index, draw(st.sampled_from(["start", "end"])))]
        codecs += [CRC] * draw(st.integers(0, 2))
        chunk = [c * n for c, n in zip(chunk, draw(sizes), strict=True)]
        if ndim and draw(st.booleans()):
            order = draw(st.permutations(range(ndim)))
            codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
            chunk = [chunk[order.index(axis)] for axis in range(ndim)]
    return make_version_3(shape, chunk, codecs, draw(st.sampled_from("./"))), {}, None


@given(st.data())
def test_chunks_written_in_random_order_are_read_back(data: st.DataObject) -> None:
    doc, options, size = data.draw(documents())
    layout = find_layout(doc, **options)
    every = list(itertools.product(*map(range, layout.grid.counts)))
    payload = st.binary(min_size=1, max_size=9) if size is None else st.binary(min_size=size, max_size=size)
    changes = st.dictionaries(st.sampled_from(every), st.none() | payload, max_size=12)
    shards: dict[str, bytes] = {}
    expected: dict[tuple[int, ...], bytes] = {}
    for written in data.draw(st.lists(changes, min_size=1, max_size=4)):
        shards = pack_shards(layout, shards, written)
        expected |= {at: found for at, found in written.items() if found is not None}
        expected = {at: found for at, found in expected.items() if written.get(at, b"") is not None}
        assert read_chunks(doc, shards, **options) == expected
    if not expected:
        assert shards == {}


FILL = 7
LAYOUTS = {
    "end": [make_sharding([3, 2])],
    "start": [make_sharding([3, 2], index=[LITTLE], at="start")],
    "big": [make_sharding([3, 2], index=[BIG, CRC])],
    "nested": [make_sharding([3, 4], [make_sharding([3, 2], at="start")])],
    "checksummed": [make_sharding([3, 2]), CRC],
    "transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, make_sharding([2, 3])],
}


def write_shards(folder: Path, name: str) -> np.ndarray[Any, Any]:
    """Write an array in shards by this package, first whole, then chunk by chunk; return its values."""
    doc = make_version_3((13, 17), (6, 12), LAYOUTS[name], fill=FILL)
    layout = find_layout(doc)
    data = make_sparse((13, 17), FILL)
    shards = pack_shards(layout, {}, payloads(np.roll(data, 3), (3, 2), FILL))
    pieces = payloads(data, (3, 2), FILL)
    for at in itertools.product(*map(range, layout.grid.counts)):
        shards = pack_shards(layout, shards, {at: _inner(pieces[at], name) if at in pieces else None})
    store(folder, doc, shards)
    return data


def _inner(payload: bytes, name: str) -> bytes:
    """Encode a chunk by its own codecs, which include a transpose."""
    chunk = np.frombuffer(payload, "<i4").reshape(3, 2)
    return np.ascontiguousarray(chunk.T if name == "transposed" else chunk).tobytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_written_shards_are_read_back(tmp_path: Path, name: str) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 has no codecs of version 3")
    data = write_shards(tmp_path, name)
    assert np.array_equal(open_array(tmp_path)[...], data)


@pytest.mark.filterwarnings("ignore:Combining a .sharding_indexed. codec")
@pytest.mark.parametrize("name", LAYOUTS)
def test_zarr_python_reads_the_values(tmp_path: Path, name: str) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 reads no shards of version 3")
    import zarr

    data = write_shards(tmp_path, name)
    assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], data)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "checksummed"])  # tensorstore refuses that layout
def test_tensorstore_reads_the_values(tmp_path: Path, name: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    data = write_shards(tmp_path, name)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    assert np.array_equal(tensorstore.open(spec, read=True).result().read().result(), data)


@pytest.mark.filterwarnings("ignore:Combining a .sharding_indexed. codec")
@pytest.mark.parametrize("name", LAYOUTS)
def test_zarrs_reads_the_values(tmp_path: Path, name: str) -> None:
    if IS_ZARR_2:
        pytest.skip("zarrs is a codec pipeline of zarr 3")
    pytest.importorskip("zarrs")
    import zarr

    data = write_shards(tmp_path, name)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], data)


@pytest.mark.parametrize("location", ["start", "end"])
def test_written_bytes_equal_those_of_zarr_python(tmp_path: Path, location: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 writes no shards of version 3")
    import zarr
    from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

    codec = ShardingCodec(chunk_shape=(3, 2), codecs=[BytesCodec(), ZstdCodec()], index_location=location)
    data = make_sparse((33, 37), FILL)
    theirs = zarr.create(
        shape=data.shape, chunks=(18, 14), dtype=data.dtype, store=str(tmp_path), codecs=[codec], fill_value=FILL
    )
    theirs[...] = data
    doc = json.loads((tmp_path / "zarr.json").read_text())
    layout = find_layout(doc)
    fs = open_source(tmp_path)
    counts = layout.grid.counts
    inner = {at: fs.cat_file(layout.grid.encoding.encode(at)) for at in np.ndindex(counts) if _is_there(fs, layout, at)}
    ours = pack_shards(layout, {}, inner)
    assert ours == {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.glob("c/*/*")}


def _is_there(fs: Any, layout: Any, at: tuple[int, ...]) -> bool:
    return bool(fs.exists(layout.grid.encoding.encode(at)))


@pytest.mark.parametrize(
    "name", ["zarr-java-index-end", "zarr-java-index-start", "zarrita-py-2d-ragged", "zarrs-rust-8x8"]
)
def test_chunks_of_other_writers_survive_a_rewritten_shard(shared_data: Path, name: str) -> None:
    folder = shared_data / "shards" / name
    doc = json.loads((folder / "zarr.json").read_text())
    shards = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.glob("c/**/*") if p.is_file()}
    layout = find_layout(doc)
    chunks = read_chunks(doc, shards)
    assert chunks
    for at, payload in chunks.items():
        shards = pack_shards(layout, shards, {at: b"changed"})
        assert read_chunks(doc, shards) == {**chunks, at: b"changed"}
        shards = pack_shards(layout, shards, {at: payload})
    assert read_chunks(doc, shards) == chunks
    assert pack_shards(layout, shards, dict.fromkeys(chunks)) == {}

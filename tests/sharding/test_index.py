"""Chunks must lie within their shard and outside of its index, however the size of the shard is found.

The indexes here are valid, with right checksums: only the size of the shard shows that a chunk is misplaced.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import DamagedIndex, RefShardFileSystem, check
from refshard_fs.core.checksums import crc32c
from refshard_fs.formats.neuroglancer.minishards import ShardIndex
from refshard_fs.sharding.index import OffsetsLevel, TableIndex
from tests.servers.http import RangeServer
from tests.support.shard_writers import open_source
from tests.support.shards_by_hand import META_2, make_metadata, make_shard
from tests.support.volumes import KEY, make_pattern, write_volume

pytestmark = pytest.mark.case(id="P33")

Source = Callable[[dict[str, bytes]], RefShardFileSystem]

PAYLOAD = bytes(range(1, 41))  # four chunks of ten bytes


def nested(pair: tuple[int, int]) -> tuple[dict[str, Any], bytes]:
    """Return an array of one shard of one shard of four chunks; the index places the second chunk at ``pair``."""
    meta = make_metadata(location="end", checked=True)
    inner = meta["codecs"][0]
    outer = {"chunk_shape": [16], "codecs": [inner], "index_codecs": inner["configuration"]["index_codecs"]}
    meta["codecs"] = [{"name": "sharding_indexed", "configuration": outer}]
    within = make_shard([(0, 10), pair, (20, 10), (30, 10)], PAYLOAD, location="end", checked=True)
    index = np.array([(0, len(within))], "<u8").tobytes()
    return meta, within + index + crc32c(index).to_bytes(4, "little")


def plain(location: str, pair: tuple[int, int], *, checked: bool = True) -> tuple[dict[str, Any], bytes]:
    first = 68 if location == "start" and checked else 64 if location == "start" else 0
    pairs = [(first, 10), pair, (first + 20, 10), (first + 30, 10)]
    return make_metadata(location=location, checked=checked), make_shard(
        pairs, PAYLOAD, location=location, checked=checked
    )


def trailed(pair: tuple[int, int]) -> tuple[dict[str, Any], bytes]:
    """Return an array whose shard has a further checksum after its index."""
    meta, shard = plain("end", pair)
    meta["codecs"] = [*meta["codecs"], {"name": "crc32c"}]
    return meta, shard + crc32c(shard).to_bytes(4, "little")


def prototype(pair: tuple[int, int]) -> tuple[dict[str, Any], bytes]:
    return META_2, make_shard([(0, 10), pair, (20, 10), (30, 10)], PAYLOAD, location="end", checked=False)


def transformed(pair: tuple[int, int]) -> tuple[dict[str, Any], bytes]:
    """Return the prototype's shard with metadata of version 3."""
    meta, shard = plain("end", pair, checked=False)
    transformer = {"name": "sharding", "configuration": {"chunks_per_shard": [4]}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [4]}}
    return {**meta, "codecs": ["bytes"], "storage_transformers": [transformer], "chunk_grid": grid}, shard


SIZE = 40 + 68  # bytes of a shard with a checked index
WRONG: dict[str, tuple[dict[str, Any], bytes]] = {
    "its index, whole": plain("end", (40, 68)),
    "its index, in part": plain("end", (35, 6)),
    "its index's checksum": plain("end", (SIZE - 4, 4)),
    "its end": plain("end", (SIZE - 2, 10)),
    "far from it": plain("end", (1 << 40, 10)),
    "its index without a checksum": plain("end", (40, 64), checked=False),
    "its index at the start": plain("start", (60, 10)),
    "its end, the index at the start": plain("start", (SIZE - 2, 10)),
    "the index of a shard in the shard": nested((38, 10)),
    "the outer index": nested((SIZE + 1, 10)),
    "its index, before its own checksum": trailed((40, 10)),
    "its own checksum": trailed((SIZE, 4)),
    "the prototype's index": prototype((40, 64)),
    "the prototype's end": prototype((100, 10)),
    "the transformer's index": transformed((39, 2)),
}


ONE_EACH = (  # one shape for each layout
    *("its end", "its index at the start", "the outer index", "its own checksum"),
    *("the prototype's end", "the transformer's index"),
)


def files(meta: dict[str, Any], shard: bytes) -> dict[str, bytes]:
    """Return the files of a hierarchy with one array, ``a``."""
    if meta["zarr_format"] == 2:
        return {".zgroup": b'{"zarr_format": 2}', "a/.zarray": json.dumps(meta).encode(), "a/0": shard}
    group = b'{"zarr_format": 3, "node_type": "group"}'
    return {"zarr.json": group, "a/zarr.json": json.dumps(meta).encode(), "a/c/0": shard}


def zipped(folder: Path, content: dict[str, bytes], method: int) -> Path:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Source]:
    """Return functions by the name of a place: each puts files there, and returns a source that has them."""

    def serve(content: dict[str, bytes]) -> str:
        server = request.getfixturevalue("http_server")
        for name, data in content.items():
            server.put(f"/h/{name}", data)
        return f"{server.url}/h"

    def local(content: dict[str, bytes]) -> str:
        for name, data in content.items():
            path = tmp_path / "h" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return str(tmp_path / "h")

    def memory(content: dict[str, bytes]) -> str:
        fsspec.filesystem("memory").pipe({f"/{tmp_path.name}/{name}": data for name, data in content.items()})
        return f"memory://{tmp_path.name}"

    def manifest(content: dict[str, bytes], refer: Callable[[str, int], list[Any]]) -> dict[str, Any]:
        return {name: refer(name, len(data)) if name.endswith("0") else data.decode() for name, data in content.items()}

    def referred(content: dict[str, bytes]) -> RefShardFileSystem:
        url = serve(content)
        return open_source(manifest(content, lambda name, size: [f"{url}/{name}"]))

    def ranged(content: dict[str, bytes]) -> RefShardFileSystem:
        """Put shards between other bytes, into which a range that is too long would reach."""
        url = serve({name: b"before" + data + b"after" * 100 for name, data in content.items()})
        return open_source(manifest(content, lambda name, size: [f"{url}/{name}", 6, size]))

    def nearby(content: dict[str, bytes]) -> RefShardFileSystem:
        folder = local(content)
        return open_source(manifest(content, lambda name, size: [f"file://{folder}/{name}"]))

    def on_s3(content: dict[str, bytes]) -> RefShardFileSystem:
        server = request.getfixturevalue("s3_server")
        bucket = f"b{abs(hash(request.node.name))}"[:20]
        server.create_bucket(bucket)
        for name, data in content.items():
            server.put(f"{bucket}/h/{name}", data)
        return open_source(f"s3://{bucket}/h", target_options=server.storage_options)

    return {
        "local": lambda content: open_source(local(content)),
        "memory": lambda content: open_source(memory(content)),
        "http": lambda content: open_source(serve(content)),
        "s3": on_s3,
        "zip": lambda content: open_source(str(zipped(tmp_path, content, zipfile.ZIP_STORED))),
        "deflated zip": lambda content: open_source(str(zipped(tmp_path, content, zipfile.ZIP_DEFLATED))),
        "zip on http": lambda content: open_source(
            serve({"a.zip": zipped(tmp_path, content, zipfile.ZIP_STORED).read_bytes()}) + "/a.zip"
        ),
        "references to whole files": referred,
        "references to local files": nearby,
        "references to ranges": ranged,
    }


PLACES = (
    "local",
    "memory",
    "http",
    "s3",
    "zip",
    "deflated zip",
    "zip on http",
    "references to whole files",
    "references to local files",
    "references to ranges",
)


def chunk(content: dict[str, bytes], place: int) -> str:
    return f"a/c/{place}" if "zarr.json" in content else f"a/{place}"


# All wrong places in files, on a server and in references; one wrong place of each layout in all kinds of sources.
@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (wrong, place)
        for wrong in WRONG
        for place in PLACES
        if place in ("local", "http", "references to ranges") or wrong in ONE_EACH
    ],
)
def test_chunk_in_the_index_or_past_the_shard_is_an_error(place: str, wrong: str, places: dict[str, Source]) -> None:
    content = files(*WRONG[wrong])
    fs = places[place](content)
    shard = chunk(content, 0)
    with pytest.raises(DamagedIndex, match=f"shard '{shard}' of array 'a': slot [01] .* expected a range within"):
        fs.cat_file(chunk(content, 1))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [plain, trailed, nested, prototype, transformed])
def test_chunks_up_to_the_index_are_read(place: str, shape: Any, places: dict[str, Source]) -> None:
    content = files(*(shape("end", (30, 10)) if shape is plain else shape((30, 10))))
    fs = places[place](content)
    assert [fs.cat_file(chunk(content, n)) for n in (0, 1, 3)] == [PAYLOAD[:10], PAYLOAD[30:], PAYLOAD[30:]]


@pytest.mark.parametrize("place", ["local", "http", "references to whole files", "zip"])
def test_shard_longer_than_slots_and_mask_is_an_error(place: str, places: dict[str, Source]) -> None:
    meta = {**META_2, "chunks": [10], "shape": [40], "shard_format": "morton_order", "compressor": None}
    sound = PAYLOAD + bytes([0b1111])
    assert places[place](files(meta, sound)).cat_file("a/3") == PAYLOAD[30:]
    fs = places[place](files(meta, b"more" + sound))
    fs.invalidate_cache()
    with pytest.raises(DamagedIndex, match="shard 'a/0' of array 'a': expected 41 bytes of slots and mask, found 45"):
        fs.cat_file("a/3")


@pytest.mark.parametrize("shape", ["end", "start", "trailed"])
def test_chunk_beyond_a_decompressed_shard_is_an_error(shape: str) -> None:
    """The length of inflated bytes is known only after inflating them."""
    at_end, trailer = shape != "start", 4 if shape == "trailed" else 0
    index = TableIndex(OffsetsLevel(4, at_end, checked=True, trailer=trailer), "c/0", "a", 0, cut=None)

    def made(pair: tuple[int, int]) -> bytes:
        return (trailed(pair) if shape == "trailed" else plain(shape, pair))[1]

    first = 0 if at_end else 68
    assert index.decode(made((first + 30, 10))).locate(1) == (first + 30, 10)
    for wrong in ((first + 31, 10), (first + 100, 10)):
        with pytest.raises(ValueError, match="shard 'c/0' of array 'a': slot 1 .* expected a range within"):
            index.decode(made(wrong))
    with pytest.raises(ValueError, match="expected an index of 68 bytes"):
        index.decode(made((first, 10))[-60:])


def test_shard_that_begins_within_its_index_is_damaged() -> None:
    """The read from the end of the object may begin before the shard."""
    level = OffsetsLevel(4, at_end=True, checked=True)
    index = b"".join(map(bytes, level.pack([])))
    assert TableIndex(level, "c/0", "a", 0, first=32).with_size(100).decode(index).locate(0) is None
    with pytest.raises(ValueError, match="shard 'c/0' of array 'a': expected an index of 68 bytes, found 67"):
        TableIndex(level, "c/0", "a", 0, first=33).with_size(100).decode(index)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("before", [b"", b"something else"])
def test_manifest_shards_without_lengths_are_checked(
    tmp_path: Path, http_server: Any, checksum: bool, before: bytes
) -> None:
    for pair, expected in (((30, 10), PAYLOAD[30:]), ((35, 10), None)):
        meta, shard = plain("end", pair)
        entry = {"path": http_server.put(f"/{pair[0]}", before + shard), "offset": len(before)}
        if checksum:
            entry["checksum"] = f"crc32c:{crc32c(shard):08x}"
        transformer = {"name": "chunk-manifest-json", "configuration": {"manifest": {"0": entry}}}
        path = tmp_path / f"{pair[0]}.zarr"
        path.mkdir()
        (path / "zarr.json").write_text(json.dumps({**meta, "storage_transformers": [transformer]}))
        fs = open_source(str(path))
        if expected is None:
            with pytest.raises(DamagedIndex, match="shard 'c/0' of array '': slot 1 .* expected a range within"):
                fs.cat_file("c/1")
        else:
            assert fs.cat_file("c/1") == expected


def test_checked_chunk_of_a_shard_takes_two_requests(http_server: Any) -> None:
    for name, data in files(*plain("end", (10, 10))).items():
        http_server.put(f"/h/{name}", data)
    fs = open_source(f"{http_server.url}/h")
    fs.cat_file("a/zarr.json")
    http_server.clear()
    assert fs.cat_file("a/c/1") == PAYLOAD[10:20]
    assert len(http_server.requests()) == 2


@pytest.mark.parametrize("place", ["local", "http"])
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_volume_chunks_outside_the_data_are_an_error(
    tmp_path: Path, place: str, encoding: str, places: dict[str, Source]
) -> None:
    sharding = {
        "preshift_bits": 0,
        "hash": "identity",
        "minishard_bits": 0,
        "shard_bits": 0,
        "minishard_index_encoding": "raw",
        "data_encoding": encoding,
    }
    volume = tmp_path / "volume"
    write_volume(volume, make_pattern((8, 4, 4, 1)), (4, 4, 4), sharding)
    content = {path.relative_to(volume).as_posix(): path.read_bytes() for path in volume.rglob("*") if path.is_file()}
    name = next(name for name in content if name.endswith(".shard"))
    shard = content[name]
    begin, end = np.frombuffer(shard[:16], "<u8").tolist()
    index = np.frombuffer(shard[16 + begin : 16 + end], "<u8").reshape(3, -1)
    key = f"{KEY}/1.0.0.0"
    assert len(places[place](content).cat_file(key)) > 0
    for move in (int(begin) - int(index[1:, :].sum()) + 8, 1 << 20):  # into the index that follows, and past it
        moved = index.copy()
        moved[1, -1] += move
        content[name] = shard[: 16 + begin] + moved.tobytes() + shard[16 + end :]
        fs = places[place](content)
        fs.invalidate_cache()
        with pytest.raises(DamagedIndex, match=r"chunk 1 lies at \[\d+, \d+\)") as error:
            fs.cat_file(key)
        assert error.value.key == key
        assert name in str(error.value)


def test_minishard_index_outside_the_shard_is_an_error() -> None:
    assert ShardIndex(32).decode(np.array([[0, 5], [9, 9]], "<u8").tobytes()) is not None
    with pytest.raises(ValueError, match="ends at byte 5: expected at most 4"):
        ShardIndex(32).with_size(36).decode(np.array([[0, 5], [9, 9]], "<u8").tobytes())


def two_nested() -> tuple[dict[str, Any], bytes]:
    """Return an array of one shard of two shards of two chunks; the index of the second one has a wrong checksum."""
    meta, _ = nested((10, 10))
    outer = meta["codecs"][0]["configuration"]
    outer["chunk_shape"] = [8]
    sound = make_shard([(0, 10), (10, 10)], PAYLOAD[:20], location="end", checked=True)
    index = np.array([(0, len(sound)), (len(sound), len(sound))], "<u8").tobytes()
    return meta, sound + sound[:-1] + bytes([sound[-1] ^ 1]) + index + crc32c(index).to_bytes(4, "little")


def test_damaged_nested_shard_does_not_affect_others(http_server: RangeServer) -> None:
    meta, shard = two_nested()
    group = json.dumps({"zarr_format": 3, "node_type": "group"})
    refs = {"zarr.json": group, "a/zarr.json": json.dumps(meta), "a/c/0": [http_server.put("/x", shard), 0, len(shard)]}
    fs = open_source(refs)
    keys = [f"a/c/{number}" for number in range(4)]
    assert [fs.cat_file(key) for key in keys[:2]] == [PAYLOAD[:10], PAYLOAD[10:20]]
    for key in keys[2:]:
        with pytest.raises(DamagedIndex, match="checksum"):
            fs.cat_file(key)
    assert [finding.key for finding in check(fs).findings if finding.kind == "index"] == keys[2:]

"""Neuroglancer's precomputed volumes: values equal to what tensorstore put in; damage never gives data."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import DamagedIndex, ManifestError, ReferenceNotReachable, RefShardError
from refshard_fs.formats.neuroglancer.info import parse_info
from refshard_fs.formats.neuroglancer.minishards import MinishardIndex, ShardIndex, Sharding, murmur
from refshard_fs.formats.neuroglancer.volume import Padded
from refshard_fs.sharding.packing import MortonCode
from tests.servers.http import RangeServer
from tests.support.shard_writers import array, opened
from tests.support.volumes import KEY, pattern, write_volume

SAMPLES = Path(__file__).parents[2] / "data" / "neuroglancer"
VALUES = pattern((11, 9, 5, 2))


def info(**changes: Any) -> dict[str, Any]:
    scale = {"key": KEY, "size": [8, 8, 8], "chunk_sizes": [[4, 4, 4]], "encoding": "raw", "resolution": [1, 1, 1]}
    return {"type": "image", "data_type": "uint8", "num_channels": 1, "scales": [{**scale, **changes}]}


def volume_of(doc: dict[str, Any]) -> Any:
    return parse_info(json.dumps(doc).encode(), "it")


@pytest.mark.parametrize("kind", ["files", "identity", "murmur"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_volumes_of_tensorstore_have_its_values(kind: str, zarr_format: int) -> None:
    zarr = pytest.importorskip("zarr")
    if zarr_format == 3 and zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 reads no version 3")
    found = array(str(SAMPLES / kind), KEY, zarr_format=zarr_format)
    assert found.chunks == (4, 4, 4, 2)
    assert np.array_equal(found[...], VALUES)
    assert np.array_equal(found[5:7, 8, 1:, 0], VALUES[5:7, 8, 1:, 0])
    assert found.attrs["voxel_offset"] == [10, -3, 7]
    assert found.attrs["resolution"] == [8, 8, 8]


@pytest.mark.parametrize(
    ("hashed", "bits", "index", "data"),
    [
        ("identity", (0, 0, 0), "raw", "raw"),
        ("identity", (2, 3, 2), "gzip", "gzip"),
        ("murmurhash3_x86_128", (1, 2, 5), "raw", "gzip"),
        ("murmurhash3_x86_128", (0, 6, 3), "gzip", "raw"),
    ],
)
@pytest.mark.parametrize(
    ("shape", "chunk", "offset", "dtype"),
    [
        ((20, 33, 17, 1), (8, 8, 8), (0, 0, 0), "uint8"),
        ((16, 16, 16, 2), (8, 8, 4), (100, -7, 3), "uint32"),
        ((5, 40, 3, 1), (16, 8, 8), (1, 2, 3), "float32"),
    ],
)
def test_every_way_to_shard_a_volume(
    hashed: str, bits: tuple[int, int, int], index: str, data: str, shape: Any, chunk: Any, offset: Any, dtype: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    values = pattern(shape, dtype)
    if shape[0] > chunk[0]:
        values[: chunk[0]] = 0  # which is not stored
    names = ("preshift_bits", "minishard_bits", "shard_bits")
    encodings = {"hash": hashed, "minishard_index_encoding": index, "data_encoding": data}
    write_volume(tmp_path, values, chunk, {**dict(zip(names, bits, strict=True)), **encodings}, offset)
    assert np.array_equal(array(str(tmp_path), KEY)[...], values)
    fs = opened(str(tmp_path))
    counts = [-(-size // step) for size, step in zip(shape, chunk, strict=False)]
    keys = [f"{KEY}/{i}.{j}.{k}.0" for i, j, k in itertools.product(*map(range, counts))]
    stored = [key for key in keys if fs.exists(key)]
    assert [name for name in fs.find(KEY) if "/.z" not in name] == sorted(stored)
    assert len(stored) == len(keys) - (counts[1] * counts[2] if shape[0] > chunk[0] else 0)
    assert all(fs.info(key)["size"] == len(fs.cat_file(key)) for key in stored)


def test_chunks_in_files_are_listed_and_missing_ones_are_no_keys(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "files", tmp_path, dirs_exist_ok=True)
    gone = tmp_path / KEY / "10-14_-3-1_7-11"
    edge = tmp_path / KEY / "18-21_5-6_11-12"
    gone.unlink()
    edge.unlink()
    (tmp_path / KEY / "11-14_-3-1_7-11").write_bytes(b"no chunk of this grid")
    fs = opened(str(tmp_path))
    names = [name.rpartition("/")[2] for name in fs.ls(KEY, detail=False)]
    assert len([n for n in names if n[0] != "."]) == 18 - 2
    for key in (f"{KEY}/0.0.0.0", f"{KEY}/2.2.1.0"):
        assert not fs.exists(key)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)
    values = VALUES.copy()
    values[:4, :4, :4] = values[8:, 8:, 4:] = 0
    assert np.array_equal(array(str(tmp_path), KEY)[...], values)


@pytest.mark.parametrize("kind", ["files", "murmur"])
def test_a_scale_without_a_folder_has_no_chunks(tmp_path: Path, kind: str) -> None:
    shutil.copy(SAMPLES / kind / "info", tmp_path)
    fs = opened(str(tmp_path))
    assert {name.rpartition("/")[2] for name in fs.find(KEY)} == {".zarray", ".zattrs"}
    assert not array(str(tmp_path), KEY)[...].any()


def test_xarray_reads_a_volume_by_its_dimensions() -> None:
    """Version 3 keeps the type: in version 2 xarray takes a fill value, here 0, for missing data."""
    xarray = pytest.importorskip("xarray")
    zarr = pytest.importorskip("zarr")
    options = {"fo": str(SAMPLES / "murmur"), "zarr_format": 2 if zarr.__version__.startswith("2.") else 3}
    masked = {"mask_and_scale": False} if options["zarr_format"] == 2 else {}
    found = xarray.open_zarr("refshard://", storage_options=options, **masked)[KEY]
    assert found.dims == ("x", "y", "z", "channel")
    assert found.dtype == "uint16"
    assert found.chunks == ((4, 4, 3), (4, 4, 1), (4, 1), (2,))
    assert np.array_equal(found.values, VALUES)


def test_scales_of_other_encodings_are_reported(tmp_path: Path) -> None:
    write_volume(tmp_path, VALUES, (4, 4, 4))
    doc = json.loads((tmp_path / "info").read_text())
    doc["scales"].append({**doc["scales"][0], "key": "16_16_16", "encoding": "jpeg"})
    doc["scales"].append({**doc["scales"][0], "key": "../elsewhere"})
    (tmp_path / "info").write_text(json.dumps(doc))
    fs = opened(str(tmp_path))
    assert fs.ls("", detail=False) == [".zattrs", ".zgroup", ".zmetadata", KEY, "info"]
    volume = volume_of(doc)
    assert sorted(volume.reports) == ["16_16_16", "_elsewhere"]
    assert "'jpeg'" in volume.reports["16_16_16"]
    assert "leads out of" in volume.reports["_elsewhere"]
    assert fs.cat_file("info") == (tmp_path / "info").read_bytes()


def test_a_volume_of_which_nothing_can_be_shown_says_why() -> None:
    for encoding in ("jpeg", "png", "compressed_segmentation"):
        with pytest.raises(ManifestError, match=f"none of its scales can be shown.*'{encoding}'"):
            volume_of(info(encoding=encoding))


def test_a_scale_whose_chunks_have_no_ids_hides_no_other() -> None:
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0,
                "minishard_bits": 1, "shard_bits": 1}  # fmt: skip
    doc = info()
    large = {"key": "large", "size": [2**21 + 1, 2**21 + 1, 2**20 + 1], "chunk_sizes": [[1, 1, 1]]}
    doc["scales"].append({**doc["scales"][0], **large, "sharding": sharding})
    volume = volume_of(doc)
    assert list(volume.scales) == [KEY]
    assert "more than 64 bits" in volume.reports["large"]


def test_an_error_about_very_many_scales_is_short() -> None:
    doc = info()
    doc["scales"] = [doc["scales"][0] | {"encoding": "jpeg"}] * 2000
    with pytest.raises(ManifestError, match="none of its scales can be shown") as caught:
        volume_of(doc)
    assert len(str(caught.value)) < 2000


def test_chunks_in_the_shard_of_others_are_listed_no_more_than_found(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "murmur", tmp_path, dirs_exist_ok=True)
    first, *others = sorted((tmp_path / KEY).iterdir())
    for other in others:
        shutil.copy(first, other)
    fs = opened(str(tmp_path))
    keys = [key for key in fs.ls(KEY, detail=False) if not key.endswith((".zarray", ".zattrs"))]
    assert len(keys) == len(set(keys)) > 0
    assert all(map(fs.exists, keys))


def test_a_file_that_is_named_by_thousands_of_digits_is_no_chunk() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/digits/info", json.dumps(info()).encode())
    memory.pipe(f"/digits/{KEY}/0-4_0-4_0-4", bytes(64))
    memory.pipe(f"/digits/{KEY}/{'9' * 5000}-4_0-4_0-4", bytes(64))
    assert opened("memory://digits").ls(KEY, detail=False)[-1:] == [f"{KEY}/0.0.0.0"]


def test_arrays_are_named_by_keys_that_mean_one_name() -> None:
    doc = info()
    keys = ["a/b c", "a_b_c", ".zarray", "info", "8.0x8.0x8.0", "a_b_c"]
    doc["scales"] = [{**doc["scales"][0], "key": key} for key in keys]
    volume = volume_of(doc)
    assert list(volume.scales) == ["a_b_c", "a_b_c_1", "zarray", "info_3", "8.0x8.0x8.0", "a_b_c_5"]
    assert [scale.key for scale in volume.scales.values()] == keys


@pytest.mark.parametrize(
    "changes",
    [
        {"size": [1, 2]}, {"size": [1, 2, -3]}, {"size": [2**40, 2**40, 2]}, {"size": "8"}, {"chunk_sizes": []},
        {"chunk_sizes": [[4, 4, 0]]}, {"chunk_sizes": [4]}, {"voxel_offset": [0, 0]}, {"voxel_offset": ["0", 0, 0]},
        {"voxel_offset": [0, 0, -(10**4000)]},
        {"key": 5}, {"key": "zip::x"}, {"sharding": {"@type": "neuroglancer_uint64_sharded_v1"}},
        {"sharding": {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0,
                      "minishard_bits": 40, "shard_bits": 0}},
    ],
)  # fmt: skip
def test_a_scale_that_contradicts_the_specification_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        volume_of(info(**changes))


def test_giant_chunks_are_not_made() -> None:
    with pytest.raises(ManifestError, match="more than .* bytes each"):
        volume_of(info(size=[2**20, 2**20, 2**20], chunk_sizes=[[2**20, 2**20, 2**20]]))
    volume = volume_of(info(chunk_sizes=[[2**20, 2**20, 2**20]]))
    assert volume.scales[KEY].chunks == (8, 8, 8, 1)


def test_morton_codes_leave_out_bits_that_no_cell_needs() -> None:
    code = MortonCode((3, 1, 5))  # bits: x0 z0 x1 z1 z2
    assert [code.encode(c) for c in [(0, 0, 0), (1, 0, 0), (0, 0, 1), (2, 0, 0), (0, 0, 2), (0, 0, 4), (2, 0, 4)]] == [
        0, 1, 2, 4, 8, 16, 20,
    ]  # fmt: skip
    cells = list(itertools.product(range(3), range(1), range(5)))
    codes = [code.encode(cell) for cell in cells]
    assert len(set(codes)) == len(cells)
    assert code.decode(np.array(codes, np.uint64), 3).tolist() == [list(cell) for cell in cells]
    with pytest.raises(ValueError, match="more than 64 bits"):
        MortonCode((2**22, 2**22, 2**22))


def test_murmur_hashes_as_its_reference_does() -> None:
    vectors = {0: 0x4772B084E028AE41, 1: 0xE8BD67D616D4CE9A, 0x0123456789ABCDEF: 0x708036264C109D93}
    assert {number: murmur(number) for number in vectors} == vectors


def test_shards_are_named_by_as_many_digits_as_their_bits_take() -> None:
    sharding = Sharding(0, "identity", 1, 9)
    assert sharding.place(0b1_0000_0010_1) == (0x102, 1)
    assert sharding.stem(0x102) == "102"
    assert sharding.shard("00a.shard") == 10
    for name in ("a.shard", "200.shard", "00A.shard", "00a.index", "00a", ".shard"):
        assert sharding.shard(name) is None
    assert Sharding(0, "identity", 0, 0).stem(0) == "0"


def test_indexes_that_cannot_be_true_are_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        ShardIndex().decode(struct.pack("<4Q", 0, 5, 9, 5))
    raw = MinishardIndex("raw", 2)
    good = struct.pack("<6Q", 7, 3, 100, 0, 10, 20)
    assert [raw.decode(good).locate(i) for i in (7, 10, 8)] == [(100, 10), (110, 20), None]
    for bad in (
        good[:-1],
        good + bytes(24),
        struct.pack("<6Q", 7, 0, 100, 0, 10, 20),  # one chunk twice
        struct.pack("<6Q", 7, 3, 100, 2**63, 10, 20),
        struct.pack("<6Q", 7, 3, 2**62, 2**62, 2**62, 2**62),
        struct.pack("<6Q", 7, 3, 2**63 - 1, 2**63 - 1, 0, 9),  # the second one begins at 2**64 - 2
    ):
        with pytest.raises(ValueError, match="minishard"):
            raw.decode(bad)
    packed = MinishardIndex("gzip", 2)
    assert packed.decode(gzip.compress(good)).locate(7) == (100, 10)
    for stream in (gzip.compress(bytes(10_000_000)), gzip.compress(good)[:-9], b"plain"):
        with pytest.raises(ValueError, match="compressed bytes"):
            packed.decode(stream)


def test_a_chunk_at_the_edge_is_padded_and_one_of_another_size_refused() -> None:
    recipe = Padded((2, 1, 1, 1), (3, 2, 1, 1), 1, is_gzip=False)
    assert recipe.make(b"ab") == b"ab\0\0\0\0"
    for raw in (b"a", b"abc"):
        with pytest.raises(ValueError, match="edge leaves 2"):
            recipe.make(raw)
    packed = Padded((2, 1, 1, 1), (3, 2, 1, 1), 1, is_gzip=True)
    assert gzip.decompress(packed.make(gzip.compress(b"ab"))) == b"ab\0\0\0\0"
    with pytest.raises(ValueError, match="do not end after 2"):
        packed.make(gzip.compress(b"abc"))


def test_damaged_volumes_never_give_data(tmp_path: Path) -> None:
    for kind in ("files", "identity", "murmur"):
        shutil.copytree(SAMPLES / kind, tmp_path / kind)
        for path in (tmp_path / kind / KEY).iterdir():
            path.write_bytes(path.read_bytes()[:-3])
        fs = opened(str(tmp_path / kind))
        failed = 0
        for i, j, k in itertools.product(range(3), range(3), range(2)):
            try:
                got = fs.cat_file(f"{KEY}/{i}.{j}.{k}.0")
            except RefShardError:
                failed += 1
            else:
                assert got == opened(str(SAMPLES / kind)).cat_file(f"{KEY}/{i}.{j}.{k}.0")
        assert failed


def test_a_chunk_of_the_wrong_size_in_a_shard_names_the_shard(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "identity", tmp_path, dirs_exist_ok=True)
    doc = json.loads((tmp_path / "info").read_text())
    doc["data_type"] = "uint8"
    (tmp_path / "info").write_text(json.dumps(doc))
    with pytest.raises(DamagedIndex, match=r"0\.shard.*are due"):
        opened(str(tmp_path)).cat_file(f"{KEY}/0.0.0.0")


def test_a_shard_that_cannot_be_reached_is_no_missing_chunk(http_server: RangeServer) -> None:
    for path in (SAMPLES / "identity").rglob("*"):
        if path.is_file():
            http_server.put(f"/v/{path.relative_to(SAMPLES / 'identity')}", path.read_bytes())
    fs = opened(f"{http_server.url}/v", retries=0)
    assert fs.ls("", detail=False)
    http_server.fault(403, "*.shard")
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file(f"{KEY}/0.0.0.0")


def test_the_obsolete_form_of_two_files_a_shard_is_no_volume_of_zeros(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "identity", tmp_path, dirs_exist_ok=True)
    for path in list((tmp_path / KEY).iterdir()):
        path.rename(path.with_suffix(".index"))
    with pytest.raises(ManifestError, match="obsolete"):
        opened(str(tmp_path)).cat_file(f"{KEY}/0.0.0.0")


def test_chunks_of_a_shard_share_its_indexes_and_their_reads(http_server: RangeServer) -> None:
    for path in (SAMPLES / "identity").rglob("*"):
        if path.is_file():
            http_server.put(f"/v/{path.relative_to(SAMPLES / 'identity')}", path.read_bytes())
    fs = opened(f"{http_server.url}/v")
    keys = [f"{KEY}/{i}.{j}.{k}.0" for i, j, k in itertools.product(range(3), range(3), range(2))]
    local = opened(str(SAMPLES / "identity"))
    fs.cat_file(".zattrs")
    http_server.clear()
    assert fs.cat(keys) == {key: local.cat_file(key) for key in keys}
    shards = len(list((SAMPLES / "identity" / KEY).iterdir()))
    full = [r for r in http_server.requests() if r.method == "GET"]
    edges = sum(2 in (int(c) for c in key.split("/")[1].split(".")[:2]) or key.endswith("1.0") for key in keys)
    assert len([r for r in full if r.start == 0]) == shards
    assert len(full) <= shards * (1 + 4 + 1) + edges
    http_server.clear()
    fs.cat_file(keys[0])
    assert len(http_server.requests()) == 1

"""The scales in an info document become arrays; a document that breaks the specification is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError
from refshard_fs.formats.neuroglancer.info import parse_info
from tests.support.neuroglancer_info import VALUES, make_info
from tests.support.shard_writers import open_array, open_source
from tests.support.volumes import KEY, write_volume


def parse_volume(doc: dict[str, Any]) -> Any:
    return parse_info(json.dumps(doc).encode(), "it")


def test_scales_of_unsupported_encodings_are_reported(tmp_path: Path) -> None:
    write_volume(tmp_path, VALUES, (4, 4, 4))
    doc = json.loads((tmp_path / "info").read_text())
    doc["scales"].append({**doc["scales"][0], "key": "16_16_16", "encoding": "compresso"})
    doc["scales"].append({**doc["scales"][0], "key": "../elsewhere"})
    (tmp_path / "info").write_text(json.dumps(doc))
    fs = open_source(str(tmp_path))
    assert fs.ls("", detail=False) == [".zattrs", ".zgroup", ".zmetadata", KEY]
    volume = parse_volume(doc)
    assert sorted(volume.reports) == ["16_16_16", "_elsewhere"]
    assert "'compresso': expected raw, jpeg, png, compressed_segmentation" in volume.reports["16_16_16"]
    assert "is not in the volume" in volume.reports["_elsewhere"]
    assert not fs.exists("info"), (
        "with it, a viewer would open the volume, request chunks by other names, and show nothing"
    )


@pytest.mark.parametrize("format", ["json", "parquet", "chunk-manifest"])
def test_volume_is_saved_as_json_parquet_and_chunk_manifest(format: str, tmp_path: Path) -> None:
    write_volume(tmp_path / "volume", VALUES, (4, 4, 4))
    fs = open_source(str(tmp_path / "volume"))
    fs.save(str(tmp_path / "saved"), format)
    saved = open_source(str(tmp_path / "saved"))
    assert [name for name in saved.ls("", detail=False) if not name.startswith((".", "zarr"))] == [KEY]
    np.testing.assert_array_equal(open_array(str(tmp_path / "saved"), KEY)[...], VALUES)


def test_error_of_volume_without_readable_scales_says_why() -> None:
    for encoding in ("jxl", "compresso", "compressed_segmentation"):  # compressed_segmentation does not support uint8
        with pytest.raises(ManifestError, match=f"one scale that can be shown, found none.*'{encoding}'"):
            parse_volume(make_info(encoding=encoding))


@pytest.mark.parametrize(
    ("encoding", "channels", "known"), [("jpeg", 2, "uint8 with 1 or 3"), ("png", 5, "uint16 or uint8 with 1 to 4")]
)
def test_error_for_number_of_channels_names_possible_ones(encoding: str, channels: int, known: str) -> None:
    with pytest.raises(ManifestError, match=f"{channels} channels of uint8, .*: expected {known} channels"):
        parse_volume({**make_info(encoding=encoding), "num_channels": channels})


def test_scale_with_too_many_chunks_is_reported() -> None:
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0,
                "minishard_bits": 1, "shard_bits": 1}  # fmt: skip
    doc = make_info()
    large = {"key": "large", "size": [2**21 + 1, 2**21 + 1, 2**20 + 1], "chunk_sizes": [[1, 1, 1]]}
    doc["scales"].append({**doc["scales"][0], **large, "sharding": sharding})
    volume = parse_volume(doc)
    assert list(volume.scales) == [KEY]
    assert "at most 64 bits" in volume.reports["large"]


def test_error_about_many_scales_is_short() -> None:
    doc = make_info()
    doc["scales"] = [doc["scales"][0] | {"encoding": "jxl"}] * 2000
    with pytest.raises(ManifestError, match="one scale that can be shown, found none") as caught:
        parse_volume(doc)
    assert len(str(caught.value)) < 2000


def test_equivalent_keys_give_distinct_array_names() -> None:
    doc = make_info()
    keys = ["a/b c", "a_b_c", ".zarray", "info", "8.0x8.0x8.0", "a_b_c"]
    doc["scales"] = [{**doc["scales"][0], "key": key} for key in keys]
    volume = parse_volume(doc)
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
def test_invalid_scale_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        parse_volume(make_info(**changes))


def test_giant_chunks_are_refused() -> None:
    with pytest.raises(ManifestError, match="bytes each: expected at most"):
        parse_volume(make_info(size=[2**20, 2**20, 2**20], chunk_sizes=[[2**20, 2**20, 2**20]]))
    volume = parse_volume(make_info(chunk_sizes=[[2**20, 2**20, 2**20]]))
    assert volume.scales[KEY].chunks == (8, 8, 8, 1)

"""Chunk manifests written from other sources, and references written from chunk manifests."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import ManifestError, concat
from refshard_fs.cli import main
from tests.support.chunk_manifests import make_metadata, needs_zarr_3, open_source, write
from tests.support.version_2_arrays import make_v2, read_values

pytest.importorskip("pyarrow")


@pytest.fixture
def references(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "raw.bin").write_bytes(np.arange(24, dtype="<i2").tobytes())
    return {
        ".zgroup": '{"zarr_format": 2}',
        "g/.zgroup": '{"zarr_format": 2}',
        "g/x/.zarray": json.dumps(make_v2(shape=[24], chunks=[6])),
        "g/x/.zattrs": '{"a": 1}',
        "g/x/0": [f"{tmp_path}/raw.bin", 0, 12],
        "g/x/1": [f"{tmp_path}/raw.bin", 12, 12],
        "g/x/3": "base64:" + "AAAA" * 4,
    }


def test_manifests_keep_references(tmp_path: Path, references: dict[str, Any]) -> None:
    (tmp_path / "set.json").write_text(json.dumps(references))
    open_source(str(tmp_path / "set.json")).save(str(tmp_path / "a.parq"), "parquet")
    for source in ("set.json", "a.parq"):
        out = tmp_path / f"{source}.zarr"
        assert main(["convert", str(tmp_path / source), str(out), "--format", "chunk-manifest"]) == 0
        manifest = json.loads((out / "g/x/manifest.json").read_text())
        assert manifest == {
            "0": {"path": f"{tmp_path}/raw.bin", "offset": 0, "length": 12},
            "1": {"path": f"{tmp_path}/raw.bin", "offset": 12, "length": 12},
            "3": {"data": "\0" * 12},
        }
        root = json.loads((out / "zarr.json").read_text())
        assert set(root["consolidated_metadata"]["metadata"]) == {"g", "g/x"}
    for back in ("b.json", "b.parq"):
        assert main(["convert", str(out), str(tmp_path / back)]) == 0
        fs = open_source(str(tmp_path / back))
        keys = ("0", "1", "3")
        assert [fs.cat_file(f"g/x/{n}") for n in keys] == [open_source(references).cat_file(f"g/x/{n}") for n in keys]
        assert not fs.exists("g/x/2")
        assert fs.references["g/x/1"] == references["g/x/1"]


def test_relative_urls_keep_their_meaning(tmp_path: Path, references: dict[str, Any]) -> None:
    references["g/x/0"] = ["raw.bin", 0, 12]
    (tmp_path / "set.json").write_text(json.dumps(references))
    open_source(str(tmp_path / "set.json")).save(str(tmp_path / "deep/er/out"), "chunk-manifest")
    assert open_source(str(tmp_path / "deep/er/out")).cat_file("g/x/0") == (tmp_path / "raw.bin").read_bytes()[:12]


@pytest.mark.parametrize("key", ["zarr.json", "x/zarr.json"])
def test_error_names_a_document_outside_any_node(tmp_path: Path, key: str) -> None:
    with pytest.raises(ManifestError, match=f"'{key}' has no valid node_type"):
        open_source({key: '{"zarr_format": 3}'}).save(str(tmp_path / "new.zarr"))
    assert not (tmp_path / "new.zarr").exists()


def test_checks_of_ranges_and_missing_marks_are_kept(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    manifest = {
        "0": {"path": "../raw", "offset": 2, "length": 2, "etag": "e", "checksum": "md5:" + "0" * 32},
        "1": {},
        "2": {"data": "x", "checksum": "crc32:8cdc1683"},
        "3": {"path": "../raw", "offset": 4},
        "4": {"path": "../raw"},
    }
    open_source(str(write(tmp_path / "a", manifest, (20,)))).save(str(tmp_path / "b"), "chunk-manifest")
    assert json.loads((tmp_path / "b/manifest.json").read_text()) == {
        "0": {
            "path": str(tmp_path / "raw"), "offset": 2, "length": 2, "checksum": "md5:" + "0" * 32, "etag": "e",
        },
        "1": {},
        "2": {"data": "x"},
        "3": {"path": str(tmp_path / "raw"), "offset": 4},
        "4": {"path": str(tmp_path / "raw")},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            {"0": {"path": "../raw", "offset": 2, "length": 2, "etag": "e", "checksum": "md5:" + "0" * 32}},
            "'c/0' has checksum and etag",
        ),
        ({"1": {}}, "'c/1' is marked as missing"),
    ],
)
def test_json_and_parquet_refuse_checks_and_missing_marks(
    tmp_path: Path, manifest: dict[str, Any], message: str
) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    source = open_source(str(write(tmp_path / "a", manifest, (20,))))
    for name in ("b.json", "b.parq"):
        with pytest.raises(ManifestError, match=message):
            source.save(str(tmp_path / name))
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["set.json", "set.parq"])
def test_range_from_an_offset_to_the_end_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    source = open_source(str(write(tmp_path / "a", {"0": {"path": "../raw", "offset": 4}})))
    assert source.cat_file("c/0") == b"456789"
    with pytest.raises(ManifestError, match=r"'c/0' reaches from byte 4 of its target to the end"):
        source.save(str(tmp_path / name))
    assert not (tmp_path / name).exists()
    joined = concat([source])
    assert open_source(joined).cat_file("c/0") == b"456789"
    assert joined.references["c/0"] == [str(tmp_path / "raw"), 4, None]
    with pytest.raises(ManifestError, match="'c/0' reaches from byte 4"):
        joined.save(str(tmp_path / name))


@needs_zarr_3
def test_hierarchies_and_archives_become_references(tmp_path: Path) -> None:
    data = np.arange(64, dtype="i4").reshape(8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(tmp_path / "s", mode="w", zarr_format=3)
        for name, shards in (("plain", None), ("sharded", (4, 4))):
            array = root.create_array(name, shape=data.shape, dtype=data.dtype, chunks=(2, 2), shards=shards)
            array[...] = data
    write(tmp_path / "s/m", {"0": {"data": "ab"}})
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        for path in sorted((tmp_path / "s").rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(tmp_path / "s")))
    for source in ("s", "s.zip"):
        for out, kind in ((f"{source}.json", "json"), (f"{source}.zarr", "chunk-manifest")):
            open_source(str(tmp_path / source)).save(str(tmp_path / out), kind)
            for name in ("plain", "sharded"):
                assert np.array_equal(read_values(str(tmp_path / out), name), data), (out, name)
            assert open_source(str(tmp_path / out)).cat_file("m/c/0") == b"ab"


def test_error_names_unsupported_content(tmp_path: Path) -> None:
    for refs, named in (
        ({"note.txt": "x"}, "note"),
        ({"x/zarr.json": json.dumps(make_metadata((4,), (2,), None) | {"chunk_grid": {"name": "odd"}})}, "x/zarr.json"),
        ({"x/.zarray": [str(tmp_path / "gone")]}, "x/.zarray"),
    ):
        with pytest.raises(ManifestError, match=named):
            open_source(refs).save(str(tmp_path / "out"), "chunk-manifest")
        assert not (tmp_path / "out").exists()


def test_only_a_hierarchy_is_overwritten(tmp_path: Path, references: dict[str, Any]) -> None:
    fs = open_source(references)
    fs.save(str(tmp_path / "out"), "chunk-manifest")
    with pytest.raises(FileExistsError, match="overwrite"):
        fs.save(str(tmp_path / "out"), "chunk-manifest")
    fs.save(str(tmp_path / "out"), "chunk-manifest", overwrite=True)
    with pytest.raises(FileExistsError):
        open_source(str(tmp_path / "out")).save(str(tmp_path / "out"), "chunk-manifest", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(FileExistsError):
        fs.save(str(tmp_path / "other"), "chunk-manifest", overwrite=True)
    assert open_source(str(tmp_path / "out")).exists("g/x/0")

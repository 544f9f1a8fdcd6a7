"""Chunk manifests written from every kind of source, and every kind of set from chunk manifests."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from refshard_fs import ManifestError, concat
from refshard_fs.cli import main
from refshard_fs.core.version_3 import array_3
from tests.support.chunk_manifests import metadata, needs_zarr_3, opened, write

pytest.importorskip("pyarrow")


def v2(**more: Any) -> dict[str, Any]:
    doc = {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<i2", "order": "C", "fill_value": None}
    return {**doc, "compressor": None, "filters": None, **more}


def values(source: Any, path: str = "x") -> Any:
    store = zarr.storage.FsspecStore(opened(source, asynchronous=True), path="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_group(store, mode="r")[path][...]


# ---------------------------------------------------------------------- from version 2


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "big endian": {"dtype": ">f8"},
    "Fortran": {"order": "F", "dtype": "<f4", "fill_value": "NaN"},
    "bool": {"dtype": "|b1"},
    "zlib": {"compressor": numcodecs.Zlib().get_config()},
    "HDF5": {"filters": [numcodecs.Shuffle(2).get_config(), numcodecs.Zlib().get_config()]},
    "blosc": {"compressor": numcodecs.Blosc("lz4", 3, 2).get_config(), "fill_value": 3},
    "delta": {"filters": [numcodecs.Delta("<i2").get_config()], "compressor": numcodecs.GZip().get_config()},
    "zstd": {"compressor": numcodecs.Zstd().get_config(), "dimension_separator": "/"},
    "text": {"dtype": "<U3"},
    "bytes": {"dtype": "|S4"},
    "scalar": {"shape": [], "chunks": []},
}


def write_v2(folder: Path, doc: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Write an array by the specification of version 2, chunk by chunk."""
    dtype = np.dtype(doc["dtype"])
    data = np.arange(24).reshape(4, 6) if doc["shape"] else np.array(7)
    data = (data % 2).astype(dtype) if dtype.kind == "b" else data.astype(dtype)
    (folder / "x").mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / ".zattrs").write_text('{"title": "t"}')
    (folder / "x/.zarray").write_text(json.dumps(doc))
    (folder / "x/.zattrs").write_text(json.dumps({"units": "K", "_ARRAY_DIMENSIONS": ["y", "x"][: data.ndim]}))
    sep = doc.get("dimension_separator", ".")
    places = [(i, j) for i in range(2) for j in range(2)] if data.ndim else [()]
    for place in places:
        chunk = data[tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, doc["chunks"], strict=True))]
        raw: Any = np.frombuffer(chunk.tobytes(order=doc["order"]), dtype)
        for config in (*(doc["filters"] or ()), *([doc["compressor"]] if doc["compressor"] else ())):
            raw = numcodecs.get_codec(config).encode(raw)
        path = folder / "x" / (sep.join(map(str, place)) or "0")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(np.asarray(raw).tobytes() if not isinstance(raw, bytes) else raw)
    return data


@needs_zarr_3
@pytest.mark.parametrize("case", CASES)
def test_version_2_becomes_version_3_of_the_same_values(tmp_path: Path, case: str) -> None:
    data = write_v2(tmp_path / "old", v2(**CASES[case]))
    opened(str(tmp_path / "old")).save(str(tmp_path / "new"), "chunk-manifest")
    doc = json.loads((tmp_path / "new/x/zarr.json").read_text())
    assert doc["storage_transformers"][0]["name"] == "chunk-manifest-json"
    assert doc["attributes"]["units"] == "K"
    found = values(str(tmp_path / "new"))
    assert found.dtype == data.dtype.newbyteorder("=")  # the order of bytes is the codec's, in version 3
    assert np.array_equal(found, data)


@needs_zarr_3
def test_xarray_masks_what_it_masked_before(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    write_v2(tmp_path / "old", v2(dtype="<f4", fill_value=5.0))
    opened(str(tmp_path / "old")).save(str(tmp_path / "new"), "chunk-manifest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old, new = (
            xr.open_zarr(zarr.storage.FsspecStore(opened(str(tmp_path / n), asynchronous=True)), consolidated=c).load()
            for n, c in (("old", False), ("new", True))
        )
    assert np.isnan(new["x"].values[0, 5])
    xr.testing.assert_identical(old, new)


@pytest.mark.parametrize("fill", [None, 0, "", "none"])
def test_texts_become_those_of_version_3(tmp_path: Path, fill: Any) -> None:
    document = v2(dtype="|O", fill_value=fill, filters=[{"id": "vlen-utf8"}])
    found = array_3(document, {}, "x/.zarray")
    assert (found["data_type"], found["codecs"][0]) == ("string", {"name": "vlen-utf8"})
    assert found["fill_value"] == (fill or "")
    opened({"x/.zarray": json.dumps(document)}).save(str(tmp_path / "new"), "chunk-manifest")
    assert json.loads(opened(str(tmp_path / "new")).cat_file("x/zarr.json"))["data_type"] == "string"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": [["a", "<i4"]]},
        {"filters": [{"id": "json2"}]},
        {"filters": [{"id": "shuffle"}, {"id": "delta", "dtype": "<i2"}]},
        {"compressor": {"id": "pcodec_of_mine"}},
        {"shards": [2, 2], "shard_format": "indexed"},
        {"filters": 5},
        {"filters": {"id": "delta"}},
        {"compressor": "zlib"},
        {"fill_value": [1]},
        {"fill_value": "text"},
        {"fill_value": float("inf")},
        {"dtype": "<f4", "fill_value": 10**400},
        {"dtype": "|V2000000000"},
        {"dtype": "|V" + "9" * 5000},
        {"dtype": "<M8[" + "9" * 5000 + "ns]"},
    ],
)
def test_what_version_3_has_no_name_for_is_refused_by_key(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"x/\.zarray"):
        array_3(v2(**change), {}, "x/.zarray")
    refs = {"x/.zarray": json.dumps(v2(**change))}
    with pytest.raises(ManifestError, match=r"x/\.zarray"):
        opened(refs).save(str(tmp_path / "new"), "chunk-manifest")
    assert not (tmp_path / "new").exists()


def test_an_array_within_an_array_is_refused_for_its_chunks_would_be_lost(tmp_path: Path) -> None:
    refs = {".zarray": json.dumps(v2()), "x/.zarray": json.dumps(v2()), "x/0.0": "0" * 12, "0.0": "1" * 12}
    assert opened(refs).cat_file("x/0.0") == b"0" * 12
    with pytest.raises(ManifestError, match=r"x/zarr\.json.* array within the array ''"):
        opened(refs).save(str(tmp_path / "new"), "chunk-manifest")
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------------- from and to other formats


@pytest.fixture
def references(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "raw.bin").write_bytes(np.arange(24, dtype="<i2").tobytes())
    return {
        ".zgroup": '{"zarr_format": 2}',
        "g/.zgroup": '{"zarr_format": 2}',
        "g/x/.zarray": json.dumps(v2(shape=[24], chunks=[6])),
        "g/x/.zattrs": '{"a": 1}',
        "g/x/0": [f"{tmp_path}/raw.bin", 0, 12],
        "g/x/1": [f"{tmp_path}/raw.bin", 12, 12],
        "g/x/3": "base64:" + "AAAA" * 4,
    }


def test_references_become_manifests_and_references_again(tmp_path: Path, references: dict[str, Any]) -> None:
    (tmp_path / "set.json").write_text(json.dumps(references))
    opened(str(tmp_path / "set.json")).save(str(tmp_path / "a.parq"), "parquet")
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
        fs = opened(str(tmp_path / back))
        keys = ("0", "1", "3")
        assert [fs.cat_file(f"g/x/{n}") for n in keys] == [opened(references).cat_file(f"g/x/{n}") for n in keys]
        assert not fs.exists("g/x/2")
        assert fs.references["g/x/1"] == references["g/x/1"]


def test_relative_urls_keep_their_meaning(tmp_path: Path, references: dict[str, Any]) -> None:
    references["g/x/0"] = ["raw.bin", 0, 12]
    (tmp_path / "set.json").write_text(json.dumps(references))
    opened(str(tmp_path / "set.json")).save(str(tmp_path / "deep/er/out"), "chunk-manifest")
    assert opened(str(tmp_path / "deep/er/out")).cat_file("g/x/0") == (tmp_path / "raw.bin").read_bytes()[:12]


@pytest.mark.parametrize("key", ["zarr.json", "x/zarr.json"])
def test_a_document_of_no_node_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ManifestError, match=f"'{key}' describes neither"):
        opened({key: '{"zarr_format": 3}'}).save(str(tmp_path / "new.zarr"))
    assert not (tmp_path / "new.zarr").exists()


def test_checks_and_empty_chunks_are_kept_or_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    manifest = {
        "0": {"path": "../raw", "offset": 2, "length": 2, "etag": "e", "checksum": "md5:" + "0" * 32},
        "1": {},
        "2": {"data": "x", "checksum": "crc32:8cdc1683"},
        "3": {"path": "../raw", "offset": 4},
        "4": {"path": "../raw"},
    }
    source = str(write(tmp_path / "a", manifest, (20,)))
    opened(source).save(str(tmp_path / "b"), "chunk-manifest")
    assert json.loads((tmp_path / "b/manifest.json").read_text()) == {
        "0": {
            "path": str(tmp_path / "raw"), "offset": 2, "length": 2, "checksum": "md5:" + "0" * 32, "etag": "e",
        },
        "1": {},
        "2": {"data": "x"},
        "3": {"path": str(tmp_path / "raw"), "offset": 4},
        "4": {"path": str(tmp_path / "raw")},
    }  # fmt: skip
    for name in ("c.json", "c.parq"):
        with pytest.raises(ManifestError, match=r"'c/0' has checksum and etag"):
            opened(source).save(str(tmp_path / name))
        assert not (tmp_path / name).exists()
    (tmp_path / "a/manifest.json").write_text('{"1": {}}')
    with pytest.raises(ManifestError, match=r"'c/1' is empty"):
        opened(source).save(str(tmp_path / "d.json"))


@pytest.mark.parametrize("name", ["set.json", "set.parq"])
def test_what_reaches_from_within_a_target_to_its_end_is_no_reference_of_a_set(tmp_path: Path, name: str) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    source = opened(str(write(tmp_path / "a", {"0": {"path": "../raw", "offset": 4}})))
    assert source.cat_file("c/0") == b"456789"
    with pytest.raises(ManifestError, match=r"'c/0' begins at byte 4 of its target and ends with it"):
        source.save(str(tmp_path / name))
    assert not (tmp_path / name).exists()
    joined = concat([source])
    assert opened(joined).cat_file("c/0") == b"456789"
    assert joined.references["c/0"] == [str(tmp_path / "raw"), 4, None]
    with pytest.raises(ManifestError, match="'c/0' begins at byte 4"):
        joined.save(str(tmp_path / name))


@needs_zarr_3
def test_hierarchies_archives_and_mixed_arrays_become_references(tmp_path: Path) -> None:
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
            opened(str(tmp_path / source)).save(str(tmp_path / out), kind)
            for name in ("plain", "sharded"):
                assert np.array_equal(values(str(tmp_path / out), name), data), (out, name)
            assert opened(str(tmp_path / out)).cat_file("m/c/0") == b"ab"


def test_what_a_manifest_cannot_hold_is_named(tmp_path: Path) -> None:
    for refs, named in (
        ({"note.txt": "x"}, "note"),
        ({"x/zarr.json": json.dumps(metadata((4,), (2,), None) | {"chunk_grid": {"name": "odd"}})}, "x/zarr.json"),
        ({"x/.zarray": [str(tmp_path / "gone")]}, "x/.zarray"),
    ):
        with pytest.raises(ManifestError, match=named):
            opened(refs).save(str(tmp_path / "out"), "chunk-manifest")
        assert not (tmp_path / "out").exists()


def test_only_a_hierarchy_is_overwritten(tmp_path: Path, references: dict[str, Any]) -> None:
    fs = opened(references)
    fs.save(str(tmp_path / "out"), "chunk-manifest")
    with pytest.raises(FileExistsError, match="overwrite"):
        fs.save(str(tmp_path / "out"), "chunk-manifest")
    fs.save(str(tmp_path / "out"), "chunk-manifest", overwrite=True)
    with pytest.raises(FileExistsError):
        opened(str(tmp_path / "out")).save(str(tmp_path / "out"), "chunk-manifest", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(FileExistsError):
        fs.save(str(tmp_path / "other"), "chunk-manifest", overwrite=True)
    assert opened(str(tmp_path / "out")).exists("g/x/0")

"""Metadata of version 2 become metadata of version 3 for the same values."""

from __future__ import annotations

import base64
import json
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from refshard_fs import ManifestError
from refshard_fs.core.version_3 import convert_array, decode_from_xarray, encode_for_xarray
from refshard_fs.references.values import encode
from tests.support.chunk_manifests import needs_zarr_3, open_source
from tests.support.version_2_arrays import make_v2, read_values

pytest.importorskip("pyarrow")


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
    """Write an array as the specification of version 2 says, chunk by chunk."""
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
    data = write_v2(tmp_path / "old", make_v2(**CASES[case]))
    open_source(str(tmp_path / "old")).save(str(tmp_path / "new"), "chunk-manifest")
    doc = json.loads((tmp_path / "new/x/zarr.json").read_text())
    assert doc["storage_transformers"][0]["name"] == "chunk-manifest-json"
    assert doc["attributes"]["units"] == "K"
    found = read_values(str(tmp_path / "new"))
    assert found.dtype == data.dtype.newbyteorder("=")  # in version 3, the codec has the byte order
    assert np.array_equal(found, data)


@needs_zarr_3
@pytest.mark.parametrize("dtype", ["<M8[s]", "<m8[ns]", "<f4", "<i2", "|b1", "<c8", "|S4", "<U3"])
def test_missing_chunk_without_a_fill_value_has_zarrs_default(tmp_path: Path, dtype: str) -> None:
    write_v2(tmp_path / "old", make_v2(dtype=dtype, fill_value=None))
    (tmp_path / "old/x/1.1").unlink()
    open_source(str(tmp_path / "old")).save(str(tmp_path / "new"), "chunk-manifest")
    np.testing.assert_array_equal(
        read_values(str(tmp_path / "new")), zarr.open_array(str(tmp_path / "old/x"), mode="r")[:]
    )


@needs_zarr_3
def test_xarray_masks_the_same_values_after_conversion(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    write_v2(tmp_path / "old", make_v2(dtype="<f4", fill_value=5.0))
    open_source(str(tmp_path / "old")).save(str(tmp_path / "new"), "chunk-manifest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old, new = (
            xr.open_zarr(
                zarr.storage.FsspecStore(open_source(str(tmp_path / n), asynchronous=True)), consolidated=c
            ).load()
            for n, c in (("old", False), ("new", True))
        )
    assert np.isnan(new["x"].values[0, 5])
    xr.testing.assert_identical(old, new)


@needs_zarr_3
@pytest.mark.parametrize("fill", [None, "AQAAAAAAQEBhYgAA"])
@pytest.mark.parametrize("nested", [False, True])
def test_structs_have_the_same_values_in_version_3(nested: bool, fill: str | None, tmp_path: Path) -> None:
    if nested:
        pytest.importorskip("zarr", minversion="3.2")
    inner: Any = [["x", "<f4"]] if nested else "<f4"
    dtype = np.dtype([("number", "<i4"), ("inner", [("x", "<f4")] if nested else "<f4"), ("text", "S4")])
    values = np.array([(1, (2.5,), b"ab"), (-3, (4,), b"")] if nested else [(1, 2.5, b"ab"), (-3, 4, b"")], dtype)
    document = make_v2(
        shape=[4], chunks=[2], dtype=[["number", "<i4"], ["inner", inner], ["text", "|S4"]], fill_value=fill
    )
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(document), "x/1": encode(values.tobytes())}
    open_source(refs).save(str(tmp_path / "new"), "chunk-manifest")
    missing = np.frombuffer(base64.b64decode(fill or "") or bytes(12), dtype)
    for source in (refs, str(tmp_path / "new")):
        found = read_values(source)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found[2:], values)
    np.testing.assert_array_equal(found[:1], missing)  # in version 2, zarr 3.1 makes the text b"0" of a null


@pytest.mark.parametrize("fill", [None, 0, "", "none"])
def test_variable_length_texts_become_strings_of_version_3(tmp_path: Path, fill: Any) -> None:
    document = make_v2(dtype="|O", fill_value=fill, filters=[{"id": "vlen-utf8"}])
    found = convert_array(document, {}, "x/.zarray")
    assert (found["data_type"], found["codecs"][0]) == ("string", {"name": "vlen-utf8"})
    assert found["fill_value"] == (fill or "")
    open_source({"x/.zarray": json.dumps(document)}).save(str(tmp_path / "new"), "chunk-manifest")
    assert json.loads(open_source(str(tmp_path / "new")).cat_file("x/zarr.json"))["data_type"] == "string"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": [["a", ">i4"]]},
        {"dtype": [["a", "|O"]]},
        {"dtype": [["a", "<i4"], ["a", "<i2"]]},
        {"dtype": [["", "<i4"]]},
        {"dtype": [["a", "<i4", [2]]]},
        {"dtype": [["a"]]},
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
def test_error_names_metadata_that_version_3_cannot_express(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"x/\.zarray"):
        convert_array(make_v2(**change), {}, "x/.zarray")
    refs = {"x/.zarray": json.dumps(make_v2(**change))}
    with pytest.raises(ManifestError, match=r"x/\.zarray"):
        open_source(refs).save(str(tmp_path / "new"), "chunk-manifest")
    assert not (tmp_path / "new").exists()


def test_save_to_version_3_refuses_an_array_within_an_array(tmp_path: Path) -> None:
    refs = {".zarray": json.dumps(make_v2()), "x/.zarray": json.dumps(make_v2()), "x/0.0": "0" * 12, "0.0": "1" * 12}
    assert open_source(refs).cat_file("x/0.0") == b"0" * 12
    with pytest.raises(ManifestError, match=r"x/zarr\.json.* lies within the array '/'"):
        open_source(refs).save(str(tmp_path / "new"), "chunk-manifest")
    assert not (tmp_path / "new").exists()


def test_complex_fill_value_is_encoded_as_xarray_decodes_it() -> None:
    xarray = pytest.importorskip("xarray", minversion="2025.1")
    coder = xarray.backends.zarr.FillValueCoder
    for value in ([1.0, -2.5], ["NaN", 0.0]):
        made = encode_for_xarray(value, np.dtype("<c8"))
        assert np.array_equal(coder.decode(made, "complex64"), complex(*map(float, value)), equal_nan=True)
        assert np.array_equal(
            decode_from_xarray(made, np.dtype("<c8")), [float(part) for part in value], equal_nan=True
        )

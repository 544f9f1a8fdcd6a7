"""A check finds metadata that zarr and xarray refuse."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem, check

zarr = pytest.importorskip("zarr")
xr = pytest.importorskip("xarray")
IS_ZARR_2 = zarr.__version__.startswith("2.")

Documents = dict[str, Any]
JUNK = [None, "x", 0, -1, 5, [], [1], [3, 4], {}, {"a": 1}, True, 1.5, "NaN", "<f8", ["t"], ["x", "x"], "<i4", 2**40]


def make_array_2(shape: list[int], dims: list[str], dtype: str = "<i4", **more: Any) -> Documents:
    meta = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "order": "C", "fill_value": 0}
    attributes = more.pop("attributes", {})
    return {
        ".zarray": {**meta, "filters": None, "compressor": None, **more},
        ".zattrs": {"_ARRAY_DIMENSIONS": dims, **attributes},
    }


def make_array_3(shape: list[int], dims: list[str], **more: Any) -> Documents:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "fill_value": 0,
        "attributes": {},
        "dimension_names": dims,
    }
    return {"zarr.json": {**document, **more}}


def make_group(version: int, **arrays: Documents) -> Documents:
    root = {3: {"zarr.json": {"zarr_format": 3, "node_type": "group"}}, 2: {".zgroup": {"zarr_format": 2}}}[version]
    return root | {f"{name}/{key}": document for name, docs in arrays.items() for key, document in docs.items()}


def encode(documents: Documents) -> dict[str, str]:
    return {key: json.dumps(document) for key, document in documents.items()}


def list_findings(documents: Documents) -> list[tuple[str, str, str]]:
    report = check(RefShardFileSystem(encode(documents), skip_instance_cache=True))
    return [(finding.severity, finding.kind, finding.key) for finding in report.findings]


@pytest.mark.parametrize(
    ("fill_value", "dtype"), [([-5], "<i4"), (0, [["p", "<i2"], ["q", "<i2"]]), ("NaN", "<i4"), ("x", "<f4")]
)
def test_check_finds_fill_values_that_zarr_refuses(fill_value: Any, dtype: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 takes some of them")
    documents = make_group(2, a=make_array_2([2], ["x"], dtype, fill_value=fill_value), b=make_array_2([2], ["x"]))
    assert list_findings(documents) == [("error", "metadata", "a/.zarray")]


@pytest.mark.parametrize(
    "make", [make_array_2, pytest.param(make_array_3, marks=pytest.mark.skipif(IS_ZARR_2, reason="no zarr 3"))]
)
def test_check_finds_lengths_of_a_dimension_that_differ(make: Any) -> None:
    version, name = (2, ".zarray") if make is make_array_2 else (3, "zarr.json")
    documents = make_group(version, a=make([4, 2], ["t", "x"]), b=make([5], ["t"]), c=make([2], ["x"]))
    assert list_findings(documents) == [("error", "xarray", f"b/{name}")]
    root = "zarr.json" if version == 3 else ".zattrs"
    image = {**documents[root], "attributes": {"multiscales": []}} if version == 3 else {"multiscales": []}
    assert list_findings({**documents, root: image}) == [("warning", "xarray", f"b/{name}")]


@pytest.mark.parametrize(
    ("attributes", "key"),
    [
        ({"_ARRAY_DIMENSIONS": ["t", "x"]}, "a/.zarray"),
        ({"units": "days since never"}, ".zgroup"),
        ({"coordinates": 5}, ".zgroup"),
    ],
)
def test_check_finds_attributes_that_xarray_refuses(attributes: dict[str, Any], key: str) -> None:
    documents = make_group(2, a=make_array_2([4], ["t"], attributes=attributes), b=make_array_2([4], ["t"]))
    assert list_findings(documents) == [("error", "xarray", key)]


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 has no consolidated metadata of its own accord")
def test_check_finds_consolidated_metadata_that_zarr_refuses() -> None:
    documents = make_group(2, a=make_array_2([4], ["t"]))
    members = {**documents, "a/.zarray": {**documents["a/.zarray"], "fill_value": [1]}}
    consolidated = {"zarr_consolidated_format": 1, "metadata": members}
    assert ("error", "consolidated", ".zmetadata") in list_findings({**documents, ".zmetadata": consolidated})


def test_check_finds_a_missing_root_group() -> None:
    documents = make_group(2, a=make_array_2([4], ["t"]))
    del documents[".zgroup"]
    assert list_findings(documents) == [("warning", "metadata", "")]


def test_check_accepts_values_that_chunks_alone_decide() -> None:
    """The fill value is not a valid time in these units, but values in the chunks may be."""
    units = {"units": "days since 2000-01-01"}
    documents = make_group(
        2, t=make_array_2([4], ["t"], "<i8", fill_value=2**62, attributes=units), a=make_array_2([4], ["t"])
    )
    assert not list_findings(documents)


def test_check_accepts_a_coordinate_of_2_to_the_50_elements() -> None:
    documents = make_group(
        2, t=make_array_2([2**50], ["t"], chunks=[1]), a=make_array_2([2**50], ["t"], chunks=[2**40])
    )
    assert not list_findings(documents)


def mutate(documents: Documents, seed: int, count: int) -> Iterator[tuple[str, Documents]]:
    """Yield documents in which one member is changed or removed."""
    chosen = random.Random(seed)
    for _ in range(count):
        key = chosen.choice([*documents])
        document = json.loads(json.dumps(documents[key]))
        path, parent = [key], document
        while True:
            at = chosen.choice([*parent] if isinstance(parent, dict) else range(len(parent)))
            path.append(str(at))
            if not isinstance(parent[at], dict | list) or not parent[at] or chosen.random() < 0.3:
                break
            parent = parent[at]
        if chosen.random() < 0.25:
            del parent[at]
            yield f"{path} is gone", {**documents, key: document}
        else:
            parent[at] = chosen.choice(JUNK)
            yield f"{path} is {parent[at]!r}", {**documents, key: document}


def find_refusal(documents: Documents) -> Exception | None:
    """Return why zarr or xarray do not open the documents."""
    from zarr.storage import FsspecStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fs = RefShardFileSystem(encode(documents), asynchronous=True, skip_instance_cache=True)
            store = FsspecStore(fs, read_only=True, path="")
            for _ in zarr.open_group(store, mode="r").members(max_depth=None):
                pass
            xr.open_zarr(store, chunks=None, consolidated=False).close()
        except Exception as e:  # readers may raise any error
            return e
    return None


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 3 refuses more")
@pytest.mark.parametrize("version", [2, 3])
def test_check_finds_random_sets_that_readers_refuse(version: int) -> None:
    make = make_array_2 if version == 2 else make_array_3
    documents = make_group(version, a=make([4, 2], ["t", "x"]), t=make([4], ["t"]), x=make([2], ["x"]))
    assert not list_findings(documents)
    assert find_refusal(documents) is None
    count = 0
    for what, changed in mutate(documents, version, 60):
        error = find_refusal(changed)
        if error is not None and "reshape" not in str(error):  # that is a chunk of another length
            count += 1
            try:
                assert list_findings(changed), (what, error)
            except ValueError:
                pass  # it is not a set of references
    assert count > 20

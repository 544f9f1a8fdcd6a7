"""Sources as URL pipelines, which zarr passes to the adapter (pull request 4192), and which the filesystem opens."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.source.normalizing import resolve_pipeline

META = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C", "fill_value": None}
REFS = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": json.dumps({**META, "filters": None, "compressor": None}),
    "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    "a/0": "abc",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for key, value in REFS.items():
            file.writestr(key, value)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
        file.writestr("in/refs.json", json.dumps(REFS))
    return tmp_path


@pytest.mark.parametrize(
    ("pipeline", "source"),
    [
        ("s3://b/x.nc|refshard:", "s3://b/x.nc"),
        ("s3://b/x.nc|REFSHARD:/", "s3://b/x.nc"),
        ("s3://b/x.zip|zip:|refshard:", "s3://b/x.zip"),
        ("s3://b/x.zip|zip:in/a.nc|refshard:", "zip://in/a.nc::s3://b/x.zip"),
        ("s3://b/x.zip|zip:b.zip|zip:c.nc|refshard:", "zip://c.nc::zip://b.zip::s3://b/x.zip"),
        ("s3://b/r|icechunk:|refshard:", "icechunk::s3://b/r"),
        ("file:/a/b|refshard:", "/a/b"),
        ("a|b", "a|b"),
        ("a|refshard", "a|refshard"),
    ],
)
def test_pipeline_becomes_an_fsspec_chain(pipeline: str, source: str) -> None:
    assert resolve_pipeline(pipeline) == source


@pytest.mark.parametrize("steps", ["refs.json", "a.zip|zip:", "b.zip|zip:in/refs.json"])
def test_filesystem_opens_a_pipeline(steps: str, folder: Path) -> None:
    assert RefShardFileSystem(f"{folder}/{steps}|refshard:").cat_file("a/0") == b"abc"


def test_pipeline_that_names_a_group_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="names a group or an array"):
        RefShardFileSystem(f"{folder}/refs.json|refshard:a")


def test_file_name_with_a_bar_is_opened(folder: Path) -> None:
    (folder / "refs.json").rename(folder / "a|b.json")
    assert RefShardFileSystem(f"{folder}/a|b.json").cat_file("a/0") == b"abc"


def test_xarray_finds_the_engine_of_a_pipeline(folder: Path) -> None:
    xarray = pytest.importorskip("xarray")
    assert xarray.open_dataset(f"{folder}/refs.json|refshard:")["a"].values.tolist() == [*b"abc"]


def test_zarr_opens_a_pipeline(folder: Path) -> None:
    """Skipped with every released zarr: see the module."""
    pytest.importorskip("zarr.abc.url_pipeline")
    import zarr
    from zarr.registry import register_url_adapter

    from refshard_fs.url_pipeline import RefShardAdapter

    adapter: Any = RefShardAdapter
    register_url_adapter("refshard", adapter)
    assert zarr.open(f"{folder}/refs.json|refshard:a", mode="r")[:].tolist() == [*b"abc"]
    assert zarr.open(f"{folder}/b.zip|zip:in/refs.json|refshard:", mode="r")["a"][:].tolist() == [*b"abc"]
    with pytest.raises(ValueError, match="zarr does not commit"):
        zarr.open(f"{folder}/refs.json|refshard:", mode="w")

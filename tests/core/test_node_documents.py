"""Read the metadata of all arrays and groups in few requests, and without a listing of chunks."""

from __future__ import annotations

import contextlib
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.node_documents import DEEPEST
from tests.servers.http import RangeServer
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")


@pytest.mark.parametrize(
    "damaged",
    ["{}", "[]", '{"zarr_format": 2, "shape": "x", "chunks": 5}', '{"zarr_format": 2, "shape": [-1], "chunks": [0]}'],
)
def test_damaged_metadata_is_shown_or_a_refshard_error(damaged: str) -> None:
    refs = make_references(a=make_array([3], ["x"]), bad=make_array([3], ["x"]), x=make_array([3], ["x"])) | {
        "bad/.zarray": damaged
    }
    words: list[dict[str, Any]] = [{"drop": "a"}, {"keep": "bad", "isel": {"x": slice(4, 6)}}, {"rename": {"bad": "b"}}]
    for each in words:
        with contextlib.suppress(RefShardError):
            RefShardFileSystem(refs).select(**each).find("")


def write_hierarchy(root: Path, zarr_format: int) -> None:
    """Write an array of 40 chunks in the group ``g/inner``, and an array in the root."""
    group = zarr.open_group(str(root), mode="w", zarr_format=zarr_format)
    group.create_group("g").create_group("inner").create_array("a", shape=(40,), chunks=(1,), dtype="i4")[:] = 7
    group.create_array("b", shape=(4,), chunks=(2,), dtype="i4")[:] = 1


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("prefix", ["", "g", "g/inner/a"])
def test_documents_of_a_directory_equal_those_in_its_contents(tmp_path: Path, zarr_format: int, prefix: str) -> None:
    write_hierarchy(tmp_path, zarr_format)
    source = RefShardFileSystem(str(tmp_path)).source
    documents = source.run("", partial(source.open().documents, prefix))
    members = source.run("", partial(KeySpace.contents, source.open(), prefix)).members
    assert {key: json.loads(data) for key, data in documents.items()} == {k: json.loads(d) for k, d in members.items()}


def test_consolidated_documents_take_no_further_request(tmp_path: Path, http_server: RangeServer) -> None:
    write_hierarchy(tmp_path, 3)
    with warnings.catch_warnings(action="ignore"):  # no specification has consolidated metadata of version 3
        zarr.consolidate_metadata(str(tmp_path))
    url = http_server.put("store/zarr.json", (tmp_path / "zarr.json").read_bytes()).rpartition("/")[0]
    source = RefShardFileSystem(url).source
    keyspace = source.open()
    http_server.log.clear()
    documents = source.run("", keyspace.documents)
    assert documents.keys() == {f"{path}zarr.json" for path in ("", "b/", "g/", "g/inner/", "g/inner/a/")}
    assert json.loads(documents["g/inner/a/zarr.json"])["shape"] == [40]
    assert not [request for request in http_server.requests() if "/g/" in request.path or "/b/" in request.path]


def test_groups_nested_too_deeply_are_an_error(tmp_path: Path) -> None:
    for level in range(DEEPEST + 1):
        folder = tmp_path.joinpath(*["g"] * level)
        folder.mkdir(exist_ok=True)
        (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    source = RefShardFileSystem(str(tmp_path)).source
    with pytest.raises(RefShardError, match=f"at most {DEEPEST} groups"):
        source.run("", source.open().documents)

"""Interfaces of zarr, xarray and kerchunk to ``reference://`` read the same values with our class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.reference import ReferenceFileSystem

from refshard_fs import replace_reference_filesystem

zarr = pytest.importorskip("zarr")
FsspecStore = getattr(pytest.importorskip("zarr.storage"), "FsspecStore", None)
xarray = pytest.importorskip("xarray")

pytestmark = [
    pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no FsspecStore"),
    pytest.mark.filterwarnings("ignore"),  # of zarr and kerchunk, whatever the filesystem
]
VALUES = np.arange(6.0)
META = {"zarr_format": 2, "shape": [6], "chunks": [3], "dtype": "<f8", "order": "C", "filters": None}


@pytest.fixture(autouse=True)
def replaced() -> Iterator[None]:
    replace_reference_filesystem()
    yield
    fsspec.register_implementation("reference", ReferenceFileSystem, clobber=True)


@pytest.fixture(params=["dict", "file"])
def fo(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    (tmp_path / "data").write_bytes(VALUES.tobytes())
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', ".zattrs": "{}", "v/.zattrs": '{"_ARRAY_DIMENSIONS":["x"]}'}
    refs["v/.zarray"] = json.dumps({**META, "fill_value": None, "compressor": None})
    refs |= {f"v/{i}": [str(tmp_path / "data"), 24 * i, 24] for i in range(2)}
    if request.param == "dict":
        return refs
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


def _read_store(given: dict[str, Any]) -> Any:
    store = FsspecStore(fsspec.filesystem("reference", **given), read_only=True, path="")
    return zarr.open_group(store, mode="r")["v"][:]


def _read_url(given: dict[str, Any]) -> Any:
    store = FsspecStore.from_url("reference://", storage_options=given, read_only=True)
    return zarr.open_group(store, mode="r")["v"][:]


def _read_mapper(given: dict[str, Any]) -> Any:
    return zarr.open_group(fsspec.get_mapper("reference://", **given), mode="r")["v"][:]


def _read_xarray(given: dict[str, Any]) -> Any:
    more = {"storage_options": given, "consolidated": False}
    return xarray.open_dataset("reference://", engine="zarr", backend_kwargs=more)["v"].values


def _read_xarray_mapper(given: dict[str, Any]) -> Any:
    mapper = fsspec.get_mapper("reference://", **given)
    return xarray.open_dataset(mapper, engine="zarr", backend_kwargs={"consolidated": False})["v"].values


WAYS: list[Callable[[dict[str, Any]], Any]] = [_read_store, _read_url, _read_mapper, _read_xarray, _read_xarray_mapper]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_interfaces_of_zarr_and_xarray_read_the_same_values(
    way: Callable[[dict[str, Any]], Any], asynchronous: bool, fo: Any
) -> None:
    given = {"fo": fo, "remote_protocol": "file", "asynchronous": asynchronous}
    assert way(given).tolist() == VALUES.tolist()


def test_engine_of_kerchunk_reads_the_same_values(fo: Any) -> None:
    pytest.importorskip("kerchunk.xarray_backend")
    found = xarray.open_dataset(fo, engine="kerchunk", storage_options={"remote_protocol": "file"})
    assert found["v"].values.tolist() == VALUES.tolist()


def test_parquet_set_takes_writes_by_url(tmp_path: Path) -> None:
    """fsspec's tests write a set in this way, with a mode that fsspec drops from options without the protocol."""
    mapper = pytest.importorskip("fsspec.implementations.reference").LazyReferenceMapper
    pytest.importorskip("pyarrow")
    url = str(tmp_path / "set.parq")
    mapper.create(url)
    given = {"reference": {"fo": url, "mode": "a"}}
    group = zarr.open_group("reference://", mode="w", storage_options=given, zarr_format=2)
    group.create_group("deep").create_array(name="one", shape=(3,), dtype="int64")[:] = [1, 2, 3]
    group.store.fs.references.flush()
    found = zarr.open_group("reference://", storage_options={"fo": url}, mode="r", zarr_format=2)
    assert found["deep"]["one"][:].tolist() == [1, 2, 3]


def test_remote_options_that_are_text_are_an_error() -> None:
    with pytest.raises(TypeError, match="expected a mapping of options .a protocol belongs in remote_protocol=.$"):
        fsspec.filesystem("reference", fo={}, remote_options="memory")

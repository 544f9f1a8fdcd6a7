"""Virtual datasets of VirtualiZarr are sources: single, joined, with loaded variables, and in trees."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem

vz = pytest.importorskip("virtualizarr", minversion="2.5")
xr = pytest.importorskip("xarray")
stores = pytest.importorskip("obstore.store")
pytest.importorskip("h5netcdf")

from obspec_utils.registry import ObjectStoreRegistry  # noqa: E402  # after importorskip
from virtualizarr.manifests import ChunkManifest, ManifestArray  # noqa: E402  # after importorskip
from virtualizarr.parsers import HDFParser  # noqa: E402  # after importorskip

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore:The data type")


def dataset(start: int = 0) -> Any:
    air = np.arange(10 * 8, dtype="f4").reshape(10, 8) + start
    return xr.Dataset(
        {"air": (("time", "x"), air, {"units": "K"}), "scale": ((), np.float32(3)), "name": ("x", [*"abcdefgh"])},
        {"time": np.arange(start, start + 10), "lat": ("x", np.arange(8.0))},
        {"title": "air"},
    )


def opened(folder: Path, start: int = 0, registry: Any = None, url: str = "", **options: Any) -> Any:
    path = folder / f"{start}.nc"
    encoding = {"air": {"chunksizes": (5, 4), "zlib": True}, "name": {"dtype": "S1"}}
    dataset(start).to_netcdf(path, engine="h5netcdf", encoding=encoding)
    registry = registry or ObjectStoreRegistry({"file://": stores.LocalStore()})
    return vz.open_virtual_dataset(url or f"file://{path}", registry=registry, parser=HDFParser(), **options)


@pytest.mark.parametrize("loaded", [None, [], ["air", "time", "lat"]], ids=["coordinates", "nothing", "much"])
def test_virtual_dataset_equals_its_file(loaded: Any, tmp_path: Path) -> None:
    virtual = opened(tmp_path, loadable_variables=loaded).drop_vars("name")
    found = xr.open_dataset(virtual, engine="refshard").load()
    xr.testing.assert_identical(found, dataset().drop_vars("name"))


def test_joined_and_renamed_dataset_keeps_references(tmp_path: Path) -> None:
    parts = [opened(tmp_path, start).drop_vars(["name", "scale"]) for start in (0, 10)]
    joined = xr.concat(parts, "time", coords="minimal", compat="override", data_vars="minimal")
    fs = RefShardFileSystem(joined.rename(air="warm")[["warm"]])
    assert fs.resolve("warm/c/3/1")[0] == f"file://{tmp_path}/10.nc"
    found = xr.open_dataset(joined.rename(air="warm"), engine="refshard")["warm"].values
    assert np.array_equal(found, np.concatenate([dataset(0)["air"], dataset(10)["air"]]))
    fs.save(str(tmp_path / "refs.json"))
    assert RefShardFileSystem(str(tmp_path / "refs.json")).find("") == fs.find("")


def test_tree_of_virtual_datasets_has_its_groups(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": opened(tmp_path)[["scale"]], "/inner/one": opened(tmp_path, 10)[["air"]]})
    found = xr.open_datatree(tree, engine="refshard")
    assert np.array_equal(found["inner/one/air"].values, dataset(10)["air"].values)
    assert found["scale"].item() == 3


def test_virtual_dataset_is_read_by_its_registry(tmp_path: Path) -> None:
    opened(tmp_path)
    memory = stores.MemoryStore()
    memory.put("0.nc", (tmp_path / "0.nc").read_bytes())
    registry = ObjectStoreRegistry({"s3://bucket": memory})
    virtual = opened(tmp_path, registry=registry, url="s3://bucket/0.nc")
    ds = xr.open_dataset(virtual, engine="refshard", storage_options={"fs": registry})
    assert np.array_equal(ds["air"].values, dataset()["air"].values)


def test_virtual_dataset_is_pickled_and_compared(tmp_path: Path) -> None:
    virtual = opened(tmp_path)
    fs = RefShardFileSystem(virtual)
    assert pickle.loads(pickle.dumps(fs)).cat_file("air/c/1/1") == fs.cat_file("air/c/1/1")
    assert RefShardFileSystem(opened(tmp_path)).fo == fs.fo


META = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [7, 5],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    "fill_value": 9,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
    "dimension_names": None,
}


@pytest.mark.parametrize("seed", range(4))
def test_virtualizarr_manifest_resolves_to_its_entries(seed: int) -> None:
    from zarr.core.metadata.v3 import ArrayV3Metadata

    random = np.random.default_rng(seed)
    entries = {}
    for key in (f"{i}.{j}" for i in range(4) for j in range(2)):
        kind = random.integers(3)
        if kind:
            url = f"s3://b{random.integers(3)}/x y%20z"
            entries[key] = {"path": url, "offset": int(random.integers(2**40)), "length": int(random.integers(1, 99))}
    manifest = ChunkManifest(entries, shape=(4, 2))
    array = ManifestArray(ArrayV3Metadata.from_dict(META), manifest)
    fs = RefShardFileSystem(xr.Dataset({"a": (("y", "x"), array)}))
    for key, entry in entries.items():
        assert fs.resolve(f"a/c.{key}") == (entry["path"], entry["offset"], entry["offset"] + entry["length"])
    assert sorted(fs.ls("a", detail=False)) == sorted(["a/zarr.json", *(f"a/c.{key}" for key in entries)])


def test_scalar_with_a_chunk_in_its_manifest_is_shown(tmp_path: Path) -> None:
    """Our own parser makes such manifests of the coordinates of a GRIB file."""
    pytest.importorskip("virtualizarr", minversion="2.6.1")
    from refshard_fs.virtualizarr import Parser

    xr.Dataset({"level": ((), np.float64(500.0))}).to_zarr(tmp_path / "a.zarr", zarr_format=2, consolidated=False)
    fs = RefShardFileSystem(str(tmp_path / "a.zarr"))
    RefShardFileSystem({key: fs.cat_file(key) for key in fs.find("")}).save(str(tmp_path / "a.json"))
    registry = ObjectStoreRegistry({"file://": stores.LocalStore()})
    virtual = Parser()(f"file://{tmp_path}/a.json", registry).to_virtual_dataset(loadable_variables=[])
    assert xr.open_dataset(RefShardFileSystem(virtual), engine="refshard")["level"].item() == 500.0


def test_dataset_in_memory_without_references_is_opened() -> None:
    found = xr.open_dataset(dataset(), engine="refshard").load()
    xr.testing.assert_equal(found, dataset())


def test_virtual_dataset_opens_on_the_event_loop_of_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group("refshard://", storage_options={"fo": opened(tmp_path).drop_vars("name")}, mode="r")
    assert (group["scale"][()], group["time"][:].tolist()) == (3, list(range(10)))


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "üü"], object),
        np.array(["a", "üü"]),
        np.array([b"a", b"bc"]),
        np.array(["2000-01-01", "NaT"], "M8[ns]"),
        np.array([1.5, np.nan], ">f4"),
        np.array([True, False]),
        np.array([1 + 2j, 3]),
        np.zeros((0, 2), "i4"),
        np.array(5, "u2"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_loaded_variable_keeps_its_values(values: Any) -> None:
    ds = xr.Dataset({"v": (("x", "y")[: values.ndim], values, {"n": np.float32(2)})})
    found = xr.open_dataset(ds, engine="refshard").load()
    xr.testing.assert_equal(found, ds)
    assert found["v"].attrs["n"] == 2


def test_error_of_an_unknown_source_lists_accepted_types() -> None:
    with pytest.raises(TypeError, match="a virtual dataset, or a store and a path"):
        refshard_fs.RefShardFileSystem(3)

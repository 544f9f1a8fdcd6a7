"""Datasets of VirtualiZarr, made by our parser, have the values of the source, also as references and in Icechunk."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer

vz = pytest.importorskip("virtualizarr", minversion="2.5")
xr = pytest.importorskip("xarray")
stores = pytest.importorskip("obstore.store")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr", minversion="3.1")

from obspec_utils.registry import ObjectStoreRegistry  # noqa: E402  # after importorskip
from packaging.version import Version  # noqa: E402  # after importorskip

from refshard_fs.virtualizarr import Parser  # noqa: E402  # after importorskip
from tests.support.dmrpp_writer import write_dmrpp  # noqa: E402  # after importorskip

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
HOLDS_BYTES = Version(vz.__version__) >= Version("2.6.1")
WRITES_FORMAT_3 = Version(vz.__version__) >= Version("2.8")
needs_bytes = pytest.mark.skipif(not HOLDS_BYTES, reason="this VirtualiZarr holds nothing but ranges")

AIR = np.arange(10 * 8 * 10, dtype="f4").reshape(10, 8, 10)


def make_dataset(start: int = 0) -> Any:
    coords = {"time": np.arange(start, start + 10), "y": np.arange(8.0)}
    air = xr.DataArray(AIR + start, dims=("time", "y", "x"), attrs={"units": "K"})
    return xr.Dataset({"air": air}, coords=coords).assign_attrs(title="air")


def write_netcdf(folder: Path, name: str = "a.nc", start: int = 0, **encoding: Any) -> str:
    encoding = {"chunksizes": (5, 8, 10), "zlib": True, **encoding}
    make_dataset(start).to_netcdf(folder / name, engine="h5netcdf", encoding={"air": encoding})
    return str(folder / name)


def write_netcdf3(folder: Path) -> str:
    make_dataset().astype("f4").to_netcdf(folder / "a.nc", format="NETCDF3_CLASSIC", engine="scipy")
    return str(folder / "a.nc")


def write_store(folder: Path, version: int, **options: Any) -> str:
    path = str(folder / "a.zarr")
    encoding = {"air": {"chunks": (5, 8, 10), **options}}
    make_dataset().to_zarr(path, zarr_format=version, encoding=encoding, consolidated=False)
    return path


def write_zip(folder: Path, method: int = zipfile.ZIP_STORED) -> str:
    root = Path(write_store(folder, 3))
    with zipfile.ZipFile(folder / "a.zip", "w", method) as file:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(root))
    return str(folder / "a.zip")


def save_set(folder: Path, name: str) -> str:
    RefShardFileSystem(write_netcdf(folder)).save(str(folder / name))
    return str(folder / name)


def save_cube(folder: Path, **second: Any) -> str:
    packed = {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.5, "add_offset": 0.0}
    urls = [write_netcdf(folder, "0.nc", 0, **packed), write_netcdf(folder, "1.nc", 10, **packed | second)]
    refshard_fs.concat(urls, "time", lazy=True).save(str(folder / "cube.json"))
    return str(folder / "cube.json")


def write_tiff(folder: Path) -> str:
    tifffile = pytest.importorskip("tifffile")
    image = np.arange(512 * 512, dtype="u2").reshape(512, 512)
    with tifffile.TiffWriter(folder / "a.tif") as file:
        how = {"tile": (128, 128), "compression": "zlib"}
        file.write(image, subifds=1, **how)
        file.write(image[::2, ::2], subfiletype=1, **how)
    return str(folder / "a.tif")


def write_grib(folder: Path) -> str:
    pytest.importorskip("eccodes")
    from tests.support.grib_messages import make_message

    (folder / "a.grib2").write_bytes(make_message())
    return str(folder / "a.grib2")


def write_fits(folder: Path) -> str:
    astropy = pytest.importorskip("astropy.io.fits")
    astropy.PrimaryHDU(np.arange(120, dtype=">i2").reshape(10, 12)).writeto(folder / "a.fits")
    return str(folder / "a.fits")


# The sources, and the options of the parser.
SOURCES: dict[str, tuple[Callable[[Path], str], dict[str, Any]]] = {
    "netcdf": (write_netcdf, {}),
    "netcdf without compression": (lambda folder: write_netcdf(folder, zlib=False), {}),
    "contiguous netcdf": (lambda folder: write_netcdf(folder, zlib=False, chunksizes=None), {}),
    "netcdf 3": (write_netcdf3, {}),
    "dmr++": (lambda folder: str(write_dmrpp(Path(write_netcdf(folder)))), {}),
    "zarr 2": (lambda folder: write_store(folder, 2), {}),
    "zarr 3": (lambda folder: write_store(folder, 3), {}),
    "shards": (lambda folder: write_store(folder, 3, shards=(10, 8, 10)), {}),
    "json": (lambda folder: save_set(folder, "refs.json"), {}),
    "parquet": (lambda folder: save_set(folder, "refs.parq"), {}),
    "manifests": (lambda folder: save_set(folder, "refs.zarr"), {}),
    "zip": (write_zip, {}),
    "compressed zip": (lambda folder: write_zip(folder, zipfile.ZIP_DEFLATED), {}),
    "cube whose parts fit": (save_cube, {}),
    "cube whose parts are recoded": (lambda folder: save_cube(folder, scale_factor=0.25), {}),
    "tiff pyramid": (write_tiff, {}),
    "grib": (write_grib, {}),
    "fits": (write_fits, {}),
}


def open_fs(url: str, registry: Any = None, **options: Any) -> Any:
    registry = registry or ObjectStoreRegistry({"file://": stores.LocalStore()})
    url = url if "://" in url else f"file://{url}"
    return vz.open_virtual_dataset(url, registry=registry, parser=Parser(**options), loadable_variables=[])


def read_expected(url: str, options: dict[str, Any], **decoding: Any) -> Any:
    group = options.get("group")
    return xr.open_dataset(url, engine="refshard", decode_times=False, group=group, **decoding).load()


@pytest.mark.parametrize("kind", SOURCES)
def test_kerchunk_set_of_virtualizarr_has_the_values(kind: str, tmp_path: Path) -> None:
    make, options = SOURCES[kind]
    url = make(tmp_path)
    try:
        virtual = open_fs(url, **options)
    except refshard_fs.ManifestError as e:
        assert not HOLDS_BYTES, kind
        assert "install virtualizarr>=2.6.1" in str(e)
        return
    # Of integers without a fill value, VirtualiZarr's sets of version 2 say that zero is missing.
    decoding, version = ({}, {"zarr_format": 3}) if WRITES_FORMAT_3 else ({"mask_and_scale": False}, {})
    refs = virtual.vz.to_kerchunk(format="dict", **version)
    found = xr.open_dataset(refs, engine="refshard", decode_times=False, **decoding).load()
    xr.testing.assert_equal(found, read_expected(url, options, **decoding))


@pytest.mark.parametrize("kind", ["netcdf", "shards", "zip", "compressed zip", "cube whose parts fit", "grib"])
@needs_bytes
def test_repository_of_virtualizarr_has_the_values(kind: str, tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2.3")
    make, options = SOURCES[kind]
    url = make(tmp_path)
    prefix = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(tmp_path)))
    )
    storage = icechunk.local_filesystem_storage(str(tmp_path / "made.icechunk"))
    access = icechunk.containers_credentials({prefix: None})
    repository = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=access)
    session = repository.writable_session("main")
    open_fs(url, **options).vz.to_icechunk(session.store)
    session.commit("made")
    found = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, decode_times=False).load()
    xr.testing.assert_equal(found, read_expected(url, options))


def test_coordinates_are_loaded_through_the_manifest_store(tmp_path: Path) -> None:
    url = write_store(tmp_path, 3)
    registry = ObjectStoreRegistry({"file://": stores.LocalStore()})
    virtual = vz.open_virtual_dataset(f"file://{url}", registry=registry, parser=Parser())
    assert virtual["time"].values.tolist() == list(range(10))
    parts = [virtual, virtual.assign_coords(time=virtual["time"] + 10)]
    joined = xr.concat(parts, "time", coords="minimal", compat="override", combine_attrs="override")
    refs = joined.vz.to_kerchunk(format="dict")
    found = xr.open_dataset(refs, engine="refshard", mask_and_scale=False)
    assert np.array_equal(found["air"].values, np.concatenate([AIR, AIR]))


def test_registered_store_reads_the_source(tmp_path: Path, http_server: RangeServer) -> None:
    """Only the registry's store can read the URL, because its host does not exist."""
    memory = stores.MemoryStore()
    memory.put("x/a.nc", Path(write_netcdf(tmp_path, zlib=False)).read_bytes())
    virtual = open_fs("s3://bucket/x/a.nc", ObjectStoreRegistry({"s3://bucket": memory}), skip_variables=["time", "y"])
    entry = virtual["air"].data.manifest.dict()["1.0.0"]
    assert (entry["path"], entry["length"]) == ("s3://bucket/x/a.nc", 5 * 8 * 10 * 4)
    url = http_server.put("/a.nc", Path(write_netcdf(tmp_path)).read_bytes())
    web = stores.HTTPStore(http_server.url, client_options={"allow_http": True})
    open_fs(url, ObjectStoreRegistry({http_server.url: web}), skip_variables=["time", "y"])
    assert [request.method for request in http_server.requests()] == ["GET"], "the file is small"


def test_set_in_a_registry_may_not_read_local_files(tmp_path: Path) -> None:
    memory = stores.MemoryStore()
    document = json.loads(Path(save_set(tmp_path, "refs.json")).read_text())
    assert document["refs"]["air/0.0.0"][0] == str(tmp_path / "a.nc")
    memory.put("refs.json", json.dumps(document).encode())
    registry = ObjectStoreRegistry({"s3://bucket": memory, "file://": stores.LocalStore()})
    with pytest.raises(refshard_fs.TargetNotAllowed):
        open_fs("s3://bucket/refs.json", registry, skip_variables=["time", "y"])


META = {"zarr_format": 2, "chunks": [4], "dtype": "|u1", "order": "C", "fill_value": None, "filters": None}
ONE_ARRAY = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": json.dumps({**META, "shape": [12], "compressor": None}),
    "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
}


def write_set(folder: Path, refs: dict[str, Any]) -> str:
    (folder / "refs.json").write_text(json.dumps({**ONE_ARRAY, **refs}))
    (folder / "x y.bin").write_bytes(bytes(range(100)))
    return str(folder / "refs.json")


@needs_bytes
def test_manifest_has_ranges_bytes_and_absent_chunks(tmp_path: Path) -> None:
    url = write_set(tmp_path, {"a/0": ["x y.bin", 8, 4], "a/2": "abcd"})
    virtual = open_fs(url)
    manifest = virtual["a"].data.manifest.dict()
    assert manifest["0"] == {"path": f"file://{tmp_path}/x y.bin", "offset": 8, "length": 4}
    assert (sorted(manifest), manifest["2"]["data"]) == (["0", "2"], b"abcd")
    loaded = vz.open_virtual_dataset(
        f"file://{url}",
        registry=ObjectStoreRegistry({"file://": stores.LocalStore()}),
        parser=Parser(),
        loadable_variables=["a"],
    )
    assert loaded["a"].values.tolist() == [8, 9, 10, 11, 0, 0, 0, 0, *b"abcd"]


def test_error_names_chunks_that_manifests_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(refshard_fs.ManifestError, match="'a/1' is empty"):
        open_fs(write_set(tmp_path, {"a/1": ["x y.bin", 8, 0]}))
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr("refshard_fs.virtualizarr.MAX_INLINE", 100)
    with pytest.raises(refshard_fs.ManifestError, match=r"'air/.*Icechunk repository"):
        open_fs(write_zip(made, zipfile.ZIP_DEFLATED))
    whole = f"file://{tmp_path}/refs.json"
    with pytest.raises(refshard_fs.ManifestError, match="expected a group at 'a', found an array"):
        open_fs(whole, group="a")
    with pytest.raises(refshard_fs.ManifestError, match="expected a group at 'b', found nothing"):
        open_fs(whole, group="b")


@pytest.mark.skipif(not WRITES_FORMAT_3, reason="this VirtualiZarr writes sets of zarr format 2, which has no shards")
def test_whole_shards_are_one_reference_each(tmp_path: Path) -> None:
    url = write_store(tmp_path, 3, shards=(10, 8, 10))
    virtual = open_fs(url, shards="whole")
    assert list(virtual["air"].data.manifest.dict()) == ["0.0.0"]
    refs = virtual.vz.to_kerchunk(format="dict", zarr_format=3)
    xr.testing.assert_equal(xr.open_dataset(refs, engine="refshard").load(), read_expected(url, {}))


def test_array_without_a_zarr_3_type_is_an_error_unless_skipped(tmp_path: Path) -> None:
    url = write_set(tmp_path, {"pairs/.zarray": json.dumps({**META, "shape": [12], "dtype": [["a", ">i4"]]})})
    with pytest.raises(refshard_fs.ManifestError, match="'pairs/.zarray'") as failed:
        open_fs(url)
    assert "skip_variables" in failed.value.__notes__[0]
    assert list(open_fs(url, skip_variables=["pairs"])) == ["a"]


def test_keys_beside_chunks_are_left_out(tmp_path: Path) -> None:
    virtual = open_fs(write_set(tmp_path, {"a/0": ["x y.bin", 8, 4], "a/9": ["x y.bin", 8, 4], "README": "text"}))
    assert list(virtual["a"].data.manifest.dict()) == ["0"]


def test_chosen_group_becomes_the_root_of_a_virtual_dataset(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "/inner": make_dataset()})
    tree.to_zarr(str(tmp_path / "a.zarr"), zarr_format=3, consolidated=False)
    assert open_fs(str(tmp_path / "a.zarr"), group="inner")["air"].shape == (10, 8, 10)
    registry = ObjectStoreRegistry({"file://": stores.LocalStore()})
    url = f"file://{tmp_path}/a.zarr"
    found = vz.open_virtual_datatree(url, registry=registry, parser=Parser(), loadable_variables=[])
    assert found["inner"]["air"].shape == (10, 8, 10)

"""Cubes of files in other readers (fsspec, zarr, VirtualiZarr, GDAL, zarrita.js), or the reasons against it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from tests.servers.http import RangeServer
from tests.support.set_files import PLACES, write_day_files

COUNT = 5


@pytest.fixture(params=["h5py", "scipy"])
def cube(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a JSON set of some days of a writer."""
    path = str(tmp_path / "cube.json")
    made = refshard_fs.concat(write_day_files(tmp_path, request.param, COUNT), "time")
    assert made.save(path) == "", "other programs read all of the set"
    return path


def check_values(values: Any) -> None:
    np.testing.assert_array_equal(values, np.repeat(np.arange(COUNT), PLACES).reshape(COUNT, PLACES))


@pytest.mark.evidence(id="R2")
def test_fsspec_and_zarr_read_a_cube(cube: str) -> None:
    zarr = pytest.importorskip("zarr")
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("reference", fo=cube, skip_instance_cache=True)
    if zarr.__version__.startswith("2."):
        check_values(zarr.open_array(fs.get_mapper("t"), mode="r")[...])
    else:
        check_values(
            zarr.open_array("reference://", path="t", storage_options={"fo": cube}, mode="r", zarr_format=2)[...]
        )


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.evidence(id="R3")
def test_kerchunks_engine_reads_a_cube(cube: str, form: str) -> None:
    for needed in ("kerchunk", "fastparquet", "zarr.storage"):
        pytest.importorskip(needed)
    xarray = pytest.importorskip("xarray")
    url = _convert(cube, form)
    with xarray.open_dataset(url, engine="kerchunk", storage_options={"remote_protocol": "file"}) as ds:
        check_values(ds["t"].values)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
@pytest.mark.parametrize("form", ["json", "parquet", "icechunk"])
@pytest.mark.evidence(id="R4")
def test_virtualizarr_reads_a_cube(cube: str, form: str) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    stores = {"file://": LocalStore()}
    if form == "icechunk":
        pytest.importorskip("icechunk")
        if not hasattr(parsers, "IcechunkParser"):
            pytest.skip("this VirtualiZarr does not read Icechunk")
        url = _convert(cube, form)
        parser = parsers.IcechunkParser()
        stores[f"file://{url}"] = LocalStore(url)
    else:
        url = _convert(cube, form)
        kind = parsers.KerchunkJSONParser if form == "json" else parsers.KerchunkParquetParser
        parser = kind(skip_variables=["time", "x"])  # VirtualiZarr 2.5 does not read data in the set itself
    with virtualizarr.open_virtual_dataset(f"file://{url}", registry=ObjectStoreRegistry(stores), parser=parser) as ds:
        entries = ds["t"].data.manifest.dict()
    assert [entry["path"].rpartition("/")[2].partition(".")[0] for entry in entries.values()] == [
        f"day{number}" for number in range(COUNT)
    ]


def _convert(cube: str, form: str) -> str:
    """Save a JSON set in another format beside it, and return its path."""
    if form == "json":
        return cube
    url = str(Path(cube).with_suffix(f".{form}"))
    refshard_fs.RefShardFileSystem(cube).save(url)
    return url


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform:UserWarning")
@pytest.mark.evidence(id="R6")
def test_gdal_reads_a_cube(cube: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    if tuple(map(int, rasterio.__gdal_version__.split(".")[:2])) < (3, 11):
        pytest.skip("GDAL reads references from 3.11 on")
    with rasterio.open(f'ZARR:"{cube}":/t') as found:
        check_values(found.read(1))


ZARRITA = """
import * as zarr from "zarrita";
import ReferenceStore from "@zarrita/storage/ref";

const store = await ReferenceStore.fromUrl(process.argv[2]);
const root = await zarr.open.v2(store, { kind: "group" });
const t = await zarr.open.v2(root.resolve("t"), { kind: "array" });
const { shape, data } = await zarr.get(t);
console.log(JSON.stringify({ shape, data: Array.from(data) }));
"""


@pytest.mark.parametrize("writer", ["h5py", "scipy"])
@pytest.mark.evidence(id="R7")
def test_zarrita_reads_a_cube(tmp_path: Path, http_server: RangeServer, writer: str) -> None:
    """REFSHARD_ZARRITA names a folder in which ``npm install zarrita @zarrita/storage`` was run."""
    node, folder = shutil.which("node"), Path(os.environ.get("REFSHARD_ZARRITA", "."), "node_modules").absolute()
    if node is None or not (folder / "@zarrita/storage").exists():
        pytest.skip("needs node, and REFSHARD_ZARRITA: a folder with zarrita and @zarrita/storage of npm")
    files = write_day_files(tmp_path, writer, COUNT)
    urls = [http_server.put(f"{writer}-{Path(file).name}", Path(file).read_bytes()) for file in files]
    path = str(tmp_path / "cube.json")
    assert refshard_fs.concat(urls, "time").save(path) == ""
    (tmp_path / "read.mjs").write_text(ZARRITA)
    (tmp_path / "node_modules").symlink_to(folder)
    cube = http_server.put("cube.json", Path(path).read_bytes())
    done = subprocess.run([node, "read.mjs", cube], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shape"] == [COUNT, PLACES]
    check_values(np.reshape(found["data"], found["shape"]))


def test_remark_names_targets_within_other_files() -> None:
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "a": ["zip://x.nc::memory://z.zip", 0, 4]}
    remark = refshard_fs.rebase(refs, {}).remark
    assert "1 target of 1, which are files within other files, such as zip://x.nc" in remark

"""Conventions of the ecosystem for filesystems: paths, catalogs, open files, notebooks."""

from __future__ import annotations

import asyncio
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.support.conventions import not_installed
from tests.support.reference_sets import VALUES, make_reference_set

ZARR_2 = metadata.version("zarr").startswith("2.")


@pytest.fixture
def source(tmp_path: Path) -> str:
    refs, data = make_reference_set("x.bin")
    (tmp_path / "x.bin").write_bytes(data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


@not_installed
@pytest.mark.skipif(ZARR_2, reason="intake opens a URL with zarr 3")
def test_intake_catalog_on_disk_opens_a_source(source: str, tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    intake = pytest.importorskip("intake", minversion="2")
    from intake.readers.datatypes import Zarr
    from intake.readers.entry import Catalog
    from intake.readers.readers import XArrayDatasetReader

    catalog = Catalog()
    data = Zarr("refshard://", storage_options={"fo": source})
    catalog["field"] = XArrayDatasetReader(data, consolidated=False)
    catalog.to_yaml_file(str(tmp_path / "catalog.yaml"))
    ds = intake.open_catalog(str(tmp_path / "catalog.yaml"))["field"].read()
    np.testing.assert_array_equal(ds["a"].values, VALUES)


def make_asset(source: str) -> dict[str, Any]:
    """Return a STAC asset with the fields of the extension xarray-assets."""
    return {
        "href": source,
        "type": "application/vnd.zarr",
        "roles": ["data"],
        "xarray:open_kwargs": {"engine": "refshard", "chunks": {}},
        "xarray:storage_options": {"max_gap": 0},
    }


@not_installed
@pytest.mark.skipif(ZARR_2, reason="xarray opens URLs of a filesystem with zarr 3")
def test_arguments_of_a_stac_asset_open_it(source: str) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("dask")
    found = json.loads(json.dumps(make_asset(source)))
    options = found["xarray:open_kwargs"] | {"storage_options": found["xarray:storage_options"]}
    ds = xr.open_dataset(found["href"], **options)
    np.testing.assert_array_equal(ds["a"].values, VALUES)


@not_installed
def test_xpystac_opens_a_stac_asset(source: str) -> None:
    pytest.importorskip("xpystac")
    import pystac
    import xarray as xr

    ds = xr.open_dataset(pystac.Asset.from_dict(make_asset(source)), engine="stac")
    np.testing.assert_array_equal(ds["a"].values, VALUES)


def test_asynchronous_filesystem_is_awaited_in_a_running_loop(source: str) -> None:
    async def cell() -> tuple[bytes, dict[str, bytes], list[str]]:
        fs = fsspec.filesystem("refshard", fo=source, asynchronous=True)
        keys = [f"a/{row}.0" for row in range(4)]
        return await fs._cat_file("a/0.0"), await fs._cat(keys), await fs._ls("g", detail=False)

    one, many, names = asyncio.run(cell())
    assert one == VALUES[:2, :3].tobytes()
    assert many["a/3.0"] == VALUES[6:, :3].tobytes()
    assert sorted(names) == ["g/.zgroup", "g/b"]


def test_synchronous_filesystem_reads_in_a_running_loop(source: str) -> None:
    async def cell() -> bytes:
        fs = RefShardFileSystem(source)  # its calls run in fsspec's own loop, in another thread
        fs.prefetch(["a/0.0", "a/1.0"])
        return b"".join(fs.cat(["a/0.0", "a/1.0"]).values())

    assert asyncio.run(cell()) == VALUES[:2, :3].tobytes() + VALUES[2:4, :3].tobytes()


@pytest.mark.skipif(ZARR_2, reason="zarr 3 has an asynchronous interface")
def test_zarr_is_awaited_in_a_running_loop(source: str) -> None:
    zarr = pytest.importorskip("zarr")
    from zarr.storage import FsspecStore

    async def cell() -> Any:
        fs = RefShardFileSystem(source, asynchronous=True)
        group = await zarr.api.asynchronous.open_group(FsspecStore(fs, read_only=True, path=""), mode="r")
        return await (await group.getitem("a")).getitem(slice(2, 4))

    np.testing.assert_array_equal(asyncio.run(cell()), VALUES[2:4])

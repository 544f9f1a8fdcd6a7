"""Users write with xarray and zarr through the filesystem to sets and hierarchies."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.written_datasets import NAMES, make_dataset, open_dataset

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

IS_2 = zarr.__version__.startswith("2.")


def writable(path: Path) -> RefShardFileSystem:
    """Open the source at ``path`` for writes; its name determines the format."""
    return RefShardFileSystem(str(path), mode="a")


def state(path: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a source."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", NAMES)
def test_append_within_a_transaction_is_committed_at_its_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    fs = writable(path)
    with fs.transaction:
        make_dataset(0, 4).to_zarr(fs.get_mapper(), consolidated=False)
        assert not path.exists()
    assert open_dataset(path).identical(make_dataset(0, 4).load())
    before = state(path)
    with fs.transaction:
        make_dataset(4, 4).to_zarr(fs.get_mapper(), append_dim="time", consolidated=False)
        assert state(path) == before
    assert open_dataset(path).identical(make_dataset(0, 8).load())
    assert xr.open_zarr(fs.get_mapper(), consolidated=False).load().identical(make_dataset(0, 8).load())


@pytest.mark.parametrize("name", NAMES)
def test_writes_to_a_url_go_to_the_overlay_in_storage_options(tmp_path: Path, name: str) -> None:
    fs = writable(tmp_path / name)
    options = {**fs.storage_options, "fo": str(tmp_path / name)}
    assert options["overlay"] == fs.overlay
    with fs.transaction:
        store = fs.get_mapper() if IS_2 else "refshard://"
        given = {} if IS_2 else {"storage_options": options}
        make_dataset(0, 4).to_zarr(store, consolidated=False, **given)
        make_dataset(4, 4).to_zarr(store, consolidated=False, append_dim="time", **given)
    assert open_dataset(tmp_path / name).identical(make_dataset(0, 8).load())


@pytest.mark.parametrize("name", NAMES)
def test_writes_of_zarr_and_regions_of_xarray_are_committed(tmp_path: Path, name: str) -> None:
    fs = writable(tmp_path / name)
    with fs.transaction:
        make_dataset(0, 8).to_zarr(fs.get_mapper(), consolidated=False)
    with fs.transaction:
        group = zarr.open_group(fs.get_mapper(), mode="r+")
        group["air"][2:4] = 7.0
        group.attrs["title"] = "changed"
    with fs.transaction:
        part = make_dataset(4, 2).drop_vars(["time", "y", "x"]) * 0 + 5.0
        part.to_zarr(fs.get_mapper(), consolidated=False, region={"time": slice(4, 6)})
    found = open_dataset(tmp_path / name)
    expected = make_dataset(0, 8).load()
    expected["air"][2:4] = 7.0
    expected["air"][4:6] = 5.0
    assert found.equals(expected)
    assert found.attrs["title"] == "changed"
    with fs.transaction:
        zarr.open_group(fs.get_mapper(), mode="w")
    assert not [
        key for key in RefShardFileSystem(str(tmp_path / name)).find("") if "air" in key and "manifest" not in key
    ]


@pytest.mark.parametrize("name", NAMES)
def test_exception_in_a_transaction_discards_writes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    fs = writable(path)
    with fs.transaction:
        make_dataset(0, 4).to_zarr(fs.get_mapper(), consolidated=False)
    objects = sorted((tmp_path / f"{name}.data").rglob("*"))

    def fail() -> None:
        with fs.transaction:
            make_dataset(4, 4).to_zarr(fs.get_mapper(), append_dim="time", consolidated=False)
            assert len(sorted((tmp_path / f"{name}.data").rglob("*"))) > len(objects)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert open_dataset(path).identical(make_dataset(0, 4).load())
    assert sorted((tmp_path / f"{name}.data").rglob("*")) == objects
    assert xr.open_zarr(fs.get_mapper(), consolidated=False).load().identical(make_dataset(0, 4).load())

"""Writes of zarr and xarray to a URL go to the overlay in the storage options, and its filesystem commits them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import ReadOnlyError, RefShardFileSystem
from tests.support.written_datasets import NAMES, make_dataset, open_dataset

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")


def held(path: Path) -> tuple[RefShardFileSystem, dict[str, Any]]:
    """Return a writable filesystem, and storage options with which ``refshard://`` writes to its overlay."""
    format = {".manifests": "chunk-manifest"}.get(path.suffix)
    fs = fsspec.filesystem("refshard", fo=str(path), mode="a", format=format)
    return fs, {"fo": str(path), "overlay": fs.overlay, "format": format}


def write(ds: Any, options: dict[str, Any], **how: Any) -> None:
    ds.to_zarr("refshard://", storage_options=options, consolidated=False, **how)


@pytest.mark.parametrize("name", NAMES)
def test_writes_by_url_are_committed_by_the_overlays_filesystem(tmp_path: Path, name: str) -> None:
    fs, options = held(tmp_path / name)
    write(make_dataset(0, 4), options)
    assert not (tmp_path / name).exists()
    assert fs.exists("air")
    write(make_dataset(4, 4), options, append_dim="time")
    seen = xr.open_zarr("refshard://", storage_options=options, consolidated=False)
    assert seen.load().identical(make_dataset(0, 8).load()), "reads see writes before the commit"
    fs.commit()
    assert open_dataset(tmp_path / name).identical(make_dataset(0, 8).load())
    write(make_dataset(8, 2), options, append_dim="time")
    fs.discard()
    assert open_dataset(tmp_path / name).identical(make_dataset(0, 8).load())


@pytest.mark.parametrize("name", NAMES)
def test_transaction_commits_or_discards_writes_by_url(tmp_path: Path, name: str) -> None:
    fs, options = held(tmp_path / name)
    with fs.transaction:
        write(make_dataset(0, 4), options)
    assert open_dataset(tmp_path / name).identical(make_dataset(0, 4).load())

    def fail() -> None:
        with fs.transaction:
            write(make_dataset(4, 4), options, append_dim="time")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    seen = xr.open_zarr("refshard://", storage_options=options, consolidated=False)
    assert seen.load().identical(make_dataset(0, 4).load())
    with fs.transaction:
        write(make_dataset(4, 4), options, append_dim="time")
    assert open_dataset(tmp_path / name).identical(make_dataset(0, 8).load())


def test_zarr_opens_a_url_in_modes_w_a_and_r_plus(tmp_path: Path) -> None:
    fs, options = held(tmp_path / "refs.json")
    given = {"storage_options": options}
    with fs.transaction:
        group = zarr.open_group("refshard://", mode="w", **given)
        group.attrs["made"] = 1
    with fs.transaction:
        zarr.open_group("refshard://", mode="a", **given).attrs["more"] = 2
    with fs.transaction:
        zarr.open_group("refshard://", mode="r+", **given).attrs["most"] = 3
    fresh = RefShardFileSystem(str(tmp_path / "refs.json"))
    assert dict(zarr.open_group(fresh.get_mapper(), mode="r").attrs) == {"made": 1, "more": 2, "most": 3}


def test_write_by_url_without_an_overlay_names_the_option(tmp_path: Path) -> None:
    fs, options = held(tmp_path / "refs.json")
    fs.pipe_file("a", b"1")
    fs.commit()
    fs.pipe_file("b", b"2")
    there = fsspec.core.url_to_fs("refshard://", fo=options["fo"], mode="a")[0]
    assert not there.exists("b"), "filesystems with equal arguments share no writes"
    with pytest.raises(ReadOnlyError, match=r"'overlay': fs\.overlay"):
        there.pipe_file("b", b"2")
    fs.discard()


@pytest.mark.parametrize("by_url", [False, True])
def test_filesystems_with_equal_arguments_have_own_overlays(tmp_path: Path, by_url: bool) -> None:
    given = {"fo": str(tmp_path / "refs.json"), "mode": "a"}

    def made() -> Any:
        if by_url:
            return fsspec.core.url_to_fs("refshard://", refshard=given)[0]
        return fsspec.filesystem("refshard", **given)

    fs, again = made(), made()
    fs.pipe_file("a", b"1")
    assert not again.exists("a")
    assert again.overlay != fs.overlay
    assert again != fs, "otherwise dask would take reads of both for the same task"
    fs.discard()


def test_mode_in_protocol_options_is_used(tmp_path: Path) -> None:
    path = str(tmp_path / "refs.json")
    made = fsspec.core.url_to_fs("refshard://", refshard={"fo": path, "mode": "a"})[0]
    made.pipe_file("a", b"1")
    joined = fsspec.core.url_to_fs("refshard://", fo=path, overlay=made.overlay)[0]
    assert joined.cat_file("a") == b"1"
    made.commit()
    reader = fsspec.core.url_to_fs("refshard://", refshard={"fo": path, "mode": "r"})[0]
    assert reader.overlay is None
    assert reader.cat_file("a") == b"1"
    made.pipe_file("lost", b"2")
    holders = [made, joined]
    del made, joined
    with pytest.warns(RuntimeWarning, match="never committed"):
        let_go(holders)


def let_go(holders: list[Any]) -> None:
    holders.clear()
    gc.collect()


def test_values_written_by_url_are_read_by_threads_of_dask(tmp_path: Path) -> None:
    dask = pytest.importorskip("dask")
    fs, options = held(tmp_path / "refs.json")
    with fs.transaction, dask.config.set(scheduler="threads"):
        write(make_dataset(0, 8), options)
        with xr.open_zarr("refshard://", storage_options=options, consolidated=False, chunks={}) as seen:
            np.testing.assert_array_equal(
                seen["air"].mean("time").values, make_dataset(0, 8)["air"].mean("time").values
            )

"""Writes of zarr and xarray that are given a URL and storage options: where they go, and who commits them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import ReadOnlyError, RefShardFileSystem
from tests.writing.test_to_zarr import NAMES, dataset, opened, xr, zarr

IS_2 = zarr.__version__.startswith("2.")


def held(path: Path, **options: Any) -> tuple[RefShardFileSystem, dict[str, Any]]:
    """A filesystem that takes writes, and the storage options of a URL that has its arguments."""
    options = {"fo": str(path), "mode": "a", **options}
    return fsspec.filesystem("refshard", **options), options


def url_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that the zarr that is installed takes: an FSStore of zarr 2 has a mode of its own."""
    return {name: value for name, value in options.items() if not (IS_2 and name == "mode")}


def write(ds: Any, options: dict[str, Any], **how: Any) -> None:
    ds.to_zarr("refshard://", storage_options=url_options(options), consolidated=False, **how)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_through_a_url_is_committed_by_who_holds_the_filesystem(tmp_path: Path, name: str) -> None:
    fs, options = held(tmp_path / name)
    write(dataset(0, 4), options)
    assert not (tmp_path / name).exists()
    assert fs.exists("air")
    write(dataset(4, 4), options, append_dim="time")
    seen = xr.open_zarr("refshard://", storage_options=url_options(options), consolidated=False)
    assert seen.load().identical(dataset(0, 8).load()), "reads see it at once"
    fs.commit()
    assert opened(tmp_path / name).identical(dataset(0, 8).load())
    write(dataset(8, 2), options, append_dim="time")
    fs.discard()
    assert opened(tmp_path / name).identical(dataset(0, 8).load())


@pytest.mark.parametrize("name", NAMES)
def test_a_transaction_of_who_holds_the_filesystem_is_all_or_nothing(tmp_path: Path, name: str) -> None:
    fs, options = held(tmp_path / name)
    with fs.transaction:
        write(dataset(0, 4), options)
    assert opened(tmp_path / name).identical(dataset(0, 4).load())

    def fail() -> None:
        with fs.transaction:
            write(dataset(4, 4), options, append_dim="time")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    seen = xr.open_zarr("refshard://", storage_options=url_options(options), consolidated=False)
    assert seen.load().identical(dataset(0, 4).load())
    with fs.transaction:
        write(dataset(4, 4), options, append_dim="time")
    assert opened(tmp_path / name).identical(dataset(0, 8).load())


def test_zarr_opens_a_url_in_every_mode_that_writes(tmp_path: Path) -> None:
    fs, options = held(tmp_path / "refs.json")
    given = {"storage_options": url_options(options)}
    with fs.transaction:
        group = zarr.open_group("refshard://", mode="w", **given)
        group.attrs["made"] = 1
    with fs.transaction:
        zarr.open_group("refshard://", mode="a", **given).attrs["more"] = 2
    with fs.transaction:
        zarr.open_group("refshard://", mode="r+", **given).attrs["most"] = 3
    fresh = RefShardFileSystem(str(tmp_path / "refs.json"))
    assert dict(zarr.open_group(fresh.get_mapper(), mode="r").attrs) == {"made": 1, "more": 2, "most": 3}


def test_a_url_of_other_arguments_or_of_nobody_takes_no_writes_and_says_how(tmp_path: Path) -> None:
    fs, options = held(tmp_path / "refs.json")
    fs.pipe_file("a", b"1")
    fs.commit()
    for other in ({**options, "inline_threshold": 7}, {"fo": str(tmp_path / "other.json")}):
        there = fsspec.core.url_to_fs("refshard://", **other)[0]
        with pytest.raises(ReadOnlyError, match=r"'refshard': \{'fo': ..., 'mode': 'a'\}"):
            there.pipe_file("b", b"2")
    del fs
    gc.collect()
    there = fsspec.core.url_to_fs("refshard://", **options)[0]
    assert there.cat_file("a") == b"1"
    with pytest.raises(ReadOnlyError):
        there.pipe_file("b", b"2")


def test_a_filesystem_that_no_url_made_has_an_overlay_of_its_own(tmp_path: Path) -> None:
    fs, options = held(tmp_path / "refs.json")
    fs.pipe_file("a", b"1")
    fs.commit()
    fs.pipe_file("b", b"2")
    again = fsspec.filesystem("refshard", **options)
    reader = RefShardFileSystem(str(tmp_path / "refs.json"))
    assert not again.exists("b")
    assert not reader.exists("b")
    assert again.overlay != fs.overlay
    fs.discard()


def test_a_mode_that_is_given_to_the_protocol_holds(tmp_path: Path) -> None:
    path = str(tmp_path / "refs.json")
    made = fsspec.core.url_to_fs("refshard://", refshard={"fo": path, "mode": "a"})[0]
    made.pipe_file("a", b"1")
    joined = fsspec.core.url_to_fs("refshard://", fo=path)[0]
    assert joined.overlay == made.overlay
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


def test_positions_defaults_and_none_make_no_other_arguments(tmp_path: Path) -> None:
    path = str(tmp_path / "refs.json")
    fs = RefShardFileSystem(path, None, mode="a", max_gap=16 * 1024, remote_options={"anon": True})
    there = fsspec.core.url_to_fs("refshard://", fo=path, remote_options={"anon": True}, asynchronous=False)[0]
    assert there.overlay == fs.overlay
    assert "by_url" not in there.storage_options


def test_values_written_through_a_url_are_read_by_workers_in_threads(tmp_path: Path) -> None:
    dask = pytest.importorskip("dask")
    fs, options = held(tmp_path / "refs.json")
    with fs.transaction, dask.config.set(scheduler="threads"):
        write(dataset(0, 8), options)
        with xr.open_zarr("refshard://", storage_options=url_options(options), consolidated=False, chunks={}) as seen:
            np.testing.assert_array_equal(seen["air"].mean("time").values, dataset(0, 8)["air"].mean("time").values)

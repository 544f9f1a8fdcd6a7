"""A function selects a part of each joined set; documents record the selection, and do not run the function."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.sets.preprocess import select_parts
from tests.support.cube_files import DAYS, X, make_values, open_cube, write

CALLS: list[str] = []


def select_day(source: RefShardFileSystem) -> RefShardFileSystem:
    """Give a file the time in its name, and leave out a variable that only odd days have."""
    name = Path(str(source.fo)).stem
    CALLS.append(name)
    time = np.datetime64("2024-01-01") + np.timedelta64(int(name), "D")
    return source.select(assign={"time": time}, drop=["odd"] if source.exists("odd") else [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for day in range(3):
        ds = xr.Dataset({"t": ("x", make_values(seed=day))}, {"x": X})
        write(ds.assign(odd=0) if day % 2 else ds, tmp_path / f"{day}.nc")
    return tmp_path


def test_preprocess_function_gives_each_file_its_time(folder: Path) -> None:
    expected = xr.concat([xr.Dataset({"t": ("x", make_values(seed=n))}, {"x": X}) for n in range(3)], "time")
    expected = expected.assign_coords(time=DAYS[:3])
    cube = refshard_fs.open(f"{folder}/*.nc", preprocess=select_day)
    cube.save(f"{folder}/cube.refshard")
    CALLS.clear()
    for source in (cube, f"{folder}/cube.refshard"):
        xr.testing.assert_equal(xr.open_dataset(source, engine="refshard").load(), expected)
    assert CALLS == []  # a document records the selection
    assert json.loads(Path(f"{folder}/cube.refshard").read_text())["preprocess"].endswith(":select_day")
    eager = refshard_fs.concat(f"{folder}/*.nc", "time", preprocess=select_day)
    xr.testing.assert_equal(xr.open_dataset(eager, engine="refshard").load(), expected)


def read_rest(folder: Path) -> xr.Dataset:
    return xr.open_dataset(refshard_fs.open(f"{folder}/*.nc", preprocess=select_day), engine="refshard").load()


def test_append_requires_the_same_preprocess_function(folder: Path) -> None:
    target, files = f"{folder}/cube.refshard", [f"{folder}/{day}.nc" for day in range(3)]
    refshard_fs.append(target, files[:1], create=True, preprocess=select_day)
    with pytest.raises(ManifestError, match="select_day selects: expected this function .* found no preprocess="):
        refshard_fs.append(target, files[1])
    with pytest.raises(ManifestError, match="found preprocess=.*:select_all"):
        refshard_fs.append(target, files[1], preprocess=select_all)
    assert refshard_fs.append(target, f"{folder}/*.nc", preprocess=select_day) == 2
    xr.testing.assert_equal(xr.open_dataset(target, engine="refshard").load(), read_rest(folder))
    assert refshard_fs.append(target, f"{folder}/*.nc", preprocess=select_day) == 0


def select_all(source: RefShardFileSystem) -> RefShardFileSystem:
    return source


def test_append_to_references_uses_the_preprocess_function(folder: Path) -> None:
    target = f"{folder}/set.json"
    refshard_fs.concat([f"{folder}/0.nc", f"{folder}/1.nc"], "time", preprocess=select_day).save(target)
    assert refshard_fs.append(target, f"{folder}/2.nc", "time", preprocess=select_day) == 1
    xr.testing.assert_equal(xr.open_dataset(target, engine="refshard").load(), read_rest(folder))


def test_workers_call_the_function(folder: Path) -> None:
    expected = read_rest(folder)
    with ThreadPoolExecutor(2) as pool:
        cube = refshard_fs.open(f"{folder}/*.nc", preprocess=select_day, executor=pool)
    xr.testing.assert_equal(xr.open_dataset(cube, engine="refshard").load(), expected)
    choose = partial(select_parts, options={}, function=select_day, known={}, unread=None)
    sent = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(choose))([f"{folder}/1.nc"])))
    assert "odd" in str(sent[0].select)


def test_choices_are_kept_until_file_or_function_changes(folder: Path) -> None:
    how: Any = {"preprocess": select_day, "resume": f"{folder}/scans"}
    first = refshard_fs.open(f"{folder}/*.nc", **how)
    CALLS.clear()
    xr.testing.assert_equal(
        xr.open_dataset(refshard_fs.open(f"{folder}/*.nc", **how), engine="refshard").load(), read_rest(folder)
    )
    assert sorted(CALLS) == ["0", "1", "2"]  # the reads by `read_rest`, which have no file of scans
    CALLS.clear()
    write(
        xr.Dataset({"t": ("x", make_values(seed=7))}, {"x": X}).assign(odd=1, even=2).drop_vars("even"), folder / "1.nc"
    )
    os.utime(folder / "1.nc", (1, 1))
    again = refshard_fs.open(f"{folder}/*.nc", **how)
    assert CALLS == ["1"]
    assert len(again) == len(first) == 3
    with pytest.raises(ManifestError, match="time"):  # another function selects again
        refshard_fs.open(f"{folder}/*.nc", "time", preprocess=select_all, resume=f"{folder}/scans")


def test_scan_of_a_whole_source_is_not_used_with_a_function(folder: Path) -> None:
    """Scans of whole sources are not used for parts that a function selects."""
    kept = f"{folder}/scans"
    refshard_fs.concat([f"{folder}/0.nc"], "x", resume=kept)
    eager = refshard_fs.concat(f"{folder}/*.nc", "time", preprocess=select_day, resume=kept)
    xr.testing.assert_equal(xr.open_dataset(eager, engine="refshard").load(), read_rest(folder))


def test_function_named_in_a_document_is_not_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "stranger.py").write_text("raise SystemExit('a document ran code')")
    monkeypatch.syspath_prepend(folder)
    refshard_fs.open(f"{folder}/0.nc", "x").save(f"{folder}/cube.refshard")
    document = json.loads(Path(f"{folder}/cube.refshard").read_text())
    Path(f"{folder}/named.refshard").write_text(json.dumps({**document, "preprocess": "stranger:f"}))
    assert "t" in xr.open_dataset(f"{folder}/named.refshard", engine="refshard").load()
    assert "stranger" not in __import__("sys").modules


def nothing(source: RefShardFileSystem) -> Any:
    return {}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"preprocess": lambda source: source}, "a function with a name"),
        ({"preprocess": nothing}, "nothing returned {}"),
    ],
)
def test_invalid_preprocess_arguments_are_errors(folder: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        open_cube(f"{folder}/*.nc", **arguments)


def like_xarray(ds: Any) -> Any:
    return ds.assign_coords(a=1)


def test_function_for_datasets_is_told_what_it_gets(folder: Path) -> None:
    with pytest.raises(AttributeError) as raised:
        open_cube(f"{folder}/*.nc", preprocess=like_xarray)
    assert "not with a Dataset" in raised.value.__notes__[0]

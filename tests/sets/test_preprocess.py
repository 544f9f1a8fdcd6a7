"""A function selects a part of each joined set; documents record the selection, and never run the function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.cube_files import DAYS, X, opened, values, write

CALLS: list[str] = []


def day_of_name(source: RefShardFileSystem) -> RefShardFileSystem:
    """Give a file the time that its name says, and leave out what only the odd ones have."""
    name = Path(str(source.fo)).stem
    CALLS.append(name)
    time = np.datetime64("2024-01-01") + np.timedelta64(int(name), "D")
    return source.select(assign={"time": time}, drop=["odd"] if source.exists("odd") else [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for day in range(3):
        ds = xr.Dataset({"t": ("x", values(seed=day))}, {"x": X})
        write(ds.assign(odd=0) if day % 2 else ds, tmp_path / f"{day}.nc")
    return tmp_path


def test_function_gives_each_file_its_time(folder: Path) -> None:
    expected = xr.concat([xr.Dataset({"t": ("x", values(seed=n))}, {"x": X}) for n in range(3)], "time")
    expected = expected.assign_coords(time=DAYS[:3])
    cube = refshard_fs.open(f"{folder}/*.nc", preprocess=day_of_name)
    cube.save(f"{folder}/cube.refshard")
    CALLS.clear()
    for source in (cube, f"{folder}/cube.refshard"):
        xr.testing.assert_equal(xr.open_dataset(source, engine="refshard").load(), expected)
    assert CALLS == []  # a document says what was selected
    assert json.loads(Path(f"{folder}/cube.refshard").read_text())["preprocess"].endswith(":day_of_name")
    with pytest.raises(ManifestError, match="day_of_name selects a part, .* by concat with preprocess="):
        refshard_fs.append(f"{folder}/cube.refshard", f"{folder}/1.nc")
    eager = refshard_fs.concat(f"{folder}/*.nc", "time", preprocess=day_of_name)
    xr.testing.assert_equal(xr.open_dataset(eager, engine="refshard").load(), expected)


def test_named_preprocess_function_is_not_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"preprocess": day_of_name, "resume": "scans"}, "leave executor= and resume= out"),
    ],
)
def test_invalid_functions_are_errors(folder: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        opened(f"{folder}/*.nc", **arguments)

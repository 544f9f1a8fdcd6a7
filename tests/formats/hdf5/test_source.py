"""HDF5 files as sources: requests of opening and reading, and their use in commands and sets."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands
from tests.support.hdf5_files import STEPS, count_sent_bytes
from tests.support.shards_in_memory import Files

h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of four variables that was written step by step: blocks of its indexes lie between chunks."""
    path = tmp_path_factory.mktemp("hdf5") / "steps.nc"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        scales = {"time": STEPS, "lat": 30, "lon": 40}
        for name, size in scales.items():
            file.create_dataset(name, (size,), "f8", maxshape=(None,) if name == "time" else None)
            file[name].make_scale(name)
        file["time"].attrs["units"] = "hours since 2000-01-01"
        for name in "abcd":
            file.create_dataset(name, (0, 30, 40), "f4", maxshape=(None, 30, 40), chunks=(1, 30, 40))
            for axis, scale in enumerate(scales):
                file[name].dims[axis].attach_scale(file[scale])
        for step in range(STEPS):
            file["time"][step] = step
            for name in "abcd":
                file[name].resize(step + 1, 0)
                file[name][step] = rng.random((30, 40))
    return path


@pytest.fixture
def served(http_server: RangeServer, steps: Path) -> str:
    url = http_server.put("/steps.nc", steps.read_bytes())
    http_server.clear()
    return url


def test_one_step_is_read_in_few_rounds_and_few_bytes(served: str, http_server: RangeServer, steps: Path) -> None:
    with xr.open_dataset(served, engine="refshard") as actual:
        values = actual["c"][150].values
    assert count_sent_bytes(http_server) < 150_000
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        assert (values == expected["c"][150].values).all()
    files = Files.of(steps)
    keyspace = files.open()
    assert files.rounds <= 3  # the last round reads the coordinates
    assert files.read(keyspace, "c/150.0.0")
    assert files.rounds <= 6  # the last round reads the chunk


def test_commands_and_sets_accept_files(steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs = check_commands(steps, tmp_path, capsys, "lat")
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        for source in (steps, refs, steps.read_bytes()):
            with xr.open_dataset(source if isinstance(source, bytes) else str(source), engine="refshard") as actual:
                xr.testing.assert_identical(actual.load(), expected.load())


def test_archive_and_user_block_do_not_change_values(steps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(steps, "in/steps.nc")
    moved = tmp_path / "moved.nc"
    moved.write_bytes(bytes(1024) + steps.read_bytes())
    expected = RefShardFileSystem(str(steps)).cat_file("b/17.0.0")
    for source in (f"zip://in/steps.nc::{archive}", str(moved)):
        assert RefShardFileSystem(source).cat_file("b/17.0.0") == expected, source


def test_file_behind_a_reference_has_the_same_values(tmp_path: Path) -> None:
    plain, refs, blob = tmp_path / "a.nc", tmp_path / "refs.json", tmp_path / "blob.bin"
    xr.Dataset({"v": ("x", np.arange(10.0))}).to_netcdf(plain, engine="h5netcdf")
    data = plain.read_bytes()
    blob.write_bytes(b"before" + data + b"behind")
    refs.write_text(json.dumps({"version": 1, "refs": {"inner.nc": [str(blob), 6, len(data)]}}))
    fs = RefShardFileSystem("reference://inner.nc", target_options={"fo": str(refs)})
    assert fs.cat_file("v/0") == RefShardFileSystem(str(plain)).cat_file("v/0") == np.arange(10.0).tobytes()


def test_snapshot_and_diff_accept_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, snapshot = (str(tmp_path / name) for name in ("old.nc", "new.nc", "snapshot.json"))
    for path, start in ((old, 0.0), (new, 5.0)):
        xr.Dataset({"v": ("x", np.arange(10.0) + start)}).to_netcdf(path, engine="h5netcdf")
    assert main(["snapshot", old, snapshot]) == 0
    assert main(["check", snapshot]) == 0
    assert main(["diff", old, old]) == 0
    capsys.readouterr()
    assert main(["diff", old, new]) == 1
    assert "v/0" in capsys.readouterr().out


def test_truncated_file_is_refused(steps: Path, tmp_path: Path) -> None:
    truncated = tmp_path / "cut.nc"
    truncated.write_bytes(steps.read_bytes()[:-1])
    with pytest.raises(ManifestError, match="cut short"):
        RefShardFileSystem(str(truncated)).ls("")


@pytest.mark.parametrize("name", ["a", "z"])  # sorted before and after "m"
def test_dimension_is_not_named_after_a_soft_link(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["m"], file["v"] = np.arange(3.0), np.arange(3)
        file["m"].make_scale("m")
        file["v"].dims[0].attach_scale(file["m"])
        file[name] = h5py.SoftLink("/m")
    attributes = json.loads(RefShardFileSystem(str(path)).cat_file("v/.zattrs"))
    assert attributes["_ARRAY_DIMENSIONS"] == ["m"]  # as in h5netcdf


def test_files_are_concatenated_and_appended(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        values = np.arange(200, dtype="f4").reshape(10, 20) + number
        variables = {"v": (("time", "x"), values), "time": ("time", np.arange(10.0) + 10 * number)}
        paths.append(tmp_path / f"{number}.nc")
        encoding = {"v": {"zlib": True, "chunksizes": (5, 20)}, "time": {"chunksizes": (10,)}}
        xr.Dataset(variables).to_netcdf(paths[-1], engine="h5netcdf", unlimited_dims=["time"], encoding=encoding)
    joined, lazy = str(tmp_path / "whole.json"), str(tmp_path / "lazy.json")
    first, second, third = map(str, paths)
    assert main(["concat", first, second, "--dim", "time", "-o", joined]) == 0
    assert main(["append", joined, third, "--dim", "time"]) == 0
    assert main(["concat", first, second, third, "--dim", "time", "--lazy", "-o", lazy]) == 0
    expected = xr.concat([xr.open_dataset(path, engine="h5netcdf").load() for path in paths], "time")
    for result in (joined, lazy):
        with xr.open_dataset(result, engine="refshard") as actual:
            xr.testing.assert_identical(actual.load(), expected)


def test_one_element_attributes_are_scalars_in_xarray(tmp_path: Path) -> None:
    path = tmp_path / "single.h5"
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        file.attrs["order"] = np.array(["root"], text)
        file["d"] = np.zeros(3)
        attributes = {"n": np.array([1.5]), "order": np.array(["sym"], text), "units": np.array(["K"], text), "s": 2}
        file["d"].attrs.update(attributes)
    expected = {"n": [1.5], "order": ["sym"], "units": "K", "s": 2, "_ARRAY_DIMENSIONS": ["phony_dim_0"]}
    fs = RefShardFileSystem(str(path))
    assert json.loads(fs.cat_file("d/.zattrs")) == expected
    assert json.loads(fs.cat_file(".zattrs")) == {"order": ["root"]}
    with (
        xr.open_dataset(path, engine="refshard") as actual,
        xr.open_dataset(path, engine="h5netcdf", phony_dims="sort") as reference,
    ):
        assert actual.attrs == reference.attrs
        assert actual["d"].attrs == reference["d"].attrs == {"n": 1.5, "order": "sym", "units": "K", "s": 2}
    with h5py.File(path, "a") as file:
        file["d"].attrs.update({"rows": np.array([[3]]), "none": np.array([], "c8")})
        file["d"].make_scale("d")
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    assert json.loads(fs.cat_file("d/.zattrs"))["n"] == 1.5
    with xr.open_dataset(path, engine="refshard") as actual, xr.open_dataset(path, engine="h5netcdf") as reference:
        assert actual["d"].attrs["rows"] == reference["d"].attrs["rows"] == [3]
        assert actual["d"].attrs["none"].shape == reference["d"].attrs["none"].shape == (0,)


def test_scale_of_another_length_names_no_dimension(tmp_path: Path) -> None:
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8.0)
        file["x"].make_scale("x")
        for name, size in (("good", 8), ("odd", 4)):
            file[name] = np.arange(size)
            file[name].dims[0].attach_scale(file["x"])
    with xr.open_dataset(path, engine="refshard") as ds:
        assert ds["good"].dims == ("x",)
        assert ds["odd"].dims == ("phony_dim_0",)
        assert ds["odd"].values.tolist() == [0, 1, 2, 3]

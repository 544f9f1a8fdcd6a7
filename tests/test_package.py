"""The installed package: what it registers, and what it needs."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import h5netcdf
import numpy as np
import pytest

import refshard_fs

ROOT = Path(__file__).parents[1]


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("refshard_fs")
    except metadata.PackageNotFoundError:
        pytest.skip("refshard_fs is on the path, but not installed")


@pytest.mark.parametrize(
    ("group", "name"), [("fsspec.specs", "refshard"), ("xarray.backends", "refshard"), ("console_scripts", "refshard")]
)
def test_entry_points_can_be_imported(group: str, name: str) -> None:
    if group == "xarray.backends":
        pytest.importorskip("xarray")
    (point,) = (p for p in _distribution().entry_points if (p.group, p.name) == (group, name))
    assert callable(point.load())


def test_versions_of_installation_and_module_are_equal() -> None:
    assert _distribution().version == refshard_fs.__version__


EXTRAS = ["jinja2", "pyarrow", "xarray", "zarr", "dask", "pandas", "kerchunk"]


def _run_python(code: str, folder: Path) -> list[str]:
    (folder / "refs.json").write_text('{"version": 1, "templates": {"u": "text"}, "refs": {"a/0": "text"}}')
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


def test_import_loads_no_extra(tmp_path: Path) -> None:
    code = f"import sys, refshard_fs, refshard_fs.cli; print(*set({EXTRAS!r}).intersection(sys.modules))"
    assert _run_python(code, tmp_path) == []


ABSENT = [*EXTRAS, "tqdm", "shtab", "matplotlib", "imagecodecs", "eccodes", "astropy", "h5py", "scipy", "tifffile"]
COMMANDS = """
import io, sys, contextlib
sys.modules.update(dict.fromkeys({absent!r}))
import refshard_fs
from refshard_fs.cli import main
for command in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command.split())
    print(status, command, "|", *(out.getvalue() + err.getvalue()).split())
for name in ("load", "tune_zarr"):
    try:
        getattr(refshard_fs, name)()
    except ImportError as e:
        print(2, name, "|", e)
"""


def test_commands_without_extras_work_or_name_the_extra(tmp_path: Path) -> None:
    """Commands of a wheel that is installed without extras."""
    meta = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "order": "C"}
    meta |= {"fill_value": None, "filters": None, "compressor": None}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/0": "abcd"}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    with h5netcdf.File(tmp_path / "file.nc", "w") as file:
        file.dimensions = {"x": 4}
        file.create_variable("v", ("x",), "i4", data=np.arange(4))
    (tmp_path / "set.parquet").mkdir()
    (tmp_path / "set.parquet" / ".zmetadata").write_text(
        '{"metadata": {".zgroup": {"zarr_format": 2}}, "record_size": 2}'
    )
    work = [
        "info refs.json",
        "tree file.nc",
        "info file.nc",
        "ls refs.json",
        "check file.nc --full",
    ]
    work += [
        "map refs.json a -o a.svg",
        "convert file.nc new.json",
        "convert file.nc new.zarr",
        "snapshot file.nc s.json",
    ]
    lack = {
        "map refs.json a -o a.png": "png",
        "convert refs.json new.parquet": "parquet",
        "info set.parquet": "parquet",
        "completion bash": "cli",
        "load": "xarray",
        "tune_zarr": "zarr",
    }
    code = COMMANDS.format(absent=ABSENT, commands=[*work, *(c for c in lack if " " in c)])
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "refshard" not in said.stderr
    lines = said.stdout.splitlines()
    assert [line.partition(" |")[0] for line in lines if line[0] == "0"] == [f"0 {command}" for command in work]
    for what, extra in lack.items():
        (line,) = [line for line in lines if line.startswith(f"2 {what} |")]
        assert f'pip install "refshard_fs[{extra}]"' in line.replace("'", '"')
    assert any('"refshard_fs[zarr]"' in line for line in lines if "--full" in line)


def test_extras_that_messages_name_exist() -> None:
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    texts = [path.read_text() for path in [*(ROOT / "refshard_fs").rglob("*.py"), *ROOT.rglob("docs/pages/*.md")]]
    named = {
        extra for text in texts for some in re.findall(r"refshard_fs\[([\w,]+)\]", text) for extra in some.split(",")
    }
    assert {"parquet", "png", "cli"} <= named
    assert named <= set(config["options.extras_require"])

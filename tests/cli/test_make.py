"""Commands for a folder of files, as users type them: each in its own process, with its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.set_files import make_plain_file, read_days, read_first_values, with_scipy, write_day_files

PROGRAM = "import sys; from refshard_fs.cli import main; sys.exit(main())"


@pytest.fixture
def refshard(tmp_path: Path, fast_python: list[str]) -> Callable[..., str]:
    """Return a function that runs the command with arguments, and returns its output, errors last."""

    def refshard(*arguments: str, status: int = 0) -> str:
        command = [*fast_python, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return refshard


def write_packed(
    path: Path,
    day: int,
    scale: float = 0.5,
    units: str = "days since 2024-01-01",
    value: int | None = None,
    **more: Any,
) -> None:
    """Write a NetCDF-3 file of a day, whose packed numbers mean ``value``, by default a value of the day."""
    scipy_io = pytest.importorskip("scipy.io")
    with scipy_io.netcdf_file(path, "w") as file:
        file.createDimension("time", 1)
        file.createDimension("x", 2)
        time = file.createVariable("time", "i4", ("time",))
        time[:], time.units = [day], units
        for name, attribute in more.items():
            setattr(time, name, attribute)
        t = file.createVariable("t", "i2", ("time", "x"))
        t[:], t.scale_factor = round((day if value is None else value) / scale), scale
        t._FillValue = np.int16(-9)


def read_meaning(cube: Path, day: int) -> float:
    """Return the number that the cube has for a day, unpacked as its attributes say."""
    fs = RefShardFileSystem(str(cube), skip_instance_cache=True)
    scale = json.loads(fs.cat_file("t/.zattrs")).get("scale_factor", 1)
    number = np.frombuffer(fs.cat_file(f"t/{day}.0"), json.loads(fs.cat_file("t/.zarray"))["dtype"])[0]
    return float(number * scale)


def test_pattern_takes_files_in_natural_order(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 11)
    said = refshard("concat", "day*.nc3", "-o", "cube.json", "--dim", "time")
    assert said.startswith("cube.json: ")
    assert read_first_values(str(tmp_path / "cube.json"), 11) == list(range(11))


def test_concat_without_dim_names_a_possible_dimension(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 2)
    said = refshard("concat", "day*.nc3", "-o", "cube.json", status=2)
    assert "name a dimension (--dim time)" in said
    assert "--same" not in said
    assert not (tmp_path / "cube.json").exists()


def test_files_of_other_packing_are_joined_only_with_lazy(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day, scale in enumerate((0.5, 0.25, 0.5)):
        write_packed(tmp_path / f"day{day}.nc", day, scale)
    said = refshard("concat", "day*.nc", "-o", "cube.json", "--dim", "time", status=2)
    for word in ("day0.nc", "day1.nc", "'t'", "scale_factor", "0.5", "0.25", "--lazy converts"):
        assert word in said
    said = refshard("concat", "day*.nc", "-o", "cube.refshard", "--dim", "time", "--lazy")
    assert "'t' is converted while reading" in said
    assert [read_meaning(tmp_path / "cube.refshard", day) for day in range(3)] == [0, 1, 2]


def test_times_join_across_units_but_not_calendars(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_packed(tmp_path / "a.nc", 30)
    write_packed(tmp_path / "b.nc", 0, units="days since 2024-02-01")
    write_packed(tmp_path / "c.nc", 33, calendar="noleap")
    refshard("concat", "a.nc", "b.nc", "-o", "cube.json", "--dim", "time")
    assert read_days(str(tmp_path / "cube.json")) == [30, 31]
    said = refshard("append", "cube.json", "c.nc", "--dim", "time", status=2)
    for word in ("cube.json", "c.nc", "'time'", "noleap", "standard"):
        assert word in said
    assert read_days(str(tmp_path / "cube.json")) == [30, 31]


@pytest.mark.parametrize("lazy", [[], ["--lazy"]])
def test_files_out_of_order_are_sorted_with_the_option_sort(
    refshard: Callable[..., str], tmp_path: Path, lazy: list[str]
) -> None:
    write_day_files(tmp_path, "scipy", 3)
    files = ["day2.nc3", "day0.nc3", "day1.nc3"]
    refshard("concat", *files, "-o", "cube.json", "--dim", "time", "--sort", *lazy)
    assert read_days(str(tmp_path / "cube.json")) == [0, 1, 2]
    assert read_first_values(str(tmp_path / "cube.json"), 3) == [0, 1, 2]


def test_duplicate_days_are_refused_unless_overlap_is_set(refshard: Callable[..., str], tmp_path: Path) -> None:
    for number, (day, value) in enumerate(((0, 0), (1, 1), (1, 7))):
        write_packed(tmp_path / f"{number}.nc", day, value=value)
    arguments = ["concat", "0.nc", "1.nc", "2.nc", "-o", "cube.json", "--dim", "time"]
    said = refshard(*arguments, status=2)
    assert "2.nc) has time = 2024-01-02, and so has" in said
    assert "--overlap first or --overlap last" in said
    for which, expected in (("first", [0, 1]), ("last", [0, 7])):
        refshard(*arguments, "--overlap", which)
        assert read_days(str(tmp_path / "cube.json")) == [0, 1]
        assert [read_meaning(tmp_path / "cube.json", day) for day in range(2)] == expected


@pytest.mark.parametrize("lazy", [[], ["--lazy"]])
def test_missing_day_gets_a_coordinate_but_no_chunk(
    refshard: Callable[..., str], tmp_path: Path, lazy: list[str]
) -> None:
    for day in (0, 1, 3):
        write_packed(tmp_path / f"day{day}.nc", day)
    arguments = ["--dim", "time", "--join", "outer", "--freq", "1D", *lazy]
    refshard("concat", "day*.nc", "-o", "cube.json", *arguments)
    cube = tmp_path / "cube.json"
    assert read_days(str(cube)) == [0, 1, 2, 3]
    assert [read_meaning(cube, day) for day in (0, 1, 3)] == [0, 1, 3]
    assert not RefShardFileSystem(str(cube)).exists("t/2.0")


def test_error_of_a_missing_variable_names_the_option(refshard: Callable[..., str], tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    for day in (0, 1):
        write_packed(tmp_path / f"day{day}.nc", day)
    with scipy_io.netcdf_file(tmp_path / "day0.nc", "a") as file:
        more = file.createVariable("wind", "f4", ("time", "x"))
        more[:], more._FillValue = 5, np.float32(-9)
    arguments = ["concat", "day*.nc", "-o", "cube.json", "--dim", "time"]
    said = refshard(*arguments, status=2)
    assert "day1.nc) has no variable 'wind', which " in said
    assert "day0.nc) has along 'time': with --join outer, its values are missing there" in said
    refshard(*arguments, "--join", "outer")
    fs = RefShardFileSystem(str(tmp_path / "cube.json"))
    assert (fs.exists("wind/0.0"), fs.exists("wind/1.0")) == (True, False)


@pytest.mark.parametrize("lazy", [[], ["--lazy"]])
def test_folders_of_members_and_days_become_two_dimensions(
    refshard: Callable[..., str], tmp_path: Path, lazy: list[str]
) -> None:
    for member in (1, 2, 10):
        (tmp_path / f"r{member}").mkdir()
        for day in range(2):
            with_scipy(tmp_path / f"r{member}" / f"2024010{day + 1}.nc", day)
    pattern = "r{member:d}/{time:%Y%m%d}.nc"
    refshard("concat", pattern, "-o", "cube.json", "--dims", "time,member", *lazy)
    fs = RefShardFileSystem(str(tmp_path / "cube.json"))
    meta = json.loads(fs.cat_file("t/.zarray"))
    names = json.loads(fs.cat_file("t/.zattrs"))["_ARRAY_DIMENSIONS"]
    assert dict(zip(names, meta["shape"], strict=True)) == {"time": 2, "member": 3, "x": 4}
    assert np.frombuffer(fs.cat_file("member/0"), json.loads(fs.cat_file("member/.zarray"))["dtype"]).tolist() == [
        1,
        2,
        10,
    ]


@pytest.mark.parametrize(("name", "lazy"), [("cube.json", []), ("cube.parquet", []), ("cube.refshard", ["--lazy"])])
def test_repeated_append_reports_no_change(
    refshard: Callable[..., str], tmp_path: Path, name: str, lazy: list[str]
) -> None:
    write_day_files(tmp_path, "scipy", 3)
    refshard("concat", "day0.nc3", "day1.nc3", "-o", name, "--dim", "time", *lazy)
    append = ["append", name, "day2.nc3", "--dim", "time"]
    assert refshard(*append, "--on-duplicate", "skip") == f"{name}: time: +1\n"
    before = read_files(tmp_path / name)
    assert refshard(*append, "--on-duplicate", "skip") == f"{name}: nothing new, left as it is\n"
    said = refshard(*append, status=2)
    assert "has time = 2024-01-03 already: --on-duplicate skip" in said
    assert read_files(tmp_path / name) == before
    assert read_first_values(str(tmp_path / name), 3) == [0, 1, 2]


def read_files(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def test_earlier_day_is_refused_unless_any_order_is_set(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 3)
    refshard("concat", "day0.nc3", "day2.nc3", "-o", "cube.json", "--dim", "time")
    append = ["append", "cube.json", "day1.nc3", "--dim", "time"]
    assert "--any-order" in refshard(*append, status=2)
    refshard(*append, "--any-order")
    assert read_days(str(tmp_path / "cube.json")) == [0, 2, 1]


def test_chunks_without_a_codec_are_cut_into_smaller_chunks(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 2)
    arguments = ["--dim", "time", "--subchunks", "x=2"]
    refshard("concat", "day*.nc3", "-o", "cube.json", *arguments)
    fs = RefShardFileSystem(str(tmp_path / "cube.json"))
    assert json.loads(fs.cat_file("t/.zarray"))["chunks"] == [1, 2]
    assert [np.frombuffer(fs.cat_file(f"t/{day}.{x}"), ">f4").tolist() for day in (0, 1) for x in (0, 1)] == [
        [0, 0],
        [0, 0],
        [1, 1],
        [1, 1],
    ]


def test_unreadable_files_are_errors_or_skipped(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_day_files(tmp_path, "scipy", 4)
    (tmp_path / "day1.nc3").write_bytes(b"an error page")
    (tmp_path / "day2.nc3").write_bytes((tmp_path / "day2.nc3").read_bytes()[:90])
    arguments = ["concat", "day*.nc3", "-o", "cube.json", "--dim", "time"]
    assert "day1.nc3" in refshard(*arguments, status=2)
    said = refshard(*arguments, "--on-error", "skip")
    assert "day1.nc3" in said
    assert "day2.nc3" in said
    assert read_days(str(tmp_path / "cube.json")) == [0, 3]


def test_output_with_suffix_refshard_is_a_lazy_cube(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day in range(2):
        write_packed(tmp_path / f"{day}.nc", day)
    assert "2 parts" in refshard("concat", "0.nc", "1.nc", "-o", "all.refshard", "--dim", "time")


def test_append_to_a_missing_set_needs_create(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_packed(tmp_path / "0.nc", 0)
    assert "there is no set at all.refshard to append to: concat makes one, and --create makes a cube" in refshard(
        "append", "all.refshard", "*.nc", status=2
    )
    assert refshard("append", "all.refshard", "*.nc", "--create") == "all.refshard: time: +1\n"


def test_append_takes_several_sources(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day in range(4):
        write_packed(tmp_path / f"{day}.nc", day)
    refshard("concat", "0.nc", "-o", "all.refshard")
    assert refshard("append", "all.refshard", "1.nc", "[2-3].nc") == "all.refshard: time: +3\n"
    assert "nothing new" in refshard("append", "all.refshard", "1.nc", "[2-3].nc")


def test_options_set_attributes_and_assign_arrays(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day in range(2):
        write_packed(tmp_path / f"{day}.nc", day)
    options = ("--attrs", 't={"units": "K", "scale_factor": null}', "--attrs", '={"title": "days"}')
    refshard("concat", "0.nc", "1.nc", "-o", "all.refshard", *options)
    refshard("convert", "0.nc", "part.json", *options, "--assign", 'w=["z", [1, 2], {"units": "1"}]')
    for name in ("all.refshard", "part.json"):
        fs = RefShardFileSystem(str(tmp_path / name))
        attributes = json.loads(fs.cat_file("t/.zattrs"))
        assert attributes["units"] == "K"
        assert "scale_factor" not in attributes
        assert json.loads(fs.cat_file(".zattrs"))["title"] == "days"
    assert json.loads(fs.cat_file("w/.zattrs")) == {"units": "1", "_ARRAY_DIMENSIONS": ["z"]}
    assert "expected NAME=JSON" in refshard("convert", "0.nc", "part.json", "--attrs", "units", status=2)
    said = refshard("concat", "0.nc", "1.nc", "-o", "all.refshard", "--attrs", 'y={"units": "K"}', status=2)
    assert "--attrs names 'y'" in said


@pytest.mark.parametrize("source", ["data/", "data/*/*.nc"])
def test_watch_appends_only_new_files(refshard: Callable[..., str], tmp_path: Path, source: str) -> None:
    folder = tmp_path / "data" / "2024"
    folder.mkdir(parents=True)
    for day in range(2):
        write_packed(folder / f"{day}.nc", day)
    assert refshard("watch", source, "-o", "all.refshard") == "all.refshard: time: +2\n"
    document = (tmp_path / "all.refshard").read_bytes()
    assert "nothing new" in refshard("watch", source, "-o", "all.refshard")
    assert (tmp_path / "all.refshard").read_bytes() == document
    write_packed(folder / "2.nc", 2)
    assert refshard("watch", source, "-o", "all.refshard") == "all.refshard: time: +1\n"


def test_watch_skips_a_damaged_file_until_it_is_mended(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day in (0, 1, 2):
        write_packed(tmp_path / f"{day}.nc", day)
    whole = (tmp_path / "2.nc").read_bytes()
    (tmp_path / "2.nc").write_bytes(b"damaged")
    arguments = ("watch", "*.nc", "-o", "all.refshard")
    assert "damaged" in refshard(*arguments, status=2)
    assert "all.refshard: time: +2\n" in refshard(*arguments, "--on-error", "skip")
    assert "nothing new" in refshard(*arguments, "--on-error", "skip")
    (tmp_path / "2.nc").write_bytes(whole)
    assert refshard(*arguments, "--on-error", "skip") == "all.refshard: time: +1\n"


def test_watch_inserts_a_late_file_in_order(refshard: Callable[..., str], tmp_path: Path) -> None:
    for day in (1, 3, 0, 2):
        write_packed(tmp_path / f"{day}.nc", day)
        assert ": time: +1\n" in refshard("watch", "*.nc", "-o", "all.refshard")
    assert read_days(str(tmp_path / "all.refshard")) == [0, 1, 2, 3]


def test_watch_refuses_the_name_of_a_repository(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_packed(tmp_path / "0.nc", 0)
    said = refshard("watch", "*.nc", "-o", "all.icechunk", status=2)
    assert "expected a name such as all.refshard or all.json for the document of a cube" in said
    assert not (tmp_path / "all.icechunk").exists()


def test_snapshot_into_its_own_netcdf_file_is_refused(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_packed(tmp_path / "0.nc", 0)
    before = (tmp_path / "0.nc").read_bytes()
    assert "save writes references, and no .nc file" in refshard("snapshot", "0.nc", "0.nc", status=2)
    assert (tmp_path / "0.nc").read_bytes() == before


def test_suffix_chooses_the_format_of_a_snapshot(refshard: Callable[..., str], tmp_path: Path) -> None:
    write_packed(tmp_path / "0.nc", 0)
    for name in ("pinned", "pinned.json"):
        refshard("snapshot", "0.nc", name)
        assert json.loads((tmp_path / name).read_text())
    assert "parquet sets keep no versions" in refshard("snapshot", "0.nc", "x.parquet", status=2)
    assert not (tmp_path / "x.parquet").exists()
    pytest.importorskip("icechunk")
    refshard("snapshot", "0.nc", "x.icechunk")
    assert (tmp_path / "x.icechunk").is_dir()
    assert RefShardFileSystem(str(tmp_path / "x.icechunk")).exists("t")


def test_files_of_several_formats_are_joined_with_lazy(refshard: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    write_day_files(tmp_path, "references", 1)
    write_day_files(tmp_path, "h5py", 2)
    write_day_files(tmp_path, "scipy", 3)
    files = ["day0.json", "day1.h5", "day2.nc3"]
    refshard("concat", *files, "-o", "cube.refshard", "--dim", "time", "--lazy")
    assert read_first_values(str(tmp_path / "cube.refshard"), 3) == [0, 1, 2]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_concat_resumes(refshard: Callable[..., str], tmp_path: Path, http_server: RangeServer) -> None:
    urls = [http_server.put(f"{n}.nc", make_plain_file(n), modified=1e9) for n in range(40)]
    arguments = ["concat", *urls, "-o", "cube.refshard", "--dim", "time", "--lazy", "--resume", "scans"]
    kept = tmp_path / "scans"
    http_server.fault("silent", "/39.nc")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as killed:
        until = time.monotonic() + 60
        while not (kept.exists() and kept.stat().st_size > 4000) and time.monotonic() < until:
            time.sleep(0.02)
        killed.kill()
    assert not (tmp_path / "cube.refshard").exists()
    http_server.heal()
    http_server.log.clear()
    refshard(*arguments)
    assert read_days(str(tmp_path / "cube.refshard")) == list(range(40))
    read = {request.path for request in http_server.requests() if request.sent > 100 and request.method == "GET"}
    assert "/39.nc" in read
    assert len(read) < 40


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_existing_set_is_replaced_with_overwrite(tmp_path: Path, refshard: Callable[..., str], suffix: str) -> None:
    files, moved = write_day_files(tmp_path, "references", 3), f"moved.{suffix}"
    prefixes = ["--from", str(tmp_path), "--to", str(tmp_path)]
    made = ["concat", *files, "-o", f"all.{suffix}", "--dim", "time"], ["rebase", f"all.{suffix}", moved, *prefixes]
    for arguments in made:
        refshard(*arguments)
        if suffix == "parquet":
            assert "--overwrite" in refshard(*arguments, status=2)
        refshard(*arguments, "--overwrite")
    assert read_days(str(tmp_path / moved)) == [0, 1, 2]

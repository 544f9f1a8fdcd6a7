"""The examples run offline without a warning, print their promised results, and plot pictures."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

for needed in ("xarray", "zarr", "h5netcdf", "matplotlib"):
    pytest.importorskip(needed)
if not any(point.name == "refshard" for point in metadata.entry_points(group="fsspec.specs")):
    pytest.skip("the examples use refshard:// by its entry point: install the package", allow_module_level=True)
ZARR_2 = metadata.version("zarr").startswith("2.")


@pytest.fixture
def run(tmp_path: Path, fast_python: list[str]) -> Callable[..., str]:
    """Return a function that runs a script, checks its exit status and its picture, and returns its output."""

    def run(script: str, *arguments: str, python: Sequence[str] = fast_python, warnings: str = "error") -> str:
        plot = tmp_path / "plot.png"
        done = subprocess.run(
            [*python, "-W", warnings, str(EXAMPLES / script), *arguments, "--plot", str(plot)],
            cwd=tmp_path,
            env=os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"},  # the machine may be busy
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"plot: {plot}\n")
        assert_picture(plot)
        return done.stdout

    return run


def assert_picture(file: Path) -> None:
    from matplotlib.image import imread

    pixels = imread(file)
    height, width, _ = pixels.shape
    assert height > 300
    assert width > 600
    drawn = (pixels[..., :3] < 0.9).any(axis=2)  # not the background
    for third in range(3):  # no third of the picture is blank
        assert drawn[:, width * third // 3 : width * (third + 1) // 3].mean() > 0.01


def find_number(pattern: str, printed: str) -> int:
    """Return the number that the only group of ``pattern`` finds in ``printed``."""
    found = re.search(pattern, printed)
    assert found, printed
    return int(found[1].replace(",", ""))


def test_every_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    assert [file.name for file in EXAMPLES.glob("[!_]*.py") if f'"{file.name}"' not in here] == []


def test_quickstart_takes_one_request_and_checks_values(run: Callable[..., str]) -> None:
    printed = run("quickstart.py")
    counted = {
        what: (int(c), int(r)) for what, c, r in re.findall(r"^(.*): chunks (\d+), requests (\d+)", printed, re.M)
    }
    assert counted["opening it, and one day"] == (1, 1)
    assert counted["the month"] == (31, 0)  # a small file comes whole
    assert "every value equals" in printed


@pytest.mark.skipif(ZARR_2, reason="kerchunk and VirtualiZarr need zarr 3")
@pytest.mark.parametrize(("writer", "warnings"), [("kerchunk", "error"), ("virtualizarr", "default")])
def test_netcdf_archive_is_one_cube(writer: str, warnings: str, run: Callable[..., str]) -> None:
    pytest.importorskip(writer)
    # VirtualiZarr's reader of HDF5 warns of itself with zarr 3.1: its codecs are not in zarr's specification.
    printed = run("netcdf_archive.py", "--writer", writer, warnings=warnings)
    assert "files 31, references 44\n" in printed
    assert "cube {'time': 124, 'lat': 11, 'lon': 21}, dask chunks 1\n" in printed
    assert find_number(r"requests (\d+)", printed) >= 31  # each file is a target of its own
    assert "every mean equals" in printed


@pytest.mark.skipif(ZARR_2, reason="sharded arrays are written by zarr 3")
def test_ome_zarr_zip_view_reads_a_small_part_of_the_file(run: Callable[..., str]) -> None:
    printed = run("ome_zarr_zip.py")
    assert "full resolution (256, 256), chunks (16, 16)\n" in printed
    size = find_number(r"the file has ([\d,]+) bytes", printed)
    assert find_number(r"overview \(64, 64\): requests \d+, bytes ([\d,]+)", printed) < size / 8
    assert find_number(r"detail \(64, 64\): requests \d+, bytes ([\d,]+)", printed) < size / 4
    assert find_number(r"detail \(64, 64\): requests (\d+)", printed) < 16  # chunks
    assert "every pixel equals" in printed


@pytest.mark.skipif(not all(map(find_spec, ("pandas", "dask"))), reason="dask's dataframes are not installed")
def test_bcolz_table_becomes_a_dataframe(run: Callable[..., str]) -> None:
    printed = run("bcolz_table.py")
    assert "rows 28,644, partitions 7\n" in printed
    assert "\n1     8.6  -1.9  -7.7\n" in printed
    assert "every mean equals" in printed


@pytest.mark.skipif(ZARR_2, reason="kerchunk needs zarr 3")
def test_append_example_keeps_full_partitions(run: Callable[..., str]) -> None:
    pytest.importorskip("kerchunk")
    pytest.importorskip("pyarrow")
    printed = run("append_day.py")
    written = dict(re.findall(r"^(\d+) steps; written: (.*)$", printed, re.M))
    assert list(written) == ["112", "116", "120", "124"]
    assert written["120"] == ".zmetadata, air/refs.2.2.parq, air/refs.2.parq, time/refs.0.2.parq, time/refs.0.parq"
    assert written["124"] == ".zmetadata, air/refs.3.parq, time/refs.0.3.parq, time/refs.0.parq"
    assert "every value equals" in printed


def test_folder_cube_grows_and_a_rerun_finds_nothing_new(run: Callable[..., str]) -> None:
    printed = run("cube_of_files.py")
    assert find_number(r"the document has ([\d,]+) bytes", printed) < 200 * 28
    assert re.findall(r": (\+4 steps|nothing new)$", printed, re.M) == ["+4 steps", "nothing new"] * 3
    (sizes,) = re.findall(r"^cube ({.*}), dask chunks 1$", printed, re.M)
    assert ast.literal_eval(sizes) == {"time": 124, "lat": 11, "lon": 21}
    assert "every value of the point equals" in printed


def test_first_hour_takes_one_request_a_file_and_one_more(run: Callable[..., str]) -> None:
    printed = run("first_hour.py")
    assert find_number(r"refshard: .* requests (\d+)", printed) <= 31 + 1  # one for each file, and the page of links
    assert "every mean equals" in printed


def test_unlike_files_make_a_cube_of_right_values(run: Callable[..., str]) -> None:
    printed = run("files_that_differ.py")
    assert "'air' is converted while reading in 6 of 9 sets" in printed
    assert "every value equals that of its own file" in printed


def test_snapshot_refuses_rewritten_files_and_reads_the_rest(run: Callable[..., str]) -> None:
    printed = run("snapshot.py")
    assert "the snapshot has the values of the store\n" in printed
    assert re.search(r"^TargetChanged: 'air/\S+': it is not the object that the manifest was made for", printed, re.M)
    assert "after the change: 24 days read, 7 refused\n" in printed
    assert "no day has a value that was not pinned\n" in printed
    assert find_number(r"check: .*'changed': (\d+)", printed) == 7


@pytest.mark.skipif(ZARR_2, reason="xarray opens URLs of a filesystem with zarr 3")
@pytest.mark.skipif(not find_spec("distributed"), reason="distributed is not installed")
@pytest.mark.parametrize("count", ["10,000", pytest.param("1,000,000", marks=pytest.mark.slow)])
def test_cluster_reads_many_references(count: str, run: Callable[..., str]) -> None:
    printed = run("dask_cluster.py", "--references", count.replace(",", ""), python=[sys.executable])
    assert f"references {count}, " in printed
    assert find_number(r"sent to a worker: ([\d,]+) bytes", printed) < 1000
    assert f"read: {count} by 2 workers" in printed
    assert "the sum of all values is right\n" in printed
    assert f"xarray on the cluster: 124 steps of {count}\n" in printed

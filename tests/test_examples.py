"""The examples run, and what they print is what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

for needed in ("xarray", "zarr", "h5netcdf", "matplotlib"):
    pytest.importorskip(needed)
if not any(point.name == "refshard" for point in metadata.entry_points(group="fsspec.specs")):
    pytest.skip("the examples use refshard:// by its entry point: install the package", allow_module_level=True)


def test_quickstart_checks_every_value_with_no_more_requests_than_chunks(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "quickstart.py"), "--plot", str(plot)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    counted = {
        what: (int(c), int(r)) for what, c, r in re.findall(r"^(.*): chunks (\d+), requests (\d+)", run.stdout, re.M)
    }
    assert counted["one day"] == (1, 1)
    chunks, requests = counted["the month"]
    assert chunks == 31
    assert 1 <= requests < chunks
    assert "every value equals" in run.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")

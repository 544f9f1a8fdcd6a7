"""The first cell of a notebook, in a process that has imported nothing; the time is that of the whole process.

For an engine that is not its own, xarray imports the engines of all installed packages. A user of refshard need not
have those that the benchmarks install (kerchunk, cfgrib, xpystac), so there are two jobs: with and without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs.data import Months
from benchmarks.jobs.job import Job, Site, Sizes

__all__: list[str] = []

CELL = """
import sys
import xarray as xr
ds = xr.open_dataset(sys.argv[1], engine=sys.argv[2])
ds._repr_html_()
ds["t2m"][0].plot()
ds["t2m"][0].values.tofile(sys.argv[3])
"""

# Run before the cell: xarray then finds only the engine of refshard, as if no package with another one were installed.
HIDE_OTHERS = """
import importlib.metadata
find = importlib.metadata.entry_points
def find_ours(**chosen):
    found = find(**chosen)
    is_engine = chosen.get("group") == "xarray.backends"
    return importlib.metadata.EntryPoints(e for e in found if e.name == "refshard") if is_engine else found
importlib.metadata.entry_points = find_ours
"""


def run_cell(site: Site, engine: str, *, before: str = "") -> Any:
    """Run the cell in a new interpreter, after the statements ``before``; return the values that it plots."""
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder, "step")
        command = [sys.executable, "-c", before + CELL, *site.urls("*.nc"), engine, str(step)]
        environment = {**os.environ, "MPLBACKEND": "agg"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603  # its own
        if done.returncode:
            raise RuntimeError(done.stderr)
        return np.fromfile(step)


class Notebook(Job):
    """Import xarray, open a file, look at it, and plot a step."""

    title = "a notebook's first cell: import, open, repr, plot"
    sizes = Sizes(Months(1, 40), Months(1))
    peer = "h5netcdf"
    needs = ("matplotlib",)

    def run_ours(self, site: Site) -> Any:
        return run_cell(site, "refshard")

    def run_theirs(self, site: Site) -> Any:
        return run_cell(site, "h5netcdf")


class NotebookOfOneEngine(Notebook):
    """The same without other packages that have engines for xarray."""

    title = "a notebook's first cell, without other engines"

    def run_ours(self, site: Site) -> Any:
        return run_cell(site, "refshard", before=HIDE_OTHERS)

    def run_theirs(self, site: Site) -> Any:
        return run_cell(site, "h5netcdf", before=HIDE_OTHERS)

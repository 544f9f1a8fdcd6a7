"""Append a day to a parquet set in place, each time the archive gets a new file.

The references of the new file are made, compared with the set (types, codecs, chunks, units) and written. Of the
existing files of the set, only the last partition of each array, if it is not full, and at the end the metadata are
written again. Readers see the set without the day or with the day, never a part of the day.

    python examples/append_day.py [--plot append_day.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from netcdf_archive import SOURCE, refer_by_kerchunk, write_archive

import refshard_fs

LAST = 4  # days that are appended one after the other


def main() -> None:
    """Make a set of the first days, append the last days, and check and plot the values."""
    parser = argparse.ArgumentParser(description="A parquet set that grows by a day.")
    parser.add_argument("--plot", type=Path, default=Path("append_day.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_archive(folder)
        days = [refer_by_kerchunk(file, str(file)) for file in files]
        grows = str(folder / "air.parquet")
        refshard_fs.concat(days[:-LAST], dim="time").save(grows, "parquet", record_size=10)

        stages = [load_set(grows)]
        for day in days[-LAST:]:
            before = list_times(grows)
            refshard_fs.append(grows, day, dim="time")
            changed = sorted(file for file, when in list_times(grows).items() if before.get(file) != when)
            stages.append(load_set(grows))
            print(f"{stages[-1].sizes['time']} steps; written: {', '.join(changed)}")

        with xr.open_dataset(SOURCE, engine="h5netcdf") as month:
            xr.testing.assert_equal(stages[-1]["air"], month["air"])
            xr.testing.assert_equal(stages[0]["air"], month["air"][: -LAST * 4])
        print("every value equals that of the files")

    plot(stages, plot_file)
    print(f"plot: {plot_file}")


def load_set(grows: str) -> xr.Dataset:
    """Load the present state of the set."""
    with xr.open_dataset(grows, engine="refshard") as ds:
        return ds.load()


def list_times(folder: str) -> dict[str, int]:
    """Return the files of a set, and the time (ns) of their last change."""
    return {
        str(file.relative_to(folder)): file.stat().st_mtime_ns for file in Path(folder).rglob("*") if file.is_file()
    }


def plot(stages: list[xr.Dataset], file: Path) -> None:
    """Plot the mean over time, with a colour for each appended day."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    start = 0
    for number, stage in enumerate(stages):
        steps = stage.sizes["time"]
        part = stage["air"][max(0, start - 1) : steps].mean(("lat", "lon")) - 273.15
        label = f"first {steps // 4} days" if number == 0 else f"day {steps // 4}"
        axes.plot(part["time"], part, linewidth=1.5 if number == 0 else 3, label=label)
        start = steps
    axes.set(title="Mean over the region", ylabel="°C")
    axes.tick_params(axis="x", rotation=20)
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

"""A parquet set that grows by a day: the archive gets a new file, and the set goes on with it, in place and whole.

The references of the new file are made, checked against the set (types, codecs, chunks, units) and written; nothing
that is there is written again but the unfilled last partition of each array, and the metadata at the very end. Who
opens the set sees it without the day or with it, never half of it.

    python examples/append_day.py [--plot append_day.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from netcdf_archive import SOURCE, with_kerchunk, write_archive

import refshard_fs

LAST = 4  # days that come one after the other


def main() -> None:
    """Make the set of the first days, let it grow, read, check and plot."""
    parser = argparse.ArgumentParser(description="A parquet set that grows by a day.")
    parser.add_argument("--plot", type=Path, default=Path("append_day.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_archive(folder)
        days = [with_kerchunk(file, str(file)) for file in files]
        grows = str(folder / "air.parquet")
        refshard_fs.concat(days[:-LAST], dim="time").save(grows, "parquet", record_size=10)

        stages = [opened(grows)]
        for day in days[-LAST:]:
            before = written(grows)
            refshard_fs.append(grows, day, dim="time")
            changed = sorted(file for file, when in written(grows).items() if before.get(file) != when)
            stages.append(opened(grows))
            print(f"{stages[-1].sizes['time']} steps; written: {', '.join(changed)}")

        with xr.open_dataset(SOURCE, engine="h5netcdf") as month:
            xr.testing.assert_equal(stages[-1]["air"], month["air"])
            xr.testing.assert_equal(stages[0]["air"], month["air"][: -LAST * 4])
        print("every value equals what the files themselves give")

    plot(stages, plot_file)
    print(f"plot: {plot_file}")


def opened(grows: str) -> xr.Dataset:
    """Return the set as it is now."""
    with xr.open_dataset(grows, engine="refshard") as ds:
        return ds.load()


def written(folder: str) -> dict[str, int]:
    """Return the files of a set, and when each was written."""
    return {
        str(file.relative_to(folder)): file.stat().st_mtime_ns for file in Path(folder).rglob("*") if file.is_file()
    }


def plot(stages: list[xr.Dataset], file: Path) -> None:
    """Save the course of the mean, with what each day has added."""
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

"""Pin a store that its owner changes: readers get the pinned values or an error, never a mixture of old and new.

A month of real data is a zarr store in a directory, which its owner overwrites at times; it could lie in a bucket, too.
A snapshot holds a reference to every chunk, with its size and time. As long as nothing changes, the snapshot reads like
the store. After the owner has replaced some days, reading these days raises `TargetChanged`, all other days can be
read, and `refshard_fs.check` lists the changes.

    python examples/snapshot.py [--plot snapshot.png]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import refshard_fs
from refshard_fs import RefShardFileSystem, TargetChanged

SOURCE = Path(__file__).parent / "data" / "air.nc"
STEPS_A_DAY = 4
REDONE = slice(9, 16)  # the days that the owner writes again


def main() -> None:
    """Write a store, pin it, change some days, and check and plot the days that can still be read."""
    parser = argparse.ArgumentParser(description="A mutable store, pinned.")
    parser.add_argument("--plot", type=Path, default=Path("snapshot.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    with tempfile.TemporaryDirectory() as name:
        store, pinned = str(Path(name) / "air.zarr"), str(Path(name) / "pinned.json")
        with xr.open_dataset(SOURCE, engine="h5netcdf") as month:
            air = month["air"].load()
        write(air, store)

        snapshot = refshard_fs.snapshot(store)
        snapshot.save(pinned)
        print(f"pinned: {len(snapshot)} keys, {Path(pinned).stat().st_size:,} bytes")
        with xr.open_dataset(pinned, engine="refshard") as ds:
            xr.testing.assert_equal(ds["air"].load(), air)
        print("the snapshot has the values of the store")

        redo(store)
        days = [read(pinned, day) for day in range(air.sizes["time"] // STEPS_A_DAY)]
        refused = sum(day is None for day in days)
        print(f"after the change: {len(days) - refused} days read, {refused} refused")
        for day, values in enumerate(days):
            if values is not None:
                np.testing.assert_array_equal(values, air[day * STEPS_A_DAY : (day + 1) * STEPS_A_DAY])
        print("no day has a value that was not pinned")

        with xr.open_dataset(store, engine="zarr", consolidated=False) as now:
            mixed = now["air"].load()
        report = refshard_fs.check(RefShardFileSystem(pinned))
        print(f"check: {report.counts}")

    plot(air, mixed, days, plot_file)
    print(f"plot: {plot_file}")


def write(air: xr.DataArray, store: str) -> None:
    """Write the month as a zarr store with a chunk for each day."""
    chunks = (STEPS_A_DAY, *air.shape[1:])
    encoding = {"air": {"chunks": chunks}}
    air.drop_encoding().to_dataset(name="air").to_zarr(store, mode="w", encoding=encoding, consolidated=False)


def redo(store: str) -> None:
    """Write some days again, two degrees warmer, as a correction would."""
    import zarr

    array = zarr.open_group(store, mode="r+")["air"]
    steps = slice(REDONE.start * STEPS_A_DAY, REDONE.stop * STEPS_A_DAY)
    array[steps] = array[steps] + 2


def read(pinned: str, day: int) -> np.ndarray | None:
    """Return the pinned values of a day; None if the owner has replaced them."""
    with xr.open_dataset(pinned, engine="refshard") as ds:
        try:
            return ds["air"][day * STEPS_A_DAY : (day + 1) * STEPS_A_DAY].values
        except TargetChanged as e:
            if day == REDONE.start:
                print(f"{type(e).__name__}: {str(e).partition(' exists')[0]}: {e.reason}")
            return None


def plot(air: xr.DataArray, mixed: xr.DataArray, days: list[np.ndarray | None], file: Path) -> None:
    """Plot the present values of the store, and the values of the snapshot that can still be read."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots()
    hours = np.arange(air.sizes["time"]) / STEPS_A_DAY + 1
    axes.plot(hours, mixed.mean(("lat", "lon")) - 273.15, color="tab:red", label="the store now")
    left = np.concatenate(
        [np.full(STEPS_A_DAY, np.nan) if day is None else day.mean(axis=(1, 2)) - 273.15 for day in days]
    )
    axes.plot(hours, left, color="tab:blue", linewidth=2.5, label="the snapshot, read later")
    axes.axvspan(REDONE.start + 1, REDONE.stop + 1, color="tab:gray", alpha=0.2, label="written again")
    axes.set(title="Mean over the region", xlabel="day of October 2014", ylabel="°C")
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()

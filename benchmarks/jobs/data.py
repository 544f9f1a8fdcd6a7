"""The files that jobs read, written by the usual packages."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import xarray as xr
import zarr

from benchmarks.jobs.job import Site

__all__ = [
    "Days",
    "Era5",
    "Grib",
    "Image",
    "Months",
    "Published",
    "Scenes",
    "Steps",
    "Store",
    "Variables",
    "VirtualSteps",
]


class _Files:
    """Data that need no preparation beside their files."""

    def prepare(self, site: Site) -> None:
        """Do nothing."""


def make_field(seed: int, steps: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Return integers (int16; steps, rows, columns) that compress about as well as those of a reanalysis."""
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 1, (rows, columns)), 0), 1)
    return np.asarray((smooth + rng.normal(0, 20, (steps, rows, columns))) * 4).clip(-32000, 32000).astype("i2")


def write_netcdf(path: Path, first: int, values: Any, packing: tuple[float, float], units: str) -> None:
    """Write ``values`` (time, latitude, longitude) as the variable t2m: a step in each chunk, deflated.

    ``first`` is the number of the first time, and ``packing`` scale_factor and add_offset.
    """
    steps, *shape = values.shape
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": steps, "latitude": shape[0], "longitude": shape[1]}
        times = file.create_variable("time", ("time",), "i4")
        times[:] = np.arange(first, first + steps)
        times.attrs["units"] = units
        for name, size in zip(("latitude", "longitude"), shape, strict=True):
            file.create_variable(name, (name,), "f4")[:] = np.linspace(-60, 60, size)
        t2m = file.create_variable(
            "t2m", ("time", "latitude", "longitude"), "i2", chunks=(1, *shape), compression="gzip",
            compression_opts=4, shuffle=True, fillvalue=np.int16(-32767),
        )  # fmt: skip
        t2m.attrs["scale_factor"], t2m.attrs["add_offset"] = packing
        t2m[:] = values


def save_cube(site: Site, pattern: str) -> None:
    """Save the files of ``site`` as one cube along time."""
    import refshard_fs

    made = refshard_fs.concat(site.urls(pattern), dim="time", lazy=True, allow=[site.url], **site.options)
    made.save(str(site.folder / "cube.refshard"), overwrite=True)


@dataclass(frozen=True)
class Months:
    """Months of a reanalysis, each with a different packing, and a cube of them."""

    count: int = 12
    steps: int = 120
    shape: tuple[int, int] = (121, 240)

    def write(self, folder: Path) -> None:
        for month in range(self.count):
            packing = (0.002 + month * 1e-5, 273.0 + month / 10)
            values = make_field(month, self.steps, *self.shape)
            units = "hours since 2020-01-01"
            write_netcdf(folder / f"month{month:04d}.nc", month * self.steps, values, packing, units)

    def prepare(self, site: Site) -> None:
        save_cube(site, "*.nc")


@dataclass(frozen=True)
class Days:
    """Daily files with the same packing, and a cube of them."""

    count: int
    shape: tuple[int, int] = (60, 120)

    def write(self, folder: Path) -> None:
        values = make_field(0, self.count, *self.shape)
        for day in range(self.count):
            name = f"day{day:05d}.nc"
            write_netcdf(folder / name, day, values[day : day + 1], (0.01, 273.0), "days since 2015-01-01")

    def prepare(self, site: Site) -> None:
        save_cube(site, "*.nc")


@dataclass(frozen=True)
class Variables(_Files):
    """A file of many small variables, each of four chunks."""

    count: int

    def write(self, folder: Path) -> None:
        with h5netcdf.File(folder / "variables.nc", "w") as file:
            file.dimensions = {"time": 4, "latitude": 20, "longitude": 30}
            for number in range(self.count):
                variable = file.create_variable(
                    f"v{number:03d}", tuple(file.dimensions), "f4", chunks=(1, 20, 30), compression="gzip"
                )
                variable[:] = np.random.default_rng(number).normal(size=(4, 20, 30))
                variable.attrs["units"] = "K"


@dataclass(frozen=True)
class Records(_Files):
    """A NetCDF-3 file of four variables, whose records of 32 kB lie between each other."""

    count: int

    def write(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        values = rng.normal(size=(4, self.count, 90, 90)).astype("f4")
        variables = {f"v{number}": (("time", "y", "x"), values[number]) for number in range(4)}
        ds = xr.Dataset(variables, {"time": np.arange(self.count, dtype="f8")})
        ds.to_netcdf(folder / "records.nc", engine="scipy", format="NETCDF3_64BIT", unlimited_dims=["time"])


@dataclass(frozen=True)
class Steps:
    """Files of many steps with the same packing, a cube of them, and kerchunk's references if it is installed."""

    count: int
    steps: int = 100
    shape: tuple[int, int] = (60, 120)

    @property
    def total(self) -> int:
        """The number of steps in all files."""
        return self.count * self.steps

    def write(self, folder: Path) -> None:
        for number in range(self.count):
            values, first = make_field(number, self.steps, *self.shape), number * self.steps
            write_netcdf(folder / f"part{number:03d}.nc", first, values, (0.002, 273.0), "hours since 2020-01-01")

    def prepare(self, site: Site) -> None:
        save_cube(site, "*.nc")
        try:
            from kerchunk.combine import MultiZarrToZarr
            from kerchunk.hdf import SingleHdf5ToZarr
        except ImportError:
            return
        sets = [SingleHdf5ToZarr(url, inline_threshold=2000).translate() for url in site.urls("*.nc")]
        joined = MultiZarrToZarr(sets, concat_dims=["time"], identical_dims=["latitude", "longitude"])
        (site.folder / "refs.json").write_text(json.dumps(joined.translate()))


@dataclass(frozen=True)
class VirtualSteps(Steps):
    """The files of `Steps`, and an Icechunk repository with references to their chunks."""

    def prepare(self, site: Site) -> None:
        import refshard_fs

        made = refshard_fs.concat(site.urls("*.nc"), dim="time", allow=[site.url])
        made.save(str(site.folder / "steps.icechunk"))


@dataclass(frozen=True)
class Store(_Files):
    """A zarr store of six variables with consolidated metadata; with ``shards`` (version 3), ten steps in a shard."""

    zarr_format: Any = 2
    shards: bool = False

    def write(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # consolidated metadata are not in the specification of version 3
            group = zarr.open_group(str(folder / "store.zarr"), mode="w", zarr_format=self.zarr_format)
            for number in range(6):
                self._add(group, f"v{number}", ("time", "y", "x"), make_field(number, 40, 100, 100), (1, 100, 100))
            for name, size in (("time", 40), ("y", 100), ("x", 100)):
                self._add(group, name, (name,), np.arange(size, dtype="i4"), (size,))
            zarr.consolidate_metadata(group.store)

    def _add(self, group: Any, name: str, dims: tuple[str, ...], values: Any, chunks: tuple[int, ...]) -> None:
        named: dict[str, Any] = (
            {"dimension_names": dims} if self.zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": dims}}
        )
        shards = (10, *chunks[1:]) if self.shards and len(chunks) > 1 else None
        kind: dict[str, Any] = {"shape": values.shape, "dtype": values.dtype, "chunks": chunks, "shards": shards}
        group.create_array(name, **kind, **named)[...] = values


@dataclass(frozen=True)
class Image(_Files):
    """An OME-Zarr image: three levels of channels, planes, rows and columns. In version 3 it has shards."""

    planes: int
    side: int
    zarr_format: Any = 2
    tile: int = 128

    def write(self, folder: Path) -> None:
        group = zarr.open_group(str(folder / "image.zarr"), mode="w", zarr_format=self.zarr_format)
        levels = [{"path": str(level)} for level in range(3)]
        axes = [{"name": name, "type": "space"} for name in "zyx"]
        multiscales = [{"axes": [{"name": "c", "type": "channel"}, *axes], "datasets": levels}]
        is_v3 = self.zarr_format == 3
        group.attrs.update({"ome": {"version": "0.5", "multiscales": multiscales}} if is_v3 else
                           {"multiscales": [{"version": "0.4", **multiscales[0]}]})  # fmt: skip
        pixels = np.stack([make_field(channel, self.planes, self.side, self.side) for channel in range(2)]).view("u2")
        for level in range(3):
            values = pixels[:, :, :: 1 << level, :: 1 << level]
            tile = min(self.tile, values.shape[-1])
            shards = (1, 4, 2 * tile, 2 * tile) if is_v3 and values.shape[-1] >= 2 * tile else None
            keys: dict[str, Any] = {} if is_v3 else {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
            kind: dict[str, Any] = {
                "shape": values.shape,
                "dtype": "u2",
                "chunks": (1, 1, tile, tile),
                "shards": shards,
            }
            group.create_array(str(level), **kind, **keys)[...] = values


@dataclass(frozen=True)
class Scenes(_Files):
    """Cloud-optimised GeoTIFFs of one place, with deflate and a predictor; the name of a file has the day."""

    count: int
    side: int = 1024

    def write(self, folder: Path) -> None:
        import rasterio
        from rasterio.transform import from_origin

        kind = {"driver": "COG", "dtype": "uint16", "count": 1, "crs": "EPSG:32633", "blocksize": 256}
        place = {"width": self.side, "height": self.side, "transform": from_origin(5e5, 5e6, 10, 10)}
        for number in range(self.count):
            day = np.datetime64("2024-01-01") + number
            path = folder / f"red_{str(day).replace('-', '')}.tif"
            with rasterio.open(path, "w", **kind, **place, compress="DEFLATE", predictor=2) as file:
                file.write(make_field(number, 1, self.side, self.side).view("u2"))


@dataclass(frozen=True)
class Grib:
    """GRIB2 files of a forecast, each with many fields of one step; a cube of them, and kerchunk's references to t."""

    count: int
    rows: int = 91
    columns: int = 180
    fields = ("t", "u", "v", "z", "q")
    levels = (1000, 850, 700, 500, 250)

    def write(self, folder: Path) -> None:
        for number in range(self.count):
            with (folder / f"f{number:03d}.grib2").open("wb") as file:
                rng = np.random.default_rng(number)
                for name in self.fields:
                    for level in self.levels:
                        file.write(self._make_message(rng, shortName=name, level=level, step=number))

    def _make_message(self, rng: Any, **keys: Any) -> bytes:
        import eccodes

        spacing = 360 / self.columns
        grid = {
            "Ni": self.columns, "Nj": self.rows,
            "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
            "longitudeOfLastGridPointInDegrees": 360 - spacing, "iDirectionIncrementInDegrees": spacing,
            "jDirectionIncrementInDegrees": 180 / (self.rows - 1),
        }  # fmt: skip
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        for key, value in (grid | keys).items():
            eccodes.codes_set(handle, key, value)
        eccodes.codes_set_values(handle, rng.normal(280, 9, self.rows * self.columns))
        message = bytes(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)
        return message

    def prepare(self, site: Site) -> None:
        import refshard_fs

        made = refshard_fs.concat(site.urls("*.grib2"), dim="step", lazy=True, allow=[site.url])
        made.save(str(site.folder / "cube.refshard"), overwrite=True)
        try:
            from kerchunk.combine import MultiZarrToZarr
            from kerchunk.grib2 import scan_grib
        except ImportError:
            return
        one = {"shortName": "t", "level": 500}
        sets = [refs for url in site.urls("*.grib2") for refs in scan_grib(url, filter=one)]
        same = ["latitude", "longitude", "isobaricInhPa", "time"]
        joined = MultiZarrToZarr(sets, concat_dims=["step"], identical_dims=same)
        (site.folder / "refs.json").write_text(json.dumps(joined.translate()))


@dataclass(frozen=True)
class Published(Grib):
    """The forecast of `Grib` with a sidecar for each file, and a rule: a document that describes the archive."""

    def write(self, folder: Path) -> None:
        super().write(folder)
        for path in sorted(folder.glob("*.grib2")):
            data, step, at, lines = path.read_bytes(), int(path.stem[1:]), 0, []
            for number, (name, level) in enumerate(itertools.product(self.fields, self.levels), 1):
                forecast = f"{step} hour fcst" if step else "anl"
                lines.append(f"{number}:{at}:d={_read_time(data):%Y%m%d%H}:{name}:{level} mb:{forecast}:\n")
                at += int.from_bytes(data[at + 8 : at + 16])
            Path(f"{path}.idx").write_text("".join(lines))

    def prepare(self, site: Site) -> None:
        from refshard_fs.cli import main

        start = f"{_read_time((site.folder / 'f000.grib2').read_bytes()):%Y-%m-%dT%H}"
        rule = ["--url", site.url + "/f{step:03}.grib2", "--dialect", "wgrib2", "--every", "24"]
        rule += ["--start", start, "--stop", start, "--steps", f"0-{self.count - 1}"]
        with contextlib.redirect_stdout(io.StringIO()):
            main(["rule", "new", str(site.folder / "rule.json"), *rule])


def _read_time(message: bytes) -> datetime:
    """Return the reference time of a GRIB2 message."""
    return datetime(int.from_bytes(message[28:30]), *message[30:33])


@dataclass(frozen=True)
class Era5:
    """A month of ERA5 as the Climate Data Store delivers it: one file of GRIB1, for each hour two variables."""

    days: int
    rows: int = 91
    columns: int = 180

    def write(self, folder: Path) -> None:
        import eccodes

        spacing = 360 / self.columns
        rng = np.random.default_rng(0)
        handles = []
        for name in ("2t", "msl"):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib1")
            for key, value in {
                "shortName": name, "Ni": self.columns, "Nj": self.rows, "bitsPerValue": 16,
                "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
                "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 360 - spacing,
                "iDirectionIncrementInDegrees": spacing, "jDirectionIncrementInDegrees": 180 / (self.rows - 1),
            }.items():  # fmt: skip
                eccodes.codes_set(handle, key, value)
            handles.append(handle)
        with (folder / "era5.grib").open("wb") as file:
            for hour in range(24 * self.days):
                for handle in handles:
                    eccodes.codes_set(handle, "dataDate", 20240101 + hour // 24)
                    eccodes.codes_set(handle, "dataTime", hour % 24 * 100)
                    eccodes.codes_set_values(handle, rng.normal(280, 9, self.rows * self.columns))
                    file.write(eccodes.codes_get_message(handle))

    def prepare(self, site: Site) -> None:
        """Do nothing."""

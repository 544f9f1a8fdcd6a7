"""Open ten layouts of real archives by one call each, compared with xarray, cfgrib, odc-stac, rioxarray and zarr.

    python -m benchmarks layouts [--only NAME ...] [--quick] [--links 20] [--repeats 3]

Each layout is measured twice: first, files without an index are joined, opened and read; second, the saved document is
opened and read. The other package opens the files as its documentation advises. Before, the two whole datasets are
compared: variables, dimensions, coordinates and values.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import xarray as xr
import zarr

from benchmarks.jobs.__main__ import run
from benchmarks.jobs.data import Months, make_field, write_netcdf
from benchmarks.jobs.job import Job, Site, Sizes
from benchmarks.jobs.running import LINKS
from refshard_fs.xarray_backend import RefShardBackend

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The files of one archive, and the ways to write them, to open them with both packages, and to read a part."""

    count: int
    title: ClassVar[str]
    peer: ClassVar[str] = "open_mfdataset"
    needs: ClassVar[tuple[str, ...]] = ()
    group: ClassVar[str | None] = None

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the files."""

    @abstractmethod
    def join(self, site: Site) -> Any:
        """Return the cube of the files, made by one call."""

    @abstractmethod
    def open(self, site: Site) -> xr.Dataset:
        """Open the files with the other package."""

    @abstractmethod
    def read(self, ds: xr.Dataset) -> Any:
        """Read and return a part of the values; the time of this is measured."""

    def prepare(self, site: Site) -> None:
        """Save the cube, and compare the whole dataset with that of the other package."""
        self.join(site).save(str(site.folder / "cube.refshard"), overwrite=True)
        with self.open_cube(site, site.folder / "cube.refshard") as ours, self.open(site) as theirs:
            self.compare(ours, theirs)

    def open_cube(self, site: Site, cube: Any) -> xr.Dataset:
        """Open a cube, or a saved document at a path."""
        options = {"storage_options": {"allow": [site.url]}} if isinstance(cube, Path) else {}
        return xr.open_dataset(cube, engine=RefShardBackend, chunks={}, group=self.group, **options)

    def compare(self, ours: xr.Dataset, theirs: xr.Dataset) -> None:
        """Raise AssertionError if variables, coordinates or values differ; dimensions may be in another order."""
        theirs = theirs.assign({name: theirs[name].transpose(*ours[name].dims) for name in ours.variables})
        xr.testing.assert_allclose(ours, theirs, rtol=1e-6)


def join(sources: Any, site: Site, **arguments: Any) -> Any:
    """Return the cube of ``sources``."""
    import refshard_fs

    return refshard_fs.open(sources, **arguments)


def merge_files(sources: list[Any], dim: str | list[str] = "time", **options: Any) -> xr.Dataset:
    """Open files as xarray's documentation advises for files with equal variables and coordinates."""
    alike = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}
    options = {"engine": "h5netcdf"} | alike | options
    found: xr.Dataset = xr.open_mfdataset(sources, chunks={}, combine="nested", concat_dim=dim, **options)
    return found


class _NetCDF(Layout):
    """NetCDF files along time; one point is read for all steps."""

    variable: ClassVar[str]

    def join(self, site: Site) -> Any:
        return join(site.urls("*.nc"), site)

    def open(self, site: Site) -> xr.Dataset:
        return merge_files(site.urls("*.nc"))

    def read(self, ds: xr.Dataset) -> Any:
        return ds[self.variable][..., 5, 7].values


class Era5(_NetCDF):
    """Months, each with a different packing."""

    title = "{count} ERA5 months, a packing each: a point"
    variable = "t2m"

    def write(self, folder: Path) -> None:
        Months(self.count, 60).write(folder)


class Cmip6(_NetCDF):
    """Decades of months in a calendar of 365 days, with bounds; each file counts days from its own first day."""

    title = "{count} CMIP6 decades, 365-day calendar: a point"
    variable = "tas"

    def write(self, folder: Path) -> None:
        for decade in range(self.count):
            year = 1850 + 10 * decade
            middles = np.arange(120) * 365 / 12 + 15.0
            packed = {"zlib": True, "shuffle": True, "complevel": 1}
            ds = xr.Dataset(
                {
                    "tas": (("time", "lat", "lon"), make_field(decade, 120, 48, 96).astype("f4") / 100 + 280),
                    "time_bnds": (("time", "bnds"), np.stack([middles - 15, middles + 15], -1)),
                    "lat_bnds": (("lat", "bnds"), np.stack([np.linspace(-90, 86, 48), np.linspace(-86, 90, 48)], -1)),
                    "height": ((), 2.0, {"units": "m", "axis": "Z"}),
                },
                {"time": ("time", middles, {"units": f"days since {year}-01-01", "calendar": "365_day",
                                            "bounds": "time_bnds"}),
                 "lat": np.linspace(-88, 88, 48), "lon": np.arange(96) * 3.75},
            )  # fmt: skip
            ds["tas"].attrs.update(units="K", coordinates="height")
            encoding = {"tas": {**packed, "chunksizes": (1, 48, 96)}}
            name = f"tas_Amon_MODEL_historical_r1i1p1f1_gn_{year}01-{year + 9}12.nc"
            ds.to_netcdf(folder / name, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])


class Oisst(_NetCDF):
    """Days of four packed variables at one level, with an unlimited time."""

    title = "{count} OISST days: a variable"
    variable = "sst"

    def write(self, folder: Path) -> None:
        for day in range(self.count):
            names = ("sst", "anom", "err", "ice")
            values = make_field(day, len(names), 90, 180)
            packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -999, "zlib": True}
            ds = xr.Dataset(
                {name: (("time", "zlev", "lat", "lon"), values[k][None, None] / 100.0) for k, name in enumerate(names)},
                {"time": [np.datetime64("2024-01-01T12", "ns") + np.timedelta64(day, "D")], "zlev": [0.0],
                 "lat": np.linspace(-89, 89, 90, dtype="f4"), "lon": np.linspace(1, 359, 180, dtype="f4")},
            )  # fmt: skip
            encoding = {**dict.fromkeys(names, packing), "time": {"units": "days since 1978-01-01 12:00:00"}}
            date = str(ds["time"].values[0])[:10].replace("-", "")
            path = folder / f"oisst-avhrr-v02r01.{date}.nc"
            ds.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])

    def read(self, ds: xr.Dataset) -> Any:
        return ds["sst"].values


class Goes(_NetCDF):
    """Granules of one time each. The time is a scalar, and so are dozens of statistics and parameters."""

    title = "{count} GOES granules: a crop of each"

    def write(self, folder: Path) -> None:
        for number in range(self.count):
            counts = np.abs(make_field(number, 1, 300, 500)[0]) % 4095
            scalars = {f"parameter_{k}": ((), np.float32(k)) for k in range(20)}
            scalars |= {f"statistic_{k}": ((), np.float32(k + number / 10)) for k in range(8)}
            time = 8e8 + 600.0 * number
            since = {"units": "seconds since 2000-01-01 12:00:00"}
            ds = xr.Dataset(
                {
                    "CMI": (("y", "x"), counts.astype("u2"), {"scale_factor": np.float32(0.04), "units": "K",
                                                              "add_offset": np.float32(173.0)}),
                    "DQF": (("y", "x"), (counts % 4).astype("i1")),
                    "time_bounds": (("number_of_time_bounds",), [time - 300, time + 300], since),
                    "goes_imager_projection": ((), np.int32(-2147483647), {"grid_mapping_name": "geostationary"}),
                    **scalars,
                },
                {"t": ((), time, {**since, "standard_name": "time", "bounds": "time_bounds"}),
                 "x": np.arange(500) * 5.6e-5, "y": 0.1 - np.arange(300) * 5.6e-5,
                 "x_image": ((), 0.0), "y_image": ((), np.float32(number))},
            )  # fmt: skip
            fill = {"CMI": np.uint16(65535), "DQF": np.int8(-1)}
            encoding = {name: {"zlib": True, "chunksizes": (150, 250), "_FillValue": fill[name]} for name in fill}
            name = f"OR_ABI-L2-CMIPC-M6C13_G16_s2025{number:03d}0000000_e0_c0.nc"
            ds.to_netcdf(folder / name, engine="h5netcdf", encoding=encoding)

    def open(self, site: Site) -> xr.Dataset:
        return merge_files(site.urls("*.nc"), "t", data_vars="different", coords="different", compat="equals")

    def compare(self, ours: xr.Dataset, theirs: xr.Dataset) -> None:
        """Raise AssertionError as `Layout.compare` does.

        Variables that are equal in all files have no dimension of times in the cube, but have it in xarray's dataset.
        """
        alike = [
            name for name, variable in theirs.variables.items() if "t" in variable.dims and "t" not in ours[name].dims
        ]
        for name in alike:
            assert (theirs[name] == theirs[name][0]).all(), f"{name} differs from file to file"
        super().compare(ours, theirs.assign({name: theirs[name][0].drop_vars("t") for name in alike}))

    def read(self, ds: xr.Dataset) -> Any:
        return ds["CMI"][:, 20:120, 30:130].values


class Imerg(_NetCDF):
    """Half-hours in a group of HDF5 files."""

    title = "{count} IMERG half-hours in groups: a point"
    variable = "precipitation"
    group = "Grid"

    def write(self, folder: Path) -> None:
        for number in range(self.count):
            values = np.abs(make_field(number, 2, 180, 90)).astype("f4") / 100
            start = 1_500_000_000 + 1800 * number
            since = {"units": "seconds since 1980-01-06 00:00:00 UTC", "calendar": "julian"}
            ds = xr.Dataset(
                {"precipitation": (("time", "lon", "lat"), values[:1]),
                 "randomError": (("time", "lon", "lat"), values[1:]),
                 "time_bnds": (("time", "nv"), [[start, start + 1800]], since)},
                {"time": ("time", np.array([start], "i4"), {**since, "bounds": "time_bnds"}),
                 "lon": np.linspace(-179, 179, 180, dtype="f4"), "lat": np.linspace(-89, 89, 90, dtype="f4")},
            )  # fmt: skip
            packed = {"zlib": True, "chunksizes": (1, 90, 90), "_FillValue": np.float32(-9999.9)}
            encoding = dict.fromkeys(("precipitation", "randomError"), packed)
            path = folder / f"3B-HHR.MS.MRG.3IMERG.20240101.{30 * number:04d}.V07B.nc"
            ds.to_netcdf(path, group="Grid", engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])

    def open(self, site: Site) -> xr.Dataset:
        return merge_files(site.urls("*.nc"), group="Grid")


class Ensemble(_NetCDF):
    """A file for each member and year."""

    title = "{count} members × 6 years: the ensemble's mean at a point"

    def write(self, folder: Path) -> None:
        for member in range(self.count):
            for year in range(6):
                values = make_field(member * 6 + year, 60, 60, 120)
                path = folder / f"r{member + 1}_{2000 + year}.nc"
                write_netcdf(path, 60 * year, values, (0.01, 273.0), "days since 2000-01-01")

    def join(self, site: Site) -> Any:
        return join([[*site.urls(f"{name}_*.nc")] for name in self.list_members()], site, dims=["member", "time"],
                    coords={"member": self.list_members()})  # fmt: skip

    def list_members(self) -> list[str]:
        """Return the names of the members."""
        return [f"r{member + 1}" for member in range(self.count)]

    def open(self, site: Site) -> xr.Dataset:
        nested = [site.urls(f"{name}_*.nc") for name in self.list_members()]
        return merge_files(nested, ["member", "time"], data_vars="all").assign_coords(member=self.list_members())

    def read(self, ds: xr.Dataset) -> Any:
        return ds["t2m"][..., 5, 7].mean("member").values


class Hrrr(Layout):
    """Hours × steps of forecasts: a GRIB2 file of many fields for each pair."""

    title = "{count} HRRR hours × 6 steps, GRIB2: a field of each"
    peer = "downloads, cfgrib"
    needs = ("cfgrib", "eccodes")
    steps: ClassVar[int] = 6

    def write(self, folder: Path) -> None:
        import eccodes

        rng = np.random.default_rng(0)
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        grid = {
            "Ni": 180, "Nj": 91, "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
            "longitudeOfLastGridPointInDegrees": 358, "iDirectionIncrementInDegrees": 2,
            "jDirectionIncrementInDegrees": 2, "dataDate": 20240101,
        }  # fmt: skip
        for key, value in grid.items():
            eccodes.codes_set(handle, key, value)
        for hour in range(self.count):
            for step in range(self.steps):
                with (folder / f"hrrr.t{hour:02d}z.wrfprsf{step:02d}.grib2").open("wb") as file:
                    for name in ("t", "u", "v"):
                        for level in (1000, 850, 700, 500, 250):
                            for key, value in {
                                "dataTime": 100 * hour, "step": step, "shortName": name, "level": level
                            }.items():  # fmt: skip
                                eccodes.codes_set(handle, key, value)
                            eccodes.codes_set_values(handle, rng.normal(280, 9, 91 * 180))
                            file.write(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)

    def join(self, site: Site) -> Any:
        return join(site.urls("*.grib2"), site)

    def open(self, site: Site) -> xr.Dataset:
        folder = tempfile.mkdtemp(dir=site.folder)
        urls = site.urls("*.grib2")
        paths = [str(Path(folder, url.rpartition("/")[2])) for url in urls]
        fsspec.filesystem("http").get(urls, paths)
        nested = [paths[k : k + self.steps] for k in range(0, len(paths), self.steps)]
        return merge_files(
            nested, ["time", "step"], engine="cfgrib", coords="different", compat="equals",
            backend_kwargs={"indexpath": ""},
        )  # fmt: skip

    def read(self, ds: xr.Dataset) -> Any:
        return ds["t"].sel(isobaricInhPa=500).transpose("time", "step", ...).values


class _Tiffs(Layout):
    """Cloud-optimised GeoTIFFs of one place; each file has one band of a day."""

    bands: ClassVar[tuple[str, ...]]
    side: ClassVar[int] = 1024

    def make_name(self, day: np.datetime64, band: str) -> str:
        """Return the name of the file of a band on a day."""
        raise NotImplementedError

    def list_days(self) -> Iterator[np.datetime64]:
        """Yield the days of the scenes."""
        return (np.datetime64("2024-01-01") + 5 * number for number in range(self.count))

    def write(self, folder: Path) -> None:
        import rasterio
        from rasterio.transform import from_origin

        kind = {"driver": "COG", "dtype": "uint16", "count": 1, "crs": "EPSG:32633", "blocksize": 256}
        place = {"width": self.side, "height": self.side, "transform": from_origin(5e5, 5e6, 10, 10)}
        for number, day in enumerate(self.list_days()):
            for k, band in enumerate(self.bands):
                path = folder / self.make_name(day, band)
                with rasterio.open(path, "w", **kind, **place, compress="DEFLATE", predictor=2) as file:
                    file.write(make_field(number * 10 + k, 1, self.side, self.side).view("u2"))

    def read(self, ds: xr.Dataset) -> Any:
        return self.select_values(ds)[..., 300:500, 300:500].values

    def select_values(self, ds: xr.Dataset) -> xr.DataArray:
        """Return all values along time, band, rows and columns."""
        raise NotImplementedError

    def compare(self, ours: xr.Dataset, theirs: xr.Dataset) -> None:
        """Raise AssertionError if times, coordinates or values differ; the packages name variables differently."""
        one, other = self.select_values(ours), self.select_values(theirs)
        np.testing.assert_array_equal(one.values, other.values)
        for name in ("time", "y", "x"):
            np.testing.assert_array_equal(one[name].values, other[name].values, name)


class Sentinel2(_Tiffs):
    """Scenes that STAC items name."""

    title = "{count} Sentinel-2 scenes by STAC: a window"
    peer = "odc-stac"
    needs = ("odc.stac", "rasterio")
    bands = ("red", "nir")

    def make_name(self, day: np.datetime64, band: str) -> str:
        return f"S2A_33TWM_{str(day).replace('-', '')}_{band}.tif"

    def make_items(self, site: Site) -> list[Any]:
        """Return a STAC item for each day, as a search would."""
        import pystac

        projection = {"proj:code": "EPSG:32633", "proj:epsg": 32633, "proj:shape": [self.side, self.side],
                      "proj:transform": [10, 0, 5e5, 0, -10, 5e6, 0, 0, 1]}  # fmt: skip
        found = []
        west, east, south, north = 15.0, 15.14, 45.06, 45.16
        ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
        for day in self.list_days():
            item = pystac.Item(
                f"S2A_{day}", {"type": "Polygon", "coordinates": [ring]}, [west, south, east, north], day.item(), {}
            )
            item.datetime = day.astype("M8[us]").item()
            item.properties |= projection
            item.stac_extensions.append("https://stac-extensions.github.io/projection/v2.0.0/schema.json")
            for band in self.bands:
                url = f"{site.url}/{self.make_name(day, band)}"
                fields = {"raster:bands": [{"data_type": "uint16"}]}
                item.add_asset(band, pystac.Asset(url, None, None, pystac.MediaType.COG, ["data"], fields))
            found.append(item)
        return found

    def join(self, site: Site) -> Any:
        return join(self.make_items(site), site, assets=list(self.bands))

    def open(self, site: Site) -> xr.Dataset:
        import odc.stac

        odc.stac.configure_rio(cloud_defaults=True)
        found: xr.Dataset = odc.stac.load(self.make_items(site), bands=list(self.bands), chunks={})
        return found

    def select_values(self, ds: xr.Dataset) -> xr.DataArray:
        if "red" in ds:
            return ds[list(self.bands)].to_array("asset").transpose("time", "asset", ...)
        return ds["0"].sel(asset=list(self.bands))


class Landsat(_Tiffs):
    """A file for each band of a day; its name has the day and the band."""

    title = "{count} Landsat scenes, a file a band: a window"
    peer = "rioxarray"
    needs = ("rioxarray",)
    bands = ("B2", "B3", "B4", "B5")

    def make_name(self, day: np.datetime64, band: str) -> str:
        return f"LC08_L1TP_191028_{str(day).replace('-', '')}_{band}.TIF"

    def join(self, site: Site) -> Any:
        places = [(day, band) for day in self.list_days() for band in self.bands]
        return join([(f"{site.url}/{self.make_name(d, b)}", {"time": d, "band": b}) for d, b in places], site)

    def open(self, site: Site) -> xr.Dataset:
        import rasterio
        import rioxarray

        with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"):
            rows = [
                [rioxarray.open_rasterio(f"{site.url}/{self.make_name(day, band)}", chunks={}) for band in self.bands]
                for day in self.list_days()
            ]
        whole = xr.concat([xr.concat(row, "band") for row in rows], "time")
        return whole.assign_coords(time=list(self.list_days()), band=list(self.bands)).to_dataset(name="0")

    def select_values(self, ds: xr.Dataset) -> xr.DataArray:
        return ds["0"].sel(band=list(self.bands)).transpose("time", "band", ...)


class Wells(Layout):
    """An OME-Zarr plate: rows × columns of wells, with an image in each well."""

    title = "{count} × 6 wells of OME-Zarr: a crop of each"
    peer = "zarr"

    def write(self, folder: Path) -> None:
        for row in "ABCDEFGH"[: self.count]:
            for column in range(1, 7):
                group = zarr.open_group(str(folder / f"plate.zarr/{row}/{column}/0"), mode="w", zarr_format=3)
                levels = [{"path": "0"}, {"path": "1"}]
                axes = [{"name": name, "type": "space"} for name in "yx"]
                scales = [{"axes": [{"name": "c", "type": "channel"}, *axes], "datasets": levels}]
                group.attrs["ome"] = {"version": "0.5", "multiscales": scales}
                pixels = make_field(ord(row) * 10 + column, 2, 512, 512).view("u2")
                for level in (0, 1):
                    group.create_array(
                        str(level), data=pixels[:, :: 1 << level, :: 1 << level], chunks=(1, 128, 128),
                        dimension_names=("c", "y", "x"),
                    )  # fmt: skip

    def list_wells(self) -> list[tuple[str, int]]:
        """Return the row and the column of each well."""
        return [(row, column) for row in "ABCDEFGH"[: self.count] for column in range(1, 7)]

    def join(self, site: Site) -> Any:
        return join(
            [(f"{site.url}/plate.zarr/{r}/{c}/0", {"row": r, "column": c}) for r, c in self.list_wells()],
            site,
            keep=["0"],
        )

    def open(self, site: Site) -> xr.Dataset:
        import dask.array as da

        images = [
            [da.from_zarr(f"{site.url}/plate.zarr/{row}/{column}/0", component="0") for column in range(1, 7)]
            for row in "ABCDEFGH"[: self.count]
        ]
        coordinates = {"row": list("ABCDEFGH"[: self.count]), "column": list(range(1, 7))}
        return xr.Dataset(
            {"0": (("row", "column", "c", "y", "x"), da.stack([da.stack(r) for r in images]))}, coordinates
        )

    def read(self, ds: xr.Dataset) -> Any:
        return ds["0"][:, :, 0, 200:250, 200:250].values


class Joined(Job):
    """Join the files of a layout by one call, open them, and read."""

    saved: ClassVar[bool] = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.title = f"{layout.title}, {'saved' if self.saved else 'joined'}"  # type: ignore[misc]  # differs by layout
        self.peer, self.needs, self.sizes = layout.peer, layout.needs, Sizes(layout, layout)  # type: ignore[misc]  # as above

    def run_ours(self, site: Site) -> Any:
        with self.layout.open_cube(site, self.layout.join(site)) as ds:
            return self.layout.read(ds)

    def run_theirs(self, site: Site) -> Any:
        with self.layout.open(site) as ds:
            return self.layout.read(ds)


class Saved(Joined):
    """Open the saved document of a layout, and read."""

    saved = True

    def run_ours(self, site: Site) -> Any:
        with self.layout.open_cube(site, site.folder / "cube.refshard") as ds:
            return self.layout.read(ds)


QUICK: list[Layout] = [
    Era5(3), Cmip6(2), Oisst(5), Goes(4), Imerg(4), Hrrr(2), Sentinel2(2), Landsat(2), Ensemble(2), Wells(2)
]  # fmt: skip
USUAL: list[Layout] = [
    Era5(12), Cmip6(12), Oisst(30), Goes(12), Imerg(48), Hrrr(4), Sentinel2(12), Landsat(6), Ensemble(5), Wells(4)
]  # fmt: skip


def main() -> int:
    """Measure the layouts of the command line, and print two lines for each; return 1 if one failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks layouts", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(type(each).__name__ for each in USUAL))
    parser.add_argument("--quick", action="store_true", help="fewer files, once")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["20"], help="milliseconds a request waits")
    parser.add_argument("--repeats", type=int, help="how often each side is measured")
    options = parser.parse_args()
    layouts = [
        each
        for each in (QUICK if options.quick else USUAL)
        if options.only is None or type(each).__name__ in options.only
    ]
    jobs = [kind(layout) for layout in layouts for kind in (Joined, Saved)]
    _, failed = run(jobs, options.links, "usual", options.repeats or (1 if options.quick else 3))
    return failed


if __name__ == "__main__":
    from benchmarks import layouts

    sys.exit(layouts.main())  # child processes unpickle its classes from this module, not from __main__

"""Write NetCDF-4 files by netCDF4, h5netcdf and xarray; `hdf5_corpus` writes those of h5py."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5netcdf
import netCDF4
import numpy as np
import xarray as xr

from tests.support.hdf5_corpus import Writer, sample

ENCODINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zlib": {"zlib": True, "complevel": 1},
    "shuffle": {"zlib": True, "shuffle": True, "fletcher32": True},
    "chunked": {"chunksizes": (2, 3)},
    "zstd": {"compression": "zstd"},
    "szip": {"compression": "szip", "szip_pixels_per_block": 4},
}
DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


def with_netcdf4(path: Path, format: str, encoding: str, unlimited: tuple[str, ...]) -> None:
    """Write variables of all types by netCDF4, with and without fill values, packed, in part and not at all."""
    with netCDF4.Dataset(path, "w", format=format) as file:
        for name, size in (("time", 5), ("x", 4)):
            file.createDimension(name, None if name in unlimited else size)
        options = ENCODINGS[encoding]
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(5)
        dtypes = [d for d in DTYPES if format == "NETCDF4" or d in ("i1", "i2", "i4", "f4", "f8")]
        for number, dtype in enumerate(dtypes):
            fill = {0: None, 1: 7, 2: False}[number % 3]
            v = file.createVariable(
                f"v_{dtype}",
                np.dtype(dtype).newbyteorder(">") if number == 2 else dtype,
                ("time", "x"),
                fill_value=fill,
                endian="big" if number == 2 else "native",
                **options,
            )
            v.long_name = f"values of {dtype}"
            v.setncattr("valid_range", np.array([0, 100], dtype))
            values = sample(dtype, (5, 4), number)
            if number % 4 == 3:
                v[1:3] = values[1:3]
            else:
                v[:] = values
        file.createVariable("never", "f4", ("time", "x"), **options).note = "not written"
        packed = file.createVariable("packed", "i2", ("time", "x"), fill_value=-999, **options)
        packed.scale_factor, packed.add_offset, packed.units = 0.01, 273.15, "K"
        packed[:] = np.ma.masked_less(sample("f8", (5, 4)) + 273, 270)
        single = file.createVariable("single", "i1", ("time", "x"), **options)
        single.scale_factor, single.coordinates = np.float32(0.5), "time"
        single[:] = sample("f4", (5, 4)) * 0
        scalar = file.createVariable("crs", "i4", ())
        scalar.grid_mapping_name = "latitude_longitude"
        file.createDimension("chars", 6)
        text = file.createVariable("names", "S1", ("x", "chars"))
        text[:] = np.array([list("abcdef"), list("gh    "), list("i\0\0\0\0\0"), list("      ")], "S1")
        file.title, file.history = "a title, ünïcode", ""
        file.numbers = np.arange(3, dtype="f4")
        if "x" in unlimited:  # variables that are shorter than their dimension, which has grown
            file.createVariable("short", "i4", ("x",))[:2] = [1, 2]


def with_groups(path: Path) -> None:
    """Write groups, texts, enums, compounds, dimensions of groups above, and variables with names of dimensions."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        file.createDimension("bare", 3)
        file.createVariable("x", "f4", ("x",))[:] = np.arange(4)
        file.createVariable("bare", "i4", ("x",))[:] = np.arange(
            4
        )  # it has the name of a dimension, but not that dimension
        texts = file.createVariable("texts", str, ("x",))
        texts[0], texts[2] = "one", "zwölf"
        cloud = file.createEnumType("u1", "cloud_type", {"clear": 0, "some": 1, "thick fog": 2})
        file.createVariable("cloud", cloud, ("x",), fill_value=0)[:] = [0, 2, 1, 1]
        pair = file.createCompoundType(np.dtype([("re", "f8"), ("im", "f8")]), "pair")
        pairs = file.createVariable("pairs", pair, ("x",))
        pairs[:] = np.array([(i, -i) for i in range(4)], pair.dtype)
        for name in ("a", "a/b", "c"):
            group = file.createGroup(name)
            group.createDimension("y", 2 + len(name))
            group.createVariable("v", "i4", ("x", "y"), zlib=True)[:] = sample("i4", (4, 2 + len(name)))
            group.kind = name
        file["a/b"].createVariable("y", "f8", ("y",))[:] = np.arange(5)
        two = file.createVariable("two", "f4", ("x", "bare"))  # a coordinate of two dimensions
        two[:] = 1
        grid = file.createGroup("grid")
        grid.createDimension("lat", 2)
        grid.createVariable("lat", "f4", ("lat", "x"))[:] = np.arange(8).reshape(2, 4)
        file.createDimension("t", None)
        file.createVariable("t", "i4", ("t",))
        file.createVariable("empty", "i4", ("t", "x"))


def with_h5netcdf(path: Path, options: dict[str, Any], unlimited: bool) -> None:
    """Write variables by h5netcdf."""
    with warnings.catch_warnings(), h5netcdf.File(path, "w") as file:
        warnings.simplefilter("ignore")
        file.dimensions = {"x": 5, "t": None if unlimited else 3}
        if unlimited:
            file.resize_dimension("t", 3)
        for number, dtype in enumerate(["<i2", ">f4", "<f8", "S3", "<u4"]):
            v = file.create_variable(
                f"v{number}", ("t", "x"), dtype, fillvalue=None if number % 2 else np.array(1, dtype), **options
            )
            v[...] = sample(dtype, (3, 5), number)
            v.attrs["units"] = "m"
        file.create_variable("x", ("x",), "<f4", data=np.arange(5, dtype="f4"))
        group = file.create_group("g/h")
        group.dimensions["z"] = 2
        group.create_variable("w", ("z", "x"), "<i8", data=sample("<i8", (2, 5)))
        file.attrs["title"] = "h5netcdf"
        file.attrs["list"] = ["a", "b"]


def with_xarray(path: Path, engine: str, **encoding: Any) -> None:
    """Write times, texts, bools and masked values by xarray."""
    ds = xr.Dataset(
        {
            "temperature": (("time", "y", "x"), sample("f4", (4, 3, 5)), {"units": "K"}),
            "flag": (("y", "x"), sample("?", (3, 5))),
            "holes": (("x",), np.array([1.0, np.nan, 3.0, np.nan, 5.0])),
            "name": (("y",), np.array(["a", "bb", "ç"])),
            "scalar": ((), 3.5),
        },
        {"time": np.array(["2000-01-01", "2000-01-02", "2000-01-03", "2000-02-01"], "M8[ns]"), "x": np.arange(5) * 0.5},
        {"title": "xarray"},
    )
    ds.to_netcdf(path, engine=engine, encoding={"temperature": encoding}, unlimited_dims=["time"])


def _writers() -> Iterator[tuple[str, Writer]]:
    unlimiteds: list[tuple[str, ...]] = [(), ("time",), ("time", "x")]
    for encoding, unlimited in itertools.product(ENCODINGS, unlimiteds):
        if encoding == "szip" and unlimited:  # chunks have one element, which szip cannot compress
            continue
        yield (
            f"netcdf4 NETCDF4 {encoding} {unlimited}",
            partial(with_netcdf4, format="NETCDF4", encoding=encoding, unlimited=unlimited),
        )
    for encoding, unlimited in itertools.product(("plain", "zlib", "chunked"), unlimiteds[:2]):
        yield (
            f"netcdf4 CLASSIC {encoding} {unlimited}",
            partial(with_netcdf4, format="NETCDF4_CLASSIC", encoding=encoding, unlimited=unlimited),
        )
    yield "netcdf4 groups", with_groups
    filters: dict[str, dict[str, Any]] = {
        "plain": {},
        "gzip": {"compression": "gzip", "shuffle": True},
        "lzf": {"compression": "lzf"},
        "fletcher32": {"fletcher32": True},
    }
    for (name, options), unlimited in itertools.product(filters.items(), (False, True)):
        yield f"h5netcdf {name} {unlimited}", partial(with_h5netcdf, options=options, unlimited=unlimited)
    encodings: dict[str, dict[str, Any]] = {
        "plain": {},
        "packed": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -32768, "zlib": True},
        "chunked": {"chunksizes": (2, 2, 2), "zlib": True, "shuffle": True},
    }
    for (name, encoding), engine in itertools.product(encodings.items(), ("h5netcdf", "netcdf4")):
        yield f"xarray {engine} {name}", partial(with_xarray, engine=engine, **encoding)


WRITERS: dict[str, Callable[[Path], None]] = dict(_writers())
# The remaining names have each encoding, and each number of unlimited dimensions.
MORE = frozenset(
    [
        *(f"netcdf4 NETCDF4 {encoding} ('time',)" for encoding in ("plain", "zlib", "zstd")),
        *(f"netcdf4 NETCDF4 {encoding} ('time', 'x')" for encoding in ("plain", "zlib", "chunked", "zstd")),
        *(f"netcdf4 NETCDF4 {encoding} ()" for encoding in ("zlib", "shuffle", "chunked")),
        *("netcdf4 CLASSIC plain ('time',)", "netcdf4 CLASSIC zlib ()", "netcdf4 CLASSIC chunked ('time',)"),
        *("netcdf4 CLASSIC zlib ('time',)", "xarray netcdf4 plain"),
        *("h5netcdf plain True", "h5netcdf gzip False", "h5netcdf lzf True", "h5netcdf fletcher32 False"),
        "xarray netcdf4 chunked",
    ]
)
assert WRITERS.keys() >= MORE

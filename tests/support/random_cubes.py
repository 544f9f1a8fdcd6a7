"""Write random files of an archive, which differ like the files of many years, and compute xarray's result."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

WIDTH = 4
DAY0 = np.datetime64("1999-12-28", "s")
UNITS = ("days", "hours", "minutes", "seconds")
LENGTHS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
STEPS = (86400, 43200, 3600, 10800, 900)  # seconds


class Case:
    """Random files in a folder; ``seed`` determines all choices."""

    def __init__(self, folder: Path, seed: int, versions: list[int]) -> None:
        self.chance = random.Random(seed)
        self.version = self.chance.choice(versions)
        kinds = ["netcdf4", "netcdf3", "zarr"]
        self.is_mixed = self.maybe(0.3)
        kind = self.chance.choice(kinds)
        self.step = self.chance.choice(STEPS)
        self.calendar = self.chance.choice(["standard", "noleap"]) if self.maybe(0.3) else None
        self.dtypes = self.chance.choice([["f4"], ["f8"], ["i2"], ["i4"], ["i2", "f4"], ["i2", "i4"], ["f4", "f8"]])
        self.lacking = self.maybe(0.2)
        self.time = self.chance.choice([["f8"], ["i4"], ["f8", "i4"], ["i4", "i8"]])
        self.units = [self.chance.choice(UNITS)] if self.maybe(0.5) else list(UNITS)
        self.own_day = self.maybe(0.5)
        self.chunk = self.chance.choice([1, 2, 3])
        self.is_odd = self.maybe(0.3)  # lengths of files are not multiples of their chunks
        self.has_bounds = self.maybe(0.4)
        self.is_packed = self.maybe(0.4)
        self.is_uniform = self.maybe(0.4)  # all files have the same encoding
        self.is_shuffled = self.maybe(0.2)
        self.group = "g/h" if self.maybe(0.2) and kind != "netcdf3" and not self.is_mixed else None
        self.sources: list[str] = []
        self.each: list[xr.Dataset] = []
        start = 0
        for number in range(self.chance.randint(2, 4)):
            length = self.chance.randint(1, 5) if self.is_odd else self.chunk * self.chance.randint(1, 3)
            name = folder / f"{number}"
            if self.is_uniform:
                self.chance = random.Random(seed)
            self.write(
                name,
                self.chance.choice(kinds) if self.is_mixed and not self.is_uniform else kind,
                number,
                start,
                length,
            )
            start += length
        if self.is_shuffled:
            self.sources.reverse()

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def write(self, name: Path, kind: str, number: int, start: int, length: int) -> None:
        ds = xr.Dataset(attrs={"title": f"file {number}"})
        storage: dict[str, dict[str, Any]] = {}
        chunk = self.chance.randint(1, length) if self.is_odd else self.chunk
        self.add_time(ds, storage, kind, start, length)
        self.add_data(ds, storage, kind, number, length)
        ds["lat"] = "x", np.linspace(0, 1, WIDTH).astype("f4"), {"units": "degrees"}
        ds["x"] = "x", np.arange(WIDTH, dtype="i4")
        ds["crs"] = (), np.int32(7), {"grid_mapping_name": "any"}
        if self.lacking and self.maybe(0.5):
            ds["extra"] = ("time", "x"), np.full((length, WIDTH), number, "f4")
            storage["extra"] = {"_FillValue": np.float32(-1)}
        for path, variable in ds.variables.items():
            chunks = tuple(chunk if dim == "time" else size for dim, size in variable.sizes.items())
            own = storage.setdefault(str(path), {})
            own.setdefault("_FillValue", None)
            if kind != "netcdf3" and variable.dims:
                own["chunks" if kind == "zarr" else "chunksizes"] = chunks
            if kind == "netcdf4" and variable.dims and self.maybe(0.3):
                own |= {"zlib": True, "complevel": self.chance.randint(1, 9), "shuffle": self.maybe(0.5)}
        path = f"{name}.{ {'netcdf4': 'nc', 'netcdf3': 'nc3', 'zarr': 'zarr'}[kind] }"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "zarr":
                ds.to_zarr(
                    path,
                    group=self.group,
                    encoding=storage,
                    zarr_format=self.version,
                    consolidated=self.group is None and self.maybe(0.5),
                )
                self.each.append(xr.open_zarr(path, self.group, chunks=None, consolidated=False).load())
            else:
                format = {"netcdf4": "NETCDF4", "netcdf3": "NETCDF3_64BIT"}[kind]
                how: dict[str, Any] = {"engine": "netcdf4", "group": self.group}
                ds.to_netcdf(path, format=format, encoding=storage, unlimited_dims=["time"], **how)
                self.each.append(xr.load_dataset(path, **how))
        self.sources.append(path)

    def add_time(self, ds: xr.Dataset, storage: dict[str, Any], kind: str, start: int, length: int) -> None:
        unit, dtype = self.chance.choice(self.units), self.chance.choice(self.time)
        seconds = np.arange(start, start + length, dtype="i8") * self.step
        since = seconds[0] // 86400 if self.own_day else 0
        if dtype != "f8" and (self.step % LENGTHS[unit] or kind == "netcdf3"):
            dtype = "f8" if self.step % LENGTHS[unit] else "i4"
        text = f"{unit} since {str(DAY0 + np.timedelta64(int(since), 'D'))[:10]}"
        names = ["standard", "proleptic_gregorian", "gregorian"] if self.calendar is None else [self.calendar]
        attrs = {"units": text, "calendar": self.chance.choice(names)}
        if self.calendar == "noleap" and self.own_day:
            attrs["units"], since = f"{unit} since 1999-12-28", 0
        values = (seconds - since * 86400) / LENGTHS[unit]
        if self.has_bounds:
            attrs["bounds"] = "time_bnds"
            edges = np.stack([values, values + self.step / LENGTHS[unit]], -1)
            ds["time_bnds"] = ("time", "bnds"), edges.astype("f8")
        ds["time"] = "time", values.astype(dtype), attrs

    def add_data(self, ds: xr.Dataset, storage: dict[str, Any], kind: str, number: int, length: int) -> None:
        dtype = np.dtype(self.chance.choice(self.dtypes))
        numbers = np.random.default_rng([self.chance.getrandbits(32), number])
        values = numbers.integers(-50, 100, (length, WIDTH)).astype(dtype)
        attrs: dict[str, Any] = {"units": "K", "long_name": f"quantity of file {number}"}
        own: dict[str, Any] = {}
        if self.maybe(0.5):
            own["_FillValue"] = dtype.type(self.chance.choice([-99, 120]))
            values[numbers.random(values.shape) < 0.2] = own["_FillValue"]
        elif dtype.kind == "f" and self.maybe(0.5):
            values[numbers.random(values.shape) < 0.2] = np.nan
        if self.maybe(0.2) and "_FillValue" not in own:
            attrs["missing_value"] = dtype.type(-99)
            values[0, 0] = -99
        if self.is_packed and dtype.kind == "i":
            kinds = (np.float32, np.float64)
            scale = self.chance.choice([0.5, 0.01, 0.25]) if self.maybe(0.5) else 0.5
            attrs["scale_factor"] = self.chance.choice(kinds)(scale)
            if self.maybe(0.5):
                attrs["add_offset"] = type(attrs["scale_factor"])(self.chance.choice([0.0, 10.0, -3.0]))
        ds["v"] = ("time", "x"), values, attrs
        storage["v"] = own

    def expected(self) -> xr.Dataset:
        """Return the dataset that xarray joins from the files."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return xr.concat(self.each, "time", data_vars="minimal", coords="minimal", compat="equals", join="outer")

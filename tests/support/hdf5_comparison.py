"""Compare what this package, h5py and h5netcdf read from an HDF5 file."""

from __future__ import annotations

import base64
import json
import warnings
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
import zarr
from numcodecs import get_codec
from numpy.lib import recfunctions

from refshard_fs import RefShardFileSystem

ENUM_NAMES = {"flag_values", "flag_meanings"}  # attributes that h5netcdf does not have


def parse_dtype(spelled: Any) -> np.dtype[Any]:
    """Return the dtype for its spelling in metadata of version 2."""
    if isinstance(spelled, list):
        return np.dtype([(field[0], parse_dtype(field[1]), *map(tuple, field[2:])) for field in spelled])
    return np.dtype(spelled)


class Shown:
    """An array that numcodecs decodes by its metadata of zarr version 2, because zarr itself takes far longer.

    `take_chunks` takes chunks from a read of many arrays, because a call of the filesystem for each array takes longer.
    """

    def __init__(self, fs: RefShardFileSystem, path: str, document: dict[str, Any]) -> None:
        self._fs = fs
        self._path = path
        self._data: dict[str, bytes] | None = None
        self._document = document
        self.dtype = parse_dtype(document["dtype"])
        self._codecs = [
            get_codec(config) for config in [*(document["filters"] or []), document["compressor"]] if config
        ]

    @property
    def keys(self) -> dict[str, tuple[int, ...]]:
        """The key of each chunk, and its place in the grid of chunks."""
        pairs = zip(self._document["shape"], self._document["chunks"], strict=True)
        places = np.ndindex(*(-(-n // chunk) for n, chunk in pairs))
        return {f"{self._path}/{'.'.join(map(str, at)) or '0'}": at for at in places}

    def take_chunks(self, data: dict[str, bytes]) -> None:
        """Decode chunks of ``data``, which has each chunk of this array that exists."""
        self._data = {key: data[key] for key in self.keys if key in data}

    def __getitem__(self, everything: Any) -> np.ndarray[Any, Any]:
        shape, chunks, keys = self._document["shape"], self._document["chunks"], self.keys
        counts = [-(-n // chunk) for n, chunk in zip(shape, chunks, strict=True)]
        if self._data is None:
            self._data = self._fs.cat(list(keys), on_error="omit") if keys else {}
        fill = self._document["fill_value"]
        if isinstance(fill, str) and self.dtype.kind in "SV":
            fill = np.frombuffer(base64.b64decode(fill), self.dtype)[0]
        padded = [count * chunk for count, chunk in zip(counts, chunks, strict=True)]
        made = np.full(
            padded, ("" if self.dtype == object else np.zeros((), self.dtype)[()]) if fill is None else fill, self.dtype
        )
        for key, data in self._data.items():
            for codec in reversed(self._codecs):
                data = codec.decode(data)
            chunk = data if self.dtype == object else np.frombuffer(data, self.dtype)
            where = tuple(slice(n * size, (n + 1) * size) for n, size in zip(keys[key], chunks, strict=True))
            made[where] = chunk.reshape(chunks)
        return made[tuple(map(slice, shape))]


def open_arrays(path: Path, **options: Any) -> tuple[RefShardFileSystem, dict[str, Shown]]:
    """Open a file; return the filesystem, and the arrays by path."""
    fs = RefShardFileSystem(fo=str(path), **options)
    documents = json.loads(fs.cat(".zmetadata"))["metadata"]
    found = {key[: -len("/.zarray")]: value for key, value in documents.items() if key.endswith("/.zarray")}
    return fs, {name: Shown(fs, name, document) for name, document in found.items()}


def find_arrays(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return all arrays below a zarr group, by path."""
    found = {f"{prefix}{name}": array for name, array in group.arrays()}
    for name, below in group.groups():
        found |= find_arrays(below, f"{prefix}{name}/")
    return found


def find_datasets(group: h5py.Group, prefix: str = "", above: tuple[Any, ...] = ()) -> dict[str, h5py.Dataset]:
    """Return all datasets below a group, by path; follow links, except those to a group above."""
    found: dict[str, h5py.Dataset] = {}
    for name in group:
        try:
            item = group[name]
        except (KeyError, OSError, RuntimeError):  # a link to a missing object, to another file, or to itself
            continue
        if isinstance(item, h5py.Dataset):
            found[f"{prefix}{name}"] = item
        elif isinstance(item, h5py.Group) and item.id not in (*above, group.id):
            found |= find_datasets(item, f"{prefix}{name}/", (*above, group.id))
    return found


def is_bare(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset is a NetCDF dimension without a variable."""
    return b"but not a netCDF variable" in np.asarray(dataset.attrs.get("NAME", b"")).tobytes()


def find_hdf5_name(name: str, known: dict[str, h5py.Dataset]) -> str:
    """Return the HDF5 name of a variable, which differs from its own name if a dimension has that name."""
    group, slash, last = name.rpartition("/")
    return name if name in known else f"{group}{slash}_nc4_non_coord_{last}"


def check_values(array: Any, dataset: h5py.Dataset, where: str) -> None:
    """Assert that a zarr array has the shape, the type and the values of a dataset."""
    found = array[...]
    info = h5py.check_string_dtype(dataset.dtype)
    if info is not None and info.length is None:
        expected = dataset.asstr()[()]
        assert np.asarray(found).tolist() == np.asarray(expected).tolist(), where
        return
    if h5py.check_ref_dtype(dataset.dtype) is not None:
        paths = [dataset.file[of].name if of else "" for of in np.ravel(dataset[()])]
        assert np.ravel(found).tolist() == paths, where
        return
    expected, found = np.asarray(dataset[()]), np.asarray(found)
    if found.shape != expected.shape:  # an unlimited dimension has grown beyond this dataset
        assert all(have >= due for have, due in zip(found.shape, expected.shape, strict=True)), where
        beyond = [(0, have - due) for have, due in zip(found.shape, expected.shape, strict=True)]
        expected = np.pad(expected, beyond, constant_values=dataset.fillvalue)
    if expected.dtype.names is not None:
        expected = expected.astype(recfunctions.repack_fields(expected.dtype, recurse=True))
        assert found.dtype.itemsize == expected.dtype.itemsize, where
        little = expected.astype(expected.dtype.newbyteorder("<"))  # as zarr version 3 has it
        assert found.tobytes() in (expected.tobytes(), little.tobytes()), where
        return
    assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), where
    assert found.astype(expected.dtype).tobytes() == expected.tobytes(), (where, found, expected)


def check_file(path: Path, refused: frozenset[str] = frozenset(), **options: Any) -> int:
    """Assert that all datasets of a file, except ``refused``, equal those of h5py; return their number.

    With ``zarr_format``, zarr reads them.
    """
    if options:
        fs = RefShardFileSystem(fo=str(path), **options)
        shown = find_arrays(zarr.open_group(fs.get_mapper(""), mode="r"))
    else:
        fs, shown = open_arrays(path)
        if keys := [key for array in shown.values() for key in array.keys]:
            data = fs.cat(keys, on_error="omit")
            for array in shown.values():
                array.take_chunks(data)
    with h5py.File(path) as file:
        known = {name: dataset for name, dataset in find_datasets(file).items() if not is_bare(dataset)}
        shown = {find_hdf5_name(name, known): array for name, array in shown.items()}
        assert set(shown) == set(known) - refused, (path.name, fs.left_whole)
        for name, array in shown.items():
            check_values(array, known[name], f"{path.name}: {name}")
    return len(shown)


def make_plain(value: Any) -> Any:
    """Return an attribute as a value of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):  # h5netcdf decodes all texts of NetCDF as ASCII
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    return "NaN" if value != value else value


def check_attributes(found: dict[str, Any], expected: dict[Any, Any], where: str) -> None:
    left = {str(k): make_plain(v) for k, v in found.items() if k not in ENUM_NAMES or k in expected}
    right = {str(k): make_plain(v) for k, v in expected.items()}
    assert left == right, where


def check_dataset(found: xr.Dataset, expected: xr.Dataset, where: str, left_out: frozenset[str] = frozenset()) -> None:
    """Assert that variables, dimensions, types, attributes and values are equal, except variables in ``left_out``."""
    assert set(found.variables) - left_out == set(expected.variables) - left_out, where
    assert set(found.coords) == set(expected.coords), where
    check_attributes(found.attrs, expected.attrs, where)
    if found.sizes:  # only h5netcdf shows dimensions that no variable has
        assert found.encoding.get("unlimited_dims") == expected.encoding.get("unlimited_dims"), where
    for name, variable in expected.variables.items():
        here = f"{where}: {name}"
        if name in left_out:
            continue
        other = found.variables[name]
        assert (other.dims, other.shape) == (variable.dims, variable.shape), here
        try:
            right = np.asarray(variable.values)
        except TypeError:  # xarray cannot read compounds of other byte orders
            continue
        left = np.asarray(other.values)
        if right.dtype.names is not None:
            assert left.tobytes() == right.tobytes(), here
            continue
        if right.dtype.kind in "OUT" or left.dtype.kind in "OUT":
            assert list(map(make_plain, left.ravel().tolist())) == list(map(make_plain, right.ravel().tolist())), here
        else:
            assert left.dtype.newbyteorder("=") == right.dtype.newbyteorder("="), (here, left.dtype, right.dtype)
            assert left.astype(right.dtype).tobytes() == right.tobytes(), (here, left, right)
        check_attributes(other.attrs, variable.attrs, here)
        for key in ("_FillValue", "scale_factor", "add_offset", "units", "missing_value"):
            assert make_plain(other.encoding.get(key)) == make_plain(variable.encoding.get(key)), (here, key)


def check_xarray(path: Path, *, decode_cf: bool = True, left_out: frozenset[str] = frozenset()) -> int:
    """Assert that each group's dataset equals that of ``engine="h5netcdf"``; return the number of groups."""
    with h5netcdf.File(path, "r", phony_dims="access") as file:
        names = [""]
        for name in names:
            names += [f"{name}/{below}" for below in (file[name] if name else file).groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            where = {"group": name or None, "decode_cf": decode_cf}
            with xr.open_dataset(path, engine="h5netcdf", phony_dims="access", **where) as expected:
                found = xr.open_dataset(str(path), engine="refshard", **where)
                check_dataset(found, expected, f"{path.name}{name}", left_out)
    return len(names)

"""Make a reference set for one HDF5 file. The HDF5 library says where each chunk lies; no chunk is read.

The module supports only the features that the examples use (numbers; contiguous or chunked; shuffle and deflate). For
other files use kerchunk or VirtualiZarr, whose sets open in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# Attributes by which HDF5 and the NetCDF libraries record dimensions; zarr has _ARRAY_DIMENSIONS in place of them.
_HDF5_ONLY = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"}
_NETCDF_ONLY = {"_Netcdf4Coordinates", "_Netcdf4Dimid", "_NCProperties"}


def make_references(file: Path, url: str) -> dict[str, Any]:
    """Return a kerchunk reference set (version 1) for the root group of ``file``, which readers find at ``url``."""
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    with h5py.File(file) as hdf5:
        refs[".zattrs"] = json.dumps(_read_attributes(hdf5))
        for name, dataset in hdf5.items():
            refs[f"{name}/.zarray"] = json.dumps(_make_array_metadata(dataset))
            dimensions = [_name_dimension(dataset, axis) for axis in range(dataset.ndim)]
            refs[f"{name}/.zattrs"] = json.dumps(_read_attributes(dataset) | {"_ARRAY_DIMENSIONS": dimensions})
            refs |= {f"{name}/{key}": [url, offset, size] for key, offset, size in _iter_chunks(dataset)}
    return {"version": 1, "refs": refs}


def _iter_chunks(dataset: h5py.Dataset) -> Iterator[tuple[str, int, int]]:
    """Yield the chunk key, the offset in the file and the number of bytes of every chunk that was written."""
    if dataset.chunks is None:
        if dataset.id.get_offset() is not None:
            yield ".".join("0" * dataset.ndim) or "0", dataset.id.get_offset(), dataset.nbytes
        return
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        place = (start // length for start, length in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        yield ".".join(map(str, place)), chunk.byte_offset, chunk.size


def _make_array_metadata(dataset: h5py.Dataset) -> dict[str, Any]:
    fill = dataset.attrs.get("_FillValue")
    return {
        "zarr_format": 2,
        "shape": dataset.shape,
        "chunks": dataset.chunks or dataset.shape,
        "dtype": dataset.dtype.str,
        "order": "C",
        "fill_value": None if fill is None else _to_json(fill),
        "filters": [{"id": "shuffle", "elementsize": dataset.dtype.itemsize}] if dataset.shuffle else None,
        "compressor": {"id": "zlib", "level": dataset.compression_opts} if dataset.compression == "gzip" else None,
    }


def _name_dimension(dataset: h5py.Dataset, axis: int) -> str:
    scales = dataset.dims[axis].keys()
    name = dataset.name if dataset.is_scale else dataset.dims[axis][0].name if scales else f"{dataset.name}_{axis}"
    return str(name).strip("/")


def _read_attributes(item: h5py.Dataset | h5py.File) -> dict[str, Any]:
    hidden = _HDF5_ONLY | _NETCDF_ONLY | {"_FillValue"}  # _FillValue is zarr's fill_value
    return {name: _to_json(value) for name, value in item.attrs.items() if name not in hidden}


def _to_json(value: Any) -> Any:
    """Return an attribute as a value of JSON; h5py returns numpy arrays, also for one element, and bytes."""
    value = np.asarray(value)
    plain = value.item() if value.size == 1 else value.tolist()
    match plain:
        case bytes():
            return plain.decode()
        case float() if np.isnan(plain):
            return "NaN"
    return plain

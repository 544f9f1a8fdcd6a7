"""xarray's interface to one group of a source: variables and attributes, made from zarr's metadata without zarr.

Source: xarray's "Zarr Encoding Specification", and its own ``ZarrStore``, which makes the same variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import xarray as xr
from xarray.backends.common import AbstractDataStore
from xarray.backends.zarr import FillValueCoder, ZarrArrayWrapper
from xarray.coding.variables import EndianCoder
from xarray.core.indexing import LazilyIndexedArray

from refshard_fs.core.array_group import OBJECTS, PACKING, PACKING_TYPE
from refshard_fs.core.zarrmeta import ArrayMeta, dumps, list_codec_documents, loads, zarr_major
from refshard_fs.direct_array import DirectArray, open_by_zarr
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.group_metadata import ArrayNode, GroupNode
from refshard_fs.tools.trial import OpeningGuard

# The least bytes of a chunk of dask after decoding: dask needs about as much time for a task as for decoding 1 MiB.
TASK_SIZE = 1 << 20
# The largest chunk of dask is this many times TASK_SIZE: variables with the same chunks grow by the same factor.
MOST_TIMES = 16

_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute with the names of dimensions in zarr version 2
_NETCDF_CODECS: Final = {"shuffle": "shuffle", "fletcher32": "fletcher32", "zlib": "zlib", "gzip": "zlib"}


class GroupStore(AbstractDataStore):
    """One group of a source, for `xarray.backends.StoreBackendEntrypoint`.

    ``fill_value_is_mask``: whether fill values of zarr become the attribute ``_FillValue``; by default, fill values of
    version 2 do. ``load_together`` is called with all index coordinates whose names are not in ``not_loaded``, before
    xarray reads one after the other. ``guard`` limits memory and time of reads while a source is opened.
    """

    def __init__(
        self,
        fs: RefShardFileSystem,
        group: GroupNode,
        *,
        fill_value_is_mask: bool | None = None,
        task_size: int = TASK_SIZE,
        not_loaded: Container[Any] = (),
        load_together: Callable[[Iterable[xr.Variable]], None],
        guard: OpeningGuard | None = None,
    ) -> None:
        self._fs, self._group, self._guard = fs, group, guard
        self._fill_value_is_mask = group.zarr_format == 2 if fill_value_is_mask is None else fill_value_is_mask
        self._task_size, self._not_loaded, self._load_together = task_size, not_loaded, load_together

    def get_variables(self) -> dict[str, xr.Variable]:
        """Return the arrays of the group as lazy variables; load those of dimension coordinates at once, together."""
        variables = {name: self._make_variable(name, node) for name, node in self._group.arrays.items()}
        # xarray would read one coordinate after the other: first value, last value, all values.
        self._load_together([v for name, v in variables.items() if v.dims == (name,) and name not in self._not_loaded])
        if self._task_size:
            _enlarge_chunks(variables, self._task_size)
        return variables

    def get_attrs(self) -> dict[str, Any]:
        """Return the attributes of the group, without those that NCZarr wrote for itself."""
        attributes = {name: value for name, value in self._group.attributes.items() if not _is_hidden(name)}
        self._restore_dtypes(attributes, self._group.path)
        return attributes

    def get_dimensions(self) -> dict[str, int]:
        """Return the lengths of the dimensions of the arrays."""
        nodes = self._group.arrays.values()
        named = [(_split_dimensions(node)[0], node.document["shape"]) for node in nodes]
        return {dim: n for names, shape in named for dim, n in zip(names, shape, strict=True)}

    def get_encoding(self) -> dict[str, Any]:
        """Return the encoding of the dataset: its unlimited dimensions, and in a cube which sets are joined how."""
        unlimited, cube = self._fs.unlimited_dimensions.get(self._group.path), self._fs.source.open().cube
        encoding = {} if unlimited is None else {"unlimited_dims": set(unlimited)}
        return encoding if cube is None else {**encoding, "joined": cube.document.summary}

    @staticmethod
    def close() -> None:
        """Do nothing: the filesystem stays open.

        xarray keeps this function in its datasets. As a method, it would keep the store, whose guard cannot be pickled.
        """

    def _make_variable(self, name: str, node: ArrayNode) -> xr.Variable:
        direct = DirectArray.of(self._fs, node)  # checks the shape
        dimensions, attributes = _split_dimensions(node)
        if direct is None:
            by_zarr = open_by_zarr(self._fs, node)
            data: Any = ZarrArrayWrapper(by_zarr)
            fill_value = by_zarr.fill_value
            encoding = _make_zarr_encoding(by_zarr)
        else:
            data = direct
            fill_value = direct.fill_value
            meta = direct.meta
            encoding = {"chunks": meta.chunks, **_make_codec_encoding(meta), **_make_netcdf_encoding(meta)}
        encoding["preferred_chunks"] = dict(zip(dimensions, encoding["chunks"], strict=True))
        if self._fill_value_is_mask:
            if fill_value is not None:
                attributes["_FillValue"] = fill_value
        elif self._group.zarr_format == 3:
            encoding["fill_value"] = fill_value
        if not self._fill_value_is_mask and "_FillValue" in attributes:
            attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], data.dtype)
        if self._guard is not None:
            self._guard.add(node.path, lambda: dumps(dict(node.document)), is_loaded=dimensions == (name,))
        variable = xr.Variable(dimensions, LazilyIndexedArray(data), attributes, encoding)
        # xarray's decoder of _Unsigned assumes the machine's byte order.
        if "_Unsigned" in variable.attrs and data.dtype.kind in "iu":
            variable = EndianCoder().decode(variable, name)
        self._restore_dtypes(variable.attrs, node.path)
        return variable

    def _restore_dtypes(self, attributes: dict[Any, Any], path: str) -> None:
        """Convert ``attributes`` of the node ``path`` to the dtypes that they have in the file, and objects to texts.

        JSON has one type of numbers, but xarray decodes to single or double precision by the dtype of ``scale_factor``.
        """
        if self._fs.source.open().unwraps_single_values:
            for attribute, value in attributes.items():
                if isinstance(value, list) and len(value) == 1:
                    attributes[attribute] = value[0]
        single = attributes.pop(PACKING_TYPE, None) == "float32"
        for attribute in PACKING if single else ():
            if isinstance(attributes.get(attribute), float | int):
                attributes[attribute] = np.float32(attributes[attribute])
        names = attributes.pop(OBJECTS, None)
        for attribute in [name for name in attributes if isinstance(names, list) and name in names]:
            attributes[attribute] = dumps(attributes[attribute]).decode()
        for attribute, dtype in self._fs.attribute_dtypes.get(path, {}).items():
            if attribute in attributes:
                attributes[attribute] = _convert_attribute(attributes[attribute], np.dtype(dtype))


def _is_hidden(name: str) -> bool:
    """Return whether xarray hides an attribute, which NCZarr wrote for itself."""
    return name.lower().startswith("_nc")


def _split_dimensions(node: ArrayNode) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the names of an array's dimensions, and its attributes without those that hold names.

    KeyError, as by xarray, if the dimensions do not have names.
    """
    attributes = node.attributes
    if node.document.get("zarr_format") == 3:
        names = node.document.get("dimension_names") or ()
    elif _DIMENSIONS in attributes:
        names = attributes[_DIMENSIONS]
    else:
        names = [PurePosixPath(name).name for name in (node.document.get("_NCZARR_ARRAY") or {}).get("dimrefs", ())]
    if len(names) != len(node.document.get("shape") or ()):
        raise KeyError(
            f"xarray needs names of dimensions, but the array {node.path!r} has {len(names) or 'none'}: expected "
            f"{len(node.document.get('shape') or ())} names as 'dimension_names' in its zarr.json, or as the attribute "
            f"{_DIMENSIONS!r} in version 2"
        )
    if node.document.get("zarr_format") == 3:
        return tuple(names), dict(attributes)
    return tuple(names), {k: v for k, v in attributes.items() if k != _DIMENSIONS and not _is_hidden(k)}


class _PreferredChunks(dict[Any, Any]):
    """The stored chunks of a variable by dimension; `get` with a default returns the enlarged chunks instead.

    xarray passes a default when it makes chunks, but not when it warns that the user's chunks divide stored chunks.
    """

    def __init__(self, stored: Mapping[Any, Any], enlarged: Mapping[Any, Any]) -> None:
        super().__init__(stored)
        self.enlarged = enlarged

    def get(self, dim: Any, default: Any = None) -> Any:
        return super().get(dim) if default is None else self.enlarged.get(dim, default)

    def __reduce__(self) -> Any:
        return _PreferredChunks, (dict(self), self.enlarged)


_Preferred = _PreferredChunks  # its name in older pickles of datasets


def _enlarge_chunks(variables: Mapping[Any, xr.Variable], least: int) -> None:
    """Enlarge the chunks of dask along the first dimensions until they have ``least`` bytes or span the whole array.

    Variables with the same stored chunks along a dimension get the same chunks there. For that, chunks may grow up to
    ``MOST_TIMES * least`` bytes.
    """
    regular: dict[Any, dict[Any, int]] = {}
    for name, variable in variables.items():
        stored = variable.encoding.get("preferred_chunks", {})
        is_regular = len(stored) == variable.ndim and all(isinstance(size, int) for size in stored.values())
        if is_regular and variable.size and variable.dims != (name,) and variable.dtype.kind not in "OT":
            regular[name] = dict(stored)
    sizes = {name: variables[name].dtype.itemsize * math.prod(stored.values()) for name, stored in regular.items()}
    enlarged = {name: dict(stored) for name, stored in regular.items()}
    for dim, size in dict.fromkeys(along for stored in regular.values() for along in stored.items()):
        alike = [name for name, stored in regular.items() if stored.get(dim) == size < variables[name].sizes[dim]]
        counts = {name: -(-variables[name].sizes[dim] // size) for name in alike}
        needed = [min(-(-least // sizes[name]), counts[name]) for name in alike if sizes[name] < least]
        largest = max((sizes[name] for name in alike), default=1)
        times = min([*needed, max(MOST_TIMES * least // largest, 1)]) if needed else 1
        for name in alike:
            enlarged[name][dim] = times * size
            sizes[name] *= times
    for name, chunks in enlarged.items():
        if chunks != regular[name]:
            variables[name].encoding["preferred_chunks"] = _PreferredChunks(regular[name], chunks)


def _convert_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert an attribute's value to the file's dtype; complex numbers are pairs in JSON."""
    if dtype.kind == "c":
        pairs = np.asarray(value, f"f{dtype.itemsize // 2}")
        return pairs.view(dtype)[..., 0][()] if pairs.size else np.empty(0, dtype)
    return dtype.type(value)


def _make_zarr_encoding(array: Any) -> dict[str, Any]:
    """Return the encoding of a variable from an array that zarr has opened: its chunks and its codecs."""
    try:
        encoding = {"chunks": tuple(array.chunks), "shards": getattr(array, "shards", None)}
    except NotImplementedError:  # the chunks along a dimension differ in size
        encoding = {"chunks": tuple(map(_find_common_size, array.read_chunk_sizes)), "shards": None}
    if array.dtype.kind == "T":
        encoding["dtype"] = array.dtype
    names = ("compressor", "filters") if zarr_major() == 2 else ("compressors", "filters", "serializer")
    if zarr_major() == 2 or array.metadata.zarr_format == 3:
        encoding |= {name: getattr(array, name) for name in names}
    return encoding


def _find_common_size(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return the size of all chunks along a dimension, of which the last may be shorter; ``sizes`` if they differ."""
    is_regular = bool(sizes) and len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]
    return sizes[0] if is_regular else tuple(sizes) or (0,)


def _make_codec_encoding(meta: ArrayMeta) -> dict[str, Any]:
    """Return the encoding with which `xarray.Dataset.to_zarr` writes the codecs of an array.

    Codecs of version 2 are left out with zarr 3: xarray would pass them to version 3, which refuses them.
    """
    if zarr_major() == 2 and meta.zarr_format == 2:
        import numcodecs

        compressor, filters = meta.raw.get("compressor"), meta.raw.get("filters")
        return {
            "compressor": None if compressor is None else numcodecs.get_codec(dict(compressor)),
            "filters": None if filters is None else [numcodecs.get_codec(dict(codec)) for codec in filters],
        }
    if zarr_major() == 2 or meta.zarr_format == 2:
        return {}
    from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec

    codecs = [_make_zarr_codec(dumps(codec)) for codec in list_codec_documents(meta)]
    filters = tuple(codec for codec in codecs if isinstance(codec, ArrayArrayCodec))
    serializer = next((codec for codec in codecs if isinstance(codec, ArrayBytesCodec)), None)
    compressors = tuple(codec for codec in codecs if codec not in filters and codec is not serializer)
    return {"compressors": compressors, "filters": filters, "serializer": serializer, "shards": None}


@cache
def _make_zarr_codec(document: bytes) -> Any:
    """Return zarr's codec for the JSON of a codec of version 3."""
    from zarr.registry import get_codec_class

    codec = loads(document)
    codec = {"name": codec} if isinstance(codec, str) else codec
    return get_codec_class(codec["name"]).from_dict(codec)


def _make_netcdf_encoding(meta: ArrayMeta) -> dict[str, Any]:
    """Return the encoding with which `xarray.Dataset.to_netcdf` compresses a variable as its source does.

    The encoding is empty if NetCDF does not have one of the codecs.
    """
    netcdf: dict[str, Any] = {}
    for codec in list_codec_documents(meta):
        document: dict[str, Any] = {"name": codec} if isinstance(codec, str) else dict(codec)
        name = str(document.get("name", document.get("id"))).removeprefix("numcodecs.")
        if name == "bytes":
            continue
        if name not in _NETCDF_CODECS:
            return {}
        netcdf[_NETCDF_CODECS[name]] = True
        if _NETCDF_CODECS[name] == "zlib":
            netcdf["complevel"] = document.get("configuration", document).get("level", 4)
    chunks = meta.chunks
    return {**netcdf, "chunksizes": chunks, "original_shape": meta.shape} if netcdf and chunks else {}

"""Convert a virtual dataset of VirtualiZarr (an `xarray.Dataset` or `DataTree`) to a set of references.

A variable whose array is a `ManifestArray` becomes references. The values of other variables are encoded by xarray,
and stored inline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Texts
from refshard_fs.core.keys import join
from refshard_fs.core.version_3 import convert_array, convert_group
from refshard_fs.errors import ManifestError
from refshard_fs.references.reference_set import ReferenceSet

_ENCODING: Final = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar")


def is_virtual_dataset(value: Any) -> bool:
    """Return whether ``value`` is a Dataset or a DataTree of xarray."""
    kind = type(value)
    return kind.__module__.startswith("xarray.") and kind.__name__ in ("Dataset", "DataTree")


def convert_to_references(dataset: Any) -> ReferenceSet:
    """Convert a virtual dataset to references, and the values of its loaded variables to inline data, as zarr v3."""
    urls: dict[str, int] = {}
    tables: dict[str, ChunkTable] = {}
    members: dict[str, bytes] = {}
    for path, node in _iterate_nodes(dataset):
        members[join(path, "zarr.json")] = zarrmeta.dumps(convert_group(_make_attributes(node)))
        for name, variable in node.variables.items():
            where = join(path, str(name))
            manifest = getattr(variable.data, "manifest", None)
            inline: Mapping[tuple[int, ...], bytes] = getattr(manifest, "_inlined", {})
            if manifest is None:
                document, inline = _encode_loaded(variable, str(name), where)
            else:
                document = _make_document(variable)
            meta = zarrmeta.array_meta(document, repr(where))
            if meta is None or meta.grid is None:
                raise ManifestError(f"the variable {where!r}: expected a regular grid of chunks, found another grid")
            members[join(where, "zarr.json")] = zarrmeta.dumps(document)
            for coordinates, data in inline.items():
                members[join(where, meta.grid.encoding.encode(coordinates))] = data
            parts = [] if manifest is None else [_make_part(manifest, inline, urls)]
            tables[where] = ChunkTable.from_parts(meta.grid, parts)
    return ReferenceSet(Texts.of(urls), tables, members, where="the virtual dataset")


def _iterate_nodes(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the dataset of each group of a dataset or a tree."""
    if type(dataset).__name__ == "Dataset":
        yield "", dataset
    else:
        for node in dataset.subtree:
            yield node.path.strip("/"), node.to_dataset(inherit=False)


def _make_attributes(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a group; ``coordinates`` has the names of its auxiliary coordinates."""
    names = [str(name) for name in dataset.coords if name not in dataset.dims]
    attributes = {name: _make_plain(value) for name, value in dataset.attrs.items()}
    return {**attributes, **({"coordinates": " ".join(names)} if names else {})}


def _encode_loaded(variable: Any, name: str, path: str) -> tuple[dict[str, Any], dict[tuple[int, ...], bytes]]:
    """Encode a loaded variable as xarray does: return its metadata, and its values as one chunk.

    This does not write through zarr, because the filesystem may be made on zarr's own event loop.
    """
    from numcodecs.vlen import VLenUTF8
    from xarray.backends.zarr import encode_zarr_variable

    encoded = encode_zarr_variable(variable, name=name)
    values: npt.NDArray[Any] = np.asarray(encoded.data)
    is_text = values.dtype.kind in "OT"
    document = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": [max(size, 1) for size in values.shape],
        "dtype": "|O" if is_text else values.dtype.str,
        "fill_value": None,
        "order": "C",
        "filters": [{"id": "vlen-utf8"}] if is_text else None,
        "compressor": None,
    }
    attributes = {attribute: _make_plain(value) for attribute, value in encoded.attrs.items()}
    converted = convert_array(document, {**attributes, "_ARRAY_DIMENSIONS": list(encoded.dims)}, join(path, ".zarray"))
    if not values.size:
        return converted, {}
    data = VLenUTF8().encode(values.astype(object)) if is_text else values.tobytes()
    return converted, {(0,) * values.ndim: bytes(data)}


def _make_document(variable: Any) -> dict[str, Any]:
    """Return the metadata of a virtual variable. Its attributes and dimensions are the variable's, not the array's."""
    from zarr.core.buffer import default_buffer_prototype

    data = variable.data.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    encoding = {name: variable.encoding[name] for name in _ENCODING if name in variable.encoding}
    attributes = {name: _make_plain(value) for name, value in {**variable.attrs, **encoding}.items()}
    return {**zarrmeta.loads(data), "attributes": attributes, "dimension_names": list(variable.dims)}


def _make_plain(value: Any) -> Any:
    """Convert a numpy value of an attribute to a value that JSON can hold."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _make_part(manifest: Any, inline: Mapping[Any, bytes], urls: dict[str, int]) -> Part:
    """Return the ranges of a manifest, and add their URLs to ``urls``."""
    paths, columns = manifest._paths, (manifest._offsets, manifest._lengths)
    is_range = np.asarray(paths != "")
    for coordinates in inline:
        is_range[coordinates] = False
    codes: dict[str, int] = {}
    code_of_chunk = np.array([codes.setdefault(path, len(codes)) for path in paths[is_range].tolist()], np.int64)
    targets = np.array([urls.setdefault(_unquote_url(path), len(urls)) for path in codes], np.uint32)
    offsets, lengths = (column[is_range].astype(np.uint64) for column in columns)
    numbers = np.flatnonzero(is_range.reshape(-1)).astype(np.uint64)
    return Part(numbers, Ranges(targets[code_of_chunk], offsets, lengths))


def _unquote_url(url: str) -> str:
    """Undo VirtualiZarr's percent-encoding of local paths; return other URLs unchanged."""
    return unquote(url) if url.startswith("file://") else url

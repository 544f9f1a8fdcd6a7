"""A virtual dataset of VirtualiZarr, an `xarray.Dataset` or `DataTree` of `ManifestArray`s, as a set of references.

Variables that were loaded are written by xarray, and held in the set. Columns are taken over as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Texts
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.errors import ManifestError
from refshard_fs.references.reference_set import ReferenceSet

_ENCODING: Final = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar")


def is_virtual_dataset(value: Any) -> bool:
    """Whether ``value`` is a Dataset or a DataTree of xarray."""
    kind = type(value)
    return kind.__module__.startswith("xarray.") and kind.__name__ in ("Dataset", "DataTree")


def references_of(dataset: Any) -> ReferenceSet:
    """Return the references of a virtual dataset, and the values of its other variables; metadata are of version 3."""
    urls: dict[str, int] = {}
    tables: dict[str, ChunkTable] = {}
    members: dict[str, bytes] = {}
    for path, node in _nodes(dataset):
        virtual = {str(name): each for name, each in node.variables.items() if hasattr(each.data, "manifest")}
        loaded = node[[name for name in node.variables if str(name) not in virtual]].reset_coords()
        members |= {join(path, key): data for key, data in _written(loaded.assign_attrs(_attributes(node))).items()}
        for name in map(str, loaded.variables):
            where = join(path, name)
            tables[where] = ChunkTable.from_parts(_grid(zarrmeta.loads(members[join(where, "zarr.json")]), where), [])
        for name, variable in virtual.items():
            where = join(path, name)
            document = _document(variable)
            members[join(where, "zarr.json")] = zarrmeta.dumps(document)
            grid, inline = _grid(document, where), getattr(variable.data.manifest, "_inlined", {})
            for coordinates, data in inline.items():
                members[join(where, grid.encoding.encode(coordinates))] = data
            tables[where] = ChunkTable.from_parts(grid, [_part(variable.data.manifest, inline, urls)])
    return ReferenceSet(Texts.of(urls), tables, members, where="the virtual dataset")


def _grid(document: Mapping[str, Any], path: str) -> ChunkGrid:
    meta = zarrmeta.array_meta(document, repr(path))
    if meta is None or meta.grid is None:
        raise ManifestError(f"{path!r}: its chunks form no regular grid")
    return meta.grid


def _nodes(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the groups of a dataset or a tree, by path."""
    if type(dataset).__name__ == "Dataset":
        yield "", dataset
    else:
        for node in dataset.subtree:
            yield node.path.strip("/"), node.to_dataset(inherit=False)


def _attributes(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a group, which name the coordinates that are no dimensions."""
    names = [str(name) for name in dataset.coords if name not in dataset.dims]
    return {**dataset.attrs, **({"coordinates": " ".join(names)} if names else {})}


def _written(dataset: Any) -> dict[str, bytes]:
    """Return a group of variables in memory as xarray writes it, by key."""
    from zarr.storage import MemoryStore

    written: dict[str, Any] = {}
    dataset.to_zarr(MemoryStore(written), zarr_format=3, consolidated=False)
    return {key: value.to_bytes() for key, value in written.items()}


def _document(variable: Any) -> dict[str, Any]:
    """Return the metadata of a virtual variable, with its attributes and dimensions."""
    from zarr.core.buffer import default_buffer_prototype

    data = variable.data.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    kept = {name: variable.encoding[name] for name in _ENCODING if name in variable.encoding}
    attributes = {name: _plain(value) for name, value in {**variable.attrs, **kept}.items()}
    return {**zarrmeta.loads(data), "attributes": attributes, "dimension_names": list(variable.dims)}


def _plain(value: Any) -> Any:
    """Return an attribute's value as JSON has it."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _part(manifest: Any, inline: Mapping[Any, bytes], urls: dict[str, int]) -> Part:
    """Return the ranges of a manifest; ``urls`` gets the URLs that it names."""
    paths, columns = manifest._paths, (manifest._offsets, manifest._lengths)
    there = paths != ""
    for coordinates in inline:
        there[coordinates] = False
    codes: dict[str, int] = {}
    places = np.array([codes.setdefault(path, len(codes)) for path in paths[there].tolist()], np.int64)
    targets = np.array([urls.setdefault(_plain_url(path), len(urls)) for path in codes], np.uint32)
    offsets, lengths = (column[there].astype(np.uint64) for column in columns)
    numbers = np.flatnonzero(there.reshape(-1)).astype(np.uint64)
    return Part(numbers, Ranges(targets[places], offsets, lengths))


def _plain_url(url: str) -> str:
    """Return a URL as the filesystem spells it: VirtualiZarr quotes the paths of this machine."""
    return unquote(url) if url.startswith("file://") else url

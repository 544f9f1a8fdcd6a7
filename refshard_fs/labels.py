"""Labels of coordinates turned into places along dimensions, as xarray does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from refshard_fs.core.keys import parent
from refshard_fs.cubes.choice import nodes_of
from refshard_fs.cubes.selection import all_documents
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.xarray_backend import RefShardBackend


def places_of(fs: RefShardFileSystem, sel: Mapping[str, Any]) -> dict[str, int | slice]:
    """Return, by dimension, what ``ds.sel`` takes: a place, or a slice of step 1; ManifestError for anything else.

    The values of the coordinates are read.
    """
    nodes = nodes_of(fs.source.run("", lambda: all_documents(fs.source.open())))
    found: dict[str, int | slice] = {}
    for dim, label in sel.items():
        path = next((path for path in nodes.named(dim) if nodes[path].dims == [parent(path)[1]]), None)
        if path is None:
            raise nodes.unknown(f"sel= names {dim!r}, which has no coordinate in the source")
        group, name = parent(path)
        source: Any = fs
        with xr.open_dataset(source, engine=RefShardBackend, group=group or None, cache=False) as ds:
            numbers = xr.DataArray(np.arange(ds.sizes[name]), {name: ds[name]}, (name,))
            try:
                places = numbers.sel({name: label}).values
            except (KeyError, TypeError, ValueError) as e:
                ends = f"{ds[name].values[:1]} to {ds[name].values[-1:]}"
                raise ManifestError(f"sel={{{dim!r}: {label!r}}}: {e}; the coordinate goes from {ends}") from e
        if places.ndim and (np.diff(places) != 1).any():
            raise ManifestError(
                f"sel={{{dim!r}: {label!r}}} takes places that do not follow one another: expected a label or a slice"
            )
        if places.ndim:
            found[name] = slice(int(places[0]), int(places[-1]) + 1) if places.size else slice(0, 0)
        else:
            found[name] = int(places)
    return found

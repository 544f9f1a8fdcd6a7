"""Convert labels of coordinates (``sel=``) to positions along dimensions (``isel=``), with xarray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from refshard_fs.core.keys import parent
from refshard_fs.cubes.nodes import group_by_node, parse_documents
from refshard_fs.errors import ManifestError
from refshard_fs.source.source import Source


def _format_label(label: Any) -> str:
    """Return the text of a label; of a time without zeros at its end.

    >>> _format_label(np.datetime64("2014-10-31T00:00:00.000000000"))
    '2014-10-31'
    """
    return str(label).removesuffix(".000000000").removesuffix("T00:00:00")


def find_positions(source: Source, opened: Any, sel: Mapping[str, Any]) -> dict[str, int | slice]:
    """Return the position, or the slice of step 1, that ``ds.sel(sel)`` would take along each dimension.

    xarray opens ``opened``, which shows the ``source``, and reads the coordinates. Raise ManifestError if a dimension
    or a label does not exist, or if the labels are not neighbours in the coordinate's order.
    """
    nodes = group_by_node(parse_documents(source.run("", lambda: source.open().documents())))
    isel: dict[str, int | slice] = {}
    for dim, label in sel.items():
        path = next((path for path in nodes.find_all(dim) if nodes[path].shown_dims == [parent(path)[1]]), None)
        if path is None:
            raise nodes.make_unknown_error(f"sel= names {dim!r}, which has no coordinate in the source")
        group, name = parent(path)
        with xr.open_dataset(opened, engine="refshard", group=group or None, cache=False) as ds:
            numbers = xr.DataArray(np.arange(ds.sizes[name]), {name: ds[name]}, (name,))
            try:
                positions = numbers.sel({name: label}).values
            except (KeyError, TypeError, ValueError) as e:
                ends = [_format_label(ds[name].values[place]) for place in (0, -1)] if ds.sizes[name] else ["(empty)"]
                reason = "the coordinate does not have this label" if isinstance(e, KeyError) else str(e)
                raise ManifestError(
                    f"sel={{{dim!r}: {label!r}}}: {reason}; it goes from {' to '.join(ends)}. A slice takes all labels "
                    "between two values"
                ) from e
        if positions.ndim and (np.diff(positions) != 1).any():
            raise ManifestError(
                f"sel={{{dim!r}: {label!r}}}: expected a label, or a slice of step 1 in the coordinate's order, got "
                f"the positions {', '.join(map(str, positions[:4]))}{' ...' if positions.size > 4 else ''}"
            )
        if positions.ndim:
            isel[name] = slice(int(positions[0]), int(positions[-1]) + 1) if positions.size else slice(0, 0)
        else:
            isel[name] = int(positions)
    return isel

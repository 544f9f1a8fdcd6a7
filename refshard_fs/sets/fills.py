"""Fill values that mean "missing", for arrays with chunks that do not exist. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refshard_fs.core.dtypes import dtype_of
from refshard_fs.cubes.recoding import get_missing_values
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import replace_metadata
from refshard_fs.sets.variables import NamedSet


def choose_fill_values(parts: Sequence[NamedSet], paths: Iterable[str], *, lazy: bool = False) -> dict[str, Any]:
    """Return the new fill values of arrays, by path, with which readers show chunks that do not exist as missing.

    An array without such a fill value gets its ``_FillValue`` or ``missing_value``; floating-point numbers get NaN.
    ManifestError if an array has none of these, or if some of its chunks are missing already: they would change.
    """
    return {path: fill for path in sorted(paths) if (fill := _choose_fill(path, parts, lazy=lazy)) is not None}


def set_fill_values(part: NamedSet, fills: Mapping[str, Any]) -> NamedSet:
    """Give arrays of a set other fill values, by path."""
    shown = {path: part.variables[path] for path in fills if path in part.variables}
    return replace_metadata(part, {v.key: {**v.meta.raw, "fill_value": fills[path]} for path, v in shown.items()})


def _choose_fill(path: str, parts: Sequence[NamedSet], *, lazy: bool = False) -> Any:
    """Return the fill value that an array needs; None if its own means "missing".

    If ``lazy``, chunks of sets with another fill value are recoded when they are read.
    """
    parts = [part for part in parts if path in part.variables]
    first = parts[0].variables[path]
    meta, dtype = first.meta, dtype_of(first.meta)
    fill, marked = meta.raw.get("fill_value"), first.attributes.get("_FillValue")
    if fill in ("NaN",) or (isinstance(fill, float) and math.isnan(fill)):
        return None
    if meta.zarr_format == 2 and fill is not None:
        return None
    named = [] if dtype is None else get_missing_values(meta, first.attributes, dtype)
    if fill in named or (marked is not None and fill == marked):
        return None
    wanted: Any = None
    if dtype is not None and dtype.kind in "iu":
        wanted = next((int(value) for value in named if value in _find_range(dtype)), None)
    elif dtype is not None and dtype.kind == "f":
        wanted = next((value for value in named if math.isfinite(value)), "NaN")
    if wanted is None or not (lazy or not any(_lacks_chunks(part, path) for part in parts)):
        advice = (
            f"Give it a _FillValue of its type, as by attrs={{{path!r}: {{'_FillValue': ...}}}} of concat"
            if wanted is None
            else f"{wanted} cannot become its fill value, because it would change the values of chunks that are "
            f"missing already, which are {fill} now"
        )
        raise ManifestError(
            f"{path!r} of {parts[0].name} ({meta.dtype}) has no fill value for its gaps, which would be read as "
            f"numbers. {advice}"
        )
    return wanted


def _find_range(dtype: np.dtype[Any]) -> range:
    limits = np.iinfo(dtype)
    return range(int(limits.min), int(limits.max) + 1)


def _lacks_chunks(part: NamedSet, path: str) -> bool:
    table = part.refs.tables.get(path)
    return table is None or len(table) + len(part.find_inline_chunks(path)) < table.grid.size

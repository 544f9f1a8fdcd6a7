"""Choose the encoding in which a lazy cube shows an array that its sets encode differently. No I/O here.

Usually it is the encoding of the first set, and chunks of other sets are recoded. If it cannot hold all values exactly,
another encoding is chosen: for packed numbers (scale_factor differs from file to file) their unpacked values, as 64-bit
floating-point numbers; for other numbers and for texts a type that holds the types of all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.dtypes import (
    dtype_of,
    find_common_text_type,
    find_decoded_type,
    make_plain_document,
    make_text_metadata,
)
from refshard_fs.core.version_3 import convert_fill_attribute
from refshard_fs.cubes.recoding import STORED, find_meant_dtype, get_missing_values
from refshard_fs.sets.variables import NamedSet, Variable, put_attributes

_UNPACKED: Final = np.dtype("<f8")


def find_roomier_encodings(parts: Sequence[NamedSet], dim: str) -> dict[str, dict[str, Any]]:
    """Return the metadata documents, by key, of arrays along ``dim`` whose values the first set's type cannot hold."""
    found: dict[str, dict[str, Any]] = {}
    for path, first in parts[0].variables.items():
        if dim in first.dims and not first.is_coordinate:
            others = {id(v): v for part in parts[1:] if (v := part.variables.get(path)) is not None and v is not first}
            found |= find_encoding(first, list(others.values()))
    return found


def find_encoding(first: Variable, others: Sequence[Variable]) -> dict[str, dict[str, Any]]:
    """Return the metadata documents, by key, of an encoding that holds all values; empty if ``first``'s does."""
    texts = [dtype for v in (first, *others) if (dtype := find_decoded_type(v.meta)) is not None]
    common = find_common_text_type(texts) if len(texts) > len(others) else None
    if common is not None and first.meta.chunks is not None:
        if common.kind == texts[0].kind and common.itemsize == texts[0].itemsize:
            return {}
        doc = make_text_metadata(first.meta, common, first.meta.shape, first.meta.chunks)
        return {first.key: doc, **put_attributes(first.key, doc, first.attributes)}
    every = [(variable, dtype_of(variable.meta)) for variable in (first, *others)]
    known = [find_meant_dtype(dtype, v.attributes) for v, dtype in every if dtype is not None and dtype.kind in "iuf"]
    packed_by = [value for variable in (first, *others) for value in _get_packing(variable) if value is not None]
    are_numbers = all(isinstance(value, int | float) for value in packed_by)
    if len(known) < len(every) or first.meta.chunks is None or not are_numbers:
        return {}  # the join reports the difference
    dtype = _UNPACKED
    if all(_get_packing(other) == _get_packing(first) for other in others):
        dtype = np.result_type(*known).newbyteorder("<")
        if dtype.kind in "iu" and not _marks_missing(first) and any(map(_marks_missing, others)):
            # Any integer may be a value of the first set, so none can mean "missing". xarray decodes to the same types.
            is_short = dtype.itemsize < 4 and not any(value is not None for value in _get_packing(first))
            attributes = {name: value for name, value in first.attributes.items() if name not in STORED}
            return _change_type(first, np.dtype("<f4") if is_short else _UNPACKED, "NaN", attributes)
        if np.can_cast(dtype, known[0], "safe") or not all(np.can_cast(each, dtype, "safe") for each in known):
            return {}
        attributes = {name: value for name, value in first.attributes.items() if name != "_Unsigned"}
        return _change_type(first, dtype, first.meta.raw.get("fill_value"), attributes)
    if not any(_get_packing(first)) and known[0] == _UNPACKED:
        return {}
    attributes = {name: value for name, value in first.attributes.items() if name not in STORED}
    return _change_type(first, dtype, "NaN", attributes)


def _marks_missing(variable: Variable) -> bool:
    """Return whether a value of the array means "missing"."""
    fill = variable.meta.raw.get("fill_value") if variable.meta.zarr_format == 2 else None
    dtype = dtype_of(variable.meta)
    return fill is not None or (
        dtype is not None and bool(get_missing_values(variable.meta, variable.attributes, dtype))
    )


def _get_packing(variable: Variable) -> list[Any]:
    return [variable.attributes.get(name) for name in PACKING]


def _change_type(
    variable: Variable, dtype: np.dtype[Any], fill: Any, attributes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the documents, by key, of an array with another type, and without codecs."""
    meta, old = variable.meta, dtype_of(variable.meta)
    doc = make_plain_document(meta, meta.shape, meta.chunks or ()) | {"fill_value": fill}
    if meta.zarr_format == 3:
        doc |= {"data_type": dtype.name}
    else:
        doc |= {"dtype": dtype.str}
    if meta.zarr_format == 3 and old is not None:
        attributes = convert_fill_attribute(attributes, old, dtype)
    return {variable.key: doc, **put_attributes(variable.key, doc, attributes)}

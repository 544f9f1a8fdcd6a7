"""Check whether sets can be joined: arrays with the dimension need matching metadata, other arrays must be equal.

Each file of an archive has its own copy of arrays such as ``crs`` or ``lat_bnds``. If the references to the copies
differ, only their bytes show whether the copies are equal: small arrays are read for that, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from refshard_fs.core.keys import parent
from refshard_fs.cubes.cf_times import TimeUnits, is_time
from refshard_fs.cubes.fit import (
    KEYS,
    STORAGE,
    ArrayFacts,
    check_metadata,
    find_recoding,
    fit,
    make_difference_error,
)
from refshard_fs.cubes.recoding import get_missing_values
from refshard_fs.cubes.recutting import Recut
from refshard_fs.errors import ManifestError
from refshard_fs.sets.changed_set import replace_metadata
from refshard_fs.sets.digests import ValueDigest, have_references, list_references
from refshard_fs.sets.roomier_encodings import find_encoding
from refshard_fs.sets.variables import NamedSet

# How a join treats the chunks of an array.
Joining = Literal["as they are", "of other lengths", "stored anew", "made when they are read"]


def check_shapes(path: str, one: NamedSet, other: NamedSet, axis: int) -> None:
    """Raise ManifestError if two sets' arrays ``path`` differ in dimensions, or in length along another axis."""
    a, b = one.variables[path], other.variables[path]
    if a.dims != b.dims:
        reason = make_difference_error(path, "dimensions", one.name, list(a.dims), other.name, list(b.dims))
        raise ManifestError(f"{reason}: concat with drop={path!r} leaves the variable out")
    for k, (length, theirs) in enumerate(zip(a.meta.shape, b.meta.shape, strict=True)):
        if k != axis and length != theirs:
            reason = make_difference_error(path, f"length along {a.dims[k]!r}", one.name, length, other.name, theirs)
            raise ManifestError(f"{reason}: join='outer' shows all values of {a.dims[k]!r}, if it is a coordinate")


def check_joinable(
    path: str, one: NamedSet, other: NamedSet, axis: int, how: Joining, recut: Recut | None = None
) -> None:
    """Raise ManifestError if two sets' arrays ``path`` cannot be joined along ``axis``.

    ``how`` says how the join treats their chunks. If it stores values anew, encodings may differ. If chunks are made
    when they are read, `fit` decides whether they can be recoded or ``recut``.
    """
    a, b = one.variables[path], other.variables[path]
    if a is b and recut is None:
        return
    if how == "made when they are read":
        fit(path, get_array_facts(path, one), get_array_facts(path, other), recut)
        return
    ignored = {"shape", *KEYS} | ({"chunk_grid"} if how == "of other lengths" else set())
    if how == "stored anew":
        ignored |= STORAGE | _list_ignored_fields(path, one, other)
        if is_time(a.attributes) or is_time(b.attributes):  # values are in common units, which bounds may inherit
            ignored |= {"attribute units"}
    try:
        check_metadata(path, get_array_facts(path, one), get_array_facts(path, other), ignored)
    except ManifestError as e:
        raise _add_advice(path, one, other, e) from None


def _add_advice(path: str, one: NamedSet, other: NamedSet, error: ManifestError) -> ManifestError:
    """Return ``error``; if a lazy cube could recode the chunks, add this advice to its text."""
    shown = replace_metadata(one, find_encoding(one.variables[path], [other.variables[path]]))
    try:
        find_recoding(path, get_array_facts(path, shown), get_array_facts(path, other), is_recut=True)
    except ManifestError:
        return error
    return ManifestError(f"{error}: references cannot describe that; lazy=True converts chunks when they are read")


def check_equal(path: str, one: NamedSet, other: NamedSet, dim: str | None) -> None:
    """Raise ManifestError if two sets' arrays ``path`` differ, or cannot be compared."""
    is_same_array = one.variables[path] is other.variables[path]
    if (
        is_same_array
        and not have_references(path, one, other)
        and one.find_inline_chunks(path) == other.find_inline_chunks(path)
    ):
        return
    mine, theirs = one.decode_values(path), other.decode_values(path)
    if mine is not None and theirs is not None:
        if not is_same_array:
            ignored = KEYS | STORAGE | _list_ignored_fields(path, one, other)
            units = [get_array_facts(path, part).attributes for part in (one, other)]
            if all(map(is_time, units)):
                ignored |= {"attribute units"}
                mine, theirs = (
                    _convert_instants(mine, units[0], units[0]),
                    _convert_instants(theirs, units[1], units[0]),
                )
            check_metadata(path, get_array_facts(path, one), get_array_facts(path, other), ignored)
        what, is_equal = "values", are_same_values(mine, theirs)
    elif isinstance(first := one.digests.get(path), ValueDigest) and isinstance(
        second := other.digests.get(path), ValueDigest
    ):
        # A fill value makes no difference unless it is among the values.
        ignored = KEYS | STORAGE | (frozenset() if first.has_other_missing(second) else TYPES)
        check_metadata(path, get_array_facts(path, one), get_array_facts(path, other), ignored)
        what, is_equal = "values", first == second
    else:
        check_metadata(path, get_array_facts(path, one), get_array_facts(path, other), KEYS)
        what, is_equal = "references", list_references(path, one) == list_references(path, other)
        is_equal &= one.find_inline_chunks(path) == other.find_inline_chunks(path)
        if not is_equal and path in one.digests and path in other.digests:
            what, is_equal = "bytes", one.digests[path] == other.digests[path]
    if not is_equal and one.variables[path].is_coordinate:  # the data of each set belong to its own values
        raise ManifestError(
            f"{one.name} and {other.name} have different {what} of {path!r}, the coordinate of a dimension: concat "
            "with join='outer' puts the data of each set at its own values, and tolerance= takes small differences as "
            "rounding"
        )
    if not is_equal:
        raise ManifestError(
            f"{one.name} and {other.name} have different {what} of {path!r}, which does not have the dimension "
            f"{dim!r}: same={path!r} takes the variable of the first set, concat with drop={path!r} leaves it out"
        )


def _convert_instants(
    values: npt.NDArray[Any], attributes: Mapping[str, Any], to: Mapping[str, Any]
) -> npt.NDArray[Any]:
    """Return times in the units ``to``, in a form to compare; unchanged if one of the units is not known."""
    try:
        own, wanted = TimeUnits.of(attributes), TimeUnits.of(to)
        return wanted.snap(values if own == wanted else own.convert(values, wanted, rounded=True))
    except ValueError:
        return values


def check_merged(path: str, one: NamedSet, other: NamedSet) -> None:
    """Raise ManifestError if the arrays ``path`` of two sets to merge are not equal; suggest a dimension to join."""
    try:
        check_equal(path, one, other, None)
    except ManifestError as e:
        dim = _find_differing_coordinate(one, other) or next(filter(None, one.variables[path].dims), None)
        raise ManifestError(
            f"{one.name} and {other.name} differ in {path!r}, but without a dimension to join along, arrays must be "
            f"equal in all sets: name a dimension (dim={'' if dim is None else repr(dim)})"
        ) from e


def _find_differing_coordinate(one: NamedSet, other: NamedSet) -> str | None:
    """Return the name of the first coordinate, or scalar, whose known values differ between two sets."""
    for path, variable in one.variables.items():
        if path in other.variables and (variable.is_coordinate or not variable.dims):
            mine, theirs = one.decode_values(path), other.decode_values(path)
            if mine is not None and theirs is not None and not are_same_values(mine, theirs):
                return parent(path)[1]
    return None


# Fields that may differ if the values are known, because the values are stored anew.
TYPES: Final = frozenset({"dtype", "data_type", "fill_value", "attribute _FillValue", "attribute missing_value"})


def _list_ignored_fields(path: str, one: NamedSet, other: NamedSet) -> frozenset[str]:
    """Return the fields of metadata that may differ between two arrays of numbers whose values are known.

    Empty if the values are not known or not numbers, or if a value of one array means "missing" in the other one.
    """
    for part, of in ((one, other), (other, one)):
        values, variable = part.decode_values(path), of.variables[path]
        if values is None or values.dtype.kind not in "iuf":
            return frozenset()
        if np.isin(values, get_missing_values(variable.meta, variable.attributes, values.dtype)).any():
            return frozenset()
    return TYPES


def are_same_values(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Return whether two arrays are equal; floating-point numbers are rounded to the narrower of both types first."""
    if one.dtype.kind == other.dtype.kind == "f":
        narrow = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        one, other = one.astype(narrow), other.astype(narrow)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def get_array_facts(path: str, part: NamedSet) -> ArrayFacts:
    """Return the facts by which an array is compared with the same array of other sets."""
    variable = part.variables[path]
    return ArrayFacts(part.name, variable.meta, {**part.units.get(path, {}), **variable.attributes})

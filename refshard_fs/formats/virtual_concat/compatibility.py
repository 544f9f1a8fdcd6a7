"""What arrays must have in common to be joined along a dimension, now or when they are read. No I/O here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError

__all__ = ["MEANING", "STORAGE", "Described", "check_metadata", "difference"]

# Attributes that say what the values mean. All others may differ.
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# Fields that say how the values are stored; they may differ where these are stored anew.
STORAGE: Final = frozenset({"chunks", "compressor", "filters", "codecs", "chunk_grid", "order"})


class Described(NamedTuple):
    """An array as it is compared with others; ``name`` is what its set is called in errors."""

    name: str
    meta: ArrayMeta
    attributes: Mapping[str, Any]


def check_metadata(path: str, one: Described, other: Described, ignored: Container[str] = ()) -> None:
    """Raise ManifestError, which names the field, where two arrays ``path`` differ in one that is not ``ignored``.

    An attribute's field is ``attribute NAME``.
    """
    mine, theirs = _fields(one), _fields(other)
    for field in dict.fromkeys([*mine, *theirs]):
        first, second = mine.get(field), theirs.get(field)
        if field not in ignored and zarrmeta.dumps(first) != zarrmeta.dumps(second):
            raise difference(path, field, one.name, first, other.name, second)


def difference(path: str, field: str, one: str, mine: Any, other: str, theirs: Any) -> ManifestError:
    """Return the error that says what array ``path`` has in one set and in another."""
    return ManifestError(f"{path!r} has the {field} {mine!r} in {one}, and {theirs!r} in {other}")


def _fields(array: Described) -> dict[str, Any]:
    meta = array.meta
    fields = {name: value for name, value in meta.raw.items() if name != "attributes"}
    if meta.zarr_format == 2:
        fields |= {"dimension_separator": fields.get("dimension_separator") or ".", "dtype": meta.dtype}
        fields["filters"] = fields.get("filters") or None
    else:
        fields["data_type"] = meta.dtype
    return fields | {f"attribute {name}": array.attributes.get(name) for name in MEANING}

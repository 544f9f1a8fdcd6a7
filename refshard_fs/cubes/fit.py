"""Decide how an array of a piece becomes a part of the shown array: unchanged, recoded, or recut. No I/O here.

`fit` is called when sets are joined, and again when a piece is opened for reading.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.dtypes import holds_characters
from refshard_fs.core.keys import ChunkKeyEncoding
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.cf_times import are_alike, get_calendar, get_calendar_family, is_time
from refshard_fs.cubes.placement import Placement
from refshard_fs.cubes.recoding import RECODED, RECODED_ATTRIBUTES, Recoding, make_recoding
from refshard_fs.cubes.recutting import Recut, check_recut
from refshard_fs.cubes.sections import PieceArray
from refshard_fs.errors import ManifestError

# Attributes that define the meaning of values. All other attributes may differ.
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# Fields that define how values are stored; they may differ if values are stored anew.
STORAGE: Final = frozenset({"chunks", "compressor", "filters", "codecs", "chunk_grid", "order"})
# Fields that define the keys of chunks.
KEYS: Final = frozenset({"dimension_separator", "chunk_key_encoding"})


class ArrayFacts(NamedTuple):
    """The facts by which an array is compared with the same array of other sets; ``name`` names its set in errors."""

    name: str
    meta: ArrayMeta
    attributes: Mapping[str, Any]


class Fit(NamedTuple):
    """How chunks of a piece's array become shown chunks: unchanged, unless a member defines a conversion."""

    recoding: Recoding | None = None
    # By axis, the places of the piece's chunks (of its elements, if recut), if it has only some elements there.
    places: Mapping[int, Placement] = {}
    source: PieceArray | None = None  # only if the array is recut
    encoding: ChunkKeyEncoding | None = None  # encoding of the piece's keys, if it differs
    is_absent: bool = False  # the piece lacks the array

    def find_stored_chunk(self, leading: Sequence[int]) -> list[int] | None:
        """Return the coordinates in the piece of a shown chunk; None if the piece does not have it.

        ``leading`` may be only the first coordinates of several chunks.
        """
        return _require_all(
            [self.places[k].find_element(at) if k in self.places else at for k, at in enumerate(leading)]
        )

    def find_shown_chunk(self, leading: Sequence[int]) -> list[int] | None:
        """Return the shown coordinates of a chunk of the piece; None if this chunk is not shown."""
        return _require_all([self.places[k].find_place(at) if k in self.places else at for k, at in enumerate(leading)])

    @property
    def is_same(self) -> bool:
        """Whether the piece's chunks are the shown chunks, so that references to them can be used."""
        return self.recoding is None and self.source is None


def fit(
    path: str,
    shown: ArrayFacts,
    piece: ArrayFacts,
    recut: Recut | None = None,
    places: Mapping[int, Placement] = {},
) -> Fit:
    """Return how the array ``path`` of a ``piece`` becomes the ``shown`` array, or its ``recut`` form.

    ``places`` are the `places` of the `Fit`. ManifestError, which names the field, if the arrays differ in more than
    their encoding.
    """
    if recut is not None:
        check_recut(path, piece.meta, piece.name)
        recoded = find_recoding(path, shown._replace(meta=recut.meta), piece, is_recut=True)
        return Fit(recoded, places, PieceArray.of(piece.meta, recut, recoded, f"{path!r} of {piece.name}"))
    grid = piece.meta.grid
    spells_alike = grid is None or shown.meta.grid is None or grid.encoding == shown.meta.grid.encoding
    encoding = None if grid is None or spells_alike else grid.encoding
    return Fit(find_recoding(path, shown, piece), places, encoding=encoding)


def check_metadata(path: str, one: ArrayFacts, other: ArrayFacts, ignored: Container[str] = ()) -> None:
    """Raise ManifestError, which names the field, if two arrays ``path`` differ in a field that is not ``ignored``.

    The field of an attribute is called ``attribute NAME``.
    """
    versions = one.meta.zarr_format, other.meta.zarr_format
    if versions[0] != versions[1]:  # checked first, because almost all fields differ between versions
        error = make_difference_error(path, "zarr_format", one.name, versions[0], other.name, versions[1])
        raise ManifestError(
            f"{error}: pass the set of version 2 as a URL, without preprocess=; if a set of version 2 is to grow, make "
            "it anew"
        )
    mine, theirs = _list_fields(one), _list_fields(other)
    for field in dict.fromkeys([*mine, *theirs]):
        first, second = mine.get(field), theirs.get(field)
        if field == "dimension_names" and first and second and holds_characters(one.meta, other.meta):
            first, second = first[:-1], second[:-1]  # the last name depends on the length of texts in a file
        if field not in ignored and not _are_equal(first, second):
            raise make_difference_error(path, field, one.name, first, other.name, second)


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON. In Python, 1, 1.0 and True are equal, and NaN differs from NaN."""
    if type(one) is type(other) and isinstance(one, str | int | None):
        return bool(one == other)
    return zarrmeta.dumps(one) == zarrmeta.dumps(other)


def find_recoding(path: str, one: ArrayFacts, other: ArrayFacts, *, is_recut: bool = False) -> Recoding | None:
    """Return the recoding of chunks of the array ``path`` from ``other`` to ``one``; None if none is needed.

    The spelling of keys makes no difference. With ``is_recut``, chunk shape and compression make no difference, either.
    ManifestError, which names the field, if the arrays differ in more than their encoding.
    """
    ignored = {"shape", *KEYS} | (STORAGE if is_recut else frozenset())
    if is_time(one.attributes) and is_time(other.attributes):
        ignored |= {"attribute units"}
        if not are_alike(one.attributes, other.attributes):
            check_metadata(path, one, other, ignored | RECODED | RECODED_ATTRIBUTES)
            return make_recoding(path, (one.meta, one.attributes), (other.meta, other.attributes), one.name, other.name)
    try:
        check_metadata(path, one, other, ignored)
    except ManifestError:
        check_metadata(path, one, other, ignored | RECODED | RECODED_ATTRIBUTES)
        return make_recoding(path, (one.meta, one.attributes), (other.meta, other.attributes), one.name, other.name)
    return None


def make_difference_error(path: str, field: str, one: str, mine: Any, other: str, theirs: Any) -> ManifestError:
    """Return the error for a ``field`` of the array ``path`` that differs in two sets."""
    return ManifestError(f"{path!r} has the {field} {mine!r} in {one}, and {theirs!r} in {other}")


def _list_fields(array: ArrayFacts) -> dict[str, Any]:
    meta = array.meta
    fields = {name: value for name, value in meta.raw.items() if name != "attributes"}
    if meta.zarr_format == 2:
        fields |= {"dimension_separator": fields.get("dimension_separator") or ".", "dtype": meta.dtype}
        fields["filters"] = fields.get("filters") or None
    else:
        fields["data_type"] = meta.dtype
        fields |= {name: fields.get(name) or None for name in ("storage_transformers", "dimension_names")}
    fields |= {f"attribute {name}": array.attributes.get(name) for name in MEANING}
    if is_time(array.attributes):  # joining has checked that no time is before 1582, when Gregorian calendars differ
        fields["attribute calendar"] = get_calendar_family(get_calendar(array.attributes))
    return fields


def _require_all(coords: Sequence[int | None]) -> list[int] | None:
    """Return ``coords``; None if one of them is None."""
    known = [at for at in coords if at is not None]
    return known if len(known) == len(coords) else None

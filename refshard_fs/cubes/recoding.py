"""Recode chunks of one array as chunks of another array, with numpy and numcodecs. No I/O here.

Files of an archive are almost alike: one has another compression, another packs the same quantity with other numbers.
Recoded chunks have exactly the values that CF's attributes mean (scale_factor, add_offset, _FillValue, missing_value;
CF conventions, section 8.1). If a value cannot be stored exactly, reading its chunk raises an error that says why; but
times in floating-point numbers become the closest numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING
from refshard_fs.core.compression import find_chunk_limits
from refshard_fs.core.dtypes import find_decoded_type, find_text_codec, parse_fill_value
from refshard_fs.core.model import Entry, Inline, Packed, Recipe, Span, fills_absent
from refshard_fs.core.version_3 import decode_from_xarray
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.cf_times import UNITS, TimeUnits, are_alike, is_time
from refshard_fs.cubes.chunk_codec import ChunkDecoder, decode_chunk, describe_codecs, encode_chunk, make_blank_chunk
from refshard_fs.errors import ManifestError


def convert_exactly(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return ``values`` as another type; None if this type cannot hold all values exactly."""
    with np.errstate(invalid="ignore", over="ignore"):
        stored = values.astype(dtype)
        is_exact = np.array_equal(stored.astype(values.dtype), values, equal_nan=values.dtype.kind in "fcmM")
    return stored if is_exact else None


# Fields of metadata that define the encoding of chunks: they may differ if chunks are recoded.
RECODED: Final = frozenset({"compressor", "filters", "codecs", "order", "fill_value", "dtype", "data_type"})
FEW: Final = 8  # the most numbers that are searched faster one by one than together
EXACT: Final = 2**53  # floating-point numbers of 64 bits hold all integers up to this one exactly
LEAST: Final = -(2**63)  # numpy's and xarray's number of a missing time
MISSING: Final = ("_FillValue", "missing_value")  # attributes whose values mean "missing"
_UNSIGNED: Final = "_Unsigned"  # the attribute of signed numbers that mean unsigned numbers, or the reverse
STORED: Final = (*PACKING, *MISSING, _UNSIGNED)  # attributes that define how numbers are stored
RECODED_ATTRIBUTES: Final = frozenset(f"attribute {name}" for name in STORED)


class _Encoding(NamedTuple):
    """How an array's values are stored: their type, their packing, and the values that mean "missing"."""

    meta: ArrayMeta
    dtype: np.dtype[Any]
    scale: float | None
    offset: float | None
    fills: npt.NDArray[Any]  # values that mean "missing"; the first one is written
    meant: np.dtype[Any]  # the type that ``_Unsigned`` gives
    decoder: ChunkDecoder | None
    times: TimeUnits | None = None

    @property
    def is_packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def unpack(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        out = self.restore_signs(values).astype(np.float64)
        if self.scale is not None:
            out *= self.scale
        if self.offset is not None:
            out += self.offset
        return out

    def restore_signs(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored ``values`` with the sign that ``_Unsigned`` gives, before scale and offset."""
        return values if self.meant == self.dtype else values.astype(self.dtype).view(self.meant)

    def is_missing(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        if len(self.fills) > FEW:
            found = np.isin(values, self.fills)
            return found | np.isnan(values) if np.isnan(self.fills).any() else found
        found = np.zeros(values.shape, np.bool_)
        for fill in self.fills:
            found |= np.isnan(values) if np.isnan(fill) else values == fill
        return found


class Recoding(msgspec.Struct, frozen=True):
    """Recode chunks of the array ``theirs`` as chunks of the array ``mine``.

    Both are JSON documents of metadata and attributes. ``where`` names the array and its set in errors.
    """

    theirs: bytes
    mine: bytes
    where: str

    def make(self, raw: bytes) -> bytes:
        return encode_chunk(_parse_encoding(self.mine).meta, self.convert(self.decode(raw)))

    def decode(self, raw: bytes) -> npt.NDArray[Any]:
        """Return the values of a chunk of the array ``theirs``."""
        decoder = _parse_encoding(self.theirs).decoder
        if decoder is None:
            raise ValueError(f"{self.where}: {describe_codecs(_parse_encoding(self.theirs).meta)}")
        return decoder.decode(raw)

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert values of the array ``theirs`` to values of the array ``mine``."""
        return self._convert(values, _parse_encoding(self.theirs), _parse_encoding(self.mine))

    def make_absent(self) -> bytes | None:
        """Return the chunk to show in place of a missing chunk; None if readers see the same values without it."""
        theirs, mine = _parse_encoding(self.theirs), _parse_encoding(self.mine)
        fill = np.full(theirs.meta.chunks or (), parse_fill_value(theirs.meta, theirs.dtype), theirs.dtype)
        shown = np.full(mine.meta.chunks or (), parse_fill_value(mine.meta, mine.dtype), mine.dtype)
        wanted = self._convert(fill, theirs, mine)
        same = np.array_equal(wanted, shown, equal_nan=shown.dtype.kind in "fc")
        return None if same and mine.meta.raw.get("fill_value") is not None else encode_chunk(mine.meta, wanted)

    @property
    def shows_absent(self) -> bool:
        """Whether a chunk that does not exist is shown as existing, though making it may fail."""
        try:
            return self.make_absent() is not None
        except ValueError:
            return True

    def recode_entry(self, found: Entry | None) -> Entry | None:
        """Return the entry of a chunk, given the entry of the other array's chunk."""
        match found:
            case None:
                data = self.make_absent()
                return None if data is None else Inline(data)
            case Inline(data):
                return Inline(self.make(data))
            case Span():
                return Packed(found, self)
            case Packed(start=None, stop=None):
                return msgspec.structs.replace(found, recipe=_Chain(found.recipe, self), made=None)
        raise ManifestError(f"{self.where}: expected whole chunks to recode, found a part of other decoded bytes")

    def _convert(self, values: npt.NDArray[Any], theirs: _Encoding, mine: _Encoding) -> npt.NDArray[Any]:
        if mine.dtype.kind in "bSUO":
            return values.astype(mine.dtype)
        missing = theirs.is_missing(values)
        if theirs.times is not None and mine.times is not None and theirs.times != mine.times:
            out = self._convert_times(values, missing, theirs.times, mine)
        elif (theirs.scale, theirs.offset) == (mine.scale, mine.offset):
            numbers = theirs.restore_signs(values)
            out = numbers.astype(mine.meant).view(mine.dtype)
            is_rounded = numbers.dtype.kind in "iu" and numbers.itemsize == 8 and mine.meant.kind == "f"
            if is_rounded and not (missing | (np.abs(numbers.astype(np.float64)) < EXACT)).all():
                wrong = numbers[~missing & (np.abs(numbers.astype(np.float64)) >= EXACT)].flat[0]
                raise ValueError(f"{self.where}: {wrong} ({numbers.dtype}) cannot be stored exactly as {mine.dtype}")
        else:
            out = self._repack(values, missing, theirs, mine)
        if missing.any():
            if len(mine.fills):
                out[missing] = mine.fills[0]
            elif mine.dtype.kind == "f":
                out[missing] = np.nan
            else:
                raise ValueError(
                    f"{self.where}: values are missing, and the shown array of {mine.dtype} has no fill value for them"
                )
        if np.isnan(mine.fills).all():  # no number means "missing"
            return out
        is_mistaken = mine.is_missing(out) & ~missing
        if mine.dtype.kind == "f" and is_mistaken.any():
            is_mistaken &= ~np.isnan(out)  # NaN may stay NaN
        if is_mistaken.any():
            expected = f"expected no valid value that becomes {mine.fills[0]}, the fill value of the shown array"
            raise ValueError(f"{self.where}: {expected}; found {np.count_nonzero(is_mistaken)}")
        return out

    def _convert_times(
        self, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_], theirs: TimeUnits, mine: _Encoding
    ) -> npt.NDArray[Any]:
        assert mine.times is not None, "both are times"
        try:
            there = theirs.convert(values[~missing], mine.times, rounded=mine.dtype.kind == "f")
        except ValueError as e:
            raise ValueError(f"{self.where}: {e}") from e
        numbers = np.zeros(values.shape, there.dtype)
        numbers[~missing] = there
        out = convert_exactly(numbers, mine.dtype)
        if out is None:
            raise ValueError(f"{self.where}: a time cannot be stored exactly as {mine.dtype}")
        return out

    def _repack(
        self, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_], theirs: _Encoding, mine: _Encoding
    ) -> npt.NDArray[Any]:
        real = theirs.unpack(values)
        if not mine.is_packed and mine.dtype == real.dtype:
            return real
        if not mine.is_packed:
            out = real.astype(mine.meant).view(mine.dtype)
            same = mine.restore_signs(out) == real
        else:
            steps = (real - (mine.offset or 0.0)) / (1.0 if mine.scale is None else mine.scale)
            wanted = np.rint(steps) if mine.dtype.kind in "iu" else steps
            limits = np.iinfo(mine.meant) if mine.dtype.kind in "iu" else np.finfo(mine.dtype)
            fits = (wanted >= float(limits.min)) & (wanted <= float(limits.max))
            out = np.where(fits & ~missing, wanted, 0).astype(mine.meant).view(mine.dtype)
            same = fits & (mine.unpack(out) == real)
        if not (same | missing | np.isnan(real)).all():
            wrong = real[~(same | missing | np.isnan(real))].flat[0]
            raise ValueError(
                f"{self.where}: {wrong} cannot be stored exactly in the first set's encoding ({mine.dtype})"
            )
        return out


class _Chain(msgspec.Struct, frozen=True):
    """Apply one recipe after another."""

    first: Recipe
    then: Recoding

    def make(self, raw: bytes) -> bytes:
        return self.then.make(self.first.make(raw))

    def decode(self, raw: bytes) -> npt.NDArray[Any]:
        return self.then.decode(self.first.make(raw))

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.then.convert(values)

    def make_absent(self) -> bytes | None:
        filled = self.first.make_absent() if fills_absent(self.first) else None
        return self.then.make_absent() if filled is None else self.then.make(filled)


def make_recoding(
    path: str,
    mine: tuple[ArrayMeta, Mapping[str, Any]],
    theirs: tuple[ArrayMeta, Mapping[str, Any]],
    one_name: str,
    name: str,
) -> Recoding:
    """Return the recoding of chunks of the array ``path`` from ``theirs``, of the set ``name``, to ``mine``.

    Both are metadata and attributes of arrays that differ only in `RECODED` fields and `RECODED_ATTRIBUTES`.
    ManifestError, with both encodings, if ``mine`` cannot hold all values of ``theirs``.
    """
    are_times = is_time(mine[1]) and is_time(theirs[1])
    units = UNITS if are_times else ()
    if are_times and are_alike(mine[1], theirs[1]):  # no conversion, but missing times remain missing
        others = {name: value for name, value in theirs[1].items() if name not in UNITS}
        theirs = theirs[0], others | {name: mine[1][name] for name in UNITS if name in mine[1]}
    made = Recoding(_dump(*theirs, units), _dump(*mine, units), f"{path!r} of {name}")
    try:
        one, other = _parse_encoding(made.mine), _parse_encoding(made.theirs)
        if one.times != other.times and (one.is_packed or other.is_packed):
            raise ValueError("packed times cannot be converted to other units")
        if one.times != other.times and one.times is not None and other.times is not None:
            other.times.convert(np.zeros(0, other.dtype), one.times)  # ValueError if the calendar differs
        elif (one.scale, one.offset) == (other.scale, other.offset) and not _holds(one.meant, other.meant):
            raise ValueError("no data type can hold the values of both sets")
        if one.dtype.kind == "O" and (find_text_codec(other.meta) or "vlen-utf8") != find_text_codec(one.meta):
            raise ValueError("one set has texts, and the other has bytes")
        find_chunk_limits(one.meta)  # raises ValueError if a chunk is too large to be made
        find_chunk_limits(other.meta)
        encode_chunk(one.meta, make_blank_chunk(one.meta, one.dtype))
        if decode_chunk(other.meta, encode_chunk(other.meta, make_blank_chunk(other.meta, other.dtype))) is None:
            raise ValueError(describe_codecs(other.meta))
    except ValueError as e:
        shown, own = _describe(*mine, units), _describe(*theirs, units)
        if shown == own:
            shown, own = _describe_differences(mine[0], theirs[0])
        raise ManifestError(f"{made.where} is {own}, and {one_name} has {shown}: {e}") from e
    return made


def _holds(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether a type holds all values of another one. Numbers, bytes and characters never hold each other."""
    if dtype.kind == "O":
        return other.kind in "OU"
    return np.can_cast(other, dtype, "safe") and (dtype.kind == other.kind or dtype.kind not in "SU")


def _dump(meta: ArrayMeta, attributes: Mapping[str, Any], units: Sequence[str]) -> bytes:
    kept = {name: attributes[name] for name in (*STORED, *units) if name in attributes}
    return zarrmeta.dumps({"meta": {**meta.raw, "shape": meta.shape, "attributes": {}}, "attributes": kept})


def _describe(meta: ArrayMeta, attributes: Mapping[str, Any], units: Sequence[str]) -> str:
    packing = [f"{name} {attributes[name]}" for name in (*STORED, *units) if name in attributes]
    return ", ".join([str(meta.dtype), *packing])


def _describe_differences(one: ArrayMeta, other: ArrayMeta) -> list[str]:
    """Return the type of each of two arrays, with the fields in which they differ."""
    fields = [name for name in dict.fromkeys([*one.raw, *other.raw]) if name not in ("attributes", "shape")]
    differing = [name for name in fields if one.raw.get(name) != other.raw.get(name)]
    return [
        ", ".join([str(meta.dtype), *(f"{name} {zarrmeta.dumps(meta.raw.get(name)).decode()}" for name in differing)])
        for meta in (one, other)
    ]


@lru_cache(256)
def _parse_encoding(document: bytes) -> _Encoding:
    """Parse a document of `_dump`; ValueError if its array cannot be recoded."""
    found = zarrmeta.loads(document)
    meta = zarrmeta.array_meta(found["meta"], "an array that is recoded")
    dtype = None if meta is None else find_decoded_type(meta)
    if meta is None or dtype is None or dtype.kind not in "biufSUO" or meta.chunks is None:
        raise ValueError("only integers, floating-point numbers, truth values and text can be recoded")
    if dtype.kind in "bSUO":
        return _Encoding(meta, dtype, None, None, np.zeros(0, dtype), dtype, ChunkDecoder.of(meta))
    attributes = found["attributes"]
    scale, offset = (attributes.get(name) for name in PACKING)
    if any(value is not None and type(value) not in (int, float) for value in (scale, offset)):
        raise ValueError("expected numbers as scale_factor and add_offset")
    marks = [meta.raw.get("fill_value")] if meta.zarr_format == 2 else []
    marks += get_missing_values(meta, attributes, dtype)
    fills = [
        parse_fill_value(msgspec.structs.replace(meta, raw={"fill_value": m}), dtype) for m in marks if m is not None
    ]
    meant = find_meant_dtype(dtype, attributes)
    times = TimeUnits.of(attributes) if is_time(attributes) else None
    return _Encoding(
        meta, dtype, scale, offset, np.array([*dict.fromkeys(fills)], dtype), meant, ChunkDecoder.of(meta), times
    )


def get_missing_values(meta: ArrayMeta, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> list[int | float]:
    """Return the numbers that mean "missing" by the attributes of an array.

    xarray writes a missing time that has no fill value as the least integer of 64 bits, and reads this integer as a
    missing time.
    """
    named: list[Any] = []
    for value in map(attributes.get, MISSING):
        named += value if isinstance(value, list) else [value]
    known = [decode_from_xarray(value, dtype) if meta.zarr_format == 3 else value for value in named]
    marks = [value for value in known if isinstance(value, int | float)]
    return [*marks, LEAST] if (dtype.kind, dtype.itemsize) == ("i", 8) and is_time(attributes) else marks


def find_meant_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type that numbers mean by the attribute ``_Unsigned``, for formats without unsigned numbers."""
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(attributes.get(_UNSIGNED)).lower()))
    return dtype if kind is None else np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")

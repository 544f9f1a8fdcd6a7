"""Find the nodes that a selection takes from a source, and change their metadata. No I/O here."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import index
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, SingleChunk
from refshard_fs.errors import ManifestError

Attributes = dict[str, Any]
DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute in which xarray names them in version 2
COORDINATES: Final = "coordinates"

_KINDS: Final = "biufSU"  # kinds of types that can be assigned


class Assigned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An array that a selection adds: its dimensions, numpy's name of its type, and its values, little-endian."""

    dims: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    data: str
    attrs: Attributes = {}

    @classmethod
    def of(cls, name: str, given: Any) -> Assigned:
        """Return an array as xarray's ``assign_coords`` takes it: values, ``(dims, values[, attrs])``, or an array."""
        dims: Any
        attrs: Mapping[str, Any] = {}
        match given:
            case tuple() if len(given) in (2, 3):
                dims, given, attrs = given if len(given) == 3 else (*given, {})
                dims = (dims,) if isinstance(dims, str) else tuple(dims)
            case _ if hasattr(given, "dims") and hasattr(given, "values"):
                dims, given, attrs = tuple(given.dims), given.values, given.attrs
            case _:
                dims = None
        values = np.asarray(given)
        if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
            values = values.astype("U")
        if values.dtype.kind == "O":  # objects, for example times of the standard library
            with suppress(ValueError):
                values = values.astype("M8[us]")
        if values.dtype.kind == "M":
            whole = values.astype("M8[s]")
            is_whole = (whole == values).all()
            unit = "seconds" if is_whole else "nanoseconds"
            values = (whole if is_whole else values.astype("M8[ns]")).astype("i8")
            attrs = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian", **attrs}
        if dims is None:
            dims = (name,) if values.ndim == 1 else ()
        if len(dims) != values.ndim or values.dtype.kind not in _KINDS:
            raise TypeError(
                f"assign={{{name!r}: ...}}: expected numbers, texts or times, as values or (dims, values, attrs), got "
                f"{values.dtype} of shape {values.shape} along {dims}"
            )
        values = values.astype(values.dtype.newbyteorder("<"))
        data = base64.b64encode(values.tobytes()).decode()
        return cls(dims, values.dtype.str, values.shape, data, dict(attrs))

    def describe(self, path: str) -> ArrayDescription:
        """Return what its metadata say; ManifestError where its parts do not fit each other."""
        where = f"assign= of {path!r}"
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as e:
            raise ManifestError(f"{where}: {e}") from None
        if dtype.kind not in _KINDS or len(self.dims) != len(self.shape) or min(self.shape, default=0) < 0:
            raise ManifestError(f"{where}: {self.dtype} of shape {list(self.shape)} along {list(self.dims)}")
        if len(self.values()) != math.prod(self.shape) * dtype.itemsize:
            raise ManifestError(
                f"{where}: {len(self.values())} bytes do not fill the shape {list(self.shape)} with {self.dtype}"
            )
        chunks = tuple(max(length, 1) for length in self.shape)
        return ArrayDescription(where, self.shape, chunks, dtype, self.dims, self.attrs)

    def values(self) -> bytes:
        """Return the bytes of its one chunk; ManifestError where they are not base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except ValueError as e:
            raise ManifestError(f"assign=: {e}") from None


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of one selection; all names are names in the source.

    A name without a slash means the variables, or groups, of that name in every group; one with a slash is the path of
    one ("/air" in the root). ``isel`` has the bounds of slices. ``squeeze`` names dimensions of length 1 that are not
    shown, or is True for all. ``assign`` are arrays that are added, or shown in place of others, by path.
    """

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    rename: dict[str, str] = {}
    attrs: dict[str, Attributes] = {}
    isel: dict[str, tuple[int | None, int | None]] = {}
    squeeze: tuple[str, ...] | bool = ()
    assign: dict[str, Assigned] = {}

    @classmethod
    def of(
        cls,
        drop: Iterable[str] | str = (),
        keep: Iterable[str] | str | None = None,
        rename: Mapping[str, str] | None = None,
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        isel: Mapping[str, Any] | None = None,
        squeeze: Iterable[str] | str | bool = (),
        assign: Mapping[str, Any] | None = None,
    ) -> Choice:
        """Return what the arguments of ``fs.select`` say; TypeError or ValueError for what they do not take."""
        single = [dim for dim, chosen in (isel or {}).items() if isinstance(chosen, int | np.integer)]
        squeezed: Any = True if squeeze is True else [*single, *_names_of(squeeze or ())]
        given = {
            "drop": _names_of(drop),
            "keep": None if keep is None else _names_of(keep),
            "rename": dict(rename or {}),
            "attrs": {path: dict(values) for path, values in (attrs or {}).items()},
            "isel": {dim: _bounds(dim, chosen) for dim, chosen in (isel or {}).items()},
            "squeeze": squeezed,
            "assign": {path: msgspec.to_builtins(Assigned.of(path, value)) for path, value in (assign or {}).items()},
        }
        return cls.read(given)

    @classmethod
    def read(cls, given: Any) -> Choice:
        """Return a selection given as JSON values; ValueError where it breaks the form."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as e:
            raise ValueError(f"select={given!r:.500}: {e}") from None

    @property
    def only_leaves_out(self) -> bool:
        """Whether all arrays that it shows are shown as they are, under their own paths."""
        return self == Choice(self.drop, self.keep)

    def to_json(self) -> dict[str, Any]:
        """Return the selection as JSON values; TypeError for attributes that JSON cannot express."""
        found: dict[str, Any] = zarrmeta.loads(zarrmeta.dumps(msgspec.to_builtins(self)))
        return found

    def make_source(self, zarr_format: int) -> ArrayGroup:
        """Return the assigned arrays as a source."""
        arrays = {path.strip("/"): one.describe(path) for path, one in self.assign.items()}
        chunks = {path.strip("/"): SingleChunk(one.values()) for path, one in self.assign.items()}
        return ArrayGroup(arrays, chunks, zarr_format, {})


def _names_of(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _bounds(dim: str, chosen: Any) -> tuple[int | None, int | None]:
    if isinstance(chosen, int | np.integer):
        one = int(chosen)
        return one, None if one == -1 else one + 1
    if not isinstance(chosen, slice):
        raise TypeError(
            f"isel={{{dim!r}: {chosen!r}}}: expected an integer or a slice: chunks hold successive elements"
        )
    if chosen.step not in (None, 1):
        raise ValueError(f"isel={{{dim!r}: {chosen!r}}}: expected a slice with step 1: chunks hold successive elements")
    start, stop = (None if bound is None else index(bound) for bound in (chosen.start, chosen.stop))
    return start, stop

"""The arguments of a selection (`RefShardFileSystem.select`), and the arrays that it adds. No I/O here."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import index
from typing import Any, Final, Literal

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, SingleChunk
from refshard_fs.core.keys import is_within, parent
from refshard_fs.errors import ManifestError

Attributes = dict[str, Any]
DIMENSIONS: Final = "_ARRAY_DIMENSIONS"  # the attribute in which xarray names dimensions in version 2
COORDINATES: Final = "coordinates"

_EXAMPLES: Final = {  # values of arguments that are mappings
    "rename": "such as {'air': 't2m'}",
    "attrs": "such as {'air': {'units': 'K'}}",
    "isel": "such as {'time': slice(0, 10)}",
    "sel": "such as {'time': slice('2024-01', '2024-03')}",
    "assign": "such as {'member': 3}",
    "chunks": "such as {'time': 24}",
    "subchunks": "such as {'time': 1}",
}
_KINDS: Final = "biufSU"  # numpy's kinds of the types that can be assigned


class AssignedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An array that a selection adds: its dimensions, numpy's name of its type, and its values as base64.

    The values are little-endian, in C order.
    """

    dims: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    data: str
    attrs: Attributes = {}

    @classmethod
    def of(cls, name: str, value: Any) -> AssignedArray:
        """Make an array of values, of ``(dims, values[, attrs])`` or of xarray's arrays, as ``assign_coords`` does."""
        dims: Any
        attrs: Mapping[str, Any] = {}
        match value:
            case tuple() if len(value) in (2, 3) and isinstance(value[0], str | list | tuple):
                dims, value, attrs = value if len(value) == 3 else (*value, {})
                dims = (dims,) if isinstance(dims, str) else tuple(dims)
                if not isinstance(attrs, Mapping):
                    raise TypeError(f"assign={{{name!r}: ...}}: expected attributes as a mapping, got {attrs!r:.200}")
            case _ if hasattr(value, "dims") and hasattr(value, "values"):
                dims, value, attrs = tuple(value.dims), value.values, value.attrs
            case _:
                dims = None
        try:
            values = np.asarray(value)
        except ValueError as e:  # lists of different lengths
            raise TypeError(
                f"assign={{{name!r}: ...}}: expected an array, or a tuple (dims, values, attrs): {e}"
            ) from e
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
            dims = (parent(name.strip("/"))[1],) if values.ndim == 1 else ()
        if len(dims) != values.ndim or values.dtype.kind not in _KINDS:
            raise TypeError(
                f"assign={{{name!r}: ...}}: expected numbers, texts or times, as values or (dims, values, attrs), got "
                f"{values.dtype} of shape {values.shape} along {dims}"
            )
        values = values.astype(values.dtype.newbyteorder("<"))
        data = base64.b64encode(values.tobytes()).decode()
        return cls(dims, values.dtype.str, values.shape, data, _convert_attributes(f"assign={{{name!r}: ...}}", attrs))

    def describe(self, path: str) -> ArrayDescription:
        """Return the description; ManifestError if type, shape, dimensions and bytes contradict one another."""
        where = f"assign= of {path!r}"
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as e:
            raise ManifestError(f"{where}: {e}") from None
        if dtype.kind not in _KINDS or len(self.dims) != len(self.shape) or min(self.shape, default=0) < 0:
            raise ManifestError(
                f"{where}: expected numbers or texts with a length for each dimension, got {self.dtype} of shape "
                f"{list(self.shape)} along {list(self.dims)}"
            )
        size = math.prod(self.shape) * dtype.itemsize
        if len(self.decode_data(path)) != size:
            raise ManifestError(
                f"{where}: expected {size} bytes for the shape {list(self.shape)} of {self.dtype}, got "
                f"{len(self.decode_data(path))}"
            )
        chunks = tuple(max(length, 1) for length in self.shape)
        return ArrayDescription(where, self.shape, chunks, dtype, self.dims, self.attrs)

    def decode_data(self, path: str) -> bytes:
        """Return the bytes of the array's one chunk; ManifestError, which names ``path``, if they are not in base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except ValueError as e:
            raise ManifestError(f"assign= of {path!r}: expected values in base64: {e}") from None


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of one selection; all names are names in the source.

    A name without a slash means the variables, or groups, of that name in every group; a name with a slash is one path
    ("/air" in the root). ``isel`` has bounds of slices. ``squeeze`` names dimensions of length 1 to drop, or is True
    for all. ``assign`` has, by path, arrays that are added, or that replace arrays of the source. A ``lenient`` choice
    is for one of several sources, which may lack names, but not all names in ``keep``, nor any dimension in ``isel`` or
    ``squeeze``. With ``zarr_format`` 3, metadata of version 2 are shown in version 3; the chunks stay the same.
    """

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    rename: dict[str, str] = {}
    attrs: dict[str, Attributes] = {}
    isel: dict[str, tuple[int | None, int | None]] = {}
    squeeze: tuple[str, ...] | bool = ()
    assign: dict[str, AssignedArray] = {}
    lenient: bool = False
    zarr_format: Literal[3] | None = None

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
        """Make a choice of the arguments of ``fs.select``; TypeError or ValueError if an argument is invalid."""
        for argument, mapping in (("rename", rename), ("attrs", attrs), ("isel", isel), ("assign", assign)):
            check_mapping(argument, mapping)
        for path, own in (attrs or {}).items():
            if not isinstance(own, Mapping):
                raise TypeError(
                    f"attrs={{{path!r}: {own!r:.100}}}: expected {{variable: {{attribute: value}}}}; the variable '' "
                    "stands for the attributes of the root"
                )
        single = [dim for dim, bounds in (isel or {}).items() if isinstance(bounds, int | np.integer)]
        squeezed: Any = True if squeeze is True else [*single, *list_names("squeeze", squeeze or ())]
        values = {
            "drop": list_names("drop", drop),
            "keep": None if keep is None else list_names("keep", keep),
            "rename": dict(rename or {}),
            "attrs": {
                path: _convert_attributes(f"attrs={{{path!r}: ...}}", own) for path, own in (attrs or {}).items()
            },
            "isel": {dim: _parse_bounds(dim, bounds) for dim, bounds in (isel or {}).items()},
            "squeeze": squeezed,
            "assign": {
                path: msgspec.to_builtins(AssignedArray.of(path, value)) for path, value in (assign or {}).items()
            },
        }
        return cls.read(values)

    @classmethod
    def read(cls, value: Any) -> Choice:
        """Parse a choice from JSON values; ValueError if they do not have its form."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as e:
            raise ValueError(f"select={value!r:.500}: {e}") from None

    @property
    def only_leaves_out(self) -> bool:
        """Whether the choice changes neither the arrays that are shown, nor their paths."""
        return self == Choice(self.drop, self.keep, lenient=self.lenient)

    def leaves_out(self, path: str, is_group: bool) -> bool:
        """Return whether the array ``path``, or the group and all nodes in it, are not shown.

        A coordinate of other arrays may be shown all the same.
        """
        is_kept = self.keep is None or any(
            _refers_to(name, path) or (is_group and _may_name_below(name, path)) for name in self.keep
        )
        return not is_kept or any(_refers_to(name, path) for name in self.drop)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON values; TypeError for attributes that JSON cannot express."""
        found: dict[str, Any] = zarrmeta.loads(zarrmeta.dumps(msgspec.to_builtins(self)))
        return found

    def make_source(self, zarr_format: int) -> ArrayGroup:
        """Return the assigned arrays as a source."""
        arrays = {path.strip("/"): array.describe(path) for path, array in self.assign.items()}
        chunks = {path.strip("/"): SingleChunk(array.decode_data(path)) for path, array in self.assign.items()}
        return ArrayGroup(arrays, chunks, zarr_format, {})


VERSION_3: Final = Choice(zarr_format=3)


def _refers_to(name: str, path: str) -> bool:
    """Return whether ``name`` means the node ``path``, or a group above it; a name with a slash is a path."""
    return is_within(path, name.strip("/")) if "/" in name else name in path.split("/")


def _may_name_below(name: str, group: str) -> bool:
    """Return whether ``name`` may mean a node in ``group``."""
    return "/" not in name or is_within(name.strip("/"), group)


def _convert_attributes(where: str, attributes: Mapping[str, Any]) -> Attributes:
    """Convert attributes to JSON values; TypeError, which begins with ``where``, if JSON cannot express one."""
    found: Attributes = {}
    for name, value in attributes.items():
        try:
            found[name] = msgspec.to_builtins(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
        except TypeError as e:
            expected = "expected texts, numbers, lists or objects as attributes"
            raise TypeError(f"{where}: {expected}, got {name}={value!r:.200}") from e
    return found


def list_names(argument: str, names: Iterable[str] | str) -> list[str]:
    """Return ``names``, the value of an ``argument``, as a list; a text is one name. TypeError for other values."""
    if not isinstance(names, Iterable):
        raise TypeError(f"{argument}={names!r:.200}: expected a name, or a list of names")
    return [names] if isinstance(names, str) else list(names)


def check_mapping(argument: str, value: Any) -> None:
    """Raise TypeError unless the value of an ``argument`` is a mapping or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{argument}={value!r:.200}: expected a mapping, {_EXAMPLES[argument]}")


def _parse_bounds(dim: str, value: Any) -> tuple[int | None, int | None]:
    """Return the bounds of a slice of step 1, or of an integer."""
    if isinstance(value, int | np.integer):
        element = int(value)
        return element, None if element == -1 else element + 1
    if not isinstance(value, slice):
        raise TypeError(f"isel={{{dim!r}: {value!r}}}: expected an integer or a slice: chunks hold successive elements")
    if value.step not in (None, 1):
        raise ValueError(f"isel={{{dim!r}: {value!r}}}: expected a slice with step 1: chunks hold successive elements")
    try:
        start, stop = (None if bound is None else index(bound) for bound in (value.start, value.stop))
    except TypeError as e:
        raise TypeError(
            f"isel={{{dim!r}: {value!r}}}: expected integers as the bounds of a slice; sel= takes labels"
        ) from e
    return start, stop

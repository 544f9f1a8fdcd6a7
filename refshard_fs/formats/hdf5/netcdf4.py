"""Show HDF5 objects as NetCDF-4 does: dimensions, attributes and fill values for xarray. No I/O here.

NetCDF-4 stores dimensions as HDF5 dimension scales: datasets to which other datasets refer by an attribute. Axes
without scales get dimensions ``phony_dim_N``, as in h5netcdf and netCDF-C: the datasets of a group share dimensions of
equal length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import PACKING, encode_fill_value
from refshard_fs.core.keys import join, parent
from refshard_fs.core.version_3 import encode_for_xarray
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datatypes import (
    MOST_TEXT,
    Datatype,
    decode_attribute,
    decode_references,
    make_little_endian,
    recast,
    split_members,
)
from refshard_fs.formats.hdf5.structure import Attribute, ChunkedLayout, HDF5Object

# Attributes that describe the structure of the file: hidden, as in h5netcdf.
HIDDEN: Final = frozenset(
    ["REFERENCE_LIST", "CLASS", "DIMENSION_LIST", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict",
     "_NCProperties"]
)  # fmt: skip
FILL: Final = "_FillValue"
# Attributes that decide how readers decode values or name dimensions. The empty name stands for unreadable names.
DECIDING: Final = HIDDEN | {
    "", FILL, "missing_value", "scale_factor", "add_offset", "_Unsigned", "units", "calendar", "dtype"
}  # fmt: skip

# Attributes by which AnnData recognises a dataset of compounds. AnnData refuses a group with these attributes, and
# reads a group without them as a dict.
_ANNDATA_ATTRIBUTES: Final = ("encoding-type", "encoding-version")

# The beginning of the attribute NAME of a scale that is only a dimension.
_NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable."
_NO_COORDINATE: Final = "_nc4_non_coord_"  # prefix in HDF5 of a variable that has the name of an unrelated dimension


class NetCDFVariable(msgspec.Struct, frozen=True):
    """The description of a dataset that is shown as an array at ``path``.

    An unlimited dimension may have grown beyond the dataset: then ``shape`` has the size of the dimension.
    ``fill_value`` is JSON for zarr's metadata. ``fills_itself``: zarr fills a missing chunk with the same values that
    HDF5 reads in an unwritten chunk.
    """

    path: str
    shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    fill_value: Any
    fills_itself: bool


class Description(NamedTuple):
    """The variables by the paths of their datasets, the attributes of groups, and reasons why objects are not shown.

    ``unlimited`` are the names of the unlimited dimensions of each group. ``attribute_dtypes`` are dtypes by name of
    attribute (see `_collect_dtypes`), for each path at which a variable or group is shown.
    """

    variables: Mapping[str, NetCDFVariable]
    groups: Mapping[str, Mapping[str, Any]]
    reports: Mapping[str, str]
    unlimited: Mapping[str, Sequence[str]]
    attribute_dtypes: Mapping[str, Mapping[str, str]]


def split_compounds(objects: Mapping[str, HDF5Object]) -> dict[str, HDF5Object]:
    """Replace each dataset of compounds that zarr cannot hold by a group with an array for each member.

    Compounds within these compounds are groups, too. Other compounds are shown as little-endian.
    """
    result = dict(objects)
    pending = list(objects.values())
    while pending:
        hdf5_object = pending.pop()
        path, members = (
            hdf5_object.path,
            [] if hdf5_object.datatype is None or hdf5_object.is_type else split_members(hdf5_object.datatype),
        )
        if not members:
            if hdf5_object.datatype is not None:
                result[path] = msgspec.structs.replace(hdf5_object, datatype=make_little_endian(hdf5_object.datatype))
            continue
        attributes = {name: value for name, value in hdf5_object.attributes.items() if name not in _ANNDATA_ATTRIBUTES}
        result[path] = HDF5Object(
            path, hdf5_object.address, True, attributes, unread=hdf5_object.unread, order=hdf5_object.order
        )
        dimensions = {name: value for name, value in hdf5_object.attributes.items() if name == "DIMENSION_LIST"}
        for number, member in enumerate(members):
            name = member.fields[0].name
            result[join(path, name)] = array = msgspec.structs.replace(
                hdf5_object,
                path=join(path, name),
                address=-1,
                order=(*hdf5_object.order, (number, name)),
                attributes=dimensions,
                datatype=member,
                refusal=hdf5_object.refusal or member.refusal,
            )
            pending.append(array)
    return result


def describe(objects: Mapping[str, HDF5Object], zarr_format: int, paths: Mapping[int, str]) -> Description:
    """Describe ``objects`` (by path; the root's is empty) for metadata of ``zarr_format``.

    ``paths`` are the paths of objects by address: references are shown as paths.
    """
    _check_text(objects, max(map(len, paths.values()), default=0))
    objects = {path: _refuse_if_undecidable(hdf5_object) for path, hdf5_object in objects.items()}
    dimensions = _Dimensions(objects)
    is_netcdf = any(
        "_NCProperties" in hdf5_object.attributes or is_scale(hdf5_object) for hdf5_object in objects.values()
    )
    variables: dict[str, NetCDFVariable] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    reports: dict[str, str] = {}
    dtypes: dict[str, Mapping[str, str]] = {}
    for path, hdf5_object in objects.items():
        for name, reason in hdf5_object.unread.items():
            label = f"attribute {name!r}" if name else "attributes"
            reports[f"{label} of {path or '/'!r}"] = f"cannot be read: {reason}"
        if hdf5_object.is_group:
            groups[path] = _show_attributes(hdf5_object, is_netcdf, paths)
            dtypes[path] = _collect_dtypes(hdf5_object, groups[path])
        elif hdf5_object.is_type:
            continue
        elif hdf5_object.refusal is not None:
            reports[path] = hdf5_object.refusal
        elif hdf5_object.shape is None:
            reports[path] = "it is a dataset without a shape (a null dataspace): expected a shape"
        elif hdf5_object.datatype is None:
            reports[path] = "it is a dataset without a datatype: expected a datatype message"
        elif dimensions.is_dimension_only(path):
            continue  # only the dimension's name is shown, in other variables
        else:
            names, shape = dimensions.describe(path)
            group, name = parent(path)
            plain = join(group, name.replace(_NO_COORDINATE, ""))
            is_taken = plain != path and plain in objects and not dimensions.is_dimension_only(plain)
            try:
                shown_attributes = _show_attributes(hdf5_object, is_netcdf, paths)
                fill_value, attributes, fills = _choose_fill(
                    hdf5_object, hdf5_object.datatype, zarr_format, shown_attributes
                )
            except ValueError as e:
                reports[path] = str(e)
                continue
            path_shown = path if is_taken else plain
            dtypes[path_shown] = _collect_dtypes(hdf5_object, attributes)
            variables[path] = NetCDFVariable(path_shown, shape, names, attributes, fill_value, fills)
    return Description(variables, groups, reports, dimensions.list_unlimited(), dtypes)


def _refuse_if_undecidable(hdf5_object: HDF5Object) -> HDF5Object:
    """Return the object. If it is a dataset with an unreadable attribute in `DECIDING`, give it a refusal."""
    unread_names = [] if hdf5_object.is_group else [name for name in hdf5_object.unread if name in DECIDING]
    if not unread_names or hdf5_object.refusal is not None:
        return hdf5_object
    label = f"its attribute {unread_names[0]!r}" if unread_names[0] else "one of its attributes"
    refusal = f"{label}, which may change its values, cannot be read: {hdf5_object.unread[unread_names[0]]}"
    return msgspec.structs.replace(hdf5_object, refusal=refusal, unread={})


# Dimensions.


class _Scale(NamedTuple):
    """One dimension of a group."""

    name: str
    size: int
    is_unlimited: bool
    number: int  # NetCDF's dimension id


class _Dimensions:
    """The dimensions of all groups."""

    def __init__(self, objects: Mapping[str, HDF5Object]) -> None:
        self._objects = objects
        self._by_address = {hdf5_object.address: path for path, hdf5_object in objects.items()}
        self._axes = {
            path: self._find_scales(hdf5_object) for path, hdf5_object in objects.items() if not hdf5_object.is_group
        }
        members: dict[str, list[str]] = {path: [] for path, hdf5_object in objects.items() if hdf5_object.is_group}
        extents: dict[str, int] = {}  # path of a scale: the largest extent of the datasets along it
        for path, scales in sorted(self._axes.items()):
            members.setdefault(parent(path)[0], []).append(path)
            for scale, extent in zip(scales, objects[path].shape or (), strict=False):
                if scale is not None:
                    extents[scale] = max(extents.get(scale, 0), extent)
        self._scales: dict[str, dict[str, _Scale]] = {}
        self._phony: dict[str, list[tuple[str, int]]] = {}
        self._phony_counts: dict[str, int] = {}  # by group: the number of phony dimensions in it and its parents
        count = 0
        for group in sorted(members, key=lambda path: path.split("/") if path else []):
            self._scales[group] = {}
            for path in members[group]:
                hdf5_object = objects[path]
                if is_scale(hdf5_object) and hdf5_object.shape:
                    is_unlimited = hdf5_object.maxshape == (None,)
                    size = max(hdf5_object.shape[0], extents.get(path, 0)) if is_unlimited else hdf5_object.shape[0]
                    number, *_ = _get_integers(hdf5_object, "_Netcdf4Dimid") or [count]
                    name = parent(path)[1]
                    self._scales[group][name] = _Scale(name, size, is_unlimited, number)
                    count += 1
            self._phony[group] = []
            self._phony_counts[group] = self._phony_counts.get(parent(group)[0], 0) if group else 0
            self._add_phony(group, members[group])
        # `_make_phony` adds dimensions to any group: their names must not be in use in groups below.
        self._next_phony = max(self._phony_counts.values(), default=0)

    def list_unlimited(self) -> dict[str, list[str]]:
        """Return the names of the unlimited dimensions of each group; an empty list for a group without any."""
        return {
            group: [scale.name for scale in scales.values() if scale.is_unlimited]
            for group, scales in self._scales.items()
        }

    def is_dimension_only(self, path: str) -> bool:
        """Return whether a dataset is only a dimension and not a variable."""
        hdf5_object = self._objects[path]
        return not hdf5_object.is_group and _NO_VARIABLE in _get_text(hdf5_object, "NAME")

    def describe(self, path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names of a dataset's dimensions, and its shape.

        An unlimited dimension may have grown beyond the dataset: then the shape has the size of the dimension.
        """
        dataset = self._objects[path]
        group, shape = parent(path)[0], dataset.shape or ()
        visible = self._list_visible(group)
        names = self._name_axes(path, visible)
        if isinstance(dataset.layout, ChunkedLayout):
            sizes = [visible[name].size if name in visible and visible[name].is_unlimited else 0 for name in names]
            shape = tuple(map(max, shape, sizes))
        inner = dataset.datatype.shape if dataset.datatype is not None else ()
        return names + tuple(self._make_phony(group, extent) for extent in inner), shape

    def _name_axes(self, path: str, visible: Mapping[str, _Scale]) -> tuple[str, ...]:
        dataset = self._objects[path]
        ndim = len(dataset.shape or ())
        if is_scale(dataset):
            numbers = _get_integers(dataset, "_Netcdf4Coordinates")
            by_number = {scale.number: scale.name for scale in reversed(list(visible.values()))}
            if len(numbers) == ndim and all(number in by_number for number in numbers):
                return tuple(by_number[number] for number in numbers)
        labels = [None if scale is None else parent(scale)[1] for scale in self._axes[path]] or [None] * ndim
        for axis, scale in enumerate(self._axes[path]):  # a scale whose length differs from the axis gives no name
            visible_scale = visible.get(labels[axis] or "")
            extent = (dataset.shape or ())[axis]
            if (
                visible_scale is not None
                and not visible_scale.is_unlimited
                and scale in self._objects
                and visible_scale.size != extent
            ):
                labels[axis] = self._make_phony(parent(path)[0], extent)
        group, name = parent(path)
        if ndim == 1 and name in visible and None in labels:
            return (name,)
        unused = [(scale.name, scale.size) for scale in self._scales.get(group, {}).values()] + self._phony[group]
        for axis, extent in enumerate(dataset.shape or ()):
            if labels[axis] is None:
                label = next((name for name, size in unused if size == extent and name not in labels), None)
                labels[axis] = label = label or self._make_phony(group, extent)
                unused.append((label, extent))
        return tuple(label for label in labels if label is not None)

    def _list_visible(self, group: str) -> dict[str, _Scale]:
        """Return the dimensions that datasets of a group may have: of the group first, then of its parents."""
        inherited = self._list_visible(parent(group)[0]) if group else {}
        group_scales = self._scales.get(group, {})
        return group_scales | {name: scale for name, scale in inherited.items() if name not in group_scales}

    def _find_scales(self, dataset: HDF5Object) -> tuple[str | None, ...]:
        """Return the path of the scale of each axis (None: no scale). The last of several scales of an axis counts."""
        attribute = dataset.attributes.get("DIMENSION_LIST")
        if attribute is None or attribute.shape != (len(dataset.shape or ()),):
            return ()
        lists = decode_references(attribute.datatype, attribute.raw, attribute.heap)
        return tuple(self._by_address.get(addresses[-1]) if addresses else None for addresses in lists)

    def _add_phony(self, group: str, members: Sequence[str]) -> None:
        """Make dimensions for a group's datasets without scales: as many of each length as a single dataset needs."""
        needed_counts: Counter[int] = Counter()
        for path in members:
            if not is_scale(self._objects[path]) and not any(self._axes[path]):
                needed_counts |= _count(self._objects[path].shape or ())
        scale_counts = _count(scale.size for scale in self._scales[group].values() if not scale.is_unlimited)
        for size, count in needed_counts.items():
            for _ in range(scale_counts[size], count):
                self._phony[group].append((f"phony_dim_{self._phony_counts[group]}", size))
                self._phony_counts[group] += 1

    def _make_phony(self, group: str, size: int) -> str:
        name = f"phony_dim_{self._next_phony}"
        self._next_phony += 1
        self._phony[group].append((name, size))
        return name


def _count(lengths: Iterable[int]) -> Counter[int]:
    """Count equal ``lengths``. `Counter(lengths)` can take milliseconds more, to look up an abstract class."""
    counts: Counter[int] = Counter()
    for length in lengths:
        counts[length] += 1
    return counts


def is_scale(hdf5_object: HDF5Object) -> bool:
    """Return whether a dataset is a dimension scale."""
    return _get_text(hdf5_object, "CLASS") == "DIMENSION_SCALE"


# Attributes and fill values.


def _check_text(objects: Mapping[str, HDF5Object], longest: int) -> None:
    """Raise ManifestError if texts of attributes take more than `MOST_TEXT` bytes: many attributes may share one text.

    Each address in an attribute may become a path of up to ``longest`` characters.
    """
    attributes = [attribute for hdf5_object in objects.values() for attribute in hdf5_object.attributes.values()]
    total = sum(attribute.referred for attribute in attributes)
    total += sum(
        (len(attribute.raw) + attribute.referred) // 8 * longest
        for attribute in attributes
        if attribute.datatype.shown is None
        and attribute.datatype.kind != "vlen-string"
        and attribute.name not in HIDDEN
    )
    if total > MOST_TEXT:
        raise ManifestError(f"its attributes take {total} bytes of text and references: expected at most {MOST_TEXT}")


def _show_attributes(hdf5_object: HDF5Object, is_netcdf: bool, paths: Mapping[int, str]) -> dict[str, Any]:
    """Return the attributes of an object as JSON; references become ``paths``.

    In a NetCDF file, an array of one element becomes this element, as in NetCDF's libraries. In another file, this
    applies only to the attributes by which xarray decodes values.
    """
    result: dict[str, Any] = {}
    for name, attribute in hdf5_object.attributes.items():
        if name not in HIDDEN and attribute.datatype.has_values:
            value = _decode_value(attribute, paths)
            is_single = attribute.shape == (1,) and (is_netcdf or name in DECIDING)
            result[name] = _convert_to_json(_unwrap_single(value) if is_single else value)
    datatype = hdf5_object.datatype
    if datatype is not None and datatype.kind == "enum" and "flag_values" not in result:
        result["flag_values"] = list(datatype.members.values())
        result["flag_meanings"] = " ".join("_".join(name.split()) for name in datatype.members)
    return result


def _decode_value(attribute: Attribute, paths: Mapping[int, str]) -> Any:
    return decode_attribute(attribute.datatype, attribute.shape, attribute.raw, attribute.heap, paths)


def _unwrap_single(value: Any) -> Any:
    """Unwrap a list or an array of one element, as h5netcdf does."""
    if (isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim)) and len(value) == 1:
        return value[0]
    return value


def _convert_to_json(value: Any) -> Any:
    """Convert numpy's values to JSON values."""
    match value:
        case np.ndarray() if not value.size:  # its shape may claim any number of empty rows
            return []
        case np.ndarray() | np.generic():
            return _convert_to_json(value.astype(str).tolist() if value.dtype.kind in "mM" else value.tolist())
        case list() | tuple():
            return [_convert_to_json(item) for item in value]
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case complex():
            return [value.real, value.imag]
    return value


def _get_text(hdf5_object: HDF5Object, name: str) -> str:
    attribute = hdf5_object.attributes.get(name)
    if attribute is None or attribute.datatype.kind not in ("string", "vlen-string"):
        return ""
    value = _unwrap_single(_decode_value(attribute, {}))
    return value if isinstance(value, str) else ""


def _get_integers(hdf5_object: HDF5Object, name: str) -> list[int]:
    attribute = hdf5_object.attributes.get(name)
    if attribute is None or attribute.datatype.kind != "integer":
        return []
    return [int(item) for item in np.ravel(_decode_value(attribute, {}))]


def _collect_dtypes(hdf5_object: HDF5Object, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return dtypes that JSON loses and xarray needs: of packing attributes, and of complex numbers."""
    dtypes: dict[str, str] = {}
    for name, attribute in hdf5_object.attributes.items():
        dtype = attribute.datatype.shown
        if name in attributes and dtype is not None and dtype.kind in ("iufc" if name in PACKING else "c"):
            dtypes[name] = dtype.name
    return dtypes


def _choose_fill(
    dataset: HDF5Object, datatype: Datatype, zarr_format: int, attributes: dict[str, Any]
) -> tuple[Any, dict[str, Any], bool]:
    """Return the fill value in a variable's metadata, its attributes, and whether zarr and HDF5 fill the same values.

    xarray masks the fill value of zarr version 2, so there it must be the attribute ``_FillValue`` or None. With zarr
    version 3, xarray masks the attribute, so the fill value can be the fill value of HDF5.
    """
    masked, unwritten = _parse_fill_attribute(dataset), _convert_fill(dataset, datatype)
    if masked is not None:
        attributes.pop(FILL, None)
    if zarr_format == 2:
        # With the fill value None, zarr-python 2 leaves missing chunks uninitialised; zarr-python 3 fills them with
        # zeros (times with NaT), and 3.1 fills texts with "0".
        if masked is None:
            is_zero = unwritten is not None and unwritten.count(0) == len(unwritten)
            is_plain = not datatype.fields and (datatype.shown is None or datatype.shown.kind not in "mM")
            return None, attributes, is_zero and is_plain and (zarr_major() or 3) > 2
        return _encode_fill(masked, datatype), attributes, masked == unwritten
    if masked is not None:
        value = _encode_fill(masked, datatype)
        attributes[FILL] = value if datatype.shown is None else encode_for_xarray(value, datatype.shown)
    return None if unwritten is None else _encode_fill(unwritten, datatype), attributes, unwritten is not None


def _parse_fill_attribute(dataset: HDF5Object) -> bytes | None:
    """Return the value of the attribute ``_FillValue`` as one element for zarr; None if there is none.

    The attribute may be of another datatype; it counts only if the dataset's datatype can hold the value.
    """
    attribute, datatype = dataset.attributes.get(FILL), dataset.datatype
    if attribute is None or datatype is None or attribute.datatype.refusal is not None:
        return None
    if datatype.kind == "vlen-string":
        text = _get_text(dataset, FILL)
        return text.encode("utf-8", "surrogateescape") if text else None
    if datatype.shown is None or attribute.datatype.shown is None or attribute.shape not in ((), (1,)):
        return None
    fill = recast(attribute.datatype, attribute.raw).ravel()
    if fill.dtype == datatype.shown:
        return fill.tobytes() if fill.size == 1 else None
    try:
        with np.errstate(all="ignore"):
            converted = fill.astype(datatype.shown)
            return converted.tobytes() if np.array_equal(converted.astype(fill.dtype), fill, equal_nan=True) else None
    except (ValueError, TypeError, OverflowError):
        return None


def _convert_fill(dataset: HDF5Object, datatype: Datatype) -> bytes | None:
    """Return the element that HDF5 reads where nothing was written, converted for zarr.

    None if zarr cannot hold this fill value: in an array datatype, the elements of the fill value may differ.
    """
    if datatype.inner.shown is None:
        return None if dataset.fill is not None and any(dataset.fill) else b""
    raw = dataset.fill or bytes(datatype.size)
    elements = recast(datatype, raw).tobytes()
    single = elements[: datatype.shown.itemsize] if datatype.shown is not None else b""
    return single if single * (len(elements) // max(len(single), 1)) == elements else None


def _encode_fill(fill: bytes, datatype: Datatype) -> Any:
    """Encode a fill value, given as the bytes of one element, as JSON."""
    if datatype.is_text:
        return fill.decode("utf-8", "surrogateescape")
    if datatype.shown is None:
        return None
    return encode_fill_value(fill, datatype.shown)

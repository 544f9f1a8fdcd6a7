"""Decide whether a group of an HDF5 file can be shown without the other groups of the file. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refshard_fs.core.keys import is_within, parent
from refshard_fs.formats.hdf5.datatypes import decode_references
from refshard_fs.formats.hdf5.netcdf4 import DECIDING, HIDDEN, is_scale
from refshard_fs.formats.hdf5.objects import list_scales
from refshard_fs.formats.hdf5.structure import Attribute, HDF5Object, VirtualLayout


def is_self_contained(objects: Mapping[str, HDF5Object], group: str, *, has_all_above: bool) -> bool:
    """Return whether ``group`` and its groups look the same if only ``objects`` are known; False in doubt.

    ``objects`` (by path) are all objects in the group, the groups above it, and the dimension scales in those;
    if it ``has_all_above``, also all other objects directly in the groups above it. These things need other objects:
    dimensions without a scale, whose numbers continue the numbers in the groups above; unlimited dimensions, which
    have the length of the longest array in any group; and references that are shown as paths.
    """
    if group not in objects or not objects[group].is_group:
        return False
    is_netcdf = any(is_scale(each) or "_NCProperties" in each.attributes for each in objects.values())
    if not is_netcdf and any(_depends_on_writer(each) for each in objects.values()):
        return False
    by_address = {each.address: each for each in objects.values()}
    shown = [each for path, each in objects.items() if is_within(path, group)]
    if has_all_above:  # dimensions without a scale are numbered, after those of the groups above
        shown += [each for path, each in objects.items() if path and is_within(group, parent(path)[0])]
    shown += [by_address[address] for address in list_scales(shown) if address in by_address]
    return all(_is_complete(each, by_address, group, has_all_above) for each in shown)


def _depends_on_writer(hdf5_object: HDF5Object) -> bool:
    """Return whether an attribute is shown in another way if NetCDF's library wrote the file."""
    return any(each.shape == (1,) and each.name not in DECIDING for each in hdf5_object.attributes.values())


def _is_complete(
    hdf5_object: HDF5Object, by_address: Mapping[int, HDF5Object], group: str, has_all_above: bool
) -> bool:
    if any(_shows_paths(attribute) for attribute in hdf5_object.attributes.values()):
        return False
    if hdf5_object.is_group or hdf5_object.is_type or hdf5_object.refusal is not None:
        return True
    datatype, shape = hdf5_object.datatype, hdf5_object.shape
    if datatype is None or shape is None or isinstance(hdf5_object.layout, VirtualLayout):
        return False
    if datatype.shape or (datatype.shown is None and datatype.kind != "vlen-string"):
        return False
    if is_scale(hdf5_object):
        has_number = "_Netcdf4Coordinates" not in hdf5_object.attributes or "_Netcdf4Dimid" in hdf5_object.attributes
        is_used_here = hdf5_object.maxshape == shape or (
            is_within(parent(hdf5_object.path)[0], group) and _is_used_within(hdf5_object, by_address)
        )
        return len(shape) == 1 and has_number and is_used_here
    if "DIMENSION_LIST" not in hdf5_object.attributes:
        return has_all_above or not shape
    scales = _list_scales(hdf5_object, by_address, len(shape))
    return all(_is_scale_of(scale, length) for scale, length in zip(scales, shape, strict=True))


def _is_scale_of(scale: HDF5Object | None, length: int) -> bool:
    """Return whether a scale, if it is known, names an axis of ``length``."""
    if scale is None or scale.shape is None or len(scale.shape) != 1:
        return False
    return scale.shape == (length,) or scale.maxshape != scale.shape


def _shows_paths(attribute: Attribute) -> bool:
    """Return whether an attribute may contain references, which are shown as the paths of other objects."""
    datatype = attribute.datatype
    return attribute.name not in HIDDEN and datatype.shown is None and datatype.kind != "vlen-string"


def _list_scales(dataset: HDF5Object, by_address: Mapping[int, HDF5Object], ndim: int) -> Sequence[HDF5Object | None]:
    """Return the scale of each axis; None for an axis without one, or whose scale is not known."""
    attribute = dataset.attributes.get("DIMENSION_LIST")
    if attribute is None or attribute.shape != (ndim,):
        return [None] * ndim
    lists = decode_references(attribute.datatype, attribute.raw, attribute.heap)
    if len(lists) != ndim:
        return [None] * ndim
    return [by_address.get(addresses[-1]) if addresses else None for addresses in lists]


def _is_used_within(scale: HDF5Object, by_address: Mapping[int, HDF5Object]) -> bool:
    """Return whether all datasets along a scale, which it lists with the number of their axis, are known."""
    attribute = scale.attributes.get("REFERENCE_LIST")
    if attribute is None:
        return True
    fields = attribute.datatype.fields
    if len(fields) != 2 or fields[0].datatype.kind != "reference":
        return False
    size, reference = attribute.datatype.size, fields[0].datatype.size
    starts = range(fields[0].offset, len(attribute.raw), size)
    return all(int.from_bytes(attribute.raw[start : start + reference], "little") in by_address for start in starts)

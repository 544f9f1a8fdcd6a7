"""Read the scientific data sets of an HDF4 file from its Vgroups and Vdatas. No I/O here.

Since version 3.3, the HDF4 library writes a Vgroup for each data set. Before, it wrote a numeric data group (NDG), in
which dimensions have no names: they are named as the library names them, fakeDim0, fakeDim1, ...
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.format import decode_text
from refshard_fs.core.model import Steps
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.hdf4.chunks import MOST_DIMENSIONS, Layout, find_layout
from refshard_fs.formats.hdf4.elements import Elements, Key, Tag
from refshard_fs.formats.hdf4.objects import (
    Vdata,
    Vgroup,
    decode_value,
    parse_number_type,
    parse_vdata,
    parse_vgroup,
)

SMALL: Final = 64 << 10  # bytes: values of a Vdata up to this size are read on opening, since they may be attributes
FEW: Final = 64  # if at most this number of data sets are chunked, their tables of chunks are read on opening

_NAMES: Final = {Tag.VGROUP: "Vgroup", Tag.VDATA: "Vdata"}
_FILE, _VARIABLE, _ATTRIBUTE = "CDF0.0", "Var0.0", "Attr0.0"  # classes of Vgroups and Vdatas
_DIMENSION, _UNLIMITED = "Dim0.0", "UDim0.0"
_COUNTED, _VALUED, _COORDINATE = "DimVal0.0", "DimVal0.1", "CoordVar"
_IMAGE_ATTRIBUTE: Final = "RIATTR0.0C"
_FILL, _IMAGE_FILL = "_FillValue", "FillValue"
# Prefixes of the classes of Vdatas that the library writes: these are not tables of users.
_LIBRARY_CLASSES: Final = ("Attr", "DimVal", "SDSVar", "CoordVar", "RIATTR", "_HDF")
# Attributes that are texts, by the tag of the element that has the texts of a data set and of its dimensions.
_TEXTS: Final = {704: "long_name", 705: "units", 706: "format", 708: "coordsys"}
_MOST_MEMBERS: Final = 1 << 10  # the most members of a numeric data group that are read
# The attributes that a calibration gives, in its order.
_CALIBRATED: Final = ("scale_factor", "scale_factor_err", "add_offset", "add_offset_err")


def _name_element(key: Key) -> str:
    """Return the name of an element in errors and reports."""
    return f"{_NAMES[key[0]]} {key[1]}" if key[0] in _NAMES else f"element {key}"


class Dimension(NamedTuple):
    """A dimension; ``length`` is None if it is unlimited."""

    name: str
    length: int | None


class Attributes(NamedTuple):
    """Attributes: ``shown`` as JSON, and the ``fill`` value.

    ``dtypes`` has the data types of scale_factor and add_offset, by name.
    """

    shown: dict[str, Any]
    dtypes: dict[str, str]
    fill: Any = None


class DataSet(NamedTuple):
    """A scientific data set. ``data`` is the key of its values, and ``layout`` says how these are stored.

    ``layout`` is None if the values were never written.
    """

    name: str
    key: Key  # the key of its group identifies the data set
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Attributes
    data: Key | None
    layout: Layout | None
    is_coordinate: bool = False
    unlimited: str = ""  # the name of its unlimited dimension; "" if all have a length
    values: bytes | None = None  # the values of a dimension's scale in files of versions before 3.3


class Tree:
    """The Vgroups and Vdatas of a file by reference number; they describe data sets."""

    def __init__(self, elements: Elements) -> None:
        self.elements = elements
        self.groups: dict[int, Vgroup] = {}
        self.tables: dict[int, Vdata] = {}
        self.reports: dict[str, str] = {}
        self._dimensions: dict[int, Dimension | None] = {}
        self._shown_most = 2 * elements.file.size + (1 << 20)  # the most bytes of names and attributes that are shown
        self._shown_left = self._shown_most

    def read_metadata(self) -> Steps[None]:
        """Read the elements that are likely to be metadata in one round, and parse the Vgroups and Vdatas."""
        elements = self.elements
        special = [
            key for key, descriptor in elements.descriptors.items() if descriptor.is_special and key[0] == Tag.DATA
        ]
        keys = [
            *special,
            *self.list_keys(Tag.VGROUP, Tag.VDATA, Tag.NUMBER_TYPE, Tag.DATA_GROUP, Tag.DIMENSIONS, Tag.OLD_DATA_GROUP),
        ]
        keys += self.list_keys(
            *_TEXTS, Tag.SCALES, Tag.LIMITS, Tag.CALIBRATION, Tag.IMAGE_DIMENSIONS, Tag.IMAGE_GROUP, Tag.PALETTE
        )
        keys += [key for key in self.list_keys(Tag.VDATA_VALUES) if elements.descriptors[key].length <= SMALL]
        blocks = [key for key in self.list_keys(Tag.LINKED) if elements.descriptors[key].length <= SMALL]
        if len(special) <= FEW and len(blocks) <= 16 * FEW:  # most linked blocks belong to tables of chunks
            keys += blocks
        # An element that ends beyond the end of the file is not read: the data sets that need it are reported.
        descriptors = [(key, elements.descriptors[key]) for key in keys]
        yield from elements.load(
            key for key, descriptor in descriptors if descriptor.offset + descriptor.length <= elements.file.size
        )
        for key in self.list_keys(Tag.VGROUP, Tag.VDATA):
            data = yield from elements.read_contents(key)
            tag, ref = key
            try:
                if tag == Tag.VGROUP:
                    self.groups[ref] = parse_vgroup(data)
                else:
                    self.tables[ref] = parse_vdata(data)
            except ValueError as e:
                self.reports[_name_element(key)] = str(e)

    def list_keys(self, *tags: int) -> list[Key]:
        """Return the keys of the elements that have one of the ``tags``."""
        return [key for key in self.elements.descriptors if key[0] in tags]

    def count_shown_bytes(self, count: int) -> None:
        """Count bytes of names and attributes. Raise DamagedIndex if they are far more than the bytes of the file."""
        self._shown_left -= count
        if self._shown_left < 0:
            raise self.elements.file.make_error(
                f"its arrays share names and attributes, and have more than {self._shown_most} bytes of them in all: "
                f"expected fewer in a file of {self.elements.file.size} bytes"
            )

    def read_attributes(self, members: Iterable[Key]) -> Steps[Attributes]:
        """Read the attributes among the members of a Vgroup."""
        attributes = Attributes({}, {})
        for tag, ref in members:
            table, key = self.tables.get(ref) if tag == Tag.VDATA else None, (Tag.VDATA_VALUES, ref)
            if table is None or table.kind not in (_ATTRIBUTE, _IMAGE_ATTRIBUTE) or len(table.fields) != 1:
                continue
            if key not in self.elements.descriptors:
                continue
            field = table.fields[0]
            size = table.records * field.order * field.dtype.itemsize
            data = (yield from self.elements.read_contents(key))[:size]
            name = table.name if table.kind == _ATTRIBUTE else field.name
            self.count_shown_bytes(len(name) + len(data))
            if name in (_FILL, _IMAGE_FILL) and len(data) >= field.dtype.itemsize:
                attributes = attributes._replace(fill=np.frombuffer(data, field.dtype, 1)[0])
                continue
            attributes.shown[name] = decode_value(field, data)
            if name in PACKING and field.dtype.kind == "f":
                attributes.dtypes[name] = field.dtype.str
        return attributes

    def read_data_sets(self) -> Steps[tuple[Attributes, list[DataSet]]]:
        """Read the attributes of the file, and its data sets in the file's order. Report data sets that are damaged."""
        roots = [ref for ref in sorted(self.groups) if self.groups[ref].kind == _FILE]
        data_sets: list[DataSet] = []
        if not roots:
            dimensions = 0
            for key in self.list_keys(Tag.DATA_GROUP) or self.list_keys(Tag.OLD_DATA_GROUP):
                old_data_sets = yield from self._run_and_report(
                    f"Data-Set-{key[1]}", self._read_old_data_sets(key, dimensions)
                )
                dimensions += len(old_data_sets[-1].dimensions) if old_data_sets else 0
                data_sets += old_data_sets
            return Attributes({}, {}), data_sets
        root = self.groups[roots[0]]
        for tag, ref in root.members:
            group = self.groups.get(ref) if tag == Tag.VGROUP else None
            if group is not None and group.kind == _VARIABLE:
                data_sets += yield from self._run_and_report(group.name, self._read_data_set(group, ref))
            elif group is not None and group.kind not in (_DIMENSION, _UNLIMITED):
                self.reports[group.name] = f"it is a Vgroup of the class {group.kind!r}: expected {_VARIABLE!r}"
            elif (group is None and tag == Tag.VGROUP) or (tag, ref) not in self.elements.descriptors:
                reason = "expected it in the file, as the Vgroup of all data sets lists it; found none"
                self.reports.setdefault(_name_element((tag, ref)), reason)
        return (yield from self.read_attributes(root.members)), data_sets

    def _run_and_report(self, name: str, steps: Steps[list[DataSet]]) -> Steps[list[DataSet]]:
        """Return the data sets that ``steps`` return. If ``steps`` raise an error, report the error under ``name``."""
        try:
            return (yield from steps)
        except (ValueError, struct.error, DamagedIndex) as e:
            self.reports[name] = str(e)
        return []

    def _read_data_set(self, group: Vgroup, ref: int) -> Steps[list[DataSet]]:
        dimensions: list[Dimension] = []
        dtype: np.dtype[Any] | None = None
        data, key = None, (Tag.VGROUP, ref)
        is_coordinate = False
        for tag, member in group.members:
            is_there = (tag, member) in self.elements.descriptors
            if (tag == Tag.VGROUP and member not in self.groups) or (tag == Tag.VDATA and member not in self.tables):
                is_there = False
            if not is_there:
                name = _name_element((tag, member))
                raise ValueError(f"it lists {name}: expected this element in the file, found none that can be read")
            if tag == Tag.VGROUP:
                dimension = yield from self._read_dimension(member)
                dimensions += [dimension] if dimension is not None else []
            elif tag == Tag.NUMBER_TYPE:
                dtype = parse_number_type((yield from self.elements.read_stored_bytes((tag, member))))
            elif tag == Tag.DATA:
                data = tag, member
            elif tag == Tag.DATA_GROUP:
                key = tag, member
            elif tag == Tag.VDATA:
                is_coordinate |= self.tables[member].kind == _COORDINATE
        if dtype is None:
            raise ValueError("expected an element with a number type in its Vgroup, found none")
        layout = yield from find_layout(self.elements, data)
        attributes = yield from self.read_attributes(group.members)
        names = tuple(dimension.name for dimension in dimensions)
        self.count_shown_bytes(len(group.name) + sum(map(len, names)))
        shape = self._find_shape(dimensions, layout, dtype.itemsize)
        unlimited = names[0] if dimensions and dimensions[0].length is None else ""
        return [DataSet(group.name, key, names, shape, dtype, attributes, data, layout, is_coordinate, unlimited)]

    def _find_shape(self, dimensions: list[Dimension], layout: Layout | None, itemsize: int) -> tuple[int, ...]:
        """Return the shape of a data set. The length of an unlimited dimension follows from the number of values."""
        lengths = [dimension.length for dimension in dimensions]
        if len(lengths) > MOST_DIMENSIONS:
            raise ValueError(f"it has {len(lengths)} dimensions: expected at most {MOST_DIMENSIONS}")
        if lengths and lengths[0] is None:
            step = math.prod(length or 0 for length in lengths[1:]) * itemsize
            lengths[0] = 0 if layout is None or step <= 0 else layout.length // step
        shape = tuple(length for length in lengths if length is not None)
        if len(shape) < len(lengths) or min(shape, default=0) < 0 or math.prod(shape) * itemsize >= 1 << 40:
            raise ValueError(
                f"its dimensions have the lengths {lengths}: expected lengths of at least 0, and less than 1 TiB in all"
            )
        if layout is not None and layout.shape is not None:
            size = math.prod(shape) * itemsize
            if (layout.shape, layout.length) != (shape, size):
                actual = f"{layout.length} bytes of the shape {layout.shape}"
                raise ValueError(f"its chunks have {actual}: expected {size} bytes of the shape {shape}")
        return shape

    def _read_dimension(self, ref: int) -> Steps[Dimension | None]:
        """Read the dimension that a Vgroup describes; None if it does not describe a dimension."""
        if ref in self._dimensions:
            return self._dimensions[ref]
        group = self.groups.get(ref)
        dimension: Dimension | None = None
        if group is not None and group.kind == _UNLIMITED:
            dimension = Dimension(group.name, None)
        elif group is not None and group.kind == _DIMENSION:
            dimension = Dimension(group.name, -1)
            for tag, member in group.members:
                table = self.tables.get(member) if tag == Tag.VDATA else None
                if table is not None and table.kind == _COUNTED:
                    dimension = Dimension(group.name, table.records)
                elif table is not None and table.kind == _VALUED:
                    data = yield from self.elements.read_contents((Tag.VDATA_VALUES, member))
                    dimension = Dimension(group.name, int.from_bytes(data[:4], "big", signed=True))
        self._dimensions[ref] = dimension
        return dimension

    def _read_old_data_sets(self, key: Key, first_number: int) -> Steps[list[DataSet]]:
        """Read the data set of a numeric data group, and the scales of its dimensions as data sets.

        The first dimension is named ``fakeDim{first_number}``.
        """
        members = (yield from self.elements.read_stored_bytes(key))[: 4 * _MOST_MEMBERS]
        refs: dict[int, int] = {}
        for tag, ref in struct.iter_unpack(">HH", members[: len(members) // 4 * 4]):
            if (tag, ref) not in self.elements.descriptors or tag in refs:
                problem = "two elements of this tag" if tag in refs else "none in the file"
                raise ValueError(f"it lists {_name_element((tag, ref))}: expected one such element, found {problem}")
            refs[tag] = ref

        def read(tag: int) -> Steps[bytes]:
            """Return the bytes of the element with a ``tag``; none if the group has no such element."""
            return (yield from self.elements.read_stored_bytes((tag, refs[tag]))) if tag in refs else b""

        if Tag.DIMENSIONS not in refs:
            raise ValueError("expected an element with dimensions in its group, found none")
        header = yield from read(Tag.DIMENSIONS)
        (rank,) = struct.unpack_from(">H", header)
        if rank > MOST_DIMENSIONS:
            raise ValueError(f"it has {rank} dimensions: expected at most {MOST_DIMENSIONS}")
        *lengths, _ = struct.unpack_from(f">{rank}iH", header, 2)
        dtypes = []
        for tag, ref in struct.iter_unpack(">HH", header[2 + 4 * rank :][: 4 * rank + 4]):
            dtypes.append(parse_number_type((yield from self.elements.read_stored_bytes((tag, ref)))))
        if len(dtypes) < rank + 1:
            raise ValueError(f"it has {len(dtypes)} number types: expected {rank + 1}, for values and dimensions")
        data = (Tag.DATA, refs[Tag.DATA]) if Tag.DATA in refs else None
        layout = yield from find_layout(self.elements, data)
        names = tuple(f"fakeDim{first_number + number}" for number in range(rank))
        shape = self._find_shape([*map(Dimension, names, lengths)], layout, dtypes[0].itemsize)
        # The first item is for the data set, the others are for its dimensions.
        attributes_by_axis: list[dict[str, Any]] = [{} for _ in range(rank + 1)]
        for tag, name in _TEXTS.items():
            texts = (yield from read(tag)).split(b"\0")
            for axis_attributes, text in zip(attributes_by_axis, texts, strict=False):
                if text:
                    axis_attributes[name] = decode_text(text)
        attributes = Attributes(attributes_by_axis[0], {})
        if dtypes[0].kind != "S":
            limits = np.frombuffer((yield from read(Tag.LIMITS)), dtypes[0]).tolist()
            attributes.shown.update(zip(("valid_max", "valid_min"), limits, strict=False))
        if calibration := (yield from read(Tag.CALIBRATION)):
            kind = ">f8" if len(calibration) == 36 else ">f4"
            attributes.shown.update(zip(_CALIBRATED, np.frombuffer(calibration, kind, 4).tolist(), strict=True))
            attributes.shown["calibrated_nt"] = int.from_bytes(calibration[-4:], "big")
            attributes.dtypes.update(dict.fromkeys(PACKING, kind))
        scale_data_sets = []
        scales = yield from read(Tag.SCALES)
        position = rank  # the values come after a flag for each dimension
        for number, (name, length) in enumerate(zip(names, shape, strict=True)):
            size = length * dtypes[number + 1].itemsize if scales[number : number + 1].strip(b"\0") else 0
            values = scales[position : position + size]
            position += size
            scale_layout = Layout(size, ()) if size and len(values) == size else None
            scale_attributes = Attributes(attributes_by_axis[number + 1], {})
            if scale_attributes.shown or scale_layout is not None:
                described_scale = name, (Tag.SCALES, 0), (name,), (length,), dtypes[number + 1], scale_attributes, None
                scale_data_sets.append(DataSet(*described_scale, scale_layout, is_coordinate=True, values=values))
        return [*scale_data_sets, DataSet(f"Data-Set-{key[1]}", key, names, shape, dtypes[0], attributes, data, layout)]

    def list_tables(self) -> dict[int, Vdata]:
        """Return the Vdatas that users wrote (tables), by reference number."""
        return {ref: table for ref, table in self.tables.items() if not table.kind.startswith(_LIBRARY_CLASSES)}

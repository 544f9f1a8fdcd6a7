"""The scientific data sets that Vgroups and Vdatas of an HDF4 file describe. No I/O here.

The library writes a Vgroup for each data set since version 3.3. The groups of elements that it wrote before (NDG) are
read as it reads them: dimensions have made-up names.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.model import Steps
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.hdf4.chunks import MOST_DIMENSIONS, Layout, find_layout
from refshard_fs.formats.hdf4.elements import (
    DATA,
    DATA_GROUP,
    DIMENSIONS,
    IMAGE_DIMENSIONS,
    IMAGE_GROUP,
    LINKED,
    NUMBER_TYPE,
    PALETTE,
    VDATA,
    VDATA_VALUES,
    VGROUP,
    Elements,
    Key,
)
from refshard_fs.formats.hdf4.objects import (
    Vdata,
    Vgroup,
    decode_text,
    decode_value,
    parse_number_type,
    parse_vdata,
    parse_vgroup,
)

SMALL: Final = 64 << 10  # bytes of the values of a Vdata that are read with the other metadata, whatever they are
FEW: Final = 64  # data sets whose tables of chunks are read when the file is opened

_NAMES: Final = {VGROUP: "Vgroup", VDATA: "Vdata"}
_FILE, _VARIABLE, _ATTRIBUTE = "CDF0.0", "Var0.0", "Attr0.0"  # classes of Vgroups and Vdatas
_DIMENSION, _UNLIMITED = "Dim0.0", "UDim0.0"
_COUNTED, _VALUED, _COORDINATE = "DimVal0.0", "DimVal0.1", "CoordVar"
_IMAGE_ATTRIBUTE: Final = "RIATTR0.0C"
_FILL, _IMAGE_FILL = "_FillValue", "FillValue"
_OWN: Final = (
    "Attr",
    "DimVal",
    "SDSVar",
    "CoordVar",
    "RIATTR",
    "_HDF",
)  # prefixes of the classes of Vdatas that are not tables
_SCALES, _RANGE, _CALIBRATION = 703, 707, 731  # tags of version 3.2
_TEXTS: Final = {704: "long_name", 705: "units", 706: "format", 708: "coordsys"}
_OLD_GROUP: Final = 700  # the tag of groups in version 3.1
_MOST_MEMBERS: Final = 1 << 10  # members of a group
_CALIBRATED: Final = ("scale_factor", "scale_factor_err", "add_offset", "add_offset_err")


class Dimension(NamedTuple):
    """A dimension; ``length`` is None if it is unlimited."""

    name: str
    length: int | None


class Attributes(NamedTuple):
    """Attributes, the data types of those that say how values are packed, and the fill value if there is one."""

    shown: dict[str, Any]
    dtypes: dict[str, str]
    fill: Any = None


class DataSet(NamedTuple):
    """A scientific data set: ``data`` are its values, kept as ``layout`` says; None if they were never written."""

    name: str
    key: Key  # key of its group, which identifies the data set
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Attributes
    data: Key | None
    layout: Layout | None
    is_coordinate: bool = False
    unlimited: str = ""  # its unlimited dimension
    values: bytes | None = None  # values of a scale of version 3.2


class Tree:
    """The Vgroups and Vdatas of a file, by reference number, and the data sets that they make up."""

    def __init__(self, elements: Elements) -> None:
        self.elements = elements
        self.groups: dict[int, Vgroup] = {}
        self.tables: dict[int, Vdata] = {}
        self.reports: dict[str, str] = {}
        self._dimensions: dict[int, Dimension | None] = {}
        self._left = 2 * elements.file.size + (1 << 20)  # bytes of names and attributes that are shown

    def read(self) -> Steps[None]:
        """Read all elements that may be metadata, in one round."""
        elements = self.elements
        special = [key for key, found in elements.descriptors.items() if found.is_special and key[0] == DATA]
        wanted = [*special, *self.keys(VGROUP, VDATA, NUMBER_TYPE, DATA_GROUP, DIMENSIONS, _OLD_GROUP)]
        wanted += self.keys(*_TEXTS, _SCALES, _RANGE, _CALIBRATION, IMAGE_DIMENSIONS, IMAGE_GROUP, PALETTE)
        wanted += [key for key in self.keys(VDATA_VALUES) if elements.descriptors[key].length <= SMALL]
        blocks = [key for key in self.keys(LINKED) if elements.descriptors[key].length <= SMALL]
        if len(special) <= FEW and len(blocks) <= 16 * FEW:  # most of them belong to tables of chunks
            wanted += blocks
        # If an element ends behind the file, each data set that needs it is reported.
        ends = [(key, elements.descriptors[key]) for key in wanted]
        yield from elements.load(key for key, found in ends if found.offset + found.length <= elements.file.size)
        for key in self.keys(VGROUP, VDATA):
            data = yield from elements.contents(key)
            tag, ref = key
            try:
                if tag == VGROUP:
                    self.groups[ref] = parse_vgroup(data)
                else:
                    self.tables[ref] = parse_vdata(data)
            except ValueError as e:
                self.reports[f"{'Vgroup' if tag == VGROUP else 'Vdata'} {ref}"] = str(e)

    def keys(self, *tags: int) -> list[Key]:
        """Return the elements that have one of the tags."""
        return [key for key in self.elements.descriptors if key[0] in tags]

    def spend(self, count: int) -> None:
        """Count bytes that are shown; DamagedIndex if they are far more than the bytes of the file."""
        self._left -= count
        if self._left < 0:
            raise self.elements.make_error(
                "its names and attributes take too many bytes for its size: it refers to them repeatedly"
            )

    def attributes(self, members: Iterable[Key]) -> Steps[Attributes]:
        """Return the attributes among the members of a Vgroup."""
        found = Attributes({}, {})
        for tag, ref in members:
            table, key = self.tables.get(ref) if tag == VDATA else None, (VDATA_VALUES, ref)
            if table is None or table.kind not in (_ATTRIBUTE, _IMAGE_ATTRIBUTE) or len(table.fields) != 1:
                continue
            if key not in self.elements.descriptors:
                continue
            field = table.fields[0]
            size = table.records * field.order * field.dtype.itemsize
            data = (yield from self.elements.contents(key))[:size]
            name = table.name if table.kind == _ATTRIBUTE else field.name
            self.spend(len(name) + len(data))
            if name in (_FILL, _IMAGE_FILL) and len(data) >= field.dtype.itemsize:
                found = found._replace(fill=np.frombuffer(data, field.dtype, 1)[0])
                continue
            found.shown[name] = decode_value(field, data)
            if name in PACKING and field.dtype.kind == "f":
                found.dtypes[name] = field.dtype.str
        return found

    def read_data_sets(self) -> Steps[tuple[Attributes, list[DataSet]]]:
        """Return the attributes of the file, and its data sets in their order; others are reported."""
        roots = [ref for ref in sorted(self.groups) if self.groups[ref].kind == _FILE]
        found: list[DataSet] = []
        if not roots:
            dimensions = 0
            for key in self.keys(DATA_GROUP) or self.keys(_OLD_GROUP):
                more = yield from self._run_and_report(f"Data-Set-{key[1]}", self._read_old_data_sets(key, dimensions))
                dimensions += len(more[-1].dimensions) if more else 0
                found += more
            return Attributes({}, {}), found
        root = self.groups[roots[0]]
        for tag, ref in root.members:
            group = self.groups.get(ref) if tag == VGROUP else None
            if group is not None and group.kind == _VARIABLE:
                found += yield from self._run_and_report(group.name, self._read_data_set(group, ref))
            elif group is not None and group.kind not in (_DIMENSION, _UNLIMITED):
                self.reports[group.name] = f"it is a Vgroup of the class {group.kind!r}: expected {_VARIABLE!r}"
            elif (group is None and tag == VGROUP) or (tag, ref) not in self.elements.descriptors:
                reason = "the file's group of data sets lists it, and the file does not have it"
                self.reports.setdefault(f"{_NAMES.get(tag, f'element {tag}/')} {ref}", reason)
        return (yield from self.attributes(root.members)), found

    def _run_and_report(self, name: str, steps: Steps[list[DataSet]]) -> Steps[list[DataSet]]:
        try:
            return (yield from steps)
        except (ValueError, struct.error, DamagedIndex) as e:
            self.reports[name] = str(e)
        return []

    def _read_data_set(self, group: Vgroup, ref: int) -> Steps[list[DataSet]]:
        dimensions: list[Dimension] = []
        dtype: np.dtype[Any] | None = None
        data, key = None, (VGROUP, ref)
        is_coordinate = False
        for tag, member in group.members:
            is_there = (tag, member) in self.elements.descriptors
            if (tag == VGROUP and member not in self.groups) or (tag == VDATA and member not in self.tables):
                is_there = False
            if not is_there:
                what = _NAMES.get(tag, f"element {tag},")
                raise ValueError(f"it lists {what} {member}, which is not in the file or cannot be read")
            if tag == VGROUP:
                dimension = yield from self._read_dimension(member)
                dimensions += [dimension] if dimension is not None else []
            elif tag == NUMBER_TYPE:
                dtype = parse_number_type((yield from self.elements.read_stored((tag, member))))
            elif tag == DATA:
                data = tag, member
            elif tag == DATA_GROUP:
                key = tag, member
            elif tag == VDATA:
                is_coordinate |= self.tables[member].kind == _COORDINATE
        if dtype is None:
            raise ValueError("it has no number type")
        layout = yield from find_layout(self.elements, data)
        attributes = yield from self.attributes(group.members)
        names = tuple(dimension.name for dimension in dimensions)
        self.spend(len(group.name) + sum(map(len, names)))
        shape = self._find_shape(dimensions, layout, dtype.itemsize)
        unlimited = names[0] if dimensions and dimensions[0].length is None else ""
        return [DataSet(group.name, key, names, shape, dtype, attributes, data, layout, is_coordinate, unlimited)]

    def _find_shape(self, dimensions: list[Dimension], layout: Layout | None, itemsize: int) -> tuple[int, ...]:
        """Return the lengths of dimensions; an unlimited one is as long as the values reach."""
        lengths = [dimension.length for dimension in dimensions]
        if len(lengths) > MOST_DIMENSIONS:
            raise ValueError(f"it has {len(lengths)} dimensions: {MOST_DIMENSIONS} can be shown")
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
                found = f"{layout.length} bytes of the shape {layout.shape}"
                raise ValueError(f"its chunks have {found}: expected {size} bytes of the shape {shape}")
        return shape

    def _read_dimension(self, ref: int) -> Steps[Dimension | None]:
        """Return the dimension that a Vgroup describes; None if it is another Vgroup."""
        if ref in self._dimensions:
            return self._dimensions[ref]
        group = self.groups.get(ref)
        found: Dimension | None = None
        if group is not None and group.kind == _UNLIMITED:
            found = Dimension(group.name, None)
        elif group is not None and group.kind == _DIMENSION:
            found = Dimension(group.name, -1)
            for tag, member in group.members:
                table = self.tables.get(member) if tag == VDATA else None
                if table is not None and table.kind == _COUNTED:
                    found = Dimension(group.name, table.records)
                elif table is not None and table.kind == _VALUED:
                    data = yield from self.elements.contents((VDATA_VALUES, member))
                    found = Dimension(group.name, int.from_bytes(data[:4], "big", signed=True))
        self._dimensions[ref] = found
        return found

    def _read_old_data_sets(self, key: Key, first: int) -> Steps[list[DataSet]]:
        """Return the data set of an NDG, and the scales of its dimensions; the first dimension has number ``first``."""
        members = (yield from self.elements.read_stored(key))[: 4 * _MOST_MEMBERS]
        refs = dict(struct.iter_unpack(">HH", members[: len(members) // 4 * 4]))
        if DIMENSIONS not in refs:
            raise ValueError("it has no dimensions")
        described = yield from self.elements.read_stored((DIMENSIONS, refs[DIMENSIONS]))
        (rank,) = struct.unpack_from(">H", described)
        if rank > MOST_DIMENSIONS:
            raise ValueError(f"it has {rank} dimensions: {MOST_DIMENSIONS} can be shown")
        *lengths, _ = struct.unpack_from(f">{rank}iH", described, 2)
        dtypes = []
        for tag, ref in struct.iter_unpack(">HH", described[2 + 4 * rank :][: 4 * rank + 4]):
            dtypes.append(parse_number_type((yield from self.elements.read_stored((tag, ref)))))
        if len(dtypes) < rank + 1:
            raise ValueError("its dimensions have no number types")
        data = (DATA, refs[DATA]) if DATA in refs else None
        layout = yield from find_layout(self.elements, data)
        names = tuple(f"fakeDim{first + number}" for number in range(rank))
        shape = self._find_shape([*map(Dimension, names, lengths)], layout, dtypes[0].itemsize)
        of_axes: list[dict[str, Any]] = [{} for _ in range(rank + 1)]  # the first are those of the data set
        for tag, name in _TEXTS.items():
            if tag in refs:
                texts = (yield from self.elements.read_stored((tag, refs[tag]))).split(b"\0")
                for of_axis, text in zip(of_axes, texts, strict=False):
                    if text:
                        of_axis[name] = decode_text(text)
        attributes = Attributes(of_axes[0], {})
        if _RANGE in refs and dtypes[0].kind != "S":
            limits = np.frombuffer((yield from self.elements.read_stored((_RANGE, refs[_RANGE]))), dtypes[0]).tolist()
            attributes.shown.update(zip(("valid_max", "valid_min"), limits, strict=False))
        if _CALIBRATION in refs:
            stored = yield from self.elements.read_stored((_CALIBRATION, refs[_CALIBRATION]))
            kind = ">f8" if len(stored) == 36 else ">f4"
            attributes.shown.update(zip(_CALIBRATED, np.frombuffer(stored, kind, 4).tolist(), strict=True))
            attributes.shown["calibrated_nt"] = int.from_bytes(stored[-4:], "big")
            attributes.dtypes.update(dict.fromkeys(PACKING, kind))
        found = []
        scales = (yield from self.elements.read_stored((_SCALES, refs[_SCALES]))) if _SCALES in refs else b""
        flags = scales[:rank].ljust(rank, b"\0")
        at = rank
        for number, (name, length) in enumerate(zip(names, shape, strict=True)):
            size = length * dtypes[number + 1].itemsize
            values = scales[at : at + size] if flags[number] else None
            at += size if flags[number] else 0
            of_scale = Attributes(of_axes[number + 1], {})
            if of_scale.shown or (values is not None and len(values) == size):
                what = name, (_SCALES, 0), (name,), (length,), dtypes[number + 1]
                found.append(DataSet(*what, of_scale, None, None, is_coordinate=True, values=values))
        return [*found, DataSet(f"Data-Set-{key[1]}", key, names, shape, dtypes[0], attributes, data, layout)]

    def list_tables(self) -> dict[int, Vdata]:
        """Return the Vdatas that users wrote, by reference number."""
        return {ref: table for ref, table in self.tables.items() if not table.kind.startswith(_OWN)}

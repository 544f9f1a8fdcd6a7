"""HDF4 files as zarr groups: an array for each scientific data set and raster image, a group for each Vdata.

In a file of HDF-EOS2, a single grid or swath is the root group. If there are several, each is a group. A grid has
coordinates, and a coordinate reference system as rioxarray expects. The attribute ``coordinates`` of a swath's fields
names the latitudes and longitudes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from refshard_fs.core.array_group import (
    ArrayDescription,
    ArrayGroupBuilder,
    EvenlySpaced,
    SingleChunk,
    convert_fill_value,
    encode_fill_value,
    report_damage,
)
from refshard_fs.core.format import FileBytes, OpenOptions, Probe
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf4 import MAGIC
from refshard_fs.formats.hdf4.chunks import CodedChunks, find_chunk_shape, find_layout, make_chunks
from refshard_fs.formats.hdf4.data_sets import FEW, Attributes, DataSet, Tree
from refshard_fs.formats.hdf4.elements import Key, Tag, read_descriptors
from refshard_fs.formats.hdf4.eos import KINDS, Structure, parse_structures
from refshard_fs.formats.hdf4.images import find_images
from refshard_fs.formats.hdf4.objects import Vdata, Vgroup
from refshard_fs.formats.hdf4.tables import describe_fields

SPATIAL_REF: Final = "spatial_ref"  # the variable that has a grid's CRS and transform as attributes

_METADATA: Final = re.compile(r"StructMetadata\.(\d{1,4})")  # the attributes with the text StructMetadata
_ATTRIBUTES: Final = ("Grid Attributes", "Swath Attributes")  # names of Vgroups
# The numbers, by data type, with which the HDF4 library fills a data set that has no fill value.
_FILLS: Final = {"i1": -127, "u1": 129, "i2": -32767, "u2": 32769, "i4": -2147483647, "u4": 2147483649}
_FLOAT_FILL: Final = 9.969209968386869e36
MOST_REPORTS: Final = 1 << 16  # if more objects cannot be shown, further tables are neither shown nor reported


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an HDF4 file."""
    source, size = probe.file("HDF4 file")
    if not probe.head.startswith(MAGIC):
        found = bytes(probe.head[: len(MAGIC)])
        raise ManifestError(f"{probe.url}: expected an HDF4 file, which begins with {MAGIC!r}, found {found!r}")
    with report_damage(probe.url):
        elements = yield from read_descriptors(FileBytes(probe.url, source, size, probe.head))
        tree = Tree(elements)
        yield from tree.read_metadata()
        attributes, data_sets = yield from tree.read_data_sets()
        group = _Group(tree, options.zarr_format)
        yield from group.find_structures(attributes)
        for data_set in [*data_sets, *(yield from find_images(tree))]:
            group.add_data_set(data_set)
        yield from group.finish()
        keyspace = group.make_keyspace(options.zarr_format, {**attributes.shown, **group.groups.pop("", {})})
    keyspace.attribute_dtypes = group.attribute_dtypes
    keyspace.unlimited_dimensions = group.unlimited
    chunked = [chunks for chunks in group.chunks.values() if isinstance(chunks, CodedChunks)]
    if len(chunked) <= FEW:
        try:
            yield from run_together([chunks.find_written() for chunks in chunked])
        except (RefShardError, ValueError, OSError):
            pass  # reading the data set raises the same error; other data sets can be read
    return keyspace


class _Group(ArrayGroupBuilder):
    """Build the arrays and groups of a file from its data sets, images and tables."""

    def __init__(self, tree: Tree, zarr_format: int) -> None:
        super().__init__(tree.elements.file.url)
        self._tree = tree
        self._zarr_format = zarr_format
        self.reports = tree.reports
        self.attribute_dtypes: dict[str, dict[str, str]] = {}
        self.unlimited: dict[str, list[str]] = {}
        self._structures: dict[str, Structure] = {}
        self._owners: dict[Key, str] = {}  # by key of a data set or Vdata: the name of its grid or swath
        self._data_set_names: dict[Key, str] = {}
        self._extents: dict[str, int] = {}  # lengths of dimensions, by path
        self._path_counts: dict[str, int] = {}  # by path: the number of objects that would have it
        # By name of a dimension without values: its attributes.
        self._dimension_attributes: dict[str, dict[str, Any]] = {}

    def find_structures(self, attributes: Attributes) -> Steps[None]:
        """Find the grids and swaths of an HDF-EOS2 file, and the data sets that belong to each."""
        numbered = {int(match[1]): name for name in attributes.shown if (match := _METADATA.fullmatch(name))}
        text = "".join(str(attributes.shown[numbered[number]]) for number in sorted(numbered))
        with self.report_errors("StructMetadata"):
            self._structures = parse_structures(text)
        for group in self._tree.groups.values():
            if group.kind not in KINDS:
                continue
            if group.name not in self._structures:
                kind = KINDS[group.kind]
                reason = f"expected a description of this {kind} in StructMetadata, found none: it has no coordinates"
                self.reports.setdefault(group.name, reason)
                continue
            for inner in self._list_members(group):
                for member in inner.members:
                    self._owners[member] = group.name
                if inner.name in _ATTRIBUTES:
                    group_attributes = yield from self._tree.read_attributes(inner.members)
                    self.groups.setdefault(self._make_path(group.name), {}).update(group_attributes.shown)

    def _list_members(self, group: Vgroup) -> Iterable[Vgroup]:
        """Return the Vgroups in ``group``. Report Vgroups that the file lacks."""
        groups = self._tree.groups
        for tag, ref in group.members:
            if tag == Tag.VGROUP and ref not in groups:
                self.reports[f"Vgroup {ref}"] = f"expected it in the file, as {group.name!r} lists it; found none"
        return [groups[ref] for tag, ref in group.members if tag == Tag.VGROUP and ref in groups]

    def _make_path(self, owner: str) -> str:
        """Return the path of the group for a grid or a swath: the root if the file has only one."""
        return _make_segment(owner) if len(self._structures) > 1 else ""

    def add_data_set(self, data_set: DataSet) -> None:
        """Add a data set. If it cannot be shown, add a report."""
        self._data_set_names[data_set.key] = data_set.name
        owner = self._owners.get(data_set.key, "")
        group = self._make_path(owner) if owner else ""
        path = self._make_unique(join(group, _make_segment(data_set.name)))
        if data_set.is_coordinate and data_set.layout is None:
            if data_set.attributes.shown:
                self._dimension_attributes[data_set.name] = data_set.attributes.shown
            return  # the library made it only to store attributes of a dimension
        with self.report_errors(path):
            self._add_array(path, group, owner, data_set)

    def _add_array(self, path: str, group: str, owner: str, data_set: DataSet) -> None:
        elements, dtype, layout = self._tree.elements, data_set.dtype, data_set.layout
        names = self._name_dimensions(group, data_set)
        attributes = dict(data_set.attributes.shown)
        structure = self._structures.get(owner)
        if structure is not None:
            is_geolocated = structure.geolocation and set(structure.geolocation) <= set(names)
            if structure.crs and {"XDim", "YDim"} <= set(names):
                attributes = {"grid_mapping": SPATIAL_REF, "coordinates": SPATIAL_REF, **attributes}
            elif is_geolocated and data_set.name not in ("Latitude", "Longitude"):
                attributes.setdefault("coordinates", "Latitude Longitude")
        fill, raw = _encode_fill(data_set.attributes.fill, dtype)
        coding = None if layout is None else layout.coding
        array = ArrayDescription(
            f"{self.url}, data set {path!r}",
            data_set.shape,
            find_chunk_shape(layout, data_set.shape, dtype.itemsize),
            dtype,
            names,
            attributes,
            () if coding is None else coding.codecs,
            fill,
            is_masked=True,
            file_codecs=() if coding is None else coding.file_codecs,
        )
        grid = array.grid(self._zarr_format)
        if data_set.values is not None:
            self.add(path, array, SingleChunk(data_set.values))
        else:
            self.add(path, array, make_chunks(elements, data_set.data, layout, array, grid, raw))
        if data_set.attributes.dtypes:
            self.attribute_dtypes[path] = data_set.attributes.dtypes
        if data_set.unlimited and names:
            unlimited = self.unlimited.setdefault(group, [])
            unlimited += [names[0]] if names[0] not in unlimited else []

    def _make_unique(self, path: str) -> str:
        """Return ``path``; append a number if another object has this path."""
        while path in self.arrays or path in self.reports or (path and path in self.groups):
            self._path_counts[path] = number = self._path_counts.get(path, 1) + 1
            if f"{path}_{number}" not in self.arrays:
                return f"{path}_{number}"
        return path

    def _name_dimensions(self, group: str, data_set: DataSet) -> list[str]:
        """Return the names of a data set's dimensions.

        If a dimension of another length has the same name in the group, or the name occurs twice, the name of the data
        set and the number of the dimension are appended.
        """
        names: list[str] = []
        for name, extent in zip(data_set.dimensions, data_set.shape, strict=True):
            plain_name, _, owner = name.partition(":")
            if owner in self._structures:
                name = plain_name
            name = _make_segment(name)
            if self._extents.setdefault(join(group, name), extent) != extent or name in names:
                name = f"{name}_{_make_segment(data_set.name)}_{len(names)}"
            names.append(name)
        return names

    def finish(self) -> Steps[None]:
        """Add fields of swaths that are Vdatas, the coordinates of grids, and tables. Report objects not shown."""
        tree = self._tree
        shown_tables = set()
        for (tag, ref), owner in self._owners.items():
            table = tree.tables.get(ref) if tag == Tag.VDATA else None
            names = self._structures[owner].fields.get(table.name) if table is not None else None
            if table is None or names is None or len(table.fields) != 1:
                continue
            shown_tables.add(ref)
            field, key = table.fields[0], (Tag.VDATA_VALUES, ref)
            shape = (table.records, field.order)[: len(names)] if field.order > 1 else (table.records,)
            try:
                layout = yield from find_layout(tree.elements, key)
                if len(shape) != len(names):
                    raise ManifestError(
                        f"it is a Vdata with {len(shape)} dimensions: expected {len(names)} ({', '.join(names)}), as "
                        "in StructMetadata"
                    )
                if layout is None:
                    raise ManifestError("it is a Vdata without values: expected values of a field in StructMetadata")
            except (ManifestError, DamagedIndex) as e:
                self.reports[table.name] = str(e)
                continue
            no_attributes = Attributes({}, {})
            self.add_data_set(DataSet(table.name, (tag, ref), names, shape, field.dtype, no_attributes, key, layout))
        for structure in self._structures.values():
            self._add_coordinates(structure)
            self._report_damage(structure)
        for name, attributes in self._dimension_attributes.items():
            self.groups.setdefault("", {}).update({f"{name}.{key}": value for key, value in attributes.items()})
        for ref, table in tree.list_tables().items():
            if ref not in shown_tables and len(self.reports) < MOST_REPORTS:
                yield from self._add_table(ref, table)

    def _report_damage(self, structure: Structure) -> None:
        """Report contradictions between the text about a grid or a swath and its data sets."""
        if structure.problem:
            self.reports.setdefault(structure.name, f"it has no coordinates. In StructMetadata, {structure.problem}")
        tree = self._tree
        owned = [key for key, owner in self._owners.items() if owner == structure.name]
        names = {tree.tables[ref].name for tag, ref in owned if tag == Tag.VDATA and ref in tree.tables}
        names |= {self._data_set_names[key] for key in owned if key in self._data_set_names}
        for field in structure.fields.keys() - names - structure.merged:
            self.reports.setdefault(
                field, f"expected it in the file, as a field of {structure.name!r} in StructMetadata; found none"
            )

    def _add_table(self, ref: int, table: Vdata) -> Steps[None]:
        """Add a group with the fields of a Vdata. If it cannot be shown, add a report."""
        group = self._make_unique(_make_segment(table.name or f"Vdata {ref}"))
        self._tree.count_shown_bytes(len(table.name))
        fields = []
        with self.report_errors(group):
            if table.records:  # raise now if the values lie in another file
                yield from self._tree.elements.find_parts((Tag.VDATA_VALUES, ref))
            fields = list(describe_fields(self._tree.elements, ref, table, f"{self.url}, Vdata {group!r}"))
            self.groups[group] = {}
        for name, array, chunks in fields:
            self._tree.count_shown_bytes(len(name))
            self.add(self._make_unique(join(group, _make_segment(name))), array, chunks)

    def _add_coordinates(self, structure: Structure) -> None:
        """Add the coordinates of a grid, and a variable with its coordinate reference system."""
        group = self._make_path(structure.name)
        axes = {join(group, name): axis for name, axis in structure.axes.items()}
        for path, axis in axes.items():
            extent = self._extents.get(path, axis.length)
            if extent != axis.length:
                name = structure.name
                reason = (
                    f"it has {extent} cells in the fields: expected {axis.length}, as in StructMetadata of {name!r}"
                )
                self.reports.setdefault(f"coordinate {path}", reason)
        if not structure.crs or not any(self._extents.get(path) == axis.length for path, axis in axes.items()):
            return
        for path, axis in axes.items():
            if self._extents.get(path, axis.length) == axis.length and path not in self.arrays:
                chunks = EvenlySpaced(axis.first, axis.step, axis.length)
                name = path.rpartition("/")[2]
                label = f"{self.url}, coordinate {path!r}"
                float64 = np.dtype("<f8")
                array = ArrayDescription(label, (axis.length,), (chunks.chunk,), float64, [name], axis.attributes)
                self.add(path, array, chunks)
        path = join(group, SPATIAL_REF)
        if path not in self.arrays:
            array = ArrayDescription(f"{self.url}, {path!r}", (), (), np.dtype("<i8"), [], structure.crs)
            self.add(path, array, SingleChunk(bytes(8)))


def _make_segment(name: str) -> str:
    """Convert a name to one segment of a path."""
    return name.strip().replace("/", "_") or "_"


def _encode_fill(value: Any, dtype: np.dtype[Any]) -> tuple[Any, bytes]:
    """Return the fill value as JSON for zarr, and the bytes of one value that was never written.

    The fill value is None if the data set has none, or ``dtype`` cannot hold it.
    """
    if value is not None and dtype.kind == "S":
        raw = bytes(np.array(value).tobytes()[:1]).ljust(1, b"\0")
        return encode_fill_value(raw, dtype), raw
    fill = convert_fill_value(value.item(), dtype) if value is not None and dtype.kind != "S" else None
    if fill is not None:
        return fill, np.array(value).astype(dtype).tobytes()
    default = _FILLS.get(dtype.str[1:], _FLOAT_FILL if dtype.kind == "f" else 0)
    return None, b"\0" if dtype.kind == "S" else np.array(default).astype(dtype).tobytes()

"""HDF4 files as zarr groups: an array for each scientific data set and raster image, a group for each Vdata.

A file of HDF-EOS2 shows its grid or its swath as the root, and several of them as groups. Grids have coordinates and a
CRS in rioxarray's convention; the fields of swaths name their latitudes and longitudes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import (
    ArrayDescription,
    ArrayGroupBuilder,
    EvenlySpaced,
    SingleChunk,
    encode_fill_value,
    fill_of,
)
from refshard_fs.core.format import FileBytes, OpenOptions, Probe
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf4 import MAGIC
from refshard_fs.formats.hdf4.chunks import CodedChunks, find_chunk_shape, find_layout, make_chunks
from refshard_fs.formats.hdf4.data_sets import FEW, Attributes, DataSet, Tree
from refshard_fs.formats.hdf4.elements import VDATA, VDATA_VALUES, VGROUP, Key, read_descriptors
from refshard_fs.formats.hdf4.eos import KINDS, Structure, parse_structures
from refshard_fs.formats.hdf4.images import find_images
from refshard_fs.formats.hdf4.objects import Vdata, Vgroup
from refshard_fs.formats.hdf4.tables import describe_fields

SPATIAL_REF: Final = "spatial_ref"  # the variable that has a grid's CRS and transform as attributes

_METADATA: Final = re.compile(r"StructMetadata\.(\d{1,4})")
_ATTRIBUTES: Final = ("Grid Attributes", "Swath Attributes")  # Vgroups
# What the library fills a data set with that has no fill value, by the type of its numbers.
_FILLS: Final = {"i1": -127, "u1": 129, "i2": -32767, "u2": 32769, "i4": -2147483647, "u4": 2147483649}
_FLOAT_FILL: Final = 9.969209968386869e36
MOST_REPORTS: Final = 1 << 16


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an HDF4 file."""
    source, size = probe.file("HDF4")
    if not probe.head.startswith(MAGIC):
        raise ManifestError(f"{probe.url} begins with other bytes than an HDF4 file")
    try:
        elements = yield from read_descriptors(FileBytes(probe.url, source, size, probe.head))
        tree = Tree(elements)
        yield from tree.read()
        attributes, data_sets = yield from tree.read_data_sets()
        group = _Group(tree, options.zarr_format)
        yield from group.find_structures(attributes)
        for data_set in [*data_sets, *(yield from find_images(tree))]:
            group.show(data_set)
        yield from group.finish()
        keyspace = group.keyspace(options.zarr_format, {**attributes.shown, **group.groups.pop("", {})})
    except RefShardError:
        raise
    except ValueError as e:
        raise DamagedIndex("", probe.url, str(e)) from e
    keyspace.attribute_dtypes = group.attribute_dtypes
    keyspace.unlimited_dimensions = group.unlimited
    chunked = [chunks for chunks in group.chunks.values() if isinstance(chunks, CodedChunks)]
    if len(chunked) <= FEW:
        try:
            yield from run_together([chunks.keys() for chunks in chunked])
        except (RefShardError, ValueError, OSError):
            pass  # a reader of the data set meets the same error
    return keyspace


class _Group(ArrayGroupBuilder):
    """The arrays of a file, while they are put together."""

    def __init__(self, tree: Tree, zarr_format: int) -> None:
        super().__init__(tree.elements.file.url)
        self._tree = tree
        self._zarr_format = zarr_format
        self.reports = tree.reports
        self.attribute_dtypes: dict[str, dict[str, str]] = {}
        self.unlimited: dict[str, list[str]] = {}
        self._structures: dict[str, Structure] = {}
        self._owners: dict[Key, str] = {}  # the grids and swaths of data sets and Vdatas
        self._names_of: dict[Key, str] = {}  # of data sets
        self._extents: dict[str, int] = {}  # lengths of dimensions, by path
        self._taken: dict[str, int] = {}  # how many data sets have a path
        self._lost: dict[str, dict[str, Any]] = {}  # attributes of dimensions without values

    def find_structures(self, attributes: Attributes) -> Steps[None]:
        """Find the grids and swaths, and which data sets are theirs."""
        numbered = {int(found[1]): name for name in attributes.shown if (found := _METADATA.fullmatch(name))}
        text = "".join(str(attributes.shown[numbered[number]]) for number in sorted(numbered))
        try:
            self._structures = parse_structures(text)
        except ValueError as e:
            self.reports["StructMetadata"] = str(e)
        for group in self._tree.groups.values():
            if group.kind not in KINDS:
                continue
            if group.name not in self._structures:
                kind = KINDS[group.kind]
                why = (
                    f"it is a {kind} that StructMetadata do not describe: its fields have neither coordinates nor names"
                )
                self.reports.setdefault(group.name, f"{why} of dimensions from there")
                continue
            for inner in self._list_members(group):
                for member in inner.members:
                    self._owners[member] = group.name
                if inner.name in _ATTRIBUTES:
                    of_it = yield from self._tree.attributes(inner.members)
                    self.groups.setdefault(self._make_path(group.name), {}).update(of_it.shown)

    def _list_members(self, group: Vgroup) -> Iterable[Vgroup]:
        groups = self._tree.groups
        for tag, ref in group.members:
            if tag == VGROUP and ref not in groups:
                self.reports[f"Vgroup {ref}"] = f"{group.name!r} lists it, and the file does not have it"
        return [groups[ref] for tag, ref in group.members if tag == VGROUP and ref in groups]

    def _make_path(self, owner: str) -> str:
        """Return the group of a grid or a swath: the root if the file has only one."""
        return _make_segment(owner) if len(self._structures) > 1 else ""

    def show(self, data_set: DataSet) -> None:
        """Add a data set; a report, if it cannot be shown."""
        self._names_of[data_set.key] = data_set.name
        owner = self._owners.get(data_set.key, "")
        group = self._make_path(owner) if owner else ""
        path = self._free(join(group, _make_segment(data_set.name)))
        if data_set.is_coordinate and data_set.layout is None and data_set.values is None:
            if data_set.attributes.shown:
                self._lost[data_set.name] = data_set.attributes.shown
            return  # it was made for the attributes of its dimension
        try:
            self._add(path, group, owner, data_set)
        except ValueError as e:
            self.reports[path] = str(e)

    def _add(self, path: str, group: str, owner: str, data_set: DataSet) -> None:
        elements, dtype, layout = self._tree.elements, data_set.dtype, data_set.layout
        names = self._name_dimensions(group, data_set)
        attributes = dict(data_set.attributes.shown)
        structure = self._structures.get(owner)
        if structure is not None:
            bare = set(names)
            if structure.crs and {"XDim", "YDim"} <= bare:
                own = {"grid_mapping": SPATIAL_REF, "coordinates": SPATIAL_REF}
                attributes = {**own, **attributes}
            elif structure.geolocation and set(structure.geolocation) <= bare and not _is_place(data_set.name):
                attributes.setdefault("coordinates", "Latitude Longitude")
        fill, raw = _fill(data_set.attributes.fill, dtype)
        codecs = () if layout is None or layout.coding is None else layout.coding.codecs
        array = ArrayDescription(
            f"{self.url}, data set {path!r}",
            data_set.shape,
            find_chunk_shape(layout, data_set.shape, dtype.itemsize),
            dtype,
            names,
            attributes,
            codecs,
            fill,
            is_masked=True,
            file_codecs=() if layout is None or layout.coding is None else layout.coding.file_codecs,
        )
        if data_set.values is not None:
            array = msgspec.structs.replace(array, chunks=tuple(max(n, 1) for n in data_set.shape))
            self.add(path, array, SingleChunk(data_set.values))
        else:
            grid = array.grid(self._zarr_format)
            self.add(path, array, make_chunks(elements, data_set.data, layout, array, grid, raw))
        if data_set.attributes.dtypes:
            self.attribute_dtypes[path] = data_set.attributes.dtypes
        if data_set.unlimited and names:
            unlimited = self.unlimited.setdefault(group, [])
            unlimited += [names[0]] if names[0] not in unlimited else []

    def _free(self, path: str) -> str:
        """Return ``path``, with a number if other data sets have it."""
        while path in self.arrays or path in self.reports or (path and path in self.groups):
            self._taken[path] = number = self._taken.get(path, 1) + 1
            if f"{path}_{number}" not in self.arrays:
                return f"{path}_{number}"
        return path

    def _name_dimensions(self, group: str, data_set: DataSet) -> list[str]:
        """Return the names of dimensions in a group; one of another length than the first of its name has its own."""
        names: list[str] = []
        for name, extent in zip(data_set.dimensions, data_set.shape, strict=True):
            bare, _, owner = name.partition(":")
            if owner in self._structures:
                name = bare
            name = _make_segment(name)
            if self._extents.setdefault(join(group, name), extent) != extent or name in names:
                name = f"{name}_{_make_segment(data_set.name)}_{len(names)}"
            names.append(name)
        return names

    def finish(self) -> Steps[None]:
        """Add the fields that are Vdatas, and the coordinates of grids; report objects that are not shown."""
        tree = self._tree
        shown = set()
        for (tag, ref), owner in self._owners.items():
            table = tree.tables.get(ref) if tag == VDATA else None
            names = self._structures[owner].fields.get(table.name) if table is not None else None
            if table is None or names is None or len(table.fields) != 1:
                continue
            shown.add(ref)
            field, key = table.fields[0], (VDATA_VALUES, ref)
            shape = (table.records, field.order)[: len(names)] if field.order > 1 else (table.records,)
            try:
                layout = yield from find_layout(tree.elements, key)
                if len(shape) != len(names) or layout is None:
                    raise ManifestError(f"it is a Vdata of the shape {shape}, with the dimensions {names}")
            except (ManifestError, DamagedIndex) as e:
                self.reports[table.name] = str(e)
                continue
            none = Attributes({}, {})
            self.show(DataSet(table.name, (tag, ref), names, shape, field.dtype, none, key, layout))
        for structure in self._structures.values():
            self._place(structure)
            self._report_damage(structure)
        for name, attributes in self._lost.items():
            self.groups.setdefault("", {}).update({f"{name}.{key}": value for key, value in attributes.items()})
        for ref, table in tree.list_tables().items():
            if ref not in shown and len(self.reports) < MOST_REPORTS:
                yield from self._add_table(ref, table)
        if not self.arrays and not self.reports:
            self.reports["data sets"] = "it has none"

    def _report_damage(self, structure: Structure) -> None:
        """Report what a grid or a swath should have by its text, and has not."""
        if structure.problem:
            self.reports.setdefault(structure.name, f"StructMetadata describes the grid wrongly: {structure.problem}")
        tree = self._tree
        owned = [key for key, owner in self._owners.items() if owner == structure.name]
        names = {tree.tables[ref].name for tag, ref in owned if tag == VDATA and ref in tree.tables}
        names |= {self._names_of[key] for key in owned if key in self._names_of}
        for field in structure.fields.keys() - names - structure.merged:
            self.reports.setdefault(
                field, f"StructMetadata describe it as a field of {structure.name!r}, which lacks it"
            )

    def _add_table(self, ref: int, table: Vdata) -> Steps[None]:
        """Add the fields of a Vdata as a group; a report, if it cannot be shown."""
        group = self._free(_make_segment(table.name or f"Vdata {ref}"))
        self._tree.spend(len(table.name))
        try:
            if table.records:
                yield from self._tree.elements.parts((VDATA_VALUES, ref))  # raises if they lie in another file
            fields = list(describe_fields(self._tree.elements, ref, table, f"{self.url}, Vdata {group!r}"))
        except (ManifestError, DamagedIndex) as e:
            self.reports[group] = str(e)
            return
        self.groups[group] = {}
        for name, array, chunks in fields:
            self._tree.spend(len(name))
            self.add(self._free(join(group, _make_segment(name))), array, chunks)

    def _place(self, structure: Structure) -> None:
        """Add the coordinates and the CRS of a grid."""
        group = self._make_path(structure.name)
        axes = {join(group, name): axis for name, axis in structure.axes.items()}
        for path, axis in axes.items():
            extent = self._extents.get(path, axis.length)
            if extent != axis.length:
                why = (
                    f"StructMetadata give {structure.name!r} {axis.length} cells along it, and its fields have {extent}"
                )
                self.reports.setdefault(f"coordinate {path}", why)
        if not structure.crs or not any(self._extents.get(path) == axis.length for path, axis in axes.items()):
            return
        for path, axis in axes.items():
            if self._extents.get(path, axis.length) == axis.length and path not in self.arrays:
                chunks = EvenlySpaced(axis.first, axis.step, axis.length)
                name = path.rpartition("/")[2]
                where = f"{self.url}, coordinate {path!r}"
                float64 = np.dtype("<f8")
                array = ArrayDescription(where, (axis.length,), (chunks.chunk,), float64, [name], axis.attributes)
                self.add(path, array, chunks)
        path = join(group, SPATIAL_REF)
        if path not in self.arrays:
            array = ArrayDescription(f"{self.url}, {path!r}", (), (), np.dtype("<i8"), [], structure.crs)
            self.add(path, array, SingleChunk(bytes(8)))


def _make_segment(name: str) -> str:
    """Return a name as one segment of a key."""
    return name.strip().replace("/", "_") or "_"


def _is_place(name: str) -> bool:
    return name in ("Latitude", "Longitude")


def _fill(value: Any, dtype: np.dtype[Any]) -> tuple[Any, bytes]:
    """Return the fill value as zarr spells it, None if there is none, and the bytes of an element without a value."""
    if value is not None and dtype.kind == "S":
        raw = bytes(np.array(value).tobytes()[:1]).ljust(1, b"\0")
        return encode_fill_value(raw, dtype), raw
    fill = fill_of(value.item(), dtype) if value is not None and dtype.kind != "S" else None
    if fill is not None:
        return fill, np.array(value).astype(dtype).tobytes()
    default = _FILLS.get(dtype.str[1:], _FLOAT_FILL if dtype.kind == "f" else 0)
    return None, b"\0" if dtype.kind == "S" else np.array(default).astype(dtype).tobytes()

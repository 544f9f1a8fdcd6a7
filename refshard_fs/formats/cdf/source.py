"""CDF files as zarr groups: an array for each rVariable and zVariable. No I/O here.

Times become CF's: integers since 1970. The attributes of ISTP name dimensions and coordinates, as in cdflib's
``cdf_to_xarray``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np

from refshard_fs.core.array_group import PIECE, ArrayDescription, ArrayGroupBuilder, encode_fill_value
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Load, Raw, Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.cdf import COMPRESSED, MAGICS, PLAIN
from refshard_fs.formats.cdf.chunks import MOST_LEVELS, VariableChunks, layout_of
from refshard_fs.formats.cdf.records import (
    CPR,
    CVVR,
    VXR,
    WHOLE,
    Attribute,
    Entry,
    Head,
    Records,
    Variable,
    decode_text,
)
from refshard_fs.formats.cdf.values import (
    EPOCH,
    NOT_A_TIME,
    UNITS,
    Decompressed,
    Kind,
    check_compression,
    default_pad,
    kind_of,
)

MOST_INFLATED: Final = 64 << 20  # bytes of a file that is compressed as a whole, compressed or not

_AS_CF: Final = {"UNITS": "units", "LABLAXIS": "long_name"}  # attributes that xarray's plots look for
_SEPARATOR: Final = "\\N "  # separates texts in an entry
_TARGETS: Final = re.compile(r"DEPEND_\d", re.IGNORECASE)
_DELTAS: Final = ("DELTA_PLUS_VAR", "DELTA_MINUS_VAR")


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a CDF file."""
    source, size = probe.file("CDF")
    magic, way = probe.head[:4], probe.head[4:8]
    if magic not in MAGICS or way not in (PLAIN, COMPRESSED):
        raise ManifestError(f"{probe.url} begins with other bytes than a CDF file")
    version = 3 if magic == MAGICS[0] else 2
    try:
        records = Records(probe.url, source, size, probe.head, version)
        if way == COMPRESSED:
            data = magic + PLAIN + (yield from _decompress_file(records))
            records = Records(probe.url, Inline(data), len(data), data, version)
        is_whole = records.size <= WHOLE
        if is_whole:
            yield from records.read(0, records.size)
        head = yield from records.read_head()
        variables, attributes = yield from records.read_all(head)
        group = _Group(records, head, variables, attributes, options.zarr_format)
        group.count_lists()
        yield from group.add_all()
        if is_whole:  # the bytes of the indexes are in memory
            yield from group.load_indexes()
        keyspace = group.keyspace(options.zarr_format, group.root())
    except RefShardError:
        raise
    except ValueError as e:
        raise DamagedIndex("", probe.url, str(e)) from e
    records.finish()
    keyspace.unlimited_dimensions = {"": group.unlimited}
    return keyspace


def _decompress_file(records: Records) -> Steps[bytes]:
    """Return the bytes of a file that is compressed as a whole, without its magic numbers."""
    layout = records.layout("OiOOi")
    size, _, at, length, _ = layout.unpack((yield from records.read(8, layout.size)))
    if max(length, size) > MOST_INFLATED or length < 0:
        raise ManifestError(
            f"{records.url}: it is compressed as a whole, {size} bytes to {length}; at most {MOST_INFLATED} bytes are "
            "decompressed in memory. Compress its variables instead: cdfconvert -compression vars:gzip.6"
        )
    found = yield from records.record(at, CPR)
    kind = int.from_bytes(found[:4], "big")
    try:
        check_compression(kind)
    except ManifestError as e:
        raise ManifestError(f"{records.url}: {e}") from None
    if size < layout.size or 8 + size > records.size:
        raise records.damage_error(f"it is cut short or damaged: its {size} compressed bytes end after the file")
    data: bytes = yield Load(records.source.part(8 + layout.size, size - layout.size), Raw())
    return Decompressed(kind, length).make(data)


class _Group(ArrayGroupBuilder):
    """The arrays of a file, while they are put together."""

    def __init__(
        self, records: Records, head: Head, variables: list[Variable], attributes: list[Attribute], zarr_format: int
    ) -> None:
        super().__init__(records.url)
        self._records = records
        self._head = head
        self._attributes = attributes
        self._zarr_format = zarr_format
        self._variables: dict[str, Variable] = {}
        for variable in variables:
            key = _key(variable.name)
            self._variables[f"{key}_{len(self._variables)}" if key in self._variables else key] = variable
        self._attributes_of = self._read_attributes()
        self._axes: dict[str, str] = {}  # the variables whose dimension labels have
        self._parents: dict[str, str] = {}  # the variables whose dimensions deltas have
        self._targets: set[str] = set()  # variables that DEPEND attributes name
        self._lengths: dict[str, int] = {}  # lengths of dimensions
        self.unlimited: list[str] = []

    def count_lists(self) -> None:
        """Report each list of descriptors that is shorter or longer than the file says."""
        z_variables = sum(variable.is_z for variable in self._variables.values())
        found = len(self._variables) - z_variables, z_variables, len(self._attributes)
        for what, count, length in zip(
            ("rVariables", "zVariables", "attributes"), self._head.counts, found, strict=True
        ):
            if count != length:
                self.reports[f"list of {what}"] = f"its list has {length} {what}: expected {count}"

    def add_all(self) -> Steps[None]:
        """Add each variable, or a report if it cannot be shown."""
        for name, attributes in self._attributes_of.items():
            texts = {each: _key(value) for each, value in attributes.items() if isinstance(value, str)}
            self._targets |= {value for each, value in texts.items() if _TARGETS.fullmatch(each)}
            for number in range(1, 10):
                if f"DEPEND_{number}" in texts:
                    self._axes.setdefault(texts.get(f"LABL_PTR_{number}", ""), texts[f"DEPEND_{number}"])
            self._parents |= {texts[delta]: name for delta in _DELTAS if delta in texts}
        variables = sorted(self._variables.items(), key=lambda item: item[0] in self._parents)
        blocks = yield from run_together([self._block(variable) for _, variable in variables])
        for (name, variable), block in zip(variables, blocks, strict=True):
            try:
                if isinstance(block, str):
                    raise ManifestError(block)
                self._add(name, variable, block)
            except ManifestError as e:
                self.reports[name] = str(e)
        self.arrays = {name: self.arrays[name] for name in self._variables if name in self.arrays}
        if not self.arrays and not self.reports:
            self.reports["variables"] = "it has none"

    def load_indexes(self) -> Steps[None]:
        """Read the indexes of all variables, unless they are damaged: then a reader meets the error."""
        for chunks in self.chunks.values():
            if isinstance(chunks, VariableChunks):
                with suppress(RefShardError):
                    yield from chunks.load_index()

    def _block(self, variable: Variable) -> Steps[int | str]:
        """Return the number of records that are compressed together, or the reason why they cannot be read."""
        at, kind, block = variable.index_at, VXR, 0
        if not variable.compression:
            return block
        try:
            check_compression(variable.compression)
            for _ in range(MOST_LEVELS):
                runs = (yield from self._records.read_runs(at, is_first=True)) if kind == VXR else []
                if not runs:
                    break
                at, block = runs[0].at, runs[0].last - runs[0].first + 1
                [(kind, _)] = yield from self._records.read_headers([at])
        except RefShardError as e:
            return str(e)
        return block if kind == CVVR else 0

    def _add(self, name: str, variable: Variable, block: int) -> None:
        kind = kind_of(variable.type, variable.elements, self._head.encoding)
        size = kind.stored.itemsize
        if size > PIECE or (not kind.is_text and variable.elements != 1):
            raise ManifestError(f"a value has {variable.elements} elements of {kind.name}, which is not read")
        layout = layout_of(variable, kind, block, is_row_major=self._head.is_row_major)
        attributes, fill = _as_cf(self._attributes_of[name], kind)
        array = ArrayDescription(
            f"{self.url}, variable {variable.name!r}",
            layout.to_shown_order(layout.shape),
            layout.to_shown_order(layout.chunks),
            kind.shown,
            self._dimensions(name, variable),
            attributes,
            [{"id": "gzip", "level": 6}] if layout.is_compressed else (),
            None if fill is None else encode_fill_value(fill, kind.shown),
            layout.order,
            is_masked=True,
        )
        pad = variable.pad[:size] if len(variable.pad) >= size else default_pad(kind)
        fills_itself = fill == kind.show(np.frombuffer(pad, kind.stored)).tobytes()
        grid = array.grid(self._zarr_format)
        chunks = VariableChunks(self._records, variable, kind, layout, array, grid, pad, fills_itself=fills_itself)
        self.add(name, array, chunks)

    def _dimensions(self, name: str, variable: Variable) -> list[str]:
        """Return the names of a variable's dimensions. Each name has one length in all variables."""
        names: list[str] = []
        for axis, length in enumerate(variable.shape):
            is_record = variable.varies and not axis
            others = (f"{'record' if is_record else 'dim'}{number}" for number in range(len(self._lengths) + 2))
            candidates = [*self._candidates(name, variable, axis), *others, f"{name}_{axis}"]
            found = next(each for each in candidates if each not in names and self._has_length(each, length))
            names.append(found)
            if is_record and found not in self.unlimited:
                self.unlimited.append(found)
        return names

    def _candidates(self, name: str, variable: Variable, axis: int) -> Iterator[str]:
        """Yield names of a dimension that the attributes of ISTP suggest."""
        attributes, rank = self._attributes_of[name], len(variable.shape)
        if rank == 1 and name in self._targets:
            yield name
        targets = [attributes.get(f"DEPEND_{axis if variable.varies else axis + 1}")]
        if axis == rank - 1:
            targets.append(self._axes.get(name))
        if not variable.varies:
            targets.append(attributes.get(f"DEPEND_{axis}"))
        parent = self.arrays.get(self._parents.get(name, ""))
        if parent is not None and parent.shape == variable.shape and targets[0] is None:
            yield parent.dimensions[axis]
        for target in targets:
            key = _key(target) if isinstance(target, str) else ""
            if key in self._variables:
                yield key if len(self._variables[key].shape) == 1 else f"{key}_dim"
        if rank > 1 and axis == rank - 1 and name in self._targets:
            yield f"{name}_dim"

    def _has_length(self, name: str, length: int) -> bool:
        """Return whether a dimension of a length can have a name; one that a variable has is its only dimension."""
        owner = self._variables.get(name)
        if owner is not None and owner.shape != (length,):
            return False
        return self._lengths.setdefault(name, length) == length

    def _read_attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of each variable."""
        found: dict[tuple[bool, int], dict[str, Any]] = {}
        for attribute in self._attributes:
            for is_z, entries in ((False, attribute.entries), (True, attribute.z_entries)):
                for entry in entries if not attribute.is_global else ():
                    found.setdefault((is_z, entry.number), {})[attribute.name] = self._value(entry)
        return {name: found.get((each.is_z, each.number), {}) for name, each in self._variables.items()}

    def root(self) -> dict[str, Any]:
        """Return the attributes of the file, and the names of coordinates that have no dimension of their name."""
        found: dict[str, Any] = {}
        for attribute in self._attributes:
            values = [self._value(entry) for entry in sorted(attribute.entries)] if attribute.is_global else []
            if values:
                found[attribute.name] = values[0] if len(values) == 1 else values
        names = [name for name in self.arrays if self._is_coordinate(name) and not re.search(r"\s", name)]
        return ({"coordinates": " ".join(names)} if names else {}) | found

    def _is_coordinate(self, name: str) -> bool:
        is_label = self._axes.get(name) in self._targets and self.arrays[name].dtype.kind == "S"
        return name not in self._lengths and (f"{name}_dim" in self._lengths or is_label)

    def _value(self, entry: Entry) -> Any:
        """Return the value of an entry in JSON; times are texts of ISO 8601. None if it is not read."""
        try:
            kind = kind_of(entry.type, entry.elements, self._head.encoding)
        except ManifestError:
            return None
        if kind.is_text:
            text = decode_text(entry.data[: entry.elements])
            return text.split(_SEPARATOR) if entry.strings > 1 else text
        count = min(entry.elements, len(entry.data) // kind.stored.itemsize)
        values: Any = kind.show(np.frombuffer(entry.data, kind.stored, max(count, 0)))
        if kind.number in UNITS:
            values = np.datetime_as_string(values.view(f"M8[{'us' if kind.number == EPOCH else 'ns'}]"))
        found = values.tolist()
        return found[0] if len(found) == 1 else found


def _key(name: str) -> str:
    """Return the path of a variable."""
    return name.strip().replace("/", "_") or "_"


def _as_cf(attributes: dict[str, Any], kind: Kind) -> tuple[dict[str, Any], bytes | None]:
    """Return attributes with the names of CF, and the fill value; None if there is none."""
    found = {cf: attributes[name] for name, cf in _AS_CF.items() if isinstance(attributes.get(name), str)}
    found |= {name: value for name, value in attributes.items() if value is not None}
    value = found.pop("_FillValue", attributes.get("FILLVAL"))
    if kind.number in UNITS:
        found |= {"units": f"{UNITS[kind.number]} since 1970-01-01", "calendar": "proleptic_gregorian"}
        return found, np.int64(NOT_A_TIME).tobytes()
    if kind.is_text:
        return found | {"_Encoding": "latin-1"}, None
    if type(value) not in (int, float):
        return found, None
    with np.errstate(all="ignore"):
        fill = np.array(value).astype(kind.shown)
    return found, fill.tobytes() if kind.shown.kind == "f" or fill == value else None

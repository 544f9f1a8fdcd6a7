"""CDF files as zarr groups: an array for each rVariable and zVariable. No I/O here.

Times are shown as in CF: integers since 1970. Attributes of ISTP, a convention of NASA, name dimensions and
coordinates, as in cdflib's ``cdf_to_xarray``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import md5
from typing import Any, Final

import numpy as np

from refshard_fs.core.array_group import PIECE, ArrayDescription, ArrayGroupBuilder, encode_fill_value, report_damage
from refshard_fs.core.format import OpenOptions, Probe, decode_text
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Load, Raw, Steps, run_together
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.formats.cdf import COMPRESSED, MAGICS, PLAIN
from refshard_fs.formats.cdf.chunks import MOST_LEVELS, VariableChunks, choose_layout
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
)
from refshard_fs.formats.cdf.values import (
    EPOCH,
    NOT_A_TIME,
    UNITS,
    DecompressionRecipe,
    Kind,
    check_compression,
    find_kind,
    make_default_pad,
)

MOST_INFLATED: Final = 64 << 20  # the most bytes of a file compressed as a whole, before and after decompression

_CF_NAMES: Final = {"UNITS": "units", "LABLAXIS": "long_name"}  # names that xarray's plots use
_SEPARATOR: Final = "\\N "  # separates texts in an entry
_TARGETS: Final = re.compile(r"DEPEND_\d", re.IGNORECASE)  # attributes that name the coordinate of a dimension
_DELTAS: Final = ("DELTA_PLUS_VAR", "DELTA_MINUS_VAR")  # attributes that name a variable with uncertainties


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a CDF file."""
    source, size = probe.file("CDF file")
    magic, compression_mark = probe.head[:4], probe.head[4:8]
    if magic not in MAGICS or compression_mark not in (PLAIN, COMPRESSED):
        raise ManifestError(f"{probe.url}: expected a CDF file, found the first bytes {probe.head[:8]!r}")
    version = 3 if magic == MAGICS[0] else 2
    with report_damage(probe.url):
        records = Records(probe.url, source, size, probe.head, version)
        if compression_mark == COMPRESSED:
            data = magic + PLAIN + (yield from _decompress_file(records))
            records = Records(probe.url, Inline(data), len(data), data, version)
        is_whole = records.size <= WHOLE
        if is_whole:
            yield from records.read(0, records.size)
        head = yield from records.read_head()
        if is_whole and head.has_checksum and compression_mark == PLAIN:
            _verify_checksum((yield from records.read(0, records.size)))
        variables, attributes = yield from records.read_all(head)
        group = _Group(records, head, variables, attributes, options.zarr_format)
        group.report_short_lists()
        yield from group.add_all()
        if is_whole:  # the bytes of the indexes are in memory
            yield from group.load_indexes()
        keyspace = group.make_keyspace(options.zarr_format, group.read_root_attributes())
    records.finish_opening()
    keyspace.unlimited_dimensions = {"": group.unlimited}
    return keyspace


def _verify_checksum(data: bytes) -> None:
    """Verify the MD5 checksum at the end of a file; not of files that are too large to be read whole."""
    computed, expected = md5(data[:-16], usedforsecurity=False).digest(), data[-16:]
    if computed != expected:
        raise ValueError(
            f"its MD5 checksum is {computed.hex()}: expected {expected.hex()}, as the end of the file says"
        )


def _decompress_file(records: Records) -> Steps[bytes]:
    """Decompress a file that is compressed as a whole. The result lacks the magic numbers at its start."""
    layout = records.make_struct("OiOOi")
    packed_size, _, cpr_offset, plain_size, _ = layout.unpack((yield from records.read(8, layout.size)))
    if max(plain_size, packed_size) > MOST_INFLATED or plain_size < 0:
        raise ManifestError(
            f"{records.url}: it is compressed as a whole, {packed_size} bytes to {plain_size}: expected 0 to "
            f"{MOST_INFLATED}, because it is decompressed in memory. Compress its variables instead: cdfconvert "
            "-compression vars:gzip.6"
        )
    cpr = yield from records.read_record(cpr_offset, CPR)
    kind = int.from_bytes(cpr[:4], "big")
    try:
        check_compression(kind)
    except ManifestError as e:
        raise ManifestError(f"{records.url}: {e}") from None
    if packed_size < layout.size or 8 + packed_size > records.size:
        expected = f"expected {layout.size} to {records.size - 8} compressed bytes after byte 8, found {packed_size}"
        raise records.make_error(f"it is cut short or damaged: {expected}")
    data: bytes = yield Load(records.source.part(8 + layout.size, packed_size - layout.size), Raw())
    return DecompressionRecipe(kind, plain_size).make(data)


class _Group(ArrayGroupBuilder):
    """Build the arrays of a file from its variables and attributes."""

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
            key = _make_path(variable.name)
            self._variables[f"{key}_{len(self._variables)}" if key in self._variables else key] = variable
        self._attributes_by_variable = self._read_attributes()
        self._axes: dict[str, str] = {}  # by variable with labels: the variable with the values of the same axis
        self._parents: dict[str, str] = {}  # by variable with deltas: the variable to which the deltas belong
        self._targets: set[str] = set()  # the variables that DEPEND attributes name
        self._lengths: dict[str, int] = {}  # by name of dimension
        self.unlimited: list[str] = []

    def report_short_lists(self) -> None:
        """Report each list of descriptors whose length differs from the count in the file."""
        z_variables = sum(variable.is_z for variable in self._variables.values())
        counts = len(self._variables) - z_variables, z_variables, len(self._attributes)
        for list_name, expected, actual in zip(
            ("rVariables", "zVariables", "attributes"), self._head.counts, counts, strict=True
        ):
            if expected != actual:
                self.reports[f"list of {list_name}"] = f"its list has {actual} {list_name}: expected {expected}"

    def add_all(self) -> Steps[None]:
        """Add each variable. If it cannot be shown, add a report."""
        for name, attributes in self._attributes_by_variable.items():
            texts = {
                attribute_name: _make_path(value)
                for attribute_name, value in attributes.items()
                if isinstance(value, str)
            }
            self._targets |= {value for attribute_name, value in texts.items() if _TARGETS.fullmatch(attribute_name)}
            for number in range(1, 10):
                if f"DEPEND_{number}" in texts:
                    self._axes.setdefault(texts.get(f"LABL_PTR_{number}", ""), texts[f"DEPEND_{number}"])
            self._parents |= {texts[delta]: name for delta in _DELTAS if delta in texts}
        variables = sorted(self._variables.items(), key=lambda item: item[0] in self._parents)
        blocks = yield from run_together([self._find_block_size(variable) for _, variable in variables])
        for (name, variable), block in zip(variables, blocks, strict=True):
            if isinstance(block, str):
                self.reports[name] = block
                continue
            with self.report_errors(name):
                self._add_variable(name, variable, block)
        self.arrays = {name: self.arrays[name] for name in self._variables if name in self.arrays}

    def load_indexes(self) -> Steps[None]:
        """Read the indexes of all variables. Ignore damage: reading the variable raises the same error."""
        for chunks in self.chunks.values():
            if isinstance(chunks, VariableChunks):
                with suppress(RefShardError):
                    yield from chunks.load_index()

    def _find_block_size(self, variable: Variable) -> Steps[int | str]:
        """Return the number of records that are compressed together (0: not compressed).

        If the variable cannot be read, return the reason.
        """
        offset, kind, block = variable.index_offset, VXR, 0
        if not variable.compression:
            return block
        try:
            check_compression(variable.compression)
            for _ in range(MOST_LEVELS):
                runs = (yield from self._records.read_runs(offset, is_first=True)) if kind == VXR else []
                if not runs:
                    break
                offset, block = runs[0].offset, runs[0].last - runs[0].first + 1
                [(kind, _)] = yield from self._records.read_headers([offset])
        except RefShardError as e:
            return str(e)
        return block if kind == CVVR else 0

    def _add_variable(self, name: str, variable: Variable, block: int) -> None:
        kind = find_kind(variable.type, variable.elements, self._head.encoding)
        size = kind.stored_dtype.itemsize
        if size > PIECE or (not kind.is_text and variable.elements != 1):
            limits = f"expected 1 element, or a text of at most {PIECE} bytes"
            raise ManifestError(f"a value has {variable.elements} elements of type {kind.name}: {limits}")
        layout = choose_layout(variable, kind, block, is_row_major=self._head.is_row_major)
        attributes, fill = _convert_attributes(self._attributes_by_variable[name], kind)
        array = ArrayDescription(
            f"{self.url}, variable {variable.name!r}",
            layout.convert_to_shown_order(layout.shape),
            layout.convert_to_shown_order(layout.chunks),
            kind.shown_dtype,
            self._name_dimensions(name, variable),
            attributes,
            [{"id": "gzip", "level": 6}] if layout.is_compressed else (),
            None if fill is None else encode_fill_value(fill, kind.shown_dtype),
            layout.order,
            is_masked=True,
        )
        pad = variable.pad[:size] if len(variable.pad) >= size else make_default_pad(kind)
        fills_itself = fill == kind.convert(np.frombuffer(pad, kind.stored_dtype)).tobytes()
        grid = array.grid(self._zarr_format)
        chunks = VariableChunks(self._records, variable, kind, layout, array, grid, pad, fills_itself=fills_itself)
        self.add(name, array, chunks)

    def _name_dimensions(self, name: str, variable: Variable) -> list[str]:
        """Return the names of a variable's dimensions. A name has the same length in all variables."""
        names: list[str] = []
        for axis, length in enumerate(variable.shape):
            is_record = variable.varies and not axis
            numbered_names = (f"{'record' if is_record else 'dim'}{number}" for number in range(len(self._lengths) + 2))
            candidates = [*self._suggest_names(name, variable, axis), *numbered_names, f"{name}_{axis}"]
            dimension = next(
                candidate for candidate in candidates if candidate not in names and self._take_name(candidate, length)
            )
            names.append(dimension)
            if is_record and dimension not in self.unlimited:
                self.unlimited.append(dimension)
        return names

    def _suggest_names(self, name: str, variable: Variable, axis: int) -> Iterator[str]:
        """Yield names for a dimension from the attributes of ISTP, the best first."""
        attributes, rank = self._attributes_by_variable[name], len(variable.shape)
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
            key = _make_path(target) if isinstance(target, str) else ""
            if key in self._variables:
                yield key if len(self._variables[key].shape) == 1 else f"{key}_dim"
        if rank > 1 and axis == rank - 1 and name in self._targets:
            yield f"{name}_dim"

    def _take_name(self, name: str, length: int) -> bool:
        """Take ``name`` for dimensions of this ``length``. Return False if it is already taken for another length.

        The name of a variable can only be the name of the variable's single dimension.
        """
        owner = self._variables.get(name)
        if owner is not None and owner.shape != (length,):
            return False
        return self._lengths.setdefault(name, length) == length

    def _read_attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of each variable, by the path of the variable."""
        attributes: dict[tuple[bool, int], dict[str, Any]] = {}
        for attribute in self._attributes:
            for is_z, entries in ((False, attribute.entries), (True, attribute.z_entries)):
                for entry in entries if not attribute.is_global else ():
                    attributes.setdefault((is_z, entry.number), {})[attribute.name] = self._decode_entry(entry)
        return {
            name: attributes.get((variable.is_z, variable.number), {}) for name, variable in self._variables.items()
        }

    def read_root_attributes(self) -> dict[str, Any]:
        """Return the attributes of the file, and the names of non-index coordinates as attribute ``coordinates``."""
        attributes: dict[str, Any] = {}
        for attribute in self._attributes:
            values = [self._decode_entry(entry) for entry in sorted(attribute.entries)] if attribute.is_global else []
            if values:
                attributes[attribute.name] = values[0] if len(values) == 1 else values
        names = [name for name in self.arrays if self._is_coordinate(name) and not re.search(r"\s", name)]
        return ({"coordinates": " ".join(names)} if names else {}) | attributes

    def _is_coordinate(self, name: str) -> bool:
        is_label = self._axes.get(name) in self._targets and self.arrays[name].dtype.kind == "S"
        return name not in self._lengths and (f"{name}_dim" in self._lengths or is_label)

    def _decode_entry(self, entry: Entry) -> Any:
        """Decode the value of an entry to JSON; times become texts of ISO 8601. None if its type is not supported."""
        try:
            kind = find_kind(entry.type, entry.elements, self._head.encoding)
        except ManifestError:
            return None
        if kind.is_text:
            text = decode_text(entry.data[: entry.elements].partition(b"\0")[0])
            return text.split(_SEPARATOR) if entry.strings > 1 else text
        count = min(entry.elements, len(entry.data) // kind.stored_dtype.itemsize)
        values: Any = kind.convert(np.frombuffer(entry.data, kind.stored_dtype, max(count, 0)))
        if kind.number in UNITS:
            values = np.datetime_as_string(values.view(f"M8[{'us' if kind.number == EPOCH else 'ns'}]"))
        items = values.tolist()
        return items[0] if len(items) == 1 else items


def _make_path(name: str) -> str:
    """Convert the name of a variable to its path."""
    return name.strip().replace("/", "_") or "_"


def _convert_attributes(attributes: dict[str, Any], kind: Kind) -> tuple[dict[str, Any], bytes | None]:
    """Return attributes with the names of CF, and the bytes of the fill value (None: no fill value)."""
    converted = {cf: attributes[name] for name, cf in _CF_NAMES.items() if isinstance(attributes.get(name), str)}
    converted |= {name: value for name, value in attributes.items() if value is not None}
    value = converted.pop("_FillValue", attributes.get("FILLVAL"))
    if kind.number in UNITS:
        converted |= {"units": f"{UNITS[kind.number]} since 1970-01-01", "calendar": "proleptic_gregorian"}
        return converted, np.int64(NOT_A_TIME).tobytes()
    if kind.is_text:
        return converted | {"_Encoding": "latin-1"}, None
    if type(value) not in (int, float):
        return converted, None
    with np.errstate(all="ignore"):
        fill = np.array(value).astype(kind.shown_dtype)
    return converted, fill.tobytes() if kind.shown_dtype.kind == "f" or fill == value else None

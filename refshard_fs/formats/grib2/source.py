"""Show a GRIB file as a group: a variable for each parameter and kind of level, a chunk for each field. No I/O here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, RecipeChunks, SingleChunk
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Load, Need, ParsedIndex, Span, Steps, T, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.grib2 import edition_1
from refshard_fs.formats.grib2.decoding import Values, Values1, find_truncation
from refshard_fs.formats.grib2.library import FINEST, ParameterName, Points, import_eccodes, name_parameter
from refshard_fs.formats.grib2.messages import (
    HARMONICS,
    MISSING,
    PACKINGS,
    RELATION,
    TEMPLATES,
    Field,
    Grib,
    Grid,
    Parameter,
    Surface,
    UnshownPart,
    describe_grid,
    find_message,
    parse_integer,
    parse_length,
    parse_sidecar,
)

# Ends of the names of sidecars that wgrib2 and ECMWF write. They follow the file's name, or replace its extension.
SIDECARS: Final = (".idx", ".index")
# A file of up to this many bytes is read in one request if its first message is short. At 60 MB/s, these bytes take as
# long as two rounds of 20 ms, and sidecars and windows would take a request each.
WHOLE: Final = 2 << 20
SHORT: Final = 64 << 10  # bytes of a short message: the windows of long messages are far smaller than the file
VERSION: Final = 6  # of scans in the index cache: increase it if other fields are found in the same file
FIELD_BYTES: Final = 1 << 10  # bytes of a field in memory, without its grid
# Limits of the points of a grid. A field of one value is a header only, so a small file could state a huge grid: the
# limit is `RATIO` points for each byte of the file, but at least `SMALL` and at most `LARGEST` (512 MiB of values).
# Grids in use have up to 30 million points.
LARGEST: Final = 1 << 27
SMALL: Final = 1 << 23
RATIO: Final = 1 << 10
COORDINATES: Final = 1 << 24  # limit of the bytes of all coordinates of a file that has fewer bytes
_SPARSE: Final = 16  # most pairs of time and step for each field: with more, `valid_time` might take gigabytes
LONGEST: Final = 1 << 17  # most points along a side of a grid: their coordinates take 1 MiB
_UNSTRUCTURED: Final = 101  # template of a list of points, which a number and a UUID identify, such as ICON grids
# Templates of grids whose coordinates eccodes can compute. Other grids have no coordinates, as in cfgrib: another file
# lists the points (`_UNSTRUCTURED`), there are no points (spectra), or eccodes does not support the projection.
_LOCATED: Final = frozenset([*range(4), 10, 13, 20, 23, 30, 33, *range(40, 44), 90, 140, 150])
# Templates of grids along one dimension (reduced grids and HEALPix) whose coordinates are computed. For such grids of
# other templates, eccodes may end the process.
_FLAT: Final = frozenset([0, *range(40, 44), 150])
_REGULAR: Final = (0, 40)  # templates of grids with the dimensions latitude and longitude, unless they are reduced


def _make_cf_attributes(units: str, standard_name: str, long_name: str, **others: str) -> dict[str, str]:
    """Return the attributes of the CF conventions whose texts are not empty."""
    attributes = {"units": units, "standard_name": standard_name, "long_name": long_name, **others}
    return {key: value for key, value in attributes.items() if value}


_SINCE: Final = "seconds since 1970-01-01"
_CALENDAR: Final = "proleptic_gregorian"
_DOWN: Final = {"positive": "down", "stored_direction": "decreasing"}
# Attributes of coordinates; cfgrib's own are the same. Other coordinates are kinds of levels without a CF name.
ATTRIBUTES: Final = {
    "latitude": _make_cf_attributes("degrees_north", "latitude", "latitude"),
    "longitude": _make_cf_attributes("degrees_east", "longitude", "longitude"),
    "number": _make_cf_attributes("1", "realization", "ensemble member numerical id"),
    "time": _make_cf_attributes(_SINCE, "forecast_reference_time", "initial time of forecast", calendar=_CALENDAR),
    "step": _make_cf_attributes(
        "seconds", "forecast_period", "time since forecast_reference_time", dtype="timedelta64[ns]"
    ),
    "valid_time": _make_cf_attributes(_SINCE, "time", "time", calendar=_CALENDAR),
    "isobaricInhPa": _make_cf_attributes("hPa", "air_pressure", "pressure", **_DOWN),
    "isobaricInPa": _make_cf_attributes("Pa", "air_pressure", "pressure", **_DOWN),
    "isobaricLayer": _make_cf_attributes("Pa", "air_pressure", "pressure", positive="down"),
    "heightAboveGround": _make_cf_attributes("m", "height", "height above the surface", positive="up"),
    "depthBelowLand": _make_cf_attributes("m", "depth", "soil depth", positive="down"),
    "depthBelowLandLayer": _make_cf_attributes("m", "depth", "soil depth", positive="down"),
    "directionNumber": _make_cf_attributes(
        "1", "", "original GRIB coordinate for key: directionNumber(directionNumber)"
    ),
    "frequencyNumber": _make_cf_attributes(
        "1", "", "original GRIB coordinate for key: frequencyNumber(frequencyNumber)"
    ),
    "percentile": _make_cf_attributes("%", "", "percentile"),
    "threshold": _make_cf_attributes("", "", "limit of the values whose probability is given"),
    "constituent": _make_cf_attributes("1", "", "constituent (code table 4.230)"),
    "size": _make_cf_attributes("m", "", "particle size"),
    "wavelength": _make_cf_attributes("m", "radiation_wavelength", "wavelength"),
    "wavenumber": _make_cf_attributes("m-1", "sensor_band_central_radiation_wavenumber", "central wave number"),
    "satellite": _make_cf_attributes("1", "", "satellite (common code table C-5)"),
    "instrument": _make_cf_attributes("1", "", "instrument (common code table C-8)"),
    RELATION: _make_cf_attributes("1", "", "relation to the reference dataset (code table 4.242)"),
    "wave_period": _make_cf_attributes("s", "", "wave period"),
    "hybrid": _make_cf_attributes("1", "atmosphere_hybrid_sigma_pressure_coordinate", "hybrid level", positive="down"),
}


LEVEL_UNITS: Final = {"isobaricInhPa": 2, "potentialVorticity": -9}  # units of levels, as powers of ten of the SI unit
# The properties that all fields of a variable share: the names of parameter and level, the numbers of the statistic and
# of the kind of product, the names of further axes, and the grid.
_Key = tuple[str, str, int, int, tuple[str, ...], bytes]


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a GRIB file, which may have messages of both editions."""
    source, size = probe.file("GRIB file")
    if size == len(probe.head):
        scan = _scan_in_memory(b"", probe.head, probe.url)
    else:
        assert probe.facts is not None, "the size of the file is known"
        scan = yield Load(Span(probe.url, pin=probe.facts.pin), FileScan(probe.head, size))
    group = FieldGroup(probe.url, source, options.zarr_format)
    group.add_variables(scan)
    return group.make_keyspace(options.zarr_format, {"Conventions": "CF-1.7"})


class Scan(NamedTuple):
    """The fields of a file, `UnshownPart` for messages that are not shown, and the names of the parameters."""

    fields: tuple[Field | UnshownPart, ...]
    names: Mapping[Parameter, ParameterName]

    @classmethod
    def make(cls, fields: Sequence[Field | UnshownPart]) -> Scan:
        """Return a scan of these fields; equal grids become one object in memory."""
        grids: dict[bytes, bytes] = {}
        shared = tuple(
            msgspec.structs.replace(field, grid=grids.setdefault(field.grid, field.grid))
            if isinstance(field, Field)
            else field
            for field in fields
        )
        parameters = [field.parameter for field in shared if isinstance(field, Field)]
        return cls(shared, {parameter: name_parameter(parameter) for parameter in parameters})

    @property
    def nbytes(self) -> int:
        grids = {id(field.grid): len(field.grid) for field in self.fields if isinstance(field, Field)}
        return FIELD_BYTES * len(self.fields) + sum(grids.values())


class _StoredField(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A field in the index cache and the number of its grid, or the byte and the reason of an `UnshownPart`."""

    number: int
    reason: str = ""
    field: Field | None = None


class _StoredScan(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A scan in the index cache: each distinct grid once, and fields whose ``grid`` is empty."""

    grids: list[bytes]
    fields: list[_StoredField]
    names: list[tuple[Parameter, ParameterName]]


class FileScan(msgspec.Struct, frozen=True):
    """Index for a GRIB file of ``size`` bytes that begins with ``head``: find its fields."""

    head: bytes
    size: int

    def scan(self, source: Span) -> Steps[Scan]:
        """Return the fields. A small file of short messages is read whole, other files by a sidecar or windows."""
        if self.size <= WHOLE and self._begins_with_short_message():
            rest = source.resolve_end(self.size).part(len(self.head), self.size - len(self.head))
            scan: Scan = yield Load(rest, ParsedIndex(_scan_in_memory, (self.head, source.url)))
        else:
            offsets = yield from _read_sidecar(source)
            scan = yield from scan_messages(
                Grib(source.url, source.resolve_end(self.size), self.size, self.head), offsets or ()
            )
        return scan

    def _begins_with_short_message(self) -> bool:
        at = find_message(self.head)
        return 0 <= at <= len(self.head) - 16 and parse_length(self.head[at : at + 16]) <= SHORT

    def decode(self, data: bytes) -> Scan:
        """Return the fields of a file whose bytes are ``data``."""
        return _scan_in_memory(data, b"", "the file")

    def make_identity(self) -> bytes:
        return repr((VERSION, TEMPLATES, PACKINGS, _get_versions(), sha256(self.head).digest())).encode()

    def pack(self, value: Scan) -> list[bytes | memoryview]:
        import_eccodes()  # raises ValueError without eccodes: names that are only numbers must not be cached
        grids: dict[bytes, int] = {}
        stored = [
            _StoredField(field.at, field.reason) if isinstance(field, UnshownPart) else
            _StoredField(grids.setdefault(field.grid, len(grids)), field=msgspec.structs.replace(field, grid=b""))
            for field in value.fields
        ]  # fmt: skip
        return [msgspec.msgpack.encode(_StoredScan(list(grids), stored, list(value.names.items())))]

    def unpack(self, data: memoryview) -> Scan:
        try:
            stored = msgspec.msgpack.decode(data, type=_StoredScan)
            fields = tuple(
                UnshownPart(item.number, item.reason) if item.field is None else
                msgspec.structs.replace(item.field, grid=stored.grids[item.number])
                for item in stored.fields
            )  # fmt: skip
            return Scan(fields, dict(stored.names))
        except (msgspec.DecodeError, IndexError) as e:
            raise ValueError(f"expected the scan of a GRIB file: {e}") from e


@cache
def _get_versions() -> list[str]:
    """Return the versions of the packages that name parameters; "" for one that is not installed."""
    versions = []
    for package in ("eccodes", "eccodeslib"):
        try:
            versions.append(version(package))
        except PackageNotFoundError:
            versions.append("")
    return versions


def scan_messages(grib: Grib, offsets: Sequence[int] = ()) -> Steps[Scan]:
    """Return the fields of all messages; ``offsets`` of messages in a sidecar save requests."""
    messages = yield from grib.find_messages(offsets)
    fields = yield from run_together([_read_fields(grib, *message) for message in messages])
    return Scan.make((*grib.unshown, *itertools.chain.from_iterable(fields)))


def _scan_in_memory(rest: bytes, head: bytes, url: str) -> Scan:
    """Return the fields of a file whose bytes are ``head`` followed by ``rest``."""
    data = head + rest
    return _run_in_memory(scan_messages(Grib(url, Inline(data), len(data), data)))


def parse_message(data: bytes) -> list[Field | UnshownPart]:
    """Return the fields of a message of edition 2; ManifestError if its sections do not fit the message."""
    grib = Grib("the message", Inline(data), len(data), data)

    def read_fields() -> Steps[list[Field | UnshownPart]]:
        yield from grib.read_windows([0])
        return (yield from grib.read_fields(0, parse_length(data[:16])))

    return _run_in_memory(read_fields())


def _run_in_memory(steps: Steps[T]) -> T:
    """Run ``steps``, all of whose needs are for bytes in memory, and return their result."""
    answer: Any = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = tuple(map(_answer_in_memory, need)) if isinstance(need, tuple) else _answer_in_memory(need)


def _answer_in_memory(need: Need) -> Any:
    """Return the answer to a need for bytes in memory."""
    assert isinstance(need, Load)
    assert isinstance(need.entry, Inline), "all bytes of the file are in memory"
    return need.index.decode(need.entry.data)


def _read_fields(grib: Grib, at: int, length: int) -> Steps[list[Field | UnshownPart]]:
    """Return the fields of the message of ``length`` bytes at byte ``at``; an `UnshownPart` if it is damaged."""
    try:
        if grib.windows_at[at][7] == 1:  # the edition
            return (yield from edition_1.parse_fields(grib, at, length))
        return (yield from grib.read_fields(at, length))
    except ManifestError as e:
        return [UnshownPart(at, str(e))]


def _read_sidecar(source: Span) -> Steps[tuple[int, ...] | None]:
    """Return the offsets of messages in the first sidecar that lists any; None if none does, or the URL has a query."""
    url = source.url
    if "?" in url:  # a signature in the query is not valid for another name
        return None
    stem = url.rpartition(".")[0] if "." in url.rpartition("/")[2] else url
    names = dict.fromkeys(base + end for base in (url, stem) for end in SIDECARS)
    loads = tuple(Load(Span(name, optional=True, origin=source.origin), ParsedIndex(parse_sidecar)) for name in names)
    sidecars = yield loads
    return next((offsets for offsets in sidecars if offsets), None)


# (offset, size) of parts of the file, and the recipe that decodes their bytes.
DecodedParts = tuple[Sequence[tuple[int, int]], Values | Values1 | Points]


class FieldGroup(ArrayGroupBuilder):
    """Build the group of a GRIB file, whose fields and grids are parts of ``source``."""

    def __init__(self, url: str, source: Span | Inline, zarr_format: int) -> None:
        super().__init__(url)
        self._source = source
        self._zarr_format = zarr_format
        self._most_points = min(LARGEST, max(SMALL, RATIO * (source.size or 0)))
        self._most_bytes = max(COORDINATES, source.size or 0)
        self._bytes_left = self._most_bytes  # for further coordinates
        self._numbers: dict[str, dict[Hashable, int]] = {}  # by name: a number for each object with this name

    def add_variables(self, scan: Scan) -> None:
        """Add a variable for each group of fields, and report the fields that are not shown."""
        variables: dict[_Key, list[Field]] = {}
        for field in scan.fields:
            if isinstance(field, UnshownPart):
                self.reports[f"the message at byte {field.at}"] = field.reason
                continue
            parameter_name = scan.names[field.parameter]
            axes = tuple(name for name, *_ in TEMPLATES[field.parameter.template].axes)
            key = (
                parameter_name.name, parameter_name.level, field.parameter.statistic, field.parameter.kind, axes,
                field.grid,
            )  # fmt: skip
            variables.setdefault(key, []).append(field)
        namesakes: dict[str, list[_Key]] = {}
        for key in variables:
            namesakes.setdefault(key[0], []).append(key)
        for key, fields in variables.items():
            name = self._choose_name(key, namesakes[key[0]])
            with self.report_errors(name):
                self._add_variable(name, scan.names[fields[0].parameter], fields)

    @staticmethod
    def _choose_name(key: _Key, namesakes: Sequence[_Key]) -> str:
        """Return a distinct name for a variable, where ``namesakes`` are the variables of the same parameter.

        If there are several variables, the kind of level is appended; if several of them have the same kind of level, a
        number, too.
        """
        name, level, *_ = key
        if len(namesakes) == 1:
            return name
        same_level = [other for other in namesakes if other[1] == level]
        return f"{name}_{level}" if len(same_level) == 1 else f"{name}_{level}_{same_level.index(key)}"

    def _add_variable(self, name: str, parameter_name: ParameterName, fields: Sequence[Field]) -> None:
        """Add a variable with a chunk for each of the ``fields``; ValueError if its grid is too large."""
        grid_dimensions, grid_coordinates, inner = self.add_grid(fields[0])
        product = TEMPLATES[fields[0].parameter.template]
        axes: dict[str, list[Any]] = {
            "number": [field.member for field in fields],
            "time": [field.time for field in fields],
            "step": [field.step for field in fields],
            parameter_name.level: _list_levels(fields, parameter_name.level),
        }
        for place, (axis, *_) in enumerate(product.axes):
            axes[axis] = _list_coordinates([field.parameter.axes[place] for field in fields])
        ordered = {axis: sorted(set(values)) for axis, values in axes.items()}
        if ATTRIBUTES.get(parameter_name.level, {}).get("stored_direction"):
            ordered[parameter_name.level].reverse()
        if not any(TEMPLATES[field.parameter.template].member for field in fields):
            del ordered["number"]
        names = {}
        for axis, values in ordered.items():
            dtype = "<i8" if type(values[0]) is int else "<f8"
            names[axis] = self.add_coordinate(axis, np.array(values if len(values) > 1 else values[0], dtype))
        dimensions = {axis: coordinate for axis, coordinate in names.items() if len(ordered[axis]) > 1}
        valid = self._add_valid_time(ordered, dimensions, len(fields))
        attributes = {
            **parameter_name.attributes,
            **({f"GRIB_{product.kind[0]}": fields[0].parameter.kind} if product.kind[0] else {}),
            **_name_grid(fields[0]),
            "coordinates": " ".join([*names.values(), *valid, *grid_coordinates]),
        }
        shape = [len(ordered[axis]) for axis in dimensions]
        description = ArrayDescription(
            f"{self.url}: {name}", (*shape, *inner), (*(1 for _ in shape), *inner), np.dtype("<f4"),
            [*dimensions.values(), *grid_dimensions], attributes, fill_value="NaN", is_masked=True,
        )  # fmt: skip
        flags = get_scan_flags(fields[0], inner)
        chunks: dict[int, DecodedParts] = {}
        ranks = {axis: {value: rank for rank, value in enumerate(values)} for axis, values in ordered.items()}
        for place, field in enumerate(fields):
            number = 0
            for axis, rank in ranks.items():
                number = number * len(rank) + rank[axes[axis][place]]
            if number in chunks:
                reason = "expected one field at its coordinates, found an earlier field: this field is not shown"
                self.reports[f"{name} at byte {field.parts[0][0]}"] = reason
            else:
                chunks[number] = field.parts, make_recipe(field, inner[-1], flags)
        self.add(name, description, RecipeChunks(self._source, description.grid(self._zarr_format), chunks))

    def _add_valid_time(
        self, ordered: Mapping[str, list[int]], dimensions: Mapping[str, str], fields: int
    ) -> list[str]:
        """Add a coordinate `valid_time`, the sum of time and step, and return its name in a list.

        The list is empty, and no coordinate is added, if there are more than `_SPARSE` pairs of time and step for each
        field.
        """
        if len(ordered["time"]) * len(ordered["step"]) > _SPARSE * fields:
            return []
        valid = np.add.outer(np.array(ordered["time"], "<i8"), np.array(ordered["step"], "<i8"))
        names = [dimensions[axis] for axis in ("time", "step") if axis in dimensions]
        return [
            self.add_coordinate("valid_time", valid.reshape([extent for extent in valid.shape if extent > 1]), names)
        ]

    def add_coordinate(self, name: str, values: Any, dimensions: Sequence[str] | None = None) -> str:
        """Add a coordinate ``name``, unless it exists with the same ``values``, and return the name of its array.

        If there are coordinates ``name`` with different values, the names of all arrays except the first end with a
        number. Without ``dimensions``, the dimension of the coordinate has the same name as the array.
        """
        data = values.tobytes()
        path = _append_number(name, self._assign_number(name, (values.shape, data, tuple(dimensions or ()))))
        along = [path] * values.ndim if dimensions is None else dimensions
        self._add_array(path, name, values.shape, along, data, values.dtype.str)
        return path

    def _assign_number(self, name: str, item: Hashable) -> int:
        """Return the number of ``item`` among the items that share ``name``: 0 for the first one."""
        numbers = self._numbers.setdefault(name, {})
        return numbers.setdefault(item, len(numbers))

    def _add_array(
        self, path: str, name: str, shape: tuple[int, ...], along: Sequence[str], data: bytes | DecodedParts,
        dtype: str = "<f8",
    ) -> None:  # fmt: skip
        """Add the coordinate ``name`` as an array of one chunk at ``path``, unless this array exists.

        ``data`` are the values or a recipe for them, ``along`` the names of the dimensions.
        """
        if path in self.arrays:
            return
        self._bytes_left -= len(data) if isinstance(data, bytes) else 0
        if self._bytes_left < 0:
            raise ValueError(
                "the coordinates of this field and of earlier fields have "
                f"{self._most_bytes - self._bytes_left} bytes: expected at most {self._most_bytes}"
            )
        level_attributes = {"units": "1", "long_name": f"original GRIB coordinate for key: level({name})"}
        array = ArrayDescription(path, shape, shape, np.dtype(dtype), along, ATTRIBUTES.get(name, level_attributes))
        grid = array.grid(self._zarr_format)
        chunks = SingleChunk(data) if isinstance(data, bytes) else RecipeChunks(self._source, grid, {0: data})
        self.add(path, array, chunks)

    def add_grid(self, field: Field) -> tuple[list[str], list[str], tuple[int, ...]]:
        """Add the coordinates of a field's grid.

        Return the names of the grid's dimensions, the names of coordinates that are not dimensions, and the shape of
        the grid. Raises ValueError if the grid is too large.
        """
        grid = _describe_grid(field)
        template, across, down = grid.template, grid.across, grid.down
        is_flat = across * down != field.count
        if not 0 < field.count <= self._most_points or (not is_flat and max(across, down) > LONGEST):
            raise ValueError(
                f"its grid has {field.count} points, in {down} rows of {across}: expected 1 to {self._most_points} "
                f"points in a file of this size, and at most {LONGEST} along a side"
            )
        if grid.parallels > FINEST:
            raise ValueError(f"its Gaussian grid has N={grid.parallels}: expected at most {FINEST}")
        number = self._assign_number("grid", field.grid)
        plain = [_append_number(axis, number) for axis in (("values",) if is_flat else ("y", "x"))]
        inner: tuple[int, ...] = (field.count,) if is_flat else (down, across)
        if template not in (_FLAT if is_flat else _LOCATED):
            return plain, [], inner
        is_regular = template in _REGULAR and not is_flat
        names = [_append_number("latitude", number), _append_number("longitude", number)]
        for axis, name in enumerate(("latitude", "longitude")):
            data: bytes | DecodedParts
            along = slice(axis, axis + 1) if is_regular else slice(None)  # the dimensions of the coordinate
            if is_regular and template == 0:
                data = _compute_axis(grid, axis, inner[axis])
            else:
                every = across if is_regular and not axis else 1  # all rows have the same longitudes
                scanned = 0 if is_flat else grid.scanned
                edition = field.parameter.edition
                data = [field.grid_at], Points(f"{name}s", math.prod(inner[along]), every, scanned, edition)
            self._add_array(names[axis], name, inner[along], (names if is_regular else plain)[along], data)
        return (names, [], inner) if is_regular else (plain, names, inner)


def _describe_grid(field: Field) -> Grid:
    return edition_1.describe_grid(field.grid) if field.parameter.edition == 1 else describe_grid(field.grid)


def get_scan_flags(field: Field, shape: Sequence[int]) -> int:
    """Return the scanning flags of a field's grid, which has ``shape``; 0 for a list of points."""
    return _describe_grid(field).flags if len(shape) > 1 else 0


def make_recipe(field: Field, across: int, flags: int) -> Values | Values1:
    """Return the recipe that decodes a field from its parts, where a row has ``across`` values."""
    sizes = tuple(size for _, size in field.parts)
    if field.parameter.edition == 1:
        return Values1(field.count, sizes, across, flags, field.decimal)
    return Values(field.count, sizes, across, flags)


def _name_grid(field: Field) -> dict[str, Any]:
    """Return the attributes that identify the grid of a list of points, or of harmonics; none for other grids."""
    grid = field.grid
    if _describe_grid(field).template == HARMONICS:
        truncation = find_truncation(field.count)
        return {"GRIB_gridType": "sh", "GRIB_J": truncation, "GRIB_K": truncation, "GRIB_M": truncation}
    if _describe_grid(field).template != _UNSTRUCTURED:
        return {}
    numbers = {
        "GRIB_numberOfGridUsed": parse_integer(grid, 16, 3),
        "GRIB_numberOfGridInReference": parse_integer(grid, 19),
    }
    return {**numbers, "GRIB_uuidOfHGrid": grid[19:35].hex()}


def _append_number(name: str, number: int) -> str:
    """Return ``name`` with a number; the first ``name``, number 0, stays as it is."""
    return f"{name}_{number}" if number else name


def _list_levels(fields: Sequence[Field], kind: str) -> list[float]:
    """Return the level of each field.

    This is the value of the first surface. If different pairs of surfaces have equal values, it is the number of the
    pair.
    """
    unit = LEVEL_UNITS.get(kind, 0)
    pairs = [field.parameter.surfaces for field in fields]
    return _choose_distinct(pairs, [[first.compute_value(unit) for first, _ in pairs]])


def _list_coordinates(properties: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the coordinate of each field along an axis, from the numbers in its section 4.

    This is the number if there is one for each field. Otherwise, the numbers are scale factors and scaled values of a
    lower and an upper limit: the coordinate is the lower limit, or the upper limit if the lower limit is missing or
    equal for different fields.
    """
    if len(properties[0]) == 1:
        return [number for (number,) in properties]
    limits = [
        [Surface(0, *numbers[at : at + 2]).compute_value() for numbers in properties]
        for at in range(0, len(properties[0]), 2)
        if any(numbers[at + 1] != MISSING for numbers in properties)
    ]
    return _choose_distinct(properties, limits)


def _choose_distinct(properties: Sequence[Any], choices: Sequence[list[float]]) -> list[float]:
    """Return the first of the ``choices`` that has a distinct value for each distinct item of ``properties``.

    If no choice has distinct values, return the rank of each item in ascending order.
    """
    ranks = {item: float(rank) for rank, item in enumerate(sorted(set(properties)))}
    choice = next((values for values in choices if len(set(values)) == len(ranks)), None)
    return [ranks[item] for item in properties] if choice is None else choice


def _compute_axis(grid: Grid, axis: int, count: int) -> bytes:
    """Return the bytes of the latitudes (``axis`` 0) or the longitudes (``axis`` 1) of a regular grid."""
    north, west, south, east = grid.corners
    if grid.flags & 0x80:
        west += 360 if west < east else 0
    elif east < west:
        west -= 360
    elif east - (east - west) / max(count - 1, 1) > 360:  # as eccodes does if the point before the last exceeds 360
        west, east = west - 360, east - 360
    first, last = (west, east) if axis else (north, south)
    return np.linspace(first, last, count).astype("<f8").tobytes()

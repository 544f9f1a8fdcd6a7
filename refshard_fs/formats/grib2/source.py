"""GRIB files as a zarr group: a variable for each parameter and kind of level, a chunk for each field. No I/O here."""

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
from refshard_fs.core.model import Inline, Load, Need, Parsed, Span, Steps, T, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.grib2 import edition_1
from refshard_fs.formats.grib2.decoding import Values, Values1, find_truncation
from refshard_fs.formats.grib2.library import ParameterName, Points, import_eccodes, name_parameter
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
    Unshown,
    describe_grid,
    find_message,
    parse_integer,
    parse_length,
    parse_sidecar,
)

SIDECARS: Final = (".idx", ".index")  # wgrib2's and ECMWF's, after the file's name, or in place of its last part
# A file of up to this size is read in one request if its first message is short. Two rounds of 20 ms take as long as
# these bytes at 60 MB/s, and windows and sidecars take a request each.
WHOLE: Final = 2 << 20
SHORT: Final = 64 << 10  # bytes of a short message: the windows of few long messages are far smaller than the file
VERSION: Final = 6  # version of scans in the index cache: increased whenever a file would have other fields
FIELD_BYTES: Final = 1 << 10  # bytes of a field in memory, without its grid
LARGEST: Final = 1 << 27  # points of a grid that is shown, 512 MiB of them; the largest in use have some 30 million
SMALL: Final = 1 << 23  # and of a grid in a small file, of which
RATIO: Final = 1 << 10  # points may be for each byte: fields of one value take no more bytes than their header
COORDINATES: Final = 1 << 24  # bytes of all coordinates of a file, or as many as the file has
_SPARSE: Final = 16  # pairs of time and step for each field: with more, valid_time might take gigabytes
LONGEST: Final = 1 << 17  # points along a side of a grid with computed coordinates: 1 MiB
_UNSTRUCTURED: Final = 101  # a list of points that a number and a UUID name, as ICON's
# Templates of grids whose points eccodes computes. Other grids have their points in another file (`_UNSTRUCTURED`),
# have none (spectra), or have a projection that eccodes does not know: cfgrib, too, then shows dimensions without
# coordinates.
_LOCATED: Final = frozenset([*range(4), 10, 13, 20, 23, 30, 33, *range(40, 44), 90, 140, 150])
_FLAT: Final = frozenset([0, *range(40, 44), 150])  # for lists of points eccodes may abort
_REGULAR: Final = (0, 40)  # grids with the dimensions latitude and longitude
_FINEST: Final = 1 << 13  # latitudes of a Gaussian grid between a pole and the equator: eccodes takes 2 s to find these


def _make_cf_attributes(units: str, standard_name: str, long_name: str, **others: str) -> dict[str, str]:
    found = {"units": units, "standard_name": standard_name, "long_name": long_name, **others}
    return {key: value for key, value in found.items() if value}


_SINCE: Final = "seconds since 1970-01-01"
_CALENDAR: Final = "proleptic_gregorian"
_DOWN: Final = {"positive": "down", "stored_direction": "decreasing"}
# Attributes of coordinates, those that cfgrib gives them. All others are levels of a kind without CF's names.
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


LEVEL_UNITS: Final = {"isobaricInhPa": 2, "potentialVorticity": -9}  # powers of ten: hPa, and 1e-9 of SI's unit
_Key = tuple[str, str, int, int, tuple[str, ...], bytes]  # the properties that all fields of a variable share


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a GRIB file, of messages of edition 1 or 2."""
    source, size = probe.file("GRIB2")
    if size == len(probe.head):
        scan = _scan_in_memory(b"", probe.head, probe.url)
    else:
        assert probe.facts is not None, "a file whose size is known"
        scan = yield Load(Span(probe.url, pin=probe.facts.pin), FileScan(probe.head, size))
    group = FieldGroup(probe.url, source, options.zarr_format)
    group.show(scan)
    return group.keyspace(options.zarr_format, {"Conventions": "CF-1.7"})


class Scan(NamedTuple):
    """The fields of a file, the reasons why others are not shown, and the names of the parameters."""

    found: tuple[Field | Unshown, ...]
    names: Mapping[Parameter, ParameterName]

    @classmethod
    def of(cls, found: Sequence[Field | Unshown]) -> Scan:
        """Return the scan that found these fields."""
        grids: dict[bytes, bytes] = {}  # most fields of a file have the same one
        fields = tuple(
            msgspec.structs.replace(one, grid=grids.setdefault(one.grid, one.grid)) if isinstance(one, Field) else one
            for one in found
        )
        return cls(fields, {one.parameter: name_parameter(one.parameter) for one in fields if isinstance(one, Field)})

    @property
    def nbytes(self) -> int:
        grids = {id(one.grid): len(one.grid) for one in self.found if isinstance(one, Field)}
        return FIELD_BYTES * len(self.found) + sum(grids.values())


class _Kept(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A field in the index cache, with the number of its grid; or the byte and the reason of `Unshown`."""

    number: int
    reason: str = ""
    field: Field | None = None


class _KeptScan(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    grids: list[bytes]
    found: list[_Kept]
    names: list[tuple[Parameter, ParameterName]]


class FileScan(msgspec.Struct, frozen=True):
    """Finds the fields of a file of ``size`` bytes that begins with ``head``. The index cache keeps the result."""

    head: bytes
    size: int

    def scan(self, source: Span) -> Steps[Scan]:
        """Return the fields: a small file of short messages takes one read, others a sidecar or windows."""
        if self.size <= WHOLE and self._begins_with_short():
            rest = source.resolve_end(self.size).part(len(self.head), self.size - len(self.head))
            scan: Scan = yield Load(rest, Parsed(_scan_in_memory, (self.head, source.url)))
        else:
            offsets = yield from _read_sidecar(source)
            scan = yield from scan_messages(
                Grib(source.url, source.resolve_end(self.size), self.size, self.head), offsets or ()
            )
        return scan

    def _begins_with_short(self) -> bool:
        """Return whether the first message of the file is short."""
        at = find_message(self.head)
        return 0 <= at <= len(self.head) - 16 and parse_length(self.head[at : at + 16]) <= SHORT

    def decode(self, data: bytes) -> Scan:
        """Return the fields of a file that was read whole."""
        return _scan_in_memory(data, b"", "the file")

    def identity(self) -> bytes:
        return repr((VERSION, TEMPLATES, PACKINGS, _get_versions(), sha256(self.head).digest())).encode()

    def pack(self, value: Scan) -> list[bytes | memoryview]:
        import_eccodes()  # without eccodes, parameters are named by numbers until it is installed
        grids: dict[bytes, int] = {}
        found = [
            _Kept(one.at, one.reason) if isinstance(one, Unshown) else
            _Kept(grids.setdefault(one.grid, len(grids)), field=msgspec.structs.replace(one, grid=b""))
            for one in value.found
        ]  # fmt: skip
        return [msgspec.msgpack.encode(_KeptScan(list(grids), found, list(value.names.items())))]

    def unpack(self, data: memoryview) -> Scan:
        try:
            kept = msgspec.msgpack.decode(data, type=_KeptScan)
            found = tuple(
                Unshown(one.number, one.reason) if one.field is None else
                msgspec.structs.replace(one.field, grid=kept.grids[one.number])
                for one in kept.found
            )  # fmt: skip
            return Scan(found, dict(kept.names))
        except (msgspec.DecodeError, IndexError) as e:
            raise ValueError(f"expected the scan of a GRIB file: {e}") from e


@cache
def _get_versions() -> list[str]:
    """Return the versions of the packages that name parameters."""
    found = []
    for package in ("eccodes", "eccodeslib"):
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("")
    return found


def scan_messages(grib: Grib, offsets: Sequence[int] = ()) -> Steps[Scan]:
    """Return the fields of the messages; ``offsets`` come from a sidecar."""
    messages = yield from grib.find_messages(offsets)
    found = yield from run_together([_read_fields(grib, *message) for message in messages])
    return Scan.of((*grib.unshown, *itertools.chain.from_iterable(found)))


def _scan_in_memory(rest: bytes, head: bytes, url: str) -> Scan:
    """Return the scan of a file whose bytes are ``head`` and ``rest``."""
    data = head + rest
    return _run_in_memory(scan_messages(Grib(url, Inline(data), len(data), data)))


def parse_message(data: bytes) -> list[Field | Unshown]:
    """Return the fields of a message of edition 2; ManifestError if its sections do not fit it."""
    grib = Grib("the message", Inline(data), len(data), data)

    def steps() -> Steps[list[Field | Unshown]]:
        yield from grib.read([0])
        return (yield from grib.read_fields(0, parse_length(data[:16])))

    return _run_in_memory(steps())


def _run_in_memory(steps: Steps[T]) -> T:
    """Run ``steps``, which need only bytes in memory, and return their result."""
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


def _read_fields(grib: Grib, at: int, length: int) -> Steps[list[Field | Unshown]]:
    """Return the fields of a message, or the reason why none is shown, if its sections are damaged."""
    try:
        if grib.read_window(at)[7] == 1:
            return (yield from edition_1.parse_fields(grib, at, length))
        return (yield from grib.read_fields(at, length))
    except ManifestError as e:
        return [Unshown(at, str(e))]


def _read_sidecar(source: Span) -> Steps[tuple[int, ...] | None]:
    """Return the offsets of messages in a sidecar; None without a sidecar."""
    url = source.url
    if "?" in url:  # signed, for instance: another name would not be allowed
        return None
    stem = url.rpartition(".")[0] if "." in url.rpartition("/")[2] else url
    names = dict.fromkeys(base + end for base in (url, stem) for end in SIDECARS)
    found = yield tuple(Load(Span(name, optional=True, origin=source.origin), Parsed(parse_sidecar)) for name in names)
    return next((offsets for offsets in found if offsets), None)


Made = tuple[
    Sequence[tuple[int, int]], Values | Values1 | Points
]  # (offset, size) of parts of the file, and the recipe that joins them


class FieldGroup(ArrayGroupBuilder):
    """Collects the variables of a file, and coordinates of grids, whose sections 3 lie in ``source``."""

    def __init__(self, url: str, source: Span | Inline, zarr_format: int) -> None:
        super().__init__(url)
        self._source = source
        self._zarr_format = zarr_format
        self._most = min(LARGEST, max(SMALL, RATIO * (source.size or 0)))  # points of a grid
        self._left = max(COORDINATES, source.size or 0)  # bytes that further coordinates may have
        self._known: dict[str, dict[Hashable, int]] = {}  # the number of each object with a name

    def show(self, scan: Scan) -> None:
        """Show all supported fields."""
        variables: dict[_Key, list[Field]] = {}
        for field in scan.found:
            if isinstance(field, Unshown):
                self.reports[f"the message at byte {field.at}"] = field.reason
                continue
            text = scan.names[field.parameter]
            axes = tuple(name for name, *_ in TEMPLATES[field.parameter.template].axes)
            key = (text.name, text.level, field.parameter.statistic, field.parameter.kind, axes, field.grid)
            variables.setdefault(key, []).append(field)
        alike: dict[str, list[_Key]] = {}
        for key in variables:
            alike.setdefault(key[0], []).append(key)
        for key, fields in variables.items():
            name = self._choose_name(key, alike[key[0]])
            try:
                self._add_variable(name, scan.names[fields[0].parameter], fields)
            except ValueError as e:
                self.reports[name] = str(e)

    @staticmethod
    def _choose_name(key: _Key, alike: Sequence[_Key]) -> str:
        """Return an unused name for a variable, with its kind of level or a number if others are ``alike``."""
        name, level, *_ = key
        if len(alike) == 1:
            return name
        same = [other for other in alike if other[1] == level]
        return f"{name}_{level}" if len(same) == 1 else f"{name}_{level}_{same.index(key)}"

    def _add_variable(self, name: str, text: ParameterName, fields: Sequence[Field]) -> None:
        within, places, inner = self.add_grid(fields[0])
        product = TEMPLATES[fields[0].parameter.template]
        axes: dict[str, list[Any]] = {
            "number": [field.member for field in fields],
            "time": [field.time for field in fields],
            "step": [field.step for field in fields],
            text.level: _list_levels(fields, text.level),
        }
        for place, (axis, *_) in enumerate(product.axes):
            axes[axis] = _list_coordinates([field.parameter.axes[place] for field in fields])
        ordered = {axis: sorted(set(values)) for axis, values in axes.items()}
        if ATTRIBUTES.get(text.level, {}).get("stored_direction"):
            ordered[text.level].reverse()
        if not any(TEMPLATES[field.parameter.template].member for field in fields):
            del ordered["number"]
        names = {}
        for axis, values in ordered.items():
            dtype = "<i8" if type(values[0]) is int else "<f8"
            names[axis] = self.add_coordinate(axis, np.array(values if len(values) > 1 else values[0], dtype))
        dimensions = {axis: own for axis, own in names.items() if len(ordered[axis]) > 1}
        valid = self._add_valid_time(ordered, dimensions, len(fields))
        attributes = {
            **text.attributes,
            **({f"GRIB_{product.kind[0]}": fields[0].parameter.kind} if product.kind[0] else {}),
            **_name_grid(fields[0]),
            "coordinates": " ".join([*names.values(), *valid, *places]),
        }
        shape = [len(ordered[axis]) for axis in dimensions]
        described = ArrayDescription(
            f"{self.url}: {name}", (*shape, *inner), (*(1 for _ in shape), *inner), np.dtype("<f4"),
            [*dimensions.values(), *within], attributes, fill_value="NaN", is_masked=True,
        )  # fmt: skip
        flags = scan_flags(fields[0], inner)
        chunks: dict[int, Made] = {}
        ranks = {axis: {value: rank for rank, value in enumerate(values)} for axis, values in ordered.items()}
        for place, field in enumerate(fields):
            number = 0
            for axis, rank in ranks.items():
                number = number * len(rank) + rank[axes[axis][place]]
            if number in chunks:
                self.reports[f"{name} at byte {field.parts[0][0]}"] = "another field has its place: it is not shown"
            else:
                chunks[number] = field.parts, make_recipe(field, inner[-1], flags)
        self.add(name, described, RecipeChunks(self._source, described.grid(self._zarr_format), chunks))

    def _add_valid_time(
        self, ordered: Mapping[str, list[int]], dimensions: Mapping[str, str], fields: int
    ) -> list[str]:
        """Return the name of the coordinate `time` + `step`; none if few of many pairs have fields."""
        if len(ordered["time"]) * len(ordered["step"]) > _SPARSE * fields:
            return []
        valid = np.add.outer(np.array(ordered["time"], "<i8"), np.array(ordered["step"], "<i8"))
        names = [dimensions[axis] for axis in ("time", "step") if axis in dimensions]
        return [
            self.add_coordinate("valid_time", valid.reshape([extent for extent in valid.shape if extent > 1]), names)
        ]

    def add_coordinate(self, name: str, values: Any, dimensions: Sequence[str] | None = None) -> str:
        """Return the name of a coordinate with these ``values``: with a number if another one has ``name``.

        It has the named ``dimensions``, or its own one.
        """
        data = values.tobytes()
        own = _append_number(name, self._number(name, (values.shape, data, tuple(dimensions or ()))))
        along = [own] * values.ndim if dimensions is None else dimensions
        self._add(own, name, values.shape, along, data, values.dtype.str)
        return own

    def _number(self, name: str, one: Hashable) -> int:
        """Return the number of ``one`` among the objects that share ``name``, in order of first use."""
        known = self._known.setdefault(name, {})
        return known.setdefault(one, len(known))

    def _add(
        self, own: str, name: str, shape: tuple[int, ...], along: Sequence[str], data: bytes | Made, dtype: str = "<f8"
    ) -> None:
        """Add the coordinate ``name``, in one chunk, as ``own``, if it is not there yet."""
        if own in self.arrays:
            return
        self._left -= len(data) if isinstance(data, bytes) else 0
        if self._left < 0:
            raise ValueError("its coordinates, and those of the fields before it, have too many values")
        unnamed = {"units": "1", "long_name": f"original GRIB coordinate for key: level({name})"}
        array = ArrayDescription(own, shape, shape, np.dtype(dtype), along, ATTRIBUTES.get(name, unnamed))
        grid = array.grid(self._zarr_format)
        chunks = SingleChunk(data) if isinstance(data, bytes) else RecipeChunks(self._source, grid, {0: data})
        self.add(own, array, chunks)

    def add_grid(self, field: Field) -> tuple[list[str], list[str], tuple[int, ...]]:
        """Return the names of a grid's dimensions, the names of its other coordinates, and its shape."""
        grid = _describe(field)
        template, across, down = grid.template, grid.across, grid.down
        is_flat = across * down != field.count
        if not 0 < field.count <= self._most or (not is_flat and max(across, down) > LONGEST):
            raise ValueError(f"its grid has {field.count} points, {down} rows of {across}: too many")
        if grid.parallels > _FINEST:
            raise ValueError(f"its Gaussian grid has N={grid.parallels}: expected at most {_FINEST}")
        number = self._number("grid", field.grid)
        if template not in (_FLAT if is_flat else _LOCATED):
            names = [_append_number(axis, number) for axis in (("values",) if is_flat else ("y", "x"))]
            return names, [], (field.count,) if is_flat else (down, across)
        is_regular = template in _REGULAR and not is_flat
        names = [_append_number("latitude", number), _append_number("longitude", number)]
        plain = [_append_number(axis, number) for axis in (("values",) if is_flat else ("y", "x"))]
        inner: tuple[int, ...] = (field.count,) if is_flat else (down, across)
        for axis, name in enumerate(("latitude", "longitude")):
            data: bytes | Made
            own = slice(axis, axis + 1) if is_regular else slice(None)
            if is_regular and template == 0:
                data = _compute_axis(grid, axis, inner[axis])
            else:
                every = across if is_regular and not axis else 1  # all rows have the same longitudes
                scanned = 0 if is_flat else grid.scanned
                edition = field.parameter.edition
                data = [field.grid_at], Points(f"{name}s", math.prod(inner[own]), every, scanned, edition)
            self._add(names[axis], name, inner[own], (names if is_regular else plain)[own], data)
        return (names, [], inner) if is_regular else (plain, names, inner)


def _describe(field: Field) -> Grid:
    return edition_1.describe_grid(field.grid) if field.parameter.edition == 1 else describe_grid(field.grid)


def scan_flags(field: Field, shape: Sequence[int]) -> int:
    """Return the scanning flags of a grid; 0 for a list of points."""
    return _describe(field).flags if len(shape) > 1 else 0


def make_recipe(field: Field, across: int, flags: int) -> Values | Values1:
    """Return the recipe that decodes a field from its parts."""
    sizes = tuple(size for _, size in field.parts)
    if field.parameter.edition == 1:
        return Values1(field.count, sizes, across, flags, field.decimal)
    return Values(field.count, sizes, across, flags)


def _name_grid(field: Field) -> dict[str, Any]:
    """Return the attributes that identify an unstructured grid; none for other grids, which are fully described."""
    grid = field.grid
    if _describe(field).template == HARMONICS:
        truncation = find_truncation(field.count)
        return {"GRIB_gridType": "sh", "GRIB_J": truncation, "GRIB_K": truncation, "GRIB_M": truncation}
    if _describe(field).template != _UNSTRUCTURED:
        return {}
    numbers = {
        "GRIB_numberOfGridUsed": parse_integer(grid, 16, 3),
        "GRIB_numberOfGridInReference": parse_integer(grid, 19),
    }
    return {**numbers, "GRIB_uuidOfHGrid": grid[19:35].hex()}


def _append_number(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _list_levels(fields: Sequence[Field], kind: str) -> list[float]:
    """Return the level of each field: the value of the first surface, or a number if these values are not distinct."""
    unit = LEVEL_UNITS.get(kind, 0)
    found = [field.parameter.surfaces for field in fields]
    return _choose_distinct(found, [[pair[0].value(unit) for pair in found]])


def _list_coordinates(found: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the coordinates of fields along an axis: their numbers, or the first of two limits that exists and
    differs.
    """
    if len(found[0]) == 1:
        return [number for (number,) in found]
    limits = [
        [Surface(0, *one[at : at + 2]).value() for one in found]
        for at in range(0, len(found[0]), 2)
        if any(one[at + 1] != MISSING for one in found)
    ]
    return _choose_distinct(found, limits)


def _choose_distinct(found: Sequence[Any], choices: Sequence[list[float]]) -> list[float]:
    """Return the first of the ``choices`` with distinct values for all places in ``found``; else their numbers."""
    numbers = {place: float(number) for number, place in enumerate(sorted(set(found)))}
    choice = next((values for values in choices if len(set(values)) == len(numbers)), None)
    return [numbers[place] for place in found] if choice is None else choice


def _compute_axis(grid: Grid, axis: int, count: int) -> bytes:
    """Return the latitudes, or the longitudes (``axis`` 1), of a regular grid."""
    north, west, south, east = grid.corners
    if grid.flags & 0x80:
        west += 360 if west < east else 0
    elif east < west:
        west -= 360
    first, last = (west, east) if axis else (north, south)
    return np.linspace(first, last, count).astype("<f8").tobytes()

"""Ask eccodes for the names of parameters and the points of grids. No I/O here."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.forks import fork_safe
from refshard_fs.formats.grib2.edition_1 import ECMWF
from refshard_fs.formats.grib2.messages import (
    BY_COLUMNS,
    MISSING,
    RELATION,
    TEMPLATES,
    TO_AND_FRO,
    Parameter,
    count_points,
    parse_integer,
    parse_signed,
    parse_unit,
)

_LOCK: Final = threading.Lock()  # eccodes has global state
# One thread asks for a name, and others wait for it: scans open many files at the same time.
_NAMING: Final = fork_safe(threading.Lock())


def import_eccodes() -> Any:
    """Import eccodes. ValueError, with the command that installs it, if it is missing."""
    try:
        return importlib.import_module("eccodes")
    except Exception as e:  # eccodes raises various errors if its C library is not found
        raise ValueError(f'reading GRIB needs eccodes: pip install "refshard_fs[grib]" ({e})') from e


class Points(msgspec.Struct, frozen=True):
    """Recipe: compute ``count`` latitudes or longitudes (``key``) from the section of a grid.

    Only one of ``every`` successive points is kept. The scanning flags at octet ``scanned`` are changed, so that
    all rows run in one direction; ``scanned`` is 0 if the grid has no flags.
    """

    key: str
    count: int
    every: int = 1
    scanned: int = 0
    edition: int = 2

    @property
    def size(self) -> int:
        """The decoded size in bytes."""
        return self.count * 8

    def make(self, raw: bytes) -> bytes:
        points = self._check_rows(raw)
        kind = parse_integer(raw, 6) if self.edition == 1 else parse_integer(raw, 13, 2)
        library = import_eccodes()
        if self.scanned:
            flags = parse_integer(raw, self.scanned) & ~(BY_COLUMNS | TO_AND_FRO)
            raw = raw[: self.scanned - 1] + bytes([flags]) + raw[self.scanned :]
        if self.edition == 1 and parse_integer(raw, 5) > len(raw):
            raw = raw[:4] + b"\xff" + raw[5:]  # no list begins after the section; eccodes would end the process
        with _LOCK:
            whole = _read_sample(self.edition)
            begin, octets = (8, 3) if self.edition == 1 else (16, 4)  # offset of section 1, and octets of its length
            first = begin + parse_integer(whole, begin + 1, octets)
            rest = whole[first + parse_integer(whole, first + 1, octets) :]
            size = len(whole) + len(raw) - parse_integer(whole, first + 1, octets)
            start = whole[:4] + size.to_bytes(3) + b"\1" if self.edition == 1 else whole[:8] + size.to_bytes(8)
            handle = library.codes_new_from_message(start + whole[begin:first] + raw + rest)
            try:
                _check_projection(library, handle, self.edition, kind)
                if (size := library.codes_get_size(handle, self.key)) != points:  # checked before they take memory
                    raise ValueError(f"expected {points} {self.key} in all, found {size}")
                values = library.codes_get_array(handle, self.key)[:: self.every][: self.count]
            except library.CodesInternalError as e:
                raise ValueError(f"eccodes cannot compute the {self.key} of its grid: {e}") from e
            finally:
                library.codes_release(handle)
        if len(values) != self.count:
            raise ValueError(f"expected {self.count} {self.key}, found {len(values)}")
        return bytes(np.asarray(values, "<f8").tobytes())

    def _check_rows(self, grid: bytes) -> int:
        """Return the number of points of the grid.

        Raises ValueError if sizes in the section contradict each other, or a row has an impossible number of points.
        Without this check, eccodes would write beyond its buffers, or end the process.
        """
        kind = parse_integer(grid, 6) if self.edition == 1 else parse_integer(grid, 13, 2)
        width, unit = (3, 1e-3) if self.edition == 1 else (4, 1e-6)
        least = _SIZES[self.edition].get(kind, 0) + (4 * parse_integer(grid, 4) if self.edition == 1 else 0)
        if len(grid) < least:
            raise ValueError(f"the section of its grid has {len(grid)} bytes: expected {least} or more for grid {kind}")
        if self.edition == 2 and kind in (*range(4), *_ROWS) and (unit := parse_unit(grid)) > _LARGEST_UNIT:
            raise ValueError(f"its corners are multiples of {unit} degrees: expected {_LARGEST_UNIT} or less")
        for octet in _LATITUDES[self.edition].get(kind, ()):
            if abs(latitude := parse_signed(grid, octet, width) * unit) > 90:
                raise ValueError(f"its latitude at octet {octet} is {latitude}: expected -90 to 90")
        for octet in _LONGITUDES.get(kind, ()) if self.edition == 2 else ():
            if abs(longitude := parse_signed(grid, octet, 4) * 1e-6) > _LONGEST_ROW:
                raise ValueError(
                    f"its longitude at octet {octet} is {longitude}: expected -{_LONGEST_ROW} to {_LONGEST_ROW}"
                )
        if self.edition == 1:
            is_gaussian, begin, size = kind in (4, 14), parse_integer(grid, 5) + 4 * parse_integer(grid, 4), 2
            across, rows, parallels = (parse_integer(grid, octet, 2) for octet in (7, 9, 26))
            has_rows, points, degree = parse_integer(grid, 5) != 255 and begin <= len(grid), across * rows, 1000
            corners = [parse_signed(grid, octet, 3) for octet in (11, 14, 18, 21)]
        elif kind in _ROWS:
            is_gaussian, begin, size = kind != 0, _ROWS[kind], parse_integer(grid, 11)
            across, rows, parallels = (parse_integer(grid, octet, 4) for octet in (31, 35, 68))
            has_rows, points, degree = size > 0, parse_integer(grid, 7, 4), 1_000_000
            corners = [parse_signed(grid, octet, 4) for octet in (47, 51, 56, 60)]
            if len(grid) != (expected := begin - 1 + size * rows * has_rows):
                raise ValueError(f"the section of its grid has {len(grid)} bytes: expected {expected} for {rows} rows")
        else:
            return parse_integer(grid, 7, 4)
        missing = (1 << 16 * self.edition) - 1
        if across != missing and not has_rows and points == across * rows:
            if is_gaussian:
                _check_first_latitude(corners[0] * unit, parallels)
            return points
        if not has_rows or across != missing or begin + rows * size - 1 > len(grid):
            raise ValueError(
                f"its grid of {points} points has {rows} rows of {across}: expected as many points as all rows have, "
                "or a list of the points in each row"
            )
        counts = [parse_integer(grid, begin + row * size, size) for row in range(rows)] or [0]
        limits = (2, 8 * parallels + 16) if is_gaussian else (0, points)
        _, west, _, east = corners
        is_possible = unit == 1 / degree and max(-west, west, -east, east) <= 720 * degree
        total = count_points(counts, parallels, west, east, degree) if is_gaussian and is_possible else sum(counts)
        if not is_possible or total != self.count or min(counts) < limits[0] or max(counts) > limits[1]:
            degrees = tuple(corner * unit for corner in corners)
            reason = f"{min(counts)} to {max(counts)} points in a row, corners {degrees} in units of {unit}"
            raise ValueError(f"expected a reduced grid of {self.count} points, found {total} points: {reason}")
        return total


@cache
def _read_sample(edition: int) -> bytes:
    library = import_eccodes()
    handle = library.codes_grib_new_from_samples(f"GRIB{edition}")
    whole = bytes(library.codes_get_message(handle))
    library.codes_release(handle)
    return whole


def _check_projection(library: Any, handle: Any, edition: int, kind: int) -> None:
    """Raise ValueError for a projection for which eccodes would end the process, or never return."""
    name = _PROJECTIONS.get((edition, kind))
    if name is None:
        return

    def get(key: str) -> float:
        return float(library.codes_get_double(handle, key))

    is_oblate = get("earthIsOblate") == 1
    major, minor = (
        (get(f"earth{axis}AxisInMetres") for axis in ("Major", "Minor")) if is_oblate else [get("radius")] * 2
    )
    if not (_RADII[0] <= major <= _RADII[1] and _FLATTEST * major <= minor <= major):
        raise ValueError(
            f"its earth has radii of {major:g} and {minor:g} m: expected {_RADII[0]:g} to {_RADII[1]:g} m, and a "
            f"ratio of {_FLATTEST} to 1"
        )
    if name == "mercator":
        around = math.cos(math.radians(get("LaDInDegrees"))) * major
        degrees = abs(math.degrees(get("Ni") * get("DiInMetres") / around)) if around else math.inf
        if not degrees <= _LONGEST_ROW:
            raise ValueError(f"a row of its Mercator grid has {degrees:g} degrees: expected at most {_LONGEST_ROW}")
    elif name == "lambert":
        parallels = get("Latin1InDegrees"), get("Latin2InDegrees")
        if abs(sum(parallels)) < _LEAST_SUM:
            raise ValueError(f"its parallels are {parallels} degrees: expected a sum of {_LEAST_SUM} degrees or more")
        if is_oblate and (most := max(*parallels, get("LaDInDegrees"))) >= 90:
            raise ValueError(f"a parallel of its Lambert projection is {most} degrees: expected less than 90")
    elif is_oblate and (distance := _compute_distance_from_centre(get, minor / major, major)) < _NEAREST:
        raise ValueError(
            f"a point of its grid is {distance * major:g} m from the centre of its projection: expected "
            f"{_NEAREST * major:g} m or more for eccodes"
        )


def _compute_distance_from_centre(get: Callable[[str], float], ratio: float, major: float) -> float:
    """Return the least distance of a grid's points from the centre of a Lambert azimuthal projection, in radii.

    ``ratio`` is the minor axis of the ellipsoid divided by the major axis. eccodes uses the same formulas, which are
    from Snyder's "Map Projections".
    """
    squared = 1 - ratio * ratio
    eccentricity = math.sqrt(squared)

    def compute_q(sine: float) -> float:
        if eccentricity < 1e-7:
            return 2 * sine
        part = eccentricity * sine
        return (1 - squared) * (sine / (1 - part * part) - math.log((1 - part) / (1 + part)) / (2 * eccentricity))

    first, centre, west = (
        math.radians(get(key))
        for key in (
            "latitudeOfFirstGridPointInDegrees",
            "standardParallelInDegrees",
            "longitudeOfFirstGridPointInDegrees",
        )
    )
    east = west - math.radians(get("centralLongitudeInDegrees"))
    whole = compute_q(1)
    sine, sine_first = (compute_q(math.sin(latitude)) / whole for latitude in (centre, first))
    cosine, cosine_first = (math.sqrt(max(1 - value * value, 0)) for value in (sine, sine_first))
    radius = math.sqrt(whole / 2)
    scale = math.cos(centre) / (math.sqrt(1 - squared * math.sin(centre) ** 2) * radius * cosine) if cosine else 1.0
    below = 1 + sine * sine_first + cosine * cosine_first * math.cos(east)
    if below < _NEAREST:  # eccodes returns an error
        return math.inf
    stretch = radius * math.sqrt(2 / below)
    x = stretch * cosine_first * math.sin(east)
    y = stretch * (cosine * sine_first - sine * cosine_first * math.cos(east))
    distances = []
    for place, extent, step, is_forward in (
        (x * scale, "Nx", "Dx", get("iScansNegatively") == 0),
        (y / scale, "Ny", "Dy", get("jScansPositively") == 1),
    ):
        size = (get(step) if is_forward else -get(step)) / (1000 * major)
        number = min(max(round(-place / size), 0), int(get(extent)) - 1) if size else 0
        distances.append(place + number * size)
    return math.hypot(distances[0] / scale, distances[1] * scale)


def _check_first_latitude(latitude: float, parallels: int) -> None:
    """Raise ValueError if a Gaussian grid has no latitudes or too many, or ``latitude`` is north of the first."""
    if not 0 < parallels <= FINEST:
        raise ValueError(f"its Gaussian grid has N={parallels}: expected 1 to {FINEST}")
    with _LOCK:
        first = float(import_eccodes().codes_get_gaussian_latitudes(parallels)[0])
    if latitude > first + _LATITUDE_ERROR:
        raise ValueError(
            f"its first latitude is {latitude}: expected at most {first:.6f} in a Gaussian grid with N={parallels}"
        )


# eccodes matches a latitude with a latitude of the grid that is less than a thousandth of a degree away. If the first
# latitude of a message is farther north than that, eccodes reads beyond its arrays, and ends the process.
_LATITUDE_ERROR: Final = 0.000999
# The most latitudes of a Gaussian grid between a pole and the equator: eccodes takes 2 s to compute so many.
FINEST: Final = 1 << 13
# By edition and by kind of grid: the octets of latitudes. eccodes ends the process for some latitudes beyond the poles.
_LATITUDES: Final = {
    1: {
        **dict.fromkeys((0, 4, 10, 14), (11, 18)), 1: (11, 18, 24), 3: (11, 29, 32), 5: (11,), 90: (11,),
    },
    2: {
        **dict.fromkeys((*range(4), *range(40, 44)), (47, 56)), **dict.fromkeys((10, 13), (39, 48, 52)),
        **dict.fromkeys((20, 23), (39, 48)), 140: (39, 47), **dict.fromkeys((30, 33), (39, 48, 66, 70)), 90: (39,),
    },
}  # fmt: skip
# By kind of grid in edition 2: the octets of longitudes. 2147.483647 is eccodes' "missing", from which it subtracts 360
# degrees for ever.
_LONGITUDES: Final = {
    **dict.fromkeys((10, 13), (43, 61)), **dict.fromkeys((20, 23, 30, 33), (43, 52)), 90: (43,), 140: (43, 51),
}  # fmt: skip
# By edition and kind of grid: projections for which eccodes ends the process, or never returns, if their numbers are
# extreme. On an ellipsoid, it frees memory twice if it does not find a latitude.
_PROJECTIONS: Final = {
    **dict.fromkeys(((1, 1), (2, 10), (2, 13)), "mercator"),
    **dict.fromkeys(((1, 3), (2, 30), (2, 33)), "lambert"),
    (2, 140): "azimuthal",
}
_RADII: Final = (1e6, 1e8)  # metres
_FLATTEST: Final = 0.9  # Saturn's ratio; the search for a latitude ends for all ratios from here to 1
_LONGEST_ROW: Final = 720  # degrees
_LEAST_SUM: Final = 0.1  # degrees: for a cone that is nearly a cylinder, longitudes may be many times 360 degrees
_NEAREST: Final = 2e-10  # radii of the earth; eccodes ends the process at half of this distance
# By edition and by kind of grid: the bytes of a section without lists. eccodes reads so many of a shorter section, and
# looks for the rest of the message after them: that ended the process.
_SIZES: Final = {
    1: {**dict.fromkeys((0, 4, 5), 32), 90: 38, **dict.fromkeys((1, 3, 10, 14), 42)},
    2: {
        **dict.fromkeys((0, 10, 40), 72), **dict.fromkeys((1, 2, 12, 41, 42), 84), **dict.fromkeys((3, 43), 96),
        **dict.fromkeys((23, 30, 31), 81), 13: 88, 20: 65, 33: 97, 90: 80, 101: 35, 140: 64,
    },
}  # fmt: skip
# Corners may be multiples of a thousandth of a degree, or of less: eccodes subtracts 360 degrees from an angle again
# and again, which takes hours for large units.
_LARGEST_UNIT: Final = 1e-3
# Templates of edition 2 with a list of the number of points in each row, and the octet at which the list begins.
_ROWS: Final = {0: 73, 40: 73, 41: 85, 42: 85, 43: 97}


class ParameterName(NamedTuple):
    """The names of a parameter and of its kind of level, and the attributes of its variable."""

    name: str
    level: str
    attributes: dict[str, Any]


# eccodes never frees the tables that it loads: about 50 MB for each centre, 30 MB for each production status with
# separate names, and 5 MB for each version of WMO's tables. It ends the process if it loads too many, and takes minutes
# for unknown disciplines. So eccodes is called only for the following numbers.
_DISCIPLINES: Final = frozenset([0, 1, 2, 3, 4, 10, 20, 192])  # 192 is ECMWF's
_CENTRES: Final = frozenset([7, 34, 54, 74, 78, 85, 98])  # centres with local parameters
_TABLES: Final = 28  # the version of WMO's tables
# In these classes of ECMWF (of the atmosphere service of Copernicus), and from this version of WMO's tables on, eccodes
# names fields of chemistry by their quantity, and ignores the constituent.
_CLASSES: Final = frozenset([19, 36, 44, 55])
_CHEMICAL_TABLES: Final = 34
_NO_CENTRE: Final = 255
# Names of levels of ICON. eccodes has them only for messages with a list of coordinates of levels; eccodes' sample
# message has no list.
_GENERAL: Final = {(150, 255): "generalVertical", (150, 150): "generalVerticalLayer"}

_KEYS: Final = ("paramId", "shortName", "name", "units", "cfName", "cfVarName", "typeOfLevel")
_CF: Final = {"long_name": "name", "units": "units", "standard_name": "cfName"}
# Keys in eccodes of the axes on which a parameter's name depends: of numbers, and of limits.
_NUMBERS: Final = {"constituent": "constituentType", RELATION: RELATION}
_LIMITS: Final = {
    "size": ("FirstSize", "SecondSize"),
    "wavelength": ("FirstWavelength", "SecondWavelength"),
    "wave_period": ("LowerWavePeriodLimit", "UpperWavePeriodLimit"),
}


def name_parameter(parameter: Parameter) -> ParameterName:
    """Name a parameter and its level as eccodes does; by their numbers if eccodes is missing, or does not name them."""
    kind = (parameter.discipline,) if parameter.edition == 2 else ()
    numbers = "_".join(map(str, (*kind, parameter.category, parameter.number)))
    kinds = parameter.surfaces[0].kind, parameter.surfaces[1].kind
    names = f"parameter_{numbers}", _GENERAL.get(kinds, f"level_{kinds[0]}")
    if parameter.discipline not in _DISCIPLINES:
        return ParameterName(*names, {})
    try:
        library = import_eccodes()
    except ValueError:
        return ParameterName(*names, {})
    with _NAMING:
        return _ask_library(library, parameter, *names)


@lru_cache(1 << 12)
def _ask_library(library: Any, parameter: Parameter, name: str, level: str) -> ParameterName:
    """Return eccodes' names of a parameter and its level; ``name`` and ``level`` if eccodes has no names for them.

    The numbers are put into a sample message of eccodes, so that eccodes never parses a header that may be damaged. The
    cache has only answers of eccodes: names that are made without it may change when it is installed.
    """
    with _LOCK:
        handle = library.codes_grib_new_from_samples(f"GRIB{parameter.edition}")
        try:
            for key, value in (_list_keys_1 if parameter.edition == 1 else _list_keys_2)(parameter).items():
                if value >= 0 or key.startswith("scaleFactor"):  # eccodes prints an error for other negative numbers
                    library.codes_set(handle, key, value)
            clone = library.codes_clone(handle)  # eccodes names some kinds of level only in a new message
            library.codes_release(handle)
            handle = clone
            by_key = {key: library.codes_get(handle, key) for key in _KEYS}
        except library.CodesInternalError:
            return ParameterName(name, level, {})
        finally:
            library.codes_release(handle)
    by_key = {key: value for key, value in by_key.items() if value not in ("unknown", "undef")}
    level = by_key.setdefault("typeOfLevel", level)
    if "shortName" not in by_key:
        return ParameterName(name, level, {})
    attributes = {name: by_key[key] for name, key in _CF.items() if key in by_key}
    attributes |= {f"GRIB_{key}": value for key, value in by_key.items()}
    return ParameterName(by_key.get("cfVarName", by_key["shortName"]), level, attributes)


def _list_keys_1(parameter: Parameter) -> dict[str, int]:
    """Return the numbers of a parameter of edition 1, by eccodes' keys."""
    first, second = parameter.surfaces
    centre = parameter.centre if parameter.centre in _CENTRES else _NO_CENTRE
    return {
        "setLocalDefinition": int(centre == ECMWF),
        "table2Version": parameter.category,
        "centre": centre,
        "indicatorOfParameter": parameter.number,
        "indicatorOfTypeOfLevel": first.kind,
        **({"level": first.scaled} if second.kind == 255 else {"topLevel": first.scaled, "bottomLevel": second.scaled}),
        "timeRangeIndicator": 0 if parameter.statistic == 255 else parameter.statistic,
    }


def _list_keys_2(parameter: Parameter) -> dict[str, int]:
    """Return the numbers of a parameter of edition 2, by eccodes' keys."""
    first, second = parameter.surfaces
    keys = {
        "discipline": parameter.discipline,
        "tablesVersion": _TABLES,
        "productionStatusOfProcessedData": parameter.status,
        "productDefinitionTemplateNumber": parameter.template,
        "parameterCategory": parameter.category,
        "parameterNumber": parameter.number,
        "typeOfFirstFixedSurface": first.kind,
        "typeOfSecondFixedSurface": second.kind,
    }
    for position, surface in (("First", first), ("Second", second)):
        if surface.scaled != MISSING:
            keys[f"scaleFactorOf{position}FixedSurface"] = surface.factor
            keys[f"scaledValueOf{position}FixedSurface"] = surface.scaled
    product = TEMPLATES[parameter.template]
    if product.kind[0] != "NB" and product.kind[0]:
        keys[product.kind[0]] = parameter.kind
    for (axis, *_), numbers in zip(product.axes, parameter.axes, strict=True):
        if axis in _NUMBERS:
            keys[_NUMBERS[axis]] = numbers[0]
        for limit, factor, scaled in zip(_LIMITS.get(axis, ()), numbers[::2], numbers[1::2], strict=False):
            if scaled != MISSING:
                keys |= {f"scaleFactorOf{limit}": factor, f"scaledValueOf{limit}": scaled}
    if parameter.centre in _CENTRES:
        keys |= {"centre": parameter.centre, "localTablesVersion": int(parameter.tables[1] > 0)}
    if parameter.centre == ECMWF and parameter.project in _CLASSES and _CHEMICAL_TABLES <= parameter.tables[0] < 255:
        keys |= {"tablesVersion": _CHEMICAL_TABLES, "setLocalDefinition": 1, "localDefinitionNumber": 1}
        keys["marsClass"] = parameter.project
    if parameter.statistic != 255:
        keys |= {"typeOfStatisticalProcessing": parameter.statistic, "lengthOfTimeRange": parameter.length}
    return keys

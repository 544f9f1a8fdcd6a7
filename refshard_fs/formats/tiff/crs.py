"""Convert GeoTIFF's keys to a coordinate reference system (CRS): WKT, and attributes of a CF grid mapping. No I/O here.

A CRS with an EPSG code is shown as this code. A CRS that the keys define by parameters becomes WKT 1, as GDAL writes
it: the method, its parameters, and the ellipsoid. Names and numbers come from the GeoTIFF standard, version 1.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refshard_fs.formats.tiff.ifds import Ifd
from refshard_fs.formats.tiff.images import DOUBLES, KEYS, TEXTS

RASTER_TYPE, IS_POINT = 1025, 2  # a geo key, and its value if coordinates refer to the centres of pixels

_MODEL, _GEOCENTRIC = 1024, 3
_CITATION, _PROJECTED, _PROJECTED_CITATION, _PROJECTION, _METHOD = 1026, 3072, 3073, 3074, 3075
_GEOGRAPHIC, _GEOGRAPHIC_CITATION, _DATUM, _MERIDIAN, _MERIDIAN_LONGITUDE = 2048, 2049, 2050, 2051, 2061
_ANGULAR, _ANGULAR_SIZE, _LINEAR, _LINEAR_SIZE = 2054, 2055, 3076, 3077
_ELLIPSOID, _MAJOR, _MINOR, _FLATTENING, _TO_WGS84 = 2056, 2057, 2058, 2059, 2062
_USER_DEFINED: Final = 32767
_ESRI: Final = "ESRI PE String = "  # the beginning of a citation that contains WKT

# The geo keys of each parameter of WKT. Writers use different keys; the first key with a number is used.
_LATITUDE, _LONGITUDE = (3081, 3085, 3089), (3080, 3084, 3088)
_PARAMETERS: Final[Mapping[str, tuple[int, ...]]] = {
    "latitude_of_origin": _LATITUDE,
    "central_meridian": (3095, *_LONGITUDE),
    "latitude_of_center": _LATITUDE,
    "longitude_of_center": _LONGITUDE,
    "standard_parallel_1": (3078,),
    "standard_parallel_2": (3079,),
    "azimuth": (3094,),
    "rectified_grid_angle": (3096,),
    "scale_factor": (3092, 3093),
    "false_easting": (3082, 3086, 3090),
    "false_northing": (3083, 3087, 3091),
}
_DEFAULTS: Final = {"scale_factor": 1.0, "rectified_grid_angle": 90.0}  # other parameters default to 0
_ORIGIN, _CENTER = ("latitude_of_origin", "central_meridian"), ("latitude_of_center", "longitude_of_center")
_PARALLELS: Final = ("standard_parallel_1", "standard_parallel_2")
_OBLIQUE: Final = (*_CENTER, "azimuth", "rectified_grid_angle", "scale_factor")
# Methods of projection by their number in geo keys: the name in WKT, the parameters in WKT (besides false easting and
# northing, which all methods have), and the name in CF, or "" if CF lacks the method.
_METHODS: Final[Mapping[int, tuple[str, tuple[str, ...], str]]] = {
    1: ("Transverse_Mercator", (*_ORIGIN, "scale_factor"), "transverse_mercator"),
    3: ("Hotine_Oblique_Mercator", _OBLIQUE, ""),
    7: ("Mercator_1SP", ("central_meridian", "scale_factor"), "mercator"),
    8: ("Lambert_Conformal_Conic_2SP", (*_ORIGIN, *_PARALLELS), "lambert_conformal_conic"),
    9: ("Lambert_Conformal_Conic_1SP", (*_ORIGIN, "scale_factor"), ""),
    10: ("Lambert_Azimuthal_Equal_Area", _CENTER, "lambert_azimuthal_equal_area"),
    11: ("Albers_Conic_Equal_Area", (*_CENTER, *_PARALLELS), "albers_conical_equal_area"),
    12: ("Azimuthal_Equidistant", _CENTER, "azimuthal_equidistant"),
    13: ("Equidistant_Conic", (*_CENTER, *_PARALLELS), ""),
    14: ("Stereographic", (*_ORIGIN, "scale_factor"), "stereographic"),
    15: ("Polar_Stereographic", (*_ORIGIN, "scale_factor"), "polar_stereographic"),
    16: ("Oblique_Stereographic", (*_ORIGIN, "scale_factor"), ""),
    17: ("Equirectangular", ("standard_parallel_1", *_ORIGIN), ""),
    18: ("Cassini_Soldner", _ORIGIN, ""),
    19: ("Gnomonic", _ORIGIN, ""),
    20: ("Miller_Cylindrical", ("longitude_of_center",), ""),
    21: ("Orthographic", _ORIGIN, "orthographic"),
    22: ("Polyconic", _ORIGIN, ""),
    23: ("Robinson", ("longitude_of_center",), ""),
    24: ("Sinusoidal", ("longitude_of_center",), "sinusoidal"),
    25: ("VanDerGrinten", ("central_meridian",), ""),
    26: ("New_Zealand_Map_Grid", _ORIGIN, ""),
    27: ("Transverse_Mercator_South_Orientated", (*_ORIGIN, "scale_factor"), ""),
    28: ("Cylindrical_Equal_Area", ("standard_parallel_1", "central_meridian"), "lambert_cylindrical_equal_area"),
    9815: ("Hotine_Oblique_Mercator_Azimuth_Center", _OBLIQUE, ""),
}
_MERCATOR_2SP: Final = ("Mercator_2SP", ("standard_parallel_1", "central_meridian"), "mercator")
_MERCATOR, _POLAR, _SOUTH_ORIENTATED = 7, 15, 27
_AZIMUTHAL: Final = 10

# Units by EPSG code: name, and size in metres or radians.
_LINEAR_UNITS: Final = {
    9001: ("metre", 1.0),
    9002: ("foot", 0.3048),
    9003: ("US survey foot", 0.304800609601219),
    9036: ("kilometre", 1000.0),
}
_ANGULAR_UNITS: Final = {
    9101: ("radian", 1.0),
    9102: ("degree", 0.0174532925199433),
    9105: ("grad", 0.015707963267949),
    9122: ("degree", 0.0174532925199433),
}
_ELLIPSOIDS: Final = {  # by EPSG code: semi-major axis in metres, inverse flattening (0 for a sphere)
    7001: (6377563.396, 299.3249646),
    7003: (6378160.0, 298.25),
    7004: (6377397.155, 299.1528128),
    7008: (6378206.4, 294.978698213898),
    7011: (6378249.2, 293.466021293627),
    7012: (6378249.145, 293.465),
    7019: (6378137.0, 298.257222101),
    7022: (6378388.0, 297.0),
    7024: (6378245.0, 298.3),
    7030: (6378137.0, 298.257223563),
    7043: (6378135.0, 298.26),
    7048: (6371007.0, 0.0),
    7052: (6370997.0, 0.0),
}
# Datums by the last three digits of their EPSG code (6...). The code of their geographic CRS (4...) ends with the same
# digits.
_DATUMS: Final = {
    167: ("New_Zealand_Geodetic_Datum_2000", 7019),
    171: ("Reseau_Geodesique_Francais_1993", 7019),
    202: ("Australian_Geodetic_Datum_1966", 7003),
    203: ("Australian_Geodetic_Datum_1984", 7003),
    214: ("Beijing_1954", 7024),
    230: ("European_Datum_1950", 7022),
    258: ("European_Terrestrial_Reference_System_1989", 7019),
    267: ("North_American_Datum_1927", 7008),
    269: ("North_American_Datum_1983", 7019),
    275: ("Nouvelle_Triangulation_Francaise", 7011),
    277: ("OSGB_1936", 7001),
    283: ("Geocentric_Datum_of_Australia_1994", 7019),
    284: ("Pulkovo_1942", 7024),
    289: ("Amersfoort", 7004),
    301: ("Tokyo", 7004),
    312: ("Militar_Geographische_Institute", 7004),
    314: ("Deutsches_Hauptdreiecksnetz", 7004),
    322: ("World_Geodetic_System_1972", 7043),
    326: ("WGS_1984", 7030),
    612: ("Japanese_Geodetic_Datum_2000", 7019),
    617: ("NAD83_Canadian_Spatial_Reference_System", 7019),
    618: ("South_American_Datum_1969", 7003),
    674: ("Sistema_de_Referencia_Geocentrico_para_las_AmericaS_2000", 7019),
}


class _GeographicCrs(NamedTuple):
    """A geographic CRS as WKT, and CF's attributes of its ellipsoid (``cf``).

    ``cf`` is None if angles are not in degrees, or the prime meridian is not Greenwich.
    """

    wkt: str
    cf: dict[str, Any] | None


def parse_geo_keys(ifd: Ifd) -> dict[int, Any]:
    """Return the values of an image's geo keys, by the number of each key.

    The directory of keys is a header of four numbers, and four numbers for each key: the key, the tag that holds its
    value, the count of values, and the value or its position in that tag. The header ends with the number of keys. Some
    writers set it to 0: the image then has no keys, as in GDAL.
    """
    numbers = [int(number) for number in ifd.get_numbers(KEYS) if math.isfinite(number)]
    directory = numbers[4 : 4 + 4 * numbers[3]] if len(numbers) > 4 else []
    doubles, texts = ifd.get_numbers(DOUBLES), ifd.get_text(TEXTS)
    keys: dict[int, Any] = {}
    for key, tag, count, value in zip(*[iter(directory)] * 4, strict=False):
        if not tag:
            keys[key] = value
        elif tag == DOUBLES and 0 < count <= len(doubles) - value:
            keys[key] = doubles[value] if count == 1 else doubles[value : value + count]
        elif tag == TEXTS:
            keys[key] = texts[value : value + count].strip("|").strip()
    return keys


def describe_crs(keys: Mapping[int, Any]) -> dict[str, Any]:
    """Return ``crs_wkt``, ``spatial_ref`` and CF's attributes of a grid mapping; an empty dict for an unsupported CRS.

    >>> describe_crs({3072: 32633})
    {'crs_wkt': 'EPSG:32633', 'spatial_ref': 'EPSG:32633'}
    """
    texts = (str(keys.get(key)) for key in (_PROJECTED_CITATION, _CITATION))
    esri = next((text.removeprefix(_ESRI) for text in texts if text.startswith(_ESRI)), "")
    has_projection = not keys.keys().isdisjoint((_PROJECTED, _PROJECTION, _METHOD)) or esri.startswith("PROJCS")
    is_projected = {1: True, 2: False}.get(_get_code(keys, _MODEL), has_projection)  # as GDAL decides it
    code = _get_code(keys, _PROJECTED if is_projected else _GEOGRAPHIC)
    if 0 < code < _USER_DEFINED:
        return {"crs_wkt": f"EPSG:{code}", "spatial_ref": f"EPSG:{code}"}
    if _get_code(keys, _MODEL) == _GEOCENTRIC:
        return {}
    if esri:
        wkt, attributes = esri, {}
    else:
        geographic = _describe_geographic(keys)
        if geographic is None:
            return {}
        wkt, attributes = geographic.wkt, {"grid_mapping_name": "latitude_longitude", **(geographic.cf or {})}
        if is_projected:
            projected = _describe_projected(keys, geographic)
            if projected is None:
                return {}
            wkt, attributes = projected
        elif geographic.cf is None:
            attributes = {}
    return {"crs_wkt": wkt, "spatial_ref": wkt, **attributes}


def _describe_geographic(keys: Mapping[int, Any]) -> _GeographicCrs | None:
    """Return the geographic CRS; None if its ellipsoid, its unit or its prime meridian is unknown."""
    code, datum = _get_code(keys, _GEOGRAPHIC), _get_code(keys, _DATUM)
    is_known = 0 < code < _USER_DEFINED
    name, ellipsoid = _DATUMS.get(code - 4000 if is_known else datum - 6000, ("", _get_code(keys, _ELLIPSOID)))
    major, inverse_flattening = _ELLIPSOIDS.get(ellipsoid, (0.0, 0.0))
    major = _get_number(keys, _MAJOR, default=major)
    minor = _get_number(keys, _MINOR, default=0.0)
    if 0 < minor < major:
        inverse_flattening = major / (major - minor)
    elif minor > 0:
        inverse_flattening = 0.0
    inverse_flattening = _get_number(keys, _FLATTENING, default=inverse_flattening)
    unit = _get_unit(keys, _ANGULAR, _ANGULAR_SIZE, _ANGULAR_UNITS, 9102)
    is_greenwich = _get_code(keys, _MERIDIAN, 8901) == 8901
    meridian = _get_number(keys, _MERIDIAN_LONGITUDE, default=0.0 if is_greenwich else math.nan)
    if major <= 0 or inverse_flattening < 0 or unit is None or math.isnan(meridian):
        return None
    if meridian and unit[0] != "degree":  # writers disagree about the unit of the meridian
        return None
    citation = dict(part.split(" = ", 1) for part in str(keys.get(_GEOGRAPHIC_CITATION)).split("|") if " = " in part)
    title = citation.get("GCS Name") or (keys.get(_GEOGRAPHIC_CITATION) if not citation else None) or "unknown"
    shift = keys.get(_TO_WGS84)
    parts = [
        f"SPHEROID[{_quote(citation.get('Ellipsoid', 'unknown'))},{major!r},{inverse_flattening!r}]",
        *([f"TOWGS84[{','.join(map(repr, shift))}]"] if isinstance(shift, list) and len(shift) in (3, 7) else []),
    ]
    datum_wkt = f"DATUM[{_quote(name or citation.get('Datum', 'unknown'))},{','.join(parts)}]"
    prime = f"PRIMEM[{_quote(citation.get('Primem', 'Greenwich' if not meridian else 'unknown'))},{meridian!r}]"
    authority = f',AUTHORITY["EPSG","{code}"]' if is_known else ""
    axes = 'AXIS["Latitude",NORTH],AXIS["Longitude",EAST]'
    wkt = f"GEOGCS[{_quote(str(title))},{datum_wkt},{prime},{_write_unit(unit)},{axes}{authority}]"
    if unit[0] != "degree" or meridian:
        return _GeographicCrs(wkt, None)
    minor = major if not inverse_flattening else major - major / inverse_flattening
    return _GeographicCrs(
        wkt,
        {
            "semi_major_axis": major,
            "semi_minor_axis": minor,
            "inverse_flattening": inverse_flattening,
            "longitude_of_prime_meridian": 0.0,
        },
    )


def _describe_projected(keys: Mapping[int, Any], geographic: _GeographicCrs) -> tuple[str, dict[str, Any]] | None:
    """Return WKT and CF's attributes of a projected CRS; None if its method or its unit is unknown.

    There are no CF attributes if CF lacks the method, or the CRS has other units than CF.
    """
    zone = _get_code(keys, _PROJECTION)
    if 16001 <= zone <= 16060 or 16101 <= zone <= 16160:  # UTM, north and south
        south, number = divmod(zone - 16000, 100)
        keys = {**keys, _METHOD: 1, 3080: number * 6.0 - 183, 3081: 0, 3082: 5e5, 3083: 1e7 * south, 3092: 0.9996}
    number = _get_code(keys, _METHOD)
    unit = _get_unit(keys, _LINEAR, _LINEAR_SIZE, _LINEAR_UNITS, 9001)
    if number not in _METHODS or unit is None:
        return None
    method, names, cf = _MERCATOR_2SP if number == _MERCATOR and 3078 in keys else _METHODS[number]
    values = {
        name: _get_number(keys, *_PARAMETERS[name], default=_DEFAULTS.get(name, 0.0))
        for name in (*names, "false_easting", "false_northing")
    }
    parameters = ",".join(f'PARAMETER["{name}",{value!r}]' for name, value in values.items())
    title = _quote(str(keys.get(_PROJECTED_CITATION) or keys.get(_CITATION) or "unknown"))
    latitude = values.get("latitude_of_origin", values.get("latitude_of_center", 0.0))
    x, y = ("WEST", "SOUTH") if number == _SOUTH_ORIENTATED else ("EAST", "NORTH")
    if number == _POLAR or (number == _AZIMUTHAL and abs(latitude) == 90):  # both axes point away from the pole
        x = y = "SOUTH" if latitude > 0 else "NORTH"
    axes = f'AXIS["Easting",{x}],AXIS["Northing",{y}]'
    wkt = f'PROJCS[{title},{geographic.wkt},PROJECTION["{method}"],{parameters},{_write_unit(unit)},{axes}]'
    if geographic.cf is None or unit[1] != 1 or not cf:
        return wkt, {}
    return wkt, {"grid_mapping_name": cf, **_describe_method(number, cf, values), **geographic.cf}


def _describe_method(number: int, cf: str, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the parameters of a method, whose name in CF is ``cf``, by their names in CF."""
    attributes: dict[str, Any] = {}
    meridian = "longitude_of_projection_origin"
    if cf in ("transverse_mercator", "lambert_conformal_conic", "albers_conical_equal_area", _METHODS[28][2]):
        meridian = "longitude_of_central_meridian"
    scale = "scale_factor_at_projection_origin"
    if cf == "transverse_mercator":
        scale = "scale_factor_at_central_meridian"
    for name, value in values.items():
        if name.startswith("latitude"):
            attributes["latitude_of_projection_origin"] = value
        elif name in ("central_meridian", "longitude_of_center"):
            attributes[meridian] = value
        elif name == "scale_factor":
            attributes[scale] = value
        elif not name.startswith("standard"):
            attributes[name] = value
    parallels = [values[name] for name in _PARALLELS if name in values]
    if parallels:
        attributes["standard_parallel"] = parallels if len(parallels) == 2 else parallels[0]
    if number == _POLAR:
        latitude = attributes["latitude_of_projection_origin"]
        attributes["straight_vertical_longitude_from_pole"] = attributes.pop(meridian)
        if abs(latitude) != 90:  # the latitude of true scale
            del attributes[scale]
            attributes |= {
                "standard_parallel": latitude,
                "latitude_of_projection_origin": math.copysign(90.0, latitude),
            }
    return attributes


def _get_code(keys: Mapping[int, Any], number: int, default: int = _USER_DEFINED) -> int:
    """Return the value of key ``number`` if it is an integer; otherwise ``default``."""
    value = keys.get(number)
    return value if type(value) is int else default


def _get_number(keys: Mapping[int, Any], *numbers: int, default: float) -> float:
    """Return the first finite number among the values of keys ``numbers``; ``default`` if there is none."""
    for value in map(keys.get, numbers):
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return default


def _get_unit(
    keys: Mapping[int, Any], code: int, size: int, known: Mapping[int, tuple[str, float]], default: int
) -> tuple[str, float] | None:
    """Return the name of a unit, and its size in metres or radians; None if it is unknown.

    ``code`` is the key with the unit's EPSG code, ``size`` the key with the size of a unit that the user defines.
    ``known`` has units by their EPSG codes; ``default`` is the code if the key is absent.
    """
    if keys.get(code) == _USER_DEFINED:
        factor = _get_number(keys, size, default=0.0)
        return ("unknown", factor) if factor > 0 else None
    return known.get(_get_code(keys, code, default))


def _write_unit(unit: tuple[str, float]) -> str:
    return f"UNIT[{_quote(unit[0])},{unit[1]!r}]"


def _quote(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'

"""What GeoTIFF and GDAL say of an image, as attributes and coordinates in rioxarray's convention. No I/O here."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import numpy as np

from refshard_fs.core.array_group import Chunks, spelled_fill
from refshard_fs.core.model import Entry, Inline, Steps
from refshard_fs.formats.tiff.ifds import Ifd

SPATIAL_REF: Final = "spatial_ref"  # the variable that has the CRS and the transform as attributes
STEP: Final = 1 << 16  # coordinates of a chunk: 512 KiB

SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS, GDAL_METADATA, NODATA = (
    33550,
    33922,
    34264,
    34735,
    34736,
    34737,
    42112,
    42113,
)
# As GDAL calls them.
_TEXTS: Final = {270: "IMAGEDESCRIPTION", 305: "SOFTWARE", 306: "DATETIME", 315: "ARTIST", 33432: "COPYRIGHT"}
DESCRIBING: Final = (*_TEXTS, SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS, GDAL_METADATA, NODATA)
_RASTER, _GEOGRAPHIC, _PROJECTED = 1025, 2048, 3072  # keys
_IS_POINT, _USER_DEFINED = 2, 32767  # their values
_ROLES: Final = {"scale": "scale_factor", "offset": "add_offset", "description": "long_name", "unittype": "units"}
_NEUTRAL: Final = {"scale": 1.0, "offset": 0.0}


def xml(text: str) -> ElementTree.Element:
    """Return the root of an XML text; ValueError where it is none, or defines entities, which can be bombs."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("its XML has a document type, which is not read")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a document type there are no entities
    except ElementTree.ParseError as e:
        raise ValueError(f"its XML is damaged: {e}") from e


class Placed(NamedTuple):
    """Where an image lies: GDAL's transform, and what is said of the CRS."""

    transform: tuple[float, ...]
    crs: dict[str, Any]

    @property
    def is_upright(self) -> bool:
        """Whether rows have one y and columns one x."""
        return self.transform[2] == self.transform[4] == 0

    @property
    def attributes(self) -> dict[str, Any]:
        """What rioxarray looks for."""
        return {**self.crs, "GeoTransform": " ".join(map(str, self.transform))}

    def scaled(self, across: float, down: float) -> Placed:
        """Return the place of an overview, whose pixels are ``across`` times as wide and ``down`` times as high."""
        x, a, b, y, d, e = self.transform
        return Placed((x, a * across, b * down, y, d * across, e * down), self.crs)


def placed(ifd: Ifd) -> Placed | None:
    """Return where an image lies; None where its tags do not say."""
    keys, matrix, scale, tie = _geo_keys(ifd), ifd.numbers(MATRIX), ifd.numbers(SCALE), ifd.numbers(TIEPOINT)
    if len(matrix) == 16:
        a, b, _, x, d, e, _, y = matrix[:8]
    elif len(scale) >= 2 and len(tie) >= 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        x, y = tie[3] - tie[0] * a, tie[4] - tie[1] * e
    else:
        return None
    if keys.get(_RASTER) == _IS_POINT:  # the place of a pixel's middle
        x, y = x - (a + b) / 2, y - (d + e) / 2
    if not all(map(math.isfinite, (x, a, b, y, d, e))):
        return None
    crs: dict[str, Any] = {}
    code = keys.get(_PROJECTED, keys.get(_GEOGRAPHIC, 0))
    if isinstance(code, int) and 0 < code < _USER_DEFINED:
        crs = {"crs_wkt": f"EPSG:{code}", SPATIAL_REF: f"EPSG:{code}"}
    elif keys:
        crs = {"geo_keys": " ".join(f"{key}={value}" for key, value in sorted(keys.items()))}
    return Placed((x, a, b, y, d, e), crs)


def _geo_keys(ifd: Ifd) -> dict[int, Any]:
    """Return the geographic keys of an image, by number; those that are damaged are left out."""
    directory, doubles, text = list(map(int, ifd.numbers(KEYS))), ifd.numbers(DOUBLES), ifd.text(TEXTS)
    keys: dict[int, Any] = {}
    for at in range(4, len(directory) - 3, 4):
        key, where, count, value = directory[at : at + 4]
        if where == 0:
            keys[key] = value
        elif where == DOUBLES and count == 1 and value < len(doubles):
            keys[key] = doubles[value]
        elif where == TEXTS:
            keys[key] = text[value : value + count].rstrip("|")
    return keys


def attributes_of(ifd: Ifd, samples: int) -> dict[str, Any]:
    """Return the attributes of an image: its texts, and GDAL's metadata of it and of its bands."""
    found: dict[str, Any] = {f"TIFFTAG_{name}": ifd.text(number) for number, name in _TEXTS.items() if ifd.text(number)}
    keys = _geo_keys(ifd)
    if keys:
        found["AREA_OR_POINT"] = "Point" if keys.get(_RASTER) == _IS_POINT else "Area"
    if not ifd.text(GDAL_METADATA):
        return found
    try:
        items = list(xml(ifd.text(GDAL_METADATA)).iter("Item"))
    except ValueError as e:
        return {**found, "GDAL_METADATA": f"not shown: {e}"}
    bands: dict[str, dict[str, Any]] = {}
    for item in items:
        name, role, band, text = item.get("name", ""), item.get("role", ""), item.get("sample", ""), item.text or ""
        if role in _ROLES:
            bands.setdefault(role, {})[band] = _number(text) if role in _NEUTRAL else text
        elif name and item.get("domain") is None and (not band or samples == 1):
            found[name] = _number(text) if band else text
    for role, known in bands.items():
        values = [known.get(str(band), _NEUTRAL.get(role, "")) for band in range(samples)]
        if len(set(values)) == 1:
            found[_ROLES[role]] = values[0]
        else:  # xarray applies one scale to all bands, or none
            found[f"{role}s" if role in _NEUTRAL else _ROLES[role]] = values
    return found


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def fill_of(ifd: Ifd, dtype: np.dtype[Any]) -> Any:
    """Return GDAL_NODATA as zarr's metadata spells it; None where there is none, or no sample can have it."""
    value = _number(ifd.text(NODATA).strip())
    if isinstance(value, str) or (
        dtype.kind in "iu" and value not in range(np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
    ):
        return None
    try:
        with np.errstate(over="ignore"):
            return spelled_fill(np.array(value).astype(dtype).tobytes(), dtype)
    except (OverflowError, TypeError):
        return None


class Coordinates(Chunks):
    """The places of pixels' middles along an axis, ``first + step * (number + 0.5)``, made when asked for."""

    def __init__(self, first: float, step: float, count: int) -> None:
        self._first = first
        self._step = step
        self.chunk = min(count, STEP)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        numbers = np.arange(number * self.chunk, (number + 1) * self.chunk)
        return Inline((self._first + self._step * (numbers + 0.5)).astype("<f8").tobytes())


class Given(Chunks):
    """An array of one chunk, whose bytes are known."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        return Inline(self._data)

"""Parse the text StructMetadata, which describes the grids and swaths of an HDF-EOS2 file. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

KINDS: Final = {"GRID": "grid", "SWATH": "swath"}  # by the class of the Vgroup that has the fields

# A list in parentheses may continue in the next lines.
_LINE: Final = re.compile(r"^[ \t]*(\w{1,100})[ \t]*=[ \t]*(\([^)]{0,1000}\)|[^\n]*)", re.MULTILINE)
_MOST_BLOCKS: Final = 1 << 16
_LONGEST: Final = 4 << 20  # the most characters of the text
_WGS84: Final = 12  # the number of this sphere in GCTP, the library of projections that HDF-EOS2 uses
_PROJECTIONS: Final = re.compile(
    "GCTP_(ALASKA|ALBERS|AZMEQD|BCEA|CEA|EQRECT|EQUIDC|GEO|GNOMON|GOOD|GVNSP|HAMMER|HOM|IMOLL|ISINUS1?|LAMAZ|LAMCC|MERCAT|"
    "MILLER|MOLL|OBLEQA|ORTHO|POLYC|PS|ROBIN|SNSOID|SOM|SPCS|STEREO|TM|UTM|VGRINT|WAGIV|WAGVII)"
)
_ORIGINS: Final = re.compile("HDFE_GD_[UL][LR]")
_INTEGER: Final = re.compile("-?[0-9]{1,3}")
_UPPER_LEFT: Final = ("HDFE_GD_UL", None)  # values of GridOrigin (None: not given) for "row 0 is the northernmost"
_ROLES: Final = {  # standard name, unit and axis of the coordinates x and y; by whether these are in degrees
    True: (("longitude", "degrees_east", "X"), ("latitude", "degrees_north", "Y")),
    False: (("projection_x_coordinate", "m", "X"), ("projection_y_coordinate", "m", "Y")),
}


class Block(NamedTuple):
    """A GROUP or an OBJECT of the text: its values by name, and the blocks in it."""

    name: str
    values: dict[str, str]
    blocks: list[Block]

    def find_blocks(self, name: str) -> list[Block]:
        """Return the blocks in the inner block called ``name``; an empty list if there is no such block."""
        return next((block.blocks for block in self.blocks if block.name == name), [])


class Axis(NamedTuple):
    """A coordinate of a grid: the middle of the first cell, the step, the number of cells, and its attributes."""

    first: float
    step: float
    length: int
    attributes: dict[str, str]


class Structure(NamedTuple):
    """A grid or a swath. ``fields`` has the names of dimensions by field; ``axes`` has coordinates by dimension.

    ``crs`` has the attributes of a grid's coordinate reference system.
    """

    name: str
    fields: Mapping[str, tuple[str, ...]]
    axes: Mapping[str, Axis]
    crs: dict[str, Any]
    geolocation: tuple[str, ...]  # the dimensions of a swath's latitudes; empty if it has no longitudes
    merged: frozenset[str] = frozenset()  # fields that are stored together, in a data set with another name
    problem: str = ""  # why a grid has no coordinates; "" if its values are usable


def parse_odl(text: str) -> Block:
    """Parse a text in ODL, the language of NASA's metadata. Lines that are not in ODL are ignored.

    Raises ValueError if a block has no end, or the end of another block.
    """
    root = Block("", {}, [])
    path = [root]
    count = 0
    for name, value in _LINE.findall(text):
        if name in ("GROUP", "OBJECT"):
            count += 1
            if count > _MOST_BLOCKS:
                raise ValueError(f"its StructMetadata have {count} blocks or more: expected at most {_MOST_BLOCKS}")
            block = Block(value.strip(), {}, [])
            path[-1].blocks.append(block)
            path.append(block)
        elif name in ("END_GROUP", "END_OBJECT"):
            open_block = path.pop().name if len(path) > 1 else None
            if open_block != value.strip():
                expected = "no end" if open_block is None else f"the end of {open_block!r}"
                raise ValueError(f"its StructMetadata have the end of {value.strip()!r}: expected {expected} there")
        else:
            path[-1].values[name] = value.strip(' \t\r"')
    if len(path) > 1:
        raise ValueError(f"its StructMetadata end within {path[-1].name!r}: expected END_GROUP or END_OBJECT")
    return root


def parse_structures(text: str) -> dict[str, Structure]:
    """Return the grids and swaths that a text describes, by name. Raise ValueError if the text is damaged."""
    if len(text) > _LONGEST:
        raise ValueError(f"its StructMetadata have {len(text)} characters: expected at most {_LONGEST}")
    root = parse_odl(text)
    structures = {}
    for block in root.find_blocks("SwathStructure"):
        structures[block.values.get("SwathName", "")] = _parse_swath(block)
    for block in root.find_blocks("GridStructure"):
        structures[block.values.get("GridName", "")] = _parse_grid(block)
    return structures


def _list_fields(block: Block, *groups: str) -> dict[str, tuple[str, ...]]:
    """Return the names of the dimensions of the fields in ``groups``, by field."""
    fields = [field.values for group in groups for field in block.find_blocks(group)]
    return {
        field.get("DataFieldName") or field.get("GeoFieldName", ""): tuple(re.findall(r'"([^"]*)"', field["DimList"]))
        for field in fields
        if "DimList" in field
    }


def _parse_swath(block: Block) -> Structure:
    fields = _list_fields(block, "GeoField", "DataField")
    dimensions = fields.get("Latitude", ()) if "Longitude" in fields else ()
    return Structure(block.values.get("SwathName", ""), fields, {}, {}, dimensions, _find_merged_fields(block))


def _find_merged_fields(block: Block) -> frozenset[str]:
    lists = (merged.values.get("FieldList", "") for merged in block.find_blocks("MergedFields"))
    return frozenset(name for names in lists for name in re.findall(r'"([^"]*)"', names))


def _parse_grid(block: Block) -> Structure:
    values = block.values
    axes: dict[str, Axis] = {}
    crs: dict[str, Any] = {}
    corners = _parse_numbers(values.get("UpperLeftPointMtrs", "")) + _parse_numbers(values.get("LowerRightMtrs", ""))
    counts = [int(values.get(name, "0")) if values.get(name, "").isdecimal() else 0 for name in ("XDim", "YDim")]
    if len(corners) == 4 and all(0 < count < 1 << 31 for count in counts):
        is_geographic = values.get("Projection") == "GCTP_GEO"
        left, upper, right, lower = map(_unpack_degrees, corners) if is_geographic else corners
        steps = (right - left) / counts[0], (lower - upper) / counts[1]
        if values.get("GridOrigin") in _UPPER_LEFT:
            for name, corner, step, count, (role, unit, axis) in zip(
                ("XDim", "YDim"), (left, upper), steps, counts, _ROLES[is_geographic], strict=True
            ):
                axes[name] = Axis(corner + step / 2, step, count, {"standard_name": role, "units": unit, "axis": axis})
        crs = _describe_crs(values) | {"GeoTransform": f"{left!r} {steps[0]!r} 0.0 {upper!r} 0.0 {steps[1]!r}"}
    fields, problem = _list_fields(block, "DataField"), _find_problem(values, counts, corners)
    return Structure(values.get("GridName", ""), fields, axes, crs, (), _find_merged_fields(block), problem)


def _find_problem(values: Mapping[str, str], counts: Sequence[int], corners: Sequence[float]) -> str:
    """Return why a grid has no coordinates: a text about its first unusable value; "" if all values are usable."""
    sizes = {"XDim": counts[0], "YDim": counts[1]}
    if not all(sizes.values()):
        return f"its numbers of columns and rows are {sizes}: expected at least 1"
    is_default = "DEFAULT" in values.get("UpperLeftPointMtrs", "") + values.get("LowerRightMtrs", "")
    if len(corners) != 4 and not is_default:
        return f"its corners have {len(corners)} readable numbers: expected 4"
    projection = values.get("Projection")
    rules = {"Projection": _PROJECTIONS, "GridOrigin": _ORIGINS}
    rules |= {"ZoneCode": _INTEGER, "SphereCode": _INTEGER} if projection == "GCTP_UTM" else {}
    for name, rule in rules.items():
        value = values.get(name, "HDFE_GD_UL" if name == "GridOrigin" else "missing")
        if not rule.fullmatch(value):
            return f"its {name} is {value}: expected a value that HDF-EOS2 defines"
    parameters = values.get("ProjParams", "0" if projection in ("GCTP_GEO", "GCTP_UTM") else "")
    return "" if _parse_numbers(parameters) else f"its ProjParams are {parameters or 'missing'}: expected numbers"


def _describe_crs(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of a grid's projection: CF's for a known projection, otherwise the values of GCTP."""
    projection, sphere = values.get("Projection", ""), values.get("SphereCode", "")
    parameters = [*_parse_numbers(values.get("ProjParams", "")), *[0.0] * 13][:13]
    zone = values.get("ZoneCode", "")
    match projection:
        case "GCTP_GEO":
            return {"grid_mapping_name": "latitude_longitude"}
        case "GCTP_UTM" if sphere == str(_WGS84) and re.fullmatch("-?[1-9][0-9]?", zone) and abs(int(zone)) <= 60:
            code = f"EPSG:{32600 + int(zone) if int(zone) > 0 else 32700 - int(zone)}"
            return {"crs_wkt": code, "spatial_ref": code}
        case "GCTP_SNSOID" if parameters[0] > 0:
            radius, east, north = parameters[0], parameters[6], parameters[7]
            center = _unpack_degrees(parameters[4])
            wkt = (
                f'PROJCS["Sinusoidal",GEOGCS["Sphere",DATUM["Sphere",SPHEROID["Sphere",{radius!r},0]],'
                f'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Sinusoidal"],'
                f'PARAMETER["longitude_of_center",{center!r}],PARAMETER["false_easting",{east!r}],'
                f'PARAMETER["false_northing",{north!r}],UNIT["metre",1]]'
            )
            return {
                "grid_mapping_name": "sinusoidal",
                "earth_radius": radius,
                "longitude_of_projection_origin": center,
                "false_easting": east,
                "false_northing": north,
                "crs_wkt": wkt,
                "spatial_ref": wkt,
            }
    names = ("Projection", "ProjParams", "ZoneCode", "SphereCode")
    return {name: values[name] for name in names if name in values}


def _unpack_degrees(packed: float) -> float:
    """Return an angle in degrees. Writers pack angles as DDDMMMSSS.SS; some store degrees, which are at most 360."""
    if abs(packed) <= 360:
        return packed
    degrees, remainder = divmod(abs(packed), 1e6)
    minutes, seconds = divmod(remainder, 1e3)
    return math.copysign(degrees + minutes / 60 + seconds / 3600, packed)


def _parse_numbers(text: str) -> list[float]:
    """Return the numbers of a list in parentheses; an empty list if an item is not a finite number."""
    try:
        numbers = [float(number) for number in text.strip("() \t\r\n").split(",")]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []

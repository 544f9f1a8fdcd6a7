"""The grids and swaths of an HDF-EOS2 file, as its text StructMetadata describes them. No I/O here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

KINDS: Final = {"GRID": "grid", "SWATH": "swath"}  # the classes of the Vgroups that hold them

# Lists in parentheses may go on in the next lines.
_LINE: Final = re.compile(r"^[ \t]*(\w{1,100})[ \t]*=[ \t]*(\([^)]{0,1000}\)|[^\n]*)", re.MULTILINE)
_MOST_BLOCKS: Final = 1 << 16
_LONGEST: Final = 4 << 20  # characters
_WGS84: Final = 12  # among the spheres of GCTP
_PROJECTIONS: Final = re.compile(  # of GCTP
    "GCTP_(ALASKA|ALBERS|AZMEQD|BCEA|CEA|EQRECT|EQUIDC|GEO|GNOMON|GOOD|GVNSP|HAMMER|HOM|IMOLL|ISINUS1?|LAMAZ|LAMCC|MERCAT|"
    "MILLER|MOLL|OBLEQA|ORTHO|POLYC|PS|ROBIN|SNSOID|SOM|SPCS|STEREO|TM|UTM|VGRINT|WAGIV|WAGVII)"
)
_ORIGINS: Final = re.compile("HDFE_GD_[UL][LR]")
_INTEGER: Final = re.compile("-?[0-9]{1,3}")
_UPPER_LEFT: Final = ("HDFE_GD_UL", None)
_ROLES: Final = {  # coordinates: name, unit, axis
    True: (("longitude", "degrees_east", "X"), ("latitude", "degrees_north", "Y")),
    False: (("projection_x_coordinate", "m", "X"), ("projection_y_coordinate", "m", "Y")),
}


class Block(NamedTuple):
    """A GROUP or an OBJECT of the text, with its values as texts."""

    name: str
    values: dict[str, str]
    blocks: list[Block]

    def find_blocks(self, name: str) -> list[Block]:
        """Return the blocks in the block of this one that is called ``name``."""
        return next((block.blocks for block in self.blocks if block.name == name), [])


class Axis(NamedTuple):
    """A coordinate of a grid: the middle of the first cell, the step, and its attributes."""

    first: float
    step: float
    length: int
    attributes: dict[str, str]


class Structure(NamedTuple):
    """A grid or a swath; ``fields`` has the dimensions of each field."""

    name: str
    fields: Mapping[str, tuple[str, ...]]
    axes: Mapping[str, Axis]
    crs: dict[str, Any]
    geolocation: tuple[str, ...]  # names of the dimensions of latitudes
    merged: frozenset[str] = frozenset()  # fields that share a data set of another name
    problem: str = ""  # why a grid has no coordinates, if its text is damaged


def parse_odl(text: str) -> Block:
    """Return the blocks of a text in ODL, the language of NASA's metadata; what does not belong there is left out.

    ValueError if a block does not end, or another one ends in its place.
    """
    root = Block("", {}, [])
    path = [root]
    count = 0
    for name, value in _LINE.findall(text):
        if name in ("GROUP", "OBJECT"):
            count += 1
            if count > _MOST_BLOCKS:
                raise ValueError(f"its StructMetadata have more than {_MOST_BLOCKS} blocks")
            block = Block(value.strip(), {}, [])
            path[-1].blocks.append(block)
            path.append(block)
        elif name in ("END_GROUP", "END_OBJECT"):
            if path[-1].name != value.strip():
                raise ValueError(f"its StructMetadata end {value.strip()!r} where {path[-1].name!r} is to end")
            path.pop()
        else:
            path[-1].values[name] = value.strip(' \t\r"')
    if len(path) > 1:
        raise ValueError(f"its StructMetadata end within {path[-1].name!r}")
    return root


def parse_structures(text: str) -> dict[str, Structure]:
    """Return the grids and swaths that a text describes, by name."""
    if len(text) > _LONGEST:
        raise ValueError(f"its StructMetadata have {len(text)} characters: at most {_LONGEST} are read")
    root = parse_odl(text)
    found = {}
    for block in root.find_blocks("SwathStructure"):
        found[block.values.get("SwathName", "")] = _parse_swath(block)
    for block in root.find_blocks("GridStructure"):
        found[block.values.get("GridName", "")] = _parse_grid(block)
    return found


def _list_fields(block: Block, *groups: str) -> dict[str, tuple[str, ...]]:
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
            for name, first, step, count, (role, unit, axis) in zip(
                ("XDim", "YDim"), (left, upper), steps, counts, _ROLES[is_geographic], strict=True
            ):
                axes[name] = Axis(first + step / 2, step, count, {"standard_name": role, "units": unit, "axis": axis})
        crs = _describe_crs(values) | {"GeoTransform": f"{left!r} {steps[0]!r} 0.0 {upper!r} 0.0 {steps[1]!r}"}
    fields = _list_fields(block, "DataField")
    return Structure(
        values.get("GridName", ""),
        fields,
        axes,
        crs,
        (),
        _find_merged_fields(block),
        _find_problem(values, counts, corners),
    )


def _find_problem(values: Mapping[str, str], counts: Sequence[int], corners: Sequence[float]) -> str:
    """Return why a grid has no coordinates: the first value that cannot be used; empty if all can."""
    given = {"XDim": counts[0], "YDim": counts[1]}
    if not all(given.values()):
        return f"its numbers of columns and rows are {given}: expected at least 1"
    is_default = "DEFAULT" in values.get("UpperLeftPointMtrs", "") + values.get("LowerRightMtrs", "")
    if len(corners) != 4 and not is_default:
        return f"{len(corners)} numbers of its corners can be read: expected 4"
    projection = values.get("Projection")
    rules = {"Projection": _PROJECTIONS, "GridOrigin": _ORIGINS}
    rules |= {"ZoneCode": _INTEGER, "SphereCode": _INTEGER} if projection == "GCTP_UTM" else {}
    for name, rule in rules.items():
        value = values.get(name, "HDFE_GD_UL" if name == "GridOrigin" else "missing")
        if not rule.fullmatch(value):
            return f"its {name} is {value}"
    parameters = values.get("ProjParams", "0" if projection in ("GCTP_GEO", "GCTP_UTM") else "")
    return "" if _parse_numbers(parameters) else f"its ProjParams are {parameters or 'missing'}"


def _describe_crs(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of a grid's projection: CF's for a known projection, otherwise GCTP's."""
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
    """Return an angle in degrees that is packed as DDDMMMSSS.SS; some writers give degrees."""
    if abs(packed) <= 360:
        return packed
    whole = abs(packed)
    degrees, rest = divmod(whole, 1e6)
    minutes, seconds = divmod(rest, 1e3)
    return math.copysign(degrees + minutes / 60 + seconds / 3600, packed)


def _parse_numbers(text: str) -> list[float]:
    """Return the numbers of a list in parentheses; none if one of them is not finite, or no number."""
    try:
        found = [float(part) for part in text.strip("() \t\r\n").split(",")]
    except ValueError:
        return []
    return found if all(map(math.isfinite, found)) else []

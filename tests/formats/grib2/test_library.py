"""Parameters have the names that eccodes gives them, and grids the coordinates that eccodes computes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.grib2.library import Points
from refshard_fs.formats.grib2.messages import parse_unit
from tests.support.grib_messages import check_same_as_cfgrib, make_message, make_message_on_level
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

eccodes = pytest.importorskip("eccodes", exc_type=Exception)


def test_names_depend_on_the_production_status() -> None:
    keys = {"centre": "ecmf", "productDefinitionTemplateNumber": 11, "parameterCategory": 0, "parameterNumber": 0}
    surface = {"typeOfFirstFixedSurface": 103, "scaleFactorOfFirstFixedSurface": 0, "scaledValueOfFirstFixedSurface": 2}
    statistic = {"typeOfStatisticalProcessing": 0, "stepRange": "0-24"}
    names = set()
    for status in (0, 6):
        data = make_message(productionStatusOfProcessedData=status, **keys, **surface, **statistic)
        handle = eccodes.codes_new_from_message(data)
        name = eccodes.codes_get(handle, "cfVarName")
        eccodes.codes_release(handle)
        assert name in Files({ROOT: data}).open().grids
        names.add(name)
    assert len(names) == 2


def test_names_depend_on_the_relation_to_a_reference_dataset() -> None:
    """An anomaly and the field itself differ only in this relation, and are two variables."""
    keys = {"tablesVersion": 34, "productDefinitionTemplateNumber": 107, "typeOfFirstFixedSurface": 103}
    keys |= {"scaleFactorOfFirstFixedSurface": 0, "scaledValueOfFirstFixedSurface": 2, "typeOfStatisticalProcessing": 2}
    plain, anomaly = (make_message(**keys, typeOfRelationToReferenceDataset=relation) for relation in (20, 0))
    opened = Files({ROOT: plain + anomaly}).open()
    assert {"mx2t", "t2a"} <= opened.grids.keys()


def test_variable_of_an_unknown_discipline_is_named_by_numbers() -> None:
    data = make_message_on_level(500, shortName="t")
    unknown = data[:6] + b"\xb3" + data[7:]  # no discipline has this number; eccodes takes minutes for some of these
    assert set(Files({ROOT: unknown}).open().grids) - {"time", "step", "valid_time", "latitude", "longitude"} == {
        "parameter_179_0_0",
        "level_100",
    }


def test_variable_of_an_unknown_centre_has_its_name() -> None:
    data = make_message_on_level(500, shortName="t")
    at = data.index(b"\0\0\0\x15\1") + 5
    files = (data[:at] + centre.to_bytes(2) + data[at + 2 :] for centre in range(1000, 1060))
    assert all("t" in Files({ROOT: file}).open().grids for file in files)


def test_files_opened_together_ask_for_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """eccodes takes milliseconds for a name."""
    data = b"".join(make_message_on_level(level, shortName="t") for level in range(411, 416))
    asked: list[str] = []

    def ask(name: str) -> Any:
        asked.append(name)
        return make_sample(name)

    make_sample = eccodes.codes_grib_new_from_samples
    monkeypatch.setattr(eccodes, "codes_grib_new_from_samples", ask)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: Files({ROOT: data}).open(), range(8)))
    assert len(asked) <= 5, "a name for each level"


def test_names_without_eccodes_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that is read without eccodes has numbers as its name, until eccodes is installed."""
    data = make_message_on_level(437, shortName="sst")
    with monkeypatch.context() as without_eccodes:
        without_eccodes.setitem(sys.modules, "eccodes", None)
        assert any(name.startswith("parameter_") for name in Files({ROOT: data}).open().grids)
    assert "sst" in Files({ROOT: data}).open().grids


@pytest.mark.parametrize("project", ["mc", "od"])
@pytest.mark.parametrize("tables", [28, 35])
@pytest.mark.parametrize("quantity", [1, 2])  # column densities, mixing ratios
def test_names_of_chemistry_equal_eccodes(project: str, tables: int, quantity: int) -> None:
    """In the local section, ECMWF states the class, which distinguishes the products of CAMS from other products."""
    local = {"setLocalDefinition": 1, "localDefinitionNumber": 1, "class": project}
    chemical = {"productDefinitionTemplateNumber": 40, "parameterCategory": 20, "parameterNumber": quantity}
    surface = {"typeOfFirstFixedSurface": 1, "typeOfSecondFixedSurface": 8} if quantity == 1 else {}
    data = make_message(centre="ecmf", tablesVersion=tables, **chemical, constituentType=4, **surface, **local)
    handle = eccodes.codes_new_from_message(data)
    name = eccodes.codes_get(handle, "cfVarName")
    eccodes.codes_release(handle)
    assert (f"parameter_0_20_{quantity}" if name == "unknown" else name) in Files({ROOT: data}).open().grids


def test_levels_of_icon_have_names() -> None:
    for second, name in ((255, "generalVertical"), (150, "generalVerticalLayer")):
        assert (
            name
            in Files({ROOT: make_message(typeOfFirstFixedSurface=150, typeOfSecondFixedSurface=second)}).open().grids
        )


def test_grid_that_eccodes_does_not_know_has_no_coordinates() -> None:
    """The grid is a transverse Mercator projection. cfgrib shows it without latitudes and longitudes, too."""
    keys = {"gridDefinitionTemplateNumber": 12, "Nx": 4, "Ny": 3, "numberOfDataPoints": 12}
    data = make_message(np.arange(12.0), **keys)
    assert open_array(data, "t")[...].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert not {"latitude", "longitude"} & Files({ROOT: data}).open().grids.keys()


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("points", [0, 1])
def test_reduced_grid_with_rows_of_one_or_no_point_is_refused(edition: int, points: int) -> None:
    """Rows of one point, and rows without points, would make eccodes end the process."""
    handle = eccodes.codes_grib_new_from_samples(f"reduced_gg_pl_32_grib{edition}")
    data = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    at = data.index((200).to_bytes(4) + b"\3") if edition == 2 else 8 + int.from_bytes(data[8:11])
    grid = data[at : at + (200 if edition == 2 else 160)]
    recipe = Points("latitudes", 6114, edition=edition)
    assert len(recipe.make(grid)) == recipe.size
    with pytest.raises(ValueError, match=rf"expected a reduced grid of 6114 points.*found \d+ points: {points} to"):
        recipe.make(grid[:-128] + points.to_bytes(2) + grid[-126:])
    if edition == 2:  # octets 39 to 42 are the basic angle
        with pytest.raises(ValueError, match="corners are multiples of 4294.967295 degrees"):
            recipe.make(grid[:38] + b"\xff" * 4 + grid[42:])


@pytest.mark.parametrize(("edition", "template"), [(1, 4), (1, 14), (2, 40), (2, 41)])
def test_latitudes_beyond_a_gaussian_grid_are_refused(edition: int, template: int) -> None:
    """eccodes would end the process if the first latitude is north of the grid's first one."""
    key = "dataRepresentationType" if edition == 1 else "gridDefinitionTemplateNumber"
    message = make_message(np.arange(16.0), f"regular_ll_sfc_grib{edition}", **{key: template}, Nx=4, Ny=4)
    begin = 8 + int.from_bytes(message[8:11]) if edition == 1 else 37
    latitude, parallels, width = (10, 25, 3) if edition == 1 else (46, 67, 4)
    degree = 10 ** (3 if edition == 1 else 6)

    def make_grid(first: float, east: int = 270) -> bytes:
        size = int.from_bytes(message[begin : begin + (3 if edition == 1 else 4)])
        grid = bytearray(message[begin : begin + size])
        corners = [round(first * degree), 0, round(first * degree) | 1 << 8 * width - 1, east * degree]
        for place, corner in enumerate(corners):
            at = latitude + width * place + (place > 1)
            grid[at : at + width] = corner.to_bytes(width)
        at = latitude + 4 * width + 1
        grid[at : at + (2 if edition == 1 else 4)] = (90 * degree).to_bytes(4)[-2 if edition == 1 else -4 :]
        grid[parallels : parallels + (2 if edition == 1 else 4)] = (2).to_bytes(2 if edition == 1 else 4)
        return bytes(grid)

    recipe = Points("latitudes", 16, edition=edition)
    found = np.frombuffer(recipe.make(make_grid(59.444)))
    assert len(found) == 16
    with pytest.raises(ValueError, match="first latitude is 59.46: expected at most 59.444408.*N=2"):
        recipe.make(make_grid(59.46))


@pytest.mark.parametrize("edition", [1, 2])
def test_latitudes_beyond_the_poles_are_refused(edition: int) -> None:
    """eccodes would free memory twice for this Mercator projection."""
    key, template = ("dataRepresentationType", 1) if edition == 1 else ("gridDefinitionTemplateNumber", 10)
    message = make_message(np.arange(12.0), f"regular_ll_sfc_grib{edition}", **{key: template}, Nx=4, Ny=3)
    begin, octet = (8 + int.from_bytes(message[8:11]), 11) if edition == 1 else (37, 39)
    grid = message[begin : begin + int.from_bytes(message[begin : begin + 2 + edition])]
    far = (120 * (1000 if edition == 1 else 1_000_000)).to_bytes(3 if edition == 1 else 4)
    with pytest.raises(ValueError, match=f"latitude at octet {octet} is 120.0: expected -90 to 90"):
        Points("latitudes", 12, edition=edition).make(grid[: octet - 1] + far + grid[octet - 1 + len(far) :])


def write_area(sample: str, first: int, rows: int, west: float, east: float) -> bytes:
    """Return a message of an area of a sample's reduced grid; eccodes counts its points."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    latitudes = np.unique(eccodes.codes_get_array(handle, "latitudes"))[::-1]
    counts = eccodes.codes_get_array(handle, "pl")[first : first + rows]
    eccodes.codes_set(handle, "Nj", rows)
    eccodes.codes_set_array(handle, "pl", counts)
    corners = latitudes[first], west, latitudes[first + rows - 1], east
    for corner, value in zip(("First", "Last"), (corners[:2], corners[2:]), strict=True):
        eccodes.codes_set(handle, f"latitudeOf{corner}GridPointInDegrees", value[0])
        eccodes.codes_set(handle, f"longitudeOf{corner}GridPointInDegrees", value[1])
    points = sum(int(east * count // 360 + -west * count // 360) + 1 for count in counts.tolist())
    if sample.endswith("2"):
        eccodes.codes_set(handle, "numberOfDataPoints", points)
    eccodes.codes_set_values(handle, np.arange(points) % 40 + 0.0)
    return bytes(eccodes.codes_get_message(handle))


@pytest.mark.parametrize("sample", ["reduced_gg_pl_32_grib1", "reduced_gg_pl_32_grib2", "reduced_gg_pl_80_grib2"])
def test_areas_of_reduced_grids_equal_cfgrib(tmp_path: Path, sample: str) -> None:
    """An area has some of the rows of a grid, and some of the points of these rows."""
    for number, (first, rows, west, east) in enumerate([(20, 15, 0, 39.375), (0, 40, -20.5, 33.3), (3, 9, 90, 400)]):
        path = tmp_path / f"{number}.grib"
        path.write_bytes(write_area(sample, first, rows, west, east))
        got = check_same_as_cfgrib(path)
        handle = eccodes.codes_new_from_message(path.read_bytes())
        for name in ("latitude", "longitude"):
            np.testing.assert_array_equal(got[name], eccodes.codes_get_array(handle, f"{name}s"))


def make_projected_grid(edition: int, template: int, **keys: int) -> bytes:
    """Return the section of a grid of 4 x 3 points."""
    key = "dataRepresentationType" if edition == 1 else "gridDefinitionTemplateNumber"
    message = make_message(np.arange(12.0), f"regular_ll_sfc_grib{edition}", **{key: template}, Nx=4, Ny=3, **keys)
    begin = 8 + int.from_bytes(message[8:11]) if edition == 1 else 37
    return message[begin : begin + int.from_bytes(message[begin : begin + 2 + edition])]


RADIUS = {"shapeOfTheEarth": 1, "scaleFactorOfRadiusOfSphericalEarth": 3, "scaledValueOfRadiusOfSphericalEarth": 1}
PROLATE = {
    "shapeOfTheEarth": 7, "scaleFactorOfEarthMajorAxis": 0, "scaledValueOfEarthMajorAxis": 6_300_000,
    "scaleFactorOfEarthMinorAxis": 0, "scaledValueOfEarthMinorAxis": 6_400_000,
}  # fmt: skip
MISSING = PROLATE | {"scaleFactorOfEarthMajorAxis": 255, "scaledValueOfEarthMajorAxis": 0xFFFFFFFF}


@pytest.mark.parametrize(
    ("edition", "template", "keys", "reason"),
    [
        (2, 10, RADIUS, "radii of 0.001 and 0.001 m: expected"),
        (2, 10, PROLATE, r"radii of 6.3e\+06 and 6.4e\+06 m: expected"),
        (2, 13, {}, "radii of 0 and 0 m: expected"),
        (2, 30, PROLATE, r"radii of 6.3e\+06 and 6.4e\+06 m: expected"),
        (2, 33, {}, "radii of 0 and 0 m: expected"),
        (2, 140, MISSING, r"radii of -1e\+100 and 6.4e\+06 m: expected"),
        (2, 10, {"LaD": 90_000_000, "Di": 9000}, r"row of its Mercator grid has \S+e\+\d+ degrees: expected at most"),
        (1, 1, {"Latin": 90_000, "DiInMetres": 9000}, r"row of its Mercator grid has \S+e\+\d+ degrees: expected"),
        (2, 30, {"Latin1": 1, "Latin2": 2}, r"parallels are \(1e-06, 2e-06\) degrees: expected a sum of 0.1"),
        (1, 3, {"Latin1": -9, "Latin2": 2}, r"parallels are \(-0.009, 0.002\) degrees: expected a sum of 0.1"),
        (2, 30, {"Latin1": 90_000_000, "shapeOfTheEarth": 4}, "parallel of its Lambert projection is 90.0 degrees"),
        (1, 3, {"Latin1": 90_000, "earthIsOblate": 1}, "parallel of its Lambert projection is 90.0 degrees"),
        (
            2,
            140,
            {"shapeOfTheEarth": 4, "latitudeOfFirstGridPoint": 0},
            "point of its grid is 0 m from the centre of its projection: expected",
        ),
    ],
)
def test_extreme_projections_are_refused(edition: int, template: int, keys: dict[str, int], reason: str) -> None:
    """eccodes would end the process, by memory that is freed twice or an assertion, or would not return."""
    if template in (13, 33):  # eccodes has no sample of these; the numbers of 10 and 30 lie at the same octets
        keys = MISSING | {"scaledValueOfEarthMajorAxis": 0, "scaledValueOfEarthMinorAxis": 0}
        grid = make_projected_grid(edition, template - 3, **keys)
        grid = grid[:12] + template.to_bytes(2) + grid[14:] + bytes(16)
    else:
        grid = make_projected_grid(edition, template, **keys)
    for key in ("latitudes", "longitudes"):
        with pytest.raises(ValueError, match=reason):
            Points(key, 12, edition=edition).make(grid)


@pytest.mark.parametrize(
    ("parallel", "first", "step", "size"),
    [
        (0, {"longitudeOfFirstGridPoint": 7_000_000, "latitudeOfFirstGridPoint": 0}, "Dx", 333_920_325),
        (
            52_000_000,
            {"longitudeOfFirstGridPoint": 10_000_000, "latitudeOfFirstGridPoint": 50_000_000},
            "Dy",
            222_489_433,
        ),
    ],
)
def test_second_point_at_the_centre_of_a_grid_is_refused(
    parallel: int, first: dict[str, int], step: str, size: int
) -> None:
    """The centre is one step from the first point; steps are in millimetres."""
    place = {"standardParallelInMicrodegrees": parallel, "centralLongitudeInMicrodegrees": 10_000_000, **first}
    steps = {"shapeOfTheEarth": 4, "jScansPositively": 1, "Dx": 9_000_000, "Dy": 9_000_000}
    recipe = Points("latitudes", 12)
    with pytest.raises(
        ValueError, match=r"point of its grid is \S+ m from the centre of its projection: expected 0.0012"
    ):
        recipe.make(make_projected_grid(2, 140, **{**steps, **place, step: size}))
    found = np.frombuffer(recipe.make(make_projected_grid(2, 140, **{**steps, **place, step: size + 3})))
    assert np.abs(found - parallel / 1e6).min() < 1e-6


@pytest.mark.parametrize("shape", [4, 6])  # an ellipsoid, a sphere
def test_azimuthal_grid_of_europe_equals_cfgrib(tmp_path: Path, shape: int) -> None:
    keys = {
        "standardParallelInMicrodegrees": 52_000_000,
        "centralLongitudeInMicrodegrees": 10_000_000,
        "Nx": 4,
        "Ny": 3,
    }
    first = {"latitudeOfFirstGridPoint": 66_982_143, "longitudeOfFirstGridPoint": 325_970_984}
    steps = {"Dx": 5_000_000, "Dy": 5_000_000, "shapeOfTheEarth": shape}
    (tmp_path / "a.grib2").write_bytes(
        make_message(np.arange(12.0), gridDefinitionTemplateNumber=140, **keys, **first, **steps)
    )
    found = check_same_as_cfgrib(tmp_path / "a.grib2")
    assert found["latitude"].values[0, 0] == pytest.approx(66.982143)


def test_list_that_begins_after_section_2_is_an_error() -> None:
    """eccodes would end the process if a list begins after section 2."""
    message = make_message(np.arange(12.0), "regular_ll_sfc_grib1", dataRepresentationType=90, Nx=4, Ny=3)
    begin = 8 + int.from_bytes(message[8:11])
    grid = message[begin : begin + int.from_bytes(message[begin : begin + 3])]
    with pytest.raises(ValueError, match="eccodes cannot compute the latitudes of its grid"):
        Points("latitudes", 12, edition=1).make(grid[:4] + b"\x35" + grid[5:])


@pytest.mark.parametrize(("edition", "kind", "size"), [(1, 10, 41), (1, 0, 35), (2, 30, 80)])
def test_sections_shorter_than_their_grid_are_errors(edition: int, kind: int, size: int) -> None:
    """eccodes would read the rest of the message at a wrong place, and end the process."""
    grid = bytearray(120)
    if edition == 1:
        grid[3], grid[5] = int(kind == 0), kind  # one vertical coordinate
    else:
        grid[12:14] = kind.to_bytes(2)
    with pytest.raises(ValueError, match=f"has {size} bytes: expected {size + 1} or more for grid {kind}"):
        Points("latitudes", 12, edition=edition).make(bytes(grid[:size]))


def test_impossible_number_of_points_is_refused() -> None:
    """For a rotated grid, eccodes ignores the rows, and takes "missing" as the number of points in a row."""
    handle = eccodes.codes_grib_new_from_samples("reduced_gg_pl_32_grib1")
    data = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    begin = 8 + int.from_bytes(data[8:11])
    grid = data[begin : begin + int.from_bytes(data[begin : begin + 3])]
    with pytest.raises(ValueError, match="expected 6114 latitudes in all, found 137438953408"):
        Points("latitudes", 6114, edition=1).make(grid[:5] + b"\x0e" + grid[6:])


def test_units_of_corners_equal_eccodes() -> None:
    """The basic angle may be 0, and the number of its parts may be missing."""
    message = make_message(np.arange(12.0), Ni=4, Nj=3)
    for basic, parts, unit in (
        (0, 0xFFFFFFFF, 1e-6),
        (0, 10_000_000, 1e-7),
        (3, 0xFFFFFFFF, 3e-6),
        (3, 10_000_000, 3e-7),
    ):
        grid = message[37:109]
        grid = grid[:38] + basic.to_bytes(4) + parts.to_bytes(4) + grid[46:]
        assert parse_unit(grid) == pytest.approx(unit)
        handle = eccodes.codes_new_from_message(message[:37] + grid + message[109:])
        first = int.from_bytes(grid[46:50])
        assert eccodes.codes_get(handle, "latitudeOfFirstGridPointInDegrees") == pytest.approx(first * unit)
        eccodes.codes_release(handle)


def test_corners_in_large_units_are_refused() -> None:
    """From an angle of many degrees, eccodes subtracts 360 degrees again and again, which may take hours."""
    data = bytearray(make_message(sample="rotated_ll_sfc_grib2"))
    at = data.index(b"\0\0\0\x54\3")
    data[at + 38 : at + 46] = b"GRIB\0\0\x6c\1"
    with pytest.raises(Exception, match="its corners are multiples of 43277.33"):
        open_array(bytes(data), "latitude")[...]

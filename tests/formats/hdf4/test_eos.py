"""The text StructMetadata of HDF-EOS2: grids, projections, and damage."""

from __future__ import annotations

import pytest

from refshard_fs.formats.hdf4.eos import parse_odl, parse_structures
from tests.support.hdf4_files import read_hdf4_file
from tests.support.shards_in_memory import ROOT, Files

GRID = """GROUP=SwathStructure
END_GROUP=SwathStructure
GROUP=GridStructure
	GROUP=GRID_1
		GridName="G"
		XDim=4
		YDim=2
		UpperLeftPointMtrs=({corners[0]})
		LowerRightMtrs=({corners[1]})
		{more}
		GROUP=DataField
			OBJECT=DataField_1
				DataFieldName="a"
				DimList=("YDim",
				"XDim")
			END_OBJECT=DataField_1
		END_GROUP=DataField
	END_GROUP=GRID_1
END_GROUP=GridStructure
END
"""


def test_odl_text_is_parsed_into_nested_blocks() -> None:
    root = parse_odl(GRID.format(corners=("1,2", "3,4"), more=""))
    assert [block.name for block in root.blocks] == ["SwathStructure", "GridStructure"]
    assert root.blocks[1].blocks[0].values["XDim"] == "4"
    assert parse_odl("OBJECT=a\nEND_OBJECT=a\nx = 1").values == {"x": "1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("END_GROUP=a", "have the end of 'a': expected no end there"),
        ("END_GROUP=\nx=1", "have the end of '': expected no end there"),
        ("GROUP=a\nEND_GROUP=b\n", "have the end of 'b': expected the end of 'a' there"),
        ("GROUP=a\nGROUP=b\nEND_GROUP=b\n", "end within 'a'"),
    ],
)
def test_unpaired_begin_or_end_of_a_block_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"StructMetadata {reason}"):
        parse_odl(text)


GEO, LATLON = "Projection=GCTP_GEO", "latitude_longitude"


@pytest.mark.parametrize(
    ("projection", "corners", "first", "crs"),
    [
        (GEO, ("-180000000.0,90000000.0", "180000000.0,-90000000.0"), (-135, 45), LATLON),
        (GEO, ("-10030000.0,5000000.0", "-8030000.0,3000000.0"), (-10.25, 4.5), LATLON),
        (GEO, ("-180,90", "180,-90"), (-135, 45), LATLON),
        ("Projection=GCTP_LAMAZ", ("0,20", "40,0"), (5, 15), None),
    ],
)
def test_coordinates_are_cell_centres(
    projection: str, corners: tuple[str, str], first: tuple[float, float], crs: str | None
) -> None:
    grid = parse_structures(GRID.format(corners=corners, more=projection))["G"]
    assert grid.fields == {"a": ("YDim", "XDim")}
    assert (grid.axes["XDim"].first, grid.axes["YDim"].first) == pytest.approx(first)
    assert grid.crs.get("grid_mapping_name") == crs
    assert crs or grid.crs["Projection"] == "GCTP_LAMAZ"


def test_wkt_of_the_sinusoidal_projection_is_read_by_proj() -> None:
    crs = pytest.importorskip("rasterio.crs")
    more = "Projection=GCTP_SNSOID\n ProjParams=(6371007.181000,0,0,0,0,0,0,0,0,0,0,0,0)"
    attributes = parse_structures(GRID.format(corners=("0,20", "40,0"), more=more))["G"].crs
    assert crs.CRS.from_wkt(attributes["crs_wkt"]).to_dict()["proj"] == "sinu"


@pytest.mark.parametrize("corners", [("DEFAULT", "DEFAULT"), ("nan,1", "2,3"), ("1", "2")])
def test_grid_without_corners_has_no_axes(corners: tuple[str, str]) -> None:
    grid = parse_structures(GRID.format(corners=corners, more=""))["G"]
    assert not grid.axes
    assert not grid.crs


def test_grid_that_begins_with_the_lowest_row_has_no_axes() -> None:
    grid = parse_structures(GRID.format(corners=("0,20", "40,0"), more="GridOrigin=HDFE_GD_LL"))["G"]
    assert not grid.axes


@pytest.mark.parametrize("name", ["grid", "grids", "swath"])
def test_damage_in_struct_metadata_is_harmless_or_reported(name: str) -> None:
    """A damaged digit cannot be noticed. Damaged names and numbers could hide fields or coordinates."""

    def read_all(data: bytes) -> tuple[object, ...]:
        files = Files({ROOT: data})
        keyspace = files.open()
        documents = [
            [files.read(keyspace, f"{path}/{name}") for name in (".zarray", ".zattrs")] for path in keyspace.grids
        ]
        return documents, dict(keyspace.reports)

    data = read_hdf4_file(name)
    start = data.rindex(b"GROUP=SwathStructure")
    positions = range(start, data.index(b"\nEND\n", start), 5)
    expected = read_all(data)
    for position in positions:
        if chr(data[position]) in "0123456789.-\n":
            continue
        actual = read_all(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert actual[0] == expected[0] or actual[1] != expected[1], data[position - 20 : position + 20]


@pytest.mark.parametrize(
    ("line", "damaged", "problem"),
    [
        ("XDim=4", "", "its numbers of columns and rows are {'XDim': 0, 'YDim': 2}: expected at least 1"),
        ("LowerRightMtrs", "LowerRight", "its corners have 2 readable numbers: expected 4"),
        (GEO, "", "its Projection is missing: expected a value that HDF-EOS2 defines"),
        (
            GEO,
            f"{GEO}\nGridOrigin=HDFE_GD_XL",
            "its GridOrigin is HDFE_GD_XL: expected a value that HDF-EOS2 defines",
        ),
        (GEO, "Projection=GCTP_PS", "its ProjParams are missing: expected numbers"),
    ],
)
def test_problem_of_a_grid_names_the_damaged_value(line: str, damaged: str, problem: str) -> None:
    text = GRID.format(corners=("0,2", "4,0"), more=GEO)
    assert parse_structures(text)["G"].problem == ""
    assert parse_structures(text.replace(line, damaged))["G"].problem == problem

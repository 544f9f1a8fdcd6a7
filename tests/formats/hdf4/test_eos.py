"""StructMetadata of HDF-EOS2: grids, projections, swaths."""

from __future__ import annotations

import pytest

from refshard_fs.formats.hdf4.eos import parse_odl, parse_structures

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


def test_text_is_parsed_into_blocks() -> None:
    root = parse_odl(GRID.format(corners=("1,2", "3,4"), more=""))
    assert [block.name for block in root.blocks] == ["SwathStructure", "GridStructure"]
    assert root.blocks[1].blocks[0].values["XDim"] == "4"
    assert parse_odl("END_GROUP=a\nEND_GROUP=b\nx = 1").values == {"x": "1"}


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
def test_axes_are_cell_centres(
    projection: str, corners: tuple[str, str], first: tuple[float, float], crs: str | None
) -> None:
    found = parse_structures(GRID.format(corners=corners, more=projection))["G"]
    assert found.fields == {"a": ("YDim", "XDim")}
    assert (found.axes["XDim"].first, found.axes["YDim"].first) == pytest.approx(first)
    assert found.crs.get("grid_mapping_name") == crs
    assert crs or found.crs["Projection"] == "GCTP_LAMAZ"


def test_wkt_of_the_sinusoidal_projection_is_read_by_proj() -> None:
    crs = pytest.importorskip("rasterio.crs")
    more = "Projection=GCTP_SNSOID\n ProjParams=(6371007.181000,0,0,0,0,0,0,0,0,0,0,0,0)"
    found = parse_structures(GRID.format(corners=("0,20", "40,0"), more=more))["G"].crs
    assert crs.CRS.from_wkt(found["crs_wkt"]).to_dict()["proj"] == "sinu"


@pytest.mark.parametrize("corners", [("DEFAULT", "DEFAULT"), ("nan,1", "2,3"), ("1", "2")])
def test_grid_without_corners_has_no_axes(corners: tuple[str, str]) -> None:
    found = parse_structures(GRID.format(corners=corners, more=""))["G"]
    assert not found.axes
    assert not found.crs


def test_rows_from_below_have_no_axes() -> None:
    found = parse_structures(GRID.format(corners=("0,20", "40,0"), more="GridOrigin=HDFE_GD_LL"))["G"]
    assert not found.axes

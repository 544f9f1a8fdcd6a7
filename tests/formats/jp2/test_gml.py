"""GMLJP2 locates an image, in either order of its axes."""

from __future__ import annotations

import pytest

from refshard_fs.formats.jp2.gml import locate_by_gml
from tests.support.jp2_files import make_gml_box


def locate(origin: str, first: str, second: str, srs: str = "urn:ogc:def:crs:EPSG::32632"):  # type: ignore[no-untyped-def]
    data = make_gml_box(origin, first, second, srs)
    return locate_by_gml(data[data.index(b"<gml:Fea") :].decode(), 20, 30)


@pytest.mark.parametrize(
    ("origin", "first", "second"),
    [
        ("600005 4999990", "10 0", "0 -20"),
        ("4999990 600005", "0 10", "-20 0"),
        ("4999990,600005", "-20,0", "0,10"),
    ],
)
def test_axes_of_a_north_up_image_may_be_in_either_order(origin: str, first: str, second: str) -> None:
    assert locate(origin, first, second).transform == (600000, 10, 0, 5000000, 0, -20)


def test_nul_between_elements_is_ignored() -> None:
    data = make_gml_box("600005 4999990", "10 0", "0 -20", "")
    text = data[data.index(b"<gml:Fea") :].decode().replace("><", ">\0<")
    assert "\0" in text
    found = locate_by_gml(text, 20, 30)
    assert found is not None
    assert found.transform == (600000, 10, 0, 5000000, 0, -20)


def test_rotated_image_keeps_its_vectors() -> None:
    assert locate("0 0", "10 3", "2 -10").transform == (-6, 10, 2, 3.5, 3, -10)


@pytest.mark.parametrize(
    ("srs", "shown"),
    [
        ("urn:ogc:def:crs:EPSG::4326", "EPSG:4326"),
        ("http://www.opengis.net/def/crs/EPSG/0/3035", "EPSG:3035"),
        ("epsg:32632", "EPSG:32632"),
        ("urn:ogc:def:crs:EPSG:6.6:32733", "EPSG:32733"),
        ("urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:OGC:1.3:CRS84"),
        ("", None),
    ],
)
def test_crs_is_named_by_its_epsg_code_or_urn(srs: str, shown: str | None) -> None:
    assert locate("0 0", "1 0", "0 -1", srs).crs.get("crs_wkt") == shown


@pytest.mark.parametrize("bad", ["", "1", "a b", "nan 0", "inf 1"])
def test_grid_with_missing_numbers_is_ignored(bad: str) -> None:
    assert locate(bad, "1 0", "0 -1") is None
    assert locate("0 0", bad, "0 -1") is None


def test_text_without_a_grid_is_ignored() -> None:
    assert locate_by_gml("<a/>", 2, 3) is None
    with pytest.raises(ValueError, match="XML"):
        locate_by_gml("<!DOCTYPE a><a/>", 2, 3)

"""Sources with their places along dimensions: pairs of URL and places, and items of a STAC catalogue."""

from __future__ import annotations

from datetime import UTC, date, datetime
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from refshard_fs.sets.tables import parse_placed_sources, read_parquet_table

DAY = datetime(2024, 1, 2, tzinfo=UTC)


def make_item(**assets: str) -> dict[str, Any]:
    """Return an item of STAC with the URLs of its assets."""
    members = {name: {"href": url} for name, url in assets.items()}
    return {"type": "Feature", "properties": {"datetime": "2024-01-02T00:00:00Z"}, "assets": members}


@pytest.mark.parametrize(
    "time", ["2024-01-02", DAY, datetime(2024, 1, 2), date(2024, 1, 2), np.datetime64("2024-01-02")]
)
def test_times_in_a_table_become_utc(time: Any) -> None:
    assert parse_placed_sources([("a.nc", {"time": time, "band": 3})]) == [("a.nc", {"time": DAY, "band": 3})]


def test_stac_assets_become_a_dimension() -> None:
    whole = parse_placed_sources([make_item(b1="x.tif", b2="y.tif")])
    assert whole == [("x.tif", {"time": DAY, "asset": "b1"}), ("y.tif", {"time": DAY, "asset": "b2"})]
    collection = {"type": "FeatureCollection", "features": [make_item(b1="x.tif", b2="y.tif")]}
    assert parse_placed_sources(collection, ["b2"]) == [("y.tif", {"time": DAY})]
    with pytest.raises(ValueError, match="expected one of the assets b3"):
        parse_placed_sources([make_item(b1="x.tif")], ["b3"])


def test_assets_that_are_not_data_are_left_out_by_default() -> None:
    scene = make_item(b1="x.tif", b2="y.tif", thumbnail="z.jpg")
    for name, role in (("b1", "data"), ("b2", "data"), ("thumbnail", "thumbnail")):
        scene["assets"][name]["roles"] = [role]
    found = parse_placed_sources([scene])
    assert found == [("x.tif", {"time": DAY, "asset": "b1"}), ("y.tif", {"time": DAY, "asset": "b2"})]
    assert parse_placed_sources([scene], ["thumbnail"]) == [("z.jpg", {"time": DAY})]


@pytest.mark.parametrize("sets", ["a.nc", ["a.nc", "b.nc"], [], {"a": 1}, [("a.nc", "b.nc")]])
def test_parse_placed_sources_is_none_for_other_arguments(sets: Any) -> None:
    assert parse_placed_sources(sets) is None


def test_table_with_invalid_dimensions_or_values_is_refused() -> None:
    with pytest.raises(ValueError, match="the same dimensions"):
        parse_placed_sources([("a.nc", {"time": DAY}), ("b.nc", {"band": 1})])
    with pytest.raises(ValueError, match=r"'b\.nc' comes with no dimension, and 'a\.nc' with time"):
        parse_placed_sources([("a.nc", {"time": DAY}), ("b.nc", {})])
    with pytest.raises(ValueError, match="expected a time, a number or a text"):
        parse_placed_sources([("a.nc", {"band": None})])


def test_text_that_is_not_a_time_is_an_error_with_its_url() -> None:
    with pytest.raises(ValueError, match=r"^'a\.nc' comes with time = 'yesterday': expected a time such as"):
        parse_placed_sources([("a.nc", {"time": "yesterday"})])


def test_incomplete_stac_items_are_refused() -> None:
    with pytest.raises(ValueError, match="expected assets in each item, got an item with no assets"):
        parse_placed_sources([make_item()])
    scene = make_item(b1="x.tif")
    with pytest.raises(ValueError, match="datetime or start_datetime in each item, got the item of 'x.tif'"):
        parse_placed_sources([{**scene, "properties": {}}])
    with pytest.raises(ValueError, match="got the asset 'b1' without it"):
        parse_placed_sources([{**scene, "assets": {"b1": {"roles": ["data"]}}}])


def test_assets_argument_may_be_one_name() -> None:
    assert parse_placed_sources([make_item(b1="x.tif", b="y.tif")], "b1") == [("x.tif", {"time": DAY})]


@pytest.mark.parametrize(
    ("columns", "error"), [(["url", "time"], "t.parquet is a table without rows"), ([], "t.parquet has no columns")]
)
def test_empty_parquet_table_is_an_error_that_says_so(columns: list[str], error: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = BytesIO()
    parquet.write_table(pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in columns}), file)
    with pytest.raises(ValueError, match=error):
        read_parquet_table(file.getvalue(), "t.parquet", None)

"""Sources of a join: patterns, nested lists, and sources that cannot be opened."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs.errors import ManifestError, SourceNotReachable
from refshard_fs.sets.sources import OnError
from tests.support.day_sets import make_days, read_times, write_refs
from tests.support.joined_sets import make_day_set

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.member_files import DIMS, MEMBERS, open_members  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


def test_pattern_lists_matches_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        folder = tmp_path / f"month{number % 2}"
        folder.mkdir(exist_ok=True)
        write_refs(folder, f"day{number}.json", make_days(number, 1))
    (tmp_path / "month0" / "notes.txt").write_text("")
    assert read_times(refshard_fs.concat(f"{tmp_path}/month*/day*.json", "time")) == [10, 100, 9]
    assert read_times(refshard_fs.concat([f"{tmp_path}/month0/day*.json"], "time")) == [10, 100]
    with pytest.raises(ManifestError, match="matches nothing"):
        refshard_fs.concat(f"{tmp_path}/year*.json", "time")


def test_patterns_match_on_s3(s3_server: Any) -> None:
    s3_server.create_bucket("patterns")
    for number in (2, 10):
        s3_server.put(f"patterns/days/{number}.json", json.dumps(make_days(number, 1)).encode())
    options = {"options": {"s3://patterns/": s3_server.storage_options}, "allow": "any"}
    assert read_times(refshard_fs.concat("s3://patterns/days/*.json", "time", **options)) == [2, 10]


def test_unreadable_sets_are_skipped_on_request(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 1)) for i in range(3)]
    Path(names[1]).write_text("{")
    with pytest.raises(ManifestError):
        refshard_fs.concat(names, "time")
    with pytest.warns(UserWarning, match=r"set 1 is left out: .*1\.json"):
        made = refshard_fs.concat(names, "time", on_error="skip")
    assert read_times(made) == [0, 2]
    with pytest.raises(ManifestError):
        refshard_fs.concat(names[1:2], "time", on_error="skip")


def test_names_outside_the_pattern_are_errors_or_skipped(tmp_path: Path) -> None:
    expected = open_members(tmp_path).assign_coords(member=list(MEMBERS))
    for name in ("20240199.nc", "notes.nc"):
        (tmp_path / "r1" / name).write_text("")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    with pytest.raises(ManifestError, match=r"found .*r1/20240199\.nc, .*r1/notes\.nc: on_error='skip' leaves"):
        refshard_fs.concat(pattern, dims=DIMS)
    with pytest.warns(UserWarning, match=r"notes\.nc: files with other names are left out"):
        made = refshard_fs.concat(pattern, dims=DIMS, on_error="skip")
    xr.testing.assert_equal(load_dataset(made).transpose(*expected["v"].dims), expected)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_error_says_that_no_name_fits_the_pattern(tmp_path: Path, on_error: OnError) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "notes.nc").write_text("")
    with pytest.raises(ManifestError, match=r"^no file has a name like .*: found .*r1/notes\.nc$"):
        refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, on_error=on_error)


def test_table_of_urls_alone_is_a_list(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    open_members(tmp_path)
    urls = sorted(map(str, (tmp_path / "r1").glob("*.nc")))
    assert refshard_fs.open(pd.DataFrame({"url": urls})).digest == refshard_fs.open(urls).digest


def test_dims_name_the_columns_that_are_dimensions(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    open_members(tmp_path)
    urls = sorted(map(str, (tmp_path / "r1").glob("*.nc")))
    table = pd.DataFrame({"url": urls, "time": range(len(urls)), "cloud": [0.5 * n for n in range(len(urls))]})
    found = refshard_fs.open(table, dims="time")
    assert found.digest == refshard_fs.open(table.drop(columns="cloud")).digest
    with pytest.raises(ManifestError, match="If only some of time, cloud are dimensions, name these by dims="):
        refshard_fs.open(table)


def test_invalid_nesting_of_sources_is_refused() -> None:
    with pytest.raises(TypeError, match="nested"):
        refshard_fs.concat([make_day_set(0, 2)], dims=("time", "x"))
    with pytest.raises(TypeError, match="^expected a pattern or a list of sets, got {"):
        refshard_fs.concat(make_day_set(0, 2), "time")
    with pytest.raises(ValueError, match="at least one source"):
        refshard_fs.concat([], dim="time")


def test_existing_file_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    for name in ("a[1].nc", "a1.nc"):
        xr.Dataset({"v": ("time", [1.0]), "time": [1]}).to_netcdf(tmp_path / name, engine="h5netcdf")
    found = refshard_fs.concat(str(tmp_path / "a[1].nc"), "time")
    assert found.references["v/0"][0] == str(tmp_path / "a[1].nc")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([["a.nc"], ["b.nc"]], "nested lists need dims="),
        ([io.BytesIO(b"a"), io.BytesIO(b"b")], "each of several sources needs a URL or a path, got <_io.BytesIO"),
    ],
)
def test_invalid_members_of_a_list_of_sources_are_refused(members: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        refshard_fs.open(members)


def test_sources_without_members_are_named_as_empty(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for fo in (tmp_path, f"{tmp_path}/", f"file://{tmp_path}"):
        with pytest.raises(SourceNotReachable, match=r"is an empty directory: expected a zarr hierarchy"):
            refshard_fs.open(fo)
    with pytest.raises(ValueError, match="got a table without rows"):
        refshard_fs.open(pandas.DataFrame({"url": [], "time": []}))
    for sets in ([], [[], []]):
        with pytest.raises(ValueError, match="at least one source"):
            refshard_fs.concat(sets, dims=["a", "b"], coords={"a": [1, 2]})

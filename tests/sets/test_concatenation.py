"""Sets put in order by their coordinate, values that two sets have, patterns, and appending the same day twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs.cli import main
from refshard_fs.errors import ManifestError
from tests.support.set_values import values_of

UNITS = "days since 2024-01-01"


def days(
    first: int, count: int, chunk: int = 1, units: str = UNITS, offset: int = 0, order: str = "<"
) -> dict[str, Any]:
    """Return a set of ``count`` days; the data of a day are its number."""

    def array(dtype: str, size: int) -> str:
        meta = {"zarr_format": 2, "shape": [count], "chunks": [size], "dtype": dtype, "order": "C"}
        return json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})

    numbers = np.arange(first, first + count)
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    refs["time/.zarray"], refs["t/.zarray"] = array(f"{order}i4", count), array("|u1", chunk)
    refs["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": units})
    refs["t/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"]})
    refs["time/0"] = "base64:" + _base64((numbers - offset).astype(f"{order}i4").tobytes())
    for number in range(0, count, chunk):
        refs[f"t/{number // chunk}"] = [f"memory://{first + number}", 0, chunk]
    return refs


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def times(fo: Any) -> list[int]:
    return values_of(fo, "time", "<i4")


def urls(fo: Any) -> list[str]:
    references = refshard_fs.RefShardFileSystem(fo).references
    count = len([key for key in references if key.startswith("t/") and not key.startswith("t/.")])
    return [references[f"t/{number}"][0] for number in range(count)]


def written(folder: Path, name: str, refs: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(refs))
    return str(path)


# ------------------------------------------------------------------ joining


@pytest.mark.parametrize("lazy", [False, True])
def test_sets_are_sorted_by_their_coordinate_on_request(tmp_path: Path, lazy: bool) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 2)) for i in (4, 0, 2)]
    made: Any = refshard_fs.concat(names, "time", sort=True, lazy=lazy)
    assert times(made) == [0, 1, 2, 3, 4, 5]
    fs = refshard_fs.RefShardFileSystem(made)
    assert [fs.resolve(f"t/{i}")[0] for i in range(6)] == [f"memory://{i}" for i in range(6)]
    as_given: Any = refshard_fs.concat(names, "time", lazy=lazy)
    assert times(as_given) == [4, 5, 0, 1, 2, 3]


def test_sets_whose_coordinate_descends_are_sorted_so() -> None:
    def reversed_days(first: int) -> dict[str, Any]:
        refs = days(first, 2)
        refs["time/0"] = "base64:" + _base64(np.array([first + 1, first], "<i4").tobytes())
        return refs

    assert times(refshard_fs.concat([reversed_days(0), reversed_days(2)], "time", sort=True)) == [3, 2, 1, 0]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_value_that_two_sets_have_is_refused_with_both_names(tmp_path: Path, lazy: bool) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 3)) for i in (0, 2)]
    with pytest.raises(ManifestError, match=r"2\.json\) has time = 2 days since 2024-01-01, and so has .*0\.json"):
        refshard_fs.concat(names, "time", lazy=lazy)  # type: ignore[call-overload]


def test_overlaps_are_taken_from_the_first_or_the_last_set() -> None:
    parts = [days(0, 3), days(2, 3)]
    parts[1]["t/0"] = ["memory://again", 0, 1]
    first = refshard_fs.concat(parts, "time", overlap="first")
    assert times(first) == [0, 1, 2, 3, 4]
    assert urls(first) == [f"memory://{i}" for i in range(5)]
    last = refshard_fs.concat(parts, "time", overlap="last")
    assert times(last) == [0, 1, 2, 3, 4]
    assert urls(last)[2] == "memory://again"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("sort", [False, True])
def test_values_within_another_set_divide_it(tmp_path: Path, lazy: bool, sort: bool) -> None:
    again = days(2, 2)
    again["t/0"] = ["memory://again", 0, 1]
    names = [written(tmp_path, f"{number}.json", part) for number, part in enumerate([days(0, 6), again])]
    made: Any = refshard_fs.concat(names, "time", overlap="last", sort=sort, lazy=lazy)
    order = [0, 1, 2, 3, 4, 5] if sort else [0, 1, 4, 5, 2, 3]
    assert times(made) == order
    fs = refshard_fs.RefShardFileSystem(made)
    expected = ["memory://again" if day == 2 else f"memory://{day}" for day in order]
    assert [fs.resolve(f"t/{number}")[0] for number in range(6)] == expected


@pytest.mark.parametrize("lazy", [False, True])
def test_sort_divides_sets_that_lie_between_each_other(tmp_path: Path, lazy: bool) -> None:
    names = []
    for number, own in enumerate(([0, 2, 4], [1, 3])):
        refs = days(10 * number, len(own))
        refs["time/0"] = "base64:" + _base64(np.array(own, "<i4").tobytes())
        names.append(written(tmp_path, f"{number}.json", refs))
    made: Any = refshard_fs.concat(names, "time", sort=True, lazy=lazy)
    assert times(made) == [0, 1, 2, 3, 4]
    fs = refshard_fs.RefShardFileSystem(made)
    assert [fs.resolve(f"t/{i}")[0] for i in range(5)] == [f"memory://{day}" for day in (0, 10, 1, 11, 2)]


def test_a_set_of_which_nothing_is_new_is_left_out(tmp_path: Path) -> None:
    names = [written(tmp_path, f"{i}.json", days(0, 2)) for i in range(2)]
    for lazy in (False, True):
        assert times(refshard_fs.concat(names, "time", overlap="first", lazy=lazy)) == [0, 1]  # type: ignore[call-overload]


def test_a_chunk_is_never_taken_in_part() -> None:
    with pytest.raises(ManifestError, match="references name whole chunks"):
        refshard_fs.concat([days(0, 4, 2), days(3, 3, 3)], "time", overlap="last")


def test_overlaps_are_found_in_other_units_too() -> None:
    other = days(2, 2, units="days since 2024-01-02", offset=1)
    with pytest.raises(ManifestError, match="time = 2 days since 2024-01-01"):
        refshard_fs.concat([days(0, 3), other], "time")


def test_trimmed_arrays_of_several_dimensions_have_right_chunks() -> None:
    def cube(first: int) -> dict[str, Any]:
        refs = days(first, 4)
        meta = {"zarr_format": 2, "shape": [2, 4, 2], "chunks": [1, 2, 1], "dtype": "|u1", "order": "C"}
        refs["c/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
        refs["c/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["x", "time", "y"]})
        for x, t, y in np.ndindex(2, 2, 2):
            refs[f"c/{x}.{t}.{y}"] = [f"memory://{x}.{first + 2 * t}.{y}", 0, 2]
        refs["c/1.1.1"] = "ab" if first else "cd"
        return refs

    references = refshard_fs.concat([cube(0), cube(2)], "time", overlap="first").references
    found = {key: value[0] for key, value in references.items() if key.startswith("c/") and isinstance(value, list)}
    expected = {f"c/{x}.{t}.{y}": f"memory://{x}.{2 * t}.{y}" for x, t, y in np.ndindex(2, 3, 2)}
    for key in ("c/1.1.1", "c/1.2.1"):
        del expected[key]
    assert found == expected
    assert (references["c/1.1.1"], references["c/1.2.1"]) == (b"cd", b"ab")


# ------------------------------------------------------------------ patterns, and what cannot be opened


def test_pattern_stands_for_all_that_it_matches_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        folder = tmp_path / f"month{number % 2}"
        folder.mkdir(exist_ok=True)
        written(folder, f"day{number}.json", days(number, 1))
    (tmp_path / "month0" / "notes.txt").write_text("")
    assert times(refshard_fs.concat(f"{tmp_path}/month*/day*.json", "time")) == [10, 100, 9]
    assert times(refshard_fs.concat([f"{tmp_path}/month0/day*.json"], "time")) == [10, 100]
    with pytest.raises(ManifestError, match="matches nothing"):
        refshard_fs.concat(f"{tmp_path}/year*.json", "time")


def test_patterns_on_s3(s3_server: Any) -> None:
    s3_server.create_bucket("patterns")
    for number in (2, 10):
        s3_server.put(f"patterns/days/{number}.json", json.dumps(days(number, 1)).encode())
    options = {"options": {"s3://patterns/": s3_server.storage_options}, "allow": "any"}
    assert times(refshard_fs.concat("s3://patterns/days/*.json", "time", **options)) == [2, 10]


def test_where_nothing_is_listed_a_pattern_is_refused() -> None:
    with pytest.raises(ManifestError, match="cannot be listed"):
        refshard_fs.concat("http://127.0.0.1:9/day*.json", "time")


def test_sets_that_cannot_be_opened_are_left_out_on_request(tmp_path: Path) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 1)) for i in range(3)]
    Path(names[1]).write_text("{")
    with pytest.raises(ManifestError):
        refshard_fs.concat(names, "time")
    with pytest.warns(UserWarning, match=r"set 1 is left out: .*1\.json"):
        made = refshard_fs.concat(names, "time", on_error="skip")
    assert times(made) == [0, 2]
    with pytest.raises(ManifestError):
        refshard_fs.concat(names[1:2], "time", on_error="skip")


def test_netcdf_files_are_joined_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf")
    for number in (2, 10, 1):
        time = xr.DataArray([number], dims="time", attrs={"units": UNITS})
        data = np.full((1, 4), number, "<f4")
        part = xr.Dataset({"t": (("time", "x"), data)}, coords={"time": time})
        part.to_netcdf(tmp_path / f"day{number}.nc", engine="h5netcdf", unlimited_dims=["time"])
    for lazy in (False, True):
        made = refshard_fs.concat(f"{tmp_path}/day*.nc", "time", lazy=lazy)  # type: ignore[call-overload]
        assert values_of(made, "time", "<i8") == [1, 2, 10]
        fs = refshard_fs.RefShardFileSystem(made)
        rows = [np.frombuffer(fs.cat_file(f"t/{i}.0"), "<f4").tolist() for i in range(3)]
        assert rows == [[1.0] * 4, [2.0] * 4, [10.0] * 4]


# ------------------------------------------------------------------ appending again


@pytest.mark.parametrize("lazy", [False, True])
def test_the_same_day_is_not_taken_twice(tmp_path: Path, lazy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 1)) for i in range(3)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=lazy).save(url)  # type: ignore[call-overload]
    assert refshard_fs.append(url, names[2], "time") == 1
    before = Path(url).read_bytes()
    with pytest.raises(ManifestError, match="time = 2 days since 2024-01-01 already"):
        refshard_fs.append(url, names[2], "time")
    assert refshard_fs.append(url, names[2], "time", on_duplicate="skip") == 0
    assert main(["append", url, names[2], "--dim", "time", "--on-duplicate", "skip"]) == 0
    assert "nothing new, left as it is" in capsys.readouterr().out
    assert main(["append", url, names[2], "--dim", "time"]) == 2
    assert Path(url).read_bytes() == before


def test_what_is_new_is_appended_and_what_is_known_is_not(tmp_path: Path) -> None:
    url = str(tmp_path / "all.json")
    refshard_fs.concat([days(0, 3)], "time").save(url)
    assert refshard_fs.append(url, days(1, 4), "time", on_duplicate="skip") == 2
    assert times(url) == [0, 1, 2, 3, 4]
    assert urls(url) == [f"memory://{i}" for i in range(5)]


def test_the_last_days_are_replaced(tmp_path: Path) -> None:
    url = str(tmp_path / "all.json")
    refshard_fs.concat([days(0, 4)], "time").save(url)
    better = days(2, 2)
    better["t/0"] = ["memory://better", 0, 1]
    assert refshard_fs.append(url, better, "time", on_duplicate="replace") == 0
    assert times(url) == [0, 1, 2, 3]
    assert urls(url) == ["memory://0", "memory://1", "memory://better", "memory://3"]
    with pytest.raises(ManifestError, match="the beginning"):
        refshard_fs.append(url, days(0, 5), "time", on_duplicate="replace")


def test_the_last_sets_of_a_document_are_replaced_whole(tmp_path: Path) -> None:
    names = [written(tmp_path, f"{i}.json", days(2 * i, 2)) for i in range(3)]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names, "time", lazy=True).save(url)
    better = days(4, 3)
    better["t/0"] = ["memory://better", 0, 1]
    new = written(tmp_path, "better.json", better)
    assert refshard_fs.append(url, new, "time", on_duplicate="replace") == 1
    assert times(url) == list(range(7))
    fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True)
    assert [fs.resolve(f"t/{i}")[0] for i in (3, 4, 5)] == ["memory://3", "memory://better", "memory://5"]
    before = Path(url).read_bytes()
    part = written(tmp_path, "part0.json", days(0, 7))
    with pytest.raises(ManifestError, match="would replace the beginning"):
        refshard_fs.append(url, part, "time", on_duplicate="replace")
    assert Path(url).read_bytes() == before


def test_a_day_of_big_endian_files_is_not_taken_twice(tmp_path: Path) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 1, order=">")) for i in range(3)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=True).save(url)
    assert refshard_fs.append(url, names[2], "time") == 1
    with pytest.raises(ManifestError, match="time = 1 days since 2024-01-01 already"):
        refshard_fs.append(url, names[1], "time")


@pytest.mark.parametrize("lazy", [False, True])
def test_a_set_stays_in_order(tmp_path: Path, lazy: bool) -> None:
    names = [written(tmp_path, f"{i}.json", days(i, 2)) for i in (2, 4, 0)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=lazy).save(url)  # type: ignore[call-overload]
    with pytest.raises(ManifestError, match="would no longer be sorted"):
        refshard_fs.append(url, names[2], "time")
    assert refshard_fs.append(url, names[2], "time", any_order=True) == 2
    assert times(url) == [2, 3, 4, 5, 0, 1]


# ------------------------------------------------------------------ groups with coordinates of one name


def grouped(times: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    """Return a set of groups, each of which has a time and an x of its own."""

    def array(path: str, values: Any, dims: list[str]) -> dict[str, str]:
        data = np.array(values, "<f4")
        meta = {"zarr_format": 2, "shape": data.shape, "chunks": [1] * data.ndim, "dtype": "<f4", "order": "C"}
        refs = {f"{path}/.zarray": json.dumps({**meta, "fill_value": "NaN", "filters": None, "compressor": None})}
        refs[f"{path}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
        chunks = {".".join(map(str, at)): _base64(data[at].tobytes()) for at in np.ndindex(data.shape)}
        return refs | {f"{path}/{name}": f"base64:{chunk}" for name, chunk in chunks.items()}

    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for group in times:
        t, x = times[group], places[group]
        refs[f"{group}/.zgroup"] = '{"zarr_format": 2}'
        refs |= array(f"{group}/time", t, ["time"]) | array(f"{group}/x", x, ["x"])
        refs |= array(f"{group}/v", np.add.outer(np.array(t) * 100, x), ["time", "x"])
    return refs


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_groups_of_different_coordinates_get_no_common_union(tmp_path: Path, which: str, lazy: bool) -> None:
    """Before it was mended: In sets of groups that each have a coordinate of one name, `join="outer"` gave all groups
    the union of one group's values, `freq=` filled times of one into others, and `overlap=` and `append(...,
    on_duplicate=)` left out of all what one of them had already.
    """

    def both(first: int, x: Any, other: Any) -> dict[str, Any]:
        rest = "b" if which == "a" else "a"
        return grouped({g: [first, first + 1] for g in "ab"}, {which: x, rest: other})

    names = [
        written(tmp_path, f"{i}.json", both(2 * i, x, other))
        for i, (x, other) in enumerate([([0, 1], [5, 6]), ([1, 2], [5, 6])])
    ]
    with pytest.raises(ManifestError, match="two dimensions 'x'"):
        refshard_fs.concat(names, "time", join="outer", lazy=lazy)
    same = [written(tmp_path, f"s{i}.json", both(2 * i, x, x)) for i, x in enumerate([[0, 1], [1, 2]])]
    cube: Any = refshard_fs.concat(same, "time", join="outer", lazy=lazy)
    for group in "ab":
        assert values_of(cube, f"{group}/x", "<f4") == [0, 1, 2]


@pytest.mark.parametrize("how", [{"overlap": "first"}, {"overlap": "last"}, {"freq": 1}])
def test_duplicates_in_one_group_do_not_change_another(tmp_path: Path, how: dict[str, Any]) -> None:
    second = 4 if "freq" in how else 0
    alone = {"a": [0], "b": [0]}
    starts = (0, second)
    parts = [grouped({"a": [t, t + 1], "b": [10 + i, 20 + i]}, alone) for i, t in enumerate(starts)]
    names = [written(tmp_path, f"{i}.json", part) for i, part in enumerate(parts)]
    with pytest.raises(ManifestError, match="two dimensions 'time'"):
        refshard_fs.concat(names, "time", **how)
    parts = [grouped({"a": [t, t + 1], "b": [t, t + 1]}, alone) for t in starts]
    cube: Any = refshard_fs.concat(parts, "time", **how)
    for group in "ab":
        assert values_of(cube, f"{group}/time", "<f4") == ([0, 1, 2, 3, 4, 5] if second else [0, 1])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("how", ["skip", "replace"])
def test_set_with_new_times_in_another_group_is_not_known(tmp_path: Path, how: Any, lazy: bool) -> None:
    first, second = (grouped({"a": [0, 1], "b": [10 + i, 20 + i]}, {"a": [0], "b": [0]}) for i in range(2))
    url = str(tmp_path / "cube.json")
    made: Any = refshard_fs.concat([written(tmp_path, "0.json", first)], "time", lazy=lazy)
    made.save(url)
    with pytest.raises(ManifestError, match="two dimensions 'time'|is the first set of"):
        refshard_fs.append(url, written(tmp_path, "1.json", second), "time", on_duplicate=how)

"""Pieces that are added to the document of a cube."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError
from tests.support.day_sets import make_days, read_times, write_refs
from tests.support.growing_sets import write_day, write_part, write_target
from tests.support.joined_sets import make_day_set, read

pytest.importorskip("zarr")


def test_append_adds_a_line_to_a_document(tmp_path: Path) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(0, 2), make_day_set(2, 2)])
    before = Path(url).read_text().splitlines()
    refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 2), 2), "time")
    after = Path(url).read_text().splitlines()
    assert [line.rstrip(",") for line in after[: len(before) - 1]] == [line.rstrip(",") for line in before[:-1]]
    assert after[-2].startswith('["part2.json",2,"base64:')
    assert len(after) == len(before) + 1


def test_append_with_replace_replaces_the_last_set(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(2 * i, 2)) for i in range(3)]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names, "time", lazy=True).save(url)
    better = make_days(4, 3)
    better["t/0"] = ["memory://better", 0, 1]
    new = write_refs(tmp_path, "better.json", better)
    assert refshard_fs.append(url, new, "time", on_duplicate="replace") == 1
    assert read_times(url) == list(range(7))
    fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True)
    assert [fs.resolve(f"t/{i}")[0] for i in (3, 4, 5)] == ["memory://3", "memory://better", "memory://5"]
    before = Path(url).read_bytes()
    part = write_refs(tmp_path, "part0.json", make_days(0, 7))
    with pytest.raises(ManifestError, match="would replace the beginning"):
        refshard_fs.append(url, part, "time", on_duplicate="replace")
    assert Path(url).read_bytes() == before


def test_append_with_replace_replaces_pieces_in_place(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    paths = [write_day(tmp_path, n, n) for n in range(4)]
    refshard_fs.open(paths).save(target)
    Path(paths[1]).unlink()
    (tmp_path / "mended").mkdir()
    assert refshard_fs.append(target, write_day(tmp_path / "mended", 1, 7.0), on_duplicate="replace") == 0
    assert refshard_fs.append(target, write_day(tmp_path, 3, 9.0), on_duplicate="replace") == 0
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [0, 7, 2, 9]
    assert refshard_fs.append(target, write_day(tmp_path, 0, 5.0), on_duplicate="replace") == 0
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [5, 7, 2, 9]


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("units", ["days since 2024-01-01", "days since 2023-01-01"])
def test_first_piece_is_replaced_with_its_metadata(tmp_path: Path, is_moved: bool, units: str) -> None:
    """The encoding of the document stays the same, if the old first set or another set still has it."""

    def write(name: str, day: int, value: float, units: str, **encoding: Any) -> Path:
        times = np.array([f"2024-01-0{day + 1}"], "M8[ns]")
        ds = xr.Dataset({"t": ("time", [value], {"units": "K"})}, {"time": times})
        ds.to_netcdf(tmp_path / name, engine="h5netcdf", encoding={"t": encoding, "time": {"units": units}})
        return tmp_path / name

    target = str(tmp_path / "cube.refshard")
    packing = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    first = write("0.nc", 0, 1.0, "days since 2024-01-01", **packing)
    others = [write(f"{day}.nc", day, day + 1.0, units, **packing) for day in (1, 2)]
    refshard_fs.open([first, *others]).save(target)
    old = xr.open_dataset(target, engine="refshard").load()
    mended = write("mended.nc" if is_moved else "0.nc", 0, 7.5, "hours since 2024-01-01", **packing)
    if not is_moved and units != "days since 2024-01-01":
        with pytest.raises(ManifestError, match="would replace the beginning of"):
            refshard_fs.append(target, str(mended), on_duplicate="replace")
        return
    assert refshard_fs.append(target, str(mended), on_duplicate="replace") == 0
    if is_moved:
        first.unlink()
    found = xr.open_dataset(target, engine="refshard")
    assert found["t"].values.tolist() == [7.5, 2, 3]
    assert found["t"].encoding["dtype"] == old["t"].encoding["dtype"]
    assert found["time"].equals(old["time"])
    assert refshard_fs.append(target, [str(mended)]) == 0


def test_only_piece_of_a_document_is_not_replaced(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    refshard_fs.open([write_day(tmp_path, 0, 0)]).save(target)
    with pytest.raises(ManifestError, match="would replace the beginning of"):
        refshard_fs.append(target, write_day(tmp_path, 0, 5.0), on_duplicate="replace")


def test_append_to_a_document_that_ends_within_a_chunk_works(tmp_path: Path) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(0, 3)])
    assert refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 3), 9), "time") == 3
    assert refshard_fs.append(url, write_part(tmp_path, make_day_set(7, 2), 10), "time") == 2
    expected = [read(make_day_set(first, count))["air"] for first, count in ((0, 3), (4, 3), (7, 2))]
    np.testing.assert_array_equal(read(url)["air"], np.concatenate(expected))


@pytest.mark.parametrize("order", [(1, 3, 2, 0, 4), (4, 2, 3, 0, 1), (2, 0, 1, 4, 3)])
def test_late_files_are_inserted_in_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    target = str(tmp_path / "cube.refshard")
    refshard_fs.open([write_day(tmp_path, day, day) for day in order[:2]], sort=True).save(target)
    for day in order[2:]:
        assert refshard_fs.append(target, write_day(tmp_path, day, day)) == 1
    with xr.open_dataset(target, engine="refshard", decode_times=False) as ds:
        assert ds["time"].values.tolist() == ds["t"].values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("first", "count"), [(0, 3), (4, 4), (4, 3), (8, 1)])
def test_late_set_may_end_within_a_chunk(tmp_path: Path, first: int, count: int) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(start, 4) for start in (10, 20)])
    new = make_day_set(first, count)
    assert refshard_fs.append(url, write_part(tmp_path, new, 9)) == count
    expected = [read(part)["air"] for part in (new, make_day_set(10, 4), make_day_set(20, 4))]
    np.testing.assert_array_equal(read(url)["air"], np.concatenate(expected))


def test_late_first_file_keeps_the_encoding_of_the_set(tmp_path: Path) -> None:
    paths = []
    for number, units in ((0, "hours since 2024-01-01"), (1, "days since 2024-01-01"), (2, "days since 2024-01-01")):
        time = ("time", [24 * number if units.startswith("hours") else number], {"units": units})
        ds = xr.Dataset({"t": ("time", [float(number)], {"from": number}), "x": ("k", [1, 2])}, {"time": time})
        encoding = {"t": {"dtype": "i2", "scale_factor": 0.5 + number, "_FillValue": -9}}
        paths.append(str(tmp_path / f"{number}.nc"))
        ds.to_netcdf(paths[-1], engine="h5netcdf", encoding=encoding)
    target = str(tmp_path / "cube.refshard")
    refshard_fs.open(paths[1:]).save(target)
    assert refshard_fs.append(target, paths[0]) == 1
    with xr.open_dataset(target, engine="refshard") as ds:
        np.testing.assert_allclose(ds["t"].values, [0, 1, 2], atol=0.8)
        assert ds["time"].dt.day.values.tolist() == [1, 2, 3]
        assert ds["t"].attrs["from"] == 1
        assert ds["x"].values.tolist() == [1, 2]


LATE_DAYS = [
    ([[0, 1, 2], [6, 7, 8]], [3, 4, 5]),  # between two sets
    ([[0, 1, 5], [6, 7, 8]], [2, 3, 4]),  # within the first set
    ([[0, 1, 2], [3, 7, 8]], [4, 5, 6]),  # within another one
    ([[1, 2], [3, 4]], [0, 5]),  # around all sets
    ([[0, 1], [3, 4], [6, 7]], [2, 5]),  # around a set
    ([[0, 2, 4], [6, 8]], [1, 3, 5, 7, 9]),  # between all elements
    ([[9, 7], [5, 3]], [8, 6, 1]),  # descending
    ([[3]], [1, 5]),
]


def write_values(path: Path, days: list[int], chunk: int, plus: float = 0.0) -> str:
    """Write values of days, in chunks of ``chunk`` days."""
    values = np.array(days)[:, None] * 10.0 + np.arange(3) + plus
    ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": ("time", days, {"units": "days since 2024-01-01"})})
    ds.to_netcdf(path, engine="h5netcdf", encoding={"t": {"chunksizes": (min(chunk, len(days)), 3)}})
    return str(path)


def check_values(target: str, days: list[int], plus: dict[int, float]) -> None:
    with xr.open_dataset(target, engine="refshard", decode_times=False) as ds:
        assert ds["time"].values.tolist() == days
        more = np.array([plus.get(day, 0.0) for day in days])
        np.testing.assert_array_equal(ds["t"].values, (np.array(days) * 10.0 + more)[:, None] + np.arange(3))


@pytest.mark.parametrize(("days", "late"), LATE_DAYS)
@pytest.mark.parametrize("chunk", [1, 2])
def test_late_set_is_divided_and_divides_others(
    tmp_path: Path, days: list[list[int]], late: list[int], chunk: int
) -> None:
    target = str(tmp_path / "cube.refshard")
    paths = [write_values(tmp_path / f"{number}.nc", each, chunk) for number, each in enumerate(days)]
    refshard_fs.concat(paths, "time", lazy=True).save(target)
    path = write_values(tmp_path / "9.nc", late, chunk)
    assert refshard_fs.append(target, path) == len(late)
    expected = sorted([*chain(*days), *late], reverse=days[0] > days[-1])
    check_values(target, expected, {})
    assert refshard_fs.append(target, path, on_duplicate="skip") == 0
    assert refshard_fs.append(target, f"{tmp_path}/*.nc") == 0
    last = write_values(tmp_path / "10.nc", [-1 if days[0] > days[-1] else 20], chunk)
    assert refshard_fs.append(target, last) == 1


@pytest.mark.parametrize(("days", "late"), LATE_DAYS)
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("is_moved", [False, True])
def test_divided_sets_are_replaced_whole(
    tmp_path: Path, days: list[list[int]], late: list[int], chunk: int, is_moved: bool
) -> None:
    """Sets that were divided, or that divide others, are replaced one after the other, also the first one."""
    target, every = str(tmp_path / "cube.refshard"), [*days, late]
    paths = [tmp_path / f"{number}.nc" for number in range(len(every))]
    for path, each in zip(paths, every, strict=True):
        write_values(path, each, chunk)
    refshard_fs.concat([str(path) for path in paths[:-1]], "time", lazy=True).save(target)
    assert refshard_fs.append(target, str(paths[-1])) == len(late)
    expected = sorted(chain(*every), reverse=days[0] > days[-1])
    plus: dict[int, float] = {}
    for path, each in zip(paths, every, strict=True):
        new = tmp_path / f"new{path.name}" if is_moved else path
        write_values(new, each, chunk, 0.5)
        is_first = expected[0] in each
        if is_moved and not is_first:
            path.unlink()
        assert refshard_fs.append(target, str(new), on_duplicate="replace") == 0
        if is_moved and is_first:
            path.unlink()
        plus |= dict.fromkeys(each, 0.5)
        check_values(target, expected, plus)
    assert refshard_fs.append(target, [str(path) for path in tmp_path.glob("*.nc")], on_duplicate="skip") == 0
    check_values(target, expected, plus)


def test_one_set_replaces_pieces_of_several(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    paths = [write_values(tmp_path / f"{number}.nc", [number], 1) for number in range(5)]
    refshard_fs.concat(paths, "time", lazy=True).save(target)
    for days in ([1, 3], [2], [1, 2, 3], [4], [1, 2, 3, 4]):
        new = write_values(tmp_path / f"new{days}.nc", days, 2, 0.5)
        assert refshard_fs.append(target, new, on_duplicate="replace") == 0
    check_values(target, [0, 1, 2, 3, 4], dict.fromkeys(range(1, 5), 0.5))
    assert len(Path(target).read_text().splitlines()) == 2 + 2, "one line for each file"
    with pytest.raises(ManifestError, match="exactly the values of some pieces"):
        refshard_fs.append(target, write_values(tmp_path / "part.nc", [2, 3], 1), on_duplicate="replace")


def test_set_with_unsorted_times_is_left_out_by_choice(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(*days)) for i, days in enumerate([(0, 1), (4, 3)])]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names, "time", lazy=True).save(url)
    late = make_days(0, 2)
    late["time/0"] = np.array([8, 2], "<i4").tobytes().decode()
    new = [write_refs(tmp_path, "late.json", late), write_refs(tmp_path, "new.json", make_days(9, 1))]
    with pytest.raises(ManifestError, match=r"late\.json.* 2024-01-09.*on_error='skip'"):
        refshard_fs.append(url, new)
    with pytest.warns(UserWarning, match=r"left out: .*late\.json"):
        assert refshard_fs.append(url, new, on_error="skip") == 1
    assert read_times(url) == [0, 4, 5, 6, 9]

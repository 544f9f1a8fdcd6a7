"""Sets that grow in place: what they then hold is what `concat` makes, and what fails leaves them as they were."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import refshard_fs
from refshard_fs import ConflictError, ManifestError, RefShardFileSystem, SourceNotReachable, TargetChanged
from refshard_fs.cli import main
from refshard_fs.sets import append as appending
from tests.servers.s3 import SeaweedServer
from tests.support.day_sets import list_targets, make_days, read_times, write_refs
from tests.support.joined_sets import VERSIONS, archives, chunked, day, read

pytest.importorskip("zarr")


TARGETS = ["json", "parquet", "lazy"]


def opened(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def target(folder: Path, kind: str, parts: list[dict[str, Any]]) -> str:
    url = str(folder / ("grows.json" if kind in ("json", "lazy") else "grows"))
    if kind == "lazy":
        refshard_fs.concat([written(folder, part, i) for i, part in enumerate(parts)], "time", lazy=True).save(url)
    else:
        opened(refshard_fs.concat(parts, "time")).save(url, kind)  # type: ignore[arg-type]
    return url


def written(folder: Path, part: dict[str, Any], number: int) -> str:
    path = str(folder / f"part{number}.json")
    opened(part).save(path, "json")
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", TARGETS)
def test_it_grows_into_the_concatenation(tmp_path: Path, kind: str, version: int) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    parts = [day(4 * i, 4, version) for i in range(4)]
    url = target(tmp_path, kind, parts[:1])
    for number, part in enumerate(parts[1:], 1):
        refshard_fs.append(url, written(tmp_path, part, number), "time")
        expected = read(refshard_fs.concat(parts[: number + 1], "time"))
        for name, values in read(url).items():
            np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_it_grows_along_another_axis(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    data = np.arange(48, dtype="<i2").reshape(4, 12)
    parts = [{".zgroup": '{"zarr_format": 2}', **chunked("a", piece, (2, 2), ["t", "x"])}
             for piece in np.split(data, 3, 1)]  # fmt: skip
    url = str(tmp_path / ("grows.json" if kind == "json" else "grows"))
    opened(parts[0]).save(url)
    for part in parts[1:]:
        refshard_fs.append(url, part, "x")
    found, expected = opened(url), opened(refshard_fs.concat(parts, "x"))
    keys = [key for key in expected.find("a") if ".z" not in key]
    assert [key for key in found.find("a") if ".z" not in key] == keys
    assert found.cat(keys) == expected.cat(keys)


def test_references_that_were_relative_stay_so(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    array = {"a/.zarray": json.dumps(meta | {"filters": None, "compressor": None})}
    array["a/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["t"]}'
    (tmp_path / "x").write_bytes(b"ab")
    (tmp_path / "all.json").write_text(json.dumps({"version": 1, "refs": array | {"a/0": ["x", 0, 1]}}))
    refshard_fs.append(tmp_path / "all.json", array | {"a/0": [str(tmp_path / "x"), 1, 1]}, "t")
    refs = json.loads((tmp_path / "all.json").read_text())["refs"]
    assert refs["a/0"] == ["x", 0, 1]
    assert refs["a/1"] == [str(tmp_path / "x"), 1, 1]


@pytest.mark.parametrize("kind", TARGETS)
def test_what_does_not_fit_changes_nothing(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    version = 2
    url = target(tmp_path, kind, [day(0, 4, version)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = day(4, 4, version, **({"dtype": "<M8[s]"} if version == 2 else {"data_type": "int32"}))
    fo = written(tmp_path, other, 9)
    with pytest.raises(ManifestError, match="dtype|data_type|only integers"):
        refshard_fs.append(url, fo, "time")
    with pytest.raises(ManifestError, match="along 'nothing'|not 'nothing'|equal"):
        refshard_fs.append(url, written(tmp_path, day(4, 4, version), 9), "nothing")
    assert {path: path.read_bytes() for path in before} == before


def test_a_set_that_ends_within_a_chunk_cannot_go_on(tmp_path: Path) -> None:
    url = target(tmp_path, "json", [day(0, 3)])
    with pytest.raises(ManifestError, match=r"no multiple of its chunks.*lazy=True"):
        refshard_fs.append(url, written(tmp_path, day(4, 2), 9), "time")


def test_document_that_ends_within_a_chunk_is_appended_to(tmp_path: Path) -> None:
    url = target(tmp_path, "lazy", [day(0, 3)])
    assert refshard_fs.append(url, written(tmp_path, day(4, 3), 9), "time") == 3
    assert refshard_fs.append(url, written(tmp_path, day(7, 2), 10), "time") == 2
    expected = [read(day(first, count))["air"] for first, count in ((0, 3), (4, 3), (7, 2))]
    np.testing.assert_array_equal(read(url)["air"], np.concatenate(expected))


@pytest.mark.parametrize("kind", ["json", "lazy"])
def test_two_who_append_at_once_do_not_lose_either(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = target(tmp_path, kind, [day(0, 2)])
    paths = [written(tmp_path, day(2 * i, 2), i) for i in (1, 2)]
    taken = appending.read_sets

    def slowly(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(appending, "read_sets", taken)
        refshard_fs.append(url, paths[0], "time")
        return taken(*given, **named)

    monkeypatch.setattr(appending, "read_sets", slowly)
    with pytest.raises(ConflictError, match="Nothing was appended: append again"):
        refshard_fs.append(url, paths[1], "time")
    assert read(url)["time"].tolist() == [0, 1, 2, 3]
    refshard_fs.append(url, paths[1], "time")
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["nothing.json", "nothing", "nothing.zarr"])
def test_what_is_not_there_cannot_grow(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceNotReachable, match=r"no set at .*nothing.* to append to"):
        refshard_fs.append(tmp_path / name, day(0, 2), "time")
    assert list(tmp_path.iterdir()) == []


def test_a_document_grows_by_a_line(tmp_path: Path) -> None:
    url = target(tmp_path, "lazy", [day(0, 2), day(2, 2)])
    before = Path(url).read_text().splitlines()
    refshard_fs.append(url, written(tmp_path, day(4, 2), 2), "time")
    after = Path(url).read_text().splitlines()
    assert [line.rstrip(",") for line in after[: len(before) - 1]] == [line.rstrip(",") for line in before[:-1]]
    assert after[-2].startswith('["part2.json",2,"base64:')
    assert len(after) == len(before) + 1


def test_documents_name_their_parts(tmp_path: Path) -> None:
    url = target(tmp_path, "lazy", [day(0, 2)])
    with pytest.raises(TypeError, match="save it first"):
        refshard_fs.append(url, day(2, 2), "time")


def test_times_go_on_in_the_units_of_the_first_set(tmp_path: Path) -> None:
    parts = [day(2, 2), day(4, 2), day(6, 2)]
    for part, since in zip(parts, ("2001-01-01", "2001-01-03", "2001-01-07"), strict=True):
        part["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": f"days since {since}"})
    for kind in ("json", "lazy"):
        url = target(tmp_path, kind, parts[:1])
        for number, part in enumerate(parts[1:], 1):
            refshard_fs.append(url, written(tmp_path, part, number), "time")
        assert read(url)["time"].tolist() == [2, 3, 6, 7, 12, 13]


def test_pins_come_along_or_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    array = {"a/.zarray": json.dumps(meta | {"filters": None, "compressor": None})}
    array["a/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["t"]}'
    new = refshard_fs.snapshot(array | {"a/0": [str(tmp_path / "x"), 2, 1], "a/1": [str(tmp_path / "x"), 3, 1]})
    opened(array | {"a/0": [str(tmp_path / "x"), 0, 1]}).save(str(tmp_path / "all.json"))
    refshard_fs.append(tmp_path / "all.json", new, "t")
    assert opened(str(tmp_path / "all.json")).cat_file("a/3") == b"d"
    (tmp_path / "x").write_bytes(b"changed")
    with pytest.raises(TargetChanged):
        opened(str(tmp_path / "all.json")).cat_file("a/3")
    pytest.importorskip("pyarrow")
    opened(array).save(str(tmp_path / "set"), "parquet")
    with pytest.raises(ManifestError, match="unpinned"):
        refshard_fs.append(tmp_path / "set", new, "t")


def test_a_document_on_s3_is_one_put(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.create_bucket("appending")
    url = s3_server.put("appending/all.json", Path(target(tmp_path, "json", [day(0, 2)])).read_bytes())
    options = {"remote_protocol": "s3", "remote_options": s3_server.storage_options, "allow": "any"}
    refshard_fs.append(url, day(2, 2), "time", **options)
    found = opened(url, **options)
    assert found.cat_file("time/0") == np.arange(4, dtype="<i4").tobytes()


def test_the_commands_make_a_document_and_let_it_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [day(2 * i, 2) for i in range(3)]
    paths = [written(tmp_path, part, i) for i, part in enumerate(parts)]
    url = str(tmp_path / "all.json")
    assert main(["concat", *paths[:2], "-o", url, "--dim", "time", "--lazy"]) == 0
    assert main(["append", url, paths[2], "--dim", "time"]) == 0
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]
    assert main(["append", url, paths[2], "--dim", "x"]) == 2
    assert "not 'x'" in capsys.readouterr().err
    assert main(["concat", *paths, "-o", url, "--dims", "time", "--counts", "3", "--lazy"]) == 0
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]


@settings(max_examples=25)
@given(archives(), st.sampled_from(["json", "parquet"]), st.integers(1, 9))
def test_whatever_the_sets_it_grows_into_their_concatenation(
    archive: tuple[list[dict[str, Any]], int], kind: Any, record_size: int
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    parts, axis = archive
    dim = ["t", "y", "x"][axis]
    url = f"memory://appended/{uuid.uuid4().hex}"
    opened(parts[0]).save(url, kind, record_size=record_size)
    for part in parts[1:]:
        refshard_fs.append(url, part, dim)
    found, expected = opened(url), opened(refshard_fs.concat(parts, dim))
    keys = [key for key in expected.find("a") if not key.endswith((".zarray", "zarr.json", ".zattrs"))]
    assert [key for key in found.find("a") if not key.endswith((".zarray", "zarr.json", ".zattrs"))] == keys
    assert found.cat(keys) == expected.cat(keys)


@pytest.mark.parametrize("lazy", [False, True])
def test_two_ways_to_say_no_transformer_are_the_same(lazy: bool, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2"):
        pytest.skip("zarr 2 writes version 2 alone")
    stores = [str(tmp_path / f"{number}.zarr") for number in range(2)]
    for number, store in enumerate(stores):
        group = zarr.open_group(store, mode="w", zarr_format=3)
        for name, values in (("time", np.arange(2) + 2 * number), ("v", np.arange(2.0)), ("mask", np.arange(3))):
            dims = ["x" if name == "mask" else "time"]
            group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=dims)[:] = values
        path = tmp_path / f"{number}.zarr" / "v" / "zarr.json"
        document = json.loads(path.read_text())
        assert document.pop("storage_transformers") == []
        if number:
            path.write_text(json.dumps(document))
    cube: Any = refshard_fs.concat(stores, "time", lazy=lazy)
    assert RefShardFileSystem(cube).resolve("v/c/1")[0] == f"{stores[1]}/v/c/0"
    if not lazy:
        grown = str(tmp_path / "cube.json")
        refshard_fs.concat(stores[:1], "time").save(grown)
        refshard_fs.append(grown, stores[1], "time")
        assert RefShardFileSystem(grown).resolve("mask/c/0")[0] == f"{stores[0]}/mask/c/0"


def test_all_that_match_are_appended_and_known_ones_not_opened(tmp_path: Path) -> None:
    for number in range(4):
        ds = xr.Dataset(
            {"t": ("time", [1.0 + number])}, {"time": ("time", [number], {"units": "days since 2024-01-01"})}
        )
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube([str(tmp_path / f"{number}.nc") for number in range(2)]).save(target)
    (tmp_path / "1.nc").write_bytes(b"damaged, and not opened again")
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", "time") == 2
    assert refshard_fs.append(target, f"{tmp_path}/*.nc") == 0
    assert xr.open_dataset(target, engine="refshard", decode_times=False)["time"].values.tolist() == [0, 1, 2, 3]


def variables(folder: Path, name: str, *years: int, **shifted: int) -> list[str]:
    """Write a file of the variable ``name`` for each year, which has two times, and return their paths."""
    paths = []
    for year in years:
        data = xr.DataArray([10.0 * year, 10.0 * year + 1], dims="time")
        times = ("time", [2 * year + shifted.get("by", 0), 2 * year + 1], {"units": "days since 2024-01-01"})
        paths.append(str(folder / f"{name}_{year}.nc"))
        xr.Dataset({name: data}, {"time": times}).to_netcdf(paths[-1], engine="h5netcdf")
    return paths


def test_files_of_different_variables_are_appended_together(tmp_path: Path) -> None:
    for name in "ab":
        variables(tmp_path, name, 0, 1)
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube(f"{tmp_path}/*.nc").save(target)
    for name in "ba":
        variables(tmp_path, name, 2, 3)
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", "time") == 4
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", "time") == 0
    found = xr.open_dataset(target, engine="refshard", decode_times=False)
    assert found["time"].values.tolist() == list(range(8))
    assert found["a"].values.tolist() == found["b"].values.tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert len(refshard_fs.cube(f"{tmp_path}/*.nc")) == len(json.loads(Path(target).read_text())["sets"]) * 2


def test_variables_that_would_not_fit_change_nothing(tmp_path: Path) -> None:
    for name in "ab":
        variables(tmp_path, name, 0)
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube(f"{tmp_path}/*.nc").save(target)
    before = Path(target).read_bytes()
    (new,) = variables(tmp_path, "a", 1)
    with pytest.raises(ManifestError, match="would have 4 elements of 'a' along 'time', and 2 of 'b'.*together"):
        refshard_fs.append(target, new, "time")
    with pytest.raises(ManifestError, match="differ in 'time'"):
        refshard_fs.append(target, [new, *variables(tmp_path, "b", 1, by=-5)], "time", any_order=True)
    both = str(tmp_path / "both.nc")
    xr.merge(map(xr.open_dataset, [new, *variables(tmp_path, "b", 1)])).to_netcdf(both, engine="h5netcdf")
    with pytest.raises(
        ManifestError, match="different variables \\('a', 'b'\\), and .*both.nc.* has variables of several"
    ):
        refshard_fs.append(target, both, "time")
    with pytest.raises(ManifestError, match="has none of these"):
        refshard_fs.append(target, variables(tmp_path, "c", 1), "time")
    assert Path(target).read_bytes() == before
    assert refshard_fs.append(target, variables(tmp_path, "a", 0), "time", on_duplicate="skip") == 0


def write_day(folder: Path, day: int, value: float) -> str:
    time = ("time", [day], {"units": "days since 2024-01-01"})
    path = folder / f"{day}.nc"
    xr.Dataset({"t": ("time", [value])}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return str(path)


def test_job_that_creates_its_document_may_run_twice(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    for days in (range(2), range(2, 4), range(0)):
        for number in days:
            write_day(tmp_path, number, number)
        assert refshard_fs.append(target, f"{tmp_path}/*.nc", create=True) == len(days)
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="needs dim="):
        refshard_fs.append(written(tmp_path, day(0, 2), 0), day(2, 2))


def test_part_that_was_damaged_is_replaced_where_it_lies(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    paths = [write_day(tmp_path, n, n) for n in range(4)]
    refshard_fs.open(paths).save(target)
    Path(paths[1]).unlink()
    (tmp_path / "mended").mkdir()
    assert refshard_fs.append(target, write_day(tmp_path / "mended", 1, 7.0), on_duplicate="replace") == 0
    assert refshard_fs.append(target, write_day(tmp_path, 3, 9.0), on_duplicate="replace") == 0
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [0, 7, 2, 9]
    with pytest.raises(ManifestError, match="would replace the beginning of"):
        refshard_fs.append(target, paths[0], on_duplicate="replace")


def test_cube_that_shows_a_part_takes_no_more_of_it(tmp_path: Path) -> None:
    cube = refshard_fs.open([write_day(tmp_path, n, n) for n in range(3)])
    cube.select(isel={"time": slice(0, 2)}, attrs={"t": {"units": "K"}}).save(f"{tmp_path}/part.refshard")
    assert refshard_fs.append(f"{tmp_path}/part.refshard", f"{tmp_path}/*.nc") == 1
    assert xr.open_dataset(f"{tmp_path}/part.refshard", engine="refshard")["t"].units == "K"
    cube.select(isel={"time": 1}).save(f"{tmp_path}/day.refshard")
    with pytest.raises(ManifestError, match="shows a part along 'time'"):
        refshard_fs.append(f"{tmp_path}/day.refshard", f"{tmp_path}/*.nc")


def test_document_whose_first_file_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Before it was mended, ``create=True`` took the document for absent, and wrote another one over it."""
    meta = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": None}
    array = {".zarray": json.dumps({**meta, "filters": None, "compressor": None})}
    urls = [str(tmp_path / f"{number}.json") for number in range(3)]
    for number, url in enumerate(urls):
        named = {f"{name}/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"]}' for name in "ta"}
        named |= {f"{name}/.zarray": array[".zarray"] for name in "ta"} | {"t/0": chr(number), "a/0": "x"}
        Path(url).write_text(json.dumps(named))
    there = tmp_path / "made.refshard"
    refshard_fs.concat(urls[:2], "t", lazy=True).save(str(there))
    before = there.read_bytes()
    Path(urls[0]).unlink()
    for more in ({}, {"create": True}, {"on_duplicate": "replace"}):
        with pytest.raises(SourceNotReachable, match=r"0\.json"):
            refshard_fs.append(str(there), urls[2], **more)
    with pytest.raises(SourceNotReachable, match=r"0\.json"):
        RefShardFileSystem(str(there), mode="a").find("")
    assert there.read_bytes() == before


@pytest.mark.parametrize("lazy", [False, True])
def test_the_same_day_is_not_taken_twice(tmp_path: Path, lazy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 1)) for i in range(3)]
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
    refshard_fs.concat([make_days(0, 3)], "time").save(url)
    assert refshard_fs.append(url, make_days(1, 4), "time", on_duplicate="skip") == 2
    assert read_times(url) == [0, 1, 2, 3, 4]
    assert list_targets(url) == [f"memory://{i}" for i in range(5)]


def test_the_last_days_are_replaced(tmp_path: Path) -> None:
    url = str(tmp_path / "all.json")
    refshard_fs.concat([make_days(0, 4)], "time").save(url)
    better = make_days(2, 2)
    better["t/0"] = ["memory://better", 0, 1]
    assert refshard_fs.append(url, better, "time", on_duplicate="replace") == 0
    assert read_times(url) == [0, 1, 2, 3]
    assert list_targets(url) == ["memory://0", "memory://1", "memory://better", "memory://3"]
    with pytest.raises(ManifestError, match="the beginning"):
        refshard_fs.append(url, make_days(0, 5), "time", on_duplicate="replace")


def test_the_last_sets_of_a_document_are_replaced_whole(tmp_path: Path) -> None:
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


def test_a_day_of_big_endian_files_is_not_taken_twice(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 1, order=">")) for i in range(3)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=True).save(url)
    assert refshard_fs.append(url, names[2], "time") == 1
    with pytest.raises(ManifestError, match="time = 1 days since 2024-01-01 already"):
        refshard_fs.append(url, names[1], "time")


@pytest.mark.parametrize("lazy", [False, True])
def test_a_set_stays_in_order(tmp_path: Path, lazy: bool) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 2)) for i in (2, 4, 0)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=lazy).save(url)  # type: ignore[call-overload]
    with pytest.raises(ManifestError, match="would no longer be sorted"):
        refshard_fs.append(url, names[2], "time")
    assert refshard_fs.append(url, names[2], "time", any_order=True) == 2
    assert read_times(url) == [2, 3, 4, 5, 0, 1]

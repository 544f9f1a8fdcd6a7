"""Sets that grow in place: the result equals `concat`, and a failure changes nothing."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import refshard_fs
from refshard_fs import ConflictError, ManifestError, RefShardFileSystem, SourceNotReachable, UnknownSource
from refshard_fs.cli import main
from refshard_fs.sets import grown_document, grown_references
from tests.servers.s3 import SeaweedServer
from tests.support.growing_sets import TARGETS, open_anew, write_day, write_part, write_target
from tests.support.joined_sets import VERSIONS, draw_archives, make_array, make_day_set, read

pytest.importorskip("zarr")


@pytest.mark.parametrize(("kind", "version"), list(zip(TARGETS, itertools.cycle(VERSIONS), strict=False)))
def test_appended_set_equals_the_concatenation(tmp_path: Path, kind: str, version: int) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    parts = [make_day_set(4 * i, 4, version) for i in range(4)]
    url = write_target(tmp_path, kind, parts[:1])
    for number, part in enumerate(parts[1:], 1):
        refshard_fs.append(url, write_part(tmp_path, part, number), "time")
        expected = read(refshard_fs.concat(parts[: number + 1], "time"))
        for name, values in read(url).items():
            np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_append_along_the_second_axis_equals_concat(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    data = np.arange(48, dtype="<i2").reshape(4, 12)
    parts = [{".zgroup": '{"zarr_format": 2}', **make_array("a", piece, (2, 2), ["t", "x"])}
             for piece in np.split(data, 3, 1)]  # fmt: skip
    url = str(tmp_path / ("grows.json" if kind == "json" else "grows"))
    open_anew(parts[0]).save(url)
    for part in parts[1:]:
        refshard_fs.append(url, part, "x")
    found, expected = open_anew(url), open_anew(refshard_fs.concat(parts, "x"))
    keys = [key for key in expected.find("a") if ".z" not in key]
    assert [key for key in found.find("a") if ".z" not in key] == keys
    assert found.cat(keys) == expected.cat(keys)


@pytest.mark.parametrize("kind", TARGETS)
def test_unreadable_sets_are_skipped_and_appended_later(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    parts = [make_day_set(4 * i, 4, 2) for i in range(3)]
    url = write_target(tmp_path, kind, parts[:1])
    names = [write_part(tmp_path, part, number) for number, part in enumerate(parts[1:], 1)]
    whole = Path(names[1]).read_bytes()
    Path(names[1]).write_bytes(b"damaged")
    with pytest.raises(UnknownSource):
        refshard_fs.append(url, names[1], "time")
    with pytest.warns(UserWarning, match=r"is left out: .*part2\.json"):
        assert refshard_fs.append(url, names, "time", on_error="skip") == 4
    Path(names[1]).write_bytes(whole)
    assert refshard_fs.append(url, names, "time", on_error="skip", on_duplicate="skip") == 4
    expected = read(refshard_fs.concat(parts, "time"))
    for name, values in read(url).items():
        np.testing.assert_array_equal(values, expected[name])


def test_damaged_first_set_of_a_document_is_not_skipped(tmp_path: Path) -> None:
    parts = [make_day_set(4 * i, 4, 2) for i in range(2)]
    url = write_target(tmp_path, "lazy", parts[:1])
    (tmp_path / "part0.json").write_bytes(b"damaged")
    with pytest.raises(UnknownSource, match=r"part0\.json"):
        refshard_fs.append(url, write_part(tmp_path, parts[1], 1), on_error="skip")


@pytest.mark.parametrize("name", ["on_duplicate", "on_error"])
def test_unknown_choices_are_refused(tmp_path: Path, name: str) -> None:
    url = write_target(tmp_path, "json", [make_day_set(0, 4, 2)])
    with pytest.raises(ValueError, match=f"^{name}='skipp': expected '"):
        refshard_fs.append(url, make_day_set(4, 4, 2), "time", **{name: "skipp"})


@pytest.mark.parametrize("kind", TARGETS)
def test_refused_append_changes_no_file(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    version = 2
    url = write_target(tmp_path, kind, [make_day_set(0, 4, version)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = make_day_set(4, 4, version, **({"dtype": "<M8[s]"} if version == 2 else {"data_type": "int32"}))
    fo = write_part(tmp_path, other, 9)
    with pytest.raises(ManifestError, match="dtype|data_type|only integers"):
        refshard_fs.append(url, fo, "time")
    with pytest.raises(ManifestError, match="along 'nothing'|dim='nothing'|equal"):
        refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 4, version), 9), "nothing")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("kind", ["json", "lazy"])
def test_second_of_two_concurrent_appends_is_a_conflict(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_target(tmp_path, kind, [make_day_set(0, 2)])
    paths = [write_part(tmp_path, make_day_set(2 * i, 2), i) for i in (1, 2)]
    module = grown_references if kind == "json" else grown_document
    taken = module.read_sets

    def slowly(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, "read_sets", taken)
        refshard_fs.append(url, paths[0], "time")
        return taken(*given, **named)

    monkeypatch.setattr(module, "read_sets", slowly)
    with pytest.raises(ConflictError, match="Nothing was appended: append again"):
        refshard_fs.append(url, paths[1], "time")
    assert read(url)["time"].tolist() == [0, 1, 2, 3]
    refshard_fs.append(url, paths[1], "time")
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["nothing.json", "nothing", "nothing.zarr"])
def test_append_to_a_missing_set_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceNotReachable, match=r"no set at .*nothing.* to append to"):
        refshard_fs.append(tmp_path / name, make_day_set(0, 2), "time")
    assert list(tmp_path.iterdir()) == []


def test_appended_times_have_the_units_of_the_first_set(tmp_path: Path) -> None:
    parts = [make_day_set(2, 2), make_day_set(4, 2), make_day_set(6, 2)]
    for part, since in zip(parts, ("2001-01-01", "2001-01-03", "2001-01-07"), strict=True):
        part["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": f"days since {since}"})
    for kind in ("json", "lazy"):
        url = write_target(tmp_path, kind, parts[:1])
        for number, part in enumerate(parts[1:], 1):
            refshard_fs.append(url, write_part(tmp_path, part, number), "time")
        assert read(url)["time"].tolist() == [2, 3, 6, 7, 12, 13]


def test_set_on_s3_is_appended_to(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.create_bucket("appending")
    url = s3_server.put("appending/all.json", Path(write_target(tmp_path, "json", [make_day_set(0, 2)])).read_bytes())
    options = {"remote_protocol": "s3", "remote_options": s3_server.storage_options, "allow": "any"}
    refshard_fs.append(url, make_day_set(2, 2), "time", **options)
    found = open_anew(url, **options)
    assert found.cat_file("time/0") == np.arange(4, dtype="<i4").tobytes()


def test_commands_make_and_extend_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [make_day_set(2 * i, 2) for i in range(3)]
    paths = [write_part(tmp_path, part, i) for i, part in enumerate(parts)]
    url = str(tmp_path / "all.json")
    assert main(["concat", *paths[:2], "-o", url, "--dim", "time", "--lazy"]) == 0
    assert main(["append", url, paths[2], "--dim", "time"]) == 0
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]
    assert main(["append", url, paths[2], "--dim", "x"]) == 2
    assert "got --dim x" in capsys.readouterr().err
    assert main(["concat", *paths, "-o", url, "--dims", "time", "--counts", "3", "--lazy"]) == 0
    assert read(url)["time"].tolist() == [0, 1, 2, 3, 4, 5]


@given(draw_archives(), st.sampled_from(["json", "parquet"]), st.integers(1, 9))
def test_random_appends_equal_the_concatenation(
    archive: tuple[list[dict[str, Any]], int], kind: Any, record_size: int
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    parts, axis = archive
    dim = ["t", "y", "x"][axis]
    url = f"memory://appended/{uuid.uuid4().hex}"
    open_anew(parts[0]).save(url, kind, record_size=record_size)
    for part in parts[1:]:
        refshard_fs.append(url, part, dim)
    found, expected = open_anew(url), open_anew(refshard_fs.concat(parts, dim))
    keys = [key for key in expected.find("a") if not key.endswith((".zarray", "zarr.json", ".zattrs"))]
    assert [key for key in found.find("a") if not key.endswith((".zarray", "zarr.json", ".zattrs"))] == keys
    assert found.cat(keys) == expected.cat(keys)


@pytest.mark.parametrize("lazy", [False, True])
def test_stores_with_or_without_storage_transformers_are_joined(lazy: bool, tmp_path: Path) -> None:
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


def test_pattern_appends_new_files_without_opening_old_ones(tmp_path: Path) -> None:
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


def test_pattern_appended_by_two_writers_at_once_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other writer commits after this one has listed the new files, and before it reads the document again."""
    for number in range(3):
        time = {"time": ("time", [number], {"units": "days since 2024-01-01"})}
        xr.Dataset({"t": ("time", [1.0 + number])}, time).to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube([str(tmp_path / f"{number}.nc") for number in range(2)]).save(target)
    module = importlib.import_module("refshard_fs.sets.append")
    list_new_sets = module._list_new_sets

    def list_then_append(*arguments: Any, **options: Any) -> Any:
        found = list_new_sets(*arguments, **options)
        monkeypatch.undo()
        assert refshard_fs.append(target, f"{tmp_path}/*.nc") == 1
        return found

    monkeypatch.setattr(module, "_list_new_sets", list_then_append)
    assert refshard_fs.append(target, f"{tmp_path}/*.nc") == 0
    assert xr.open_dataset(target, engine="refshard", decode_times=False)["time"].values.tolist() == [0, 1, 2]


def write_one_time_each(folder: Path, count: int) -> None:
    for number in range(count):
        time = {"time": ("time", [number], {"units": "days since 2024-01-01"})}
        xr.Dataset({"t": ("time", [1.0 + number])}, time).to_netcdf(folder / f"{number}.nc", engine="h5netcdf")


@pytest.mark.parametrize("name", ["cube.refshard", "cube.json"])
def test_writer_that_loses_a_conflict_appends_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Other writers commit after this one has read the document, and before it writes the document."""
    write_one_time_each(tmp_path, 5)
    target = str(tmp_path / name)
    refshard_fs.cube([str(tmp_path / "0.nc")]).save(target)
    module = importlib.import_module("refshard_fs.sets.append")
    extend, others = module.extend_document, ["[1-2].nc", "3.nc"]

    def append_then_extend(*arguments: Any, **options: Any) -> Any:
        if others:
            mine, own = others.pop(0), module.extend_document
            monkeypatch.setattr(module, "extend_document", extend)
            refshard_fs.append(target, f"{tmp_path}/{mine}")
            monkeypatch.setattr(module, "extend_document", own)
        return extend(*arguments, **options)

    monkeypatch.setattr(module, "extend_document", append_then_extend)
    assert refshard_fs.append(target, f"{tmp_path}/*.nc") == 1, "the other writers appended 1 to 3"
    assert xr.open_dataset(target, engine="refshard", decode_times=False)["time"].values.tolist() == [0, 1, 2, 3, 4]


def test_two_writers_may_create_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_one_time_each(tmp_path, 3)
    target = str(tmp_path / "cube.refshard")
    module = importlib.import_module("refshard_fs.sets.append")

    def open_after_the_other(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert refshard_fs.append(target, [str(tmp_path / "0.nc"), str(tmp_path / "1.nc")], create=True) == 2
        return refshard_fs.open(*arguments, **options)

    monkeypatch.setattr(module, "open", open_after_the_other)
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", create=True) == 1
    assert xr.open_dataset(target, engine="refshard", decode_times=False)["time"].values.tolist() == [0, 1, 2]


def test_document_on_s3_is_created_with_the_options(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.create_bucket("creating")
    write_one_time_each(tmp_path, 3)
    for number in range(3):
        s3_server.put(f"creating/days/{number}.nc", (tmp_path / f"{number}.nc").read_bytes())
    options = {"options": {"s3://creating/": s3_server.storage_options}}
    for added in (3, 0):
        assert (
            refshard_fs.append("s3://creating/all.refshard", "s3://creating/days/?.nc", create=True, **options) == added
        )


def test_writers_in_many_processes_append_each_file_once(tmp_path: Path) -> None:
    write_one_time_each(tmp_path, 24)
    target, code = str(tmp_path / "cube.refshard"), "from refshard_fs.cli.program import main; raise SystemExit(main())"
    groups = ["[0-5].nc", "[5-9].nc", "1?.nc", "2*.nc", "*.nc"]
    writers = [subprocess.Popen([sys.executable, "-c", code, "watch", f"{tmp_path}/{g}", "-o", target]) for g in groups]
    assert [writer.wait() for writer in writers] == [0] * len(groups)
    found = xr.open_dataset(target, engine="refshard", decode_times=False)
    assert found["time"].values.tolist() == list(range(24))
    assert found["t"].values.tolist() == list(range(1, 25))


def test_job_that_creates_its_document_may_run_again(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    for days in (range(2), range(2, 4), range(0)):
        for number in days:
            write_day(tmp_path, number, number)
        assert refshard_fs.append(target, f"{tmp_path}/*.nc", create=True) == len(days)
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="needs dim="):
        refshard_fs.append(write_part(tmp_path, make_day_set(0, 2), 0), make_day_set(2, 2))


def test_missing_first_file_does_not_recreate_the_document(tmp_path: Path) -> None:
    """``create=True`` once treated the document as missing, and overwrote it."""
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

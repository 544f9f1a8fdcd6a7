"""References as parquet files: they are read back unchanged, and written completely or not at all."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refshard_fs import RefShardFileSystem
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.stores.objects import Objects
from tests.support.parquet_sets import DATA, make_v2_array
from tests.support.saved_sets import is_same, keys, make_refs, read_content, values

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


@pytest.mark.parametrize("record_size", [1, 3, 8, 10_000])
def test_json_set_is_unchanged_after_copies_as_parquet(record_size: int, tmp_path: Path, target: str) -> None:
    source = make_refs(target)
    flat = RefShardFileSystem(source)
    expected = read_content(flat, source)
    flat.save(str(tmp_path / "a.parq"), record_size=record_size)
    lazy = RefShardFileSystem(str(tmp_path / "a.parq"))
    assert isinstance(lazy.source.open().source, ParquetKeySpace)
    assert set(lazy.find("")) == source.keys() | {".zmetadata"}
    assert is_same(read_content(lazy, source), expected)
    lazy.save(str(tmp_path / "b.parq"), record_size=4)
    again = RefShardFileSystem(str(tmp_path / "b.parq"))
    assert is_same(read_content(again, source), expected)
    again.save(str(tmp_path / "c.json"))
    back = RefShardFileSystem(str(tmp_path / "c.json"))
    assert set(back.references) == source.keys() | {".zmetadata"}
    assert is_same(read_content(back, source), expected)
    assert json.loads(back.cat_file(".zmetadata"))["zarr_consolidated_format"] == 1
    assert [p.name for p in tmp_path.rglob("*.tmp")] == []


@pytest.mark.parametrize("consolidated", [True, None])
def test_zarr_opens_a_set_with_consolidated_metadata(tmp_path: Path, consolidated: bool | None) -> None:
    """With ``consolidated=None``, xarray warns unless there are consolidated metadata that zarr reads."""
    xarray = pytest.importorskip("xarray")
    source = {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": make_v2_array([3], [3]),
        "a/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
    }
    RefShardFileSystem({**source, "a/0": "abc"}).save(str(tmp_path / "a.parq"))
    options = {"fo": str(tmp_path / "a.parq")}
    given: dict[str, Any] = {"storage_options": options, "consolidated": consolidated, "mask_and_scale": False}
    with xarray.open_zarr("refshard://", chunks=None, **given) as found:
        assert found["a"].values.tobytes() == b"abc"


@pytest.mark.parametrize("record_size", [3, 10_000])
@pytest.mark.evidence(id="R1")
def test_fsspec_reads_written_sets(record_size: int, tmp_path: Path, target: str) -> None:
    for needed in ("pandas", "fastparquet"):
        pytest.importorskip(needed)
    source = {k: v for k, v in make_refs(target).items() if k not in ("t/1", "t/2")}
    flat = RefShardFileSystem(source)
    flat.save(str(tmp_path / "a.parq"), record_size=record_size)
    flat.save(str(tmp_path / "a.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("a.parq", "a.json"):
            theirs = fsspec.filesystem("reference", fo=str(tmp_path / name), remote_protocol="file")
            for key, value in source.items():
                if isinstance(value, list) and value[1:] != [0, 0]:
                    assert list(theirs.references[key]) == value
                    assert theirs.cat_file(key) == flat.cat_file(key)
                elif not key.rpartition("/")[2].startswith(".z"):
                    assert theirs.cat_file(key) == flat.cat_file(key)
                else:
                    assert repr(json.loads(theirs.cat_file(key))) == repr(json.loads(flat.cat_file(key)))
        # Without the protocol, fsspec's class only opens sets without a group below the root, and only lists these.
        plain = {k: v for k, v in source.items() if not k.startswith("g/")}
        RefShardFileSystem(plain).save(str(tmp_path / "plain.parq"), record_size=record_size)
        theirs = fsspec.filesystem("reference", fo=str(tmp_path / "plain.parq"))
        assert {i["name"] for i in theirs.ls("none")} == {"none/.zarray"}


def test_only_parquet_sets_are_replaced(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem(make_refs(target))
    folder = tmp_path / "a.parq"
    folder.mkdir()
    fs.save(str(folder), record_size=1)  # an empty directory may exist
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fs.save(str(folder))
    fs.save(str(folder), overwrite=True)
    assert not (folder / "g" / "a" / "refs.1.parq").exists()
    (folder / ".zmetadata").write_text('{"metadata": {}}')
    with pytest.raises(FileExistsError, match="expected an empty directory or a parquet set, found another"):
        fs.save(str(folder), overwrite=True)
    (folder / ".zmetadata").unlink()
    fs.save(str(folder), overwrite=True)  # partitions alone are the remains of a save that was killed
    (folder / ".zmetadata").rename(folder / "mine")
    with pytest.raises(FileExistsError, match="expected an empty directory or a parquet set, found .*mine.*: remove"):
        fs.save(str(folder), overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        fs.save(str(tmp_path / "file"), "parquet", overwrite=True)


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
@pytest.mark.parametrize("through", ["path", "link"])
def test_old_set_stays_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, through: str
) -> None:
    """The new set ends with an error, as on a full disk, before its last object is written."""
    folder = tmp_path / "set"
    url = str(folder)
    if through == "link":
        (tmp_path / "link").symlink_to(folder, target_is_directory=True)
        url = str(tmp_path / "link")
    array = make_v2_array([3], [1])
    RefShardFileSystem({"a/.zarray": array, "a/0": ["memory://old", 0, 1]}).save(str(folder), format, record_size=1)
    new = RefShardFileSystem({"a/.zarray": array, "a/0": ["memory://new", 0, 1]})
    put, puts = Objects.put, list[str]()

    def fails(self: Objects, name: str, *given: Any, **options: Any) -> Any:
        puts.append(name)
        if name == last:
            raise OSError("the disk is full")
        return put(self, name, *given, **options)

    last = ".zmetadata" if format == "parquet" else "zarr.json"
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", fails)
        with pytest.raises(OSError, match="disk is full"):
            new.save(url, format, record_size=1, overwrite=True)
    assert len(puts) > 1, "something had been written before"
    assert RefShardFileSystem(url, skip_instance_cache=True).resolve("a/0")[0] == "memory://old"
    assert sorted(os.listdir(tmp_path)) == (["set"] if through == "path" else ["link", "set"])
    new.save(url, format, record_size=1, overwrite=True)
    assert RefShardFileSystem(url, skip_instance_cache=True).resolve("a/0")[0] == "memory://new"
    assert sorted(os.listdir(tmp_path)) == (["set"] if through == "path" else ["link", "set"])
    assert folder.is_dir()
    assert not folder.is_symlink()


def test_empty_partitions_are_not_written(tmp_path: Path, target: str) -> None:
    source = {
        "a/.zarray": make_v2_array([10**6, 10**6], [1, 1]),
        "a/0.0": [target, 1, 2],
        "a/999999.999999": [target, 2, 3],
    }
    RefShardFileSystem(source).save(str(tmp_path / "a.parq"))
    assert len(os.listdir(tmp_path / "a.parq" / "a")) == 2
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    assert fs.ls("a", detail=False) == ["a/.zarray", "a/0.0", "a/999999.999999"]
    assert len(fs.references) == 4


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.dictionaries(keys, values), size=st.integers(1, 25))
def test_random_sets_survive_parquet_and_json(
    tmp_path_factory: pytest.TempPathFactory, chunks: dict[Any, Any], size: int
) -> None:
    root = tmp_path_factory.mktemp("set")
    source = {f"a/{i}.{j}": v if isinstance(v, bytes) else list(v) for (i, j), v in chunks.items()}
    RefShardFileSystem({"a/.zarray": make_v2_array([5, 4], [1, 1]), **source}).save(
        str(root / "a.parq"), record_size=size
    )
    lazy = RefShardFileSystem(str(root / "a.parq"))
    assert {k: v for k, v in lazy.references.items() if k.startswith("a/") and k[2] != "."} == source
    lazy.save(str(root / "a.json"))
    back = RefShardFileSystem(str(root / "a.json"))
    for key, value in source.items():
        assert (back.cat_file(key) if isinstance(value, bytes) else back.references[key]) == value

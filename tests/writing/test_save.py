"""`save` writes whole sets or nothing, and saved sets have the keys and bytes of their source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import DamagedIndex, RefShardFileSystem, TargetNotAllowed
from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.support.parquet_sets import DATA, ENCODINGS, make_v2_array
from tests.support.saved_sets import is_same, make_refs, read_content

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


@pytest.mark.parametrize("array", ["", "g/a"])
@pytest.mark.parametrize(("meta", "name", "tail"), ENCODINGS.values(), ids=ENCODINGS)
def test_keys_of_several_encodings_survive_parquet_and_json(
    meta: dict[str, Any], name: str, tail: str, array: str, tmp_path: Path, target: str
) -> None:
    stem = f"{array}/" if array else ""
    source = {stem + name: meta}
    source |= {stem + tail.format(*at): [target, 10 * at[0] + at[1], 4] for at in [(0, 0), (0, 2), (1, 1)]}
    RefShardFileSystem(source).save(str(tmp_path / "a.parq"), record_size=2)
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    found = {k: v for k, v in fs.references.items() if k != ".zmetadata"}
    assert {k: json.loads(v) if isinstance(v, str) else v for k, v in found.items()} == source
    fs.save(str(tmp_path / "a.json"))
    back = dict(RefShardFileSystem(str(tmp_path / "a.json")).references)
    assert {k: json.loads(v) if isinstance(v, str) else v for k, v in back.items() if k != ".zmetadata"} == source


@pytest.mark.parametrize("name", ["air.kerchunk.json", "cesm2_native.kerchunk.json", "air.parq"])
def test_saved_sets_have_the_bytes_of_their_source(name: str, tmp_path: Path, shared_data: Path) -> None:
    source = RefShardFileSystem(str(shared_data / "values" / name))
    keys = [k for k in source.find("") if k != ".zmetadata"]
    for written in ("a.parq", "a.json"):
        source.save(str(tmp_path / written), record_size=7)
        fs = RefShardFileSystem(str(tmp_path / written))
        assert read_content(fs, keys) == read_content(source, keys)


def test_relative_urls_stay_relative_beside_their_source(tmp_path: Path, target: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a/.zarray": make_v2_array([1], [1]), "a/0": ["x.bin", 1, 2]}))
    fs = RefShardFileSystem(str(path))
    fs.save(str(tmp_path / "beside.parq"))
    fs.save(str(tmp_path / "else" / "where.parq"))
    for written, url in (("beside.parq", "x.bin"), ("else/where.parq", target)):
        saved = RefShardFileSystem(str(tmp_path / written))
        assert saved.references["a/0"] == [url, 1, 2]
        assert saved.cat_file("a/0") == DATA[1:3]


def test_sets_are_saved_on_other_filesystems(target: str) -> None:
    fs = RefShardFileSystem(make_refs(target))
    memory = MemoryFileSystem()
    memory.rm("/save", recursive=True) if memory.exists("/save") else None
    fs.save("memory://save/a.parq", record_size=5)
    fs.save("memory://save/a.json")
    for name in ("a.parq", "a.json"):
        saved = RefShardFileSystem(f"memory://save/{name}")
        assert is_same(read_content(saved, make_refs(target)), read_content(fs, make_refs(target)))
    with pytest.raises(FileExistsError):
        fs.save("memory://save/a.parq")
    fs.save("memory://save/a.parq", record_size=2, overwrite=True)
    assert "refs.1.parq" in [p.rpartition("/")[2] for p in memory.ls("/save/a.parq/t", detail=False)]


def test_failed_save_leaves_nothing(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": make_v2_array([300], [1]), **{f"a/{n}": [target, n, 1] for n in range(300)}})
    fs.save(str(tmp_path / "a.parq"), record_size=10)
    (tmp_path / "a.parq" / "a" / "refs.25.parq").write_bytes(b"damaged")
    broken = RefShardFileSystem(str(tmp_path / "a.parq"))
    (tmp_path / "b.json").write_text("{}")
    for name in ("b.parq", "b.json"):
        with pytest.raises(DamagedIndex, match=r"refs\.25\.parq"):
            broken.save(str(tmp_path / name), record_size=10)
    assert sorted(os.listdir(tmp_path)) == ["a.parq", "b.json", "x.bin"]
    assert (tmp_path / "b.json").read_text() == "{}"


def test_parquet_set_is_not_written_over_itself(tmp_path: Path, target: str) -> None:
    RefShardFileSystem(make_refs(target)).save(str(tmp_path / "a.parq"))
    fs = RefShardFileSystem(str(tmp_path / "a.parq"))
    with pytest.raises(FileExistsError, match="read from"):
        fs.save(str(tmp_path / "a.parq") + "/", overwrite=True)
    assert fs.cat_file("t/2") == b""


def test_invalid_arguments_are_refused(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem(make_refs(target))
    with pytest.raises(ValueError, match="record_size=0"):
        fs.save(str(tmp_path / "a.parq"), record_size=0)
    with pytest.raises(ValueError, match="format='csv'"):
        fs.save(str(tmp_path / "a"), "csv")
    assert sorted(os.listdir(tmp_path)) == ["x.bin"]


def test_convert_command_writes_a_set(tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(make_refs(target)))
    assert main(["convert", str(path), str(tmp_path / "a.parq"), "--record-size", "3"]) == 0
    assert json.loads((tmp_path / "a.parq" / ".zmetadata").read_bytes())["record_size"] == 3
    assert main(["convert", str(tmp_path / "a.parq"), str(tmp_path / "b"), "--format", "json"]) == 0
    back = RefShardFileSystem(str(tmp_path / "b"))
    assert is_same(
        read_content(back, make_refs(target)), read_content(RefShardFileSystem(str(path)), make_refs(target))
    )
    told, wrong = capsys.readouterr()
    assert (told.count(", written in "), wrong) == (2, "")
    assert main(["convert", str(path), str(tmp_path / "a.parq")]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert main(["convert", str(path), str(tmp_path / "a.parq"), "--overwrite"]) == 0


@pytest.mark.parametrize("format", ["json", "parquet", "chunk-manifest"])
@pytest.mark.case(id="P12")
def test_save_respects_limits_of_remote_sets(http_server: RangeServer, tmp_path: Path, format: Any) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|S6", "order": "C", "fill_value": "",
             "filters": None, "compressor": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(array), "a/0": [str(tmp_path / "secret"), 0, 6]}
    url = http_server.put("/theirs.json", json.dumps({"version": 1, "refs": refs}).encode())
    with pytest.raises(TargetNotAllowed, match="this machine's files"):
        RefShardFileSystem(url).save(str(tmp_path / "mine"), format)
    assert not (tmp_path / "mine").exists()
    named = [str(tmp_path) + "/", http_server.url + "/"]
    RefShardFileSystem(url, allow=named).save(str(tmp_path / "mine"), format)
    assert (tmp_path / "mine").exists()

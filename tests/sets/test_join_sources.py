"""A filesystem of several sources shows the cube that joins them, with the keywords that are not for joining."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import LazySet, RefShardFileSystem, TargetNotAllowed, UnknownSource
from refshard_fs.sets.join_sources import join_if_many, join_sources
from tests.servers.http import RangeServer
from tests.support.joined_sets import make_day_set

ZGROUP = '{"zarr_format": 2}'
META = json.dumps(
    {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": None}
    | {"filters": None, "compressor": None}
)


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """A pattern that two sets match."""
    for day in range(2):
        RefShardFileSystem(make_day_set(2 * day, 2, 2)).save(str(tmp_path / f"{day}.json"))
    return f"{tmp_path}/*.json"


def test_join_sources_leaves_only_options_of_the_filesystem(pattern: str) -> None:
    given = {"concat": {"dim": "time"}, "target_options": {}, "max_gap": 3, "session": "x"}
    cube, left = join_sources(pattern, given)
    assert isinstance(cube, LazySet)
    assert len(cube) == 2
    assert left == {"max_gap": 3, "session": "x"}


def test_one_source_is_not_joined_but_a_pattern_is(pattern: str) -> None:
    assert join_if_many("a.json", {"max_gap": 3}) == ("a.json", {"max_gap": 3})
    assert isinstance(join_if_many(pattern, {})[0], LazySet)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A Parquet file that names two sets by relative URLs, each with its member."""
    refs = {".zgroup": ZGROUP, "a/.zarray": META, "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}', "a/0": "1"}
    for number in range(2):
        (tmp_path / f"{number}.json").write_text(json.dumps({"version": 1, "refs": refs}))
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"url": ["0.json", "1.json"], "member": ["a", "b"]}), tmp_path / "table.parquet"
    )
    return tmp_path / "table.parquet"


def test_table_in_a_local_parquet_file_is_joined(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for fo in (str(table), table, f"file://{table}", "table.parquet"):
        assert set(RefShardFileSystem(fo).ls("", detail=False)) >= {"a", "member"}
    fs = RefShardFileSystem("table.parquet", concat={"assign": {"run": 3}})
    assert "run" in fs.ls("", detail=False)
    RefShardFileSystem(make_day_set(0, 2, 2)).save("set.parquet")  # a directory with the same suffix
    assert isinstance(join_if_many("set.parquet", {})[0], str)


def test_remote_table_is_joined_with_the_option_concat(table: Path, tmp_path: Path) -> None:
    with RangeServer(directory=tmp_path) as server:
        url = f"{server.url}/table.parquet"
        with pytest.raises(UnknownSource, match="a table of URLs needs the option concat"):
            RefShardFileSystem(url).ls("")
        assert "member" in RefShardFileSystem(url, concat={}).ls("", detail=False)


def write_sets_beside(folder: Path) -> list[str]:
    """Write two sets to a directory, with their targets in another one; return the URLs of the sets."""
    (folder / "sets").mkdir()
    (folder / "data").mkdir()
    for day in range(2):
        (folder / f"data/{day}").write_bytes(bytes([day]))
        refs = {
            "a/.zarray": META,
            "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}',
            "a/0": [f"{folder}/data/{day}", 0, 1],
        }
        (folder / f"sets/{day}.json").write_text(json.dumps({"version": 1, "refs": {".zgroup": ZGROUP, **refs}}))
    return [f"{folder}/sets/{day}.json" for day in range(2)]


@pytest.mark.parametrize("more", [{}, {"fs": {"memory": {}}}])
@pytest.mark.parametrize("way", ["open", "pickled", "part", "filesystem"])
def test_allow_limits_the_targets_of_the_sources_of_a_cube(way: str, more: dict[str, Any], tmp_path: Path) -> None:
    """The user lists the sources themselves, so ``allow`` need not name them, but it holds as long as the cube does."""
    urls, allow = write_sets_beside(tmp_path), [f"{tmp_path}/data/"]
    if way == "filesystem":
        fs = RefShardFileSystem(urls, allow=allow, concat={"dim": "time"}, **more)
    else:
        cube: Any = refshard_fs.open(urls, "time", allow=allow)
        cube = pickle.loads(pickle.dumps(cube)) if way == "pickled" else cube.select() if way == "part" else cube
        fs = RefShardFileSystem(cube, **more)
    assert fs.cat_file("a/1") == b"\1"
    (tmp_path / "secret").write_bytes(b"\7")
    Path(urls[1]).write_text(Path(urls[1]).read_text().replace("/data/1", "/secret"))
    with pytest.raises(TargetNotAllowed, match="secret"):
        RefShardFileSystem(fs.fo, **{**fs.storage_options, "session": "other"}).cat_file("a/1")


def test_allow_limits_the_members_of_a_saved_cube(tmp_path: Path) -> None:
    urls, saved = write_sets_beside(tmp_path), str(tmp_path / "cube.refshard")
    refshard_fs.open(urls, "time").save(saved)
    with pytest.raises(TargetNotAllowed, match="sets"):
        RefShardFileSystem(saved, allow=[f"{tmp_path}/data/"]).cat_file("a/1")
    assert RefShardFileSystem(saved, allow=[f"{tmp_path}/data/", f"{tmp_path}/sets/"]).cat_file("a/1") == b"\1"


@pytest.mark.parametrize("function", [refshard_fs.snapshot, lambda fo: refshard_fs.rebase(fo, {}, missing="ignore")])
def test_snapshot_and_rebase_join_a_pattern(function: Any, pattern: str) -> None:
    whole = RefShardFileSystem(function(pattern))
    assert whole.find("") == RefShardFileSystem(pattern).find("")


def test_arguments_of_a_cube_are_a_mapping(pattern: str) -> None:
    with pytest.raises(TypeError, match=r"concat='time': expected a mapping with arguments of refshard_fs.open"):
        RefShardFileSystem(pattern, concat="time")

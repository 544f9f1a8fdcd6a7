"""Chunks listed for a whole array of a cube equal those found key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.tools.survey import survey
from tests.servers.http import RangeServer
from tests.support.joined_sets import make_array, make_day_set
from tests.support.key_spaces import check

DAYS = [make_day_set(0, 4), make_day_set(4, 2), make_day_set(6, 3)]
OTHER = {"compressor": {"id": "zlib", "level": 1}}


def remove_keys(part: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key: value for key, value in part.items() if not key.startswith(prefix)}


def use_slashes(part: dict[str, Any]) -> dict[str, Any]:
    """Return a set whose chunks of ``air`` have keys with slashes."""
    meta = json.loads(part["air/.zarray"]) | {"dimension_separator": "/"}
    keys = {key: key.replace(".", "/") if key.startswith("air/") and "/.z" not in key else key for key in part}
    return {keys[key]: value for key, value in part.items()} | {"air/.zarray": json.dumps(meta)}


CUBES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (DAYS, {}),
    "version 3": ([make_day_set(0, 4, 3), make_day_set(4, 2, 3)], {}),
    "along the last axis": ([make_day_set(0, 4, first=0, width=3), make_day_set(0, 4, first=3, width=6)], {"dim": "x"}),
    "other keys": ([DAYS[0], use_slashes(DAYS[1]), DAYS[2]], {}),
    "recoded": ([DAYS[0], make_day_set(4, 2, fill_value=7), DAYS[2]], {}),
    "recut": (DAYS, {"chunks": {"time": 3}}),
    "without an array": ([remove_keys(DAYS[0], "air/"), *DAYS[1:]], {"join": "outer"}),
    "without chunks": ([DAYS[0], remove_keys(DAYS[1], "air/0."), DAYS[2]], {}),
    "places of another axis": ([make_day_set(0, 4, width=3), make_day_set(4, 2, width=3, first=3)], {"join": "outer"}),
    "gaps": ([DAYS[0], DAYS[2]], {"freq": 1}),
}


@pytest.mark.parametrize("kind", CUBES)
@pytest.mark.parametrize("is_remote", [False, True])
def test_chunks_of_a_cube_agree_with_lookups(
    tmp_path: Path, http_server: RangeServer, kind: str, is_remote: bool
) -> None:
    parts, how = CUBES[kind]
    sources = []
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.json"
        made = refshard_fs.concat([part])
        if is_remote:  # entries of a set from another place have its origin
            made = refshard_fs.rebase(made, {"memory://made": http_server.put("made/x", b"").rpartition("/")[0]})
        RefShardFileSystem(made, skip_instance_cache=True).save(str(path), "json")
        sources.append(http_server.put(f"{number}.json", path.read_bytes()) if is_remote else str(path))
    lazy = refshard_fs.concat(sources, lazy=True, **{"dim": "time", **how})
    check(RefShardFileSystem(lazy, skip_instance_cache=True))


def test_collecting_and_surveying_a_cube_take_few_lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for number in range(3):
        part = make_array("a", np.zeros((40, 50), "|u1"), (1, 1), ["t", "x"])
        paths.append(str(tmp_path / f"{number}.json"))
        Path(paths[-1]).write_text(json.dumps({".zgroup": '{"zarr_format": 2}', **part}))
    asked: list[str] = []
    find = FlatKeySpace.find
    monkeypatch.setattr(FlatKeySpace, "find", lambda space, key: (asked.append(key), find(space, key))[1])
    fs = RefShardFileSystem(refshard_fs.concat(paths, "t", lazy=True), skip_instance_cache=True)
    assert len(collect_references(fs)) == 3 * 40 * 50 + 3
    assert survey(fs).keys == 3 * 40 * 50 + 3
    assert len(asked) < 200


def test_survey_of_parquet_sets_without_a_chunk_has_no_fault(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    paths = []
    for number in range(2):
        part = make_array("a", np.ones((4, 3), "|u1"), (1, 1), ["t", "x"])
        part.pop("a/1.1")
        paths.append(str(tmp_path / f"{number}.parquet"))
        RefShardFileSystem({".zgroup": '{"zarr_format": 2}', **part}, skip_instance_cache=True).save(
            paths[-1], "parquet"
        )
    fs = RefShardFileSystem(refshard_fs.concat(paths, "t", lazy=True), skip_instance_cache=True)
    check(fs)
    faults: list[Any] = []
    assert len(survey(fs, faults=faults).arrays["a"]) == 2 * 11
    assert not faults


@pytest.mark.parametrize("damage", ["gone", "other format", "other array"])
def test_error_of_a_damaged_piece_names_key_and_piece(tmp_path: Path, damage: str) -> None:
    """The error once named only the piece, so that the log of a worker did not show which chunk was lost."""
    for number in range(3):
        RefShardFileSystem(make_day_set(2 * number, 2)).save(str(tmp_path / f"{number}.json"))
    cube = tmp_path / "cube.json"
    refshard_fs.concat([str(tmp_path / f"{number}.json") for number in range(3)], "time", lazy=True).save(str(cube))
    part = tmp_path / "1.json"
    if damage == "gone":
        part.unlink()
    elif damage == "other format":
        part.write_bytes(b"nothing that is known")
    else:
        RefShardFileSystem(remove_keys(make_day_set(2, 2), "air/")).save(str(part))
    fs = RefShardFileSystem(str(cube), skip_instance_cache=True)
    with pytest.raises(RefShardError, match="air/1.0.*1.json"):
        fs.cat_file("air/1.0")
    found = fs.cat(["air/0.0", "air/1.0"], on_error="return")
    assert "'air/1.0'" in str(found["air/1.0"])
    assert len(found["air/0.0"]) > 0

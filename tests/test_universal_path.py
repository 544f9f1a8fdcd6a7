"""Paths of universal_pathlib are made, listed, read and pickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.conventions import ENTRIES
from tests.support.reference_sets import VALUES, make_reference_set


@pytest.fixture
def source(tmp_path: Path) -> str:
    refs, data = make_reference_set("x.bin")
    (tmp_path / "x.bin").write_bytes(data)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    return str(tmp_path / "refs.json")


@pytest.fixture
def root(source: str) -> Any:
    upath = pytest.importorskip("upath", reason="universal_pathlib is not installed")
    if ("universal_pathlib.implementations", "refshard") not in ENTRIES:
        pytest.skip("found by its entry point: install the package")
    return upath.UPath("refshard://", fo=source)


def test_upath_of_a_refshard_url_has_our_class(root: Any) -> None:
    from refshard_fs.universal_path import RefShardPath

    assert type(root) is RefShardPath
    assert type(root / "a") is RefShardPath
    assert str(root / "a" / "0.0") == "refshard://a/0.0"


def test_paths_list_read_and_stat(root: Any) -> None:
    assert {path.name for path in root.iterdir()} == {".zgroup", ".zattrs", "a", "g"}
    assert [path.name for path in sorted((root / "a").glob("3.*"))] == ["3.0", "3.1"]
    assert (root / "a" / "0.0").read_bytes() == VALUES[:2, :3].tobytes()
    assert json.loads((root / ".zattrs").read_text()) == {"title": "x"}
    assert (root / "a").is_dir()
    assert (root / "a" / "0.0").is_file()
    assert (root / "a" / "0.0").stat().st_size == 24
    assert not (root / "nope").exists()
    assert (root / "a" / "0.0").parent == root / "a"
    with (root / "a" / "0.0").open("rb") as file:
        file.seek(4)
        assert file.read(4) == VALUES[0, 1].tobytes()


@pytest.mark.parametrize("url", ["refshard::{}", "refshard::file://{}", "refshard://::{}", "refshard::http"])
def test_chain_without_a_path_is_the_root_of_the_set(url: str, root: Any, source: str, http_server: Any) -> None:
    from upath import UPath

    if url == "refshard::http":
        for name in ("refs.json", "x.bin"):
            http_server.put(f"/{name}", Path(source).with_name(name).read_bytes())
        url = f"refshard::{http_server.url}/refs.json"
    path = UPath(url.format(source))
    assert type(path) is type(root)
    assert {below.name for below in path.iterdir()} == {".zgroup", ".zattrs", "a", "g"}
    assert (path / "a" / "0.0").read_bytes() == VALUES[:2, :3].tobytes()
    assert path / "a" == UPath(url.format(source)) / "a"
    assert UPath(str(path / "a" / "0.0")).read_bytes() == VALUES[:2, :3].tobytes()
    assert pickle.loads(pickle.dumps(path)).is_dir()


def test_missing_key_is_a_missing_file(root: Any) -> None:
    with pytest.raises(FileNotFoundError):
        (root / "a" / "9.9").read_bytes()


def test_path_keeps_its_source_when_it_is_pickled(root: Any) -> None:
    again = pickle.loads(pickle.dumps(root / "a" / "0.0"))
    assert again.read_bytes() == VALUES[:2, :3].tobytes()

"""Keywords are normalized before fsspec stores and compares them; keywords in code override the configuration."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem


@pytest.fixture
def conf() -> Iterator[dict[str, Any]]:
    """Return the part of fsspec's configuration for refshard, which the test fills."""
    with pytest.MonkeyPatch.context() as patch:
        ours: dict[str, Any] = {}
        patch.setitem(fsspec.config.conf, "refshard", ours)
        yield ours


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "refs.json"
    path.write_text('{"a/0": "hello"}')
    return str(path)


def test_configured_source_is_opened(conf: dict[str, Any], source: str) -> None:
    conf |= {"fo": source, "max_gap": "7"}
    assert fsspec.filesystem("refshard").cat_file("a/0") == b"hello"
    assert fsspec.filesystem("refshard").storage_options["max_gap"] == 7
    with fsspec.open("refshard://a/0") as file:
        assert file.read() == b"hello"


@pytest.mark.parametrize("positional", [False, True])
def test_arguments_override_configuration(positional: bool, conf: dict[str, Any], source: str) -> None:
    conf |= {"fo": "nowhere.json", "max_gap": 7, "target_options": {"x": 1}}
    if positional:
        fs = RefShardFileSystem(source, None, None, None, {})
    else:
        fs = RefShardFileSystem(fo=source, target_options={}, max_gap=9)
    assert fs.cat_file("a/0") == b"hello"
    assert fs.storage_options["max_gap"] == (7 if positional else 9)


def test_configuration_survives_pickling_and_json(conf: dict[str, Any], source: str) -> None:
    conf |= {"fo": "nowhere.json", "max_gap": 7}
    fs = RefShardFileSystem({"b": "x"})
    for again in (pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json())):
        assert again.cat_file("b") == b"x"
    conf.clear()
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("b") == b"x"
    assert again.storage_options["max_gap"] == 7


def test_filesystem_as_source_is_refused() -> None:
    fs = RefShardFileSystem({"k": "v"})  # has to_dict(), as a table has
    with pytest.raises(TypeError, match="for fo=, got RefShardFileSystem"):
        RefShardFileSystem(fs)

"""fsspec's configuration sets arguments, in their types; arguments in code override it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.source.options import parse_configuration


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


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_gap", "7", 7),
        ("timeout", "1.5", 1.5),
        ("verify", "false", False),
        ("fast_s3", "1", True),
        ("shards", "whole", "whole"),
        ("allow", '["s3://bucket/"]', ["s3://bucket/"]),
        ("allow", "any", "any"),
        ("remote_options", '{"anon": true}', {"anon": True}),
        ("fo", "[not JSON].json", "[not JSON].json"),
    ],
)
def test_text_is_converted_to_the_type_of_the_option(name: str, text: str, value: Any) -> None:
    assert parse_configuration({name: text}) == {name: value}


def test_converted_values_and_unknown_names_stay_unchanged() -> None:
    conf = {"max_gap": 0, "asynchronous": True, "typo": "x"}
    assert parse_configuration(conf) == conf


@pytest.mark.parametrize(("name", "text"), [("max_gap", "wide"), ("verify", "perhaps"), ("options", "{")])
def test_error_of_inconvertible_text_names_the_option(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"invalid {name}='{text}' in fsspec's configuration for refshard"):
        parse_configuration({name: text})


_PROGRAM = """
import fsspec
fs = fsspec.filesystem("refshard")
print(fs.cat_file("a/0").decode(), fs.storage_options["max_gap"], fs.storage_options["verify"])
"""


@pytest.mark.parametrize("how", ["variables", "one variable", "json", "ini"])
def test_environment_and_files_configure_a_process(how: str, source: str, tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FSSPEC")}
    environment["FSSPEC_CONFIG_DIR"] = str(folder)
    settings = {"fo": source, "max_gap": 7, "verify": False}
    match how:
        case "variables":
            environment |= {f"FSSPEC_REFSHARD_{name.upper()}": str(value).lower() for name, value in settings.items()}
            environment["FSSPEC_REFSHARD_FO"] = source
        case "one variable":
            environment["FSSPEC_REFSHARD"] = json.dumps(settings)
        case "json":
            (folder / "x.json").write_text(json.dumps({"refshard": settings}))
        case "ini":
            (folder / "x.ini").write_text(f"[refshard]\nfo = {source}\nmax_gap = 7\nverify = false\n")
    # Without an installed package, the protocol has no entry point, and has to be registered.
    known = 'import fsspec; fsspec.register_implementation("refshard", "refshard_fs.fs.RefShardFileSystem")\n'
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "error", "-c", known + _PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout == "hello 7 False\n"


def test_source_and_options_of_fsspecs_configuration_are_used(conf: dict[str, Any], source: str) -> None:
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


def test_configuration_survives_pickling_and_json(conf: dict[str, Any]) -> None:
    conf |= {"fo": "nowhere.json", "max_gap": 7}
    fs = RefShardFileSystem({"b": "x"})
    for again in (pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json())):
        assert again.cat_file("b") == b"x"
    conf.clear()
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("b") == b"x"
    assert again.storage_options["max_gap"] == 7

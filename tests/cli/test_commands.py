"""The command ``refshard``: what its commands print, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import __version__
from refshard_fs.cli import main

ARRAY = {
    "zarr_format": 2,
    "shape": [5],
    "chunks": [2],
    "dtype": "|u1",
    "order": "C",
    "fill_value": 0,
    "filters": None,
    "compressor": None,
}
V3_ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}
REFS: dict[str, Any] = {
    ".zgroup": {"zarr_format": 2},
    "a/.zarray": ARRAY,
    "a/0": "ab",
    "a/1": ["data.bin", 3, 2],
    "a/7": "??",
    "b/c/zarr.json": V3_ARRAY,
    "b/c/c/1/0": ["data.bin", 0, 8],
}

Refs = Callable[..., str]


@pytest.fixture
def refs(tmp_path: Path) -> Refs:
    """Write a reference set and its target; return the set's path."""
    (tmp_path / "data.bin").write_bytes(b"01234567")

    def write(content: object = REFS, name: str = "refs.json") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps({"version": 1, "refs": content}))
        return str(path)

    return write


def test_info_counts_the_chunks_of_each_array(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs()
    assert main(["info", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == path
    assert lines[1].startswith("keys 7, bytes ")
    assert lines[1].endswith(", groups 1, arrays 2")
    table = [" ".join(line.split()) for line in lines[3:]]
    assert table == [
        "array shape chunk dtype chunks bytes",
        "a 5 2 |u1 2 of 3 (+1 outside) 4",
        "b/c 4 × 4 2 × 4 uint8 1 of 2 8",
    ]


def test_info_as_json_has_the_same_as_data(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs()
    assert main(["info", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == path
    assert found["groups"] == [""]
    assert found["arrays"][1] == {
        "name": "b/c",
        "shape": [4, 4],
        "chunks": [2, 4],
        "dtype": "uint8",
        "present": 1,
        "possible": 2,
        "stray": 0,
        "bytes": 8,
    }


def test_info_of_an_empty_set_is_no_error(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", refs({})]) == 0
    assert "keys 0, bytes 0, groups 0, arrays 0" in capsys.readouterr().out


def test_info_names_the_document_that_describes_no_array(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", refs({"a/.zarray": {"shape": [1]}})]) == 1
    assert "'a/.zarray'" in capsys.readouterr().err


def test_ls_shows_one_level(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", refs()]) == 0
    assert capsys.readouterr().out.split() == [".zgroup", "a/", "b/"]


def test_ls_long_has_sizes_and_takes_a_path(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "-l", refs(), "b/c"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["-", "b/c/c/"] in rows
    assert all(size.isdigit() for size, name in rows if not name.endswith("/"))


def test_ls_of_a_key_shows_that_key(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json", refs(), "a/1"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "a/1", "type": "file", "size": 2}]


@pytest.mark.parametrize(
    ("content", "said"),
    [("[1, 2]", "refs.json"), ("not JSON", "refs.json"), ({"k": ["url", 1]}, "'k'")],
    ids=["no object", "not JSON", "two elements"],
)
def test_a_broken_set_is_one_line_on_stderr_and_status_1(
    refs: Refs, capsys: pytest.CaptureFixture[str], content: object, said: str
) -> None:
    assert main(["ls", refs(content)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("refshard: ")
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_missing_source_or_key_is_said_to_be_missing(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", refs(), "nothing/here"]) == 1
    assert "nothing/here" in capsys.readouterr().err
    assert main(["info", refs() + ".gone"]) == 1
    assert "refs.json.gone" in capsys.readouterr().err


def test_an_unknown_protocol_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "nosuchprotocol://bucket/refs.json"]) == 1
    assert "nosuchprotocol" in capsys.readouterr().err


def test_options_reach_the_filesystem(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs({"k": ["{{u}}/x", 0, 3]})
    options = ["--option", 'template_overrides={"u": "memory://d"}', "--remote-protocol", "memory"]
    assert main(["ls", "-l", path, *options, "--remote-options", "{}", "--fo-option", "auto_mkdir=false"]) == 0
    assert capsys.readouterr().out.split() == ["3", "k"]


@pytest.mark.parametrize(
    "wrong", [["--option", "novalue"], ["--remote-options", "[]"], ["--remote-options", "{"]], ids=" ".join
)
def test_a_wrong_option_is_a_usage_error(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["ls", "refs.json", *wrong])
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert __version__ in capsys.readouterr().out

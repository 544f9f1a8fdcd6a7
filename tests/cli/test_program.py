"""The command ``refshard``: output and errors."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem, __version__
from refshard_fs.cli import main
from refshard_fs.cli.program import make_parser
from tests.support.cli_sets import ARRAY, Refs


def test_info_counts_the_chunks_of_each_array(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs()
    assert main(["info", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [path, "kerchunk-json version 1, zarr v2, zarr v3"]
    assert lines[2].startswith("7 keys, ")
    assert "; 1 group, 2 arrays; inline: 5 keys, " in lines[2]
    shown = [" ".join(line.split()) for line in lines[4:]]
    assert shown == [
        "array shape chunk dtype codecs chunks bytes",
        "a 5 2 |u1 none 2 of 3 (+1 outside) 4 B",
        "b/c 4 × 4 2 × 4 uint8 bytes 1 of 2 8 B",
        "",
        "1 target (file 1): 2 references, 10 B",
        "target references bytes",
        f"{path.replace('refs.json', 'data.bin')} 2 10 B",
        "",
        "warning: a: 1 key below it is outside of its chunk grid, and never read",
    ]


def test_info_as_json_has_values_of_set_arrays_and_targets(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs()
    assert main(["info", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == path
    assert (found["format"], found["version"], found["zarr_formats"]) == ("kerchunk-json", 1, [2, 3])
    assert (found["keys"], found["groups"], found["inline_keys"]) == (7, [""], 5)
    assert found["arrays"][1] == {
        "name": "b/c",
        "zarr_format": 3,
        "shape": [4, 4],
        "chunks": [2, 4],
        "shards": None,
        "dtype": "uint8",
        "codecs": ["bytes"],
        "present": 1,
        "possible": 2,
        "stray": 0,
        "bytes": 8,
        "unsized": 0,
        "dimensions": [],
    }
    assert found["targets"] == {
        "count": 1,
        "references": 2,
        "bytes": 10,
        "protocols": {"file": 1},
        "top": [{"url": path.replace("refs.json", "data.bin"), "references": 2, "bytes": 10}],
    }


def test_info_accepts_an_empty_set(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", refs({})]) == 0
    assert "0 keys, 0 B; 0 groups, 0 arrays" in capsys.readouterr().out


def test_info_lists_ten_targets_without_secrets(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"a/{i}": [f"https://me:pass@host/{i}?token=hush", 0, 10 + i] for i in range(12)}
    path = refs({"a/.zarray": {**ARRAY, "shape": [24]}, **many})
    for form in ([], ["--json"]):
        assert main(["info", path, *form]) == 0
        said = capsys.readouterr().out
        assert "https://...@host/11?token=..." in said
        assert "pass" not in said
        assert "hush" not in said
        assert said.count("https://") == 10
    assert main(["info", path]) == 0
    assert "and 2 more" in capsys.readouterr().out


def test_info_distinguishes_chunks_and_shards(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(shared_data / "shards" / "zarrs-rust-8x8")
    assert main(["info", "--json", path]) == 0
    (inner,) = json.loads(capsys.readouterr().out)["arrays"]
    assert main(["info", "--json", path, "--option", "shards=whole"]) == 0
    (whole,) = json.loads(capsys.readouterr().out)["arrays"]
    assert (inner["chunks"], inner["shards"]) == (whole["chunks"], whole["shards"]) == ([4, 4], [4, 8])
    assert (inner["possible"], whole["possible"]) == (4, 2)
    assert whole["codecs"][0].startswith("sharding_indexed[")


def test_info_names_the_invalid_metadata(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", refs({"a/.zarray": {"shape": [1]}})]) == 2
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
    ids=["a list", "not JSON", "two elements"],
)
def test_ls_of_a_broken_set_prints_one_line_and_exits_with_2(
    refs: Refs, capsys: pytest.CaptureFixture[str], content: object, said: str
) -> None:
    assert main(["ls", refs(content)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("refshard: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_missing_source_or_key_is_reported(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", refs(), "nothing/here"]) == 2
    assert "nothing/here" in capsys.readouterr().err
    assert main(["info", refs() + ".gone"]) == 2
    assert "refs.json.gone" in capsys.readouterr().err


def test_unknown_protocol_is_named_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "nosuchprotocol://bucket/refs.json"]) == 2
    assert "nosuchprotocol" in capsys.readouterr().err


def test_ls_accepts_options_of_source_and_targets(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    path = refs({"k": ["{{u}}/x", 0, 3]})
    options = ["--option", 'template_overrides={"u": "memory://d"}', "--remote-protocol", "memory"]
    assert main(["ls", "-l", path, *options, "--remote-options", "{}", "--fo-option", "auto_mkdir=false"]) == 0
    assert capsys.readouterr().out.split() == ["3", "k"]


@pytest.mark.parametrize(
    "wrong", [["--option", "novalue"], ["--remote-options", "[]"], ["--remote-options", "{"]], ids=" ".join
)
def test_invalid_option_prints_the_usage_and_exits_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["ls", "refs.json", *wrong])
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_version_option_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), (["ls", "gone.json"], 2)])
def test_package_runs_as_a_command(arguments: list[str], status: int) -> None:
    run = subprocess.run([sys.executable, "-m", "refshard_fs", *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert __version__ in run.stdout or "gone.json" in run.stderr


def test_unknown_option_suggests_a_similar_one(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", refs(), "--option", "remote_protokol=s3"]) == 2
    assert capsys.readouterr().err == (
        "refshard: refshard has no argument remote_protokol=: did you mean --remote-protocol?\n"
    )


def test_errors_of_wrong_arguments_are_one_line(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["ls", refs(), "--option", "allow=3"],
        ["map", refs(), "nothing", "-o", "x.svg"],
        ["map", refs(), "-o", "x"],
    ):
        assert main(wrong) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("refshard: ")
        assert printed.count("\n") == 1
        assert "Traceback" not in printed


def test_selection_beyond_an_array_names_its_option(refs: Refs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", refs(), "a", "-o", "x.svg", "--select", "a[99]"]) == 2
    assert capsys.readouterr().err == (
        "refshard: --select 'a[99]' does not fit the array: index 99 is out of bounds for a dimension of size 5: "
        "expected -5 to 4\n"
    )


def test_output_line_has_size_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "refs.json"
    source.write_text(json.dumps({"a": "text", "b": ["s3://old/b", 0, 5]}))
    target = str(tmp_path / "out.json")
    assert main(["convert", str(source), target]) == 0
    assert re.fullmatch(rf"{re.escape(target)}: \d+ B, written in \d+\.\d s\n", capsys.readouterr().out)
    assert main(["rebase", str(source), target, "--from", "s3://old/", "--to", "s3://new/"]) == 0
    assert re.fullmatch(rf"{re.escape(target)}: 2 keys, \d+ B, written in \d+\.\d s\n", capsys.readouterr().out)


def test_rebase_accepts_an_unused_prefix_if_told_to_ignore_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "refs.json"
    source.write_text(json.dumps({"b": ["s3://old/b", 0, 5]}))
    command = ["rebase", str(source), str(tmp_path / "out.json"), "--from", "gs://x/", "--to", "s3://new/"]
    assert main(command) == 2
    assert "--missing ignore ignores" in capsys.readouterr().err
    assert main([*command, "--missing", "ignore"]) == 0


def test_every_command_has_an_example_that_parses() -> None:
    (below,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in below.choices.items():
        assert command.description is not None
        example = (command.epilog or "").removeprefix("example: ")
        words = shlex.split(example)
        assert words[:2] == ["refshard", name]
        assert make_parser().parse_args(words[1:]).command.name == name


def test_tree_and_info_show_names_of_dimensions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = {"zarr_format": 2, "shape": [4, 2], "chunks": [2, 2], "dtype": "|u1", "order": "C"}
    meta |= {"fill_value": None, "filters": None, "compressor": None}
    refs = {"a/.zarray": json.dumps(meta), "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", "x"]}', "a/0.0": "abcd"}
    source = tmp_path / "refs.json"
    source.write_text(json.dumps(refs))
    assert main(["tree", str(source)]) == 0
    assert "a (time 4 × x 2) |u1" in capsys.readouterr().out
    assert main(["info", str(source)]) == 0
    assert "a (time, x)" in capsys.readouterr().out


LONG = "a_variable_of_the_ocean_model_with_a_standard_name_as_long_as_some_are"


def test_tables_fit_80_columns_except_for_long_names(
    refs: Refs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    meta = {**ARRAY, "shape": [120, 720, 1440], "chunks": [1, 720, 1440], "filters": [{"id": "shuffle"}]}
    meta |= {"compressor": {"id": "numcodecs.fixedscaleoffset"}}
    names = '{"_ARRAY_DIMENSIONS": ["time", "latitude_of_the_grid", "longitude"]}'
    some = {f"{name}/.zarray": json.dumps(meta) for name in ("short", f"group/{LONG}")}
    some |= {f"{name}/.zattrs": names for name in ("short", f"group/{LONG}")}
    path = refs({**some, "short/0.0.0": [f"s3://bucket/{'deep/' * 20}x.nc", 0, 3], "short/1.0.0": ["s3://b/x", 0, 9]})
    assert main(["info", path]) == 0
    printed = capsys.readouterr().out
    table = printed.partition("array ")[2].partition("warning")[0]
    whole = {f"group/{LONG} (time, latitude_of_the_grid, longitude)", f"s3://bucket/{'deep/' * 20}x.nc"}
    assert [line for line in table.splitlines() if len(line) > 80 and line not in whole] == []
    for words in ("120 × 720 × 1440", "1 × 720 × 1440", "shuffle, numcodecs.fixedscaleoffset", "2 of 120"):
        assert set(words.split()) <= set(table.split())
    assert all(text in printed for text in whole)


@pytest.mark.parametrize("name", ["out.zarr", "out.json", "out.parquet"])
def test_info_reads_outputs_of_convert_without_warnings(
    name: str, refs: Refs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    source = refs({".zgroup": {"zarr_format": 2}, "a/.zarray": ARRAY, "a/0": ["data.bin", 0, 2]})
    out = str(tmp_path / name)
    assert main(["convert", source, out]) == 0
    capsys.readouterr()
    assert main(["info", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["warnings"] == []
    assert [array["stray"] for array in told["arrays"]] == [0]
    assert (told["targets"]["count"], told["targets"]["references"]) == (1, 1)


def test_record_size_and_inline_have_the_defaults_of_python() -> None:
    convert, snapshot = (make_parser().parse_args([name, "a", "b"]) for name in ("convert", "snapshot"))
    defaults = [inspect.signature(made).parameters for made in (RefShardFileSystem.save, refshard_fs.snapshot)]
    assert convert.record_size == defaults[0]["record_size"].default
    assert snapshot.inline == defaults[1]["inline_threshold"].default


def test_error_for_several_files_says_to_quote_the_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "1.nc", tmp_path / "2.nc"]
    for file in files:
        file.touch()
    with pytest.raises(SystemExit):
        main(["info", *map(str, files)])
    assert "Quote a pattern, so that the shell does not replace it by names of files: '*.nc'" in capsys.readouterr().err


def test_error_of_a_picture_in_a_missing_folder_names_the_folder(
    refs: Refs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", refs(), "-o", f"{tmp_path}/no/map.svg"]) == 2
    assert capsys.readouterr().err.startswith(f"refshard: there is no directory '{tmp_path}/no' for ")

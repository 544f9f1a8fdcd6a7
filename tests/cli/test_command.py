"""Errors on the command line name its options, not Python's arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs.cli import main
from refshard_fs.cli.command import name_options


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("overwrite=True replaces a parquet set", "--overwrite replaces a parquet set"),
        ("name it in same= to take the first set's", "name it in --same to take the first set's"),
        ("use format='chunk-manifest'", "use --format chunk-manifest"),
        ("with join='outer', its values are missing there", "with --join outer, its values are missing there"),
        ("not on the grid of freq= that begins", "not on the grid of --freq that begins"),
        ("Pass the format with format=", "Pass the format with --option format=..."),
        ("Pass allow='any' if you trust it", "Pass --option allow=any if you trust it"),
        ("Add 'http://h/' to allow= if", "Add 'http://h/' to --option allow=[...] if"),
        ("simple_templates=False needs jinja2", "--option simple_templates=false needs jinja2"),
        ("and max_manifest_bytes=5: more", "and --option max_manifest_bytes=5: more"),
        (
            "(remote_protocol=) or prefix (options=, allow=)",
            "(--remote-protocol) or prefix (--option options=..., --option allow=[...])",
        ),
        ("it is outside allow=['s3://a/']",) * 2,
        ("http://h/x?format=json&target=3 'k?same=1'",) * 2,
        (
            "go into options={'s3://b/': {...}}; if it is public: options={'s3://b/': {'anon': True}}",
            "go into --option 'options={\"s3://b/\": {...}}'; if it is public: "
            '--option \'options={"s3://b/": {"anon": true}}\'',
        ),
        (
            "options={'https://h/': {'headers': {...}}}",
            '--option \'options={"https://h/": {"headers": {...}}}\'',
        ),
        (
            "bogus=: it goes into remote_options={'bogus': ...}, target_options={'bogus': ...}",
            "bogus=: it goes into --remote-options '{\"bogus\": ...}', --fo-option bogus=...",
        ),
        ("3 bytes; open the source with zarr_format=2", "3 bytes; open the source with --option zarr_format=2"),
        ("did you mean allow=?", "did you mean --option allow=[...]?"),
        ("another store (endpoint_url=)", "another store (--fo-option endpoint_url=...)"),
        ("allow=3: it is 'any'", "--option allow=3: it is 'any'"),
        ("same='a/b' takes the first, drop='b' leaves it out", "--same a/b takes the first, --drop b leaves it out"),
        ("and tolerance= takes small differences as rounding", "and --tolerance takes small differences as rounding"),
    ],
)
def test_errors_spell_arguments_as_options(text: str, said: str) -> None:
    assert name_options(text) == said


def test_cat_succeeds_with_the_option_that_its_error_advises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "refs.json").write_text('{"a": [null, 0, 3]}')
    (tmp_path / "k").write_bytes(b"abc")
    assert main(["cat", str(tmp_path / "refs.json"), "a"]) == 2
    said = capsys.readouterr().err
    assert "pass --option target=..., the URL" in said
    assert main(["cat", str(tmp_path / "refs.json"), "a", "--option", f"target={tmp_path / 'k'}"]) == 0


@pytest.mark.parametrize("text", [None, '{"a": [1'])
def test_check_of_an_unreadable_source_exits_with_2(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "refs.json").write_text(text)
    assert main(["check", str(tmp_path / "refs.json")]) == 2
    assert "error: source: " in capsys.readouterr().out


def test_branch_as_an_option_of_the_filesystem_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """fsspec's local filesystem ignores this option, so the command would show the branch main."""
    assert main(["info", str(Path(__file__).parents[1] / "data/icechunk"), "--fo-option", "branch=next"]) == 2
    assert (
        "--fo-option has no 'branch': write --option branch=..., which chooses the version" in capsys.readouterr().err
    )


def test_check_and_its_usage_errors_name_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refs.json").write_text('{"a": [null, 0, 3]}')
    assert main(["check", str(tmp_path / "refs.json")]) == 1
    assert "the reference has no URL: pass --option target=..., the URL" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "refs.json"), "--option", "bogus=1"]) == 2
    assert "options of the source into --fo-option bogus=..." in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "x", "-1"])
def test_invalid_record_size_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "a", "b", f"--record-size={text}"])
    assert f"--record-size: expected a number of at least 1, got {text!r}" in capsys.readouterr().err

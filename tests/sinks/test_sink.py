"""A sink of another package writes a set."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import refshard_fs
from tests.support.plugins import ENTRY_POINTS, OPEN, PLUGIN, run, write_tiny


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the plug-in and its metadata, as after an installation."""
    folder = tmp_path / "site"
    about = folder / "tiny_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(PLUGIN, folder)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def test_set_is_written_by_a_sink_of_another_package(fast_python: list[str], installed: Path, tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "x.tiny", b"abcdefgh")
    assert run(fast_python, OPEN + "print(fs.save(sys.argv[1] + '.lines', 'lines'))", installed, of=file) == "None"
    assert (tmp_path / "x.tiny.lines").read_text() == f"0 {file} 8 4\n1 {file} 12 4\n"


def test_error_of_an_unknown_format_lists_the_formats(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"unknown format='csv': expected 'parquet', 'json', 'chunk-manifest', 'icechunk'\Z"
    ):
        refshard_fs.RefShardFileSystem({}).save(str(tmp_path / "x"), "csv")


def test_command_lists_the_sinks_of_other_packages(installed: Path, tmp_path: Path, fast_python: list[str]) -> None:
    program = """
import sys
from refshard_fs.cli.program import main
sys.stderr = sys.stdout
try:
    main(["convert", "refs.json", "made", "--format", "csv"])
except SystemExit as e:
    print(e.code)
"""
    said = run(fast_python, program, installed, of=tmp_path)
    assert "invalid choice: 'csv' (choose from " in said
    assert "lines" in said
    assert said.endswith("2")

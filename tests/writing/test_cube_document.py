"""The document of a cube names the sets that it joins, and what is shown of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cubes.document import ConcatDocument
from refshard_fs.writing.cube_document import make_cube_document, make_relative_speller, save_document
from tests.support.joined_sets import make_day_set


@pytest.fixture
def cube(tmp_path: Path) -> RefShardFileSystem:
    """A cube of two sets in a directory."""
    urls = [str(tmp_path / f"{number}.json") for number in range(2)]
    for number, url in enumerate(urls):
        RefShardFileSystem(make_day_set(2 * number, 2, 2)).save(url)
    refshard_fs.concat(urls, "time", lazy=True).save(str(tmp_path / "cube.refshard"))
    return RefShardFileSystem(str(tmp_path / "cube.refshard"))


def test_cube_has_a_document_and_a_dict_of_references_has_none(cube: RefShardFileSystem) -> None:
    document = make_cube_document(cube.source)
    assert document is not None
    assert document.urls == ["0.json", "1.json"]
    assert make_cube_document(RefShardFileSystem({"a": "b"}).source) is None


def test_document_of_a_selection_shows_the_selection(cube: RefShardFileSystem, tmp_path: Path) -> None:
    part = cube.select(isel={"time": slice(1, 3)})
    url = str(tmp_path / "below" / "part.refshard")
    part.save(url)
    assert RefShardFileSystem(url).find("") == part.find("")
    document = ConcatDocument.read(Path(url).read_bytes(), url)
    assert document.urls == [str(tmp_path / "0.json"), str(tmp_path / "1.json")]


def test_saved_document_is_relative_to_its_directory(cube: RefShardFileSystem, tmp_path: Path) -> None:
    document = make_cube_document(cube.source)
    assert document is not None
    url = str(tmp_path / "again.refshard")
    save_document(document, url, {}, cube.source.open().resolve)
    assert ConcatDocument.read(Path(url).read_bytes(), url) == document


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("s3://b/2024/x.nc", "x.nc"),
        ("s3://b/2024/deep/x.nc", "deep/x.nc"),
        ("s3://b/2025/x.nc", "s3://b/2025/x.nc"),
        ("s3://b/2024/http://x", "s3://b/2024/http://x"),
        ("s3://b/2024/a.zip::x", "s3://b/2024/a.zip::x"),
    ],
)
def test_urls_below_the_directory_are_relative(part: str, expected: str) -> None:
    assert make_relative_speller("s3://b/2024/cube.refshard")(part) == expected

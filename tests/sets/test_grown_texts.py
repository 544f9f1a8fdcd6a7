"""The document of a cube grows by files with wider or narrower texts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import refshard_fs
from tests.support.text_files import check_texts, find_version, open_dataset, write

pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("scipy")
pytest.importorskip("zarr", minversion="3")


WAYS = ["characters of NetCDF-4", "texts of NetCDF-4", "characters of zarr 2"]
TEXTS = [
    [["abc"], ["ab"], ["a"]],
    [["a"], ["abc"], ["abcde"]],
    [["abc"], ["a"], ["ab", "abcd"]],
]
CASES = list(itertools.product(WAYS, TEXTS, [1, 2]))


# Each pair of two arguments by default: a document of one file, or of two, for each way and each list of texts.
@pytest.mark.parametrize(
    ("way", "texts", "first"),
    [
        pytest.param(
            *case, marks=[] if (WAYS.index(case[0]) + TEXTS.index(case[1])) % 2 == case[2] % 2 else pytest.mark.slow
        )
        for case in CASES
    ],
)
def test_document_grows_by_texts_of_other_widths(tmp_path: Path, way: str, texts: list[list[str]], first: int) -> None:
    urls, expected = write(tmp_path, way, texts)
    version, target = find_version(way), str(tmp_path / "grows.refshard")
    refshard_fs.concat(urls[:first], "time", lazy=True, zarr_format=version).save(target)
    for url in urls[first:]:
        refshard_fs.append(target, url, zarr_format=version)
    check_texts(open_dataset(target, version), expected)

"""The document of a cube grows by files with wider or narrower texts."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from tests.support.text_files import check_texts, find_version, open_dataset, write

pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("scipy")
pytest.importorskip("zarr", minversion="3")


@pytest.mark.parametrize("way", ["characters of NetCDF-4", "texts of NetCDF-4", "characters of zarr 2"])
@pytest.mark.parametrize(
    "texts",
    [
        [["abc"], ["ab"], ["a"]],
        [["a"], ["abc"], ["abcde"]],
        [["ab"], ["ab"], ["abcd"]],
        [["abc"], ["a"], ["ab", "abcd"]],
    ],
)
@pytest.mark.parametrize("first", [1, 2])
def test_document_grows_by_texts_of_other_widths(tmp_path: Path, way: str, texts: list[list[str]], first: int) -> None:
    urls, expected = write(tmp_path, way, texts)
    version, target = find_version(way), str(tmp_path / "grows.refshard")
    refshard_fs.concat(urls[:first], "time", lazy=True, zarr_format=version).save(target)
    for url in urls[first:]:
        refshard_fs.append(target, url, zarr_format=version)
    check_texts(open_dataset(target, version), expected)

"""Texts that references cannot join, which are held in the set."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from tests.support.text_files import WAYS, check_texts, find_version, open_dataset, write

pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("scipy")
pytest.importorskip("zarr", minversion="3")

pytestmark = pytest.mark.filterwarnings("ignore:.*V3 specification")  # of zarr, on fixed-length texts

EVEN = [["a", "bc"], ["defg", ""], ["h", "i"]]


@pytest.mark.parametrize("way", WAYS)
def test_texts_of_different_lengths_are_held_in_references(tmp_path: Path, way: str) -> None:
    urls, expected = write(tmp_path, way, EVEN)
    version = find_version(way)
    made = refshard_fs.concat(urls, "time", zarr_format=version)
    check_texts(open_dataset(made, version), expected)
    made.save(str(tmp_path / "made.json"))
    check_texts(open_dataset(str(tmp_path / "made.json"), version), expected)


@pytest.mark.parametrize("way", ["characters of NetCDF-3", "bytes of zarr 3"])
def test_texts_of_different_lengths_are_appended_to_references(tmp_path: Path, way: str) -> None:
    urls, expected = write(tmp_path, way, EVEN)
    version, target = find_version(way), str(tmp_path / "grows.json")
    refshard_fs.concat(urls[:2], "time", zarr_format=version).save(target)
    refshard_fs.append(target, urls[2], "time", zarr_format=version)
    check_texts(open_dataset(target, version), expected)


def test_texts_of_equal_lengths_stay_references(tmp_path: Path) -> None:
    urls, expected = write(tmp_path, "characters of NetCDF-3", [["ab"], ["cd"]])
    made = refshard_fs.concat(urls, "time")
    assert made.references["name/0.0"][0] == urls[0]
    check_texts(open_dataset(made, 2), expected)

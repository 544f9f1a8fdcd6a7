"""Decode, encode and recut chunks of texts of variable length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.cubes.text_chunk import dump_texts, join_texts, split_texts
from tests.support.text_files import check_texts, find_version, open_dataset, write

numcodecs = pytest.importorskip("numcodecs")
xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr", minversion="3")

pytestmark = pytest.mark.filterwarnings("ignore:.*V3 specification")  # of zarr, on fixed-length texts

UNEVEN = [["a", "bc"], ["def", "", "é"], ["g"]]


def test_chunk_of_texts_equals_that_of_numcodecs() -> None:
    texts = np.array([["a", ""], ["é", "bc"]], object)
    data = dump_texts(texts)
    assert data == numcodecs.VLenUTF8().encode(texts.reshape(-1))
    assert split_texts(b"xx" + data + b"more", 2, 4) == ([b"a", b"", "é".encode(), b"bc"], 2 + len(data))
    assert join_texts([b"a", b"", "é".encode(), b"bc"]) == data


@pytest.mark.parametrize(("cut", "count"), [(slice(0, 3), 2), (slice(0, 10), 2), (slice(0, -1), 2), (slice(None), 3)])
def test_damaged_chunk_of_texts_is_an_error(cut: slice, count: int) -> None:
    data = dump_texts(np.array(["abc", "defg"], object))
    with pytest.raises(ValueError, match="texts"):
        split_texts(data[cut], 0, count)


def test_dump_texts_refuses_numbers() -> None:
    with pytest.raises(ValueError, match="expected texts"):
        dump_texts(np.array([1], object))


@pytest.mark.parametrize(
    "way", ["texts of NetCDF-4", "texts of zarr 2", "texts of zarr 3", "characters of zarr 2", "bytes of zarr 3"]
)
def test_texts_of_uneven_files_are_joined(tmp_path: Path, way: str) -> None:
    if way == "bytes of zarr 3":
        given: Any = [[text.replace("é", "e") for text in texts] for texts in UNEVEN]
    else:
        given = UNEVEN
    urls, expected = write(tmp_path, way, given)
    version = find_version(way)
    cube = refshard_fs.concat(urls, "time", lazy=True, zarr_format=version, chunks={"time": 4})
    check_texts(open_dataset(cube, version), expected)
    fs = refshard_fs.RefShardFileSystem(cube, zarr_format=version)
    fs.save(str(tmp_path / "saved.json"))
    check_texts(open_dataset(str(tmp_path / "saved.json"), version), expected)


def test_texts_with_other_codecs_are_joined(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for number, codec in enumerate((zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec())):
        ds = xr.Dataset({"name": ("time", np.array(["a", "bc" * number], object)), "v": ("time", [0.0, 1.0])})
        ds.to_zarr(
            tmp_path / f"{number}", zarr_format=3, consolidated=False, encoding={"name": {"compressors": [codec]}}
        )
    cube = refshard_fs.concat([str(tmp_path / "0"), str(tmp_path / "1")], "time", lazy=True, zarr_format=3)
    assert [*map(str, open_dataset(cube, 3)["name"].values)] == ["a", "", "a", "bc"]


def test_texts_of_variable_and_fixed_length_are_joined_as_texts(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for number, dtype in enumerate((object, "U3")):
        ds = xr.Dataset({"name": ("time", np.array(["a", "bcd"], dtype)), "v": ("time", [0.0, 1.0])})
        ds.to_zarr(tmp_path / f"{number}", zarr_format=2, consolidated=False)
    for order in ("01", "10"):
        cube = refshard_fs.concat([str(tmp_path / number) for number in order], "time", lazy=True, zarr_format=2)
        group: Any = zarr.open_group(refshard_fs.RefShardFileSystem(cube, zarr_format=2).get_mapper(), mode="r")
        assert [*map(str, group["name"][:])] == ["a", "bcd", "a", "bcd"]

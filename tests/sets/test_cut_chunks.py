"""Chunks without a codec are cut into smaller chunks; compressed chunks cannot be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import ManifestError
from tests.support.uneven_files import open_by_xarray, open_expected, write_month, write_year

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("lazy", [False, True])
def test_chunks_without_a_codec_are_cut_into_smaller_chunks(tmp_path: Path, lazy: bool) -> None:
    files = write_year(tmp_path, [None, (29, 3, 4), (1, 3, 4), None])
    cube = refshard_fs.concat(files, "time", lazy=lazy, subchunks={"time": 1})
    found = open_by_xarray(cube)
    assert found["v"].encoding["chunks"] == (1, 3, 4)
    xr.testing.assert_equal(found, open_expected(files))
    if not lazy:
        assert cube.references["v/33.0.0"][0] == files[1]
        assert cube.references["v/33.0.0"][2] == 3 * 4 * 4


def test_second_dimension_is_cut_only_if_the_first_has_length_1(tmp_path: Path) -> None:
    file = write_month(tmp_path / "0.nc", 0, 4, (2, 3, 4))
    found = open_by_xarray(refshard_fs.concat([file], subchunks={"time": 1, "y": 1}))
    assert found["v"].encoding["chunks"] == (1, 1, 4)
    xr.testing.assert_equal(found, open_expected([file]))
    with pytest.raises(ManifestError, match=r"'v' of .*0\.nc.*is not one range of bytes"):
        refshard_fs.concat([file], subchunks={"y": 1})


@pytest.mark.parametrize("lazy", [False, True])
def test_compressed_chunks_cannot_be_cut(tmp_path: Path, lazy: bool) -> None:
    files = write_year(tmp_path, [(31, 3, 4), (29, 3, 4)], compression="gzip")
    with pytest.raises(ManifestError, match=r"'v' of .*0\.nc.*zlib.*subchunks="):
        refshard_fs.concat(files, "time", lazy=lazy, subchunks={"time": 1})


def test_subchunks_cuts_inline_and_edge_chunks() -> None:
    meta = {"zarr_format": 2, "shape": [2, 7], "chunks": [1, 4], "dtype": "|u1", "order": "C", "fill_value": None}
    refs: dict[str, Any] = {
        "a/.zarray": {**meta, "filters": None, "compressor": None},
        "a/0.0": "abcd",
        "a/0.1": "efg.",
    }
    refs |= {"a/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}, "a/1.0": ["memory://there", 8, 4]}
    found = refshard_fs.concat([refs], subchunks={"x": 2}).references
    assert {key: found[key] for key in found if "z" not in key} == {
        "a/0.0": b"ab",
        "a/0.1": b"cd",
        "a/0.2": b"ef",
        "a/0.3": b"g.",
        "a/1.0": ["memory://there", 8, 2],
        "a/1.1": ["memory://there", 10, 2],
    }
    with pytest.raises(ManifestError, match="not a multiple"):
        refshard_fs.concat([refs], subchunks={"x": 3})
